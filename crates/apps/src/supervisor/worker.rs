//! One worker process in the eyes of the supervisor.
//!
//! The supervisor alone changes it; the status page reads it. A worker passes through its states in
//! their order, may skip some and never goes back.

use std::fmt;
use std::time::Instant;

use super::{ReplaceReason, StopSignal};

/// Names one worker of this application; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WorkerId(pub(crate) u64);

/// One worker process, as the status page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Worker {
    /// Its name.
    pub(crate) id: WorkerId,
    /// The code it runs.
    pub(crate) generation: u64,
    /// Its process, once spawned.
    pub(crate) pid: Option<u32>,
    /// What it is doing.
    pub(crate) state: WorkerState,
    /// Since when it has been doing that.
    pub(crate) state_since: Instant,
    /// How many workers its replica had before it.
    pub(crate) restarts: u64,
    /// Why it is to be replaced by a fresh one.
    pub(crate) replace_reason: Option<ReplaceReason>,
    /// When its state has to end.
    pub(super) deadline: Option<Instant>,
    /// The strongest signal it was given, or is given as soon as it is spawned.
    pub(super) stop_signal: Option<StopSignal>,
}

/// The life of a worker, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerState {
    /// Spawned, or about to be; not ready yet.
    Booting,
    /// Takes requests.
    Ready,
    /// Takes no more requests, finishes those it has.
    Retiring,
    /// Was signaled and has not exited.
    Stopping,
}

impl Worker {
    pub(super) fn set_state(
        &mut self,
        state: WorkerState,
        now: Instant,
        deadline: Option<Instant>,
    ) {
        self.state = state;
        self.state_since = now;
        self.deadline = deadline;
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
