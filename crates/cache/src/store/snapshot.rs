//! A store's state and counters for the status page.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Store;
use super::disk::DiskHealth;

/// Whether a store is in service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StoreState {
    /// In service.
    #[default]
    Working,
    /// In service, while it still reads its directory.
    Recovering,
    /// The disk does not work: the store's share of requests goes to the back end.
    OutOfService {
        /// Why.
        reason: String,
    },
}

/// A store's state and counters, for the status page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreSnapshot {
    /// Its name.
    pub name: String,
    /// Its directory; `None` for a store in memory only.
    pub path: Option<PathBuf>,
    /// Whether it is in service.
    pub state: StoreState,
    /// Objects it holds.
    pub objects: u64,
    /// Bytes used on the disk (in memory, without one), including headers and temporary files.
    pub bytes: u64,
    /// The limit of `bytes`: `max_size`, or less while the file system is full.
    pub max_bytes: u64,
    /// Objects with their body in memory.
    pub memory_objects: u64,
    /// Bytes of these.
    pub memory_bytes: u64,
    /// The limit of `memory_bytes`.
    pub max_memory: u64,
    /// Look-ups that found an object.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Objects stored since the start.
    pub stored: u64,
    /// Objects evicted since the start.
    pub evicted: u64,
    /// Objects purged since the start.
    pub purged: u64,
    /// Failed disk operations and damaged objects.
    pub errors: u64,
    /// Reads in the pool (opening, verifying).
    pub reads: u64,
    /// Their total time, including the queue.
    pub read_time: Duration,
    /// Writes in the pool (pieces, renames, headers).
    pub writes: u64,
    /// Their total time, including the queue.
    pub write_time: Duration,
}

impl Store {
    /// The current state and counters.
    #[must_use]
    pub fn snapshot(&self) -> StoreSnapshot {
        let (memory_bytes, memory_objects) = self.memory.weight_and_count();
        let mut usage = StoreSnapshot {
            name: self.config.name.clone(),
            path: self.config.path.clone(),
            objects: memory_objects,
            bytes: memory_bytes,
            max_bytes: self.config.max_size,
            memory_objects,
            memory_bytes,
            max_memory: self.max_memory(),
            hits: self.counters.hits.load(Relaxed),
            misses: self.counters.misses.load(Relaxed),
            stored: self.counters.stored.load(Relaxed),
            evicted: self.counters.evicted.load(Relaxed),
            purged: self.counters.purged.load(Relaxed),
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
            usage.evicted = counts.evicted.load(Relaxed);
            usage.errors = counts.errors.load(Relaxed);
            usage.reads = counts.reads.load(Relaxed);
            usage.read_time = Duration::from_micros(counts.read_micros.load(Relaxed));
            usage.writes = counts.writes.load(Relaxed);
            usage.write_time = Duration::from_micros(counts.write_micros.load(Relaxed));
        }
        usage
    }
}
