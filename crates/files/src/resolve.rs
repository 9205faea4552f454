//! Maps a request's path to candidate names, and back to a path for a redirect. Pure.
//!
//! `handler` calls [`is_servable`] before any disk access; `file_tree` tries the candidates in
//! order. The kernel ensures that no name leaves the root.
//!
//! # Invariants
//!
//! - A file has one path: empty segments are refused, since `//a` would bypass a route for `/a`.
//! - Hidden files have no path.

use penstock_config::TryPattern;
use penstock_exchange::Mount;

use crate::hide_patterns::is_dot_name;

/// The candidates for a path, in order.
#[derive(Debug)]
pub(crate) struct PathCandidates(Vec<PathCandidate>);

/// A candidate, relative to the root.
#[derive(Debug)]
pub(crate) enum PathCandidate {
    /// The path between a prefix and a suffix.
    Template { prefix: Vec<u8>, suffix: Vec<u8> },
    /// One file for every path.
    Fixed(Vec<u8>),
}

impl PathCandidates {
    pub(crate) fn new(patterns: &[TryPattern]) -> Self {
        let place = |pattern: &TryPattern| match pattern {
            TryPattern::Template { prefix, suffix } => PathCandidate::Template {
                prefix: prefix.clone().into(),
                suffix: suffix.clone().into(),
            },
            TryPattern::Fixed(file) => PathCandidate::Fixed(file.clone().into()),
        };
        Self(patterns.iter().map(place).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PathCandidate> {
        self.0.iter()
    }
}

impl PathCandidate {
    /// Writes the name to open, relative to the root. `false` if this candidate does not apply to
    /// `path`.
    pub(crate) fn expand_into(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let (prefix, path, suffix) = match self {
            Self::Fixed(file) => (file.as_slice(), b"".as_slice(), b"".as_slice()),
            Self::Template { prefix, suffix } => {
                let meeting = (path.last(), suffix.first());
                let path = match meeting {
                    // `{path}.html` of a directory would be a hidden file in it.
                    (Some(b'/'), Some(b'.')) => return false,
                    (Some(b'/'), Some(b'/')) => &path[..path.len() - 1],
                    _ => path,
                };
                (prefix.as_slice(), path, suffix.as_slice())
            }
        };
        out.reserve(prefix.len() + path.len() + suffix.len());
        for part in [prefix, path, suffix] {
            // The first byte is the path's slash, and names are relative to the root.
            let part = if out.is_empty() {
                part.strip_prefix(b"/").unwrap_or(part)
            } else {
                part
            };
            out.extend_from_slice(part);
        }
        true
    }

    /// Whether a file at this candidate means that `path` is a directory without its final slash,
    /// with which relative links of its index page would break.
    pub(crate) fn is_index_of(&self, path: &[u8]) -> bool {
        match self {
            Self::Template { suffix, .. } => {
                suffix.starts_with(b"/index.") && !path.ends_with(b"/")
            }
            Self::Fixed(_) => false,
        }
    }
}

/// Whether a path may name a file: no segment is hidden (except `.well-known`, RFC 8615, as the
/// first), and only the last may be empty. A `\` also separates segments, as on some file systems.
pub(crate) fn is_servable(path: &[u8]) -> bool {
    let Some(path) = path.strip_prefix(b"/") else {
        return false;
    };
    let path = path.strip_prefix(b".well-known/").unwrap_or(path);
    let mut segments = path.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        if segment.is_empty() && segments.peek().is_some() {
            return false;
        }
        if segment.split(|&byte| byte == b'\\').any(is_dot_name) {
            return false;
        }
    }
    true
}

/// The `Location` for a directory requested without its final slash: path-absolute, so that it
/// stays on the same host, with every byte encoded that a browser might interpret differently (RFC
/// 3986 §3.3).
pub(crate) fn directory_location(mount: &Mount, path: &[u8], query: Option<&str>) -> Vec<u8> {
    let query = query.unwrap_or_default();
    let mut location = Vec::with_capacity(path.len() + query.len() + 8);
    location.extend_from_slice(mount.encoded().as_bytes());
    let front = location.len() + 1;
    // Two leading slashes would name a host.
    location.push(b'/');
    let start = path
        .iter()
        .position(|&byte| byte != b'/')
        .unwrap_or(path.len());
    push_percent(&mut location, &path[start..], PATH_BYTES);
    if location.len() > front {
        location.push(b'/');
    }
    if !query.is_empty() {
        location.push(b'?');
        location.extend_from_slice(query.as_bytes());
    }
    location
}

/// Appends a path segment with all but unreserved bytes encoded (RFC 3986 §2.3).
pub(crate) fn push_encoded(out: &mut Vec<u8>, segment: &[u8]) {
    push_percent(out, segment, b"-._~");
}

fn push_percent(out: &mut Vec<u8>, bytes: &[u8], plain: &[u8]) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(byte);
        } else {
            let digit = |value: u8| HEX[usize::from(value & 15)];
            out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte)]);
        }
    }
}

const PATH_BYTES: &[u8] = b"-._~!$&'()*+,;=:@/";
const HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;

    fn around(prefix: &str, suffix: &str) -> PathCandidate {
        PathCandidate::Template {
            prefix: prefix.into(),
            suffix: suffix.into(),
        }
    }

    #[test]
    fn expands_a_path_to_a_name_below_the_root() {
        for (place, path, expected) in [
            (around("", ""), "/a/b.css", Some("a/b.css")),
            (around("", ""), "/", Some("")),
            (around("", ""), "/a/", Some("a/")),
            (around("", "/index.html"), "/", Some("index.html")),
            (around("", "/index.html"), "/a", Some("a/index.html")),
            (around("", "/index.html"), "/a/", Some("a/index.html")),
            (around("", "index.html"), "/a/", Some("a/index.html")),
            (around("", ".html"), "/a", Some("a.html")),
            (around("", ".html"), "/a/", None),
            (around("", ".html"), "/", None),
            (around("/cache", ".html"), "/a", Some("cache/a.html")),
            (around("/cache", ""), "/", Some("cache/")),
            (
                PathCandidate::Fixed("/app.html".into()),
                "/a/b",
                Some("app.html"),
            ),
        ] {
            let mut name = b"left over".to_vec();
            let found = place.expand_into(path.as_bytes(), &mut name);
            assert_eq!(
                found.then_some(name.as_slice()),
                expected.map(str::as_bytes),
                "{path}"
            );
        }
    }

    #[test]
    fn agrees_with_the_configuration_about_what_a_pattern_means() {
        for pattern in TryPattern::defaults() {
            for path in ["/", "/a", "/a/", "/a/b.c"] {
                let mut expected = String::new();
                pattern.expand_into(path, &mut expected);
                let mut name = Vec::new();
                let places = PathCandidates::new(std::slice::from_ref(&pattern));
                assert!(places.0[0].expand_into(path.as_bytes(), &mut name));
                assert_eq!(
                    format!("/{}", String::from_utf8(name).unwrap()),
                    expected,
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn refuses_hidden_and_empty_segments() {
        for (path, expected) in [
            ("/", true),
            ("/a", true),
            ("/a/", true),
            ("/a.b/c..d/e.", true),
            ("/..a", false),
            ("/.git/config", false),
            ("/.env", false),
            ("/a/.htpasswd", false),
            ("/a/..", false),
            ("/../a", false),
            ("/a/./b", false),
            ("/.well-known/acme-challenge/x", true),
            ("/.well-known/", true),
            ("/.well-known", false),
            ("/.well-known/.git/config", false),
            ("/.well-knownx/a", false),
            ("/a/.well-known/b", false),
            ("//a", false),
            ("/a//b", false),
            ("/a//", false),
            ("//", false),
            ("", false),
            ("*", false),
            ("a", false),
            ("/\\a\\b", true),
            ("/\\..\\a", false),
            ("/a\\.env", false),
            ("/\u{200c}.git-credentials", false),
            ("/a/\u{feff}\u{ad}.env", false),
            ("/\u{200c}.well-known/a", false),
            ("/\u{e000}.a", true),
            ("/caf\u{e9}.a", true),
            ("/\u{6587}.pdf", true),
            ("/\u{200c}a.b", true),
        ] {
            assert_eq!(is_servable(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn a_redirect_stays_on_its_host_and_on_one_line() {
        for (what, path, query, expected) in [
            ("plain", "/docs", None, "/docs/"),
            ("query", "/docs", Some("a=1&b=/"), "/docs/?a=1&b=/"),
            ("empty query", "/docs", Some(""), "/docs/"),
            (
                "another host",
                "//evil.example/docs",
                None,
                "/evil.example/docs/",
            ),
            ("slashes only", "///", None, "/"),
            ("backslashes", "/\\evil.example", None, "/%5Cevil.example/"),
            ("a query in the path", "/a?b#c", None, "/a%3Fb%23c/"),
            ("an encoded percent", "/a%2e", None, "/a%252e/"),
            (
                "line break",
                "/a\r\nSet-Cookie: b",
                None,
                "/a%0D%0ASet-Cookie:%20b/",
            ),
            ("not ASCII", "/\u{e9}", None, "/%C3%A9/"),
            ("markup", "/<b>\"'", None, "/%3Cb%3E%22'/"),
        ] {
            let found = directory_location(&Mount::default(), path.as_bytes(), query);
            assert_eq!(String::from_utf8(found).unwrap(), expected, "{what}");
            let below = directory_location(&Mount::new("/a b"), path.as_bytes(), query);
            let expected = format!("/a%20b{expected}");
            assert_eq!(
                String::from_utf8(below).unwrap(),
                expected,
                "{what}, mounted"
            );
        }
    }

    #[test]
    fn only_an_index_page_makes_a_directory() {
        for (place, path, expected) in [
            (around("", "/index.html"), "/a", true),
            (around("/x", "/index.htm"), "/a", true),
            (around("", "/index.html"), "/a/", false),
            (around("", "/index.html"), "/", false),
            (around("", ".html"), "/a", false),
            (around("", ""), "/a", false),
            (PathCandidate::Fixed("/index.html".into()), "/a", false),
        ] {
            assert_eq!(
                place.is_index_of(path.as_bytes()),
                expected,
                "{place:?} {path}"
            );
        }
    }
}
