//! The CGI environment of one request: names and values for the application.
//!
//! `handler` calls it for every request; the variables go straight into the interpreter's own
//! serialisation (`wire`). Names follow RFC 3875, PEP 3333 and the Rack SPEC.
//!
//! # Invariants
//! - One header gives one variable, whatever its case (a tested table).
//! - A name with an underscore never reaches the application: it could pose as another header.
//! - Values that only a front end may set are not taken from an untrusted client.
//! - Values set by a route's own rules are the front end's.

pub(crate) mod asgi;

use std::borrow::Cow;
use std::time::Duration;

use penstock_exchange::Request;
use penstock_exchange::cgi::{self, TextBuffer};
use penstock_exchange::field_policy::classify_field;
use penstock_http::Version;
use penstock_sys::net::PeerAddress;
use penstock_wire::{Dialect, EnvironEncoder};

/// The length of a request's body, as announced to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnnouncedLength {
    /// There is no body, and no word of one.
    NoBody,
    /// So many bytes, also when they came in chunks, or none and the client said so.
    Length(u64),
    /// It is still coming, in chunks.
    Chunked,
}

impl AnnouncedLength {
    pub(crate) fn length(self) -> Option<u64> {
        match self {
            Self::Length(length) => Some(length),
            Self::NoBody | Self::Chunked => None,
        }
    }
}

/// Adds all pairs for `request` with such a body; `arrived` is the wall-clock time of its arrival.
/// With `may_hijack` the worker may take the connection over: then a request for another protocol
/// says which.
pub(crate) fn encode_environ(
    encoder: &mut EnvironEncoder<'_>,
    request: &Request,
    body: AnnouncedLength,
    arrived: Duration,
    may_hijack: bool,
) {
    let head = &request.head;
    let scheme_key: &[u8] = match encoder.dialect() {
        Dialect::Python => b"wsgi.url_scheme",
        Dialect::Ruby => b"rack.url_scheme",
    };
    let (mut address, mut port, mut start) =
        (TextBuffer::new(), TextBuffer::new(), TextBuffer::new());
    let mut listens = TextBuffer::new();
    let host = request.host();
    let forwarded = request.forwarded.as_deref();
    let (server_name, server_port) =
        cgi::server_name_and_port(host, &request.listener, forwarded, &mut listens);
    let (address, port): (&[u8], &[u8]) = match request.client_address() {
        PeerAddress::Tcp(client) => (
            address.format_address(client.ip()),
            match client.port() {
                0 => b"",
                known => port.format_number(u64::from(known)),
            },
        ),
        PeerAddress::Unix => (b"", b""),
    };
    let target = original_target(request);
    encoder.push_common_variables(&[
        head.method_str().as_bytes(),
        request.path(),
        target.as_bytes(),
        server_name,
        server_port,
        address,
        port,
        host.as_bytes(),
        match head.field("x-request-start") {
            Some(received) if request.trusted_headers.covers("x-request-start") => received,
            _ => start.format_request_start(arrived),
        },
    ]);
    // What a worker has anyway (see `PROTOCOL.md`) is left out: each pair costs it time.
    let mut unless = |default: &[u8], key: &[u8], value: &[u8]| {
        if value != default {
            encoder.push_variable(key, value);
        }
    };
    let query = request.query().unwrap_or("");
    unless(b"http", scheme_key, request.scheme().as_bytes());
    unless(b"", b"SCRIPT_NAME", request.mount.path().as_bytes());
    unless(
        b"HTTP/1.1",
        b"SERVER_PROTOCOL",
        protocol_version(head.version()),
    );
    unless(b"", b"QUERY_STRING", query.as_bytes());
    if request.scheme() == "https" {
        encoder.push_variable(b"HTTPS", b"on");
    }
    if let Some(tls) = request.client_state.tls() {
        tls.for_each_variable(|name, value| encoder.push_variable(name, value));
    }
    if let Some(user) = request.client_state.user() {
        encoder.push_variable(b"REMOTE_USER", user.as_bytes());
    }
    if body == AnnouncedLength::Chunked {
        encoder.push_variable(b"HTTP_TRANSFER_ENCODING", b"chunked");
    }
    if let Some(len) = body.length() {
        encoder.push_variable(b"CONTENT_LENGTH", TextBuffer::new().format_number(len));
    }
    encode_fields(encoder, request, may_hijack);
}

/// The target with what was stripped from it, which together with it is the client's.
fn original_target(request: &Request) -> Cow<'_, str> {
    let target = request.head.target_path_query();
    match request.mount.is_root() {
        true => Cow::Borrowed(target),
        false => Cow::Owned(format!("{}{target}", request.mount.encoded_path())),
    }
}

fn encode_fields(encoder: &mut EnvironEncoder<'_>, request: &Request, may_hijack: bool) {
    let upgrades = may_hijack && request.head.is_upgrade();
    cgi::for_each_variable(
        &request.head,
        |name| {
            let is_vouched = request.trusted_headers.covers(name);
            // That one has its place among the usual ones.
            classify_field(name).is_passed_to_app() && request.passes_forwarding_field(name)
                || upgrades && is_upgrade_field(name)
                || is_vouched && !name.eq_ignore_ascii_case("x-request-start")
        },
        |name, value| encoder.push_variable(name, value),
    );
    request.for_each_correlation_field(|name, value| {
        cgi::emit_variable(name, value, |name, value| {
            encoder.push_variable(name, value);
        });
    });
    if request.forwarded.is_some() {
        for name in Request::FORWARDED_FIELDS {
            if let Some(value) = request.forwarded_field(name) {
                cgi::emit_variable(name, &value, |name, value| {
                    encoder.push_variable(name, value);
                });
            }
        }
    }
}

/// Fields of the hop that belong to the handshake of another protocol.
pub(super) fn is_upgrade_field(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    name.eq_ignore_ascii_case(b"upgrade") || name.eq_ignore_ascii_case(b"connection")
}

fn protocol_version(version: Version) -> &'static [u8] {
    match version {
        Version::Http10 => b"HTTP/1.0",
        Version::Http11 => b"HTTP/1.1",
    }
}

#[cfg(test)]
mod tests;
