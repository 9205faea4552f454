//! The supervisor of one application: which worker processes there are and what becomes of them.
//!
//! A pure machine. Input is [`Supervisor::handle`] with one [`Event`]; output is a list of
//! [`Action`]s, to be carried out in order by the executor, which owns processes, sockets, timers
//! and the queue. Every `Spawn` must be answered by `Spawned` or `SpawnFailed`, soon after `Abandon`,
//! every end of a process by `Exited` (after `BootFailed`, if the process left a traceback), every
//! `Retire` by `Idle` once nothing is in progress. `WakeAt` replaces the timer set before; `Tick`
//! answers it. Each event has its effect (`events`), then what follows is settled (`settle`).
//!
//! What must stay true, and is simulated: no event makes the machine take a healthy worker out
//! before its successor is ready, but for a restart that may (`max_unavailable`, and only for code
//! that has shown that it boots) and for a load that has become less; at most `processes_max` +
//! `max_surge` boot or serve at once, those that only finish what they have not counted; their number
//! grows with the load by `spawn_rate` a second at most, and stays between its bounds; whatever is
//! killed or crashes is replaced; an event about an unknown worker changes nothing; a restart is
//! answered exactly once; `Stopped` is said when no process is left. The limits of memory, age,
//! requests and time are watched by the executor, which says `Recycle`, `Exceeded` or
//! `ResponseTimedOut`.

mod events;
mod message;
mod rate;
mod report;
mod scaling;
mod seat;
mod settle;
#[cfg(test)]
mod simulation;
mod steps;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use message::{Action, Event, Load, Policy, Signal};
use rate::Rate;
pub use report::{AppState, ExitSummary, KillReason, Report, Worn};
use scaling::Scaling;
use seat::{Backoff, Seat};
pub use worker::{Worker, WorkerId, WorkerState};

/// The machine; see the head of this file for the contract.
#[derive(Debug)]
pub struct Supervisor {
    policy: Policy,
    phase: Phase,
    /// How many seats there are to be.
    target: usize,
    /// How many threads of each worker take requests.
    threads: usize,
    scaling: Scaling,
    spawns: Rate,
    seats: Vec<Seat>,
    workers: BTreeMap<WorkerId, Worker>,
    worker_last: u64,
    /// What every seat should run.
    generation: u64,
    generation_last: u64,
    roll: Option<Roll>,
    is_roll_queued: bool,
    boots: Backoff,
    last_boot: Duration,
    report: Option<String>,
    restart_error: Option<String>,
    started_at: Option<Instant>,
    was_up: bool,
    /// Fewer serve than there were of what this one follows, and none has failed.
    is_catching_up: bool,
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
            phase: Phase::Stopped,
            target: policy.processes_min,
            is_catching_up: false,
            threads: policy.threads_min,
            policy,
            scaling: Scaling::default(),
            spawns: Rate::default(),
            seats: Vec::new(),
            workers: BTreeMap::new(),
            worker_last: 0,
            generation: 1,
            generation_last: 1,
            roll: None,
            is_roll_queued: false,
            boots: Backoff::default(),
            last_boot: Duration::ZERO,
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
            Event::Recycle { worker, why } => self.handle_recycle(worker, why),
            Event::Exceeded { worker, reason } => self.handle_broken(now, worker, reason),
            Event::Load(load) => self.handle_load(now, &load),
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
            _ if ready >= self.needed() => AppState::Ready,
            Some(report) if ready == 0 => AppState::Failing {
                report: report.clone(),
            },
            None if ready == 0 || !self.was_up => AppState::Starting,
            _ => AppState::Degraded,
        }
    }

    /// How many have to be ready for all to be well: one that the load has just asked for is not
    /// missing before it has served.
    fn needed(&self) -> usize {
        let served = self.seats.iter().filter(|seat| seat.has_served).count();
        served.max(self.policy.processes_min)
    }

    /// Whether the code does not even boot: then requests need not wait for a worker. One that boots
    /// and crashes is back within half a second.
    pub fn is_boot_failing(&self) -> bool {
        self.boots.is_active()
    }

    /// Whether it still comes to the number that it is to begin with: not any more once a worker did not boot, since
    /// those that serve are enough to go on with.
    pub fn is_catching_up(&self) -> bool {
        self.is_catching_up
    }

    /// Why the last restart was given up, until the next one begins.
    pub fn restart_error(&self) -> Option<&str> {
        self.restart_error.as_deref()
    }

    /// How many workers there are to be, between the bounds of the policy.
    pub fn target(&self) -> usize {
        self.target
    }

    /// How many threads of each worker take requests, between the bounds of the policy.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Why the number of workers, or of their threads, changed last with the load, in words.
    pub fn last_scaling(&self) -> Option<&str> {
        self.scaling.last()
    }

    /// The code that workers are spawned with, and what a restart under way would return to: of
    /// these it must be at hand.
    pub fn generations(&self) -> (u64, Option<u64>) {
        let fallback = self.roll.as_ref().and_then(|roll| roll.fallback);
        (self.generation, fallback)
    }

    /// Whether a restart is under way or waits for its turn.
    pub fn is_restarting(&self) -> bool {
        self.roll.is_some() || self.is_roll_queued
    }
}
