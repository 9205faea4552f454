//! Random operations on the queue, compared with a reference model made of plain vectors.
//!
//! After every step each result is compared with the model's, and the whole state is checked. A
//! failure prints its seed: `PENSTOCK_SEED=n` replays that one, `PENSTOCK_SEEDS=n` runs n seeds
//! instead of 300.

use std::collections::BTreeMap;

use super::*;

mod checks;

/// A job is its own number, so that a lost or duplicated one shows.
type Job = u64;

struct ModelQueue {
    rng: Rng,
    queue: Queue<Job>,
    now: Instant,
    next_job: Job,
    /// Number of jobs that have ended: served, refused, cancelled, expired, or lost with a worker.
    ended: u64,
    waiters: Vec<ModelWaiter>,
    slots: Vec<ModelSlot>,
    /// Tickets and slots that no longer exist, to be tried again.
    old_tickets: Vec<Ticket>,
    old_slots: Vec<SlotId>,
    /// When each process that has slots was last used.
    groups: BTreeMap<(u64, u64), u64>,
    uses: u64,
}

struct ModelWaiter {
    job: Job,
    ticket: Ticket,
    since: Instant,
    position: usize,
    is_returned: bool,
    bound_to: Option<Process>,
}

/// A process by its group, or a slot without a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Group(u64, u64),
    Alone(SlotId),
}

struct ModelSlot {
    id: SlotId,
    spec: SlotSpec,
    jobs: Vec<(Job, Instant)>,
    is_retired: bool,
    used: u64,
}

#[test]
fn agrees_with_the_model_in_random_orders_of_operations() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut world = ModelQueue::new(seed);
            for _ in 0..400 {
                world.step();
                world.check_invariants();
            }
            world.finish_all();
        });
        assert!(run.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}

impl ModelQueue {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let limits = random_limits(&mut rng);
        Self {
            rng,
            queue: Queue::new(limits),
            now: Instant::now(),
            next_job: 0,
            ended: 0,
            waiters: Vec::new(),
            slots: Vec::new(),
            old_tickets: Vec::new(),
            old_slots: Vec::new(),
            groups: BTreeMap::new(),
            uses: 0,
        }
    }

    fn step(&mut self) {
        if self.rng.below(3) == 0 {
            self.now += Duration::from_millis(self.rng.below(40) as u64);
        }
        match self.rng.below(125) {
            0..26 => self.submit(),
            26..50 => self.claim_or_wait(),
            50..80 => self.finish(),
            80..86 => self.cancel(),
            86..94 => self.dispatch_beyond_capacity(),
            94..100 => self.expire(),
            100..106 => self.add_slot(),
            106..109 => self.retire(),
            109..112 => self.kill_slot(),
            112..118 => self.set_request_capacity(),
            118..122 => self.unbind_one(),
            122..123 => self.use_stale_ids(),
            _ => self.clear_sometimes(),
        }
    }

    fn submit(&mut self) {
        self.next_job += 1;
        let (job, preferred_loop) = (self.next_job, self.rng.below(4));
        let submitted = self.queue.submit(self.now, job, preferred_loop);
        if let Some(start) = self.expect_queued(submitted, job, None) {
            self.expect_best(start, job, self.now, preferred_loop);
        }
    }

    /// Acts as an upstream: claims a slot of its own choice, else waits for that slot or for any.
    fn claim_or_wait(&mut self) {
        self.next_job += 1;
        let job = self.next_job;
        let choice = self.pick(|_| true);
        let slot = match choice {
            Some(index) => self.slots[index].id,
            None => match self.old_slots.last() {
                Some(gone) => *gone,
                None => return self.next_job -= 1,
            },
        };
        let has_room = choice.is_some_and(|index| self.slots[index].is_free());
        let process = choice.map(|index| self.slots[index].process());
        let is_of_process = |w: &ModelSlot| Some(w.process()) == process;
        let is_free = |w: &ModelSlot| w.is_free() && is_of_process(w);
        let process_has_room = self.slots.iter().any(is_free);
        // Sometimes a caller enqueues where it could have claimed.
        if self.rng.below(4) > 0 {
            assert_eq!(self.queue.claim_slot(slot), has_room);
            if has_room {
                assert_eq!(self.first_for(slot), None, "no job is overtaken");
                return self.begin(slot, job, self.now);
            }
        }
        let bound_slot = (self.rng.below(3) > 0).then_some(slot);
        let submitted = self.queue.enqueue(self.now, job, bound_slot);
        let is_live = choice.is_some_and(|index| !self.slots[index].is_retired);
        let bound_to = process.filter(|_| bound_slot.is_some() && is_live);
        let Some(start) = self.expect_queued(submitted, job, bound_to) else {
            let may_take = |w: &ModelSlot| bound_to.is_none_or(|process| process == w.process());
            assert!(!self.slots.iter().any(|w| w.is_free() && may_take(w)));
            return;
        };
        if bound_to.is_none() {
            return self.expect_best(start, job, self.now, usize::MAX);
        }
        assert!(process_has_room);
        self.expect_best_in_process(start.slot_id, process);
        let expected = (job, Duration::ZERO, 0);
        let got = (start.job, start.waited, start.queue_position);
        assert_eq!(got, expected);
        self.begin(start.slot_id, job, self.now);
    }

    /// Records a new job that waits or was refused; returns the job if it was dispatched.
    fn expect_queued(
        &mut self,
        submitted: QueueOutcome<Job>,
        job: Job,
        bound_to: Option<Process>,
    ) -> Option<DispatchedJob<Job>> {
        let joined = self.waiters.iter().filter(|w| !w.is_returned).count();
        match submitted {
            QueueOutcome::Dispatched(start) => return Some(start),
            QueueOutcome::Queued { ticket, position } => {
                assert!(joined < self.queue.limits.max_len);
                assert_eq!(position, self.waiters.len() + 1);
                self.waiters.push(ModelWaiter {
                    job,
                    ticket,
                    since: self.now,
                    position,
                    is_returned: false,
                    bound_to,
                });
            }
            QueueOutcome::Full(back) => {
                assert!(joined >= self.queue.limits.max_len);
                assert_eq!(back, job);
                self.ended += 1;
            }
        }
        None
    }

    fn begin(&mut self, slot: SlotId, job: Job, since: Instant) {
        let index = self.slots.iter().position(|w| w.id == slot);
        let index = index.expect("the slot exists");
        self.slots[index].jobs.push((job, since));
        self.record_use(index);
    }

    fn record_use(&mut self, index: usize) {
        self.uses += 1;
        let worker = &mut self.slots[index];
        worker.used = self.uses;
        if let Some(group) = worker.group() {
            self.groups.insert(group, self.uses);
        }
    }

    /// Removes the slot from the model; its process goes with its last one.
    fn remove_from_model(&mut self, index: usize) -> ModelSlot {
        let worker = self.slots.swap_remove(index);
        self.old_slots.push(worker.id);
        if let Some(group) = worker.group()
            && !self.slots.iter().any(|w| w.shares_process(&worker))
        {
            self.groups.remove(&group);
        }
        worker
    }

    /// Index of the oldest waiter that this slot may take.
    fn first_for(&self, slot: SlotId) -> Option<usize> {
        let process = self.slots.iter().find(|w| w.id == slot);
        let process = process.map(ModelSlot::process);
        let may_take = |w: &ModelWaiter| w.bound_to.is_none_or(|bound| Some(bound) == process);
        self.waiters.iter().position(may_take)
    }

    fn finish(&mut self) {
        let Some(index) = self.pick(|w| !w.jobs.is_empty()) else {
            return;
        };
        let depth = self.slots[index].jobs.len();
        let which = self.rng.below(depth);
        self.slots[index].jobs.swap_remove(which);
        self.record_use(index);
        self.ended += 1;
        let worker = &self.slots[index];
        let (slot, is_free) = (worker.id, worker.is_free());
        if worker.is_retired && worker.jobs.is_empty() {
            self.remove_from_model(index);
        }
        let takes = is_free && self.first_for(slot).is_some();
        match self.queue.finish_request(self.now, slot) {
            Some(start) => {
                assert!(takes, "only a live slot with free capacity takes a waiter");
                self.expect_oldest(start, slot);
            }
            None => assert!(!takes, "no waiter is left while the slot has capacity"),
        }
    }

    fn dispatch_beyond_capacity(&mut self) {
        let Some(index) = self.pick(|_| true) else {
            return;
        };
        let depth_max = u32::try_from(self.rng.below(6)).unwrap();
        let worker = &self.slots[index];
        let has_room = worker.jobs.len() < depth_max as usize;
        let slot = worker.id;
        let takes = self.first_for(slot).is_some() && !worker.is_retired && has_room;
        match self
            .queue
            .dispatch_beyond_capacity(self.now, slot, depth_max)
        {
            Some(start) => {
                assert!(takes && !self.slots[index].is_free());
                self.expect_oldest(start, slot);
            }
            None => assert!(!takes),
        }
    }

    fn cancel(&mut self) {
        if self.waiters.is_empty() {
            return;
        }
        let which = self.rng.below(self.waiters.len());
        let left = self.waiters.remove(which);
        assert_eq!(self.queue.cancel(left.ticket), Some(left.job));
        self.old_tickets.push(left.ticket);
        self.ended += 1;
    }

    fn expire(&mut self) {
        let timeout = self.queue.limits.timeout;
        while let Some((job, waited)) = self.queue.pop_expired(self.now) {
            let first = self.waiters.remove(0);
            assert_eq!(job, first.job);
            assert_eq!(waited, self.now - first.since);
            assert!(waited >= timeout);
            self.old_tickets.push(first.ticket);
            self.ended += 1;
        }
        assert!(self.waiters.iter().all(|w| self.now - w.since < timeout));
    }

    fn add_slot(&mut self) {
        if self.slots.len() > 12 {
            return;
        }
        let spec = SlotSpec {
            generation: self.rng.below(3) as u64,
            group: self.rng.below(4) as u64,
            loop_index: self.rng.below(4),
            request_capacity: [1, 1, 1, 2, 3, 0, 1, 2, u32::MAX][self.rng.below(9)],
        };
        let (id, dispatched) = self.queue.add_slot(self.now, spec);
        assert!(self.slots.iter().all(|w| w.id != id), "an id is new");
        assert!(!self.old_slots.contains(&id), "an id is never reused");
        self.slots.push(ModelSlot {
            id,
            spec,
            jobs: Vec::new(),
            is_retired: false,
            used: 0,
        });
        if let Some(group) = self.slots[self.slots.len() - 1].group() {
            let used = self.groups.entry(group).or_default();
            if *used > 0 {
                self.uses += 1;
                *used = self.uses;
            }
        }
        let process = self.slots[self.slots.len() - 1].process();
        let may_take = |w: &&ModelWaiter| w.bound_to.is_none_or(|bound| bound == process);
        let eligible = self.waiters.iter().filter(may_take).count();
        let expected = eligible.min(spec.request_capacity as usize);
        assert_eq!(dispatched.len(), expected);
        for start in dispatched {
            self.expect_oldest(start, id);
        }
    }

    fn retire(&mut self) {
        let Some(index) = self.pick(|_| true) else {
            return;
        };
        let unbinds_first = self.rng.below(2) == 0;
        let slot = self.slots[index].id;
        if unbinds_first {
            self.unbind_and_dispatch(slot);
        }
        self.unbind_at_last(index);
        if !self.slots[index].is_retired {
            self.slots[index].is_retired = true;
            self.record_use(index);
        }
        let is_gone = self.slots[index].jobs.is_empty();
        assert_eq!(self.queue.retire_slot(slot), is_gone);
        if is_gone {
            self.remove_from_model(index);
        }
        self.start_free();
    }

    fn unbind_one(&mut self) {
        if let Some(index) = self.pick(|_| true) {
            self.unbind_and_dispatch(self.slots[index].id);
        }
    }

    /// Jobs bound to the slot are dispatched to the best free one, oldest first, or wait unbound.
    fn unbind_and_dispatch(&mut self, slot: SlotId) {
        if let Some(worker) = self.slots.iter().find(|w| w.id == slot) {
            self.unbind_all_of(worker.process());
        }
        let dispatched = self.queue.unbind_and_dispatch(self.now, slot);
        self.expect_free_started(dispatched);
    }

    /// What the end of a slot does by itself if it is the last live one of its process.
    fn unbind_at_last(&mut self, index: usize) {
        let (slot, process) = (self.slots[index].id, self.slots[index].process());
        let is_sibling = |w: &ModelSlot| w.id != slot && !w.is_retired && w.process() == process;
        if !self.slots.iter().any(is_sibling) {
            self.unbind_all_of(process);
        }
    }

    fn unbind_all_of(&mut self, process: Process) {
        for waits in &mut self.waiters {
            waits.bound_to = waits.bound_to.filter(|bound| *bound != process);
        }
    }

    fn start_free(&mut self) {
        let dispatched = self.queue.dispatch_unbound(self.now);
        self.expect_free_started(dispatched);
    }

    fn expect_free_started(&mut self, dispatched: Vec<DispatchedJob<Job>>) {
        for start in dispatched {
            self.expect_best_slot(start.slot_id, usize::MAX);
            let first = self.waiters.iter().position(ModelWaiter::is_unbound);
            let first = first.expect("only the unbound start");
            assert_eq!(self.waiters[first].job, start.job);
            self.expect_oldest_free(start, first);
        }
    }

    fn set_request_capacity(&mut self) {
        let Some(index) = self.pick(|_| true) else {
            return;
        };
        let capacity = [0, 0, 1, 1, 2, 3, u32::MAX][self.rng.below(7)];
        let worker = &mut self.slots[index];
        let (slot, was_free) = (worker.id, worker.is_free());
        let dispatched = self.queue.set_request_capacity(self.now, slot, capacity);
        if !worker.is_retired {
            worker.spec.request_capacity = capacity;
            if !was_free || !worker.is_free() {
                self.record_use(index);
            }
        }
        for start in dispatched {
            assert!(self.slots[index].is_free(), "no more than it has room for");
            self.expect_oldest(start, slot);
        }
    }

    /// A worker dies: some of its jobs had begun and are lost, the others are requeued.
    fn kill_slot(&mut self) {
        let Some(index) = self.pick(|_| true) else {
            return;
        };
        let unbinds_first = self.rng.below(2) == 0;
        if unbinds_first {
            self.unbind_and_dispatch(self.slots[index].id);
        }
        // Jobs that unbinding dispatched to it die with it.
        self.unbind_at_last(index);
        self.record_use(index);
        let mut worker = self.remove_from_model(index);
        self.queue.remove_slot(worker.id);
        self.start_free();
        worker.jobs.sort_by_key(|(job, since)| (*since, *job));
        for (job, since) in worker.jobs {
            if self.rng.below(3) == 0 {
                self.ended += 1;
            } else {
                self.requeue(job, since);
            }
        }
    }

    fn requeue(&mut self, job: Job, since: Instant) {
        match self.queue.requeue(self.now, job, since) {
            QueueOutcome::Dispatched(start) => self.expect_best(start, job, since, usize::MAX),
            QueueOutcome::Queued { ticket, position } => {
                let is_before = |w: &&ModelWaiter| (w.since, !w.is_returned) <= (since, false);
                let before = self.waiters.iter().take_while(is_before).count();
                assert_eq!(position, before + 1);
                let waits = ModelWaiter {
                    job,
                    ticket,
                    since,
                    position,
                    is_returned: true,
                    bound_to: None,
                };
                self.waiters.insert(before, waits);
            }
            QueueOutcome::Full(_) => panic!("a requeued job is never refused"),
        }
    }

    /// Late messages about removed tickets and slots change nothing.
    fn use_stale_ids(&mut self) {
        for ticket in &self.old_tickets {
            assert_eq!(self.queue.cancel(*ticket), None);
        }
        for slot in &self.old_slots {
            assert_eq!(self.queue.finish_request(self.now, *slot), None);
            assert!(!self.queue.claim_slot(*slot));
            assert_eq!(self.queue.set_request_capacity(self.now, *slot, 9), []);
            assert_eq!(self.queue.unbind_and_dispatch(self.now, *slot), []);
            assert_eq!(self.queue.bound_job_count(*slot), 0);
            assert_eq!(
                self.queue.dispatch_beyond_capacity(self.now, *slot, 9),
                None
            );
            assert!(self.queue.retire_slot(*slot));
            self.queue.remove_slot(*slot);
            assert_eq!(self.queue.slot_view(*slot), None);
        }
    }

    fn clear_sometimes(&mut self) {
        if self.rng.below(4) > 0 {
            return;
        }
        let cleared = self.queue.clear();
        let waited = self.waiters.drain(..);
        let (jobs, tickets): (Vec<_>, Vec<_>) = waited.map(|w| (w.job, w.ticket)).unzip();
        assert_eq!(cleared, jobs);
        self.ended += jobs.len() as u64;
        self.old_tickets.extend(tickets);
    }

    /// With slots and without new jobs every waiter is served.
    fn finish_all(&mut self) {
        for index in 0..self.slots.len() {
            self.unbind_and_dispatch(self.slots[index].id);
        }
        let spec = SlotSpec {
            generation: 9,
            group: 0,
            loop_index: 0,
            request_capacity: 1,
        };
        let (slot, dispatched) = self.queue.add_slot(self.now, spec);
        let mut running = dispatched.into_iter().next();
        while let Some(start) = running.take() {
            assert_eq!(start.job, self.waiters.remove(0).job);
            self.ended += 1;
            running = self.queue.finish_request(self.now, slot);
        }
        assert!(self.waiters.is_empty() && self.queue.is_empty());
        let in_progress: usize = self.slots.iter().map(|w| w.jobs.len()).sum();
        assert_eq!(self.ended + in_progress as u64, self.next_job);
    }

    fn pick(&mut self, is_wanted: impl Fn(&ModelSlot) -> bool) -> Option<usize> {
        let wanted = |(index, worker)| is_wanted(worker).then_some(index);
        let indices: Vec<_> = self.slots.iter().enumerate().filter_map(wanted).collect();
        let choice = self.rng.below(indices.len().max(1));
        indices.get(choice).copied()
    }
}

impl ModelWaiter {
    fn is_unbound(&self) -> bool {
        self.bound_to.is_none()
    }
}

impl ModelSlot {
    /// The group of its process, unless the slot has none.
    fn group(&self) -> Option<(u64, u64)> {
        let SlotSpec {
            generation, group, ..
        } = self.spec;
        (group != 0).then_some((generation, group))
    }

    fn process(&self) -> Process {
        match self.group() {
            Some((generation, group)) => Process::Group(generation, group),
            None => Process::Alone(self.id),
        }
    }

    fn shares_process(&self, other: &Self) -> bool {
        self.process() == other.process()
    }

    fn is_free(&self) -> bool {
        !self.is_retired && self.jobs.len() < self.spec.request_capacity as usize
    }
}

fn random_limits(rng: &mut Rng) -> QueueLimits {
    QueueLimits {
        max_len: [0, 1, 3, 10, 50][rng.below(5)],
        timeout: Duration::from_millis(20 + rng.below(400) as u64),
    }
}

/// xorshift64*: random enough for a test, and the same on every machine.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let scrambled = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(scrambled).unwrap() % bound
    }
}
