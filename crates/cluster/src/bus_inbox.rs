//! The queue between the threads that publish and subscribe and the task that drives the bus.
//!
//! Publishers and the hub push [`BusCommand`]s in order. `bus_driver` takes them, and leaves the
//! state that any thread may read: live channels and the snapshot.
//!
//! # Invariants
//! - A caller waits for a short lock at most.
//! - Waiting publications are bounded. One that finds no room is refused: delivered here alone it
//!   would overtake those that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_hub::{HubError, Publication, SharedChannelState};
use penstock_runtime::clock;
use tokio::sync::{Notify, oneshot};

use crate::entry::ChannelName;
use crate::outbox::publication_memory_bytes;
use crate::snapshot::ClusterSnapshot;

/// Publications that wait for the task, which takes all that wait at once.
const MAX_PUBLICATIONS: usize = 20_000;

/// Bytes of these.
const MAX_BYTES: usize = 64 << 20;

/// A channel that was asked for is followed at least for so long.
const EXPECTED_TTL: Duration = Duration::from_secs(10);

/// What a thread wants of the bus.
#[derive(Debug)]
pub(super) enum BusCommand {
    /// To all servers.
    Publish(Box<Publication>),
    /// The first subscriber.
    Subscribed(ChannelName),
    /// No subscriber any more.
    Unsubscribed(ChannelName),
    /// Subscribers will come; the sender is dropped when the channels are live.
    Prepare(Vec<ChannelName>, oneshot::Sender<()>),
    /// Follows channels; told when all has come that was published to them before.
    CatchUp(Vec<ChannelName>, oneshot::Sender<()>),
    /// The end; the sender is dropped when it has come.
    Stop(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct BusInbox {
    state: Mutex<BusInboxState>,
    /// Notified when there is something for the task.
    pub(super) wakeup: Arc<Notify>,
}

#[derive(Debug, Default)]
struct BusInboxState {
    commands: Vec<BusCommand>,
    publication_count: usize,
    /// Bytes of these.
    publication_bytes: usize,
    /// Channels whose publications arrive.
    live_channels: HashMap<ChannelName, LiveChannel>,
    /// Redis has every message that subscribers here have.
    is_in_step: bool,
    /// Nothing more is published.
    is_stopping: bool,
    is_closed: bool,
    snapshot: ClusterSnapshot,
}

#[derive(Debug)]
struct LiveChannel {
    /// When it last got a subscriber.
    requested_at: Instant,
    /// Nothing was ever published to it.
    is_empty: bool,
}

impl BusInbox {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            wakeup: Arc::new(Notify::new()),
        }
    }

    /// A publication for all servers.
    ///
    /// # Errors
    /// There is no room for it, or the bus has ended: no subscriber gets it.
    pub(super) fn publish(&self, publication: &Publication) -> Result<(), HubError> {
        let bytes = publication_memory_bytes(publication);
        let mut state = self.lock();
        if state.is_stopping || state.is_closed {
            return Err(HubError::Draining);
        }
        if state.publication_count >= MAX_PUBLICATIONS
            || state.publication_bytes + bytes > MAX_BYTES
        {
            return Err(HubError::DeliveryBacklogFull(MAX_BYTES));
        }
        state.publication_count += 1;
        state.publication_bytes += bytes;
        let publication = Box::new(publication.clone());
        state.commands.push(BusCommand::Publish(publication));
        drop(state);
        self.wakeup.notify_one();
        Ok(())
    }

    /// Requests a stop: from now on nothing more is published.
    pub(super) fn request_stop(&self, sender: oneshot::Sender<()>) {
        self.lock().is_stopping = true;
        self.push(BusCommand::Stop(sender));
    }

    pub(super) fn push(&self, order: BusCommand) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        state.commands.push(order);
        drop(state);
        self.wakeup.notify_one();
    }

    /// Prepares channels that are not live; `None` when there is nothing to wait for.
    pub(super) fn prepare_channels<'a>(
        &self,
        channels: impl IntoIterator<Item = &'a ChannelName>,
        now: Instant,
    ) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        if !state.snapshot.connected || state.is_closed {
            return None;
        }
        let mut cold = Vec::new();
        for channel in channels {
            match state.live_channels.get_mut(channel) {
                Some(live) => live.requested_at = now,
                None => cold.push(channel.clone()),
            }
        }
        if cold.is_empty() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        state.commands.push(BusCommand::Prepare(cold, sender));
        drop(state);
        self.wakeup.notify_one();
        Some(receiver)
    }

    /// Before effects are applied that this is said of.
    pub(super) fn set_in_step(&self, is_in_step: bool) {
        self.lock().is_in_step = is_in_step;
    }

    /// Whether Redis has every message that subscribers of this channel have, and they have missed
    /// none that it had.
    pub(super) fn shared_state(&self, channel: &str) -> SharedChannelState {
        let state = self.lock();
        match state.live_channels.get(channel) {
            Some(live) if state.is_in_step && live.is_empty => SharedChannelState::Empty,
            Some(_) if state.is_in_step => SharedChannelState::InStep,
            _ => SharedChannelState::OutOfStep,
        }
    }

    pub(super) fn snapshot(&self) -> ClusterSnapshot {
        self.lock().snapshot.clone()
    }

    pub(super) fn update_snapshot(&self, update: impl FnOnce(&mut ClusterSnapshot)) {
        update(&mut self.lock().snapshot);
    }

    pub(super) fn take_commands(&self) -> Vec<BusCommand> {
        let mut state = self.lock();
        (state.publication_count, state.publication_bytes) = (0, 0);
        std::mem::take(&mut state.commands)
    }

    pub(super) fn has_commands(&self) -> bool {
        !self.lock().commands.is_empty()
    }

    /// `is_empty`: nothing was ever published to it.
    pub(super) fn mark_live(&self, channel: ChannelName, is_empty: bool) {
        let live = LiveChannel {
            requested_at: clock::now(),
            is_empty,
        };
        self.lock().live_channels.insert(channel, live);
    }

    pub(super) fn mark_not_empty(&self, channel: &str) {
        if let Some(live) = self.lock().live_channels.get_mut(channel) {
            live.is_empty = false;
        }
    }

    pub(super) fn mark_not_live(&self, channel: &ChannelName) {
        self.lock().live_channels.remove(channel);
    }

    pub(super) fn clear_live_channels(&self) {
        self.lock().live_channels.clear();
    }

    /// Whether a subscriber came to the channel a moment ago: its subscription may not be there
    /// yet.
    pub(super) fn was_requested_recently(&self, channel: &str, now: Instant) -> bool {
        let state = self.lock();
        let last = state.live_channels.get(channel);
        last.is_some_and(|live| now.saturating_duration_since(live.requested_at) < EXPECTED_TTL)
    }

    /// Ends the inbox: no more commands are taken, and waiters are notified.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.commands.clear();
        state.live_channels.clear();
    }

    /// A panic under the lock leaves lists that are whole.
    fn lock(&self) -> MutexGuard<'_, BusInboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_hub::{Content, StreamAction};

    fn publication(channel: &str) -> Publication {
        Publication {
            channel: channel.into(),
            ..Publication::default()
        }
    }

    #[test]
    fn a_full_inbox_refuses_publications() {
        let inbox = BusInbox::new();
        for _ in 0..MAX_PUBLICATIONS {
            inbox.publish(&publication("a")).unwrap();
        }
        let refused = inbox.publish(&publication("b"));
        assert_eq!(refused, Err(HubError::DeliveryBacklogFull(MAX_BYTES)));
        assert_eq!(inbox.take_commands().len(), MAX_PUBLICATIONS);
        inbox.publish(&publication("b")).unwrap();
    }

    #[test]
    fn bytes_that_wait_are_bounded() {
        let inbox = BusInbox::new();
        let bytes = vec![b'x'; MAX_BYTES / 4].into();
        let content = Content {
            bytes,
            ..Content::default()
        };
        let large = Publication {
            stream: Some(StreamAction::Send(content)),
            ..publication("a")
        };
        for _ in 0..3 {
            inbox.publish(&large).unwrap();
        }
        assert_eq!(
            inbox.publish(&large),
            Err(HubError::DeliveryBacklogFull(MAX_BYTES))
        );
        inbox.publish(&publication("a")).unwrap();
        assert_eq!(inbox.take_commands().len(), 4);
        inbox.publish(&large).unwrap();
    }

    #[test]
    fn only_channels_that_are_not_live_are_waited_for() {
        let inbox = BusInbox::new();
        let now = Instant::now();
        let channels = [ChannelName::from("a"), ChannelName::from("b")];
        assert!(
            inbox.prepare_channels(&channels, now).is_none(),
            "nobody to ask"
        );
        inbox.update_snapshot(|snapshot| snapshot.connected = true);
        inbox.mark_live(channels[0].clone(), true);
        assert!(inbox.prepare_channels(&channels[..1], now).is_none());
        assert!(inbox.prepare_channels(&channels, now).is_some());
        let orders = inbox.take_commands();
        let [BusCommand::Prepare(asked, _)] = &*orders else {
            panic!("{orders:?}");
        };
        assert_eq!(asked[..], channels[1..]);
        assert!(inbox.was_requested_recently("a", now));
        assert!(!inbox.was_requested_recently("a", now + EXPECTED_TTL * 2));
        inbox.mark_not_live(&channels[0]);
        assert!(inbox.prepare_channels(&channels[..1], now).is_some());
    }

    #[test]
    fn a_closed_inbox_refuses_commands_and_releases_waiters() {
        let inbox = BusInbox::new();
        let (sender, mut receiver) = oneshot::channel();
        inbox.publish(&publication("a")).unwrap();
        inbox.request_stop(sender);
        assert_eq!(inbox.publish(&publication("a")), Err(HubError::Draining));
        assert_eq!(inbox.take_commands().len(), 2, "what came before is taken");
        inbox.close();
        assert!(receiver.try_recv().is_err());
        assert_eq!(inbox.publish(&publication("a")), Err(HubError::Draining));
        inbox.push(BusCommand::Subscribed("a".into()));
        assert!(!inbox.has_commands());
    }
}
