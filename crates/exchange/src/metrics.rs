//! Counters, gauges and histograms, the sets of them that components count in, and tables of
//! metrics.
//!
//! A component gets its set at the start and counts with relaxed atomics. `status` serialises the
//! sets and renders them as metrics. There is no registry and no global.

mod exemplars;
mod metric_table;
mod route_counts;
mod rule_counts;
pub mod top_list;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Serialize, Serializer};

pub use exemplars::Exemplar;
use exemplars::ExemplarStore;
use metric_table::to_f64;
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

/// Upper bounds of the histogram's buckets, in microseconds: 1-2-5 steps from 100 us to 60 s.
pub const BUCKETS_US: [u64; 18] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// A histogram of durations with fixed buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One more than the bounds: the last counts longer durations.
    counts: [AtomicU64; BUCKETS_US.len() + 1],
    sum_us: AtomicU64,
    exemplars: ExemplarStore,
}

/// The status classes, as values of a label.
pub const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// A histogram's numbers at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistogramValues {
    /// Counts by bucket, not cumulative.
    pub counts: [u64; BUCKETS_US.len() + 1],
    /// Sum of all durations in microseconds.
    pub sum_us: u64,
    /// The latest trace in each bucket that has one, in the order of the buckets.
    pub exemplars: Vec<Exemplar>,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        for (cell, by) in self.increments(duration) {
            cell.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Counts one duration in a histogram that only this thread changes.
    pub fn record_local(&self, duration: Duration) {
        for (cell, by) in self.increments(duration) {
            let sum = cell.load(Ordering::Relaxed).wrapping_add(by);
            cell.store(sum, Ordering::Relaxed);
        }
    }

    /// Names the trace of a duration that was counted.
    pub fn add_exemplar(&self, duration: Duration, trace_id: [u8; 16]) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.exemplars.add(Exemplar {
            bucket: BUCKETS_US.partition_point(|&bound| bound < us),
            trace_id,
            duration_us: us,
            observed_at: penstock_runtime::clock::wall_time(),
        });
    }

    fn increments(&self, duration: Duration) -> [(&AtomicU64, u64); 2] {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.partition_point(|&bound| bound < us);
        [(&self.counts[bucket], 1), (&self.sum_us, us)]
    }

    fn merge(&self, other: &Self) {
        for (mine, theirs) in self.counts.iter().zip(&other.counts) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.sum_us
            .fetch_add(other.sum_us.load(Ordering::Relaxed), Ordering::Relaxed);
        for exemplar in other.exemplars.values() {
            self.exemplars.add(exemplar);
        }
    }

    /// The numbers so far.
    #[must_use]
    pub fn values(&self) -> HistogramValues {
        HistogramValues {
            counts: std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
            exemplars: self.exemplars.values(),
        }
    }
}

/// A histogram as JSON: its summary, and the buckets for a summary of a shorter time.
#[derive(Serialize)]
struct HistogramJson {
    count: u64,
    sum_seconds: f64,
    p50_seconds: f64,
    p90_seconds: f64,
    p99_seconds: f64,
    buckets: BucketsJson,
}

#[derive(Serialize)]
struct BucketsJson {
    /// Upper bounds; one fewer than the counts, the last of which has no bound.
    le_seconds: [f64; BUCKETS_US.len()],
    /// Counts, not cumulative.
    counts: [u64; BUCKETS_US.len() + 1],
}

/// Serialises the count, the sum, the percentiles and the buckets. A percentile is the upper bound
/// of its bucket.
impl Serialize for HistogramValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quantile = |q| micros_to_seconds(self.quantile_us(q));
        let json = HistogramJson {
            count: self.count(),
            sum_seconds: self.sum_seconds(),
            p50_seconds: quantile(0.5),
            p90_seconds: quantile(0.9),
            p99_seconds: quantile(0.99),
            buckets: BucketsJson {
                le_seconds: Self::bounds_seconds(),
                counts: self.counts,
            },
        };
        json.serialize(serializer)
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.values().serialize(serializer)
    }
}

fn micros_to_seconds(us: u64) -> f64 {
    to_f64(us) / 1e6
}

impl HistogramValues {
    /// The upper bounds of the buckets in seconds, without the last bucket's, which has none.
    #[must_use]
    pub fn bounds_seconds() -> [f64; BUCKETS_US.len()] {
        BUCKETS_US.map(micros_to_seconds)
    }

    /// The sum of all durations in seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        micros_to_seconds(self.sum_us)
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The upper bound, in microseconds, of the bucket that holds the quantile `q` (0 to 1).
    #[must_use]
    pub fn quantile_us(&self, q: f64) -> u64 {
        let total = self.count();
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if total > 0 && to_f64(seen) >= q * to_f64(total) {
                return BUCKETS_US
                    .get(i)
                    .copied()
                    .unwrap_or(2 * BUCKETS_US[BUCKETS_US.len() - 1]);
            }
        }
        0
    }
}

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
    micros_to_seconds(micros.value()).serialize(to)
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
                total.total_time.values().sum_us
            ),
            (2, 3)
        );
    }

    #[test]
    fn a_duration_is_counted_in_the_bucket_that_bounds_it() {
        let histogram = Histogram::default();
        for us in [0, 100, 101, 60_000_000, 60_000_001] {
            histogram.record(Duration::from_micros(us));
        }
        let values = histogram.values();
        assert_eq!((values.counts[0], values.counts[1]), (2, 1));
        assert_eq!((values.counts[17], values.counts[18]), (1, 1));
        assert_eq!(values.count(), 5);
        assert_eq!(values.quantile_us(0.5), 200);
    }

    #[test]
    fn a_histogram_is_serialised_as_its_summary() {
        let histogram = Histogram::default();
        for ms in [1, 1, 1, 40] {
            histogram.record(Duration::from_millis(ms));
        }
        let json = serde_json::to_value(histogram.values()).unwrap();
        assert_eq!(
            (&json["count"], &json["p50_seconds"]),
            (&4.into(), &0.001.into())
        );
        assert_eq!(
            (&json["p99_seconds"], &json["sum_seconds"]),
            (&0.05.into(), &0.043.into())
        );
        assert_eq!(
            json["buckets"]["le_seconds"].as_array().unwrap().len(),
            BUCKETS_US.len()
        );
        assert_eq!(json["buckets"]["counts"][3], 3);
    }
}
