//! The authority of a request: host and optional port, from `Host`, an absolute-form target or the
//! target of CONNECT.
//!
//! Called by the HTTP/1 parser. Accepts only names that a route or a certificate can have: letters,
//! digits, `-._~`, or an IPv6 address in brackets. Percent-encoding and sub-delimiters, which the
//! generic grammar allows (RFC 3986 §3.2.2), only serve to make two parties read different hosts,
//! and are refused.

use std::{net::Ipv6Addr, str};

/// `host:port` or `[::1]:port` without the port.
pub fn strip_port(authority: &str) -> &str {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        _ => authority,
    }
}

/// A checked authority, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Authority<'a> {
    /// The name or the bracketed address.
    pub(crate) host: &'a [u8],
    pub(crate) port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// Parses `host [":" [port]]` (RFC 9110 §4.2.1, §7.2; RFC 3986 §3.2.3). `None` for anything
    /// else, including user information. An empty port counts as absent.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (host, rest) = match bytes {
            [b'[', ..] => bytes.split_at(memchr::memchr(b']', bytes)? + 1),
            _ => bytes.split_at(memchr::memchr(b':', bytes).unwrap_or(bytes.len())),
        };
        let is_valid = if host.starts_with(b"[") {
            is_ipv6(host)
        } else {
            is_host_name(host)
        };
        let port = match rest {
            [] | [b':'] => None,
            [b':', digits @ ..] => Some(parse_port(digits)?),
            _ => return None,
        };
        is_valid.then_some(Self { host, port })
    }

    /// A checked authority without the colon of an empty port (RFC 3986 §6.2.3), which frameworks
    /// that parse the host again refuse.
    pub(crate) fn without_empty_port(bytes: &[u8]) -> &[u8] {
        bytes.strip_suffix(b":").unwrap_or(bytes)
    }

    /// Whether both name the same host and port, with `default_port` for a missing port.
    pub(crate) fn is_same(&self, other: &Self, default_port: Option<u16>) -> bool {
        self.host.eq_ignore_ascii_case(other.host)
            && self.port.or(default_port) == other.port.or(default_port)
    }
}

/// Splits an authority into host and port, with the checks for requests. `None` if it is invalid.
pub fn split_authority(text: &str) -> Option<(&str, Option<u16>)> {
    let authority = Authority::parse(text.as_bytes())?;
    Some((text.get(..authority.host.len())?, authority.port))
}

// At most 255 octets, as in the DNS (RFC 1035 §2.3.4), and no empty label except the last.
fn is_host_name(host: &[u8]) -> bool {
    let labels = host.strip_suffix(b".").unwrap_or(host);
    let mut is_label_empty = true;
    for &byte in labels {
        let is_dot = byte == b'.';
        if is_dot && is_label_empty || !is_dot && !NAME_BYTES[byte as usize] {
            return false;
        }
        is_label_empty = is_dot;
    }
    !is_label_empty && host.len() <= MAX_NAME_BYTES
}

const NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
        byte += 1;
    }
    table
};

fn is_ipv6(bracketed: &[u8]) -> bool {
    let Some(inner) = bracketed
        .strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"))
    else {
        return false;
    };
    str::from_utf8(inner).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

fn parse_port(digits: &[u8]) -> Option<u16> {
    if digits.len() > 5 {
        return None;
    }
    u16::try_from(crate::grammar::parse_u64(digits)?).ok()
}

const MAX_NAME_BYTES: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_names_and_addresses() {
        for (text, port) in [
            ("example.com", None),
            ("EXAMPLE.com.", None),
            ("localhost", None),
            ("my_app-1~x", None),
            ("127.0.0.1:8080", Some(8080)),
            ("[::1]", None),
            ("[2001:db8::1]:65535", Some(65535)),
            ("[::ffff:1.2.3.4]:0", Some(0)),
            ("a:", None),
            ("[::1]:", None),
        ] {
            let authority = Authority::parse(text.as_bytes());
            assert_eq!(authority.map(|a| a.port), Some(port), "{text}");
        }
    }

    #[test]
    fn refuses_everything_a_second_reader_could_read_otherwise() {
        let long = "a".repeat(256);
        for text in [
            "",
            ".",
            ":80",
            ":",
            "a::",
            "[::1]::",
            "a:+80",
            "a:65536",
            "a:8080 ",
            "a:000080",
            "a:80:80",
            "a b",
            "a,b",
            "a, b",
            "user@a",
            "user:pw@a",
            "a/",
            "a/b",
            "a#b",
            "a?b",
            "a%2eb",
            "a..b",
            ".a",
            "a\0",
            "a\\b",
            "[::1",
            "[::1]x",
            "[]",
            "[::g]",
            "[fe80::1%eth0]",
            "::1",
            "[v1.x]",
            "a\u{e9}",
            "<a>",
            "*",
            "a;b",
            "a'",
            "[::1]]",
            "[[::1]",
            &long,
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn an_empty_port_is_not_written_on() {
        for (text, written) in [
            ("a:", "a"),
            ("[::1]:", "[::1]"),
            ("a:80", "a:80"),
            ("a", "a"),
        ] {
            assert_eq!(
                Authority::without_empty_port(text.as_bytes()),
                written.as_bytes()
            );
        }
    }

    #[test]
    fn a_default_port_equals_no_port() {
        let parse = |text: &'static str| Authority::parse(text.as_bytes()).unwrap();
        assert!(parse("a").is_same(&parse("A:80"), Some(80)));
        assert!(!parse("a").is_same(&parse("a:81"), Some(80)));
        assert!(!parse("a").is_same(&parse("b"), Some(80)));
        assert!(!parse("a").is_same(&parse("a:443"), None));
    }
}
