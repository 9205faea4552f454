//! Counters of a pool, for the status page and for judging a disk by them.

use std::time::Duration;

/// State of a pool, for the status page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Jobs waiting for a thread.
    pub queued: usize,
    /// Busy threads.
    pub active: usize,
    /// Threads started so far; they stay.
    pub threads: usize,
    /// Jobs refused since the pool was created.
    pub refused: u64,
    /// How long jobs waited for a thread.
    pub queue_time: DurationStats,
    /// How long jobs ran.
    pub run_time: DurationStats,
    /// How long the longest running job has run.
    pub oldest_running: Option<Duration>,
}

/// Durations since the pool was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurationStats {
    /// Number of durations.
    pub count: u64,
    /// Their sum, in microseconds.
    pub sum_us: u64,
    /// The longest, in microseconds.
    pub max_us: u64,
}

impl DurationStats {
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
