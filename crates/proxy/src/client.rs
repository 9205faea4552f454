//! Who the client of a request is, as far as that is to be believed. Pure.

use penstock_exchange::Request;
use penstock_sys::net::PeerAddress;

/// The client's address: the peer's, or what trusted proxies say of theirs (the first from the right
/// in `X-Forwarded-For` that is not itself trusted).
pub(crate) fn client_address(request: &Request) -> String {
    let peer = match request.peer {
        PeerAddress::Tcp(address) => address.ip().to_canonical().to_string(),
        PeerAddress::Unix => String::new(),
    };
    if !request.is_from_proxy() {
        return peer;
    }
    let mut told = Vec::new();
    for value in request.head.field_all("x-forwarded-for") {
        told.extend(value.split(|&byte| byte == b','));
    }
    let mut client = peer;
    for element in told.into_iter().rev() {
        let text = std::str::from_utf8(element.trim_ascii()).unwrap_or_default();
        let Ok(address) = text.parse::<std::net::IpAddr>() else {
            break;
        };
        client = address.to_canonical().to_string();
        if !request.trust.covers_ip(address) {
            break;
        }
    }
    client
}
