//! Encodes the head for an HTTP server anew from the parsed one; called by `codec` once per
//! attempt.
//!
//! No line of the client is copied. Hop-by-hop fields are dropped, as are fields that only a front
//! end may set; forwarding fields are accepted only from trusted proxies. Fields set by a route's
//! own rules pass unchanged and replace ours of the same name.
//!
//! # Invariants
//!
//! - The framing is decided here alone.
//! - A header is sent as one field, whatever its case.

use penstock_config as config;
use penstock_exchange::cgi::TextBuffer;
use penstock_exchange::field_policy::{FieldClass, classify_field};
use penstock_exchange::forwarded::outgoing::{push_host, push_node};
use penstock_exchange::{ForwardedInfo, Request};
use penstock_http::{Method, RequestHead};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

use crate::body_source::RequestBodyFraming;

/// Writes the head into `out`; returns whether it asks for another protocol.
pub(crate) fn encode_request_head(
    out: &mut Vec<u8>,
    config: &config::Upstream,
    request: &Request,
    framing: RequestBodyFraming,
    server: &str,
) -> bool {
    let head = &*request.head;
    out.extend_from_slice(head.method_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(head.sent_path_query_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    match &config.host {
        config::HostHeader::Client => push_field(out, b"Host", head.host_bytes()),
        _ => push_field(out, b"Host", host_header(config, head, server).as_bytes()),
    }
    let named = head_with_connection_options(head);
    let mut has_via = false;
    for (name, value) in head.fields_bytes() {
        match classify_field(name) {
            FieldClass::EndToEnd
                if !is_hop_by_hop(request, named, name)
                    && request.passes_forwarding_field(name) =>
            {
                push_field(out, name, value);
            }
            FieldClass::Underscored if forwards_underscored_field(request, named, name) => {
                push_field(out, name, value);
            }
            FieldClass::Forwarding | FieldClass::Internal
                if request.trusted_headers.covers(name) =>
            {
                push_field(out, name, value);
            }
            FieldClass::Via => has_via = true,
            _ => {}
        }
    }
    let upgrade = requested_upgrade(head, framing);
    if let Some(protocol) = upgrade {
        push_field(out, b"Connection", b"Upgrade");
        push_field(out, b"Upgrade", protocol);
    } else if !uses_keep_alive(config) {
        push_field(out, b"Connection", b"close");
    }
    encode_forwarding_fields(out, config, request);
    request.for_each_correlation_field(|name, value| push_field(out, name.as_bytes(), value));
    encode_client_certificate(out, request);
    // Trust matters only if there is a `Via`.
    let passes_via = has_via && request.is_from_trusted_proxy();
    encode_via(
        out,
        head,
        passes_via || request.trusted_headers.covers("via"),
    );
    match framing {
        // RFC 9110 §8.6: a server may refuse a method that usually has a body without a length;
        // WEBrick does.
        RequestBodyFraming::None if usually_has_body(head.method()) => {
            out.extend_from_slice(b"Content-Length: 0\r\n");
        }
        RequestBodyFraming::None => {}
        RequestBodyFraming::Length(length) => {
            push_field(
                out,
                b"Content-Length",
                TextBuffer::new().format_number(length),
            );
        }
        RequestBodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
    upgrade.is_some()
}

/// Whether connections to the upstream's servers carry several requests.
pub(crate) fn uses_keep_alive(config: &config::Upstream) -> bool {
    // A PROXY protocol header applies to the whole connection.
    config.connections.max_idle > 0 && config.proxy_protocol.is_none()
}

/// The host for the servers of an upstream; `server` is the one that gets the request.
pub(crate) fn host_header<'r>(
    config: &'r config::Upstream,
    head: &'r RequestHead,
    server: &'r str,
) -> &'r str {
    match &config.host {
        config::HostHeader::Client => head.host(),
        config::HostHeader::Server => server,
        config::HostHeader::Custom(text) => text,
    }
}

/// Writes the fields that only the front end can set: the client's address and the time.
pub(crate) fn encode_forwarding_fields(
    out: &mut Vec<u8>,
    config: &config::Upstream,
    request: &Request,
) {
    encode_client_fields(out, config, request);
    if request.trusted_headers.covers("x-request-start") {
        return;
    }
    let arrived = clock::wall_time_at(request.arrived_at);
    push_field(
        out,
        b"X-Request-Start",
        TextBuffer::new().format_request_start(arrived),
    );
}

fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a request without a body sends a length of 0 (RFC 9110 §9.3.3, §9.3.4; RFC 5789 §2).
fn usually_has_body(method: Method) -> bool {
    matches!(method, Method::Post | Method::Put | Method::Patch)
}

/// The head, if its `Connection` names more than the usual options; rarely.
pub(crate) fn head_with_connection_options(head: &RequestHead) -> Option<&RequestHead> {
    head.has_other_connection_options().then_some(head)
}

/// Whether the client's `Connection` in `named` makes this field hop-by-hop. A client cannot drop
/// fields set by a rule.
pub(crate) fn is_hop_by_hop(request: &Request, named: Option<&RequestHead>, name: &[u8]) -> bool {
    let is_named = named.is_some_and(|head| {
        head.field_values("connection")
            .flat_map(|value| value.split(|&byte| byte == b','))
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
    });
    is_named && !request.trusted_headers.covers(name)
}

/// Whether a field with an underscore in its name passes to a server that sees names unchanged: not
/// if a framework could confuse it with a rule's field.
pub(crate) fn forwards_underscored_field(
    request: &Request,
    named: Option<&RequestHead>,
    name: impl AsRef<[u8]>,
) -> bool {
    let (trusted_headers, name) = (&request.trusted_headers, name.as_ref());
    trusted_headers.covers(name)
        || !trusted_headers.covers_cgi_variable(name)
            && !request.replaces_correlation_field(name)
            && !is_hop_by_hop(request, named, name)
}

/// The protocol that a client may request from a server: not HTTP/2, which would hide requests from
/// the proxy. A body is sent before the switch, as for `docker exec` (RFC 9110 §7.8; see
/// `upstream_exchange`). WebSocket has none.
fn requested_upgrade(head: &RequestHead, framing: RequestBodyFraming) -> Option<&[u8]> {
    if !head.is_upgrade() {
        return None;
    }
    let protocol = head.field("upgrade")?;
    let is_http = protocol.split(|&byte| byte == b',').any(|name| {
        let name = name.trim_ascii().to_ascii_lowercase();
        name.starts_with(b"h2") || name.starts_with(b"http")
    });
    let is_early =
        framing != RequestBodyFraming::None && protocol.eq_ignore_ascii_case(b"websocket");
    (!is_http && !is_early).then_some(protocol)
}

fn encode_client_fields(out: &mut Vec<u8>, config: &config::Upstream, request: &Request) {
    use config::ForwardedHeaders::{Both, Rfc7239, XForwarded};
    let form = config.forwarded;
    if matches!(form, XForwarded | Both) {
        encode_x_forwarded(out, request, config.joinable);
    }
    if matches!(form, Rfc7239 | Both) && !request.trusted_headers.covers("forwarded") {
        encode_forwarded(out, request);
    }
    // A joined server does not know which proxies the front end trusts: it gets the client's
    // address.
    if config.joinable && !request.trusted_headers.covers("x-real-ip") {
        out.extend_from_slice(b"X-Real-IP: ");
        push_peer_address(out, request.client_address());
        out.extend_from_slice(b"\r\n");
    }
}

/// Writes what the client has proved in its handshake, for sites that ask for certificates. Gateway
/// protocols have variables for it.
pub(crate) fn encode_client_certificate(out: &mut Vec<u8>, request: &Request) {
    if let Some(tls) = request.client_state.tls() {
        tls.for_each_client_field(|name, value| {
            if !request.trusted_headers.covers(name) {
                push_field(out, name, value);
            }
        });
    }
}

fn encode_x_forwarded(out: &mut Vec<u8>, request: &Request, sets_real_ip: bool) {
    let is_ours = |name: &str| !request.trusted_headers.covers(name);
    let forwarded = request.forwarded.as_deref();
    if is_ours("X-Forwarded-For") {
        encode_x_forwarded_for(out, request);
    }
    if is_ours("X-Forwarded-Proto") {
        push_field(out, b"X-Forwarded-Proto", request.scheme().as_bytes());
    }
    if is_ours("X-Forwarded-Host") {
        let host = forwarded.and_then(|forwarded| forwarded.host.as_deref());
        let host = host.map_or_else(|| request.head.host_bytes(), str::as_bytes);
        push_field(out, b"X-Forwarded-Host", host);
    }
    // In the common case no proxy in front has set any.
    if forwarded.is_some() {
        let names = OTHER_FORWARDING_FIELDS.iter();
        for name in names.filter(|name| !sets_real_ip || **name != "X-Real-IP") {
            if let Some(value) = request.forwarded_field(name) {
                push_field(out, name.as_bytes(), &value);
            }
        }
    }
    if is_ours("X-Forwarded-Prefix") && !request.mount.is_root() {
        push_field(
            out,
            b"X-Forwarded-Prefix",
            request.mount.encoded_path().as_bytes(),
        );
    }
}

/// The forwarded client, if it differs from the peer. `None` if a rule of the route sets the peer
/// itself, or only the scheme.
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

/// Writes the addresses that trusted proxies have named, then the peer's.
fn encode_x_forwarded_for(out: &mut Vec<u8>, request: &Request) {
    let begin = out.len();
    out.extend_from_slice(b"X-Forwarded-For: ");
    let first = out.len();
    if let Some(forwarded) = proxied_client(request) {
        match request.forwarded_field("X-Forwarded-For") {
            Some(list) => out.extend_from_slice(&list),
            // The client may be named in another field.
            None => push_peer_address(out, forwarded.client.unwrap_or(PeerAddress::Unix)),
        }
    }
    if out.len() > first && matches!(request.peer, PeerAddress::Tcp(_)) {
        out.extend_from_slice(b", ");
    }
    push_peer_address(out, request.peer);
    match out.len() == first {
        true => out.truncate(begin),
        false => out.extend_from_slice(b"\r\n"),
    }
}

/// Writes `Forwarded` (RFC 7239 §4): an element for the client, if a proxy named one, and one for
/// the peer. Both have the client's scheme and host, as applications read the first or the last
/// element.
fn encode_forwarded(out: &mut Vec<u8>, request: &Request) {
    out.extend_from_slice(b"Forwarded: ");
    if let Some(forwarded) = proxied_client(request) {
        request.push_forwarded_element(forwarded, out);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(b"for=");
    push_node(out, request.peer);
    out.extend_from_slice(b";proto=");
    out.extend_from_slice(request.scheme().as_bytes());
    push_host(out, request.host());
    out.extend_from_slice(b"\r\n");
}

/// Other fields of a trusted proxy.
const OTHER_FORWARDING_FIELDS: [&str; 4] = [
    "X-Forwarded-Port",
    "X-Forwarded-Scheme",
    "X-Forwarded-Ssl",
    "X-Real-IP",
];

/// RFC 9110 §7.6.3: a gateway adds itself to `Via`.
fn encode_via(out: &mut Vec<u8>, head: &RequestHead, trusted: bool) {
    out.extend_from_slice(b"Via: ");
    if trusted {
        for value in head.field_values("via") {
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

/// Writes the address. A Unix socket has none; the fields allow nothing else in its place.
fn push_peer_address(out: &mut Vec<u8>, peer: PeerAddress) {
    if let PeerAddress::Tcp(address) = peer {
        let ip = address.ip().to_canonical();
        out.extend_from_slice(TextBuffer::new().format_address(ip));
    }
}

#[cfg(test)]
mod tests;
