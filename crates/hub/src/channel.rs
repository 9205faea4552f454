//! A channel: its place for order, history and subscribers, shared by all threads.
//!
//! `hub` publishes into it, shards subscribe streams to it, long polls wait at it; `registry` finds it by
//! its name. One short lock guards all of it, so that everybody sees one order: a message gets its number,
//! goes into the history and to the shards that have subscribers under the lock, and a subscriber learns
//! under the same lock what came before it. What must stay true: the lock is never held across an await,
//! nor while a client is written to, a callback runs or the registry's lock is taken (which comes first);
//! a channel that the registry let go of is dead, and whoever meets it asks the registry again.

mod message;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use message::{Concern, FORMS, Message, Shape, bytes_of};

use crate::history::History;
use crate::hub::{Answerer, Feed};
use crate::order::Parked;
use crate::shares::Share;

/// One channel.
#[derive(Debug)]
pub(crate) struct Channel {
    name: Arc<str>,
    /// What its namespace has.
    share: Arc<Share>,
    /// Bytes of its messages that shards have not got to, or whose turn has not come.
    pub(crate) pending: AtomicUsize,
    /// Guards everything about it. See the head of this file.
    state: Mutex<State>,
}

/// What a channel's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    /// The shards that have subscribers.
    pub(crate) homes: Vec<Home>,
    /// Long polls that wait, by the order of their coming; none mostly.
    pub(crate) polls: BTreeMap<u64, Arc<Answerer>>,
    /// Tasks that listen, by the order of their coming; none mostly.
    pub(crate) listeners: BTreeMap<u64, Arc<Feed>>,
    pub(crate) history: History,
    /// The number of the last message that came with a restored history, or by which the history was cut:
    /// up to here numbers say nothing of the order in which messages of other channels were published.
    pub(crate) restored_to: u64,
    /// What was published while streams are on their way, and is not in the history that was put in the
    /// place of theirs; none mostly.
    pub(crate) before: Option<Box<History>>,
    /// Messages whose turn has not come; none mostly.
    pub(crate) parked: Option<Box<Parked>>,
    /// The same as the channel's, for code that has the state alone.
    pub(crate) share: Arc<Share>,
    /// Its place among its namespace's channels that are there for their history alone.
    unheard_place: Option<u64>,
    /// The number of the last message.
    pub(crate) last: u64,
    /// Its id.
    pub(crate) last_id: Option<Arc<str>>,
    /// Streams on their way to a shard: what is published meanwhile is kept for them.
    pub(crate) expected: u32,
    /// The registry let go of it.
    pub(crate) is_dead: bool,
    /// Its place among its namespace's channels that have a history.
    pub(crate) history_place: Option<u64>,
    /// It is of the house's own, so nobody comes back for its history.
    pub(crate) is_internal: bool,
}

/// A shard that has subscribers of a channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home {
    pub(crate) shard: u16,
    /// Where the shard keeps the channel.
    pub(crate) slot: u32,
    /// How many they are.
    pub(crate) subscribers: u32,
}

impl Channel {
    /// A channel of which nothing is known up to the message of this number.
    pub(crate) fn new(name: Arc<str>, since: u64, share: Arc<Share>) -> Self {
        let is_internal = is_internal(&name);
        Self {
            name,
            share: Arc::clone(&share),
            pending: AtomicUsize::new(0),
            state: Mutex::new(State {
                homes: Vec::new(),
                polls: BTreeMap::new(),
                listeners: BTreeMap::new(),
                history: History::since(since),
                restored_to: 0,
                before: None,
                parked: None,
                share,
                unheard_place: None,
                last: since,
                last_id: None,
                expected: 0,
                is_dead: false,
                history_place: None,
                is_internal,
            }),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What its namespace has.
    pub(crate) fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Its state. A panic under the lock cannot leave a sum wrong that others rely on: at worst one
    /// message's delivery is missing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its state, unless the registry has let go of it.
    pub(crate) fn lock_alive(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.lock();
        (!state.is_dead).then_some(state)
    }

    /// What one costs with its place in the registry, without history and subscribers.
    pub(crate) fn own_bytes(&self) -> usize {
        // The counters of two shared allocations, and the registry's slot at its usual load.
        size_of::<Self>() + self.name.len() + 2 * 2 * size_of::<usize>() + 16
    }
}

/// Whether a channel is of the house's own: clients' names begin with no control character.
pub(crate) fn is_internal(name: &str) -> bool {
    name.chars().next().is_some_and(char::is_control)
}

impl State {
    /// The number of the message with this id, if that is known.
    pub(crate) fn order_of(&self, id: &str) -> Option<u64> {
        if self.last_id.as_deref() == Some(id) {
            return Some(self.last);
        }
        self.history.find(id)
    }

    /// How many subscribe to it here: streams, long polls and listeners.
    pub(crate) fn presence(&self) -> u64 {
        let streams: u64 = self.homes.iter().map(|h| u64::from(h.subscribers)).sum();
        let polls = self.polls.len() as u64;
        streams + polls + self.listeners.len() as u64
    }

    /// Whether anybody subscribes.
    pub(crate) fn has_subscribers(&self) -> bool {
        !self.homes.is_empty() || !self.polls.is_empty() || !self.listeners.is_empty()
    }

    /// Whether nothing would be lost with it but its last id.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_subscribers()
            && self.expected == 0
            && self.history.is_empty()
            && self.parked.is_none()
    }

    /// Gives the channel that this is the state of the places that are due to it in the queues of
    /// its namespace: after each change of its history, of who hears it and of who is on the way to
    /// it.
    pub(crate) fn update_places(&mut self, channel: &Arc<Channel>) {
        let has_history = !self.is_dead && !self.history.is_empty();
        let place = match (has_history, self.history_place) {
            (false, _) => None,
            (true, None) => Some(self.share.next_place()),
            (true, place) => place,
        };
        let histories = &self.share.histories;
        histories.move_channel(channel, &mut self.history_place, place);
        let is_unheard = has_history && !self.has_subscribers() && self.expected == 0;
        // The number of a message is another's nowhere.
        let place = is_unheard.then_some(self.last);
        let unheard = &self.share.unheard;
        unheard.move_channel(channel, &mut self.unheard_place, place);
    }

    /// Puts the channel behind all others of its namespace that have a history.
    pub(crate) fn move_back(&mut self, channel: &Arc<Channel>) {
        let place = Some(self.share.next_place());
        let histories = &self.share.histories;
        histories.move_channel(channel, &mut self.history_place, place);
        self.update_places(channel);
    }

    /// Takes a long poll out.
    pub(crate) fn remove_poll(&mut self, number: u64) {
        self.polls.remove(&number);
    }
}
