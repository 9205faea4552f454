//! The queue: one FIFO of waiting jobs over the slots that can take them.
//!
//! An application's dispatch and an upstream's claim call it under a short mutex. Every returned
//! [`DispatchedJob`] must be acted upon, because its slot is already counted as busy. A request
//! calls `submit`, or `claim_slot` and then `enqueue` if the caller chooses the slot itself. The
//! job is dispatched at once or by a later `finish_request`, `dispatch_beyond_capacity`,
//! `add_slot`, `set_request_capacity` or `unbind_and_dispatch`, and ends with `finish_request`. A
//! waiting job can also leave by `cancel`, `pop_expired` or `clear`. The choice among slots is in
//! `slot_table.rs`, the list of waiters in `wait_list.rs`.
//!
//! # Invariants
//!
//! - No job waits while a slot that may take it has free capacity, so a new job never overtakes.
//! - Jobs are dispatched oldest first.
//! - `len` exceeds its bound only by requeued jobs.

use std::time::{Duration, Instant};

use crate::slot_table::{NO_LOOP, SlotId, SlotSpec, SlotTable, SlotView};
use crate::wait_list::{Ticket, WaitList, Waiter};

/// Waiting jobs of type `J` and the slots that take them.
#[derive(Debug)]
pub struct Queue<J> {
    limits: QueueLimits,
    wait_list: WaitList<J>,
    slot_table: SlotTable,
}

/// Bounds of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum number of waiting jobs. With 0 a job is dispatched at once or refused.
    pub max_len: usize,
    /// How long a job may wait before `pop_expired` returns it.
    pub timeout: Duration,
}

/// A job that occupies part of a slot's capacity until `finish_request`.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the slot is already counted as busy with this job"]
pub struct DispatchedJob<J> {
    /// The slot that runs the job.
    pub slot_id: SlotId,
    /// The job.
    pub job: J,
    /// Time from arrival until now.
    pub waited: Duration,
    /// Queue position on arrival, counted from 1; 0 if the job did not wait.
    pub queue_position: usize,
    /// Arrival time, to be passed to `requeue` if the slot dies before the job begins.
    pub enqueued_at: Instant,
}

/// Result of submitting a job.
#[derive(Debug, PartialEq, Eq)]
pub enum QueueOutcome<J> {
    /// A slot was free.
    Dispatched(DispatchedJob<J>),
    /// The job waits.
    Queued {
        /// Identifies the job for `cancel`.
        ticket: Ticket,
        /// Position in the queue, counted from 1.
        position: usize,
    },
    /// The queue is at its bound and no slot is free.
    Full(J),
}

impl<J> Queue<J> {
    /// Creates an empty queue without slots: every job waits until the first slot is added.
    pub const fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            wait_list: WaitList::new(),
            slot_table: SlotTable::new(),
        }
    }

    /// Dispatches the job to the best free slot, else queues it, else refuses it.
    ///
    /// The order among free slots: newest generation, fewest in progress in the process (all slots
    /// of the `group`, or a slot without a group by itself), owned by `preferred_loop`, last used
    /// process, last used slot.
    pub fn submit(&mut self, now: Instant, job: J, preferred_loop: usize) -> QueueOutcome<J> {
        if let Some(slot) = self.claim_best(preferred_loop) {
            return QueueOutcome::Dispatched(DispatchedJob::immediate(now, slot, job, now));
        }
        self.push_back(now, job, None)
    }

    /// Claims capacity at this slot for a new job, if it has any; `finish_request` releases it.
    ///
    /// Returns false if the slot is full, retired or gone. No waiting job may use a slot that has
    /// free capacity, so this overtakes none.
    #[must_use = "the slot may already be counted as busy"]
    pub fn claim_slot(&mut self, slot: SlotId) -> bool {
        !self.has_waiter_for(slot) && self.slot_table.claim_at(slot)
    }

    /// Queues a job for which its caller found no slot, else refuses it. A job bound to a slot is
    /// dispatched only to the process of that slot, until `unbind_and_dispatch` or the end of the
    /// process' last slot. An unbound job is dispatched to the first slot with free capacity.
    ///
    /// If a slot that the job may use has free capacity, the job is dispatched at once, as with
    /// `submit`. A slot that is retired or gone does not bind.
    pub fn enqueue(&mut self, now: Instant, job: J, bound_to: Option<SlotId>) -> QueueOutcome<J> {
        let bound_to = bound_to.filter(|slot| self.slot_table.is_live(*slot));
        let claimed = match bound_to {
            Some(slot) if self.has_waiter_for(slot) => None,
            Some(slot) => self.slot_table.claim_in_process_of(slot),
            None => self.claim_best(NO_LOOP),
        };
        match claimed {
            Some(slot) => QueueOutcome::Dispatched(DispatchedJob::immediate(now, slot, job, now)),
            None => self.push_back(now, job, bound_to),
        }
    }

    /// Removes the job of a client that disconnected. Returns `None` if the job was dispatched,
    /// expired or cleared before.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<J> {
        self.wait_list.remove(ticket).map(|waiter| waiter.job)
    }

    /// Adds a slot and dispatches as many waiters to it as it can take.
    #[must_use = "the started jobs already occupy the slot"]
    pub fn add_slot(&mut self, now: Instant, spec: SlotSpec) -> (SlotId, Vec<DispatchedJob<J>>) {
        let slot = self.slot_table.add(spec);
        (slot, self.dispatch_all(now, slot))
    }

    /// Changes how many requests the slot may have in progress, and dispatches as many waiters as
    /// now fit. Requests in progress continue; with 0 the slot takes no more until its capacity is
    /// raised.
    ///
    /// Jobs bound to the slot continue to wait: a slot that will not come back needs
    /// `unbind_and_dispatch` too.
    #[must_use = "the started jobs already occupy the slot"]
    pub fn set_request_capacity(
        &mut self,
        now: Instant,
        slot: SlotId,
        capacity: u32,
    ) -> Vec<DispatchedJob<J>> {
        self.slot_table.set_request_capacity(slot, capacity);
        self.dispatch_all(now, slot)
    }

    /// Lets jobs bound to the process of this slot be dispatched anywhere, ordered by age, and
    /// dispatches those that fit.
    ///
    /// Call it before `retire_slot` and `remove_slot` of the last slot of a process that may have
    /// bound jobs, or call `dispatch_unbound` after them: those also unbind, but dispatch nothing.
    #[must_use = "the started jobs already occupy their slots"]
    pub fn unbind_and_dispatch(&mut self, now: Instant, slot: SlotId) -> Vec<DispatchedJob<J>> {
        self.unbind_waiters(slot);
        self.dispatch_unbound(now)
    }

    /// Dispatches unbound jobs while there is free capacity, among them jobs that the end of their
    /// process' last slot has unbound.
    #[must_use = "the started jobs already occupy their slots"]
    pub fn dispatch_unbound(&mut self, now: Instant) -> Vec<DispatchedJob<J>> {
        let mut dispatched = Vec::new();
        while self.wait_list.has_unbound()
            && let Some(slot) = self.slot_table.claim_best(NO_LOOP)
            && let Some(waiter) = self.wait_list.pop_unbound()
        {
            dispatched.push(DispatchedJob::after_wait(now, slot, waiter));
        }
        dispatched
    }

    /// Ends one request of this slot, which then takes the oldest waiter, if any.
    ///
    /// A retired slot takes no waiter and is removed with its last request.
    #[must_use = "the started job already occupies the slot"]
    pub fn finish_request(&mut self, now: Instant, slot: SlotId) -> Option<DispatchedJob<J>> {
        if self.has_waiter_for(slot) && self.slot_table.replace_request(slot) {
            let waiter = self.pop_for(slot)?;
            return Some(DispatchedJob::after_wait(now, slot, waiter));
        }
        self.slot_table.release(slot);
        None
    }

    /// Dispatches the oldest waiter to a slot that is busy up to its capacity, so that its next
    /// request is there when it responds. Returns `None` if no waiter may use the slot, or it has
    /// `in_progress_max` already.
    ///
    /// Jobs wait only while no slot is free, so this never prefers a busy slot to a free one.
    #[must_use = "the started job already occupies the slot"]
    pub fn dispatch_beyond_capacity(
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

    /// Claims a slot that is full or paused, up to `in_progress_max`; returns whether it did. Meant
    /// for a job that no other slot may take: it overtakes waiting jobs.
    pub fn claim_beyond_capacity(&mut self, slot: SlotId, in_progress_max: u32) -> bool {
        self.slot_table.overbook(slot, in_progress_max)
    }

    /// Stops giving the slot new jobs. Returns true if nothing is in progress and the slot is
    /// removed.
    pub fn retire_slot(&mut self, slot: SlotId) -> bool {
        self.unbind_if_last(slot);
        self.slot_table.retire(slot)
    }

    /// Removes a slot that died. The caller fails or requeues the jobs that the slot had.
    pub fn remove_slot(&mut self, slot: SlotId) {
        self.unbind_if_last(slot);
        self.slot_table.remove(slot);
    }

    /// Takes back a job that was dispatched but provably not begun. It is dispatched at once to a
    /// free slot, or waits unbound at the front, ordered by age. The outcome is never `Full`.
    ///
    /// Remove the dead slot first, and requeue several jobs oldest first.
    pub fn requeue(&mut self, now: Instant, job: J, enqueued_at: Instant) -> QueueOutcome<J> {
        if let Some(slot) = self.claim_best(NO_LOOP) {
            return QueueOutcome::Dispatched(DispatchedJob::immediate(now, slot, job, enqueued_at));
        }
        let (ticket, position) = self.wait_list.requeue(enqueued_at, job);
        QueueOutcome::Queued { ticket, position }
    }

    /// Removes the oldest waiter if its timeout has passed; call until `None`.
    pub fn pop_expired(&mut self, now: Instant) -> Option<(J, Duration)> {
        let waited = now.saturating_duration_since(self.wait_list.oldest_enqueued_at()?);
        if waited < self.limits.timeout {
            return None;
        }
        Some((self.wait_list.pop()?.job, waited))
    }

    /// Removes all waiting jobs, oldest first. Requests in progress continue.
    #[must_use = "a client waits for each of these jobs"]
    pub fn clear(&mut self) -> Vec<J> {
        std::iter::from_fn(|| Some(self.wait_list.pop()?.job)).collect()
    }

    /// Returns the waiting jobs, in no order.
    pub fn waiting_jobs(&self) -> impl Iterator<Item = &J> {
        self.wait_list.jobs()
    }

    /// Removes the waiting jobs that match and returns each with its arrival time.
    #[must_use = "a client waits for each of these jobs"]
    pub fn take_matching(&mut self, matches: impl FnMut(&J) -> bool) -> Vec<(J, Instant)> {
        let taken = self.wait_list.take_matching(matches).into_iter();
        taken
            .map(|waiter| (waiter.job, waiter.enqueued_at))
            .collect()
    }

    /// Number of waiting jobs.
    pub fn len(&self) -> usize {
        self.wait_list.len()
    }

    /// Returns whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.wait_list.len() == 0
    }

    /// Number of jobs bound to the process of this slot.
    pub fn bound_job_count(&self, slot: SlotId) -> usize {
        let process = self.slot_table.process_of(slot);
        process.map_or(0, |process| self.wait_list.bound_job_count(process))
    }

    /// How many requests could be in progress at once in the slots that take new jobs.
    pub fn request_capacity(&self) -> usize {
        self.slot_table.request_capacity()
    }

    /// Number of requests in progress, those of retired slots included.
    pub fn requests_in_progress(&self) -> usize {
        self.slot_table.requests_in_progress()
    }

    /// How many requests would be dispatched at once if they arrived now.
    pub fn free_request_capacity(&self) -> usize {
        self.slot_table.free_request_capacity()
    }

    /// How long the oldest waiter has waited.
    pub fn oldest_wait(&self, now: Instant) -> Option<Duration> {
        let arrived = self.wait_list.oldest_enqueued_at()?;
        Some(now.saturating_duration_since(arrived))
    }

    /// Returns the state of one slot; `None` if it is gone.
    pub fn slot_view(&self, slot: SlotId) -> Option<SlotView> {
        self.slot_table.view(slot)
    }

    /// Claims the best free slot for a new job, unless an unbound job waits.
    fn claim_best(&mut self, preferred_loop: usize) -> Option<SlotId> {
        if self.wait_list.has_unbound() {
            return None;
        }
        self.slot_table.claim_best(preferred_loop)
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

    /// Whether a waiting job may use this slot.
    fn has_waiter_for(&self, slot: SlotId) -> bool {
        let process = self.slot_table.process_of(slot);
        process.is_some_and(|process| self.wait_list.has_waiter_for(process))
    }

    /// Removes the oldest waiter that may use this slot.
    fn pop_for(&mut self, slot: SlotId) -> Option<Waiter<J>> {
        self.wait_list.pop_for(self.slot_table.process_of(slot)?)
    }

    fn unbind_waiters(&mut self, slot: SlotId) {
        if let Some(process) = self.slot_table.process_of(slot) {
            self.wait_list.unbind(process);
        }
    }

    /// Unbinds the waiters if this slot is the last live one of its process.
    fn unbind_if_last(&mut self, slot: SlotId) {
        if !self.slot_table.has_live_sibling(slot) {
            self.unbind_waiters(slot);
        }
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

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
