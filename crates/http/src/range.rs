//! Range requests: which parts of a representation to send (RFC 9110 §13.1.5, §14).
//!
//! `files` and `cache` call this for a GET with status 200; HEAD and other methods ignore `Range`.
//! `multipart` frames several parts in one body.
//!
//! # Invariants
//!
//! - No response is larger than the whole, and it has a bounded number of parts (RFC 9110 §17.15).
//!   Excessive requests get the whole, which §14.2 allows.

pub(crate) mod multipart;

use crate::{
    date::parse_http_date,
    grammar::{list_elements, parse_u64, push_decimal},
};

/// Ranges read from one field. A field with more is ignored: document readers request some tens at
/// most.
const MAX_RANGES: usize = 100;

/// Parts of one response, after adjacent ranges are merged.
const MAX_PARTS: usize = 16;

/// Overlapping ranges of one field. More indicate an abusive request (RFC 9110 §14.2).
const MAX_OVERLAPS: usize = 2;

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeOutcome {
    /// 200 with the whole.
    Whole,
    /// 206 with this part.
    Part(ByteRange),
    /// 206 with two or more disjoint parts in order, as `multipart/byteranges`.
    Parts(Vec<ByteRange>),
    /// 416.
    Unsatisfiable,
}

/// A part of a representation: not empty, and within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ByteRange {
    fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// Decides by `Range` and `If-Range` for a representation of `len` bytes with these validators. An
/// empty `etag` means none.
pub fn select_range(
    range: Option<&[u8]>,
    if_range: Option<&[u8]>,
    len: u64,
    etag: &[u8],
    last_modified: Option<u64>,
) -> RangeOutcome {
    let Some(range) = range else {
        return RangeOutcome::Whole;
    };
    if if_range.is_some_and(|validator| !matches_validator(validator, etag, last_modified)) {
        return RangeOutcome::Whole;
    }
    // An unknown unit or invalid syntax is ignored (RFC 9110 §14.2).
    resolve_ranges(range, len).unwrap_or(RangeOutcome::Whole)
}

/// Appends the value of `Content-Range` for a part (RFC 9110 §14.4); `len` must not be 0.
pub fn encode_content_range(start: u64, len: u64, total: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes ");
    push_decimal(out, start);
    out.push(b'-');
    push_decimal(out, start.saturating_add(len.saturating_sub(1)));
    out.push(b'/');
    push_decimal(out, total);
}

/// Appends the value of `Content-Range` for a 416 (RFC 9110 §14.4).
pub fn encode_unsatisfied_range(total: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes */");
    push_decimal(out, total);
}

/// Parses a complete `Content-Range`: the part and the total length. `None` if one is missing, or
/// if the part is empty or beyond the whole.
#[must_use]
pub fn parse_content_range(value: &[u8]) -> Option<(ByteRange, u64)> {
    let (unit, rest) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let dash = memchr::memchr(b'-', rest)?;
    let slash = memchr::memchr(b'/', rest)?;
    let first = parse_u64(&rest[..dash])?;
    let last = parse_u64(rest.get(dash + 1..slash)?)?;
    let total = parse_u64(&rest[slash + 1..])?;
    let len = last.checked_sub(first)?.checked_add(1)?;
    (last < total).then_some((ByteRange { start: first, len }, total))
}

/// Resolves the field for `len` bytes. `None` if it is ignored.
fn resolve_ranges(field: &[u8], len: u64) -> Option<RangeOutcome> {
    let equals = memchr::memchr(b'=', field)?;
    if !field[..equals].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut spans = Vec::new();
    let mut asked = 0;
    for spec in list_elements(&field[equals + 1..]) {
        asked += 1;
        if asked > MAX_RANGES {
            return None;
        }
        spans.extend(resolve_range(spec, len)?);
    }
    match (asked, spans.as_slice()) {
        (0, _) => None,
        (_, []) => Some(RangeOutcome::Unsatisfiable),
        (_, &[part]) => Some(RangeOutcome::Part(part)),
        _ => merge_ranges(spans, len),
    }
}

/// Sorts two or more ranges and merges adjacent ones. `None` if they are excessive.
fn merge_ranges(mut spans: Vec<ByteRange>, len: u64) -> Option<RangeOutcome> {
    let asked = spans
        .iter()
        .try_fold(0u64, |sum, span| sum.checked_add(span.len));
    if asked.is_none_or(|asked| asked > len) {
        return None;
    }
    spans.sort_unstable_by_key(|span| span.start);
    let mut parts: Vec<ByteRange> = Vec::with_capacity(spans.len());
    let mut overlaps = 0;
    for span in spans {
        match parts.last_mut() {
            Some(last) if span.start <= last.end() => {
                overlaps += usize::from(span.start < last.end());
                last.len = last.len.max(span.end() - last.start);
            }
            _ => parts.push(span),
        }
    }
    if overlaps > MAX_OVERLAPS || parts.len() > MAX_PARTS {
        return None;
    }
    Some(match parts.as_slice() {
        &[part] => RangeOutcome::Part(part),
        _ => RangeOutcome::Parts(parts),
    })
}

/// One range of `len` bytes. `Some(None)` if it is beyond them; `None` if it is malformed, or if no
/// `Content-Range` can describe it: a suffix of nothing.
fn resolve_range(spec: &[u8], len: u64) -> Option<Option<ByteRange>> {
    let dash = memchr::memchr(b'-', spec)?;
    let (start, end) = match (&spec[..dash], &spec[dash + 1..]) {
        ([], suffix) => match parse_position(suffix)? {
            1.. if len == 0 => return None,
            suffix => (len - suffix.min(len), len),
        },
        (first, []) => (parse_position(first)?, len),
        (first, last) => {
            let (first, last) = (parse_position(first)?, parse_position(last)?);
            if last < first {
                return None;
            }
            (first, last.saturating_add(1).min(len))
        }
    };
    let len = end.checked_sub(start).filter(|&len| len > 0);
    Some(len.map(|len| ByteRange { start, len }))
}

// A position above 64 bits is beyond every representation, not malformed.
fn parse_position(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(parse_u64(digits).unwrap_or(u64::MAX))
}

// Strong comparison only (RFC 9110 §13.1.5): a weak tag never matches, a date must be the same.
fn matches_validator(validator: &[u8], etag: &[u8], last_modified: Option<u64>) -> bool {
    match validator {
        [b'"', ..] => validator == etag,
        [b'W', b'/', ..] => false,
        date => last_modified.is_some() && parse_http_date(date) == last_modified,
    }
}

#[cfg(test)]
mod tests;
