//! The opening handshake of a WebSocket, from the request to the 101.
//!
//! `handler` reads it before it encodes a request; the driver answers it when the worker accepts.
//! The rules are in `http::websocket`.

use bytes::Bytes;
use penstock_exchange::{Body, Fault, FaultKind, Reply, RequestTiming, Response, Takeover};
use penstock_http::websocket::{
    DeflateParams, HandshakeCheck, check_handshake, negotiate_deflate, offered_subprotocols,
};
use penstock_http::{FieldBlock, RequestHead, Status};
use penstock_wire::AcceptHeadView;

use crate::reply;

/// The handshake of one request, kept until it is answered.
#[derive(Debug)]
pub(crate) struct Handshake {
    accept: String,
    offered_subprotocols: Vec<String>,
    /// How messages may be compressed, where client and application want it.
    pub(crate) deflate: Option<DeflateParams>,
}

/// Reads the opening handshake of a WebSocket; `None` when the request asks for none.
///
/// # Errors
/// The response to one that breaks the rules of the handshake (RFC 6455 §4.2.2).
pub(crate) fn read_handshake(
    head: &RequestHead,
    compresses: bool,
) -> Result<Option<Box<Handshake>>, Box<Result<Reply, Fault>>> {
    if !head.is_upgrade() {
        return Ok(None);
    }
    match check_handshake(head) {
        HandshakeCheck::NotWebSocket => Ok(None),
        HandshakeCheck::Valid { accept } => {
            let names =
                offered_subprotocols(head).map(|name| String::from_utf8_lossy(name).into_owned());
            let offered = names.collect();
            Ok(Some(Box::new(Handshake {
                accept,
                offered_subprotocols: offered,
                deflate: compresses.then(|| negotiate_deflate(head)).flatten(),
            })))
        }
        HandshakeCheck::Invalid(why) => Err(Box::new(Err(Fault::new(FaultKind::BadRequest, why)))),
        HandshakeCheck::UnsupportedVersion => Err(Box::new(Ok(version_required().into()))),
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

/// Builds the 101; `websocket_session` then owns the connection.
///
/// # Errors
/// When the application's fields cannot be sent, or it chose a subprotocol that was not offered:
/// the client would have to fail such a connection (RFC 6455 §4.1).
pub(crate) fn build_accept_response(
    handshake: &Handshake,
    parts: &AcceptHeadView<'_>,
    session: Box<dyn Takeover>,
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
    for (name, value) in parts.fields {
        let name = std::str::from_utf8(name).unwrap_or_default();
        if pushed.is_ok() && reply::is_sent_to_client(name.as_bytes()) && !is_handshake_header(name)
        {
            pushed = fields.push(name, value).map_err(|error| (name, error));
        }
    }
    if let Err((name, error)) = pushed {
        let cause = format!("response field `{name}`: {error}");
        return Err(Fault::new(FaultKind::AppProtocolError, cause).with_timing(timing));
    }
    let body = Body::Takeover(session);
    let mut response = Response::new(Status::SWITCHING_PROTOCOLS, body);
    response.fields = fields;
    response.timing = timing;
    Ok(response)
}

fn is_handshake_header(name: &str) -> bool {
    let start = name.get(..14);
    start.is_some_and(|start| start.eq_ignore_ascii_case("sec-websocket-"))
}
