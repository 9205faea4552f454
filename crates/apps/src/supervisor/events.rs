//! What each event does to the workers it is about.
//!
//! The first half of the supervisor's machine; `settle` follows after every event and draws the
//! conclusions. What must stay true: an event about an unknown worker, or one that does not fit the
//! worker's state, changes nothing.

use std::time::{Duration, Instant};

use super::scaling::{Fleet, Number, Scaling, Step};
use super::seat::{Backoff, Seat};
use super::{
    Action, ExitSummary, KillReason, Load, Phase, Report, Signal, Supervisor, Worker, WorkerId,
    WorkerState, Worn,
};

/// Events, in the order in which a worker lives through them.
impl Supervisor {
    pub(super) fn handle_started(&mut self, now: Instant) {
        if self.phase == Phase::Stopped {
            self.phase = Phase::Running;
            self.started_at = Some(now);
            self.boots = Backoff::default();
            self.report = None;
            self.was_up = false;
            self.target = self.policy.processes_min;
            self.is_catching_up = self.policy.processes_at_start() > self.target;
            self.set_threads(self.policy.threads_at_start());
            self.scaling = Scaling::default();
        }
    }

    pub(super) fn handle_spawned(&mut self, now: Instant, id: WorkerId, pid: u32) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        worker.pid = Some(pid);
        // It was given up while it was being spawned.
        if let Some(signal) = worker.signal {
            self.stop(now, id, signal);
        }
    }

    pub(super) fn handle_spawn_failed(&mut self, now: Instant, id: WorkerId, reason: String) {
        if self.state_of(id) == Some(WorkerState::Booting) {
            self.fail_boot(now, id, reason);
            self.workers.remove(&id);
        }
        self.handle_exited(now, id, ExitSummary::Unknown);
    }

    pub(super) fn handle_ready(&mut self, now: Instant, id: WorkerId, boot: Duration) {
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
        self.last_boot = boot;
        if let Some(roll) = &mut self.roll {
            roll.is_proven |= is_new;
        }
        let holds = |seat: &&mut Seat| [seat.worker, seat.challenger].contains(&Some(id));
        let Some(seat) = self.seats.iter_mut().find(holds) else {
            return;
        };
        seat.has_served = true;
        if seat.challenger == Some(id) {
            seat.challenger = None;
            if let Some(old) = seat.worker.replace(id) {
                self.displace(now, old);
            }
        }
    }

    pub(super) fn handle_boot_failed(&mut self, now: Instant, id: WorkerId, report: String) {
        if self.state_of(id) == Some(WorkerState::Booting) {
            self.fail_boot(now, id, report);
            self.stop(now, id, Signal::Terminate);
        }
    }

    pub(super) fn handle_exited(&mut self, now: Instant, id: WorkerId, status: ExitSummary) {
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

    pub(super) fn handle_broken(&mut self, now: Instant, id: WorkerId, reason: KillReason) {
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

    pub(super) fn handle_idle(&mut self, now: Instant, id: WorkerId) {
        if self.state_of(id) == Some(WorkerState::Retiring) {
            self.stop(now, id, Signal::Terminate);
        }
    }

    pub(super) fn handle_recycle(&mut self, id: WorkerId, why: Worn) {
        // One that still boots is replaced after it: what makes it worn says nothing against it.
        if let Some(worker) = self.workers.get_mut(&id)
            && matches!(worker.state, WorkerState::Booting | WorkerState::Ready)
        {
            worker.worn.get_or_insert(why);
        }
    }

    pub(super) fn handle_load(&mut self, now: Instant, load: &Load) {
        let processes = self.policy.processes_min..self.policy.processes_max;
        let threads = self.policy.threads_min..self.policy.threads_max;
        if self.phase != Phase::Running || (processes.is_empty() && threads.is_empty()) {
            return;
        }
        let ready = self.ready();
        let fleet = Fleet {
            target: self.target,
            threads: self.threads,
            ready,
            boot: self.last_boot,
            may_grow: ready >= self.target || !self.boots.is_active(),
            may_shrink: self.roll.is_none(),
        };
        let Some(Step { of, to, why }) = self.scaling.look(now, load, fleet, &self.policy) else {
            return;
        };
        match of {
            Number::Processes => {
                let from = std::mem::replace(&mut self.target, to);
                self.tell(Report::Scaled { from, to, why });
            }
            Number::Threads => {
                let from = self.threads;
                self.set_threads(to);
                self.tell(Report::ThreadsScaled { from, to, why });
            }
        }
    }

    pub(super) fn set_threads(&mut self, threads: usize) {
        if self.threads != threads {
            self.threads = threads;
            self.actions.push(Action::SetThreads(threads));
        }
    }

    pub(super) fn handle_restart(&mut self) {
        if self.phase == Phase::Running {
            // Asked twice is asked once: the code is read when the roll begins.
            self.is_roll_queued = true;
        } else {
            let why = "the application is not running".to_owned();
            self.actions.push(Action::RestartDone(Err(why)));
        }
    }

    pub(super) fn handle_drain(&mut self, now: Instant) {
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

    pub(super) fn handle_drain_overdue(&mut self, now: Instant) {
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
