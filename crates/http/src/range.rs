//! Range requests: which part of a representation to send (RFC 9110 §13.1.5, §14).
//!
//! `files` and `cache` call this with a GET they are about to answer with 200; HEAD and other
//! methods ignore `Range`. Several ranges at once are answered with the whole, which §14.2 allows
//! and which makes a thousand overlapping ranges cost nothing.

use crate::{
    date::parse_http_date,
    grammar::{parse_u64, push_decimal, trim_blanks},
};

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeOutcome {
    /// 200 and everything.
    Whole,
    /// 206 and `len` bytes from `start`; never empty and never beyond the end.
    Part {
        /// The first byte.
        start: u64,
        /// How many bytes.
        len: u64,
    },
    /// 416.
    Unsatisfiable,
}

/// Decides by `Range` and `If-Range` for a representation of `len` bytes with these validators;
/// an empty `etag` means there is none.
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
    if if_range.is_some_and(|validator| !is_current(validator, etag, last_modified)) {
        return RangeOutcome::Whole;
    }
    // A unit or syntax that is not understood is as good as no field (RFC 9110 §14.2).
    single_range(range).map_or(RangeOutcome::Whole, |spec| spec.within(len))
}

/// Appends the value of `Content-Range` for a part (RFC 9110 §14.4); `len` must not be 0.
pub fn content_range(start: u64, len: u64, total: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes ");
    push_decimal(out, start);
    out.push(b'-');
    push_decimal(out, start.saturating_add(len.saturating_sub(1)));
    out.push(b'/');
    push_decimal(out, total);
}

/// Appends the value of `Content-Range` for a 416 (RFC 9110 §14.4).
pub fn content_range_unsatisfied(total: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes */");
    push_decimal(out, total);
}

enum Spec {
    From { first: u64, last: u64 },
    Suffix(u64),
}

impl Spec {
    fn within(&self, len: u64) -> RangeOutcome {
        match *self {
            Self::From { first, .. } if first >= len => RangeOutcome::Unsatisfiable,
            Self::From { first, last } => {
                // `first < len`, so neither the difference nor the sum can overflow.
                RangeOutcome::Part {
                    start: first,
                    len: last.min(len - 1) - first + 1,
                }
            }
            Self::Suffix(0) => RangeOutcome::Unsatisfiable,
            // There is no way to write the Content-Range of nothing.
            Self::Suffix(_) if len == 0 => RangeOutcome::Whole,
            Self::Suffix(suffix) => {
                let taken = suffix.min(len);
                RangeOutcome::Part {
                    start: len - taken,
                    len: taken,
                }
            }
        }
    }
}

fn single_range(range: &[u8]) -> Option<Spec> {
    let equals = memchr::memchr(b'=', range)?;
    if !range[..equals].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let spec = trim_blanks(&range[equals + 1..]);
    let dash = memchr::memchr(b'-', spec)?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    if first.is_empty() {
        return position(last).map(Spec::Suffix);
    }
    let first = position(first)?;
    let last = if last.is_empty() {
        u64::MAX
    } else {
        position(last)?
    };
    (first <= last).then_some(Spec::From { first, last })
}

// A position above 64 bits is beyond every representation, not malformed.
fn position(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(parse_u64(digits).unwrap_or(u64::MAX))
}

// Strong comparison only (RFC 9110 §13.1.5): a weak tag never matches, a date must be the same.
fn is_current(validator: &[u8], etag: &[u8], last_modified: Option<u64>) -> bool {
    match validator {
        [b'"', ..] => validator == etag,
        [b'W', b'/', ..] => false,
        date => last_modified.is_some() && parse_http_date(date) == last_modified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: fn(u64, u64) -> RangeOutcome = |start, len| RangeOutcome::Part { start, len };

    #[test]
    fn selects_from_one_range() {
        let many = format!("bytes={}", "0-0,".repeat(1300));
        for (range, len, expected) in [
            ("bytes=0-0", 10, PART(0, 1)),
            ("bytes=0-", 10, PART(0, 10)),
            ("bytes=3-5", 10, PART(3, 3)),
            ("bytes=9-9", 10, PART(9, 1)),
            ("bytes=5-100", 10, PART(5, 5)),
            ("bytes=-3", 10, PART(7, 3)),
            ("bytes=-100", 10, PART(0, 10)),
            ("BYTES= 1-2 ", 10, PART(1, 2)),
            ("bytes=0-18446744073709551615", 10, PART(0, 10)),
            ("bytes=0-99999999999999999999999", 10, PART(0, 10)),
            ("bytes=0-", u64::MAX, PART(0, u64::MAX)),
            ("bytes=10-", 10, RangeOutcome::Unsatisfiable),
            (
                "bytes=18446744073709551615-",
                10,
                RangeOutcome::Unsatisfiable,
            ),
            (
                "bytes=99999999999999999999999-",
                10,
                RangeOutcome::Unsatisfiable,
            ),
            ("bytes=-0", 10, RangeOutcome::Unsatisfiable),
            ("bytes=0-", 0, RangeOutcome::Unsatisfiable),
            ("bytes=-5", 0, RangeOutcome::Whole),
            ("bytes=5-3", 10, RangeOutcome::Whole),
            ("bytes=0-0,2-2", 10, RangeOutcome::Whole),
            (&many, 10, RangeOutcome::Whole),
            ("bytes=", 10, RangeOutcome::Whole),
            ("bytes=-", 10, RangeOutcome::Whole),
            ("bytes=a-b", 10, RangeOutcome::Whole),
            ("bytes=+1-2", 10, RangeOutcome::Whole),
            ("bytes=1 - 2", 10, RangeOutcome::Whole),
            ("bytes", 10, RangeOutcome::Whole),
            ("rows=0-1", 10, RangeOutcome::Whole),
            ("", 10, RangeOutcome::Whole),
        ] {
            assert_eq!(
                select_range(Some(range.as_bytes()), None, len, b"", None),
                expected,
                "{range}"
            );
        }
        assert_eq!(
            select_range(None, Some(b"\"x\""), 10, b"", None),
            RangeOutcome::Whole
        );
    }

    #[test]
    fn if_range_compares_strongly() {
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT".as_slice();
        for (validator, etag, modified, is_part) in [
            (b"\"a\"".as_slice(), b"\"a\"".as_slice(), None, true),
            (b"\"a\"", b"\"b\"", None, false),
            (b"W/\"a\"", b"W/\"a\"", None, false),
            (b"\"a\"", b"W/\"a\"", None, false),
            (b"\"a\"", b"", None, false),
            (date, b"", Some(784_111_777), true),
            (date, b"", Some(784_111_778), false),
            (date, b"", Some(784_111_776), false),
            (date, b"", None, false),
            (b"nonsense", b"", None, false),
        ] {
            let outcome = select_range(Some(b"bytes=0-1"), Some(validator), 10, etag, modified);
            assert_eq!(outcome == PART(0, 2), is_part, "{validator:?}");
        }
    }

    #[test]
    fn writes_content_range() {
        let mut out = Vec::new();
        content_range(3, 4, 10, &mut out);
        assert_eq!(out, b"bytes 3-6/10");
        out.clear();
        content_range_unsatisfied(10, &mut out);
        assert_eq!(out, b"bytes */10");
    }
}
