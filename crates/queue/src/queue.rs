//! The queue: one FIFO of waiting jobs over the slots that can take them.
//!
//! Callers: the application's dispatch and the upstream's claim, under a short mutex. Inputs are
//! the methods; outputs are their return values, and every [`Start`] must be acted upon, because
//! the slot is already counted as busy. Order of calls for one request: `submit`, or `claim_at` and
//! else `wait` for a caller with its own choice of slot; then either it starts (now, or in the
//! answer of somebody's `finish`, `extend`, `add_slot`, `set_capacity` or `unbind`) and ends with
//! `finish`, or it leaves by `cancel`, `expire` or `clear`.
//! What must stay true: nobody waits while a slot that may take it has room, so that no newcomer
//! overtakes; jobs start oldest first; `len` never exceeds the bound except by jobs given back.
//! The rule of choice among slots is in `slots.rs`, the line in `line.rs`.

use std::fmt;
use std::time::{Duration, Instant};

use crate::slot_table::{SlotId, SlotSpec, SlotTable, SlotView};
use crate::wait_list::{Ticket, WaitList, Waiter};

/// Waiting jobs of type `J` and the slots that will take them.
pub struct Queue<J> {
    limits: QueueLimits,
    wait_list: WaitList<J>,
    slot_table: SlotTable,
}

/// The two bounds of the waiting line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// How many may wait; with 0 a request starts at once or is refused.
    pub max_len: usize,
    /// How long one may wait before `expire` hands it back.
    pub timeout: Duration,
}

/// A job that now occupies one place of a slot; `finish` gives the place back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the slot is already counted as busy with this job"]
pub struct DispatchedJob<J> {
    /// Where it runs.
    pub slot_id: SlotId,
    /// What runs.
    pub job: J,
    /// Time from arrival until now.
    pub waited: Duration,
    /// Place in line on arrival, counted from 1; 0 did not wait.
    pub queue_position: usize,
    /// When it arrived, to be handed to `give_back` should the slot die before it begins.
    pub enqueued_at: Instant,
}

/// What became of a submitted job.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum QueueOutcome<J> {
    /// A slot was free.
    Dispatched(DispatchedJob<J>),
    /// It waits; `position` counts from 1.
    Queued {
        /// For `cancel`.
        ticket: Ticket,
        /// Place in line.
        position: usize,
    },
    /// The line is at its bound and no slot is free.
    Full(J),
}

impl<J> Queue<J> {
    /// An empty queue without slots: everybody waits until the first slot is added.
    pub const fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            wait_list: WaitList::new(),
            slot_table: SlotTable::new(),
        }
    }

    /// The bounds in force.
    pub const fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Puts new bounds in force; a shorter line lets those who already wait finish waiting, a
    /// shorter time-out applies to them at the next `expire`.
    pub const fn set_limits(&mut self, limits: QueueLimits) {
        self.limits = limits;
    }

    /// Starts the job on the best free slot, else queues it, else refuses it.
    ///
    /// Among free slots: newest generation, fewest in progress in the process (all slots of the
    /// `group`, or the slot that stands alone), owned by `home`, last used process, last used slot.
    pub fn submit(&mut self, now: Instant, job: J, home: usize) -> QueueOutcome<J> {
        if let Some(slot) = self.claim_best(home) {
            return QueueOutcome::Dispatched(DispatchedJob::immediate(now, slot, job, now));
        }
        self.push_back(now, job, None)
    }

    /// Takes a place at this slot for a newcomer, if it has one; `finish` gives it back.
    ///
    /// False when it is full, retired or gone. A slot that has room is one that nobody in line may
    /// use, so this overtakes nobody.
    #[must_use = "the slot may already be counted as busy"]
    pub fn claim_slot(&mut self, slot: SlotId) -> bool {
        !self.has_waiter_for(slot) && self.slot_table.claim_at(slot)
    }

    /// Queues a job for which its caller found no slot, else refuses it. Bound to a slot, it starts
    /// in the process of that slot and nowhere else, until `unbind` or the end of the process' last
    /// slot; free, it starts wherever there is room first.
    ///
    /// It does not wait beside room that it may use: then it starts at once, as with `submit`. A
    /// slot that is retired or gone binds nobody.
    pub fn enqueue(&mut self, now: Instant, job: J, bound_to: Option<SlotId>) -> QueueOutcome<J> {
        let bound_to = bound_to.filter(|slot| self.slot_table.is_live(*slot));
        let claimed = match bound_to {
            Some(slot) if self.has_waiter_for(slot) => None,
            Some(slot) => self.slot_table.claim_within(slot),
            None => self.claim_best(NO_LOOP),
        };
        match claimed {
            Some(slot) => QueueOutcome::Dispatched(DispatchedJob::immediate(now, slot, job, now)),
            None => self.push_back(now, job, bound_to),
        }
    }

    /// Takes the job of a client that left out of the line; `None` when it has started, expired
    /// or was cleared before.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<J> {
        self.wait_list.remove(ticket).map(|waiter| waiter.job)
    }

    /// Adds a slot, and starts on it as many waiters as it can take.
    #[must_use = "the started jobs already occupy the slot"]
    pub fn add_slot(&mut self, now: Instant, spec: SlotSpec) -> (SlotId, Vec<DispatchedJob<J>>) {
        let slot = self.slot_table.add(spec);
        (slot, self.dispatch_all(now, slot))
    }

    /// Changes how many requests the slot may have in progress, and starts as many waiters as it
    /// has room for. What is in progress goes on; with 0 it takes no more until it is given room.
    ///
    /// Those bound to it go on waiting: a slot that will not come back wants `unbind` too.
    #[must_use = "the started jobs already occupy the slot"]
    pub fn set_capacity(
        &mut self,
        now: Instant,
        slot: SlotId,
        capacity: u32,
    ) -> Vec<DispatchedJob<J>> {
        self.slot_table.set_capacity(slot, capacity);
        self.dispatch_all(now, slot)
    }

    /// Lets whoever is bound to the process of this slot start anywhere, in the place of its age, and starts those
    /// for whom there is room.
    ///
    /// Call it before `retire_slot` and `remove_slot` of the last slot of a process that somebody may
    /// be bound to, or `start_free` behind them: those unbind too, but start nobody.
    #[must_use = "the started jobs already occupy their slots"]
    pub fn unbind(&mut self, now: Instant, slot: SlotId) -> Vec<DispatchedJob<J>> {
        self.unbind_waiters(slot);
        self.dispatch_unbound(now)
    }

    /// Starts those whom any slot may take and for whom there is room: whom the end of their process'
    /// last slot has unbound.
    #[must_use = "the started jobs already occupy their slots"]
    pub fn dispatch_unbound(&mut self, now: Instant) -> Vec<DispatchedJob<J>> {
        let mut starts = Vec::new();
        while self.wait_list.has_unbound()
            && let Some(slot) = self.slot_table.claim_best(NO_LOOP)
            && let Some(waiter) = self.wait_list.pop_unbound()
        {
            starts.push(DispatchedJob::after_wait(now, slot, waiter));
        }
        starts
    }

    /// One request of this slot has ended; the slot takes the oldest waiter, if any.
    ///
    /// A retired slot takes nobody and is gone with its last request: `slot` then answers `None`.
    #[must_use = "the started job already occupies the slot"]
    pub fn finish_request(&mut self, now: Instant, slot: SlotId) -> Option<DispatchedJob<J>> {
        if self.has_waiter_for(slot) && self.slot_table.reassign(slot) {
            let waiter = self.pop_for(slot)?;
            return Some(DispatchedJob::after_wait(now, slot, waiter));
        }
        self.slot_table.release(slot);
        None
    }

    /// Hands the oldest waiter to a slot that is busy up to its capacity, so that its next request
    /// is there when it answers; `None` when nobody waits that it may take, or it has
    /// `in_progress_max` already.
    ///
    /// Whoever waits here waits because no slot is free, so this never prefers a busy one.
    #[must_use = "the started job already occupies the slot"]
    pub fn dispatch_ahead(
        &mut self,
        now: Instant,
        slot: SlotId,
        in_progress_max: u32,
    ) -> Option<DispatchedJob<J>> {
        if !self.has_waiter_for(slot) || !self.slot_table.overbook(slot, in_progress_max) {
            return None;
        }
        let waiter = self.pop_for(slot)?;
        Some(DispatchedJob::after_wait(now, slot, waiter))
    }

    /// Takes a place at a slot that is full or paused, up to `in_progress_max`; true when it did. For one
    /// that no other slot may take: it overtakes whoever waits.
    pub fn claim_beyond_capacity(&mut self, slot: SlotId, in_progress_max: u32) -> bool {
        self.slot_table.overbook(slot, in_progress_max)
    }

    /// Gives the slot no new jobs; true when nothing is in progress and it is gone.
    pub fn retire_slot(&mut self, slot: SlotId) -> bool {
        self.unbind_if_last(slot);
        self.slot_table.retire(slot)
    }

    /// Forgets a slot that died; the jobs it had are the caller's, to fail or to give back.
    pub fn remove_slot(&mut self, slot: SlotId) {
        self.unbind_if_last(slot);
        self.slot_table.remove(slot);
    }

    /// Takes back a job that was handed out but provably never begun: it starts at once on a free
    /// slot or waits in the place of its age, which is in front, bound to none. It is never `Full`.
    ///
    /// Remove the dead slot first, and give several back oldest first.
    pub fn requeue(&mut self, now: Instant, job: J, enqueued_at: Instant) -> QueueOutcome<J> {
        if let Some(slot) = self.claim_best(NO_LOOP) {
            return QueueOutcome::Dispatched(DispatchedJob::immediate(now, slot, job, enqueued_at));
        }
        let (ticket, position) = self.wait_list.requeue(enqueued_at, job);
        QueueOutcome::Queued { ticket, position }
    }

    /// Takes out the oldest waiter if it has waited for the time-out; call until `None`.
    pub fn pop_expired(&mut self, now: Instant) -> Option<(Ticket, J, Duration)> {
        let waited = now.saturating_duration_since(self.wait_list.oldest_enqueued_at()?);
        if waited < self.limits.timeout {
            return None;
        }
        let waiter = self.wait_list.pop()?;
        Some((waiter.ticket, waiter.job, waited))
    }

    /// When `expire` next has something to say, unless the oldest waiter leaves before.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.wait_list
            .oldest_enqueued_at()?
            .checked_add(self.limits.timeout)
    }

    /// Empties the line, oldest first; what is in progress goes on.
    #[must_use = "somebody waits for each of these jobs"]
    pub fn clear(&mut self) -> Vec<J> {
        let mut jobs = Vec::with_capacity(self.wait_list.len());
        while let Some(waiter) = self.wait_list.pop() {
            jobs.push(waiter.job);
        }
        jobs
    }

    /// The jobs that wait, in no order.
    pub fn waiting(&self) -> impl Iterator<Item = &J> {
        self.wait_list.jobs()
    }

    /// Takes out the waiting jobs that match, each with the moment that it joined.
    #[must_use = "somebody waits for each of these jobs"]
    pub fn take_matching(&mut self, matches: impl FnMut(&J) -> bool) -> Vec<(J, Instant)> {
        let taken = self.wait_list.take_matching(matches).into_iter();
        taken
            .map(|waiter| (waiter.job, waiter.enqueued_at))
            .collect()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.wait_list.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.wait_list.len() == 0
    }

    /// How many wait for the process of this slot and no other.
    pub fn len_bound(&self, slot: SlotId) -> usize {
        let process = self.slot_table.process_of(slot);
        process.map_or(0, |process| self.wait_list.len_bound(process))
    }

    /// How many slots take new jobs: retired ones are not counted.
    pub fn live_slots(&self) -> usize {
        self.slot_table.live_count()
    }

    /// How many requests could be in progress at once in the slots that take new jobs.
    pub fn capacity(&self) -> usize {
        self.slot_table.capacity()
    }

    /// How many requests the slots have in hand, retired ones included.
    pub fn in_progress(&self) -> usize {
        self.slot_table.in_progress()
    }

    /// How many requests would start at once if they came now.
    pub fn free_capacity(&self) -> usize {
        self.slot_table.free_capacity()
    }

    /// How long the oldest waiter has waited.
    pub fn oldest_wait(&self, now: Instant) -> Option<Duration> {
        let arrived = self.wait_list.oldest_enqueued_at()?;
        Some(now.saturating_duration_since(arrived))
    }

    /// One slot as it stands; `None` when it is gone.
    pub fn slot_view(&self, slot: SlotId) -> Option<SlotView> {
        self.slot_table.view(slot)
    }

    /// Every slot, retired ones included, in no particular order.
    pub fn slot_views(&self) -> impl Iterator<Item = SlotView> {
        self.slot_table.views()
    }

    /// A place for a newcomer at the best free slot, unless somebody waits for just that.
    fn claim_best(&mut self, home: usize) -> Option<SlotId> {
        if self.wait_list.has_unbound() {
            return None;
        }
        self.slot_table.claim_best(home)
    }

    fn push_back(&mut self, now: Instant, job: J, bound_to: Option<SlotId>) -> QueueOutcome<J> {
        if self.wait_list.len_without_requeued() >= self.limits.max_len {
            return QueueOutcome::Full(job);
        }
        let process = bound_to.and_then(|slot| self.slot_table.process_of(slot));
        let (ticket, position) = self.wait_list.push_back(now, job, process);
        QueueOutcome::Queued { ticket, position }
    }

    fn dispatch_oldest(&mut self, now: Instant, slot: SlotId) -> Option<DispatchedJob<J>> {
        if !self.has_waiter_for(slot) || !self.slot_table.claim_at(slot) {
            return None;
        }
        let waiter = self.pop_for(slot)?;
        Some(DispatchedJob::after_wait(now, slot, waiter))
    }

    fn dispatch_all(&mut self, now: Instant, slot: SlotId) -> Vec<DispatchedJob<J>> {
        std::iter::from_fn(|| self.dispatch_oldest(now, slot)).collect()
    }

    /// Whether somebody waits whom this slot may take.
    fn has_waiter_for(&self, slot: SlotId) -> bool {
        let process = self.slot_table.process_of(slot);
        process.is_some_and(|process| self.wait_list.has_waiter_for(process))
    }

    /// The oldest whom this slot may take leaves the line.
    fn pop_for(&mut self, slot: SlotId) -> Option<Waiter<J>> {
        self.wait_list.pop_for(self.slot_table.process_of(slot)?)
    }

    fn unbind_waiters(&mut self, slot: SlotId) {
        if let Some(process) = self.slot_table.process_of(slot) {
            self.wait_list.unbind(process);
        }
    }

    /// Unbinds where this slot is the last live one of its process.
    fn unbind_if_last(&mut self, slot: SlotId) {
        if !self.slot_table.has_live_sibling(slot) {
            self.unbind_waiters(slot);
        }
    }
}

impl<J> fmt::Debug for Queue<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("len", &self.len())
            .field("slots", &self.live_slots())
            .field("in_progress", &self.in_progress())
            .finish_non_exhaustive()
    }
}

impl<J> DispatchedJob<J> {
    fn immediate(now: Instant, slot: SlotId, job: J, enqueued_at: Instant) -> Self {
        Self {
            slot_id: slot,
            job,
            waited: now.saturating_duration_since(enqueued_at),
            queue_position: 0,
            enqueued_at,
        }
    }

    fn after_wait(now: Instant, slot: SlotId, waiter: Waiter<J>) -> Self {
        Self {
            slot_id: slot,
            job: waiter.job,
            waited: now.saturating_duration_since(waiter.enqueued_at),
            queue_position: waiter.position,
            enqueued_at: waiter.enqueued_at,
        }
    }
}

/// No loop has this number: a job that is given back prefers nobody's slots.
const NO_LOOP: usize = usize::MAX;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
