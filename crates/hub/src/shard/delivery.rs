//! The delivery of messages to the subscribers of a shard.
//!
//! Each channel with pending messages has its turn, a few writes long; messages that arrived
//! meanwhile go out together, in one write for each subscriber. A delivery goes through the list
//! of subscribers from its end.
//!
//! # Invariants
//! - A subscriber that leaves in between gives its place to the last of the list, which either had
//!   its turn or moves to a place with its turn still to come: none is skipped.
//! - A subscriber knows the number of its next message, so it gets none twice, and none from
//!   before it subscribed.
//! - A stream of several channels first gets older messages that wait for it in the others.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::backlog::BacklogPiece;
use super::live_stream::StreamSubscriber;
use super::shard_inbox::ShardDelivery;
use super::{BYTES_PER_WRITE, Shard};
use crate::channel::{Channel, DeliveryKind, Message, STREAM_FORMAT_COUNT, StreamFormat};
use crate::filters;
use crate::{Content, StreamAction, StreamForm};

/// A channel with subscribers in this shard.
#[derive(Debug)]
pub(super) struct ShardChannel {
    pub(super) channel: Arc<Channel>,
    /// Their slots.
    pub(super) subscribers: Vec<u32>,
    work: Option<Box<ChannelWork>>,
    is_in_ready_queue: bool,
    /// The last subscriber has left; the channel does not know of it any more.
    is_abandoned: bool,
}

#[derive(Debug, Default)]
struct ChannelWork {
    pending: VecDeque<Arc<Message>>,
    batch: Option<DeliveryBatch>,
}

/// Messages of several channels, each with where the shard keeps its channel.
type OlderMessages = Vec<(u32, Arc<Message>)>;

#[derive(Debug)]
struct DeliveryBatch {
    messages: Vec<Arc<Message>>,
    kind: DeliveryKind,
    /// The joined bytes of all of them for each format, with the number of messages.
    joined: [Option<(Bytes, u32)>; STREAM_FORMAT_COUNT],
    /// How many subscribers are left, from the end of the list.
    remaining: usize,
}

/// Messages that were joined are at most this long together, unless there is only one: what a
/// socket that keeps up takes at once.
const MAX_BATCH_BYTES: usize = 32 << 10;

/// Subscribers that a channel serves in its turn.
const SUBSCRIBERS_PER_TURN: usize = 32;

impl ShardChannel {
    pub(super) fn new(channel: Arc<Channel>) -> Self {
        Self {
            channel,
            subscribers: Vec::new(),
            work: None,
            is_in_ready_queue: false,
            is_abandoned: false,
        }
    }
}

impl DeliveryBatch {
    /// The next messages that can go out together.
    fn next_batch(pending: &mut VecDeque<Arc<Message>>, subscribers: usize) -> Option<Self> {
        let first = pending.pop_front()?;
        let concern = first.delivery_kind();
        let mut bytes = first.memory_bytes;
        let mut messages = vec![first];
        while concern == DeliveryKind::Shared
            && let Some(next) = pending.front()
            && next.delivery_kind() == concern
            && bytes + next.memory_bytes <= MAX_BATCH_BYTES
        {
            bytes += next.memory_bytes;
            messages.extend(pending.pop_front());
        }
        Some(Self {
            messages,
            kind: concern,
            joined: Default::default(),
            remaining: subscribers,
        })
    }

    fn last_sequence(&self) -> u64 {
        self.messages.last().map_or(0, |message| message.sequence)
    }

    fn cost(&self) -> usize {
        self.messages
            .iter()
            .map(|message| message.memory_bytes)
            .sum()
    }

    /// The bytes for a subscriber of this format from message `next` on, and how many messages
    /// these are.
    fn encoded_for(&mut self, format: StreamFormat, next: u64) -> (Bytes, u32) {
        let first = self.messages.first().map_or(0, |message| message.sequence);
        if next > first {
            let rest = self
                .messages
                .iter()
                .filter(|message| message.sequence >= next);
            return join_encoded(rest, format);
        }
        let joined = &mut self.joined[format.index()];
        let (bytes, count) =
            joined.get_or_insert_with(|| join_encoded(self.messages.iter(), format));
        (bytes.clone(), *count)
    }
}

fn join_encoded<'a>(
    messages: impl Iterator<Item = &'a Arc<Message>> + Clone,
    format: StreamFormat,
) -> (Bytes, u32) {
    let framed = messages.map(|message| message.framed_payload(format));
    let framed = framed.filter(|bytes| !bytes.is_empty());
    let count = framed.clone().count();
    if count == 1
        && let Some(only) = framed.clone().next()
    {
        return (only.clone(), 1);
    }
    let joined: Vec<u8> = framed.flatten().copied().collect();
    (joined.into(), u32::try_from(count).unwrap_or(u32::MAX))
}

impl Shard {
    /// Queues a message for its channel.
    pub(super) fn enqueue(&mut self, delivery: ShardDelivery) {
        let ShardDelivery {
            channel_slot: slot,
            channel,
            message,
        } = delivery;
        match self.channels.get_mut(slot) {
            // A slot may have another channel by now.
            Some(local) if !local.is_abandoned && Arc::ptr_eq(&local.channel, &channel) => {
                let work = local.work.get_or_insert_default();
                work.pending.push_back(message);
                if !std::mem::replace(&mut local.is_in_ready_queue, true) {
                    self.ready_channels.push_back(slot);
                }
            }
            _ => self
                .shared
                .metrics
                .subtract_pending_bytes(&channel, message.memory_bytes),
        }
    }

    /// Delivers, in turns, to about `budget` subscribers.
    pub(super) fn deliver(&mut self, budget: usize) {
        let mut used = 0;
        while used < budget
            && let Some(slot) = self.ready_channels.pop_front()
        {
            used += self.deliver_channel(slot).max(1);
        }
    }

    /// One turn of a channel; how many subscribers had theirs.
    fn deliver_channel(&mut self, slot: u32) -> usize {
        let work = self
            .channels
            .get_mut(slot)
            .and_then(|local| local.work.take());
        let Some(mut work) = work else {
            self.end_turn(slot, None);
            return 0;
        };
        let mut used = 0;
        while used < SUBSCRIBERS_PER_TURN {
            let subscribers = self.channels.get(slot).map_or(0, |l| l.subscribers.len());
            let formed = work.batch.take();
            let formed =
                formed.or_else(|| DeliveryBatch::next_batch(&mut work.pending, subscribers));
            let Some(mut batch) = formed else {
                break;
            };
            batch.remaining = batch.remaining.min(subscribers);
            if batch.remaining == 0 {
                if let Some(local) = self.channels.get(slot) {
                    let tally = &self.shared.metrics;
                    tally.subtract_pending_bytes(&local.channel, batch.cost());
                }
                continue;
            }
            batch.remaining -= 1;
            let stream = self
                .channels
                .get(slot)
                .map(|l| l.subscribers[batch.remaining]);
            if let Some(stream) = stream {
                let sent = self.sent_bytes;
                self.deliver_to_stream(stream, slot, &mut batch);
                used += (self.sent_bytes - sent) / BYTES_PER_WRITE;
            }
            work.batch = Some(batch);
            used += 1;
        }
        self.end_turn(slot, Some(work));
        used
    }

    /// Queues a channel again if something is left, or removes it.
    fn end_turn(&mut self, slot: u32, work: Option<Box<ChannelWork>>) {
        let Some(local) = self.channels.get_mut(slot) else {
            return;
        };
        if local.is_abandoned {
            let gone = work.or_else(|| local.work.take());
            let channel = local.channel.clone();
            self.channels.remove(slot);
            self.discard_work(&channel, gone);
            return;
        }
        let has_more = work
            .as_ref()
            .is_some_and(|work| work.batch.is_some() || !work.pending.is_empty());
        local.is_in_ready_queue = has_more;
        if has_more {
            local.work = work;
            self.ready_channels.push_back(slot);
        }
    }

    /// Abandons a channel whose last subscriber has left, and frees its slot.
    pub(super) fn abandon_channel(&mut self, slot: u32) {
        let Some(local) = self.channels.get_mut(slot) else {
            return;
        };
        local.is_abandoned = true;
        self.list_bytes -= local.subscribers.capacity() * size_of::<u32>();
        local.subscribers = Vec::new();
        // A queued channel goes when its turn comes: until then the slot is not reused.
        if !local.is_in_ready_queue
            && let Some(local) = self.channels.remove(slot)
        {
            self.discard_work(&local.channel, local.work);
        }
    }

    fn discard_work(&self, channel: &Channel, work: Option<Box<ChannelWork>>) {
        if let Some(work) = work {
            let pending: usize = work
                .pending
                .iter()
                .map(|message| message.memory_bytes)
                .sum();
            let batch = work.batch.as_ref().map_or(0, DeliveryBatch::cost);
            let tally = &self.shared.metrics;
            tally.subtract_pending_bytes(channel, pending + batch);
        }
    }

    fn deliver_to_stream(&mut self, stream: u32, channel: u32, batch: &mut DeliveryBatch) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let format = held.format;
        let Some((link, filters)) = held.channel_link_mut(channel) else {
            return;
        };
        let is_each = batch.kind == DeliveryKind::PerStream || !filters.is_empty();
        let next = link.next_sequence;
        if next > batch.last_sequence() {
            return;
        }
        link.next_sequence = batch.last_sequence() + 1;
        let older = self.take_older_messages(stream, channel, batch.last_sequence());
        if !older.is_empty() {
            let own = batch.messages.iter().filter(|each| each.sequence >= next);
            self.deliver_merged(stream, older, own.map(|each| (channel, each.clone())));
            return;
        }
        match batch.kind {
            DeliveryKind::Ignored => {}
            DeliveryKind::Close => self.end_stream_gracefully(stream),
            DeliveryKind::Gap if format.message_format == StreamForm::Bytes => {
                self.end_stream_gracefully(stream);
            }
            DeliveryKind::Shared | DeliveryKind::PerStream if is_each => {
                for message in batch.messages.iter().filter(|each| each.sequence >= next) {
                    if let Some(bytes) = self.render_for_stream(stream, channel, message) {
                        self.write(stream, BacklogPiece::message(bytes, 1));
                    }
                }
            }
            DeliveryKind::Shared | DeliveryKind::PerStream | DeliveryKind::Gap => {
                let (bytes, messages) = batch.encoded_for(format, next);
                if !bytes.is_empty() {
                    self.write(stream, BacklogPiece::message(bytes, messages));
                }
            }
        }
    }

    /// What waits for this stream in its other channels and was published before the message of
    /// this order: a client that comes back names one message, which stands for all before it.
    fn take_older_messages(&mut self, stream: u32, channel: u32, before: u64) -> OlderMessages {
        let mut older = OlderMessages::new();
        // Nothing waits in any other channel.
        if self.ready_channels.is_empty() {
            return older;
        }
        let Some(held) = self.streams.get_mut(stream) else {
            return older;
        };
        let Some(extra) = &mut held.extras else {
            return older;
        };
        for link in [&mut held.first_link]
            .into_iter()
            .chain(&mut extra.other_links)
        {
            if link.channel_slot == channel {
                continue;
            }
            let local = self.channels.get(link.channel_slot);
            let Some(work) = local.and_then(|local| local.work.as_ref()) else {
                continue;
            };
            let next = link.next_sequence;
            let begun = work.batch.iter().flat_map(|batch| &batch.messages);
            let from = work.pending.partition_point(|each| each.sequence < next);
            let waiting = begun.chain(work.pending.range(from..));
            let waiting = waiting.skip_while(|message| message.sequence < next);
            for message in waiting.take_while(|message| message.sequence < before) {
                link.next_sequence = message.sequence + 1;
                older.push((link.channel_slot, message.clone()));
            }
        }
        older
    }

    /// Delivers messages of several channels in the order in which they were published.
    fn deliver_merged(
        &mut self,
        stream: u32,
        mut messages: OlderMessages,
        own: impl Iterator<Item = (u32, Arc<Message>)>,
    ) {
        messages.extend(own);
        messages.sort_by_key(|(_, message)| message.sequence);
        let (mut joined, mut count) = (Vec::new(), 0);
        for (channel, message) in messages {
            let Some(held) = self.streams.get_mut(stream) else {
                return;
            };
            let format = held.format;
            let has_filters = held
                .channel_link_mut(channel)
                .is_some_and(|(_, filters)| !filters.is_empty());
            let concern = message.delivery_kind();
            if concern == DeliveryKind::Shared && !has_filters {
                let bytes = message.framed_payload(format);
                if joined.len() + bytes.len() > MAX_BATCH_BYTES {
                    self.write_joined(stream, &mut joined, &mut count);
                }
                joined.extend_from_slice(bytes);
                count += u32::from(!bytes.is_empty());
                continue;
            }
            if concern == DeliveryKind::Ignored {
                continue;
            }
            self.write_joined(stream, &mut joined, &mut count);
            if concern == DeliveryKind::Close {
                return self.end_stream_gracefully(stream);
            }
            if let Some(bytes) = self.render_for_stream(stream, channel, &message) {
                self.write(stream, BacklogPiece::message(bytes, 1));
            }
        }
        self.write_joined(stream, &mut joined, &mut count);
    }

    fn write_joined(&mut self, stream: u32, joined: &mut Vec<u8>, count: &mut u32) {
        let (bytes, messages) = (std::mem::take(joined), std::mem::take(count));
        if !bytes.is_empty() {
            self.write(stream, BacklogPiece::message(bytes.into(), messages));
        }
    }

    /// Renders a message for a stream with its filters; `None` if they reject it.
    pub(super) fn render_for_stream(
        &mut self,
        stream: u32,
        channel: u32,
        message: &Message,
    ) -> Option<Bytes> {
        let filters = {
            let (_, filters) = self.streams.get_mut(stream)?.channel_link_mut(channel)?;
            filters.to_vec()
        };
        let held = self.streams.get(stream)?;
        let reader = StreamSubscriber {
            stream: held,
            channels: &self.channels,
        };
        if !filters::passes_filters(&filters, &message.publication.meta, &reader) {
            return None;
        }
        let encoded;
        let content = match &message.publication.stream {
            Some(StreamAction::Send(content)) => content,
            _ => {
                encoded = Content::from(message.payload(held.format.message_format));
                &encoded
            }
        };
        match filters::render_content(content, &filters, &reader) {
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => Some(held.format.apply_framing(bytes)),
            Err(e) => {
                let name = &message.publication.channel;
                log::debug!("hub: channel {name:?}: a message is not sent to one stream: {e}");
                self.turn_counts.dropped += 1;
                None
            }
        }
    }
}
