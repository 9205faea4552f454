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
use penstock_exchange::cgi::TextBuffer;
use penstock_exchange::field_policy::{FieldClass, classify_field};
use penstock_exchange::forwarded::outgoing::{push_host, push_node};
use penstock_exchange::{ForwardedInfo, Request};
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
    let mut has_via = false;
    for (name, value) in head.field_lines() {
        match classify_field(name) {
            FieldClass::EndToEnd
                if !is_dropped(request, named, name) && request.passes_forwarding_field(name) =>
            {
                field(out, name, value);
            }
            FieldClass::Underscored if passes_underscored(request, named, name) => {
                field(out, name, value);
            }
            FieldClass::Forwarding | FieldClass::Internal
                if request.trusted_headers.covers(name) =>
            {
                field(out, name, value);
            }
            FieldClass::Via => has_via = true,
            _ => {}
        }
    }
    let upgrade = upgrade(head, framing);
    if let Some(protocol) = upgrade {
        field(out, b"Connection", b"Upgrade");
        field(out, b"Upgrade", protocol);
    } else if !keeps_connections(config) {
        field(out, b"Connection", b"close");
    }
    tell_of_request(out, config, request);
    // Whose words they are matters only where there are some.
    let passes_via = has_via && request.is_from_trusted_proxy();
    via(
        out,
        head,
        passes_via || request.trusted_headers.covers("via"),
    );
    match framing {
        // RFC 9110 §8.6: a server may refuse a method that usually has a body and does not say its
        // length; WEBrick does.
        Framing::None if has_body_usually(head.method()) => {
            out.extend_from_slice(b"Content-Length: 0\r\n");
        }
        Framing::None => {}
        Framing::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            out.extend_from_slice(TextBuffer::new().format_number(length));
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
pub(crate) fn tell_of_request(out: &mut Vec<u8>, config: &config::Upstream, request: &Request) {
    tell_of_client(out, config, request);
    if request.trusted_headers.covers("x-request-start") {
        return;
    }
    let arrived = clock::wall_at(request.arrived);
    out.extend_from_slice(b"X-Request-Start: ");
    out.extend_from_slice(TextBuffer::new().format_request_start(arrived));
    out.extend_from_slice(b"\r\n");
}

/// Whether a request without a body says so (RFC 9110 §9.3.3, §9.3.4; RFC 5789 §2).
fn has_body_usually(method: Method) -> bool {
    matches!(method, Method::Post | Method::Put | Method::Patch)
}

/// The `Connection` field of a request that names more than the usual options; nearly always none.
pub(crate) fn connection_names(head: &RequestHead) -> Option<&RequestHead> {
    head.has_other_connection_options().then_some(head)
}

/// Whether the client's `Connection`, which is `named`, says that this field is one of the hop. What a rule
/// says is not the client's to drop.
pub(crate) fn is_dropped(request: &Request, named: Option<&RequestHead>, name: &[u8]) -> bool {
    let is_named = named.is_some_and(|head| {
        head.field_all("connection")
            .flat_map(|value| value.split(|&byte| byte == b','))
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
    });
    is_named && !request.trusted_headers.covers(name)
}

/// Whether a field with an underscore in its name goes on to a server that sees names as they are: not beside
/// a rule's own field that a framework behind could take it for.
pub(crate) fn passes_underscored(
    request: &Request,
    named: Option<&RequestHead>,
    name: impl AsRef<[u8]>,
) -> bool {
    let (vouched, name) = (&request.trusted_headers, name.as_ref());
    vouched.covers(name) || !vouched.covers_cgi_variable(name) && !is_dropped(request, named, name)
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

fn tell_of_client(out: &mut Vec<u8>, config: &config::Upstream, request: &Request) {
    use config::Forwarded::{Both, Standard, XForwarded};
    let form = config.forwarded;
    if matches!(form, XForwarded | Both) {
        tell_in_x_fields(out, request, config.joined);
    }
    if matches!(form, Standard | Both) && !request.trusted_headers.covers("forwarded") {
        tell_in_the_standard_field(out, request);
    }
    // One that dialled in does not know which proxies stand before us: it is told who the client is.
    if config.joined && !request.trusted_headers.covers("x-real-ip") {
        out.extend_from_slice(b"X-Real-IP: ");
        push_peer(out, request.client_address());
        out.extend_from_slice(b"\r\n");
    }
}

fn tell_in_x_fields(out: &mut Vec<u8>, request: &Request, is_told_by_us: bool) {
    let line = |out: &mut Vec<u8>, name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    };
    let is_ours = |name: &str| !request.trusted_headers.covers(name);
    let forwarded = request.forwarded.as_deref();
    if is_ours("X-Forwarded-For") {
        tell_addresses(out, request);
    }
    if is_ours("X-Forwarded-Proto") {
        line(out, "X-Forwarded-Proto", request.scheme().as_bytes());
    }
    if is_ours("X-Forwarded-Host") {
        let host = forwarded.and_then(|forwarded| forwarded.host.as_deref());
        let host = host.map_or_else(|| request.head.host_bytes(), str::as_bytes);
        line(out, "X-Forwarded-Host", host);
    }
    // In the common case nobody has said anything before us.
    if forwarded.is_some() {
        let names = OTHERS_OF_PROXIES.iter();
        for name in names.filter(|name| !is_told_by_us || **name != "X-Real-IP") {
            if let Some(value) = request.forwarded_field(name) {
                line(out, name, &value);
            }
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

/// What is known of a client that our peer speaks for. Where a rule of the route tells of the peer
/// itself, or of the scheme alone, there is none.
fn proxied_client(request: &Request) -> Option<&ForwardedInfo> {
    let forwarded = request.forwarded.as_deref()?;
    let is_other = |client: PeerAddress| match (client, request.peer) {
        (PeerAddress::Tcp(client), PeerAddress::Tcp(peer)) => {
            client.ip().to_canonical() != peer.ip().to_canonical()
        }
        (client, peer) => client != peer,
    };
    let is_proxied = request.is_from_trusted_proxy() || forwarded.client.is_some_and(is_other);
    is_proxied.then_some(forwarded)
}

/// The addresses that a trusted proxy has named, and that of our own peer behind them.
fn tell_addresses(out: &mut Vec<u8>, request: &Request) {
    let begin = out.len();
    out.extend_from_slice(b"X-Forwarded-For: ");
    let first = out.len();
    if let Some(forwarded) = proxied_client(request) {
        match request.forwarded_field("X-Forwarded-For") {
            Some(list) => out.extend_from_slice(&list),
            // Whom a proxy names in another field.
            None => push_peer(out, forwarded.client.unwrap_or(PeerAddress::Unix)),
        }
    }
    if out.len() > first && matches!(request.peer, PeerAddress::Tcp(_)) {
        out.extend_from_slice(b", ");
    }
    push_peer(out, request.peer);
    match out.len() == first {
        true => out.truncate(begin),
        false => out.extend_from_slice(b"\r\n"),
    }
}

/// RFC 7239 §4: an element for the client, if a proxy has told of it, and one for our own peer.
/// Both have the scheme and the host that the client used: programs behind read the first element
/// or the last.
fn tell_in_the_standard_field(out: &mut Vec<u8>, request: &Request) {
    out.extend_from_slice(b"Forwarded: ");
    if let Some(forwarded) = proxied_client(request) {
        request.push_client_element(forwarded, out);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(b"for=");
    push_node(out, request.peer);
    out.extend_from_slice(b";proto=");
    out.extend_from_slice(request.scheme().as_bytes());
    push_host(out, request.host());
    out.extend_from_slice(b"\r\n");
}

/// What a trusted proxy says besides.
const OTHERS_OF_PROXIES: [&str; 4] = [
    "X-Forwarded-Port",
    "X-Forwarded-Scheme",
    "X-Forwarded-Ssl",
    "X-Real-IP",
];

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
            ip @ IpAddr::V4(_) => out.extend_from_slice(TextBuffer::new().format_address(ip)),
            IpAddr::V6(v6) => write(out, format_args!("{v6}")),
        },
        PeerAddress::Unix => {}
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
