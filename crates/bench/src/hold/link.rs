//! The coordinator's end of an agent: starts it, gives it its order, hears its words, and surely ends it.
//!
//! What must stay true: an agent's standard input stays open as long as the [`Link`] lives and no longer,
//! and no other process has its other end; so an agent ends with the coordinator, however that ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::order::{Ask, LINE_BYTES_MAX, Order, Word};

/// An agent that runs.
#[derive(Debug)]
pub(super) struct Link {
    child: Child,
    /// Its life line.
    input: Option<ChildStdin>,
}

/// What an agent said.
#[derive(Debug)]
pub(super) enum Heard {
    Word(Word),
    /// It says nothing more.
    Gone,
}

impl Link {
    /// Starts `program bench hold-agent` and gives it its order; what it says goes to `words` with its
    /// number.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(
        program: &Path,
        number: usize,
        order: &Order,
        words: SyncSender<(usize, Heard)>,
    ) -> Result<Self, String> {
        let wrong = |why: std::io::Error| format!("agent {number}: {}: {why}", program.display());
        let mut child = Command::new(program)
            .args(["bench", "hold-agent"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(wrong)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut link = Self { child, input };
        if let Some(output) = output {
            std::thread::spawn(move || hear(output, number, &words));
        }
        link.tell(order).map_err(wrong)?;
        Ok(link)
    }

    /// Asks it for something. An agent that cannot be told is gone, which its end says.
    pub(super) fn ask(&mut self, ask: Ask) {
        let _ = self.tell(&ask);
    }

    /// Closes its input, which ends it; several can end at once.
    pub(super) fn close(&mut self) {
        self.input = None;
    }

    /// How it ended, once it has said its last word.
    pub(super) fn how_ended(&mut self) -> String {
        self.close();
        let how = self.ended();
        how.map_or_else(|| "it does not end".to_owned(), |how| how.to_string())
    }

    /// Waits for the end of a process whose input was closed.
    fn ended(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + END_TIME;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::park_timeout(END_LOOK),
                _ => return None,
            }
        }
    }

    fn tell(&mut self, what: &impl serde::Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        match &mut self.input {
            Some(input) => input.write_all(&line).and_then(|()| input.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
        if self.ended().is_none() {
            // It may be ending in this moment.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Hands on what an agent says, until it ends or nobody listens any more.
fn hear(output: impl Read, number: usize, words: &SyncSender<(usize, Heard)>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut output).take(LINE_BYTES_MAX as u64);
        let read = bounded.read_until(b'\n', &mut line);
        let word = match read {
            Ok(count) if count > 0 => serde_json::from_slice(&line).ok(),
            _ => None,
        };
        let heard = word.map_or(Heard::Gone, Heard::Word);
        let is_gone = matches!(heard, Heard::Gone);
        if words.send((number, heard)).is_err() || is_gone {
            return;
        }
    }
}

/// An agent closes some ten thousand sockets within this.
const END_TIME: Duration = Duration::from_secs(10);
const END_LOOK: Duration = Duration::from_millis(5);
