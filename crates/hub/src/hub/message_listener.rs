//! Tasks that receive the messages of channels: WebSockets, and streams that follow a link.
//!
//! [`crate::Hub::create_message_listener`] makes a [`MessageListener`]. Its owner is a task of its
//! own, so it needs no shard: channels put their messages into its feed under their locks, and the
//! task takes them out.
//!
//! # Invariants
//! - A feed is bounded. A listener that falls behind loses the oldest messages and is notified.
//! - The messages of a channel stay in order.
//! - Dropping a listener removes it from all channels.
//! - A listener that resumes gets each later message once: from the histories, read under the locks
//!   under which it subscribes, or from its feed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use penstock_exchange::AddressPrefix;
use penstock_runtime::clock;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::HubShared;
use super::arriving_stream::{PendingSubscription, deduplicate_subscriptions};
use crate::channel::{Channel, ChannelState, Message};
use crate::counters::StreamPermit;
use crate::filters::{self, FilterSubscriber, MetaPairs};
use crate::hub_route::gap_event_after;
use crate::namespace::channel_name;
use crate::shard::ResumePoint;
use crate::transfer::SharedPlace;
use crate::{
    Content, HubError, MessageFilter, Publication, StreamAction, StreamForm, Subscription,
};

/// Receives the messages of its channels; see the head of this file.
#[derive(Debug)]
pub struct MessageListener {
    shared: Arc<HubShared>,
    feed: Arc<MessageFeed>,
    channels: Vec<(Arc<Channel>, Box<[MessageFilter]>)>,
    meta: Vec<(Box<str>, Box<str>)>,
    listener_id: u64,
    /// When it is to end, once the hub stops: spread, so that clients do not come back all at once.
    drain_at: OnceLock<Instant>,
    _permit: StreamPermit,
}

/// Gets the messages of channels as they are published.
pub(crate) trait MessageSink: Send + Sync + fmt::Debug {
    /// Takes a message, under its channel's lock, where at most `max_bytes` may wait.
    fn push(&self, message: Arc<Message>, max_bytes: usize);

    /// Wakes the one who waits for messages, when no lock is held.
    fn wake(&self);
}

/// Where messages wait for a listener.
#[derive(Debug, Default)]
struct MessageFeed {
    /// Held for a push or a pop only.
    state: Mutex<MessageFeedState>,
    wakeup: Notify,
}

#[derive(Debug, Default)]
struct MessageFeedState {
    messages: VecDeque<Arc<Message>>,
    bytes: usize,
    missed_messages: u64,
}

/// What a listener receives.
#[derive(Debug)]
pub enum ListenerEvent {
    /// A message that passes the filters of its channel.
    Message(Arc<Message>),
    /// So many messages were lost because the listener fell behind.
    Missed(u64),
    /// The server stops.
    Draining,
}

/// A listener's place in a channel, for another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListenerPosition {
    /// The channel.
    pub channel: Arc<str>,
    /// The listener has received all messages up to this number.
    last_sequence: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    filters: Vec<MessageFilter>,
    /// The same place where other servers share the channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared_place: Option<SharedPlace>,
}

/// Messages that wait for one listener.
const MAX_WAITING_MESSAGES: usize = 100;

impl MessageFeed {
    fn lock_state(&self) -> MutexGuard<'_, MessageFeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<ListenerEvent> {
        let mut waiting = self.lock_state();
        if waiting.missed_messages > 0 {
            return Some(ListenerEvent::Missed(std::mem::take(
                &mut waiting.missed_messages,
            )));
        }
        let message = waiting.messages.pop_front()?;
        waiting.bytes -= message.memory_bytes;
        Some(ListenerEvent::Message(message))
    }
}

impl MessageSink for MessageFeed {
    /// Lets the oldest go where there are too many.
    fn push(&self, message: Arc<Message>, bytes_max: usize) {
        let mut waiting = self.lock_state();
        waiting.bytes += message.memory_bytes;
        waiting.messages.push_back(message);
        while waiting.messages.len() > MAX_WAITING_MESSAGES
            || waiting.bytes > bytes_max && waiting.messages.len() > 1
        {
            if let Some(lost) = waiting.messages.pop_front() {
                waiting.bytes -= lost.memory_bytes;
                waiting.missed_messages += 1;
            }
        }
    }

    fn wake(&self) {
        self.wakeup.notify_one();
    }
}

impl MessageListener {
    pub(super) fn new(
        shared: &Arc<HubShared>,
        client: Option<AddressPrefix>,
    ) -> Result<Self, HubError> {
        let permit = StreamPermit::acquire(shared, client)?;
        Ok(Self {
            shared: shared.clone(),
            feed: Arc::default(),
            channels: Vec::new(),
            meta: Vec::new(),
            listener_id: shared.next_sequence(),
            drain_at: OnceLock::new(),
            _permit: permit,
        })
    }

    /// Replaces the metadata that filters use.
    pub fn set_subscriber_meta(&mut self, meta: Vec<(Box<str>, Box<str>)>) {
        self.meta = meta;
    }

    /// The metadata that filters use.
    #[must_use]
    pub fn subscriber_meta(&self) -> &[(Box<str>, Box<str>)] {
        &self.meta
    }

    /// Subscribes to one more channel, or changes the filters of one. A new channel first delivers
    /// the messages after `prev_id`, or all that are kept if that id is no longer known.
    ///
    /// # Errors
    /// Which bound is met.
    pub fn subscribe(&mut self, subscription: Subscription) -> Result<(), HubError> {
        let known = |(channel, _): &&mut (Arc<Channel>, Box<[MessageFilter]>)| {
            **channel.name() == *subscription.channel
        };
        if let Some((_, filters)) = self.channels.iter_mut().find(known) {
            *filters = subscription.filters.into();
            return Ok(());
        }
        let settings = self.shared.settings.load();
        if self.channels.len() >= settings.max_channels_per_stream {
            return Err(HubError::TooManyStreamChannels(
                settings.max_channels_per_stream,
            ));
        }
        let expected = PendingSubscription::new(&self.shared, subscription, settings.max_channels)?;
        self.join_channel(&expected, |listener, state| {
            if let Some(prev_id) = &expected.prev_id {
                listener.replay(state, prev_id, settings.max_backlog);
            }
        });
        self.shared.bus_notifier.notify();
        Ok(())
    }

    /// Subscribes to the channels of a stream of events that resumes after the message `after`, of
    /// any of them. Returns the events that it missed, in their order and up to `hub.max_backlog`,
    /// behind a `gap` event if that is not all. Later messages come as events of the listener.
    ///
    /// # Errors
    /// Which bound is met.
    pub fn resume(
        &mut self,
        subscriptions: Vec<Subscription>,
        after: &str,
    ) -> Result<Bytes, HubError> {
        let settings = self.shared.settings.load_full();
        let subscriptions =
            deduplicate_subscriptions(subscriptions, settings.max_channels_per_stream)?;
        let expected = subscriptions
            .into_iter()
            .map(|each| PendingSubscription::new(&self.shared, each, settings.max_channels))
            .collect::<Result<Vec<_>, _>>()?;
        let resume_point = ResumePoint::find(&self.shared, &expected, after);
        let (mut has_gap, mut missed) = (resume_point.is_none(), Vec::new());
        for (index, each) in expected.iter().enumerate() {
            let resume_point = resume_point.unwrap_or_default().in_channel(index);
            self.join_channel(each, |listener, state| {
                listener.shared.trim_history(state, clock::now());
                let is_comparable = resume_point.is_comparable_in(state);
                let from = is_comparable.then_some(resume_point.sequence);
                has_gap |= from.is_none_or(|from| state.history.has_gap_after(from));
                let later = state.history.messages_after(from.unwrap_or_default());
                missed.extend(later.cloned());
            });
        }
        self.shared.bus_notifier.notify();
        missed.sort_by_key(|message| message.sequence);
        let (mut events, mut bytes) = (Vec::new(), 0);
        let newest_first = missed.iter().rev();
        for message in newest_first.filter(|message| self.is_accepted(message)) {
            let event = self.event_of(message).unwrap_or_default();
            bytes += event.len();
            if bytes > settings.max_backlog {
                has_gap = true;
                break;
            }
            events.push(event);
        }
        events.extend(has_gap.then(|| gap_event_after(after).into()));
        events.reverse();
        Ok(events.concat().into())
    }

    /// Its places in its channels. What waits for it counts as not received.
    #[must_use]
    pub fn positions(&self) -> Vec<ListenerPosition> {
        let shared_by = self.shared.bus_of_shared_channels();
        let channels = self.channels.iter();
        let positions = channels.map(|(channel, filters)| {
            let (last_sequence, place) = self.place_in(channel);
            let shared_place = shared_by.as_ref().map(|bus| {
                let shared_state = bus.shared_state(channel.name());
                let confirmed = place.and_then(|place| place.confirmed_by(shared_state));
                confirmed.unwrap_or(SharedPlace::Unknown)
            });
            ListenerPosition {
                channel: channel.name().clone(),
                last_sequence,
                filters: filters.to_vec(),
                shared_place,
            }
        });
        positions.collect()
    }

    fn place_in(&self, channel: &Channel) -> (u64, Option<SharedPlace>) {
        // Messages come to the feed under this lock.
        let state = channel.lock();
        let feed = self.feed.lock_state();
        let mut waiting = feed.messages.iter();
        let next = waiting.find(|each| each.publication.channel == *channel.name());
        let last = next.map_or(state.last_sequence, |next| next.sequence - 1);
        (last, SharedPlace::before(&state, last + 1))
    }

    /// Whether messages were lost since the last [`ListenerEvent::Missed`].
    #[must_use]
    pub fn has_missed_messages(&self) -> bool {
        self.feed.lock_state().missed_messages > 0
    }

    /// Subscribes to a channel at the place of a listener of another process.
    ///
    /// # Errors
    /// Which bound is met.
    pub fn continue_from(&mut self, position: ListenerPosition) -> Result<(), HubError> {
        let settings = self.shared.settings.load_full();
        let subscription = Subscription {
            channel: position.channel,
            filters: position.filters,
            ..Subscription::default()
        };
        let expected = PendingSubscription::new(&self.shared, subscription, settings.max_channels)?;
        self.join_channel(&expected, |listener, state| {
            let last = match &position.shared_place {
                Some(place) => place.last_sequence_in(state),
                None => Some(position.last_sequence),
            };
            for message in last
                .iter()
                .flat_map(|last| state.history.messages_after(*last))
            {
                listener.feed.push(message.clone(), settings.max_backlog);
            }
            if last.is_none_or(|last| state.history.has_gap_after(last)) {
                listener.feed.lock_state().missed_messages += 1;
            }
        });
        self.shared.bus_notifier.notify();
        Ok(())
    }

    /// Subscribes to a channel; `read_history` runs under its lock.
    fn join_channel(
        &mut self,
        expected: &PendingSubscription,
        read_history: impl FnOnce(&Self, &mut ChannelState),
    ) {
        {
            let mut state = expected.channel.lock();
            let was_there = state.has_subscribers();
            state.listeners.insert(self.listener_id, self.feed.clone());
            read_history(self, &mut state);
            self.shared
                .report_subscription_change(&expected.channel, was_there, &mut state);
        }
        let subscription = (expected.channel.clone(), expected.filters.clone());
        self.channels.push(subscription);
    }

    /// A message as a stream of events gets it.
    fn event_of(&self, message: &Message) -> Option<Bytes> {
        match &message.publication.stream {
            Some(StreamAction::Send(content)) => self.render(&message.publication, content),
            _ => Some(message.payload(StreamForm::Events)),
        }
    }

    /// Puts what came after a message into the feed.
    fn replay(&self, state: &mut ChannelState, prev_id: &str, bytes_max: usize) {
        self.shared.trim_history(state, clock::now());
        let from = state.sequence_of(prev_id).unwrap_or_default();
        for message in state.history.messages_after(from) {
            self.feed.push(message.clone(), bytes_max);
        }
    }

    /// Unsubscribes from a channel.
    pub fn unsubscribe(&mut self, name: &str) {
        let found = self
            .channels
            .iter()
            .position(|(each, _)| **each.name() == *name);
        if let Some(found) = found {
            let (channel, _) = self.channels.swap_remove(found);
            self.leave_channel(&channel);
            self.shared.bus_notifier.notify();
        }
    }

    /// Waits for the next event. Cancel safety: nothing is lost.
    pub async fn next_event(&self) -> ListenerEvent {
        let event = async {
            loop {
                let wakeup = self.feed.wakeup.notified();
                match self.feed.pop() {
                    Some(ListenerEvent::Message(message)) if !self.is_accepted(&message) => {}
                    Some(event) => return event,
                    None => wakeup.await,
                }
            }
        };
        tokio::select! {
            biased;
            event = event => event,
            () = self.until_drain() => ListenerEvent::Draining,
        }
    }

    async fn until_drain(&self) {
        let delay = self.shared.wait_for_drain_start().await;
        let at = *self.drain_at.get_or_init(|| clock::now() + delay);
        let _ = clock::timeout_at(at, std::future::pending::<()>()).await;
    }

    /// A message's content as this listener gets it; none if that cannot be made.
    pub fn render(&self, publication: &Publication, content: &Content) -> Option<Bytes> {
        let filters = self.filters(&publication.channel).unwrap_or_default();
        if filters.is_empty() && content.filters.is_empty() {
            return Some(content.bytes.clone());
        }
        let rendered = filters::render_content(content, filters, self);
        let log_error = |error| {
            let channel = &publication.channel;
            log::warn!("hub: channel {channel:?}: a message is not sent: {error}");
        };
        rendered.map_err(log_error).ok()
    }

    /// `None` for a channel without a subscription.
    fn filters(&self, channel: &str) -> Option<&[MessageFilter]> {
        let mut channels = self.channels.iter();
        let found = channels.find(|(each, _)| **each.name() == *channel);
        found.map(|(_, filters)| &**filters)
    }

    /// Whether a message passes. What waited when its channel was left does not.
    fn is_accepted(&self, message: &Message) -> bool {
        let publication = &message.publication;
        let filters = self.filters(&publication.channel);
        filters.is_some_and(|filters| filters::passes_filters(filters, &publication.meta, self))
    }

    fn leave_channel(&self, channel: &Arc<Channel>) {
        self.shared.remove_subscriber(channel, |state| {
            state.listeners.remove(&self.listener_id);
        });
    }
}

impl Drop for MessageListener {
    fn drop(&mut self) {
        for (channel, _) in std::mem::take(&mut self.channels) {
            self.leave_channel(&channel);
        }
        self.shared.bus_notifier.notify();
    }
}

impl FilterSubscriber for MessageListener {
    fn subscriber_meta(&self) -> &MetaPairs {
        &self.meta
    }

    fn last_id(&self, channel: &str) -> Option<Arc<str>> {
        let mut channels = self.channels.iter().map(|(each, _)| each);
        let found = channels.find(|each| channel_name(each.name()) == channel)?;
        Some(found.lock().last_id.clone().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
