//! The seam to other nodes: what the hub tells a bus, and in which order.
//!
//! `bus` (Redis) implements [`Bus`]; a hub without one is alone. What must stay true: a bus is never called
//! with a lock held, and hears of each channel's comings and goings in the order in which they were: they
//! are noted under the channel's lock, and whoever noted something calls the bus for all that is noted,
//! one thread at a time.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::{HubError, Publication};

/// What joins the hubs of several nodes. Its methods must not wait.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Takes a publication of this node. True: the bus delivers it everywhere, here as well
    /// ([`crate::Hub::publish_locally`]); false: this node delivers it at once, and alone.
    ///
    /// # Errors
    /// There is no room for it, or the bus has ended: nobody gets it.
    fn publish(&self, publication: &Publication) -> Result<bool, HubError>;

    /// This node has its first subscriber of a channel.
    fn on_subscribed(&self, channel: &Arc<str>);

    /// This node's last subscriber of a channel has left.
    fn on_unsubscribed(&self, channel: &Arc<str>);

    /// Subscribers of these channels are about to come. None when what is published to them on other nodes
    /// comes to this one already; else what to wait for, which takes a bounded time.
    fn prepare_channels(&self, channels: &[Arc<str>]) -> Option<ChannelsPrepared> {
        let _ = channels;
        None
    }
}

/// Done when what is published on other nodes comes, or was waited for long enough.
pub type ChannelsPrepared = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is to be told to the bus.
#[derive(Debug, Default)]
pub(crate) struct BusNotifier {
    /// Whether there is a bus: without one nothing is noted.
    has_bus: AtomicBool,
    bus: RwLock<Option<Arc<dyn Bus>>>,
    /// Guards the notes, and who tells them. Never held while the bus is called.
    state: Mutex<BusNotifierState>,
}

#[derive(Debug, Default)]
struct BusNotifierState {
    pending: VecDeque<PresenceChange>,
    is_notifying: bool,
}

/// One change of one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PresenceChange {
    Subscribed(Arc<str>),
    Unsubscribed(Arc<str>),
}

/// Lets another tell, if the bus panics.
struct NotifyGuard<'a> {
    notes: &'a BusNotifier,
    is_done: bool,
}

impl Drop for NotifyGuard<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.notes.lock().is_notifying = false;
        }
    }
}

impl BusNotifier {
    /// Puts a bus in place, or none.
    pub(crate) fn set_bus(&self, bus: Option<Arc<dyn Bus>>) {
        self.has_bus.store(bus.is_some(), Ordering::Release);
        *self.bus.write().unwrap_or_else(PoisonError::into_inner) = bus;
    }

    /// The bus, if there is one.
    pub(crate) fn bus(&self) -> Option<Arc<dyn Bus>> {
        if !self.has_bus.load(Ordering::Acquire) {
            return None;
        }
        let bus = self.bus.read().unwrap_or_else(PoisonError::into_inner);
        bus.clone()
    }

    /// Notes a change, under the lock of the channel that it is of. [`BusNotifier::tell`] follows, without it.
    pub(crate) fn record(&self, note: PresenceChange) {
        if self.has_bus.load(Ordering::Acquire) {
            self.lock().pending.push_back(note);
        }
    }

    /// Tells the bus all that is noted, unless another thread does so already.
    pub(crate) fn notify(&self) {
        let Some(bus) = self.bus() else {
            return;
        };
        let mut noted = self.lock();
        if std::mem::replace(&mut noted.is_notifying, true) {
            return;
        }
        let mut telling = NotifyGuard {
            notes: self,
            is_done: false,
        };
        while let Some(note) = noted.pending.pop_front() {
            drop(noted);
            match note {
                PresenceChange::Subscribed(channel) => bus.on_subscribed(&channel),
                PresenceChange::Unsubscribed(channel) => bus.on_unsubscribed(&channel),
            }
            noted = self.lock();
        }
        noted.is_notifying = false;
        telling.is_done = true;
    }

    /// A panic under the lock leaves a list that is whole.
    fn lock(&self) -> MutexGuard<'_, BusNotifierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
