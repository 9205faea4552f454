//! What may come in on the admin listener: nothing that a foreign web page could have sent.
//!
//! The admin API has no password; it trusts whoever reaches its socket. A browser on the same
//! machine reaches it on behalf of any page it shows, so two things are refused: a name that a
//! stranger's DNS could have pointed here (rebinding), and a POST that another origin started.
//! Pure; asked by `api` for every request.

use std::net::{Ipv4Addr, Ipv6Addr};

use penstock_http::RequestHead;

/// Whether the request names this server in a way that no DNS answer could have brought about:
/// by address or as `localhost`.
///
/// A request without any host is HTTP/1.0 (RFC 9112 §3.2) and comes from no browser.
pub(crate) fn is_host_trusted(head: &RequestHead) -> bool {
    let authority = head.host();
    if authority.is_empty() {
        return true;
    }
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(ip, _)| ip.parse::<Ipv6Addr>().is_ok());
    }
    let host = authority.split_once(':').map_or(authority, |(host, _)| host);
    host.eq_ignore_ascii_case("localhost") || host.parse::<Ipv4Addr>().is_ok()
}

/// Whether no other origin started the request: what the browser says of it (`Sec-Fetch-Site`,
/// `Origin`; Fetch standard §3.1) names this very origin, or there is no browser.
pub(crate) fn is_same_origin(head: &RequestHead) -> bool {
    let site = |value: &[u8]| matches!(value, b"same-origin" | b"none");
    let origin = |value: &[u8]| {
        let authority = value.strip_prefix(b"http://").or_else(|| value.strip_prefix(b"https://"));
        authority.is_some_and(|a| a.eq_ignore_ascii_case(head.host().as_bytes()))
    };
    head.field_all("sec-fetch-site").all(site) && head.field_all("origin").all(origin)
}
