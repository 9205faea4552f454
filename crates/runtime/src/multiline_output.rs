//! Groups the lines that a program writes into events: a traceback is one event, not forty lines.
//!
//! Pure. `process::read_output` feeds it line by line and reports pauses.
//!
//! # Invariants
//! - Every line is in exactly one event, in order.
//! - An event has at most `MAX_LINES` lines, and `MAX_BYTES` and one line of bytes.
//! - A line that is a JSON object is an event by itself.

/// Maximum lines of one event; longer ones are split.
const MAX_LINES: usize = 1000;

const MAX_BYTES: usize = 64 * 1024;

/// Python writes this above a traceback.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// Python writes these between two tracebacks of one exception.
const CHAINED_TRACEBACKS: [&str; 2] = [
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
];

/// Python writes this above its stacks when it aborts.
const FATAL_ERROR: &str = "Fatal Python error: ";

/// Lines below an exception's own that belong to its message: of database drivers, SQLAlchemy and
/// Python's exception chains. Any other line starts the next event, as nothing marks the end of a
/// message.
const MESSAGE_LINE_STARTS: [&str; 8] = [
    "[SQL: ",
    "[parameters: ",
    "(Background on this error at: ",
    "LINE ",
    "DETAIL: ",
    "HINT: ",
    "CONTEXT: ",
    "QUERY: ",
];

/// Maximum lines of a Ruby exception's message, for which its stack is awaited.
const MAX_MESSAGE_LINES: usize = 50;

/// Text that a program has written at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputEvent {
    /// Its lines, without the last line end.
    pub text: String,
    /// Its kind.
    pub kind: OutputKind,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// Text.
    Text,
    /// An exception with its stack.
    Traceback,
    /// One JSON object.
    Json,
}

/// Collects lines until an event is complete.
#[derive(Debug, Default)]
pub struct OutputEventCollector {
    pending: String,
    lines: usize,
    /// Lines of a Ruby exception's message after the first.
    message_lines: usize,
    state: EventState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum EventState {
    /// No traceback so far.
    #[default]
    Text,
    /// Inside a Python traceback: it ends with the first line that is not indented.
    Stack,
    /// After the exception's own line: another traceback of the same exception may follow.
    Exception,
    /// After the first line of a Ruby exception: more of its message, or its stack.
    Message,
    /// A message with indented stack lines below (Ruby, Node.js, Java).
    Frames,
    /// Stacks of all threads of a Python that aborts.
    Fatal,
}

impl OutputEventCollector {
    /// Adds the next line, without its end; passes the events that it completes to `take`.
    pub fn push(&mut self, line: &str, mut take: impl FnMut(OutputEvent)) {
        if is_json_object(line) {
            self.flush(&mut take);
            return take(OutputEvent {
                text: line.to_owned(),
                kind: OutputKind::Json,
            });
        }
        if !self.continues_with(line) {
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

    /// Whether [`Self::flush`] would return lines.
    pub fn is_pending(&self) -> bool {
        self.lines > 0
    }

    /// Completes the pending event: the program has paused or ended.
    pub fn flush(&mut self, mut take: impl FnMut(OutputEvent)) {
        let state = std::mem::take(&mut self.state);
        if std::mem::take(&mut self.lines) == 0 {
            return;
        }
        let text = std::mem::take(&mut self.pending);
        take(OutputEvent {
            text: text.trim_end().to_owned(),
            kind: match state {
                EventState::Text => OutputKind::Text,
                _ => OutputKind::Traceback,
            },
        });
    }

    fn continues_with(&self, line: &str) -> bool {
        let is_indented = line.starts_with([' ', '\t']);
        let is_traceback = line.contains(TRACEBACK);
        match self.state {
            EventState::Text if is_ruby_exception(line) => self.announces_exception(),
            EventState::Text => is_indented || is_traceback,
            EventState::Stack => true,
            EventState::Exception => {
                let is_message = MESSAGE_LINE_STARTS
                    .iter()
                    .any(|start| line.starts_with(start));
                is_indented
                    || is_traceback
                    || is_message
                    || line.is_empty()
                    || CHAINED_TRACEBACKS.contains(&line)
            }
            EventState::Message => {
                let is_full = self.message_lines == MAX_MESSAGE_LINES;
                let is_next = starts_log_record(line) || is_ruby_exception(line);
                is_indented || !is_full && !is_next
            }
            EventState::Frames => {
                is_indented
                    || is_traceback
                    || is_ruby_exception(line)
                    || line.starts_with("Caused by: ")
            }
            EventState::Fatal => {
                let is_thread = line.ends_with("(most recent call first):");
                is_indented
                    || is_thread
                    || line.is_empty()
                    || line.starts_with("Extension modules:")
            }
        }
    }

    fn announces_exception(&self) -> bool {
        let line = &self.pending;
        self.lines == 1
            && (line.starts_with("error in ")
                || line.ends_with("terminated with exception (report_on_exception is true):"))
    }

    fn next_state(&mut self, line: &str) -> EventState {
        match self.state {
            _ if line.contains(TRACEBACK) => EventState::Stack,
            EventState::Stack if line.is_empty() || line.starts_with([' ', '\t']) => {
                EventState::Stack
            }
            EventState::Stack | EventState::Exception => EventState::Exception,
            EventState::Fatal => EventState::Fatal,
            _ if is_stack_frame(line) && self.lines > 0 => EventState::Frames,
            EventState::Text if line.starts_with(FATAL_ERROR) => EventState::Fatal,
            _ if is_ruby_exception(line) => {
                self.message_lines = 0;
                EventState::Message
            }
            EventState::Message => {
                self.message_lines += 1;
                EventState::Message
            }
            other @ (EventState::Text | EventState::Frames) => other,
        }
    }
}

/// Whether a line is a stack frame of Ruby (`\tfrom a.rb:1:in 'f'`, or without `from`), Node.js (`
/// at f (a.js:1:2)`) or Java (`\tat f(A.java:1)`).
fn is_stack_frame(line: &str) -> bool {
    if !line.starts_with([' ', '\t']) {
        return false;
    }
    let line = line.trim_start();
    line.starts_with("from ") && line.contains(':')
        || line.starts_with("at ") && line.ends_with([')', '>']) | line.contains(':')
        || starts_with_ruby_location(line) && line.ends_with(['\'', '`', '>'])
}

/// Whether a line is the first of a Ruby exception: `a.rb:1:in 'f': message (Class)`.
fn is_ruby_exception(line: &str) -> bool {
    // With `highlight`, which is the default on a terminal.
    let end = line.trim_end_matches("\u{1b}[m");
    !line.starts_with([' ', '\t']) && end.ends_with(')') && starts_with_ruby_location(line)
}

/// Whether a line begins with a location in Ruby code: `a.rb:1:in `.
fn starts_with_ruby_location(line: &str) -> bool {
    let Some((place, rest)) = line.split_once(":in ") else {
        return false;
    };
    if !rest.starts_with(['`', '\'']) {
        return false;
    }
    let number = place.rsplit_once(':').map(|(_, number)| number);
    number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a line looks like the first of a log record, beginning with a time or a level.
fn starts_log_record(line: &str) -> bool {
    const LEVELS: [&str; 7] = [
        "DEBUG", "INFO", "NOTICE", "WARN", "ERROR", "FATAL", "CRITICAL",
    ];
    let start = line.get(..8).unwrap_or(line).to_ascii_uppercase();
    line.starts_with(['[', '{']) && line.len() > 1
        || line.starts_with(|first: char| first.is_ascii_digit())
        || LEVELS.iter().any(|level| start.starts_with(level))
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
        let (mut events, mut found) = (OutputEventCollector::default(), Vec::new());
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
    fn causes_and_multi_line_messages_stay_in_one_event() {
        let rows = [
            // The cause of a Ruby exception, and a message of two lines.
            "a.rb:6:in `rescue in f': outer (ArgumentError)\nsecond line\n\tfrom a.rb:6:in `f'\n\
             a.rb:5:in `f': inner (RuntimeError)\n\tfrom a.rb:1:in `<main>'",
            "error in GET /\na.rb:3:in 'Object#f': x (RuntimeError)\n\tfrom a.rb:9:in '<main>'",
            "#<Thread:0x1 a.rb:1 run> terminated with exception (report_on_exception is true):\n\
             a.rb:1:in `block in <main>': in a thread (RuntimeError)",
            "a.rb:7:in `f': \u{1b}[1mx (\u{1b}[1;4mRuntimeError\u{1b}[m\u{1b}[1m)\u{1b}[m\n\tfrom a.rb:1:in `g'",
            "RuntimeError: x\n\ta.rb:11:in `block in <main>'\n\tb.rb:1:in `g'",
            "ERROR:shop:failed\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\n\
             sqlalchemy.exc.ProgrammingError: relation \"x\" does not exist\n\
             LINE 1: SELECT 1\n               ^\n\n[SQL: SELECT 1]\n\
             (Background on this error at: https://sqlalche.me/e/20/f405)",
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  \
             File \"a.py\", line 1 in f\n\nThread 0x2 (most recent call first):\n  File \"b.py\", line 2 in g",
            "TypeError: x is not a function\n    at f (/app/a.js:1:2)\n    at node:internal/x:3:4",
            "java.lang.IllegalStateException: x\n\tat a.B.c(B.java:1)\nCaused by: java.io.IOException: y\n\
             \tat a.B.d(B.java:2)\n\t... 3 more",
        ];
        for text in rows {
            let around = format!("[before] it\n{text}\nINFO after it");
            assert_eq!(
                events(&around),
                [
                    (OutputKind::Text, "[before] it".to_owned()),
                    (OutputKind::Traceback, text.to_owned()),
                    (OutputKind::Text, "INFO after it".to_owned()),
                ]
            );
        }
    }

    #[test]
    fn lines_that_only_look_like_stacks_are_text() {
        for text in [
            "at noon it rained (a lot)",
            "served at 10:30:in time (UTC)",
            "list:\n  from here\n  at last",
            "GET /a:in:b (x)",
        ] {
            assert!(
                events(text)
                    .iter()
                    .all(|(kind, _)| *kind == OutputKind::Text),
                "{text}"
            );
        }
        // Exceptions that are written without their stacks are events each.
        let found = events(&"a.rb:1:in `f': x (RuntimeError)\n".repeat(1000));
        assert_eq!(found.len(), 1000);
        // A message without a stack delays others for a bounded number of lines.
        let head = "a.rb:1:in `f': x (RuntimeError)\n";
        let found = events(&format!("{head}{}", "line\n".repeat(MAX_MESSAGE_LINES + 2)));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn plain_lines_are_events_and_indented_ones_continue_them() {
        assert_eq!(
            events("a\nb\n  c\n\nd"),
            ["a", "b\n  c", "", "d"].map(|text| (OutputKind::Text, text.to_owned()))
        );
        assert_eq!(events(""), []);
    }

    #[test]
    fn a_json_object_is_its_own_event() {
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
    fn an_endless_traceback_is_split() {
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
