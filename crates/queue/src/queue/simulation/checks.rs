//! Checks that the simulation makes on every dispatch and on the whole state after every step.
//!
//! The rules are written again here in the slowest and plainest way.
//!
//! # Invariants
//!
//! - No check changes the queue; those that are given a dispatched job also record it in the model.

use std::cmp::Reverse;

use super::*;

impl ModelQueue {
    /// The job must be on a slot that no free one beats.
    pub(super) fn expect_best(
        &mut self,
        start: DispatchedJob<Job>,
        job: Job,
        since: Instant,
        preferred_loop: usize,
    ) {
        assert!(
            !self.waiters.iter().any(ModelWaiter::is_unbound),
            "no job is overtaken"
        );
        self.expect_best_slot(start.slot_id, preferred_loop);
        assert_eq!((start.job, start.queue_position), (job, 0));
        assert_eq!(start.enqueued_at, since);
        assert_eq!(start.waited, self.now - since);
        self.begin(start.slot_id, job, since);
    }

    pub(super) fn expect_best_slot(&self, slot: SlotId, preferred_loop: usize) {
        let merit = |w: &ModelSlot| {
            let (rank, group_used) = (self.rank(w), self.group_used(w));
            let own = (Reverse(w.jobs.len()), w.used);
            (rank, w.spec.loop_index == preferred_loop, group_used, own)
        };
        let best = self.slots.iter().filter(|w| w.is_free()).map(merit).max();
        let chosen = self.slots.iter().find(|w| w.id == slot);
        let chosen = chosen.expect("the slot exists");
        assert!(chosen.is_free());
        assert_eq!(Some(merit(chosen)), best);
        self.expect_idlest_process(chosen);
    }

    /// The job must be on the best free slot of its process.
    pub(super) fn expect_best_in_process(&self, slot: SlotId, process: Option<Process>) {
        let merit = |w: &ModelSlot| (Reverse(w.jobs.len()), w.used);
        let own = self.slots.iter().filter(|w| w.is_free());
        let own = own.filter(|w| Some(w.process()) == process);
        let chosen = self.slots.iter().find(|w| w.id == slot);
        let chosen = chosen.expect("the slot exists");
        assert!(chosen.is_free() && Some(chosen.process()) == process);
        assert_eq!(Some(merit(chosen)), own.map(merit).max());
    }

    /// Checked apart from the whole order: no other process of the same generation with free
    /// capacity has fewer requests in progress.
    pub(super) fn expect_idlest_process(&self, chosen: &ModelSlot) {
        let rivals = self.slots.iter().filter(|w| w.is_free());
        let mut rivals = rivals.filter(|w| w.spec.generation == chosen.spec.generation);
        let has = self.process_requests_in_progress(chosen);
        assert!(
            rivals.all(|w| self.process_requests_in_progress(w) >= has),
            "an idler one"
        );
    }

    /// What the whole process of a slot has in progress, retired slots included.
    pub(super) fn process_requests_in_progress(&self, of: &ModelSlot) -> usize {
        let all = self.slots.iter().filter(|w| w.shares_process(of));
        all.map(|w| w.jobs.len()).sum()
    }

    fn rank(&self, worker: &ModelSlot) -> (u64, Reverse<usize>) {
        (
            worker.spec.generation,
            Reverse(self.process_requests_in_progress(worker)),
        )
    }

    fn group_used(&self, worker: &ModelSlot) -> u64 {
        match worker.group() {
            Some(group) => self.groups[&group],
            None => worker.used,
        }
    }

    /// The job must be the model's first waiter for this slot.
    pub(super) fn expect_oldest(&mut self, start: DispatchedJob<Job>, slot: SlotId) {
        let first = self.first_for(slot).expect("a job waits for it");
        let first = self.waiters.remove(first);
        let chosen = self.slots.iter().find(|w| w.id == slot);
        let chosen = chosen.expect("the slot exists");
        // A job dispatched beyond capacity goes to a full slot, a bound one to its own slot.
        if first.is_unbound() && chosen.is_free() {
            self.expect_idlest_process(chosen);
        }
        assert_eq!((start.job, start.slot_id), (first.job, slot));
        assert_eq!(start.queue_position, first.position);
        assert_eq!(start.enqueued_at, first.since);
        assert_eq!(start.waited, self.now - first.since);
        self.old_tickets.push(first.ticket);
        self.begin(slot, first.job, first.since);
    }

    pub(super) fn expect_oldest_free(&mut self, start: DispatchedJob<Job>, first: usize) {
        let slot = start.slot_id;
        assert_eq!(
            self.first_for(slot),
            Some(first),
            "no older one was bound to it"
        );
        self.expect_oldest(start, slot);
    }

    pub(super) fn check_invariants(&self) {
        self.queue.slot_table.check_invariants();
        self.check_wait_list();
        for worker in self.slots.iter().filter(|w| w.is_free()) {
            assert_eq!(
                self.first_for(worker.id),
                None,
                "a job waits beside free capacity"
            );
        }
        let live = self.slots.iter().filter(|w| !w.is_retired);
        let free_capacity =
            |w: &ModelSlot| (w.spec.request_capacity as usize).saturating_sub(w.jobs.len());
        assert_eq!(
            self.queue.free_request_capacity(),
            live.map(free_capacity).sum::<usize>()
        );
        let in_progress: usize = self.slots.iter().map(|w| w.jobs.len()).sum();
        assert_eq!(self.queue.requests_in_progress(), in_progress);
        let known = self.ended + (in_progress + self.waiters.len()) as u64;
        assert_eq!(known, self.next_job, "no job is lost or doubled");
        for worker in &self.slots {
            let view = self.queue.slot_view(worker.id).expect("it exists");
            assert_eq!(view.in_progress as usize, worker.jobs.len());
            assert_eq!(view.is_retired, worker.is_retired);
            assert_eq!(view.spec, worker.spec);
        }
    }

    /// Each FIFO holds the model's waiters that belong there, in the model's order.
    pub(super) fn check_wait_list(&self) {
        let (free, bound, by_process) = self.queue.wait_list.check_invariants();
        let (model_free, model_bound): (Vec<_>, Vec<_>) =
            self.waiters.iter().partition(|w| w.is_unbound());
        assert!(free.into_iter().eq(model_free.iter().map(|w| &w.job)));
        assert!(bound.into_iter().eq(model_bound.iter().map(|w| &w.job)));
        for worker in &self.slots {
            let process = Some(worker.process());
            let own = model_bound.iter().filter(|w| w.bound_to == process);
            let own: Vec<_> = own.map(|w| &w.job).collect();
            assert_eq!(self.queue.bound_job_count(worker.id), own.len());
            let number = self.queue.slot_table.process_of(worker.id);
            let listed = number.and_then(|number| by_process.get(number));
            assert_eq!(listed.unwrap_or(&Vec::new()), &own);
        }
        let waiting = self.waiters.len();
        assert_eq!(
            (self.queue.len(), self.queue.is_empty()),
            (waiting, waiting == 0)
        );
        let oldest = self.waiters.iter().map(|w| self.now - w.since).max();
        assert_eq!(self.queue.oldest_wait(self.now), oldest);
    }
}
