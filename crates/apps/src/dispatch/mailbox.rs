//! The mailbox of one slot: new jobs for its driver, and news of its end and its worker's.
//!
//! `dispatch` fills it under the queue's lock, the driver empties it on its loop.
//!
//! # Invariants
//! - Each delivery is taken exactly once.
//! - The lock is never held while a waker runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Instant;

use parking_lot::Mutex;
use penstock_queue::DispatchedJob;

use super::{Job, WorkerStats};
use crate::upload::store_waker;

/// How one slot's driver hears of new jobs, of its retirement and of its worker's end.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<MailboxState>,
    /// Until when the request at hand has asked for time, if it has.
    pub(crate) deadline_extension: Mutex<Option<Instant>>,
    /// Requests that the driver has in progress, for the status page.
    pub(crate) in_progress: AtomicU32,
    pub(crate) stats: Arc<WorkerStats>,
}

#[derive(Debug, Default)]
struct MailboxState {
    delivery: MailboxDelivery,
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

impl Mailbox {
    pub(super) fn new(stats: Arc<WorkerStats>) -> Self {
        Self {
            stats,
            ..Self::default()
        }
    }

    /// Leaves a job; gives the driver's waker.
    pub(super) fn post(&self, start: DispatchedJob<Job>) -> Option<Waker> {
        let mut mail = self.state.lock();
        mail.delivery.jobs.push_back(start);
        mail.waker.take()
    }

    /// Takes the jobs that the driver has not found.
    pub(super) fn take_jobs(&self) -> VecDeque<DispatchedJob<Job>> {
        std::mem::take(&mut self.state.lock().delivery.jobs)
    }

    pub(super) fn mark_retired(&self) {
        self.update_and_wake(|mail| mail.is_retired = true);
    }

    pub(super) fn mark_worker_lost(&self) {
        self.update_and_wake(|mail| mail.is_worker_lost = true);
    }

    /// The time of the streams of a retired slot is over.
    pub(crate) fn cut_streams(&self) {
        self.update_and_wake(|mail| mail.are_streams_cut = true);
    }

    fn update_and_wake(&self, change: impl FnOnce(&mut MailboxDelivery)) {
        let mut mail = self.state.lock();
        change(&mut mail.delivery);
        let waker = mail.waker.take();
        drop(mail);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes the delivery; without one the driver is polled when there is one.
    pub(crate) fn poll_delivery(&self, cx: &mut Context<'_>) -> Option<MailboxDelivery> {
        let mut mail = self.state.lock();
        let MailboxDelivery {
            jobs,
            is_retired,
            is_worker_lost,
            are_streams_cut,
        } = &mail.delivery;
        if !jobs.is_empty() || *is_retired || *is_worker_lost || *are_streams_cut {
            return Some(std::mem::take(&mut mail.delivery));
        }
        store_waker(&mut mail.waker, cx);
        None
    }

    pub(crate) fn set_in_progress(&self, count: usize) {
        self.in_progress
            .store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}
