//! The supervisor of one application: which worker processes there are and what happens to them.
//!
//! A pure state machine. Input is [`Supervisor::handle_event`] with one [`SupervisorEvent`]; output
//! is a list of [`SupervisorAction`]s, to be carried out in order by the executor, which owns
//! processes, sockets, timers and the queue. Every `Spawn` must be answered by `Spawned` or
//! `SpawnFailed`, soon after `Abandon`; every end of a process by `Exited` (after `BootFailed`, if
//! the process left a traceback); every `Retire` by `Idle` once nothing is in progress. `WakeAt`
//! replaces the timer set before; `Tick` answers it. Each event has its effect (`events`), then its
//! consequences follow (`reconcile`). The executor watches the limits of memory, age, requests and
//! time, and sends `ReplacementRequested` or `KillRequested`.
//!
//! # Invariants
//! - No event takes a healthy worker out before its successor is ready, but for a restart that may
//!   (`max_unavailable`, and only for code that has booted) and for a load that has become less.
//! - At most `max_processes` + `max_surge` boot or serve at once, not counting those that only
//!   finish their requests.
//! - Their number grows with the load by `max_spawn_rate` a second at most, and stays between its
//!   bounds.
//! - A killed or crashed worker is replaced.
//! - An event about an unknown worker changes nothing.
//! - A restart is answered exactly once.
//! - `Stopped` comes when no process is left.

mod events;
mod message;
mod rate_window;
mod reconcile;
mod replica;
mod report;
mod scaling;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod worker;
mod worker_lifecycle;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(crate) use message::{
    AppLoad, StopSignal, SupervisorAction, SupervisorEvent, SupervisorPolicy,
};
use rate_window::RateWindow;
use replica::{Replica, RestartBackoff};
pub(crate) use report::{AppState, ExitSummary, KillReason, ReplaceReason, SupervisorReport};
use scaling::Autoscaler;
pub(crate) use worker::{Worker, WorkerId, WorkerState};

/// The state machine; see the head of this file for the contract.
#[derive(Debug)]
pub(crate) struct Supervisor {
    policy: SupervisorPolicy,
    phase: SupervisorPhase,
    /// How many replicas there are to be, between the bounds of the policy.
    pub(crate) target_workers: usize,
    /// How many threads of each worker take requests, between the bounds of the policy.
    pub(crate) threads_per_worker: usize,
    scaling: Autoscaler,
    spawn_rate: RateWindow,
    replicas: Vec<Replica>,
    workers: BTreeMap<WorkerId, Worker>,
    last_worker_id: u64,
    /// The generation that every replica should run.
    generation: u64,
    last_generation: u64,
    rolling_restart: Option<RollingRestart>,
    is_restart_queued: bool,
    boot_backoff: RestartBackoff,
    last_boot_time: Duration,
    failure_report: Option<String>,
    /// Why the last restart was given up, until the next one begins.
    pub(crate) restart_error: Option<String>,
    started_at: Option<Instant>,
    was_up: bool,
    /// Whether it still grows to its initial number of workers. A failed boot ends that: those that
    /// serve are enough to go on with.
    pub(crate) is_growing_to_initial_size: bool,
    wake_at: Option<Instant>,
    actions: Vec<SupervisorAction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SupervisorPhase {
    Stopped,
    Running,
    Draining,
}

/// A restart under way.
#[derive(Debug)]
struct RollingRestart {
    /// The generation to return to; `None` when nothing worth keeping was running.
    fallback_generation: Option<u64>,
    /// Whether a worker of the new generation has become ready.
    is_proven: bool,
    began_at: Instant,
}

impl Supervisor {
    /// Creates a supervisor that waits for `Started`.
    pub(crate) fn new(policy: SupervisorPolicy) -> Self {
        Self {
            phase: SupervisorPhase::Stopped,
            target_workers: policy.min_processes,
            is_growing_to_initial_size: false,
            threads_per_worker: policy.min_threads,
            policy,
            scaling: Autoscaler::default(),
            spawn_rate: RateWindow::default(),
            replicas: Vec::new(),
            workers: BTreeMap::new(),
            last_worker_id: 0,
            generation: 1,
            last_generation: 1,
            rolling_restart: None,
            is_restart_queued: false,
            boot_backoff: RestartBackoff::default(),
            last_boot_time: Duration::ZERO,
            failure_report: None,
            restart_error: None,
            started_at: None,
            was_up: false,
            wake_at: None,
            actions: Vec::new(),
        }
    }

    /// Takes in one event; the actions are to be carried out in order.
    #[must_use = "every action counts"]
    pub(crate) fn handle_event(
        &mut self,
        now: Instant,
        event: SupervisorEvent,
    ) -> Vec<SupervisorAction> {
        match event {
            SupervisorEvent::Started => self.handle_started(now),
            SupervisorEvent::Spawned { worker, pid } => self.handle_spawned(now, worker, pid),
            SupervisorEvent::SpawnFailed { worker, reason } => {
                self.handle_spawn_failed(now, worker, reason);
            }
            SupervisorEvent::Ready { worker, boot } => self.handle_ready(now, worker, boot),
            SupervisorEvent::BootFailed { worker, report } => {
                self.handle_boot_failed(now, worker, report);
            }
            SupervisorEvent::Exited { worker, status } => self.handle_exited(now, worker, status),
            SupervisorEvent::Idle { worker } => self.handle_idle(now, worker),
            SupervisorEvent::ReplacementRequested { worker, why } => {
                self.handle_replacement_requested(worker, why);
            }
            SupervisorEvent::KillRequested { worker, reason } => {
                self.handle_kill_requested(now, worker, reason);
            }
            SupervisorEvent::Load(load) => self.handle_load(now, &load),
            SupervisorEvent::Restart => self.handle_restart(),
            SupervisorEvent::Drain => self.handle_drain(now),
            SupervisorEvent::DrainOverdue => self.handle_drain_overdue(now),
            SupervisorEvent::Tick => self.wake_at = None,
        }
        self.reconcile(now)
    }

    /// Every process that has been asked for and has not exited, oldest first.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// The application as a whole.
    pub(crate) fn app_state(&self) -> AppState {
        match self.phase {
            SupervisorPhase::Stopped => return AppState::Stopped,
            SupervisorPhase::Draining => return AppState::Draining,
            SupervisorPhase::Running => {}
        }
        let ready = self.ready_worker_count();
        match &self.failure_report {
            _ if ready >= self.needed_ready() => AppState::Ready,
            Some(report) if ready == 0 => AppState::Failing {
                report: report.clone(),
            },
            None if ready == 0 || !self.was_up => AppState::Starting,
            _ => AppState::Degraded,
        }
    }

    /// How many have to be ready for all to be well: one that the load has just asked for is not
    /// missing before it has served.
    fn needed_ready(&self) -> usize {
        let served = self
            .replicas
            .iter()
            .filter(|replica| replica.has_served)
            .count();
        served.max(self.policy.min_processes)
    }

    /// Whether the code does not even boot: then requests need not wait for a worker. One that
    /// boots and crashes is back within half a second.
    pub(crate) fn is_boot_failing(&self) -> bool {
        self.boot_backoff.has_failures()
    }

    /// Why the number of workers, or of their threads, changed last with the load, in words.
    pub(crate) fn last_scaling(&self) -> Option<&str> {
        self.scaling.last_change()
    }

    /// The code that workers are spawned with, and what a restart under way would return to: of
    /// these it must be at hand.
    pub(crate) fn current_and_fallback_generations(&self) -> (u64, Option<u64>) {
        let fallback = self
            .rolling_restart
            .as_ref()
            .and_then(|restart| restart.fallback_generation);
        (self.generation, fallback)
    }

    /// Whether a restart is under way or waits for its turn.
    pub(crate) fn is_restarting(&self) -> bool {
        self.rolling_restart.is_some() || self.is_restart_queued
    }
}
