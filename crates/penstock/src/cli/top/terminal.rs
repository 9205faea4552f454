//! The terminal of `penstock top`: its own screen, keys without Enter, signals.

use std::io::{self, Read};
use std::time::Duration;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::frame::{Frame, Size};
use super::write_all;

/// The alternate screen, without a cursor and without wrapping.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Begins a frame: to the first column of the first line.
const HOME: &str = "\x1b[H";
const CLEAR_LINE_REST: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// How often keys are read: below what a person notices.
const KEY_INTERVAL: Duration = Duration::from_millis(50);

/// The terminal while frames are shown; dropped, it is as before.
pub(super) struct Terminal {
    before: Termios,
    end: [Signal; 3],
    resize: Signal,
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// The time is over.
    Elapsed,
    /// A key or a signal ends the command.
    Quit,
    Resized,
}

impl Terminal {
    /// Changes the terminal. Called in a runtime of tokio.
    pub(super) fn open() -> io::Result<Self> {
        let end = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let [interrupt, terminate, hangup] = end.map(signal);
        let end = [interrupt?, terminate?, hangup?];
        let resize = signal(SignalKind::window_change())?;
        let before = tcgetattr(io::stdin())?;
        let mut changed = before.clone();
        changed.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // A read returns at once, with the keys there are.
        changed.special_codes[SpecialCodeIndex::VMIN] = 0;
        changed.special_codes[SpecialCodeIndex::VTIME] = 0;
        // A stopped command would leave its screen behind.
        changed.special_codes[SpecialCodeIndex::VSUSP] = 0;
        let terminal = Self {
            before,
            end,
            resize,
        };
        tcsetattr(io::stdin(), OptionalActions::Now, &changed)?;
        write_all(ENTER)?;
        Ok(terminal)
    }

    /// Its size now; some terminals report none.
    pub(super) fn size(&self) -> Size {
        let size = tcgetwinsize(io::stdout()).map(|size| (size.ws_col, size.ws_row));
        match size {
            Ok((columns, rows)) if columns > 0 && rows > 0 => Size {
                columns: usize::from(columns),
                rows: usize::from(rows),
            },
            _ => Size {
                columns: 80,
                rows: 24,
            },
        }
    }

    /// Shows a frame in place of the one before.
    pub(super) fn show(&self, frame: &Frame) -> io::Result<()> {
        let mut text = String::from(HOME);
        for (index, line) in frame.lines().iter().enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            text.push_str(&line.to_ansi());
            text.push_str(CLEAR_LINE_REST);
        }
        text.push_str(CLEAR_BELOW);
        write_all(&text)
    }

    /// Waits for a key, a signal or the end of the time.
    pub(super) async fn wait(&mut self, time: Duration) -> Input {
        let [interrupt, terminate, hangup] = &mut self.end;
        let elapsed = tokio::time::sleep(time);
        tokio::pin!(elapsed);
        loop {
            tokio::select! {
                () = &mut elapsed => return Input::Elapsed,
                _ = interrupt.recv() => return Input::Quit,
                _ = terminate.recv() => return Input::Quit,
                _ = hangup.recv() => return Input::Quit,
                _ = self.resize.recv() => return Input::Resized,
                () = tokio::time::sleep(KEY_INTERVAL) => {
                    if is_quit_key() {
                        return Input::Quit;
                    }
                }
            }
        }
    }
}

/// Reads the keys there are. `q`, Escape alone, Ctrl-C and Ctrl-D quit.
fn is_quit_key() -> bool {
    let mut keys = [0; 64];
    match io::stdin().read(&mut keys) {
        Ok(0) | Err(_) => false,
        // The sequences of other keys begin with Escape.
        Ok(count) => {
            let keys = &keys[..count];
            keys == b"\x1b" || keys.iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4))
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = write_all(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
