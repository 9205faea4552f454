//! Parts that the environments of all applications share: the variable of a field (RFC 3875
//! §4.1.18), the host and port of a request, and numbers as text.
//!
//! Called for every request by `apps` (WSGI, Rack) and `proxy` (FastCGI, SCGI, uwsgi); each has its
//! own table of the other variables. Only a repeated field is allocated.
//!
//! # Invariants
//! - One field gives one variable, in any case, and no two fields give the same one.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use penstock_http::RequestHead;

use crate::{ForwardedInfo, ListenerInfo};

/// Longest name of a variable; a field with a longer name is dropped, as no application reads it.
const MAX_NAME_BYTES: usize = 256;

/// Passes every field of `head` that `is_passed` to `pair`, as a variable; repeated ones as one.
pub fn for_each_variable(
    head: &RequestHead,
    is_passed: impl Fn(&str) -> bool,
    mut pair: impl FnMut(&[u8], &[u8]),
) {
    let mut room = [0_u8; MAX_NAME_BYTES];
    let mut joined = Vec::new();
    for (at, (bytes, value)) in head.fields_bytes().enumerate() {
        let same = |other: &[u8]| other.eq_ignore_ascii_case(bytes);
        if head.fields_bytes().take(at).any(|(other, _)| same(other)) {
            continue;
        }
        // A name is a token (RFC 9110 §5.1).
        let name = std::str::from_utf8(bytes).unwrap_or_default();
        if !is_passed(name) {
            continue;
        }
        let Some(variable) = write_variable_name(name, &mut room) else {
            continue;
        };
        let mut others = head
            .fields_bytes()
            .skip(at + 1)
            .filter(|(other, _)| same(other))
            .peekable();
        if others.peek().is_none() {
            pair(variable, value);
            continue;
        }
        // RFC 9110 §5.3: repeated fields are one list. RFC 6265 §5.4: cookies join with "; ".
        let separator: &[u8] = match same(b"cookie") {
            true => b"; ",
            false => b", ",
        };
        joined.clear();
        joined.extend_from_slice(value);
        for (_, more) in others {
            joined.extend_from_slice(separator);
            joined.extend_from_slice(more);
        }
        pair(variable, &joined);
    }
}

/// Passes one field to `pair` as a variable, if its name can be one.
pub fn emit_variable(name: &str, value: &[u8], mut pair: impl FnMut(&[u8], &[u8])) {
    if let Some(variable) = write_variable_name(name, &mut [0; MAX_NAME_BYTES]) {
        pair(variable, value);
    }
}

/// `Content-Type` becomes `CONTENT_TYPE`, other names `HTTP_` and the name in upper case.
///
/// `None` for a name with other bytes than letters, digits and hyphens: PHP reads `X.Real.IP` as
/// `X-Real-IP`, as any program may read an underscore as a hyphen.
fn write_variable_name<'r>(name: &str, room: &'r mut [u8; MAX_NAME_BYTES]) -> Option<&'r [u8]> {
    if name.eq_ignore_ascii_case("content-type") {
        return Some(b"CONTENT_TYPE");
    }
    let variable = room.get_mut(..VARIABLE_PREFIX.len() + name.len())?;
    let (prefix, rest) = variable.split_at_mut(VARIABLE_PREFIX.len());
    prefix.copy_from_slice(VARIABLE_PREFIX);
    for (to, from) in rest.iter_mut().zip(name.bytes()) {
        *to = match from {
            b'-' => b'_',
            byte if byte.is_ascii_alphanumeric() => byte.to_ascii_uppercase(),
            _ => return None,
        };
    }
    Some(variable)
}

const VARIABLE_PREFIX: &[u8] = b"HTTP_";

/// `SERVER_NAME` and `SERVER_PORT`: the requested host, else `localhost`; the port that a trusted
/// proxy gives, else the requested one, else the listener's, else that of the scheme. Behind a
/// proxy that gives scheme or host, the listener's port is not the client's. An IPv6 address keeps
/// its brackets (RFC 3875 §4.1.14).
pub fn server_name_and_port<'r>(
    host: &'r str,
    listener: &ListenerInfo,
    forwarded: Option<&ForwardedInfo>,
    room: &'r mut TextBuffer,
) -> (&'r [u8], &'r [u8]) {
    let origin = forwarded.filter(|it| it.scheme.is_some() || it.host.is_some());
    let scheme = origin.and_then(|it| it.scheme).unwrap_or(listener.scheme);
    let listens = listener.address.filter(|_| origin.is_none());
    let (name, port) = match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => (&host[..colon], &host[colon + 1..]),
        _ => (host, ""),
    };
    let port = match (forwarded.and_then(|it| it.port), port, listens) {
        (Some(port), ..) => room.format_number(u64::from(port)),
        (None, "", Some(address)) => room.format_number(u64::from(address.port())),
        (None, "", None) if scheme == "https" => b"443",
        (None, "", None) => b"80",
        (None, port, _) => port.as_bytes(),
    };
    match name {
        "" => (b"localhost", port),
        name => (name.as_bytes(), port),
    }
}

/// A buffer for the text of one number or address.
#[derive(Debug)]
pub struct TextBuffer([u8; 64]);

impl Default for TextBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl TextBuffer {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self([0; 64])
    }

    /// A number in decimal.
    pub fn format_number(&mut self, number: u64) -> &[u8] {
        let end = self.push_number(0, number);
        &self.0[..end]
    }

    /// An address without a port; one of IPv6 without brackets.
    pub fn format_address(&mut self, address: IpAddr) -> &[u8] {
        match address {
            // The common case, without the formatting machinery, which costs more than all the
            // rest.
            IpAddr::V4(v4) => {
                let mut end = 0;
                for octet in v4.octets() {
                    end = self.push_number(end, u64::from(octet));
                    self.0[end] = b'.';
                    end += 1;
                }
                &self.0[..end - 1]
            }
            IpAddr::V6(v6) => {
                let mut rest: &mut [u8] = &mut self.0;
                // 64 bytes hold any address.
                let _ = write!(rest, "{v6}");
                let left = rest.len();
                &self.0[..self.0.len() - left]
            }
        }
    }

    /// `t=` seconds and milliseconds, the form of `X-Request-Start` that application monitors read.
    pub fn format_request_start(&mut self, time: Duration) -> &[u8] {
        self.0[..2].copy_from_slice(b"t=");
        let end = self.push_number(2, time.as_secs());
        // The point takes the place of the leading 1, which keeps the zeros.
        let last = self.push_number(end, 1000 + u64::from(time.subsec_millis()));
        self.0[end] = b'.';
        &self.0[..last]
    }

    /// Writes a number at `at`; returns its end.
    fn push_number(&mut self, at: usize, number: u64) -> usize {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(number).as_bytes();
        self.0[at..at + digits.len()].copy_from_slice(digits);
        at + digits.len()
    }
}

#[cfg(test)]
mod tests {
    use penstock_http::{HeadLimits, ParseProgress, parse_head};

    use super::*;

    fn head(fields: &str) -> RequestHead {
        let limits = HeadLimits {
            max_target_bytes: 8192,
            max_head_bytes: 32768,
            max_fields: 100,
        };
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        match parse_head(text.as_bytes(), &limits) {
            Ok(ParseProgress::Complete((head, _))) => head,
            other => panic!("a valid head: {other:?}"),
        }
    }

    fn variables(lines: &str) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        for_each_variable(
            &head(lines),
            |name| name != "Host",
            |name, value| pairs.push((text(name), text(value))),
        );
        pairs
    }

    #[test]
    fn a_field_becomes_one_variable() {
        let long = format!("{}: 1\r\n", "a".repeat(252));
        for (row, fields, expected) in [
            ("plain", "Accept: a\r\n", &[("HTTP_ACCEPT", "a")][..]),
            ("any case", "x-ThInG2: v\r\n", &[("HTTP_X_THING2", "v")]),
            ("type", "content-type: a/b\r\n", &[("CONTENT_TYPE", "a/b")]),
            ("empty", "A:\r\n", &[("HTTP_A", "")]),
            (
                "repeated",
                "A: 1\r\nB: 2\r\na: 3\r\nA: 4\r\n",
                &[("HTTP_A", "1, 3, 4"), ("HTTP_B", "2")],
            ),
            (
                "cookies",
                "Cookie: a=1\r\ncookie: b=2\r\n",
                &[("HTTP_COOKIE", "a=1; b=2")],
            ),
            ("underscore", "A_B: 1\r\n", &[]),
            ("what php takes for an underscore", "A.B: 1\r\n", &[]),
            (
                "other bytes of a token",
                "A~B: 1\r\nA!: 2\r\nA*: 3\r\n",
                &[],
            ),
            ("name that is too long", &long, &[]),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            assert_eq!(variables(fields), expected, "{row}");
        }
    }

    #[test]
    fn a_field_that_is_not_passed_gives_nothing() {
        let head = head("A: 1\r\nB: 2\r\n");
        for_each_variable(&head, |_| false, |name, _| panic!("{name:?}"));
    }

    #[test]
    fn the_port_is_the_one_named_else_the_listeners() {
        for (host, listens, name, port) in [
            ("a.test", Some("127.0.0.1:8080"), "a.test", "8080"),
            ("a.test:90", Some("127.0.0.1:8080"), "a.test", "90"),
            ("[::1]", Some("127.0.0.1:8080"), "[::1]", "8080"),
            ("[::1]:90", None, "[::1]", "90"),
            ("", None, "localhost", "80"),
            ("a.test:", Some("[::1]:8080"), "a.test", "8080"),
        ] {
            let listener = ListenerInfo {
                scheme: "http",
                address: listens.map(|address| address.parse().unwrap()),
                name: String::new(),
                proxy_protocol: false,
                has_tls: false,
            };
            let mut room = TextBuffer::new();
            let found = server_name_and_port(host, &listener, None, &mut room);
            assert_eq!(found, (name.as_bytes(), port.as_bytes()), "{host}");
        }
    }

    #[test]
    fn behind_a_proxy_the_port_is_the_clients() {
        let listener = ListenerInfo {
            scheme: "http",
            address: Some("127.0.0.1:8080".parse().unwrap()),
            name: String::new(),
            proxy_protocol: false,
            has_tls: false,
        };
        let told = ForwardedInfo::default;
        for (host, told, port) in [
            (
                "a.test",
                ForwardedInfo {
                    scheme: Some("https"),
                    ..told()
                },
                "443",
            ),
            (
                "a.test",
                ForwardedInfo {
                    scheme: Some("http"),
                    ..told()
                },
                "80",
            ),
            (
                "a.test:90",
                ForwardedInfo {
                    scheme: Some("https"),
                    ..told()
                },
                "90",
            ),
            (
                "a.test",
                ForwardedInfo {
                    host: Some("a.test".into()),
                    ..told()
                },
                "80",
            ),
            (
                "a.test",
                ForwardedInfo {
                    port: Some(8443),
                    ..told()
                },
                "8443",
            ),
            (
                "a.test:90",
                ForwardedInfo {
                    port: Some(8443),
                    ..told()
                },
                "8443",
            ),
            ("a.test", told(), "8080"),
        ] {
            let mut room = TextBuffer::new();
            let found = server_name_and_port(host, &listener, Some(&told), &mut room);
            assert_eq!(found, (&b"a.test"[..], port.as_bytes()), "{host} {told:?}");
        }
    }

    #[test]
    fn the_longest_texts_fit() {
        let mut room = TextBuffer::new();
        assert_eq!(room.format_number(u64::MAX), b"18446744073709551615");
        let longest = "1111:2222:3333:4444:5555:6666:7777:8888";
        for number in [0, 7, 10, 99, 100, 907, 1000, 10_203, u64::MAX] {
            assert_eq!(room.format_number(number), number.to_string().as_bytes());
        }
        let address = room.format_address(longest.parse().unwrap());
        assert_eq!(address, longest.as_bytes());
        let time = Duration::new(u64::MAX, 42_000_000);
        assert_eq!(
            room.format_request_start(time),
            b"t=18446744073709551615.042"
        );
    }
}
