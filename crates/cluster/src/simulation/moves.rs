//! Subscribers that move from one server to another, as at an upgrade: with the id of their last
//! message.
//!
//! A moved subscriber keeps what it got, so the checks at the end see one that was never moved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::{ClusterSimulation, ObservedChannel, Received};
use crate::entry::ChannelName;
use crate::followed_channel::FollowedChannel;

/// A subscriber on its way.
#[derive(Debug)]
pub(super) struct MovingSubscriber {
    to: usize,
    channel: ChannelName,
    since: u64,
    log: Vec<(u64, Received)>,
    place: Place,
    told: oneshot::Receiver<()>,
    asked_at: Instant,
}

/// How long a server may take to catch up before it is asked again.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(100);

/// As the hub's `SharedPlace`.
#[derive(Debug)]
enum Place {
    After(Arc<str>),
    Start,
    Unknown,
}

impl ClusterSimulation {
    /// A time that no earlier step had.
    pub(super) fn instant(&self) -> Instant {
        self.now + Duration::from_nanos(self.step)
    }

    /// Moves the subscriber of a channel to a server that has none, if it can move now.
    pub(super) fn move_subscriber(&mut self, from: usize, to: usize, channel: ChannelName) {
        let has_subscriber = |number: usize| {
            let node = &self.nodes[number];
            let seen = node.channels.get(&channel);
            let is_expected = node.expected.contains_key(&channel);
            is_expected || seen.is_some_and(|seen| seen.since.is_some())
        };
        let is_taken = self
            .moves
            .iter()
            .any(|it| (it.to, &it.channel) == (to, &channel));
        let node = &self.nodes[from];
        let is_ready = node.machine.is_in_step() && node.live.contains(&channel);
        if from == to || is_taken || !is_ready || !has_subscriber(from) || has_subscriber(to) {
            return;
        }
        let followed = node.machine.followed_channels.get(&channel);
        let is_empty = followed.is_some_and(FollowedChannel::is_empty);
        let Some(seen) = self.nodes[from].channels.get_mut(&channel) else {
            return;
        };
        let Some(since) = seen.since.take() else {
            return;
        };
        let place = match &seen.last_id {
            Some(id) => Place::After(id.clone()),
            None if is_empty => Place::Start,
            None => Place::Unknown,
        };
        let log = std::mem::take(&mut seen.log);
        self.nodes[from]
            .machine
            .followed_channels
            .on_unsubscribed(self.now, &channel);
        let told = self.ask_to_catch_up(to, &channel);
        self.moves.push(MovingSubscriber {
            to,
            channel,
            since,
            log,
            place,
            told,
            asked_at: self.now,
        });
        self.settle(to);
    }

    fn ask_to_catch_up(&mut self, number: usize, channel: &ChannelName) -> oneshot::Receiver<()> {
        let (sender, told) = oneshot::channel();
        let node = &mut self.nodes[number];
        node.machine.follow_channel(self.now, channel);
        node.catch_ups.add(vec![channel.clone()], sender);
        told
    }

    /// Takes the subscribers that a server has caught up with.
    pub(super) fn take_moved(&mut self, number: usize) {
        let now = self.instant();
        let node = &mut self.nodes[number];
        node.catch_ups.advance(now, &node.machine);
        for mut moving in std::mem::take(&mut self.moves) {
            if moving.to != number {
                self.moves.push(moving);
                continue;
            }
            match moving.told.try_recv() {
                Ok(()) => self.take_subscriber(moving),
                Err(TryRecvError::Empty) if self.now < moving.asked_at + CATCH_UP_TIMEOUT => {
                    self.moves.push(moving);
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => {
                    moving.told = self.ask_to_catch_up(number, &moving.channel);
                    moving.asked_at = self.now;
                    self.moves.push(moving);
                }
            }
        }
    }

    fn take_subscriber(&mut self, moving: MovingSubscriber) {
        let (step, node) = (self.step, &mut self.nodes[moving.to]);
        let seen = node.channels.entry(moving.channel.clone()).or_default();
        seen.log = moving.log;
        seen.since = Some(moving.since);
        match seen.messages_behind(&moving.place) {
            Some(missed) => {
                let missed = missed.into_iter().map(|id| (step, Received::Message(id)));
                seen.log.extend(missed);
            }
            None => seen.log.push((step, Received::Gap)),
        }
        node.machine.on_subscribed(self.now, &moving.channel);
    }
}

impl ObservedChannel {
    /// What a subscriber lacks; `None` where that is not known.
    fn messages_behind(&self, place: &Place) -> Option<Vec<Arc<str>>> {
        let first = match place {
            Place::After(id) => self.history.iter().position(|kept| kept == id)? + 1,
            Place::Start if self.is_whole => 0,
            Place::Start | Place::Unknown => return None,
        };
        Some(self.history[first..].to_vec())
    }
}
