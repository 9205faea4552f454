//! A channel: its order, history and subscribers, shared by all threads.
//!
//! `hub` publishes into it, shards subscribe streams to it, long polls wait at it; `registry`
//! finds it by its name. One short lock guards all of it, so that there is one order: a message
//! gets its number and goes into the history and to the shards with subscribers under the lock,
//! and a subscriber learns under the same lock which messages came before it.
//!
//! # Invariants
//! - The lock is never held across an await, nor while a client is written to, a callback runs or
//!   the registry's lock is taken (which comes first).
//! - A channel that the registry has removed is dead: its caller asks the registry again.

mod message;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use message::Message;
pub(crate) use message::{DeliveryKind, STREAM_FORMAT_COUNT, StreamFormat};

use crate::history::ChannelHistory;
use crate::hub::{LongPollWaiter, MessageSink};
use crate::message_ordering::ParkedMessages;
use crate::namespace_usages::NamespaceUsage;

#[derive(Debug)]
pub(crate) struct Channel {
    name: Arc<str>,
    /// The usage of its namespace.
    namespace_usage: Arc<NamespaceUsage>,
    /// Bytes of its messages that are undelivered or parked.
    pub(crate) pending_bytes: AtomicUsize,
    /// Guards everything about it. See the head of this file.
    state: Mutex<ChannelState>,
}

#[derive(Debug)]
pub(crate) struct ChannelState {
    /// The shards that have subscribers.
    pub(crate) subscribed_shards: Vec<SubscribedShard>,
    /// Waiting long polls, in order of arrival; usually none.
    pub(crate) long_polls: BTreeMap<u64, Arc<LongPollWaiter>>,
    /// Listening tasks, in order of arrival; usually none.
    pub(crate) listeners: BTreeMap<u64, Arc<dyn MessageSink>>,
    pub(crate) history: ChannelHistory,
    /// The number of the last message that came with a restored history, or by which the history
    /// was cut: up to here numbers say nothing of the order in which messages of other channels
    /// were published.
    pub(crate) restored_up_to: u64,
    /// The number behind which the restored history has everything that was ever published.
    pub(crate) whole_since: Option<u64>,
    /// Messages published while streams arrive that a replaced history does not have; usually none.
    pub(crate) arriving_stream_history: Option<Box<ChannelHistory>>,
    /// Messages that wait for their predecessor; usually none.
    pub(crate) parked_messages: Option<Box<ParkedMessages>>,
    /// The same as the channel's, for code that has the state alone.
    pub(crate) namespace_usage: Arc<NamespaceUsage>,
    /// Its position in the namespace's `unsubscribed_channels`.
    unsubscribed_queue_position: Option<u64>,
    /// The number of the last message.
    pub(crate) last_sequence: u64,
    pub(crate) last_id: Option<Arc<str>>,
    /// Streams on their way to a shard. Messages published meanwhile are kept for them.
    pub(crate) arriving_streams: u32,
    pub(crate) is_removed: bool,
    /// Its position in the namespace's `channels_with_history`.
    pub(crate) history_queue_position: Option<u64>,
    /// It waits for its change of presence to be published.
    pub(crate) has_presence_change: bool,
    /// The server made it for itself, so no client resumes its history.
    pub(crate) is_internal: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SubscribedShard {
    pub(crate) shard: u16,
    /// Where the shard keeps the channel.
    pub(crate) channel_slot: u32,
    pub(crate) subscriber_count: u32,
}

impl Channel {
    /// A channel of which nothing is known up to the message of this number.
    pub(crate) fn new(name: Arc<str>, since: u64, usage: Arc<NamespaceUsage>) -> Self {
        let is_internal = is_internal_channel(&name);
        Self {
            name,
            namespace_usage: Arc::clone(&usage),
            pending_bytes: AtomicUsize::new(0),
            state: Mutex::new(ChannelState {
                subscribed_shards: Vec::new(),
                long_polls: BTreeMap::new(),
                listeners: BTreeMap::new(),
                history: ChannelHistory::starting_after(since),
                restored_up_to: 0,
                whole_since: None,
                arriving_stream_history: None,
                parked_messages: None,
                namespace_usage: usage,
                unsubscribed_queue_position: None,
                last_sequence: since,
                last_id: None,
                arriving_streams: 0,
                is_removed: false,
                history_queue_position: None,
                has_presence_change: false,
                is_internal,
            }),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn namespace_usage(&self) -> &Arc<NamespaceUsage> {
        &self.namespace_usage
    }

    /// Its state. A panic under the lock cannot leave a sum wrong that others rely on: at worst one
    /// message's delivery is missing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its state, unless the registry has removed it.
    pub(crate) fn lock_unless_removed(&self) -> Option<MutexGuard<'_, ChannelState>> {
        let state = self.lock();
        (!state.is_removed).then_some(state)
    }

    /// The memory of a channel with its registry slot, without history and subscribers.
    pub(crate) fn memory_bytes(&self) -> usize {
        // The counters of two shared allocations, and the registry's slot at its usual load.
        size_of::<Self>() + self.name.len() + 2 * 2 * size_of::<usize>() + 16
    }
}

/// Whether the server made a channel for itself: clients' names begin with no control character.
pub(crate) fn is_internal_channel(name: &str) -> bool {
    name.chars().next().is_some_and(char::is_control)
}

impl ChannelState {
    /// The number of the message with this id, if that is known.
    pub(crate) fn sequence_of(&self, id: &str) -> Option<u64> {
        if self.last_id.as_deref() == Some(id) {
            return Some(self.last_sequence);
        }
        self.history.find_event_sequence(id)
    }

    /// As [`ChannelState::sequence_of`] with the message's own id, if only one message has it.
    pub(crate) fn only_sequence_of(&self, id: &str) -> Option<u64> {
        match self.history.count_with_id(id) {
            (0, _) => (self.last_id.as_deref() == Some(id)).then_some(self.last_sequence),
            (1, sequence) => sequence,
            _ => None,
        }
    }

    /// How many subscribe to it here: streams, long polls and listeners.
    pub(crate) fn subscriber_count(&self) -> u64 {
        let streams: u64 = self
            .subscribed_shards
            .iter()
            .map(|h| u64::from(h.subscriber_count))
            .sum();
        let polls = self.long_polls.len() as u64;
        streams + polls + self.listeners.len() as u64
    }

    pub(crate) fn has_subscribers(&self) -> bool {
        !self.subscribed_shards.is_empty()
            || !self.long_polls.is_empty()
            || !self.listeners.is_empty()
    }

    /// Whether nothing would be lost with it but its last id.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_subscribers()
            && self.arriving_streams == 0
            && self.history.is_empty()
            && self.parked_messages.is_none()
    }

    /// Updates the positions of the channel in the queues of its namespace. Called after each
    /// change of its history, its subscribers or its arriving streams.
    pub(crate) fn update_queue_positions(&mut self, channel: &Arc<Channel>) {
        let has_history = !self.is_removed && !self.history.is_empty();
        let position = match (has_history, self.history_queue_position) {
            (false, _) => None,
            (true, None) => Some(self.namespace_usage.next_queue_position()),
            (true, position) => position,
        };
        let histories = &self.namespace_usage.channels_with_history;
        histories.move_channel(channel, &mut self.history_queue_position, position);
        let is_unsubscribed = has_history && !self.has_subscribers() && self.arriving_streams == 0;
        // Sequence numbers are unique across channels.
        let position = is_unsubscribed.then_some(self.last_sequence);
        let unsubscribed = &self.namespace_usage.unsubscribed_channels;
        unsubscribed.move_channel(channel, &mut self.unsubscribed_queue_position, position);
    }

    /// Moves the channel to the end of the namespace's `channels_with_history`.
    pub(crate) fn move_to_queue_end(&mut self, channel: &Arc<Channel>) {
        let position = Some(self.namespace_usage.next_queue_position());
        let histories = &self.namespace_usage.channels_with_history;
        histories.move_channel(channel, &mut self.history_queue_position, position);
        self.update_queue_positions(channel);
    }
}
