//! The path prefix that an application is mounted under.
//!
//! Made by `edge` of the prefix that a route strips and of the one that a trusted proxy in front
//! has stripped before; passed to applications (`SCRIPT_NAME`, `root_path`) and servers
//! (`X-Forwarded-Prefix`), and put back in front of paths that clients are sent to.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_http::{encode_path, normalise_path};

/// A path prefix in normal form: empty, or with a slash at its start and none at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mount(Option<Arc<str>>);

impl Mount {
    /// Nothing was stripped.
    pub const ROOT: Self = Self(None);

    /// The mount at `prefix`, which is a path in normal form; final slashes do not count.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('/');
        Self((!prefix.is_empty()).then(|| prefix.into()))
    }

    /// The mount that a proxy names in `X-Forwarded-Prefix`; `None` if the value is no such path.
    #[must_use]
    pub fn parse(told: &str) -> Option<Self> {
        // A semicolon would end the path of a cookie; the others are no bytes of a path (RFC 3986
        // 3.3).
        let is_odd = |c: char| c.is_control() || "?#,;\\<>\"".contains(c);
        if told.contains(is_odd) {
            return None;
        }
        let normal = normalise_path(told)
            .ok()
            .filter(|normal| !normal.is_ambiguous)?;
        let path = std::str::from_utf8(&normal.path).ok()?;
        (!path.contains(is_odd)).then(|| Self::new(path))
    }

    /// Whether it is the root: nothing was stripped.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_none()
    }

    /// The prefix; empty for the root.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }

    /// The prefix as it stands in a target or a `Location`.
    #[must_use]
    pub fn encoded_path(&self) -> Cow<'_, str> {
        let path = self.path();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
        match path.bytes().all(is_plain) {
            true => Cow::Borrowed(path),
            false => Cow::Owned(encode_path(path.as_bytes())),
        }
    }

    /// This mount below another one.
    #[must_use]
    pub fn nested_in(&self, outer: &Self) -> Self {
        match (&outer.0, &self.0) {
            (None, _) => self.clone(),
            (_, None) => outer.clone(),
            (Some(outer), Some(own)) => Self(Some(format!("{outer}{own}").into())),
        }
    }

    /// The `Location` of the directory at `path` below this mount, with its final slash: an
    /// absolute path, which keeps host, scheme and port, with every byte encoded that a browser
    /// might interpret differently.
    #[must_use]
    pub fn directory_location(&self, path: &[u8], query: Option<&str>) -> String {
        let path = encode_path(path);
        // Two slashes at the start would name a host.
        let path = path.trim_matches('/');
        let slash = if path.is_empty() { "" } else { "/" };
        let query = query.filter(|query| !query.is_empty());
        let query = query.map_or(String::new(), |query| format!("?{query}"));
        format!("{}/{path}{slash}{query}", self.encoded_path())
    }

    /// The rest of `target`, an encoded path that may have a query, behind the prefix; `None` for a
    /// target that is not below it.
    #[must_use]
    pub fn strip_from<'t>(&self, target: &'t str) -> Option<&'t str> {
        let rest = target.strip_prefix(&*self.encoded_path())?;
        (rest.is_empty() || rest.starts_with(['/', '?', '#'])).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_path_is_a_mount() {
        for (told, path) in [
            ("/shop", Some("/shop")),
            ("/shop/", Some("/shop")),
            ("/a%20b/c", Some("/a b/c")),
            ("/", Some("")),
            ("//evil.test", None),
            ("/%2fa.test", Some("/a.test")),
            ("/a/../b", None),
            ("shop", None),
            ("", None),
            ("http://evil.test/", None),
            ("/a?b", None),
            ("/a#b", None),
            ("/a, /b", None),
            ("/;Domain=evil.test", None),
            ("/a%3bb", None),
            ("/a\\b", None),
            ("/<b>", None),
            ("/a%0d%0ab", None),
            ("/%ff", None),
        ] {
            let mount = Mount::parse(told);
            assert_eq!(mount.as_ref().map(Mount::path), path, "{told}");
        }
    }

    #[test]
    fn mounts_stand_below_one_another() {
        let (outer, own, root) = (Mount::new("/a"), Mount::new("/b c"), Mount::default());
        assert_eq!(own.nested_in(&outer).path(), "/a/b c");
        assert_eq!(own.nested_in(&outer).encoded_path(), "/a/b%20c");
        assert_eq!(own.nested_in(&root), own);
        assert_eq!(root.nested_in(&outer), outer);
        assert!(root.nested_in(&root).is_root() && root.encoded_path().is_empty());
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
            let found = Mount::default().directory_location(path.as_bytes(), query);
            assert_eq!(found, expected, "{what}");
            let below = Mount::new("/a b").directory_location(path.as_bytes(), query);
            assert_eq!(below, format!("/a%20b{expected}"), "{what}, mounted");
        }
    }

    #[test]
    fn a_target_is_below_a_mount_by_whole_segments() {
        let mount = Mount::new("/shop");
        for (target, rest) in [
            ("/shop", Some("")),
            ("/shop/a?b", Some("/a?b")),
            ("/shop?b", Some("?b")),
            ("/shopping", None),
            ("/a/shop", None),
        ] {
            assert_eq!(mount.strip_from(target), rest, "{target}");
        }
        assert_eq!(Mount::default().strip_from("/a"), Some("/a"));
    }
}
