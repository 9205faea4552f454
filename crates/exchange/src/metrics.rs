//! Counters, gauges and histograms, the sets of them that components count in, and tables of
//! metrics.
//!
//! A component gets its set at the start and counts with relaxed atomics. `status` serialises the
//! sets and renders them as metrics. There is no registry and no global.

mod exemplars;
mod histogram;
mod metric_table;
mod route_counts;
mod rule_counts;
pub mod top_list;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Serialize, Serializer};

pub use exemplars::Exemplar;
pub use histogram::{Histogram, HistogramValues, METRIC_BOUNDS_US};
pub use metric_table::{Metric, MetricValue};
pub use route_counts::{ROUTE_METRICS, RouteCountTable, RouteCounts, RouteCountsSnapshot};
pub use rule_counts::{
    OutcomeCount, RULE_METRICS, RuleCountTable, RuleCounts, RuleCountsSnapshot, RuleUsage,
};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the number so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds `by`, which may be negative.
    pub fn add(&self, by: i64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the number now.
    #[must_use]
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that only one thread changes: a locked instruction costs as much as a small function,
/// and an event loop with its own counters needs none.
#[derive(Debug, Default)]
pub struct LocalCounter(AtomicU64);

impl LocalCounter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Returns the number so far, from any thread.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down and that only one thread changes.
#[derive(Debug, Default)]
pub struct LocalGauge(AtomicI64);

impl LocalGauge {
    /// Adds `by`, which may be negative.
    pub fn add(&self, by: i64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(by);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Returns the number now, from any thread.
    #[must_use]
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Implements [`Serialize`] as the current value.
macro_rules! serialize_value {
    ($($type:ty),*) => {
        $(impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.value().serialize(serializer)
            }
        })*
    };
}

serialize_value!(Counter, Gauge, LocalCounter, LocalGauge);

/// The use of a limited resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LimitUsage {
    /// The current use.
    pub used: u64,
    /// The limit.
    pub max: u64,
}

impl LimitUsage {
    /// `used` of at most `max`.
    #[must_use]
    pub fn new(used: u64, max: usize) -> Self {
        let max = max as u64;
        Self { used, max }
    }
}

/// Serialises a time in seconds, for `serialize_with`.
///
/// # Errors
/// The serializer's.
pub fn serialize_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    time.as_secs_f64().serialize(serializer)
}

/// Serialises a time in seconds, or null, for `serialize_with`.
///
/// # Errors
/// The serializer's.
pub fn serialize_optional_seconds<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}

/// The status classes, as values of a label.
pub const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The counters of edge: one set per event loop, changed by that loop only.
#[derive(Debug, Default, Serialize)]
pub struct EdgeMetrics {
    /// Connections accepted.
    #[serde(rename = "accepted")]
    pub accepted_connections: LocalCounter,
    /// Open connections.
    #[serde(skip)]
    pub open_connections: LocalGauge,
    /// Open connections that were handed over to be held.
    #[serde(skip)]
    pub held_connections: LocalGauge,
    /// Connections handed over to be held, since the start.
    #[serde(skip)]
    pub held_total: LocalCounter,
    /// Requests in progress.
    #[serde(rename = "active")]
    pub active_requests: LocalGauge,
    /// Responses by status class: 1xx to 5xx.
    pub responses: [LocalCounter; 5],
    /// Requests refused as malformed.
    pub malformed_requests: LocalCounter,
    /// Clients that disconnected before their response was complete.
    pub client_disconnects: LocalCounter,
    /// Connections closed because the client was too slow.
    pub slow_clients: LocalCounter,
    /// Idle connections closed to free capacity.
    #[serde(rename = "evicted")]
    pub evicted_connections: LocalCounter,
    /// Connections closed because their client had too many open.
    #[serde(rename = "refused")]
    pub refused_connections: LocalCounter,
    /// Complete TLS handshakes, resumed sessions included.
    pub tls_handshakes: LocalCounter,
    /// TLS handshakes that resumed a session.
    pub tls_resumptions: LocalCounter,
    /// TLS handshakes that failed or were not complete in time.
    pub tls_handshake_failures: LocalCounter,
    /// Body bytes received.
    #[serde(rename = "received_bytes")]
    pub bytes_in: LocalCounter,
    /// Bytes sent, response headers included.
    #[serde(rename = "sent_bytes")]
    pub bytes_out: LocalCounter,
    /// Time from the complete request header to the last byte handed to the kernel.
    pub total_time: Histogram,
}

impl EdgeMetrics {
    /// Counts one response by its status.
    pub fn count_response(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.responses[class].increment();
    }

    /// The sum of several loops' sets.
    #[must_use]
    pub fn total(sets: &[Self]) -> Self {
        let total = Self::default();
        for set in sets {
            let counters = [
                (&total.accepted_connections, &set.accepted_connections),
                (&total.held_total, &set.held_total),
                (&total.malformed_requests, &set.malformed_requests),
                (&total.client_disconnects, &set.client_disconnects),
                (&total.slow_clients, &set.slow_clients),
                (&total.evicted_connections, &set.evicted_connections),
                (&total.refused_connections, &set.refused_connections),
                (&total.tls_handshakes, &set.tls_handshakes),
                (&total.tls_resumptions, &set.tls_resumptions),
                (&total.tls_handshake_failures, &set.tls_handshake_failures),
                (&total.bytes_in, &set.bytes_in),
                (&total.bytes_out, &set.bytes_out),
            ];
            for (sum, one) in counters {
                sum.add(one.value());
            }
            for (sum, one) in total.responses.iter().zip(&set.responses) {
                sum.add(one.value());
            }
            total.open_connections.add(set.open_connections.value());
            total.held_connections.add(set.held_connections.value());
            total.active_requests.add(set.active_requests.value());
            total.total_time.merge(&set.total_time);
        }
        total
    }

    /// All responses so far.
    #[must_use]
    pub fn responses_total(&self) -> u64 {
        self.responses.iter().map(LocalCounter::value).sum()
    }
}

/// The counters of an application.
#[derive(Debug, Default, Serialize)]
pub struct AppMetrics {
    /// Requests that reached the application's queue.
    pub requests: Counter,
    /// Refused: the queue was full.
    pub queue_full: Counter,
    /// Refused: waited longer than `queue.timeout`.
    #[serde(rename = "queue_timeouts")]
    pub queue_timeout: Counter,
    /// Clients that left while they waited.
    pub queue_abandoned: Counter,
    /// Requests on which the application raised or broke its interface's rules.
    pub failed_requests: Counter,
    /// Requests inside a worker when it died.
    pub worker_deaths: Counter,
    /// Requests cut by `response_timeout`.
    pub timed_out_requests: Counter,
    /// Time that requests waited for a slot.
    #[serde(skip)]
    pub queue_time: Histogram,
    /// Time from a request reaching a worker to its response header.
    #[serde(skip)]
    pub app_time: Histogram,
    /// Workers started.
    pub started_workers: Counter,
    /// Workers that ended on their own.
    pub crashed_workers: Counter,
    /// Workers that did not become ready.
    pub failed_boots: Counter,
    /// Workers replaced in due form, by [`RECYCLE_REASONS`].
    #[serde(serialize_with = "serialize_recycled")]
    pub recycled_workers: [Counter; RECYCLE_REASONS.len()],
    /// Workers killed, by [`KILL_REASONS`].
    #[serde(serialize_with = "serialize_killed")]
    pub killed_workers: [Counter; KILL_REASONS.len()],
    /// Times that the number of processes was raised by load.
    pub scale_ups: Counter,
    /// Times that the number of processes was lowered by load.
    pub scale_downs: Counter,
    /// Requests that said that they are bound by I/O.
    pub io_bound_requests: Counter,
    /// Those of them for which their worker had no spare slot left.
    pub io_bound_without_spare_slot: Counter,
    /// Collections of garbage between requests.
    pub gc_runs: Counter,
    /// Reported system calls that the sandbox refused.
    pub refused_calls: Counter,
    /// Processes and threads refused by `max_tasks`.
    pub tasks_refused: Counter,
    /// Processes that the kernel killed for lack of memory, by `max_total_memory` or the machine's.
    pub out_of_memory_kills: Counter,
    /// Microseconds that its processes were throttled because of `max_cpu`.
    #[serde(rename = "throttled_seconds", serialize_with = "serialize_micros")]
    pub throttled_micros: Counter,
}

/// The reasons for replacing a worker, as words in metrics and in `/status.json`.
pub const RECYCLE_REASONS: [&str; 5] = ["memory", "requests", "age", "stuck", "refork"];

/// The reasons for killing a worker, likewise.
pub const KILL_REASONS: [&str; 5] = [
    "boot_timeout",
    "response_timeout",
    "protocol",
    "stop_timeout",
    "memory",
];

impl AppMetrics {
    /// Workers replaced, by reason.
    pub fn recycled_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.recycled_workers.iter().map(Counter::value);
        RECYCLE_REASONS.into_iter().zip(counts)
    }

    /// Workers killed, by reason.
    pub fn killed_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.killed_workers.iter().map(Counter::value);
        KILL_REASONS.into_iter().zip(counts)
    }
}

fn serialize_recycled<S: Serializer>(counters: &[Counter; 5], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(RECYCLE_REASONS.iter().zip(counters))
}

fn serialize_killed<S: Serializer>(counters: &[Counter; 5], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(KILL_REASONS.iter().zip(counters))
}

fn serialize_micros<S: Serializer>(micros: &Counter, to: S) -> Result<S::Ok, S::Error> {
    histogram::micros_to_seconds(micros.value()).serialize(to)
}

crate::metric_table! {
    /// Metrics of all event loops together.
    pub static EDGE_METRICS: |edge: EdgeMetrics| {
        gauge connections_open = edge.open_connections.value(), "Open client connections.";
        gauge requests_active = edge.active_requests.value(), "Requests in progress.";
        counter connections_accepted_total = edge.accepted_connections.value(),
            "Client connections accepted.";
        counter requests_malformed_total = edge.malformed_requests.value(),
            "Requests refused as malformed.";
        counter client_disconnects_total = edge.client_disconnects.value(),
            "Clients that disconnected before their response was complete.";
        counter slow_clients_total = edge.slow_clients.value(),
            "Connections closed because the client was too slow.";
        counter connections_evicted_total = edge.evicted_connections.value(),
            "Idle connections closed to free capacity.";
        counter connections_refused_total = edge.refused_connections.value(),
            "Connections closed because their client had too many open.";
        counter tls_handshakes_total = edge.tls_handshakes.value(),
            "Complete TLS handshakes, resumed sessions included.";
        counter tls_resumptions_total = edge.tls_resumptions.value(),
            "TLS handshakes that resumed a session.";
        counter tls_handshake_failures_total = edge.tls_handshake_failures.value(),
            "TLS handshakes that failed or were not complete in time.";
        counter received_bytes_total = edge.bytes_in.value(), "Body bytes received.";
        counter sent_bytes_total = edge.bytes_out.value(),
            "Bytes sent, response headers included.";
        counter responses_total = MetricValue::by_label("class",
            STATUS_CLASSES.into_iter()
                .zip(edge.responses.iter().map(LocalCounter::value))),
            "Responses by status class.";
        histogram request_duration_seconds = &edge.total_time,
            "Time from the complete request header to the last byte handed to the kernel.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loops_sets_add_up() {
        let sets = [EdgeMetrics::default(), EdgeMetrics::default()];
        for (set, by) in sets.iter().zip([1, 2]) {
            set.accepted_connections.add(by);
            set.open_connections.add(-5);
            set.held_connections.add(2);
            set.held_total.add(by);
            set.count_response(404);
            set.total_time.record_local(Duration::from_micros(by));
        }
        let total = EdgeMetrics::total(&sets);
        assert_eq!(
            (
                total.accepted_connections.value(),
                total.open_connections.value()
            ),
            (3, -10)
        );
        assert_eq!(
            (total.held_connections.value(), total.held_total.value()),
            (4, 3)
        );
        assert_eq!(
            (total.responses[3].value(), total.responses_total()),
            (2, 2)
        );
        assert_eq!(
            (
                total.total_time.values().count(),
                total.total_time.values().sum()
            ),
            (2, Duration::from_micros(3))
        );
    }
}
