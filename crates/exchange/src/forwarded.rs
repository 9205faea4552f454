//! Information of trusted proxies about a client's request: address, scheme, host, port and path
//! prefix.
//!
//! `edge` reads it once a request, only if the head has such a field and the peer is trusted, and
//! again where a route's rules change such fields. Other components use [`crate::Request`], so that
//! no two of them read these fields in two ways. `outgoing` decides which fields are passed on.
//!
//! # Invariants
//! - Of a list of addresses the rightmost that is not itself a trusted proxy counts: those left of
//!   it are whatever the client wrote. They are not read, so nothing in them can hide what stands
//!   right.
//! - Only one family of fields is read: a proxy that sets `X-Forwarded-*` may pass on a `Forwarded`
//!   that its client made up, and the other way round. Which fields are read depends on what was
//!   sent, never on what a rule has removed or set.
//! - Host, port and prefix count only if the operator has listed the proxy
//!   ([`TrustedProxies::accepts_forwarded_host`]).
//! - A broken field counts as not sent, and is named for the log.

pub mod outgoing;
mod rfc7239;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use penstock_http::{RequestHead, list_elements, split_authority};
use penstock_sys::net::PeerAddress;

use crate::field_policy::TrustedHeaders;
use crate::{Mount, TrustedProxies};

/// Information of trusted proxies about a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForwardedInfo {
    /// The client's address; its port is 0 where it is not known.
    pub client: Option<PeerAddress>,
    /// The scheme that the client used: `http` or `https`.
    pub scheme: Option<&'static str>,
    /// The authority that the client asked for.
    pub host: Option<Box<str>>,
    /// The port that the client connected to, if a proxy gives it apart from the host.
    pub port: Option<u16>,
    /// The prefix that proxies have stripped from the path.
    pub mount: Mount,
    /// The field that the client's address was looked for in.
    pub source: AddressSource,
}

/// The field that gives the client's address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum AddressSource {
    /// No list that could be passed on.
    #[default]
    Other,
    /// `X-Forwarded-For`, if it could be read.
    XForwardedFor,
    /// `Forwarded`, if it could be read.
    Forwarded,
}

/// A field of a trusted proxy that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidForwardedField {
    /// Its name.
    pub name: String,
    /// Its value, as far as a log line has room.
    pub value: String,
    /// The reason why it does not count.
    pub cause: &'static str,
}

/// The client in a list of addresses.
#[derive(Debug, Default)]
struct FoundClient {
    /// `None` also for a proxy that hides the address (RFC 7239 §6.2, §6.3).
    address: Option<SocketAddr>,
    /// The number of elements right of it.
    hops: usize,
    /// An element that had to be read is invalid.
    has_invalid_element: bool,
}

/// The fields that [`ForwardedInfo::read`] reads, besides that of `server.client_address`.
const X_FIELDS: [&str; 7] = [
    "x-forwarded-for",
    X_FORWARDED_HOST,
    X_FORWARDED_PORT,
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-real-ip",
];
const X_FORWARDED_HOST: &str = "x-forwarded-host";
const X_FORWARDED_PORT: &str = "x-forwarded-port";
const X_FORWARDED_PREFIX: &str = "x-forwarded-prefix";
const FORWARDED: &str = "forwarded";
/// Bytes of a broken field in a log line.
const MAX_LOGGED_BYTES: usize = 80;
const UNREADABLE: &str = "it cannot be read";
const NOT_ACCEPTED: &str = "it counts only from proxies that server.trusted_proxies lists";

impl ForwardedInfo {
    /// Whether a head has any field that [`ForwardedInfo::read`] would read.
    ///
    /// Called for every request: length and first letter decide nearly always.
    #[must_use]
    pub fn has_forwarding_fields(head: &RequestHead, trust: &TrustedProxies) -> bool {
        Self::first_forwarding_field(head, trust).is_some()
    }

    /// The name of the first field that [`ForwardedInfo::read`] would read, as it was sent.
    #[must_use]
    pub fn first_forwarding_field<'h>(
        head: &'h RequestHead,
        trust: &TrustedProxies,
    ) -> Option<&'h [u8]> {
        let client_field = trust.client_field();
        let mut names = head.fields_bytes().map(|(name, _)| name);
        names.find(|name| {
            let is_set = |field: &str| name.eq_ignore_ascii_case(field.as_bytes());
            Self::is_forwarded_name(name) || client_field.is_some_and(is_set)
        })
    }

    /// Whether a field of that name is read, whatever `server.client_address` names.
    #[must_use]
    pub fn is_forwarded_name(name: &[u8]) -> bool {
        let first = name.first().map_or(0, |byte| byte | 0x20);
        match first {
            b'x' if name.len() >= 9 => {
                let is = |known: &&str| name.eq_ignore_ascii_case(known.as_bytes());
                X_FIELDS.iter().any(is) || is(&X_FORWARDED_PREFIX)
            }
            b'f' => name.eq_ignore_ascii_case(FORWARDED.as_bytes()),
            _ => false,
        }
    }

    /// Whether a field of that name counts only from listed proxies
    /// ([`TrustedProxies::accepts_forwarded_host`]).
    #[must_use]
    pub fn needs_listed_proxy(name: &str) -> bool {
        let is = |known: &&str| name.eq_ignore_ascii_case(known);
        [X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PREFIX]
            .iter()
            .any(is)
    }

    /// Reads the fields of a trusted peer's request, and names those that do not count.
    #[must_use]
    pub fn read(head: &RequestHead, trust: &TrustedProxies) -> (Self, Vec<InvalidForwardedField>) {
        let is_sent = |name: &str| head.field(name).is_some();
        Self::read_fields(
            head,
            trust,
            trust.accepts_forwarded_host(),
            &is_sent,
            &|_| true,
        )
    }

    /// The same once a route's rules have made `head` and set some of its fields: those count for
    /// any peer, over all others, which count if the peer is trusted.
    ///
    /// `sent` is the peer's head: which of its fields are read does not depend on the rules, or
    /// they would make one count that the peer only passed on.
    #[must_use]
    pub fn read_with_trusted_headers(
        head: &RequestHead,
        sent: &RequestHead,
        trust: &TrustedProxies,
        is_trusted: bool,
        vouched: &TrustedHeaders,
    ) -> (Self, Vec<InvalidForwardedField>) {
        let is_vouched = |name: &str| vouched.covers(name);
        let (mut info, mut broken) = match is_trusted {
            true => {
                let is_sent = |name: &str| sent.field(name).is_some();
                let is_of_peer = |name: &str| !is_vouched(name);
                Self::read_fields(
                    head,
                    trust,
                    trust.accepts_forwarded_host(),
                    &is_sent,
                    &is_of_peer,
                )
            }
            false => Default::default(),
        };
        let is_set = |name: &str| is_vouched(name) && head.field(name).is_some();
        let (ours, of_rules) = Self::read_fields(head, trust, true, &is_set, &is_vouched);
        broken.extend(of_rules);
        if ours.client.is_some() {
            info.client = ours.client;
        }
        info.scheme = ours.scheme.or(info.scheme);
        info.host = ours.host.or(info.host);
        info.port = ours.port.or(info.port);
        if vouched.covers(X_FORWARDED_PREFIX) {
            info.mount = ours.mount;
        }
        (info, broken)
    }

    fn read_fields(
        head: &RequestHead,
        trust: &TrustedProxies,
        accepts_hosts: bool,
        is_sent: &dyn Fn(&str) -> bool,
        is_read: &dyn Fn(&str) -> bool,
    ) -> (Self, Vec<InvalidForwardedField>) {
        let mut reader = FieldReader {
            head,
            trust,
            accepts_hosts,
            is_sent,
            may_read: is_read,
            info: Self::default(),
            hops: 0,
            address_count: 0,
            invalid_fields: Vec::new(),
        };
        let is_standard = match trust.client_field() {
            Some(field) => field.eq_ignore_ascii_case(FORWARDED),
            None => !X_FIELDS.iter().any(|name| is_sent(name)),
        };
        match is_standard {
            true => reader.read_standard(),
            false => reader.read_x_fields(),
        }
        reader.read_mount();
        (reader.info, reader.invalid_fields)
    }
}

struct FieldReader<'h> {
    head: &'h RequestHead,
    trust: &'h TrustedProxies,
    accepts_hosts: bool,
    /// Whether the peer sent this field, before any rule.
    is_sent: &'h dyn Fn(&str) -> bool,
    may_read: &'h dyn Fn(&str) -> bool,
    info: ForwardedInfo,
    /// In the list of addresses: the elements right of the client's, and all of them.
    hops: usize,
    address_count: usize,
    invalid_fields: Vec<InvalidForwardedField>,
}

impl<'h> FieldReader<'h> {
    /// The values of a field; none if it is not read.
    fn field_values(&self, name: &str) -> Vec<&'h [u8]> {
        if !(self.may_read)(name) {
            return Vec::new();
        }
        // Not `field_all`, which borrows the name for as long.
        let named = self.head.fields();
        let named = named.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value).collect()
    }

    fn read_x_fields(&mut self) {
        let name = match self.trust.client_field() {
            Some(field) => field,
            None if (self.is_sent)("x-forwarded-for") => "x-forwarded-for",
            None => "x-real-ip",
        };
        let lines = self.field_values(name);
        let all: Vec<&[u8]> = lines.iter().flat_map(|line| list_elements(line)).collect();
        let nodes = all.iter().map(|element| parse_node(element));
        let client = find_client(nodes.rev(), self.trust);
        if client.has_invalid_element {
            self.reject_field(name, lines.last().copied(), UNREADABLE);
        } else if name.eq_ignore_ascii_case("x-forwarded-for") && !all.is_empty() {
            self.info.source = AddressSource::XForwardedFor;
        }
        self.info.client = client.address.map(PeerAddress::Tcp);
        (self.hops, self.address_count) = (client.hops, all.len());
        self.info.scheme = self.read_scheme();
        if let Some(host) = self.client_value(X_FORWARDED_HOST) {
            self.set_host(X_FORWARDED_HOST, host);
        }
        if let Some(port) = self.client_value(X_FORWARDED_PORT) {
            match parse_port(port) {
                Some(port) if self.accepts_hosts => self.info.port = Some(port),
                // Nearly always the scheme's own port.
                Some(80 | 443) => {}
                Some(_) => self.reject_field(X_FORWARDED_PORT, Some(port), NOT_ACCEPTED),
                None => self.reject_field(X_FORWARDED_PORT, Some(port), UNREADABLE),
            }
        }
    }

    fn read_scheme(&mut self) -> Option<&'static str> {
        for name in ["x-forwarded-proto", "x-forwarded-scheme", "x-forwarded-ssl"] {
            // A rule removed or changed it: the next ones are not read in its place.
            if (self.is_sent)(name) && self.field_values(name).is_empty() {
                return None;
            }
            let Some(value) = self.client_value(name) else {
                continue;
            };
            let scheme = match name {
                "x-forwarded-ssl" if value.eq_ignore_ascii_case(b"on") => Some("https"),
                "x-forwarded-ssl" if value.eq_ignore_ascii_case(b"off") => Some("http"),
                "x-forwarded-ssl" => None,
                _ => parse_scheme(value),
            };
            match scheme {
                Some(scheme) => return Some(scheme),
                None => self.reject_field(name, Some(value), UNREADABLE),
            }
        }
        None
    }

    fn read_standard(&mut self) {
        let lines = self.field_values(FORWARDED);
        let Some(last) = lines.last().copied() else {
            return;
        };
        let mut found = None;
        let read = rfc7239::ReverseElements::new(lines.into_iter()).map(|element| {
            let element = element?;
            let node = match &element.node {
                Some(node) => parse_node(node)?,
                None => None,
            };
            found = Some(element);
            Ok(node)
        });
        let client = find_client(read, self.trust);
        if client.has_invalid_element {
            self.reject_field(FORWARDED, Some(last), UNREADABLE);
        } else {
            self.info.source = AddressSource::Forwarded;
        }
        // The last element read is the client's.
        let Some(element) = found else {
            return;
        };
        self.info.client = client.address.map(PeerAddress::Tcp);
        if let Some(scheme) = element.scheme {
            match parse_scheme(&scheme) {
                Some(scheme) => self.info.scheme = Some(scheme),
                None => self.reject_field(FORWARDED, Some(&scheme), UNREADABLE),
            }
        }
        if let Some(host) = element.host {
            self.set_host(FORWARDED, &host);
        }
    }

    fn set_host(&mut self, name: &str, value: &[u8]) {
        let host = std::str::from_utf8(value).ok();
        match host.filter(|host| split_authority(host).is_some()) {
            None => self.reject_field(name, Some(value), UNREADABLE),
            Some(host) if self.accepts_hosts => self.info.host = Some(host.into()),
            Some(host) if host.eq_ignore_ascii_case(self.head.host()) => {}
            Some(_) => self.reject_field(name, Some(value), NOT_ACCEPTED),
        }
    }

    fn read_mount(&mut self) {
        let values = self.field_values(X_FORWARDED_PREFIX);
        let Some(value) = values.first().copied() else {
            return;
        };
        let prefix = std::str::from_utf8(value).ok();
        match prefix.and_then(Mount::parse).filter(|_| values.len() == 1) {
            Some(mount) if self.accepts_hosts => self.info.mount = mount,
            Some(mount) if mount.is_root() => {}
            Some(_) => self.reject_field(X_FORWARDED_PREFIX, Some(value), NOT_ACCEPTED),
            // nginx does not pass on a field without a value; other proxies may.
            None if value.is_empty() && values.len() == 1 => {}
            None => self.reject_field(X_FORWARDED_PREFIX, Some(value), UNREADABLE),
        }
    }

    /// The value of a field that is a list with an element for each proxy, or one for all: that of
    /// the proxy that named the client.
    ///
    /// A proxy adds at the right end or replaces the list, so that of as many elements as there are
    /// proxies behind the client none is the client's own. If these agree, any of them will do. If
    /// they do not, the element is known only where each address has one.
    fn client_value(&mut self, name: &str) -> Option<&'h [u8]> {
        let lines = self.field_values(name);
        let all: Vec<&[u8]> = lines.iter().flat_map(|line| list_elements(line)).collect();
        let of_proxies = &all[all.len() - all.len().min(self.hops + 1)..];
        let last = *of_proxies.last()?;
        if of_proxies
            .iter()
            .all(|value| value.eq_ignore_ascii_case(last))
        {
            return Some(last);
        }
        if self.address_count == all.len() {
            return of_proxies.first().copied();
        }
        self.reject_field(name, Some(last), UNREADABLE);
        None
    }

    fn reject_field(&mut self, name: &str, value: Option<&[u8]>, cause: &'static str) {
        let value = value.unwrap_or_default();
        let shown = value.get(..MAX_LOGGED_BYTES).unwrap_or(value);
        self.invalid_fields.push(InvalidForwardedField {
            name: name.to_owned(),
            value: String::from_utf8_lossy(shown).into_owned(),
            cause,
        });
    }
}

/// The rightmost address that is not trusted; the leftmost of all if every one is, or of those
/// right of an element that cannot be read.
fn find_client(
    from_right: impl Iterator<Item = Result<Option<SocketAddr>, ()>>,
    trust: &TrustedProxies,
) -> FoundClient {
    let mut found = FoundClient::default();
    for (hops, node) in from_right.enumerate() {
        match node {
            Ok(address) => (found.address, found.hops) = (address, hops),
            Err(()) => found.has_invalid_element = true,
        }
        let is_proxy = |address: SocketAddr| trust.covers_ip(address.ip());
        if !node.is_ok_and(|address| address.is_some_and(is_proxy)) {
            break;
        }
    }
    found
}

/// An address as proxies write it: with a port or without, IPv6 with brackets or without. `None` if
/// it is hidden.
fn parse_node(bytes: &[u8]) -> Result<Option<SocketAddr>, ()> {
    let text = std::str::from_utf8(bytes).map_err(|_| ())?;
    if text.eq_ignore_ascii_case("unknown") || text.starts_with('_') {
        return Ok(None);
    }
    let (host, port): (IpAddr, _) = if let Ok(address) = text.parse() {
        (address, "0")
    } else if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(())?;
        let port = match rest {
            "" => "0",
            _ => rest.strip_prefix(':').ok_or(())?,
        };
        (host.parse::<Ipv6Addr>().map_err(|_| ())?.into(), port)
    } else {
        let (host, port) = text.split_once(':').ok_or(())?;
        (host.parse::<Ipv4Addr>().map_err(|_| ())?.into(), port)
    };
    let port = match port {
        // RFC 7239 §6: a port may be hidden as well.
        hidden if hidden.starts_with('_') => 0,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map_err(|_| ())?
        }
        _ => return Err(()),
    };
    Ok(Some(SocketAddr::new(host.to_canonical(), port)))
}

fn parse_scheme(value: &[u8]) -> Option<&'static str> {
    let is = |known: &[u8]| value.eq_ignore_ascii_case(known);
    if is(b"https") || is(b"wss") {
        return Some("https");
    }
    (is(b"http") || is(b"ws")).then_some("http")
}

fn parse_port(value: &[u8]) -> Option<u16> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    text.parse().ok().filter(|&port| port > 0)
}

#[cfg(test)]
mod tests;
