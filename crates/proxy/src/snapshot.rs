//! An upstream and its servers at one moment, as `/status.json` and `/metrics` show them.

use std::time::Duration;

use penstock_exchange::metric_table;
use penstock_exchange::metrics::{HistogramValues, MetricValue, serialize_seconds};
use serde::Serialize;

use crate::upstream_tls::UpstreamTlsCounters;

/// An upstream at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct UpstreamSnapshot {
    /// Its name.
    pub name: String,
    /// http, fastcgi, scgi, uwsgi, ajp.
    pub protocol: &'static str,
    /// Whether any server accepts requests.
    pub up: bool,
    /// Its queue.
    pub queue: QueueSnapshot,
    /// Its counters.
    pub counters: UpstreamCounters,
    /// Handshakes with its servers; `None` without TLS.
    pub tls: Option<UpstreamTlsCounters>,
    /// Time that requests waited for a server.
    pub queue_time: HistogramValues,
    /// Time to connect to a server; requests on idle connections are not counted.
    pub connect_time: HistogramValues,
    /// Time from the end of the request to the response header.
    pub header_time: HistogramValues,
    /// Its servers.
    pub servers: Vec<ServerSnapshot>,
}

/// The requests that wait for a server.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct QueueSnapshot {
    /// Requests waiting.
    pub length: usize,
    /// Their limit.
    pub max: usize,
    /// Time that the oldest request has waited.
    #[serde(rename = "oldest_wait_seconds", serialize_with = "serialize_seconds")]
    pub oldest_wait: Duration,
}

/// Counters of an upstream since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UpstreamCounters {
    /// Requests to the upstream.
    pub requests: u64,
    /// Requests refused because the queue was full.
    pub queue_full: u64,
    /// Requests refused after waiting longer than `queue.timeout`.
    pub queue_timeouts: u64,
    /// Clients that disconnected while their request was queued.
    pub queue_abandoned: u64,
    /// Requests refused because no server was up.
    pub unavailable: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Retries not made because the retry budget was used up.
    pub retries_over_budget: u64,
}

/// A server at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerSnapshot {
    /// Its address. A server that is added again while it leaves is listed twice.
    pub name: String,
    /// up, ejected, trial, down, draining, disabled, leaving.
    pub state: &'static str,
    /// Its weight.
    pub weight: u32,
    /// Whether it only gets requests when no other server is available.
    pub backup: bool,
    /// Requests in progress.
    pub active: u32,
    /// Their limit; `None` if nothing but `connections.max` limits them.
    pub max_active: Option<u32>,
    /// Open connections.
    pub connections_open: u32,
    /// Idle connections among them.
    pub connections_idle: usize,
    /// Its counters.
    #[serde(flatten)]
    pub counters: ServerCounters,
    /// The error of the last failed health check.
    pub last_error: Option<String>,
}

/// Counters of a server since it was added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ServerCounters {
    /// Requests sent to the server.
    pub requests: u64,
    /// Requests that failed on the server.
    pub failures: u64,
    /// Failed requests that timed out.
    pub timeouts: u64,
    /// Connections opened for requests.
    pub connects: u64,
    /// Requests sent on an idle connection.
    pub connection_reuses: u64,
}

impl ServerSnapshot {
    /// Adds the numbers of `other`, a server of the same name.
    pub fn add(&mut self, other: &Self) {
        self.active += other.active;
        self.connections_open += other.connections_open;
        self.connections_idle += other.connections_idle;
        self.counters.requests += other.counters.requests;
        self.counters.failures += other.counters.failures;
        self.counters.timeouts += other.counters.timeouts;
        self.counters.connects += other.counters.connects;
        self.counters.connection_reuses += other.counters.connection_reuses;
    }
}

metric_table! {
    /// Metrics of an upstream, labelled `upstream`.
    pub static UPSTREAM_METRICS: |upstream: UpstreamSnapshot| {
        gauge upstream_up = upstream.up, "1 while any server accepts requests.";
        gauge upstream_queue_length = upstream.queue.length, "Requests waiting for a server.";
        gauge upstream_queue_limit = upstream.queue.max, "Limit on waiting requests.";
        gauge upstream_queue_oldest_seconds = upstream.queue.oldest_wait,
            "Time that the oldest request has waited.";
        counter upstream_requests_total = upstream.counters.requests, "Requests to the upstream.";
        counter upstream_queue_full_total = upstream.counters.queue_full,
            "Requests refused because the queue was full.";
        counter upstream_queue_timeouts_total = upstream.counters.queue_timeouts,
            "Requests refused after waiting too long for a server.";
        counter upstream_queue_abandoned_total = upstream.counters.queue_abandoned,
            "Clients that disconnected while their request was queued.";
        counter upstream_unavailable_total = upstream.counters.unavailable,
            "Requests refused because no server was up.";
        counter upstream_retries_total = upstream.counters.retries, "Retries.";
        counter upstream_retries_over_budget_total = upstream.counters.retries_over_budget,
            "Retries not made because the retry budget was used up.";
        counter upstream_tls_handshakes_total = upstream.tls.map(|tls| tls.handshakes),
            "TLS handshakes with servers, where the upstream has TLS.";
        counter upstream_tls_resumptions_total = upstream.tls.map(|tls| tls.resumptions),
            "Handshakes with servers that continued an earlier session.";
        counter upstream_tls_handshake_failures_total = upstream.tls.map(|tls| tls.failures),
            "Failed TLS handshakes with servers.";
        histogram upstream_queue_seconds = &upstream.queue_time,
            "Time that requests waited for a server.";
        histogram upstream_connect_seconds = &upstream.connect_time,
            "Time to connect to a server.";
        histogram upstream_header_seconds = &upstream.header_time,
            "Time from the end of the request to the response header.";
    }
}

metric_table! {
    /// Metrics of a server, labelled `upstream` and `server`.
    pub static SERVER_METRICS: |server: ServerSnapshot| {
        gauge upstream_server_requests_active = server.active, "Requests in progress.";
        gauge upstream_server_requests_active_limit = server.max_active.map(u64::from),
            "Limit on requests in progress, where there is one.";
        gauge upstream_server_weight = server.weight, "Weight of the server.";
        gauge upstream_server_backup = server.backup,
            "1 if the server only gets requests when no other server is available.";
        gauge upstream_server_connections_open = server.connections_open,
            "Open connections to the server.";
        gauge upstream_server_connections_idle = server.connections_idle,
            "Idle connections to the server.";
        counter upstream_server_requests_total = server.counters.requests, "Requests sent to the server.";
        counter upstream_server_failures_total = server.counters.failures,
            "Requests that failed on the server.";
        counter upstream_server_timeouts_total = server.counters.timeouts,
            "Failed requests that timed out.";
        counter upstream_server_connects_total = server.counters.connects,
            "Connections opened for requests.";
        counter upstream_server_connection_reuses_total = server.counters.connection_reuses,
            "Requests sent on an idle connection.";
        gauge upstream_server_state = MetricValue::Label("state", server.state),
            "The server's state, as a label; always 1.";
    }
}
