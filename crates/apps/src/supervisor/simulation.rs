//! The supervisor beside a model of an operating system in a bad mood.
//!
//! Processes fail to spawn, fail to boot, hang, crash, wear out, ignore signals, are heard of late
//! or only when they are asked about, under a load that comes and goes, in an order given by a
//! seed; then everything behaves, and the supervisor must get back to full strength and drain. A
//! failure prints its seed: `PENSTOCK_SEED=n` replays that one, `PENSTOCK_SEEDS=n` runs so many
//! instead of 300.

mod invariants;
mod random;

use std::collections::VecDeque;

use super::*;
use random::{Rng, random_policy};

struct SupervisorSimulation {
    rng: Rng,
    supervisor: Supervisor,
    now: Instant,
    /// The events that the supervisor will get, by time and order of planning.
    plans: BTreeMap<(Instant, u64), SupervisorEvent>,
    plan_last: u64,
    alarm: Option<Instant>,
    /// Processes that were ordered and whose end was not reported.
    processes: BTreeMap<WorkerId, SimulatedProcess>,
    worker_last: u64,
    /// Threads of each worker that take requests.
    threads: usize,
    is_calm: bool,
    is_stopped: bool,
    bad_generation: Option<u64>,
    /// Restarts that an answer is owed for: one under way, one that waits for its turn.
    restarts: u64,
    /// What all should run, and what a restart under way must return to if it fails.
    generation: u64,
    fallback: Option<u64>,
    /// Spawns, and workers by which the load made the number grow, of the last second.
    spawns: VecDeque<Instant>,
    growth: VecDeque<Instant>,
    /// Challengers that there may be: a smaller policy does not call off those that boot.
    max_surge: usize,
}

#[derive(Default)]
struct SimulatedProcess {
    is_spawned: bool,
    is_ready: bool,
    is_admitted: bool,
    is_retired: bool,
    is_leaving: bool,
    is_abandoned: bool,
}

#[test]
fn survives_a_machine_in_a_bad_mood() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| SupervisorSimulation::new(seed).live());
        assert!(run.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}

impl SupervisorSimulation {
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
            threads: policy.min_threads,
            is_calm: false,
            is_stopped: false,
            bad_generation: None,
            restarts: 0,
            generation: 1,
            fallback: None,
            spawns: VecDeque::new(),
            growth: VecDeque::new(),
            max_surge: policy.max_surge,
        }
    }

    fn live(&mut self) {
        self.tell(SupervisorEvent::Started);
        for _ in 0..150 {
            match self.rng.below(3) {
                0 => self.interfere(),
                _ => {
                    let pause = self.rng.random_millis(1, 400);
                    self.pass(pause);
                }
            }
        }
        self.is_calm = true;
        self.pass(Duration::from_secs(300));
        let processes = self.supervisor.target_workers;
        let ready = self.count(|p| p.is_admitted && !p.is_retired);
        assert_eq!(ready, processes, "back to full strength");
        assert_eq!(self.supervisor.app_state(), AppState::Ready);
        assert_eq!(self.processes.len(), processes, "the rest has gone");
        assert!(!self.supervisor.is_restarting());
        assert_eq!(
            self.supervisor.stale_replica(),
            None,
            "all run what they should"
        );
        self.rest();
        for _ in 0..self.rng.below(3) {
            self.restart();
        }
        self.tell(SupervisorEvent::Drain);
        self.pass(Duration::from_secs(300));
        assert!(self.is_stopped, "the drain has an end");
        assert_eq!(self.supervisor.workers().count(), 0);
        assert_eq!(self.restarts, 0, "every restart was answered");
    }

    /// With nothing to do the number of workers goes down to the least.
    fn rest(&mut self) {
        let policy = self.supervisor.policy;
        // One for the threads, and as much again as is lost between two looks.
        let steps = policy.max_processes - policy.min_processes + 3;
        let end = self.now + policy.scale_down_after * u32::try_from(steps).unwrap();
        while self.now < end {
            self.pass(Duration::from_millis(100));
            let load = self.load(0, 0);
            self.tell(SupervisorEvent::Load(load));
        }
        assert_eq!(self.supervisor.target_workers, policy.min_processes);
        assert_eq!(self.supervisor.threads_per_worker, policy.min_threads);
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
                self.tell(SupervisorEvent::Tick);
            } else if let Some((_, event)) = self.plans.pop_first() {
                self.happen(event);
            }
        }
        self.now = end;
    }

    /// A planned event comes true, unless its process has ended in the meantime.
    fn happen(&mut self, event: SupervisorEvent) {
        let Some(id) = worker_of(&event) else {
            return self.tell(event);
        };
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        match &event {
            // It was told already, when it was asked about.
            SupervisorEvent::Spawned { .. } if process.is_spawned => return,
            SupervisorEvent::SpawnFailed { .. } if process.is_spawned => return,
            SupervisorEvent::Spawned { .. } => process.is_spawned = true,
            SupervisorEvent::Ready { .. } => process.is_ready = true,
            SupervisorEvent::Exited { .. } | SupervisorEvent::SpawnFailed { .. } => {
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
        match self.rng.below(20) {
            0..4 if is_spawned => self.happen(exited(worker)),
            4 if is_ready => self.happen(SupervisorEvent::KillRequested {
                worker,
                reason: KillReason::ResponseTimedOut,
            }),
            5 if is_spawned => self.happen(SupervisorEvent::KillRequested {
                worker,
                reason: KillReason::ProtocolBroken,
            }),
            6..8 => self.wear(worker),
            8 if is_spawned => {
                let (bytes, max) = (3 << 20, 2 << 20);
                let reason = KillReason::MemoryExceeded { bytes, max };
                self.happen(SupervisorEvent::KillRequested { worker, reason });
            }
            9 | 10 => self.restart(),
            11 if self.rng.below(3) == 0 => self.change_policy(),
            // A timer may fire early, and only once.
            12 => {
                self.alarm = None;
                self.tell(SupervisorEvent::Tick);
            }
            13 => self.happen(SupervisorEvent::Idle { worker }),
            14..19 => self.press(),
            _ => self.talk_nonsense(),
        }
    }

    fn wear(&mut self, worker: WorkerId) {
        let (bytes, max) = (3 << 20, 2 << 20);
        let why = match self.rng.below(5) {
            0 => ReplaceReason::Memory { bytes, max },
            1 => ReplaceReason::Requests(1000),
            2 => ReplaceReason::Age(Duration::from_secs(3600)),
            3 => ReplaceReason::Stuck,
            _ => ReplaceReason::Refork,
        };
        self.happen(SupervisorEvent::ReplacementRequested { worker, why });
    }

    /// Some time under some load, told ten times a second.
    fn press(&mut self) {
        let (used, waiting) = (self.rng.below(12), self.rng.below(12));
        for _ in 0..1 + self.rng.below(20) {
            let load = self.load(used, waiting);
            self.tell(SupervisorEvent::Load(load));
            self.pass(Duration::from_millis(100));
        }
    }

    /// Each worker has two slots.
    fn load(&self, used: usize, waiting: usize) -> AppLoad {
        let slots = 2 * self.count(|p| p.is_admitted && !p.is_retired);
        AppLoad {
            queued: waiting,
            oldest_wait: Duration::from_millis(if waiting > 3 { 150 } else { 50 }),
            in_progress: used.min(slots),
            slots,
            // As where slots tell, and as of reactors.
            cpu_percent: used.is_multiple_of(3).then_some(used * 40),
            cpu_known_since: Some(self.now),
        }
    }

    fn restart(&mut self) {
        if self.rng.below(3) == 0 {
            self.bad_generation = Some(self.supervisor.last_generation + 1);
        }
        self.restarts = (self.restarts + 1).min(2);
        self.tell(SupervisorEvent::Restart);
    }

    fn change_policy(&mut self) {
        let policy = SupervisorPolicy {
            spawn_rate: self.supervisor.policy.spawn_rate,
            ..random_policy(&mut self.rng)
        };
        self.max_surge = self.max_surge.max(policy.max_surge);
        self.supervisor.policy = policy;
        let actions = self.supervisor.reconcile(self.now);
        self.carry_out(actions);
        self.check_invariants();
    }

    /// Events about a worker that never was get no answer about it.
    fn talk_nonsense(&mut self) {
        let worker = WorkerId(10_000);
        for event in [
            exited(worker),
            SupervisorEvent::KillRequested {
                worker,
                reason: KillReason::ProtocolBroken,
            },
        ] {
            self.tell(event);
        }
    }

    fn tell(&mut self, event: SupervisorEvent) {
        let serving = |p: &SimulatedProcess| p.is_admitted && !p.is_retired;
        let before = self.count(serving) + self.count_gone(&event);
        let loses = match &event {
            SupervisorEvent::Exited { .. }
            | SupervisorEvent::SpawnFailed { .. }
            | SupervisorEvent::KillRequested { .. } => 1,
            SupervisorEvent::Drain => before,
            _ => 0,
        };
        let target = self.supervisor.target_workers;
        let actions = self.supervisor.handle_event(self.now, event.clone());
        self.carry_out(actions);
        let after = self.count(serving);
        let s = &self.supervisor;
        // A smaller load takes one out; a restart, with leave, so many at once; a limit none.
        let less = target.saturating_sub(s.target_workers);
        assert!(less <= usize::from(matches!(event, SupervisorEvent::Load(_))));
        let removable = match event {
            SupervisorEvent::ReplacementRequested { .. } => 0,
            _ => s
                .policy
                .max_unavailable
                .min(s.target_workers.saturating_sub(1)),
        };
        let least = match removable {
            0 => before,
            _ => before.min(s.target_workers - removable),
        };
        let loses = loses + less;
        assert!(after + loses >= least, "{event:?}: {before} to {after}");
        self.check_invariants();
    }

    /// The process that this event ends was taken off the books before that is reported.
    fn count_gone(&self, event: &SupervisorEvent) -> usize {
        let is_ready = |id| self.supervisor.worker_state(id) == Some(WorkerState::Ready);
        match event {
            SupervisorEvent::Exited { worker, .. } => usize::from(is_ready(*worker)),
            _ => 0,
        }
    }

    fn carry_out(&mut self, actions: Vec<SupervisorAction>) {
        for action in actions {
            if let Some(id) = acted_on(&action)
                && !matches!(action, SupervisorAction::Spawn { .. })
            {
                assert!(self.processes.contains_key(&id), "{action:?}: exists");
            }
            match action {
                SupervisorAction::Spawn { worker, generation } => self.spawn(worker, generation),
                SupervisorAction::Admit { worker } => {
                    let process = self.process(worker);
                    assert!(process.is_ready && !process.is_admitted);
                    process.is_admitted = true;
                }
                SupervisorAction::Retire { worker } => {
                    let process = self.process(worker);
                    assert!(process.is_admitted && !process.is_retired);
                    process.is_retired = true;
                    self.retire(worker);
                }
                SupervisorAction::Signal { worker, signal } => self.signal(worker, signal),
                SupervisorAction::WakeAt(at) => {
                    assert!(at > self.now, "an alarm is in the future");
                    self.alarm = Some(at);
                }
                SupervisorAction::RestartDone(answer) => {
                    assert!(self.restarts > 0, "an answer is owed");
                    self.restarts -= 1;
                    let old = self.fallback.take();
                    self.generation = match answer {
                        Ok(()) => self.generation,
                        Err(_) => old.unwrap_or(self.generation),
                    };
                }
                SupervisorAction::Stopped => {
                    assert!(self.processes.is_empty(), "nobody is left behind");
                    self.is_stopped = true;
                }
                SupervisorAction::Report(SupervisorReport::RestartBegan { generation }) => {
                    let old = std::mem::replace(&mut self.generation, generation);
                    let serves = self.count(|p| p.is_admitted && !p.is_retired) > 0;
                    self.fallback = serves.then_some(old);
                }
                SupervisorAction::Abandon { worker } => {
                    let process = self.process(worker);
                    assert!(!process.is_spawned && !process.is_abandoned);
                    process.is_abandoned = true;
                    self.answer(worker, 100);
                }
                SupervisorAction::SetThreads(threads) => self.threads = threads,
                SupervisorAction::Report(SupervisorReport::Scaled { from, to, .. }) => {
                    let now = self.now;
                    self.growth.extend((from..to).map(|_| now));
                }
                SupervisorAction::Report(_) => {}
            }
        }
    }

    fn spawn(&mut self, worker: WorkerId, generation: u64) {
        assert!(worker.0 > self.worker_last, "a name is never reused");
        self.worker_last = worker.0;
        self.spawns.push_back(self.now);
        self.processes.insert(worker, SimulatedProcess::default());
        // Forked ones may be heard of late, or only when they are asked about.
        let late = match self.rng.below(12) {
            _ if self.is_calm => 20,
            0 => return,
            1 => 3000,
            _ => 20,
        };
        let spawned_within = self.answer(worker, late);
        let Some(spawned) = spawned_within else {
            return;
        };
        let is_bad = self.bad_generation == Some(generation) && !self.is_calm;
        let mood = match (self.is_calm, is_bad) {
            (true, _) => 9,
            (_, true) => self.rng.below(2),
            _ => self.rng.below(12),
        };
        match mood {
            0 => {
                let report = "Traceback".to_owned();
                self.plan(
                    spawned + 20,
                    spawned + 300,
                    SupervisorEvent::BootFailed { worker, report },
                );
                self.plan(spawned + 300, spawned + 320, exited(worker));
            }
            1 => self.plan(spawned + 20, spawned + 300, exited(worker)),
            // Hangs until it is killed.
            2 => {}
            _ => {
                let boot = Duration::from_millis(100);
                self.plan(
                    spawned + 20,
                    spawned + 300,
                    SupervisorEvent::Ready { worker, boot },
                );
            }
        }
    }

    /// Tells within so many milliseconds whether there is a process, and answers when there is one.
    fn answer(&mut self, worker: WorkerId, within: u64) -> Option<u64> {
        if !self.is_calm && self.rng.below(12) == 0 {
            let reason = "out of processes".to_owned();
            self.plan(0, within, SupervisorEvent::SpawnFailed { worker, reason });
            return None;
        }
        self.plan(0, within, SupervisorEvent::Spawned { worker, pid: 7 });
        Some(within)
    }

    fn retire(&mut self, worker: WorkerId) {
        match self.rng.below(6) {
            0 => self.plan(
                200,
                2000,
                SupervisorEvent::KillRequested {
                    worker,
                    reason: KillReason::ResponseTimedOut,
                },
            ),
            _ => self.plan(0, 500, SupervisorEvent::Idle { worker }),
        }
    }

    fn signal(&mut self, worker: WorkerId, signal: StopSignal) {
        let ignores = signal == StopSignal::Terminate && self.rng.below(4) == 0;
        let process = self.process(worker);
        assert!(process.is_spawned, "there is a process to signal");
        if !ignores && !process.is_leaving {
            process.is_leaving = true;
            self.plan(1, 50, exited(worker));
        }
    }

    fn plan(&mut self, least: u64, most: u64, event: SupervisorEvent) {
        let at = self.now + self.rng.random_millis(least, most);
        self.plan_last += 1;
        self.plans.insert((at, self.plan_last), event);
    }

    fn process(&mut self, id: WorkerId) -> &mut SimulatedProcess {
        self.processes.get_mut(&id).expect("it exists")
    }

    fn count(&self, is_wanted: impl Fn(&SimulatedProcess) -> bool) -> usize {
        self.processes.values().filter(|p| is_wanted(p)).count()
    }
}

fn exited(worker: WorkerId) -> SupervisorEvent {
    let status = ExitSummary::Code(1);
    SupervisorEvent::Exited { worker, status }
}

fn worker_of(event: &SupervisorEvent) -> Option<WorkerId> {
    match event {
        SupervisorEvent::Spawned { worker, .. }
        | SupervisorEvent::SpawnFailed { worker, .. }
        | SupervisorEvent::Ready { worker, .. }
        | SupervisorEvent::BootFailed { worker, .. }
        | SupervisorEvent::Exited { worker, .. }
        | SupervisorEvent::Idle { worker }
        | SupervisorEvent::KillRequested { worker, .. }
        | SupervisorEvent::ReplacementRequested { worker, .. } => Some(*worker),
        SupervisorEvent::Started
        | SupervisorEvent::Restart
        | SupervisorEvent::Drain
        | SupervisorEvent::DrainOverdue
        | SupervisorEvent::Tick
        | SupervisorEvent::Load(_) => None,
    }
}

fn acted_on(action: &SupervisorAction) -> Option<WorkerId> {
    match action {
        SupervisorAction::Spawn { worker, .. }
        | SupervisorAction::Admit { worker }
        | SupervisorAction::Retire { worker }
        | SupervisorAction::Abandon { worker }
        | SupervisorAction::Signal { worker, .. } => Some(*worker),
        SupervisorAction::SetThreads(_)
        | SupervisorAction::Report(_)
        | SupervisorAction::WakeAt(_)
        | SupervisorAction::Stopped
        | SupervisorAction::RestartDone(_) => None,
    }
}
