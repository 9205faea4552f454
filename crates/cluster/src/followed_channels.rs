//! All channels that this server follows: which one is subscribed to, read or dropped next. Pure.
//!
//! Inputs: local subscribers, replies and pushes of Redis, connections that come and go. Outputs:
//! [`BusEffect`]s for this server's hub, and the next subscriptions, reads and unsubscriptions,
//! each bounded. Driven by `bus_state_machine`.
//!
//! # Invariants
//! - A channel with a subscriber is followed.
//! - The channel that announces gaps in all channels is read before any other.
//! - The queue of reads is bounded.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use penstock_hub::{Publication, SharedHistory};

use crate::entry::{ChannelName, NodeId, RedisClock, RedisStreamEntry, StreamPosition};
use crate::followed_channel::{
    DatasetContinuity, FollowState, FollowedChannel, StreamPage, StreamReadRequest,
};
use crate::outbox::broadcast_channel;

/// A channel without a subscriber is followed for so long: long polls come back.
const UNFOLLOW_DELAY: Duration = Duration::from_secs(60);

const MAX_SUBSCRIBE_CHANNELS: usize = 500;

const MAX_CONCURRENT_READS: usize = 64;

/// Entries of all channels that wait for reads.
const MAX_TOTAL_HELD: usize = 20_000;

/// What this server's hub is to do, in this order.
#[derive(Debug)]
pub(super) enum BusEffect {
    /// To the subscribers, and into the history.
    Deliver(Box<Publication>),
    /// Replaces the channel's history.
    RestoreHistory(ChannelName, SharedHistory),
    /// The channel's subscribers may have missed something.
    AnnounceGap(ChannelName),
    /// All histories are invalid. If `announced`, all subscribers may have missed something.
    InvalidateAllHistories { announced: bool },
    /// All histories up to a position are incomplete.
    HistoriesIncompleteUpTo(StreamPosition),
    /// This server's own message of that number is delivered.
    OwnMessageDelivered(u64),
    /// Publications to the channel arrive from now on.
    ChannelLive(ChannelName),
    /// They no longer arrive.
    ChannelNotLive(ChannelName),
}

/// The context of decisions about one channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct FollowContext {
    pub(super) now: Instant,
    pub(super) node_id: NodeId,
    /// How long a stream is kept in Redis after its last entry.
    pub(super) stream_ttl: Duration,
    /// Everything published before this time has arrived, on earlier connections.
    pub(super) complete_at: Instant,
    /// The position up to which all histories are incomplete.
    pub(super) incomplete_up_to: StreamPosition,
    pub(super) total_held: usize,
    pub(super) max_held: usize,
    pub(super) clock: RedisClock,
}

impl FollowContext {
    pub(super) fn elapsed_since(&self, at: Instant) -> Duration {
        self.now.saturating_duration_since(at)
    }
}

#[derive(Debug)]
pub(super) struct FollowedChannels {
    channels: HashMap<ChannelName, FollowedChannel>,
    to_subscribe: VecDeque<ChannelName>,
    to_read: VecDeque<ChannelName>,
    to_unsubscribe: HashSet<ChannelName>,
    /// Those without subscribers, since when, the first of them first.
    idle_channels: VecDeque<(Instant, ChannelName)>,
    is_connected: bool,
    /// Reads that were requested.
    last_read_id: u64,
    context: FollowContext,
    broadcast_channel: ChannelName,
}

impl FollowedChannels {
    pub(super) fn new(me: NodeId, now: Instant) -> Self {
        let everywhere = broadcast_channel();
        Self {
            channels: HashMap::from([(everywhere.clone(), FollowedChannel::new(now))]),
            to_subscribe: VecDeque::new(),
            to_read: VecDeque::new(),
            to_unsubscribe: HashSet::new(),
            idle_channels: VecDeque::new(),
            is_connected: false,
            last_read_id: 0,
            context: FollowContext {
                now,
                node_id: me,
                stream_ttl: Duration::from_secs(60),
                complete_at: now,
                incomplete_up_to: StreamPosition::START,
                total_held: 0,
                max_held: MAX_TOTAL_HELD,
                clock: RedisClock {
                    read_at: now,
                    ms: 0,
                },
            },
            broadcast_channel: everywhere,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.channels.len() - 1
    }

    pub(super) fn get(&self, channel: &str) -> Option<&FollowedChannel> {
        self.channels.get(channel)
    }

    pub(super) fn get_mut(&mut self, channel: &str) -> Option<&mut FollowedChannel> {
        self.channels.get_mut(channel)
    }

    /// Follows a channel that a subscriber is about to come to. True when it is live.
    pub(super) fn prepare_channel(&mut self, now: Instant, channel: &ChannelName) -> bool {
        let follow = self.ensure_followed(now, channel);
        let is_live = follow.state == FollowState::Live;
        self.on_unsubscribed(now, channel);
        is_live
    }

    /// Whether publications to all of these arrive.
    pub(super) fn are_live(&self, channels: &[ChannelName]) -> bool {
        channels.iter().all(|channel| {
            let follow = self.channels.get(channel);
            follow.is_some_and(|follow| follow.state == FollowState::Live)
        })
    }

    /// A channel has its first subscriber here.
    pub(super) fn on_subscribed(&mut self, now: Instant, channel: &ChannelName) {
        self.ensure_followed(now, channel).on_subscribed(now);
    }

    fn ensure_followed(&mut self, now: Instant, channel: &ChannelName) -> &mut FollowedChannel {
        self.to_unsubscribe.remove(channel);
        if !self.channels.contains_key(channel) && self.is_connected {
            self.to_subscribe.push_back(channel.clone());
        }
        self.channels
            .entry(channel.clone())
            .or_insert_with(|| FollowedChannel::new(now))
    }

    /// A channel has lost its last subscriber here, or has none yet.
    pub(super) fn on_unsubscribed(&mut self, now: Instant, channel: &ChannelName) {
        let Some(follow) = self.channels.get_mut(channel) else {
            return;
        };
        follow.idle_since = Some(now);
        if !std::mem::replace(&mut follow.is_in_idle_list, true) {
            self.idle_channels.push_back((now, channel.clone()));
        }
    }

    /// Unfollows channels that were idle for a while; `in_use` tells which ones have subscribers.
    pub(super) fn unfollow_idle(
        &mut self,
        now: Instant,
        in_use: impl Fn(&str) -> bool,
        effects: &mut Vec<BusEffect>,
    ) {
        let is_due = |since: Instant| now.saturating_duration_since(since) >= UNFOLLOW_DELAY;
        while self
            .idle_channels
            .front()
            .is_some_and(|(since, _)| is_due(*since))
        {
            let Some((_, channel)) = self.idle_channels.pop_front() else {
                return;
            };
            let Some(follow) = self.channels.get_mut(&channel) else {
                continue;
            };
            follow.is_in_idle_list = false;
            match follow.idle_since {
                None => {}
                Some(_) if in_use(&channel) => self.on_unsubscribed(now, &channel),
                Some(since) if is_due(since) => {
                    self.unfollow(&channel);
                    effects.push(BusEffect::ChannelNotLive(channel.clone()));
                    // It would have gaps when it is read again.
                    effects.push(BusEffect::RestoreHistory(channel, SharedHistory::default()));
                }
                Some(since) => {
                    follow.is_in_idle_list = true;
                    self.idle_channels.push_back((since, channel));
                }
            }
        }
    }

    fn unfollow(&mut self, channel: &ChannelName) {
        let follow = self.channels.remove(channel);
        self.context.total_held -= follow.as_ref().map_or(0, FollowedChannel::held_entry_count);
        if self.is_connected
            && follow.is_some_and(|follow| follow.state != FollowState::Unsubscribed)
        {
            self.to_unsubscribe.insert(channel.clone());
        }
    }

    /// The connection is gone.
    pub(super) fn on_disconnected(&mut self) {
        self.is_connected = false;
        self.to_subscribe.clear();
        self.to_read.clear();
        self.to_unsubscribe.clear();
        self.context.total_held = 0;
        for follow in self.channels.values_mut() {
            follow.on_disconnected();
        }
    }

    /// Another is there; up to `whole_at` all has come, and streams are kept for `kept`.
    pub(super) fn on_connected(
        &mut self,
        trust: DatasetContinuity,
        whole_at: Instant,
        kept: Duration,
        clock: RedisClock,
    ) {
        self.is_connected = true;
        self.context.clock = clock;
        (self.context.complete_at, self.context.stream_ttl) = (whole_at, kept);
        if matches!(trust, DatasetContinuity::Other | DatasetContinuity::Lost) {
            self.context.incomplete_up_to = StreamPosition::START;
        }
        self.to_subscribe.push_back(self.broadcast_channel.clone());
        for (channel, follow) in &mut self.channels {
            follow.on_connected(trust);
            if *channel != self.broadcast_channel {
                self.to_subscribe.push_back(channel.clone());
            }
        }
    }

    pub(super) fn next_subscriptions(&mut self) -> Vec<ChannelName> {
        let count = self.to_subscribe.len().min(MAX_SUBSCRIBE_CHANNELS);
        let mut next: Vec<ChannelName> = self.to_subscribe.drain(..count).collect();
        next.retain(|channel| match self.channels.get_mut(channel) {
            Some(follow) if follow.state == FollowState::Unsubscribed => {
                follow.state = FollowState::Subscribing;
                true
            }
            _ => false,
        });
        next
    }

    pub(super) fn next_unsubscriptions(&mut self) -> Vec<ChannelName> {
        let next: Vec<ChannelName> = self
            .to_unsubscribe
            .iter()
            .take(MAX_SUBSCRIBE_CHANNELS)
            .cloned()
            .collect();
        for channel in &next {
            self.to_unsubscribe.remove(channel);
        }
        next
    }

    /// Redis has subscribed this server to these channels.
    pub(super) fn confirm_subscribed(&mut self, channels: &[ChannelName]) {
        for channel in channels {
            if let Some(follow) = self.channels.get_mut(channel)
                && follow.state == FollowState::Subscribing
            {
                follow.state = FollowState::Reading;
                self.to_read.push_back(channel.clone());
            }
        }
    }

    /// What to read next. Histories only with `may_load`: when Redis has all that was delivered
    /// here.
    pub(super) fn next_reads(&mut self, now: Instant, may_load: bool) -> Vec<StreamReadRequest> {
        let knows_torn = self
            .channels
            .get(&self.broadcast_channel)
            .is_some_and(|follow| follow.state == FollowState::Live);
        let mut reads = Vec::new();
        for _ in 0..self.to_read.len() {
            if reads.len() == MAX_CONCURRENT_READS {
                break;
            }
            let Some(channel) = self.to_read.pop_front() else {
                break;
            };
            let Some(follow) = self.channels.get_mut(&channel) else {
                continue;
            };
            if follow.state != FollowState::Reading {
                continue;
            }
            let is_first = channel == self.broadcast_channel;
            if (knows_torn && (may_load || follow.is_history_loaded())) || is_first {
                self.last_read_id += 1;
                reads.push(follow.begin_read(now, &channel, self.last_read_id));
            } else {
                self.to_read.push_back(channel);
            }
        }
        reads
    }

    pub(super) fn apply_page(
        &mut self,
        now: Instant,
        part: StreamPage,
        effects: &mut Vec<BusEffect>,
    ) {
        self.context.now = now;
        let channel = part.channel.clone();
        let Some(follow) = self.channels.get_mut(&channel) else {
            return;
        };
        let held = follow.held_entry_count();
        if follow.apply_page(&self.context, part, effects) {
            self.to_read.push_back(channel);
        }
        self.context.total_held -= held - follow.held_entry_count();
    }

    pub(super) fn on_entry(
        &mut self,
        now: Instant,
        entry: RedisStreamEntry,
        effects: &mut Vec<BusEffect>,
    ) {
        self.context.now = now;
        let channel = entry.channel.clone();
        let Some(follow) = self.channels.get_mut(&channel) else {
            return;
        };
        let held = follow.held_entry_count();
        if follow.on_entry(&self.context, entry, effects) {
            self.to_read.push_back(channel);
        }
        self.context.total_held += follow.held_entry_count() - held;
    }

    /// Marks all histories up to a position as incomplete.
    pub(super) fn mark_histories_incomplete(&mut self, to: StreamPosition) {
        self.context.incomplete_up_to = self.context.incomplete_up_to.max(to);
    }

    /// All channels with a loaded history.
    pub(super) fn loaded_channels(&self) -> impl Iterator<Item = &ChannelName> {
        self.channels
            .iter()
            .filter(|(channel, follow)| {
                follow.is_history_loaded() && **channel != self.broadcast_channel
            })
            .map(|(channel, _)| channel)
    }

    /// Whether every channel followed before this connection is live again.
    pub(super) fn is_caught_up(&self) -> bool {
        let is_caught_up = |follow: &FollowedChannel| {
            follow.state == FollowState::Live || !follow.is_history_loaded()
        };
        self.channels.values().all(is_caught_up)
    }
}
