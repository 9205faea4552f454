//! The mailbox of one slot: new jobs for its driver, and news of its end and its worker's.
//!
//! `dispatch` fills it under the queue's lock, the driver empties it on its loop.
//!
//! # Invariants
//! - Each delivery is taken exactly once.
//! - The lock is never held while a waker runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Instant;

use penstock_queue::DispatchedJob;

use super::{Job, WorkerStats};

/// How one slot's driver hears of new jobs, of its retirement and of its worker's end.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<MailboxState>,
    /// Until when the request at hand has asked for time.
    deadline_extension: Mutex<Option<Instant>>,
    /// Requests that the driver has in progress, for the status page.
    pub(crate) in_progress: AtomicU32,
    pub(crate) stats: Arc<WorkerStats>,
}

#[derive(Debug, Default)]
struct MailboxState {
    jobs: VecDeque<DispatchedJob<Job>>,
    is_retired: bool,
    is_worker_lost: bool,
    are_streams_cut: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
pub(crate) struct MailboxDelivery {
    pub(crate) jobs: VecDeque<DispatchedJob<Job>>,
    pub(crate) is_retired: bool,
    pub(crate) is_worker_lost: bool,
    /// It was retired `stream_timeout` ago: what has begun to answer is cut now.
    pub(crate) are_streams_cut: bool,
}

/// Wakes a driver; not to be called under the queue's lock.
pub(super) fn wake_driver(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Mailbox {
    pub(super) fn new(ledger: Arc<WorkerStats>) -> Self {
        Self {
            stats: ledger,
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

    pub(super) fn mark_retired(&self) {
        self.update_and_wake(|mail| mail.is_retired = true);
    }

    pub(super) fn mark_lost(&self) {
        self.update_and_wake(|mail| mail.is_worker_lost = true);
    }

    /// The time of the streams of a retired slot is over.
    pub(crate) fn cut_streams(&self) {
        self.update_and_wake(|mail| mail.are_streams_cut = true);
    }

    fn update_and_wake(&self, change: impl FnOnce(&mut MailboxState)) {
        let mut mail = self.lock();
        change(&mut mail);
        let waker = mail.waker.take();
        drop(mail);
        wake_driver(waker);
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the delivery; without one the driver is polled when there is one.
    pub(crate) fn poll_delivery(&self, cx: &mut Context<'_>) -> Option<MailboxDelivery> {
        let mut mail = self.lock();
        if !mail.jobs.is_empty() || mail.is_retired || mail.is_worker_lost || mail.are_streams_cut {
            return Some(MailboxDelivery {
                jobs: std::mem::take(&mut mail.jobs),
                is_retired: std::mem::take(&mut mail.is_retired),
                is_worker_lost: std::mem::take(&mut mail.is_worker_lost),
                are_streams_cut: std::mem::take(&mut mail.are_streams_cut),
            });
        }
        match &mut mail.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            other => *other = Some(cx.waker().clone()),
        }
        None
    }

    /// Shows until when the request at hand has asked for time, if it has.
    pub(crate) fn set_deadline_extension(&self, until: Option<Instant>) {
        *self.lock_deadline_extension() = until;
    }

    /// Until when the request at hand has asked for time, if it has.
    pub(crate) fn deadline_extension(&self) -> Option<Instant> {
        *self.lock_deadline_extension()
    }

    fn lock_deadline_extension(&self) -> MutexGuard<'_, Option<Instant>> {
        let extended = &self.deadline_extension;
        extended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_in_progress(&self, count: usize) {
        self.in_progress
            .store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}
