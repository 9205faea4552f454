//! An application at one moment, for the status page, the admin interface and readiness.
//!
//! Taken by `penstock`'s wiring about once a second; what the executor last published, with the
//! numbers that others count read as they are now.

use std::time::Duration;

use penstock_config as config;
use penstock_runtime::clock;
use penstock_sys::cgroup::{GroupPlan, Usage};

use super::App;
use crate::dispatch::QueueUsage;
use crate::shared::WorkerView;

/// An application at one moment.
#[derive(Debug, Clone)]
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
    /// What it takes with all that it starts, if it has bounds and it was looked at.
    pub usage: Option<Usage>,
    /// What it may take.
    pub bounds: Option<GroupPlan>,
    pub queue_usage: QueueUsage,
    pub max_queued: usize,
    pub workers: Vec<WorkerSnapshot>,
    /// What they are forked from.
    pub templates: Vec<WorkerSnapshot>,
}

/// The number of an application's processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
#[derive(Debug, Clone)]
pub struct WorkerSnapshot {
    pub pid: Option<u32>,
    pub generation: u64,
    /// booting, ready, retiring, stopping.
    pub state: &'static str,
    /// Since when.
    pub time_in_state: Duration,
    /// How many had its seat before.
    pub restarts: u64,
    pub in_progress: u32,
    /// Where it listens, if it is a server of its own (`command`, `fastcgi`).
    pub address: Option<String>,
    pub resident_bytes: Option<u64>,
    /// Its proportional memory, as it was last measured: what it shares counts in parts.
    pub proportional_bytes: Option<u64>,
    /// Since its process was started.
    pub age: Option<Duration>,
    /// Requests that it has served; `None` of a server of its own.
    pub requests: Option<u64>,
    /// Why it is to be replaced, if it is.
    pub replace_reason: Option<String>,
}

impl App {
    /// How it is now. Reads each worker's memory from `/proc`.
    #[must_use]
    pub fn snapshot(&self) -> AppSnapshot {
        let now = clock::now();
        let view = self.shared.view();
        let shown = |worker: &WorkerView| WorkerSnapshot {
            pid: worker.pid,
            generation: worker.generation,
            state: worker.state,
            time_in_state: now.saturating_duration_since(worker.state_since),
            restarts: worker.restarts,
            in_progress: self.shared.in_progress(worker),
            address: worker.address.as_ref().map(ToString::to_string),
            resident_bytes: worker
                .pid
                .and_then(|p| penstock_sys::file::process_rss_bytes(p).ok()),
            proportional_bytes: worker.memory,
            age: worker
                .started_at
                .map(|at| now.saturating_duration_since(at)),
            requests: worker.stats.as_ref().map(|ledger| ledger.served_requests()),
            replace_reason: worker.replace_reason.clone(),
        };
        let ready = view.workers.iter().filter(|w| w.state == "ready");
        let processes = ProcessesSnapshot {
            min: self.config.processes.min,
            ready: ready.count(),
            target: view.target_workers,
            max: self.config.processes.max,
        };
        let mut queue = self.shared.dispatch.usage(now);
        queue.waiting += self.shared.model.waiting_requests();
        // Of a guess that was wrong, the configuration's threads are for nothing.
        let of_threads = |count: usize| match self.kind() {
            config::AppKind::Asgi => 1,
            _ => count,
        };
        AppSnapshot {
            name: self.config.name.clone(),
            kind: self.kind().as_str(),
            workers: view.workers.iter().map(shown).collect(),
            templates: view.templates.iter().map(shown).collect(),
            state: view.state,
            boot_report: view.boot_report,
            interpreter: view.interpreter,
            generation: view.generation,
            processes,
            last_scaling: view.last_scaling,
            last_failure: view.last_failure,
            is_restarting: view.is_restarting,
            restart_error: view.restart_error,
            start_method: view.start_method,
            threads: of_threads(view.threads),
            min_threads: of_threads(self.config.min_threads),
            max_threads: of_threads(self.config.threads),
            usage: view.usage,
            bounds: (self.shared.group.as_ref()).map(|group| group.plan().clone()),
            queue_usage: queue,
            max_queued: self.config.max_queued,
        }
    }
}
