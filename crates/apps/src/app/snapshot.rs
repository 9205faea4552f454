//! An application at one moment, as `/status.json` and `/metrics` show it.
//!
//! The executor publishes the states of the workers; the counters are read as they are now.

use std::sync::Arc;
use std::time::Duration;

use penstock_config as config;
use penstock_exchange::metric_table;
use penstock_exchange::metrics::{
    AppMetrics, HistogramValues, MetricValue, serialize_optional_seconds, serialize_seconds,
};
use penstock_runtime::clock;
use serde::{Serialize, Serializer};

use super::App;
use crate::dispatch::QueueUsage;
use crate::shared::WorkerView;

/// An application at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AppSnapshot {
    pub name: String,
    /// `wsgi`, `rack`, `command` or `fastcgi`.
    pub kind: &'static str,
    /// starting, ready, degraded, failing, draining, stopped.
    pub state: String,
    /// The traceback of the last failed boot.
    pub boot_report: Option<String>,
    /// What the interpreter says of itself.
    pub interpreter: String,
    /// The generation that is being served.
    pub generation: u64,
    /// How many processes there are and may be.
    pub processes: ProcessesSnapshot,
    /// Why their number changed last.
    pub last_scaling: Option<String>,
    /// When and how a process last ended unasked or was killed.
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
    /// The resources of all its processes and their limits.
    pub bounds: BoundsSnapshot,
    /// Its queue.
    pub queue: QueueSnapshot,
    /// Counters since the start.
    #[serde(serialize_with = "serialize_counters")]
    pub counters: Arc<AppMetrics>,
    /// Time that requests waited for a slot.
    pub queue_time: HistogramValues,
    /// Time from a request reaching a worker to its response header.
    pub header_time: HistogramValues,
    /// Its workers.
    pub workers: Vec<WorkerSnapshot>,
    /// What they are forked from.
    pub templates: Vec<WorkerSnapshot>,
}

fn serialize_counters<S: Serializer>(
    counters: &Arc<AppMetrics>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    AppMetrics::serialize(counters, serializer)
}

/// The queue of an application at one moment.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct QueueSnapshot {
    /// Its use.
    #[serde(flatten)]
    pub usage: QueueUsage,
    /// The limit on waiting requests.
    pub max: usize,
}

/// The resources of all processes of an application; `None` if not counted or without a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BoundsSnapshot {
    /// Processes and threads.
    pub tasks: Option<u64>,
    /// Their limit, `max_tasks`.
    pub max_tasks: Option<u64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Its limit, `max_total_memory`.
    pub max_memory_bytes: Option<u64>,
    /// The limit on processors, `max_cpu`.
    pub max_cpu: Option<f64>,
}

/// The number of an application's processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ProcessesSnapshot {
    /// There are never fewer, but while one is being replaced.
    pub min: usize,
    /// Those that take requests.
    pub ready: usize,
    /// How many there are to be, as the load is.
    pub target: usize,
    /// There are never more, but while one is being replaced.
    pub max: usize,
}

/// A worker at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct WorkerSnapshot {
    pub pid: Option<u32>,
    pub generation: u64,
    /// booting, ready, retiring, stopping.
    pub state: &'static str,
    /// The time in that state.
    #[serde(rename = "time_in_state_seconds", serialize_with = "serialize_seconds")]
    pub time_in_state: Duration,
    /// Processes that it has replaced.
    pub restarts: u64,
    /// Requests in progress.
    #[serde(rename = "active")]
    pub in_progress: u32,
    /// Where it listens, if it is a server of its own (`command`, `fastcgi`).
    #[serde(skip)]
    pub address: Option<String>,
    pub resident_bytes: Option<u64>,
    /// Its proportional memory, as it was last measured: what it shares counts in parts.
    pub proportional_bytes: Option<u64>,
    /// The time since its process was started.
    #[serde(rename = "age_seconds", serialize_with = "serialize_optional_seconds")]
    pub age: Option<Duration>,
    /// Requests that it has served; `None` of a server of its own.
    pub requests: Option<u64>,
    /// Why it is to be replaced, if it is.
    pub replace_reason: Option<String>,
}

impl App {
    /// How it is now. Reads each worker's memory from `/proc`.
    pub fn snapshot(&self) -> AppSnapshot {
        let now = clock::now();
        let view = self.shared.view.lock().clone();
        let shown = |worker: &WorkerView| WorkerSnapshot {
            time_in_state: now.saturating_duration_since(worker.state_since),
            in_progress: self.shared.requests_in_progress(worker),
            address: worker.address.as_ref().map(ToString::to_string),
            resident_bytes: (worker.snapshot.pid)
                .and_then(|pid| penstock_sys::file::process_rss_bytes(pid).ok()),
            age: worker
                .started_at
                .map(|at| now.saturating_duration_since(at)),
            requests: worker.stats.as_ref().map(|stats| stats.served_requests()),
            ..worker.snapshot.clone()
        };
        let mut queue = self.shared.dispatch.queue_usage(now);
        queue.waiting += self.shared.model.requests_awaiting_model();
        // Of a guess that was wrong, the configuration's threads are for nothing.
        let of_threads = |count: usize| match self.kind() {
            config::AppKind::Asgi => 1,
            _ => count,
        };
        let plan = self.shared.cgroup.as_ref().map(|group| group.plan());
        AppSnapshot {
            name: self.config.name.clone(),
            kind: self.kind().as_str(),
            workers: view.workers.iter().map(shown).collect(),
            templates: view.templates.iter().map(shown).collect(),
            processes: ProcessesSnapshot {
                min: self.config.processes.min,
                max: self.config.processes.max,
                ..view.snapshot.processes
            },
            threads: of_threads(view.snapshot.threads),
            min_threads: of_threads(self.config.min_threads),
            max_threads: of_threads(self.config.threads),
            bounds: BoundsSnapshot {
                max_tasks: plan.and_then(|plan| plan.max_tasks),
                max_memory_bytes: plan.and_then(|plan| plan.max_memory),
                max_cpu: plan.and_then(|plan| plan.max_cpu),
                ..view.snapshot.bounds
            },
            queue: QueueSnapshot {
                usage: queue,
                max: self.config.max_queued,
            },
            queue_time: self.metrics().queue_time.values(),
            header_time: self.metrics().app_time.values(),
            counters: Arc::clone(self.metrics()),
            ..view.snapshot
        }
    }
}

/// Counted even at zero, so that a series does not end when its last worker leaves the state.
const WORKER_STATES: [&str; 4] = ["booting", "ready", "retiring", "stopping"];

metric_table! {
    /// Metrics of an application, labelled `app`.
    pub static APP_METRICS: |app: AppSnapshot| {
        counter app_requests_total = app.counters.requests.value(), "Requests that reached the queue.";
        counter app_queue_full_total = app.counters.queue_full.value(),
            "Requests refused because the queue was full.";
        counter app_queue_timeouts_total = app.counters.queue_timeout.value(),
            "Requests refused after waiting too long for a slot.";
        counter app_queue_abandoned_total = app.counters.queue_abandoned.value(),
            "Clients that disconnected while their request was queued.";
        counter app_requests_failed_total = app.counters.failed_requests.value(),
            "Requests on which the application failed.";
        counter app_requests_worker_died_total = app.counters.worker_deaths.value(),
            "Requests lost because their worker exited.";
        counter app_requests_timed_out_total = app.counters.timed_out_requests.value(),
            "Requests aborted after response_timeout.";
        counter app_workers_boot_failed_total = app.counters.failed_boots.value(),
            "Workers that did not become ready.";
        counter app_scale_ups_total = app.counters.scale_ups.value(),
            "Times that the number of processes was raised by load.";
        counter app_scale_downs_total = app.counters.scale_downs.value(),
            "Times that the number of processes was lowered by load.";
        counter app_requests_io_bound_total = app.counters.io_bound_requests.value(),
            "Requests marked as I/O bound.";
        counter app_requests_io_bound_without_spare_total = app.counters.io_bound_without_spare_slot.value(),
            "I/O-bound requests for which no spare slot was free.";
        counter app_gc_runs_total = app.counters.gc_runs.value(), "Garbage collections between requests.";
        counter app_refused_calls_total = app.counters.refused_calls.value(),
            "System calls that the sandbox refused.";
        counter app_workers_started_total = app.counters.started_workers.value(), "Workers started.";
        counter app_workers_crashed_total = app.counters.crashed_workers.value(),
            "Workers that exited unexpectedly.";
        counter app_tasks_refused_total = app.counters.tasks_refused.value(),
            "Processes and threads that could not be started because of max_tasks.";
        counter app_out_of_memory_kills_total = app.counters.out_of_memory_kills.value(),
            "Processes that the kernel killed for lack of memory.";
        counter app_throttled_seconds_total = Duration::from_micros(app.counters.throttled_micros.value()),
            "Time that the processes were throttled because of max_cpu.";
        counter app_workers_recycled_total = MetricValue::by_label("reason", app.counters.recycled_by_reason()),
            "Workers replaced, by reason.";
        counter app_workers_killed_total = MetricValue::by_label("reason", app.counters.killed_by_reason()),
            "Workers killed, by reason.";
        histogram app_queue_seconds = &app.queue_time, "Time that requests waited for a slot.";
        histogram app_header_seconds = &app.header_time,
            "Time from a request reaching a worker to its response header.";
        gauge app_queue_length = app.queue.usage.waiting, "Requests waiting for a slot.";
        gauge app_queue_limit = app.queue.max, "Limit on waiting requests.";
        gauge app_queue_oldest_seconds = app.queue.usage.oldest_wait,
            "Time that the oldest request has waited.";
        gauge app_slots = app.queue.usage.slots, "Requests that the workers can process at once.";
        gauge app_requests_active = app.queue.usage.in_progress, "Requests in progress.";
        gauge app_processes_min = app.processes.min, "Lower bound on processes.";
        gauge app_processes_max = app.processes.max, "Upper bound on processes.";
        gauge app_processes_target = app.processes.target,
            "Target number of processes at the current load.";
        gauge app_threads = app.threads, "Threads of each process that accept requests.";
        gauge app_threads_min = app.min_threads, "Lower bound on threads of each process.";
        gauge app_threads_max = app.max_threads, "Upper bound on threads of each process.";
        gauge app_restarting = app.is_restarting, "1 during a rolling restart.";
        gauge app_proportional_memory_bytes =
            app.workers.iter().filter_map(|it| it.proportional_bytes).sum::<u64>(),
            "Proportional set size (PSS) of all workers, as last measured.";
        gauge app_templates = app.templates.len(),
            "Template processes from which workers are forked.";
        gauge app_generation = app.generation, "Generation of the code in use.";
        gauge app_resident_memory_bytes =
            app.workers.iter().filter_map(|it| it.resident_bytes).sum::<u64>(),
            "Resident memory of all workers.";
        gauge app_tasks = app.bounds.tasks, "Processes and threads of the application.";
        gauge app_tasks_limit = app.bounds.max_tasks,
            "Limit on processes and threads (max_tasks).";
        gauge app_total_memory_bytes = app.bounds.memory_bytes,
            "Memory of all processes of the application together.";
        gauge app_total_memory_limit_bytes = app.bounds.max_memory_bytes,
            "Limit on the memory of all processes together (max_total_memory).";
        gauge app_cpu_limit = app.bounds.max_cpu,
            "Limit on the processors of all processes together (max_cpu).";
        gauge app_state = MetricValue::Label("state", &app.state),
            "The application's state, as a label; always 1.";
        gauge app_workers = MetricValue::by_label("state", WORKER_STATES.map(|state| {
            (state, app.workers.iter().filter(|it| it.state == state).count() as u64)
        })), "Workers by state.";
    }
}
