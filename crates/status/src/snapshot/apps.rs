//! Applications in the snapshot: their processes, their queue, what they counted.
//!
//! A part of `snapshot`, by the same rules: field names are a promise to scripts.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_exchange::metrics::{
    AppMetrics, Counter, HistogramValues, KILL_REASONS, RECYCLE_REASONS,
};
use serde::{Serialize, Serializer};

use super::serialize_seconds;

/// One application.
#[derive(Debug, Clone, Serialize)]
pub struct AppStatus {
    /// Its name.
    pub name: String,
    /// `wsgi`, `rack`, ...
    pub kind: String,
    /// starting, ready, degraded, failing, draining, stopped.
    pub state: String,
    /// The traceback of the last failed boot.
    pub boot_report: Option<String>,
    /// What the interpreter says of itself.
    pub interpreter: String,
    /// The code that is served.
    pub generation: u64,
    /// How many processes there are and may be.
    pub processes: ProcessesStatus,
    /// Why their number, or that of their threads, changed last, in words.
    pub last_scaling: Option<String>,
    /// When and how a process last ended unasked or was killed, in words.
    pub last_failure: Option<String>,
    /// Whether a restart is under way or waits for its turn.
    pub is_restarting: bool,
    /// Why the last restart was given up, until the next one begins.
    pub restart_error: Option<String>,
    /// How workers come to be: `forking`, or `plain` and why; empty where nothing is known yet.
    pub start_method: String,
    /// Threads in each process that take requests.
    pub threads: usize,
    /// There are never fewer.
    pub min_threads: usize,
    /// There are never more.
    pub max_threads: usize,
    /// What it takes with all that it starts, and may take.
    pub bounds: BoundsStatus,
    /// Its queue.
    pub queue: AppQueueStatus,
    /// What it counted since the start.
    pub counters: AppCounters,
    /// Waiting for a slot.
    pub queue_time: HistogramValues,
    /// From a worker getting the request to the head of its response.
    pub header_time: HistogramValues,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// The processes from which they are forked; they serve nothing.
    pub templates: Vec<WorkerStatus>,
}

/// The number of an application's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProcessesStatus {
    /// There are never fewer, but while one is being replaced.
    pub min: usize,
    /// Those that take requests.
    pub ready: usize,
    /// How many there are to be, as the load is.
    pub target: usize,
    /// There are never more, but while one is being replaced.
    pub max: usize,
}

/// What an application takes with all that it starts, and may take; `None` is not counted, or no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BoundsStatus {
    /// Processes and threads.
    pub tasks: Option<u64>,
    /// The bound on them (`max_tasks`).
    pub max_tasks: Option<u64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// The bound on it (`max_total_memory`).
    pub max_memory_bytes: Option<u64>,
    /// The bound on processors (`max_cpu`).
    pub max_cpu: Option<f64>,
}

/// An application's queue and slots.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AppQueueStatus {
    /// Requests waiting.
    pub length: usize,
    /// The bound on them.
    pub max: usize,
    /// Requests that could be in progress at once.
    pub slots: usize,
    /// Requests in progress in slots.
    pub active: usize,
    /// How long the oldest has waited.
    #[serde(rename = "oldest_wait_seconds", serialize_with = "serialize_seconds")]
    pub oldest_wait: Duration,
}

/// An application's counters since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AppCounters {
    /// Requests that reached the queue.
    pub requests: u64,
    /// Refused: the queue was full.
    pub queue_full: u64,
    /// Refused: waited too long.
    pub queue_timeouts: u64,
    /// Clients that left while they waited.
    pub queue_abandoned: u64,
    /// Requests on which the application raised or broke its interface's rules.
    pub failed_requests: u64,
    /// Requests inside a worker when it died.
    pub worker_deaths: u64,
    /// Requests cut by `response_timeout`.
    pub timed_out_requests: u64,
    /// Workers started.
    pub started_workers: u64,
    /// Workers that ended unasked.
    pub crashed_workers: u64,
    /// Workers that did not become ready.
    pub failed_boots: u64,
    /// Workers replaced in due form, by reason.
    pub recycled_workers: BTreeMap<&'static str, u64>,
    /// Workers killed, by reason.
    pub killed_workers: BTreeMap<&'static str, u64>,
    /// Times that the number of processes was raised with the load.
    pub scale_ups: u64,
    /// Times that it was lowered.
    pub scale_downs: u64,
    /// Requests that said that they are bound by I/O.
    pub io_bound_requests: u64,
    /// Those of them for which their worker had no spare slot left.
    pub io_bound_without_spare_slot: u64,
    /// Collections of garbage between requests.
    pub gc_runs: u64,
    /// System calls that its sandbox refused.
    pub refused_calls: u64,
    /// Processes and threads that could not be started for `max_tasks`.
    pub tasks_refused: u64,
    /// Processes that the kernel killed for want of memory.
    pub out_of_memory_kills: u64,
    /// How long its processes have waited for `max_cpu`.
    #[serde(rename = "throttled_seconds", serialize_with = "serialize_seconds")]
    pub throttled: Duration,
}

/// One worker process.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerStatus {
    /// Its process id, once it has one.
    pub pid: Option<u32>,
    /// The code it runs.
    pub generation: u64,
    /// booting, ready, retiring, stopping.
    pub state: String,
    /// Time in that state.
    #[serde(rename = "time_in_state_seconds", serialize_with = "serialize_seconds")]
    pub time_in_state: Duration,
    /// How many had its seat before.
    pub restarts: u64,
    /// Requests it has in progress.
    pub active: u32,
    /// Its resident memory.
    pub resident_bytes: Option<u64>,
    /// Its proportional memory as it was last measured: what it shares counts in parts.
    pub proportional_bytes: Option<u64>,
    /// Since its process was started.
    #[serde(rename = "age_seconds", serialize_with = "serialize_optional_seconds")]
    pub age: Option<Duration>,
    /// Requests that it has served; `None` of a server of its own.
    pub requests: Option<u64>,
    /// Why it is to be replaced, if it is.
    pub replace_reason: Option<String>,
}

impl AppCounters {
    /// The counters as they are now.
    #[must_use]
    pub fn new(metrics: &AppMetrics) -> Self {
        Self {
            requests: metrics.requests.value(),
            queue_full: metrics.queue_full.value(),
            queue_timeouts: metrics.queue_timeout.value(),
            queue_abandoned: metrics.queue_abandoned.value(),
            failed_requests: metrics.failed_requests.value(),
            worker_deaths: metrics.worker_deaths.value(),
            timed_out_requests: metrics.timed_out_requests.value(),
            started_workers: metrics.started_workers.value(),
            crashed_workers: metrics.crashed_workers.value(),
            failed_boots: metrics.failed_boots.value(),
            recycled_workers: by_reason(&RECYCLE_REASONS, &metrics.recycled_workers),
            killed_workers: by_reason(&KILL_REASONS, &metrics.killed_workers),
            scale_ups: metrics.scale_events[0].value(),
            scale_downs: metrics.scale_events[1].value(),
            io_bound_requests: metrics.io_bound_requests.value(),
            io_bound_without_spare_slot: metrics.io_bound_without_spare_slot.value(),
            gc_runs: metrics.gc_runs.value(),
            refused_calls: metrics.refused_calls.value(),
            tasks_refused: metrics.tasks_refused.value(),
            out_of_memory_kills: metrics.out_of_memory_kills.value(),
            throttled: Duration::from_micros(metrics.throttled_micros.value()),
        }
    }
}

/// Counters by the words for what they count.
fn by_reason(reasons: &[&'static str], counters: &[Counter]) -> BTreeMap<&'static str, u64> {
    let counts = counters.iter().map(Counter::value);
    reasons.iter().copied().zip(counts).collect()
}

fn serialize_optional_seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serialize_seconds(duration, serializer),
        None => serializer.serialize_none(),
    }
}
