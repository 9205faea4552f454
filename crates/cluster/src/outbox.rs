//! The publications of this server, from their arrival until the others have them for good. Pure.
//!
//! Each publication gets the next number. Batches go to Redis in the order of the numbers, one at
//! a time, and Redis takes none twice (`redis_scripts`). A publication that Redis has taken is kept
//! for [`RESEND_WINDOW`] and published again to a Redis that has lost its data. One that had to be
//! dropped becomes a gap for the others.
//!
//! # Invariants
//! - The numbers of kept publications are contiguous.
//! - A publication is dropped only when it was published, or is recorded as lost.
//! - The number of kept publications is bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_hub::Publication;

use crate::entry::{ChannelName, EntryContent};

/// Messages that are kept, those that wait for Redis and those that it has taken.
const MAX_MESSAGES: usize = 20_000;

/// Bytes of these.
const MAX_BYTES: usize = 64 << 20;

/// How long a message is kept that Redis has taken: longer than a Redis that is restarted is
/// usually away.
pub(super) const RESEND_WINDOW: Duration = Duration::from_secs(30);

/// Messages and bytes of one batch: one answer of Redis is waited for at a time.
const MAX_BATCH_MESSAGES: usize = 256;
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Channels with losses that get a gap of their own; with more, all channels get one.
const MAX_LOST_CHANNELS: usize = 1000;

/// What waits for Redis, and what it has.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Contiguous numbers from `first` on: first those that Redis has taken, then those on their
    /// way, then those that wait.
    entries: VecDeque<OutboxEntry>,
    first_number: u64,
    /// All numbers below it are with Redis, or lost.
    accepted_up_to: u64,
    /// Whether a batch is on its way.
    is_sending: bool,
    bytes: usize,
    /// Those of what waits.
    unsent_bytes: usize,
    /// Waiting messages of each channel that had no subscribers here, so that no search is in vain.
    unsent_without_subscribers: HashMap<ChannelName, usize>,
    /// The last number that each channel lost, until the others know.
    lost_by_channel: HashMap<ChannelName, u64>,
    lost_in_all_channels: Option<u64>,
    /// The latest time at which a message was dropped, or a loss announced, that Redis may lose
    /// again.
    last_unkept_at: Option<Instant>,
    max_messages: usize,
    dropped_messages: u64,
}

/// One message, or the word that there was one.
#[derive(Debug)]
struct OutboxEntry {
    channel: ChannelName,
    content: EntryContent,
    bytes: usize,
    accepted_at: Option<Instant>,
    local_delivery: LocalDelivery,
    /// A Redis that has lost its data may have had it, in another place.
    is_resent: bool,
}

/// How a message comes to this server's subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalDelivery {
    /// They had it before Redis.
    Early,
    /// They wait for it to come from Redis.
    Awaited,
    /// There was none, or they have it.
    Done,
}

#[derive(Debug, Clone)]
pub(super) struct OutgoingEntry {
    pub(super) number: u64,
    pub(super) channel: ChannelName,
    /// Whether subscribers somewhere may have it before Redis.
    pub(super) was_delivered_early: bool,
    pub(super) content: EntryContent,
}

/// A publication of this server that its own subscribers do not have yet.
#[derive(Debug)]
pub(super) struct AwaitedMessage {
    pub(super) number: u64,
    pub(super) publication: Publication,
    /// When Redis took it.
    pub(super) accepted_at: Option<Instant>,
    /// Whether Redis may have it without the mark that it was delivered here.
    pub(super) may_be_accepted: bool,
}

impl OutboxEntry {
    /// Whether it waits for Redis, and no subscriber here for it.
    fn has_no_local_subscriber(&self) -> bool {
        self.local_delivery == LocalDelivery::Done
            && self.accepted_at.is_none()
            && matches!(self.content, EntryContent::Message(_))
    }
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self::with_max_messages(MAX_MESSAGES)
    }

    pub(super) fn with_max_messages(messages_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            // Not 1, so that there is a number in front of the first for lost messages.
            first_number: 2,
            accepted_up_to: 2,
            is_sending: false,
            bytes: 0,
            unsent_bytes: 0,
            unsent_without_subscribers: HashMap::new(),
            lost_by_channel: HashMap::new(),
            lost_in_all_channels: None,
            last_unkept_at: None,
            max_messages: messages_max,
            dropped_messages: 0,
        }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.first_number + self.entries.len() as u64
    }

    /// Messages that Redis has not taken yet.
    pub(super) fn unsent_messages(&self) -> usize {
        usize::try_from(self.next_number() - self.accepted_up_to).unwrap_or(usize::MAX)
    }

    /// Whether Redis has all up to this number, or it is lost.
    pub(super) fn has_accepted(&self, number: u64) -> bool {
        number < self.accepted_up_to
    }

    /// Messages that were dropped before Redis had them, since the start.
    pub(super) fn dropped_messages(&self) -> u64 {
        self.dropped_messages
    }

    /// Whether `publication` would push one out that waits for Redis, or that subscribers here wait
    /// for.
    pub(super) fn is_full_for(&self, publication: &Publication) -> bool {
        let bytes = publication_memory_bytes(publication);
        if self.unsent_messages() >= self.max_messages || self.unsent_bytes + bytes > MAX_BYTES {
            return true;
        }
        let is_awaited = |kept: &OutboxEntry| kept.local_delivery == LocalDelivery::Awaited;
        let evicts = self.entries.len() >= self.max_messages || self.bytes + bytes > MAX_BYTES;
        evicts && self.entries.front().is_some_and(is_awaited)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.unsent_messages() == 0
            && self.lost_by_channel.is_empty()
            && self.lost_in_all_channels.is_none()
    }

    /// Keeps a publication for Redis; the oldest that are kept make room.
    pub(super) fn submit(&mut self, now: Instant, publication: Publication, way: LocalDelivery) {
        let bytes = publication_memory_bytes(&publication);
        let channel = publication.channel.clone();
        let what = EntryContent::Message(Box::new(publication));
        self.push_entry(now, channel, what, bytes, way);
    }

    /// Keeps a notice about a channel for Redis.
    pub(super) fn submit_notice(&mut self, now: Instant, channel: ChannelName, what: EntryContent) {
        self.push_entry(
            now,
            channel,
            what,
            size_of::<OutboxEntry>(),
            LocalDelivery::Done,
        );
    }

    fn push_entry(
        &mut self,
        now: Instant,
        channel: ChannelName,
        what: EntryContent,
        bytes: usize,
        way: LocalDelivery,
    ) {
        self.bytes += bytes;
        self.unsent_bytes += bytes;
        let kept = OutboxEntry {
            channel,
            content: what,
            bytes,
            accepted_at: None,
            local_delivery: way,
            is_resent: false,
        };
        if kept.has_no_local_subscriber() {
            increment(&mut self.unsent_without_subscribers, &kept.channel);
        }
        self.entries.push_back(kept);
        while self.entries.len() > 1
            && (self.entries.len() > self.max_messages || self.bytes > MAX_BYTES)
        {
            self.drop_oldest(now);
        }
    }

    /// The next batch; none while one is on its way, or nothing waits.
    pub(super) fn next_batch(&mut self) -> Option<Vec<OutgoingEntry>> {
        if self.is_sending {
            return None;
        }
        let mut batch = self.gap_entries();
        let mut bytes = 0;
        let from = usize::try_from(self.accepted_up_to - self.first_number).unwrap_or(usize::MAX);
        for (number, kept) in (self.accepted_up_to..).zip(self.entries.iter().skip(from)) {
            if batch.len() >= MAX_BATCH_MESSAGES
                || (bytes > 0 && bytes + kept.bytes > MAX_BATCH_BYTES)
            {
                break;
            }
            bytes += kept.bytes;
            batch.push(OutgoingEntry {
                number,
                channel: kept.channel.clone(),
                was_delivered_early: kept.local_delivery == LocalDelivery::Early || kept.is_resent,
                content: kept.content.clone(),
            });
        }
        self.is_sending = !batch.is_empty();
        self.is_sending.then_some(batch)
    }

    /// Redis has the batch, or had it before.
    pub(super) fn on_batch_accepted(&mut self, now: Instant, batch: &[OutgoingEntry]) {
        self.is_sending = false;
        for entry in batch {
            if entry.number >= self.first_number {
                self.mark_accepted(now, entry.number);
                continue;
            }
            // A loss is not kept: a Redis that forgets it makes a gap of everything.
            self.last_unkept_at = Some(now);
            if self.lost_by_channel.get(&entry.channel) == Some(&entry.number) {
                self.lost_by_channel.remove(&entry.channel);
            }
            if matches!(entry.content, EntryContent::GapInAllChannels)
                && self
                    .lost_in_all_channels
                    .is_some_and(|number| number <= entry.number)
            {
                self.lost_in_all_channels = None;
            }
        }
    }

    fn mark_accepted(&mut self, now: Instant, number: u64) {
        if number >= self.accepted_up_to
            && let Some(kept) = self.get(number)
        {
            let unsubscribed = kept.has_no_local_subscriber().then(|| kept.channel.clone());
            kept.accepted_at = Some(now);
            let bytes = kept.bytes;
            self.unsent_bytes -= bytes;
            self.decrement_unsent(unsubscribed.as_ref());
            self.accepted_up_to = number + 1;
        }
    }

    /// A connection is there again, to the same data or to other: what was on its way is sent
    /// again, to other data also what the earlier had taken lately.
    pub(super) fn on_connected(&mut self, now: Instant, is_same_data: bool) {
        self.is_sending = false;
        if is_same_data {
            return;
        }
        self.accepted_up_to = self.first_number;
        self.unsent_bytes = self.bytes;
        self.unsent_without_subscribers.clear();
        for kept in &mut self.entries {
            kept.accepted_at = None;
            kept.is_resent = true;
            if kept.has_no_local_subscriber() {
                increment(&mut self.unsent_without_subscribers, &kept.channel);
            }
        }
        let unkept = self.last_unkept_at.take();
        if unkept.is_some_and(|at| now.saturating_duration_since(at) < RESEND_WINDOW * 2) {
            self.lost_in_all_channels = Some(self.first_number - 1);
        }
    }

    /// Drops old messages. Only while there is a connection: without one, Redis
    /// may have lost what it took. `is_awaited`: subscribers of the channel here wait for that.
    pub(super) fn drop_expired(
        &mut self,
        now: Instant,
        is_awaited: impl Fn(&str, Instant) -> bool,
    ) {
        while let Some(oldest) = self.entries.front()
            && let Some(at) = oldest.accepted_at
            && now.saturating_duration_since(at) >= RESEND_WINDOW
            && (oldest.local_delivery != LocalDelivery::Awaited || !is_awaited(&oldest.channel, at))
        {
            self.bytes -= oldest.bytes;
            self.entries.pop_front();
            self.first_number += 1;
        }
    }

    /// The message of that number has come from Redis.
    pub(super) fn mark_delivered(&mut self, number: u64) {
        if let Some(kept) = self.get(number)
            && kept.local_delivery == LocalDelivery::Awaited
        {
            kept.local_delivery = LocalDelivery::Done;
            let unsubscribed = kept.has_no_local_subscriber().then(|| kept.channel.clone());
            if let Some(channel) = unsubscribed {
                increment(&mut self.unsent_without_subscribers, &channel);
            }
        }
    }

    /// Marks a channel's messages that Redis does not have yet as awaited by its subscribers.
    pub(super) fn mark_channel_awaited(&mut self, channel: &str) {
        let Some(mut left) = self.unsent_without_subscribers.remove(channel) else {
            return;
        };
        let taken = usize::try_from(self.accepted_up_to - self.first_number).unwrap_or(usize::MAX);
        for kept in self.entries.iter_mut().skip(taken) {
            if *kept.channel == *channel && kept.has_no_local_subscriber() {
                kept.local_delivery = LocalDelivery::Awaited;
                left -= 1;
                if left == 0 {
                    return;
                }
            }
        }
    }

    /// Takes all messages that this server's subscribers wait for, in order; they are delivered
    /// early.
    pub(super) fn take_awaited_messages(&mut self) -> Vec<AwaitedMessage> {
        let (first, taken_to, is_sending) =
            (self.first_number, self.accepted_up_to, self.is_sending);
        let out_to = taken_to + u64::from(is_sending) * MAX_BATCH_MESSAGES as u64;
        (first..)
            .zip(&mut self.entries)
            .filter_map(|(number, kept)| {
                let EntryContent::Message(publication) = &kept.content else {
                    return None;
                };
                if kept.local_delivery != LocalDelivery::Awaited {
                    return None;
                }
                kept.local_delivery = LocalDelivery::Early;
                Some(AwaitedMessage {
                    number,
                    publication: Publication::clone(publication),
                    accepted_at: kept.accepted_at,
                    may_be_accepted: number < out_to,
                })
            })
            .collect()
    }

    /// One message of the channel waits no more.
    fn decrement_unsent(&mut self, channel: Option<&ChannelName>) {
        if let Some(channel) = channel
            && let Some(count) = self.unsent_without_subscribers.get_mut(channel)
        {
            *count -= 1;
            if *count == 0 {
                self.unsent_without_subscribers.remove(channel);
            }
        }
    }

    fn get(&mut self, number: u64) -> Option<&mut OutboxEntry> {
        let index = usize::try_from(number.checked_sub(self.first_number)?).ok()?;
        self.entries.get_mut(index)
    }

    fn drop_oldest(&mut self, now: Instant) {
        let Some(oldest) = self.entries.pop_front() else {
            return;
        };
        self.bytes -= oldest.bytes;
        let unsubscribed = oldest.has_no_local_subscriber().then_some(&oldest.channel);
        self.decrement_unsent(unsubscribed);
        let number = self.first_number;
        self.first_number += 1;
        if oldest.accepted_at.is_some() {
            self.last_unkept_at = Some(now);
            return;
        }
        self.accepted_up_to = self.first_number;
        self.unsent_bytes -= oldest.bytes;
        self.dropped_messages += 1;
        let channel = oldest.channel;
        if self.lost_by_channel.len() < MAX_LOST_CHANNELS
            || self.lost_by_channel.contains_key(&channel)
        {
            self.lost_by_channel.insert(channel, number);
        } else {
            self.lost_in_all_channels = Some(number);
        }
    }

    /// The gaps to announce to the others, in the order of their numbers.
    fn gap_entries(&self) -> Vec<OutgoingEntry> {
        let gap = |number, channel, content| OutgoingEntry {
            number,
            channel,
            was_delivered_early: false,
            content,
        };
        let of_all = self.lost_in_all_channels;
        let of_all =
            of_all.map(|number| gap(number, broadcast_channel(), EntryContent::GapInAllChannels));
        let by_channel = self.lost_by_channel.iter();
        let by_channel =
            by_channel.map(|(channel, &number)| gap(number, channel.clone(), EntryContent::Gap));
        let mut losses: Vec<_> = of_all.into_iter().chain(by_channel).collect();
        losses.sort_by_key(|loss| loss.number);
        // Redis takes a number once: of two losses with the same the one of all channels counts.
        losses.dedup_by_key(|loss| loss.number);
        losses.truncate(MAX_BATCH_MESSAGES);
        losses
    }
}

fn increment(counts: &mut HashMap<ChannelName, usize>, channel: &ChannelName) {
    *counts.entry(channel.clone()).or_default() += 1;
}

/// The channel that all servers follow, whatever they hold: no subscriber's, since theirs have
/// names.
pub(super) fn broadcast_channel() -> ChannelName {
    Arc::from("")
}

/// About what a publication takes in memory.
pub(super) fn publication_memory_bytes(publication: &Publication) -> usize {
    size_of::<OutboxEntry>()
        + publication.channel.len()
        + publication.size()
        + 32 * publication.meta.len()
}

#[cfg(test)]
mod tests;
