//! What trusted proxies say of a client's request: its address, scheme, host, port and path prefix.
//!
//! `edge` reads it once a request, only if the head has such a field and the peer is trusted. Everybody
//! else asks [`crate::Request`], so that no two components read these fields in two ways.
//!
//! # Invariants
//!
//! - Of a list of addresses the rightmost that is not itself a trusted proxy counts: those left of it
//!   are whatever the client wrote.
//! - Only one family of fields is read: a proxy that sets `X-Forwarded-*` may pass on a `Forwarded`
//!   that its client made up, and the other way round.
//! - A field that is broken counts as not sent, and is named for the log.

mod standard;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use penstock_http::{RequestHead, split_authority};
use penstock_sys::net::PeerAddress;

use crate::{Mount, Trust};

/// What trusted proxies say of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForwardedInfo {
    /// The client's address; its port is 0 where it is not known.
    pub client: Option<PeerAddress>,
    /// The scheme that the client used: `http` or `https`.
    pub scheme: Option<&'static str>,
    /// The authority that the client asked for.
    pub host: Option<Box<str>>,
    /// The port that the client connected to, if a proxy tells it apart from the host.
    pub port: Option<u16>,
    /// What proxies have stripped from the path.
    pub mount: Mount,
    /// Whether `X-Forwarded-For` cannot be read, so that nobody behind should get it.
    pub is_list_broken: bool,
}

/// A field of a trusted proxy that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenField {
    /// Its name.
    pub name: String,
    /// What it says, as far as a log line has room.
    pub value: String,
}

/// What a field that names no address says of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Address(SocketAddr),
    /// A proxy that does not tell (RFC 7239 §6.2, §6.3).
    Hidden,
}

/// The address that a list comes to, and how many elements stand right of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Picked {
    node: Node,
    from_right: usize,
}

/// The fields that [`ForwardedInfo::read`] looks at, but for the one that `server.client_address` names.
const X_FIELDS: [&str; 7] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-real-ip",
];
const PREFIX: &str = "x-forwarded-prefix";
const STANDARD: &str = "forwarded";
/// How much of a broken field a log line shows.
const SHOWN_BYTES: usize = 80;

impl ForwardedInfo {
    /// Whether a head has any field that [`ForwardedInfo::read`] would look at.
    ///
    /// Asked for every request: a length and a letter decide nearly always.
    #[must_use]
    pub fn is_told(head: &RequestHead, trust: &Trust) -> bool {
        let client_field = trust.client_field();
        head.field_lines().any(|(name, _)| {
            let first = name.first().map_or(0, |byte| byte | 0x20);
            let is_usual = match first {
                b'x' if name.len() >= 9 => {
                    let is = |known: &&str| name.eq_ignore_ascii_case(known.as_bytes());
                    X_FIELDS.iter().any(is) || is(&PREFIX)
                }
                b'f' => name.eq_ignore_ascii_case(STANDARD.as_bytes()),
                _ => false,
            };
            let is_set = |field: &str| name.eq_ignore_ascii_case(field.as_bytes());
            is_usual || client_field.is_some_and(is_set)
        })
    }

    /// Reads the fields of a trusted peer's request, and names those that are broken.
    #[must_use]
    pub fn read(head: &RequestHead, trust: &Trust) -> (Self, Vec<BrokenField>) {
        let mut reading = Reading {
            head,
            trust,
            info: Self::default(),
            broken: Vec::new(),
        };
        let is_standard = match trust.client_field() {
            Some(field) => field.eq_ignore_ascii_case(STANDARD),
            None => !X_FIELDS.iter().any(|name| head.field(name).is_some()),
        };
        match is_standard {
            true => reading.read_standard(),
            false => reading.read_x_fields(),
        }
        reading.read_mount();
        (reading.info, reading.broken)
    }
}

/// The fields of one request while they are read.
struct Reading<'h> {
    head: &'h RequestHead,
    trust: &'h Trust,
    info: ForwardedInfo,
    broken: Vec<BrokenField>,
}

impl<'h> Reading<'h> {
    fn read_x_fields(&mut self) {
        let name = match self.trust.client_field() {
            Some(field) => field,
            None if self.head.field("x-forwarded-for").is_some() => "x-forwarded-for",
            None => "x-real-ip",
        };
        let lines: Vec<&[u8]> = self.head.field_all(name).collect();
        let elements: Vec<&[u8]> = lines.iter().flat_map(|line| elements(line)).collect();
        let nodes = elements.iter().map(|element| parse_node(element));
        let picked = match pick(nodes.rev(), self.trust) {
            Ok(picked) => picked,
            Err(()) => {
                self.refuse(name, lines.last().copied());
                self.info.is_list_broken = name.eq_ignore_ascii_case("x-forwarded-for");
                None
            }
        };
        self.info.client = picked.and_then(Picked::address);
        let from_right = picked.map(|picked| (picked.from_right, elements.len()));
        self.info.scheme = self.read_scheme(from_right);
        if let Some(host) = self.value("x-forwarded-host", from_right) {
            match std::str::from_utf8(host)
                .ok()
                .filter(|host| split_authority(host).is_some())
            {
                Some(host) => self.info.host = Some(host.into()),
                None => self.refuse("x-forwarded-host", Some(host)),
            }
        }
        if let Some(port) = self.value("x-forwarded-port", from_right) {
            match parse_port(port) {
                Some(port) => self.info.port = Some(port),
                None => self.refuse("x-forwarded-port", Some(port)),
            }
        }
    }

    fn read_scheme(&mut self, from_right: Option<(usize, usize)>) -> Option<&'static str> {
        for name in ["x-forwarded-proto", "x-forwarded-scheme", "x-forwarded-ssl"] {
            let Some(value) = self.value(name, from_right) else {
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
                None => self.refuse(name, Some(value)),
            }
        }
        None
    }

    fn read_standard(&mut self) {
        let mut elements = Vec::new();
        for line in self.head.field_all(STANDARD) {
            if standard::parse(line, &mut elements).is_err() {
                return self.refuse(STANDARD, Some(line));
            }
        }
        let nodes = elements.iter().rev().map(|element| match &element.node {
            Some(node) => parse_node(node),
            None => Ok(Node::Hidden),
        });
        let picked = match pick(nodes, self.trust) {
            Ok(Some(picked)) => picked,
            Ok(None) => return,
            Err(()) => return self.refuse(STANDARD, self.head.field(STANDARD)),
        };
        self.info.client = picked.address();
        let Some(element) = elements.into_iter().rev().nth(picked.from_right) else {
            return;
        };
        if let Some(scheme) = element.scheme {
            self.info.scheme = parse_scheme(&scheme);
        }
        let host = element.host.and_then(|host| String::from_utf8(host).ok());
        self.info.host = host
            .filter(|host| split_authority(host).is_some())
            .map(Into::into);
    }

    fn read_mount(&mut self) {
        let mut values = self.head.field_all(PREFIX);
        let Some(value) = values.next() else {
            return;
        };
        let told = std::str::from_utf8(value).ok();
        match told
            .and_then(Mount::parse)
            .filter(|_| values.next().is_none())
        {
            Some(mount) => self.info.mount = mount,
            None => self.refuse(PREFIX, Some(value)),
        }
    }

    /// The value of a field that is a list with an element for each proxy, or one for all: that of the
    /// proxy whose client was picked.
    fn value(&mut self, name: &str, from_right: Option<(usize, usize)>) -> Option<&'h [u8]> {
        let mut all = Vec::new();
        let head = self.head;
        // Not `field_all`, which borrows the name for as long.
        for (other, value) in head.fields() {
            if other.eq_ignore_ascii_case(name) {
                all.extend(elements(value));
            }
        }
        let first = *all.first()?;
        if all.iter().all(|value| value.eq_ignore_ascii_case(first)) {
            return Some(first);
        }
        let found = match from_right {
            Some((from_right, count)) if count == all.len() => all.iter().rev().nth(from_right),
            _ => None,
        };
        if found.is_none() {
            self.refuse(name, Some(first));
        }
        found.copied()
    }

    fn refuse(&mut self, name: &str, value: Option<&[u8]>) {
        let value = value.unwrap_or_default();
        let shown = value.get(..SHOWN_BYTES).unwrap_or(value);
        self.broken.push(BrokenField {
            name: name.to_owned(),
            value: String::from_utf8_lossy(shown).into_owned(),
        });
    }
}

impl Picked {
    fn address(self) -> Option<PeerAddress> {
        match self.node {
            Node::Address(address) => Some(PeerAddress::Tcp(address)),
            Node::Hidden => None,
        }
    }
}

/// The rightmost address that is not trusted; the leftmost of all if every one is.
///
/// # Errors
/// When what is no address stands where one has to be read.
fn pick(
    from_right: impl Iterator<Item = Result<Node, ()>>,
    trust: &Trust,
) -> Result<Option<Picked>, ()> {
    let mut found = None;
    for (at, node) in from_right.enumerate() {
        let node = node?;
        found = Some(Picked {
            node,
            from_right: at,
        });
        match node {
            Node::Address(address) if trust.covers_ip(address.ip()) => {}
            _ => break,
        }
    }
    Ok(found)
}

/// The elements of a list (RFC 9110 §5.6.1): empty ones do not count.
fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let all = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    all.filter(|element| !element.is_empty())
}

/// An address as proxies write it: with a port or without, IPv6 with brackets or without.
fn parse_node(bytes: &[u8]) -> Result<Node, ()> {
    let text = std::str::from_utf8(bytes).map_err(|_| ())?;
    if text.eq_ignore_ascii_case("unknown") || text.starts_with('_') {
        return Ok(Node::Hidden);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Node::Address(SocketAddr::new(address.to_canonical(), 0)));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(())?;
            let host = IpAddr::V6(host.parse::<Ipv6Addr>().map_err(|_| ())?);
            (
                host,
                rest.strip_prefix(':')
                    .or_else(|| rest.is_empty().then_some("0")),
            )
        }
        None => {
            let (host, port) = text.split_once(':').ok_or(())?;
            (IpAddr::V4(host.parse().map_err(|_| ())?), Some(port))
        }
    };
    let port = match port.ok_or(())? {
        // RFC 7239 §6: a port may be hidden as well.
        hidden if hidden.starts_with('_') => 0,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map_err(|_| ())?
        }
        _ => return Err(()),
    };
    Ok(Node::Address(SocketAddr::new(host.to_canonical(), port)))
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
