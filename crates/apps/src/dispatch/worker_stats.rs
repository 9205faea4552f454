//! What the slots of one worker have in common: how much it has served, its spare slots, its collections.
//!
//! A worker's [`WorkerStats`] is made when it is started, is in the mailbox of each of its slots and is read
//! by the executor's limits and the status page. Slot drivers call what is here: `lend_spare_slot` when a request
//! says that it is bound by I/O, `park_slot` when it has ended, `begin_gc` when nothing is left to
//! do; the executor calls `reserve_slots` where the number of threads follows the load. What must stay true: a worker
//! has exactly as many slots that take requests as it has threads for them (but for those at work when fewer are
//! wanted, until they are done), one more for each request that is bound by I/O; a slot that takes nothing is in
//! one list of those; a collection begins only while the whole
//! worker is idle and nobody waits, and keeps all its slots from everybody until it is over. The lock
//! of a ledger is taken inside the queue's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use penstock_queue::{DispatchedJob, SlotId};

use super::{AppDispatcher, DispatchState, Job, wake_driver};
use crate::sticky::WorkerToken;

/// Requests between two collections of a worker, at least: a full collection of a large heap costs as
/// much as some requests.
const MIN_REQUESTS_BETWEEN_GC: u64 = 16;

/// How many times as long as the last collection took there is none after it, so that collections take
/// a fiftieth of the time at most.
const GC_PAUSE_FACTOR: u32 = 50;

/// After so many requests without one a collection no longer waits until another slot is free.
const GC_OVERDUE_REQUESTS: u64 = 1000;

/// What the slots of one worker have in common.
#[derive(Debug)]
pub(crate) struct WorkerStats {
    /// What sticky cookies call the worker.
    pub(super) token: WorkerToken,
    /// Requests that have ended.
    served_requests: AtomicU64,
    /// The number of them at which the executor wants to hear of it.
    notify_at: AtomicU64,
    /// Too many of its requests do not end.
    is_stuck: AtomicBool,
    /// Where its requests stand is to be in the log.
    stacks_requested: AtomicBool,
    /// How many slots are held back at first.
    initially_reserved: usize,
    slots: Mutex<SlotGroup>,
}

#[derive(Debug, Default)]
struct SlotGroup {
    slots: Vec<SlotId>,
    /// Slots that take nothing, for when a request is bound by I/O.
    spare: Vec<SlotId>,
    /// Slots that take nothing, for when there is more to do.
    reserved: Vec<SlotId>,
    /// Whose driver asked for a collection that is not over, and the slots that are kept for it.
    gc_slot: Option<SlotId>,
    gc_claimed: Vec<SlotId>,
    /// How many requests had been served at the last collection.
    served_at_last_gc: u64,
    /// When the collection that is under way began.
    gc_started_at: Option<Instant>,
    /// Before then there is no other: the last one's cost is to be a small part of all.
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
    /// One of which so many slots that take nothing are for when there is more to do, not for I/O.
    pub(crate) fn with_reserved_slots(slots: usize) -> Self {
        Self {
            initially_reserved: slots,
            ..Self::default()
        }
    }

    /// Requests that the worker has answered, or given up.
    pub(crate) fn served_requests(&self) -> u64 {
        self.served_requests.load(Ordering::Relaxed)
    }

    /// Slots that are kept for a collection.
    pub(crate) fn gc_claimed_slots(&self) -> usize {
        self.lock().gc_claimed.len()
    }

    /// Has `AppDispatcher::limit_reached` notified once so many requests have been served.
    pub(crate) fn notify_when_served(&self, served: u64) {
        self.notify_at.store(served, Ordering::Relaxed);
    }

    /// The worker's driver wants it replaced: requests that nobody waits for keep its places.
    pub(crate) fn mark_stuck(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Whether it is to be replaced for that.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// Where its requests stand is to be in the log: one of them has had its time.
    pub(crate) fn request_stacks(&self) {
        self.stacks_requested.store(true, Ordering::Relaxed);
    }

    /// Whether that was asked since the last call.
    pub(crate) fn take_stacks_request(&self) -> bool {
        self.stacks_requested.swap(false, Ordering::Relaxed)
    }

    /// Counts; `true` when the executor wants to hear of it.
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
        let mut members = self.lock();
        members.slots.push(slot);
        if capacity == 0 {
            match members.reserved.len() < self.initially_reserved {
                true => members.reserved.push(slot),
                false => members.spare.push(slot),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotGroup> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AppDispatcher {
    /// A request in this slot is bound by I/O: a spare slot of its worker takes requests from now on.
    /// `false` when there is none left.
    pub(crate) fn lend_spare_slot(&self, now: Instant, slot: SlotId) -> bool {
        let mut inner = self.lock();
        let Some(spare) = inner.mailbox(slot).and_then(|m| m.stats.lock().spare.pop()) else {
            return false;
        };
        let starts = inner.queue.set_capacity(now, spare, 1);
        let wakers: Vec<_> = starts
            .into_iter()
            .map(|start| inner.post_job(start))
            .collect();
        drop(inner);
        wakers.into_iter().for_each(wake_driver);
        true
    }

    /// The request for which a spare slot was lent is about to end: this slot, which it leaves, becomes
    /// the spare one. (The other may be at work, this one is not.)
    pub(crate) fn park_slot(&self, now: Instant, slot: SlotId) {
        let mut inner = self.lock();
        let starts = inner.queue.set_capacity(now, slot, 0);
        debug_assert!(starts.is_empty(), "no capacity, no starts");
        if let Some(mailbox) = inner.mailbox(slot) {
            mailbox.stats.lock().spare.push(slot);
        }
    }

    /// Has `count` slots of the worker with this ledger take nothing, beside those that are for I/O. Where fewer are
    /// wanted they take requests at once; where more are, those that are at work take them until a later call. One
    /// whose thread is gone is as good as held back. Nothing changes during a collection.
    pub(crate) fn reserve_slots(&self, now: Instant, ledger: &WorkerStats, count: usize) {
        let mut wakers = Vec::new();
        let mut inner = self.lock();
        let mut members = ledger.lock();
        if members.gc_slot.is_some() {
            return;
        }
        let is_gone = |slot: &&SlotId| inner.queue.slot_view(**slot).is_none();
        let gone = members.slots.iter().filter(is_gone).count();
        let count = count.saturating_sub(gone);
        while members.reserved.len() > count
            && let Some(slot) = members.reserved.pop()
        {
            for start in inner.queue.set_capacity(now, slot, 1) {
                wakers.push(inner.post_job(start));
            }
        }
        while members.reserved.len() < count {
            let is_free = |slot: &SlotId| {
                let view = inner.queue.slot_view(*slot);
                view.is_some_and(|v| v.spec.capacity == 1 && v.in_progress == 0 && !v.is_retired)
            };
            let Some(slot) = members.slots.iter().copied().find(is_free) else {
                break;
            };
            let starts = inner.queue.set_capacity(now, slot, 0);
            debug_assert!(starts.is_empty(), "no capacity, no starts");
            members.reserved.push(slot);
        }
        drop(members);
        drop(inner);
        wakers.into_iter().for_each(wake_driver);
    }

    /// Keeps all slots of this slot's worker for a collection, if one is due and costs nobody anything:
    /// nobody waits, the worker has nothing in progress, and others have room. `end_gc` gives
    /// them back, and so does the end of the driver.
    pub(crate) fn begin_gc(&self, now: Instant, slot: SlotId) -> bool {
        let mut inner = self.lock();
        let Some(mailbox) = inner.mailbox(slot).cloned() else {
            return false;
        };
        let ledger = &mailbox.stats;
        let (served, mut members) = (ledger.served_requests(), ledger.lock());
        let since = served.saturating_sub(members.served_at_last_gc);
        if !inner.queue.is_empty() || members.gc_slot.is_some() || since < MIN_REQUESTS_BETWEEN_GC {
            return false;
        }
        if members.next_gc_at.is_some_and(|at| now < at) {
            return false;
        }
        let queue = &mut inner.queue;
        let views = members
            .slots
            .iter()
            .filter_map(|slot| queue.slot_view(*slot));
        let views: Vec<_> = views.filter(|view| !view.is_retired).collect();
        if views.iter().any(|view| view.in_progress > 0) {
            return false;
        }
        // Nothing is in progress in them, so all their places are free ones.
        let own: usize = views.iter().map(|view| view.spec.capacity as usize).sum();
        let has_peers = queue.capacity() > own;
        if has_peers && queue.free_capacity() <= own && since < GC_OVERDUE_REQUESTS {
            return false;
        }
        for view in views {
            if queue.claim_slot(view.id) {
                members.gc_claimed.push(view.id);
            }
        }
        members.served_at_last_gc = served;
        members.gc_started_at = Some(now);
        members.gc_slot = Some(slot);
        true
    }

    /// The collection is over: the worker's slots take requests again. Gives what this slot takes.
    pub(crate) fn end_gc(
        &self,
        now: Instant,
        slot: SlotId,
        into: &mut VecDeque<DispatchedJob<Job>>,
    ) {
        let mut wakers = Vec::new();
        let mut inner = self.lock();
        let Some(mailbox) = inner.mailbox(slot).cloned() else {
            return;
        };
        inner.release_gc_claims(now, slot, &mailbox.stats, &mut wakers);
        into.extend(mailbox.take_jobs());
        drop(inner);
        wakers.into_iter().for_each(wake_driver);
    }
}

impl DispatchState {
    /// Gives back what is kept for a collection that this slot's driver asked for.
    pub(super) fn release_gc_claims(
        &mut self,
        now: Instant,
        slot: SlotId,
        ledger: &WorkerStats,
        wakers: &mut Vec<Option<Waker>>,
    ) {
        let mut members = ledger.lock();
        if members.gc_slot != Some(slot) {
            return;
        }
        members.gc_slot = None;
        if let Some(since) = members.gc_started_at.take() {
            let took = now.saturating_duration_since(since);
            members.next_gc_at = now.checked_add(took.saturating_mul(GC_PAUSE_FACTOR));
        }
        for claimed in std::mem::take(&mut members.gc_claimed) {
            if let Some(start) = self.queue.finish_request(now, claimed) {
                wakers.push(self.post_job(start));
            }
        }
    }
}
