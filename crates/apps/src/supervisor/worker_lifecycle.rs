//! The steps of a worker's life that several events share: spawning, failing, retiring, stopping.
//!
//! # Invariants
//! - A worker leaves its replica in the same step in which it stops being wanted, so a replica
//!   never holds an ending one.

use std::time::{Duration, Instant};

use super::replica::Replica;
use super::{
    ExitSummary, KillReason, StopSignal, Supervisor, SupervisorAction, SupervisorPhase,
    SupervisorReport, Worker, WorkerId, WorkerState,
};

/// The life of a worker.
impl Supervisor {
    pub(super) fn spawn(&mut self, now: Instant, index: usize, generation: u64) -> WorkerId {
        self.last_worker_id += 1;
        let id = WorkerId(self.last_worker_id);
        let replica = &mut self.replicas[index];
        let restarts = replica.spawn_count;
        replica.spawn_count += 1;
        let worker = Worker {
            id,
            generation,
            pid: None,
            state: WorkerState::Booting,
            state_since: now,
            restarts,
            replace_reason: None,
            deadline: now.checked_add(self.policy.boot_timeout),
            stop_signal: None,
        };
        self.workers.insert(id, worker);
        self.spawn_rate.record(now);
        self.actions.push(SupervisorAction::Spawn {
            worker: id,
            generation,
        });
        id
    }

    /// Empties the replica of a worker that did not boot, and decides when the next one is tried.
    pub(super) fn record_boot_failure(&mut self, now: Instant, id: WorkerId, report: String) {
        self.remove_from_replica(id);
        let is_trial = self.has_fallback_generation() && self.is_current_generation(id);
        let next_try = (!is_trial).then(|| self.boot_backoff.record_failure(now, &self.policy));
        self.emit_report(SupervisorReport::BootFailed {
            report: report.clone(),
            next_try,
        });
        self.record_code_failure(now, id, report);
    }

    pub(super) fn handle_crash(&mut self, now: Instant, id: WorkerId, status: ExitSummary) {
        let pid = self.workers.get(&id).and_then(|worker| worker.pid);
        let next_try = self.record_crash(now, id);
        self.emit_report(SupervisorReport::Crashed {
            pid,
            status,
            next_try,
        });
        let is_trial = self.has_fallback_generation() && self.is_current_generation(id);
        if is_trial || next_try > Duration::ZERO {
            self.record_code_failure(
                now,
                id,
                format!("the worker {status} soon after it was ready"),
            );
        }
    }

    /// A worker failed in a way that speaks against its code: a new version's restart ends with it,
    /// otherwise it is what the error page shows while nothing serves.
    pub(super) fn record_code_failure(&mut self, now: Instant, id: WorkerId, report: String) {
        let restart = match self.is_current_generation(id) {
            true => self.rolling_restart.take(),
            false => None,
        };
        let Some(restart) = restart else {
            self.failure_report = Some(report);
            self.is_growing_to_initial_size = false;
            return;
        };
        match restart.fallback_generation {
            Some(old) => self.revert_restart(now, old, &report),
            None => self.failure_report = Some(report.clone()),
        }
        self.restart_error = Some(report.clone());
        self.actions
            .push(SupervisorAction::RestartDone(Err(report)));
    }

    /// The new version is given up: its ready workers stay until the old code has replaced them.
    pub(super) fn revert_restart(&mut self, now: Instant, old: u64, report: &str) {
        let new = std::mem::replace(&mut self.generation, old);
        let is_unproven = |w: &&Worker| w.state == WorkerState::Booting && w.generation == new;
        let booting: Vec<_> = self.workers().filter(is_unproven).map(|w| w.id).collect();
        for id in booting {
            // The one whose failure is being handled has left its replica already.
            if self.remove_from_replica(id) {
                self.stop_worker(now, id, StopSignal::Terminate);
            }
        }
        self.replicas.iter_mut().for_each(Replica::reset_crashes);
        self.emit_report(SupervisorReport::RestartReverted {
            generation: old,
            report: report.to_owned(),
        });
    }

    /// Empties the replica of a worker that failed while ready; returns the delay of the next one.
    pub(super) fn record_crash(&mut self, now: Instant, id: WorkerId) -> Duration {
        let since = self
            .workers
            .get(&id)
            .map_or(now, |worker| worker.state_since);
        let ready_for = now.saturating_duration_since(since);
        let has_worker = |replica: &&mut Replica| replica.worker == Some(id);
        let Some(replica) = self.replicas.iter_mut().find(has_worker) else {
            return Duration::ZERO;
        };
        replica.worker = None;
        replica.record_crash(now, ready_for, &self.policy)
    }

    pub(super) fn remove_from_replica(&mut self, id: WorkerId) -> bool {
        for replica in &mut self.replicas {
            for held in [&mut replica.worker, &mut replica.successor] {
                if *held == Some(id) {
                    *held = None;
                    return true;
                }
            }
        }
        false
    }

    pub(super) fn stop_workers(
        &mut self,
        now: Instant,
        take: impl Fn(&mut Replica) -> Option<WorkerId>,
    ) {
        let ids: Vec<_> = self.replicas.iter_mut().filter_map(take).collect();
        for id in ids {
            self.retire_or_stop(now, id);
        }
    }

    pub(super) fn stop_replica(&mut self, now: Instant, replica: &Replica) {
        for id in [replica.successor, replica.worker].into_iter().flatten() {
            self.retire_or_stop(now, id);
        }
    }

    /// Retires a ready worker, stops one that boots.
    pub(super) fn retire_or_stop(&mut self, now: Instant, id: WorkerId) {
        match self.workers.get_mut(&id) {
            Some(worker) if worker.state == WorkerState::Ready => {
                worker.set_state(WorkerState::Retiring, now, None);
                let (pid, worn) = (worker.pid, worker.replace_reason);
                self.actions.push(SupervisorAction::Retire { worker: id });
                if let (Some(why), SupervisorPhase::Running) = (worn, self.phase) {
                    self.emit_report(SupervisorReport::Replaced { pid, why });
                }
            }
            Some(worker) if worker.state == WorkerState::Booting => {
                self.stop_worker(now, id, StopSignal::Terminate);
            }
            _ => {}
        }
    }

    pub(super) fn kill_worker(&mut self, now: Instant, id: WorkerId, reason: KillReason) {
        let pid = self.workers.get(&id).and_then(|worker| worker.pid);
        self.stop_worker(now, id, StopSignal::Kill);
        self.emit_report(SupervisorReport::Killed { pid, reason });
    }

    pub(super) fn stop_worker(&mut self, now: Instant, id: WorkerId, signal: StopSignal) {
        let timeout = self.policy.stop_timeout;
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let deadline = match signal {
            StopSignal::Terminate if worker.pid.is_some() => now.checked_add(timeout),
            _ => None,
        };
        worker.set_state(WorkerState::Stopping, now, deadline);
        worker.stop_signal = Some(signal);
        self.actions.push(match worker.pid {
            Some(_) => SupervisorAction::Signal { worker: id, signal },
            // Without a deadline of its own it comes here once.
            None => SupervisorAction::Abandon { worker: id },
        });
    }

    pub(super) fn emit_report(&mut self, report: SupervisorReport) {
        self.actions.push(SupervisorAction::Report(report));
    }

    pub(super) fn worker_state(&self, id: WorkerId) -> Option<WorkerState> {
        self.workers.get(&id).map(|worker| worker.state)
    }

    pub(super) fn is_current_generation(&self, id: WorkerId) -> bool {
        let worker = self.workers.get(&id);
        worker.is_some_and(|w| w.generation == self.generation)
    }

    pub(super) fn ready_worker_count(&self) -> usize {
        let is_ready = |w: &&Worker| w.state == WorkerState::Ready;
        self.workers().filter(is_ready).count()
    }

    pub(super) fn has_booting_worker(&self) -> bool {
        self.workers().any(|w| w.state == WorkerState::Booting)
    }

    /// While boots fail, one at a time is tried, when its time has come.
    pub(super) fn may_boot(&self, now: Instant) -> bool {
        let is_due = self
            .boot_backoff
            .next_attempt_at()
            .is_none_or(|at| at <= now);
        !self.boot_backoff.has_failures() || (is_due && !self.has_booting_worker())
    }

    pub(super) fn has_fallback_generation(&self) -> bool {
        self.rolling_restart
            .as_ref()
            .is_some_and(|restart| restart.fallback_generation.is_some())
    }
}
