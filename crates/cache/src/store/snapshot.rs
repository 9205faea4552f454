//! A store at one moment, as `/status.json` and `/metrics` show it.

use std::sync::atomic::Ordering::Relaxed;

use penstock_exchange::metric_table;
use penstock_exchange::metrics::MetricValue;
use penstock_runtime::blocking::DurationStats;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::Store;
use super::disk::DiskHealth;
use crate::counters::hit_ratio;

/// Whether a store is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StoreState {
    /// It is in use.
    #[default]
    Working,
    /// It is in use while its directory is read.
    Recovering,
    /// Its disk does not work: its share of requests goes to the back end.
    OutOfService {
        /// Why.
        reason: String,
    },
}

impl StoreState {
    /// The state in one word.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Recovering => "recovering",
            Self::OutOfService { .. } => "out_of_service",
        }
    }
}

/// Serialises the word as `state`, and the `reason`.
impl Serialize for StoreState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let reason = match self {
            Self::OutOfService { reason } => Some(reason),
            Self::Working | Self::Recovering => None,
        };
        let mut json = serializer.serialize_struct("StoreState", 2)?;
        json.serialize_field("state", self.as_str())?;
        json.serialize_field("reason", &reason)?;
        json.end()
    }
}

/// A store at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StoreSnapshot {
    /// Its name.
    pub name: String,
    /// Its directory; `None` without a disk.
    pub path: Option<String>,
    /// Whether it is in use.
    #[serde(flatten)]
    pub state: StoreState,
    /// Objects stored.
    pub objects: u64,
    /// Bytes stored, with headers and partial objects: on its disk or, without one, in memory.
    pub bytes: u64,
    /// Their limit: the configured size, or less while the file system is full.
    pub max_bytes: u64,
    /// Objects of which the body is in memory.
    pub memory_objects: u64,
    /// Bytes of objects in memory.
    pub memory_bytes: u64,
    /// Their limit.
    pub max_memory_bytes: u64,
    /// Counters since the start.
    pub counters: StoreCounts,
    /// The share of hits; `None` without look-ups.
    pub hit_ratio: Option<f64>,
    /// Reads from disk, with the time in the pool's queue.
    pub read_time: DurationStats,
    /// Writes to disk, with the time in the pool's queue.
    pub write_time: DurationStats,
}

/// The counters of a store since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StoreCounts {
    /// Look-ups that found an object, fresh or stale.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Objects stored.
    pub stores: u64,
    /// Objects evicted.
    pub evictions: u64,
    /// Objects removed by purges.
    pub purged_objects: u64,
    /// Failed operations of the disk, and damaged objects.
    pub errors: u64,
}

impl Store {
    /// The store now.
    #[must_use]
    pub fn snapshot(&self) -> StoreSnapshot {
        let (memory_bytes, memory_objects) = self.memory.weight_and_count();
        let counters = StoreCounts {
            hits: self.counters.hits.load(Relaxed),
            misses: self.counters.misses.load(Relaxed),
            stores: self.counters.stored.load(Relaxed),
            evictions: self.counters.evicted.load(Relaxed),
            purged_objects: self.counters.purged.load(Relaxed),
            errors: 0,
        };
        let path = self.config.path.as_ref();
        let mut usage = StoreSnapshot {
            name: self.config.name.clone(),
            path: path.map(|path| path.display().to_string()),
            objects: memory_objects,
            bytes: memory_bytes,
            max_bytes: self.config.max_size,
            memory_objects,
            memory_bytes,
            max_memory_bytes: self.max_memory(),
            hit_ratio: hit_ratio(counters.hits, counters.misses),
            counters,
            ..StoreSnapshot::default()
        };
        if self.is_stopped.load(Relaxed) {
            let reason = "it was stopped".to_owned();
            usage.state = StoreState::OutOfService { reason };
        }
        if let Some(disk) = &self.disk {
            usage.state = match disk.health() {
                DiskHealth::Working => StoreState::Working,
                DiskHealth::Recovering => StoreState::Recovering,
                DiskHealth::OutOfService | DiskHealth::Stopped => StoreState::OutOfService {
                    reason: disk.outage_reason(),
                },
            };
            usage.objects = disk.tier.weight_and_count().1;
            usage.bytes = disk.used_bytes();
            usage.max_bytes = disk.current_max_size();
            let counts = &disk.counters;
            usage.counters.evictions = counts.evicted.load(Relaxed);
            usage.counters.errors = counts.errors.load(Relaxed);
            usage.read_time =
                DurationStats::new(counts.reads.load(Relaxed), counts.read_micros.load(Relaxed));
            usage.write_time = DurationStats::new(
                counts.writes.load(Relaxed),
                counts.write_micros.load(Relaxed),
            );
        }
        usage
    }
}

metric_table! {
    /// Metrics of a cache, labelled `cache`.
    pub static STORE_METRICS: |cache: StoreSnapshot| {
        gauge cache_up = !matches!(cache.state, StoreState::OutOfService { .. }),
            "1 while the cache is in use, 0 while it is out of service.";
        gauge cache_objects = cache.objects, "Objects stored.";
        gauge cache_bytes = cache.bytes, "Bytes stored.";
        gauge cache_limit_bytes = cache.max_bytes, "Limit on stored bytes.";
        gauge cache_memory_objects = cache.memory_objects, "Objects in memory.";
        gauge cache_memory_bytes = cache.memory_bytes, "Bytes of objects in memory.";
        gauge cache_memory_limit_bytes = cache.max_memory_bytes,
            "Limit on bytes of objects in memory.";
        counter cache_hits_total = cache.counters.hits,
            "Look-ups that found an object, fresh or stale.";
        counter cache_misses_total = cache.counters.misses, "Look-ups that found none.";
        counter cache_stores_total = cache.counters.stores, "Objects stored.";
        counter cache_evictions_total = cache.counters.evictions, "Objects evicted.";
        counter cache_purged_objects_total = cache.counters.purged_objects,
            "Objects removed by purges.";
        counter cache_errors_total = cache.counters.errors,
            "Failed operations and damaged objects.";
        counter cache_reads_total = cache.read_time.count, "Reads from disk.";
        counter cache_read_seconds_total = cache.read_time.sum_seconds(), "Total time of reads.";
        counter cache_writes_total = cache.write_time.count, "Writes to disk.";
        counter cache_write_seconds_total = cache.write_time.sum_seconds(), "Total time of writes.";
        gauge cache_state = MetricValue::Label("state", cache.state.as_str()),
            "The cache's state, as a label; always 1.";
    }
}
