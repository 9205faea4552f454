//! The mailbox of one slot: how its driver hears of new jobs, of its end and of its worker's.
//!
//! Filled by `dispatch` under the queue's lock, emptied by the driver (`slot`, `channel`) on its loop.
//! What must stay true: what was left is taken exactly once; the lock is never held while a waker runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Instant;

use penstock_queue::DispatchedJob;

use super::{Job, Ledger};

/// How one slot's driver hears of new jobs, of its retirement and of its worker's end.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    /// Until when the request at hand has asked for time.
    extended_until: Mutex<Option<Instant>>,
    /// Requests that the driver has in progress, for the status page.
    pub(crate) in_progress: AtomicU32,
    /// What its worker's slots have in common.
    pub(crate) ledger: Arc<Ledger>,
}

#[derive(Debug, Default)]
struct Mail {
    jobs: VecDeque<DispatchedJob<Job>>,
    retire: bool,
    lost: bool,
    cut: bool,
    waker: Option<Waker>,
}

/// What a driver finds in its mailbox.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) jobs: VecDeque<DispatchedJob<Job>>,
    pub(crate) retire: bool,
    /// Its worker's process has ended.
    pub(crate) lost: bool,
    /// It was retired `stream_timeout` ago: what has begun to answer is cut now.
    pub(crate) cut: bool,
}

/// Wakes a driver; not to be called under the queue's lock.
pub(super) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Mailbox {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger,
            ..Self::default()
        }
    }

    /// Leaves a job; gives the driver's waker.
    pub(super) fn post(&self, start: DispatchedJob<Job>) -> Option<Waker> {
        let mut mail = self.lock();
        mail.jobs.push_back(start);
        mail.waker.take()
    }

    /// Takes the jobs that the driver has not found.
    pub(super) fn take_jobs(&self) -> VecDeque<DispatchedJob<Job>> {
        std::mem::take(&mut self.lock().jobs)
    }

    pub(super) fn retire(&self) {
        self.tell(|mail| mail.retire = true);
    }

    pub(super) fn lose(&self) {
        self.tell(|mail| mail.lost = true);
    }

    /// The time of the streams of a retired slot is over.
    pub(crate) fn cut(&self) {
        self.tell(|mail| mail.cut = true);
    }

    fn tell(&self, change: impl FnOnce(&mut Mail)) {
        let mut mail = self.lock();
        change(&mut mail);
        let waker = mail.waker.take();
        drop(mail);
        wake(waker);
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is there; else arranges for the driver to be polled when something is.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Option<Delivery> {
        let mut mail = self.lock();
        if !mail.jobs.is_empty() || mail.retire || mail.lost || mail.cut {
            return Some(Delivery {
                jobs: std::mem::take(&mut mail.jobs),
                retire: std::mem::take(&mut mail.retire),
                lost: std::mem::take(&mut mail.lost),
                cut: std::mem::take(&mut mail.cut),
            });
        }
        match &mut mail.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            other => *other = Some(cx.waker().clone()),
        }
        None
    }

    /// Shows until when the request at hand has asked for time, if it has.
    pub(crate) fn show_extended(&self, until: Option<Instant>) {
        *self.extended() = until;
    }

    /// Until when the request at hand has asked for time, if it has.
    pub(crate) fn extended_until(&self) -> Option<Instant> {
        *self.extended()
    }

    fn extended(&self) -> MutexGuard<'_, Option<Instant>> {
        let extended = &self.extended_until;
        extended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows how many requests the driver has.
    pub(crate) fn show_in_progress(&self, count: usize) {
        self.in_progress
            .store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}
