//! The path of a request, made unambiguous once, for everybody after.
//!
//! `edge` calls `normalise` before it routes; routes, files and applications then see the same
//! path. Percent-encoding is decoded exactly once and dot segments are resolved after that, so that
//! no spelling of `..` survives to where files are opened (RFC 3986 §5.2.4, §6.2.2).
//!
//! Not here: backslashes, double slashes and `;` parameters are plain bytes. Who gives them a
//! meaning checks them.

use std::borrow::Cow;

use thiserror::Error;

/// Why a target has no safe meaning as a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UriError {
    /// The path does not begin with a slash.
    #[error("path does not begin with a slash")]
    NotAbsolute,
    /// A percent sign without two hexadecimal digits.
    #[error("malformed percent-encoding")]
    BadEncoding,
    /// A control byte, encoded or not; NUL is the classic.
    #[error("control byte in the path")]
    ControlByte,
    /// More `..` than there are segments before.
    #[error("path leads above the root")]
    AboveRoot,
}

/// A target split and made unambiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normalised<'a> {
    /// The decoded path without dot segments; always begins with a slash.
    pub path: Cow<'a, [u8]>,
    /// What follows the first question mark, as sent.
    pub query: Option<&'a str>,
    /// The path as sent.
    pub raw_path: &'a str,
}

/// Splits a target in origin form and normalises its path; borrows when there is nothing to do.
///
/// # Errors
/// When the path has no safe meaning; the answer is 400.
pub fn normalise(path_query: &str) -> Result<Normalised<'_>, UriError> {
    let (raw_path, query) = match path_query.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path_query, None),
    };
    if !raw_path.starts_with('/') {
        return Err(UriError::NotAbsolute);
    }
    let path = match survey(raw_path.as_bytes())? {
        Work::Nothing => Cow::Borrowed(raw_path.as_bytes()),
        Work::Dots => Cow::Owned(resolve_dots(raw_path.as_bytes())?),
        Work::Decoding => {
            let decoded = decode(raw_path.as_bytes())?;
            match survey_dots(&decoded) {
                true => Cow::Owned(resolve_dots(&decoded)?),
                false => Cow::Owned(decoded),
            }
        }
    };
    Ok(Normalised {
        path,
        query,
        raw_path,
    })
}

enum Work {
    Nothing,
    Dots,
    Decoding,
}

// One pass that nearly every request gets away with.
fn survey(path: &[u8]) -> Result<Work, UriError> {
    if path.iter().any(|&byte| is_control(byte)) {
        return Err(UriError::ControlByte);
    }
    if memchr::memchr(b'%', path).is_some() {
        return Ok(Work::Decoding);
    }
    Ok(if survey_dots(path) {
        Work::Dots
    } else {
        Work::Nothing
    })
}

// "/." may begin a dot segment or only a hidden file; the resolver tells them apart.
fn survey_dots(path: &[u8]) -> bool {
    path.windows(2).any(|pair| pair == b"/.")
}

fn decode(path: &[u8]) -> Result<Vec<u8>, UriError> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = memchr::memchr(b'%', rest) {
        decoded.extend_from_slice(&rest[..at]);
        let [_, high, low, after @ ..] = &rest[at..] else {
            return Err(UriError::BadEncoding);
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
        _ => Err(UriError::BadEncoding),
    }
}

/// Removes dot segments. A final `.` or `..` leaves a final slash: it named a directory.
fn resolve_dots(path: &[u8]) -> Result<Vec<u8>, UriError> {
    let mut resolved = Vec::with_capacity(path.len());
    let mut segments = path[1..].split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            b"." => {}
            b".." => {
                let parent = memchr::memrchr(b'/', &resolved).ok_or(UriError::AboveRoot)?;
                resolved.truncate(parent);
            }
            _ => {
                resolved.push(b'/');
                resolved.extend_from_slice(segment);
                continue;
            }
        }
        if segments.peek().is_none() {
            resolved.push(b'/');
        }
    }
    Ok(resolved)
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
            ("//host/a", "//host/a", None),
            ("/a//b", "/a//b", None),
            ("/a//../b", "/a/b", None),
            ("/a/..;/b", "/a/..;/b", None),
            ("/%5c..%5ca", "/\\..\\a", None),
            ("/%252e%252e/a", "/%2e%2e/a", None),
            ("/static../secret", "/static../secret", None),
            ("/file.php%20", "/file.php ", None),
            ("/a?/../x%00", "/a", Some("/../x%00")),
        ] {
            let found = normalise(target).unwrap();
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
            ("/%", UriError::BadEncoding),
            ("/%4", UriError::BadEncoding),
            ("/%zz", UriError::BadEncoding),
            ("/%u0041", UriError::BadEncoding),
        ] {
            assert_eq!(normalise(target).unwrap_err(), expected, "{target:?}");
        }
    }

    #[test]
    fn overlong_utf8_stays_bytes_and_never_becomes_a_dot() {
        let found = normalise("/%c0%ae%c0%ae/a").unwrap();
        assert_eq!(found.path.as_ref(), b"/\xc0\xae\xc0\xae/a");
    }

    #[test]
    fn borrows_when_there_is_nothing_to_do() {
        assert!(matches!(
            normalise("/a/b?c").unwrap().path,
            Cow::Borrowed(_)
        ));
        assert_eq!(normalise("/a%41?c").unwrap().raw_path, "/a%41");
    }
}
