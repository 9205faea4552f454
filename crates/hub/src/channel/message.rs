//! A message in its channel: its number, its id, and the bytes that streams get of it.
//!
//! Made under the lock of its channel, then shared by the history, by every shard and by the
//! backlogs of slow subscribers.
//!
//! # Invariants
//! - Each format is encoded at most once.
//! - No encoded message is empty: an empty chunk would end a chunked body (RFC 9112 §7.1).

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use penstock_exchange::HeldFraming;
use penstock_http::{h1, sse};

use crate::hub_route::GAP_EVENT;
use crate::{LongPollResponse, Publication, StreamAction, StreamForm};

/// A message with its number in its channel.
#[derive(Debug)]
pub struct Message {
    /// Larger than that of every message which came before it, in all channels.
    pub(crate) sequence: u64,
    pub(crate) id: Arc<str>,
    /// As it was published.
    pub publication: Publication,
    pub(crate) published_at: Instant,
    /// Its size for byte limits.
    pub(crate) memory_bytes: usize,
    encoded: [OnceLock<Bytes>; STREAM_FORMAT_COUNT],
    /// The response for long polls without filters.
    shared_response: OnceLock<Arc<LongPollResponse>>,
}

/// How held streams handle a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryKind {
    /// All get the same bytes.
    Shared,
    /// Each gets bytes of its own: the content has filters.
    PerStream,
    /// Event streams get the same bytes, whatever their filters; all others end.
    Gap,
    /// They end.
    Close,
    /// They ignore it.
    Ignored,
}

/// The message format and framing of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamFormat {
    pub(crate) message_format: StreamForm,
    pub(crate) is_chunked: bool,
}

/// Two message formats in two framings.
pub(crate) const STREAM_FORMAT_COUNT: usize = 4;

impl StreamFormat {
    /// Events in chunks.
    pub(crate) const CHUNKED_EVENTS: Self = Self {
        message_format: StreamForm::Events,
        is_chunked: true,
    };

    pub(crate) fn new(message_format: StreamForm, framing: HeldFraming) -> Self {
        let is_chunked = framing == HeldFraming::Chunked;
        Self {
            message_format,
            is_chunked,
        }
    }

    /// Below [`STREAM_FORMAT_COUNT`].
    pub(crate) fn index(self) -> usize {
        2 * usize::from(self.is_chunked) + usize::from(self.message_format == StreamForm::Bytes)
    }

    /// `payload` as streams of this format get it.
    pub(crate) fn apply_framing(self, payload: Bytes) -> Bytes {
        if !self.is_chunked || payload.is_empty() {
            return payload;
        }
        let mut out = Vec::with_capacity(payload.len() + 12);
        h1::encode_chunk_head(payload.len(), &mut out);
        out.extend_from_slice(&payload);
        out.extend_from_slice(b"\r\n");
        out.into()
    }

    /// The payload of what [`Self::apply_framing`] made.
    pub(crate) fn remove_framing(self, framed: Bytes) -> Bytes {
        if !self.is_chunked || framed.is_empty() {
            return framed;
        }
        let head = framed.iter().position(|&byte| byte == b'\n');
        let start = head.map_or(0, |end| end + 1);
        framed.slice(start..framed.len().saturating_sub(2).max(start))
    }
}

impl Message {
    pub(crate) fn new(
        sequence: u64,
        id: Arc<str>,
        publication: Publication,
        published_at: Instant,
    ) -> Self {
        Self {
            memory_bytes: publication.size() + id.len() + MESSAGE_OVERHEAD,
            sequence,
            id,
            publication,
            published_at,
            encoded: Default::default(),
            shared_response: OnceLock::new(),
        }
    }

    /// Whether a client of an event stream that got this message returns with this id: a publisher
    /// may write the `id` fields of its events itself.
    pub(crate) fn has_event_id(&self, id: &str) -> bool {
        match &self.publication.stream {
            Some(StreamAction::Send(content)) => {
                sse::last_event_id(&content.bytes) == Some(id.as_bytes())
            }
            _ => false,
        }
    }

    /// The response of this message, shared by all that get it as it is.
    pub(crate) fn shared_long_poll_response(
        &self,
        response: &LongPollResponse,
    ) -> Arc<LongPollResponse> {
        let shared = self
            .shared_response
            .get_or_init(|| Arc::new(response.clone()));
        shared.clone()
    }

    pub(crate) fn delivery_kind(&self) -> DeliveryKind {
        match &self.publication.stream {
            Some(StreamAction::Send(content)) if content.filters.is_empty() => DeliveryKind::Shared,
            Some(StreamAction::Send(_)) => DeliveryKind::PerStream,
            Some(StreamAction::Gap) => DeliveryKind::Gap,
            Some(StreamAction::Close) => DeliveryKind::Close,
            Some(StreamAction::Notice(_)) => DeliveryKind::Shared,
            Some(StreamAction::Hint) => DeliveryKind::Ignored,
            None if self.publication.event.is_some() => DeliveryKind::Shared,
            None => DeliveryKind::Ignored,
        }
    }

    /// The framed bytes for streams of this format; empty means nothing to send.
    pub(crate) fn framed_payload(&self, format: StreamFormat) -> &Bytes {
        let encoded = &self.encoded[format.index()];
        encoded.get_or_init(|| format.apply_framing(self.payload(format.message_format)))
    }

    /// The bytes for streams of this message format, without framing.
    pub(crate) fn payload(&self, message_format: StreamForm) -> Bytes {
        match (&self.publication.stream, &self.publication.event) {
            (Some(StreamAction::Send(content)), _) => content.bytes.clone(),
            (None, Some(event)) => match message_format {
                StreamForm::Events => {
                    let mut out = Vec::with_capacity(event.data.len() + self.id.len() + 32);
                    if let Some(milliseconds) = event.retry {
                        sse::encode_retry(&mut out, milliseconds);
                    }
                    sse::encode_event(
                        &mut out,
                        event.event.as_deref(),
                        Some(&self.id),
                        &event.data,
                    );
                    out.into()
                }
                StreamForm::Bytes => [event.data.as_bytes(), b"\n"].concat().into(),
            },
            (Some(StreamAction::Gap), _) if message_format == StreamForm::Events => GAP_EVENT,
            (Some(StreamAction::Notice(bytes)), _) if message_format == StreamForm::Events => {
                bytes.clone()
            }
            (Some(_) | None, _) => Bytes::new(),
        }
    }
}

/// Memory of a message besides its content: itself, and the allocations of its id and name.
const MESSAGE_OVERHEAD: usize = size_of::<Message>() + 64;

#[cfg(test)]
mod tests;
