//! The requests of one WebSocket to its back end, and their responses.
//!
//! Used by `handshake` for the first one and by `session` for all others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Fault, FaultKind, Reply, Response};
use penstock_http::{FieldBlock, Status, is_media_type};
use penstock_runtime::clock;

use super::websocket_events::{EVENTS_MEDIA_TYPE, SocketEvent, decode_events, encode_event};
use crate::field_lists::{parse_elements, starts_with_ignore_case};
use crate::handler::body_reader::{self, BodyLimit};
use crate::handler::original_request::OriginalRequest;
use crate::handler::{GripShared, random_name};

/// The common part of all requests of a WebSocket.
#[derive(Debug)]
pub(super) struct WebSocketBackendClient {
    pub(super) shared: Arc<GripShared>,
    pub(super) original_request: Arc<OriginalRequest>,
    /// The back end's name for the connection.
    connection_id: String,
}

/// Metadata (`Set-Meta-*`) that a back end attached to the connection, sent with each request.
pub(super) type ConnectionMeta = BTreeMap<Box<str>, Box<str>>;

/// A response with events.
#[derive(Debug)]
pub(super) struct WebSocketEventsResponse {
    pub(super) fields: FieldBlock,
    pub(super) events: Vec<SocketEvent>,
    /// The back end wants a request at least this often, even without events.
    pub(super) poll_interval: Option<Duration>,
    /// Metadata to set; `None` removes an entry.
    pub(super) set_meta: Vec<(Box<str>, Option<Box<str>>)>,
    /// The prefix of a message for the client, if the `grip` extension is agreed.
    pub(super) message_prefix: Option<Box<str>>,
    pub(super) timing: penstock_exchange::RequestTiming,
}

#[derive(Debug)]
pub(super) enum WebSocketEventsReply {
    Events(Box<WebSocketEventsResponse>),
    /// Any other response.
    Refusal(Box<Response>),
}

/// Metadata entries of one WebSocket.
pub(super) const MAX_META_ENTRIES: usize = 64;

/// Bytes of a back end's events at once.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Attempts for a request of which the back end got nothing.
const MAX_ATTEMPTS: u32 = 5;

/// The shortest interval between requests without events.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl WebSocketBackendClient {
    pub(super) fn new(shared: Arc<GripShared>, origin: Arc<OriginalRequest>) -> Self {
        Self {
            shared,
            original_request: origin,
            connection_id: random_name(),
        }
    }

    /// Sends events and waits for the response.
    pub(super) async fn send_events(
        &self,
        meta: &ConnectionMeta,
        events: &[SocketEvent],
    ) -> Result<WebSocketEventsReply, Fault> {
        let mut attempts = 1;
        loop {
            let result = self.send_once(meta, events).await;
            match result {
                Err(fault) if attempts < MAX_ATTEMPTS && is_unsent_fault(fault.kind) => {
                    clock::sleep(Duration::from_secs(u64::from(attempts))).await;
                    attempts += 1;
                }
                Err(fault) => return Err(fault),
                Ok(response) => return read_reply(response).await,
            }
        }
    }

    async fn send_once(
        &self,
        meta: &ConnectionMeta,
        events: &[SocketEvent],
    ) -> Result<Response, Fault> {
        let mut body = Vec::new();
        events
            .iter()
            .for_each(|event| encode_event(&mut body, event));
        let meta: Vec<_> = meta
            .iter()
            .map(|(name, value)| (format!("Meta-{name}"), value))
            .collect();
        let mut fields: Vec<(&str, &[u8])> = vec![
            ("Content-Type", EVENTS_MEDIA_TYPE.as_bytes()),
            ("Accept", EVENTS_MEDIA_TYPE.as_bytes()),
            ("Connection-Id", self.connection_id.as_bytes()),
        ];
        if events.contains(&SocketEvent::Open) {
            fields.push(("Sec-WebSocket-Extensions", b"grip"));
        }
        fields.extend(meta.iter().map(|(name, value)| (&**name, value.as_bytes())));
        let request = self
            .original_request
            .build_events_request(&self.shared, &fields, body)?;
        match self.shared.backend.handle(request).wait_for_reply().await? {
            Reply::Response(response) => Ok(*response),
            Reply::Pass(_) => Err(Fault::new(
                FaultKind::NotFound,
                "nobody takes a WebSocket here",
            )),
            Reply::Redirect(_) => Err(bad_events_fault("a redirect inside".to_owned())),
        }
    }
}

/// Whether a request failed before the back end had any of it.
fn is_unsent_fault(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::QueueFull
            | FaultKind::QueueTimeout
            | FaultKind::Unavailable
            | FaultKind::ConnectFailed
            | FaultKind::Overloaded
    )
}

async fn read_reply(response: Response) -> Result<WebSocketEventsReply, Fault> {
    let media_type = response.fields.get("content-type").unwrap_or_default();
    if response.status != Status::OK || !is_media_type(media_type, EVENTS_MEDIA_TYPE) {
        return Ok(WebSocketEventsReply::Refusal(Box::new(response)));
    }
    let Response {
        fields,
        body,
        timing,
        ..
    } = response;
    let bound = BodyLimit {
        body_name: "the answer with a WebSocket's events",
        max_bytes: MAX_RESPONSE_BYTES,
        limit_name: "fixed",
    };
    let body = body_reader::read_whole_body(body, bound).await?;
    let events = decode_events(&body).map_err(|error| bad_events_fault(error.to_string()))?;
    if fields.contains("content-bytes-accepted") {
        // The rest would have to be sent again; no library for back ends requests that.
        return Err(bad_events_fault(
            "Content-Bytes-Accepted is not supported".to_owned(),
        ));
    }
    let again = fields.get("keep-alive-interval").map(|value| {
        let seconds = penstock_http::parse_content_length(value);
        seconds.ok_or_else(|| bad_events_fault("Keep-Alive-Interval is no number".to_owned()))
    });
    let again = again.transpose()?.filter(|seconds| *seconds > 0);
    Ok(WebSocketEventsReply::Events(Box::new(
        WebSocketEventsResponse {
            events,
            poll_interval: again.map(|seconds| Duration::from_secs(seconds).max(MIN_POLL_INTERVAL)),
            set_meta: parse_set_meta(&fields),
            message_prefix: parse_message_prefix(&fields),
            fields,
            timing,
        },
    )))
}

fn parse_set_meta(fields: &FieldBlock) -> Vec<(Box<str>, Option<Box<str>>)> {
    const START: &str = "set-meta-";
    let all = fields.iter();
    let named =
        all.filter(|(name, _)| name.len() > START.len() && starts_with_ignore_case(name, START));
    let read = named.map(|(name, value)| {
        let value = String::from_utf8_lossy(value);
        let value = (!value.is_empty()).then(|| value.into());
        (name[START.len()..].to_ascii_lowercase().into(), value)
    });
    read.collect()
}

/// `grip`, with `message-prefix` if it is not the usual one.
fn parse_message_prefix(fields: &FieldBlock) -> Option<Box<str>> {
    const USUAL: &str = "m:";
    let value = fields.get("sec-websocket-extensions")?;
    let elements = parse_elements(value)?;
    let grip = elements.iter().find(|element| element.value == "grip")?;
    Some(grip.parameter("message-prefix").unwrap_or(USUAL).into())
}

pub(super) fn bad_events_fault(cause: String) -> Fault {
    let cause = format!("a WebSocket's back end answers with what is no answer: {cause}");
    Fault::new(FaultKind::BackendProtocolError, cause)
}
