//! The bus of a hub whose channels have moved to another process: what it is given to publish goes
//! there, and the messages of channels with subscribers here come back.
//!
//! # Invariants
//! - A publication is kept until the other process has accepted it.
//! - A channel is followed from before its first subscriber here gets its position.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_runtime::clock;
use serde_json::Value;
use tokio::sync::{Notify, oneshot};

use crate::channel::is_internal_channel;
use crate::hub::{HubShared, PublicationSource};
use crate::{Bus, HubError, PrepareChannelsFuture, Publication};

/// How long a subscriber waits for the state of its channels.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2);

/// The way to the next process, as the hub's bus.
#[derive(Debug)]
pub(crate) struct SuccessorLink {
    state: Mutex<LinkState>,
    /// For the task that sends.
    pub(super) wakeup: Notify,
    max_bytes: usize,
    /// In front of the number in the ids of publications that have none: by its id a publication
    /// is known when it comes back.
    id_prefix: String,
}

#[derive(Debug, Default)]
struct LinkState {
    outbox: VecDeque<OutboxItem>,
    /// What was not accepted yet, sent or not, by rising numbers.
    unaccepted: VecDeque<(u64, ForwardedItem)>,
    bytes: usize,
    last_number: u64,
    /// Channels of which messages come.
    followed: HashSet<Arc<str>>,
    /// Subscribers that wait until a channel is followed.
    waiting: HashMap<Arc<str>, Vec<oneshot::Sender<()>>>,
    /// Every stream that can move has moved.
    has_moved_streams: bool,
    is_ended: bool,
}

/// What the other process has to deliver.
#[derive(Debug, Clone)]
pub(super) enum ForwardedItem {
    Publication(Box<Publication>),
    /// An item of a participant.
    Participant(&'static str, Value),
}

impl ForwardedItem {
    fn size(&self) -> usize {
        match self {
            Self::Publication(publication) => publication.size(),
            Self::Participant(_, item) => size_of_value(item),
        }
    }
}

/// About what it takes of memory.
fn size_of_value(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(size_of_value).sum(),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| name.len() + size_of_value(value))
                .sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// What is to be sent next.
#[derive(Debug)]
pub(super) enum OutboxItem {
    Forward(u64, ForwardedItem),
    Subscribe(Arc<str>),
    Unsubscribe(Arc<str>),
    /// Every stream that can move has moved.
    StreamsMoved,
}

impl SuccessorLink {
    /// At most `max_bytes` of publications may wait. `id_prefix` is the hub's.
    pub(super) fn new(max_bytes: usize, id_prefix: &str) -> Self {
        Self {
            state: Mutex::default(),
            wakeup: Notify::new(),
            max_bytes,
            id_prefix: format!("{id_prefix}-{:x}", std::process::id()),
        }
    }

    pub(super) fn next_item(&self) -> Option<OutboxItem> {
        self.lock().outbox.pop_front()
    }

    /// Publications up to this number are in their channels.
    pub(super) fn mark_accepted(&self, number: u64) {
        let mut state = self.lock();
        while let Some((first, item)) = state.unaccepted.front()
            && *first <= number
        {
            state.bytes -= item.size();
            state.unaccepted.pop_front();
        }
    }

    /// A message has come of a channel. A publication comes back before its acceptance and behind
    /// those of all earlier ones.
    pub(super) fn mark_delivered(&self, channel: &str, id: Option<&Arc<str>>) {
        let mut state = self.lock();
        if let Some((_, ForwardedItem::Publication(publication))) = state.unaccepted.front()
            && *publication.channel == *channel
            && publication.id.as_ref() == id
        {
            state.bytes -= publication.size();
            state.unaccepted.pop_front();
        }
    }

    /// Messages of a channel come from now on.
    pub(super) fn mark_followed(&self, channel: &Arc<str>) {
        let mut state = self.lock();
        state.followed.insert(channel.clone());
        for waiting in state.waiting.remove(channel).into_iter().flatten() {
            // It may have given up.
            let _ = waiting.send(());
        }
    }

    /// Every stream that can move has moved: channels without subscribers here are followed no
    /// more.
    pub(super) fn mark_streams_moved(&self, shared: &HubShared) {
        let followed: Vec<_> = {
            let mut state = self.lock();
            state.has_moved_streams = true;
            state.outbox.push_back(OutboxItem::StreamsMoved);
            state.followed.iter().cloned().collect()
        };
        for name in followed {
            let channel = shared.registry.find(&name);
            let is_used = channel.is_some_and(|channel| {
                let state = channel.lock();
                state.has_subscribers() || state.arriving_streams > 0
            });
            if !is_used {
                self.on_unsubscribed(&name);
            }
        }
        self.wakeup.notify_one();
    }

    /// Takes the authority back: delivers here what was not accepted, in order, and ends.
    pub(super) fn take_back_authority(&self, shared: &HubShared) {
        loop {
            let items = {
                let mut state = self.lock();
                if state.unaccepted.is_empty() {
                    state.is_ended = true;
                    state.outbox.clear();
                    state.waiting.clear();
                    shared.end_handing_over();
                    return;
                }
                state.bytes = 0;
                std::mem::take(&mut state.unaccepted)
            };
            for (_, item) in items {
                let delivered = match item {
                    ForwardedItem::Publication(publication) => {
                        let channel = publication.channel.clone();
                        let delivered =
                            shared.deliver_from(*publication, PublicationSource::TakenBack);
                        delivered.map_err(|error| format!("channel {channel:?}: {error}"))
                    }
                    ForwardedItem::Participant(name, item) => {
                        let participant = shared.participants.find(name);
                        participant.and_then(|participant| participant.receive(item))
                    }
                };
                if let Err(error) = delivered {
                    log::warn!("hub: a message is lost: {error}");
                }
            }
        }
    }

    /// Takes an item; `Ok(false)`: the link has ended.
    pub(super) fn forward(&self, mut item: ForwardedItem) -> Result<bool, HubError> {
        let mut state = self.lock();
        if state.is_ended {
            return Ok(false);
        }
        if let ForwardedItem::Publication(publication) = &mut item
            && publication.id.is_none()
        {
            let number = state.last_number + 1;
            publication.id = Some(format!("{}.{number}", self.id_prefix).into());
        }
        let bytes = state.bytes + item.size();
        if bytes > self.max_bytes && !state.unaccepted.is_empty() {
            return Err(HubError::DeliveryBacklogFull(self.max_bytes));
        }
        state.bytes = bytes;
        state.last_number += 1;
        let number = state.last_number;
        state.unaccepted.push_back((number, item.clone()));
        state.outbox.push_back(OutboxItem::Forward(number, item));
        drop(state);
        self.wakeup.notify_one();
        Ok(true)
    }

    fn push(&self, item: OutboxItem) {
        self.lock().outbox.push_back(item);
        self.wakeup.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bus for SuccessorLink {
    fn publish(&self, publication: &Publication) -> Result<bool, HubError> {
        self.forward(ForwardedItem::Publication(Box::new(publication.clone())))
    }

    fn on_subscribed(&self, channel: &Arc<str>) {
        let is_known = is_internal_channel(channel) || self.lock().followed.contains(channel);
        if !is_known {
            self.push(OutboxItem::Subscribe(channel.clone()));
        }
    }

    fn on_unsubscribed(&self, channel: &Arc<str>) {
        let mut state = self.lock();
        // Until then streams may come back.
        if state.has_moved_streams && state.followed.remove(channel) {
            state
                .outbox
                .push_back(OutboxItem::Unsubscribe(channel.clone()));
            self.wakeup.notify_one();
        }
    }

    fn prepare_channels(&self, channels: &[Arc<str>]) -> Option<PrepareChannelsFuture> {
        let mut waits = Vec::new();
        let mut state = self.lock();
        for channel in channels {
            let is_known = is_internal_channel(channel) || state.followed.contains(channel);
            if is_known || state.is_ended {
                continue;
            }
            let (done, wait) = oneshot::channel();
            let waiting = state.waiting.entry(channel.clone()).or_default();
            waiting.push(done);
            if waiting.len() == 1 {
                let subscribe = OutboxItem::Subscribe(channel.clone());
                state.outbox.push_back(subscribe);
            }
            waits.push(wait);
        }
        drop(state);
        if waits.is_empty() {
            return None;
        }
        self.wakeup.notify_one();
        Some(Box::pin(async move {
            let all = async {
                for wait in waits {
                    // An error: the link has ended, and this hub is alone again.
                    let _ = wait.await;
                }
            };
            if clock::timeout(PREPARE_TIMEOUT, all).await.is_none() {
                log::warn!("hub: the next process does not send the state of a channel");
            }
        }))
    }
}
