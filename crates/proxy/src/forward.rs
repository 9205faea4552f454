//! The head that an HTTP server gets, written anew from the parsed one.
//!
//! Called by `codec` once a try. Method, target, host and fields are re-encoded: nothing that the
//! client sent is copied as a line. Fields of the connection stay here, fields that only a front end
//! may set are dropped, and what is said of the client is believed only from trusted proxies. What a route's
//! own rules say goes on as it is, in place of ours by the same name. What must stay true: framing is
//! decided here alone, and one header gives one field, whatever its case.

use std::fmt::Write as _;
use std::net::IpAddr;

use penstock_config as config;
use penstock_exchange::Request;
use penstock_exchange::cgi::Digits;
use penstock_exchange::fields::{Fate, fate};
use penstock_http::{Method, RequestHead};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

use crate::source::Framing;

/// Writes the head into `out`; gives whether it asks for another protocol.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    config: &config::Upstream,
    request: &Request,
    framing: Framing,
    server: &str,
) -> bool {
    let head = &*request.head;
    let field = |out: &mut Vec<u8>, name: &[u8], value: &[u8]| {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    };
    out.extend_from_slice(head.method_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(head.sent_path_query_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    match &config.host {
        config::HostHeader::Client => field(out, b"Host", head.host_bytes()),
        _ => field(out, b"Host", host(config, head, server).as_bytes()),
    }
    let named = connection_names(head);
    let mut has_words = false;
    for (name, value) in head.field_lines() {
        match fate(name) {
            Fate::Pass if !is_dropped(request, named, name) => field(out, name, value),
            Fate::Underscored if passes_underscored(request, named, name) => {
                field(out, name, value);
            }
            Fate::FromProxy | Fate::House if request.vouched.covers(name) => {
                field(out, name, value);
            }
            Fate::FromProxy | Fate::Via => has_words = true,
            _ => {}
        }
    }
    // Whose words they are matters only where there are some.
    let trusted = has_words && request.is_from_proxy();
    let upgrade = upgrade(head, framing);
    if let Some(protocol) = upgrade {
        field(out, b"Connection", b"Upgrade");
        field(out, b"Upgrade", protocol);
    } else if !keeps_connections(config) {
        field(out, b"Connection", b"close");
    }
    tell_of_request(out, config, request, trusted);
    via(out, head, trusted || request.vouched.covers("via"));
    match framing {
        // RFC 9110 §8.6: a server may refuse a method that usually has a body and does not say its
        // length; WEBrick does.
        Framing::None if has_body_usually(head.method()) => {
            out.extend_from_slice(b"Content-Length: 0\r\n");
        }
        Framing::None => {}
        Framing::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            out.extend_from_slice(Digits::new().number(length));
            out.extend_from_slice(b"\r\n");
        }
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
    upgrade.is_some()
}

/// Whether connections to the servers of an upstream carry another request after one.
pub(crate) fn keeps_connections(config: &config::Upstream) -> bool {
    // A PROXY protocol header speaks for the whole connection.
    config.connections.soft > 0 && config.proxy_protocol.is_none()
}

/// The host that the servers of an upstream see; `server` is the one that gets the request.
pub(crate) fn host<'r>(
    config: &'r config::Upstream,
    head: &'r RequestHead,
    server: &'r str,
) -> &'r str {
    match &config.host {
        config::HostHeader::Client => head.host(),
        config::HostHeader::Server => server,
        config::HostHeader::Text(text) => text,
    }
}

/// Writes what the front end alone can say of a request, in lines of fields: who sent it, and when.
pub(crate) fn tell_of_request(
    out: &mut Vec<u8>,
    config: &config::Upstream,
    request: &Request,
    trusted: bool,
) {
    tell_of_client(out, config, request, trusted);
    if request.vouched.covers("x-request-start") {
        return;
    }
    let arrived = clock::wall_at(request.arrived);
    out.extend_from_slice(b"X-Request-Start: ");
    out.extend_from_slice(Digits::new().since_epoch(arrived));
    out.extend_from_slice(b"\r\n");
}

/// Whether a request without a body says so (RFC 9110 §9.3.3, §9.3.4; RFC 5789 §2).
fn has_body_usually(method: Method) -> bool {
    matches!(method, Method::Post | Method::Put | Method::Patch)
}

/// The `Connection` field of a request that names more than the usual options; nearly always none.
pub(crate) fn connection_names(head: &RequestHead) -> Option<&RequestHead> {
    head.names_fields_of_hop().then_some(head)
}

/// Whether the client's `Connection`, which is `named`, says that this field is one of the hop. What a rule
/// says is not the client's to drop.
pub(crate) fn is_dropped(request: &Request, named: Option<&RequestHead>, name: &[u8]) -> bool {
    let is_named = named.is_some_and(|head| {
        head.field_all("connection")
            .flat_map(|value| value.split(|&byte| byte == b','))
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
    });
    is_named && !request.vouched.covers(name)
}

/// Whether a field with an underscore in its name goes on to a server that sees names as they are: not beside
/// a rule's own field that a framework behind could take it for.
pub(crate) fn passes_underscored(
    request: &Request,
    named: Option<&RequestHead>,
    name: impl AsRef<[u8]>,
) -> bool {
    let (vouched, name) = (&request.vouched, name.as_ref());
    vouched.covers(name) || !vouched.covers_variable(name) && !is_dropped(request, named, name)
}

/// The protocol that a client may ask a server for: not HTTP/2, which would hide requests from us. A body
/// goes first, as `docker exec` has it (RFC 9110 §7.8); `talk` sees to that. WebSocket has none.
fn upgrade(head: &RequestHead, framing: Framing) -> Option<&[u8]> {
    if !head.is_upgrade() {
        return None;
    }
    let protocol = head.field("upgrade")?;
    let is_http = protocol.split(|&byte| byte == b',').any(|name| {
        let name = name.trim_ascii();
        name.get(..2)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"h2"))
            || name
                .get(..4)
                .is_some_and(|start| start.eq_ignore_ascii_case(b"http"))
    });
    let is_early = framing != Framing::None && protocol.eq_ignore_ascii_case(b"websocket");
    (!is_http && !is_early).then_some(protocol)
}

fn tell_of_client(out: &mut Vec<u8>, config: &config::Upstream, request: &Request, trusted: bool) {
    use config::Forwarded::{Both, Standard, XForwarded};
    let earlier = Earlier { request, trusted };
    let form = config.forwarded;
    if matches!(form, XForwarded | Both) {
        tell_in_x_fields(out, &earlier, config.joined);
    }
    if matches!(form, Standard | Both) && !request.vouched.covers("forwarded") {
        tell_in_the_standard_field(out, &earlier);
    }
    // One that dialled in does not know which proxies stand before us: it is told who the client is.
    if config.joined && !request.vouched.covers("x-real-ip") {
        out.extend_from_slice(b"X-Real-IP: ");
        push_peer(out, request.client_address());
        out.extend_from_slice(b"\r\n");
    }
}

/// What was said of the client before us.
struct Earlier<'r> {
    request: &'r Request,
    /// Whether that is believed.
    trusted: bool,
}

impl<'r> Earlier<'r> {
    /// The values of a field; none of one that a rule says, which is passed on already.
    fn said(&self, name: &'static str) -> impl Iterator<Item = &'r [u8]> {
        let believed = self.trusted && !self.request.vouched.covers(name);
        let values = believed.then(|| self.request.head.field_all(name));
        let values = values.into_iter().flatten();
        values.filter(|value| !value.is_empty())
    }
}

fn tell_in_x_fields(out: &mut Vec<u8>, earlier: &Earlier<'_>, is_told_by_us: bool) {
    let Earlier { request, .. } = earlier;
    let line = |out: &mut Vec<u8>, name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    };
    let is_ours = |name: &str| !request.vouched.covers(name);
    let told = request.forwarded.as_deref();
    if is_ours("X-Forwarded-For") {
        // A list that cannot be read here must not be read in another way behind.
        let is_broken = told.is_some_and(|told| told.is_list_broken);
        let before = earlier.said("X-Forwarded-For").filter(|_| !is_broken);
        let mut before = before.peekable();
        let has_list = before.peek().is_some();
        list(out, "X-Forwarded-For", before, |out| {
            // Whom a proxy names in another field.
            let client = told.and_then(|told| told.client).filter(|_| !has_list);
            if let Some(client) = client {
                push_peer(out, client);
                if matches!(request.peer, PeerAddress::Tcp(_)) {
                    out.extend_from_slice(b", ");
                }
            }
            push_peer(out, request.peer);
        });
    }
    if is_ours("X-Forwarded-Proto") {
        line(out, "X-Forwarded-Proto", request.scheme().as_bytes());
    }
    if is_ours("X-Forwarded-Host") {
        let host = told.and_then(|told| told.host.as_deref());
        let host = host.map_or_else(|| request.head.host_bytes(), str::as_bytes);
        line(out, "X-Forwarded-Host", host);
    }
    // In the common case nobody has said anything before us.
    if earlier.trusted {
        for name in OTHERS_OF_PROXIES {
            list(out, name, earlier.said(name), |_| {});
        }
        if !is_told_by_us {
            list(out, "X-Real-IP", earlier.said("X-Real-IP"), |_| {});
        }
    }
    if is_ours("X-Forwarded-Prefix") && !request.mount.is_root() {
        line(
            out,
            "X-Forwarded-Prefix",
            request.mount.encoded().as_bytes(),
        );
    }
}

/// A field of the values so far and one of our own; none if there is no value at all.
fn list<'v>(
    out: &mut Vec<u8>,
    name: &str,
    values: impl Iterator<Item = &'v [u8]>,
    own: impl FnOnce(&mut Vec<u8>),
) {
    let begin = out.len();
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    let first = out.len();
    for value in values {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    let told = out.len();
    own(out);
    if out.len() == told {
        out.truncate(told.saturating_sub(2).max(first));
    }
    match out.len() == first {
        true => out.truncate(begin),
        false => out.extend_from_slice(b"\r\n"),
    }
}

/// RFC 7239 §4: each proxy adds an element at the end.
fn tell_in_the_standard_field(out: &mut Vec<u8>, earlier: &Earlier<'_>) {
    let Earlier { request, .. } = earlier;
    let mut before = earlier.said("Forwarded").peekable();
    let is_first = before.peek().is_none();
    list(out, "Forwarded", before, |out| {
        // What a proxy says in other fields.
        if let Some(told) = request.forwarded.as_deref()
            && is_first
        {
            out.extend_from_slice(b"for=");
            push_node(out, told.client.unwrap_or(PeerAddress::Unix));
            out.extend_from_slice(b";proto=");
            out.extend_from_slice(request.scheme().as_bytes());
            push_host(out, request.host());
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(b"for=");
        push_node(out, request.peer);
        out.extend_from_slice(b";proto=");
        out.extend_from_slice(request.listener.scheme.as_bytes());
        push_host(out, request.head.host());
    });
}

fn push_host(out: &mut Vec<u8>, host: &str) {
    if !host.is_empty() && !host.contains(['"', '\\']) {
        write(out, format_args!(";host=\"{host}\""));
    }
}

/// What a trusted proxy says besides, and nobody here knows.
const OTHERS_OF_PROXIES: [&str; 3] = ["X-Forwarded-Port", "X-Forwarded-Scheme", "X-Forwarded-Ssl"];

/// RFC 9110 §7.6.3: a gateway names itself in requests.
fn via(out: &mut Vec<u8>, head: &RequestHead, trusted: bool) {
    out.extend_from_slice(b"Via: ");
    if trusted {
        for value in head.field_all("via") {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
    let version: &[u8] = match head.version() {
        penstock_http::Version::Http10 => b"1.0 penstock\r\n",
        penstock_http::Version::Http11 => b"1.1 penstock\r\n",
    };
    out.extend_from_slice(version);
}

/// The address; a Unix socket has none, and whoever reads the list expects nothing else in it.
fn push_peer(out: &mut Vec<u8>, peer: PeerAddress) {
    match peer {
        PeerAddress::Tcp(address) => match address.ip().to_canonical() {
            ip @ IpAddr::V4(_) => out.extend_from_slice(Digits::new().address(ip)),
            IpAddr::V6(v6) => write(out, format_args!("{v6}")),
        },
        PeerAddress::Unix => {}
    }
}

/// RFC 7239 §6: an IPv6 address in brackets and quoted, what has no address is `unknown`.
fn push_node(out: &mut Vec<u8>, peer: PeerAddress) {
    match peer {
        PeerAddress::Tcp(address) => match address.ip().to_canonical() {
            ip @ IpAddr::V4(_) => out.extend_from_slice(Digits::new().address(ip)),
            IpAddr::V6(v6) => write(out, format_args!("\"[{v6}]\"")),
        },
        PeerAddress::Unix => out.extend_from_slice(b"unknown"),
    }
}

fn write(out: &mut Vec<u8>, args: std::fmt::Arguments<'_>) {
    struct Text<'o>(&'o mut Vec<u8>);
    impl std::fmt::Write for Text<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
    // Writing to memory cannot fail.
    let _ = Text(out).write_fmt(args);
}

#[cfg(test)]
mod tests;
