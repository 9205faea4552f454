//! Boots of an application that fail one after another: a traceback is logged once, then one line
//! a try while it stays the same.
//!
//! The executor records each failure; the tasks of processes ask before they log a traceback that a
//! booting process has written. A worker that becomes ready, or a restart, begins anew.
//!
//! # Invariants
//! - Two failures count as the same if their frames are the same and their messages differ in
//!   numbers only: addresses, process ids and times change with every try.
//! - Its size does not depend on what is reported.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// What was logged of the boots that have failed since a worker was last ready.
#[derive(Debug, Default)]
pub(crate) struct BootFailures {
    /// Of the marks.
    keys: RandomState,
    last_report: Option<u64>,
    /// Of the last traceback that a booting process has written to its output.
    last_output: Option<u64>,
    count: u32,
}

impl BootFailures {
    /// Begins anew: the next failure is logged in full.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether to log a traceback that a booting process has written: not if it was the last one.
    pub(crate) fn admit_output(&mut self, traceback: &str) -> bool {
        let mark = fingerprint(traceback, &self.keys);
        self.last_output.replace(mark) != Some(mark)
    }

    /// Whether the log has this report.
    pub(crate) fn has_logged(&self, report: &str) -> bool {
        self.last_report == Some(fingerprint(report, &self.keys))
    }

    /// The log's text for a failure, `what` says of what: in full once, then a line as long as it is
    /// the same. It is a line at once if its traceback is in the log as the output of the process.
    pub(crate) fn log_text(&mut self, what: &str, report: &str, when: &str) -> String {
        let mark = fingerprint(report, &self.keys);
        let reason = failure_line(report);
        if self.last_report.replace(mark) == Some(mark) {
            self.count += 1;
            let count = self.count;
            return format!("{what}, {count} times now for the same reason{when}: {reason}");
        }
        self.count = 1;
        let first = report.lines().next().unwrap_or_default();
        match self.last_output == Some(mark) {
            true => format!("{what}{when}: {first}: {reason}"),
            false => format!("{what}{when}\n{report}"),
        }
    }
}

/// The line with the cause: of a Python traceback the last one, of a Ruby backtrace the first.
#[must_use]
pub fn failure_line(report: &str) -> &str {
    let first = report.lines().next().unwrap_or_default();
    // Ruby adds its suggestions below the message, and leaves out a backtrace of one line.
    if is_ruby_frame(first) {
        return first;
    }
    if let Some(last) = python_exception_lines(report).last() {
        return last;
    }
    let mut lines = report.lines().filter(|line| !is_indented(line));
    lines
        .rfind(|line| !line.is_empty())
        .unwrap_or_else(|| report.trim())
}

/// A mark of what failed and where.
fn fingerprint(report: &str, keys: &RandomState) -> u64 {
    let mut hasher = keys.build_hasher();
    let mut lines = python_lines(report).peekable();
    if lines.peek().is_some() {
        lines.for_each(|(line, is_frame)| match is_frame {
            true => line.trim().hash(&mut hasher),
            false => mask_numbers(line).hash(&mut hasher),
        });
        return hasher.finish();
    }
    let has_ruby_frames = report.lines().any(is_ruby_frame);
    let told = report
        .lines()
        .filter(|line| !has_ruby_frames || is_ruby_frame(line));
    told.for_each(|line| mask_numbers(line.trim()).hash(&mut hasher));
    hasher.finish()
}

/// The lines of the Python tracebacks of a text: frames (`true`) and exceptions. Other output
/// between them is left out.
fn python_lines(report: &str) -> impl Iterator<Item = (&str, bool)> {
    let lines = report
        .lines()
        .skip_while(|line| !line.contains(PYTHON_TRACEBACK))
        .skip(1);
    lines
        .scan(true, |was_indented, line| {
            let is_frame = is_indented(line);
            let is_told = is_frame || *was_indented;
            *was_indented = is_frame;
            Some(is_told.then_some((line, is_frame)))
        })
        .flatten()
}

fn python_exception_lines(report: &str) -> impl Iterator<Item = &str> {
    python_lines(report).filter_map(|(line, is_frame)| (!is_frame).then_some(line))
}

const PYTHON_TRACEBACK: &str = "Traceback (most recent call last):";

fn is_indented(line: &str) -> bool {
    line.starts_with([' ', '\t'])
}

fn is_ruby_frame(line: &str) -> bool {
    line.contains(":in `") || line.contains(":in '")
}

/// The line without its numbers, but with those of lines in Ruby's frames.
fn mask_numbers(line: &str) -> String {
    let mut masked = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(|char: char| char.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let is_hex = number.starts_with("0x");
        let digits = number.strip_prefix("0x").unwrap_or(number);
        let is_digit = |char: char| char.is_ascii_digit() || (is_hex && char.is_ascii_hexdigit());
        let behind = digits.trim_start_matches(is_digit);
        masked.push_str(before);
        match behind.starts_with(":in ") {
            true => masked.push_str(&number[..number.len() - behind.len()]),
            false => masked.push('#'),
        }
        rest = behind;
    }
    masked.push_str(rest);
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: &str = "a worker did not start";

    const PYTHON: &str = "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    x\nImportError: no b\n";

    #[test]
    fn a_repeated_failure_is_logged_in_one_line() {
        let mut failures = BootFailures::default();
        let ruby = "a.ru:1:in `x': no c (LoadError)\n\tfrom a.ru:2:in `y'\n";
        let first = failures.log_text(WHAT, PYTHON, "; tried again in 1.0s");
        assert!(first.ends_with(PYTHON), "{first}");
        assert!(failures.has_logged(PYTHON) && !failures.has_logged(ruby));
        let again = failures.log_text(WHAT, PYTHON, "; tried again in 2.0s");
        assert_eq!(
            again,
            "a worker did not start, 2 times now for the same reason; tried again in 2.0s: \
             ImportError: no b"
        );
        assert!(failures.log_text(WHAT, ruby, "").ends_with(ruby));
        assert!(
            failures
                .log_text(WHAT, ruby, "")
                .ends_with("reason: a.ru:1:in `x': no c (LoadError)")
        );
        assert!(failures.log_text(WHAT, PYTHON, "").contains("File"));
        let suggesting = "a.rb:3:in '<main>': no roda (LoadError)\nDid you mean?  roadie\n";
        failures.log_text(WHAT, suggesting, "");
        let again = failures.log_text(WHAT, suggesting, "");
        assert!(
            again.ends_with(": a.rb:3:in '<main>': no roda (LoadError)"),
            "{again}"
        );
        failures.reset();
        assert!(
            failures
                .log_text(WHAT, suggesting, "")
                .contains("Did you mean?")
        );
    }

    #[test]
    fn numbers_in_messages_make_no_new_failure_and_lines_of_code_do() {
        let python = |line: u32, message: &str| {
            format!(
                "Traceback (most recent call last):\n  File \"a.py\", line {line}, in <module>\n    \
                 raise E\n    ^^^^^^^\nE: {message}\n"
            )
        };
        let ruby = |line: u32, message: &str| format!("a.ru:{line}:in `x': {message} (E)\n");
        let told = |line: u32, message: &str| format!("{message}, since {line}\n");
        type Make<'a> = &'a dyn Fn(u32, &str) -> String;
        let rows: [(Make<'_>, bool); 3] = [(&python, true), (&ruby, true), (&told, false)];
        for (make, has_lines) in rows {
            let one = make(3, "<object object at 0x7f7a9ab4c870> of 4524");
            let same = make(3, "<object object at 0x7f01e66c8d0> of 99");
            let moved = make(4, "<object object at 0x7f7a9ab4c870> of 4524");
            let other = make(3, "no object");
            let keys = RandomState::new();
            let mark = |text: &str| fingerprint(text, &keys);
            assert_eq!(mark(&one), mark(&same), "{one}");
            assert_ne!(mark(&one), mark(&other), "{one}");
            let is_moved = mark(&one) != mark(&moved);
            assert_eq!(is_moved, has_lines, "{one}");
        }
    }

    #[test]
    fn a_traceback_in_the_output_is_logged_once_and_not_again_as_a_report() {
        let mut failures = BootFailures::default();
        assert!(failures.admit_output(PYTHON));
        assert!(!failures.admit_output(PYTHON));
        let report =
            format!("the worker ended with exit code 1 before it was ready\nhi\n{PYTHON}bye");
        assert_eq!(
            failures.log_text(WHAT, &report, "; tried again in 1.0s"),
            "a worker did not start; tried again in 1.0s: the worker ended with exit code 1 before it \
             was ready: ImportError: no b"
        );
        assert!(failures.log_text(WHAT, &report, "").contains("2 times now"));
        let other = PYTHON.replace("no b", "no c");
        assert!(failures.admit_output(&other) && failures.admit_output(PYTHON));
        failures.reset();
        assert!(failures.admit_output(PYTHON));
    }
}
