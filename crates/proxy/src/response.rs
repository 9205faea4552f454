//! Builds edge's reply from the beginning of a response. Called by `proxied_request` once the head
//! has arrived.
//!
//! A complete body goes with the reply and frees the slot; the rest of another goes through
//! `relay`. A switched protocol becomes a `tunnel`. Fields that address the front end are applied.
//!
//! # Invariants
//!
//! - The slot is released exactly once.

use std::time::Instant;

use bytes::Bytes;
use penstock_config as config;
use penstock_exchange::cgi::TextBuffer;
use penstock_exchange::{Body, FaultKind, Reply, Request, Response};
use penstock_http::Method;
use penstock_sys::net::PeerAddress;

use crate::balance::hash_key;
use crate::body_source::BodySource;
use crate::codec::ResponseEnd;
use crate::failure::{AttemptFailure, AttemptStage};
use crate::location_rewrite;
use crate::proxied_request::{ProxiedRequest, request_hash};
use crate::relay;
use crate::response_head::UpstreamResponseHead;
use crate::server_pool::AttemptOutcome;
use crate::tunnel::UpgradeTunnel;

/// The part of a response received so far.
#[derive(Debug, Default)]
pub(crate) struct PartialResponse {
    pub(crate) head: Option<UpstreamResponseHead>,
    pub(crate) is_upgraded: bool,
    pub(crate) end: Option<ResponseEnd>,
    pub(crate) body: Vec<u8>,
}

/// Builds the reply from the response in `proxied` and arranges for the rest of the body.
pub(crate) fn build_reply(
    proxied: &mut ProxiedRequest,
    now: Instant,
) -> Result<Reply, AttemptFailure> {
    let head =
        proxied.partial_response.head.take().ok_or_else(|| {
            AttemptFailure::local(FaultKind::Internal, "a response without its head")
        })?;
    let mut response = Box::new(Response::new(head.status, Body::Empty));
    response.fields = head.fields;
    response.created_at = Some(now);
    response.instructions = head.instructions;
    if head.has_location
        && let Some(server) = &proxied.timing.server
    {
        let requested = proxied.request.head.host();
        location_rewrite::rewrite_location_fields(&mut response.fields, server, requested);
    }
    proxied.timing.handler = Some((&proxied.shared.name).into());
    set_sticky_cookie(proxied, &mut response);
    if proxied.partial_response.is_upgraded {
        let (lease, exchange) = proxied.take_exchange()?;
        if !is_requested_upgrade(proxied, response.fields.get("upgrade")) {
            let request_hash = request_hash(&proxied.request);
            lease.finish_attempt(None, AttemptOutcome::Malformed { request_hash });
            let cause = "101 Switching Protocols to a protocol that was not requested";
            return Err(AttemptFailure::protocol_error(
                AttemptStage::ResponseStarted,
                cause,
            ));
        }
        response.body = Body::Takeover(Box::new(UpgradeTunnel { lease, exchange }));
        response.timing = std::mem::take(&mut proxied.timing);
        return Ok(Reply::Response(response));
    }
    let end = proxied.partial_response.end.take();
    if let Some(accel) = head.accel_fields
        && let Some(grant) = proxied.request.sendfile_grant.as_deref()
    {
        response.max_rate = accel.max_rate;
        match accel.internal_redirect(Some(grant), &response.fields, &proxied.timing) {
            Ok(None) => {}
            Ok(Some(redirect)) => {
                let (lease, exchange) = proxied.take_exchange()?;
                // The server's own body is not needed.
                let connection = end.and_then(|end| exchange.into_reusable_connection(&end));
                lease.finish_attempt(connection, AttemptOutcome::Success);
                return Ok(Reply::Redirect(Box::new(redirect)));
            }
            // It may not be followed.
            Err(cause) => {
                let (lease, _) = proxied.take_exchange()?;
                lease.finish_attempt(None, AttemptOutcome::Success);
                return Err(AttemptFailure::protocol_error(
                    AttemptStage::ResponseStarted,
                    cause,
                ));
            }
        }
    }
    let is_head = proxied.request.head.method() == Method::Head;
    let body = std::mem::take(&mut proxied.partial_response.body);
    match end {
        Some(end) if end.trailers.is_none() => {
            response.body = match body {
                _ if is_head => Body::Omitted(head.length),
                body if body.is_empty() => Body::Empty,
                body => Body::Bytes(Bytes::from(body)),
            };
            let (lease, exchange) = proxied.take_exchange()?;
            lease.finish_attempt_at(
                now,
                exchange.into_reusable_connection(&end),
                AttemptOutcome::Success,
            );
        }
        end => {
            let (lease, exchange) = proxied.take_exchange()?;
            let rest = relay::RemainingResponse {
                exchange,
                lease,
                body_source: std::mem::replace(&mut proxied.body_source, BodySource::Empty),
                end,
                is_unbuffered: head.is_unbuffered || !proxied.buffering.response,
                total_deadline: proxied.total_deadline(),
                client: proxied.request.client_state.counted_address_prefix(),
                request_hash: request_hash(&proxied.request),
            };
            response.body = match is_head || head.status.forbids_body() {
                true => {
                    relay::drain_body(rest);
                    Body::Omitted(head.length)
                }
                false => relay::start_relay(rest, body, head.length),
            };
        }
    }
    response.timing = std::mem::take(&mut proxied.timing);
    Ok(Reply::Response(response))
}

/// Whether the client asked for the protocol that the server switches to.
fn is_requested_upgrade(proxied: &ProxiedRequest, protocol: Option<&[u8]>) -> bool {
    let Some(protocol) = protocol else {
        return false;
    };
    let mut requested = (proxied.request.head.field_values("upgrade"))
        .flat_map(|value| value.split(|&byte| byte == b','));
    requested.any(|requested| requested.trim_ascii().eq_ignore_ascii_case(protocol))
}

/// Sets the cookie of its server for a client without the right one.
fn set_sticky_cookie(proxied: &ProxiedRequest, response: &mut Response) {
    let (Some(cookie), Some(lease)) = (&proxied.shared.config.sticky, &proxied.lease) else {
        return;
    };
    let name_hash = lease.slot.name_hash;
    if sticky_cookie_hash(proxied) == Some(name_hash) {
        return;
    }
    let secure = match proxied.request.scheme() {
        "https" => "; Secure",
        _ => "",
    };
    let value = format!("{cookie}={name_hash:016x}; Path=/; HttpOnly; SameSite=Lax{secure}");
    // Name and number are valid in a field.
    let _ = response.fields.push("Set-Cookie", value.as_bytes());
}

/// The hash of the server's name in the client's cookie.
pub(crate) fn sticky_cookie_hash(proxied: &ProxiedRequest) -> Option<u64> {
    let cookie = proxied.shared.config.sticky.as_deref()?;
    let value = cookie_value(&proxied.request, cookie)?;
    u64::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
}

/// The hash key of the request, if the balance is by hash.
pub(crate) fn balance_key(proxied: &ProxiedRequest) -> Option<u64> {
    let head = &proxied.request.head;
    Some(match proxied.shared.config.hash_key.as_ref()? {
        config::HashKey::Path => hash_key(proxied.request.path()),
        config::HashKey::Uri => hash_key(head.path_query_bytes()),
        config::HashKey::ClientIp => match proxied.request.client_address() {
            PeerAddress::Tcp(client) => hash_key(TextBuffer::new().format_address(client.ip())),
            PeerAddress::Unix => hash_key(b""),
        },
        config::HashKey::Header(name) => hash_key(head.field(name)?),
        config::HashKey::Cookie(name) => hash_key(cookie_value(&proxied.request, name)?),
    })
}

/// RFC 6265 §4.2.1: pairs between semicolons.
fn cookie_value<'r>(request: &'r Request, name: &str) -> Option<&'r [u8]> {
    request.head.field_values("cookie").find_map(|line| {
        line.split(|&byte| byte == b';').find_map(|pair| {
            let pair = pair.trim_ascii();
            let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(value)
        })
    })
}
