//! The live line on a terminal while a load runs, and Ctrl-C.
//!
//! `run`, `sweep` and `compare` make one [`LiveLine`] each and pass its stop flag to every plan.
//! The line goes to standard error, so that standard output has only the report. It never wraps, as
//! only one line can be erased. Control characters of external names and logs are removed.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::text::units::sanitize;

/// The user's view of a run.
#[derive(Debug)]
pub(crate) struct LiveLine {
    stop_flag: Arc<AtomicBool>,
    is_shown: bool,
    /// Whether the terminal has a line that the next output must replace.
    is_dirty: bool,
}

impl LiveLine {
    /// Handles Ctrl-C, SIGTERM and SIGHUP: the first signal ends the load early, the second the
    /// process.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub(crate) fn new(quiet: bool) -> std::io::Result<Self> {
        let stop_flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the flag set by the first signal makes the second end the process.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop_flag))?;
            signal_hook::flag::register(signal, Arc::clone(&stop_flag))?;
        }
        Ok(Self {
            stop_flag,
            is_shown: !quiet && std::io::stderr().is_terminal(),
            is_dirty: false,
        })
    }

    /// The flag that ends a plan.
    #[must_use]
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop_flag)
    }

    /// Whether the user wants to end the run.
    #[must_use]
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.stop_flag.load(Ordering::Relaxed)
    }

    /// Waits for a while, or until the user wants to end.
    #[expect(clippy::disallowed_methods, reason = "a command line tool, not a loop")]
    pub(crate) fn sleep_unless_stopped(&self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if self.is_stop_requested() || left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Shows a line in place of the previous one, on a terminal, truncated to its width.
    pub(crate) fn show_line(&mut self, line: &str) {
        if self.is_shown {
            let line = truncate_to_width(line, terminal_columns());
            // Standard error may be closed.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
            self.is_dirty = true;
        }
    }

    /// Prints a permanent line.
    pub(crate) fn print_line(&mut self, line: &str) {
        self.clear_line();
        let _ = writeln!(std::io::stderr(), "{}", sanitize(line));
    }

    /// Erases the live line.
    pub(crate) fn clear_line(&mut self) {
        if std::mem::take(&mut self.is_dirty) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.clear_line();
    }
}

/// The width of the terminal, which may have changed since the last line.
fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    // Some terminals report no width.
    if columns == 0 { 80 } else { columns }
}

/// Truncates a line and leaves the last column free, where some terminals wrap.
fn truncate_to_width(line: &str, columns: usize) -> String {
    let mut left = columns.saturating_sub(1);
    let mut fits = |char: char| {
        // Some other characters take two columns, and none takes more.
        let width = if char.is_ascii() { 1 } else { 2 };
        let is_in = width <= left;
        left = if is_in { left - width } else { 0 };
        is_in
    };
    let line = sanitize(line).replace('\n', " ");
    line.chars().take_while(|&char| fits(char)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_wraps() {
        for (name, line, columns, expected) in [
            ("fits", "abc", 4, "abc"),
            ("is as wide as the terminal", "abcd", 4, "abc"),
            ("is wide", "a\u{6f22}\u{5b57}b", 5, "a\u{6f22}"),
            (
                "has line breaks and commands",
                "a\r\nb\x1b[2J",
                80,
                "a b?[2J",
            ),
            ("has no room", "abc", 0, ""),
        ] {
            assert_eq!(truncate_to_width(line, columns), expected, "{name}");
        }
    }
}
