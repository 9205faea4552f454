//! Refuses requests that a foreign web page could have sent to the admin listener.
//!
//! Every client that reaches the listener may read. A browser on the same machine reaches it on
//! behalf of any page, so two kinds of requests are refused: those with a host name that a foreign
//! DNS server could point here (DNS rebinding), and a POST from another origin.

use std::net::{Ipv4Addr, Ipv6Addr};

use penstock_http::RequestHead;

/// Whether the host of the request is an address or `localhost`, which no DNS response can forge.
///
/// A request without a host is HTTP/1.0 (RFC 9112 section 3.2) and does not come from a browser.
pub(crate) fn is_host_trusted(head: &RequestHead) -> bool {
    let authority = head.host();
    if authority.is_empty() {
        return true;
    }
    if let Some(rest) = authority.strip_prefix('[') {
        return rest
            .split_once(']')
            .is_some_and(|(ip, _)| ip.parse::<Ipv6Addr>().is_ok());
    }
    let host = authority
        .split_once(':')
        .map_or(authority, |(host, _)| host);
    host.eq_ignore_ascii_case("localhost") || host.parse::<Ipv4Addr>().is_ok()
}

/// Whether the request comes from this origin, by `Sec-Fetch-Site` and `Origin` (Fetch standard,
/// section 3.1), or not from a browser.
pub(crate) fn is_same_origin(head: &RequestHead) -> bool {
    let site = |value: &[u8]| matches!(value, b"same-origin" | b"none");
    let origin = |value: &[u8]| {
        let authority = value
            .strip_prefix(b"http://")
            .or_else(|| value.strip_prefix(b"https://"));
        authority.is_some_and(|a| a.eq_ignore_ascii_case(head.host().as_bytes()))
    };
    head.field_values("sec-fetch-site").all(site) && head.field_values("origin").all(origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{TestTransport, request};

    #[test]
    fn only_addresses_and_localhost_are_trusted_hosts() {
        for (host, expected) in [
            ("127.0.0.1", true),
            ("127.0.0.1:8090", true),
            ("10.1.2.3:80", true),
            ("[::1]", true),
            ("[::1]:8090", true),
            ("localhost", true),
            ("LocalHost:8090", true),
            ("example.com", false),
            ("example.com:8090", false),
            ("localhost.example.com", false),
            ("127.0.0.1.example.com", false),
            ("127.1", false),
            ("2130706433", false),
        ] {
            let request = request(&format!("GET / HTTP/1.1\nHost: {host}"), TestTransport::Tcp);
            assert_eq!(is_host_trusted(&request.head), expected, "{host}");
        }
        assert!(
            is_host_trusted(&request("GET / HTTP/1.0", TestTransport::Tcp).head),
            "no host at all"
        );
    }

    #[test]
    fn only_this_origin_or_no_browser_may_change_things() {
        for (name, fields, expected) in [
            ("no browser", "", true),
            (
                "own page",
                "\nOrigin: http://127.0.0.1:8090\nSec-Fetch-Site: same-origin",
                true,
            ),
            (
                "own page behind tls",
                "\nOrigin: https://127.0.0.1:8090",
                true,
            ),
            ("typed by the user", "\nSec-Fetch-Site: none", true),
            ("other page", "\nOrigin: http://evil.example", false),
            (
                "other port",
                "\nOrigin: http://127.0.0.1:3000\nSec-Fetch-Site: same-site",
                false,
            ),
            ("no port", "\nOrigin: http://127.0.0.1", false),
            ("opaque origin", "\nOrigin: null", false),
            ("other scheme", "\nOrigin: file://127.0.0.1:8090", false),
            ("empty origin", "\nOrigin:", false),
            (
                "cross site without origin",
                "\nSec-Fetch-Site: cross-site",
                false,
            ),
            (
                "two sites",
                "\nSec-Fetch-Site: none\nSec-Fetch-Site: cross-site",
                false,
            ),
        ] {
            let text = format!("POST /reload HTTP/1.1\nHost: 127.0.0.1:8090{fields}");
            assert_eq!(
                is_same_origin(&request(&text, TestTransport::Tcp).head),
                expected,
                "{name}"
            );
        }
    }
}
