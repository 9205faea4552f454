//! The messages of a transfer, and the records of channels and streams in them, as serde writes
//! them.
//!
//! Pure. The same records go to the file of `hub.history.file`.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{OwnerRecord, SharedPlace};
use crate::channel::{Message, StreamFormat};
use crate::publication::serial;
use crate::{MessageFilter, Publication, StreamForm, StreamKeepAlive};

/// From the old process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PredecessorMessage {
    /// The first.
    Hello {
        version: u32,
        id_prefix: String,
        last_sequence: u64,
        /// Messages up to this number may be missing in channels without a record.
        removed_up_to: u64,
        /// Other servers share the channels: their numbers stay here, and no channel follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_shared: bool,
    },
    Channel(ChannelRecord),
    /// There are no more channels: the new process has the authority.
    ChannelsEnd,
    /// Streams, with their sockets in the same order.
    Streams {
        batch: u64,
        streams: Vec<StreamRecord>,
    },
    /// Every stream that can move has moved; single ones may follow.
    StreamsMoved,
    /// A publication of the old process.
    Publish {
        number: u64,
        channel: Arc<str>,
        publication: Publication,
    },
    /// A part of the state of a [`super::TransferParticipant`], before `ChannelsEnd`.
    ParticipantState {
        participant: String,
        state: Value,
    },
    /// An item for one.
    Forward {
        number: u64,
        participant: String,
        item: Value,
    },
    /// The old process has subscribers of a channel.
    Subscribe(Arc<str>),
    /// It has none any more.
    Unsubscribe(Arc<str>),
}

/// [`PredecessorMessage::Streams`] of records that stay where they are.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StreamsMessage<'a> {
    Streams {
        batch: u64,
        streams: Vec<&'a StreamRecord>,
    },
}

/// From the new process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SuccessorMessage {
    /// All channels are there.
    Imported,
    /// The streams of a batch are taken, except those at these places.
    Taken {
        batch: u64,
        refused: Vec<usize>,
        /// These may be sent again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_postponed: bool,
    },
    /// Publications up to this number are in their channels.
    Accepted(u64),
    /// A message of a channel that the old process has subscribers of.
    Message {
        sequence: u64,
        channel: Arc<str>,
        publication: Publication,
    },
    /// The answer to `Subscribe`: messages after it follow.
    Channel(ChannelRecord),
}

impl SuccessorMessage {
    /// The bytes of publications in it.
    pub(super) fn content_bytes(&self) -> usize {
        match self {
            Self::Channel(record) => {
                let messages = record.history.iter();
                messages.map(|message| message.publication.size()).sum()
            }
            Self::Message { publication, .. } => publication.size(),
            Self::Imported | Self::Taken { .. } | Self::Accepted(_) => 0,
        }
    }
}

/// A channel with its history.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ChannelRecord {
    pub(super) name: Arc<str>,
    pub(super) last_sequence: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_id: Option<Arc<str>>,
    /// Messages up to this number are not in the history.
    pub(super) dropped_up_to: u64,
    /// Messages up to this number came with a history that several servers share.
    #[serde(default)]
    pub(super) restored_up_to: u64,
    pub(super) history: Vec<MessageRecord>,
    /// The old process has subscribers of it.
    #[serde(default)]
    pub(super) is_followed: bool,
}

/// A message in a history.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MessageRecord {
    pub(super) sequence: u64,
    pub(super) age_ms: u64,
    pub(super) publication: Publication,
}

impl MessageRecord {
    pub(super) fn new(message: &Message, now: Instant) -> Self {
        let age = now.saturating_duration_since(message.published_at);
        Self {
            sequence: message.sequence,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            publication: message.publication.clone(),
        }
    }

    /// The message again; `None` without an id, which each kept message has.
    pub(super) fn into_message(self, channel: &Arc<str>, now: Instant) -> Option<Message> {
        let mut publication = self.publication;
        publication.channel = channel.clone();
        let id = publication.id.clone()?;
        let age = Duration::from_millis(self.age_ms);
        let published_at = now.checked_sub(age).unwrap_or(now);
        Some(Message::new(self.sequence, id, publication, published_at))
    }
}

/// A held stream, without its socket.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StreamRecord {
    pub(crate) channels: Vec<StreamChannelRecord>,
    /// Messages come as they are published, not as events.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_bytes: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unchunked: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keep_alive: Option<KeepAliveRecord>,
    /// Unframed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gap_notice: Option<ByteRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) subscriber_meta: Vec<(Box<str>, Box<str>)>,
    /// What its socket did not take, framed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unsent: Vec<UnsentRecord>,
    /// Bytes that its client sent behind the request.
    #[serde(default)]
    pub(crate) input_bytes: u32,
    /// Its client closed its sending side.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_probed: bool,
    /// How much is left of its lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lifetime_ms: Option<u64>,
    /// The client that it counts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<u64>,
    /// Its owner, which knows its channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<OwnerRecord>,
    /// The session of TLS over its socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<SessionRecord>,
}

/// A session of TLS whose handshake is done, with its secrets.
#[derive(Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    pub(crate) session: ByteRecord,
    /// Records that the socket did not take.
    #[serde(default)]
    pub(crate) unsent: ByteRecord,
}

impl fmt::Debug for SessionRecord {
    /// Without its secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRecord").finish_non_exhaustive()
    }
}

/// A stream's place in a channel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StreamChannelRecord {
    pub(crate) name: Arc<str>,
    /// The first message that it does not have.
    pub(crate) next_sequence: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<MessageFilter>,
    /// The same place where other servers share the channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared_place: Option<SharedPlace>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeepAliveRecord {
    pub(crate) bytes: ByteRecord,
    pub(crate) interval_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unconditional: bool,
}

/// A piece of a backlog.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UnsentRecord {
    pub(crate) bytes: ByteRecord,
    pub(crate) messages: u32,
    /// It may not be dropped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_kept: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ByteRecord(#[serde(with = "serial::binary")] pub(crate) Bytes);

impl StreamRecord {
    /// The channels that it or its owner follows.
    pub(super) fn followed_channels(&self) -> impl Iterator<Item = &Arc<str>> {
        let own = self.channels.iter();
        let own = own.filter(|channel| channel.shared_place.is_some());
        let owner = self.owner.iter().flat_map(|owner| &owner.channels);
        own.map(|channel| &channel.name).chain(owner)
    }

    pub(crate) fn format(&self) -> StreamFormat {
        StreamFormat {
            message_format: match self.is_bytes {
                true => StreamForm::Bytes,
                false => StreamForm::Events,
            },
            is_chunked: !self.is_unchunked,
        }
    }
}

impl From<&StreamKeepAlive> for KeepAliveRecord {
    fn from(keep_alive: &StreamKeepAlive) -> Self {
        let interval = keep_alive.interval.as_millis();
        Self {
            bytes: ByteRecord(keep_alive.bytes.clone()),
            interval_ms: u64::try_from(interval).unwrap_or(u64::MAX),
            is_unconditional: keep_alive.is_unconditional,
        }
    }
}

impl From<&KeepAliveRecord> for StreamKeepAlive {
    fn from(record: &KeepAliveRecord) -> Self {
        Self {
            bytes: record.bytes.0.clone(),
            interval: Duration::from_millis(record.interval_ms),
            is_unconditional: record.is_unconditional,
        }
    }
}
