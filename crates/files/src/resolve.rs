//! Maps a request's path to candidate names. Pure.
//!
//! `handler` calls [`is_servable_path`] before any disk access; `file_tree` tries the candidates in
//! order. The kernel ensures that no name leaves the root.
//!
//! # Invariants
//!
//! - A file has one path: empty segments are refused, since `//a` would bypass a route for `/a`.
//! - Hidden files have no path.

use penstock_config::TryPattern;

use crate::hide_patterns::is_dot_name;

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
pub(crate) fn is_servable_path(path: &[u8]) -> bool {
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
            assert_eq!(is_servable_path(path.as_bytes()), expected, "{path}");
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
