//! Converts the head that a server sends to the head for the client.
//!
//! `codec` fills a [`ResponseHeadBuilder`] field by field, whatever the protocol. Hop-by-hop fields
//! are dropped (RFC 9110 §7.6.1) and framing becomes a length that is enforced. `X-Accel-*` and
//! `X-Sendfile` are removed and applied if the route allows it (`response`). `X-Accel-Expires` and
//! `Grip-*`, which a cache or hub in front of the proxy reads, are kept and flagged.
//!
//! # Invariants
//!
//! - A client never sees a field that addresses the front end.

use penstock_exchange::field_policy::remove_internal_fields;
use penstock_exchange::grip::is_grip_field;
use penstock_exchange::{AccelFields, FrontEndInstructions, is_accel_field};
use penstock_http::{
    CheckedField, FieldBlock, FieldError, KnownFieldName, Status, parse_content_length,
    token_eq_ignore_case,
};

/// A final response's head.
#[derive(Debug)]
pub(crate) struct UpstreamResponseHead {
    pub(crate) status: Status,
    /// Ready to send, without framing.
    pub(crate) fields: FieldBlock,
    /// The declared length of the body; for HEAD, of the body that GET would have.
    pub(crate) length: Option<u64>,
    /// Do not buffer: an event stream, or `X-Accel-Buffering: no`.
    pub(crate) is_unbuffered: bool,
    /// There are instructions for this front end among the fields, which edge removes.
    pub(crate) instructions: FrontEndInstructions,
    /// There is a `Location`, `Content-Location` or `Refresh`.
    pub(crate) has_location: bool,
    /// `X-Accel-*` instructions to the front end; rare.
    pub(crate) accel_fields: Option<Box<AccelFields>>,
}

/// Collects the fields of a head one by one.
#[derive(Debug)]
pub(crate) struct ResponseHeadBuilder {
    head: UpstreamResponseHead,
    /// Fields that `Connection` names: hop-by-hop.
    connection_options: Vec<u8>,
    upgrade: Option<Vec<u8>>,
    has_bad_length: bool,
}

impl ResponseHeadBuilder {
    /// Creates a builder for fields of about `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            head: UpstreamResponseHead {
                status: Status::OK,
                fields: FieldBlock::with_capacity(bytes),
                length: None,
                is_unbuffered: false,
                instructions: FrontEndInstructions::None,
                has_location: false,
                accel_fields: None,
            },
            connection_options: Vec::new(),
            upgrade: None,
            has_bad_length: false,
        }
    }

    /// Adds a field of an HTTP head, checked by a scanner.
    pub(crate) fn push_checked(&mut self, field: CheckedField<'_>) {
        if self.handle_field(field.known_name(), field.name(), field.value()) {
            self.head.fields.push_field(field);
        }
    }

    /// Adds a field of another protocol's head.
    ///
    /// # Errors
    /// A field that cannot be forwarded.
    pub(crate) fn push(&mut self, name: &str, value: &[u8]) -> Result<(), FieldError> {
        let known = KnownFieldName::from_name(name.as_bytes());
        if self.handle_field(known, name.as_bytes(), value) {
            self.head.fields.push(name, value)?;
        }
        Ok(())
    }

    /// Returns the head with its status; `None` when `Content-Length` is not one number.
    pub(crate) fn finish(mut self, status: Status) -> Option<UpstreamResponseHead> {
        self.head.status = status;
        if self.has_bad_length {
            return None;
        }
        // Edge forwards interim heads unchanged.
        if status.is_informational() && self.head.instructions != FrontEndInstructions::None {
            remove_internal_fields(&mut self.head.fields);
        }
        if !self.connection_options.is_empty() {
            for name in self.connection_options.split(|&byte| byte == b',') {
                let name = std::str::from_utf8(name.trim_ascii()).unwrap_or_default();
                self.head.fields.remove(name);
            }
        }
        if status == Status::SWITCHING_PROTOCOLS
            && let Some(upgrade) = self.upgrade
        {
            self.head.fields.push_static("Connection", "Upgrade");
            // It was a field of a checked head.
            let _ = self.head.fields.push("Upgrade", &upgrade);
        }
        Some(self.head)
    }

    /// Applies a field; returns whether it is for the client, too.
    fn handle_field(&mut self, known: KnownFieldName, name: &[u8], value: &[u8]) -> bool {
        match known {
            KnownFieldName::Date => true,
            KnownFieldName::ContentType => {
                let kind = value.get(..EVENT_STREAM.len());
                self.head.is_unbuffered |=
                    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM));
                true
            }
            KnownFieldName::ContentLength => {
                let length = parse_lengths(value);
                let is_other = self.head.length.is_some_and(|known| Some(known) != length);
                self.has_bad_length |= length.is_none() || is_other;
                self.head.length = length;
                false
            }
            KnownFieldName::Connection => {
                self.add_connection_options(value);
                false
            }
            KnownFieldName::TransferEncoding => false,
            KnownFieldName::Other => self.handle_uncommon_field(name, value),
        }
    }

    /// Length and first letter nearly always decide without a comparison of names.
    fn handle_uncommon_field(&mut self, name: &[u8], value: &[u8]) -> bool {
        let first = name.first().map_or(0, |byte| byte | 0x20);
        let head = &mut self.head;
        match (name.len(), first) {
            (2, b't') if token_eq_ignore_case(name, b"te") => return false,
            (7, b't') if token_eq_ignore_case(name, b"trailer") => return false,
            (10, b'k') if token_eq_ignore_case(name, b"keep-alive") => return false,
            (16, b'p') if token_eq_ignore_case(name, b"proxy-connection") => return false,
            (7, b'u') if token_eq_ignore_case(name, b"upgrade") => {
                self.upgrade = Some(value.to_vec());
                return false;
            }
            (7, b'r') if token_eq_ignore_case(name, b"refresh") => head.has_location = true,
            (8, b'l') if token_eq_ignore_case(name, b"location") => head.has_location = true,
            (16, b'c') if token_eq_ignore_case(name, b"content-location") => {
                head.has_location = true;
            }
            (15, b'x') if token_eq_ignore_case(name, b"x-accel-expires") => {
                head.instructions = FrontEndInstructions::ForThisServer;
            }
            (_, b'g') if is_grip_field(name) => {
                head.instructions = FrontEndInstructions::ForThisServer;
            }
            (17, b'x') if token_eq_ignore_case(name, b"x-accel-buffering") => {
                let is_off = value.eq_ignore_ascii_case(b"no");
                if is_off {
                    head.is_unbuffered = true;
                    head.instructions = FrontEndInstructions::ForThisServer;
                }
                return is_off;
            }
            (_, b'x') if is_accel_field(name) => {
                AccelFields::read_field(&mut head.accel_fields, name, value);
                return false;
            }
            _ => {}
        }
        true
    }

    fn add_connection_options(&mut self, value: &[u8]) {
        if value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close") {
            return;
        }
        for option in value.split(|&byte| byte == b',') {
            let option = option.trim_ascii();
            let known = [&b"close"[..], b"keep-alive", b"upgrade", b""];
            if !known.iter().any(|known| known.eq_ignore_ascii_case(option)) {
                self.connection_options.extend_from_slice(option);
                self.connection_options.push(b',');
            }
        }
    }
}

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// One number, or a list of the same number (RFC 9112 §6.3 case 5).
fn parse_lengths(value: &[u8]) -> Option<u64> {
    let mut lengths = value
        .split(|&byte| byte == b',')
        .map(|it| parse_content_length(it.trim_ascii()));
    let first = lengths.next()??;
    lengths.all(|it| it == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(status: u16, fields: &[(&str, &str)]) -> Option<UpstreamResponseHead> {
        let mut builder = ResponseHeadBuilder::new(100);
        for (name, value) in fields {
            builder.push(name, value.as_bytes()).unwrap();
        }
        builder.finish(Status::new(status).unwrap())
    }

    #[test]
    fn hop_by_hop_fields_are_dropped() {
        let head = built(
            200,
            &[
                ("Connection", "close, X-Hop"),
                ("x-hop", "1"),
                ("Keep-Alive", "timeout=5"),
                ("Transfer-Encoding", "chunked"),
                ("Upgrade", "h2c"),
                ("TE", "trailers"),
                ("Trailer", "A"),
                ("Server", "x"),
                ("Proxy-Connection", "close"),
            ],
        );
        assert_eq!(head.unwrap().fields.as_bytes(), b"Server: x\r\n");
    }

    #[test]
    fn accel_fields_are_removed() {
        let head = built(
            200,
            &[
                ("X-Accel-Redirect", "/internal/a?b"),
                ("X-Accel-Limit-Rate", "1000"),
                ("X-Accel-Buffering", "no"),
                ("X-Sendfile", "/srv/a"),
                ("X-Accel-Expires", "0"),
                ("X-Accel-Charset", "utf-8"),
                ("x-accel-anything", "1"),
                ("X-Sendfile-Type", "X-Sendfile"),
                ("A", "1"),
            ],
        )
        .unwrap();
        // A cache may be in front of the proxy; edge removes the field.
        assert_eq!(
            head.fields.as_bytes(),
            b"X-Accel-Buffering: no\r\nX-Accel-Expires: 0\r\nA: 1\r\n"
        );
        assert_eq!(head.instructions, FrontEndInstructions::ForThisServer);
        assert!(head.is_unbuffered);
        let accel = head.accel_fields.unwrap();
        assert_eq!(accel.redirect.as_deref(), Some("/internal/a?b"));
        assert_eq!(accel.sendfile.as_deref(), Some(&b"/srv/a"[..]));
        assert_eq!(accel.max_rate, Some(1000));
        let interim = built(103, &[("x-accel-expires", "5"), ("Link", "</a>")]);
        assert_eq!(interim.unwrap().fields.as_bytes(), b"Link: </a>\r\n");
    }

    #[test]
    fn grip_fields_are_marked_and_kept() {
        let hold = [("Grip-Hold", "stream"), ("GRIP-channel", "a"), ("A", "1")];
        let head = built(200, &hold).unwrap();
        assert_eq!(head.instructions, FrontEndInstructions::ForThisServer);
        assert_eq!(
            head.fields.as_bytes(),
            b"Grip-Hold: stream\r\nGRIP-channel: a\r\nA: 1\r\n"
        );
        let early = built(103, &hold).unwrap();
        assert_eq!(early.fields.as_bytes(), b"A: 1\r\n");
        for (name, value) in [
            ("Content-Type", "application/grip-instruct"),
            ("Content-Type", "text/plain"),
            ("Grip", "1"),
        ] {
            let head = built(200, &[(name, value)]).unwrap();
            assert_eq!(
                head.instructions,
                FrontEndInstructions::None,
                "{name}: {value}"
            );
            assert!(head.fields.contains(name));
        }
    }

    #[test]
    fn an_event_stream_is_never_buffered() {
        for (value, expected) in [
            ("text/event-stream", true),
            ("Text/Event-Stream; charset=utf-8", true),
            ("text/html", false),
            ("text", false),
        ] {
            let head = built(200, &[("Content-Type", value)]).unwrap();
            assert_eq!(head.is_unbuffered, expected, "{value}");
            assert!(head.fields.contains("content-type"));
        }
    }

    #[test]
    fn a_length_is_one_number() {
        for (values, expected) in [
            (&["5"][..], Some(Some(5))),
            (&["5", "5"], Some(Some(5))),
            (&["5, 5"], Some(Some(5))),
            (&[], Some(None)),
            (&["5", "6"], None),
            (&["5, 6"], None),
            (&["-5"], None),
            (&["+5"], None),
            (&[""], None),
            (&["99999999999999999999"], None),
        ] {
            let fields: Vec<_> = values
                .iter()
                .map(|value| ("Content-Length", *value))
                .collect();
            assert_eq!(
                built(200, &fields).map(|head| head.length),
                expected,
                "{values:?}"
            );
        }
    }

    #[test]
    fn a_switch_of_protocols_names_the_protocol() {
        let head = built(101, &[("connection", "upgrade"), ("upgrade", "websocket")]);
        let fields = head.unwrap().fields;
        assert_eq!(
            fields.as_bytes(),
            b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        );
    }
}
