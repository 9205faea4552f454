//! Lines of the access log in an operator's own form: a text with words in braces, or a JSON object
//! of chosen fields.
//!
//! # Invariants
//! - Values are escaped, secrets in URLs masked, and `Authorization` and cookies as a whole never
//!   shown.
//! - What a request does not have is `-` in a text, and null in JSON.

use std::fmt::Write as _;
use std::time::Duration;

use penstock_config::{LogField, LogPart, LogTemplate, LogValue, LogWord, Placeholder};
use penstock_exchange::trace_context::HexId;
use penstock_http::LogMask;
use penstock_rules::TemplateValues;

use super::{
    AccessRecord, EscapedBytes, LogSubject, SecondsDisplay, escape_controls, format_log_date,
    format_peer,
};

/// Fields of requests that are credentials.
const SECRET_FIELDS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

/// Writes lines; `now` is the wall-clock time.
pub(super) struct LineWriter<'a> {
    pub(super) subject: LogSubject<'a>,
    pub(super) now: Duration,
    pub(super) mask: &'a LogMask,
}

/// What a value is in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    Absent,
    Number,
    Text,
}

impl LineWriter<'_> {
    /// The text with its values.
    pub(super) fn format_template(&self, template: &LogTemplate) -> String {
        let (mut line, mut value) = (String::with_capacity(256), Vec::new());
        for part in template.parts() {
            match part {
                LogPart::Text(text) => line.push_str(text),
                LogPart::Value(wanted) => {
                    value.clear();
                    match self.append_value(wanted, &mut value) {
                        ValueKind::Absent => line.push('-'),
                        // Writing to a String cannot fail.
                        _ => drop(write!(line, "{}", EscapedBytes(&value))),
                    }
                }
            }
        }
        line.push('\n');
        line
    }

    /// An object of the fields, in their order.
    pub(super) fn format_fields(&self, fields: &[LogField]) -> String {
        let (mut line, mut value) = (String::with_capacity(256), Vec::new());
        let mut before = '{';
        for field in fields {
            value.clear();
            let kind = self.append_value(&field.value, &mut value);
            let text = String::from_utf8_lossy(&value);
            let name = serde_json::Value::from(field.name.as_str());
            // Writing to a String cannot fail.
            let _ = write!(line, "{before}{name}:");
            let _ = match kind {
                ValueKind::Absent => line.write_str("null"),
                ValueKind::Number => line.write_str(&text),
                ValueKind::Text => write!(line, "{}", serde_json::Value::from(&*text)),
            };
            before = ',';
        }
        line.push('}');
        escape_controls(line) + "\n"
    }

    fn append_value(&self, wanted: &LogValue, out: &mut Vec<u8>) -> ValueKind {
        let kind = match (wanted, self.subject) {
            (LogValue::Known(word), subject) => self.append_known(*word, subject, out),
            (LogValue::Request(Placeholder::Client), LogSubject::Refused(refused)) => {
                out.extend(format_peer(refused.client).bytes());
                ValueKind::Text
            }
            (LogValue::Request(_), LogSubject::Refused(_)) => ValueKind::Absent,
            (LogValue::Request(placeholder), LogSubject::Exchange(record)) => {
                self.append_sent(placeholder, record, out);
                ValueKind::Text
            }
        };
        match out.is_empty() {
            true => ValueKind::Absent,
            false => kind,
        }
    }

    /// What the client has sent, masked.
    fn append_sent(&self, placeholder: &Placeholder, record: &AccessRecord<'_>, out: &mut Vec<u8>) {
        if let Placeholder::Header(name) = placeholder
            && SECRET_FIELDS
                .iter()
                .any(|secret| name.eq_ignore_ascii_case(secret))
        {
            let is_sent = record.head.field(name).is_some();
            return out.extend_from_slice(if is_sent { b"***" } else { b"" });
        }
        let values = TemplateValues {
            head: record.head,
            client: record.client,
            host: record.host,
            scheme: record.scheme,
            path_regex: None,
        };
        // A parameter is masked by its name, a query as a part of a URL.
        let prefix = match placeholder {
            Placeholder::Query => "?".to_owned(),
            Placeholder::Parameter(name) => format!("?{name}="),
            _ => String::new(),
        };
        out.extend_from_slice(prefix.as_bytes());
        values.append(placeholder, out);
        if out.len() == prefix.len() {
            // Nothing is there to be masked.
            return out.clear();
        }
        let is_url = match placeholder {
            Placeholder::Header(name) => name.eq_ignore_ascii_case("referer"),
            Placeholder::Uri | Placeholder::Query | Placeholder::Parameter(_) => true,
            _ => return,
        };
        let masked = match is_url {
            true => self.mask.apply_url(out),
            false => self.mask.apply(out),
        };
        let masked = masked.get(prefix.len()..).unwrap_or_default().to_vec();
        *out = masked;
    }

    fn append_known(&self, word: LogWord, subject: LogSubject<'_>, out: &mut Vec<u8>) -> ValueKind {
        if let (LogWord::Line, LogSubject::Refused(refused)) = (word, subject) {
            // It may be no text.
            out.extend_from_slice(&self.mask.apply_url(refused.line));
            return ValueKind::Text;
        }
        let mut text = String::new();
        let kind = self.write_common(word, subject, &mut text);
        let kind = kind.unwrap_or_else(|| match subject {
            LogSubject::Exchange(record) => self.write_of_exchange(word, record, &mut text),
            LogSubject::Refused(it) if word == LogWord::Reason => push_text(&mut text, it.reason),
            LogSubject::Refused(_) => ValueKind::Absent,
        });
        out.extend_from_slice(text.as_bytes());
        kind
    }

    /// What every line has.
    fn write_common(
        &self,
        word: LogWord,
        subject: LogSubject<'_>,
        out: &mut String,
    ) -> Option<ValueKind> {
        let (status, bytes, peer) = match subject {
            LogSubject::Exchange(it) => (it.status, it.body_bytes, it.peer),
            LogSubject::Refused(it) => (it.status, 0, it.peer),
        };
        // Writing to a String cannot fail.
        Some(match word {
            LogWord::Time => push_text(out, &penstock_http::rfc3339_millis(self.now)),
            LogWord::UnixTime => {
                let millis = self.now.subsec_millis();
                push_number(out, format_args!("{}.{millis:03}", self.now.as_secs()))
            }
            LogWord::LogDate => push_text(out, &format_log_date(self.now.as_secs())),
            LogWord::Status => push_number(out, status),
            LogWord::Bytes => push_number(out, bytes),
            LogWord::Peer => push_text(out, &format_peer(peer)),
            _ => return None,
        })
    }

    fn write_of_exchange(
        &self,
        word: LogWord,
        record: &AccessRecord<'_>,
        out: &mut String,
    ) -> ValueKind {
        let (head, timing) = (record.head, record.timing);
        let route = |name: fn(&crate::RouteObservation) -> &str| record.route.map_or("", name);
        let tls = |value: fn(&penstock_exchange::TlsInfo) -> &str| record.tls.map_or("", value);
        match word {
            LogWord::Line => {
                let target = self.mask.apply_url_str(head.target());
                let line = format!("{} {target} {}", head.method_str(), head.version().as_str());
                push_text(out, &line)
            }
            LogWord::Version => push_text(out, head.version().as_str()),
            LogWord::User => push_text(out, record.user.unwrap_or_default()),
            LogWord::TotalTime => push_number(out, SecondsDisplay(record.total_time)),
            LogWord::QueueTime => push_number(out, SecondsDisplay(timing.queue_time)),
            LogWord::QueuePosition => push_number(out, timing.queue_position),
            LogWord::AppTime => push_number(out, SecondsDisplay(timing.app_time)),
            LogWord::ConnectTime => push_number(out, SecondsDisplay(timing.connect_time)),
            LogWord::Handler => push_text(out, timing.handler.as_deref().unwrap_or_default()),
            LogWord::Worker => push_number(out, timing.worker_pid),
            LogWord::Server => push_text(out, timing.server.as_deref().unwrap_or_default()),
            LogWord::Retries => push_number(out, timing.retries),
            LogWord::Route => push_text(out, route(|it| &it.route)),
            LogWord::Site => push_text(out, route(|it| &it.site)),
            LogWord::RequestId => match record.request_id {
                Some(id) => push_text(out, id.as_str(&mut [0; 36])),
                None => ValueKind::Absent,
            },
            LogWord::TraceId => match record.trace {
                Some(trace) => push_text(out, &HexId(&trace.trace_id).to_string()),
                None => ValueKind::Absent,
            },
            LogWord::SpanId => match record.trace {
                Some(trace) => push_text(out, &HexId(&trace.span_id).to_string()),
                None => ValueKind::Absent,
            },
            LogWord::TlsVersion => push_text(out, tls(|it| it.version)),
            LogWord::TlsCipher => push_text(out, tls(|it| &it.cipher)),
            LogWord::ServerName => {
                push_text(out, tls(|it| it.server_name.as_deref().unwrap_or_default()))
            }
            _ => ValueKind::Absent,
        }
    }
}

fn push_text(out: &mut String, text: &str) -> ValueKind {
    out.push_str(text);
    ValueKind::Text
}

fn push_number(out: &mut String, number: impl std::fmt::Display) -> ValueKind {
    // Writing to a String cannot fail.
    let _ = write!(out, "{number}");
    ValueKind::Number
}

#[cfg(test)]
mod tests {
    use penstock_exchange::RequestTiming;
    use penstock_sys::net::PeerAddress;

    use super::super::RefusedRecord;
    use super::*;
    use crate::tests::LISTENER;

    const RAW: &[u8] = b"GET /a%20b?x=1&token=s3cret HTTP/1.1\r\nHost: h:81\r\nUser-Agent: u\"v\r\n\
        Authorization: Bearer s3cret\r\nCookie: sid=7; b=2\r\nReferer: http://r/?token=s3cret\r\n\r\n";

    fn with_record(check: impl FnOnce(LogSubject<'_>)) {
        let parsed = penstock_http::parse_head(RAW, &penstock_http::HeadLimits::default());
        let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        let timing = RequestTiming {
            queue_time: Duration::from_micros(1500),
            server: Some("127.0.0.1:3000".into()),
            ..RequestTiming::default()
        };
        let route = crate::RouteObservation::new("h", "/a*");
        check(LogSubject::Exchange(&AccessRecord {
            user: Some("anna"),
            request_id: None,
            trace: None,
            route: Some(&route),
            head: &head,
            client: PeerAddress::Tcp("203.0.113.9:5".parse().unwrap()),
            peer: PeerAddress::Unix,
            host: "h:81",
            scheme: "https",
            status: 200,
            body_bytes: 5,
            listener: &LISTENER,
            tls: None,
            timing: &timing,
            total_time: Duration::from_millis(2),
        }));
    }

    fn template(subject: LogSubject<'_>, text: &str) -> String {
        let (now, mask) = (Duration::from_millis(784_111_777_042), LogMask::default());
        let writer = LineWriter {
            subject,
            now,
            mask: &mask,
        };
        writer.format_template(&LogTemplate::parse(text).unwrap())
    }

    fn fields(subject: LogSubject<'_>, names: &[&str]) -> String {
        let (now, mask) = (Duration::from_millis(784_111_777_042), LogMask::default());
        let writer = LineWriter {
            subject,
            now,
            mask: &mask,
        };
        let field = |name: &&str| LogField {
            name: (*name).to_owned(),
            value: LogValue::parse(name).unwrap(),
        };
        writer.format_fields(&names.iter().map(field).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_escaped_and_masked() {
        for (text, expected) in [
            (
                "{client} {method} {uri}",
                "203.0.113.9 GET /a%20b?x=1&token=***",
            ),
            ("{query} {query.token} {query.x}", "x=1&token=*** *** 1"),
            ("{header.user-agent} {header.nothing}", "u\\\"v -"),
            (
                "{header.Authorization} {header.cookie} {cookie.sid}",
                "*** *** 7",
            ),
            ("{header.referer}", "http://r/?token=***"),
            ("{status} {bytes_sent} {total_time}", "200 5 0.002000"),
            (
                "{line} {route} {site}",
                "GET /a%20b?x=1&token=*** HTTP/1.1 /a* h",
            ),
            (
                "{time} {unix_time}",
                "1994-11-06T08:49:37.042Z 784111777.042",
            ),
            (
                "[{log_date}] {user} {scheme}",
                "[06/Nov/1994:08:49:37 +0000] anna https",
            ),
            ("{request_id} {reason} {tls_version}", "- - -"),
            (
                "{queue_time} {server} {handler}",
                "0.001500 127.0.0.1:3000 -",
            ),
        ] {
            with_record(|subject| {
                assert_eq!(template(subject, text), format!("{expected}\n"), "{text}");
            });
        }
    }

    #[test]
    fn fields_have_types_and_an_order() {
        with_record(|subject| {
            let line = fields(
                subject,
                &["status", "client", "header.x", "total_time", "path"],
            );
            assert_eq!(
                line,
                "{\"status\":200,\"client\":\"203.0.113.9\",\"header.x\":null,\
                 \"total_time\":0.002000,\"path\":\"/a%20b\"}\n"
            );
            let read: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(read["status"], 200);
        });
    }

    #[test]
    fn a_refused_request_shows_what_was_read() {
        let refused = RefusedRecord {
            client: PeerAddress::Unix,
            peer: PeerAddress::Unix,
            status: 400,
            line: b"GET /\x1b\xff\"?token=s3cret",
            reason: "a bad byte",
        };
        let subject = LogSubject::Refused(&refused);
        assert_eq!(
            template(
                subject,
                "{client} {method} \"{line}\" {status}: {reason} {total_time}"
            ),
            "unix - \"GET /\\x1b\\xff\\\"?token=***\" 400: a bad byte -\n"
        );
        let line = fields(subject, &["line", "uri", "status", "reason"]);
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["uri"], serde_json::Value::Null);
        assert_eq!(
            (&read["status"], &read["reason"]),
            (&400.into(), &"a bad byte".into())
        );
    }
}
