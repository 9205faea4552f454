//! Exact slots, proved from a trace: no request waits while a slot that may take it is at rest.
//!
//! The queue and its mailboxes are real, time is not: drivers are played here by the rules of
//! `slot` (batches for quick applications, spare slots for requests that are bound by I/O).
//! Everything that happens is written down, and the trace is judged afterwards. `PENSTOCK_SEED=n`
//! replays one seed, `PENSTOCK_SEEDS=n` runs so many.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Context;

use super::*;
use crate::dispatch::recent_latency::MAX_QUICK_REQUEST_TIME;

/// A deployment and what comes to it.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    workers: usize,
    threads: usize,
    spare: usize,
    short: Duration,
    long: Duration,
    /// One in so many is long.
    long_one_in: u64,
    /// One in so many is bound by I/O; 0 is none.
    io_one_in: u64,
    /// Part of all slots' time that is asked for.
    load: f64,
}

const MIXED: Scenario = Scenario {
    name: "10 ms and 1 s, four workers",
    workers: 4,
    threads: 1,
    spare: 0,
    short: Duration::from_millis(10),
    long: Duration::from_secs(1),
    long_one_in: 100,
    io_one_in: 0,
    load: 0.7,
};

const SCENES: [Scenario; 6] = [
    MIXED,
    Scenario {
        name: "two workers with two threads",
        workers: 2,
        threads: 2,
        ..MIXED
    },
    Scenario {
        name: "with spare slots",
        workers: 2,
        threads: 2,
        spare: 3,
        io_one_in: 20,
        ..MIXED
    },
    Scenario {
        name: "more than can be done",
        load: 1.3,
        spare: 1,
        io_one_in: 50,
        ..MIXED
    },
    Scenario {
        name: "all quick, in batches",
        short: Duration::from_micros(100),
        long: Duration::from_micros(150),
        long_one_in: 10,
        load: 1.1,
        ..MIXED
    },
    Scenario {
        name: "quick, in batches, with spare slots",
        short: Duration::from_micros(100),
        long: Duration::from_micros(150),
        long_one_in: 10,
        load: 1.2,
        spare: 2,
        io_one_in: 10,
        ..MIXED
    },
];

/// The trace of one request.
#[derive(Debug, Clone, Copy, Default)]
struct RequestTrace {
    arrived_at: Duration,
    /// When it left the line.
    handed_over_at: Duration,
    /// When its worker turned to it.
    began_at: Duration,
    /// Requests that were before it in its slot.
    queued_behind: usize,
}

struct SimulatedSlot {
    id: SlotId,
    mailbox: Arc<Mailbox>,
    /// Requests by number, the first one in progress.
    requests: VecDeque<usize>,
    is_lent: bool,
    /// Since when it could have taken a request and had none.
    idle_since: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedEvent {
    Arrival,
    IoBound { slot: usize, request: usize },
    End { slot: usize },
}

struct Simulation {
    scene: Scenario,
    rng: u64,
    start: Instant,
    now: Duration,
    dispatch: AppDispatcher,
    pace: RecentLatency,
    slots: Vec<SimulatedSlot>,
    scheduled: BinaryHeap<Reverse<(Duration, u64, SimulatedEvent)>>,
    next_serial: u64,
    traces: Vec<RequestTrace>,
    /// Times in which a slot could have taken a request and had none.
    idle_periods: Vec<(Duration, Duration)>,
    ended_requests: usize,
}

/// How many come in each run.
const REQUESTS: usize = 1000;

#[test]
fn no_request_waits_while_a_slot_is_at_rest() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(5),
    };
    for seed in seeds {
        for scene in SCENES {
            let mut world = Simulation::new(scene, seed);
            world.run();
            world.check_traces(seed);
        }
    }
}

impl Simulation {
    fn new(scene: Scenario, seed: u64) -> Self {
        let limits = QueueLimits {
            max_len: usize::MAX,
            timeout: Duration::from_secs(3600),
        };
        let mut world = Self {
            scene,
            rng: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            start: Instant::now(),
            now: Duration::ZERO,
            dispatch: AppDispatcher::new(limits),
            pace: RecentLatency::default(),
            slots: Vec::new(),
            scheduled: BinaryHeap::new(),
            next_serial: 0,
            traces: Vec::new(),
            idle_periods: Vec::new(),
            ended_requests: 0,
        };
        for place in 0..scene.workers {
            let stats = Arc::default();
            for number in 0..scene.threads + scene.spare {
                let spec = SlotSpec {
                    generation: 1,
                    group: place as u64 + 1,
                    loop_index: place % 2,
                    request_capacity: u32::from(number < scene.threads),
                };
                let (id, mailbox) = world.dispatch.add_slot(world.start, spec, &stats);
                world.slots.push(SimulatedSlot {
                    id,
                    mailbox,
                    requests: VecDeque::new(),
                    is_lent: false,
                    idle_since: None,
                });
            }
        }
        world.schedule(Duration::ZERO, SimulatedEvent::Arrival);
        world
    }

    fn run(&mut self) {
        while let Some(Reverse((at, _, what))) = self.scheduled.pop() {
            self.now = at;
            match what {
                SimulatedEvent::Arrival => self.arrive(),
                SimulatedEvent::IoBound { slot, request } => self.wait_for_io(slot, request),
                SimulatedEvent::End { slot } => self.end(slot),
            }
            self.deliver();
            self.record_idle_slots();
        }
        assert_eq!(
            self.ended_requests, REQUESTS,
            "{}: all were served",
            self.scene.name
        );
    }

    fn arrive(&mut self) {
        let number = self.traces.len();
        self.traces.push(RequestTrace {
            arrived_at: self.now,
            ..RequestTrace::default()
        });
        let job = Job {
            frame: number.to_le_bytes().to_vec(),
            ..job("")
        };
        let preferred_loop = usize::from(self.random_below(2) == 1);
        let _ = self
            .dispatch
            .submit(self.start + self.now, job, preferred_loop);
        if self.traces.len() < REQUESTS {
            let scene = self.scene;
            let mean = scene.short.mul_f64(1.0 - 1.0 / scene.long_one_in as f64)
                + scene.long.div_f64(scene.long_one_in as f64);
            let gap = mean.div_f64(scene.load * (scene.workers * scene.threads) as f64);
            // Exponential gaps: arrivals without memory.
            let chance = (self.random_below(1 << 30) + 1) as f64 / (1u64 << 30) as f64;
            self.schedule(gap.mul_f64(-chance.ln()), SimulatedEvent::Arrival);
        }
    }

    /// Takes the jobs in the mailboxes, as drivers do.
    fn deliver(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for slot in 0..self.slots.len() {
            while let Some(delivery) = self.slots[slot].mailbox.poll_delivery(&mut cx) {
                self.take(slot, delivery.jobs);
                self.turn(slot, 0);
            }
        }
    }

    fn take(&mut self, slot: usize, jobs: VecDeque<DispatchedJob<Job>>) {
        for start in jobs {
            let number = usize::from_le_bytes(start.job.frame.try_into().unwrap());
            let line = &mut self.slots[slot].requests;
            let story = &mut self.traces[number];
            story.handed_over_at = self.now;
            story.queued_behind = line.len();
            line.push_back(number);
            if line.len() == 1 {
                self.begin(slot);
            }
        }
    }

    /// The worker turns to the first request of the slot's line.
    fn begin(&mut self, slot: usize) {
        let number = self.slots[slot].requests[0];
        self.traces[number].began_at = self.now;
        let scene = self.scene;
        let is_long = self.random_below(scene.long_one_in) == 0;
        let took = if is_long { scene.long } else { scene.short };
        if scene.io_one_in > 0 && self.random_below(scene.io_one_in) == 0 {
            let request = number;
            self.schedule(took / 4, SimulatedEvent::IoBound { slot, request });
        }
        self.pace.record(took);
        self.schedule(took, SimulatedEvent::End { slot });
    }

    fn wait_for_io(&mut self, slot: usize, request: usize) {
        let at = self.start + self.now;
        assert_eq!(self.slots[slot].requests.front(), Some(&request));
        if !self.slots[slot].is_lent {
            self.slots[slot].is_lent = self.dispatch.lend_spare_slot(at, self.slots[slot].id);
        }
    }

    fn end(&mut self, slot: usize) {
        self.ended_requests += 1;
        let at = self.start + self.now;
        let driver = &mut self.slots[slot];
        driver.requests.pop_front();
        if driver.is_lent && driver.requests.is_empty() {
            driver.is_lent = false;
            self.dispatch.park_slot(at, driver.id);
        }
        if !self.slots[slot].requests.is_empty() {
            self.begin(slot);
        }
        self.turn(slot, 1);
    }

    fn turn(&mut self, slot: usize, ended: usize) {
        let batch_max = match self.slots[slot].is_lent {
            true => 1,
            false => self.pace.max_batch(),
        };
        if ended == 0 && batch_max == 1 {
            return;
        }
        let mut jobs = VecDeque::new();
        let (at, id) = (self.start + self.now, self.slots[slot].id);
        self.dispatch
            .finish_and_take(at, id, ended, batch_max, &mut jobs);
        self.take(slot, jobs);
    }

    /// Writes down when slots that take requests begin and cease to have none.
    fn record_idle_slots(&mut self) {
        let inner = self.dispatch.state.lock();
        for slot in &mut self.slots {
            let view = inner.queue.slot_view(slot.id).unwrap();
            let is_resting = view.spec.request_capacity > 0 && slot.requests.is_empty();
            assert!(slot.requests.len() <= MAX_BATCH_REQUESTS as usize);
            let is_spare = view.spec.request_capacity == 0;
            assert!(
                !is_spare || slot.requests.is_empty(),
                "a spare slot has nothing"
            );
            match (is_resting, slot.idle_since) {
                (true, None) => slot.idle_since = Some(self.now),
                (false, Some(since)) => {
                    self.idle_periods.push((since, self.now));
                    slot.idle_since = None;
                }
                _ => {}
            }
        }
        let capacity = inner.queue.request_capacity();
        let lent = self.slots.iter().filter(|slot| slot.is_lent).count();
        let threads = self.scene.workers * self.scene.threads;
        assert_eq!(
            capacity,
            threads + lent,
            "a place for each that waits for I/O"
        );
    }

    fn check_traces(&self, seed: u64) {
        let name = self.scene.name;
        let replay = format!("{name}: PENSTOCK_SEED={seed}");
        let is_quick = self.scene.long < MAX_QUICK_REQUEST_TIME;
        let mut waited = 0;
        let rests = self.merged_idle_periods();
        for story in &self.traces {
            if story.handed_over_at > story.arrived_at {
                waited += 1;
                // From its arrival until its hand-over no slot was at rest.
                let next = rests.partition_point(|rest| rest.1 <= story.arrived_at);
                let idle = rests.get(next).filter(|rest| rest.0 < story.handed_over_at);
                assert_eq!(idle, None, "{replay}: {story:?} waited beside a slot");
            }
            if is_quick {
                // Behind others in its slot it waits no longer than they take.
                let most = MAX_QUICK_REQUEST_TIME * MAX_BATCH_REQUESTS;
                assert!(
                    story.began_at - story.handed_over_at <= most,
                    "{replay}: {story:?}"
                );
            } else {
                assert_eq!(
                    story.queued_behind, 0,
                    "{replay}: no batch where requests are slow"
                );
                assert_eq!(story.began_at, story.handed_over_at, "{replay}: {story:?}");
            }
        }
        assert!(waited > 10, "{replay}: somebody waited at all: {waited}");
        let batched = self
            .traces
            .iter()
            .filter(|story| story.queued_behind > 0)
            .count();
        assert_eq!(batched > 0, is_quick, "{replay}: {batched} in batches");
    }

    /// When any slot was at rest: times that do not overlap, in order.
    fn merged_idle_periods(&self) -> Vec<(Duration, Duration)> {
        let mut rests = self.idle_periods.clone();
        rests.sort();
        let mut merged: Vec<(Duration, Duration)> = Vec::new();
        for (from, to) in rests.into_iter().filter(|(from, to)| from < to) {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        merged
    }

    fn schedule(&mut self, after: Duration, what: SimulatedEvent) {
        self.next_serial += 1;
        self.scheduled
            .push(Reverse((self.now + after, self.next_serial, what)));
    }

    fn random_below(&mut self, bound: u64) -> u64 {
        // xorshift64*, good enough for dice.
        self.rng ^= self.rng >> 12;
        self.rng ^= self.rng << 25;
        self.rng ^= self.rng >> 27;
        (self.rng.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }
}
