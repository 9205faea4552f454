//! Groups the lines that a program writes into events: a traceback is one event, not forty lines.
//!
//! `process::read_output` feeds it line by line and says when the program has paused. Pure.
//!
//! # Invariants
//! - Every line is in exactly one event, in order.
//! - An event has at most `MAX_LINES` lines, and `MAX_BYTES` and one line of bytes.
//! - A line that is a JSON object is an event by itself.

/// Lines of one event; longer ones are cut in pieces.
const MAX_LINES: usize = 1000;

/// Bytes of one event.
const MAX_BYTES: usize = 64 * 1024;

/// What Python writes above a traceback.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// What Python writes between two tracebacks of one exception.
const CHAINED: [&str; 2] = [
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
];

/// What a program has written at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputEvent {
    /// Its lines, without the last line end.
    pub text: String,
    /// What it is.
    pub kind: OutputKind,
}

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// Text.
    Text,
    /// An exception with its stack.
    Traceback,
    /// One JSON object.
    Json,
}

/// Collects lines until an event is whole.
#[derive(Debug, Default)]
pub struct OutputEvents {
    pending: String,
    lines: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Lines that are no traceback so far.
    #[default]
    Text,
    /// Inside of a Python traceback: it ends with the first line that is not indented.
    Stack,
    /// Behind the exception's own line: another traceback of the same exception may follow.
    Exception,
    /// A message with indented stack lines below (Ruby).
    Frames,
}

impl OutputEvents {
    /// Takes the next line, without its end; gives the events that are whole by it to `take`.
    pub fn push(&mut self, line: &str, mut take: impl FnMut(OutputEvent)) {
        if is_json_object(line) {
            self.flush(&mut take);
            return take(OutputEvent {
                text: line.to_owned(),
                kind: OutputKind::Json,
            });
        }
        if !self.is_continued_by(line) {
            self.flush(&mut take);
        } else if self.lines == MAX_LINES || self.pending.len() > MAX_BYTES {
            // The next piece is of the same kind.
            let state = self.state;
            self.flush(&mut take);
            self.state = state;
        }
        self.state = self.next_state(line);
        if self.lines > 0 {
            self.pending.push('\n');
        }
        self.pending.push_str(line);
        self.lines += 1;
    }

    /// Whether there are lines that [`Self::flush`] would give.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.lines > 0
    }

    /// Takes what there is for whole: the program has paused or ended.
    pub fn flush(&mut self, mut take: impl FnMut(OutputEvent)) {
        let state = std::mem::take(&mut self.state);
        if std::mem::take(&mut self.lines) == 0 {
            return;
        }
        let text = std::mem::take(&mut self.pending);
        take(OutputEvent {
            text: text.trim_end().to_owned(),
            kind: match state {
                State::Text => OutputKind::Text,
                State::Stack | State::Exception | State::Frames => OutputKind::Traceback,
            },
        });
    }

    fn is_continued_by(&self, line: &str) -> bool {
        let is_indented = line.starts_with([' ', '\t']);
        let is_traceback = line.contains(TRACEBACK);
        match self.state {
            State::Text | State::Frames => is_indented || is_traceback,
            State::Stack => true,
            State::Exception => {
                is_indented || is_traceback || line.is_empty() || CHAINED.contains(&line)
            }
        }
    }

    fn next_state(&self, line: &str) -> State {
        match self.state {
            _ if line.contains(TRACEBACK) => State::Stack,
            State::Stack if line.is_empty() || line.starts_with([' ', '\t']) => State::Stack,
            State::Stack => State::Exception,
            State::Exception => State::Exception,
            State::Text if self.lines > 0 && line.starts_with("\tfrom ") => State::Frames,
            other @ (State::Text | State::Frames) => other,
        }
    }
}

fn is_json_object(line: &str) -> bool {
    line.starts_with('{')
        && line.ends_with('}')
        && serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a program that writes `text` and ends.
    fn events(text: &str) -> Vec<(OutputKind, String)> {
        let (mut events, mut found) = (OutputEvents::default(), Vec::new());
        let mut take = |event: OutputEvent| found.push((event.kind, event.text));
        for line in text.lines() {
            events.push(line, &mut take);
        }
        events.flush(&mut take);
        assert!(!events.is_pending());
        found
    }

    #[test]
    fn a_python_traceback_is_one_event_with_the_line_above_and_what_caused_it() {
        let traceback = "error in GET /\n\
            Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    g()\n    ~^^\n\
            ValueError: x\n\n\
            The above exception was the direct cause of the following exception:\n\n\
            Traceback (most recent call last):\n  File \"a.py\", line 2, in h\n\nKeyError: 'y'";
        let text = format!("before\n{traceback}\nafter\n");
        let wanted = [
            (OutputKind::Text, "before".to_owned()),
            (OutputKind::Traceback, traceback.to_owned()),
            (OutputKind::Text, "after".to_owned()),
        ];
        // The line above a traceback belongs to it; one further up does not.
        assert_eq!(events(&text), wanted);
    }

    #[test]
    fn a_ruby_backtrace_is_one_event() {
        let trace =
            "app.ru:3:in `f': x (RuntimeError)\n\tfrom app.ru:9:in `g'\n\tfrom a.rb:1:in `h'";
        assert_eq!(
            events(&format!("a\n{trace}\nb")),
            [
                (OutputKind::Text, "a".to_owned()),
                (OutputKind::Traceback, trace.to_owned()),
                (OutputKind::Text, "b".to_owned()),
            ]
        );
    }

    #[test]
    fn plain_lines_are_events_each_and_indented_ones_belong_to_the_one_above() {
        assert_eq!(
            events("a\nb\n  c\n\nd"),
            ["a", "b\n  c", "", "d"].map(|text| (OutputKind::Text, text.to_owned()))
        );
        assert_eq!(events(""), []);
    }

    #[test]
    fn a_json_object_is_an_event_by_itself_and_what_only_looks_like_one_is_text() {
        assert_eq!(
            events("a\n{\"level\": \"info\"}\n  b\n{no}\n[1]"),
            [
                (OutputKind::Text, "a".to_owned()),
                (OutputKind::Json, "{\"level\": \"info\"}".to_owned()),
                (OutputKind::Text, "  b".to_owned()),
                (OutputKind::Text, "{no}".to_owned()),
                (OutputKind::Text, "[1]".to_owned()),
            ]
        );
    }

    #[test]
    fn an_endless_traceback_comes_in_pieces() {
        let text = format!("{TRACEBACK}\n{}", "  line\n".repeat(3 * MAX_LINES));
        let found = events(&text);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|(kind, _)| *kind == OutputKind::Traceback));
        assert!(
            found
                .iter()
                .all(|(_, text)| text.lines().count() <= MAX_LINES)
        );
        let total: usize = found.iter().map(|(_, text)| text.lines().count()).sum();
        assert_eq!(total, 3 * MAX_LINES + 1);
        let long = format!(
            "{TRACEBACK}\n{}",
            format!("  {}\n", "x".repeat(MAX_BYTES)).repeat(3)
        );
        assert_eq!(events(&long).len(), 3);
    }
}
