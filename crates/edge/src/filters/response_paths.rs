//! Paths in responses of servers that do not know the prefix stripped from their requests:
//! `Location`, `Content-Location`, `Refresh` and the paths of cookies.
//!
//! nginx does the same by `proxy_redirect` and `proxy_cookie_path`, Apache by `ProxyPassReverse`.
//! Pure.
//!
//! # Invariants
//! - A path below the prefix already stays: the server knows it (`X-Forwarded-Prefix`).
//! - An address of another host stays. The server's own is a path by now
//!   (`proxy/src/own_address.rs`).
//! - Cookies by which Penstock itself keeps clients at a server stay: they are for every route.
//! - Relative references stay: the client resolves them below the prefix by itself.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_exchange::Mount;
use penstock_http::{FieldBlock, refresh_target, starts_with_ignore_case};

use super::HeaderPlaceholders;

/// Maps a server's paths to the client's.
#[derive(Debug)]
pub(super) struct ResponsePathRewriter {
    /// The prefix that the route strips.
    stripped_prefix: Mount,
    /// The prefix that it adds instead.
    added_prefix: Mount,
    /// The names of Penstock's own cookies.
    own_cookies: Arc<[String]>,
}

impl ResponsePathRewriter {
    /// `None` for a route that leaves paths as they are.
    pub(super) fn new(stripped: &str, added: &str, own_cookies: Arc<[String]>) -> Option<Self> {
        let (stripped, added) = (Mount::new(stripped), Mount::new(added));
        let is_identity = stripped.is_root() && added.is_root();
        (!is_identity).then_some(Self {
            stripped_prefix: stripped,
            added_prefix: added,
            own_cookies,
        })
    }

    /// Changes the fields of a response to a request with a changed path.
    pub(super) fn rewrite_paths(&self, fields: &mut FieldBlock, values: &HeaderPlaceholders<'_>) {
        for name in ["Location", "Content-Location"] {
            let Some(value) = fields
                .get(name)
                .and_then(|value| std::str::from_utf8(value).ok())
            else {
                continue;
            };
            if let Some(reference) = self.rewrite_reference(value, values) {
                // A valid value with an encoded path in front.
                let _ = fields.set(name, reference.as_bytes());
            }
        }
        let value = fields.get("Refresh");
        let value = value.and_then(|value| std::str::from_utf8(value).ok());
        if let Some((value, place)) = value.and_then(|value| Some((value, refresh_target(value)?)))
            && let Some(reference) = self.rewrite_reference(&value[place.clone()], values)
        {
            let value = format!(
                "{}{reference}{}",
                &value[..place.start],
                &value[place.end..]
            );
            let _ = fields.set("Refresh", value.as_bytes());
        }
        self.rewrite_cookie_paths(fields, values);
    }

    /// A reference for the client; `None` for one that stays.
    fn rewrite_reference(
        &self,
        reference: &str,
        values: &HeaderPlaceholders<'_>,
    ) -> Option<String> {
        let Some((before, authority, rest)) = split_authority(reference) else {
            return self.rewrite_path(reference, values);
        };
        let is = |own: &str| !own.is_empty() && authority.eq_ignore_ascii_case(own);
        let own = [
            Some(values.host),
            Some(values.head.host()),
            values.forwarded_host,
        ];
        if !own.into_iter().flatten().any(is) {
            return None;
        }
        let path = match rest.is_empty() {
            true => self.rewrite_path("/", values),
            false => self.rewrite_path(rest, values),
        };
        Some(format!("{before}{}", path?))
    }

    /// A path for the client, with its query and fragment.
    fn rewrite_path(&self, reference: &str, values: &HeaderPlaceholders<'_>) -> Option<String> {
        if !reference.starts_with('/') {
            return None;
        }
        let outer = values
            .outer_mount
            .map_or(Cow::Borrowed(""), Mount::encoded_path);
        // The server knows its mount.
        let full = match values.outer_mount {
            Some(outer) => self.stripped_prefix.nested_in(outer),
            None => self.stripped_prefix.clone(),
        };
        if !full.is_root() && full.strip_from(reference).is_some() {
            return None;
        }
        if !self.stripped_prefix.is_root() && self.stripped_prefix.strip_from(reference).is_some() {
            return (!outer.is_empty()).then(|| format!("{outer}{reference}"));
        }
        // A path that is not below the added prefix is not on this route.
        let rest = self.added_prefix.strip_from(reference)?;
        let slash = if rest.starts_with('/') { "" } else { "/" };
        let front = full.encoded_path();
        // Two slashes at the start would name a host.
        let rest = match front.is_empty() {
            true => trim_leading_slashes(rest),
            false => rest,
        };
        let slash = if front.is_empty() { "/" } else { slash };
        Some(format!("{front}{slash}{rest}"))
    }

    fn rewrite_cookie_paths(&self, fields: &mut FieldBlock, values: &HeaderPlaceholders<'_>) {
        const NAME: &str = "Set-Cookie";
        let is_ours = |(name, _): &(&str, &[u8])| name.eq_ignore_ascii_case(NAME);
        if !fields.iter().any(|field| is_ours(&field)) {
            return;
        }
        let cookies: Vec<Vec<u8>> = fields
            .iter()
            .filter(is_ours)
            .map(|(_, value)| {
                self.rewrite_cookie(value, values)
                    .unwrap_or_else(|| value.to_vec())
            })
            .collect();
        fields.remove(NAME);
        for cookie in cookies {
            // A valid value with an encoded path in front.
            let _ = fields.push(NAME, &cookie);
        }
    }

    /// A cookie with its path rewritten; `None` for one that stays. Browsers refuse a cookie named
    /// `__Host-` whose path is not `/`. One of Penstock's own with the path of a route would be
    /// sent beside that of another route.
    fn rewrite_cookie(&self, value: &[u8], values: &HeaderPlaceholders<'_>) -> Option<Vec<u8>> {
        if starts_with_ignore_case(value, "__host-") {
            return None;
        }
        let name = value.split(|&byte| byte == b'=').next().unwrap_or_default();
        let mut own = self.own_cookies.iter();
        if own.any(|own| own.as_bytes() == name) {
            return None;
        }
        let mut is_changed = false;
        let mut out = Vec::with_capacity(value.len() + 32);
        for (at, part) in value.split(|&byte| byte == b';').enumerate() {
            if at > 0 {
                out.push(b';');
            }
            let path = (at > 0).then(|| path_attribute(part)).flatten();
            match path.and_then(|path| self.rewrite_path(path, values)) {
                Some(put) => {
                    out.extend_from_slice(b" Path=");
                    // `/shop/` would leave out `/shop`.
                    let path = put.strip_suffix('/').filter(|path| !path.is_empty());
                    let path = path.unwrap_or(&put);
                    out.extend_from_slice(path.as_bytes());
                    is_changed = true;
                }
                None => out.extend_from_slice(part),
            }
        }
        is_changed.then_some(out)
    }
}

/// A path without the slashes in front. Two of them would name a host, and browsers read a
/// backslash as a slash and leave tabs out (WHATWG URL, 4.4).
fn trim_leading_slashes(path: &str) -> &str {
    path.trim_start_matches(['/', '\\', '\t'])
}

/// Splits a reference into scheme and authority as written, the authority alone, and what follows
/// (RFC 3986 §4.2). `None` for one without an authority.
fn split_authority(reference: &str) -> Option<(&str, &str, &str)> {
    let mut starts = ["http://", "https://", "//"].into_iter();
    let start = starts
        .find(|start| starts_with_ignore_case(reference, start))?
        .len();
    let end = reference[start..].find(['/', '?', '#', '\\']);
    let end = end.map_or(reference.len(), |end| start + end);
    Some((&reference[..end], &reference[start..end], &reference[end..]))
}

/// The value of a cookie's `Path` attribute (RFC 6265 §5.2.4).
fn path_attribute(part: &[u8]) -> Option<&str> {
    let part = std::str::from_utf8(part).ok()?;
    let (name, value) = part.split_once('=')?;
    let is_path = name.trim().eq_ignore_ascii_case("path");
    is_path.then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use penstock_http::{HeadLimits, ParseProgress, parse_head};
    use penstock_sys::net::PeerAddress;

    use super::*;
    use crate::tests::LISTENER;

    fn paths(stripped: &str, added: &str) -> Option<ResponsePathRewriter> {
        ResponsePathRewriter::new(stripped, added, ["srv".to_owned()].into())
    }

    /// The rewritten field of a server's response.
    fn rewritten(
        paths: &ResponsePathRewriter,
        mount: Option<&str>,
        name: &str,
        told: &str,
    ) -> Vec<String> {
        let text = "GET /shop/cart HTTP/1.1\r\nHost: inner.test\r\n\r\n";
        let Ok(ParseProgress::Complete((head, _))) =
            parse_head(text.as_bytes(), &HeadLimits::default())
        else {
            panic!("the head is whole");
        };
        let mount = mount.map(Mount::new);
        let values = HeaderPlaceholders {
            head: &head,
            client: PeerAddress::Unix,
            host: "shop.test",
            scheme: "https",
            outer_mount: mount.as_ref(),
            forwarded_host: Some("told.test"),
            listener: &LISTENER,
            tls: None,
        };
        let mut fields = FieldBlock::new();
        for value in told.split('\n') {
            fields.push(name, value.as_bytes()).unwrap();
        }
        paths.rewrite_paths(&mut fields, &values);
        let of_name = fields.iter().filter(|(other, _)| *other == name);
        of_name
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    #[test]
    fn no_redirect_to_a_path_becomes_one_to_a_host() {
        let add = paths("", "/v2").unwrap();
        for (told, expected) in [
            ("/v2//evil.test/", "/evil.test/"),
            ("/v2/\\evil.test/", "/evil.test/"),
            ("/v2/\t/evil.test/", "/evil.test/"),
            ("/v2/a", "/a"),
        ] {
            assert_eq!(
                rewritten(&add, None, "Location", told),
                [expected],
                "{told}"
            );
        }
    }

    #[test]
    fn a_redirect_stays_below_the_prefix() {
        let strip = paths("/shop", "").unwrap();
        for (told, expected) in [
            ("/login", "/shop/login"),
            ("/", "/shop/"),
            ("/login?next=/cart#x", "/shop/login?next=/cart#x"),
            ("/shop/login", "/shop/login"),
            ("/shop", "/shop"),
            ("/shop?a", "/shop?a"),
            ("/shopping", "/shop/shopping"),
            ("login", "login"),
            ("../login", "../login"),
            ("?a=b", "?a=b"),
            ("", ""),
            ("https://shop.test/login", "https://shop.test/shop/login"),
            ("http://shop.test/login", "http://shop.test/shop/login"),
            ("https://SHOP.test", "https://SHOP.test/shop/"),
            (
                "https://shop.test/shop/login",
                "https://shop.test/shop/login",
            ),
            ("http://inner.test/login", "http://inner.test/shop/login"),
            ("http://told.test/login", "http://told.test/shop/login"),
            ("//shop.test/login", "//shop.test/shop/login"),
            ("https://other.test/login", "https://other.test/login"),
            (
                "https://shop.test.evil.test/a",
                "https://shop.test.evil.test/a",
            ),
            ("//evil.test/a", "//evil.test/a"),
            (
                "https://shop.test\\evil.test/",
                "https://shop.test\\evil.test/",
            ),
            ("mailto:a@shop.test", "mailto:a@shop.test"),
        ] {
            for name in ["Location", "Content-Location"] {
                assert_eq!(rewritten(&strip, None, name, told), [expected], "{told}");
            }
            let refresh = format!("5; url={told}");
            let expected = format!("5; url={expected}");
            assert_eq!(
                rewritten(&strip, None, "Refresh", &refresh),
                [expected],
                "{told}"
            );
        }
    }

    #[test]
    fn a_prefix_that_a_proxy_in_front_strips_comes_first() {
        let strip = paths("/shop", "").unwrap();
        for (told, expected) in [
            ("/login", "/outer/shop/login"),
            ("/shop/login", "/outer/shop/login"),
            ("/outer/shop/login", "/outer/shop/login"),
        ] {
            assert_eq!(
                rewritten(&strip, Some("/outer"), "Location", told),
                [expected],
                "{told}"
            );
        }
    }

    #[test]
    fn a_prefix_that_was_added_goes() {
        let swap = paths("/api", "/v2").unwrap();
        let add = paths("", "/v2").unwrap();
        for (paths, told, expected) in [
            (&swap, "/v2/a", "/api/a"),
            (&swap, "/v2", "/api/"),
            (&swap, "/v3/a", "/v3/a"),
            (&swap, "/api/a", "/api/a"),
            (&add, "/v2/a", "/a"),
            (&add, "/v2", "/"),
            (&add, "/v2//evil.test", "/evil.test"),
            (&add, "/other", "/other"),
        ] {
            assert_eq!(
                rewritten(paths, None, "Location", told),
                [expected],
                "{told}"
            );
        }
        assert!(paths("", "").is_none());
    }

    #[test]
    fn cookie_paths_get_the_prefix() {
        let strip = paths("/shop", "").unwrap();
        for (told, expected) in [
            ("a=1; Path=/; HttpOnly", vec!["a=1; Path=/shop; HttpOnly"]),
            ("a=1;path=/cart", vec!["a=1; Path=/shop/cart"]),
            ("a=1; Path=/shop", vec!["a=1; Path=/shop"]),
            ("a=1; Path=/shop/x", vec!["a=1; Path=/shop/x"]),
            ("a=1", vec!["a=1"]),
            ("srv=1; Path=/; HttpOnly", vec!["srv=1; Path=/; HttpOnly"]),
            ("srv2=1; Path=/", vec!["srv2=1; Path=/shop"]),
            ("Path=/; Secure", vec!["Path=/; Secure"]),
            (
                "__Host-a=1; Path=/; Secure",
                vec!["__Host-a=1; Path=/; Secure"],
            ),
            (
                "a=1; Path=/\nb=2; Path=/b\nc=3",
                vec!["a=1; Path=/shop", "b=2; Path=/shop/b", "c=3"],
            ),
        ] {
            assert_eq!(
                rewritten(&strip, None, "Set-Cookie", told),
                expected,
                "{told}"
            );
        }
    }
}
