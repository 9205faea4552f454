//! Channels between two processes: their records, and their messages in the process that has given
//! the authority away.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_runtime::clock;

use super::SuccessorLink;
use super::records::{ChannelRecord, MessageRecord};
use crate::channel::{Channel, ChannelState, is_internal_channel};
use crate::history::ChannelHistory;
use crate::hub::{HubShared, MessageSink, PendingSubscription};
use crate::{Bus, HubError, Publication};

/// What a hub that takes the authority back skips of numbers: the other one may have given some.
const SKIPPED_SEQUENCES: u64 = 1 << 32;

impl HubShared {
    /// The bus to other servers that share the channels, so that no process has the authority over
    /// them.
    pub(crate) fn bus_of_shared_channels(&self) -> Option<Arc<dyn Bus>> {
        let bus = self.bus_notifier.bus()?;
        (!self.is_mirror.load(Ordering::SeqCst)).then_some(bus)
    }

    /// Streams go to another process from here on, and publications to `link`, if there is one: then
    /// this hub gives the authority away.
    pub(super) fn begin_handing_over(&self, link: Option<&Arc<SuccessorLink>>) {
        self.is_handing_over.store(true, Ordering::SeqCst);
        if let Some(link) = link {
            self.bus_notifier.set_bus(Some(link.clone()));
            self.is_mirror.store(true, Ordering::SeqCst);
        }
    }

    /// This hub keeps its streams, and is its own authority again.
    pub(super) fn end_handing_over(&self) {
        if self.is_mirror.load(Ordering::SeqCst) {
            self.last_sequence
                .fetch_add(SKIPPED_SEQUENCES, Ordering::Relaxed);
            self.is_mirror.store(false, Ordering::SeqCst);
            self.bus_notifier.set_bus(None);
        }
        self.is_handing_over.store(false, Ordering::SeqCst);
    }

    pub(super) fn set_importing(&self, is_importing: bool) {
        self.is_importing.store(is_importing, Ordering::SeqCst);
    }

    /// Goes on with the ids and numbers of another process.
    pub(super) fn continue_ids(&self, prefix: &str, last_sequence: u64, removed_up_to: u64) {
        self.id_prefix.store(Arc::new(prefix.into()));
        self.registry.continue_after(removed_up_to);
        self.last_sequence
            .fetch_max(last_sequence, Ordering::Relaxed);
    }

    /// A channel's record; `None` for one of this process alone. Its parked messages go to `link`.
    pub(super) fn export_channel(
        &self,
        channel: &Arc<Channel>,
        link: &SuccessorLink,
    ) -> Option<ChannelRecord> {
        let mut state = channel.lock_unless_removed()?;
        if state.is_internal {
            return None;
        }
        let mut record = self.channel_record(channel.name(), &state);
        record.is_followed = state.has_subscribers() || state.arriving_streams > 0;
        let parked = state.parked_messages.take();
        for publication in parked
            .into_iter()
            .flat_map(|parked| parked.into_publications())
        {
            let bytes = publication.size();
            self.metrics.subtract_pending_bytes(channel, bytes);
            if let Err(error) = link.publish(&publication) {
                let name = channel.name();
                log::warn!("hub: channel {name:?}: a message is lost: {error}");
            }
        }
        Some(record)
    }

    /// The record of a channel that is locked.
    pub(super) fn channel_record(&self, name: &Arc<str>, state: &ChannelState) -> ChannelRecord {
        let now = clock::now();
        let messages = state.history.messages_after(0);
        ChannelRecord {
            name: name.clone(),
            last_sequence: state.last_sequence,
            last_id: state.last_id.clone(),
            dropped_up_to: state.history.dropped_up_to(),
            restored_up_to: state.restored_up_to,
            history: messages.map(|each| MessageRecord::new(each, now)).collect(),
            is_followed: false,
        }
    }

    /// Puts a channel of another process in place, and keeps it while the result lives.
    pub(super) fn import_channel(
        self: &Arc<Self>,
        record: ChannelRecord,
    ) -> Result<PendingSubscription, HubError> {
        let pending = PendingSubscription::for_channel(self, &record.name)?;
        let channel = &pending.channel;
        let now = clock::now();
        // Before the channel's lock, which comes after the registry's.
        for id in record
            .history
            .iter()
            .filter_map(|it| it.publication.id.as_ref())
        {
            self.registry
                .record_and_check_duplicate(&record.name, id, now);
        }
        {
            let mut state = channel.lock();
            self.last_sequence
                .fetch_max(record.last_sequence, Ordering::Relaxed);
            let bounds = self.history_bounds(&self.settings.load().history, &state);
            self.change_history(&mut state, |history| {
                *history = ChannelHistory::starting_after(record.dropped_up_to);
                for message in record.history {
                    if let Some(message) = message.into_message(&record.name, now) {
                        history.push(message.into(), bounds, now);
                    }
                }
            });
            state.last_sequence = record.last_sequence;
            state.last_id = record.last_id;
            state.restored_up_to = record.restored_up_to;
            state.update_queue_positions(channel);
        }
        self.maintenance_due.notify_one();
        let max = self.settings.load().history.max_size_total;
        self.evict_histories(channel.namespace_usage(), max);
        Ok(pending)
    }

    /// Lets `sink` have the messages of a channel; `at_state` sees the state that they follow.
    pub(super) fn attach_listener(
        &self,
        channel: &PendingSubscription,
        listener_id: u64,
        sink: &Arc<dyn MessageSink>,
        at_state: impl FnOnce(&ChannelState),
    ) {
        {
            let mut state = channel.channel.lock();
            let was_there = state.has_subscribers();
            state.listeners.insert(listener_id, sink.clone());
            at_state(&state);
            self.report_subscription_change(&channel.channel, was_there, &mut state);
        }
        self.bus_notifier.notify();
    }

    /// Puts the state of a channel in place, and gives its subscribers here what they do not have.
    pub(super) fn apply_channel_record(&self, record: ChannelRecord) {
        let settings = self.settings.load();
        let opened = self
            .registry
            .find_or_create(&record.name, settings.max_channels);
        let channel = match opened {
            Ok(channel) => channel,
            // A subscriber is refused for the same reason.
            Err(refused) => return log::debug!("hub: a channel is not followed: {refused}"),
        };
        let known = channel.lock().last_sequence;
        for message in record.history {
            if message.sequence > known {
                let mut publication = message.publication;
                publication.channel = record.name.clone();
                self.deliver_mirrored(message.sequence, publication);
            }
        }
        let mut state = channel.lock();
        // What is missing between the two is a gap.
        self.change_history(&mut state, |history| {
            if record.dropped_up_to > known {
                history.mark_dropped(record.dropped_up_to);
            }
        });
        state.last_sequence = state.last_sequence.max(record.last_sequence);
        self.last_sequence
            .fetch_max(record.last_sequence, Ordering::Relaxed);
        state.last_id = record.last_id.or_else(|| state.last_id.take());
    }

    /// Delivers a message that got its number in the other process.
    pub(super) fn deliver_mirrored(&self, sequence: u64, publication: Publication) {
        debug_assert!(!is_internal_channel(&publication.channel));
        let settings = self.settings.load();
        let keeps = settings.history.max_messages > 0;
        let channel = match self.registry.find(&publication.channel) {
            Some(channel) => channel,
            None if keeps => {
                match self
                    .registry
                    .find_or_create(&publication.channel, settings.max_channels)
                {
                    Ok(channel) => channel,
                    Err(_) => return,
                }
            }
            None => return,
        };
        self.append_mirrored(&channel, (sequence, publication), &settings, clock::now());
    }
}
