//! The opening of a WebSocket: the client's handshake, and the back end's response to it.

use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::grip::{is_grip_field, remove_grip_fields};
use penstock_exchange::{Body, Fault, FaultKind, HandlerProgress, Reply, Response};
use penstock_http::websocket::{HandshakeCheck, check_handshake, offered_subprotocols};
use penstock_http::{FieldBlock, Status};

use super::backend_client::{
    ConnectionMeta, WebSocketBackendClient, WebSocketEventsReply, WebSocketEventsResponse,
    bad_events_fault,
};
use super::session::WebSocketOverHttpSession;
use super::websocket_events::SocketEvent;
use crate::field_lists::starts_with_ignore_case;
use crate::handler::GripShared;
use crate::handler::original_request::OriginalRequest;

/// What becomes of a request that asks for an upgrade; none if it asks for no WebSocket.
pub(crate) fn handle_upgrade(
    shared: &Arc<GripShared>,
    origin: &OriginalRequest,
) -> Option<HandlerProgress> {
    match check_handshake(&origin.head) {
        HandshakeCheck::NotWebSocket => None,
        HandshakeCheck::Invalid(why) => {
            let fault = Fault::new(FaultKind::BadRequest, why);
            Some(HandlerProgress::Ready(Err(fault)))
        }
        HandshakeCheck::UnsupportedVersion => {
            Some(HandlerProgress::Ready(Ok(version_required().into())))
        }
        HandshakeCheck::Valid { .. } if origin.is_cross_origin(&shared.allowed_origins) => {
            let cause = "a WebSocket of a page of another origin (grip.origins)";
            let fault = Fault::new(FaultKind::Forbidden, cause);
            Some(HandlerProgress::Pending(Box::pin(std::future::ready(Err(
                fault,
            )))))
        }
        HandshakeCheck::Valid { accept } => {
            let dialog = WebSocketBackendClient::new(Arc::clone(shared), Arc::new(origin.clone()));
            Some(HandlerProgress::Pending(Box::pin(open_websocket(
                dialog, accept,
            ))))
        }
    }
}

fn version_required() -> Response {
    let text = "This server speaks version 13 of the WebSocket protocol.\n";
    let body = Bytes::from_static(text.as_bytes());
    let mut response =
        Response::with_text(Status::UPGRADE_REQUIRED, "text/plain; charset=utf-8", body);
    response.fields.push_static("Sec-WebSocket-Version", "13");
    response
}

async fn open_websocket(dialog: WebSocketBackendClient, accept: String) -> Result<Reply, Fault> {
    let meta = ConnectionMeta::new();
    match dialog.send_events(&meta, &[SocketEvent::Open]).await? {
        // The back end refuses with its own response.
        WebSocketEventsReply::Refusal(mut response) => {
            remove_grip_fields(&mut response.fields);
            Ok(Reply::Response(response))
        }
        WebSocketEventsReply::Events(events_response) => {
            if events_response.events.first() != Some(&SocketEvent::Open) {
                return Err(bad_events_fault("it does not begin with OPEN".to_owned()));
            }
            accept_websocket(dialog, *events_response, &accept).map(Reply::from)
        }
    }
}

/// The 101, with the connection's new owner.
fn accept_websocket(
    dialog: WebSocketBackendClient,
    events_response: WebSocketEventsResponse,
    accept: &str,
) -> Result<Response, Fault> {
    let mut fields = FieldBlock::with_capacity(256);
    fields.push_static("Connection", "Upgrade");
    fields.push_static("Upgrade", "websocket");
    let pushed = fields.push("Sec-WebSocket-Accept", accept.as_bytes());
    debug_assert!(pushed.is_ok(), "it is base64");
    if let Some(chosen) = events_response.fields.get("sec-websocket-protocol") {
        if !offered_subprotocols(&dialog.original_request.head).any(|name| name == chosen) {
            return Err(bad_events_fault(
                "a subprotocol that the client did not offer".to_owned(),
            ));
        }
        let pushed = fields.push("Sec-WebSocket-Protocol", chosen);
        debug_assert!(pushed.is_ok(), "it was a field before");
    }
    for (name, value) in events_response
        .fields
        .iter()
        .filter(|(name, _)| is_client_header(name))
    {
        let pushed = fields.push(name, value);
        debug_assert!(pushed.is_ok(), "it was a field before");
    }
    let timing = events_response.timing.clone();
    let client = dialog
        .original_request
        .environment
        .client_state
        .counted_address_prefix();
    let listener = dialog
        .shared
        .hub
        .create_message_listener(client)
        .map_err(|refused| {
            let fault = Fault::new(FaultKind::Overloaded, refused.to_string());
            fault.with_timing(timing.clone())
        })?;
    let session = WebSocketOverHttpSession::new(dialog, listener, events_response);
    let body = Body::Takeover(Box::new(session));
    let mut response = Response::new(Status::SWITCHING_PROTOCOLS, body);
    response.fields = fields;
    response.timing = timing;
    Ok(response)
}

/// Whether a field of the first answer is for the client: cookies, mostly.
fn is_client_header(name: &str) -> bool {
    let starts = ["sec-websocket-", "set-meta-", "content-", "keep-alive"];
    let names = ["connection", "upgrade", "transfer-encoding", "trailer"];
    let is_of_dialog = starts
        .iter()
        .any(|start| starts_with_ignore_case(name, start))
        || names.iter().any(|own| name.eq_ignore_ascii_case(own));
    !is_of_dialog && !is_grip_field(name.as_bytes())
}
