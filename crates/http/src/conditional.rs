//! Evaluation of conditional requests (RFC 9110 §13).
//!
//! `files`, `cache` and the status page call this with the validators of the current
//! representation. The order of the checks (§13.2.2) decides between 304, 412 and proceeding.
//! `range` evaluates `If-Range`.

use crate::{
    date::parse_http_date,
    head::{Method, RequestHead},
};

/// The result of a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreconditionResult {
    /// Respond as if there were none.
    Proceed,
    /// 304: the client has the current representation.
    NotModified,
    /// 412.
    Failed,
}

/// Evaluates all conditions of `head` against the current validators. `etag` is quoted, with `W/`
/// if weak, and empty if there is none.
pub fn evaluate_preconditions(
    head: &RequestHead,
    etag: &[u8],
    last_modified: Option<u64>,
) -> PreconditionResult {
    let is_read = matches!(head.method(), Method::Get | Method::Head);
    let holds = if head.field("if-match").is_some() {
        any_tag_matches(head, "if-match", |tag| is_same_strongly(tag, etag))
    } else {
        is_unmodified_since(head, "if-unmodified-since", last_modified).unwrap_or(true)
    };
    if !holds {
        return PreconditionResult::Failed;
    }
    let is_had = if head.field("if-none-match").is_some() {
        any_tag_matches(head, "if-none-match", |tag| is_same_weakly(tag, etag))
    } else {
        is_read && is_unmodified_since(head, "if-modified-since", last_modified).unwrap_or(false)
    };
    match (is_had, is_read) {
        (false, _) => PreconditionResult::Proceed,
        (true, true) => PreconditionResult::NotModified,
        (true, false) => PreconditionResult::Failed,
    }
}

/// Whether the representation was last modified at that date or before. `None` if nothing can be
/// compared: no date, several, a malformed one, or no modification date.
fn is_unmodified_since(head: &RequestHead, name: &str, last_modified: Option<u64>) -> Option<bool> {
    let mut values = head.field_values(name);
    let date = parse_http_date(values.next()?)?;
    match values.next() {
        None => Some(last_modified? <= date),
        Some(_) => None,
    }
}

// "*" matches any current representation, which exists whenever this is called.
fn any_tag_matches(head: &RequestHead, name: &str, is_same: impl Fn(&[u8]) -> bool) -> bool {
    head.field_values(name)
        .any(|list| list == b"*" || EntityTags { rest: list }.any(&is_same))
}

fn is_same_strongly(tag: &[u8], etag: &[u8]) -> bool {
    tag.starts_with(b"\"") && tag == etag
}

fn is_same_weakly(tag: &[u8], etag: &[u8]) -> bool {
    !etag.is_empty() && opaque_tag(tag) == opaque_tag(etag)
}

fn opaque_tag(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// The entity tags of a list, `W/` and quotes included, up to the first malformed one. Not split at
/// commas, since a tag may contain one (RFC 9110 §8.8.3).
struct EntityTags<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for EntityTags<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while let [b' ' | b'\t' | b',', rest @ ..] = self.rest {
            self.rest = rest;
        }
        let start = if self.rest.starts_with(b"W/") { 3 } else { 1 };
        let is_quoted = self.rest.get(start - 1) == Some(&b'"');
        let end = memchr::memchr(b'"', self.rest.get(start..)?).filter(|_| is_quoted);
        let (tag, rest) = match end {
            Some(end) => self.rest.split_at(start + end + 1),
            None => (Default::default(), Default::default()),
        };
        self.rest = rest;
        (!tag.is_empty()).then_some(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::{HeadLimits, ParseProgress, parse_head};

    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn check(method: &str, fields: &[(&str, &str)], etag: &str) -> PreconditionResult {
        let mut text = format!("{method} / HTTP/1.1\r\nHost: a\r\n");
        for (name, value) in fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
            ParseProgress::Complete((head, _)) => {
                evaluate_preconditions(&head, etag.as_bytes(), Some(784_111_777))
            }
            ParseProgress::Partial => panic!("the head is whole"),
        }
    }

    #[test]
    fn evaluates_each_condition_alone() {
        use PreconditionResult::{Failed, NotModified, Proceed};
        for (name, value, etag, get, put) in [
            ("If-Match", "*", "\"a\"", Proceed, Proceed),
            ("If-Match", "\"a\"", "\"a\"", Proceed, Proceed),
            ("If-Match", "\"x\", \"a\"", "\"a\"", Proceed, Proceed),
            ("If-Match", "\"b\"", "\"a\"", Failed, Failed),
            ("If-Match", "W/\"a\"", "W/\"a\"", Failed, Failed),
            ("If-Match", "\"a\"", "W/\"a\"", Failed, Failed),
            ("If-Match", "a", "\"a\"", Failed, Failed),
            ("If-Match", "\"a\"", "", Failed, Failed),
            ("If-None-Match", "*", "\"a\"", NotModified, Failed),
            ("If-None-Match", "\"a\"", "\"a\"", NotModified, Failed),
            ("If-None-Match", "W/\"a\"", "\"a\"", NotModified, Failed),
            ("If-None-Match", "\"a\"", "W/\"a\"", NotModified, Failed),
            (
                "If-None-Match",
                "\"x,y\" , \"a\"",
                "\"a\"",
                NotModified,
                Failed,
            ),
            ("If-None-Match", "\"x,\"a\"", "\"a\"", Proceed, Proceed),
            ("If-None-Match", "\"b\"", "\"a\"", Proceed, Proceed),
            ("If-None-Match", "\"a", "\"a\"", Proceed, Proceed),
            ("If-None-Match", "W/", "\"a\"", Proceed, Proceed),
            ("If-None-Match", "\"\"", "", Proceed, Proceed),
            ("If-Modified-Since", BEFORE, "", Proceed, Proceed),
            ("If-Modified-Since", MODIFIED, "", NotModified, Proceed),
            ("If-Modified-Since", AFTER, "", NotModified, Proceed),
            ("If-Modified-Since", "soon", "", Proceed, Proceed),
            ("If-Unmodified-Since", BEFORE, "", Failed, Failed),
            ("If-Unmodified-Since", MODIFIED, "", Proceed, Proceed),
            ("If-Unmodified-Since", "soon", "", Proceed, Proceed),
        ] {
            assert_eq!(
                check("GET", &[(name, value)], etag),
                get,
                "GET {name}: {value}"
            );
            assert_eq!(
                check("PUT", &[(name, value)], etag),
                put,
                "PUT {name}: {value}"
            );
        }
    }

    #[test]
    fn tags_win_over_dates() {
        use PreconditionResult::{Failed, NotModified, Proceed};
        for (what, fields, expected) in [
            (
                "none-match over modified",
                [("If-None-Match", "\"b\""), ("If-Modified-Since", AFTER)],
                Proceed,
            ),
            (
                "match over unmodified",
                [("If-Match", "\"a\""), ("If-Unmodified-Since", BEFORE)],
                Proceed,
            ),
            (
                "match before none-match",
                [("If-None-Match", "\"a\""), ("If-Match", "\"b\"")],
                Failed,
            ),
            (
                "both hold",
                [("If-None-Match", "\"a\""), ("If-Match", "\"a\"")],
                NotModified,
            ),
            (
                "two fields",
                [("If-None-Match", "\"x\""), ("if-none-match", "\"a\"")],
                NotModified,
            ),
            (
                "two dates",
                [("If-Modified-Since", AFTER), ("If-Modified-Since", AFTER)],
                Proceed,
            ),
        ] {
            assert_eq!(check("HEAD", &fields, "\"a\""), expected, "{what}");
        }
    }
}
