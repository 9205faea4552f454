//! The variables of a request for gateway protocols: one table for FastCGI, SCGI and uwsgi, and the
//! same facts in AJP's packet. Called by `codec::gateway` once per attempt.
//!
//! Names are those of RFC 3875 and those that PHP, uWSGI and others expect in addition.
//! `exchange::cgi` maps fields to variables, `exchange::field_policy` decides which fields pass,
//! and `request_head` writes the forwarding fields, so every protocol reports the same. The script
//! is found by the path's text, as no event loop touches a disk: see [`ScriptPath`].
//!
//! # Invariants
//!
//! - The length of the body is decided here alone.
//! - The configuration's `params` override everything else.
//! - Each variable is written once.

mod script;

pub use script::is_script_path;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;

use penstock_config as config;
use penstock_exchange::Request;
use penstock_exchange::cgi::{self, TextBuffer};
use penstock_exchange::field_policy::{FieldClass, classify_field};
use penstock_http::RequestHead;
use penstock_sys::net::PeerAddress;
use penstock_wire::ajp::{AjpRequest, encode_forward_request};
use penstock_wire::gateway::{EncodeError, VariableWriter};

use crate::body_source::RequestBodyFraming;
use crate::environ::script::ScriptPath;
use crate::request_head;

/// Writes all variables of `request` for `server`.
pub(crate) fn encode_variables(
    pairs: &mut impl VariableWriter,
    config: &config::Upstream,
    request: &Request,
    framing: RequestBodyFraming,
    server: &str,
) {
    // Not overridable by `params`: it decides where the body ends.
    if let RequestBodyFraming::Length(length) = framing {
        pairs.push_variable(CONTENT_LENGTH, TextBuffer::new().format_number(length));
    }
    let params = &config.params;
    let mut rest = ParamsFilter { pairs, params };
    let host = visible_host(config, request, server);
    add_request_variables(&mut rest, request);
    add_script_variables(&mut rest, config, request);
    add_address_variables(&mut rest, request, host);
    add_header_variables(&mut rest, config, request, host);
    for (name, value) in params {
        if name.as_bytes() != CONTENT_LENGTH {
            pairs.push_variable(name.as_bytes(), value.as_bytes());
        }
    }
}

/// Writes AJP's packet of `request`; the container decodes the path and finds the servlet.
///
/// # Errors
/// The request does not fit into a packet, or holds a zero byte.
pub(crate) fn encode_ajp_request(
    out: &mut Vec<u8>,
    config: &config::Upstream,
    request: &Request,
    framing: RequestBodyFraming,
    server: &str,
) -> Result<(), EncodeError> {
    let head = &*request.head;
    let host = visible_host(config, request, server);
    let (mut address, mut port, mut length) =
        (TextBuffer::new(), TextBuffer::new(), TextBuffer::new());
    let forwarded = request.forwarded.as_deref();
    let (server_name, server_port) =
        cgi::server_name_and_port(host, &request.listener, forwarded, &mut port);
    let (remote_addr, remote_port) = match request.client_address() {
        PeerAddress::Tcp(client) => (
            address.format_address(client.ip()),
            Some(client.port()).filter(|&port| port > 0),
        ),
        PeerAddress::Unix => (&b""[..], None),
    };
    let target = head.target_path_query();
    let packet = AjpRequest {
        method: head.method_str(),
        protocol: head.version().as_str(),
        path: target.split_once('?').map_or(target, |(path, _)| path),
        query: request.query(),
        remote_addr: ascii_text(remote_addr),
        remote_port,
        server_name: ascii_text(server_name),
        server_port: ascii_text(server_port).parse().unwrap_or(0),
        is_tls: request.scheme() == "https",
        secret: config.secret.as_ref().map(config::Secret::expose),
    };
    // Always written: without it, containers expect a body where there is none.
    let length = length.format_number(match framing {
        RequestBodyFraming::Length(length) => length,
        RequestBodyFraming::None | RequestBodyFraming::Chunked => 0,
    });
    let mut forwarding_fields = Vec::with_capacity(FORWARDED_FIELDS_CAPACITY);
    request_head::encode_forwarding_fields(&mut forwarding_fields, config, request);
    request_head::encode_client_certificate(&mut forwarding_fields, request);
    let named = request_head::head_with_connection_options(head);
    let fields = (head.fields()).filter(|(name, _)| match classify_field(name) {
        // A servlet container sees names unchanged.
        FieldClass::Underscored => request_head::forwards_underscored_field(request, named, name),
        _ => is_forwarded(request, named, name),
    });
    let fields = std::iter::once(("Host", host.as_bytes()))
        .chain(fields)
        .chain(parse_field_lines(&forwarding_fields))
        .chain(std::iter::once(("Content-Length", length)));
    encode_forward_request(out, &packet, fields)
}

/// Writes the request line and the gateway's own variables.
fn add_request_variables(pairs: &mut impl VariableWriter, request: &Request) {
    let head = &*request.head;
    let scheme = request.scheme();
    let query = request.query().unwrap_or("");
    // With the stripped prefix: together with `SCRIPT_NAME` it is the client's.
    let target = match request.mount.is_root() {
        true => head.target_path_query(),
        false => &format!(
            "{}{}",
            request.mount.encoded_path(),
            head.target_path_query()
        ),
    };
    for (name, value) in [
        ("REQUEST_METHOD", head.method_str()),
        ("REQUEST_URI", target),
        ("QUERY_STRING", query),
        ("SERVER_PROTOCOL", head.version().as_str()),
        ("REQUEST_SCHEME", scheme),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_SOFTWARE", "penstock"),
        // PHP may be built to refuse requests without it.
        ("REDIRECT_STATUS", "200"),
    ] {
        pairs.push_variable(name.as_bytes(), value.as_bytes());
    }
    // Absent otherwise: some programs only test whether it exists.
    if scheme == "https" {
        pairs.push_variable(b"HTTPS", b"on");
    }
    if let Some(tls) = request.client_state.tls() {
        tls.for_each_variable(|name, value| pairs.push_variable(name, value));
    }
    if let Some(user) = request.client_state.user() {
        pairs.push_variable(b"REMOTE_USER", user.as_bytes());
    }
}

/// The host that applications see: the client's, even if a proxy in front asked for another.
fn visible_host<'r>(
    config: &'r config::Upstream,
    request: &'r Request,
    server: &'r str,
) -> &'r str {
    match &config.host {
        config::HostHeader::Client => request.host(),
        _ => request_head::host_header(config, &request.head, server),
    }
}

fn add_script_variables(
    pairs: &mut impl VariableWriter,
    config: &config::Upstream,
    request: &Request,
) {
    let path = request.path();
    let root = config.root.as_ref().map(|root| {
        let root = root.as_os_str().as_bytes();
        root.strip_suffix(b"/").unwrap_or(root)
    });
    let script = match root {
        Some(_) => ScriptPath::split(path, config.index.as_deref()),
        // Without a script directory the application handles the path itself.
        None => ScriptPath::without_script(path),
    };
    pairs.push_variable(b"DOCUMENT_URI", path);
    match request.mount.is_root() {
        true => pairs.push_variable(b"SCRIPT_NAME", &script.name),
        false => {
            let mounted = [request.mount.path().as_bytes(), &script.name].concat();
            pairs.push_variable(b"SCRIPT_NAME", &mounted);
        }
    }
    // PHP takes an empty one for the path of the script itself.
    if !script.path_info.is_empty() {
        pairs.push_variable(b"PATH_INFO", script.path_info);
    }
    let Some(root) = root else { return };
    pairs.push_variable(b"DOCUMENT_ROOT", root);
    if !script.name.is_empty() {
        pairs.push_variable(b"SCRIPT_FILENAME", &[root, &script.name].concat());
    }
}

/// Writes both ends of the client's connection.
fn add_address_variables(pairs: &mut impl VariableWriter, request: &Request, host: &str) {
    let mut number_buffer = TextBuffer::new();
    let forwarded = request.forwarded.as_deref();
    let (name, port) =
        cgi::server_name_and_port(host, &request.listener, forwarded, &mut number_buffer);
    pairs.push_variable(b"SERVER_NAME", name);
    pairs.push_variable(b"SERVER_PORT", port);
    // The address is unknown for a listener on all addresses.
    let listens = request.listener.address.map(|address| address.ip());
    if let Some(address) = listens.filter(|address| !address.is_unspecified()) {
        add_address(pairs, b"SERVER_ADDR", address);
    }
    match request.client_address() {
        PeerAddress::Tcp(client) => {
            add_address(pairs, b"REMOTE_ADDR", client.ip());
            if client.port() > 0 {
                pairs.push_variable(
                    b"REMOTE_PORT",
                    number_buffer.format_number(u64::from(client.port())),
                );
            }
        }
        // RFC 3875 §4.1.8 requires it in every request.
        PeerAddress::Unix => pairs.push_variable(b"REMOTE_ADDR", b""),
    }
}

fn add_address(pairs: &mut impl VariableWriter, name: &[u8], address: IpAddr) {
    pairs.push_variable(
        name,
        TextBuffer::new().format_address(address.to_canonical()),
    );
}

fn add_header_variables(
    pairs: &mut impl VariableWriter,
    config: &config::Upstream,
    request: &Request,
    host: &str,
) {
    let head = &*request.head;
    if !host.is_empty() {
        pairs.push_variable(b"HTTP_HOST", host.as_bytes());
    }
    let named = request_head::head_with_connection_options(head);
    let mut pair = |name: &[u8], value: &[u8]| pairs.push_variable(name, value);
    cgi::for_each_variable(head, |name| is_forwarded(request, named, name), &mut pair);
    let mut forwarding_fields = Vec::with_capacity(FORWARDED_FIELDS_CAPACITY);
    request_head::encode_forwarding_fields(&mut forwarding_fields, config, request);
    for (name, value) in parse_field_lines(&forwarding_fields) {
        cgi::emit_variable(name, value, &mut pair);
    }
    request.for_each_correlation_field(|name, value| cgi::emit_variable(name, value, &mut pair));
}

/// Whether a field passes unchanged: set by a rule, or a client's field that may pass. Forwarding
/// fields are written anew.
fn is_forwarded(request: &Request, named: Option<&RequestHead>, name: &str) -> bool {
    match classify_field(name).is_passed_to_app() && request.passes_forwarding_field(name) {
        true => !request_head::is_hop_by_hop(request, named, name.as_bytes()),
        false => request.trusted_headers.covers(name),
    }
}

/// The fields in the lines that `request_head` wrote.
fn parse_field_lines(lines: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r")?;
        let colon = memchr::memchr(b':', line)?;
        Some((ascii_text(&line[..colon]), line[colon + 1..].trim_ascii()))
    })
}

/// Names, addresses and numbers are ASCII; anything else becomes empty.
fn ascii_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Skips variables that the configuration overrides.
struct ParamsFilter<'a, P> {
    pairs: &'a mut P,
    params: &'a BTreeMap<String, String>,
}

impl<P: VariableWriter> VariableWriter for ParamsFilter<'_, P> {
    fn push_variable(&mut self, name: &[u8], value: &[u8]) {
        // A duplicate variable is an error in SCGI, and ambiguous elsewhere.
        if self.params.is_empty() || !self.params.contains_key(ascii_text(name)) {
            self.pairs.push_variable(name, value);
        }
    }
}

const CONTENT_LENGTH: &[u8] = b"CONTENT_LENGTH";
/// Capacity for `request_head`'s fields in most requests.
const FORWARDED_FIELDS_CAPACITY: usize = 256;

#[cfg(test)]
mod tests;
