//! A publication on its way to its subscribers.
//!
//! Called on the publisher's thread; everything that takes long is left to the shards.
//!
//! # Invariants
//! - Under the channel's lock a message gets its number and its place in the history and in the
//!   inbox of every shard, so that all see one order.
//! - Wakers, long polls and bounds are handled after the lock is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::Waker;
use std::time::Instant;

use penstock_runtime::clock;

use super::{HubShared, LongPollWaiter, MessageSink};
use crate::channel::{Channel, ChannelState, DeliveryKind, Message, is_internal_channel};
use crate::history::ChannelHistory;
use crate::message_ordering::PARK_TIMEOUT;
use crate::namespace_usages::{NamespaceUsage, take_largest_namespace};
use crate::shard::{LongPollAnswers, ShardCommand, ShardDelivery};
use crate::{HubError, Publication, Settings, is_valid_message_id};

/// Work deferred until the lock of the channel is released.
#[derive(Debug)]
struct DeferredActions<'a> {
    channel: &'a Arc<Channel>,
    wakers: Vec<Waker>,
    polls: Vec<(Arc<Message>, Vec<Arc<LongPollWaiter>>)>,
    feeds: Vec<Arc<dyn MessageSink>>,
    /// It had no history before.
    gains_history: bool,
    has_parked: bool,
}

impl<'a> DeferredActions<'a> {
    fn for_channel(channel: &'a Arc<Channel>) -> Self {
        Self {
            channel,
            wakers: Vec::new(),
            polls: Vec::new(),
            feeds: Vec::new(),
            gains_history: false,
            has_parked: false,
        }
    }
}

/// One channel may use this part of `hub.max_backlog_total`, so that some is left for others.
const CHANNEL_SHARE_DIVISOR: usize = 4;

/// Channels checked to find one without a parked message.
const FORGET_TRIES: usize = 16;

/// Where a publication comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublicationSource {
    /// Its publisher, who learns whether it is accepted.
    Publisher,
    /// Another process, which has accepted it.
    Forwarded,
    /// This process, which has accepted it and checked its id before.
    TakenBack,
}

/// Long polls that the publisher answers itself; a shard answers larger numbers.
const MAX_INLINE_ANSWERS: usize = 64;

impl HubShared {
    /// Checks a publication against the limits. An empty id counts as none: sent as it is, it
    /// would clear the id that a browser returns with.
    pub(super) fn check_publication(
        &self,
        mut publication: Publication,
    ) -> Result<Publication, HubError> {
        if self.takes_no_messages.load(Ordering::Relaxed) {
            return Err(HubError::Draining);
        }
        let settings = self.settings.load();
        let Publication { id, prev_id, .. } = &mut publication;
        for (name, id) in [("id", id), ("prev-id", prev_id)] {
            id.take_if(|id| id.is_empty());
            if id.as_ref().is_some_and(|id| !is_valid_message_id(id)) {
                return Err(HubError::InvalidMessageId(name));
            }
        }
        if publication.size() > settings.max_message_size {
            return Err(HubError::MessageTooLarge(settings.max_message_size));
        }
        if self.metrics.pending_bytes.load(Ordering::Relaxed) > settings.max_backlog_total {
            return Err(HubError::DeliveryBacklogFull(settings.max_backlog_total));
        }
        Ok(publication)
    }

    /// Gives a publication its place here, or to the process that has the authority.
    pub(crate) fn deliver(&self, publication: Publication) -> Result<(), HubError> {
        self.deliver_from(publication, PublicationSource::Publisher)
    }

    /// `source` says what was done with the publication before.
    pub(crate) fn deliver_from(
        &self,
        publication: Publication,
        source: PublicationSource,
    ) -> Result<(), HubError> {
        let settings = self.settings.load();
        let now = clock::now();
        let mut is_checked = false;
        loop {
            let keeps =
                settings.history.max_messages > 0 && !is_internal_channel(&publication.channel);
            let channel = if !keeps {
                self.registry.find(&publication.channel)
            } else {
                Some(self.open_unsubscribed(&publication.channel, settings.max_channels)?)
            };
            let Some(channel) = channel else {
                // There are no subscribers, and nothing is kept. A client that returns later has
                // a gap.
                self.registry
                    .record_unkept(&publication.channel, self.next_sequence());
                self.metrics
                    .published_messages
                    .fetch_add(1, Ordering::Relaxed);
                return Ok(());
            };
            let is_accepted = source != PublicationSource::Publisher;
            let most = settings.max_backlog_total / CHANNEL_SHARE_DIVISOR;
            if !is_accepted && channel.pending_bytes.load(Ordering::Relaxed) > most {
                self.registry.remove_if_idle(&channel);
                return Err(HubError::DeliveryBacklogFull(most));
            }
            let own = channel
                .namespace_usage()
                .pending_bytes
                .load(Ordering::Relaxed);
            let pending = self.metrics.pending_bytes.load(Ordering::Relaxed);
            let usages = &self.registry.namespace_usages;
            let max = settings.max_backlog_total;
            if !is_accepted && usages.exceeds_fair_share(own, pending, max) {
                self.registry.remove_if_idle(&channel);
                return Err(HubError::NamespaceDeliveryBacklogFull(own));
            }
            if let Some(id) = &publication.id
                && source != PublicationSource::TakenBack
                && !std::mem::replace(&mut is_checked, true)
                && self
                    .registry
                    .record_and_check_duplicate(&publication.channel, id, now)
            {
                self.registry.remove_if_idle(&channel);
                return Ok(());
            }
            let mut deferred = DeferredActions::for_channel(&channel);
            {
                let Some(mut state) = channel.lock_unless_removed() else {
                    continue;
                };
                let is_forwarded =
                    source == PublicationSource::Publisher && self.forward(&publication)?;
                if !is_forwarded {
                    self.accept_or_park(&mut state, &settings, publication, now, &mut deferred);
                }
            }
            self.run_deferred(deferred, &settings, now);
            return Ok(());
        }
    }

    /// Whether another process has the authority over the channel, and takes the publication.
    fn forward(&self, publication: &Publication) -> Result<bool, HubError> {
        let is_elsewhere =
            self.is_mirror.load(Ordering::SeqCst) && !is_internal_channel(&publication.channel);
        match self.bus_notifier.bus().filter(|_| is_elsewhere) {
            Some(bus) => bus.publish(publication),
            None => Ok(false),
        }
    }

    /// Publishes parked messages that waited longer than [`PARK_TIMEOUT`].
    pub(super) fn publish_overdue_parked(&self, channel: &Arc<Channel>, now: Instant) {
        let settings = self.settings.load();
        let mut deferred = DeferredActions::for_channel(channel);
        {
            let mut state = channel.lock();
            while let Some(overdue) = state
                .parked_messages
                .as_mut()
                .and_then(|p| p.take_overdue(now))
            {
                self.release_pending(channel, &overdue);
                self.append_with_parked(&mut state, &settings, overdue, now, &mut deferred);
            }
            state.parked_messages.take_if(|parked| parked.is_empty());
        }
        self.run_deferred(deferred, &settings, now);
        self.registry.remove_if_idle(channel);
    }

    /// The channel of a publication, which need not have subscribers. A publisher may name
    /// ever new channels: a quarter of all is for subscribers, and each namespace has a fair
    /// share of the rest.
    fn open_unsubscribed(
        &self,
        name: &Arc<str>,
        channels_max: usize,
    ) -> Result<Arc<Channel>, HubError> {
        if let Some(channel) = self.registry.find(name) {
            return Ok(channel);
        }
        let max = channels_max - channels_max / 4;
        let usages = &self.registry.namespace_usages;
        let usage = usages.usage_of_channel(name);
        loop {
            let unsubscribed = usages.unsubscribed_channel_count();
            let subscribed = self.registry.len().saturating_sub(unsubscribed);
            // Channels with subscribers may have more than their quarter.
            let room = max.min(channels_max.saturating_sub(subscribed));
            let own = usage.unsubscribed_channels.len();
            // Counts the new channel too.
            let is_full = unsubscribed >= room;
            let exceeds_share = usages.exceeds_fair_share(own + 1, unsubscribed + 1, room);
            let has_freed = match (is_full, exceeds_share) {
                (false, false) => break,
                (false, true) => self.forget_oldest(&usage),
                (true, _) => usages.has_several_namespaces() && self.forget_of_largest(&usage),
            };
            if !has_freed {
                return Err(match is_full {
                    true => HubError::TooManyUnsubscribedChannels(room),
                    false => HubError::TooManyNamespaceUnsubscribedChannels(own),
                });
            }
        }
        let opened = self.registry.find_or_create(name, channels_max);
        opened.map_err(|_| HubError::TooManyUnsubscribedChannels(max))
    }

    /// Removes a channel of the namespace that has most, to make room for one more of `usage`.
    /// Returns whether one was removed.
    fn forget_of_largest(&self, usage: &Arc<NamespaceUsage>) -> bool {
        let mut usages = self.registry.namespace_usages.all();
        let count = |each: &NamespaceUsage| {
            let is_own = std::ptr::eq(each, &**usage);
            // Counts the new channel too, so that a tie evicts from the own namespace.
            2 * each.unsubscribed_channels.len() + usize::from(is_own)
        };
        while let Some(largest) = take_largest_namespace(&mut usages, count) {
            if self.forget_oldest(&largest) {
                return true;
            }
            if Arc::ptr_eq(&largest, usage) {
                break;
            }
        }
        false
    }

    /// Removes the unsubscribed channel of a namespace whose last message is the oldest. Returns
    /// whether one was removed.
    fn forget_oldest(&self, usage: &NamespaceUsage) -> bool {
        let mut from = 0;
        for _ in 0..FORGET_TRIES {
            let Some((position, channel)) = usage.unsubscribed_channels.first_from(from) else {
                return false;
            };
            let is_forgotten = {
                let mut state = channel.lock();
                let is_unsubscribed = !state.has_subscribers() && state.arriving_streams == 0;
                let may_go =
                    is_unsubscribed && state.parked_messages.is_none() && !state.history.is_empty();
                self.change_history(&mut state, |history| {
                    while may_go && !history.is_empty() {
                        history.drop_oldest();
                    }
                });
                state.update_queue_positions(&channel);
                may_go
            };
            if is_forgotten {
                self.registry.remove_if_idle(&channel);
                return true;
            }
            from = position + 1;
        }
        false
    }

    /// Drops messages, one per channel in turn, until all histories are within their limit: first
    /// those of the namespace that has most, then those of `usage` if it exceeds its fair share.
    pub(crate) fn evict_histories(&self, usage: &NamespaceUsage, bytes_all: usize) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let used = || load(&self.metrics.history_bytes);
        let usages = &self.registry.namespace_usages;
        if used() > bytes_all {
            let mut all = usages.all();
            let count = |usage: &NamespaceUsage| load(&usage.history_bytes);
            while used() > bytes_all
                && let Some(largest) = take_largest_namespace(&mut all, count)
            {
                if self.drop_one(&largest) {
                    all.push(largest);
                }
            }
        }
        while usages.exceeds_fair_share(load(&usage.history_bytes), used(), bytes_all) {
            if !self.drop_one(usage) {
                break;
            }
        }
    }

    /// Drops a message of the first channel in the queue; `false` when there is none.
    fn drop_one(&self, usage: &NamespaceUsage) -> bool {
        let Some((_, channel)) = usage.channels_with_history.first_from(0) else {
            return false;
        };
        let is_empty = {
            let mut state = channel.lock();
            self.change_history(&mut state, ChannelHistory::drop_oldest);
            state.move_to_queue_end(&channel);
            state.history.is_empty()
        };
        if is_empty {
            self.registry.remove_if_idle(&channel);
        }
        true
    }

    /// Appends a publication to the channel, or parks it until its predecessor has come.
    fn accept_or_park(
        &self,
        state: &mut ChannelState,
        settings: &Settings,
        publication: Publication,
        now: Instant,
        deferred: &mut DeferredActions<'_>,
    ) {
        let waits = !publication.allows_any_order
            && publication.prev_id.is_some()
            && state.last_id.is_some()
            && publication.prev_id != state.last_id;
        if !waits {
            self.append_with_parked(state, settings, publication, now, deferred);
            state.parked_messages.take_if(|parked| parked.is_empty());
            return;
        }
        let parked = state.parked_messages.get_or_insert_default();
        let bytes = publication.size();
        self.metrics.add_pending_bytes(deferred.channel, bytes);
        deferred.has_parked = true;
        if let Some(oldest) = parked.park(now, publication) {
            self.release_pending(deferred.channel, &oldest);
            self.append_with_parked(state, settings, oldest, now, deferred);
            state.parked_messages.take_if(|parked| parked.is_empty());
        }
    }

    fn release_pending(&self, channel: &Channel, publication: &Publication) {
        self.metrics
            .subtract_pending_bytes(channel, publication.size());
    }

    /// Appends a publication and the parked ones that waited for it.
    fn append_with_parked(
        &self,
        state: &mut ChannelState,
        settings: &Settings,
        publication: Publication,
        now: Instant,
        deferred: &mut DeferredActions<'_>,
    ) {
        let mut next = Some(publication);
        while let Some(publication) = next {
            let id = self.append(state, settings, publication, now, deferred);
            let parked = state.parked_messages.as_mut();
            next = parked.and_then(|parked| parked.take_successor(&id));
            if let Some(next) = &next {
                self.release_pending(deferred.channel, next);
            }
        }
    }

    /// Gives a publication its number and hands it to history, shards and long polls; its id.
    fn append(
        &self,
        state: &mut ChannelState,
        settings: &Settings,
        mut publication: Publication,
        now: Instant,
        deferred: &mut DeferredActions<'_>,
    ) -> Arc<str> {
        let order = self.next_sequence();
        let id = publication.id.take();
        publication.id = Some(id.unwrap_or_else(|| self.message_id(order)));
        self.append_numbered(state, settings, (order, publication), now, deferred)
    }

    /// Appends a message that another process has given its number, unless it is here.
    pub(crate) fn append_mirrored(
        &self,
        channel: &Arc<Channel>,
        (order, publication): (u64, Publication),
        settings: &Settings,
        now: Instant,
    ) {
        let mut deferred = DeferredActions::for_channel(channel);
        if let Some(mut state) = channel.lock_unless_removed()
            && order > state.last_sequence
        {
            self.last_sequence.fetch_max(order, Ordering::Relaxed);
            self.append_numbered(
                &mut state,
                settings,
                (order, publication),
                now,
                &mut deferred,
            );
        }
        self.run_deferred(deferred, settings, now);
    }

    fn append_numbered(
        &self,
        state: &mut ChannelState,
        settings: &Settings,
        (order, publication): (u64, Publication),
        now: Instant,
        deferred: &mut DeferredActions<'_>,
    ) -> Arc<str> {
        let id = publication.id.clone().unwrap_or_default();
        let message = Arc::new(Message::new(order, id.clone(), publication, now));
        state.last_sequence = order;
        state.last_id = Some(id.clone());
        self.metrics
            .published_messages
            .fetch_add(1, Ordering::Relaxed);
        if message.delivery_kind() != DeliveryKind::Ignored {
            self.push_to_shards(state, &message, deferred);
        }
        if message.publication.response.is_some() && !state.long_polls.is_empty() {
            let waiting = state.long_polls.values().cloned().collect();
            deferred.polls.push((message.clone(), waiting));
        }
        for feed in state.listeners.values() {
            feed.push(message.clone(), settings.max_backlog);
            deferred.feeds.push(feed.clone());
        }
        let bounds = self.history_bounds(&settings.history, state);
        self.change_history(state, |history| history.push(message, bounds, now));
        deferred.gains_history |=
            state.history_queue_position.is_none() && !state.history.is_empty();
        state.update_queue_positions(deferred.channel);
        id
    }

    fn push_to_shards(
        &self,
        state: &ChannelState,
        message: &Arc<Message>,
        deferred: &mut DeferredActions<'_>,
    ) {
        for subscribed_shard in &state.subscribed_shards {
            self.metrics
                .add_pending_bytes(deferred.channel, message.memory_bytes);
            let delivery = ShardDelivery {
                channel_slot: subscribed_shard.channel_slot,
                channel: deferred.channel.clone(),
                message: message.clone(),
            };
            let shard = &self.shard_inboxes[usize::from(subscribed_shard.shard)];
            deferred
                .wakers
                .extend(shard.push(ShardCommand::Deliver(delivery)));
        }
    }

    /// Delivers a message to the present streams of a channel alone: it has no id, is in no history
    /// and leaves the order of the others as it is.
    pub(super) fn deliver_unkept(&self, channel: &Arc<Channel>, publication: Publication) {
        let mut deferred = DeferredActions::for_channel(channel);
        {
            let state = channel.lock();
            let sequence = self.next_sequence();
            // The other process has the authority over numbers, or has heard of this one.
            fence(Ordering::SeqCst);
            if self.is_handing_over.load(Ordering::SeqCst) {
                return;
            }
            let message = Message::new(sequence, Arc::default(), publication, clock::now());
            self.push_to_shards(&state, &Arc::new(message), &mut deferred);
        }
        deferred.wakers.into_iter().for_each(Waker::wake);
    }

    /// Runs the actions that were deferred under the lock.
    fn run_deferred(&self, deferred: DeferredActions<'_>, settings: &Settings, now: Instant) {
        let channel = deferred.channel;
        deferred.wakers.into_iter().for_each(Waker::wake);
        deferred.feeds.iter().for_each(|feed| feed.wake());
        if deferred.gains_history {
            self.maintenance_due.notify_one();
        }
        if deferred.has_parked {
            let until = now + PARK_TIMEOUT;
            self.parked_channels().push_back((until, channel.clone()));
            self.maintenance_due.notify_one();
        }
        for (message, waiting) in deferred.polls {
            self.answer_long_polls(channel, message, waiting);
        }
        self.evict_histories(channel.namespace_usage(), settings.history.max_size_total);
    }

    fn answer_long_polls(
        &self,
        channel: &Arc<Channel>,
        message: Arc<Message>,
        waiting: Vec<Arc<LongPollWaiter>>,
    ) {
        if waiting.len() <= MAX_INLINE_ANSWERS {
            let answered = waiting
                .iter()
                .filter(|poll| poll.try_answer(channel, &message));
            let answered = answered.count() as u64;
            self.metrics
                .delivered_messages
                .fetch_add(answered, Ordering::Relaxed);
            return;
        }
        let number = usize::try_from(message.sequence).unwrap_or(0);
        let shard = &self.shard_inboxes[number % self.shard_inboxes.len()];
        let answers = LongPollAnswers {
            channel: channel.clone(),
            message,
            waiters: waiting,
        };
        if let Some(waker) = shard.push(ShardCommand::AnswerLongPolls(answers)) {
            waker.wake();
        }
    }
}
