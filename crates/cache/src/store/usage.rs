//! What a store holds and does, as the status page shows it.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Store;
use super::disk::Health;

/// Whether a store serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StoreState {
    /// It does.
    #[default]
    Working,
    /// It does, while it still reads what its folder holds.
    Recovering,
    /// Its disk does not work: its share of requests goes to the back end.
    Out {
        /// Why.
        reason: String,
    },
}

/// What a store holds and does, for the status page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreUse {
    /// Its name.
    pub name: String,
    /// Its folder; none: memory alone.
    pub path: Option<PathBuf>,
    /// Whether it serves.
    pub state: StoreState,
    /// Objects it holds.
    pub objects: u64,
    /// Bytes they take on its disk (in memory, without one), with headers and what is being written.
    pub bytes: u64,
    /// The bound of those: `size_max`, or less while its file system is full.
    pub bytes_max: u64,
    /// Objects of which the body is in memory.
    pub memory_objects: u64,
    /// Bytes of those.
    pub memory_bytes: u64,
    /// The bound of those.
    pub memory_max: u64,
    /// Look-ups that found an object.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Objects stored since the start.
    pub stored: u64,
    /// Objects evicted since the start.
    pub evicted: u64,
    /// Objects purged since the start.
    pub purged: u64,
    /// Failed operations of its disk, and damaged objects that were found.
    pub errors: u64,
    /// Readings done in the pool (opening, verifying).
    pub reads: u64,
    /// The time those took in all, in the queue too.
    pub read_time: Duration,
    /// Writings done in the pool (pieces, renames, headers).
    pub writes: u64,
    /// The time those took in all, in the queue too.
    pub write_time: Duration,
}

impl Store {
    /// What it holds and does now.
    #[must_use]
    pub fn usage(&self) -> StoreUse {
        let (memory_bytes, memory_objects) = self.memory.usage();
        let mut usage = StoreUse {
            name: self.config.name.clone(),
            path: self.config.path.clone(),
            objects: memory_objects,
            bytes: memory_bytes,
            bytes_max: self.config.size_max,
            memory_objects,
            memory_bytes,
            memory_max: self.memory_max(),
            hits: self.counts.hits.load(Relaxed),
            misses: self.counts.misses.load(Relaxed),
            stored: self.counts.stored.load(Relaxed),
            evicted: self.counts.evicted.load(Relaxed),
            purged: self.counts.purged.load(Relaxed),
            ..StoreUse::default()
        };
        if self.is_stopped.load(Relaxed) {
            let reason = "it was stopped".to_owned();
            usage.state = StoreState::Out { reason };
        }
        if let Some(disk) = &self.disk {
            usage.state = match disk.health() {
                Health::Working => StoreState::Working,
                Health::Recovering => StoreState::Recovering,
                Health::Out | Health::Stopped => StoreState::Out {
                    reason: disk.reason(),
                },
            };
            usage.objects = disk.tier.usage().1;
            usage.bytes = disk.used();
            usage.bytes_max = disk.bound();
            let counts = &disk.counts;
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
