//! One line per request: the combined format with timings appended, JSON, or a short format for a
//! terminal.
//!
//! Written when a response is out. The line goes to a bounded queue before a writer thread
//! (`runtime::logger`), never from an event loop to a disk.
//!
//! # Invariants
//! - A client cannot forge a line: control and non-ASCII bytes, quotes and backslashes are escaped.

mod custom_format;
mod dev_format;
mod filter;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::LogFormat;
use penstock_exchange::trace_context::HexId;
use penstock_exchange::{ListenerInfo, RequestId, RequestTiming, TlsInfo, TraceContext};
use penstock_http::{LogMask, RequestHead};
use penstock_rules::RequestFacts;
use penstock_runtime::{clock, logger::LogWriter};
use penstock_sys::net::PeerAddress;

use self::custom_format::LineWriter;
use crate::RouteObservation;
use crate::accept::ConnectionSource;

pub use filter::LogFilter;

/// Where and how requests are logged.
#[derive(Debug)]
pub struct AccessLog {
    /// The queue of lines.
    pub writer: LogWriter,
    /// The format of lines.
    pub format: LogFormat,
    /// Whether `dev` lines have colours.
    pub colours: bool,
    /// Masks the values of query parameters.
    pub mask: LogMask,
    /// Which requests are logged.
    pub filter: LogFilter,
    /// Whether it has the requests of sites that name no logs of their own.
    pub is_default: bool,
}

/// What a line is about.
#[derive(Debug, Clone, Copy)]
enum LogSubject<'a> {
    Exchange(&'a AccessRecord<'a>),
    Refused(&'a RefusedRecord<'a>),
}

/// A head that was refused or did not arrive whole.
#[derive(Debug)]
struct RefusedRecord<'a> {
    client: PeerAddress,
    peer: PeerAddress,
    status: u16,
    /// The beginning of its first line.
    line: &'a [u8],
    reason: &'a str,
}

/// An exchange at its end.
#[derive(Debug)]
pub(crate) struct AccessRecord<'a> {
    pub(crate) head: &'a RequestHead,
    /// The client, as far as trusted proxies name it.
    pub(crate) client: PeerAddress,
    /// The other end of the connection.
    pub(crate) peer: PeerAddress,
    pub(crate) status: u16,
    /// Those of the body, as in the combined format.
    pub(crate) body_bytes: u64,
    /// The listener of the connection.
    pub(crate) listener: &'a ListenerInfo,
    /// The session of the connection.
    pub(crate) tls: Option<&'a TlsInfo>,
    /// Its id, where requests have one.
    pub(crate) request_id: Option<&'a RequestId>,
    /// Its place in a trace, where requests are traced.
    pub(crate) trace: Option<&'a Arc<TraceContext>>,
    /// Its route, where a log shows it.
    pub(crate) route: Option<&'a RouteObservation>,
    /// The authority that the client asked for, as trusted proxies name it.
    pub(crate) host: &'a str,
    /// The scheme that the client used.
    pub(crate) scheme: &'static str,
    /// The user that the client has proved to be.
    pub(crate) user: Option<&'a str>,
    pub(crate) timing: &'a RequestTiming,
    pub(crate) total_time: Duration,
}

impl AccessLog {
    /// Writes the line of an exchange, if the log has such requests.
    pub(crate) fn write(&self, record: &AccessRecord<'_>) {
        let facts = RequestFacts {
            head: record.head,
            client: record.client,
            scheme: record.scheme,
            listener: record.listener,
            tls: record.tls,
        };
        if !self.filter.admits(&facts, record.status, record.total_time) {
            return;
        }
        let now = clock::wall_time();
        let line = match &self.format {
            LogFormat::Combined => format_combined(record, now.as_secs(), &self.mask),
            LogFormat::Common => format_common(record, now.as_secs(), &self.mask) + "\n",
            LogFormat::Json => format_json(record, now, &self.mask),
            LogFormat::Dev => dev_format::format_line(record, self.colours, &self.mask),
            LogFormat::Template(template) => {
                let subject = LogSubject::Exchange(record);
                self.line_writer(subject, now).format_template(template)
            }
            LogFormat::Fields(fields) => {
                let subject = LogSubject::Exchange(record);
                self.line_writer(subject, now).format_fields(fields)
            }
        };
        self.writer.write(line.into_bytes());
    }

    /// Writes a line for a head that was refused or did not arrive whole, with the reason and the
    /// beginning of its first line.
    pub(crate) fn write_refused(
        &self,
        sender: &ConnectionSource,
        status: u16,
        reason: &str,
        line: &[u8],
    ) {
        if !self.filter.admits_refused(status) {
            return;
        }
        let now = clock::wall_time();
        let refused = RefusedRecord {
            client: sender.client_address(),
            peer: sender.peer_address(),
            status,
            line,
            reason,
        };
        let line = match &self.format {
            LogFormat::Combined => {
                let line = refused.format_common(now.as_secs(), &self.mask);
                let reason = EscapedBytes(reason.as_bytes());
                format!("{line} \"-\" \"-\" reason=\"{reason}\"\n")
            }
            LogFormat::Common => refused.format_common(now.as_secs(), &self.mask) + "\n",
            LogFormat::Json => refused.format_json(now, &self.mask),
            LogFormat::Dev => dev_format::format_refused(&refused, self.colours),
            LogFormat::Template(template) => {
                let subject = LogSubject::Refused(&refused);
                self.line_writer(subject, now).format_template(template)
            }
            LogFormat::Fields(fields) => {
                let subject = LogSubject::Refused(&refused);
                self.line_writer(subject, now).format_fields(fields)
            }
        };
        self.writer.write(line.into_bytes());
    }

    fn line_writer<'a>(&'a self, subject: LogSubject<'a>, now: Duration) -> LineWriter<'a> {
        LineWriter {
            subject,
            now,
            mask: &self.mask,
        }
    }
}

impl RefusedRecord<'_> {
    /// The common format, without the end of its line.
    fn format_common(&self, now: u64, mask: &LogMask) -> String {
        let date = format_log_date(now);
        let line = mask.apply_url(self.line);
        let line = EscapedBytes(if line.is_empty() { b"-" } else { &line });
        let (client, status) = (format_peer(self.client), self.status);
        format!("{client} - - [{date}] \"{line}\" {status} 0")
    }

    fn format_json(&self, now: Duration, mask: &LogMask) -> String {
        let value = serde_json::json!({
            "time": now.as_secs_f64(),
            "client": format_peer(self.client),
            "peer": format_peer(self.peer),
            "method": null,
            "target": null,
            "line": String::from_utf8_lossy(&mask.apply_url(self.line)),
            "status": self.status,
            "reason": self.reason,
        });
        escape_controls(value.to_string()) + "\n"
    }
}

/// `21/Nov/2026:22:08:21 +0000`.
fn format_log_date(now: u64) -> String {
    let date = penstock_http::imf_fixdate(now);
    let text = |range: std::ops::Range<usize>| std::str::from_utf8(&date[range]).unwrap_or("");
    format!(
        "{}/{}/{}:{} +0000",
        text(5..7),
        text(8..11),
        text(12..16),
        text(17..25)
    )
}

/// The common format, without the end of its line.
fn format_common(record: &AccessRecord<'_>, now: u64, mask: &LogMask) -> String {
    let mut line = String::with_capacity(256);
    let head = record.head;
    // Writing to a String cannot fail.
    let _ = write!(
        line,
        "{} - {} [{}] \"{} {} {}\" {} {}",
        format_peer(record.client),
        EscapedBytes(record.user.unwrap_or("-").as_bytes()),
        format_log_date(now),
        head.method_str(),
        EscapedBytes(&mask.apply_url(head.target().as_bytes())),
        head.version().as_str(),
        record.status,
        record.body_bytes,
    );
    line
}

fn format_combined(record: &AccessRecord<'_>, now: u64, mask: &LogMask) -> String {
    let mut line = format_common(record, now, mask);
    let head = record.head;
    line.push_str(" \"");
    for (name, end) in [("referer", "\" \""), ("user-agent", "\"")] {
        let value = head.field(name).map(|value| match name {
            "referer" => mask.apply_url(value),
            _ => mask.apply(value),
        });
        match value {
            Some(value) => drop(write!(line, "{}{end}", EscapedBytes(&value))),
            None => drop(write!(line, "-{end}")),
        }
    }
    let timing = record.timing;
    let _ = write!(
        line,
        " queue_time={} queue_position={} app_time={} total_time={} handler={} worker={} \
         connect_time={} server={} retries={}",
        SecondsDisplay(timing.queue_time),
        timing.queue_position,
        SecondsDisplay(timing.app_time),
        SecondsDisplay(record.total_time),
        timing.handler.as_deref().unwrap_or("-"),
        timing.worker_pid,
        SecondsDisplay(timing.connect_time),
        timing.server.as_deref().unwrap_or("-"),
        timing.retries,
    );
    match record.request_id {
        Some(id) => drop(writeln!(line, " request_id={id}")),
        None => line.push('\n'),
    }
    line
}

/// Seconds with six decimals. Writing a fraction costs several times as much as two whole numbers.
struct SecondsDisplay(Duration);

impl std::fmt::Display for SecondsDisplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

fn format_json(record: &AccessRecord<'_>, now: Duration, mask: &LogMask) -> String {
    let head = record.head;
    let field = |name| head.field(name).map(String::from_utf8_lossy);
    let timing = record.timing;
    let mut value = serde_json::json!({
        "time": now.as_secs_f64(),
        "client": format_peer(record.client),
        "peer": format_peer(record.peer),
        "user": record.user,
        "method": head.method_str(),
        "host": head.host(),
        "target": mask.apply_url_str(head.target()),
        "version": head.version().as_str(),
        "status": record.status,
        "bytes_sent": record.body_bytes,
        "referer": field("referer").map(|value| mask.apply_url_str(&value).into_owned()),
        "user_agent": field("user-agent"),
        "queue_time": timing.queue_time.as_secs_f64(),
        "queue_position": timing.queue_position,
        "app_time": timing.app_time.as_secs_f64(),
        "total_time": record.total_time.as_secs_f64(),
        "handler": timing.handler.as_deref(),
        "worker": timing.worker_pid,
        "connect_time": timing.connect_time.as_secs_f64(),
        "server": timing.server.as_deref(),
        "retries": timing.retries,
    });
    if let Some(id) = record.request_id {
        value["request_id"] = id.to_string().into();
    }
    if let Some(trace) = record.trace {
        value["trace_id"] = HexId(&trace.trace_id).to_string().into();
        value["span_id"] = HexId(&trace.span_id).to_string().into();
    }
    if let Some(tls) = record.tls {
        value["tls_version"] = tls.version.into();
        value["tls_cipher"] = (*tls.cipher).into();
        value["server_name"] = tls.server_name.as_deref().into();
    }
    escape_controls(value.to_string()) + "\n"
}

/// Escapes DEL and the controls above it: JSON allows them as they are (RFC 8259 §7), and a
/// terminal interprets them.
fn escape_controls(json: String) -> String {
    if !json.contains(char::is_control) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if c.is_control() {
            // They occur inside strings only. Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// A peer's address without the port.
pub(crate) fn format_peer(peer: PeerAddress) -> String {
    match peer {
        PeerAddress::Tcp(address) => address.ip().to_string(),
        PeerAddress::Unix => "unix".to_owned(),
    }
}

/// Bytes with everything that could break out of a quoted log field escaped.
pub(crate) struct EscapedBytes<'a>(pub(crate) &'a [u8]);

impl std::fmt::Display for EscapedBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_plain = |&byte: &u8| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\');
        if let Ok(text) = std::str::from_utf8(self.0)
            && self.0.iter().all(is_plain)
        {
            return f.write_str(text);
        }
        for &byte in self.0 {
            match byte {
                b'"' | b'\\' => write!(f, "\\{}", byte as char)?,
                0x20..=0x7e => f.write_char(byte as char)?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::LISTENER;

    #[test]
    fn client_bytes_cannot_break_out_of_a_field() {
        assert_eq!(
            EscapedBytes(b"a\"b\\c\x1b\xffd").to_string(),
            "a\\\"b\\\\c\\x1b\\xffd"
        );
        let json = serde_json::json!({ "agent": "a\"\n\u{1b}\u{7f}\u{9b}2J\u{e9}" });
        let line = escape_controls(json.to_string());
        assert_eq!(line, "{\"agent\":\"a\\\"\\n\\u001b\\u007f\\u009b2Jé\"}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&line).unwrap(),
            json
        );
    }

    #[test]
    fn lines_have_the_timing_of_the_request() {
        let raw = b"GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: u\r\n\r\n";
        let parsed = penstock_http::parse_head(raw, &penstock_http::HeadLimits::default());
        let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        let timing = RequestTiming {
            connect_time: Duration::from_micros(123),
            server: Some("127.0.0.1:3000".into()),
            retries: 1,
            ..RequestTiming::default()
        };
        let mask = LogMask::default();
        let mut record = AccessRecord {
            request_id: None,
            trace: None,
            route: None,
            host: "h",
            scheme: "http",
            user: None,
            head: &head,
            client: PeerAddress::Unix,
            peer: PeerAddress::Unix,
            status: 200,
            body_bytes: 5,
            listener: &LISTENER,
            tls: None,
            timing: &timing,
            total_time: Duration::from_millis(2),
        };
        assert_eq!(
            format_combined(&record, 1_795_298_901, &mask),
            "unix - - [21/Nov/2026:22:08:21 +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"u\" \
             queue_time=0.000000 queue_position=0 app_time=0.000000 total_time=0.002000 \
             handler=- worker=0 connect_time=0.000123 server=127.0.0.1:3000 retries=1\n"
        );
        let line = format_json(&record, Duration::ZERO, &mask);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["connect_time"], 0.000_123);
        assert_eq!(
            (&line["server"], &line["retries"]),
            (&"127.0.0.1:3000".into(), &1.into())
        );
        let none = RequestTiming::default();
        record.timing = &none;
        assert!(format_combined(&record, 0, &mask).ends_with(" server=- retries=0\n"));
        record.client = PeerAddress::Tcp("203.0.113.9:0".parse().unwrap());
        assert!(format_combined(&record, 0, &mask).starts_with("203.0.113.9 - - ["));
        record.user = Some("anna \" x");
        assert!(format_combined(&record, 0, &mask).starts_with("203.0.113.9 - anna \\\" x ["));
        let line = format_json(&record, Duration::ZERO, &mask);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&line["client"], &line["peer"]),
            (&"203.0.113.9".into(), &"unix".into())
        );
    }

    #[test]
    fn json_lines_have_the_session_of_tls() {
        let raw = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
        let parsed = penstock_http::parse_head(raw, &penstock_http::HeadLimits::default());
        let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        let tls = TlsInfo {
            version: "TLSv1.3",
            cipher: "AES_128_GCM_SHA256".into(),
            server_name: Some("a.test".into()),
            ..TlsInfo::default()
        };
        let mut record = AccessRecord {
            request_id: None,
            trace: None,
            route: None,
            host: "h",
            scheme: "http",
            user: None,
            head: &head,
            client: PeerAddress::Unix,
            peer: PeerAddress::Unix,
            status: 200,
            body_bytes: 5,
            listener: &LISTENER,
            tls: Some(&tls),
            timing: &RequestTiming::default(),
            total_time: Duration::from_millis(2),
        };
        let mask = LogMask::default();
        let json = |record: &AccessRecord<'_>| -> serde_json::Value {
            serde_json::from_str(&format_json(record, Duration::ZERO, &mask)).unwrap()
        };
        let line = json(&record);
        for (key, expected) in [
            ("tls_version", "TLSv1.3"),
            ("tls_cipher", "AES_128_GCM_SHA256"),
            ("server_name", "a.test"),
        ] {
            assert_eq!(line[key], expected);
        }
        let with_tls = format_combined(&record, 0, &mask);
        record.tls = None;
        assert_eq!(format_combined(&record, 0, &mask), with_tls);
        assert_eq!(json(&record).get("tls_version"), None);
    }

    #[test]
    fn tokens_of_queries_are_masked_in_every_format() {
        let raw = b"GET /a?b=c&access_token=p's3cret HTTP/1.1\r\nHost: h\r\n\
            Referer: https://u:p's3cret@h/x?api_key=\"s3cret&d=e\r\n\
            Authorization: Bearer s3cret\r\nCookie: a=s3cret\r\n\r\n";
        let parsed = penstock_http::parse_head(raw, &penstock_http::HeadLimits::default());
        let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        let timing = RequestTiming::default();
        let record = AccessRecord {
            request_id: None,
            trace: None,
            route: None,
            host: "h",
            scheme: "http",
            user: None,
            head: &head,
            client: PeerAddress::Unix,
            peer: PeerAddress::Unix,
            status: 200,
            body_bytes: 5,
            listener: &LISTENER,
            tls: None,
            timing: &timing,
            total_time: Duration::from_millis(2),
        };
        let mask = LogMask::default();
        for line in [
            format_combined(&record, 0, &mask),
            format_json(&record, Duration::ZERO, &mask),
            dev_format::format_line(&record, false, &mask),
        ] {
            assert!(line.contains("/a?b=c&access_token=***"), "{line}");
            assert!(!line.contains("s3cret"), "{line}");
        }
        let line = format_combined(&record, 0, &mask);
        assert!(
            line.contains("\"https://***@h/x?api_key=***&d=e\""),
            "{line}"
        );
        let open = format_combined(&record, 0, &LogMask::new([]));
        assert!(open.contains("access_token=p's3cret"), "{open}");
    }
}
