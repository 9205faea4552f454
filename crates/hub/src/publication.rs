//! A published message, with a form for each kind of subscriber.
//!
//! Made by `grip`, `mercure`, `cluster` and routes with `hub`; taken by [`crate::Hub::publish`]. A
//! subscriber gets nothing of a message without its form. `cluster` sends publications to other
//! servers in the form that serde gives them.

pub(crate) mod serial;

use std::sync::Arc;

use bytes::Bytes;
use penstock_http::{FieldBlock, Status};
use serde::{Deserialize, Serialize};

/// One message for one channel.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Publication {
    /// The key of the channel; serde leaves it out.
    #[serde(skip)]
    pub channel: Arc<str>,
    /// What the publisher calls it; none gets a number of the hub's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The id of the message before it, for subscribers that need both in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev_id: Option<Arc<str>>,
    /// Not to be held back until `prev_id` has come (`no-seq`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allows_any_order: bool,
    /// For held streams, as bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamAction>,
    /// For long polls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<LongPollAction>,
    /// For WebSockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub websocket: Option<WebSocketAction>,
    /// A server-sent event, encoded once by the hub with the message's id. Streams take it where
    /// `stream` is none: those of events as an event, others as its data and a line feed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<PublishedEvent>,
    /// What filters look at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub meta: Vec<(Box<str>, Box<str>)>,
}

impl Publication {
    /// The bytes of all its forms.
    #[must_use]
    pub fn size(&self) -> usize {
        let stream = match &self.stream {
            Some(StreamAction::Send(sent)) => sent.bytes.len(),
            Some(StreamAction::Notice(bytes)) => bytes.len(),
            _ => 0,
        };
        let response = match &self.response {
            Some(LongPollAction::Send(response)) => {
                response.body.bytes.len() + response.fields.as_bytes().len()
            }
            _ => 0,
        };
        let websocket = match &self.websocket {
            Some(WebSocketAction::Text(sent) | WebSocketAction::Binary(sent)) => sent.bytes.len(),
            Some(WebSocketAction::Ping(bytes) | WebSocketAction::Pong(bytes)) => bytes.len(),
            Some(WebSocketAction::Close { reason, .. }) => reason.len(),
            None => 0,
        };
        let event = self.event.as_ref().map_or(0, |event| {
            event.data.len() + event.event.as_ref().map_or(0, |name| name.len())
        });
        let meta = self.meta.iter();
        let meta = meta.map(|(name, value)| name.len() + value.len());
        stream + response + websocket + event + meta.sum::<usize>()
    }
}

/// Bytes, and the filters by name that may change them for each subscriber (`content-filters`).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Content {
    /// The bytes.
    #[serde(with = "serial::binary")]
    pub bytes: Bytes,
    /// Names of filters, in order; nearly always none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Box<str>>,
}

impl From<Bytes> for Content {
    /// As they are, for all.
    fn from(bytes: Bytes) -> Self {
        let filters = Vec::new();
        Self { bytes, filters }
    }
}

/// What a publication does to a held stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamAction {
    /// These bytes.
    Send(Content),
    /// There is something new at its `Grip-Link`'s next, which `grip` follows. A stream without
    /// such a link ignores it.
    Hint,
    /// Something may be missing from here on: a stream of events gets an event `gap` without an id,
    /// any other ends, so that its client comes back.
    Gap,
    /// These bytes for streams of events, and nothing for others. Of this server alone.
    #[serde(skip)]
    Notice(Bytes),
    /// Its end.
    Close,
}

/// What a publication does to a long poll.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LongPollAction {
    /// This response.
    Send(Box<LongPollResponse>),
    /// The request is to be asked again of the back end.
    Hint,
    /// The connection is closed.
    Close,
}

/// A response for long polls.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LongPollResponse {
    /// Its status.
    #[serde(with = "serial::status")]
    pub status: Status,
    /// Its fields, without those of framing.
    #[serde(with = "serial::fields")]
    pub fields: FieldBlock,
    /// Its body; with `is_patch` a JSON Patch (RFC 6902) of the body that the back end gave.
    pub body: Content,
    /// Whether `body` is a patch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_patch: bool,
}

/// What a publication does to a WebSocket.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebSocketAction {
    /// A text message; valid UTF-8.
    Text(#[serde(deserialize_with = "serial::text_content")] Content),
    /// A binary message.
    Binary(Content),
    /// A ping of at most 125 bytes.
    Ping(
        #[serde(
            serialize_with = "serial::binary::serialize",
            deserialize_with = "serial::control_payload"
        )]
        Bytes,
    ),
    /// A pong of at most 125 bytes.
    Pong(
        #[serde(
            serialize_with = "serial::binary::serialize",
            deserialize_with = "serial::control_payload"
        )]
        Bytes,
    ),
    /// A close.
    Close {
        /// RFC 6455 §7.4.
        #[serde(deserialize_with = "serial::close_code")]
        code: u16,
        /// At most 123 bytes.
        #[serde(deserialize_with = "serial::close_reason")]
        reason: Box<str>,
    },
}

/// A server-sent event without its id (WHATWG HTML, "Server-sent events").
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PublishedEvent {
    /// Its type; none is `message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Box<str>>,
    /// Its data.
    pub data: Box<str>,
    /// Milliseconds until a client reconnects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<u64>,
}
