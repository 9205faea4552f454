//! The shared state of one worker's slots: requests served, spare slots, garbage collections.
//!
//! A worker's [`WorkerStats`] is made when it is started, is in the mailbox of each of its slots
//! and is read by the executor's limits and the status page. Slot drivers call `lend_spare_slot`
//! for an I/O-bound request, `park_slot` at its end and `begin_gc` when idle; the executor calls
//! `reserve_slots` where the number of threads follows the load.
//!
//! # Invariants
//! - A worker has as many slots that take requests as it has threads for them (busy ones above that
//!   number until they are done), and one more for each I/O-bound request.
//! - A closed slot is in one list of those.
//! - A collection begins only while the whole worker is idle and no request waits, and keeps all
//!   its slots until it is over.
//! - The lock here is taken inside the queue's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Instant;

use parking_lot::Mutex;
use penstock_queue::{DispatchedJob, SlotId};

use super::{AppDispatcher, DispatchState, Job};
use crate::sticky::WorkerToken;

/// The least number of requests between two collections of a worker: a full collection of a large
/// heap costs as much as some requests.
const MIN_REQUESTS_BETWEEN_GC: u64 = 16;

/// The pause after a collection, in times of its length, so that collections take a fiftieth of the
/// time at most.
const GC_PAUSE_FACTOR: u32 = 50;

/// After this many requests without one a collection does not wait until another slot is free.
const GC_OVERDUE_REQUESTS: u64 = 1000;

/// The shared state of one worker's slots.
#[derive(Debug)]
pub(crate) struct WorkerStats {
    /// The worker's token in sticky cookies.
    pub(super) token: WorkerToken,
    served_requests: AtomicU64,
    /// The number of them at which the executor is notified.
    notify_at: AtomicU64,
    /// Too many of its requests do not end.
    is_stuck: AtomicBool,
    /// The stacks of its requests are to be logged.
    stacks_requested: AtomicBool,
    initially_reserved: usize,
    slots: Mutex<SlotGroup>,
}

#[derive(Debug, Default)]
struct SlotGroup {
    slots: Vec<SlotId>,
    /// Closed slots, for I/O-bound requests.
    spare: Vec<SlotId>,
    /// Closed slots, for more load.
    reserved: Vec<SlotId>,
    /// The slot whose driver began a collection that is not over, and the slots that are kept for
    /// it.
    gc_slot: Option<SlotId>,
    gc_claimed: Vec<SlotId>,
    served_at_last_gc: u64,
    gc_started_at: Option<Instant>,
    /// No collection before: the cost of the last one must stay a small part.
    next_gc_at: Option<Instant>,
}

impl Default for WorkerStats {
    fn default() -> Self {
        Self {
            token: WorkerToken::generate(),
            served_requests: AtomicU64::new(0),
            notify_at: AtomicU64::new(u64::MAX),
            is_stuck: AtomicBool::new(false),
            stacks_requested: AtomicBool::new(false),
            initially_reserved: 0,
            slots: Mutex::default(),
        }
    }
}

impl WorkerStats {
    /// Stats of a worker that has this many slots for more load, not for I/O.
    pub(crate) fn with_standby_slots(slots: usize) -> Self {
        Self {
            initially_reserved: slots,
            ..Self::default()
        }
    }

    /// Requests that the worker has answered, or that were given up.
    pub(crate) fn served_requests(&self) -> u64 {
        self.served_requests.load(Ordering::Relaxed)
    }

    pub(crate) fn gc_claimed_slots(&self) -> usize {
        self.slots.lock().gc_claimed.len()
    }

    /// Has `AppDispatcher::limit_reached` notified once this many requests have been served.
    pub(crate) fn notify_when_served(&self, served: u64) {
        self.notify_at.store(served, Ordering::Relaxed);
    }

    /// Asks for the worker's replacement: dropped requests hold its slots.
    pub(crate) fn mark_stuck(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// Asks for the stacks of its requests in the log: one of them has timed out.
    pub(crate) fn request_stacks(&self) {
        self.stacks_requested.store(true, Ordering::Relaxed);
    }

    /// Whether stacks were asked for since the last call.
    pub(crate) fn take_stacks_request(&self) -> bool {
        self.stacks_requested.swap(false, Ordering::Relaxed)
    }

    /// Counts requests; `true` when the executor is to be notified.
    pub(super) fn record_served(&self, ended: usize) -> bool {
        if ended == 0 {
            return false;
        }
        let before = self
            .served_requests
            .fetch_add(ended as u64, Ordering::Relaxed);
        let due = self.notify_at.load(Ordering::Relaxed);
        before < due && before + ended as u64 >= due
    }

    pub(super) fn add_slot(&self, slot: SlotId, capacity: u32) {
        let mut slots = self.slots.lock();
        slots.slots.push(slot);
        if capacity == 0 {
            match slots.reserved.len() < self.initially_reserved {
                true => slots.reserved.push(slot),
                false => slots.spare.push(slot),
            }
        }
    }
}

impl AppDispatcher {
    /// Opens a spare slot of this slot's worker, whose request is I/O-bound; `false` when there is
    /// none.
    pub(crate) fn lend_spare_slot(&self, now: Instant, slot: SlotId) -> bool {
        let mut inner = self.state.lock();
        let Some(spare) = inner
            .mailbox(slot)
            .and_then(|m| m.stats.slots.lock().spare.pop())
        else {
            return false;
        };
        let starts = inner.queue.set_request_capacity(now, spare, 1);
        let wakers: Vec<_> = starts
            .into_iter()
            .map(|start| inner.post_job(start))
            .collect();
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
        true
    }

    /// The request for which a spare slot was opened is about to end: this slot becomes the spare
    /// one. (The other may be busy, this one is not.)
    pub(crate) fn park_slot(&self, now: Instant, slot: SlotId) {
        let mut inner = self.state.lock();
        let starts = inner.queue.set_request_capacity(now, slot, 0);
        debug_assert!(starts.is_empty(), "no capacity, no starts");
        if let Some(mailbox) = inner.mailbox(slot) {
            mailbox.stats.slots.lock().spare.push(slot);
        }
    }

    /// Reserves `count` slots of the worker with these stats, beside those for I/O. With fewer the
    /// others take requests at once; with more, busy ones take them until a later call. A slot
    /// whose thread has ended counts as reserved. Nothing changes during a collection.
    pub(crate) fn reserve_slots(&self, now: Instant, stats: &WorkerStats, count: usize) {
        let mut wakers = Vec::new();
        let mut inner = self.state.lock();
        let mut slots = stats.slots.lock();
        if slots.gc_slot.is_some() {
            return;
        }
        let is_gone = |slot: &&SlotId| inner.queue.slot_view(**slot).is_none();
        let gone = slots.slots.iter().filter(is_gone).count();
        let count = count.saturating_sub(gone);
        while slots.reserved.len() > count
            && let Some(slot) = slots.reserved.pop()
        {
            for start in inner.queue.set_request_capacity(now, slot, 1) {
                wakers.push(inner.post_job(start));
            }
        }
        while slots.reserved.len() < count {
            let is_free = |slot: &SlotId| {
                let view = inner.queue.slot_view(*slot);
                view.is_some_and(|v| {
                    v.spec.request_capacity == 1 && v.in_progress == 0 && !v.is_retired
                })
            };
            let Some(slot) = slots.slots.iter().copied().find(is_free) else {
                break;
            };
            let starts = inner.queue.set_request_capacity(now, slot, 0);
            debug_assert!(starts.is_empty(), "no capacity, no starts");
            slots.reserved.push(slot);
        }
        drop(slots);
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Keeps all slots of this slot's worker for a collection, if one is due and delays no request:
    /// none waits, the worker has none in progress, and others have room. `end_gc` gives them back,
    /// and so does the end of the driver.
    pub(crate) fn begin_gc(&self, now: Instant, slot: SlotId) -> bool {
        let mut inner = self.state.lock();
        let Some(mailbox) = inner.mailbox(slot).cloned() else {
            return false;
        };
        let stats = &mailbox.stats;
        let (served, mut slots) = (stats.served_requests(), stats.slots.lock());
        let since = served.saturating_sub(slots.served_at_last_gc);
        if !inner.queue.is_empty() || slots.gc_slot.is_some() || since < MIN_REQUESTS_BETWEEN_GC {
            return false;
        }
        if slots.next_gc_at.is_some_and(|at| now < at) {
            return false;
        }
        let queue = &mut inner.queue;
        let views = slots.slots.iter().filter_map(|slot| queue.slot_view(*slot));
        let views: Vec<_> = views.filter(|view| !view.is_retired).collect();
        if views.iter().any(|view| view.in_progress > 0) {
            return false;
        }
        // Nothing is in progress in them, so all their capacity is free.
        let own_capacity: usize = views
            .iter()
            .map(|view| view.spec.request_capacity as usize)
            .sum();
        let has_peers = queue.request_capacity() > own_capacity;
        if has_peers && queue.free_request_capacity() <= own_capacity && since < GC_OVERDUE_REQUESTS
        {
            return false;
        }
        for view in views {
            if queue.claim_slot(view.id) {
                slots.gc_claimed.push(view.id);
            }
        }
        slots.served_at_last_gc = served;
        slots.gc_started_at = Some(now);
        slots.gc_slot = Some(slot);
        true
    }

    /// Ends a collection: the worker's slots take requests again. Adds this slot's jobs to `into`.
    pub(crate) fn end_gc(
        &self,
        now: Instant,
        slot: SlotId,
        into: &mut VecDeque<DispatchedJob<Job>>,
    ) {
        let mut wakers = Vec::new();
        let mut inner = self.state.lock();
        let Some(mailbox) = inner.mailbox(slot).cloned() else {
            return;
        };
        inner.release_gc_claims(now, slot, &mailbox.stats, &mut wakers);
        into.extend(mailbox.take_jobs());
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl DispatchState {
    /// Gives back the slots that are kept for a collection of this slot's driver.
    pub(super) fn release_gc_claims(
        &mut self,
        now: Instant,
        slot: SlotId,
        stats: &WorkerStats,
        wakers: &mut Vec<Option<Waker>>,
    ) {
        let mut slots = stats.slots.lock();
        if slots.gc_slot != Some(slot) {
            return;
        }
        slots.gc_slot = None;
        if let Some(since) = slots.gc_started_at.take() {
            let took = now.saturating_duration_since(since);
            slots.next_gc_at = now.checked_add(took.saturating_mul(GC_PAUSE_FACTOR));
        }
        for claimed in std::mem::take(&mut slots.gc_claimed) {
            if let Some(start) = self.queue.finish_request(now, claimed) {
                wakers.push(self.post_job(start));
            }
        }
    }
}
