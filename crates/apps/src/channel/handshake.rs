//! A WebSocket's opening, from the request to the 101: who asks for one, and what the client is told when
//! the application takes it.
//!
//! `handler` asks before it encodes a request, the driver answers when ACCEPT has come. The rules are
//! `http::websocket`'s. Only ASGI applications have WebSockets: for all others an upgrade is not agreed,
//! and the request is an ordinary one.

use bytes::Bytes;
use penstock_exchange::grip::is_grip_field;
use penstock_exchange::{Body, Fault, FaultKind, Reply, RequestTiming, Response};
use penstock_http::websocket::{
    DeflateParams, HandshakeRequest, check_handshake, negotiate_deflate, subprotocols,
};
use penstock_http::{FieldBlock, RequestHead, Status};
use penstock_wire::AcceptHeadView;

use super::RequestEncoding;
use super::session::AcceptedWebSocket;
use crate::app::{AppShared, WorkerModel};
use crate::reply;

/// What a request for a WebSocket needs until it is answered.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// The value of `Sec-WebSocket-Accept`.
    accept: String,
    /// The subprotocols that the client offers.
    offered_subprotocols: Vec<String>,
    /// How messages may be compressed, where client and application want it.
    pub(super) deflate: Option<DeflateParams>,
}

/// Whether a request asks for a WebSocket that its application may take.
///
/// # Errors
/// The answer to one that breaks the rules of the handshake (RFC 6455 §4.2.2).
pub(crate) fn requested_handshake(
    shared: &AppShared,
    head: &RequestHead,
) -> Result<Option<Box<Handshake>>, Box<Result<Reply, Fault>>> {
    if shared.model.get() != Some(WorkerModel::Reactor(RequestEncoding::Scope))
        || !head.is_upgrade()
    {
        return Ok(None);
    }
    match check_handshake(head) {
        HandshakeRequest::NotWebSocket => Ok(None),
        HandshakeRequest::Valid { accept } => {
            let names = subprotocols(head).map(|name| String::from_utf8_lossy(name).into_owned());
            let offered = names.collect();
            let compresses = shared.websocket_compression;
            Ok(Some(Box::new(Handshake {
                accept,
                offered_subprotocols: offered,
                deflate: compresses.then(|| negotiate_deflate(head)).flatten(),
            })))
        }
        HandshakeRequest::Invalid(why) => {
            Err(Box::new(Err(Fault::new(FaultKind::BadRequest, why))))
        }
        HandshakeRequest::UnsupportedVersion => Err(Box::new(Ok(version_required().into()))),
    }
}

fn version_required() -> Response {
    let text = "This server speaks version 13 of the WebSocket protocol.\n";
    let body = Body::Bytes(Bytes::from_static(text.as_bytes()));
    let mut response = Response::new(Status::UPGRADE_REQUIRED, body);
    response.fields.push_static("Sec-WebSocket-Version", "13");
    response
        .fields
        .push_static("Content-Type", "text/plain; charset=utf-8");
    response
}

/// The 101, with the connection's new owner.
///
/// # Errors
/// When the application's fields cannot be sent, or it chose a subprotocol that was not offered: the
/// client would have to fail such a connection (RFC 6455 §4.1).
pub(super) fn accept_response(
    handshake: &Handshake,
    parts: &AcceptHeadView<'_>,
    agreed: AcceptedWebSocket,
    timing: RequestTiming,
) -> Result<Response, Fault> {
    let chosen = parts.subprotocol;
    if !chosen.is_empty()
        && !handshake
            .offered_subprotocols
            .iter()
            .any(|name| name == chosen)
    {
        let cause = format!("the subprotocol `{chosen}`, which the client did not offer");
        return Err(Fault::new(FaultKind::AppProtocolError, cause).with_timing(timing));
    }
    let mut fields = FieldBlock::with_capacity(256);
    fields.push_static("Connection", "Upgrade");
    fields.push_static("Upgrade", "websocket");
    let own = fields
        .push("Sec-WebSocket-Accept", handshake.accept.as_bytes())
        .and_then(|()| match parts.subprotocol {
            "" => Ok(()),
            chosen => fields.push("Sec-WebSocket-Protocol", chosen.as_bytes()),
        });
    if let Some(deflate) = handshake.deflate {
        // It is made of words of the protocol and a number.
        let _ = fields.push(
            "Sec-WebSocket-Extensions",
            deflate.extension_header().as_bytes(),
        );
    }
    let mut pushed = own.map_err(|error| ("Sec-WebSocket-Protocol", error));
    let mut is_for_hub = false;
    for (name, value) in parts.fields() {
        let name = std::str::from_utf8(name).unwrap_or_default();
        if pushed.is_ok() && reply::is_forwarded(name) && !is_handshake_header(name) {
            is_for_hub |= is_grip_field(name.as_bytes());
            pushed = fields.push(name, value).map_err(|error| (name, error));
        }
    }
    if let Err((name, error)) = pushed {
        let cause = format!("response field `{name}`: {error}");
        return Err(Fault::new(FaultKind::AppProtocolError, cause).with_timing(timing));
    }
    let body = Body::Takeover(Box::new(agreed));
    let mut response = Response::new(Status::SWITCHING_PROTOCOLS, body);
    response.fields = fields;
    response.timing = timing;
    response.has_grip = is_for_hub;
    Ok(response)
}

fn is_handshake_header(name: &str) -> bool {
    let start = name.get(..14);
    start.is_some_and(|start| start.eq_ignore_ascii_case("sec-websocket-"))
}
