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

use super::sources::Token;
use super::tasks::{Head, Work};
use super::timers::TimerKey;

/// One loop's mailbox.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// Tells loops apart, for ever: a number is not used again.
    id: u32,
    /// `None` once the loop has ended. Held for one push or one exchange.
    letters: Mutex<Option<Vec<Letter>>>,
    /// Whether there are letters, as far as the loop needs to know before it waits.
    has_letters: AtomicBool,
    /// Whether the loop waits, or is about to.
    is_asleep: AtomicBool,
    bell: OwnedFd,
    /// Where the loop waits. Here because who takes a descriptor out of it may be on another thread.
    set: OwnedFd,
}

/// What is asked.
pub(super) enum Letter {
    /// To poll a task.
    Wake(Arc<Head>),
    /// To begin one.
    Spawn(Work),
    /// To forget a descriptor that its owner has closed.
    Forget(Token),
    /// To forget a timer.
    Disarm(TimerKey),
}

impl Mailbox {
    /// # Errors
    /// When descriptors ran out.
    pub(super) fn new() -> io::Result<Self> {
        static IDS: AtomicU32 = AtomicU32::new(1);
        Ok(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            letters: Mutex::new(Some(Vec::new())),
            has_letters: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            bell: poll::create_wake_fd()?,
            set: poll::create()?,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub(super) fn set(&self) -> &OwnedFd {
        &self.set
    }

    /// Asks the loop; what an ended one is asked is dropped.
    pub(super) fn post(&self, letter: Letter) {
        self.leave(letter);
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            poll::wake(self.bell.as_fd());
        }
    }

    /// The same for what can wait until the loop has something else to do.
    pub(super) fn leave(&self, letter: Letter) {
        let refused = match &mut *self.letters() {
            Some(letters) => {
                letters.push(letter);
                None
            }
            None => Some(letter),
        };
        // Outside of the lock: it may hold a future.
        drop(refused);
        // Either the loop sees this before it waits, or who posts sees that it does: both write, then read.
        self.has_letters.store(true, Ordering::SeqCst);
    }

    /// Whether there is something to take.
    pub(super) fn has_letters(&self) -> bool {
        self.has_letters.load(Ordering::Relaxed)
    }

    /// Takes what was asked, in order, into `into`, which is empty; costs a load when there is nothing.
    pub(super) fn take(&self, into: &mut Vec<Letter>) {
        if !self.has_letters() {
            return;
        }
        // Before the letters: one that is posted in between is looked for once more.
        self.has_letters.store(false, Ordering::SeqCst);
        if let Some(letters) = &mut *self.letters() {
            std::mem::swap(letters, into);
        }
    }

    /// For how many letters there is room.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.letters().as_ref().map_or(0, Vec::capacity)
    }

    /// Whether the loop may wait: from here on each post rings, until [`Mailbox::awake`].
    pub(super) fn may_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        let may = !self.has_letters.load(Ordering::SeqCst);
        if !may {
            self.awake();
        }
        may
    }

    /// The loop's wait is over.
    pub(super) fn awake(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// The loop has ended; gives what nobody will do.
    pub(super) fn close(&self) -> Vec<Letter> {
        self.letters().take().unwrap_or_default()
    }

    /// A panic while the lock was held left nothing half done.
    fn letters(&self) -> MutexGuard<'_, Option<Vec<Letter>>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Letter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wake(_) => f.write_str("Wake"),
            Self::Spawn(_) => f.write_str("Spawn"),
            Self::Forget(token) => f.debug_tuple("Forget").field(token).finish(),
            Self::Disarm(key) => f.debug_tuple("Disarm").field(key).finish(),
        }
    }
}
