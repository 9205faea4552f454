//! The CGI environment of one request: which names an application sees, and with what values.
//!
//! Called by `handler` for every request; the pairs go straight into the interpreter's own
//! serialisation (`wire`). Names follow RFC 3875, PEP 3333 and the Rack SPEC. What must stay true,
//! and is a tested table: one header gives one variable, whatever its case; a name with an
//! underscore never reaches the application (it could pose as another header); nothing that only a
//! front end may say is taken from an untrusted client.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use penstock_exchange::Request;
use penstock_http::Version;
use penstock_sys::net::PeerAddress;
use penstock_wire::{Dialect, EnvironEncoder};

/// Fields that concern one connection only, or that the front end has dealt with; never passed on.
const NOT_PASSED: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that only the front end may set: dropped, whoever sends them.
const HOUSE_ONLY: [&str; 5] = [
    "x-request-start",
    "x-sendfile-type",
    "x-accel-mapping",
    "x-accel-redirect",
    "x-sendfile",
];

/// Fields by which a proxy speaks of its client: taken only from this machine.
const FROM_PROXIES: [&str; 9] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-real-ip",
];

/// Adds all pairs for `request`; `body_len` is the length of its body, `None` without one, and
/// `arrived` the wall-clock time of its arrival.
pub(crate) fn encode(
    encoder: &mut EnvironEncoder<'_>,
    request: &Request,
    body_len: Option<u64>,
    arrived: Duration,
) {
    let head = &request.head;
    let scheme_key: &[u8] = match encoder.dialect() {
        Dialect::Python => b"wsgi.url_scheme",
        Dialect::Ruby => b"rack.url_scheme",
    };
    let (server_name, server_port) = server(request);
    let (mut address, mut port, mut start) = (Digits::new(), Digits::new(), Digits::new());
    let (address, port): (&[u8], &[u8]) = match request.peer {
        PeerAddress::Tcp(peer) => (
            address.address(peer.ip()),
            port.number(u64::from(peer.port())),
        ),
        PeerAddress::Unix => (b"", b""),
    };
    encoder.usual(&[
        head.method_str().as_bytes(),
        request.path(),
        head.target_path_query().as_bytes(),
        server_name,
        server_port.as_bytes(),
        address,
        port,
        head.host().as_bytes(),
        start.since_epoch(arrived),
    ]);
    // What a worker has anyway (see `PROTOCOL.md`) is left out: each pair costs it time.
    let mut unless = |default: &[u8], key: &[u8], value: &[u8]| {
        if value != default {
            encoder.pair(key, value);
        }
    };
    let query = request.query().unwrap_or("");
    unless(b"http", scheme_key, request.listener.scheme.as_bytes());
    unless(b"HTTP/1.1", b"SERVER_PROTOCOL", protocol(head.version()));
    unless(b"", b"QUERY_STRING", query.as_bytes());
    if let Some(len) = body_len {
        encoder.pair(b"CONTENT_LENGTH", Digits::new().number(len));
    }
    encode_fields(encoder, request);
}

fn encode_fields(encoder: &mut EnvironEncoder<'_>, request: &Request) {
    let trusted = is_trusted(request.peer);
    let head = &request.head;
    let mut key = [0_u8; KEY_MAX];
    let mut joined = Vec::new();
    for (at, (name, value)) in head.fields().enumerate() {
        if !is_passed(name, trusted) {
            continue;
        }
        let same = |other: &str| other.eq_ignore_ascii_case(name);
        if head.fields().take(at).any(|(other, _)| same(other)) {
            continue;
        }
        let Some(key) = variable(name, &mut key) else {
            continue;
        };
        let mut others = head
            .fields()
            .skip(at + 1)
            .filter(|(other, _)| same(other))
            .peekable();
        if others.peek().is_none() {
            encoder.pair(key, value);
            continue;
        }
        // RFC 9110 §5.3: repeated fields are one list. RFC 6265 §5.4: cookies join with "; ".
        let separator: &[u8] = if name.eq_ignore_ascii_case("cookie") {
            b"; "
        } else {
            b", "
        };
        joined.clear();
        joined.extend_from_slice(value);
        for (_, more) in others {
            joined.extend_from_slice(separator);
            joined.extend_from_slice(more);
        }
        encoder.pair(key, &joined);
    }
}

/// Longest variable name; a field whose name is longer is dropped, as no application reads it.
const KEY_MAX: usize = 256;

/// `Content-Type` is `CONTENT_TYPE`, everything else `HTTP_` and the name in upper case.
fn variable<'k>(name: &str, key: &'k mut [u8; KEY_MAX]) -> Option<&'k [u8]> {
    if name.eq_ignore_ascii_case("content-type") {
        return Some(b"CONTENT_TYPE");
    }
    let len = 5 + name.len();
    let key = key.get_mut(..len)?;
    key[..5].copy_from_slice(b"HTTP_");
    for (to, from) in key[5..].iter_mut().zip(name.bytes()) {
        *to = if from == b'-' {
            b'_'
        } else {
            from.to_ascii_uppercase()
        };
    }
    Some(key)
}

fn is_passed(name: &str, trusted: bool) -> bool {
    let is_in = |list: &[&str]| list.iter().any(|known| known.eq_ignore_ascii_case(name));
    // Only these first letters occur in the lists: most names are decided by one comparison.
    match name.as_bytes().first().map(u8::to_ascii_lowercase) {
        Some(b'c' | b'e' | b'h' | b'k' | b'p' | b't' | b'u') if is_in(&NOT_PASSED) => return false,
        Some(b'x' | b'f') if is_in(&HOUSE_ONLY) => return false,
        Some(b'x' | b'f') if !trusted && is_in(&FROM_PROXIES) => return false,
        _ => {}
    }
    !name.contains('_')
}

/// Whether the peer may speak for clients of its own: a proxy on this machine.
fn is_trusted(peer: PeerAddress) -> bool {
    match peer {
        PeerAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
        PeerAddress::Unix => true,
    }
}

fn protocol(version: Version) -> &'static [u8] {
    match version {
        Version::Http10 => b"HTTP/1.0",
        Version::Http11 => b"HTTP/1.1",
    }
}

/// The host that the client named, else the listener's address; and the port, given or implied.
fn server(request: &Request) -> (&[u8], String) {
    let host = request.head.host();
    let (name, port) = match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => (&host[..colon], &host[colon + 1..]),
        _ => (host, ""),
    };
    let listens = request.listener.address.map(|a: SocketAddr| a.port());
    let port = match (port, listens) {
        ("", Some(port)) => port.to_string(),
        ("", None) => "80".to_owned(),
        (port, _) => port.to_owned(),
    };
    (
        if name.is_empty() {
            b"localhost"
        } else {
            name.as_bytes()
        },
        port,
    )
}

/// Text of small numbers and addresses without an allocation.
struct Digits {
    buffer: [u8; 64],
}

impl Digits {
    fn new() -> Self {
        Self { buffer: [0; 64] }
    }

    fn write(&mut self, args: std::fmt::Arguments<'_>) -> &[u8] {
        use std::io::Write;
        let mut rest: &mut [u8] = &mut self.buffer;
        // 64 bytes hold any address or number.
        let _ = rest.write_fmt(args);
        let left = rest.len();
        let used = self.buffer.len() - left;
        &self.buffer[..used]
    }

    fn number(&mut self, number: u64) -> &[u8] {
        self.write(format_args!("{number}"))
    }

    fn address(&mut self, address: IpAddr) -> &[u8] {
        match address {
            // The common case, without the formatting machinery's padding.
            IpAddr::V4(v4) => {
                let [a, b, c, d] = v4.octets();
                self.write(format_args!("{a}.{b}.{c}.{d}"))
            }
            IpAddr::V6(v6) => self.write(format_args!("{v6}")),
        }
    }

    /// `t=` seconds and milliseconds, the form that application monitors read.
    fn since_epoch(&mut self, time: Duration) -> &[u8] {
        self.write(format_args!(
            "t={}.{:03}",
            time.as_secs(),
            time.subsec_millis()
        ))
    }
}

#[cfg(test)]
mod tests;
