//! Normalises a request's path once, for all later users.
//!
//! `edge` calls `normalise_path` before routing; routes, files and applications see the same path.
//! Percent-encoding is decoded exactly once, then repeated slashes are merged, then dot segments
//! are resolved, so that no spelling of `..` reaches file access (RFC 3986 §5.2.4, §6.2.2).
//! `docs/paths.md` describes this for operators.
//!
//! # Invariants
//!
//! - A path with two possible readings is marked ([`NormalisedPath::is_ambiguous`]) or refused: no
//!   upstream server gets it as sent.
//! - `;` and `\` are plain bytes of a segment. A segment that is `..` apart from them is refused:
//!   Tomcat reads `..;` as `..`, and programs on Windows read `\` as a slash.

use std::borrow::Cow;

use percent_encoding::percent_encode_byte;
use thiserror::Error;

/// Why a target has no safe meaning as a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UriError {
    /// The path does not begin with a slash.
    #[error("path does not begin with a slash")]
    NotAbsolute,
    /// A percent sign without two hexadecimal digits.
    #[error("malformed percent-encoding")]
    InvalidEncoding,
    /// A control byte, encoded or not, such as NUL.
    #[error("control byte in the path")]
    ControlByte,
    /// More `..` than preceding segments.
    #[error("path leads above the root")]
    AboveRoot,
    /// `.` or `..` followed by `;`, or next to a backslash: a dot segment to some programs only.
    #[error("dot segment with a parameter or a backslash")]
    DisguisedDotSegment,
}

/// A target, split and normalised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalisedPath<'a> {
    /// The decoded path without dot segments. Begins with a slash.
    pub path: Cow<'a, [u8]>,
    /// What follows the first question mark, as sent.
    pub query: Option<&'a str>,
    /// The path as sent.
    pub raw_path: &'a str,
    /// Whether the path as sent has dot segments, encoded or not, or begins with two slashes. An
    /// upstream server that resolves it differently would see another path than `path`.
    pub is_ambiguous: bool,
}

/// Splits a target in origin form and normalises its path. Borrows if nothing changes.
///
/// # Errors
/// Fails if the path has no safe meaning: status 400.
pub fn normalise_path(path_query: &str) -> Result<NormalisedPath<'_>, UriError> {
    let (raw_path, query) = match path_query.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path_query, None),
    };
    if !raw_path.starts_with('/') {
        return Err(UriError::NotAbsolute);
    }
    let seen = classify_path(raw_path.as_bytes());
    if seen & CONTROL != 0 {
        return Err(UriError::ControlByte);
    }
    let mut is_ambiguous = false;
    let path = if seen & (PERCENT | EMPTY_OR_DOT_SEGMENT | AMBIGUOUS) == 0 {
        Cow::Borrowed(raw_path.as_bytes())
    } else {
        let decoded = match seen & PERCENT {
            0 => Cow::Borrowed(raw_path.as_bytes()),
            _ => Cow::Owned(percent_decode(raw_path.as_bytes())?),
        };
        let seen = classify_path(&decoded);
        if seen & AMBIGUOUS != 0 && has_disguised_dot_segment(&decoded) {
            return Err(UriError::DisguisedDotSegment);
        }
        match seen & EMPTY_OR_DOT_SEGMENT {
            0 => decoded,
            _ => {
                let (resolved, had_dots) = resolve_segments(&decoded)?;
                is_ambiguous = had_dots || raw_path.starts_with("//");
                Cow::Owned(resolved)
            }
        }
    };
    Ok(NormalisedPath {
        path,
        query,
        raw_path,
        is_ambiguous,
    })
}

/// Encodes a decoded path for a target (RFC 3986 §3.3).
#[must_use]
pub fn encode_path(path: &[u8]) -> String {
    percent_encode_where(path, |byte| {
        !byte.is_ascii_alphanumeric() && !b"/-._~!$&'()*+,;=:@".contains(&byte)
    })
}

/// Encodes a segment of a path: all but unreserved bytes (RFC 3986 §2.3).
#[must_use]
pub fn encode_path_segment(segment: &[u8]) -> String {
    percent_encode_where(segment, |byte| {
        !byte.is_ascii_alphanumeric() && !b"-._~".contains(&byte)
    })
}

/// Encodes those bytes, and all others beyond ASCII, percent-encoded.
pub(crate) fn percent_encode_where(text: &[u8], is_encoded: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text {
        match byte.is_ascii() && !is_encoded(byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(percent_encode_byte(byte)),
        }
    }
    out
}

/// Converts a path written percent-encoded, raw or mixed into a target in origin form. Applications
/// write such paths in `X-Accel-Redirect`.
///
/// Valid percent-encodings are kept, and a question mark begins a query. A percent sign without two
/// digits, a number sign, blanks and bytes beyond ASCII can only be raw and are encoded.
/// [`normalise_path`] checks whether the result is a path.
#[must_use]
pub fn encode_target(text: &[u8]) -> String {
    let mut target = String::with_capacity(text.len());
    for (at, &byte) in text.iter().enumerate() {
        let is_raw = match byte {
            b'%' => {
                let digits = text.get(at + 1..at + 3);
                !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            }
            b'#' | b'"' | b'<' | b'>' => true,
            0x21..=0x7e => false,
            _ => true,
        };
        if is_raw {
            target.push_str(percent_encode_byte(byte));
        } else {
            target.push(char::from(byte));
        }
    }
    target
}

const CONTROL: u8 = 1;
const PERCENT: u8 = 2;
/// A byte that some programs treat specially next to a dot segment.
const AMBIGUOUS: u8 = 4;
/// A segment that is empty or begins with a dot: `resolve_segments` distinguishes dot segments from
/// hidden files.
const EMPTY_OR_DOT_SEGMENT: u8 = 8;

/// The class of each byte.
const BYTE_CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0_u8;
    loop {
        classes[byte as usize] = match byte {
            _ if is_control(byte) => CONTROL,
            b'%' => PERCENT,
            b';' | b'\\' => AMBIGUOUS,
            _ => 0,
        };
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    classes
};

// One pass that suffices for nearly every request.
fn classify_path(path: &[u8]) -> u8 {
    let mut seen = 0;
    let mut before = 0;
    for &byte in path {
        seen |= BYTE_CLASSES[usize::from(byte)];
        if before == b'/' && matches!(byte, b'.' | b'/') {
            seen |= EMPTY_OR_DOT_SEGMENT;
        }
        before = byte;
    }
    seen
}

fn percent_decode(path: &[u8]) -> Result<Vec<u8>, UriError> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = memchr::memchr(b'%', rest) {
        decoded.extend_from_slice(&rest[..at]);
        let [_, high, low, after @ ..] = &rest[at..] else {
            return Err(UriError::InvalidEncoding);
        };
        let byte = hex_value(*high)? << 4 | hex_value(*low)?;
        if is_control(byte) {
            return Err(UriError::ControlByte);
        }
        decoded.push(byte);
        rest = after;
    }
    decoded.extend_from_slice(rest);
    Ok(decoded)
}

fn hex_value(digit: u8) -> Result<u8, UriError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(UriError::InvalidEncoding),
    }
}

/// Whether a segment is a dot segment without its parameters, or with its backslashes as slashes.
fn has_disguised_dot_segment(path: &[u8]) -> bool {
    let mut segments = path.split(|&byte| byte == b'/');
    segments.any(|segment| {
        let mut parts = segment.split(|&byte| byte == b'\\');
        let is_split = segment.contains(&b'\\');
        parts.any(|part| {
            let name = part.split(|&byte| byte == b';').next().unwrap_or(part);
            matches!(name, b"." | b"..") && (is_split || name.len() < part.len())
        })
    })
}

/// Merges repeated slashes and removes dot segments. Returns whether there were dot segments. A
/// final `.` or `..` leaves a final slash, since it named a directory.
fn resolve_segments(path: &[u8]) -> Result<(Vec<u8>, bool), UriError> {
    let mut resolved = Vec::with_capacity(path.len());
    let mut had_dots = false;
    let mut names_folder = false;
    for segment in path[1..].split(|&byte| byte == b'/') {
        names_folder = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" => {}
            b"." => had_dots = true,
            b".." => {
                had_dots = true;
                let parent = memchr::memrchr(b'/', &resolved).ok_or(UriError::AboveRoot)?;
                resolved.truncate(parent);
            }
            _ => {
                resolved.push(b'/');
                resolved.extend_from_slice(segment);
            }
        }
    }
    if names_folder || resolved.is_empty() {
        resolved.push(b'/');
    }
    Ok((resolved, had_dots))
}

const fn is_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_every_spelling_to_one_path() {
        for (target, path, query) in [
            ("/", "/", None),
            ("/a/b.html", "/a/b.html", None),
            ("/a?b=c?d", "/a", Some("b=c?d")),
            ("/?", "/", Some("")),
            ("/a%20b", "/a b", None),
            ("/%e4%BD%a0", "/\u{4f60}", None),
            ("/a/./b", "/a/b", None),
            ("/a/../b", "/b", None),
            ("/a/b/..", "/a/", None),
            ("/a/.", "/a/", None),
            ("/.", "/", None),
            ("/a/..", "/", None),
            ("/a/%2e%2E/b", "/b", None),
            ("/a/%2e./b", "/b", None),
            ("/a%2f..%2fb", "/b", None),
            ("/.hidden/..x/...", "/.hidden/..x/...", None),
            ("//host/a", "/host/a", None),
            ("///", "/", None),
            ("/a//b///c", "/a/b/c", None),
            ("/a//", "/a/", None),
            ("/a//../b", "/b", None),
            ("/a/..//b", "/b", None),
            ("/.//a", "/a", None),
            ("/%2fa%2F%2fb", "/a/b", None),
            ("/a;x=1/b;..", "/a;x=1/b;..", None),
            ("/a%5cb\\c", "/a\\b\\c", None),
            ("/%252e%252e/a", "/%2e%2e/a", None),
            ("/static../secret", "/static../secret", None),
            ("/file.php%20", "/file.php ", None),
            ("/a?/../x%00", "/a", Some("/../x%00")),
        ] {
            let found = normalise_path(target).unwrap();
            assert_eq!(found.path.as_ref(), path.as_bytes(), "{target}");
            assert_eq!(found.query, query, "{target}");
        }
    }

    #[test]
    fn refuses_what_has_no_safe_meaning() {
        for (target, expected) in [
            ("", UriError::NotAbsolute),
            ("*", UriError::NotAbsolute),
            ("a/b", UriError::NotAbsolute),
            ("?a", UriError::NotAbsolute),
            ("/..", UriError::AboveRoot),
            ("/a/../..", UriError::AboveRoot),
            ("/a/../../b", UriError::AboveRoot),
            ("/%2e%2e/etc/passwd", UriError::AboveRoot),
            ("/..%2f..%2fetc", UriError::AboveRoot),
            ("/a%00.html", UriError::ControlByte),
            ("/a%0d%0aSet-Cookie:x", UriError::ControlByte),
            ("/a%7f", UriError::ControlByte),
            ("/a\u{1}", UriError::ControlByte),
            ("/%", UriError::InvalidEncoding),
            ("/%4", UriError::InvalidEncoding),
            ("/%zz", UriError::InvalidEncoding),
            ("/%u0041", UriError::InvalidEncoding),
            ("/a/..;/b", UriError::DisguisedDotSegment),
            ("/a/..;x=1/b", UriError::DisguisedDotSegment),
            ("/a/.;/b", UriError::DisguisedDotSegment),
            ("/a/%2e%2e%3b/b", UriError::DisguisedDotSegment),
            ("/%5c..%5ca", UriError::DisguisedDotSegment),
            ("/a/..\\b", UriError::DisguisedDotSegment),
            ("/a/b\\..;x", UriError::DisguisedDotSegment),
        ] {
            assert_eq!(normalise_path(target).unwrap_err(), expected, "{target:?}");
        }
    }

    #[test]
    fn a_path_that_has_two_readings_is_marked() {
        for (target, expected) in [
            ("/a/b", false),
            ("/a%20b/.hidden", false),
            ("/fetch/https://host/a", false),
            ("/a%2fb", false),
            ("/a//", false),
            ("//admin/x", true),
            ("/%2fadmin/x", false),
            ("/%2fa/../x", true),
            ("/a/../b", true),
            ("/a/%2e%2e/b", true),
            ("/a/..%2fb", true),
            ("/.", true),
        ] {
            assert_eq!(
                normalise_path(target).unwrap().is_ambiguous,
                expected,
                "{target}"
            );
        }
    }

    #[test]
    fn an_encoded_path_is_read_as_the_same_path() {
        for path in ["/", "/a b/%2f/\u{e9}", "/a;b=1/c:d@e", "/\\host/?#[]\""] {
            let encoded = encode_path(path.as_bytes());
            assert!(
                encoded.is_ascii() && !encoded.contains(['\\', '?', '#', ' ']),
                "{encoded}"
            );
            assert_eq!(
                normalise_path(&encoded).unwrap().path.as_ref(),
                path.as_bytes(),
                "{path}"
            );
        }
    }

    #[test]
    fn overlong_utf8_stays_bytes_and_never_becomes_a_dot() {
        let found = normalise_path("/%c0%ae%c0%ae/a").unwrap();
        assert_eq!(found.path.as_ref(), b"/\xc0\xae\xc0\xae/a");
    }

    #[test]
    fn a_target_may_be_written_encoded_or_raw() {
        for (text, target) in [
            (&b"/a/b.txt"[..], "/a/b.txt"),
            (b"/a%20b?c=d%20e", "/a%20b?c=d%20e"),
            (b"/a b.txt", "/a%20b.txt"),
            (b"/50%.txt", "/50%25.txt"),
            (b"/50%2.txt", "/50%252.txt"),
            (b"/50%", "/50%25"),
            (b"/50%25.txt", "/50%25.txt"),
            (b"/no#1.txt", "/no%231.txt"),
            ("/gr\u{fc}n \u{65e5}".as_bytes(), "/gr%C3%BCn%20%E6%97%A5"),
            (b"/caf\xe9", "/caf%E9"),
            (b"/a+b&c;d=[1]'", "/a+b&c;d=[1]'"),
            (b"/a\tb\"<c>", "/a%09b%22%3Cc%3E"),
            (b"", ""),
        ] {
            let encoded = encode_target(text);
            assert_eq!(encoded, target, "{}", text.escape_ascii());
            // Encoding is idempotent.
            assert_eq!(encode_target(encoded.as_bytes()), target);
        }
    }

    #[test]
    fn borrows_when_there_is_nothing_to_do() {
        assert!(matches!(
            normalise_path("/a/b?c").unwrap().path,
            Cow::Borrowed(_)
        ));
        assert_eq!(normalise_path("/a%41?c").unwrap().raw_path, "/a%41");
    }
}
