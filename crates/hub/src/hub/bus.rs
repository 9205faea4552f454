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

use crate::{Publication, Refused};

/// What joins the hubs of several nodes. Its methods must not wait.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Takes a publication of this node. True: the bus delivers it everywhere, here as well
    /// ([`crate::Hub::publish_from_bus`]); false: this node delivers it at once, and alone.
    ///
    /// # Errors
    /// There is no room for it, or the bus has ended: nobody gets it.
    fn publish(&self, publication: &Publication) -> Result<bool, Refused>;

    /// This node has its first subscriber of a channel.
    fn subscribed(&self, channel: &Arc<str>);

    /// This node's last subscriber of a channel has left.
    fn unsubscribed(&self, channel: &Arc<str>);

    /// Subscribers of these channels are about to come. None when what is published to them on other nodes
    /// comes to this one already; else what to wait for, which takes a bounded time.
    fn prepare(&self, channels: &[Arc<str>]) -> Option<Prepared> {
        let _ = channels;
        None
    }
}

/// Done when what is published on other nodes comes, or was waited for long enough.
pub type Prepared = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is to be told to the bus.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Whether there is a bus: without one nothing is noted.
    is_wanted: AtomicBool,
    bus: RwLock<Option<Arc<dyn Bus>>>,
    /// Guards the notes, and who tells them. Never held while the bus is called.
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    notes: VecDeque<Note>,
    is_told_by_somebody: bool,
}

/// One change of one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    Subscribed(Arc<str>),
    Unsubscribed(Arc<str>),
}

/// Lets another tell, if the bus panics.
struct Telling<'a> {
    notes: &'a Notes,
    is_done: bool,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.notes.lock().is_told_by_somebody = false;
        }
    }
}

impl Notes {
    /// Puts a bus in place, or none.
    pub(crate) fn set_bus(&self, bus: Option<Arc<dyn Bus>>) {
        self.is_wanted.store(bus.is_some(), Ordering::Release);
        *self.bus.write().unwrap_or_else(PoisonError::into_inner) = bus;
    }

    /// The bus, if there is one.
    pub(crate) fn bus(&self) -> Option<Arc<dyn Bus>> {
        if !self.is_wanted.load(Ordering::Acquire) {
            return None;
        }
        let bus = self.bus.read().unwrap_or_else(PoisonError::into_inner);
        bus.clone()
    }

    /// Notes a change, under the lock of the channel that it is of. [`Notes::tell`] follows, without it.
    pub(crate) fn note(&self, note: Note) {
        if self.is_wanted.load(Ordering::Acquire) {
            self.lock().notes.push_back(note);
        }
    }

    /// Tells the bus all that is noted, unless another thread does so already.
    pub(crate) fn tell(&self) {
        let Some(bus) = self.bus() else {
            return;
        };
        let mut noted = self.lock();
        if std::mem::replace(&mut noted.is_told_by_somebody, true) {
            return;
        }
        let mut telling = Telling {
            notes: self,
            is_done: false,
        };
        while let Some(note) = noted.notes.pop_front() {
            drop(noted);
            match note {
                Note::Subscribed(channel) => bus.subscribed(&channel),
                Note::Unsubscribed(channel) => bus.unsubscribed(&channel),
            }
            noted = self.lock();
        }
        noted.is_told_by_somebody = false;
        telling.is_done = true;
    }

    /// A panic under the lock leaves a list that is whole.
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
