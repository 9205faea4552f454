//! The server at one moment: what `/status.json`, `/events` and `/metrics` show.
//!
//! Composed by the `penstock` crate of the snapshots of the components.
//!
//! # Invariants
//! - Field names are part of the public interface: a test lists the keys.
//! - Times are in seconds and end in `_seconds`, sizes end in `_bytes`.

use std::time::Duration;

use penstock_apps::{AppSnapshot, JobSnapshot};
use penstock_cache::{CachedRoute, StoreSnapshot};
use penstock_cluster::{ClusterSnapshot, SharedRatesSnapshot};
use penstock_compress::CompressionSnapshot;
use penstock_exchange::metrics::{
    EdgeMetrics, LimitUsage, RouteCountsSnapshot, RuleCountsSnapshot, serialize_seconds,
};
use penstock_exchange::spans::SpanCounts;
use penstock_hub::HubSnapshot;
use penstock_proxy::UpstreamSnapshot;
use penstock_rules::{MaintenanceSnapshot, PauseSnapshot};
use penstock_runtime::blocking::PoolSnapshot;
use serde::Serialize;

use crate::CertificatesSnapshot;
use crate::history::History;
use crate::problems::{Problem, find_problems};

/// The server at one moment.
#[derive(Debug, Default, Serialize)]
pub struct Snapshot {
    /// The program's version.
    pub version: &'static str,
    /// Its process id.
    pub pid: u32,
    /// Time since its start.
    #[serde(rename = "uptime_seconds", serialize_with = "serialize_seconds")]
    pub uptime: Duration,
    /// Whether it runs or drains.
    pub state: ServerState,
    /// Its problems, errors first; set by [`Snapshot::with_findings`].
    pub problems: Vec<Problem>,
    /// Its listeners as printed at the start, with those of the admin interface.
    pub listeners: Vec<String>,
    /// The control socket, if there is one.
    pub control_socket: Option<String>,
    /// The configuration file, if there is one.
    pub config: Option<String>,
    /// The folder that it was started in.
    pub folder: String,
    /// Event loops.
    pub event_loops: usize,
    /// Open client connections.
    pub connections: LimitUsage,
    /// The setting or limit of the system that limits them.
    pub connections_limited_by: String,
    /// Resident memory of the server process, without its workers.
    pub resident_bytes: Option<u64>,
    /// Memory of the processes of all applications; set by [`Snapshot::with_findings`].
    pub worker_bytes: u64,
    /// Counters of the front end since the start.
    pub traffic: Traffic,
    /// The generation of the configuration: 1 after the start, one more with each reload.
    pub config_generation: u64,
    /// Successful configuration reloads.
    pub config_reloads: u64,
    /// The errors of the last reload if it failed; the previous configuration stays in use.
    pub reload_error: Option<String>,
    /// Log lines dropped because the log output was too slow.
    pub log_lines_dropped: u64,
    /// Weaknesses of the configuration, one sentence each.
    pub warnings: Vec<String>,
    /// Times that an event loop was stalled for 5 s or longer.
    pub event_loop_stalls: u64,
    /// The machine.
    pub machine: MachineStatus,
    /// The streaming hub.
    pub hub: HubStatus,
    /// The front end that `penstock work` joins; `None` for `penstock serve`.
    pub front_end: Option<FrontEndStatus>,
    /// The certificates of listeners with TLS.
    pub certificates: CertificatesSnapshot,
    /// The applications.
    pub apps: Vec<AppSnapshot>,
    /// The jobs that run at times.
    pub jobs: Vec<JobSnapshot>,
    /// The upstreams.
    pub upstreams: Vec<UpstreamSnapshot>,
    /// The caches.
    pub caches: Vec<StoreSnapshot>,
    /// The routes with caches.
    pub cached_routes: Vec<CachedRoute>,
    /// The routes and clients with most requests lately.
    pub top: TopStatus,
    /// The back ends that are paused.
    pub pauses: Vec<PauseSnapshot>,
    /// The sites in maintenance.
    pub maintenance: MaintenanceSnapshot,
    /// The routes with what became of their requests, where `server.route_metrics` is on.
    pub routes: Vec<RouteCountsSnapshot>,
    /// The spans of requests on their way to a collector; `None` where they are not exported.
    pub trace_spans: Option<SpanCounts>,
    /// The rules of routes with the requests that they have decided.
    pub rules: Vec<RuleCountsSnapshot>,
    /// Responses compressed while they were sent.
    pub compression: CompressionSnapshot,
    /// The limits that it shares with other servers; `None` without `server.redis`.
    pub shared_rates: Option<SharedRatesSnapshot>,
    /// The thread pools for blocking work.
    pub pools: Vec<PoolSnapshot>,
    /// Every limit by its configuration key.
    pub limits: Vec<LimitStatus>,
}

impl Snapshot {
    /// Completes it with what follows from the rest: the problems and the memory of workers.
    #[must_use]
    pub fn with_findings(mut self, history: &History) -> Self {
        let processes = self.apps.iter();
        let processes = processes.flat_map(|app| app.workers.iter().chain(&app.templates));
        self.worker_bytes = processes
            .filter_map(|it| it.proportional_bytes.or(it.resident_bytes))
            .sum();
        self.problems = find_problems(&self, history);
        self
    }
}

/// The routes and clients with most requests lately: each request counts half after a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TopStatus {
    /// Requests lately.
    pub requests: u64,
    /// Routes with their requests, the most frequent first.
    pub routes: Vec<TopEntryStatus>,
    /// Clients with their requests, the most frequent first.
    pub clients: Vec<TopEntryStatus>,
}

/// A route or a client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TopEntryStatus {
    /// The route's hosts and path, or the client's address or network.
    pub name: String,
    /// Its requests lately, at most.
    pub requests: u64,
}

/// The state of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// It accepts connections.
    #[default]
    Running,
    /// It finishes the requests in progress and ends.
    Draining,
}

/// The front end that this server joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FrontEndStatus {
    /// Its address.
    pub address: String,
    /// The upstream there.
    pub upstream: String,
    /// Whether it has joined the upstream.
    pub is_joined: bool,
    /// Why not, if it has not.
    pub cause: Option<String>,
}

/// Counters of the front end since the start.
#[derive(Debug, Default, Serialize)]
pub struct Traffic {
    /// The counters of all event loops together.
    #[serde(flatten)]
    pub edge: EdgeMetrics,
    /// Responses of all status classes.
    pub requests_total: u64,
}

/// The hub and the servers that share it.
#[derive(Debug, Default, Serialize)]
pub struct HubStatus {
    /// The hub of this server.
    #[serde(flatten)]
    pub hub: HubSnapshot,
    /// The servers that share it; `None` for one alone.
    pub cluster: Option<ClusterSnapshot>,
}

/// The machine. What the kernel does not report is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MachineStatus {
    /// The load average of the last minute.
    pub load_average: Option<f64>,
    /// Kernel memory of open connections without their data, estimated from a measured figure for
    /// one.
    pub estimated_socket_bytes: u64,
    /// Memory of TCP socket buffers, of all processes of the machine or container.
    pub tcp_buffer_bytes: Option<u64>,
}

/// A configured limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitStatus {
    /// Its configuration key.
    pub name: &'static str,
    /// Its unit.
    pub unit: LimitUnit,
    /// The limit, in that unit.
    pub max: f64,
    /// The current use, where there is one number for it.
    pub used: Option<u64>,
    /// Times that a request was refused or delayed by it, where that is counted.
    pub reached: Option<u64>,
}

/// The unit of a [`LimitStatus`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitUnit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Bytes a second.
    BytesPerSecond,
}

impl Traffic {
    /// The counters with their total.
    pub fn new(edge: EdgeMetrics) -> Self {
        Self {
            requests_total: edge.responses_total(),
            edge,
        }
    }
}

impl LimitStatus {
    const fn new(name: &'static str, unit: LimitUnit, max: f64) -> Self {
        Self {
            name,
            unit,
            max,
            used: None,
            reached: None,
        }
    }

    /// A limit on a number of things, with the current number.
    #[must_use]
    pub fn count(name: &'static str, max: u64, used: Option<u64>) -> Self {
        Self {
            used,
            ..Self::new(name, LimitUnit::Count, as_f64(max))
        }
    }

    /// A limit in bytes.
    #[must_use]
    pub fn bytes(name: &'static str, max: u64) -> Self {
        Self::new(name, LimitUnit::Bytes, as_f64(max))
    }

    /// A limit on a time.
    #[must_use]
    pub fn time(name: &'static str, max: Duration) -> Self {
        Self::new(name, LimitUnit::Seconds, max.as_secs_f64())
    }

    /// A limit in bytes per second.
    #[must_use]
    pub fn rate(name: &'static str, bytes_per_second: u64) -> Self {
        Self::new(name, LimitUnit::BytesPerSecond, as_f64(bytes_per_second))
    }

    /// Adds the current use.
    #[must_use]
    pub fn with_used(mut self, used: u64) -> Self {
        self.used = Some(used);
        self
    }

    /// Adds how often it was reached.
    #[must_use]
    pub fn with_reached(mut self, reached: u64) -> Self {
        self.reached = Some(reached);
        self
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
