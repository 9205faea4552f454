//! The supervisor of one application: which worker processes there are and what becomes of them.
//!
//! A pure machine. Input is [`Supervisor::handle`] with one [`Event`]; output is a list of
//! [`Action`]s, to be carried out in order by the executor, which owns processes, sockets, timers
//! and the queue. Every `Spawn` must be answered by `Spawned` or `SpawnFailed`, every end of a
//! process by `Exited` (after `BootFailed`, if the process left a traceback), every `Retire` by
//! `Idle` once nothing is in progress. `WakeAt` replaces the timer set before; `Tick` answers it.
//!
//! What must stay true, and is simulated: no event makes the machine take a healthy worker out
//! before its successor is ready; at most `processes` + 1 boot or serve at once; whatever is killed
//! or crashes is replaced; an event about an unknown worker changes nothing; a restart is answered
//! exactly once; `Stopped` is said when no process is left. Memory, age and request limits are
//! watched by the executor, which says `Recycle`.

mod message;
mod report;
mod seat;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use message::{Action, Event, Policy, Signal};
pub use report::{AppState, ExitSummary, KillReason, Report};
use seat::{Backoff, Seat};
pub use worker::{Worker, WorkerId, WorkerState};

/// The machine; see the head of this file for the contract.
#[derive(Debug)]
pub struct Supervisor {
    policy: Policy,
    phase: Phase,
    seats: Vec<Seat>,
    workers: BTreeMap<WorkerId, Worker>,
    worker_last: u64,
    /// What every seat should run.
    generation: u64,
    generation_last: u64,
    roll: Option<Roll>,
    is_roll_queued: bool,
    boots: Backoff,
    report: Option<String>,
    restart_error: Option<String>,
    started_at: Option<Instant>,
    was_up: bool,
    wake_at: Option<Instant>,
    actions: Vec<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Stopped,
    Running,
    Draining,
}

/// A restart under way.
#[derive(Debug)]
struct Roll {
    /// The generation to return to; `None` when nothing worth keeping was running.
    fallback: Option<u64>,
    /// Whether a worker of the new generation has become ready.
    is_proven: bool,
    began_at: Instant,
}

impl Supervisor {
    /// A machine that waits for `Started`.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            phase: Phase::Stopped,
            seats: Vec::new(),
            workers: BTreeMap::new(),
            worker_last: 0,
            generation: 1,
            generation_last: 1,
            roll: None,
            is_roll_queued: false,
            boots: Backoff::default(),
            report: None,
            restart_error: None,
            started_at: None,
            was_up: false,
            wake_at: None,
            actions: Vec::new(),
        }
    }

    /// Takes in one event; the actions are to be carried out in order.
    #[must_use = "every action counts"]
    pub fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Started => self.handle_started(now),
            Event::Spawned { worker, pid } => self.handle_spawned(now, worker, pid),
            Event::SpawnFailed { worker, reason } => self.handle_spawn_failed(now, worker, reason),
            Event::Ready { worker, boot } => self.handle_ready(now, worker, boot),
            Event::BootFailed { worker, report } => self.handle_boot_failed(now, worker, report),
            Event::Exited { worker, status } => self.handle_exited(now, worker, status),
            Event::ResponseTimedOut { worker } => {
                self.handle_broken(now, worker, KillReason::ResponseTimedOut);
            }
            Event::ProtocolBroken { worker } => {
                self.handle_broken(now, worker, KillReason::ProtocolBroken);
            }
            Event::Idle { worker } => self.handle_idle(now, worker),
            Event::Recycle { worker } => self.handle_recycle(worker),
            Event::Restart => self.handle_restart(),
            Event::Drain => self.handle_drain(now),
            Event::DrainOverdue => self.handle_drain_overdue(now),
            Event::Tick => self.wake_at = None,
        }
        self.settle(now)
    }

    /// Puts a new policy in force: more processes are spawned, the surplus is retired.
    #[must_use = "every action counts"]
    pub fn set_policy(&mut self, now: Instant, policy: Policy) -> Vec<Action> {
        self.policy = policy;
        self.settle(now)
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Every process that has been asked for and has not exited, oldest first.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// The application as a whole.
    pub fn state(&self) -> AppState {
        match self.phase {
            Phase::Stopped => return AppState::Stopped,
            Phase::Draining => return AppState::Draining,
            Phase::Running => {}
        }
        let ready = self.ready();
        match &self.report {
            _ if ready >= self.policy.processes => AppState::Ready,
            Some(report) if ready == 0 => AppState::Failing {
                report: report.clone(),
            },
            None if ready == 0 || !self.was_up => AppState::Starting,
            _ => AppState::Degraded,
        }
    }

    /// Whether the code does not even boot: then requests need not wait for a worker. One that boots
    /// and crashes is back within half a second.
    pub fn is_boot_failing(&self) -> bool {
        self.boots.is_active()
    }

    /// Why the last restart was given up, until the next one begins.
    pub fn restart_error(&self) -> Option<&str> {
        self.restart_error.as_deref()
    }

    /// Whether a restart is under way or waits for its turn.
    pub fn is_restarting(&self) -> bool {
        self.roll.is_some() || self.is_roll_queued
    }
}

/// Events, in the order in which a worker lives through them.
impl Supervisor {
    fn handle_started(&mut self, now: Instant) {
        if self.phase == Phase::Stopped {
            self.phase = Phase::Running;
            self.started_at = Some(now);
            self.boots = Backoff::default();
            self.report = None;
            self.was_up = false;
        }
    }

    fn handle_spawned(&mut self, now: Instant, id: WorkerId, pid: u32) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        worker.pid = Some(pid);
        // It was given up while it was being spawned.
        if let Some(signal) = worker.signal {
            self.stop(now, id, signal);
        }
    }

    fn handle_spawn_failed(&mut self, now: Instant, id: WorkerId, reason: String) {
        if self.state_of(id) == Some(WorkerState::Booting) {
            self.fail_boot(now, id, reason);
            self.workers.remove(&id);
        }
        self.handle_exited(now, id, ExitSummary::Unknown);
    }

    fn handle_ready(&mut self, now: Instant, id: WorkerId, boot: Duration) {
        let is_new = self.is_new(id);
        let pid = match self.workers.get_mut(&id) {
            Some(worker) if worker.state == WorkerState::Booting => {
                worker.enter(WorkerState::Ready, now, None);
                worker.pid
            }
            _ => return,
        };
        self.actions.push(Action::Admit { worker: id });
        self.tell(Report::WorkerReady {
            worker: id,
            pid,
            boot,
        });
        self.boots = Backoff::default();
        self.report = None;
        if let Some(roll) = &mut self.roll {
            roll.is_proven |= is_new;
        }
        let challenged = |seat: &&mut Seat| seat.challenger == Some(id);
        if let Some(seat) = self.seats.iter_mut().find(challenged) {
            seat.challenger = None;
            if let Some(old) = seat.worker.replace(id) {
                self.displace(now, old);
            }
        }
    }

    fn handle_boot_failed(&mut self, now: Instant, id: WorkerId, report: String) {
        if self.state_of(id) == Some(WorkerState::Booting) {
            self.fail_boot(now, id, report);
            self.stop(now, id, Signal::Terminate);
        }
    }

    fn handle_exited(&mut self, now: Instant, id: WorkerId, status: ExitSummary) {
        match self.state_of(id) {
            Some(WorkerState::Booting) => {
                let report = format!("the worker {status} before it was ready");
                self.fail_boot(now, id, report);
            }
            Some(WorkerState::Ready) => self.crash(now, id, status),
            Some(WorkerState::Retiring | WorkerState::Stopping) | None => {}
        }
        self.workers.remove(&id);
    }

    fn handle_broken(&mut self, now: Instant, id: WorkerId, reason: KillReason) {
        match self.state_of(id) {
            Some(WorkerState::Booting) => {
                self.fail_boot(now, id, format!("the worker was killed: {reason}"));
            }
            Some(WorkerState::Ready) => {
                self.actions.push(Action::Retire { worker: id });
                let delay = self.strike(now, id);
                if delay > Duration::ZERO {
                    self.doubt(now, id, format!("the worker was killed: {reason}"));
                }
            }
            Some(WorkerState::Retiring) => {}
            Some(WorkerState::Stopping) | None => return,
        }
        self.kill(now, id, reason);
    }

    fn handle_idle(&mut self, now: Instant, id: WorkerId) {
        if self.state_of(id) == Some(WorkerState::Retiring) {
            self.stop(now, id, Signal::Terminate);
        }
    }

    fn handle_recycle(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.is_worn = worker.state == WorkerState::Ready;
        }
    }

    fn handle_restart(&mut self) {
        if self.phase == Phase::Running {
            // Asked twice is asked once: the code is read when the roll begins.
            self.is_roll_queued = true;
        } else {
            let why = "the application is not running".to_owned();
            self.actions.push(Action::RestartDone(Err(why)));
        }
    }

    fn handle_drain(&mut self, now: Instant) {
        match self.phase {
            Phase::Running => self.phase = Phase::Draining,
            Phase::Draining => return,
            Phase::Stopped => {
                self.actions.push(Action::Stopped);
                return;
            }
        }
        let unanswered = usize::from(self.roll.take().is_some());
        let queued = usize::from(std::mem::take(&mut self.is_roll_queued));
        for _ in 0..unanswered + queued {
            let why = "the application is stopping".to_owned();
            self.actions.push(Action::RestartDone(Err(why)));
        }
        while let Some(seat) = self.seats.pop() {
            self.leave_seat(now, &seat);
        }
    }

    fn handle_drain_overdue(&mut self, now: Instant) {
        if self.phase != Phase::Draining {
            return;
        }
        let retiring = |w: &&Worker| w.state == WorkerState::Retiring;
        let ids: Vec<_> = self.workers().filter(retiring).map(|w| w.id).collect();
        for id in ids {
            self.stop(now, id, Signal::Terminate);
        }
    }
}

/// What follows from the state, after every event.
impl Supervisor {
    fn settle(&mut self, now: Instant) -> Vec<Action> {
        self.meet_deadlines(now);
        if self.phase == Phase::Running {
            self.fit_seats(now);
            self.finish_roll(now);
            if self.is_roll_queued && self.roll.is_none() {
                self.begin_roll(now);
                // Without any process there is nothing to wait for.
                self.finish_roll(now);
            }
            self.fill_seats(now);
            self.challenge(now);
            self.notice_up(now);
        }
        if self.phase == Phase::Draining && self.workers.is_empty() {
            self.phase = Phase::Stopped;
            self.actions.push(Action::Stopped);
        }
        let wake_at = self.next_wake();
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            self.actions.extend(wake_at.map(Action::WakeAt));
        }
        std::mem::take(&mut self.actions)
    }

    fn meet_deadlines(&mut self, now: Instant) {
        let is_overdue = |w: &&Worker| w.deadline.is_some_and(|at| at <= now);
        let next = |s: &Self| s.workers().find(is_overdue).map(|w| (w.id, w.state));
        while let Some((id, state)) = next(self) {
            if state != WorkerState::Booting {
                self.kill(now, id, KillReason::StopTimedOut);
                continue;
            }
            let limit = self.policy.boot_timeout;
            let report = format!("the worker was not ready after {limit:?} and was killed");
            self.fail_boot(now, id, report);
            self.kill(now, id, KillReason::BootTimedOut);
        }
    }

    fn fit_seats(&mut self, now: Instant) {
        while self.seats.len() > self.policy.processes {
            let Some(seat) = self.seats.pop() else {
                return;
            };
            self.leave_seat(now, &seat);
        }
        self.seats.resize_with(self.policy.processes, Seat::default);
    }

    fn begin_roll(&mut self, now: Instant) {
        let has_ready = self.ready() > 0;
        self.is_roll_queued = false;
        self.restart_error = None;
        self.roll = Some(Roll {
            fallback: has_ready.then_some(self.generation),
            is_proven: false,
            began_at: now,
        });
        self.generation_last += 1;
        self.generation = self.generation_last;
        self.boots = Backoff::default();
        self.seats.iter_mut().for_each(Seat::forgive);
        let generation = self.generation;
        self.tell(Report::RestartBegan { generation });
        // A successor in the making has no place in this roll, and when nothing serves there is
        // nothing that old code still booting could save.
        self.call_off(now, |seat| seat.challenger.take());
        if !has_ready {
            self.call_off(now, |seat| seat.worker.take());
        }
    }

    fn fill_seats(&mut self, now: Instant) {
        let generation = match &self.roll {
            Some(Roll {
                fallback: Some(old),
                is_proven: false,
                ..
            }) => *old,
            _ => self.generation,
        };
        for place in 0..self.seats.len() {
            let seat = &self.seats[place];
            let is_due = seat.next_at().is_none_or(|at| at <= now);
            if seat.worker.is_none() && is_due && self.may_boot(now) {
                let worker = self.spawn(now, place, generation);
                self.seats[place].worker = Some(worker);
            }
        }
    }

    /// Replaces one seat's worker that runs other code than it should, or is worn.
    fn challenge(&mut self, now: Instant) {
        let is_any = self.seats.iter().any(|seat| seat.challenger.is_some());
        // The first failure of a new version ends its trial, so back-off has no say in it.
        if is_any || !(self.is_trial() || self.may_boot(now)) {
            return;
        }
        if let Some(place) = self.stale_seat() {
            let challenger = self.spawn(now, place, self.generation);
            self.seats[place].challenger = Some(challenger);
        }
    }

    fn finish_roll(&mut self, now: Instant) {
        let Some(roll) = &self.roll else {
            return;
        };
        let took = now.saturating_duration_since(roll.began_at);
        let is_done = |seat: &Seat| {
            let worker = seat.worker.and_then(|id| self.workers.get(&id));
            worker.is_some_and(|w| w.state == WorkerState::Ready && w.generation == self.generation)
        };
        if self.seats.iter().all(is_done) {
            let generation = self.generation;
            self.roll = None;
            self.tell(Report::Restarted { generation, took });
            self.actions.push(Action::RestartDone(Ok(())));
        }
    }

    fn notice_up(&mut self, now: Instant) {
        let processes = self.policy.processes;
        if self.was_up || self.ready() < processes {
            return;
        }
        self.was_up = true;
        if let Some(started_at) = self.started_at {
            let took = now.saturating_duration_since(started_at);
            self.tell(Report::Up { processes, took });
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let deadlines = self.workers().filter_map(|w| w.deadline).min();
        if self.phase != Phase::Running || (self.boots.is_active() && self.is_booting()) {
            return deadlines;
        }
        let vacant = self.seats.iter().filter(|seat| seat.worker.is_none());
        // A seat without a date of its own waits for the application's.
        let tries = vacant.filter_map(|seat| seat.next_at().max(self.boots.next_at()));
        let stale = self.stale_seat().and_then(|_| self.boots.next_at());
        deadlines.into_iter().chain(tries).chain(stale).min()
    }
}

/// Steps that several events share.
impl Supervisor {
    fn spawn(&mut self, now: Instant, place: usize, generation: u64) -> WorkerId {
        self.worker_last += 1;
        let id = WorkerId(self.worker_last);
        let seat = &mut self.seats[place];
        let restarts = seat.spawned;
        seat.spawned += 1;
        let worker = Worker {
            id,
            generation,
            pid: None,
            state: WorkerState::Booting,
            since: now,
            restarts,
            is_worn: false,
            deadline: now.checked_add(self.policy.boot_timeout),
            signal: None,
        };
        self.workers.insert(id, worker);
        self.actions.push(Action::Spawn {
            worker: id,
            generation,
        });
        id
    }

    /// Empties the place of a worker that did not boot, and decides when the next one is tried.
    fn fail_boot(&mut self, now: Instant, id: WorkerId, report: String) {
        self.vacate(id);
        let is_trial = self.is_trial() && self.is_new(id);
        let next_try = (!is_trial).then(|| self.boots.fail(now, &self.policy));
        self.tell(Report::BootFailed {
            worker: id,
            report: report.clone(),
            next_try,
        });
        self.doubt(now, id, report);
    }

    fn crash(&mut self, now: Instant, id: WorkerId, status: ExitSummary) {
        let pid = self.workers.get(&id).and_then(|worker| worker.pid);
        let next_try = self.strike(now, id);
        self.tell(Report::Crashed {
            worker: id,
            pid,
            status,
            next_try,
        });
        let is_trial = self.is_trial() && self.is_new(id);
        if is_trial || next_try > Duration::ZERO {
            self.doubt(
                now,
                id,
                format!("the worker {status} soon after it was ready"),
            );
        }
    }

    /// A worker failed in a way that speaks against its code: a new version's roll ends with it,
    /// otherwise it is what the error page shows while nothing serves.
    fn doubt(&mut self, now: Instant, id: WorkerId, report: String) {
        let roll = match self.is_new(id) {
            true => self.roll.take(),
            false => None,
        };
        let Some(roll) = roll else {
            self.report = Some(report);
            return;
        };
        match roll.fallback {
            Some(old) => self.return_to(now, old, &report),
            None => self.report = Some(report.clone()),
        }
        self.restart_error = Some(report.clone());
        self.actions.push(Action::RestartDone(Err(report)));
    }

    /// The new version is given up: its ready workers stay until the old code has replaced them.
    fn return_to(&mut self, now: Instant, old: u64, report: &str) {
        let new = std::mem::replace(&mut self.generation, old);
        let is_unproven = |w: &&Worker| w.state == WorkerState::Booting && w.generation == new;
        let booting: Vec<_> = self.workers().filter(is_unproven).map(|w| w.id).collect();
        for id in booting {
            // The one whose failure is being handled has left its seat already.
            if self.vacate(id) {
                self.stop(now, id, Signal::Terminate);
            }
        }
        self.seats.iter_mut().for_each(Seat::forgive);
        self.tell(Report::OldVersionKept {
            generation: old,
            report: report.to_owned(),
        });
    }

    /// Empties the seat of a worker that failed while ready; answers when it is filled again.
    fn strike(&mut self, now: Instant, id: WorkerId) -> Duration {
        let since = self.workers.get(&id).map_or(now, |worker| worker.since);
        let ready_for = now.saturating_duration_since(since);
        let holds = |seat: &&mut Seat| seat.worker == Some(id);
        let Some(seat) = self.seats.iter_mut().find(holds) else {
            return Duration::ZERO;
        };
        seat.worker = None;
        seat.strike(now, ready_for, &self.policy)
    }

    fn vacate(&mut self, id: WorkerId) -> bool {
        for seat in &mut self.seats {
            for holder in [&mut seat.worker, &mut seat.challenger] {
                if *holder == Some(id) {
                    *holder = None;
                    return true;
                }
            }
        }
        false
    }

    fn call_off(&mut self, now: Instant, take: impl Fn(&mut Seat) -> Option<WorkerId>) {
        let ids: Vec<_> = self.seats.iter_mut().filter_map(take).collect();
        for id in ids {
            self.displace(now, id);
        }
    }

    fn leave_seat(&mut self, now: Instant, seat: &Seat) {
        for id in [seat.challenger, seat.worker].into_iter().flatten() {
            self.displace(now, id);
        }
    }

    /// Sends a worker away in the gentlest way its state allows.
    fn displace(&mut self, now: Instant, id: WorkerId) {
        match self.workers.get_mut(&id) {
            Some(worker) if worker.state == WorkerState::Ready => {
                worker.enter(WorkerState::Retiring, now, None);
                self.actions.push(Action::Retire { worker: id });
            }
            Some(worker) if worker.state == WorkerState::Booting => {
                self.stop(now, id, Signal::Terminate);
            }
            _ => {}
        }
    }

    fn kill(&mut self, now: Instant, id: WorkerId, reason: KillReason) {
        let pid = self.workers.get(&id).and_then(|worker| worker.pid);
        self.stop(now, id, Signal::Kill);
        self.tell(Report::Killed {
            worker: id,
            pid,
            reason,
        });
    }

    fn stop(&mut self, now: Instant, id: WorkerId, signal: Signal) {
        let patience = self.policy.stop_timeout;
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let deadline = match signal {
            Signal::Terminate if worker.pid.is_some() => now.checked_add(patience),
            _ => None,
        };
        worker.enter(WorkerState::Stopping, now, deadline);
        worker.signal = Some(signal);
        if worker.pid.is_some() {
            self.actions.push(Action::Signal { worker: id, signal });
        }
    }

    fn tell(&mut self, report: Report) {
        self.actions.push(Action::Report(report));
    }

    fn state_of(&self, id: WorkerId) -> Option<WorkerState> {
        self.workers.get(&id).map(|worker| worker.state)
    }

    fn is_new(&self, id: WorkerId) -> bool {
        let worker = self.workers.get(&id);
        worker.is_some_and(|w| w.generation == self.generation)
    }

    fn ready(&self) -> usize {
        let is_ready = |w: &&Worker| w.state == WorkerState::Ready;
        self.workers().filter(is_ready).count()
    }

    fn is_booting(&self) -> bool {
        self.workers().any(|w| w.state == WorkerState::Booting)
    }

    /// While boots fail, one at a time is tried, when its time has come.
    fn may_boot(&self, now: Instant) -> bool {
        let is_due = self.boots.next_at().is_none_or(|at| at <= now);
        !self.boots.is_active() || (is_due && !self.is_booting())
    }

    fn is_trial(&self) -> bool {
        self.roll
            .as_ref()
            .is_some_and(|roll| roll.fallback.is_some())
    }

    fn stale_seat(&self) -> Option<usize> {
        let is_stale = |seat: &Seat| {
            let worker = seat.worker.and_then(|id| self.workers.get(&id));
            worker.is_some_and(|w| w.is_worn || w.generation != self.generation)
        };
        self.seats.iter().position(is_stale)
    }
}
