//! All channels that this node follows: which are subscribed to, read and let go of next. Pure.
//!
//! Inputs: who subscribes here, what Redis answers and publishes, connections that come and go. Outputs:
//! [`Effect`]s for this node's hub, and the next subscriptions, readings and unsubscriptions, each bounded.
//! Driven by [`super::machine`]. What must stay true: a channel with a subscriber is followed; the channel
//! of everybody's gaps is read before any other; what waits for readings is bounded.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::entry::{Channel, Clock, Entry, NodeId, Position};
use super::follow::{Follow, Part, Read, State, Trust};
use super::outbox::everywhere;
use crate::Publication;

/// A channel without a subscriber is followed for so long: long polls come back.
const LINGER: Duration = Duration::from_secs(60);

/// Channels of one SUBSCRIBE.
const SUBSCRIBE_MAX: usize = 500;

/// Channels that are read in one go.
const READ_MAX: usize = 64;

/// Entries of all channels that wait for readings.
const HELD_ALL_MAX: usize = 20_000;

/// What this node's hub is to do, in this order.
#[derive(Debug)]
pub(super) enum Effect {
    /// To the subscribers, and into the history.
    Deliver(Box<Publication>),
    /// This is the channel's history from now on, each with its age.
    Restore(Channel, Vec<(Publication, Duration)>),
    /// The channel's subscribers may have missed something.
    Announce(Channel),
    /// All histories are cut, and all subscribers may have missed something where that is announced.
    CutEverywhere { announced: bool },
    /// All histories up to there miss something.
    Torn(Position),
    /// This node's own message of that number is delivered.
    Delivered(u64),
    /// What is published to the channel comes from now on.
    Ready(Channel),
    /// It comes no longer.
    Cold(Channel),
}

/// What the decisions about one channel need to know besides it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) now: Instant,
    pub(super) me: NodeId,
    /// How long a stream is kept in Redis after its last entry.
    pub(super) kept: Duration,
    /// All that was published before this has come, on the connections before this one.
    pub(super) whole_at: Instant,
    /// Up to where all histories miss something.
    pub(super) torn_to: Position,
    pub(super) held_all: usize,
    pub(super) held_max: usize,
    /// Redis' time.
    pub(super) clock: Clock,
}

impl Terms {
    pub(super) fn since(&self, at: Instant) -> Duration {
        self.now.saturating_duration_since(at)
    }
}

/// The channels.
#[derive(Debug)]
pub(super) struct Follows {
    channels: HashMap<Channel, Follow>,
    to_subscribe: VecDeque<Channel>,
    to_read: VecDeque<Channel>,
    to_unsubscribe: HashSet<Channel>,
    /// Those without subscribers, since when, the first of them first.
    idle: VecDeque<(Instant, Channel)>,
    is_connected: bool,
    /// Readings that were asked for.
    readings: u64,
    terms: Terms,
    everywhere: Channel,
}

impl Follows {
    pub(super) fn new(me: NodeId, now: Instant) -> Self {
        let everywhere = everywhere();
        Self {
            channels: HashMap::from([(everywhere.clone(), Follow::new(now))]),
            to_subscribe: VecDeque::new(),
            to_read: VecDeque::new(),
            to_unsubscribe: HashSet::new(),
            idle: VecDeque::new(),
            is_connected: false,
            readings: 0,
            terms: Terms {
                now,
                me,
                kept: Duration::from_secs(60),
                whole_at: now,
                torn_to: Position::START,
                held_all: 0,
                held_max: HELD_ALL_MAX,
                clock: Clock { at: now, ms: 0 },
            },
            everywhere,
        }
    }

    /// Channels that are followed.
    pub(super) fn len(&self) -> usize {
        self.channels.len() - 1
    }

    /// The channel, if it is followed.
    pub(super) fn get(&self, channel: &str) -> Option<&Follow> {
        self.channels.get(channel)
    }

    /// The channel, if it is followed.
    pub(super) fn get_mut(&mut self, channel: &str) -> Option<&mut Follow> {
        self.channels.get_mut(channel)
    }

    /// Follows a channel that a subscriber is about to come to. True when it is live.
    pub(super) fn prepare(&mut self, now: Instant, channel: &Channel) -> bool {
        let follow = self.follow(now, channel);
        let is_live = follow.state == State::Live;
        self.is_idle(now, channel);
        is_live
    }

    /// A channel has its first subscriber here.
    pub(super) fn subscribed(&mut self, now: Instant, channel: &Channel) {
        self.follow(now, channel).subscribed(now);
    }

    /// A channel has lost its last subscriber here.
    pub(super) fn unsubscribed(&mut self, now: Instant, channel: &Channel) {
        self.is_idle(now, channel);
    }

    fn follow(&mut self, now: Instant, channel: &Channel) -> &mut Follow {
        self.to_unsubscribe.remove(channel);
        if !self.channels.contains_key(channel) && self.is_connected {
            self.to_subscribe.push_back(channel.clone());
        }
        self.channels
            .entry(channel.clone())
            .or_insert_with(|| Follow::new(now))
    }

    fn is_idle(&mut self, now: Instant, channel: &Channel) {
        let Some(follow) = self.channels.get_mut(channel) else {
            return;
        };
        follow.idle_since = Some(now);
        if !std::mem::replace(&mut follow.is_listed, true) {
            self.idle.push_back((now, channel.clone()));
        }
    }

    /// Lets go of channels that nobody has used for a while; `in_use` tells of those that somebody does.
    pub(super) fn sweep(
        &mut self,
        now: Instant,
        in_use: impl Fn(&str) -> bool,
        effects: &mut Vec<Effect>,
    ) {
        let is_due = |since: Instant| now.saturating_duration_since(since) >= LINGER;
        while self.idle.front().is_some_and(|(since, _)| is_due(*since)) {
            let Some((_, channel)) = self.idle.pop_front() else {
                return;
            };
            let Some(follow) = self.channels.get_mut(&channel) else {
                continue;
            };
            follow.is_listed = false;
            match follow.idle_since {
                None => {}
                Some(_) if in_use(&channel) => self.is_idle(now, &channel),
                Some(since) if is_due(since) => {
                    self.let_go(&channel);
                    effects.push(Effect::Cold(channel.clone()));
                    // It would have holes when somebody asks for it again.
                    effects.push(Effect::Restore(channel, Vec::new()));
                }
                Some(since) => {
                    follow.is_listed = true;
                    self.idle.push_back((since, channel));
                }
            }
        }
    }

    fn let_go(&mut self, channel: &Channel) {
        let follow = self.channels.remove(channel);
        self.terms.held_all -= follow.as_ref().map_or(0, Follow::held);
        if self.is_connected && follow.is_some_and(|follow| follow.state != State::Away) {
            self.to_unsubscribe.insert(channel.clone());
        }
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self) {
        self.is_connected = false;
        self.to_subscribe.clear();
        self.to_read.clear();
        self.to_unsubscribe.clear();
        self.terms.held_all = 0;
        for follow in self.channels.values_mut() {
            follow.disconnected();
        }
    }

    /// Another is there; up to `whole_at` all has come, and streams are kept for `kept`.
    pub(super) fn connected(
        &mut self,
        trust: Trust,
        whole_at: Instant,
        kept: Duration,
        clock: Clock,
    ) {
        self.is_connected = true;
        self.terms.clock = clock;
        (self.terms.whole_at, self.terms.kept) = (whole_at, kept);
        if matches!(trust, Trust::Other | Trust::Lost) {
            self.terms.torn_to = Position::START;
        }
        self.to_subscribe.push_back(self.everywhere.clone());
        for (channel, follow) in &mut self.channels {
            follow.connected(trust);
            if *channel != self.everywhere {
                self.to_subscribe.push_back(channel.clone());
            }
        }
    }

    /// The next channels to subscribe to.
    pub(super) fn next_subscriptions(&mut self) -> Vec<Channel> {
        let count = self.to_subscribe.len().min(SUBSCRIBE_MAX);
        let mut next: Vec<Channel> = self.to_subscribe.drain(..count).collect();
        next.retain(|channel| match self.channels.get_mut(channel) {
            Some(follow) if follow.state == State::Away => {
                follow.state = State::Subscribing;
                true
            }
            _ => false,
        });
        next
    }

    /// The next channels to unsubscribe from.
    pub(super) fn next_unsubscriptions(&mut self) -> Vec<Channel> {
        let next: Vec<Channel> = self
            .to_unsubscribe
            .iter()
            .take(SUBSCRIBE_MAX)
            .cloned()
            .collect();
        for channel in &next {
            self.to_unsubscribe.remove(channel);
        }
        next
    }

    /// Redis has subscribed this node to the channel.
    pub(super) fn is_subscribed(&mut self, channel: &Channel) {
        if let Some(follow) = self.channels.get_mut(channel)
            && follow.state == State::Subscribing
        {
            follow.state = State::Reading;
            self.to_read.push_back(channel.clone());
        }
    }

    /// What to read next. Histories only with `may_load`: when Redis has all that was delivered here.
    pub(super) fn next_reads(&mut self, now: Instant, may_load: bool) -> Vec<Read> {
        let knows_torn = self
            .channels
            .get(&self.everywhere)
            .is_some_and(|follow| follow.state == State::Live);
        let mut reads = Vec::new();
        for _ in 0..self.to_read.len() {
            if reads.len() == READ_MAX {
                break;
            }
            let Some(channel) = self.to_read.pop_front() else {
                break;
            };
            let Some(follow) = self.channels.get_mut(&channel) else {
                continue;
            };
            if follow.state != State::Reading {
                continue;
            }
            let is_first = channel == self.everywhere;
            if (knows_torn && (may_load || follow.is_loaded())) || is_first {
                self.readings += 1;
                reads.push(follow.next_read(now, &channel, self.readings));
            } else {
                self.to_read.push_back(channel);
            }
        }
        reads
    }

    /// What was read of a channel's stream.
    pub(super) fn read(&mut self, now: Instant, part: Part, effects: &mut Vec<Effect>) {
        self.terms.now = now;
        let channel = part.channel.clone();
        let Some(follow) = self.channels.get_mut(&channel) else {
            return;
        };
        let held = follow.held();
        if follow.read(&self.terms, part, effects) {
            self.to_read.push_back(channel);
        }
        self.terms.held_all -= held - follow.held();
    }

    /// An entry was published.
    pub(super) fn heard(&mut self, now: Instant, entry: Entry, effects: &mut Vec<Effect>) {
        self.terms.now = now;
        let channel = entry.channel.clone();
        let Some(follow) = self.channels.get_mut(&channel) else {
            return;
        };
        let held = follow.held();
        if follow.heard(&self.terms, entry, effects) {
            self.to_read.push_back(channel);
        }
        self.terms.held_all += follow.held() - held;
    }

    /// All histories up to there miss something.
    pub(super) fn torn(&mut self, to: Position) {
        self.terms.torn_to = self.terms.torn_to.max(to);
    }

    /// All channels that subscribers may have missed something of.
    pub(super) fn loaded(&self) -> impl Iterator<Item = &Channel> {
        self.channels
            .iter()
            .filter(|(channel, follow)| follow.is_loaded() && **channel != self.everywhere)
            .map(|(channel, _)| channel)
    }

    /// Whether all that was followed before this connection is followed again.
    pub(super) fn is_settled(&self) -> bool {
        let is_settled = |follow: &Follow| follow.state == State::Live || !follow.is_loaded();
        self.channels.values().all(is_settled)
    }
}
