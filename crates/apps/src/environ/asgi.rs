//! The connection scope of one request of an ASGI application (ASGI 3, "HTTP & WebSocket").
//!
//! `handler` calls it; the entries go straight into a `marshal` dictionary (`wire`). Fields stay
//! apart and in order, `host` first; the framing is set anew: `content-length`, or
//! `transfer-encoding` of a body that still arrives in chunks.
//!
//! # Invariants
//! - Values that only a front end may set are not taken from an untrusted client, with hyphens or
//!   underscores in their names, as in `environ`.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_exchange::cgi::{self, TextBuffer};
use penstock_exchange::client_certificate::encode_pem;
use penstock_exchange::field_policy::{FieldClass, classify_field};
use penstock_exchange::{Request, TlsInfo};
use penstock_http::{Version, websocket};
use penstock_sys::net::PeerAddress;
use penstock_wire::ScopeEncoder;

use super::AnnouncedLength;

/// Adds the whole scope of `request` with such a body; `arrived` is the wall-clock time of its
/// arrival.
pub(crate) fn encode_scope(
    scope: &mut ScopeEncoder<'_>,
    request: &Request,
    is_websocket: bool,
    body: AnnouncedLength,
    arrived: Duration,
) {
    let head = &request.head;
    let is_secure = request.scheme() == "https";
    let (kind, scheme) = match (is_websocket, is_secure) {
        (false, false) => ("http", "http"),
        (false, true) => ("http", "https"),
        (true, false) => ("websocket", "ws"),
        (true, true) => ("websocket", "wss"),
    };
    scope.push_str("type", kind);
    scope.push_str("http_version", http_version(head.version()));
    if is_websocket {
        scope.push_str_list("subprotocols", websocket::offered_subprotocols(head));
    } else {
        encode_method(scope, head.method_str());
    }
    scope.push_str("scheme", scheme);
    encode_path(scope, request);
    scope.push_bytes("query_string", request.query().unwrap_or("").as_bytes());
    match request.client_address() {
        PeerAddress::Tcp(client) => encode_address(scope, "client", client),
        PeerAddress::Unix => scope.push_none("client"),
    }
    match request.listener.address {
        _ if has_forwarded_server(request) => {
            let mut room = TextBuffer::new();
            let forwarded = request.forwarded.as_deref();
            let (name, port) =
                cgi::server_name_and_port(request.host(), &request.listener, forwarded, &mut room);
            let port = std::str::from_utf8(port)
                .ok()
                .and_then(|port| port.parse().ok());
            scope.push_address("server", name, port);
        }
        Some(listens) => encode_address(scope, "server", listens),
        // The path of a Unix socket stands without a port.
        None => {
            let name = &request.listener.name;
            let path = name.strip_prefix("unix:").unwrap_or(name);
            scope.push_address("server", path.as_bytes(), None);
        }
    }
    if let Some(tls) = request.client_state.tls() {
        encode_tls(scope, tls);
    }
    scope.push_headers(|headers| {
        if !request.host().is_empty() {
            headers.add(b"host", request.host().as_bytes());
        }
        let start = "x-request-start";
        if !request.trusted_headers.covers(start) {
            headers.add(
                start.as_bytes(),
                TextBuffer::new().format_request_start(arrived),
            );
        }
        if body == AnnouncedLength::Chunked {
            headers.add(b"transfer-encoding", b"chunked");
        }
        if let Some(len) = body.length() {
            headers.add(b"content-length", TextBuffer::new().format_number(len));
        }
        for (name, value) in head.fields() {
            let is_own = name.eq_ignore_ascii_case(start);
            let is_passed = !is_own
                && match classify_field(name) {
                    // Names are seen as they are here; a rule's own field has no twin beside it.
                    FieldClass::Underscored => {
                        !request.trusted_headers.covers_cgi_variable(name)
                            && !request.replaces_correlation_field(name.as_bytes())
                    }
                    class => class.is_passed_to_app() && request.passes_forwarding_field(name),
                };
            // Libraries that serve ASGI and WSGI alike (engineio, for one) tell a WebSocket from a
            // polling request by `Upgrade` alone.
            let is_handshake = is_websocket && super::is_upgrade_field(name);
            if is_passed || is_handshake || request.trusted_headers.covers(name) {
                headers.add(name.as_bytes(), value);
            }
        }
        request.for_each_correlation_field(|name, value| headers.add(name.as_bytes(), value));
        if request.forwarded.is_some() {
            for name in Request::FORWARDED_FIELDS {
                if let Some(value) = request.forwarded_field(name) {
                    headers.add(name.as_bytes(), &value);
                }
            }
        }
    });
}

/// The extension `tls` (ASGI TLS 0.2). `server_cert` is `None`, as the specification allows: it is
/// the same for all requests, and the application has the file.
fn encode_tls(scope: &mut ScopeEncoder<'_>, tls: &TlsInfo) {
    let certificate = tls.client_certificate();
    let chain: Vec<String> = tls.passed_client_chain().map(encode_pem).collect();
    scope.push_dict("extensions", |extensions| {
        extensions.push_dict("tls", |entries| {
            entries.push_none("server_cert");
            let chain = chain.iter().map(|pem| pem.as_bytes());
            entries.push_str_list("client_cert_chain", chain);
            match certificate {
                Some(certificate) => entries.push_str("client_cert_name", &certificate.subject),
                None => entries.push_none("client_cert_name"),
            }
            // A certificate that is not valid ends the handshake.
            entries.push_none("client_cert_error");
            entries.push_number("tls_version", tls.version_number);
            entries.push_number("cipher_suite", tls.cipher_number);
        });
    });
}

/// The path and where the application is mounted: `path` and `raw_path` begin with `root_path`.
fn encode_path(scope: &mut ScopeEncoder<'_>, request: &Request) {
    let target = request.head.target_path_query().as_bytes();
    let raw = target.split(|&byte| byte == b'?').next().unwrap_or(target);
    let mount = &request.mount;
    if mount.is_root() {
        scope.push_lossy_str("path", request.path());
        scope.push_bytes("raw_path", raw);
    } else {
        let path = [mount.path().as_bytes(), request.path()].concat();
        scope.push_lossy_str("path", &path);
        scope.push_bytes("raw_path", &[mount.encoded_path().as_bytes(), raw].concat());
    }
    scope.push_str("root_path", mount.path());
}

/// Whether a trusted proxy says where the client connected.
fn has_forwarded_server(request: &Request) -> bool {
    let forwarded = request.forwarded.as_ref();
    forwarded.is_some_and(|it| it.scheme.is_some() || it.host.is_some() || it.port.is_some())
}

fn encode_address(scope: &mut ScopeEncoder<'_>, key: &'static str, address: SocketAddr) {
    let mut host = TextBuffer::new();
    scope.push_address(key, host.format_address(address.ip()), Some(address.port()));
}

/// In upper case, as applications compare it.
fn encode_method(scope: &mut ScopeEncoder<'_>, method: &str) {
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        scope.push_str("method", &method.to_ascii_uppercase());
    } else {
        scope.push_str("method", method);
    }
}

fn http_version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
    }
}

#[cfg(test)]
mod tests;
