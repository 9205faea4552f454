//! One channel that this server follows: what has arrived, and whether it is complete. Pure.
//!
//! A channel is subscribed to in Redis, then read once (its history), and from then on is live:
//! each entry that arrives names the one before it. After a lost connection, or where an entry
//! does not fit, the missing part is read from the channel's stream. Driven by
//! `followed_channels`.
//!
//! # Invariants
//! - An entry is delivered once, in the order of the stream.
//! - Where the stream no longer reaches back to the last entry, a gap is announced before any
//!   later entry is delivered.

use std::time::{Duration, Instant};

use penstock_hub::{Publication, SharedHistory};

use crate::entry::{ChannelName, EntryContent, NodeId, RedisStreamEntry, StreamPosition};
use crate::followed_channels::{BusEffect, FollowContext};
use crate::last_seen_numbers::LastSeenNumbers;

/// Entries that come while a channel is being read; with more, it is read on.
const MAX_HELD_ENTRIES: usize = 256;

/// How long a subscriber waits for a channel to be live, before it comes all the same.
pub(super) const PREPARE_TIMEOUT: Duration = Duration::from_millis(500);

/// How far Redis' clock of a stream's end may be from ours.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct FollowedChannel {
    pub(super) state: FollowState,
    /// The last entry that came; none before the history was read.
    last_position: Option<StreamPosition>,
    /// When it came.
    last_received_at: Instant,
    last_seen: LastSeenNumbers,
    held_entries: Vec<RedisStreamEntry>,
    /// Entries were dropped during the read, so it is read again.
    must_read_again: bool,
    /// A gap that is not announced yet.
    has_unannounced_gap: bool,
    /// What the next read has to show.
    next_check: ContinuityCheck,
    /// When the first subscriber came, if the history had not: it may have missed something.
    subscribed_early_at: Option<Instant>,
    /// The last read that was requested, and when.
    pending_read: Option<(u64, Instant)>,
    /// When the history that was read had been requested.
    loaded_at: Option<Instant>,
    /// Messages delivered here before Redis had them: now, and at the last read.
    early_deliveries: u64,
    early_at_last_read: u64,
    /// Without a subscriber since; none is with one.
    pub(super) idle_since: Option<Instant>,
    pub(super) is_in_idle_list: bool,
}

/// How far it has come on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FollowState {
    /// To be subscribed to, or there is no connection.
    Unsubscribed,
    /// Redis was asked.
    Subscribing,
    /// Its stream is being read, or about to be.
    Reading,
    /// Publications arrive.
    Live,
}

/// What a reading has to show, so that nothing is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContinuityCheck {
    /// That it continues what came last.
    Continues,
    /// That what came last is there; else it is read from its start.
    LastIsPresent,
    /// From its start: that it reaches back to what had come.
    ReachesBack,
    /// Nothing: that something is missing was announced.
    NoCheck,
}

/// Whether a new connection reaches the same streams as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatasetContinuity {
    /// They are those of the last one.
    Same,
    /// They are those of the last one or an older state of them, into which the servers put again
    /// what may be lost.
    Older,
    /// They are others, into which the servers put again what the last ones may have lost.
    Other,
    /// They are others, and what was in the last ones is gone.
    Lost,
}

/// A read of a channel's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamReadRequest {
    pub(super) channel: ChannelName,
    /// From this entry on, itself included; none is the newest of its history.
    pub(super) from: Option<StreamPosition>,
    /// Identifies its reply.
    pub(super) read_id: u64,
}

#[derive(Debug)]
pub(super) struct StreamPage {
    pub(super) channel: ChannelName,
    pub(super) read_id: u64,
    pub(super) entries: Vec<RedisStreamEntry>,
    /// Whether the stream had no more.
    pub(super) is_last: bool,
}

impl FollowedChannel {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: FollowState::Unsubscribed,
            last_position: None,
            last_received_at: now,
            last_seen: LastSeenNumbers::default(),
            held_entries: Vec::new(),
            must_read_again: false,
            has_unannounced_gap: false,
            next_check: ContinuityCheck::Continues,
            subscribed_early_at: None,
            pending_read: None,
            loaded_at: None,
            early_deliveries: 0,
            early_at_last_read: 0,
            idle_since: None,
            is_in_idle_list: false,
        }
    }

    pub(super) fn is_history_loaded(&self) -> bool {
        self.last_position.is_some()
    }

    /// Whether its stream never had an entry, nor its subscribers here a message.
    pub(super) fn is_empty(&self) -> bool {
        self.last_position == Some(StreamPosition::START)
            && self.early_deliveries == 0
            && self.last_seen.is_empty()
    }

    /// Entries that wait for the end of a read.
    pub(super) fn held_entry_count(&self) -> usize {
        self.held_entries.len()
    }

    pub(super) fn on_subscribed(&mut self, now: Instant) {
        self.idle_since = None;
        if !self.is_history_loaded() {
            self.subscribed_early_at.get_or_insert(now);
        }
    }

    /// The connection is gone.
    pub(super) fn on_disconnected(&mut self) {
        self.state = FollowState::Unsubscribed;
        self.held_entries.clear();
        self.must_read_again = false;
    }

    /// Another connection is there.
    pub(super) fn on_connected(&mut self, trust: DatasetContinuity) {
        self.state = FollowState::Unsubscribed;
        match trust {
            DatasetContinuity::Same => {}
            DatasetContinuity::Older if self.last_position == Some(StreamPosition::START) => {
                self.next_check = ContinuityCheck::ReachesBack;
            }
            DatasetContinuity::Older if self.is_history_loaded() => {
                self.next_check = ContinuityCheck::LastIsPresent;
            }
            DatasetContinuity::Older => {}
            DatasetContinuity::Other | DatasetContinuity::Lost => {
                self.last_position = self.last_position.map(|_| StreamPosition::START);
                self.next_check = ContinuityCheck::Continues;
            }
        }
        let is_early = self.subscribed_early_at.is_some() && trust != DatasetContinuity::Same;
        self.has_unannounced_gap |= trust == DatasetContinuity::Lost || is_early;
    }

    pub(super) fn begin_read(
        &mut self,
        now: Instant,
        channel: &ChannelName,
        number: u64,
    ) -> StreamReadRequest {
        self.pending_read = Some((number, now));
        self.early_at_last_read = self.early_deliveries;
        StreamReadRequest {
            channel: channel.clone(),
            from: self.last_position,
            read_id: number,
        }
    }

    /// A message of this server, delivered here before Redis has it. False when it was there
    /// already.
    pub(super) fn record_early_delivery(&mut self, me: NodeId, number: u64) -> bool {
        let origin = super::entry::EntryOrigin { node: me, number };
        let is_new = self.last_seen.record_if_new(origin);
        self.early_deliveries += u64::from(is_new);
        is_new
    }

    /// Whether a message that Redis took at `taken_at` came before this channel's history was read:
    /// then it is in there, or older than it.
    pub(super) fn was_history_loaded_after(&self, taken_at: Option<Instant>) -> bool {
        let both = taken_at.zip(self.loaded_at);
        both.is_some_and(|(taken, loaded)| taken < loaded)
    }

    /// Applies a page of the stream. True when there is more to read.
    pub(super) fn apply_page(
        &mut self,
        context: &FollowContext,
        part: StreamPage,
        effects: &mut Vec<BusEffect>,
    ) -> bool {
        let StreamPage {
            channel,
            read_id: number,
            entries,
            is_last: is_end,
        } = part;
        let channel = &channel;
        let is_asked = self.pending_read.is_some_and(|(asked, _)| asked == number);
        if self.state != FollowState::Reading || !is_asked {
            return false;
        }
        let mut more = !is_end;
        match self.last_position {
            // Its history would miss what was delivered here meanwhile.
            None if self.early_deliveries != self.early_at_last_read => return true,
            None => {
                self.load_history(context, channel, entries, effects);
                more = false;
            }
            Some(last) => more |= self.apply_continuation(context, channel, last, entries, effects),
        }
        if more {
            return true;
        }
        for entry in std::mem::take(&mut self.held_entries) {
            if self
                .last_position
                .is_some_and(|last| entry.position <= last)
            {
                // It was read, or is of what was announced to be missing.
                self.skip_entry(context, &entry, effects);
                continue;
            }
            if !self.is_next(context, &entry) {
                announce_break(channel, effects);
            }
            self.deliver_entry(context, entry, effects);
        }
        if std::mem::take(&mut self.must_read_again) {
            return true;
        }
        self.state = FollowState::Live;
        effects.push(BusEffect::ChannelLive(channel.clone()));
        false
    }

    /// Loads the history: for clients that resume, not for present subscribers.
    fn load_history(
        &mut self,
        context: &FollowContext,
        channel: &ChannelName,
        entries: Vec<RedisStreamEntry>,
        effects: &mut Vec<BusEffect>,
    ) {
        let mut history: Vec<(Publication, Duration)> = Vec::new();
        // Whether the stream had nothing before, as far as it reaches back.
        let is_from_start = entries
            .first()
            .is_none_or(|first| first.previous == StreamPosition::START);
        let mut is_whole = is_from_start;
        let mut any_new = false;
        self.last_position = Some(StreamPosition::START);
        for entry in entries {
            self.last_position = Some(entry.position);
            let is_new = self.last_seen.record_if_new(entry.origin);
            any_new |= is_new;
            if entry.origin.node == context.node_id {
                effects.push(BusEffect::OwnMessageDelivered(entry.origin.number));
            }
            // The history begins anew behind the last entry for which this is so.
            let begins_anew = match &entry.content {
                // Some server lost messages, so everything up to here is incomplete.
                EntryContent::Message(_) => {
                    entry.position <= context.incomplete_up_to || entry.was_delivered_early
                }
                EntryContent::Gap | EntryContent::HistoryInvalidated => true,
                EntryContent::GapInAllChannels | EntryContent::AllHistoriesInvalidated => {
                    effects.push(BusEffect::HistoriesIncompleteUpTo(entry.position));
                    false
                }
            };
            if begins_anew {
                history.clear();
            } else if let EntryContent::Message(publication) = entry.content
                && is_new
            {
                let age = context.clock.entry_age(context.now, entry.position);
                history.push((*publication, age));
                continue;
            }
            is_whole = false;
        }
        self.last_received_at = context.now;
        self.loaded_at = self.pending_read.map(|(_, at)| at);
        let had_gap = std::mem::take(&mut self.has_unannounced_gap);
        let history = SharedHistory {
            messages: history,
            is_whole,
        };
        effects.push(BusEffect::RestoreHistory(channel.clone(), history));
        if let Some(since) = self.subscribed_early_at.take()
            && (any_new
                || had_gap
                || !is_from_start
                || context.elapsed_since(since) >= context.stream_ttl)
        {
            effects.push(BusEffect::AnnounceGap(channel.clone()));
        }
    }

    /// True when it is to be read again.
    fn apply_continuation(
        &mut self,
        context: &FollowContext,
        channel: &ChannelName,
        last: StreamPosition,
        entries: Vec<RedisStreamEntry>,
        effects: &mut Vec<BusEffect>,
    ) -> bool {
        let check = std::mem::replace(&mut self.next_check, ContinuityCheck::Continues);
        let had_gap = std::mem::take(&mut self.has_unannounced_gap);
        let first = entries.first();
        let is_whole = match check {
            ContinuityCheck::Continues => self.is_continuous(context, last, first),
            ContinuityCheck::LastIsPresent => {
                first.is_some_and(|first| first.position == last && self.has_seen(first))
            }
            ContinuityCheck::ReachesBack => self.reaches_back(context, first),
            ContinuityCheck::NoCheck => true,
        };
        if check == ContinuityCheck::LastIsPresent && !is_whole {
            self.has_unannounced_gap = had_gap;
            self.last_position = Some(StreamPosition::START);
            self.next_check = ContinuityCheck::ReachesBack;
            return true;
        }
        if had_gap || !is_whole {
            announce_break(channel, effects);
            if entries.is_empty() && last != StreamPosition::START {
                // It ends before what came last: all of it is another one.
                self.last_position = Some(StreamPosition::START);
                self.next_check = ContinuityCheck::NoCheck;
                return true;
            }
        }
        for entry in entries {
            if entry.position != last {
                self.deliver_entry(context, entry, effects);
            }
        }
        false
    }

    /// Whether an older state of the stream, of which `first` is the first entry, misses nothing
    /// that had not come and is not published again.
    fn reaches_back(&self, context: &FollowContext, first: Option<&RedisStreamEntry>) -> bool {
        match first {
            Some(first) if first.previous != StreamPosition::START => {
                // Of its own and of what went ahead it may have had those that come later.
                self.has_seen(first)
                    && first.origin.node != context.node_id
                    && !first.was_delivered_early
            }
            // It may have come and gone meanwhile, if that was long.
            _ => context.elapsed_since(context.complete_at) < context.stream_ttl,
        }
    }

    fn has_seen(&self, entry: &RedisStreamEntry) -> bool {
        self.last_seen.last_number_of(entry.origin.node) >= Some(entry.origin.number)
    }

    /// Whether a stream that begins with `first`, of those from `last` on, misses nothing behind
    /// `last`.
    fn is_continuous(
        &self,
        context: &FollowContext,
        last: StreamPosition,
        first: Option<&RedisStreamEntry>,
    ) -> bool {
        match first {
            Some(first) if first.position == last => true,
            Some(first) if first.previous != StreamPosition::START => first.previous == last,
            // The stream is gone, or was and is a new one. It goes with its age, counted from its
            // last entry; one that came meanwhile would have kept it.
            _ => {
                self.may_have_expired(context)
                    && context.elapsed_since(context.complete_at) < context.stream_ttl
            }
        }
    }

    /// Whether the stream may have gone since its last entry that came.
    fn may_have_expired(&self, context: &FollowContext) -> bool {
        self.last_position == Some(StreamPosition::START)
            || context.elapsed_since(self.last_received_at) + CLOCK_TOLERANCE >= context.stream_ttl
    }

    /// An entry was published. True when the stream is to be read.
    pub(super) fn on_entry(
        &mut self,
        context: &FollowContext,
        entry: RedisStreamEntry,
        effects: &mut Vec<BusEffect>,
    ) -> bool {
        match self.state {
            FollowState::Live => {}
            FollowState::Reading => {
                self.hold_entry(context, entry);
                return false;
            }
            // It will be read.
            FollowState::Unsubscribed | FollowState::Subscribing => return false,
        }
        if self.is_next(context, &entry) {
            self.deliver_entry(context, entry, effects);
            return false;
        }
        self.state = FollowState::Reading;
        self.hold_entry(context, entry);
        true
    }

    /// Whether nothing is missing before it; or it was there before.
    fn is_next(&self, context: &FollowContext, entry: &RedisStreamEntry) -> bool {
        let last = self.last_position.unwrap_or_default();
        entry.previous == last
            || self.has_seen(entry)
            || (entry.previous == StreamPosition::START && self.may_have_expired(context))
    }

    fn hold_entry(&mut self, context: &FollowContext, entry: RedisStreamEntry) {
        // After a dropped entry nothing fits.
        self.must_read_again |=
            self.held_entries.len() >= MAX_HELD_ENTRIES || context.total_held >= context.max_held;
        if !self.must_read_again {
            self.held_entries.push(entry);
        }
    }

    /// Skips an entry that is no longer delivered.
    fn skip_entry(
        &self,
        context: &FollowContext,
        entry: &RedisStreamEntry,
        effects: &mut Vec<BusEffect>,
    ) {
        if entry.origin.node == context.node_id {
            effects.push(BusEffect::OwnMessageDelivered(entry.origin.number));
        }
    }

    /// Delivers the next entry.
    fn deliver_entry(
        &mut self,
        context: &FollowContext,
        entry: RedisStreamEntry,
        effects: &mut Vec<BusEffect>,
    ) {
        let is_new = self.last_seen.record_if_new(entry.origin);
        let is_mine = entry.origin.node == context.node_id;
        if is_mine {
            effects.push(BusEffect::OwnMessageDelivered(entry.origin.number));
        }
        let advances = self.last_position.is_none_or(|last| entry.position > last);
        if is_new || advances {
            self.last_position = Some(entry.position);
            self.last_received_at = context.now;
        }
        match entry.content {
            EntryContent::Message(publication) => {
                if is_new {
                    effects.push(BusEffect::Deliver(publication));
                }
                // It came here in another order than it has in the stream.
                if entry.was_delivered_early || (!is_new && advances) {
                    effects.push(BusEffect::RestoreHistory(
                        entry.channel,
                        SharedHistory::default(),
                    ));
                }
            }
            EntryContent::Gap if is_new && !is_mine => announce_break(&entry.channel, effects),
            EntryContent::Gap | EntryContent::HistoryInvalidated => {
                effects.push(BusEffect::RestoreHistory(
                    entry.channel,
                    SharedHistory::default(),
                ));
            }
            EntryContent::GapInAllChannels | EntryContent::AllHistoriesInvalidated => {
                let is_gap = matches!(entry.content, EntryContent::GapInAllChannels);
                let announced = is_new && !is_mine && is_gap;
                effects.push(BusEffect::HistoriesIncompleteUpTo(entry.position));
                effects.push(BusEffect::InvalidateAllHistories { announced });
            }
        }
    }
}

/// A gap is announced: the next entries do not continue the last ones.
fn announce_break(channel: &ChannelName, effects: &mut Vec<BusEffect>) {
    effects.push(BusEffect::RestoreHistory(
        channel.clone(),
        SharedHistory::default(),
    ));
    effects.push(BusEffect::AnnounceGap(channel.clone()));
}

#[cfg(test)]
mod tests;
