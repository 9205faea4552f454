//! Messages from other threads to an event loop, and the wake fd that ends its wait.
//!
//! Wakers, [`super::LoopHandle`]s and loop-owned objects that are dropped elsewhere post here; the
//! loop takes all messages at its next iteration.
//!
//! # Invariants
//! - A loop that is about to wait never misses a message.
//! - Posting to a loop that is awake costs no system call.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_sys::poll;

use super::slots::SlotKey;
use super::tasks::{TaskFuture, TaskHeader};
use super::timers::TimerKey;

#[derive(Debug)]
pub(super) struct Mailbox {
    /// Identifies the loop; never reused.
    id: u32,
    /// `None` once the loop has ended. Held for one push or one exchange.
    messages: Mutex<Option<Vec<LoopMessage>>>,
    /// Whether there are messages, checked by the loop before it waits.
    has_messages: AtomicBool,
    /// Whether the loop waits, or is about to.
    is_asleep: AtomicBool,
    wake_fd: OwnedFd,
    /// The loop's epoll set. It is here because a descriptor may be removed from another thread.
    epoll_fd: OwnedFd,
}

pub(super) enum LoopMessage {
    Wake(Arc<TaskHeader>),
    Spawn(TaskFuture),
    /// Forgets a descriptor that its owner has closed.
    RemoveFd(SlotKey),
    DisarmTimer(TimerKey),
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        static IDS: AtomicU32 = AtomicU32::new(1);
        Ok(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            messages: Mutex::new(Some(Vec::new())),
            has_messages: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            wake_fd: poll::create_wake_fd()?,
            epoll_fd: poll::create()?,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn wake_fd(&self) -> &OwnedFd {
        &self.wake_fd
    }

    pub(super) fn epoll_fd(&self) -> &OwnedFd {
        &self.epoll_fd
    }

    /// Posts a message; dropped if the loop has ended.
    pub(super) fn post(&self, message: LoopMessage) {
        self.post_without_wake(message);
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            poll::wake(self.wake_fd.as_fd());
        }
    }

    /// The same for a message that can wait until the loop wakes for another reason.
    pub(super) fn post_without_wake(&self, message: LoopMessage) {
        let refused = match &mut *self.messages() {
            Some(messages) => {
                messages.push(message);
                None
            }
            None => Some(message),
        };
        // Outside of the lock: it may hold a future.
        drop(refused);
        // Either the loop sees this before it waits, or the poster sees that the loop is asleep:
        // both write, then read.
        self.has_messages.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_messages(&self) -> bool {
        self.has_messages.load(Ordering::Relaxed)
    }

    /// Takes the messages, in order, into `into`, which is empty; costs one load when there are
    /// none.
    pub(super) fn take_messages(&self, into: &mut Vec<LoopMessage>) {
        if !self.has_messages() {
            return;
        }
        // Before taking the messages: one posted in between causes another look.
        self.has_messages.store(false, Ordering::SeqCst);
        if let Some(messages) = &mut *self.messages() {
            std::mem::swap(messages, into);
        }
    }

    #[cfg(test)]
    pub(super) fn message_capacity(&self) -> usize {
        self.messages().as_ref().map_or(0, Vec::capacity)
    }

    /// Returns whether the loop may wait: from here on each post wakes it, until
    /// [`Mailbox::set_awake`].
    pub(super) fn try_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        let may = !self.has_messages.load(Ordering::SeqCst);
        if !may {
            self.set_awake();
        }
        may
    }

    /// Ends the loop's wait.
    pub(super) fn set_awake(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// Closes the mailbox of an ended loop; returns the unhandled messages.
    pub(super) fn close(&self) -> Vec<LoopMessage> {
        self.messages().take().unwrap_or_default()
    }

    /// A panic while the lock was held left nothing half done.
    fn messages(&self) -> MutexGuard<'_, Option<Vec<LoopMessage>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for LoopMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wake(_) => f.write_str("Wake"),
            Self::Spawn(_) => f.write_str("Spawn"),
            Self::RemoveFd(token) => f.debug_tuple("RemoveFd").field(token).finish(),
            Self::DisarmTimer(key) => f.debug_tuple("DisarmTimer").field(key).finish(),
        }
    }
}
