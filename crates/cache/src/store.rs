//! One cache: a folder on a disk with memory in front, or memory alone.
//!
//! `handler` finds objects here and fills new ones; `penstock` starts a store for each `[caches.NAME]`.
//! Looking up touches no disk: the index of both tiers is in memory (`tier`, `fifo`), the keeper reads it
//! back in after a start (`keeper`). An object is one file (`format`, `file`, `folder`), written while it is
//! served (`filler`, `growing`) and sent from its descriptor (`object`). `disk` knows whether the disk works;
//! `shelf` spreads a route's keys over its stores.
//!
//! Why own code and not `foyer` or another kept cache of two tiers: those hold a value whole in memory while it
//! is inserted and give it back whole, in blocks of files of their own with threads and queues of their own.
//! Here an object of a gigabyte streams in while clients read it, goes out by `sendfile` from a descriptor
//! with a look at what is in memory before each piece, and each disk's work has a named, bounded pool in
//! which a stall is seen. What is pure is small: eviction, format and index.
//!
//! What must stay true: an object found is whole or grows, and is what was stored for that very key; what is
//! purged is not found again, wherever it was; a disk that is out is waited for by nobody; bytes on
//! the disk, temporary files included, and in memory stay within their bounds.

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

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_config as config;
use penstock_runtime::blocking::Pool;
use penstock_runtime::disk::Arena;
use penstock_runtime::{DiskFile, loops};

use disk::{Disk, DiskItem, MAX_DISCARDED_FILES};
use frequency_sketch::FrequencySketch;
use index_updates::memory_item;
use object_file::ObjectFile;
use purge_rules::PendingPurges;
use tier::{IndexedObject, Tier};

pub(crate) use key::{LIFETIME_WORDS, ObjectKey, ObjectMeta, SliceSet};
pub(crate) use memory_body::MemoryBody;
pub(crate) use object_writer::ObjectWriter;
pub(crate) use partial_object::PartialObject;
pub(crate) use purge_rules::PurgeRule;
pub use snapshot::{StoreSnapshot, StoreState};
pub(crate) use store_set::StoreSet;
pub(crate) use stored_object::{DiskObject, Hit, HitBody, ObjectGone};

/// Objects on their way in at once, at most.
const MAX_PARTIAL_OBJECTS: u64 = 4096;

/// Open files that are kept though nobody reads them.
const MAX_OPEN_FILES: usize = 512;

/// A small object is read into memory at its second use of those that eviction has not forgotten.
const HOT_USES: u8 = 2;

/// An object on its way to a disk stays in memory until its end, if it is not larger: one write is enough for it.
const MAX_SINGLE_WRITE: u64 = 1 << 20;

/// Shards of what is on its way in.
const SHARDS: usize = 16;

/// One `[caches.NAME]`, running.
#[derive(Debug)]
pub struct Store {
    config: config::Cache,
    memory: Tier<MemoryBody>,
    /// For the larger bodies of memory alone.
    arena: Option<Arena>,
    disk: Option<Arc<Disk>>,
    is_stopped: AtomicBool,
    /// What may block or takes long.
    pool: Pool,
    /// What is on its way in, by the key's hash. Taken before a tier's locks.
    partial: Box<[Mutex<PartialObjects>]>,
    partial_count: AtomicU64,
    /// Bytes of what is on its way in that are in memory.
    partial_memory: Arc<AtomicU64>,
    /// Open files, oldest first.
    open_files: Mutex<VecDeque<(Arc<ObjectFile>, Arc<DiskFile>)>>,
    verifications: verification::Verifications,
    /// Purges while the index is not known in full. Taken before a tier's locks.
    pending_purges: Mutex<PendingPurges>,
    /// The last purges, for what is being fetched.
    recent_purges: recent_purges::RecentPurges,
    sketch: FrequencySketch,
    counters: StoreCounters,
}

/// Objects on their way in, by their keys' hashes.
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
    /// Starts a store; its folder is made and its index read in the background. A folder that does not
    /// work now is tried again: that is no error. `pool` does its reading and writing. Its background
    /// task runs on the loop (or the control loop) of the caller, and ends with the last `Arc` or
    /// with [`Store::stop`].
    #[must_use]
    pub fn start(config: &config::Cache, pool: Pool) -> Arc<Self> {
        let store = Self::new(config, pool);
        if let Some(disk) = &store.disk {
            loops::spawn_here(maintenance::run_maintenance(
                Arc::downgrade(&store),
                Arc::clone(disk),
            ));
        }
        store
    }

    /// One whose keeper is still to be started.
    fn new(config: &config::Cache, pool: Pool) -> Arc<Self> {
        let path = config.path.clone();
        let disk = path.map(|path| Arc::new(Disk::new(config, path, pool.clone())));
        let arena = match disk {
            Some(_) => None,
            None => Arena::new(config.max_size, pool.clone())
                .inspect_err(|error| {
                    let name = &config.name;
                    log::info!("cache `{name}`: each client gets a copy of larger bodies: {error}");
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
            open_files: Mutex::default(),
            verifications: verification::Verifications::new(),
            pending_purges: Mutex::default(),
            recent_purges: recent_purges::RecentPurges::default(),
            sketch: FrequencySketch::new(),
            counters: StoreCounters::default(),
        })
    }

    /// Leaves the folder: what is stored stays in it, and another store may have it as soon as the operation under
    /// way has ended (it tries until then). From here on this one is [`StoreState::OutOfService`]. What is being served
    /// goes on. Does not wait for a disk.
    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
        if let Some(disk) = &self.disk {
            disk.stop();
        }
    }

    /// What it was started from.
    #[must_use]
    pub fn config(&self) -> &config::Cache {
        &self.config
    }

    /// Whether it serves: not out. One atomic read.
    pub(crate) fn is_working(&self) -> bool {
        match &self.disk {
            Some(disk) => disk.is_working(),
            None => !self.is_stopped.load(Relaxed),
        }
    }

    /// Counts a request: answered from what was found here, or not.
    pub(crate) fn count_lookup(&self, is_hit: bool) {
        let count = match is_hit {
            true => &self.counters.hits,
            false => &self.counters.misses,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Looks for a variant of `key` that `pick` takes: first among those on their way in, then among
    /// those held. On the loop: no disk is touched. Counts nothing: a request may look more than once.
    pub(crate) fn find(
        self: &Arc<Self>,
        key: &ObjectKey,
        pick: &mut dyn FnMut(&ObjectMeta) -> bool,
    ) -> Option<Hit> {
        if !self.is_working() {
            return None;
        }
        let is_hiding = self.recent_purges.is_filtering();
        let pick: &mut dyn FnMut(&ObjectMeta) -> bool =
            &mut |meta| !(is_hiding && self.recent_purges.filters(meta)) && pick(meta);
        if self.partial_count.load(Relaxed) > 0
            && let Some(growing) = self.find_partial(key, pick)
        {
            return Some(Hit {
                meta: Arc::clone(growing.meta()),
                body: HitBody::Partial(growing),
            });
        }
        if let Some(item) = self.memory.find(key, pick) {
            return Some(Hit {
                meta: Arc::clone(&item.meta),
                body: HitBody::Memory(item.body.clone()),
            });
        }
        let item = self.disk.as_ref()?.tier.find(key, pick)?;
        Some(Hit {
            meta: Arc::clone(&item.meta),
            body: HitBody::Disk(DiskObject {
                store: Arc::clone(self),
                item,
            }),
        })
    }

    /// Counts a request for `key` that nothing was found for, and gives how many there were lately, this one
    /// included (for `min_uses`; may say more than there were, never less but for what is long ago).
    pub(crate) fn count_request(&self, key: &ObjectKey) -> u32 {
        self.sketch.count(key.hash)
    }

    /// Begins an object whose body is still to come; `meta.length` is set at its end. Those who look for the
    /// key find it at once. It takes the place of the same variant when it is complete. None when it would
    /// not be kept: the store is out or busy, or `declared` is more than `object_max`.
    pub(crate) fn begin_object(
        self: &Arc<Self>,
        key: &ObjectKey,
        meta: ObjectMeta,
        declared: Option<u64>,
    ) -> Option<(ObjectWriter, Arc<PartialObject>)> {
        let is_small_enough =
            declared.is_none_or(|declared| declared <= self.config.max_object_size);
        if !self.is_working() || !is_small_enough {
            return None;
        }
        if let Some(disk) = &self.disk
            && disk.maintenance_queue().discarded.len() > MAX_DISCARDED_FILES
        {
            return None;
        }
        let slot_bytes = format::slot_bytes(format::encode_meta(&meta).len(), declared)?;
        if self.partial_count.fetch_add(1, Relaxed) >= MAX_PARTIAL_OBJECTS {
            self.count_partial_ended();
            return None;
        }
        let gauge = Arc::clone(&self.partial_memory);
        let growing = PartialObject::new(Arc::new(meta), declared, gauge, self.disk.clone());
        let listed = Arc::clone(&growing);
        let mut shard = self.partial_shard(key.hash);
        shard.entry(key.hash).or_default().push(listed);
        drop(shard);
        let store = Arc::clone(self);
        let filler = ObjectWriter::new(store, key.clone(), Arc::clone(&growing), slot_bytes);
        Some((filler, growing))
    }

    /// Replaces what is known of a found object, after a 304; its body stays. Same key and variant. Nothing
    /// happens if the object has gone or been replaced meanwhile. Gives the new meta as it is stored.
    pub(crate) fn freshen(self: &Arc<Self>, hit: &Hit, meta: ObjectMeta) -> Arc<ObjectMeta> {
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
            let new = maintenance::disk_item(file, Arc::clone(&meta), self.config.max_size);
            if disk.tier.replace(&old, &new) && !disk.queue_rewrite(&new) {
                // What cannot be written down must not come back older after a restart.
                self.remove_item(&new);
            }
        }
        if let Some(old) = self.memory.find(&key, &mut is_it) {
            let new = memory_item(key.hash, &meta, old.body.clone());
            self.memory.replace(&old, &new);
        }
        meta
    }

    /// Takes out all variants of `key`, and keeps those on their way in from being kept. Gives how many objects
    /// there were.
    pub(crate) fn remove_key(&self, key: &ObjectKey) -> u64 {
        self.add_pending_purge(|| PurgeRule::Key(Arc::clone(&key.text)));
        let growing: Vec<_> = {
            let mut shard = self.partial_shard(key.hash);
            let all = shard.get_mut(&key.hash).into_iter();
            all.flat_map(|all| all.extract_if(.., |one| one.meta().key == key.text))
                .collect()
        };
        for growing in growing {
            growing.discard();
        }
        let on_disk = self.disk.iter();
        let on_disk: Vec<_> = on_disk.flat_map(|disk| disk.tier.remove_key(key)).collect();
        let in_memory = self.memory.remove_key(key);
        if let Some(disk) = &self.disk
            && (!on_disk.is_empty() || disk.health() != disk::DiskHealth::Working)
        {
            disk.queue_purge_note(&PurgeRule::Key(Arc::clone(&key.text)));
        }
        self.discard_files(on_disk, &in_memory)
    }

    /// Takes out one found object.
    pub(crate) fn remove_hit(&self, hit: &Hit) {
        let key = ObjectKey::new(&hit.meta.key);
        let mut is_it = |other: &ObjectMeta| std::ptr::eq(other, &raw const *hit.meta);
        if let Some(disk) = &self.disk
            && let Some(item) = disk.tier.find(&key, &mut is_it)
            && disk.tier.remove(&item)
        {
            disk.discard([item]);
        }
        if let Some(item) = self.memory.find(&key, &mut is_it) {
            self.memory.remove(&item);
        }
    }

    /// Removes the files of objects that were taken out, and counts them.
    fn discard_files(
        &self,
        on_disk: Vec<Arc<DiskItem>>,
        in_memory: &[Arc<IndexedObject<MemoryBody>>],
    ) -> u64 {
        // An object that is in both tiers has one meta.
        let metas: std::collections::HashSet<_> =
            on_disk.iter().map(|item| Arc::as_ptr(&item.meta)).collect();
        let is_alone =
            |item: &&Arc<IndexedObject<MemoryBody>>| !metas.contains(&Arc::as_ptr(&item.meta));
        let count = on_disk.len() + in_memory.iter().filter(is_alone).count();
        if let Some(disk) = &self.disk {
            disk.discard(on_disk);
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
        let mut all = all.filter(|one| one.meta().key == key.text && one.is_findable());
        all.find(|one| pick(one.meta())).cloned()
    }

    fn partial_shard(&self, hash: u128) -> MutexGuard<'_, PartialObjects> {
        let shard = &self.partial[hash as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn max_memory(&self) -> u64 {
        match self.disk {
            Some(_) => self.config.max_memory,
            None => self.config.max_size,
        }
    }

    /// Bytes of the largest body that is kept in memory.
    fn max_memory_object(&self) -> u64 {
        match self.disk {
            Some(_) => (self.config.max_memory / 16).min(memory_body::MAX_BUFFERED_BODY),
            None => self.config.max_object_size,
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The keeper ends, and the folder is free.
        self.stop();
    }
}

#[cfg(test)]
mod tests;
