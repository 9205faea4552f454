//! Tasks that hear of channels' messages: WebSockets, and streams whose back end has more to say.
//!
//! [`crate::Hub::listen`] makes a [`Listener`]. Its owner is a task of its own anyway, so it needs no shard:
//! channels put their messages into its feed under their locks, and it takes them out when it gets to it.
//! What must stay true: a feed is bounded, and who falls behind loses the oldest and is told; each channel's
//! messages stay in order; dropping it takes it out of all channels.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use penstock_exchange::AddressPrefix;
use penstock_runtime::clock;
use tokio::sync::Notify;

use super::Shared;
use super::holding::Expected;
use crate::channel::{Channel, Message, State};
use crate::counts::Seat;
use crate::filters::{self, Meta, Reader};
use crate::namespace::channel_name;
use crate::{Content, Filter, Publication, Refused, Subscription};

/// Hears of messages; see the head of this file.
#[derive(Debug)]
pub(crate) struct Listener {
    shared: Arc<Shared>,
    feed: Arc<Feed>,
    channels: Vec<(Arc<Channel>, Box<[Filter]>)>,
    meta: Vec<(Box<str>, Box<str>)>,
    number: u64,
    /// When it is to end, once the hub stops: spread, so that clients do not come back all at once.
    leaves_at: OnceLock<Instant>,
    _seat: Seat,
}

/// Where messages wait for a listener.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// Held for a push or a pop only.
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Arc<Message>>,
    bytes: usize,
    missed: u64,
}

/// What a listener hears.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A message that passes the filters of its channel.
    Message(Arc<Message>),
    /// So many were lost, since this one did not take them in time.
    Missed(u64),
    /// The server stops.
    Draining,
}

/// Messages that wait for one listener.
const WAITING_MAX: usize = 100;

impl Feed {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message, under its channel's lock, and lets the oldest go where there are too many.
    pub(crate) fn push(&self, message: Arc<Message>, bytes_max: usize) {
        let mut waiting = self.waiting();
        waiting.bytes += message.cost;
        waiting.messages.push_back(message);
        while waiting.messages.len() > WAITING_MAX
            || waiting.bytes > bytes_max && waiting.messages.len() > 1
        {
            if let Some(lost) = waiting.messages.pop_front() {
                waiting.bytes -= lost.cost;
                waiting.missed += 1;
            }
        }
    }

    /// Tells the listener, when no lock is held.
    pub(crate) fn tell(&self) {
        self.news.notify_one();
    }

    fn pop(&self) -> Option<Heard> {
        let mut waiting = self.waiting();
        if waiting.missed > 0 {
            return Some(Heard::Missed(std::mem::take(&mut waiting.missed)));
        }
        let message = waiting.messages.pop_front()?;
        waiting.bytes -= message.cost;
        Some(Heard::Message(message))
    }
}

impl Listener {
    pub(super) fn new(
        shared: &Arc<Shared>,
        client: Option<AddressPrefix>,
    ) -> Result<Self, Refused> {
        let seat = Seat::take(shared, client)?;
        Ok(Self {
            shared: shared.clone(),
            feed: Arc::default(),
            channels: Vec::new(),
            meta: Vec::new(),
            number: shared.next_order(),
            leaves_at: OnceLock::new(),
            _seat: seat,
        })
    }

    /// Puts other words about it in place: what filters know of it.
    pub(crate) fn set_meta(&mut self, meta: Vec<(Box<str>, Box<str>)>) {
        self.meta = meta;
    }

    /// Hears of one more channel, or of one with other filters. Of a new one it hears first what came after
    /// the message that `prev_id` names; where that is not known any more, all that is kept.
    ///
    /// # Errors
    /// Which bound is met.
    pub(crate) fn subscribe(&mut self, subscription: Subscription) -> Result<(), Refused> {
        let known = |(channel, _): &&mut (Arc<Channel>, Box<[Filter]>)| {
            **channel.name() == *subscription.channel
        };
        if let Some((_, filters)) = self.channels.iter_mut().find(known) {
            *filters = subscription.filters.into();
            return Ok(());
        }
        let settings = self.shared.settings.load();
        if self.channels.len() >= settings.channels_per_stream {
            return Err(Refused::ChannelsOfStream(settings.channels_per_stream));
        }
        let expected = Expected::new(&self.shared, subscription, settings.channels_max)?;
        {
            let mut state = expected.channel.lock();
            let was_there = state.has_subscribers();
            state.listeners.insert(self.number, self.feed.clone());
            if let Some(prev_id) = &expected.prev_id {
                self.replay(&mut state, prev_id, settings.backlog_bytes);
            }
            self.shared
                .note_presence(&expected.channel, was_there, &mut state);
        }
        self.shared.notes.tell();
        let place = (expected.channel.clone(), expected.filters.clone());
        self.channels.push(place);
        Ok(())
    }

    /// Puts what came after a message into the feed.
    fn replay(&self, state: &mut State, prev_id: &str, bytes_max: usize) {
        self.shared.trim(state, clock::now());
        let from = state.order_of(prev_id).unwrap_or_default();
        for message in state.history.after(from) {
            self.feed.push(message.clone(), bytes_max);
        }
    }

    /// Hears of a channel no more.
    pub(crate) fn unsubscribe(&mut self, name: &str) {
        let found = self
            .channels
            .iter()
            .position(|(each, _)| **each.name() == *name);
        if let Some(found) = found {
            let (channel, _) = self.channels.swap_remove(found);
            self.leave(&channel);
            self.shared.notes.tell();
        }
    }

    /// Waits for the next thing to hear. Cancel safety: nothing is lost.
    pub(crate) async fn next(&self) -> Heard {
        let heard = async {
            loop {
                let news = self.feed.news.notified();
                match self.feed.pop() {
                    Some(Heard::Message(message)) if !self.is_for(&message) => {}
                    Some(heard) => return heard,
                    None => news.await,
                }
            }
        };
        tokio::select! {
            biased;
            heard = heard => heard,
            () = self.drained() => Heard::Draining,
        }
    }

    async fn drained(&self) {
        let over = self.shared.begun().await;
        let part = RandomState::new().hash_one(self.number) % 1000;
        let leave = || clock::now() + over.mul_f64(part as f64 / 1000.0);
        let at = *self.leaves_at.get_or_init(leave);
        let _ = clock::timeout_at(at, std::future::pending::<()>()).await;
    }

    /// A message's content as this listener gets it; none if that cannot be made.
    pub(crate) fn content(
        &self,
        publication: &Publication,
        content: &Content,
    ) -> Option<bytes::Bytes> {
        let filters = self.filters(&publication.channel);
        if filters.is_empty() && content.filters.is_empty() {
            return Some(content.bytes.clone());
        }
        let rendered = filters::render(content, filters, self);
        let told = |error| {
            let channel = &publication.channel;
            log::warn!("hub: channel {channel:?}: a message is not sent: {error}");
        };
        rendered.map_err(told).ok()
    }

    fn filters(&self, channel: &str) -> &[Filter] {
        let mut channels = self.channels.iter();
        let found = channels.find(|(each, _)| **each.name() == *channel);
        found.map_or(&[], |(_, filters)| filters)
    }

    /// Whether a message passes. What waited when its channel was left does not.
    fn is_for(&self, message: &Message) -> bool {
        let publication = &message.publication;
        let mut channels = self.channels.iter();
        channels.any(|(each, _)| **each.name() == *publication.channel)
            && filters::passes(self.filters(&publication.channel), &publication.meta, self)
    }

    fn leave(&self, channel: &Arc<Channel>) {
        let is_idle = {
            let mut state = channel.lock();
            let was_there = state.has_subscribers();
            state.listeners.remove(&self.number);
            self.shared.note_presence(channel, was_there, &mut state);
            state.is_idle()
        };
        if is_idle {
            self.shared.registry.release(channel);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for (channel, _) in std::mem::take(&mut self.channels) {
            self.leave(&channel);
        }
        self.shared.notes.tell();
    }
}

impl Reader for Listener {
    fn meta(&self) -> &Meta {
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
