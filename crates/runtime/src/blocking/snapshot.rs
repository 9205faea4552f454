//! A pool at one moment, as `/status.json` and `/metrics` show it.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// A pool at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolSnapshot {
    /// Its name.
    pub name: String,
    /// Jobs waiting for a thread.
    pub queued: usize,
    /// The limit on waiting jobs.
    pub max_queued: usize,
    /// Threads that run a job.
    #[serde(rename = "active_threads")]
    pub active: usize,
    /// Threads started so far.
    #[serde(skip)]
    pub threads: usize,
    /// The limit on threads.
    pub max_threads: usize,
    /// Jobs refused because the queue was full, since the start.
    pub refused: u64,
    /// Time that jobs waited for a thread.
    pub queue_time: DurationStats,
    /// The longest time that a job waited.
    #[serde(
        rename = "max_queue_time_seconds",
        serialize_with = "serialize_seconds"
    )]
    pub max_queue_time: Duration,
    /// Time that jobs ran.
    pub run_time: DurationStats,
    /// Time that the job has run that has been running longest; 0 if none runs.
    #[serde(
        rename = "oldest_running_seconds",
        serialize_with = "serialize_seconds"
    )]
    pub oldest_running: Duration,
}

fn serialize_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// The number and the sum of some durations since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurationStats {
    /// The number.
    pub count: u64,
    /// The sum, in microseconds.
    pub sum_us: u64,
    /// The longest, in microseconds.
    pub max_us: u64,
}

/// The JSON form of [`DurationStats`].
#[derive(Serialize)]
struct DurationStatsJson {
    count: u64,
    sum_seconds: f64,
    mean_seconds: f64,
}

impl Serialize for DurationStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
        let count = self.count.max(1) as f64;
        let json = DurationStatsJson {
            count: self.count,
            sum_seconds: self.sum_seconds(),
            mean_seconds: self.sum_seconds() / count,
        };
        json.serialize(serializer)
    }
}

impl DurationStats {
    /// `count` durations of `sum_us` microseconds together.
    pub fn new(count: u64, sum_us: u64) -> Self {
        Self {
            count,
            sum_us,
            max_us: 0,
        }
    }

    /// The sum in seconds.
    pub fn sum_seconds(&self) -> f64 {
        Duration::from_micros(self.sum_us).as_secs_f64()
    }

    pub(super) fn add(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.max_us = self.max_us.max(us);
    }
}

#[derive(Debug, Default)]
pub(super) struct PoolCounters {
    pub(super) refused: u64,
    pub(super) queue_time: DurationStats,
    pub(super) run_time: DurationStats,
}
