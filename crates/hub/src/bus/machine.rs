//! One node among several: what it does about each thing that can happen. Pure.
//!
//! Inputs: publications and subscribers of this node, connections to Redis that come and go, what Redis
//! answers and publishes, time. Outputs: [`Effect`]s for this node's hub in their order, and what is to be
//! asked of Redis next. Driven by `driver`, simulated with seeds. Two modes. *Shared*: a publication goes
//! to Redis and comes back from there, to this node like to all others, so that all have one order.
//! *Alone*, when Redis does not answer: this node's subscribers get it at once, and the others once Redis has it.
//!
//! What must stay true: a subscriber gets each message at most once; what one node publishes to one channel
//! arrives everywhere in that order; what may be missing is announced.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::entry::{Channel, Data, Entry, NodeId, What};
use super::follow::{Part, Read, Trust};
use super::follows::{Effect, Follows};
use super::outbox::{KEPT_FOR, Outbox, Outgoing, Way};
use crate::Publication;

/// Redis that has not answered for so long is not waited for.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_millis(200);

/// With no more messages than that waiting, it keeps up again.
const KEEPS_UP: usize = 256;

/// Channels that are followed ahead of their subscribers, unless the hub may have fewer; those that have some are
/// bounded by the hub.
const FOLLOWED_MAX: usize = 200_000;

/// How much shorter than what other nodes keep an absence must be, for their clocks and connections.
const MARGIN: Duration = Duration::from_secs(5);

/// Who delivers what is published here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// This node, at once.
    Alone,
    /// Redis, to all nodes in one order.
    Shared,
}

/// One node.
#[derive(Debug)]
pub(super) struct Machine {
    me: NodeId,
    mode: Mode,
    outbox: Outbox,
    follows: Follows,
    is_connected: bool,
    /// Which data the last connection had.
    data: Option<Data>,
    /// When a batch was sent that is not answered.
    sent_at: Option<Instant>,
    /// All that was published before has come.
    whole_at: Option<Instant>,
    is_settled: bool,
    /// The last message that was delivered here before Redis had it.
    ahead: u64,
    followed_max: usize,
    effects: Vec<Effect>,
}

impl Machine {
    pub(super) fn new(me: NodeId, now: Instant) -> Self {
        Self::with_outbox(me, now, Outbox::new())
    }

    pub(super) fn with_outbox(me: NodeId, now: Instant, outbox: Outbox) -> Self {
        Self {
            me,
            mode: Mode::Alone,
            outbox,
            follows: Follows::new(me, now),
            is_connected: false,
            data: None,
            sent_at: None,
            whole_at: None,
            is_settled: false,
            ahead: 0,
            followed_max: FOLLOWED_MAX,
            effects: Vec::new(),
        }
    }

    /// How many channels the hub may have.
    pub(super) fn bound_channels(&mut self, max: usize) {
        self.followed_max = max.min(FOLLOWED_MAX);
    }

    /// Whether an answer is waited for that decides who delivers.
    pub(super) fn is_waiting(&self) -> bool {
        self.sent_at.is_some() && self.mode == Mode::Shared
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(super) fn follows(&self) -> &Follows {
        &self.follows
    }

    /// What the hub is to do, in this order.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        let mut effects = std::mem::take(&mut self.effects);
        if !effects.iter().any(is_for_us) {
            return effects;
        }
        let mut for_the_hub = Vec::with_capacity(effects.len());
        for effect in effects.drain(..) {
            match effect {
                Effect::Delivered(number) => self.outbox.delivered(number),
                Effect::Torn(position) => self.follows.torn(position),
                Effect::CutEverywhere { announced } => {
                    for channel in self.follows.loaded() {
                        for_the_hub.push(Effect::Restore(channel.clone(), Vec::new()));
                        if announced {
                            for_the_hub.push(Effect::Announce(channel.clone()));
                        }
                    }
                }
                other => for_the_hub.push(other),
            }
        }
        for_the_hub
    }

    /// Something is published on this node.
    pub(super) fn publish(&mut self, now: Instant, mut publication: Publication) {
        if self.mode == Mode::Shared && self.outbox.is_full_for(&publication) {
            self.go_alone(now);
        }
        let number = self.outbox.next_number();
        if publication.id.is_none() {
            publication.id = Some(format!("{}-{number}", self.me).into());
        }
        if self.mode == Mode::Shared {
            let is_awaited = self.follows.get(&publication.channel).is_some();
            let way = if is_awaited { Way::Awaited } else { Way::Done };
            self.outbox.submit(now, publication, way);
            return;
        }
        // So that its history is complete once Redis is back, or forgotten.
        let channel = publication.channel.clone();
        self.prepare(now, &channel);
        self.ahead = number;
        self.effects
            .push(Effect::Deliver(Box::new(publication.clone())));
        match self.follows.get_mut(&channel) {
            Some(follow) => {
                follow.deliver_ahead(self.me, number);
            }
            None => self.effects.push(Effect::Restore(channel, Vec::new())),
        }
        self.outbox.submit(now, publication, Way::Ahead);
    }

    /// A subscriber is about to come. True when what is published to its channel comes already.
    pub(super) fn prepare(&mut self, now: Instant, channel: &Channel) -> bool {
        let is_new = self.follows.get(channel).is_none();
        if is_new && self.follows.len() >= self.followed_max {
            return true;
        }
        self.begins(channel);
        self.follows.prepare(now, channel)
    }

    fn begins(&mut self, channel: &Channel) {
        if self.follows.get(channel).is_none() {
            self.outbox.is_awaited(channel);
        }
    }

    /// A channel has its first subscriber here.
    pub(super) fn subscribed(&mut self, now: Instant, channel: &Channel) {
        self.begins(channel);
        self.follows.subscribed(now, channel);
    }

    /// A channel has lost its last subscriber here.
    pub(super) fn unsubscribed(&mut self, now: Instant, channel: &Channel) {
        self.follows.unsubscribed(now, channel);
    }

    /// There is a connection, to `data`; Redis keeps a channel's stream for `kept` after its last entry.
    pub(super) fn connected(&mut self, now: Instant, data: &Data, kept: Duration) {
        let before = self.data.replace(data.clone());
        let is_same = before.as_ref().is_none_or(|b| b.mark == data.mark);
        let runs = before.and_then(|before| before.run.zip(data.run.clone()));
        let is_same_run = runs.is_none_or(|(before, run)| before == run);
        let whole_at = *self.whole_at.get_or_insert(now);
        let away = now.saturating_duration_since(whole_at);
        // The others put again what they published lately into a Redis that may have lost it.
        let trust = match (is_same, is_same_run) {
            (true, true) => Trust::Same,
            _ if away + MARGIN >= KEPT_FOR => Trust::Lost,
            (true, false) => Trust::Older,
            (false, _) => Trust::Other,
        };
        self.is_connected = true;
        self.is_settled = false;
        self.sent_at = None;
        self.outbox.connected(now, trust == Trust::Same);
        self.follows.connected(trust, whole_at, kept, data.clock);
        self.settle_mode();
    }

    /// The connection is gone, or in doubt.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.is_connected = false;
        self.sent_at = None;
        self.go_alone(now);
        self.follows.disconnected();
    }

    /// All that Redis published before `at` has come to [`Machine::heard`].
    pub(super) fn whole(&mut self, at: Instant) {
        self.is_settled = self.is_settled || self.follows.is_settled();
        if self.is_settled {
            self.whole_at = Some(at);
        }
    }

    /// The next batch for Redis; none while one is not answered.
    pub(super) fn next_batch(&mut self, now: Instant) -> Option<Vec<Outgoing>> {
        if !self.is_connected {
            return None;
        }
        let batch = self.outbox.next_batch()?;
        self.sent_at = Some(now);
        Some(batch)
    }

    /// Redis has a batch.
    pub(super) fn taken(&mut self, now: Instant, batch: &[Outgoing]) {
        self.sent_at = None;
        self.outbox.taken(now, batch);
        self.settle_mode();
    }

    /// The next channels to subscribe to.
    pub(super) fn next_subscriptions(&mut self) -> Vec<Channel> {
        self.follows.next_subscriptions()
    }

    /// The next channels to unsubscribe from.
    pub(super) fn next_unsubscriptions(&mut self) -> Vec<Channel> {
        self.follows.next_unsubscriptions()
    }

    /// Redis has subscribed this node to these channels.
    pub(super) fn are_subscribed(&mut self, channels: &[Channel]) {
        for channel in channels {
            self.follows.is_subscribed(channel);
        }
    }

    /// What to read next of streams.
    pub(super) fn next_reads(&mut self, now: Instant) -> Vec<Read> {
        let may_load = self.outbox.has_taken(self.ahead);
        self.follows.next_reads(now, may_load)
    }

    /// What was read of a stream.
    pub(super) fn read(&mut self, now: Instant, part: Part) {
        self.follows.read(now, part, &mut self.effects);
    }

    /// An entry was published.
    pub(super) fn heard(&mut self, now: Instant, entry: Entry) {
        self.follows.heard(now, entry, &mut self.effects);
    }

    /// Time has passed in which no answer could be taken in.
    pub(super) fn was_late(&mut self, late: Duration) {
        if late >= ANSWERS_WITHIN / 4 {
            self.sent_at = self.sent_at.map(|at| at + late);
        }
    }

    /// Time has passed. `in_use` tells of channels that somebody uses.
    pub(super) fn tick(&mut self, now: Instant, in_use: impl Fn(&str) -> bool) {
        if let Some(sent_at) = self.sent_at
            && now.saturating_duration_since(sent_at) >= ANSWERS_WITHIN
        {
            self.go_alone(now);
        }
        if self.is_connected {
            let follows = &self.follows;
            let is_awaited = |channel: &str, taken_at| {
                let follow = follows.get(channel);
                follow.is_some_and(|follow| !follow.covers(Some(taken_at)))
            };
            self.outbox.prune(now, is_awaited);
        }
        self.follows.sweep(now, in_use, &mut self.effects);
    }

    fn settle_mode(&mut self) {
        if self.is_connected && self.outbox.waiting() <= KEEPS_UP {
            self.mode = Mode::Shared;
        }
    }

    /// This node's subscribers get what Redis was to bring them.
    fn go_alone(&mut self, now: Instant) {
        if self.mode == Mode::Alone {
            return;
        }
        self.mode = Mode::Alone;
        // What has come of it is noted first.
        self.effects = self.take_effects();
        let mut cut = HashSet::new();
        for awaited in self.outbox.take_awaited() {
            // Without subscribers nobody misses it, and its history is in Redis.
            let Some(follow) = self.follows.get_mut(&awaited.publication.channel) else {
                continue;
            };
            if !follow.covers(awaited.taken_at) && follow.deliver_ahead(self.me, awaited.number) {
                self.ahead = self.ahead.max(awaited.number);
                if awaited.is_out {
                    cut.insert(awaited.publication.channel.clone());
                }
                self.effects
                    .push(Effect::Deliver(Box::new(awaited.publication)));
            }
        }
        for channel in cut {
            self.outbox.submit_word(now, channel, What::Cut);
        }
    }
}

/// Whether the machine itself is to do it.
fn is_for_us(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Delivered(_) | Effect::Torn(_) | Effect::CutEverywhere { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_that_are_published_to_alone_are_followed_within_a_bound() {
        let now = Instant::now();
        let mut machine = Machine::new(NodeId(1), now);
        machine.bound_channels(10);
        machine.subscribed(now, &Channel::from("heard"));
        for number in 0..100 {
            let publication = Publication {
                channel: format!("c{number}").into(),
                ..Publication::default()
            };
            machine.publish(now, publication);
        }
        assert_eq!(machine.follows().len(), 10);
        let mut last: Vec<Effect> = machine.take_effects();
        // What is not followed has no history that could have a hole.
        let end = last.pop();
        assert!(
            matches!(&end, Some(Effect::Restore(channel, history)) if **channel == *"c99" && history.is_empty()),
            "{end:?}"
        );
        machine.subscribed(now, &Channel::from("more"));
        assert_eq!(machine.follows().len(), 11, "a subscriber's always is");
    }
}
