//! The last lines that an application's processes have written, for error pages in development.
//!
//! The executor adds every line that it also logs; [`crate::App::output`] reads them.
//!
//! # Invariants
//! - It is bounded, whatever a process writes.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Lines that are kept of all processes together: a long traceback of a framework, and what came
/// before it.
const MAX_LINES: usize = 240;

/// Characters that are kept of a line.
const MAX_LINE_CHARS: usize = 1000;

/// The last lines, each with the process that wrote it.
#[derive(Debug, Default)]
pub(crate) struct OutputLog {
    /// Guards the lines; held for one of them at a time, or for a copy of all.
    lines: Mutex<OutputLines>,
}

#[derive(Debug, Default)]
struct OutputLines {
    recent: VecDeque<OutputLine>,
    /// Lines that there have been, those that are forgotten included.
    total: u64,
}

#[derive(Debug)]
struct OutputLine {
    /// How many there were before it.
    number: u64,
    pid: u32,
    text: Box<str>,
}

impl OutputLog {
    pub(crate) fn push_line(&self, pid: u32, line: &str) {
        let mut lines = self.lines.lock();
        if lines.recent.len() == MAX_LINES {
            lines.recent.pop_front();
        }
        let text = line.chars().take(MAX_LINE_CHARS).collect();
        let number = lines.total;
        lines.total += 1;
        lines.recent.push_back(OutputLine { number, pid, text });
    }

    pub(crate) fn total_line_count(&self) -> u64 {
        self.lines.lock().total
    }

    /// The lines of one process, or of all of them, without the first `since` lines of all.
    pub(crate) fn lines_of(&self, pid: Option<u32>, since: u64) -> Vec<String> {
        let lines = self.lines.lock();
        let own = lines.recent.iter();
        let own = own.filter(|line| line.number >= since && pid.is_none_or(|pid| pid == line.pid));
        own.map(|line| line.text.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines_of_each_process() {
        let output = OutputLog::default();
        output.push_line(1, "old");
        for number in 0..MAX_LINES {
            let pid = u32::try_from(number % 2).unwrap();
            output.push_line(pid, &format!("{number}{}", "ä".repeat(MAX_LINE_CHARS)));
        }
        let (all, one) = (output.lines_of(None, 0), output.lines_of(Some(1), 0));
        assert_eq!((all.len(), one.len()), (MAX_LINES, MAX_LINES / 2));
        assert!(one[0].starts_with("1ä") && one[0].chars().count() == MAX_LINE_CHARS);
        assert_eq!(output.lines_of(Some(7), 0), [""; 0]);
        let mark = output.total_line_count();
        output.push_line(1, "new");
        assert_eq!(output.lines_of(Some(1), mark), ["new"]);
    }
}
