//! What a pool counts: for the status page, and for those who judge a disk by it.

use std::time::Duration;

/// What a pool is doing, for the status page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Jobs waiting for a thread.
    pub queued: usize,
    /// Threads at work.
    pub active: usize,
    /// Threads started so far; they stay.
    pub threads: usize,
    /// Jobs that found no room, since the pool was made.
    pub refused: u64,
    /// How long jobs waited for a thread.
    pub queue_time: DurationStats,
    /// How long jobs took.
    pub run_time: DurationStats,
    /// How long the job that runs longest has been at work.
    pub oldest_running: Option<Duration>,
}

/// A sum of durations since the pool was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurationStats {
    /// How many.
    pub count: u64,
    /// Together, in microseconds.
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
