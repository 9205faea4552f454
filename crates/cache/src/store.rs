//! One cache store: a directory on a disk with memory in front, or memory only.
//!
//! `handler` finds objects here and writes new ones; `penstock` starts a store for each
//! `[caches.NAME]`. Look-ups touch no disk: the index of both tiers is in memory (`tier`,
//! `s3_fifo`), and the maintenance task (`maintenance`) rebuilds it from the directory after a
//! start. An object is one file (`format`, `object_file`, `cache_dir`), written while it is served
//! (`object_writer`, `partial_object`) and sent from its descriptor (`stored_object`). `disk`
//! tracks whether the disk works; `store_set` distributes a route's keys over its stores.
//!
//! Why not `foyer` or another maintained two-tier cache: those keep a value whole in memory during
//! insertion and return it whole, in block files with their own threads and queues. Here an object
//! of a gigabyte streams in while clients read it and goes out by `sendfile` from a descriptor,
//! with a check of the page cache before each piece, and each disk's work has a named, bounded pool
//! in which a stall is detected. The pure parts are small: eviction, format and index.
//!
//! # Invariants
//!
//! - An object found is complete or partial, and is what was stored for that key.
//! - A purged object is not found again, wherever it was.
//! - No request waits for a disk that is out of service.
//! - Bytes on the disk, including temporary files, and in memory stay within their limits.

mod cache_dir;
mod disk;
mod format;
mod frequency_sketch;
pub(crate) mod fuzzing;
mod index_updates;
mod key;
mod maintenance;
mod memory_body;
mod object_file;
mod object_writer;
mod partial_object;
mod purge_rules;
mod recent_purges;
mod s3_fifo;
mod snapshot;
mod store_set;
mod stored_object;
mod tier;
mod verification;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use penstock_config as config;
use penstock_runtime::blocking::Pool;
use penstock_runtime::disk::Arena;
use penstock_runtime::loops;

use disk::{Disk, DiskIndexEntry, MAX_DISCARDED_FILES};
use frequency_sketch::FrequencySketch;
use index_updates::new_memory_entry;
use purge_rules::NumberedPurges;
use tier::{IndexedObject, Tier};

pub(crate) use key::{ObjectKey, ObjectMeta, SliceSet};
pub(crate) use memory_body::MemoryBody;
pub(crate) use object_writer::ObjectWriter;
pub(crate) use partial_object::PartialObject;
pub(crate) use purge_rules::PurgeRule;
pub use snapshot::{STORE_METRICS, StoreCounts, StoreSnapshot, StoreState};
pub(crate) use store_set::StoreSet;
pub(crate) use stored_object::{DiskObject, Hit, HitBody, ObjectGone};

/// Partial objects at once, at most.
const MAX_PARTIAL_OBJECTS: u64 = 4096;

/// Open files kept although no response is being sent from them.
const MAX_OPEN_FILES: usize = 512;

/// A small object is read into memory at this use, counted since its last pass through the eviction
/// queue.
const HOT_USES: u8 = 2;

/// A body of at most this size stays in memory until it is complete: one write stores it.
const MAX_SINGLE_WRITE: u64 = 1 << 20;

const SHARDS: usize = 16;

/// A running `[caches.NAME]`.
#[derive(Debug)]
pub struct Store {
    config: config::Cache,
    memory: Tier<MemoryBody>,
    /// For the larger bodies of a store without a disk.
    arena: Option<Arena>,
    pub(crate) disk: Option<Arc<Disk>>,
    is_stopped: AtomicBool,
    /// Runs work that may block or takes long.
    pool: Pool,
    /// Partial objects by the key's hash. Locked before a tier's locks.
    partial: Box<[Mutex<PartialObjects>]>,
    partial_count: AtomicU64,
    /// Bytes of partial objects in memory.
    partial_memory: Arc<AtomicU64>,
    /// Purges while the index is incomplete. Locked before a tier's locks.
    pending_purges: Mutex<NumberedPurges>,
    /// The last purges, for responses that are being fetched.
    recent_purges: recent_purges::RecentPurges,
    sketch: FrequencySketch,
    counters: StoreCounters,
}

type PartialObjects = HashMap<u128, Vec<Arc<PartialObject>>>;

#[derive(Debug, Default)]
struct StoreCounters {
    hits: AtomicU64,
    misses: AtomicU64,
    stored: AtomicU64,
    evicted: AtomicU64,
    purged: AtomicU64,
}

impl Store {
    /// Starts a store. Creates its directory and reads its index in the background. A directory
    /// that fails is retried: that is no error. `pool` does the reading and writing. The background
    /// task runs on the caller's event loop (or the control loop) and ends with the last `Arc` or
    /// with [`Store::stop`].
    #[must_use]
    pub fn start(config: &config::Cache, pool: Pool) -> Arc<Self> {
        let store = Self::new(config, pool);
        if let Some(disk) = &store.disk {
            let (store, disk) = (Arc::downgrade(&store), Arc::clone(disk));
            loops::spawn_here(maintenance::run_maintenance(store, disk));
        }
        store
    }

    /// Creates a store without starting its maintenance task.
    fn new(config: &config::Cache, pool: Pool) -> Arc<Self> {
        let path = config.path.clone();
        let disk = path.map(|path| Arc::new(Disk::new(config, path, pool.clone())));
        let arena = match disk {
            Some(_) => None,
            None => Arena::new(config.max_size, pool.clone())
                .inspect_err(|error| {
                    let name = &config.name;
                    log::info!("cache {name}: large bodies are copied for each client: {error}");
                })
                .ok(),
        };
        Arc::new(Self {
            config: config.clone(),
            memory: Tier::new(),
            arena,
            disk,
            is_stopped: AtomicBool::new(false),
            pool,
            partial: (0..SHARDS).map(|_| Mutex::default()).collect(),
            partial_count: AtomicU64::new(0),
            partial_memory: Arc::default(),
            pending_purges: Mutex::default(),
            recent_purges: recent_purges::RecentPurges::default(),
            sketch: FrequencySketch::new(),
            counters: StoreCounters::default(),
        })
    }

    /// Releases the directory and sets [`StoreState::OutOfService`]. Stored objects stay in the
    /// directory, and another store may use it as soon as the running operation has ended (it
    /// retries until then). Responses being sent continue. Does not wait for a disk.
    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
        if let Some(disk) = &self.disk {
            disk.stop();
        }
    }

    /// The configuration of the store.
    #[must_use]
    pub fn config(&self) -> &config::Cache {
        &self.config
    }

    /// Whether the store is in service. One atomic read.
    pub(crate) fn is_working(&self) -> bool {
        match &self.disk {
            Some(disk) => disk.is_working(),
            None => !self.is_stopped.load(Relaxed),
        }
    }

    pub(crate) fn count_lookup(&self, is_hit: bool) {
        let count = match is_hit {
            true => &self.counters.hits,
            false => &self.counters.misses,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Finds a variant of `key` that `pick` accepts, first among the partial objects, then in
    /// memory, then on the disk. Runs on the event loop and touches no disk. Does not count the
    /// look-up: a request may look up more than once.
    pub(crate) fn find(
        &self,
        key: &ObjectKey,
        pick: &mut dyn FnMut(&ObjectMeta) -> bool,
    ) -> Option<Hit> {
        if !self.is_working() {
            return None;
        }
        let is_hiding = self.recent_purges.is_filtering();
        let pick: &mut dyn FnMut(&ObjectMeta) -> bool =
            &mut |meta| !(is_hiding && self.recent_purges.matches_unapplied(meta)) && pick(meta);
        if self.partial_count.load(Relaxed) > 0
            && let Some(partial) = self.find_partial(key, pick)
        {
            return Some(Hit {
                meta: Arc::clone(&partial.meta),
                body: HitBody::Partial(partial),
            });
        }
        if let Some(item) = self.memory.find(key, pick) {
            return Some(Hit {
                meta: Arc::clone(&item.meta),
                body: HitBody::Memory(item.body.clone()),
            });
        }
        let disk = self.disk.as_ref()?;
        let item = disk.tier.find(key, pick)?;
        Some(Hit {
            meta: Arc::clone(&item.meta),
            body: HitBody::Disk(DiskObject {
                disk: Arc::clone(disk),
                item,
            }),
        })
    }

    /// Counts a request for `key` without a stored response, for `min_uses`. Returns the recent
    /// number of such requests, including this one; it may be too high, but too low only for old
    /// requests.
    pub(crate) fn count_request(&self, key: &ObjectKey) -> u32 {
        self.sketch.increment(key.hash)
    }

    /// Begins an object before its body arrives; `meta.length` is set at its end. Look-ups find the
    /// object at once, and it replaces the same variant when it is complete. Returns `None` if it
    /// would not be kept: the store is out of service or busy, or `declared` exceeds
    /// `max_object_size`.
    pub(crate) fn begin_object(
        self: &Arc<Self>,
        key: &ObjectKey,
        meta: ObjectMeta,
        declared: Option<u64>,
    ) -> Option<(ObjectWriter, Arc<PartialObject>)> {
        let is_too_large = declared.is_some_and(|length| length > self.config.max_object_size);
        if !self.is_working() || is_too_large {
            return None;
        }
        if let Some(disk) = &self.disk
            && disk.maintenance_queue().discarded.len() > MAX_DISCARDED_FILES
        {
            return None;
        }
        let slot_bytes = format::slot_bytes(format::encode_meta(&meta).len(), declared)?;
        if self.partial_count.fetch_add(1, Relaxed) >= MAX_PARTIAL_OBJECTS {
            self.decrement_partial_count();
            return None;
        }
        let gauge = Arc::clone(&self.partial_memory);
        let partial = PartialObject::new(Arc::new(meta), declared, gauge, self.disk.clone());
        let mut shard = self.partial_shard(key.hash);
        shard
            .entry(key.hash)
            .or_default()
            .push(Arc::clone(&partial));
        drop(shard);
        let store = Arc::clone(self);
        let writer = ObjectWriter::new(store, key.clone(), Arc::clone(&partial), slot_bytes);
        Some((writer, partial))
    }

    /// Replaces the metadata of a found object after a 304; the body stays. Key and variant must be
    /// the same. Does nothing if the object was removed or replaced meanwhile. Returns the metadata
    /// as stored.
    pub(crate) fn freshen(&self, hit: &Hit, meta: ObjectMeta) -> Arc<ObjectMeta> {
        let meta = Arc::new(ObjectMeta {
            length: hit.meta.length,
            key: Arc::clone(&hit.meta.key),
            ..meta
        });
        let key = ObjectKey::new(&meta.key);
        let mut is_it = |other: &ObjectMeta| std::ptr::eq(other, &raw const *hit.meta);
        if let Some(disk) = &self.disk
            && let Some(old) = disk.tier.find(&key, &mut is_it)
        {
            let file = Arc::clone(&old.body);
            let new = maintenance::new_disk_entry(file, Arc::clone(&meta), self.config.max_size);
            if disk.tier.replace(&old, &new) && !disk.queue_meta_rewrite(&new) {
                // Without the rewrite, an older version would return after a restart.
                disk.remove_item(&new);
            }
        }
        if let Some(old) = self.memory.find(&key, &mut is_it) {
            let new = new_memory_entry(key.hash, &meta, old.body.clone());
            self.memory.replace(&old, &new);
        }
        meta
    }

    /// Removes all variants of `key`, and keeps partial ones from being stored. Returns the number
    /// of removed objects.
    pub(crate) fn remove_key(&self, key: &ObjectKey) -> u64 {
        self.add_pending_purge(|| PurgeRule::Key(Arc::clone(&key.text)));
        let partial: Vec<_> = {
            let mut shard = self.partial_shard(key.hash);
            let all = shard.get_mut(&key.hash).into_iter();
            all.flat_map(|all| all.extract_if(.., |one| one.meta.key == key.text))
                .collect()
        };
        partial.iter().for_each(|partial| partial.discard());
        let on_disk = self.disk.as_ref().map(|disk| disk.tier.remove_key(key));
        let on_disk = on_disk.unwrap_or_default();
        let in_memory = self.memory.remove_key(key);
        if let Some(disk) = &self.disk
            && (!on_disk.is_empty() || disk.health() != disk::DiskHealth::Working)
        {
            disk.queue_journal_entry(&PurgeRule::Key(Arc::clone(&key.text)));
        }
        self.discard_files(on_disk, &in_memory)
    }

    pub(crate) fn remove_hit(&self, hit: &Hit) {
        let key = ObjectKey::new(&hit.meta.key);
        let mut is_it = |other: &ObjectMeta| std::ptr::eq(other, &raw const *hit.meta);
        if let Some(disk) = &self.disk
            && let Some(item) = disk.tier.find(&key, &mut is_it)
        {
            disk.remove_item(&item);
        }
        if let Some(item) = self.memory.find(&key, &mut is_it) {
            self.memory.remove(&item);
        }
    }

    /// Removes the files of removed objects. Returns the number of objects.
    fn discard_files(
        &self,
        on_disk: Vec<Arc<DiskIndexEntry>>,
        in_memory: &[Arc<IndexedObject<MemoryBody>>],
    ) -> u64 {
        // An object in both tiers has one meta.
        let in_memory = in_memory.iter().map(|item| Arc::as_ptr(&item.meta));
        let metas: HashSet<_> = on_disk
            .iter()
            .map(|item| Arc::as_ptr(&item.meta))
            .chain(in_memory)
            .collect();
        let count = metas.len();
        if let Some(disk) = &self.disk {
            disk.queue_discarded(on_disk);
        }
        count as u64
    }

    fn find_partial(
        &self,
        key: &ObjectKey,
        pick: &mut dyn FnMut(&ObjectMeta) -> bool,
    ) -> Option<Arc<PartialObject>> {
        let shard = self.partial_shard(key.hash);
        let all = shard.get(&key.hash)?.iter().rev();
        let mut all = all.filter(|one| one.meta.key == key.text && one.is_findable());
        all.find(|one| pick(&one.meta)).cloned()
    }

    fn partial_shard(&self, hash: u128) -> MutexGuard<'_, PartialObjects> {
        self.partial[hash as usize % SHARDS].lock()
    }

    fn max_memory(&self) -> u64 {
        match self.disk {
            Some(_) => self.config.max_memory,
            None => self.config.max_size,
        }
    }

    fn max_memory_object(&self) -> u64 {
        let promoted = self.disk.as_ref().map(|disk| disk.max_promoted_size);
        promoted.unwrap_or(self.config.max_object_size)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Ends the maintenance task, which releases the directory.
        self.stop();
    }
}

#[cfg(test)]
mod tests;
