//! From received bytes to a checked `RequestHead` (RFC 9112 §2–§3, §5–§7).
//!
//! `edge` keeps one `HeadScanner` per message being read and calls `scan` with everything received
//! of it each time more arrives. The scanner finds strict line ends, checks the request line as
//! soon as it is whole, and hands the field lines to `httparse` once the blank line is there.
//!
//! What must stay true: the outcome does not depend on how the bytes were split; no byte is
//! searched twice for a line end; limits are applied before anything is kept; `httparse` is laxer
//! than this server wants to be (bare LF, blank lines), so what it accepts is checked around it.

use bytes::Bytes;

use super::{
    error::ParseError,
    facts::Facts,
    request_line::{self, RequestLine, TargetForm},
};
use crate::{
    grammar::{is_known, trim_blanks},
    head::{FieldSpan, HEAD_BYTES_MAX, Method, RequestHead, Span},
};

/// Bounds on a request head; each has its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The longest request target: 414 beyond.
    pub target_bytes: usize,
    /// The largest head, from the method to the blank line: 431 beyond.
    pub header_bytes: usize,
    /// The most fields: 431 beyond.
    pub headers: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            target_bytes: 8 << 10,
            header_bytes: 32 << 10,
            headers: 100,
        }
    }
}

/// Whether a message head is there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// Nothing wrong so far, more bytes are needed.
    Partial,
    /// The whole of it.
    Complete(T),
}

/// Finds and checks one request head in bytes that arrive in any pieces.
///
/// Inputs: `scan` with the bytes of one message from its first byte on, growing between calls.
/// Outputs: `Partial`, a head with the number of bytes it took, or an error.
#[derive(Clone, Debug, Default)]
pub struct HeadScanner {
    /// Bytes of a blank line before the message: 0 or 2.
    skipped: usize,
    /// Everything before this was searched for line ends.
    looked: usize,
    /// Where the line being read begins.
    line_start: usize,
    /// Complete lines seen, the request line included.
    lines: usize,
    /// Length of the method once it is known.
    method_len: usize,
    /// The request line once it is complete.
    request_line: Option<RequestLine>,
}

impl HeadScanner {
    /// A scanner at the start of a message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the message: the next `scan` starts a new one.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Looks for a whole head in `buf`, which is everything received of this message so far.
    ///
    /// After a head or an error the scanner is reset, ready for the next message.
    ///
    /// # Errors
    /// As soon as the bytes cannot become an acceptable head, complete or not.
    pub fn scan(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
    ) -> Result<Progress<(RequestHead, usize)>, ParseError> {
        if self.looked > buf.len() {
            // Not a continuation of what was seen: positions would be lies.
            self.reset();
        }
        let outcome = self.advance(buf, limits);
        if !matches!(outcome, Ok(Progress::Partial)) {
            self.reset();
        }
        outcome
    }

    fn advance(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
    ) -> Result<Progress<(RequestHead, usize)>, ParseError> {
        if self.looked == 0 && !self.skip_blank_line(buf)? {
            return Ok(Progress::Partial);
        }
        let head_max = limits.header_bytes.min(HEAD_BYTES_MAX);
        for found in memchr::memchr_iter(b'\n', &buf[self.looked..]) {
            let line_end = self.looked + found;
            let line = &buf[self.line_start..line_end];
            self.check_so_far(line, limits)?;
            if line_end + 1 - self.skipped > head_max {
                return Err(ParseError::HeadTooLarge);
            }
            if self.take_line(line, limits)? {
                let head = self.build(&buf[self.skipped..=line_end])?;
                return Ok(Progress::Complete((head, line_end + 1)));
            }
            self.line_start = line_end + 1;
        }
        self.looked = buf.len();
        self.check_so_far(&buf[self.line_start..], limits)?;
        if buf.len() - self.skipped > head_max {
            return Err(ParseError::HeadTooLarge);
        }
        Ok(Progress::Partial)
    }

    /// Skips the one CR LF that may precede a request (RFC 9112 §2.2); false when more is needed.
    fn skip_blank_line(&mut self, buf: &[u8]) -> Result<bool, ParseError> {
        match buf {
            [] | [b'\r'] | [b'\r', b'\n'] => return Ok(false),
            [b'\r', b'\n', b'\r' | b'\n', ..] => return Err(ParseError::BlankLines),
            [b'\r', b'\n', ..] => self.skipped = 2,
            [b'\r' | b'\n', ..] => return Err(ParseError::BareLineBreak),
            _ => {}
        }
        self.looked = self.skipped;
        self.line_start = self.skipped;
        Ok(true)
    }

    /// Checks the start of a line, or the whole of it, before its end is looked at.
    fn check_so_far(&mut self, line: &[u8], limits: &HeadLimits) -> Result<(), ParseError> {
        match line {
            [] => Ok(()),
            _ if self.lines == 0 => request_line::check_prefix(line, &mut self.method_len, limits),
            // The blank line, or a stray CR that the end of the line will reveal.
            [b'\r', ..] => Ok(()),
            [b' ' | b'\t', ..] => Err(ParseError::FoldedField),
            _ if self.lines > limits.headers => Err(ParseError::TooManyFields),
            _ => Ok(()),
        }
    }

    /// Takes one line up to its LF; true when it is the blank line that ends the head.
    fn take_line(&mut self, line: &[u8], limits: &HeadLimits) -> Result<bool, ParseError> {
        let [line @ .., b'\r'] = line else {
            return Err(ParseError::BareLineBreak);
        };
        if self.lines == 0 {
            self.request_line = Some(request_line::parse(line, self.method_len, limits)?);
        } else if line.is_empty() {
            return Ok(true);
        }
        self.lines += 1;
        Ok(false)
    }

    /// Builds the head from `raw`, which ends with the blank line.
    fn build(&self, raw: &[u8]) -> Result<RequestHead, ParseError> {
        let line = self.request_line.ok_or(ParseError::BadRequestLine)?;
        let field_count = self.lines - 1;
        if field_count <= FIELDS_ON_STACK {
            let mut slots = [httparse::EMPTY_HEADER; FIELDS_ON_STACK];
            assemble(&line, raw, &mut slots[..field_count])
        } else {
            let mut slots = vec![httparse::EMPTY_HEADER; field_count];
            assemble(&line, raw, &mut slots)
        }
    }
}

/// Parses a head that is expected to be whole, in one call.
///
/// # Errors
/// As `HeadScanner::scan`.
pub fn parse_head(
    buf: &[u8],
    limits: &HeadLimits,
) -> Result<Progress<(RequestHead, usize)>, ParseError> {
    HeadScanner::new().scan(buf, limits)
}

fn assemble<'a>(
    line: &RequestLine,
    raw: &'a [u8],
    slots: &mut [httparse::Header<'a>],
) -> Result<RequestHead, ParseError> {
    let fields_at = line.len + 2;
    let parsed =
        httparse::parse_headers(&raw[fields_at..], slots).map_err(|error| match error {
            httparse::Error::HeaderName => ParseError::BadFieldName,
            httparse::Error::TooManyHeaders => ParseError::TooManyFields,
            httparse::Error::NewLine => ParseError::BareLineBreak,
            _ => ParseError::BadFieldValue,
        })?;
    // Both readers must have seen the same lines and the same end.
    let fields = match parsed {
        httparse::Status::Complete((len, fields)) if fields_at + len == raw.len() => fields,
        _ => return Err(ParseError::BadFieldValue),
    };
    let mut facts = Facts::default();
    let mut spans = Vec::with_capacity(fields.len());
    for field in fields {
        if field.name.len() > FIELD_NAME_BYTES_MAX {
            return Err(ParseError::FieldNameTooLong);
        }
        let value = trim_blanks(field.value);
        let span = FieldSpan {
            name: locate(raw, field.name.as_bytes()),
            value: locate(raw, value),
        };
        facts.note(field.name.as_bytes(), value, span.value)?;
        spans.push(span);
    }
    conclude(line, raw, &facts, spans)
}

fn conclude(
    line: &RequestLine,
    raw: &[u8],
    facts: &Facts<'_>,
    mut fields: Vec<FieldSpan>,
) -> Result<RequestHead, ParseError> {
    let version = line.version;
    let framing = facts.framing(version)?;
    let expects_continue = facts.expects_continue(version, framing)?;
    let host = facts.host(version)?;
    let place = Place::find(line, raw, host);
    if host.is_some() {
        state_host(&mut fields, raw, place.host);
    }
    Ok(RequestHead {
        raw: place.copy_of(raw),
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
        names_fields: facts.names_fields,
        names_socket_events: facts.names_socket_events,
    })
}

/// Lets the `Host` field say the host that was asked for: that of an absolute-form target wins over
/// it (RFC 9112 §3.2.2), whoever reads fields instead of [`RequestHead::host`].
fn state_host(fields: &mut [FieldSpan], raw: &[u8], host: Span) {
    let mut fields = fields.iter_mut();
    let found = fields.find(|field| is_known(&raw[field.name.range()], b"host"));
    if let Some(field) = found {
        field.value = host;
    }
}

/// Where host and targets lie; `tail` is what must be appended to the copy of the head because it
/// was not sent, or not so.
struct Place {
    host: Span,
    target: Span,
    path_query: Span,
    sent_path_query: Span,
    tail: Vec<u8>,
}

impl Place {
    fn find(line: &RequestLine, raw: &[u8], field: Option<Span>) -> Self {
        let as_sent = Self {
            host: field.unwrap_or_default(),
            target: line.target,
            path_query: line.target,
            sent_path_query: line.target,
            tail: Vec::new(),
        };
        match line.form {
            TargetForm::Origin if line.has_raw_bytes => {
                as_sent.encoded(line, raw, line.target, b"")
            }
            TargetForm::Origin => as_sent,
            TargetForm::Authority => Self {
                host: line.target,
                path_query: Span::default(),
                sent_path_query: Span::default(),
                ..as_sent
            },
            TargetForm::Absolute { authority, rest } => {
                let as_sent = Self {
                    host: authority,
                    path_query: rest,
                    sent_path_query: rest,
                    ..as_sent
                };
                as_sent.absolute(line, raw, rest)
            }
        }
    }

    // An absolute-form target may lack the path (RFC 9110 §4.2.3: the same as "/"; RFC 9112
    // §3.2.4: "*" for OPTIONS). The origin form then exists nowhere in the head.
    fn absolute(self, line: &RequestLine, raw: &[u8], rest: Span) -> Self {
        let text = &raw[rest.range()];
        let prefix: &[u8] = match text {
            [b'/', ..] if line.has_raw_bytes => b"",
            [b'/', ..] => return self,
            [] if line.method == Method::Options => b"*",
            _ => b"/",
        };
        self.encoded(line, raw, rest, prefix)
    }

    /// Appends the target with what no URI holds encoded; `rest` is its part in origin form, which
    /// lacks `prefix`.
    fn encoded(self, line: &RequestLine, raw: &[u8], rest: Span, prefix: &[u8]) -> Self {
        let (target, rest) = (self.target.range(), rest.range());
        let mut tail = Vec::with_capacity(2 * target.len());
        // Scheme and authority, of which nothing needs encoding.
        tail.extend_from_slice(&raw[target.start..rest.start]);
        let origin_form = raw.len() + tail.len();
        tail.extend_from_slice(prefix);
        request_line::push_encoded(&mut tail, &raw[rest]);
        let end = raw.len() + tail.len();
        let path_query = Span::new(origin_form, end - origin_form);
        Self {
            target: match line.has_raw_bytes {
                true => Span::new(raw.len(), tail.len()),
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

    fn copy_of(&self, raw: &[u8]) -> Bytes {
        match &*self.tail {
            [] => Bytes::copy_from_slice(raw),
            tail => [raw, tail].concat().into(),
        }
    }
}

// An empty value need not point into the head.
fn locate(raw: &[u8], part: &[u8]) -> Span {
    if part.is_empty() {
        return Span::default();
    }
    Span::new(
        (part.as_ptr() as usize).wrapping_sub(raw.as_ptr() as usize),
        part.len(),
    )
}

/// Browsers send about fifteen fields and few clients more than thirty.
const FIELDS_ON_STACK: usize = 32;

const FIELD_NAME_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests;
