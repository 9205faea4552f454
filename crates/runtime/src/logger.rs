//! The server's log and the access log: lines go through a bounded queue to one writer thread.
//!
//! A loop must never wait for a terminal, a pipe or a disk, so a line that finds the queue full is
//! dropped and counted; the count is logged when there is room again. The server's log goes to
//! standard error through the `log` crate, as text or JSON; access lines go to their own output.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use log::kv::{Key, Value, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};

pub use penstock_http::LogMask;

pub use crate::log_sinks::DatagramSink;

/// Maximum queued lines: at 200 bytes each, about 3 MB.
const MAX_QUEUED_LINES: usize = 16 * 1024;

/// How long lines gather between two writes. The first line after a pause is written at once.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// A writer thread with a bounded queue of lines. Cheap to clone; ends when the last clone drops.
#[derive(Debug, Clone)]
pub struct LogWriter {
    lines: std::sync::mpsc::SyncSender<LogMessage>,
    dropped_lines: Arc<AtomicU64>,
}

enum LogMessage {
    Line(Vec<u8>),
    /// Later lines go there.
    SetOutput(LogOutput),
    Flush(std::sync::mpsc::SyncSender<()>),
}

/// Where lines go.
#[derive(Debug)]
pub enum LogOutput {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// An opened file, appended to.
    File(File),
    /// A daemon that gets each line as a datagram.
    Daemon(DatagramSink),
}

impl LogWriter {
    /// Starts the writer thread.
    pub fn start(name: &str, target: LogOutput) -> std::io::Result<Self> {
        let (lines, queue) = std::sync::mpsc::sync_channel(MAX_QUEUED_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || write_lines(target, &queue, &lost))?;
        Ok(Self {
            lines,
            dropped_lines: dropped,
        })
    }

    /// Queues a line (with its line end); drops and counts it when the queue is full.
    pub fn write(&self, line: Vec<u8>) {
        if self.lines.try_send(LogMessage::Line(line)).is_err() {
            self.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends all later lines to `target`, such as a reopened log file.
    ///
    /// # Errors
    /// When the queue is full: nothing has changed.
    pub fn set_output(&self, target: LogOutput) -> std::io::Result<()> {
        let full = |_| std::io::Error::other("log output too slow");
        self.lines
            .try_send(LogMessage::SetOutput(target))
            .map_err(full)
    }

    /// Number of lines dropped so far.
    pub fn dropped_lines(&self) -> u64 {
        self.dropped_lines.load(Ordering::Relaxed)
    }

    /// Waits until all queued lines are written, about a second at most. Blocks: call it at the end
    /// of the process only.
    pub fn flush(&self) {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        if self.lines.try_send(LogMessage::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(Duration::from_secs(1));
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a separate thread; no event loop waits for it"
)]
fn write_lines(
    mut target: LogOutput,
    queue: &std::sync::mpsc::Receiver<LogMessage>,
    dropped: &AtomicU64,
) {
    let mut batch = Vec::with_capacity(64 * 1024);
    let mut reported = 0;
    while let Ok(first) = queue.recv() {
        let mut next = Some(first);
        let mut flushed = Vec::new();
        // All queued lines go out in one write.
        while let Some(message) = next.take() {
            match message {
                LogMessage::Line(line) => batch.extend_from_slice(&line),
                LogMessage::SetOutput(new) => {
                    write_out(&mut target, &mut batch, dropped);
                    target = new;
                }
                LogMessage::Flush(done) => flushed.push(done),
            }
            if batch.len() < 60 * 1024 {
                next = queue.try_recv().ok();
            }
        }
        let lost = dropped.load(Ordering::Relaxed);
        // A daemon gets requests alone; the status page has the number.
        if lost > reported && !matches!(target, LogOutput::Daemon(_)) {
            batch.extend_from_slice(
                format!(
                    "warn: {} log lines dropped: log output too slow\n",
                    lost - reported
                )
                .as_bytes(),
            );
            reported = lost;
        }
        write_out(&mut target, &mut batch, dropped);
        let is_flush = !flushed.is_empty();
        for done in flushed {
            let _ = done.try_send(());
        }
        if !is_flush {
            // A queued line wakes this thread only if it waits for one: under load that would be
            // for every line, and cost more than the line.
            std::thread::sleep(BATCH_DELAY);
        }
    }
}

fn write_out(target: &mut LogOutput, batch: &mut Vec<u8>, dropped: &AtomicU64) {
    // A log that cannot be written (disk full, pipe closed) must not stop the server.
    let _ = match target {
        LogOutput::Stdout => std::io::stdout().lock().write_all(batch),
        LogOutput::Stderr => std::io::stderr().lock().write_all(batch),
        LogOutput::File(file) => file.write_all(batch),
        LogOutput::Daemon(daemon) => {
            let (now, wall) = (crate::clock::now(), crate::clock::wall_time());
            for line in batch.split_inclusive(|&byte| byte == b'\n') {
                if daemon.send_line(line, now, wall).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        }
    };
    batch.clear();
}

/// The format of the server's log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineFormat {
    /// For people: `time level area: what happened (key=value)`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Target of a line that is a JSON object already: it is written unchanged in either format.
pub const VERBATIM_TARGET: &str = "verbatim";

struct ServerLog {
    writer: LogWriter,
    level: LevelFilter,
    format: LineFormat,
    mask: LogMask,
}

impl Log for ServerLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = match self.format {
            _ if record.target() == VERBATIM_TARGET => format!("{}\n", record.args()),
            LineFormat::Text => text_line(record, crate::clock::wall_time(), &self.mask),
            LineFormat::Json => json_line(record, crate::clock::wall_time(), &self.mask),
        };
        self.writer.write(line.into_bytes());
    }

    fn flush(&self) {
        self.writer.flush();
    }
}

fn level_name(level: Level) -> String {
    level.as_str().to_ascii_lowercase()
}

/// Formats a line for people. Output of an application begins with its name and process (`app`,
/// `pid`).
fn text_line(record: &Record<'_>, now: Duration, mask: &LogMask) -> String {
    let fields = LogFields::from_record(record);
    let mut source = String::new();
    if let Some(app) = fields.text("app") {
        let pid = fields.text("pid").unwrap_or_else(|| "?".to_owned());
        source = format!("{app}[{pid}]: ");
    }
    let others = fields.0.iter();
    let others = others.filter(|(key, _)| !matches!(key.as_str(), "app" | "pid"));
    let others: Vec<String> = others
        .map(|(key, value)| format!("{key}={}", unquoted(value)))
        .collect();
    let others = match others.is_empty() {
        true => String::new(),
        false => format!(" ({})", others.join(" ")),
    };
    let message = masked_message(record, &fields, mask);
    let text = escape_control_chars(&format!("{source}{message}{others}"));
    let time = penstock_http::rfc3339_millis(now);
    format!("{time} {} {text}\n", level_name(record.level()))
}

/// Formats the same as one JSON object, in the order in which a person reads it.
fn json_line(record: &Record<'_>, now: Duration, mask: &LogMask) -> String {
    let mut line = String::from("{");
    let mut add = |key: &str, value: &serde_json::Value| {
        let comma = if line.len() > 1 { "," } else { "" };
        let key = serde_json::Value::from(key);
        // Writing to a String cannot fail.
        let _ = write!(line, "{comma}{key}:{value}");
    };
    add("time", &penstock_http::rfc3339_millis(now).into());
    add("level", &level_name(record.level()).into());
    let fields = LogFields::from_record(record);
    for (key, value) in &fields.0 {
        add(key, value);
    }
    let message = masked_message(record, &fields, mask);
    let (area, message) = match fields.has("app") {
        true => (None, &*message),
        false => split_area(&message),
    };
    if let Some(area) = area {
        add("area", &area.into());
    }
    add("message", &message.trim_end().into());
    line.push_str("}\n");
    line
}

/// The area that a message of the server begins with (`upgrade: ...`), and the rest.
fn split_area(message: &str) -> (Option<&str>, &str) {
    match message.split_once(": ") {
        Some((area, rest)) if !area.contains('\n') => (Some(area), rest),
        _ => (None, message),
    }
}

/// The message of a record, with secrets in URLs masked. Output of applications is not masked.
fn masked_message(record: &Record<'_>, fields: &LogFields, mask: &LogMask) -> String {
    let message = record.args().to_string();
    if fields.has("app") {
        return message;
    }
    match mask.apply_str(&message) {
        Cow::Borrowed(_) => message,
        Cow::Owned(masked) => masked,
    }
}

/// A text without its quotes, anything else as JSON.
fn unquoted(value: &serde_json::Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The key-value pairs of a record, in their order.
struct LogFields(Vec<(String, serde_json::Value)>);

impl LogFields {
    fn from_record(record: &Record<'_>) -> Self {
        let mut fields = Self(Vec::new());
        // The visitor below never fails.
        let _ = record.key_values().visit(&mut fields);
        fields
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    fn text(&self, key: &str) -> Option<String> {
        let (_, value) = self.0.iter().find(|(name, _)| name == key)?;
        Some(unquoted(value))
    }
}

impl<'kvs> VisitSource<'kvs> for LogFields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        let number = value.to_u64().map(serde_json::Value::from);
        let value = number.unwrap_or_else(|| value.to_string().into());
        self.0.push((key.as_str().to_owned(), value));
        Ok(())
    }
}

/// Escapes control characters, so that text from a client or an application cannot forge a line or
/// move a terminal's cursor. A line break becomes a new line with an indent.
#[must_use]
pub fn escape_control_chars(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim_end_matches('\n').chars() {
        match c {
            '\n' => out.push_str("\n    "),
            '\t' => out.push('\t'),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Installs the server's log on standard error, masked by `mask`. Returns its writer, for the final
/// flush.
///
/// # Errors
/// When no thread can be started or a log is installed already.
pub fn install(
    level: LevelFilter,
    format: LineFormat,
    mask: LogMask,
) -> std::io::Result<LogWriter> {
    let writer = LogWriter::start("log", LogOutput::Stderr)?;
    let log = ServerLog {
        writer: writer.clone(),
        level,
        format,
        mask,
    };
    log::set_boxed_logger(Box::new(log)).map_err(std::io::Error::other)?;
    log::set_max_level(level);
    Ok(writer)
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[test]
    fn control_characters_cannot_forge_a_line() {
        assert_eq!(
            escape_control_chars("a\u{1b}[31mb\rc\nd\n"),
            "a\\u{1b}[31mb\\rc\n    d"
        );
    }

    fn record<R>(
        args: fmt::Arguments<'_>,
        fields: &dyn log::kv::Source,
        f: impl FnOnce(&Record<'_>) -> R,
    ) -> R {
        let mut builder = Record::builder();
        f(&builder
            .args(args)
            .level(Level::Warn)
            .key_values(&fields)
            .build())
    }

    #[test]
    fn a_line_has_time_level_source_text_and_fields() {
        let now = Duration::from_millis(784_111_777_042);
        let fields = [
            ("app", Value::from("shop")),
            ("pid", Value::from(7_u32)),
            ("tries", Value::from(3_u32)),
        ];
        let args = format_args!("a \"quoted\"\nsecond");
        let mask = LogMask::default();
        let text = record(args, &fields, |record| text_line(record, now, &mask));
        assert_eq!(
            text,
            "1994-11-06T08:49:37.042Z warn shop[7]: a \"quoted\"\n    second (tries=3)\n"
        );
        let json = record(args, &fields, |record| json_line(record, now, &mask));
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        let wanted = serde_json::json!({
            "time": "1994-11-06T08:49:37.042Z", "level": "warn", "app": "shop", "pid": 7, "tries": 3,
            "message": "a \"quoted\"\nsecond",
        });
        assert_eq!(read, wanted);
        assert_eq!(json.lines().count(), 1, "{json}");
        assert!(json.starts_with("{\"time\":"), "{json}");
        let args = format_args!("upgrade: aborted: it: ended");
        let own = &fields[2..];
        let json = record(args, &own, |record| json_line(record, now, &mask));
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["area"], "upgrade", "{json}");
        assert_eq!(read["message"], "aborted: it: ended", "{json}");
        // The server's own lines are masked, those of an application are not.
        let args = format_args!("edge: 502 GET /a?token=s3cret b");
        for (fields, is_masked) in [(&fields[..], false), (&fields[2..], true)] {
            let text = record(args, &fields, |record| text_line(record, now, &mask));
            let json = record(args, &fields, |record| json_line(record, now, &mask));
            for line in [text, json] {
                assert_eq!(line.contains("GET /a?token=*** b"), is_masked, "{line}");
                assert_eq!(line.contains("s3cret"), !is_masked, "{line}");
            }
        }
    }

    #[test]
    fn lines_reach_a_file_in_order() {
        let path = std::env::temp_dir().join(format!("penstock-log-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let writer = LogWriter::start("test", LogOutput::File(file)).unwrap();
        for i in 0..100 {
            writer.write(format!("{i}\n").into_bytes());
        }
        writer.flush();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 100);
        assert!(text.starts_with("0\n1\n"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn no_line_is_lost_when_the_output_changes() {
        let name = format!("penstock-log-turned-{}", std::process::id());
        let paths = ["a", "b"].map(|end| std::env::temp_dir().join(format!("{name}-{end}")));
        let file = |at: usize| LogOutput::File(File::create(&paths[at]).unwrap());
        let writer = LogWriter::start("test", file(0)).unwrap();
        writer.write(b"before\n".to_vec());
        writer.set_output(file(1)).unwrap();
        writer.write(b"after\n".to_vec());
        writer.flush();
        for (path, text) in paths.iter().zip(["before\n", "after\n"]) {
            assert_eq!(std::fs::read_to_string(path).unwrap(), text);
            std::fs::remove_file(path).unwrap();
        }
    }
}
