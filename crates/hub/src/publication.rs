//! What is published: one message, in the forms that its different subscribers take.
//!
//! Made by `grip`, `route`, `mercure` and `bus`; taken by [`crate::Hub::publish`]. A message without the
//! form that a subscriber takes is none of its business.

use std::sync::Arc;

use bytes::Bytes;
use penstock_http::{FieldBlock, Status};

/// One message for one channel.
#[derive(Debug, Clone, Default)]
pub struct Publication {
    /// The channel's name.
    pub channel: Arc<str>,
    /// What the publisher calls it; none gets a number of the hub's.
    pub id: Option<Arc<str>>,
    /// The message that came before it, for who must not get them in another order.
    pub prev_id: Option<Arc<str>>,
    /// Not to be held back until `prev_id` has come (`no-seq`).
    pub allows_any_order: bool,
    /// For held streams, as bytes.
    pub stream: Option<StreamPart>,
    /// For long polls.
    pub response: Option<ResponsePart>,
    /// For WebSockets.
    pub websocket: Option<WebSocketPart>,
    /// A server-sent event, encoded once by the hub with the message's id. Streams take it where `stream`
    /// is none: those of events as an event, others as its data and a line feed.
    pub event: Option<EventPart>,
    /// What filters look at.
    pub meta: Vec<(Box<str>, Box<str>)>,
}

/// Bytes, and the filters by name that may change them for each subscriber (`content-filters`).
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// What is sent.
    pub bytes: Bytes,
    /// Names of filters, in order; nearly always none.
    pub filters: Vec<Box<str>>,
}

/// What a held stream gets.
#[derive(Debug, Clone)]
pub enum StreamPart {
    /// These bytes.
    Send(Content),
    /// There is something new at its `Grip-Link`'s next: for whoever follows that (`grip`). A stream without
    /// such a link gets nothing of it.
    Hint,
    /// Something may be missing from here on: a stream of events gets an event `gap` without an id, any other
    /// ends, so that its client comes back.
    Gap,
    /// Its end.
    Close,
}

/// What a long poll gets.
#[derive(Debug, Clone)]
pub enum ResponsePart {
    /// This response.
    Send(Box<LongPollResponse>),
    /// The request is to be asked again of the back end.
    Hint,
    /// The connection is closed.
    Close,
}

/// A response for long polls.
#[derive(Debug, Clone)]
pub struct LongPollResponse {
    /// Its status.
    pub status: Status,
    /// Its fields, without those of framing.
    pub fields: FieldBlock,
    /// Its body; with `is_patch` a JSON Patch (RFC 6902) of the body that the back end gave.
    pub body: Content,
    /// Whether `body` is a patch.
    pub is_patch: bool,
}

/// What a WebSocket gets.
#[derive(Debug, Clone)]
pub enum WebSocketPart {
    /// A text message; valid UTF-8.
    Text(Content),
    /// A binary message.
    Binary(Content),
    /// A ping of at most 125 bytes.
    Ping(Bytes),
    /// A pong of at most 125 bytes.
    Pong(Bytes),
    /// A close.
    Close {
        /// RFC 6455 §7.4.
        code: u16,
        /// At most 123 bytes.
        reason: Box<str>,
    },
}

/// A server-sent event without its id (WHATWG HTML, "Server-sent events").
#[derive(Debug, Clone, Default)]
pub struct EventPart {
    /// Its type; none is `message`.
    pub event: Option<Box<str>>,
    /// Its data.
    pub data: Box<str>,
    /// Milliseconds until a client whose connection broke comes back.
    pub retry: Option<u64>,
}
