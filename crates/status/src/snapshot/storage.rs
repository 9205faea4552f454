//! What waits for disks: pools for blocking work, caches, and the routes that use these.
//!
//! Parts of a [`crate::Snapshot`], filled in by the wiring from what pools and stores count. What must
//! stay true: a sum and its count are of the same moment, so that whoever looks twice gets the mean of
//! the time between.

use std::time::Duration;

use serde::Serialize;

/// One pool for blocking work.
#[derive(Debug, Clone, Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Jobs waiting for a thread.
    pub queued: usize,
    /// Threads at work.
    pub active_threads: usize,
    /// The bound on threads.
    pub max_threads: usize,
    /// The bound on waiting jobs.
    pub max_queued: usize,
    /// Jobs refused since the start: the queue was full.
    pub refused: u64,
    /// Waiting for a thread, of all jobs that were taken.
    pub queue_time: TimeSum,
    /// The longest that a job has waited.
    #[serde(
        rename = "max_queue_time_seconds",
        serialize_with = "super::serialize_seconds"
    )]
    pub max_queue_time: Duration,
    /// At work, of all jobs that have ended.
    pub run_time: TimeSum,
    /// How long the job that is at work for longest has been; 0 when there is none.
    #[serde(
        rename = "oldest_running_seconds",
        serialize_with = "super::serialize_seconds"
    )]
    pub oldest_running: Duration,
}

/// One cache.
#[derive(Debug, Clone, Serialize)]
pub struct CacheStatus {
    /// Its name.
    pub name: String,
    /// Its folder; `None` is memory alone.
    pub path: Option<String>,
    /// working, recovering (it works while its directory is read), out_of_service.
    pub state: String,
    /// Why it is out.
    pub reason: Option<String>,
    /// Objects stored.
    pub objects: u64,
    /// Bytes stored: on its disk or, without one, in memory.
    pub bytes: u64,
    /// The bound on them.
    pub max_bytes: u64,
    /// Objects in memory.
    pub memory_objects: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// The bound on them.
    pub max_memory_bytes: u64,
    /// What it counted since the start.
    pub counters: CacheCounters,
    /// The share of hits in all that was asked of it; `None` before anything was.
    pub hit_ratio: Option<f64>,
    /// Reading from its disk.
    pub read_time: TimeSum,
    /// Writing to its disk.
    pub write_time: TimeSum,
}

/// A cache's counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounters {
    /// Requests for which it had something, fresh or not.
    pub hits: u64,
    /// Requests for which it had nothing.
    pub misses: u64,
    /// Objects stored.
    pub stores: u64,
    /// Objects that had to go for others.
    pub evictions: u64,
    /// Objects taken out by purges.
    pub purged_objects: u64,
    /// Operations that failed, and objects that were found damaged.
    pub errors: u64,
}

impl CacheCounters {
    /// The share of hits; `None` before anything was asked.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| super::as_f64(self.hits) / super::as_f64(asked))
    }
}

/// What the caches of one route did for it.
#[derive(Debug, Clone, Serialize)]
pub struct CachedRouteStatus {
    /// Its hosts (`*` for all) and its path.
    pub name: String,
    /// The names of its caches.
    pub caches: Vec<String>,
    /// What became of its requests since the start.
    pub counters: CachedRouteCounters,
    /// The share of requests that were answered with what is stored, in all that the caches may know of;
    /// `None` before there was any.
    pub hit_ratio: Option<f64>,
}

/// What became of a route's requests: each is one of the first six.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CachedRouteCounters {
    /// Answered from what is stored, fresh.
    pub hits: u64,
    /// Answered with what is stale: while it is revalidated, or because the back end failed.
    pub stale: u64,
    /// Answered from what is stored after the back end said that it is still current.
    pub revalidated: u64,
    /// Answered with what another request brought.
    pub collapsed: u64,
    /// Answered by the back end.
    pub misses: u64,
    /// Not for the caches: by method, by rule, or because a disk is out.
    pub bypassed: u64,
    /// Fetches that failed.
    pub fetch_failures: u64,
    /// Responses that were stored.
    pub stores: u64,
    /// Bytes of bodies that came from a cache.
    pub served_bytes: u64,
}

impl CachedRouteCounters {
    /// The share that was answered with what is stored.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let hits = self.hits + self.stale + self.revalidated + self.collapsed;
        let asked = hits + self.misses;
        (asked > 0).then(|| super::as_f64(hits) / super::as_f64(asked))
    }

    /// These and those.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            stale: self.stale + other.stale,
            revalidated: self.revalidated + other.revalidated,
            collapsed: self.collapsed + other.collapsed,
            misses: self.misses + other.misses,
            bypassed: self.bypassed + other.bypassed,
            fetch_failures: self.fetch_failures + other.fetch_failures,
            stores: self.stores + other.stores,
            served_bytes: self.served_bytes + other.served_bytes,
        }
    }
}

/// How long some operations have taken, all together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeSum {
    /// How many.
    pub count: u64,
    /// The sum of their times.
    pub sum_seconds: f64,
    /// The mean since the start; 0 when there was none.
    pub mean_seconds: f64,
}

impl TimeSum {
    /// So many operations in so much time.
    #[must_use]
    pub fn new(count: u64, sum: Duration) -> Self {
        let sum_seconds = sum.as_secs_f64();
        Self {
            count,
            sum_seconds,
            mean_seconds: sum_seconds / super::as_f64(count.max(1)),
        }
    }
}
