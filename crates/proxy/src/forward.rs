//! The head that an HTTP server gets, written anew from the parsed one.
//!
//! Called by `codec` once a try. Method, target, host and fields are re-encoded: nothing that the
//! client sent is copied as a line. Fields of the connection stay here, fields that only a front end
//! may set are dropped, and what is said of the client is believed only from trusted proxies. What must
//! stay true: framing is decided here alone, and one header gives one field, whatever its case.

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
    let field = |out: &mut Vec<u8>, name: &str, value: &[u8]| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    };
    out.extend_from_slice(head.method_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(head.target_path_query().as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    field(out, "Host", host(config, head, server).as_bytes());
    let named = connection_names(head);
    let mut has_words = false;
    for (name, value) in head.fields() {
        match fate(name) {
            Fate::Pass if !is_named(named, name) => field(out, name, value),
            Fate::FromProxy | Fate::Via => has_words = true,
            _ => {}
        }
    }
    // Whose words they are matters only where there are some.
    let trusted = has_words && request.is_from_proxy();
    let upgrade = upgrade(head, framing);
    if let Some(protocol) = upgrade {
        field(out, "Connection", b"Upgrade");
        field(out, "Upgrade", protocol);
    } else if !keeps_connections(config) {
        field(out, "Connection", b"close");
    }
    tell_of_request(out, config.forwarded, request, trusted);
    via(out, head, trusted);
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
    form: config::Forwarded,
    request: &Request,
    trusted: bool,
) {
    tell_of_client(out, form, request, trusted);
    let since = clock::now().saturating_duration_since(request.arrived);
    let arrived = clock::wall().saturating_sub(since);
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
    let is_usual = |value: &[u8]| {
        [&b"keep-alive"[..], b"close", b"upgrade", b""]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(value))
    };
    head.field_all("connection")
        .any(|value| !is_usual(value))
        .then_some(head)
}

/// Whether `Connection` names this field as one of the hop.
pub(crate) fn is_named(head: Option<&RequestHead>, name: &str) -> bool {
    head.is_some_and(|head| {
        head.field_all("connection")
            .flat_map(|value| value.split(|&byte| byte == b','))
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// The protocol that a client may ask a server for: not HTTP/2, which would hide requests from us, and
/// not behind a body.
fn upgrade(head: &RequestHead, framing: Framing) -> Option<&[u8]> {
    if !head.is_upgrade() || framing != Framing::None {
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
    (!is_http).then_some(protocol)
}

fn tell_of_client(out: &mut Vec<u8>, form: config::Forwarded, request: &Request, trusted: bool) {
    use config::Forwarded::{Both, Standard, XForwarded};
    let head = &*request.head;
    if form == XForwarded && !trusted {
        // The common case: nobody has said anything before us.
        out.extend_from_slice(b"X-Forwarded-For: ");
        push_peer(out, request.peer);
        out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
        out.extend_from_slice(request.listener.scheme.as_bytes());
        out.extend_from_slice(b"\r\nX-Forwarded-Host: ");
        out.extend_from_slice(head.host().as_bytes());
        out.extend_from_slice(b"\r\n");
        return;
    }
    let earlier = |name: &'static str| {
        let values = trusted.then(|| head.field_all(name));
        values
            .into_iter()
            .flatten()
            .filter(|value| !value.is_empty())
    };
    if matches!(form, XForwarded | Both) {
        out.extend_from_slice(b"X-Forwarded-For: ");
        for value in earlier("x-forwarded-for") {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
        push_peer(out, request.peer);
        out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
        let scheme = earlier("x-forwarded-proto").next();
        out.extend_from_slice(scheme.unwrap_or(request.listener.scheme.as_bytes()));
        out.extend_from_slice(b"\r\nX-Forwarded-Host: ");
        let host = earlier("x-forwarded-host").next();
        out.extend_from_slice(host.unwrap_or_else(|| head.host().as_bytes()));
        out.extend_from_slice(b"\r\n");
        for name in OTHERS_OF_PROXIES {
            let mut values = earlier(name);
            let Some(first) = values.next() else { continue };
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(first);
            for value in values {
                out.extend_from_slice(b", ");
                out.extend_from_slice(value);
            }
            out.extend_from_slice(b"\r\n");
        }
    }
    if matches!(form, Standard | Both) {
        // RFC 7239 §4: each proxy adds an element at the end.
        out.extend_from_slice(b"Forwarded: ");
        for value in earlier("forwarded") {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(b"for=");
        push_node(out, request.peer);
        out.extend_from_slice(b";proto=");
        out.extend_from_slice(request.listener.scheme.as_bytes());
        let host = head.host();
        if !host.is_empty() && !host.contains(['"', '\\']) {
            write(out, format_args!(";host=\"{host}\""));
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// What a trusted proxy says besides, and nobody here knows.
const OTHERS_OF_PROXIES: [&str; 5] = [
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
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

fn push_peer(out: &mut Vec<u8>, peer: PeerAddress) {
    match peer {
        PeerAddress::Tcp(address) => match address.ip().to_canonical() {
            ip @ IpAddr::V4(_) => out.extend_from_slice(Digits::new().address(ip)),
            IpAddr::V6(v6) => write(out, format_args!("{v6}")),
        },
        PeerAddress::Unix => out.extend_from_slice(b"unix:"),
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
