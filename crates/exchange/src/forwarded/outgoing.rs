//! The forwarding fields of proxies that are passed on to applications and servers.
//!
//! Used by `apps` and `proxy` when they write a request. Frameworks read these fields by
//! themselves, so they must find in them what was concluded here.
//!
//! # Invariants
//! - A field is passed only with the meaning that it has here: lists of schemes, hosts and ports as
//!   the one element that counts, addresses as they came only if the client's address was read from
//!   them.
//! - A field that does not count is not passed: a broken one, one of the other family, or one of an
//!   untrusted peer.
//! - Fields that a route's own rules set are passed as they are, and not from here.

use std::borrow::Cow;

use penstock_http::list_elements;
use penstock_sys::net::PeerAddress;

use super::{AddressSource, ForwardedInfo, parse_node, parse_scheme};
use crate::Request;
use crate::cgi::TextBuffer;
use crate::field_policy::{is_client_address_field, is_forwarding_field};

impl Request {
    /// The fields that [`Request::forwarded_field`] knows.
    pub const FORWARDED_FIELDS: [&str; 9] = [
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "X-Forwarded-Host",
        "X-Forwarded-Port",
        "X-Forwarded-Prefix",
        "X-Forwarded-Scheme",
        "X-Forwarded-Ssl",
        "X-Real-IP",
        "Forwarded",
    ];

    /// The value to pass on of a proxy's field about this request; `None` if it sent none, or if
    /// nothing of it counts.
    #[must_use]
    pub fn forwarded_field(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let forwarded = self.forwarded.as_deref()?;
        // A rule may set it while the peer is untrusted.
        if self.trusted_headers.covers(name) || !self.is_from_trusted_proxy() {
            return None;
        }
        self.head.field(name)?;
        let text = |text: &'static str| Cow::Borrowed(text.as_bytes());
        match name {
            "X-Forwarded-For" if forwarded.source == AddressSource::XForwardedFor => {
                let lines: Vec<&[u8]> = self.head.field_values("x-forwarded-for").collect();
                Some(match lines[..] {
                    [line] => Cow::Borrowed(line),
                    _ => Cow::Owned(lines.join(&b", "[..])),
                })
            }
            "X-Forwarded-For" | "X-Real-IP" => {
                let PeerAddress::Tcp(client) = forwarded.client? else {
                    return None;
                };
                let mut room = TextBuffer::new();
                Some(Cow::Owned(
                    room.format_address(client.ip().to_canonical()).to_vec(),
                ))
            }
            "X-Forwarded-Proto" | "X-Forwarded-Scheme" => forwarded.scheme.map(text),
            "X-Forwarded-Ssl" => forwarded.scheme.map(|scheme| match scheme {
                "https" => text("on"),
                _ => text("off"),
            }),
            "X-Forwarded-Host" => {
                (forwarded.host.as_deref()).map(|host| Cow::Borrowed(host.as_bytes()))
            }
            "X-Forwarded-Port" => forwarded
                .port
                .map(|port| Cow::Owned(port.to_string().into_bytes())),
            "X-Forwarded-Prefix" if !forwarded.mount.is_root() => {
                Some(match self.mount.encoded_path() {
                    Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
                    Cow::Owned(path) => Cow::Owned(path.into_bytes()),
                })
            }
            "Forwarded" if forwarded.source == AddressSource::Forwarded => {
                let mut element = Vec::new();
                self.push_forwarded_element(forwarded, &mut element);
                Some(Cow::Owned(element))
            }
            _ => None,
        }
    }

    /// Writes an element of `Forwarded` about the client.
    pub fn push_forwarded_element(&self, forwarded: &ForwardedInfo, out: &mut Vec<u8>) {
        out.extend_from_slice(b"for=");
        push_node(out, forwarded.client.unwrap_or(PeerAddress::Unix));
        out.extend_from_slice(b";proto=");
        out.extend_from_slice(self.scheme().as_bytes());
        push_host(out, self.host());
    }

    /// Whether a field outside [`Request::FORWARDED_FIELDS`], which could be passed as it came, is.
    ///
    /// Forwarding fields are passed from trusted peers alone: an address if it is the one that
    /// counts, a scheme likewise, all others only from proxies that are listed
    /// ([`crate::TrustedProxies::accepts_forwarded_host`]). A proxy that is not listed may pass on
    /// values that its client made up.
    ///
    /// Fields of [`Request::for_each_correlation_field`] are written anew.
    #[must_use]
    pub fn passes_forwarding_field(&self, name: impl AsRef<[u8]>) -> bool {
        let name = name.as_ref();
        if self.replaces_correlation_field(name) {
            return false;
        }
        let is = |field: &str| name.eq_ignore_ascii_case(field.as_bytes());
        let is_client_field = self.trusted_proxies.client_field().is_some_and(is);
        if !(is_forwarding_field(name) || is_client_field) || self.trusted_headers.covers(name) {
            return true;
        }
        if !self.is_from_trusted_proxy() {
            return false;
        }
        let lines = self.head.fields_bytes();
        let mut values = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        if is_client_field || is_client_address_field(name) {
            return values.all(|(_, value)| self.names_only_client(value));
        }
        if SCHEME_FIELDS.into_iter().any(is) {
            return values.all(|(_, value)| scheme_of_field(value) == self.scheme());
        }
        self.trusted_proxies.accepts_forwarded_host()
    }

    /// Whether a list of addresses has the client's and no other.
    fn names_only_client(&self, value: &[u8]) -> bool {
        let PeerAddress::Tcp(client) = self.client_address() else {
            return false;
        };
        let ip = client.ip().to_canonical();
        list_elements(value).all(|element| {
            parse_node(element).is_ok_and(|node| node.is_some_and(|address| address.ip() == ip))
        })
    }
}

/// Fields for the scheme that Penstock does not read, but some frameworks and servers do.
const SCHEME_FIELDS: [&str; 7] = [
    "front-end-https",
    "x-arr-ssl",
    "x-forwarded-protocol",
    "x-original-proto",
    "x-original-scheme",
    "x-scheme",
    "x-url-scheme",
];

/// The scheme that such a field means.
fn scheme_of_field(value: &[u8]) -> &'static str {
    let is_off = ["off", "http", "ws", "0", "no", ""]
        .iter()
        .any(|off| value.eq_ignore_ascii_case(off.as_bytes()));
    match is_off {
        true => "http",
        false => parse_scheme(value).unwrap_or("https"),
    }
}

/// Writes a node of `Forwarded` (RFC 7239 §6): an IPv6 address in brackets and quoted, `unknown`
/// without an address.
pub fn push_node(out: &mut Vec<u8>, peer: PeerAddress) {
    let PeerAddress::Tcp(address) = peer else {
        out.extend_from_slice(b"unknown");
        return;
    };
    let ip = address.ip().to_canonical();
    let (before, after): (&[u8], &[u8]) = match ip.is_ipv6() {
        true => (b"\"[", b"]\""),
        false => (b"", b""),
    };
    out.extend_from_slice(before);
    out.extend_from_slice(TextBuffer::new().format_address(ip));
    out.extend_from_slice(after);
}

/// Writes the `host` parameter of `Forwarded`; nothing for a host that does not fit into quotes.
pub fn push_host(out: &mut Vec<u8>, host: &str) {
    if !host.is_empty() && !host.contains(['"', '\\']) {
        out.extend_from_slice(b";host=\"");
        out.extend_from_slice(host.as_bytes());
        out.push(b'"');
    }
}
