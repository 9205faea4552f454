//! Random operations on the queue beside a reference model made of plain vectors.
//!
//! After every step each answer is compared with the model's, and the whole state is checked. A
//! failure prints its seed: `PENSTOCK_SEED=n` replays that one, `PENSTOCK_SEEDS=n` runs so many
//! instead of 300.

use super::*;

/// A job is its own number, so that a lost or doubled one shows.
type Job = u64;

struct World {
    rng: Rng,
    queue: Queue<Job>,
    now: Instant,
    next_job: Job,
    /// Jobs that have ended in any way: served, refused, canceled, expired, lost with a worker.
    ended: u64,
    line: Vec<Waits>,
    slots: Vec<Worker>,
    /// Names of what is gone, to be tried again.
    old_tickets: Vec<Ticket>,
    old_slots: Vec<SlotId>,
    uses: u64,
}

struct Waits {
    job: Job,
    ticket: Ticket,
    since: Instant,
    position: usize,
    is_returned: bool,
}

struct Worker {
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
            let mut world = World::new(seed);
            for _ in 0..400 {
                world.step();
                world.check_invariants();
            }
            world.wind_up();
        });
        assert!(run.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let limits = random_limits(&mut rng);
        Self {
            rng,
            queue: Queue::new(limits),
            now: Instant::now(),
            next_job: 0,
            ended: 0,
            line: Vec::new(),
            slots: Vec::new(),
            old_tickets: Vec::new(),
            old_slots: Vec::new(),
            uses: 0,
        }
    }

    fn step(&mut self) {
        if self.rng.below(3) == 0 {
            self.now += Duration::from_millis(self.rng.below(40) as u64);
        }
        match self.rng.below(100) {
            0..36 => self.submit(),
            36..66 => self.finish(),
            66..72 => self.cancel(),
            72..80 => self.extend(),
            80..86 => self.expire(),
            86..91 => self.add_slot(),
            91..94 => self.retire(),
            94..97 => self.kill(),
            97..98 => self.set_limits(),
            98..99 => self.use_old_names(),
            _ => self.clear_sometimes(),
        }
    }

    fn submit(&mut self) {
        self.next_job += 1;
        let (job, home) = (self.next_job, self.rng.below(4));
        let joined = self.line.iter().filter(|w| !w.is_returned).count();
        match self.queue.submit(self.now, job, home) {
            Submitted::Start(start) => self.expect_best(start, job, self.now, home),
            Submitted::Waiting { ticket, position } => {
                assert!(joined < self.queue.limits().len_max);
                assert_eq!(position, self.line.len() + 1);
                self.line.push(Waits {
                    job,
                    ticket,
                    since: self.now,
                    position,
                    is_returned: false,
                });
            }
            Submitted::Full(back) => {
                assert!(joined >= self.queue.limits().len_max);
                assert_eq!(back, job);
                self.ended += 1;
            }
        }
    }

    /// The start must be on a slot that no free one beats.
    fn expect_best(&mut self, start: Start<Job>, job: Job, since: Instant, home: usize) {
        assert!(self.line.is_empty(), "nobody is overtaken");
        let merit = |w: &Worker| {
            let fewest = std::cmp::Reverse(w.jobs.len());
            (w.spec.generation, fewest, w.spec.home == home, w.used)
        };
        let best = self.slots.iter().filter(|w| w.is_free()).map(merit).max();
        let chosen = self.slots.iter().find(|w| w.id == start.slot);
        let chosen = chosen.expect("the slot exists");
        assert!(chosen.is_free());
        assert_eq!(Some(merit(chosen)), best);
        assert_eq!((start.job, start.position), (job, 0));
        assert_eq!(start.enqueued_at, since);
        assert_eq!(start.waited, self.now - since);
        self.begin(start.slot, job, since);
    }

    fn begin(&mut self, slot: SlotId, job: Job, since: Instant) {
        self.uses += 1;
        let used = self.uses;
        let worker = self.slots.iter_mut().find(|w| w.id == slot);
        let worker = worker.expect("the slot exists");
        worker.jobs.push((job, since));
        worker.used = used;
    }

    /// The start must be the model's first in line, on this slot.
    fn expect_oldest(&mut self, start: Start<Job>, slot: SlotId) {
        let first = self.line.remove(0);
        assert_eq!((start.job, start.slot), (first.job, slot));
        assert_eq!(start.position, first.position);
        assert_eq!(start.enqueued_at, first.since);
        assert_eq!(start.waited, self.now - first.since);
        self.old_tickets.push(first.ticket);
        self.begin(slot, first.job, first.since);
    }

    fn finish(&mut self) {
        let Some(place) = self.pick(|w| !w.jobs.is_empty()) else {
            return;
        };
        let depth = self.slots[place].jobs.len();
        let which = self.rng.below(depth);
        self.uses += 1;
        let worker = &mut self.slots[place];
        worker.jobs.swap_remove(which);
        worker.used = self.uses;
        self.ended += 1;
        let (slot, takes) = (worker.id, worker.is_free() && !self.line.is_empty());
        if worker.is_retired && worker.jobs.is_empty() {
            self.slots.swap_remove(place);
            self.old_slots.push(slot);
        }
        match self.queue.finish(self.now, slot) {
            Some(start) => {
                assert!(takes, "only a live slot with a place takes a waiter");
                self.expect_oldest(start, slot);
            }
            None => assert!(!takes, "no waiter is left while the slot has a place"),
        }
    }

    fn extend(&mut self) {
        let Some(place) = self.pick(|_| true) else {
            return;
        };
        let depth_max = u32::try_from(self.rng.below(6)).unwrap();
        let worker = &self.slots[place];
        let has_room = worker.jobs.len() < depth_max as usize;
        let takes = !self.line.is_empty() && !worker.is_retired && has_room;
        let slot = worker.id;
        match self.queue.extend(self.now, slot, depth_max) {
            Some(start) => {
                assert!(takes && !self.slots.iter().any(Worker::is_free));
                self.expect_oldest(start, slot);
            }
            None => assert!(!takes),
        }
    }

    fn cancel(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let which = self.rng.below(self.line.len());
        let left = self.line.remove(which);
        assert_eq!(self.queue.cancel(left.ticket), Some(left.job));
        self.old_tickets.push(left.ticket);
        self.ended += 1;
    }

    fn expire(&mut self) {
        let timeout = self.queue.limits().timeout;
        let soonest = self.line.iter().map(|w| w.since).min();
        assert_eq!(self.queue.next_expiry(), soonest.map(|at| at + timeout));
        while let Some((ticket, job, waited)) = self.queue.expire(self.now) {
            let first = self.line.remove(0);
            assert_eq!((ticket, job), (first.ticket, first.job));
            assert_eq!(waited, self.now - first.since);
            assert!(waited >= timeout);
            self.old_tickets.push(ticket);
            self.ended += 1;
        }
        assert!(self.line.iter().all(|w| self.now - w.since < timeout));
    }

    fn add_slot(&mut self) {
        if self.slots.len() > 12 {
            return;
        }
        let spec = SlotSpec {
            generation: self.rng.below(3) as u64,
            home: self.rng.below(4),
            capacity: [1, 1, 1, 2, 3, 0][self.rng.below(6)],
        };
        let (id, starts) = self.queue.add_slot(self.now, spec);
        assert!(self.slots.iter().all(|w| w.id != id), "a name is new");
        assert!(!self.old_slots.contains(&id), "a name is never reused");
        self.slots.push(Worker {
            id,
            spec,
            jobs: Vec::new(),
            is_retired: false,
            used: 0,
        });
        let expected = self.line.len().min(spec.capacity as usize);
        assert_eq!(starts.len(), expected);
        for start in starts {
            self.expect_oldest(start, id);
        }
    }

    fn retire(&mut self) {
        let Some(place) = self.pick(|_| true) else {
            return;
        };
        let worker = &mut self.slots[place];
        worker.is_retired = true;
        let is_gone = worker.jobs.is_empty();
        assert_eq!(self.queue.retire_slot(worker.id), is_gone);
        if is_gone {
            let worker = self.slots.swap_remove(place);
            self.old_slots.push(worker.id);
        }
    }

    /// A worker dies: some of its jobs had begun and are lost, the others are given back.
    fn kill(&mut self) {
        let Some(place) = self.pick(|_| true) else {
            return;
        };
        let mut worker = self.slots.swap_remove(place);
        self.old_slots.push(worker.id);
        self.queue.remove_slot(worker.id);
        worker.jobs.sort_by_key(|(job, since)| (*since, *job));
        for (job, since) in worker.jobs {
            if self.rng.below(3) == 0 {
                self.ended += 1;
            } else {
                self.give_back(job, since);
            }
        }
    }

    fn give_back(&mut self, job: Job, since: Instant) {
        match self.queue.give_back(self.now, job, since) {
            Submitted::Start(start) => self.expect_best(start, job, since, usize::MAX),
            Submitted::Waiting { ticket, position } => {
                let is_before = |w: &&Waits| w.is_returned && w.since <= since;
                let before = self.line.iter().take_while(is_before).count();
                assert_eq!(position, before + 1);
                let waits = Waits {
                    job,
                    ticket,
                    since,
                    position,
                    is_returned: true,
                };
                self.line.insert(before, waits);
            }
            Submitted::Full(_) => panic!("a job given back is never refused"),
        }
    }

    fn set_limits(&mut self) {
        let limits = random_limits(&mut self.rng);
        self.queue.set_limits(limits);
    }

    /// Late messages about what is gone change nothing.
    fn use_old_names(&mut self) {
        for ticket in &self.old_tickets {
            assert_eq!(self.queue.cancel(*ticket), None);
        }
        for slot in &self.old_slots {
            assert_eq!(self.queue.finish(self.now, *slot), None);
            assert_eq!(self.queue.extend(self.now, *slot, 9), None);
            assert!(self.queue.retire_slot(*slot));
            self.queue.remove_slot(*slot);
            assert_eq!(self.queue.slot(*slot), None);
        }
    }

    fn clear_sometimes(&mut self) {
        if self.rng.below(4) > 0 {
            return;
        }
        let cleared = self.queue.clear();
        let waited = self.line.drain(..);
        let (jobs, tickets): (Vec<_>, Vec<_>) = waited.map(|w| (w.job, w.ticket)).unzip();
        assert_eq!(cleared, jobs);
        self.ended += jobs.len() as u64;
        self.old_tickets.extend(tickets);
    }

    /// With slots and without newcomers everybody is served.
    fn wind_up(&mut self) {
        let spec = SlotSpec {
            generation: 9,
            home: 0,
            capacity: 1,
        };
        let (slot, starts) = self.queue.add_slot(self.now, spec);
        let mut running = starts.into_iter().next();
        while let Some(start) = running.take() {
            assert_eq!(start.job, self.line.remove(0).job);
            self.ended += 1;
            running = self.queue.finish(self.now, slot);
        }
        assert!(self.line.is_empty() && self.queue.is_empty());
        let in_progress: usize = self.slots.iter().map(|w| w.jobs.len()).sum();
        assert_eq!(self.ended + in_progress as u64, self.next_job);
    }

    fn pick(&mut self, is_wanted: impl Fn(&Worker) -> bool) -> Option<usize> {
        let wanted = |(place, worker)| is_wanted(worker).then_some(place);
        let places: Vec<_> = self.slots.iter().enumerate().filter_map(wanted).collect();
        let choice = self.rng.below(places.len().max(1));
        places.get(choice).copied()
    }

    fn check_invariants(&self) {
        let waiting = self.queue.line.check_invariants();
        self.queue.slots.check_invariants();
        assert!(waiting.into_iter().eq(self.line.iter().map(|w| &w.job)));
        let is_any_free = self.slots.iter().any(Worker::is_free);
        assert!(
            self.line.is_empty() || !is_any_free,
            "a wait beside a place"
        );
        let live = self.slots.iter().filter(|w| !w.is_retired);
        let places = |w: &Worker| (w.spec.capacity as usize).saturating_sub(w.jobs.len());
        assert_eq!(self.queue.free(), live.clone().map(places).sum::<usize>());
        assert_eq!(self.queue.slots(), live.count());
        let in_progress: usize = self.slots.iter().map(|w| w.jobs.len()).sum();
        assert_eq!(self.queue.in_progress(), in_progress);
        let known = self.ended + (in_progress + self.line.len()) as u64;
        assert_eq!(known, self.next_job, "no job is lost or doubled");
        for worker in &self.slots {
            let view = self.queue.slot(worker.id).expect("it exists");
            assert_eq!(view.in_progress as usize, worker.jobs.len());
            assert_eq!(view.is_retired, worker.is_retired);
        }
        assert_eq!(self.queue.each_slot().count(), self.slots.len());
    }
}

impl Worker {
    fn is_free(&self) -> bool {
        !self.is_retired && self.jobs.len() < self.spec.capacity as usize
    }
}

fn random_limits(rng: &mut Rng) -> QueueLimits {
    QueueLimits {
        len_max: [0, 1, 3, 10, 50][rng.below(5)],
        timeout: Duration::from_millis(20 + rng.below(400) as u64),
    }
}

/// xorshift64*: enough disorder for a test, and the same on every machine.
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
