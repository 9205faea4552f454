//! What is seen while a load runs: the live line on a terminal, and Ctrl-C.
//!
//! `run`, `sweep` and `compare` make one [`LiveLine`] each and give its stop flag to every plan; the line
//! is written to standard error, so that standard output keeps the report alone. It never wraps: only
//! one line can be taken away again. Names and logs of strangers command no terminal.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::text::units::sanitize;

/// A run as the user sees it.
#[derive(Debug)]
pub(crate) struct LiveLine {
    stop_flag: Arc<AtomicBool>,
    is_shown: bool,
    /// Whether a line is on the terminal that the next output must replace.
    is_dirty: bool,
}

impl LiveLine {
    /// Takes over Ctrl-C, SIGTERM and SIGHUP: the first ends the load early, the second the process.
    ///
    /// # Errors
    /// When signals cannot be handled.
    pub(crate) fn new(quiet: bool) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the flag of the first signal is what lets the second one end it.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Self {
            stop_flag: stop,
            is_shown: !quiet && std::io::stderr().is_terminal(),
            is_dirty: false,
        })
    }

    /// The flag that ends a plan.
    #[must_use]
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop_flag)
    }

    /// Whether the user wants to end.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop_flag.load(Ordering::Relaxed)
    }

    /// Shows a line in place of the one before, on a terminal; what does not fit is cut off.
    pub(crate) fn show_line(&mut self, line: &str) {
        if self.is_shown {
            let line = truncate_to_width(line, terminal_columns());
            // Nobody may be looking.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
            self.is_dirty = true;
        }
    }

    /// Says something that stays.
    pub(crate) fn print_line(&mut self, line: &str) {
        self.clear_line();
        let _ = writeln!(std::io::stderr(), "{}", sanitize(line));
    }

    /// Takes the live line away.
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
    // Some terminals say nothing of their width.
    if columns == 0 { 80 } else { columns }
}

/// The beginning of a line that leaves the last column free, where some terminals wrap.
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
