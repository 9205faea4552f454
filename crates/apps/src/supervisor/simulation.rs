//! The supervisor beside a model of an operating system in a bad mood.
//!
//! Processes fail to spawn, fail to boot, hang, crash, ignore signals and answer late, in an order
//! given by a seed; then everything behaves, and the supervisor must get back to full strength and
//! drain. A failure prints its seed: `PENSTOCK_SEED=n` replays that one, `PENSTOCK_SEEDS=n` runs so
//! many instead of 300.

use super::*;

struct World {
    rng: Rng,
    supervisor: Supervisor,
    now: Instant,
    /// What will be told to the supervisor, by time and order of planning.
    plans: BTreeMap<(Instant, u64), Event>,
    plan_last: u64,
    alarm: Option<Instant>,
    /// Processes asked for whose end has not been told yet.
    processes: BTreeMap<WorkerId, Process>,
    worker_last: u64,
    is_calm: bool,
    is_stopped: bool,
    bad_generation: Option<u64>,
    /// Restarts that an answer is owed for: one under way, one that waits for its turn.
    restarts: u64,
    /// What all should run, and what a restart under way must return to if it fails.
    generation: u64,
    fallback: Option<u64>,
}

#[derive(Default)]
struct Process {
    is_spawned: bool,
    is_ready: bool,
    is_admitted: bool,
    is_retired: bool,
    is_leaving: bool,
}

#[test]
fn survives_a_machine_in_a_bad_mood() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).live());
        assert!(run.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let policy = random_policy(&mut rng);
        Self {
            rng,
            supervisor: Supervisor::new(policy),
            now: Instant::now(),
            plans: BTreeMap::new(),
            plan_last: 0,
            alarm: None,
            processes: BTreeMap::new(),
            worker_last: 0,
            is_calm: false,
            is_stopped: false,
            bad_generation: None,
            restarts: 0,
            generation: 1,
            fallback: None,
        }
    }

    fn live(&mut self) {
        self.tell(Event::Started);
        for _ in 0..150 {
            match self.rng.below(3) {
                0 => self.interfere(),
                _ => {
                    let pause = self.rng.millis(1, 400);
                    self.pass(pause);
                }
            }
        }
        self.is_calm = true;
        self.pass(Duration::from_secs(300));
        let processes = self.supervisor.policy().processes;
        let ready = self.count(|p| p.is_admitted && !p.is_retired);
        assert_eq!(ready, processes, "back to full strength");
        assert_eq!(self.supervisor.state(), AppState::Ready);
        assert_eq!(self.processes.len(), processes, "the rest has gone");
        assert!(!self.supervisor.is_restarting());
        assert_eq!(
            self.supervisor.stale_seat(),
            None,
            "all run what they should"
        );
        for _ in 0..self.rng.below(3) {
            self.restart();
        }
        self.tell(Event::Drain);
        self.pass(Duration::from_secs(300));
        assert!(self.is_stopped, "the drain has an end");
        assert_eq!(self.supervisor.workers().count(), 0);
        assert_eq!(self.restarts, 0, "every restart was answered");
    }

    /// Lets time pass and tells what happens in it.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let plan = self.plans.first_key_value().map(|(key, _)| key.0);
            let alarm = self.alarm.filter(|at| plan.is_none_or(|plan| *at < plan));
            match alarm.or(plan) {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
            if alarm.is_some() {
                self.alarm = None;
                self.tell(Event::Tick);
            } else if let Some((_, event)) = self.plans.pop_first() {
                self.happen(event);
            }
        }
        self.now = end;
    }

    /// A planned event comes true, unless its process has ended in the meantime.
    fn happen(&mut self, event: Event) {
        let Some(id) = worker_of(&event) else {
            return self.tell(event);
        };
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        match &event {
            Event::Spawned { .. } => process.is_spawned = true,
            Event::Ready { .. } => process.is_ready = true,
            Event::Exited { .. } | Event::SpawnFailed { .. } => {
                self.processes.remove(&id);
            }
            _ => {}
        }
        self.tell(event);
    }

    /// Something from outside: an operator, a crash, a stuck request, nonsense.
    fn interfere(&mut self) {
        let known: Vec<_> = self.processes.keys().copied().collect();
        let worker = match known.get(self.rng.below(known.len().max(1))) {
            Some(id) if self.rng.below(8) > 0 => *id,
            _ => WorkerId(10_000),
        };
        let is_spawned = self.processes.get(&worker).is_some_and(|p| p.is_spawned);
        let is_ready = self.processes.get(&worker).is_some_and(|p| p.is_ready);
        match self.rng.below(12) {
            0..4 if is_spawned => self.happen(exited(worker)),
            4 if is_ready => self.happen(Event::ResponseTimedOut { worker }),
            5 if is_spawned => self.happen(Event::ProtocolBroken { worker }),
            6 if is_ready => self.happen(Event::Recycle { worker }),
            7 | 8 => self.restart(),
            9 if self.rng.below(3) == 0 => self.change_policy(),
            // A timer may fire early, and only once.
            10 => {
                self.alarm = None;
                self.tell(Event::Tick);
            }
            11 => self.happen(Event::Idle { worker }),
            _ => self.talk_nonsense(),
        }
    }

    fn restart(&mut self) {
        if self.rng.below(3) == 0 {
            self.bad_generation = Some(self.supervisor.generation_last + 1);
        }
        self.restarts = (self.restarts + 1).min(2);
        self.tell(Event::Restart);
    }

    fn change_policy(&mut self) {
        let policy = random_policy(&mut self.rng);
        let actions = self.supervisor.set_policy(self.now, policy);
        self.carry_out(actions);
        self.check_invariants();
    }

    /// Events about a worker that never was get no answer about it.
    fn talk_nonsense(&mut self) {
        let worker = WorkerId(10_000);
        for event in [exited(worker), Event::ProtocolBroken { worker }] {
            self.tell(event);
        }
    }

    fn tell(&mut self, event: Event) {
        let serving = |p: &Process| p.is_admitted && !p.is_retired;
        let before = self.count(serving) + self.count_gone(&event);
        let loses = match &event {
            Event::Exited { .. } | Event::SpawnFailed { .. } => 1,
            Event::ResponseTimedOut { .. } | Event::ProtocolBroken { .. } => 1,
            Event::Drain => before,
            _ => 0,
        };
        let actions = self.supervisor.handle(self.now, event.clone());
        self.carry_out(actions);
        let after = self.count(serving);
        assert!(after + loses >= before, "{event:?}: {before} to {after}");
        self.check_invariants();
    }

    /// The process that this event ends was taken off the books before it is told.
    fn count_gone(&self, event: &Event) -> usize {
        let is_ready = |id| self.supervisor.state_of(id) == Some(WorkerState::Ready);
        match event {
            Event::Exited { worker, .. } => usize::from(is_ready(*worker)),
            _ => 0,
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            if let Some(id) = acted_on(&action)
                && !matches!(action, Action::Spawn { .. })
            {
                assert!(self.processes.contains_key(&id), "{action:?}: exists");
            }
            match action {
                Action::Spawn { worker, generation } => self.spawn(worker, generation),
                Action::Admit { worker } => {
                    let process = self.process(worker);
                    assert!(process.is_ready && !process.is_admitted);
                    process.is_admitted = true;
                }
                Action::Retire { worker } => {
                    let process = self.process(worker);
                    assert!(process.is_admitted && !process.is_retired);
                    process.is_retired = true;
                    self.retire(worker);
                }
                Action::Signal { worker, signal } => self.signal(worker, signal),
                Action::WakeAt(at) => {
                    assert!(at > self.now, "an alarm is in the future");
                    self.alarm = Some(at);
                }
                Action::RestartDone(answer) => {
                    assert!(self.restarts > 0, "an answer is owed");
                    self.restarts -= 1;
                    let old = self.fallback.take();
                    self.generation = match answer {
                        Ok(()) => self.generation,
                        Err(_) => old.unwrap_or(self.generation),
                    };
                }
                Action::Stopped => {
                    assert!(self.processes.is_empty(), "nobody is left behind");
                    self.is_stopped = true;
                }
                Action::Report(Report::RestartBegan { generation }) => {
                    let old = std::mem::replace(&mut self.generation, generation);
                    let serves = self.count(|p| p.is_admitted && !p.is_retired) > 0;
                    self.fallback = serves.then_some(old);
                }
                Action::Report(_) => {}
            }
        }
    }

    fn spawn(&mut self, worker: WorkerId, generation: u64) {
        assert!(worker.0 > self.worker_last, "a name is never reused");
        self.worker_last = worker.0;
        self.processes.insert(worker, Process::default());
        if !self.is_calm && self.rng.below(12) == 0 {
            let reason = "out of processes".to_owned();
            return self.plan(0, 20, Event::SpawnFailed { worker, reason });
        }
        self.plan(0, 20, Event::Spawned { worker, pid: 7 });
        let is_bad = self.bad_generation == Some(generation) && !self.is_calm;
        let mood = match (self.is_calm, is_bad) {
            (true, _) => 9,
            (_, true) => self.rng.below(2),
            _ => self.rng.below(12),
        };
        match mood {
            0 => {
                let report = "Traceback".to_owned();
                self.plan(20, 300, Event::BootFailed { worker, report });
                self.plan(300, 320, exited(worker));
            }
            1 => self.plan(20, 300, exited(worker)),
            // Hangs until it is killed.
            2 => {}
            _ => {
                let boot = Duration::from_millis(100);
                self.plan(20, 300, Event::Ready { worker, boot });
            }
        }
    }

    fn retire(&mut self, worker: WorkerId) {
        match self.rng.below(6) {
            0 => self.plan(200, 2000, Event::ResponseTimedOut { worker }),
            _ => self.plan(0, 500, Event::Idle { worker }),
        }
    }

    fn signal(&mut self, worker: WorkerId, signal: Signal) {
        let ignores = signal == Signal::Terminate && self.rng.below(4) == 0;
        let process = self.process(worker);
        assert!(process.is_spawned, "there is a process to signal");
        if !ignores && !process.is_leaving {
            process.is_leaving = true;
            self.plan(1, 50, exited(worker));
        }
    }

    fn plan(&mut self, least: u64, most: u64, event: Event) {
        let at = self.now + self.rng.millis(least, most);
        self.plan_last += 1;
        self.plans.insert((at, self.plan_last), event);
    }

    fn process(&mut self, id: WorkerId) -> &mut Process {
        self.processes.get_mut(&id).expect("it exists")
    }

    fn count(&self, is_wanted: impl Fn(&Process) -> bool) -> usize {
        self.processes.values().filter(|p| is_wanted(p)).count()
    }

    fn check_invariants(&self) {
        let s = &self.supervisor;
        assert!(s.workers().map(|w| &w.id).eq(self.processes.keys()));
        let processes = s.policy().processes;
        let serves = |w: &&Worker| matches!(w.state, WorkerState::Booting | WorkerState::Ready);
        assert!(s.workers().filter(serves).count() <= processes + 1);
        for worker in s.workers().filter(serves) {
            let holds = |seat: &&Seat| [seat.worker, seat.challenger].contains(&Some(worker.id));
            assert_eq!(s.seats.iter().filter(holds).count(), 1, "one seat each");
        }
        let seated = s
            .seats
            .iter()
            .flat_map(|seat| [seat.worker, seat.challenger]);
        let mut seated = seated.flatten();
        assert!(seated.all(|id| s.workers.get(&id).is_some_and(|w| serves(&w))));
        let mut challengers = s.seats.iter().filter_map(|seat| seat.challenger);
        assert!(challengers.all(|id| s.workers[&id].generation == s.generation));
        let challengers = s.seats.iter().filter(|seat| seat.challenger.is_some());
        assert!(challengers.count() <= 1);
        let is_short = s.ready() < processes && s.phase == Phase::Running;
        let has_hope = s.is_booting() || self.alarm.is_some();
        assert!(!is_short || has_hope, "somebody boots or is about to");
        assert!(
            s.next_wake().is_none_or(|at| at > self.now),
            "nothing is overdue"
        );
        assert!(s.phase != Phase::Running || s.generation == self.generation);
        let owed = usize::from(s.roll.is_some()) + usize::from(s.is_roll_queued);
        assert_eq!(self.restarts, owed as u64, "each restart is answered once");
    }
}

fn exited(worker: WorkerId) -> Event {
    let status = ExitSummary::Code(1);
    Event::Exited { worker, status }
}

fn worker_of(event: &Event) -> Option<WorkerId> {
    match event {
        Event::Spawned { worker, .. }
        | Event::SpawnFailed { worker, .. }
        | Event::Ready { worker, .. }
        | Event::BootFailed { worker, .. }
        | Event::Exited { worker, .. }
        | Event::ResponseTimedOut { worker }
        | Event::ProtocolBroken { worker }
        | Event::Idle { worker }
        | Event::Recycle { worker } => Some(*worker),
        Event::Started | Event::Restart | Event::Drain | Event::DrainOverdue | Event::Tick => None,
    }
}

fn acted_on(action: &Action) -> Option<WorkerId> {
    match action {
        Action::Spawn { worker, .. }
        | Action::Admit { worker }
        | Action::Retire { worker }
        | Action::Signal { worker, .. } => Some(*worker),
        Action::Report(_) | Action::WakeAt(_) | Action::Stopped | Action::RestartDone(_) => None,
    }
}

fn random_policy(rng: &mut Rng) -> Policy {
    Policy {
        processes: 1 + rng.below(4),
        boot_timeout: Duration::from_secs(2),
        stop_timeout: Duration::from_millis(500),
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_secs(5),
    }
}

/// xorshift64*: enough disorder for a test, and the same on every machine.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).unwrap() % bound
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.next() % (most - least))
    }
}
