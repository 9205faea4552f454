//! The response head that a worker sends: status and fields, checked before any use.
//!
//! Called by [`crate::SlotDecoder`] with the bytes between `head_len` and the body. The strings are
//! joined by NUL, so a value with a NUL changes their number, and the frame's `count` reveals it.
//! After [`parse_response_head`] a name is a token and a value holds no CR, LF, NUL or other
//! control character: the fields can be written to a client as they are (RFC 9110 §5.1, §5.5). The
//! front end interprets Content-Length and hop-by-hop fields, not this file.

use penstock_http::{Status, is_field_value, is_token, trim_blanks};

use crate::WireError;
use crate::frame::{
    FLAG_END, FLAG_STREAM, FrameHeader, len_to_u32, len_to_usize, split_u32, take_available,
};

/// The largest response head, all strings together.
pub const MAX_HEAD_BYTES: u32 = 256 << 10;

/// The payload of a HEAD, or of a STREAM_RESPONSE behind its stream.
#[derive(Debug)]
pub(crate) struct HeadPayload<'b> {
    pub(crate) head: Result<ResponseHeadView<'b>, WireError>,
    pub(crate) app_time_us: u32,
    pub(crate) body: &'b [u8],
    /// Bytes of body in the whole frame.
    pub(crate) body_len: u32,
    /// Bytes of them that have not come.
    pub(crate) left: u32,
    pub(crate) is_streamed: bool,
    pub(crate) consumed: usize,
}

/// Splits a head and the body bytes behind it off `rest`; `None` until the head is there.
/// `max_body` is the bound of a streamed frame's body, and of a whole one's.
pub(crate) fn split_head(
    header: FrameHeader,
    payload_len: u32,
    rest: &[u8],
    max_body: [u32; 2],
) -> Result<Option<HeadPayload<'_>>, WireError> {
    let is_streamed = header.has_flag(FLAG_STREAM);
    if is_streamed == header.has_flag(FLAG_END) {
        return Err(header.bad_flags_error());
    }
    let Some(joined_len) = payload_len.checked_sub(8) else {
        return Err(WireError::BadPayloadLength);
    };
    let Some((app_time_us, rest)) = split_u32(rest) else {
        return Ok(None);
    };
    let Some((head_len, rest)) = split_u32(rest) else {
        return Ok(None);
    };
    let Some(body_len) = joined_len.checked_sub(head_len) else {
        return Err(WireError::BadPayloadLength);
    };
    if head_len > MAX_HEAD_BYTES {
        return Err(WireError::HeadTooLong);
    }
    if body_len > max_body[usize::from(!is_streamed)] {
        return Err(WireError::PayloadTooLong(u64::from(body_len)));
    }
    let Some((head, rest)) = rest.split_at_checked(len_to_usize(head_len)) else {
        return Ok(None);
    };
    let (body, left) = take_available(rest, body_len).unwrap_or((&[], body_len));
    debug_assert_eq!(len_to_u32(body.len()) + left, body_len);
    Ok(Some(HeadPayload {
        head: parse_response_head(head, header.string_count),
        app_time_us,
        body,
        body_len,
        left,
        is_streamed,
        consumed: 8 + head.len() + body.len(),
    }))
}

/// A checked response head that borrows the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeadView<'b> {
    /// A final status: 200 to 599.
    pub status: Status,
    pub fields: HeadFields<'b>,
}

/// A checked head with which an application accepts a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptHeadView<'b> {
    /// A token, or empty if none was chosen.
    pub subprotocol: &'b str,
    pub fields: HeadFields<'b>,
}

/// The `(name, value)` pairs of a head in the application's order, repeated names kept apart,
/// values without surrounding blanks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadFields<'b> {
    rest: &'b [u8],
    remaining: usize,
}

impl<'b> Iterator for HeadFields<'b> {
    type Item = (&'b [u8], &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.remaining = self.remaining.checked_sub(1)?;
        let (name, rest) = split_at_nul(self.rest);
        let (value, rest) = split_at_nul(rest);
        self.rest = rest;
        Some((name, trim_blanks(value)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for HeadFields<'_> {}

/// Checks `head`, which must hold `count` strings joined by NUL: the status line, then names and
/// values in turn.
///
/// # Errors
/// The first broken rule; nothing of such a head may be sent on.
pub fn parse_response_head(head: &[u8], count: u16) -> Result<ResponseHeadView<'_>, WireError> {
    let (line, fields) = split_strings(head, count)?;
    // A worker answers once: a 1xx would leave the client waiting for a second head.
    let status = parse_status(line).ok_or(WireError::BadStatus)?;
    check_fields(fields)?;
    Ok(ResponseHeadView { status, fields })
}

/// As [`parse_response_head`], with a subprotocol (RFC 6455 §4.2.2) instead of the status line.
///
/// # Errors
/// The first broken rule; nothing of such a head may be sent on.
pub fn parse_accept_head(head: &[u8], count: u16) -> Result<AcceptHeadView<'_>, WireError> {
    let (subprotocol, fields) = split_strings(head, count)?;
    if !subprotocol.is_empty() && !is_token(subprotocol) {
        return Err(WireError::BadSubprotocol);
    }
    check_fields(fields)?;
    Ok(AcceptHeadView {
        subprotocol: std::str::from_utf8(subprotocol).unwrap_or_default(),
        fields,
    })
}

/// Splits `count` joined strings into the first, and pairs.
fn split_strings(head: &[u8], count: u16) -> Result<(&[u8], HeadFields<'_>), WireError> {
    let count = usize::from(count);
    if count % 2 == 0 || memchr::memchr_iter(0, head).count() + 1 != count {
        return Err(WireError::BadStringCount);
    }
    let (first, rest) = split_at_nul(head);
    let remaining = count / 2;
    Ok((first, HeadFields { rest, remaining }))
}

fn check_fields(fields: HeadFields<'_>) -> Result<(), WireError> {
    for (name, value) in fields {
        if !is_token(name) {
            return Err(WireError::BadFieldName);
        }
        if !is_field_value(value) {
            return Err(WireError::BadFieldValue);
        }
    }
    Ok(())
}

/// Parses `NNN` or `NNN reason` with a final status (RFC 9110 §15.2).
pub(crate) fn parse_status(line: &[u8]) -> Option<Status> {
    let digits = match line {
        [a, b, c] | [a, b, c, b' ', ..] => [*a, *b, *c],
        _ => return None,
    };
    if !digits.iter().all(u8::is_ascii_digit) || !is_field_value(line) {
        return None;
    }
    let digits = digits.iter();
    final_status(digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')))
}

/// The final status with this number.
pub(crate) fn final_status(code: u16) -> Option<Status> {
    Status::new(code).filter(|status| !status.is_informational())
}

fn split_at_nul(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(0, bytes) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_status_and_fields_in_order() {
        let parts = parse_response_head(b"404 Not Found\0A\0 x \0B\0\0A\0y\tz", 7).unwrap();
        assert_eq!(parts.status, Status::NOT_FOUND);
        let fields: Vec<_> = parts.fields.collect();
        let expected: [(&[u8], &[u8]); 3] = [(b"A", b"x"), (b"B", b""), (b"A", b"y\tz")];
        assert_eq!(fields, expected);
    }

    #[test]
    fn takes_a_status_without_a_reason_and_no_fields() {
        assert_eq!(
            parse_response_head(b"204", 1).map(|parts| parts.status.code()),
            Ok(204)
        );
    }

    #[test]
    fn keeps_bytes_above_ascii_in_values() {
        let mut parts = parse_response_head(b"200 OK\0A\0\xe9", 3).unwrap();
        assert_eq!(parts.fields.next(), Some((&b"A"[..], &b"\xe9"[..])));
    }

    #[test]
    fn refuses_what_could_split_a_response() {
        let rows: [(&str, &[u8], u16, WireError); 19] = [
            (
                "NUL in a value",
                b"200 OK\0A\0x\0y",
                3,
                WireError::BadStringCount,
            ),
            ("two strings short", b"200 OK", 3, WireError::BadStringCount),
            ("no strings", b"", 0, WireError::BadStringCount),
            (
                "name without a value",
                b"200 OK\0A",
                2,
                WireError::BadStringCount,
            ),
            ("empty status", b"", 1, WireError::BadStatus),
            ("status 99", b"99 x", 1, WireError::BadStatus),
            ("status 100", b"100 Continue", 1, WireError::BadStatus),
            ("status 103", b"103 Early Hints", 1, WireError::BadStatus),
            ("status 600", b"600 x", 1, WireError::BadStatus),
            ("status 2000", b"2000 x", 1, WireError::BadStatus),
            ("status with a sign", b"-20 x", 1, WireError::BadStatus),
            (
                "line feed in the reason",
                b"200 O\nK",
                1,
                WireError::BadStatus,
            ),
            ("empty name", b"200 OK\0\0x", 3, WireError::BadFieldName),
            (
                "colon in a name",
                b"200 OK\0A:\0x",
                3,
                WireError::BadFieldName,
            ),
            (
                "blank in a name",
                b"200 OK\0A \0x",
                3,
                WireError::BadFieldName,
            ),
            (
                "name above ascii",
                b"200 OK\0\xe9\0x",
                3,
                WireError::BadFieldName,
            ),
            (
                "line break in a value",
                b"200 OK\0A\0x\r\nB: y",
                3,
                WireError::BadFieldValue,
            ),
            (
                "bare carriage return",
                b"200 OK\0A\0x\ry",
                3,
                WireError::BadFieldValue,
            ),
            ("delete", b"200 OK\0A\0\x7f", 3, WireError::BadFieldValue),
        ];
        for (name, head, count, error) in rows {
            assert_eq!(parse_response_head(head, count), Err(error), "{name}");
        }
    }
}
