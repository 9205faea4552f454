//! The supervisor under load: a queue, slots that take from it, workers that need time to boot.
//!
//! [`ScalingSimulation`] is a queue in steps of 10 ms. Ten minutes of each kind of load pass in it;
//! what counts is how often the number of workers changes, and for how long anybody waits. At the
//! end, the rules one by one.

use std::collections::BTreeMap;

use super::super::{Supervisor, SupervisorAction, SupervisorEvent, SupervisorReport, WorkerId};
use super::*;

/// Slots of a worker.
const EACH: usize = 2;

const STEP: Duration = Duration::from_millis(10);

struct ScalingSimulation {
    supervisor: Supervisor,
    began: Instant,
    now: Instant,
    boot: Duration,
    alarm: Option<Instant>,
    /// Workers that boot, and when they are ready.
    booting: Vec<(Instant, WorkerId)>,
    /// Workers that serve: when the requests that they have end.
    serving: BTreeMap<WorkerId, Vec<Instant>>,
    /// Workers that finish what they have.
    retired: BTreeMap<WorkerId, Vec<Instant>>,
    /// Since when each queued request has waited, and how long it will take.
    line: VecDeque<(Instant, Duration)>,
    /// When the number of workers changed, and to what.
    changes: Vec<(Duration, usize)>,
    /// The same of the threads of each.
    thread_changes: Vec<(Duration, usize)>,
    /// Per cent of a processor that a request wants, where anybody asks.
    busy_each: Option<usize>,
    /// What all wanted in each step since the last look, and how many steps there were.
    wanted: usize,
    wanted_steps: usize,
    /// When that was, what was seen, and since when it had been watched.
    window_from: Instant,
    percent: usize,
    watched_from: Option<Instant>,
    admitted: BTreeMap<WorkerId, Instant>,
    /// The last time at which the first in the queue had waited longer than it should.
    last_late: Duration,
    random: u64,
}

impl ScalingSimulation {
    fn new(boot_millis: u64, processes_max: usize) -> Self {
        Self::of(
            boot_millis,
            SupervisorPolicy {
                min_processes: 1,
                max_processes: processes_max,
                ..SupervisorPolicy::default()
            },
        )
    }

    /// One to `processes_max` workers of one to `threads_max` threads, of which each request wants
    /// so much of a processor.
    fn of_threads(processes_max: usize, threads_max: usize, busy_each: usize) -> Self {
        let mut world = Self::of(
            200,
            SupervisorPolicy {
                min_processes: 1,
                max_processes: processes_max,
                min_threads: 1,
                max_threads: threads_max,
                ..SupervisorPolicy::default()
            },
        );
        world.busy_each = Some(busy_each);
        world
    }

    fn of(boot_millis: u64, policy: SupervisorPolicy) -> Self {
        let now = Instant::now();
        let mut world = Self {
            supervisor: Supervisor::new(policy),
            began: now,
            now,
            boot: Duration::from_millis(boot_millis),
            alarm: None,
            booting: Vec::new(),
            serving: BTreeMap::new(),
            retired: BTreeMap::new(),
            line: VecDeque::new(),
            changes: Vec::new(),
            thread_changes: Vec::new(),
            busy_each: None,
            wanted: 0,
            wanted_steps: 0,
            window_from: now,
            percent: 0,
            watched_from: None,
            admitted: BTreeMap::new(),
            last_late: Duration::ZERO,
            random: 0x9E37_79B9_7F4A_7C15,
        };
        world.report_load(SupervisorEvent::Started);
        world
    }

    /// Lets `seconds` pass in which `each_step` says how long the requests that arrive will take.
    fn advance(&mut self, seconds: u64, mut each_step: impl FnMut(&mut Self) -> Vec<Duration>) {
        for step in 0..seconds * 100 {
            self.now += STEP;
            self.finish();
            for takes in each_step(self) {
                self.line.push_back((self.now, takes));
            }
            self.begin();
            if self.alarm.is_some_and(|at| at <= self.now) {
                self.alarm = None;
                self.report_load(SupervisorEvent::Tick);
            }
            let each = self.busy_each.unwrap_or(0);
            let of = |ends: &Vec<Instant>| (ends.len() * each).min(100);
            self.wanted += self.serving.values().map(of).sum::<usize>();
            self.wanted_steps += 1;
            if step % 10 == 0 {
                self.sample();
                self.report_load(SupervisorEvent::Load(self.load()));
            }
        }
    }

    fn finish(&mut self) {
        let now = self.now;
        let workers = self.serving.values_mut().chain(self.retired.values_mut());
        for ends in workers {
            ends.retain(|end| *end > now);
        }
        let is_idle = |(id, ends): (&WorkerId, &Vec<Instant>)| ends.is_empty().then_some(*id);
        let idle: Vec<_> = self.retired.iter().filter_map(is_idle).collect();
        for worker in idle {
            self.report_load(SupervisorEvent::Idle { worker });
        }
        let is_due = |(at, _): &(Instant, WorkerId)| *at <= now;
        let due: Vec<_> = self.booting.extract_if(.., |boot| is_due(boot)).collect();
        let boot = self.boot;
        for (_, worker) in due {
            self.report_load(SupervisorEvent::Ready { worker, boot });
        }
    }

    fn begin(&mut self) {
        let each = self.each();
        let free = |ends: &&mut Vec<Instant>| ends.len() < each;
        while let Some((since, takes)) = self.line.pop_front() {
            let Some(ends) = self.serving.values_mut().find(free) else {
                self.line.push_front((since, takes));
                break;
            };
            ends.push(self.now + takes);
        }
        if self.load().oldest_wait >= self.supervisor.policy.scale_up_after {
            self.last_late = self.now - self.began;
        }
    }

    fn load(&self) -> AppLoad {
        let first = self.line.front();
        AppLoad {
            queued: self.line.len(),
            oldest_wait: first.map_or(Duration::ZERO, |(since, _)| self.now - *since),
            in_progress: self.serving.values().map(Vec::len).sum(),
            slots: self.each() * self.serving.len(),
            cpu_percent: self.busy_each.map(|_| self.percent),
            cpu_known_since: self.watched_from.filter(|from| {
                let is_known = |id: &&WorkerId| self.admitted[*id] <= *from;
                2 * self.serving.keys().filter(is_known).count() >= self.serving.len()
            }),
        }
    }

    /// Looks how busy all are, as often as the executor does.
    fn sample(&mut self) {
        let window = match self.line.is_empty() {
            true => Duration::from_secs(1),
            false => Duration::from_millis(300),
        };
        if self.now - self.window_from >= window {
            self.percent = self.wanted / self.wanted_steps.max(1);
            self.watched_from = Some(self.window_from);
            self.window_from = self.now;
            (self.wanted, self.wanted_steps) = (0, 0);
        }
    }

    /// Slots of a worker.
    fn each(&self) -> usize {
        match self.busy_each {
            Some(_) => self.supervisor.threads_per_worker,
            None => EACH,
        }
    }

    fn report_load(&mut self, event: SupervisorEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.supervisor.handle_event(self.now, event) {
                match action {
                    SupervisorAction::Spawn { worker, .. } => {
                        self.booting.push((self.now + self.boot, worker));
                        events.push_back(SupervisorEvent::Spawned { worker, pid: 7 });
                    }
                    SupervisorAction::Admit { worker } => {
                        self.serving.insert(worker, Vec::new());
                        self.admitted.insert(worker, self.now);
                    }
                    SupervisorAction::Retire { worker } => {
                        let ends = self.serving.remove(&worker).unwrap();
                        self.retired.insert(worker, ends);
                    }
                    SupervisorAction::Signal { worker, .. } => {
                        self.retired.remove(&worker);
                        self.booting.retain(|(_, id)| *id != worker);
                        let status = super::super::ExitSummary::Code(0);
                        events.push_back(SupervisorEvent::Exited { worker, status });
                    }
                    SupervisorAction::WakeAt(at) => self.alarm = Some(at),
                    SupervisorAction::Report(SupervisorReport::Scaled { to, .. }) => {
                        self.changes.push((self.now - self.began, to));
                    }
                    SupervisorAction::Report(SupervisorReport::ThreadsScaled { to, .. }) => {
                        self.thread_changes.push((self.now - self.began, to));
                    }
                    _ => {}
                }
            }
        }
        let policy = &self.supervisor.policy;
        let bounds = policy.min_processes..=policy.max_processes;
        assert!(bounds.contains(&self.supervisor.target_workers));
        let bounds = policy.min_threads..=policy.max_threads;
        assert!(bounds.contains(&self.supervisor.threads_per_worker));
    }

    fn target(&self) -> usize {
        self.supervisor.target_workers
    }

    /// Changes from this second on.
    fn changes_from(&self, second: u64) -> usize {
        let is_later = |(at, _): &&(Duration, usize)| *at >= Duration::from_secs(second);
        self.changes.iter().filter(is_later).count()
    }

    /// The most workers that there were to be.
    fn most(&self) -> usize {
        self.changes.iter().map(|(_, to)| *to).max().unwrap_or(1)
    }

    /// From 0 to 1 (xorshift64*).
    fn chance(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let drawn = self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40;
        f64::from(u32::try_from(drawn).unwrap()) / f64::from(1_u32 << 24)
    }

    /// How many arrive in a step when on average so many do (Knuth's way).
    fn poisson(&mut self, average: f64) -> usize {
        let (mut count, mut product) = (0, self.chance());
        while product > (-average).exp() {
            count += 1;
            product *= self.chance();
        }
        count
    }
}

/// Requests of 50 ms, as many a step as keep 5 slots busy for each one.
fn even(a_step: usize) -> impl FnMut(&mut ScalingSimulation) -> Vec<Duration> {
    move |_| vec![Duration::from_millis(50); a_step]
}

#[test]
fn a_steady_load_gets_its_workers_within_seconds_and_then_nothing_changes() {
    for boot_millis in [20, 200, 2000] {
        let mut world = ScalingSimulation::new(boot_millis, 16);
        world.advance(10, |_| Vec::new());
        world.advance(600, even(1));
        let context = format!("{boot_millis} ms: {:?}", world.changes);
        assert!((3..=4).contains(&world.target()), "{context}");
        assert!(world.changes.len() <= 3, "{context}");
        assert_eq!(world.changes_from(60), 0, "{context}");
        let limit = Duration::from_millis(10_000 + 3 * boot_millis + 3000);
        assert!(world.last_late < limit, "{context}: {:?}", world.last_late);
    }
}

#[test]
fn a_load_that_doubles_and_halves_is_followed_within_seconds_without_flapping() {
    for (seconds, rounds) in [(60, 5), (100, 4)] {
        let mut world = ScalingSimulation::new(200, 16);
        for _ in 0..rounds {
            world.advance(seconds, even(1));
            let began = world.now - world.began;
            world.advance(seconds, even(2));
            let late = world.last_late.saturating_sub(began);
            assert!(late < Duration::from_secs(2), "behind for {late:?}");
        }
        let context = format!("{seconds} s: {:?}", world.changes);
        let after_the_first = world.changes_from(2 * seconds);
        assert!(after_the_first <= 2 * (rounds - 1), "{context}");
        assert!(world.most() <= 8, "10 slots are needed: {context}");
    }
}

#[test]
fn what_a_peak_needed_is_given_back_step_by_step() {
    let mut world = ScalingSimulation::new(200, 16);
    world.advance(60, even(2));
    let most = world.target();
    assert!(most >= 5, "10 slots are needed: {most}");
    let began = world.now - world.began;
    world.advance(540, even(1));
    let context = format!("{:?}", world.changes);
    assert_eq!(
        world.target(),
        4,
        "5 slots are needed, some to spare: {context}"
    );
    let steps = world.changes_from(60);
    assert_eq!(steps, most - 4, "one at a time, and none back: {context}");
    assert!(world.last_late < began, "{context}");
}

#[test]
fn noise_and_bursts_change_little() {
    for seed in 1..=5 {
        let mut world = ScalingSimulation::new(200, 16);
        world.random = 0x9E37_79B9_7F4A_7C15_u64.rotate_left(7 * seed);
        world.advance(600, |world| {
            let long_chance = 0.01;
            let count = world.poisson(1.0);
            let takes = |world: &mut ScalingSimulation| match world.chance() < long_chance {
                true => Duration::from_secs(1),
                false => Duration::from_millis(40),
            };
            (0..count).map(|_| takes(world)).collect()
        });
        let context = format!("seed {seed}: {:?}", world.changes);
        assert!(world.changes.len() <= 6, "{context}");
        assert!((3..=8).contains(&world.most()), "{context}");
    }
}

#[test]
fn one_short_spike_is_served_and_forgotten() {
    let mut world = ScalingSimulation::new(200, 8);
    world.advance(10, |_| Vec::new());
    let mut is_over = false;
    world.advance(600, |_| match std::mem::replace(&mut is_over, true) {
        false => vec![Duration::from_millis(50); 100],
        true => Vec::new(),
    });
    let context = format!("{:?}", world.changes);
    assert!((2..=5).contains(&world.most()), "{context}");
    let (ups, downs) = (world.most() - 1, world.most() - 1);
    assert!(world.changes.len() <= ups + downs, "{context}");
    assert_eq!(world.target(), 1, "{context}");
}

#[test]
fn slow_boots_do_not_make_it_overshoot() {
    let mut world = ScalingSimulation::new(5000, 64);
    world.advance(10, |_| Vec::new());
    world.advance(60, even(1));
    let context = format!("{:?}", world.changes);
    assert!((3..=4).contains(&world.most()), "3 are needed: {context}");
}

#[test]
fn a_flood_is_met_no_faster_than_the_spawn_rate_up_to_the_most() {
    let mut world = ScalingSimulation::new(20, 20);
    world.advance(60, even(20));
    let mut from = 1;
    let mut steps = Vec::new();
    for (at, to) in &world.changes {
        steps.push((*at, to - from));
        from = *to;
    }
    for (at, _) in &steps {
        let second = *at..*at + Duration::from_secs(1);
        let within = steps.iter().filter(|(at, _)| second.contains(at));
        let grown: usize = within.map(|(_, by)| by).sum();
        assert!(grown <= 4, "{grown} within a second: {:?}", world.changes);
    }
    assert_eq!(world.target(), 20);
    let last = world.changes.last().unwrap().0;
    assert!(last < Duration::from_secs(8), "{:?}", world.changes);
}

#[test]
fn what_waits_for_something_else_than_the_processor_gets_threads() {
    let mut world = ScalingSimulation::of_threads(4, 16, 3);
    // Ten at once.
    world.advance(60, |_| vec![Duration::from_millis(100); 1]);
    let context = format!("{:?} {:?}", world.thread_changes, world.changes);
    assert!(
        (11..=16).contains(&world.supervisor.threads_per_worker),
        "{context}"
    );
    assert_eq!((world.target(), world.changes.len()), (1, 0), "{context}");
    assert!(world.last_late < Duration::from_secs(10), "{context}");
    let shown = world.supervisor.last_scaling().unwrap();
    assert!(shown.starts_with("threads from "), "{shown}");
    // More than the threads of one process can do: then processes.
    world.advance(30, |_| vec![Duration::from_millis(100); 3]);
    let context = format!("{:?} {:?}", world.thread_changes, world.changes);
    assert!((2..=4).contains(&world.target()), "{context}");
    // Nothing to do: processes go first, then threads, down to the need.
    let (threads, changes) = (world.thread_changes.len(), world.changes.len());
    world.advance(600, |_| Vec::new());
    let context = format!("{:?} {:?}", world.thread_changes, world.changes);
    assert_eq!(
        (world.target(), world.supervisor.threads_per_worker),
        (1, 1),
        "{context}"
    );
    let last = world.changes.last().unwrap();
    assert!(world.changes.len() > changes, "{context}");
    assert_eq!(world.thread_changes.len(), threads + 1, "{context}");
    assert!(world.thread_changes.last().unwrap().0 > last.0, "{context}");
}

#[test]
fn what_computes_gets_processes_and_no_threads() {
    let mut world = ScalingSimulation::of_threads(8, 16, 100);
    world.advance(60, |_| vec![Duration::from_millis(10); 3]);
    let context = format!("{:?} {:?}", world.thread_changes, world.changes);
    assert!((3..=6).contains(&world.target()), "{context}");
    assert_eq!(world.supervisor.threads_per_worker, 1, "{context}");
    // It came at once, beside others that serve already.
    let mut world = ScalingSimulation::of_threads(8, 16, 100);
    world.advance(5, |_| Vec::new());
    world.advance(60, |_| vec![Duration::from_millis(10); 6]);
    let context = format!("{:?} {:?}", world.thread_changes, world.changes);
    assert!((6..=8).contains(&world.target()), "{context}");
    assert_eq!(world.supervisor.threads_per_worker, 1, "{context}");
}

#[test]
fn short_requests_get_threads_beside_long_computations() {
    let mut world = ScalingSimulation::of_threads(2, 8, 100);
    // Two that compute for a minute, and short ones behind them.
    let mut is_first = true;
    world.advance(30, |world| {
        let millis = (world.now - world.began).as_millis();
        match std::mem::take(&mut is_first) {
            true => vec![Duration::from_secs(60); 2],
            false if millis % 500 == 0 => vec![Duration::from_millis(20)],
            false => Vec::new(),
        }
    });
    let context = format!("{:?} {:?}", world.thread_changes, world.changes);
    assert_eq!(world.target(), 2, "{context}");
    assert!(
        (2..=3).contains(&world.supervisor.threads_per_worker),
        "{context}"
    );
    assert!(world.last_late < Duration::from_secs(8), "{context}");
}

#[test]
fn threads_that_a_load_needs_now_and_then_stay() {
    let mut world = ScalingSimulation::of_threads(1, 32, 1);
    world.advance(600, |world| {
        let second = (world.now - world.began).as_secs();
        match second % 40 < 20 {
            true => vec![Duration::from_millis(100); 1],
            false => Vec::new(),
        }
    });
    let context = format!("{:?}", world.thread_changes);
    assert!(
        (11..=32).contains(&world.supervisor.threads_per_worker),
        "{context}"
    );
    assert!(world.thread_changes.len() <= 6, "{context}");
    // To what was needed once that is known, and then no more.
    let last = world.thread_changes.last().unwrap().0;
    assert!(last < Duration::from_secs(120), "{context}");
}

/// Looks at a load once, with four workers of two slots.
fn look(load: AppLoad, fleet: CurrentScale) -> Option<(usize, String)> {
    let policy = SupervisorPolicy {
        min_processes: 2,
        max_processes: 8,
        ..SupervisorPolicy::default()
    };
    let step = Autoscaler::default().observe(Instant::now(), &load, fleet, &policy);
    step.map(|step| (step.target, step.reason))
}

const FOUR: CurrentScale = CurrentScale {
    target: 4,
    threads: 1,
    ready: 4,
    boot_time: Duration::ZERO,
    may_grow: true,
    may_shrink: true,
};

const BUSY: AppLoad = AppLoad {
    queued: 3,
    oldest_wait: Duration::from_millis(140),
    in_progress: 8,
    slots: 8,
    cpu_percent: None,
    cpu_known_since: None,
};

#[test]
fn grows_when_requests_wait_and_all_slots_are_busy() {
    let expected = "3 requests waited up to 140 ms with all 8 slots busy".to_owned();
    assert_eq!(look(BUSY, FOUR), Some((5, expected)));
    let one = AppLoad { queued: 1, ..BUSY };
    let expected = "1 request waited 140 ms with all 8 slots busy".to_owned();
    assert_eq!(look(one, FOUR), Some((5, expected)));
    let more = AppLoad { queued: 9, ..BUSY };
    assert_eq!(look(more, FOUR).unwrap().0, 6, "longer than all slots");
    let many = AppLoad {
        queued: 500,
        ..BUSY
    };
    assert_eq!(look(many, FOUR).unwrap().0, 8, "up to the most");
    let oldest_wait = Duration::from_millis(99);
    let idle_slot = AppLoad {
        in_progress: 7,
        ..BUSY
    };
    let booting = CurrentScale { target: 6, ..FOUR };
    let failing = CurrentScale {
        may_grow: false,
        ..FOUR
    };
    let rows = [
        (
            "not for long",
            AppLoad {
                oldest_wait,
                ..BUSY
            },
            FOUR,
        ),
        ("a slot is free", idle_slot, FOUR),
        ("two boot already", BUSY, booting),
        ("the code does not boot", BUSY, failing),
        (
            "at the most",
            BUSY,
            CurrentScale {
                target: 8,
                ready: 8,
                ..FOUR
            },
        ),
        (
            "nobody serves",
            AppLoad { slots: 0, ..BUSY },
            CurrentScale { ready: 0, ..FOUR },
        ),
    ];
    for (name, load, fleet) in rows {
        assert_eq!(look(load, fleet), None, "{name}");
    }
}

/// Looks at a load for some time, in steps of half a second; answers the step and when it was.
fn watch(load: impl Fn(u64) -> AppLoad, fleet: CurrentScale) -> Option<(u64, ScalingStep)> {
    let policy = SupervisorPolicy {
        min_processes: 2,
        max_processes: 8,
        ..SupervisorPolicy::default()
    };
    let mut scaling = Autoscaler::default();
    let began = Instant::now();
    (0..400).find_map(|half| {
        let now = began + Duration::from_millis(500 * half);
        let step = scaling.observe(now, &load(half / 2), fleet, &policy)?;
        assert!(
            scaling.slot_peaks.peaks.is_empty(),
            "the window begins anew"
        );
        Some((half / 2, step))
    })
}

fn used(in_progress: usize) -> AppLoad {
    AppLoad {
        in_progress,
        queued: 0,
        ..BUSY
    }
}

#[test]
fn shrinks_when_one_less_would_have_done_with_a_quarter_to_spare() {
    let why = "at most 4 of 8 slots were needed for 60s".to_owned();
    assert_eq!(
        watch(|_| used(4), FOUR),
        Some((
            60,
            ScalingStep {
                quantity: ScaledQuantity::Processes,
                target: 3,
                reason: why
            }
        ))
    );
    assert_eq!(watch(|_| used(5), FOUR), None, "5 of 6 slots is too close");
    let burst = |second| used(if second == 30 { 8 } else { 1 });
    let (at, _) = watch(burst, FOUR).unwrap();
    assert!((90..=95).contains(&at), "a burst counts for as long: {at}");
    let line = |_| AppLoad {
        queued: 5,
        oldest_wait: Duration::ZERO,
        ..used(1)
    };
    assert_eq!(watch(line, FOUR), None, "those who wait count");
    let at_least = CurrentScale {
        target: 2,
        ready: 2,
        ..FOUR
    };
    let idle = |_| AppLoad {
        slots: 4,
        ..used(0)
    };
    assert_eq!(watch(idle, at_least), None, "the least");
    let replacing = CurrentScale {
        may_shrink: false,
        ..FOUR
    };
    assert_eq!(watch(|_| used(0), replacing), None);
}

/// Four reactors with room for thousands, as busy as that together.
fn busy(percent: usize) -> AppLoad {
    AppLoad {
        queued: 0,
        oldest_wait: Duration::ZERO,
        in_progress: 9,
        slots: 4000,
        cpu_percent: Some(percent),
        cpu_known_since: None,
    }
}

#[test]
fn grows_when_all_are_busy_though_they_have_room() {
    let why = "all 4 were busy for 5s".to_owned();
    assert_eq!(
        watch(|_| busy(350), FOUR),
        Some((
            5,
            ScalingStep {
                quantity: ScaledQuantity::Processes,
                target: 5,
                reason: why
            }
        ))
    );
    let one = CurrentScale {
        target: 1,
        ready: 1,
        ..FOUR
    };
    let (_, step) = watch(|_| busy(90), one).unwrap();
    assert_eq!(step.reason, "it was busy for 5s");
    let pauses = |second| busy(if second % 4 == 0 { 250 } else { 400 });
    assert_eq!(watch(pauses, FOUR), None, "not without a pause");
    let uneven = |_| busy(300);
    assert_eq!(watch(uneven, FOUR), None, "three of four");
    let booting = CurrentScale { target: 5, ..FOUR };
    assert_eq!(watch(|_| busy(400), booting), None, "one boots already");
    let most = CurrentScale {
        target: 8,
        ready: 8,
        ..FOUR
    };
    assert_eq!(watch(|_| busy(800), most), None, "at the most");
    let failing = CurrentScale {
        may_grow: false,
        ..FOUR
    };
    assert_eq!(watch(|_| busy(400), failing), None);
}

#[test]
fn shrinks_only_where_the_others_would_be_half_idle() {
    let (at, step) = watch(|_| busy(150), FOUR).unwrap();
    assert_eq!((at, step.target), (60, 3));
    assert_eq!(watch(|_| busy(151), FOUR), None);
    let burst = |second| busy(if second == 30 { 300 } else { 0 });
    let (at, _) = watch(burst, FOUR).unwrap();
    assert!((90..=95).contains(&at), "a burst counts for as long: {at}");
}

#[test]
fn unobserved_time_does_not_count() {
    let mut window = PeakWindow::default();
    let (began, length) = (Instant::now(), Duration::from_secs(60));
    for second in [0, 1, 2, 59, 60, 61] {
        window.record(began + Duration::from_secs(second), 1, length);
        assert_eq!(
            window.peak(began + Duration::from_secs(second), length),
            None
        );
    }
    assert!(window.peaks.len() <= 2);
    for second in 62..200 {
        let now = began + Duration::from_secs(second);
        window.record(now, 1, length);
        assert_eq!(window.peak(now, length).is_some(), second >= 59 + 60);
        assert!(window.peaks.len() <= 18, "{}", window.peaks.len());
    }
    let mut brief = PeakWindow::default();
    brief.record(began, 3, Duration::ZERO);
    assert_eq!(brief.peak(began, Duration::ZERO), Some(3));
    let mut endless = PeakWindow::default();
    endless.record(began, 3, Duration::MAX);
    assert_eq!(endless.peak(began, Duration::MAX), None);
}

#[test]
fn the_last_change_is_described() {
    let mut world = ScalingSimulation::new(20, 2);
    assert_eq!(world.supervisor.last_scaling(), None);
    world.advance(2, even(1));
    let shown = world.supervisor.last_scaling().unwrap().to_owned();
    assert!(shown.starts_with("from 1 to 2: "), "{shown}");
    assert!(shown.contains(" ms with all 2 slots busy"), "{shown}");
}
