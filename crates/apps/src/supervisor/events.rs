//! The effect of each event on the workers that it is about.
//!
//! The first half of the supervisor's state machine; `reconcile` follows after every event.
//!
//! # Invariants
//! - An event about an unknown worker, or one that does not fit the worker's state, changes
//!   nothing.

use std::time::{Duration, Instant};

use super::replica::{Replica, RestartBackoff};
use super::scaling::{Autoscaler, CurrentScale, ScaledQuantity, ScalingStep};
use super::{
    AppLoad, ExitSummary, KillReason, ReplaceReason, StopSignal, Supervisor, SupervisorAction,
    SupervisorPhase, SupervisorReport, Worker, WorkerId, WorkerState,
};

/// Events, in the order in which a worker lives through them.
impl Supervisor {
    pub(super) fn handle_started(&mut self, now: Instant) {
        if self.phase == SupervisorPhase::Stopped {
            self.phase = SupervisorPhase::Running;
            self.started_at = Some(now);
            self.boot_backoff = RestartBackoff::default();
            self.failure_report = None;
            self.was_up = false;
            self.target_workers = self.policy.min_processes;
            self.is_growing_to_initial_size =
                self.policy.bounded_initial_processes() > self.target_workers;
            self.set_threads(self.policy.bounded_initial_threads());
            self.scaling = Autoscaler::default();
        }
    }

    pub(super) fn handle_spawned(&mut self, now: Instant, id: WorkerId, pid: u32) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        worker.pid = Some(pid);
        // It was given up while it was being spawned.
        if let Some(signal) = worker.stop_signal {
            self.stop_worker(now, id, signal);
        }
    }

    pub(super) fn handle_spawn_failed(&mut self, now: Instant, id: WorkerId, reason: String) {
        if self.worker_state(id) == Some(WorkerState::Booting) {
            self.record_boot_failure(now, id, reason);
            self.workers.remove(&id);
        }
        self.handle_exited(now, id, ExitSummary::Unknown);
    }

    pub(super) fn handle_ready(&mut self, now: Instant, id: WorkerId, boot: Duration) {
        let is_new = self.is_current_generation(id);
        let pid = match self.workers.get_mut(&id) {
            Some(worker) if worker.state == WorkerState::Booting => {
                worker.set_state(WorkerState::Ready, now, None);
                worker.pid
            }
            _ => return,
        };
        self.actions.push(SupervisorAction::Admit { worker: id });
        self.emit_report(SupervisorReport::WorkerReady {
            worker: id,
            pid,
            boot,
        });
        self.boot_backoff = RestartBackoff::default();
        self.failure_report = None;
        self.last_boot_time = boot;
        if let Some(restart) = &mut self.rolling_restart {
            restart.is_proven |= is_new;
        }
        let has_worker =
            |replica: &&mut Replica| [replica.worker, replica.successor].contains(&Some(id));
        let Some(replica) = self.replicas.iter_mut().find(has_worker) else {
            return;
        };
        replica.has_served = true;
        if replica.successor == Some(id) {
            replica.successor = None;
            if let Some(old) = replica.worker.replace(id) {
                self.retire_or_stop(now, old);
            }
        }
    }

    pub(super) fn handle_boot_failed(&mut self, now: Instant, id: WorkerId, report: String) {
        if self.worker_state(id) == Some(WorkerState::Booting) {
            self.record_boot_failure(now, id, report);
            self.stop_worker(now, id, StopSignal::Terminate);
        }
    }

    pub(super) fn handle_exited(&mut self, now: Instant, id: WorkerId, status: ExitSummary) {
        match self.worker_state(id) {
            Some(WorkerState::Booting) => {
                let report = format!("the worker {status} before it was ready");
                self.record_boot_failure(now, id, report);
            }
            Some(WorkerState::Ready) => self.handle_crash(now, id, status),
            Some(WorkerState::Retiring | WorkerState::Stopping) | None => {}
        }
        self.workers.remove(&id);
    }

    pub(super) fn handle_kill_requested(&mut self, now: Instant, id: WorkerId, reason: KillReason) {
        match self.worker_state(id) {
            Some(WorkerState::Booting) => {
                self.record_boot_failure(now, id, format!("the worker was killed: {reason}"));
            }
            Some(WorkerState::Ready) => {
                self.actions.push(SupervisorAction::Retire { worker: id });
                let delay = self.record_crash(now, id);
                if delay > Duration::ZERO {
                    self.record_code_failure(now, id, format!("the worker was killed: {reason}"));
                }
            }
            Some(WorkerState::Retiring) => {}
            Some(WorkerState::Stopping) | None => return,
        }
        self.kill_worker(now, id, reason);
    }

    pub(super) fn handle_idle(&mut self, now: Instant, id: WorkerId) {
        if self.worker_state(id) == Some(WorkerState::Retiring) {
            self.stop_worker(now, id, StopSignal::Terminate);
        }
    }

    pub(super) fn handle_replacement_requested(&mut self, id: WorkerId, why: ReplaceReason) {
        // One that still boots is replaced after it: what makes it worn says nothing against it.
        if let Some(worker) = self.workers.get_mut(&id)
            && matches!(worker.state, WorkerState::Booting | WorkerState::Ready)
        {
            worker.replace_reason.get_or_insert(why);
        }
    }

    pub(super) fn handle_load(&mut self, now: Instant, load: &AppLoad) {
        let processes = self.policy.min_processes..self.policy.max_processes;
        let threads = self.policy.min_threads..self.policy.max_threads;
        if self.phase != SupervisorPhase::Running || (processes.is_empty() && threads.is_empty()) {
            return;
        }
        let ready = self.ready_worker_count();
        let scale = CurrentScale {
            target: self.target_workers,
            threads: self.threads_per_worker,
            ready,
            boot_time: self.last_boot_time,
            may_grow: ready >= self.target_workers || !self.boot_backoff.has_failures(),
            may_shrink: self.rolling_restart.is_none(),
        };
        let Some(ScalingStep {
            quantity: of,
            target: to,
            reason: why,
        }) = self.scaling.observe(now, load, scale, &self.policy)
        else {
            return;
        };
        match of {
            ScaledQuantity::Processes => {
                let from = std::mem::replace(&mut self.target_workers, to);
                self.emit_report(SupervisorReport::Scaled { from, to, why });
            }
            ScaledQuantity::Threads => {
                let from = self.threads_per_worker;
                self.set_threads(to);
                self.emit_report(SupervisorReport::ThreadsScaled { from, to, why });
            }
        }
    }

    pub(super) fn set_threads(&mut self, threads: usize) {
        if self.threads_per_worker != threads {
            self.threads_per_worker = threads;
            self.actions.push(SupervisorAction::SetThreads(threads));
        }
    }

    pub(super) fn handle_restart(&mut self) {
        if self.phase == SupervisorPhase::Running {
            // Asked twice is asked once: the code is read when the restart begins.
            self.is_restart_queued = true;
        } else {
            let why = "the application is not running".to_owned();
            self.actions.push(SupervisorAction::RestartDone(Err(why)));
        }
    }

    pub(super) fn handle_drain(&mut self, now: Instant) {
        match self.phase {
            SupervisorPhase::Running => self.phase = SupervisorPhase::Draining,
            SupervisorPhase::Draining => return,
            SupervisorPhase::Stopped => {
                self.actions.push(SupervisorAction::Stopped);
                return;
            }
        }
        let unanswered = usize::from(self.rolling_restart.take().is_some());
        let queued = usize::from(std::mem::take(&mut self.is_restart_queued));
        for _ in 0..unanswered + queued {
            let why = "the application is stopping".to_owned();
            self.actions.push(SupervisorAction::RestartDone(Err(why)));
        }
        while let Some(replica) = self.replicas.pop() {
            self.stop_replica(now, &replica);
        }
    }

    pub(super) fn handle_drain_overdue(&mut self, now: Instant) {
        if self.phase != SupervisorPhase::Draining {
            return;
        }
        let retiring = |w: &&Worker| w.state == WorkerState::Retiring;
        let ids: Vec<_> = self.workers().filter(retiring).map(|w| w.id).collect();
        for id in ids {
            self.stop_worker(now, id, StopSignal::Terminate);
        }
    }
}
