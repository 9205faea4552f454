//! Steps that several events share: to spawn, to fail, to send away, to ask.
//!
//! Called by the supervisor's `events` and `settle`. What must stay true: a worker leaves its seat in
//! the same step in which it stops being wanted, so a seat never holds one that is on its way out.

use std::time::{Duration, Instant};

use super::seat::Seat;
use super::{
    Action, ExitSummary, KillReason, Phase, Report, Signal, Supervisor, Worker, WorkerId,
    WorkerState,
};

/// The life of a worker.
impl Supervisor {
    pub(super) fn spawn(&mut self, now: Instant, place: usize, generation: u64) -> WorkerId {
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
            worn: None,
            deadline: now.checked_add(self.policy.boot_timeout),
            signal: None,
        };
        self.workers.insert(id, worker);
        self.spawns.note(now);
        self.actions.push(Action::Spawn {
            worker: id,
            generation,
        });
        id
    }

    /// Empties the place of a worker that did not boot, and decides when the next one is tried.
    pub(super) fn fail_boot(&mut self, now: Instant, id: WorkerId, report: String) {
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

    pub(super) fn crash(&mut self, now: Instant, id: WorkerId, status: ExitSummary) {
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
    pub(super) fn doubt(&mut self, now: Instant, id: WorkerId, report: String) {
        let roll = match self.is_new(id) {
            true => self.roll.take(),
            false => None,
        };
        let Some(roll) = roll else {
            self.report = Some(report);
            self.is_catching_up = false;
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
    pub(super) fn return_to(&mut self, now: Instant, old: u64, report: &str) {
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
    pub(super) fn strike(&mut self, now: Instant, id: WorkerId) -> Duration {
        let since = self.workers.get(&id).map_or(now, |worker| worker.since);
        let ready_for = now.saturating_duration_since(since);
        let holds = |seat: &&mut Seat| seat.worker == Some(id);
        let Some(seat) = self.seats.iter_mut().find(holds) else {
            return Duration::ZERO;
        };
        seat.worker = None;
        seat.strike(now, ready_for, &self.policy)
    }

    pub(super) fn vacate(&mut self, id: WorkerId) -> bool {
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

    pub(super) fn call_off(&mut self, now: Instant, take: impl Fn(&mut Seat) -> Option<WorkerId>) {
        let ids: Vec<_> = self.seats.iter_mut().filter_map(take).collect();
        for id in ids {
            self.displace(now, id);
        }
    }

    pub(super) fn leave_seat(&mut self, now: Instant, seat: &Seat) {
        for id in [seat.challenger, seat.worker].into_iter().flatten() {
            self.displace(now, id);
        }
    }

    /// Sends a worker away in the gentlest way its state allows.
    pub(super) fn displace(&mut self, now: Instant, id: WorkerId) {
        match self.workers.get_mut(&id) {
            Some(worker) if worker.state == WorkerState::Ready => {
                worker.enter(WorkerState::Retiring, now, None);
                let (pid, worn) = (worker.pid, worker.worn);
                self.actions.push(Action::Retire { worker: id });
                if let (Some(why), Phase::Running) = (worn, self.phase) {
                    let worker = id;
                    self.tell(Report::Recycled { worker, pid, why });
                }
            }
            Some(worker) if worker.state == WorkerState::Booting => {
                self.stop(now, id, Signal::Terminate);
            }
            _ => {}
        }
    }

    pub(super) fn kill(&mut self, now: Instant, id: WorkerId, reason: KillReason) {
        let pid = self.workers.get(&id).and_then(|worker| worker.pid);
        self.stop(now, id, Signal::Kill);
        self.tell(Report::Killed {
            worker: id,
            pid,
            reason,
        });
    }

    pub(super) fn stop(&mut self, now: Instant, id: WorkerId, signal: Signal) {
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
        self.actions.push(match worker.pid {
            Some(_) => Action::Signal { worker: id, signal },
            // Without a deadline of its own it comes here once.
            None => Action::Abandon { worker: id },
        });
    }

    pub(super) fn tell(&mut self, report: Report) {
        self.actions.push(Action::Report(report));
    }

    pub(super) fn state_of(&self, id: WorkerId) -> Option<WorkerState> {
        self.workers.get(&id).map(|worker| worker.state)
    }

    pub(super) fn is_new(&self, id: WorkerId) -> bool {
        let worker = self.workers.get(&id);
        worker.is_some_and(|w| w.generation == self.generation)
    }

    pub(super) fn ready(&self) -> usize {
        let is_ready = |w: &&Worker| w.state == WorkerState::Ready;
        self.workers().filter(is_ready).count()
    }

    pub(super) fn is_booting(&self) -> bool {
        self.workers().any(|w| w.state == WorkerState::Booting)
    }

    /// While boots fail, one at a time is tried, when its time has come.
    pub(super) fn may_boot(&self, now: Instant) -> bool {
        let is_due = self.boots.next_at().is_none_or(|at| at <= now);
        !self.boots.is_active() || (is_due && !self.is_booting())
    }

    pub(super) fn is_trial(&self) -> bool {
        self.roll
            .as_ref()
            .is_some_and(|roll| roll.fallback.is_some())
    }
}
