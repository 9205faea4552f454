//! What all threads share of a hub.
//!
//! Handlers reach it through [`crate::Hub`], shards through the `Arc` that they were started with. What
//! must stay true: each lock in here is short and guards one list; the lists of channels have every
//! channel as often as something is parked in it (`parked`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use penstock_runtime::clock;
use tokio::sync::Notify;

use super::bus::{Bus, Note, Notes};
use crate::channel::{Channel, State};
use crate::counts::Tally;
use crate::history::Bounds;
use crate::registry::Registry;
use crate::shard::Inbox;
use crate::{History, Settings};

/// A hub's insides.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) registry: Registry,
    pub(crate) tally: Tally,
    pub(crate) notes: Notes,
    /// The ways to the shards, by their numbers.
    pub(crate) shards: Vec<Inbox>,
    /// Told when nothing is held any more.
    pub(crate) emptied: Notify,
    /// Told when the drain begins.
    pub(crate) draining: Notify,
    /// Told when the keeper has something to do.
    pub(crate) keeper: Notify,
    is_draining: AtomicBool,
    /// Over how long the drain ends what is held, in milliseconds.
    drain_ms: AtomicU64,
    /// The number of the last message.
    order: AtomicU64,
    /// In front of the number in ids that the hub makes: no other start of a server has it.
    stamp: Box<str>,
    /// Channels with parked messages, by when the next of these has waited long enough.
    parked: Mutex<VecDeque<(Instant, Arc<Channel>)>>,
}

impl Shared {
    pub(crate) fn new(settings: Settings, shards: usize) -> Self {
        let started = clock::wall().as_micros();
        Self {
            settings: ArcSwap::from_pointee(settings),
            registry: Registry::new(),
            tally: Tally::default(),
            notes: Notes::default(),
            shards: (0..shards).map(|_| Inbox::default()).collect(),
            emptied: Notify::new(),
            draining: Notify::new(),
            keeper: Notify::new(),
            is_draining: AtomicBool::new(false),
            drain_ms: AtomicU64::new(0),
            order: AtomicU64::new(0),
            stamp: format!("{started:x}.{:x}", std::process::id()).into(),
            parked: Mutex::default(),
        }
    }

    /// The next message's number. Under the lock of its channel, so that numbers rise in each.
    pub(crate) fn next_order(&self) -> u64 {
        self.order.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The id of a message whose publisher gave none.
    pub(crate) fn id_of(&self, order: u64) -> Arc<str> {
        format!("{}-{order}", self.stamp).into()
    }

    /// The number of a message that got its id here, since this start.
    pub(crate) fn order_of(&self, id: &str) -> Option<u64> {
        let number = id.strip_prefix(&*self.stamp)?.strip_prefix('-')?;
        number.parse().ok()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Whether it had begun already.
    pub(crate) fn begin_drain(&self, over: Duration) -> bool {
        if !self.is_draining() {
            let over = u64::try_from(over.as_millis()).unwrap_or(u64::MAX);
            self.drain_ms.store(over, Ordering::Release);
        }
        let had_begun = self.is_draining.swap(true, Ordering::AcqRel);
        self.draining.notify_waiters();
        had_begun
    }

    /// Puts a bus in place and tells it of what there is.
    pub(crate) fn set_bus(&self, bus: Option<Arc<dyn Bus>>) {
        self.notes.set_bus(bus);
        for channel in self.registry.all().flatten() {
            let state = channel.lock();
            // One that comes at this moment is told of twice, which says the same.
            if state.has_subscribers() {
                self.notes.note(Note::Subscribed(channel.name().clone()));
            }
        }
        self.notes.tell();
    }

    /// Waits until the drain begins; over how long it ends what is held.
    pub(crate) async fn begun(&self) -> Duration {
        loop {
            let begun = self.draining.notified();
            if self.is_draining() {
                return Duration::from_millis(self.drain_ms.load(Ordering::Acquire));
            }
            begun.await;
        }
    }

    /// What a channel may keep. A stream on its way is to find what was published meanwhile, also where
    /// nothing is kept for those who come back.
    pub(crate) fn bounds(history: &History, state: &State) -> Bounds {
        let count = if state.is_internal { 0 } else { history.count };
        let (count, age) = if state.expected > 0 {
            (count.max(EXPECTED_MAX), history.age.max(EXPECTED_FOR))
        } else {
            (count, history.age)
        };
        Bounds {
            count,
            age,
            bytes: history.bytes,
        }
    }

    /// Lets go of what a channel may keep no more.
    pub(crate) fn trim(&self, state: &mut State, now: Instant) {
        let bounds = Self::bounds(&self.settings.load().history, state);
        let freed = state.history.trim(bounds, now);
        self.tally.change_history(&state.share, freed, 0);
    }

    /// Notes that a channel's subscribers were `before` and are now what `state` says.
    pub(crate) fn note_presence(&self, channel: &Arc<Channel>, was_there: bool, state: &mut State) {
        state.update_places(channel);
        match (was_there, state.has_subscribers()) {
            (false, true) => self.notes.note(Note::Subscribed(channel.name().clone())),
            (true, false) => self.notes.note(Note::Unsubscribed(channel.name().clone())),
            (true, true) | (false, false) => {}
        }
    }

    pub(crate) fn parked(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<Channel>)>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is kept at least for streams on their way, in messages: a head is sent within microseconds, or
/// its client is slow.
const EXPECTED_MAX: usize = 256;

/// And for how long.
const EXPECTED_FOR: Duration = Duration::from_secs(30);
