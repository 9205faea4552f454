//! Between the threads that publish and subscribe and the one task that drives the bus.
//!
//! Publishers and the hub put [`Order`]s in, in the order in which they come; `driver` takes them, and leaves
//! what may be asked at any time: which channels are live, the node's state, the totals. What must stay
//! true: nobody waits here but for a short lock; publications that wait are bounded, and whoever publishes one
//! that finds no room is told so: delivered here alone it would be in front of those that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_runtime::clock;
use tokio::sync::{Notify, oneshot};

use super::entry::Channel;
use super::outbox::size;
use super::totals::Totals;
use crate::{Publication, Refused};

/// Publications that wait for the task, which takes all that wait at once.
const PUBLICATIONS_MAX: usize = 20_000;

/// Bytes of these.
const BYTES_MAX: usize = 64 << 20;

/// A channel that was asked for is followed at least for so long.
const EXPECTED_FOR: Duration = Duration::from_secs(10);

/// What a thread wants of the bus.
#[derive(Debug)]
pub(super) enum Order {
    /// To all nodes.
    Publish(Box<Publication>),
    /// The first subscriber.
    Subscribed(Channel),
    /// No subscriber any more.
    Unsubscribed(Channel),
    /// Subscribers will come; the sender is dropped when the channels are live.
    Prepare(Vec<Channel>, oneshot::Sender<()>),
    /// The end; the sender is dropped when it has come.
    Stop(oneshot::Sender<()>),
}

/// How this server stands with Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether there is a connection.
    pub is_connected: bool,
    /// Whether what is published here is delivered here without waiting for Redis.
    pub is_alone: bool,
    /// Messages that Redis does not have yet.
    pub waiting: usize,
    /// Messages that were dropped before Redis had them, since the start; the others' subscribers were told of
    /// gaps.
    pub lost: u64,
    /// Channels that this server follows.
    pub channels: usize,
}

/// The shared part.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    /// Rung when there is something for the task.
    pub(super) bell: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    orders: Vec<Order>,
    publications: usize,
    /// Bytes of these.
    bytes: usize,
    /// Channels that are live, and when somebody last came to each.
    ready: HashMap<Channel, Instant>,
    is_up: bool,
    /// Nothing more is published.
    is_stopping: bool,
    is_closed: bool,
    status: Status,
    totals: Totals,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            bell: Arc::new(Notify::new()),
        }
    }

    /// A publication for all nodes.
    ///
    /// # Errors
    /// There is no room for it, or no more can be published: nobody gets it.
    pub(super) fn publish(&self, publication: &Publication) -> Result<(), Refused> {
        let bytes = size(publication);
        let mut state = self.lock();
        if state.is_stopping || state.is_closed {
            return Err(Refused::Draining);
        }
        if state.publications >= PUBLICATIONS_MAX || state.bytes + bytes > BYTES_MAX {
            return Err(Refused::Behind(BYTES_MAX));
        }
        state.publications += 1;
        state.bytes += bytes;
        let publication = Box::new(publication.clone());
        state.orders.push(Order::Publish(publication));
        drop(state);
        self.bell.notify_one();
        Ok(())
    }

    /// The last order but for subscribers: from now on nothing more is published.
    pub(super) fn stop(&self, told: oneshot::Sender<()>) {
        self.lock().is_stopping = true;
        self.put(Order::Stop(told));
    }

    /// Any other order.
    pub(super) fn put(&self, order: Order) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        state.orders.push(order);
        drop(state);
        self.bell.notify_one();
    }

    /// Asks for channels that are not live; none when there is nothing to wait for.
    pub(super) fn prepare<'a>(
        &self,
        channels: impl IntoIterator<Item = &'a Channel>,
        now: Instant,
    ) -> Option<oneshot::Receiver<()>> {
        let mut state = self.lock();
        if !state.is_up || state.is_closed {
            return None;
        }
        let mut cold = Vec::new();
        for channel in channels {
            match state.ready.get_mut(channel) {
                Some(last) => *last = now,
                None => cold.push(channel.clone()),
            }
        }
        if cold.is_empty() {
            return None;
        }
        let (told, tells) = oneshot::channel();
        state.orders.push(Order::Prepare(cold, told));
        drop(state);
        self.bell.notify_one();
        Some(tells)
    }

    pub(super) fn status(&self) -> Status {
        self.lock().status
    }

    pub(super) fn totals(&self) -> Totals {
        self.lock().totals.clone()
    }

    /// All that was ordered.
    pub(super) fn take(&self) -> Vec<Order> {
        let mut state = self.lock();
        (state.publications, state.bytes) = (0, 0);
        std::mem::take(&mut state.orders)
    }

    pub(super) fn has_orders(&self) -> bool {
        !self.lock().orders.is_empty()
    }

    /// A channel is live.
    pub(super) fn is_ready(&self, channel: Channel) {
        self.lock().ready.insert(channel, clock::now());
    }

    /// A channel is not followed any more.
    pub(super) fn is_cold(&self, channel: &Channel) {
        self.lock().ready.remove(channel);
    }

    /// No channel is live.
    pub(super) fn is_cold_everywhere(&self) {
        self.lock().ready.clear();
    }

    /// Whether somebody came to the channel a moment ago, whose subscription may not be there yet.
    pub(super) fn is_expected(&self, channel: &str, now: Instant) -> bool {
        let state = self.lock();
        let last = state.ready.get(channel);
        last.is_some_and(|at| now.saturating_duration_since(*at) < EXPECTED_FOR)
    }

    pub(super) fn set_status(&self, status: Status) {
        let mut state = self.lock();
        state.is_up = status.is_connected;
        state.status = status;
    }

    pub(super) fn set_totals(&self, totals: Totals) {
        self.lock().totals = totals;
    }

    /// Nobody takes orders any more: who waits for one is told.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.orders.clear();
        state.ready.clear();
    }

    /// A panic under the lock leaves lists that are whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Content, StreamPart};

    fn publication(channel: &str) -> Publication {
        Publication {
            channel: channel.into(),
            ..Publication::default()
        }
    }

    #[test]
    fn who_finds_no_room_is_told_so_and_nobody_gets_it() {
        let inbox = Inbox::new();
        for _ in 0..PUBLICATIONS_MAX {
            inbox.publish(&publication("a")).unwrap();
        }
        let refused = inbox.publish(&publication("b"));
        assert_eq!(refused, Err(Refused::Behind(BYTES_MAX)));
        assert_eq!(inbox.take().len(), PUBLICATIONS_MAX);
        inbox.publish(&publication("b")).unwrap();
    }

    #[test]
    fn bytes_that_wait_are_bounded() {
        let inbox = Inbox::new();
        let bytes = vec![b'x'; BYTES_MAX / 4].into();
        let content = Content {
            bytes,
            ..Content::default()
        };
        let large = Publication {
            stream: Some(StreamPart::Send(content)),
            ..publication("a")
        };
        for _ in 0..3 {
            inbox.publish(&large).unwrap();
        }
        assert_eq!(inbox.publish(&large), Err(Refused::Behind(BYTES_MAX)));
        inbox.publish(&publication("a")).unwrap();
        assert_eq!(inbox.take().len(), 4);
        inbox.publish(&large).unwrap();
    }

    #[test]
    fn only_channels_that_are_not_live_are_waited_for() {
        let inbox = Inbox::new();
        let now = Instant::now();
        let channels = [Channel::from("a"), Channel::from("b")];
        assert!(inbox.prepare(&channels, now).is_none(), "nobody to ask");
        inbox.set_status(Status {
            is_connected: true,
            ..Status::default()
        });
        inbox.is_ready(channels[0].clone());
        assert!(inbox.prepare(&channels[..1], now).is_none());
        assert!(inbox.prepare(&channels, now).is_some());
        let orders = inbox.take();
        let [Order::Prepare(asked, _)] = &*orders else {
            panic!("{orders:?}");
        };
        assert_eq!(asked[..], channels[1..]);
        assert!(inbox.is_expected("a", now));
        assert!(!inbox.is_expected("a", now + EXPECTED_FOR * 2));
        inbox.is_cold(&channels[0]);
        assert!(inbox.prepare(&channels[..1], now).is_some());
    }

    #[test]
    fn a_closed_inbox_takes_nothing_and_frees_who_waits() {
        let inbox = Inbox::new();
        let (told, mut tells) = oneshot::channel();
        inbox.publish(&publication("a")).unwrap();
        inbox.stop(told);
        assert_eq!(inbox.publish(&publication("a")), Err(Refused::Draining));
        assert_eq!(inbox.take().len(), 2, "what came before is taken");
        inbox.close();
        assert!(tells.try_recv().is_err());
        assert_eq!(inbox.publish(&publication("a")), Err(Refused::Draining));
        inbox.put(Order::Subscribed("a".into()));
        assert!(!inbox.has_orders());
    }
}
