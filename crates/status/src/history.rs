//! The last hour of the server in steps of ten seconds, for the charts of the status page.
//!
//! `penstock` passes a snapshot to [`History::record`] every [`HISTORY_INTERVAL`]; requests cost
//! nothing more. `/history.json` shows a [`HistorySnapshot`], and `problems` asks which queues have
//! refused requests lately.
//!
//! # Invariants
//! - It keeps at most [`MAX_SAMPLES`] samples of fixed size, less than 32 KiB, and one count for each
//!   application and upstream in each of the last [`REFUSAL_SAMPLES`] samples.
//! - What was not measured is null in JSON, never 0.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_exchange::metrics::HistogramValues;
use serde::{Serialize, Serializer};

use crate::Snapshot;

/// The time between two samples.
pub const HISTORY_INTERVAL: Duration = Duration::from_secs(10);

/// An hour of samples.
const MAX_SAMPLES: usize = 360;

/// The samples that refusals are compared with: those of the last minute.
const REFUSAL_SAMPLES: usize = 6;

const _: () = assert!(size_of::<Sample>() * MAX_SAMPLES <= 32 << 10);

/// The samples of a server since its start, of an hour at most.
#[derive(Debug, Default)]
pub struct History {
    /// Held for one sample or for a copy of all.
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Sample>,
    last: Option<Totals>,
    /// Refused requests of each queue at the last samples, the oldest first.
    refusals: VecDeque<BTreeMap<QueueName, u64>>,
}

/// An application's or upstream's queue: the kind and the name.
type QueueName = (QueueKind, String);

/// The owner of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueKind {
    App,
    Upstream,
}

/// Counters at the time of a sample.
#[derive(Debug)]
struct Totals {
    uptime: Duration,
    requests: u64,
    errors: u64,
    accepted: u64,
    times: HistogramValues,
}

/// The server in one step. NaN stands for what was not measured.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Seconds since 1970.
    at: u64,
    requests: f32,
    errors: f32,
    accepted: f32,
    p50: f32,
    p95: f32,
    p99: f32,
    queued: f32,
    connections: f32,
    hub_connections: f32,
    server_bytes: f32,
    worker_bytes: f32,
    load: f32,
}

/// All samples, a list for each number; the oldest are first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HistorySnapshot {
    /// The time between two samples, in seconds.
    interval_seconds: f64,
    /// The number of samples that are kept.
    max_samples: usize,
    /// When each was taken, in seconds since 1970.
    at: Vec<u64>,
    /// Requests per second since the sample before.
    requests_per_second: Column,
    /// Responses with status 5xx per second.
    errors_per_second: Column,
    /// Connections accepted per second.
    accepted_per_second: Column,
    /// Percentiles of the total time of requests since the sample before.
    p50_seconds: Column,
    p95_seconds: Column,
    p99_seconds: Column,
    /// Requests waiting in queues of applications and upstreams.
    queued: Column,
    /// Open client connections.
    connections: Column,
    /// Those that the hub holds.
    hub_connections: Column,
    /// Resident memory of the server process.
    server_bytes: Column,
    /// Memory of the workers of all applications.
    worker_bytes: Column,
    /// The load average of the machine in the last minute.
    load_average: Column,
}

/// The values of one number; NaN becomes null.
#[derive(Debug, Clone, Default)]
struct Column(Vec<f32>);

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(
            self.0
                .iter()
                .map(|value| value.is_finite().then_some(*value)),
        )
    }
}

impl History {
    /// Takes a sample of `now`, a snapshot made `at` this time since 1970.
    pub fn record(&self, now: &Snapshot, at: Duration) {
        let totals = Totals {
            uptime: now.uptime,
            requests: now.traffic.requests_total,
            errors: now.traffic.edge.responses[4].value(),
            accepted: now.traffic.edge.accepted_connections.value(),
            times: now.traffic.edge.total_time.values(),
        };
        let mut ring = self.lock();
        let sample = Sample::new(now, at, &totals, ring.last.as_ref());
        if ring.samples.len() == MAX_SAMPLES {
            ring.samples.pop_front();
        }
        ring.samples.push_back(sample);
        ring.last = Some(totals);
        if ring.refusals.len() == REFUSAL_SAMPLES {
            ring.refusals.pop_front();
        }
        ring.refusals.push_back(refused_requests(now).collect());
    }

    /// All samples.
    #[must_use]
    pub fn snapshot(&self) -> HistorySnapshot {
        let ring = self.lock();
        let column = |read: fn(&Sample) -> f32| Column(ring.samples.iter().map(read).collect());
        HistorySnapshot {
            interval_seconds: HISTORY_INTERVAL.as_secs_f64(),
            max_samples: MAX_SAMPLES,
            at: ring.samples.iter().map(|sample| sample.at).collect(),
            requests_per_second: column(|it| it.requests),
            errors_per_second: column(|it| it.errors),
            accepted_per_second: column(|it| it.accepted),
            p50_seconds: column(|it| it.p50),
            p95_seconds: column(|it| it.p95),
            p99_seconds: column(|it| it.p99),
            queued: column(|it| it.queued),
            connections: column(|it| it.connections),
            hub_connections: column(|it| it.hub_connections),
            server_bytes: column(|it| it.server_bytes),
            worker_bytes: column(|it| it.worker_bytes),
            load_average: column(|it| it.load),
        }
    }

    /// The requests that each queue has refused in about the last minute, where there are any.
    pub(crate) fn recent_refusals(&self, now: &Snapshot) -> BTreeMap<QueueName, u64> {
        let ring = self.lock();
        let before = ring.refusals.front();
        let lately = refused_requests(now).map(|(name, total)| {
            let known = before.and_then(|before| before.get(&name)).copied();
            // One that is new, or was replaced, counts from 0.
            let known = known.filter(|known| *known <= total).unwrap_or_default();
            (name, total - known)
        });
        lately.filter(|(_, count)| *count > 0).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests that each queue has refused since its start: it was full, or they waited too long.
fn refused_requests(now: &Snapshot) -> impl Iterator<Item = (QueueName, u64)> {
    let apps = now.apps.iter().map(|app| {
        let refused = app.counters.queue_full.value() + app.counters.queue_timeout.value();
        ((QueueKind::App, app.name.clone()), refused)
    });
    let upstreams = now.upstreams.iter().map(|upstream| {
        let refused = upstream.counters.queue_full + upstream.counters.queue_timeouts;
        ((QueueKind::Upstream, upstream.name.clone()), refused)
    });
    apps.chain(upstreams)
}

impl Sample {
    fn new(now: &Snapshot, at: Duration, totals: &Totals, before: Option<&Totals>) -> Self {
        let seconds = before.map_or(0.0, |before| {
            totals.uptime.saturating_sub(before.uptime).as_secs_f64()
        });
        let rate = |read: fn(&Totals) -> u64| match before {
            Some(before) if seconds > 0.0 => {
                to_f32(to_f64(read(totals).saturating_sub(read(before))) / seconds)
            }
            _ => f32::NAN,
        };
        let times = before.map(|before| totals.times.since(&before.times));
        let quantile = |q| {
            let found = times.as_ref().and_then(|times| times.quantile_seconds(q));
            found.map_or(f32::NAN, to_f32)
        };
        Self {
            at: at.as_secs(),
            requests: rate(|it| it.requests),
            errors: rate(|it| it.errors),
            accepted: rate(|it| it.accepted),
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            queued: to_f32(to_f64(queued_requests(now))),
            connections: to_f32(to_f64(now.connections.used)),
            hub_connections: to_f32(to_f64(now.hub.hub.connections.used)),
            server_bytes: now.resident_bytes.map_or(f32::NAN, |it| to_f32(to_f64(it))),
            worker_bytes: to_f32(to_f64(now.worker_bytes)),
            load: now.machine.load_average.map_or(f32::NAN, to_f32),
        }
    }
}

/// Requests in all queues. An application with servers of its own has that of its upstream.
fn queued_requests(now: &Snapshot) -> u64 {
    let upstreams = now.upstreams.iter();
    let is_own = |name: &String| now.upstreams.iter().any(|upstream| upstream.name == *name);
    let apps = now.apps.iter().filter(|app| !is_own(&app.name));
    let queued = apps.map(|app| app.queue.usage.waiting);
    let all: usize = queued.chain(upstreams.map(|it| it.queue.length)).sum();
    all as u64
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "seven digits are enough for a chart"
)]
fn to_f32(number: f64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests;
