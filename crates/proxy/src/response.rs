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
use penstock_exchange::{Body, FaultKind, Reply, Response};
use penstock_http::Method;

use crate::affinity;
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
    if let Some(lease) = &proxied.lease {
        let (config, name_hash) = (&proxied.shared.config, lease.slot.name_hash);
        affinity::set_sticky_cookie(config, &proxied.request, name_hash, &mut response);
    }
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
        response.max_rate = accel.body_rate();
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
