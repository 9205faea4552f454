//! Brings the workers in line with the desired state after every event: spawns, replaces, retires
//! or kills them.
//!
//! The second half of the supervisor's state machine, after `events`.
//!
//! # Invariants
//! - Called twice in a row it does nothing the second time.
//! - All that it leaves undone has an event or a timer that brings it back.

use std::cmp::Reverse;
use std::time::Instant;

use super::replica::{Replica, RestartBackoff};
use super::{
    KillReason, RollingRestart, Supervisor, SupervisorAction, SupervisorPhase, SupervisorPolicy,
    SupervisorReport, Worker, WorkerState,
};

impl Supervisor {
    /// Brings the workers in line with the desired state, and returns the actions.
    pub(super) fn reconcile(&mut self, now: Instant) -> Vec<SupervisorAction> {
        self.enforce_deadlines(now);
        if self.phase == SupervisorPhase::Running {
            self.resize_replicas(now);
            self.finish_restart(now);
            if self.is_restart_queued && self.rolling_restart.is_none() {
                self.begin_restart(now);
                // Without any process there is nothing to wait for.
                self.finish_restart(now);
            }
            self.fill_replicas(now);
            self.spawn_successors(now);
            self.report_up(now);
            self.is_growing_to_initial_size &=
                !self.was_up || self.ready_worker_count() < self.target_workers;
        }
        if self.phase == SupervisorPhase::Draining && self.workers.is_empty() {
            self.phase = SupervisorPhase::Stopped;
            self.actions.push(SupervisorAction::Stopped);
        }
        let wake_at = self.next_wake();
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            self.actions.extend(wake_at.map(SupervisorAction::WakeAt));
        }
        std::mem::take(&mut self.actions)
    }

    fn enforce_deadlines(&mut self, now: Instant) {
        let is_overdue = |w: &&Worker| w.deadline.is_some_and(|at| at <= now);
        let next = |s: &Self| s.workers().find(is_overdue).map(|w| (w.id, w.state));
        while let Some((id, state)) = next(self) {
            if state != WorkerState::Booting {
                let limit = self.policy.stop_timeout;
                self.kill_worker(now, id, KillReason::StopTimedOut { limit });
                continue;
            }
            let limit = self.policy.boot_timeout;
            let report = format!("the worker was not ready after {limit:?} and was killed");
            self.record_boot_failure(now, id, report);
            self.kill_worker(now, id, KillReason::BootTimedOut);
        }
    }

    fn resize_replicas(&mut self, now: Instant) {
        let SupervisorPolicy {
            min_processes: min,
            max_processes: max,
            ..
        } = self.policy;
        self.target_workers = self.target_workers.min(max).max(min);
        let threads = self.threads_per_worker.min(self.policy.max_threads);
        self.set_threads(threads.max(self.policy.min_threads));
        while self.replicas.len() > self.target_workers
            && let Some(index) = self.surplus_replica()
        {
            let replica = self.replicas.remove(index);
            self.stop_replica(now, &replica);
        }
        self.replicas
            .resize_with(self.target_workers, Replica::default);
    }

    /// The replica to remove when there is one too many: one that does not serve, or whose worker
    /// is to be replaced anyway, else the newest.
    fn surplus_replica(&self) -> Option<usize> {
        let cost = |index: &usize| {
            let replica = &self.replicas[*index];
            let worker = self.worker_of(replica);
            let worker = worker.filter(|w| w.state == WorkerState::Ready);
            let generation = worker.map_or(0, |w| w.generation);
            let is_wanted = worker.is_some_and(|w| self.is_current(w));
            let has_successor = replica.successor.is_some();
            (is_wanted, has_successor, generation, Reverse(*index))
        };
        (0..self.replicas.len()).min_by_key(cost)
    }

    fn begin_restart(&mut self, now: Instant) {
        let has_ready = self.ready_worker_count() > 0;
        self.is_restart_queued = false;
        self.restart_error = None;
        self.rolling_restart = Some(RollingRestart {
            fallback_generation: has_ready.then_some(self.generation),
            is_proven: false,
            began_at: now,
        });
        self.last_generation += 1;
        self.generation = self.last_generation;
        self.boot_backoff = RestartBackoff::default();
        self.replicas.iter_mut().for_each(Replica::reset_crashes);
        let generation = self.generation;
        self.emit_report(SupervisorReport::RestartBegan { generation });
        // This restart has no use for a successor that boots. When nothing serves, nor has it for
        // old code that boots.
        self.stop_workers(now, |replica| replica.successor.take());
        if !has_ready {
            self.stop_workers(now, |replica| replica.worker.take());
        }
    }

    fn fill_replicas(&mut self, now: Instant) {
        let fallback = self
            .rolling_restart
            .as_ref()
            .and_then(|restart| restart.fallback_generation);
        let fallback = fallback.filter(|_| self.is_restart_unproven());
        let generation = fallback.unwrap_or(self.generation);
        for index in 0..self.replicas.len() {
            let replica = &self.replicas[index];
            if replica.worker.is_some() {
                continue;
            }
            let successor = replica.successor.and_then(|id| self.workers.get(&id));
            if successor.is_some_and(|w| w.generation == generation) {
                // It was to replace one that is gone now.
                let replica = &mut self.replicas[index];
                replica.worker = replica.successor.take();
                continue;
            }
            let is_due = replica.next_spawn_at().is_none_or(|at| at <= now);
            if is_due && self.may_boot(now) && self.may_spawn(now) {
                let worker = self.spawn(now, index, generation);
                self.replicas[index].worker = Some(worker);
            }
        }
    }

    /// Replaces workers that run other code than they should, or are worn.
    fn spawn_successors(&mut self, now: Instant) {
        while let Some(replacement) = self.next_replacement() {
            // The first failure of a new version ends its trial, so back-off has no say in it.
            if !(self.has_fallback_generation() || self.may_boot(now)) || !self.may_spawn(now) {
                return;
            }
            match replacement {
                Replacement::Beside(index) => {
                    let successor = self.spawn(now, index, self.generation);
                    self.replicas[index].successor = Some(successor);
                }
                Replacement::InPlace(index) => {
                    if let Some(old) = self.replicas[index].worker.take() {
                        self.retire_or_stop(now, old);
                    }
                    let worker = self.spawn(now, index, self.generation);
                    self.replicas[index].worker = Some(worker);
                }
            }
        }
    }

    /// What may be replaced now, as far as numbers go.
    fn next_replacement(&self) -> Option<Replacement> {
        let successors = self
            .replicas
            .iter()
            .filter(|replica| replica.successor.is_some());
        let successors = successors.count();
        let surge = self.policy.max_surge.max(1);
        if self.is_restart_unproven() {
            // The first of a new version is alone, and nothing is taken out for it.
            let index = self.stale_replica().filter(|_| successors == 0);
            return index.map(Replacement::Beside);
        }
        let room_beside = surge.saturating_sub(successors);
        // A worker that is taken out first need not run beside.
        let removable = self.max_removable();
        let room_for_stale = room_beside.saturating_sub(removable);
        let absent = self.replicas.len() - self.ready_replicas();
        for (index, replica) in self.replicas.iter().enumerate() {
            let worker = self.worker_of(replica).filter(|w| !self.is_current(w));
            let Some(worker) = worker.filter(|_| replica.successor.is_none()) else {
                continue;
            };
            // One that is only worn is worth a successor beside it always.
            let is_stale = worker.generation != self.generation;
            let is_absent = worker.state != WorkerState::Ready;
            let may_run_beside = match is_stale {
                true => room_for_stale > 0,
                false => room_beside > 0 && !is_absent,
            };
            if may_run_beside {
                return Some(Replacement::Beside(index));
            }
            if is_stale && removable > 0 && (is_absent || absent < removable) {
                return Some(Replacement::InPlace(index));
            }
        }
        None
    }

    /// How many a restart may take out before their successors are ready.
    fn max_removable(&self) -> usize {
        let others = self.replicas.len().saturating_sub(1);
        self.policy.max_unavailable.min(others)
    }

    fn finish_restart(&mut self, now: Instant) {
        let Some(restart) = &self.rolling_restart else {
            return;
        };
        let took = now.saturating_duration_since(restart.began_at);
        let is_done = |replica: &Replica| {
            let worker = self.worker_of(replica);
            worker.is_some_and(|w| w.state == WorkerState::Ready && w.generation == self.generation)
        };
        if self.replicas.iter().all(is_done) {
            let generation = self.generation;
            self.rolling_restart = None;
            self.emit_report(SupervisorReport::Restarted { generation, took });
            self.actions.push(SupervisorAction::RestartDone(Ok(())));
        }
    }

    fn report_up(&mut self, now: Instant) {
        if self.was_up || self.ready_worker_count() < self.policy.min_processes {
            return;
        }
        self.was_up = true;
        if let Some(started_at) = self.started_at {
            let took = now.saturating_duration_since(started_at);
            self.emit_report(SupervisorReport::Up { took });
        }
        if self.is_growing_to_initial_size {
            self.target_workers = self
                .target_workers
                .max(self.policy.bounded_initial_processes());
            self.resize_replicas(now);
            self.fill_replicas(now);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let deadlines = self.workers().filter_map(|w| w.deadline).min();
        if self.phase != SupervisorPhase::Running
            || (self.boot_backoff.has_failures() && self.has_booting_worker())
        {
            return deadlines;
        }
        let rate_limited = self
            .spawn_rate
            .next_allowed_at(self.max_spawns_per_second());
        let held_back = self.boot_backoff.next_attempt_at().max(rate_limited);
        let vacant = self
            .replicas
            .iter()
            .filter(|replica| replica.worker.is_none());
        // A replica without a date of its own waits for the application's.
        let tries = vacant.filter_map(|replica| replica.next_spawn_at().max(held_back));
        let waits = self.next_replacement().is_some();
        let replacement = match self.has_fallback_generation() {
            true => rate_limited,
            false => held_back,
        };
        let replacement = replacement.filter(|_| waits);
        deadlines.into_iter().chain(tries).chain(replacement).min()
    }

    fn may_spawn(&mut self, now: Instant) -> bool {
        self.spawn_rate.remaining(now, self.max_spawns_per_second()) > 0
    }

    fn max_spawns_per_second(&self) -> usize {
        let rate = self.policy.spawn_rate.max(1) as usize;
        rate.saturating_mul(SPAWNS_BEYOND_RATE)
    }

    pub(super) fn is_restart_unproven(&self) -> bool {
        let restart = self.rolling_restart.as_ref();
        restart.is_some_and(|restart| restart.fallback_generation.is_some() && !restart.is_proven)
    }

    pub(super) fn stale_replica(&self) -> Option<usize> {
        let is_stale =
            |replica: &Replica| self.worker_of(replica).is_some_and(|w| !self.is_current(w));
        self.replicas.iter().position(is_stale)
    }

    /// Whether a worker runs what it should and is not worn.
    fn is_current(&self, worker: &Worker) -> bool {
        worker.replace_reason.is_none() && worker.generation == self.generation
    }

    fn worker_of(&self, replica: &Replica) -> Option<&Worker> {
        replica.worker.and_then(|id| self.workers.get(&id))
    }

    /// Replicas whose worker serves.
    fn ready_replicas(&self) -> usize {
        let serves = |w: &&Worker| w.state == WorkerState::Ready;
        let workers = self
            .replicas
            .iter()
            .filter_map(|replica| self.worker_of(replica));
        workers.filter(serves).count()
    }
}

/// Where a successor is spawned.
#[derive(Clone, Copy, Debug)]
enum Replacement {
    /// In the replica, next to the worker that serves there until it is ready.
    Beside(usize),
    /// In the replica, which its worker leaves now.
    InPlace(usize),
}

/// How many times `spawn_rate` are spawned within a second at most: enough for any start, crash or
/// restart, and an end to every storm.
const SPAWNS_BEYOND_RATE: usize = 20;
