//! A parsed request head, as all components use it.
//!
//! `h1::HeadScanner` builds it from checked bytes; `edge` routes by it; `files`, `apps` and `proxy`
//! read its fields. It has one copy of the received head and a table of positions in it: two
//! allocations.
//!
//! # Invariants
//!
//! - A `RequestHead` exists only if every rule of `h1::parse` held. So framing, host and target are
//!   unambiguous and never parsed again.

use std::{fmt, ops::Range, str};

use bytes::Bytes;

/// The supported versions of HTTP/1 (RFC 9112 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    Http10,
    Http11,
}

impl Version {
    /// The version as written in a request line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

/// A request method; `Other` is any token that is not listed (RFC 9110 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Patch,
    Connect,
    Trace,
    /// Any other token, to be read with `RequestHead::method_str`.
    Other,
}

impl Method {
    /// The method for a token; names are case-sensitive (RFC 9110 §9.1).
    pub const fn from_token(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"PATCH" => Self::Patch,
            b"CONNECT" => Self::Connect,
            b"TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }

    /// The token of a listed method.
    pub const fn token(self) -> Option<&'static str> {
        Some(match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Patch => "PATCH",
            Self::Connect => "CONNECT",
            Self::Trace => "TRACE",
            Self::Other => return None,
        })
    }

    /// Whether repeating the request has the same effect as sending it once (RFC 9110 §9.2.2).
    pub const fn is_idempotent(self) -> bool {
        matches!(
            self,
            Self::Get | Self::Head | Self::Put | Self::Delete | Self::Options | Self::Trace
        )
    }

    /// Whether the method only reads (RFC 9110 §9.2.1).
    pub const fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }
}

/// How the end of a request body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    None,
    Length(u64),
    Chunked,
}

/// A request head that passed every check of the HTTP/1 parser.
#[derive(Clone)]
pub struct RequestHead {
    pub(crate) raw: Bytes,
    pub(crate) fields: Vec<FieldSpan>,
    pub(crate) method_token: HeadSpan,
    pub(crate) target: HeadSpan,
    pub(crate) path_query: HeadSpan,
    pub(crate) sent_path_query: HeadSpan,
    pub(crate) host: HeadSpan,
    pub(crate) framing: BodyFraming,
    pub(crate) method: Method,
    pub(crate) version: Version,
    pub(crate) keep_alive: bool,
    pub(crate) expects_continue: bool,
    pub(crate) is_upgrade: bool,
    pub(crate) has_other_options: bool,
    pub(crate) has_websocket_events: bool,
}

impl RequestHead {
    /// The method, `Other` when it is not one of the registered core methods.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method as sent.
    pub fn method_str(&self) -> &str {
        self.method
            .token()
            .unwrap_or_else(|| self.text(self.method_token))
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// The request target in any form (RFC 9112 §3.2), as sent, except that bytes outside the URI
    /// grammar (quotes, angle brackets, text beyond ASCII) are percent-encoded.
    pub fn target(&self) -> &str {
        self.text(self.target)
    }

    /// The target in origin form: path and query of an absolute-form target, `*` for `OPTIONS *`,
    /// empty for CONNECT. Encoded as [`RequestHead::target`].
    pub fn target_path_query(&self) -> &str {
        self.text(self.path_query)
    }

    /// [`RequestHead::target_path_query`] as bytes, without a UTF-8 check.
    pub fn path_query_bytes(&self) -> &[u8] {
        self.bytes(self.path_query)
    }

    /// [`RequestHead::target_path_query`] with the bytes as sent, for servers that need the target
    /// as the client wrote it.
    pub fn sent_path_query_bytes(&self) -> &[u8] {
        self.bytes(self.sent_path_query)
    }

    /// The requested authority, as sent but without an empty port: that of an absolute-form or
    /// CONNECT target, else `Host`; empty for HTTP/1.0 without either (RFC 9112 §3.3).
    pub fn host(&self) -> &str {
        self.text(self.host)
    }

    /// [`RequestHead::host`] as bytes, without a UTF-8 check.
    pub fn host_bytes(&self) -> &[u8] {
        self.bytes(self.host)
    }

    /// All fields in the order sent: name as sent, value without surrounding blanks. The value of
    /// `Host` is [`RequestHead::host`].
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields
            .iter()
            .map(|field| (self.text(field.name), self.bytes(field.value)))
    }

    /// [`RequestHead::fields`] as bytes, without a UTF-8 check of the names.
    pub fn fields_bytes(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields
            .iter()
            .map(|field| (self.bytes(field.name), self.bytes(field.value)))
    }

    /// Whether a `Connection` field names other options than the three standard ones: fields that
    /// are hop-by-hop (RFC 9110 §7.6.1).
    pub fn has_other_connection_options(&self) -> bool {
        self.has_other_options
    }

    /// Whether `Content-Type` or `Accept` names `application/websocket-events`, the media type of
    /// WebSocket-over-HTTP, which front ends send to back ends and clients must not send.
    pub fn has_websocket_events(&self) -> bool {
        self.has_websocket_events
    }

    /// Whether this is the request of a browser's `EventSource`: a GET that prefers a stream of
    /// events to all else.
    pub fn is_event_source(&self) -> bool {
        self.method() == Method::Get
            && self.field("accept").is_some_and(|list| {
                let first = list.split(|&byte| byte == b',').next();
                crate::is_media_type(first.unwrap_or_default(), "text/event-stream")
            })
    }

    /// The value of the first field of that name, ignoring ASCII case.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields
            .iter()
            .find(|field| self.is_named(field, name))
            .map(|field| self.bytes(field.value))
    }

    /// The values of all fields of that name, in the order sent.
    pub fn field_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields
            .iter()
            .filter(move |field| self.is_named(field, name))
            .map(|field| self.bytes(field.value))
    }

    /// Names and values of the cookies, in the order sent, without blanks around them (RFC 6265
    /// §4.2.1).
    pub fn cookies(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        fn pairs(line: &[u8]) -> impl Iterator<Item = &[u8]> {
            line.split(|&byte| byte == b';')
        }
        self.field_values("cookie").flat_map(pairs).map(|pair| {
            let mut parts = pair.splitn(2, |&byte| byte == b'=');
            let name = parts.next().unwrap_or_default().trim_ascii();
            (name, parts.next().unwrap_or_default().trim_ascii())
        })
    }

    /// The value of the first cookie of that name.
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        let mut cookies = self.cookies();
        cookies.find_map(|(found, value)| (found == name.as_bytes()).then_some(value))
    }

    pub fn field_count(&self) -> usize {
        self.fields.len()
    }

    /// How the end of the body is found.
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Whether the client accepts another request on the connection (RFC 9112 §9.3).
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the client waits for `100 Continue`: HTTP/1.1, exactly that expectation, and a
    /// declared body (RFC 9110 §10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Whether the client offers another protocol: HTTP/1.1, the `upgrade` connection option and
    /// an `Upgrade` field (RFC 9110 §7.8).
    pub fn is_upgrade(&self) -> bool {
        self.is_upgrade
    }

    fn is_named(&self, field: &FieldSpan, name: &str) -> bool {
        self.bytes(field.name).eq_ignore_ascii_case(name.as_bytes())
    }

    fn bytes(&self, span: HeadSpan) -> &[u8] {
        self.raw.get(span.range()).unwrap_or_default()
    }

    // The parser accepts only ASCII here, so the default is never used.
    fn text(&self, span: HeadSpan) -> &str {
        str::from_utf8(self.bytes(span)).unwrap_or_default()
    }
}

impl fmt::Debug for RequestHead {
    /// Omits the fields: they contain cookies and credentials, and debug output reaches logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method_str())
            .field("target", &self.target())
            .field("version", &self.version)
            .field("host", &self.host())
            .field("framing", &self.framing)
            .field("field_count", &self.field_count())
            .finish_non_exhaustive()
    }
}

impl PartialEq for RequestHead {
    /// Heads are equal if they were sent byte for byte alike.
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Eq for RequestHead {}

/// Position of a name or value in the raw head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadSpan {
    start: u32,
    len: u32,
}

impl HeadSpan {
    /// Creates a span below `MAX_HEAD_BYTES`; anything else becomes the empty span.
    pub(crate) fn new(start: usize, len: usize) -> Self {
        match (u32::try_from(start), u32::try_from(len)) {
            (Ok(start), Ok(len)) => Self { start, len },
            _ => Self::default(),
        }
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldSpan {
    pub(crate) name: HeadSpan,
    pub(crate) value: HeadSpan,
}

/// The largest head that 32-bit positions describe with room to spare, whatever the configured
/// limit.
pub(crate) const MAX_HEAD_BYTES: usize = 1 << 30;
