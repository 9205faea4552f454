//! Replaces the history of a channel by the one that the servers of a bus share.
//!
//! Called by `cluster` through [`crate::Hub::replace_history`] when it begins to follow a
//! channel, and where a history would have a gap.
//!
//! # Invariants
//! - No subscriber gets any of it, nor do streams on their way, which get the messages published
//!   here since their response.
//! - Messages that were kept before, and ids that are not in the new history, are a gap for a
//!   client that resumes after them.
//! - Its numbers order its own messages, not those of other channels.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use penstock_runtime::clock;

use super::HubShared;
use crate::Publication;
use crate::channel::{ChannelState, Message};
use crate::history::ChannelHistory;

/// The history of a channel that several servers share.
#[derive(Debug, Default)]
pub struct SharedHistory {
    /// From the oldest to the newest, each message with its age.
    pub messages: Vec<(Publication, Duration)>,
    /// Nothing was published before the first of them, as far as is known.
    pub is_whole: bool,
}

impl From<Vec<(Publication, Duration)>> for SharedHistory {
    fn from(messages: Vec<(Publication, Duration)>) -> Self {
        Self {
            messages,
            is_whole: false,
        }
    }
}

impl HubShared {
    pub(crate) fn replace_history(&self, name: &Arc<str>, history: SharedHistory) {
        let settings = self.settings.load();
        let is_needed = !history.messages.is_empty() && settings.history.max_messages > 0;
        loop {
            let channel = if is_needed {
                match self.registry.find_or_create(name, settings.max_channels) {
                    Ok(channel) => Some(channel),
                    // A client that resumes is refused for the same reason.
                    Err(refused) => return log::debug!("hub: a history is not kept: {refused}"),
                }
            } else {
                self.registry.find(name)
            };
            let Some(channel) = channel else {
                return;
            };
            let Some(mut state) = channel.lock_unless_removed() else {
                continue;
            };
            self.replace_history_locked(&mut state, history);
            state.update_queue_positions(&channel);
            drop(state);
            self.maintenance_due.notify_one();
            self.evict_histories(channel.namespace_usage(), settings.history.max_size_total);
            self.registry.remove_if_idle(&channel);
            return;
        }
    }

    fn replace_history_locked(&self, state: &mut ChannelState, history: SharedHistory) {
        let (settings, now) = (self.settings.load(), clock::now());
        let bounds = self.history_bounds(&settings.history, state);
        self.keep_for_arriving(state);
        let before = state.history.memory_bytes();
        // A number of no message: a client that knows one up to here has a gap, even if it was the
        // last.
        let cut = self.next_sequence();
        state.history = ChannelHistory::starting_after(cut);
        state.restored_up_to = cut;
        state.whole_since = history.is_whole.then_some(cut);
        let mut ids = HashSet::new();
        for (mut publication, age) in history.messages {
            // Two servers may both have published what one publisher sent twice.
            if let Some(id) = &publication.id
                && !ids.insert(id.clone())
            {
                continue;
            }
            let order = self.next_sequence();
            let id = publication.id.take();
            let id = id.unwrap_or_else(|| self.message_id(order));
            publication.id = Some(id.clone());
            let at = now.checked_sub(age).unwrap_or(now);
            let message = Arc::new(Message::new(order, id.clone(), publication, at));
            (state.last_sequence, state.last_id, state.restored_up_to) = (order, Some(id), order);
            state.history.push(message, bounds, now);
        }
        let after = state.history.memory_bytes();
        self.metrics
            .update_history_bytes(&state.namespace_usage, before, after);
    }

    /// Keeps for arriving streams what was published since their response.
    fn keep_for_arriving(&self, state: &mut ChannelState) {
        if state.arriving_streams == 0 {
            return;
        }
        let (settings, now) = (self.settings.load(), clock::now());
        let bounds = self.history_bounds(&settings.history, state);
        let restored_to = state.restored_up_to;
        let gone = state.history.dropped_up_to();
        // Behind what came with the last one: of that nothing is for streams on their way.
        let is_whole = gone <= restored_to;
        if !is_whole {
            self.drop_arriving_stream_history(state);
        }
        let gone = if is_whole { 0 } else { gone };
        let kept = state
            .arriving_stream_history
            .get_or_insert_with(|| Box::new(ChannelHistory::starting_after(gone)));
        let before = kept.memory_bytes();
        for message in state.history.messages_after(restored_to) {
            kept.push(message.clone(), bounds, now);
        }
        self.metrics
            .update_history_bytes(&state.namespace_usage, before, kept.memory_bytes());
    }

    /// Drops what was kept for arriving streams, once they have arrived.
    pub(super) fn drop_arriving_stream_history(&self, state: &mut ChannelState) {
        if let Some(before) = state.arriving_stream_history.take() {
            let bytes = before.memory_bytes();
            self.metrics
                .update_history_bytes(&state.namespace_usage, bytes, 0);
        }
    }
}
