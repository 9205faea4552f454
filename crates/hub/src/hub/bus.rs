//! The interface to other servers: the calls that the hub makes to a bus, and their order.
//!
//! `cluster` (Redis) implements [`Bus`]; a hub without one is alone.
//!
//! # Invariants
//! - A bus is never called with a lock held.
//! - A bus learns of the first subscriber and the last one of each channel in order: changes are
//!   recorded under the lock of the channel, and one thread at a time passes on all that are
//!   recorded.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::{HubError, Publication};

/// Joins the hubs of several servers. Its methods must not wait.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Takes a publication of this server. True: the bus delivers it everywhere, here as well
    /// ([`crate::Hub::publish_locally`]). False: this server alone delivers it, at once.
    ///
    /// # Errors
    /// There is no room for it, or the bus has ended: no subscriber gets it.
    fn publish(&self, publication: &Publication) -> Result<bool, HubError>;

    /// This server has its first subscriber of a channel.
    fn on_subscribed(&self, channel: &Arc<str>);

    /// The last subscriber of a channel on this server has left.
    fn on_unsubscribed(&self, channel: &Arc<str>);

    /// Subscribers of these channels are about to come. None when publications to them on other
    /// servers comes to this one already; else what to wait for, which takes a bounded time.
    fn prepare_channels(&self, channels: &[Arc<str>]) -> Option<PrepareChannelsFuture> {
        let _ = channels;
        None
    }

    /// Whether subscribers of this channel can continue in another server.
    fn shared_state(&self, channel: &Arc<str>) -> SharedChannelState {
        let _ = channel;
        SharedChannelState::InStep
    }

    /// Follows these channels and waits until everything has come that was published to them before
    /// this call.
    fn catch_up(&self, channels: Vec<Arc<str>>) -> CatchUpFuture {
        let _ = channels;
        Box::pin(std::future::ready(true))
    }
}

/// What the history that all servers share has of what subscribers of a channel got here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedChannelState {
    /// Not all of it, or not yet.
    OutOfStep,
    /// All of it.
    InStep,
    /// Nothing was ever published.
    Empty,
}

/// True when everything has come; false, after a bounded wait, when that is not known.
pub type CatchUpFuture = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Done when publications of other servers arrive, or after a bounded wait.
pub type PrepareChannelsFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls to make to the bus.
#[derive(Debug, Default)]
pub(crate) struct BusNotifier {
    /// Whether there is a bus: without one nothing is recorded.
    has_bus: AtomicBool,
    bus: RwLock<Option<Arc<dyn Bus>>>,
    /// Guards the recorded changes, and which thread passes them on. Never held during a call.
    state: Mutex<BusNotifierState>,
}

#[derive(Debug, Default)]
struct BusNotifierState {
    pending: VecDeque<SubscriptionChange>,
    is_notifying: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SubscriptionChange {
    Subscribed(Arc<str>),
    Unsubscribed(Arc<str>),
}

/// Lets another thread continue if the bus panics.
struct NotifyGuard<'a> {
    notifier: &'a BusNotifier,
    is_done: bool,
}

impl Drop for NotifyGuard<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.notifier.lock().is_notifying = false;
        }
    }
}

impl BusNotifier {
    pub(crate) fn set_bus(&self, bus: Option<Arc<dyn Bus>>) {
        self.has_bus.store(bus.is_some(), Ordering::Release);
        *self.bus.write().unwrap_or_else(PoisonError::into_inner) = bus;
    }

    pub(crate) fn bus(&self) -> Option<Arc<dyn Bus>> {
        if !self.has_bus.load(Ordering::Acquire) {
            return None;
        }
        let bus = self.bus.read().unwrap_or_else(PoisonError::into_inner);
        bus.clone()
    }

    /// Records a change, under the lock of its channel. The caller then calls
    /// [`BusNotifier::notify`] without the lock.
    pub(crate) fn record_change(&self, change: SubscriptionChange) {
        if self.has_bus.load(Ordering::Acquire) {
            self.lock().pending.push_back(change);
        }
    }

    /// Passes all recorded changes to the bus, unless another thread does so already.
    pub(crate) fn notify(&self) {
        let Some(bus) = self.bus() else {
            return;
        };
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_notifying, true) {
            return;
        }
        let mut guard = NotifyGuard {
            notifier: self,
            is_done: false,
        };
        while let Some(change) = state.pending.pop_front() {
            drop(state);
            match change {
                SubscriptionChange::Subscribed(channel) => bus.on_subscribed(&channel),
                SubscriptionChange::Unsubscribed(channel) => bus.on_unsubscribed(&channel),
            }
            state = self.lock();
        }
        state.is_notifying = false;
        guard.is_done = true;
    }

    /// A panic under the lock leaves a list that is whole.
    fn lock(&self) -> MutexGuard<'_, BusNotifierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
