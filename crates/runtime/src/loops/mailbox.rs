//! What other threads ask of a loop: its mailbox, and the bell that ends its wait.
//!
//! Wakers, [`super::LoopHandle`]s and whatever belongs to a loop but is dropped elsewhere post here; the loop
//! takes all of it at its next turn. What must stay true: a post is never missed by a loop that is about to
//! wait, and a loop that is awake costs the poster no system call.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_sys::poll;

use super::fd_table::FdToken;
use super::tasks::{TaskFuture, TaskHeader};
use super::timers::TimerKey;

/// One loop's mailbox.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// Tells loops apart, for ever: a number is not used again.
    id: u32,
    /// `None` once the loop has ended. Held for one push or one exchange.
    messages: Mutex<Option<Vec<LoopMessage>>>,
    /// Whether there are letters, as far as the loop needs to know before it waits.
    has_messages: AtomicBool,
    /// Whether the loop waits, or is about to.
    is_asleep: AtomicBool,
    wake_fd: OwnedFd,
    /// Where the loop waits. Here because who takes a descriptor out of it may be on another thread.
    epoll_fd: OwnedFd,
}

/// What is asked.
pub(super) enum LoopMessage {
    /// To poll a task.
    Wake(Arc<TaskHeader>),
    /// To begin one.
    Spawn(TaskFuture),
    /// To forget a descriptor that its owner has closed.
    RemoveFd(FdToken),
    /// To forget a timer.
    DisarmTimer(TimerKey),
}

impl Mailbox {
    /// # Errors
    /// When descriptors ran out.
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

    /// Asks the loop; what an ended one is asked is dropped.
    pub(super) fn post(&self, letter: LoopMessage) {
        self.post_without_wake(letter);
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            poll::wake(self.wake_fd.as_fd());
        }
    }

    /// The same for what can wait until the loop has something else to do.
    pub(super) fn post_without_wake(&self, letter: LoopMessage) {
        let refused = match &mut *self.messages() {
            Some(letters) => {
                letters.push(letter);
                None
            }
            None => Some(letter),
        };
        // Outside of the lock: it may hold a future.
        drop(refused);
        // Either the loop sees this before it waits, or who posts sees that it does: both write, then read.
        self.has_messages.store(true, Ordering::SeqCst);
    }

    /// Whether there is something to take.
    pub(super) fn has_messages(&self) -> bool {
        self.has_messages.load(Ordering::Relaxed)
    }

    /// Takes what was asked, in order, into `into`, which is empty; costs a load when there is nothing.
    pub(super) fn take(&self, into: &mut Vec<LoopMessage>) {
        if !self.has_messages() {
            return;
        }
        // Before the letters: one that is posted in between is looked for once more.
        self.has_messages.store(false, Ordering::SeqCst);
        if let Some(letters) = &mut *self.messages() {
            std::mem::swap(letters, into);
        }
    }

    /// For how many letters there is room.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.messages().as_ref().map_or(0, Vec::capacity)
    }

    /// Whether the loop may wait: from here on each post rings, until [`Mailbox::set_awake`].
    pub(super) fn try_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        let may = !self.has_messages.load(Ordering::SeqCst);
        if !may {
            self.set_awake();
        }
        may
    }

    /// The loop's wait is over.
    pub(super) fn set_awake(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// The loop has ended; gives what nobody will do.
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
            Self::RemoveFd(token) => f.debug_tuple("Forget").field(token).finish(),
            Self::DisarmTimer(key) => f.debug_tuple("Disarm").field(key).finish(),
        }
    }
}
