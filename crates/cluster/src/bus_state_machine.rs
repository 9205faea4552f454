//! The state machine of one server among several: how it reacts to each event. Pure.
//!
//! Inputs: publications and subscribers of this server, connections to Redis that come and go,
//! replies and pushes of Redis, time. Outputs: [`BusEffect`]s for this server's hub in order, and
//! the next request to Redis. Driven by `bus_driver`, simulated with seeds. There are two modes.
//! *Shared*: a publication goes to Redis and comes back from there, to this server as to all
//! others, so that all have one order. *Alone*, while Redis does not answer: this server's
//! subscribers get it at once, the others once Redis has it.
//!
//! # Invariants
//! - A subscriber gets each message at most once.
//! - The publications of one server to one channel arrive everywhere in their order.
//! - A message that may be missing is announced as a gap.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use penstock_hub::{Publication, SharedHistory};

use crate::entry::{ChannelName, EntryContent, NodeId, RedisDataset, RedisStreamEntry};
use crate::followed_channel::{DatasetContinuity, StreamPage, StreamReadRequest};
use crate::followed_channels::{BusEffect, FollowedChannels};
use crate::outbox::{LocalDelivery, Outbox, OutgoingEntry, RESEND_WINDOW};

/// Redis that has not answered for so long is not waited for.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

/// With no more messages than that waiting, it keeps up again.
const CATCH_UP_THRESHOLD: usize = 256;

/// Channels that are followed ahead of their subscribers, unless the hub may have fewer; those that
/// have some are bounded by the hub.
const MAX_FOLLOWED: usize = 200_000;

/// How much shorter than what other servers keep an absence must be, for their clocks and
/// connections.
const ABSENCE_MARGIN: Duration = Duration::from_secs(5);

/// Which side delivers publications of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryMode {
    /// This server, at once.
    Standalone,
    /// Redis, to all servers in one order.
    Clustered,
}

#[derive(Debug)]
pub(super) struct BusStateMachine {
    node_id: NodeId,
    pub(super) mode: DeliveryMode,
    pub(super) outbox: Outbox,
    pub(super) followed_channels: FollowedChannels,
    is_connected: bool,
    /// The dataset of the last connection.
    last_dataset: Option<RedisDataset>,
    /// When the unanswered batch was sent.
    batch_sent_at: Option<Instant>,
    /// All that was published before has come.
    complete_at: Option<Instant>,
    is_settled: bool,
    /// The last message that was delivered here before Redis had it.
    last_early_number: u64,
    /// The last message or notice without which Redis has not what subscribers here have.
    last_unshared_number: u64,
    max_followed: usize,
    effects: Vec<BusEffect>,
}

impl BusStateMachine {
    pub(super) fn new(me: NodeId, now: Instant) -> Self {
        Self::with_outbox(me, now, Outbox::new())
    }

    pub(super) fn with_outbox(me: NodeId, now: Instant, outbox: Outbox) -> Self {
        Self {
            node_id: me,
            mode: DeliveryMode::Standalone,
            outbox,
            followed_channels: FollowedChannels::new(me, now),
            is_connected: false,
            last_dataset: None,
            batch_sent_at: None,
            complete_at: None,
            is_settled: false,
            last_early_number: 0,
            last_unshared_number: 0,
            max_followed: MAX_FOLLOWED,
            effects: Vec::new(),
        }
    }

    /// How many channels the hub may have.
    pub(super) fn set_max_channels(&mut self, max: usize) {
        self.max_followed = max.min(MAX_FOLLOWED);
    }

    /// Whether a reply is awaited that decides the mode.
    pub(super) fn is_awaiting_reply(&self) -> bool {
        self.batch_sent_at.is_some() && self.mode == DeliveryMode::Clustered
    }

    /// What the hub is to do, in this order.
    pub(super) fn take_effects(&mut self) -> Vec<BusEffect> {
        let mut effects = std::mem::take(&mut self.effects);
        if !effects.iter().any(is_internal_effect) {
            return effects;
        }
        let mut for_the_hub = Vec::with_capacity(effects.len());
        for effect in effects.drain(..) {
            match effect {
                BusEffect::OwnMessageDelivered(number) => self.outbox.mark_delivered(number),
                BusEffect::HistoriesIncompleteUpTo(position) => {
                    self.followed_channels.mark_histories_incomplete(position);
                }
                BusEffect::InvalidateAllHistories { announced } => {
                    for channel in self.followed_channels.loaded_channels() {
                        let restored = SharedHistory::default();
                        for_the_hub.push(BusEffect::RestoreHistory(channel.clone(), restored));
                        if announced {
                            for_the_hub.push(BusEffect::AnnounceGap(channel.clone()));
                        }
                    }
                }
                other => for_the_hub.push(other),
            }
        }
        for_the_hub
    }

    pub(super) fn publish(&mut self, now: Instant, mut publication: Publication) {
        if self.mode == DeliveryMode::Clustered && self.outbox.is_full_for(&publication) {
            self.enter_standalone(now);
        }
        let number = self.outbox.next_number();
        if publication.id.is_none() {
            publication.id = Some(format!("{}-{number}", self.node_id).into());
        }
        if self.mode == DeliveryMode::Clustered {
            let is_awaited = self.followed_channels.get(&publication.channel).is_some();
            let way = if is_awaited {
                LocalDelivery::Awaited
            } else {
                LocalDelivery::Done
            };
            self.outbox.submit(now, publication, way);
            return;
        }
        // So that its history is complete once Redis is back, or forgotten.
        let channel = publication.channel.clone();
        self.prepare_channel(now, &channel);
        self.last_early_number = number;
        self.effects
            .push(BusEffect::Deliver(Box::new(publication.clone())));
        match self.followed_channels.get_mut(&channel) {
            Some(follow) => {
                follow.record_early_delivery(self.node_id, number);
            }
            None => self
                .effects
                .push(BusEffect::RestoreHistory(channel, SharedHistory::default())),
        }
        self.outbox.submit(now, publication, LocalDelivery::Early);
    }

    /// A subscriber is about to come. True when the channel is live already.
    pub(super) fn prepare_channel(&mut self, now: Instant, channel: &ChannelName) -> bool {
        let is_new = self.followed_channels.get(channel).is_none();
        if is_new && self.followed_channels.len() >= self.max_followed {
            return true;
        }
        self.mark_awaited_if_new(channel);
        self.followed_channels.prepare_channel(now, channel)
    }

    /// Subscribers are about to come that another server had: the channel is followed in any case.
    pub(super) fn follow_channel(&mut self, now: Instant, channel: &ChannelName) {
        self.mark_awaited_if_new(channel);
        self.followed_channels.prepare_channel(now, channel);
    }

    /// Whether Redis has every message that subscribers here had before it: then it has each
    /// message that they have, in an order that other servers know.
    pub(super) fn is_in_step(&self) -> bool {
        let last = self.last_early_number.max(self.last_unshared_number);
        self.mode == DeliveryMode::Clustered && self.outbox.has_accepted(last)
    }

    fn mark_awaited_if_new(&mut self, channel: &ChannelName) {
        if self.followed_channels.get(channel).is_none() {
            self.outbox.mark_channel_awaited(channel);
        }
    }

    /// A channel has its first subscriber here.
    pub(super) fn on_subscribed(&mut self, now: Instant, channel: &ChannelName) {
        self.mark_awaited_if_new(channel);
        self.followed_channels.on_subscribed(now, channel);
    }

    /// There is a connection, to `data`; Redis keeps a channel's stream for `kept` after its last
    /// entry.
    pub(super) fn on_connected(&mut self, now: Instant, data: &RedisDataset, kept: Duration) {
        let before = self.last_dataset.replace(data.clone());
        let is_same = before.as_ref().is_none_or(|b| b.id == data.id);
        let runs = before.and_then(|before| before.run_id.zip(data.run_id.clone()));
        let is_same_run = runs.is_none_or(|(before, run)| before == run);
        let whole_at = *self.complete_at.get_or_insert(now);
        let away = now.saturating_duration_since(whole_at);
        // The others put again what they published lately into a Redis that may have lost it.
        let trust = match (is_same, is_same_run) {
            (true, true) => DatasetContinuity::Same,
            _ if away + ABSENCE_MARGIN >= RESEND_WINDOW => DatasetContinuity::Lost,
            (true, false) => DatasetContinuity::Older,
            (false, _) => DatasetContinuity::Other,
        };
        self.is_connected = true;
        self.is_settled = false;
        self.batch_sent_at = None;
        self.outbox
            .on_connected(now, trust == DatasetContinuity::Same);
        if trust != DatasetContinuity::Same {
            // All of it is sent again.
            self.last_unshared_number = self.outbox.next_number() - 1;
        }
        self.followed_channels
            .on_connected(trust, whole_at, kept, data.clock);
        self.update_mode();
    }

    /// The connection is gone, or in doubt.
    pub(super) fn on_disconnected(&mut self, now: Instant) {
        self.is_connected = false;
        self.batch_sent_at = None;
        self.enter_standalone(now);
        self.followed_channels.on_disconnected();
    }

    /// All that Redis published before `at` has come to [`BusStateMachine::on_entry`].
    pub(super) fn mark_complete_until(&mut self, at: Instant) {
        self.is_settled = self.is_settled || self.followed_channels.is_caught_up();
        if self.is_settled {
            self.complete_at = Some(at);
        }
    }

    /// The next batch for Redis; none while one is not answered.
    pub(super) fn next_batch(&mut self, now: Instant) -> Option<Vec<OutgoingEntry>> {
        if !self.is_connected {
            return None;
        }
        let batch = self.outbox.next_batch()?;
        self.batch_sent_at = Some(now);
        Some(batch)
    }

    pub(super) fn on_batch_accepted(&mut self, now: Instant, batch: &[OutgoingEntry]) {
        self.batch_sent_at = None;
        self.outbox.on_batch_accepted(now, batch);
        self.update_mode();
    }

    /// What to read next of streams.
    pub(super) fn next_reads(&mut self, now: Instant) -> Vec<StreamReadRequest> {
        let may_load = self.outbox.has_accepted(self.last_early_number);
        self.followed_channels.next_reads(now, may_load)
    }

    /// What was read of a stream.
    pub(super) fn apply_page(&mut self, now: Instant, part: StreamPage) {
        self.followed_channels
            .apply_page(now, part, &mut self.effects);
    }

    /// An entry was published.
    pub(super) fn on_entry(&mut self, now: Instant, entry: RedisStreamEntry) {
        self.followed_channels
            .on_entry(now, entry, &mut self.effects);
    }

    /// Time has passed in which no answer could be taken in.
    pub(super) fn extend_reply_deadline(&mut self, late: Duration) {
        if late >= REPLY_TIMEOUT / 4 {
            self.batch_sent_at = self.batch_sent_at.map(|at| at + late);
        }
    }

    /// Time has passed. `in_use` tells which channels have subscribers.
    pub(super) fn tick(&mut self, now: Instant, in_use: impl Fn(&str) -> bool) {
        if let Some(sent_at) = self.batch_sent_at
            && now.saturating_duration_since(sent_at) >= REPLY_TIMEOUT
        {
            self.enter_standalone(now);
        }
        if self.is_connected {
            let follows = &self.followed_channels;
            let is_awaited = |channel: &str, taken_at| {
                let follow = follows.get(channel);
                follow.is_some_and(|follow| !follow.was_history_loaded_after(Some(taken_at)))
            };
            self.outbox.drop_expired(now, is_awaited);
        }
        self.followed_channels
            .unfollow_idle(now, in_use, &mut self.effects);
    }

    fn update_mode(&mut self) {
        if self.is_connected && self.outbox.unsent_messages() <= CATCH_UP_THRESHOLD {
            self.mode = DeliveryMode::Clustered;
        }
    }

    /// Delivers locally what Redis was to deliver to this server's subscribers.
    fn enter_standalone(&mut self, now: Instant) {
        if self.mode == DeliveryMode::Standalone {
            return;
        }
        self.mode = DeliveryMode::Standalone;
        // What has come of it is noted first.
        self.effects = self.take_effects();
        let mut cut = HashSet::new();
        for awaited in self.outbox.take_awaited_messages() {
            // Without subscribers no client misses it, and its history is in Redis.
            let Some(follow) = self.followed_channels.get_mut(&awaited.publication.channel) else {
                continue;
            };
            if !follow.was_history_loaded_after(awaited.accepted_at)
                && follow.record_early_delivery(self.node_id, awaited.number)
            {
                self.last_early_number = self.last_early_number.max(awaited.number);
                if awaited.may_be_accepted {
                    cut.insert(awaited.publication.channel.clone());
                }
                self.effects
                    .push(BusEffect::Deliver(Box::new(awaited.publication)));
            }
        }
        for channel in cut {
            self.last_unshared_number = self.outbox.next_number();
            self.outbox
                .submit_notice(now, channel, EntryContent::HistoryInvalidated);
        }
    }
}

/// Whether the machine itself is to do it.
fn is_internal_effect(effect: &BusEffect) -> bool {
    matches!(
        effect,
        BusEffect::OwnMessageDelivered(_)
            | BusEffect::HistoriesIncompleteUpTo(_)
            | BusEffect::InvalidateAllHistories { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_that_are_published_to_alone_are_followed_within_a_bound() {
        let now = Instant::now();
        let mut machine = BusStateMachine::new(NodeId(1), now);
        machine.set_max_channels(10);
        machine.on_subscribed(now, &ChannelName::from("heard"));
        for number in 0..100 {
            let publication = Publication {
                channel: format!("c{number}").into(),
                ..Publication::default()
            };
            machine.publish(now, publication);
        }
        assert_eq!(machine.followed_channels.len(), 10);
        let mut last: Vec<BusEffect> = machine.take_effects();
        // A channel that is not followed has no history that could have a gap.
        let end = last.pop();
        assert!(
            matches!(&end, Some(BusEffect::RestoreHistory(channel, history)) if **channel == *"c99" && history.messages.is_empty()),
            "{end:?}"
        );
        machine.on_subscribed(now, &ChannelName::from("more"));
        assert_eq!(
            machine.followed_channels.len(),
            11,
            "a subscriber's always is"
        );
    }
}
