//! The server at one moment, in the form that `/status.json` and the live page get.
//!
//! Filled in by the wiring, serialised by `api` and `events`, read by `metrics_text` for gauges. Field
//! names are a promise to scripts: durations are seconds and end in `_seconds`, sizes end in
//! `_bytes`, and a test holds the list of keys. Nothing here computes but percentiles.

mod apps;
mod hub;
mod storage;

use std::time::Duration;

use penstock_exchange::metrics::{EdgeMetrics, HistogramValues};
use serde::{Serialize, Serializer};

pub use apps::{
    AppCounters, AppQueueStatus, AppStatus, BoundsStatus, ProcessesStatus, WorkerStatus,
};
pub use hub::{ClusterStatus, HubCounters, HubStatus, MachineStatus};
pub use storage::{
    CacheCounters, CacheStatus, CachedRouteCounters, CachedRouteStatus, PoolStatus, TimeSum,
};

/// The whole server at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// The program's version.
    pub version: &'static str,
    /// Its process id.
    pub pid: u32,
    /// Time since its start.
    #[serde(rename = "uptime_seconds", serialize_with = "serialize_seconds")]
    pub uptime: Duration,
    /// Whether it serves or shuts down.
    pub state: ServerState,
    /// Its listeners as printed at start, admin included.
    pub listeners: Vec<String>,
    /// The Unix socket by which the command line changes things, if there is one.
    pub control_socket: Option<String>,
    /// The configuration file, if there is one.
    pub config: Option<String>,
    /// Event loops.
    pub event_loops: usize,
    /// Open client connections against their bound.
    pub connections: Usage,
    /// What that bound comes from.
    pub connections_limited_by: String,
    /// Resident memory of the server process, without its workers.
    pub resident_bytes: Option<u64>,
    /// What edge counted since the start.
    pub traffic: Traffic,
    /// The configuration that is served: 1 after the start, one more with each reload.
    pub config_generation: u64,
    /// Reloads that succeeded.
    pub config_reloads: u64,
    /// All errors of the last reload, when it failed and the old configuration stands.
    pub reload_error: Option<String>,
    /// Log lines that were dropped because the log could not be written fast enough.
    pub log_lines_dropped: u64,
    /// What weakens this server and should be changed, a sentence each.
    pub warnings: Vec<String>,
    /// How often a loop, or the control loop, did not turn for 5 s.
    pub event_loop_stalls: u64,
    /// The machine, as far as it concerns the server.
    pub machine: MachineStatus,
    /// What is held open.
    pub hub: HubStatus,
    /// The front end that it serves an application for (`penstock work`); none is a server of its own.
    pub front_end: Option<FrontEndStatus>,
    /// The applications.
    pub apps: Vec<AppStatus>,
    /// The upstreams.
    pub upstreams: Vec<UpstreamStatus>,
    /// The caches.
    pub caches: Vec<CacheStatus>,
    /// The routes that use them.
    pub cached_routes: Vec<CachedRouteStatus>,
    /// The pools for blocking work.
    pub pools: Vec<PoolStatus>,
    /// Every bound by its configured name.
    pub limits: Vec<LimitStatus>,
}

/// What the server as a whole is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// It takes connections.
    Running,
    /// It finishes what it has and then ends.
    Draining,
}

/// A front end elsewhere that it dials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FrontEndStatus {
    /// Its address.
    pub address: String,
    /// The upstream there.
    pub upstream: String,
    /// Whether it is a server of that now.
    pub is_joined: bool,
    /// Why not, when it is not.
    pub cause: Option<String>,
}

/// How much of a bounded thing is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// In use now.
    pub used: u64,
    /// The bound.
    pub max: u64,
}

/// Edge's counters since the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Traffic {
    /// Connections accepted.
    pub accepted: u64,
    /// Requests in progress now.
    pub active: u64,
    /// Responses of every status.
    pub requests_total: u64,
    /// Responses by status class, 1xx to 5xx.
    pub responses: [u64; 5],
    /// Requests refused while they were parsed.
    pub malformed_requests: u64,
    /// Clients that left before their answer.
    pub client_disconnects: u64,
    /// Connections cut because the client was too slow.
    pub slow_clients: u64,
    /// Idle connections closed to make room for others.
    pub evicted: u64,
    /// Connections closed at once, since their client had too many.
    pub refused: u64,
    /// Body bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// From complete head to last byte handed to the kernel.
    pub total_time: HistogramValues,
}

/// One upstream.
#[derive(Debug, Clone, Serialize)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: String,
    /// `http`, `fastcgi`, `scgi`, `uwsgi`, `ajp`.
    pub protocol: String,
    /// Whether any of its servers takes requests.
    pub up: bool,
    /// Its queue.
    pub queue: UpstreamQueueStatus,
    /// What it counted since the start.
    pub counters: UpstreamCounters,
    /// Waiting for a server.
    pub queue_time: HistogramValues,
    /// Making connections; requests on kept ones are not in it.
    pub connect_time: HistogramValues,
    /// From a server having the request to the head of its response.
    pub header_time: HistogramValues,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
}

/// The line of requests that wait for a server.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct UpstreamQueueStatus {
    /// Requests waiting.
    pub length: usize,
    /// The bound on them.
    pub max: usize,
    /// How long the oldest has waited.
    #[serde(rename = "oldest_wait_seconds", serialize_with = "serialize_seconds")]
    pub oldest_wait: Duration,
}

/// An upstream's counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UpstreamCounters {
    /// Requests that asked for a server.
    pub requests: u64,
    /// Refused: the queue was full.
    pub queue_full: u64,
    /// Refused: waited too long.
    pub queue_timeouts: u64,
    /// Clients that left while they waited.
    pub queue_abandoned: u64,
    /// Refused: no server was up.
    pub unavailable: u64,
    /// Tries after the first.
    pub retries: u64,
    /// Retries not made because the budget was used up.
    pub retries_over_budget: u64,
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerStatus {
    /// Its address. One that is added again while it leaves is there twice.
    pub name: String,
    /// up, ejected, probing, down, draining, disabled, leaving.
    pub state: String,
    /// Its share against the others'.
    pub weight: u32,
    /// Whether it gets requests only when no other server can.
    pub backup: bool,
    /// Requests in progress.
    pub active: u32,
    /// The most it may have; `None` when nothing but `connections.max` bounds them.
    pub max_active: Option<u32>,
    /// Connections there are.
    pub connections_open: u32,
    /// Those of them that wait for a request.
    pub connections_idle: usize,
    /// Requests that it was given.
    pub requests: u64,
    /// Those that it failed.
    pub failures: u64,
    /// Those among them that it did not answer in time.
    pub timeouts: u64,
    /// Connections made for requests.
    pub connects: u64,
    /// Requests on a kept connection.
    pub connection_reuses: u64,
    /// Why its last probe failed, if ever one did.
    pub last_error: Option<String>,
}

/// One configured bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitStatus {
    /// Its name in the configuration.
    pub name: &'static str,
    /// What it is counted in.
    pub unit: LimitUnit,
    /// The bound, in that unit.
    pub max: f64,
    /// How much is in use, where that is one number.
    pub used: Option<u64>,
    /// How often something was refused or had to wait because of it, where that is counted.
    pub reached: Option<u64>,
}

/// What a [`LimitStatus`] is counted in.
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
    /// The counters as they are now.
    #[must_use]
    pub fn new(metrics: &EdgeMetrics) -> Self {
        Self {
            accepted: metrics.accepted_connections.value(),
            active: u64::try_from(metrics.active_requests.value()).unwrap_or(0),
            requests_total: metrics.responses_total(),
            responses: std::array::from_fn(|class| metrics.responses[class].value()),
            malformed_requests: metrics.malformed_requests.value(),
            client_disconnects: metrics.client_disconnects.value(),
            slow_clients: metrics.slow_clients.value(),
            evicted: metrics.evicted_connections.value(),
            refused: metrics.refused_connections.value(),
            received_bytes: metrics.bytes_in.value(),
            sent_bytes: metrics.bytes_out.value(),
            total_time: metrics.total_time.values(),
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

    /// A bound on things, with how many there are.
    #[must_use]
    pub fn count(name: &'static str, max: u64, used: Option<u64>) -> Self {
        Self {
            used,
            ..Self::new(name, LimitUnit::Count, as_f64(max))
        }
    }

    /// A bound in bytes.
    #[must_use]
    pub fn bytes(name: &'static str, max: u64) -> Self {
        Self::new(name, LimitUnit::Bytes, as_f64(max))
    }

    /// A bound on time.
    #[must_use]
    pub fn time(name: &'static str, max: Duration) -> Self {
        Self::new(name, LimitUnit::Seconds, max.as_secs_f64())
    }

    /// A bound in bytes a second.
    #[must_use]
    pub fn rate(name: &'static str, bytes_per_second: u64) -> Self {
        Self::new(name, LimitUnit::BytesPerSecond, as_f64(bytes_per_second))
    }

    /// With how much is in use.
    #[must_use]
    pub fn with_used(mut self, used: u64) -> Self {
        self.used = Some(used);
        self
    }

    /// With how often it was reached.
    #[must_use]
    pub fn with_reached(mut self, reached: u64) -> Self {
        self.reached = Some(reached);
        self
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "shown to people; exact up to 2^53"
)]
fn as_f64(number: u64) -> f64 {
    number as f64
}

fn serialize_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[cfg(test)]
mod tests;
