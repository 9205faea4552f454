//! The server that a request belongs to: by the hash of its key, or by a sticky cookie.
//!
//! `proxied_request` asks before it claims a slot, `response` sets the cookie.

use penstock_config as config;
use penstock_exchange::cgi::TextBuffer;
use penstock_exchange::{Request, Response};
use penstock_sys::net::PeerAddress;

use crate::balance::hash_key;

/// Sets the cookie of the server whose name has this hash, for a client without it.
pub(crate) fn set_sticky_cookie(
    config: &config::Upstream,
    request: &Request,
    name_hash: u64,
    response: &mut Response,
) {
    let Some(cookie) = &config.sticky else {
        return;
    };
    if sticky_name_hash(config, request) == Some(name_hash) {
        return;
    }
    let secure = match request.scheme() {
        "https" => "; Secure",
        _ => "",
    };
    let value = format!("{cookie}={name_hash:016x}; Path=/; HttpOnly; SameSite=Lax{secure}");
    // Name and number are valid in a field.
    let _ = response.fields.push("Set-Cookie", value.as_bytes());
}

/// The hash of the server's name in the client's cookie.
pub(crate) fn sticky_name_hash(config: &config::Upstream, request: &Request) -> Option<u64> {
    let value = request.head.cookie(config.sticky.as_deref()?)?;
    u64::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
}

/// The hash key of the request, if the balance is by hash.
pub(crate) fn balance_key(config: &config::Upstream, request: &Request) -> Option<u64> {
    let head = &request.head;
    Some(match config.hash_key.as_ref()? {
        config::HashKey::Path => hash_key(request.path()),
        config::HashKey::Uri => hash_key(head.path_query_bytes()),
        config::HashKey::ClientIp => match request.client_address() {
            PeerAddress::Tcp(client) => hash_key(TextBuffer::new().format_address(client.ip())),
            PeerAddress::Unix => hash_key(b""),
        },
        config::HashKey::Header(name) => hash_key(head.field(name)?),
        config::HashKey::Cookie(name) => hash_key(request.head.cookie(name)?),
    })
}
