//! Parses received bytes into a checked `RequestHead` (RFC 9112 §2–§3, §5–§7).
//!
//! `edge` has one `HeadScanner` per message and calls `scan` with all bytes of the message each
//! time more arrive. The scanner finds strict line ends, checks the request line as soon as it is
//! complete, and passes the field lines to `httparse` after the blank line.
//!
//! # Invariants
//!
//! - The result does not depend on how the bytes were split.
//! - No byte is searched twice for a line end.
//! - Limits apply before anything is stored.
//! - `httparse` is more lenient than this server (bare LF, blank lines), so its result is checked.

use bytes::Bytes;

use super::{
    error::RequestHeadError,
    message_fields::MessageFields,
    request_line::{self, RequestLine, TargetForm},
};
use crate::{
    grammar::{token_eq_ignore_case, trim_blanks},
    head::{FieldSpan, HeadSpan, MAX_HEAD_BYTES, Method, RequestHead},
};

/// Limits of a request head, each with its own status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The longest request target; beyond it 414.
    pub max_target_bytes: usize,
    /// The largest head, from the method to the blank line; beyond it 431.
    pub max_head_bytes: usize,
    /// The most fields; beyond it 431.
    pub max_fields: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            max_target_bytes: 8 << 10,
            max_head_bytes: 32 << 10,
            max_fields: 100,
        }
    }
}

/// Whether a message head is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseProgress<T> {
    /// Valid so far, more bytes are needed.
    Partial,
    Complete(T),
}

/// Finds and checks one request head in bytes that arrive in any pieces.
///
/// Input: `scan` with the bytes of one message from its first byte on, growing between calls.
/// Output: `Partial`, a head with its length in bytes, or an error.
#[derive(Clone, Debug, Default)]
pub struct HeadScanner {
    /// Length of a blank line before the message: 0 or 2.
    blank_prefix: usize,
    /// Bytes searched for line ends.
    scanned: usize,
    line_start: usize,
    /// Complete lines, including the request line.
    line_count: usize,
    /// Length of the method once it is known.
    method_len: usize,
    /// The request line once it is complete.
    request_line: Option<RequestLine>,
}

impl HeadScanner {
    /// Creates a scanner at the start of a message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Resets the scanner for a new message.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Scans for a complete head in `buf`, all bytes of this message so far.
    ///
    /// After a head or an error the scanner is reset for the next message.
    ///
    /// # Errors
    /// Fails as soon as the bytes cannot become an acceptable head.
    pub fn scan(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
    ) -> Result<ParseProgress<(RequestHead, usize)>, RequestHeadError> {
        if self.scanned > buf.len() {
            // Not a continuation of the previous input: the positions would be wrong.
            self.reset();
        }
        let outcome = self.advance(buf, limits);
        if !matches!(outcome, Ok(ParseProgress::Partial)) {
            self.reset();
        }
        outcome
    }

    fn advance(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
    ) -> Result<ParseProgress<(RequestHead, usize)>, RequestHeadError> {
        if self.scanned == 0 && !self.skip_blank_line(buf)? {
            return Ok(ParseProgress::Partial);
        }
        let head_max = limits.max_head_bytes.min(MAX_HEAD_BYTES);
        for found in memchr::memchr_iter(b'\n', &buf[self.scanned..]) {
            let line_end = self.scanned + found;
            let line = &buf[self.line_start..line_end];
            self.check_partial_line(line, limits)?;
            if line_end + 1 - self.blank_prefix > head_max {
                return Err(RequestHeadError::HeadTooLarge);
            }
            if self.accept_line(line, limits)? {
                let head = self.build(&buf[self.blank_prefix..=line_end])?;
                return Ok(ParseProgress::Complete((head, line_end + 1)));
            }
            self.line_start = line_end + 1;
        }
        self.scanned = buf.len();
        self.check_partial_line(&buf[self.line_start..], limits)?;
        if buf.len() - self.blank_prefix > head_max {
            return Err(RequestHeadError::HeadTooLarge);
        }
        Ok(ParseProgress::Partial)
    }

    /// Skips the one CR LF that may precede a request (RFC 9112 §2.2). Returns `false` if more
    /// bytes are needed.
    fn skip_blank_line(&mut self, buf: &[u8]) -> Result<bool, RequestHeadError> {
        match buf {
            [] | [b'\r'] | [b'\r', b'\n'] => return Ok(false),
            [b'\r', b'\n', b'\r' | b'\n', ..] => return Err(RequestHeadError::BlankLines),
            [b'\r', b'\n', ..] => self.blank_prefix = 2,
            [b'\r' | b'\n', ..] => return Err(RequestHeadError::BareLineBreak),
            _ => {}
        }
        self.scanned = self.blank_prefix;
        self.line_start = self.blank_prefix;
        Ok(true)
    }

    /// Checks a line, partial or complete, before its end.
    fn check_partial_line(
        &mut self,
        line: &[u8],
        limits: &HeadLimits,
    ) -> Result<(), RequestHeadError> {
        match line {
            [] => Ok(()),
            _ if self.line_count == 0 => {
                request_line::check_partial_request_line(line, &mut self.method_len, limits)
            }
            // The blank line, or a stray CR that the line's end will show.
            [b'\r', ..] => Ok(()),
            [b' ' | b'\t', ..] => Err(RequestHeadError::FoldedField),
            _ if self.line_count > limits.max_fields => Err(RequestHeadError::TooManyFields),
            _ => Ok(()),
        }
    }

    /// Accepts one line up to its LF. Returns whether it is the blank line that ends the head.
    fn accept_line(&mut self, line: &[u8], limits: &HeadLimits) -> Result<bool, RequestHeadError> {
        let [line @ .., b'\r'] = line else {
            return Err(RequestHeadError::BareLineBreak);
        };
        if self.line_count == 0 {
            self.request_line = Some(request_line::parse(line, self.method_len, limits)?);
        } else if line.is_empty() {
            return Ok(true);
        }
        self.line_count += 1;
        Ok(false)
    }

    /// Builds the head from `raw`, which ends with the blank line.
    fn build(&self, raw: &[u8]) -> Result<RequestHead, RequestHeadError> {
        let line = self.request_line.ok_or(RequestHeadError::BadRequestLine)?;
        let field_count = self.line_count - 1;
        if field_count <= FIELDS_ON_STACK {
            let mut slots = [httparse::EMPTY_HEADER; FIELDS_ON_STACK];
            parse_fields(&line, raw, &mut slots[..field_count])
        } else {
            let mut slots = vec![httparse::EMPTY_HEADER; field_count];
            parse_fields(&line, raw, &mut slots)
        }
    }
}

/// Parses a complete head in one call.
///
/// # Errors
/// As for `HeadScanner::scan`.
pub fn parse_head(
    buf: &[u8],
    limits: &HeadLimits,
) -> Result<ParseProgress<(RequestHead, usize)>, RequestHeadError> {
    HeadScanner::new().scan(buf, limits)
}

fn parse_fields<'a>(
    line: &RequestLine,
    raw: &'a [u8],
    slots: &mut [httparse::Header<'a>],
) -> Result<RequestHead, RequestHeadError> {
    let fields_at = line.len + 2;
    let parsed =
        httparse::parse_headers(&raw[fields_at..], slots).map_err(|error| match error {
            httparse::Error::HeaderName => RequestHeadError::BadFieldName,
            httparse::Error::TooManyHeaders => RequestHeadError::TooManyFields,
            httparse::Error::NewLine => RequestHeadError::BareLineBreak,
            _ => RequestHeadError::BadFieldValue,
        })?;
    // Both parsers must have seen the same lines and the same end.
    let fields = match parsed {
        httparse::Status::Complete((len, fields)) if fields_at + len == raw.len() => fields,
        _ => return Err(RequestHeadError::BadFieldValue),
    };
    let mut facts = MessageFields::default();
    let mut spans = Vec::with_capacity(fields.len());
    for field in fields {
        if field.name.len() > MAX_FIELD_NAME_BYTES {
            return Err(RequestHeadError::FieldNameTooLong);
        }
        let value = trim_blanks(field.value);
        let span = FieldSpan {
            name: span_of(raw, field.name.as_bytes()),
            value: span_of(raw, value),
        };
        facts.record(field.name.as_bytes(), value, span.value)?;
        spans.push(span);
    }
    build_head(line, raw, &facts, spans)
}

fn build_head(
    line: &RequestLine,
    raw: &[u8],
    facts: &MessageFields<'_>,
    mut fields: Vec<FieldSpan>,
) -> Result<RequestHead, RequestHeadError> {
    let version = line.version;
    let framing = facts.framing(version)?;
    let expects_continue = facts.expects_continue(version, framing)?;
    let host = facts.host(version)?;
    let place = HeadSpans::locate(line, raw, host);
    if host.is_some() {
        set_host_field(&mut fields, raw, place.host);
    }
    Ok(RequestHead {
        raw: place.copy_head(raw),
        fields,
        method_token: line.method_token,
        target: place.target,
        path_query: place.path_query,
        sent_path_query: place.sent_path_query,
        host: place.host,
        framing,
        method: line.method,
        version,
        keep_alive: facts.keep_alive(version),
        expects_continue,
        is_upgrade: facts.is_upgrade(version),
        has_other_options: facts.has_other_options,
        has_websocket_events: facts.has_websocket_events,
    })
}

/// Sets the value of the `Host` field to the requested host, for code that reads fields instead of
/// [`RequestHead::host`]. An absolute-form target overrides the field (RFC 9112 §3.2.2).
fn set_host_field(fields: &mut [FieldSpan], raw: &[u8], host: HeadSpan) {
    let mut fields = fields.iter_mut();
    let found = fields.find(|field| token_eq_ignore_case(&raw[field.name.range()], b"host"));
    if let Some(field) = found {
        field.value = host;
    }
}

/// Positions of host and targets. `tail` is appended to the copy of the head, with parts that were
/// not sent, or not in this form.
struct HeadSpans {
    host: HeadSpan,
    target: HeadSpan,
    path_query: HeadSpan,
    sent_path_query: HeadSpan,
    tail: Vec<u8>,
}

impl HeadSpans {
    fn locate(line: &RequestLine, raw: &[u8], field: Option<HeadSpan>) -> Self {
        let as_sent = Self {
            host: field.unwrap_or_default(),
            target: line.target,
            path_query: line.target,
            sent_path_query: line.target,
            tail: Vec::new(),
        };
        match line.form {
            TargetForm::Origin if line.has_raw_bytes => {
                as_sent.with_encoded_target(line, raw, line.target, b"")
            }
            TargetForm::Origin => as_sent,
            TargetForm::Authority => Self {
                host: line.target,
                path_query: HeadSpan::default(),
                sent_path_query: HeadSpan::default(),
                ..as_sent
            },
            TargetForm::Absolute { authority, rest } => {
                let as_sent = Self {
                    host: authority,
                    path_query: rest,
                    sent_path_query: rest,
                    ..as_sent
                };
                as_sent.with_absolute_form(line, raw, rest)
            }
        }
    }

    // An absolute-form target may lack the path (RFC 9110 §4.2.3: same as "/"; RFC 9112 §3.2.4: "*"
    // for OPTIONS). The head then has no origin form.
    fn with_absolute_form(self, line: &RequestLine, raw: &[u8], rest: HeadSpan) -> Self {
        let text = &raw[rest.range()];
        let prefix: &[u8] = match text {
            [b'/', ..] if line.has_raw_bytes => b"",
            [b'/', ..] => return self,
            [] if line.method == Method::Options => b"*",
            _ => b"/",
        };
        self.with_encoded_target(line, raw, rest, prefix)
    }

    /// Appends the target with bytes outside the URI grammar encoded. `rest` is its part in origin
    /// form, without `prefix`.
    fn with_encoded_target(
        self,
        line: &RequestLine,
        raw: &[u8],
        rest: HeadSpan,
        prefix: &[u8],
    ) -> Self {
        let (target, rest) = (self.target.range(), rest.range());
        let mut tail = Vec::with_capacity(2 * target.len());
        // Scheme and authority need no encoding.
        tail.extend_from_slice(&raw[target.start..rest.start]);
        let origin_form = raw.len() + tail.len();
        tail.extend_from_slice(prefix);
        tail.extend_from_slice(request_line::encode_raw_bytes(&raw[rest]).as_bytes());
        let end = raw.len() + tail.len();
        let path_query = HeadSpan::new(origin_form, end - origin_form);
        Self {
            target: match line.has_raw_bytes {
                true => HeadSpan::new(raw.len(), tail.len()),
                false => self.target,
            },
            path_query,
            sent_path_query: match prefix {
                b"" => self.sent_path_query,
                _ => path_query,
            },
            tail,
            ..self
        }
    }

    fn copy_head(&self, raw: &[u8]) -> Bytes {
        match &*self.tail {
            [] => Bytes::copy_from_slice(raw),
            tail => [raw, tail].concat().into(),
        }
    }
}

// An empty value need not point into the head.
fn span_of(raw: &[u8], part: &[u8]) -> HeadSpan {
    if part.is_empty() {
        return HeadSpan::default();
    }
    HeadSpan::new(
        (part.as_ptr() as usize).wrapping_sub(raw.as_ptr() as usize),
        part.len(),
    )
}

/// Browsers send about fifteen fields, and few clients more than thirty.
const FIELDS_ON_STACK: usize = 32;

const MAX_FIELD_NAME_BYTES: usize = 256;

#[cfg(test)]
mod tests;
