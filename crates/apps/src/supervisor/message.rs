//! The input and output of the supervisor: its policy, its events, its actions.
//!
//! The executor turns the news of processes, sockets and timers into [`SupervisorEvent`]s and
//! carries out the [`SupervisorAction`]s. The order of calls is at the head of `supervisor.rs`;
//! nothing here has behaviour.

use std::time::{Duration, Instant};

use super::{ExitSummary, KillReason, ReplaceReason, SupervisorReport, WorkerId};

/// How many processes, and how patient to be with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SupervisorPolicy {
    /// Workers that are there for ever.
    pub(crate) min_processes: usize,
    /// Workers that there may be, at least `processes_min`; what lies between follows the load.
    pub(crate) max_processes: usize,
    /// Workers that there are to be as soon as the least of them serve; a number outside the bounds
    /// is brought between them.
    pub(crate) initial_processes: usize,
    /// Threads of each worker that take requests for ever.
    pub(crate) min_threads: usize,
    /// Threads of each that may take requests, at least `threads_min`.
    pub(crate) max_threads: usize,
    /// Threads of each that take requests at the start, as `initial_processes`.
    pub(crate) initial_threads: usize,
    /// Workers beyond their number that a replacement may run at once; 0 counts as 1.
    pub(crate) max_surge: usize,
    /// Workers that a restart may take out before their successors are ready, once the new code has
    /// shown that it boots. One always stays.
    pub(crate) max_unavailable: usize,
    /// Workers a second by which the load may make their number grow; 0 counts as 1. No more than
    /// 20 times as many are spawned within a second for any reason.
    pub(crate) spawn_rate: u32,
    /// There is to be one more when a request has waited this long for a slot.
    pub(crate) scale_up_after: Duration,
    /// There is to be one less when it would not have been missed for this long.
    pub(crate) scale_down_after: Duration,
    /// From spawn to ready.
    pub(crate) boot_timeout: Duration,
    /// From the terminate signal to the kill signal.
    pub(crate) stop_timeout: Duration,
    /// Delay after the first failure that is not retried at once.
    pub(crate) min_backoff: Duration,
    /// Where the doubling of the delay ends.
    pub(crate) max_backoff: Duration,
}

impl SupervisorPolicy {
    pub(super) fn bounded_initial_processes(&self) -> usize {
        (self.initial_processes.min(self.max_processes)).max(self.min_processes)
    }

    pub(super) fn bounded_initial_threads(&self) -> usize {
        (self.initial_threads.min(self.max_threads)).max(self.min_threads)
    }
}

impl Default for SupervisorPolicy {
    fn default() -> Self {
        Self {
            min_processes: 1,
            max_processes: 1,
            initial_processes: 0,
            min_threads: 1,
            max_threads: 1,
            initial_threads: 0,
            max_surge: 1,
            max_unavailable: 0,
            spawn_rate: 4,
            scale_up_after: Duration::from_millis(100),
            scale_down_after: Duration::from_secs(60),
            boot_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(10),
            min_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(30),
        }
    }
}

/// How much an application has to do, in slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppLoad {
    /// Requests in the queue.
    pub(crate) queued: usize,
    /// How long the first of them has waited; zero without one.
    pub(crate) oldest_wait: Duration,
    /// Requests that workers have.
    pub(crate) in_progress: usize,
    /// Slots of the workers that are admitted and not retired.
    pub(crate) slots: usize,
    /// Per cent of a processor that the workers want together, at most 100 for each: of those that
    /// take nearly every request at once, and of those with a number of threads that follows the
    /// load. `None` where slots tell how much there is to do.
    pub(crate) cpu_percent: Option<usize>,
    /// Since when at the latest most of them have been watched for it; `None` while they have not
    /// been.
    pub(crate) cpu_known_since: Option<Instant>,
}

/// Everything that can happen to an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorEvent {
    /// The application starts.
    Started,
    /// The process exists, which may take a while: a forked one is known once it has spoken.
    Spawned { worker: WorkerId, pid: u32 },
    /// The process could not be made.
    SpawnFailed { worker: WorkerId, reason: String },
    /// It has loaded the application and can take requests.
    Ready { worker: WorkerId, boot: Duration },
    /// It could not load the application; the report is the traceback.
    BootFailed { worker: WorkerId, report: String },
    /// The process is gone.
    Exited {
        worker: WorkerId,
        status: ExitSummary,
    },
    /// A retiring worker has nothing in progress.
    Idle { worker: WorkerId },
    /// It reached a limit at which it is replaced after its requests.
    ReplacementRequested {
        worker: WorkerId,
        why: ReplaceReason,
    },
    /// A process must be killed, for this reason. A closed channel alone is none: the process is
    /// about to exit, and `Exited` or `BootFailed` follows.
    KillRequested {
        worker: WorkerId,
        reason: KillReason,
    },
    /// The present load: sent about ten times a second when the number of workers may change.
    Load(AppLoad),
    /// Restart with the new code.
    Restart,
    /// Stop all, finishing requests in progress.
    Drain,
    /// The drain's own deadline has passed: terminate those that still work.
    DrainOverdue,
    /// The timer fired.
    Tick,
}

/// What the executor has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorAction {
    /// Start a process with the code of this generation; a new number means: load it afresh.
    Spawn { worker: WorkerId, generation: u64 },
    /// Put its slots into the queue; should it exit unasked, they go with it.
    Admit { worker: WorkerId },
    /// Take its slots out of the queue; send `Idle` when nothing is in progress.
    Retire { worker: WorkerId },
    /// It was to be spawned, nothing has been heard of it, and it is not wanted any more: send
    /// `Spawned` (it gets its signal then) or `SpawnFailed` soon.
    Abandon { worker: WorkerId },
    /// Send a signal; the process exists, according to the events.
    Signal {
        worker: WorkerId,
        signal: StopSignal,
    },
    /// Let so many threads of each worker take requests, also of those that are admitted later.
    SetThreads(usize),
    /// Log this.
    Report(SupervisorReport),
    /// Send `Tick` at this time; replaces the time set before.
    WakeAt(Instant),
    /// The drain is complete: no process is left.
    Stopped,
    /// A restart is over, and with it every one asked for before it began; the error is the
    /// traceback or the cause.
    RestartDone(Result<(), String>),
}

/// The signals a worker may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// Please go.
    Terminate,
    /// Go.
    Kill,
}
