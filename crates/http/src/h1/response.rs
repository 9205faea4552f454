//! Parses a response head (RFC 9112 §4–§6): status, body framing, persistence.
//!
//! Callers have one `ResponseHeadScanner` per connection and call `scan` with all bytes of the
//! response each time more arrive. Nothing is allocated or copied: the caller reads fields from the
//! bytes of the head. Interim responses are heads like any other: the caller continues with the
//! next one.
//!
//! # Invariants
//!
//! - The result does not depend on how the bytes were split, nor on whether a field took one pass
//!   or two.
//! - No line is inspected a third time.
//! - Framing that readers interpret differently (RFC 9112 §6.3) is an error, or closes the
//!   connection if the end of this response is certain.

use thiserror::Error;

use super::ParseProgress;
use crate::{
    grammar::{
        is_field_value, is_token_byte, list_elements, parse_content_length, token_eq_ignore_case,
        trim_blanks, valid_value_prefix_len,
    },
    head::Version,
};

/// Limits of a response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeadLimits {
    /// The largest head, blank line included.
    pub max_head_bytes: usize,
    /// The most fields.
    pub max_fields: usize,
}

impl Default for ResponseHeadLimits {
    fn default() -> Self {
        Self {
            max_head_bytes: 64 << 10,
            max_fields: 256,
        }
    }
}

/// How the end of a response body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBodyFraming {
    None,
    Length(u64),
    Chunked,
    /// Everything until the server closes the connection.
    UntilClose,
}

/// A parsed response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub version: Version,
    /// 100 to 999.
    pub status: u16,
    pub framing: ResponseBodyFraming,
    /// Whether another request may follow on the connection (RFC 9112 §9.3). Not after a body that
    /// ends with the connection, after 101, or after a `Content-Length` above 0 on a response
    /// without a body (1xx, 204; RFC 9110 §8.6): the server may have sent one.
    pub keep_alive: bool,
    /// Bytes of the head, blank line included.
    pub len: usize,
}

/// Field names that matter for nearly every response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownFieldName {
    Connection,
    ContentLength,
    ContentType,
    Date,
    TransferEncoding,
    Other,
}

impl KnownFieldName {
    /// Identifies `name`, ignoring case.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Self {
        // The length nearly always decides, before any name is compared.
        match name.len() {
            4 if token_eq_ignore_case(name, b"date") => Self::Date,
            10 if token_eq_ignore_case(name, b"connection") => Self::Connection,
            12 if token_eq_ignore_case(name, b"content-type") => Self::ContentType,
            14 if token_eq_ignore_case(name, b"content-length") => Self::ContentLength,
            17 if token_eq_ignore_case(name, b"transfer-encoding") => Self::TransferEncoding,
            _ => Self::Other,
        }
    }
}

/// A field with a checked name and value, which can be forwarded as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedField<'b> {
    /// Including the line end.
    line: &'b [u8],
    name: &'b [u8],
    known_name: KnownFieldName,
    value: &'b [u8],
}

impl<'b> CheckedField<'b> {
    /// The name as sent; a token.
    pub fn name(&self) -> &'b [u8] {
        self.name
    }

    /// The known name, if it is one.
    pub fn known_name(&self) -> KnownFieldName {
        self.known_name
    }

    /// The line with its end, if it has the form that `FieldBlock` writes: name, colon, one space,
    /// value.
    pub(crate) fn canonical_line(&self) -> Option<&'b [u8]> {
        let is_usual = self.line.len() == self.name.len() + 2 + self.value.len() + 2
            && self.line[self.name.len() + 1] == b' ';
        is_usual.then_some(self.line)
    }

    /// The value without surrounding blanks.
    pub fn value(&self) -> &'b [u8] {
        self.value
    }
}

/// Why bytes are no acceptable response head. The connection must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ResponseHeadError {
    #[error("not an http/1 response")]
    NotHttp,
    #[error("http version not supported")]
    VersionNotSupported,
    /// No status of three digits.
    #[error("malformed status line")]
    BadStatusLine,
    /// A line that does not end in CR LF.
    #[error("bare cr or lf in the head")]
    BareLineBreak,
    /// A field line that begins with a blank.
    #[error("folded header field")]
    FoldedField,
    /// A field name that is empty or not a token.
    #[error("malformed header field name")]
    BadFieldName,
    /// A control byte in a field value or the reason.
    #[error("malformed header field value")]
    BadFieldValue,
    #[error("response head too large")]
    HeadTooLarge,
    #[error("too many header fields")]
    TooManyFields,
    /// `Content-Length` that is no number, or several that differ.
    #[error("malformed content-length")]
    BadContentLength,
    #[error("content-length together with transfer-encoding")]
    LengthAndCoding,
    /// `Transfer-Encoding` other than a single `chunked`, in HTTP/1.0, or with 1xx or 204.
    #[error("transfer coding not supported")]
    BadTransferEncoding,
}

/// Finds and checks one response head in bytes that arrive in any pieces.
///
/// Input: `scan` with the bytes of one response from its first byte on, growing between calls.
/// Output: `Partial`, the head, or an error; the last two reset the scanner.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseHeadScanner {
    /// Bytes searched for line ends.
    scanned: usize,
    /// Start of the current line.
    line_start: usize,
    /// The last LF of a field that the next line may continue. Lenient only.
    pending_line_end: Option<usize>,
    field_count: usize,
    status_line: Option<(Version, u16)>,
    length: Option<u64>,
    is_chunked: bool,
    has_close_option: bool,
    has_keep_alive_option: bool,
    is_lenient: bool,
    /// A line deviated from the grammar: a bare LF, a fold, blanks before the colon.
    needed_leniency: bool,
}

impl ResponseHeadScanner {
    /// Creates a scanner at the start of a response.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a scanner that accepts heads of old servers: lines may end in a bare LF, blanks may
    /// precede a colon, and fields may be folded. Faulty framing with a certain end closes the
    /// connection instead of failing the response. Fields are returned normalised.
    #[must_use]
    pub fn lenient() -> Self {
        Self {
            is_lenient: true,
            ..Self::default()
        }
    }

    fn reset(&mut self) {
        *self = Self {
            is_lenient: self.is_lenient,
            ..Self::default()
        };
    }

    /// Scans for a complete head in `buf`, all bytes of this response so far. `answers_head` is set
    /// for the response to a `HEAD`, which has no body.
    ///
    /// # Errors
    /// Fails as soon as a complete line cannot belong to an acceptable head, or the first bytes to
    /// any head.
    pub fn scan(
        &mut self,
        buf: &[u8],
        answers_head: bool,
        limits: &ResponseHeadLimits,
    ) -> Result<ParseProgress<ResponseHead>, ResponseHeadError> {
        self.scan_with(buf, answers_head, limits, &mut |_| {})
    }

    /// Like [`ResponseHeadScanner::scan`], and passes each field to `take` once, in the order sent,
    /// as soon as its line is checked. The fields count only if the head becomes complete.
    ///
    /// # Errors
    /// As for [`ResponseHeadScanner::scan`].
    pub fn scan_with(
        &mut self,
        buf: &[u8],
        answers_head: bool,
        limits: &ResponseHeadLimits,
        take: &mut impl FnMut(CheckedField<'_>),
    ) -> Result<ParseProgress<ResponseHead>, ResponseHeadError> {
        if self.scanned > buf.len() {
            // Not a continuation of the previous input: the positions would be wrong.
            self.reset();
        }
        let outcome = self.advance(buf, answers_head, limits, take);
        if !matches!(outcome, Ok(ParseProgress::Partial)) {
            self.reset();
        }
        outcome
    }

    fn advance(
        &mut self,
        buf: &[u8],
        answers_head: bool,
        limits: &ResponseHeadLimits,
        take: &mut impl FnMut(CheckedField<'_>),
    ) -> Result<ParseProgress<ResponseHead>, ResponseHeadError> {
        loop {
            let usual = self.canonical_field(&buf[self.line_start..]);
            let Some(line_end) = self.find_line_end(buf, usual.as_ref()) else {
                break;
            };
            if line_end >= limits.max_head_bytes {
                return Err(ResponseHeadError::HeadTooLarge);
            }
            let whole = &buf[self.line_start..=line_end];
            let line = match whole {
                [line @ .., b'\r', _] => line,
                [line @ .., _] if self.is_lenient => {
                    self.needed_leniency = true;
                    line
                }
                _ => return Err(self.bare_line_break(buf)),
            };
            self.line_start = line_end + 1;
            self.scanned = self.line_start;
            let Some((version, status)) = self.status_line else {
                let (version, status) = parse_status_line(line)?;
                // RFC 9110 §2.5: a higher minor version is read as the highest supported one.
                self.status_line = match version {
                    Some(version) => Some((version, status)),
                    None if self.is_lenient => Some((Version::Http11, status)),
                    None => return Err(ResponseHeadError::VersionNotSupported),
                };
                continue;
            };
            if line.is_empty() {
                let body = self.body_framing(version, status, answers_head)?;
                return Ok(ParseProgress::Complete(ResponseHead {
                    version,
                    status,
                    framing: body,
                    keep_alive: self.is_reusable(version, status, body),
                    len: line_end + 1,
                }));
            }
            self.field_count += 1;
            if self.field_count > limits.max_fields {
                return Err(ResponseHeadError::TooManyFields);
            }
            let mended;
            let field = match usual.filter(|field| field.line.len() == whole.len()) {
                Some(field) => field,
                None if self.is_lenient => {
                    mended = normalise_line(whole);
                    self.needed_leniency |= !is_well_formed_line(whole);
                    parse_field_line(&mended)?
                }
                None => parse_field_line(whole)?,
            };
            self.record(&field)?;
            take(field);
        }
        self.need_more(buf, limits)
    }

    /// The last LF of the current line, including its continuation lines for a lenient scanner (RFC
    /// 9112 §5.2). `None` if it has not arrived. Searched bytes are not searched again.
    fn find_line_end(&mut self, buf: &[u8], usual: Option<&CheckedField<'_>>) -> Option<usize> {
        let mut line_end = match (self.pending_line_end, usual) {
            (Some(end), _) => end,
            (None, Some(field)) => self.line_start + field.line.len() - 1,
            (None, None) => self.find_line_feed(buf)?,
        };
        let is_field =
            self.status_line.is_some() && !is_blank_line(&buf[self.line_start..=line_end]);
        if !self.is_lenient || !is_field {
            return Some(line_end);
        }
        loop {
            self.pending_line_end = Some(line_end);
            self.scanned = self.scanned.max(line_end + 1);
            match buf.get(line_end + 1)? {
                b' ' | b'\t' => line_end = self.find_line_feed(buf)?,
                _ => break,
            }
        }
        self.pending_line_end = None;
        Some(line_end)
    }

    /// The next LF after the searched bytes.
    fn find_line_feed(&mut self, buf: &[u8]) -> Option<usize> {
        let rest = &buf[self.scanned..];
        let found = match rest {
            // The blank line.
            [b'\r', b'\n', ..] => Some(1),
            _ => memchr::memchr(b'\n', rest),
        };
        let found = found.map(|found| self.scanned + found);
        self.scanned = found.map_or(buf.len(), |at| at + 1);
        found
    }

    /// Asks for more bytes, if the present ones may become a head.
    fn need_more(
        &self,
        buf: &[u8],
        limits: &ResponseHeadLimits,
    ) -> Result<ParseProgress<ResponseHead>, ResponseHeadError> {
        if self.status_line.is_none() {
            check_prefix(buf)?;
        }
        if buf.len() >= limits.max_head_bytes {
            return Err(ResponseHeadError::HeadTooLarge);
        }
        Ok(ParseProgress::Partial)
    }

    fn bare_line_break(&self, buf: &[u8]) -> ResponseHeadError {
        match self.status_line {
            None if check_prefix(buf).is_err() => ResponseHeadError::NotHttp,
            _ => ResponseHeadError::BareLineBreak,
        }
    }

    /// The next line, if it is a complete and valid field, found by inspecting each byte once.
    /// `None` leaves any other line to the path that identifies each error.
    fn canonical_field<'b>(&self, buf: &'b [u8]) -> Option<CheckedField<'b>> {
        if self.status_line.is_none() || self.scanned > self.line_start {
            return None;
        }
        split_field_line(buf)
    }

    fn record(&mut self, field: &CheckedField<'_>) -> Result<(), ResponseHeadError> {
        match field.known_name {
            KnownFieldName::Connection => self.record_connection(field.value),
            KnownFieldName::ContentLength => self.record_length(field.value)?,
            KnownFieldName::TransferEncoding => self.record_coding(field.value)?,
            KnownFieldName::ContentType | KnownFieldName::Date | KnownFieldName::Other => {}
        }
        Ok(())
    }

    fn record_connection(&mut self, value: &[u8]) {
        if value == b"keep-alive" {
            self.has_keep_alive_option = true;
            return;
        }
        for option in list_elements(value) {
            self.has_close_option |= option.eq_ignore_ascii_case(b"close");
            self.has_keep_alive_option |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    // RFC 9112 §6.3 case 5: repetitions of the same number are allowed.
    fn record_length(&mut self, value: &[u8]) -> Result<(), ResponseHeadError> {
        for element in value.split(|&byte| byte == b',') {
            let length = parse_content_length(trim_blanks(element))
                .ok_or(ResponseHeadError::BadContentLength)?;
            if self.length.replace(length).is_some_and(|it| it != length) {
                return Err(ResponseHeadError::BadContentLength);
            }
        }
        Ok(())
    }

    fn record_coding(&mut self, value: &[u8]) -> Result<(), ResponseHeadError> {
        // No coding at all (RFC 2616 §3.6), removed by RFC 7230.
        if self.is_lenient && trim_blanks(value).eq_ignore_ascii_case(b"identity") {
            self.needed_leniency = true;
            return Ok(());
        }
        if self.is_chunked || !trim_blanks(value).eq_ignore_ascii_case(b"chunked") {
            return Err(ResponseHeadError::BadTransferEncoding);
        }
        self.is_chunked = true;
        Ok(())
    }

    /// RFC 9112 §6.3. Refuses every combination that readers interpret differently.
    fn body_framing(
        &self,
        version: Version,
        status: u16,
        answers_head: bool,
    ) -> Result<ResponseBodyFraming, ResponseHeadError> {
        if !self.is_lenient {
            self.check_framing(version, status)?;
        }
        // RFC 9112 §6.3 case 1. Another response follows, and readers that apply the fields find it
        // elsewhere.
        if matches!(status, 100..=199) && self.is_chunked {
            return Err(ResponseHeadError::BadTransferEncoding);
        }
        if matches!(status, 100 | 102..=199) && self.length.is_some_and(|length| length > 0) {
            return Err(ResponseHeadError::BadContentLength);
        }
        if answers_head || is_bodiless(status) || status == 304 {
            return Ok(ResponseBodyFraming::None);
        }
        // RFC 9112 §6.3 case 3: the coding overrides a length.
        Ok(match self.length {
            _ if self.is_chunked => ResponseBodyFraming::Chunked,
            Some(length) => ResponseBodyFraming::Length(length),
            None => ResponseBodyFraming::UntilClose,
        })
    }

    fn check_framing(&self, version: Version, status: u16) -> Result<(), ResponseHeadError> {
        if self.is_chunked && self.length.is_some() {
            return Err(ResponseHeadError::LengthAndCoding);
        }
        // RFC 9112 §6.1: a coding in HTTP/1.0 is faulty framing.
        if self.is_chunked && version == Version::Http10 {
            return Err(ResponseHeadError::BadTransferEncoding);
        }
        // RFC 9112 §6.1: servers must not send it, and some readers would apply it.
        if self.is_chunked && is_bodiless(status) {
            return Err(ResponseHeadError::BadTransferEncoding);
        }
        Ok(())
    }

    fn is_reusable(&self, version: Version, status: u16, body: ResponseBodyFraming) -> bool {
        let is_asked =
            !self.has_close_option && (version == Version::Http11 || self.has_keep_alive_option);
        let is_bodiless = is_bodiless(status);
        // After 204 and 304 a last chunk may or may not follow.
        let is_faulty = self.is_chunked
            && (self.length.is_some()
                || version == Version::Http10
                || is_bodiless
                || status == 304);
        // Input that a server was tricked into writing may look like the end of a head: no response
        // is read after one that needed leniency.
        let is_doubtful = is_faulty
            || self.needed_leniency
            || is_bodiless && self.length.is_some_and(|length| length > 0);
        is_asked && !is_doubtful && status != 101 && body != ResponseBodyFraming::UntilClose
    }
}

fn is_blank_line(line: &[u8]) -> bool {
    matches!(line, b"\n" | b"\r\n")
}

/// Normalises a field line: no blank before the colon, folds replaced by a space, CR LF at the end.
/// A line without a colon is unchanged.
fn normalise_line(whole: &[u8]) -> Vec<u8> {
    let lines = whole.split(|&byte| byte == b'\n');
    let mut lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let mut mended = Vec::with_capacity(whole.len() + 2);
    match memchr::memchr(b':', first) {
        Some(colon) => {
            let (name, value) = first.split_at(colon);
            mended.extend_from_slice(name.trim_ascii_end());
            mended.extend_from_slice(b": ");
            mended.extend_from_slice(trim_blanks(&value[1..]));
        }
        None => mended.extend_from_slice(first),
    }
    for line in lines.map(trim_blanks).filter(|line| !line.is_empty()) {
        mended.push(b' ');
        mended.extend_from_slice(line);
    }
    mended.extend_from_slice(b"\r\n");
    mended
}

/// Whether this is a single line with its name directly before the colon.
fn is_well_formed_line(whole: &[u8]) -> bool {
    let first = memchr::memchr(b'\n', whole).map_or(whole, |end| &whole[..=end]);
    let colon = memchr::memchr(b':', first);
    let has_blank = colon.is_some_and(|at| at > 0 && matches!(first[at - 1], b' ' | b'\t'));
    first.len() == whole.len() && !has_blank
}

/// The field at the start of `buf`, whose line ends in CR LF; `None` for any other line.
fn split_field_line(buf: &[u8]) -> Option<CheckedField<'_>> {
    let name_len = buf.iter().position(|&byte| !is_token_byte(byte))?;
    let (name, [b':', rest @ ..]) = buf.split_at(name_len) else {
        return None;
    };
    let (value, end) = rest.split_at(valid_value_prefix_len(rest));
    if name.is_empty() || !end.starts_with(b"\r\n") {
        return None;
    }
    Some(CheckedField {
        line: &buf[..name_len + 1 + value.len() + 2],
        name,
        known_name: KnownFieldName::from_name(name),
        value: trim_blanks(value),
    })
}

/// Parses a line with its end into a field.
fn parse_field_line(whole: &[u8]) -> Result<CheckedField<'_>, ResponseHeadError> {
    split_field_line(whole).ok_or_else(|| {
        let name_len = whole
            .iter()
            .take_while(|&&byte| is_token_byte(byte))
            .count();
        match whole {
            [b' ' | b'\t', ..] => ResponseHeadError::FoldedField,
            _ if name_len > 0 && whole[name_len] == b':' => ResponseHeadError::BadFieldValue,
            _ => ResponseHeadError::BadFieldName,
        }
    })
}

/// Whether such a response never has a body nor framing fields (RFC 9110 §8.6).
fn is_bodiless(status: u16) -> bool {
    matches!(status, 100..=199 | 204)
}

/// Parses version, if supported, and status. Many servers omit the blank before an empty reason,
/// which misleads no reader.
fn parse_status_line(line: &[u8]) -> Result<(Option<Version>, u16), ResponseHeadError> {
    check_prefix(line)?;
    let (version, rest) = match line.get(VERSION_PREFIX.len()..) {
        Some([b'0', rest @ ..]) => (Some(Version::Http10), rest),
        Some([b'1', rest @ ..]) => (Some(Version::Http11), rest),
        Some([b'2'..=b'9', rest @ ..]) => (None, rest),
        Some([_, ..]) => return Err(ResponseHeadError::VersionNotSupported),
        _ => return Err(ResponseHeadError::BadStatusLine),
    };
    let [
        b' ',
        a @ b'1'..=b'9',
        b @ b'0'..=b'9',
        c @ b'0'..=b'9',
        reason @ ..,
    ] = rest
    else {
        return Err(ResponseHeadError::BadStatusLine);
    };
    match reason {
        [] => {}
        [b' ', text @ ..] if is_field_value(text) => {}
        [b' ', ..] => return Err(ResponseHeadError::BadFieldValue),
        _ => return Err(ResponseHeadError::BadStatusLine),
    }
    let digit = |byte: &u8| u16::from(byte - b'0');
    Ok((version, digit(a) * 100 + digit(b) * 10 + digit(c)))
}

/// Whether `buf` may be the start of a response.
fn check_prefix(buf: &[u8]) -> Result<(), ResponseHeadError> {
    let common = buf.len().min(VERSION_PREFIX.len());
    if buf[..common] == VERSION_PREFIX[..common] {
        Ok(())
    } else {
        Err(ResponseHeadError::NotHttp)
    }
}

// All bytes are compared, so that the compiler can vectorise it.
const VERSION_PREFIX: &[u8] = b"HTTP/1.";

#[cfg(test)]
mod tests {
    use super::*;

    /// The head, and its fields as returned.
    fn scan_leniently(
        text: &str,
        step: usize,
    ) -> Result<(ResponseHead, Vec<String>), ResponseHeadError> {
        let (mut scanner, mut fields) = (ResponseHeadScanner::lenient(), Vec::new());
        let mut end = 0;
        loop {
            end = (end + step).min(text.len());
            let mut take = |field: CheckedField<'_>| {
                let (name, value) = (field.name(), field.value());
                let name = String::from_utf8_lossy(name).into_owned();
                fields.push(format!("{name}: {}", String::from_utf8_lossy(value)));
            };
            let limits = ResponseHeadLimits::default();
            match scanner.scan_with(&text.as_bytes()[..end], false, &limits, &mut take)? {
                ParseProgress::Complete(head) => return Ok((head, fields)),
                ParseProgress::Partial => assert!(end < text.len(), "not complete: {text:?}"),
            }
        }
    }

    #[test]
    fn a_lenient_scanner_normalises_lines_of_old_servers() {
        let rows: [(&str, &str, &[&str]); 6] = [
            ("usual", "X: y\r\nZ:z\r\n\r\n", &["X: y", "Z: z"]),
            ("bare line feeds", "X: y\nZ: z\n\n", &["X: y", "Z: z"]),
            ("mixed", "X: y\r\nZ: z\n\r\n", &["X: y", "Z: z"]),
            (
                "space before the colon",
                "X \t: y\r\nZ : z\r\n\r\n",
                &["X: y", "Z: z"],
            ),
            (
                "folded",
                "X: y\r\n  more\r\n\tagain \r\nZ: z\r\n\r\n",
                &["X: y more again", "Z: z"],
            ),
            ("folded over nothing", "X:\n  \n y\n\n", &["X: y"]),
        ];
        for (name, lines, fields) in rows {
            for status in ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\n"] {
                let text = format!("{status}{lines}");
                for step in [1, 2, 7, text.len()] {
                    let (head, seen) = scan_leniently(&text, step).unwrap();
                    assert_eq!(seen, fields, "{name} {step}");
                    assert_eq!((head.status, head.len), (200, text.len()), "{name}");
                    assert!(!head.keep_alive, "{name}: without a length");
                    // With a length, the connection stays open only if no leniency was needed.
                    let text = text.replacen('\n', "\nContent-Length: 1\r\n", 1);
                    let (head, _) = scan_leniently(&text, step.min(text.len())).unwrap();
                    let is_regular = name == "usual" && status.ends_with("\r\n");
                    assert_eq!(head.keep_alive, is_regular, "{name} {step}");
                }
            }
        }
    }

    #[test]
    fn a_lenient_scanner_ends_the_connection_behind_faulty_framing() {
        let rows = [
            (
                "200",
                "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                ResponseBodyFraming::Chunked,
            ),
            (
                "200",
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                ResponseBodyFraming::Chunked,
            ),
            (
                "200",
                "Transfer-Encoding: identity\r\n",
                ResponseBodyFraming::UntilClose,
            ),
            (
                "200",
                "Transfer-Encoding: Identity\r\nContent-Length: 5\r\n",
                ResponseBodyFraming::Length(5),
            ),
            (
                "200",
                "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
                ResponseBodyFraming::Chunked,
            ),
            (
                "204",
                "Transfer-Encoding: chunked\r\n",
                ResponseBodyFraming::None,
            ),
            (
                "304",
                "Transfer-Encoding: chunked\r\n",
                ResponseBodyFraming::None,
            ),
        ];
        for (status, lines, body) in rows {
            let text = format!("HTTP/1.1 {status} X\r\n{lines}\r\n");
            let (head, _) = scan_leniently(&text, text.len()).unwrap();
            assert_eq!(
                (head.framing, head.keep_alive),
                (body, false),
                "{status} {lines}"
            );
        }
        let later = "HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\n";
        let (head, _) = scan_leniently(later, later.len()).unwrap();
        assert_eq!((head.version, head.keep_alive), (Version::Http11, true));
        let old = "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (head, _) = scan_leniently(old, old.len()).unwrap();
        assert_eq!(
            (head.framing, head.keep_alive),
            (ResponseBodyFraming::Chunked, false)
        );
    }

    #[test]
    fn a_lenient_scanner_refuses_what_can_be_read_in_two_ways() {
        for lines in [
            " X: y\r\n",
            "X: a\rb\r\n",
            "X: y\r\r\n",
            "no colon\r\n",
            ": y\r\n",
            "X Y: z\r\n",
            "X: a\0\r\n",
            "Content-Length: 5\nContent-Length: 6\n",
            "Content-Length : 5\r\n 6\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Transfer-Encoding: identity, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
            assert!(scan_leniently(&text, text.len()).is_err(), "{lines:?}");
        }
        for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
            let text = format!("HTTP/1.1 100 Continue\r\n{framing}\r\n\r\n");
            assert!(scan_leniently(&text, text.len()).is_err(), "{framing}");
        }
    }

    #[test]
    fn no_byte_is_searched_twice() {
        let heads = [
            format!("X: y\r\n{}\r\n", " z\n".repeat(20_000)),
            format!("X: y\r\n {}\r\n\r\n", "z".repeat(60_000)),
            format!("X: {}\r\n\r\n", "y".repeat(60_000)),
            format!("X: {}\n\n", "y".repeat(60_000)),
            format!("{}\r\n", "X: y\r\n".repeat(200)),
        ];
        for fields in heads {
            let text = format!("HTTP/1.1 200 OK\r\n{fields}");
            let mut scanner = ResponseHeadScanner::lenient();
            let mut searched = 0;
            let limits = ResponseHeadLimits::default();
            for end in 1..text.len() {
                // A call may search only bytes not searched before.
                searched += end - scanner.scanned;
                let scanned = scanner.scan(&text.as_bytes()[..end], false, &limits);
                assert_eq!(scanned, Ok(ParseProgress::Partial), "{end}");
            }
            assert!(searched <= 2 * text.len(), "{searched} of {}", text.len());
            let scanned = scanner.scan(text.as_bytes(), false, &limits).unwrap();
            assert!(matches!(scanned, ParseProgress::Complete(head) if head.len == text.len()));
        }
    }

    fn scan(
        text: &str,
        answers_head: bool,
    ) -> Result<ParseProgress<ResponseHead>, ResponseHeadError> {
        let limits = ResponseHeadLimits {
            max_head_bytes: 200,
            max_fields: 4,
        };
        let whole = ResponseHeadScanner::new().scan(text.as_bytes(), answers_head, &limits);
        // The same result byte by byte, though an error may appear earlier.
        let mut scanner = ResponseHeadScanner::new();
        for end in 1..=text.len() {
            let pieces = scanner.scan(&text.as_bytes()[..end], answers_head, &limits);
            if !matches!(pieces, Ok(ParseProgress::Partial)) {
                assert_eq!(pieces, whole, "{text:?} in pieces");
                break;
            }
        }
        whole
    }

    #[test]
    fn finds_the_end_of_the_body() {
        use ResponseBodyFraming::*;
        for (name, head, expected) in [
            (
                "length",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                Length(5),
            ),
            ("no length", "HTTP/1.1 200 OK\r\n\r\n", UntilClose),
            (
                "chunked",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
                Chunked,
            ),
            (
                "same length twice",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-length: 5, 5\r\n\r\n",
                Length(5),
            ),
            (
                "204",
                "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
                None,
            ),
            (
                "304",
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
                None,
            ),
            ("interim", "HTTP/1.1 100 Continue\r\n\r\n", None),
            (
                "no reason",
                "HTTP/1.0 404\r\nContent-Length:0\r\n\r\n",
                Length(0),
            ),
        ] {
            let Ok(ParseProgress::Complete(found)) = scan(head, false) else {
                panic!("{name}: {:?}", scan(head, false));
            };
            assert_eq!((found.framing, found.len), (expected, head.len()), "{name}");
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let Ok(ParseProgress::Complete(found)) = scan(head, true) else {
            panic!("an answer to HEAD");
        };
        assert_eq!(found.framing, None);
    }

    #[test]
    fn tells_whether_the_connection_may_be_kept() {
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5", true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", true),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: Close",
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive, close",
                false,
            ),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5", false),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive",
                true,
            ),
            // The body ends with the connection.
            ("HTTP/1.1 200 OK", false),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive", false),
            ("HTTP/1.1 204 No Content", true),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 0", true),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 5", false),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5", true),
            ("HTTP/1.1 100 Continue", true),
            ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x", false),
        ] {
            let Ok(ParseProgress::Complete(found)) = scan(&format!("{head}\r\n\r\n"), false) else {
                panic!("{head:?}");
            };
            assert_eq!(found.keep_alive, expected, "{head:?}");
        }
        // No body follows, whatever the head declares.
        let Ok(ParseProgress::Complete(found)) = scan("HTTP/1.1 200 OK\r\n\r\n", true) else {
            panic!("an answer to HEAD");
        };
        assert!(found.keep_alive);
    }

    #[test]
    fn refuses_what_readers_disagree_about() {
        use ResponseHeadError::*;
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(300));
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(300));
        for (name, head, expected) in [
            ("garbage", "garbage", NotHttp),
            ("a line of garbage", "what\r\n", NotHttp),
            ("garbage with a bare line end", "what\n", NotHttp),
            ("http/2", "HTTP/2 200\r\n\r\n", NotHttp),
            ("http/1.2", "HTTP/1.2 200 OK\r\n\r\n", VersionNotSupported),
            ("two digits", "HTTP/1.1 20\r\n\r\n", BadStatusLine),
            ("four digits", "HTTP/1.1 2000 OK\r\n\r\n", BadStatusLine),
            ("status 000", "HTTP/1.1 000 OK\r\n\r\n", BadStatusLine),
            ("bare lf", "HTTP/1.1 200 OK\n\n", BareLineBreak),
            (
                "folded",
                "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
                FoldedField,
            ),
            ("no colon", "HTTP/1.1 200 OK\r\nA\r\n\r\n", BadFieldName),
            ("no name", "HTTP/1.1 200 OK\r\n: b\r\n\r\n", BadFieldName),
            (
                "blank before the colon",
                "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
                BadFieldName,
            ),
            (
                "nul in a value",
                "HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
                BadFieldValue,
            ),
            (
                "cr in a value",
                "HTTP/1.1 200 OK\r\nA: \rb\r\n\r\n",
                BadFieldValue,
            ),
            (
                "different lengths",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
                BadContentLength,
            ),
            (
                "different lengths in one",
                "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
                BadContentLength,
            ),
            (
                "signed length",
                "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
                BadContentLength,
            ),
            (
                "empty length",
                "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
                BadContentLength,
            ),
            (
                "huge length",
                "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n",
                BadContentLength,
            ),
            (
                "both",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                LengthAndCoding,
            ),
            (
                "both without a body",
                "HTTP/1.1 304 No\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                LengthAndCoding,
            ),
            (
                "other coding",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                BadTransferEncoding,
            ),
            (
                "coding twice",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                BadTransferEncoding,
            ),
            (
                "coding with 1xx",
                "HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n",
                BadTransferEncoding,
            ),
            (
                "coding with 204",
                "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
                BadTransferEncoding,
            ),
            (
                "coding in 1.0",
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                BadTransferEncoding,
            ),
            (
                "five fields",
                "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: 5\r\n\r\n",
                TooManyFields,
            ),
            ("long", &long, HeadTooLarge),
            ("endless", &endless, HeadTooLarge),
        ] {
            assert_eq!(scan(head, false), Err(expected), "{name}");
        }
    }

    #[test]
    fn waits_for_the_blank_line() {
        for head in [
            "",
            "H",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n\r",
        ] {
            assert_eq!(scan(head, false), Ok(ParseProgress::Partial), "{head:?}");
        }
    }
}
