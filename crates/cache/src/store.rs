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

mod disk;
mod entering;
mod fifo;
mod file;
mod filler;
mod folder;
mod format;
pub(crate) mod fuzzing;
mod growing;
mod held;
mod keeper;
mod key;
mod object;
mod purging;
mod recent;
mod shelf;
mod sketch;
mod tier;
mod usage;
mod verifying;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_config as config;
use penstock_runtime::blocking::Pool;
use penstock_runtime::disk::Arena;
use penstock_runtime::{DiskFile, loops};

use disk::{DYING_MAX, Disk, DiskItem};
use entering::memory_item;
use file::ObjectFile;
use purging::Remembered;
use sketch::Sketch;
use tier::{Item, Tier};

pub(crate) use filler::Filler;
pub(crate) use growing::Growing;
pub(crate) use held::Held;
pub(crate) use key::{Key, LIFETIME_WORDS, Meta, Sliced};
pub(crate) use object::{DiskObject, Gone, Hit, HitBody};
pub(crate) use purging::Rule;
pub(crate) use shelf::Shelf;
pub use usage::{StoreState, StoreUse};

/// Objects on their way in at once, at most.
const GROWING_MAX: u64 = 4096;

/// Open files that are kept though nobody reads them.
const OPEN_MAX: usize = 512;

/// A small object is read into memory at its second use of those that eviction has not forgotten.
const HOT_USES: u8 = 2;

/// An object on its way to a disk stays in memory until its end, if it is not larger: one write is enough for it.
const ONE_WRITE_MAX: u64 = 1 << 20;

/// Shards of what is on its way in.
const SHARDS: usize = 16;

/// One `[caches.NAME]`, running.
#[derive(Debug)]
pub struct Store {
    config: config::Cache,
    memory: Tier<Held>,
    /// For the larger bodies of memory alone.
    arena: Option<Arena>,
    disk: Option<Arc<Disk>>,
    is_stopped: AtomicBool,
    /// What may block or takes long.
    pool: Pool,
    /// What is on its way in, by the key's hash. Taken before a tier's locks.
    growing: Box<[Mutex<OnTheWay>]>,
    growing_count: AtomicU64,
    /// Bytes of what is on its way in that are in memory.
    growing_memory: Arc<AtomicU64>,
    /// Open files, oldest first.
    open: Mutex<VecDeque<(Arc<ObjectFile>, Arc<DiskFile>)>>,
    verifying: verifying::Verifying,
    /// Purges while the index is not known in full. Taken before a tier's locks.
    remembered: Mutex<Remembered>,
    /// The last purges, for what is being fetched.
    recent: recent::Recent,
    sketch: Sketch,
    counts: Counts,
}

/// Objects on their way in, by their keys' hashes.
type OnTheWay = HashMap<u128, Vec<Arc<Growing>>>;

#[derive(Debug, Default)]
struct Counts {
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
            loops::spawn_here(keeper::keep(Arc::downgrade(&store), Arc::clone(disk)));
        }
        store
    }

    /// One whose keeper is still to be started.
    fn new(config: &config::Cache, pool: Pool) -> Arc<Self> {
        let path = config.path.clone();
        let disk = path.map(|path| Arc::new(Disk::new(config, path, pool.clone())));
        let arena = match disk {
            Some(_) => None,
            None => Arena::new(config.size_max, pool.clone())
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
            growing: (0..SHARDS).map(|_| Mutex::default()).collect(),
            growing_count: AtomicU64::new(0),
            growing_memory: Arc::default(),
            open: Mutex::default(),
            verifying: verifying::Verifying::new(),
            remembered: Mutex::default(),
            recent: recent::Recent::default(),
            sketch: Sketch::new(),
            counts: Counts::default(),
        })
    }

    /// Leaves the folder: what is stored stays in it, and another store may have it as soon as the operation under
    /// way has ended (it tries until then). From here on this one is [`StoreState::Out`]. What is being served
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
    pub(crate) fn count(&self, is_hit: bool) {
        let count = match is_hit {
            true => &self.counts.hits,
            false => &self.counts.misses,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Looks for a variant of `key` that `pick` takes: first among those on their way in, then among
    /// those held. On the loop: no disk is touched. Counts nothing: a request may look more than once.
    pub(crate) fn find(
        self: &Arc<Self>,
        key: &Key,
        pick: &mut dyn FnMut(&Meta) -> bool,
    ) -> Option<Hit> {
        if !self.is_working() {
            return None;
        }
        let is_hiding = self.recent.is_hiding();
        let pick: &mut dyn FnMut(&Meta) -> bool =
            &mut |meta| !(is_hiding && self.recent.hides(meta)) && pick(meta);
        if self.growing_count.load(Relaxed) > 0
            && let Some(growing) = self.find_growing(key, pick)
        {
            return Some(Hit {
                meta: Arc::clone(growing.meta()),
                body: HitBody::Growing(growing),
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
    pub(crate) fn uses(&self, key: &Key) -> u32 {
        self.sketch.count(key.hash)
    }

    /// Begins an object whose body is still to come; `meta.length` is set at its end. Those who look for the
    /// key find it at once. It takes the place of the same variant when it is complete. None when it would
    /// not be kept: the store is out or busy, or `declared` is more than `object_max`.
    pub(crate) fn begin(
        self: &Arc<Self>,
        key: &Key,
        meta: Meta,
        declared: Option<u64>,
    ) -> Option<(Filler, Arc<Growing>)> {
        let is_small_enough = declared.is_none_or(|declared| declared <= self.config.object_max);
        if !self.is_working() || !is_small_enough {
            return None;
        }
        if let Some(disk) = &self.disk
            && disk.work().dying.len() > DYING_MAX
        {
            return None;
        }
        let slot_bytes = format::slot_bytes(format::encode_meta(&meta).len(), declared)?;
        if self.growing_count.fetch_add(1, Relaxed) >= GROWING_MAX {
            self.grew();
            return None;
        }
        let gauge = Arc::clone(&self.growing_memory);
        let growing = Growing::new(Arc::new(meta), declared, gauge, self.disk.clone());
        let listed = Arc::clone(&growing);
        let mut shard = self.growing_shard(key.hash);
        shard.entry(key.hash).or_default().push(listed);
        drop(shard);
        let store = Arc::clone(self);
        let filler = Filler::new(store, key.clone(), Arc::clone(&growing), slot_bytes);
        Some((filler, growing))
    }

    /// Replaces what is known of a found object, after a 304; its body stays. Same key and variant. Nothing
    /// happens if the object has gone or been replaced meanwhile. Gives the new meta as it is stored.
    pub(crate) fn freshen(self: &Arc<Self>, hit: &Hit, meta: Meta) -> Arc<Meta> {
        let meta = Arc::new(Meta {
            length: hit.meta.length,
            key: Arc::clone(&hit.meta.key),
            ..meta
        });
        let key = Key::new(&meta.key);
        let mut is_it = |other: &Meta| std::ptr::eq(other, &raw const *hit.meta);
        if let Some(disk) = &self.disk
            && let Some(old) = disk.tier.find(&key, &mut is_it)
        {
            let file = Arc::clone(&old.body);
            let new = keeper::new_item(file, Arc::clone(&meta), self.config.size_max);
            if disk.tier.replace(&old, &new) && !disk.rewrite(&new) {
                // What cannot be written down must not come back older after a restart.
                self.forget_item(&new);
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
    pub(crate) fn forget(&self, key: &Key) -> u64 {
        self.remember(|| Rule::Key(Arc::clone(&key.text)));
        let growing: Vec<_> = {
            let mut shard = self.growing_shard(key.hash);
            let all = shard.get_mut(&key.hash).into_iter();
            all.flat_map(|all| all.extract_if(.., |one| one.meta().key == key.text))
                .collect()
        };
        for growing in growing {
            growing.doom();
        }
        let on_disk = self.disk.iter();
        let on_disk: Vec<_> = on_disk.flat_map(|disk| disk.tier.remove_key(key)).collect();
        let in_memory = self.memory.remove_key(key);
        if let Some(disk) = &self.disk
            && (!on_disk.is_empty() || disk.health() != disk::Health::Working)
        {
            disk.note_purge(&Rule::Key(Arc::clone(&key.text)));
        }
        self.bury(on_disk, &in_memory)
    }

    /// Takes out one found object.
    pub(crate) fn forget_hit(&self, hit: &Hit) {
        let key = Key::new(&hit.meta.key);
        let mut is_it = |other: &Meta| std::ptr::eq(other, &raw const *hit.meta);
        if let Some(disk) = &self.disk
            && let Some(item) = disk.tier.find(&key, &mut is_it)
            && disk.tier.remove(&item)
        {
            disk.bury([item]);
        }
        if let Some(item) = self.memory.find(&key, &mut is_it) {
            self.memory.remove(&item);
        }
    }

    /// Removes the files of objects that were taken out, and counts them.
    fn bury(&self, on_disk: Vec<Arc<DiskItem>>, in_memory: &[Arc<Item<Held>>]) -> u64 {
        // An object that is in both tiers has one meta.
        let metas: std::collections::HashSet<_> =
            on_disk.iter().map(|item| Arc::as_ptr(&item.meta)).collect();
        let is_alone = |item: &&Arc<Item<Held>>| !metas.contains(&Arc::as_ptr(&item.meta));
        let count = on_disk.len() + in_memory.iter().filter(is_alone).count();
        if let Some(disk) = &self.disk {
            disk.bury(on_disk);
        }
        count as u64
    }

    fn find_growing(&self, key: &Key, pick: &mut dyn FnMut(&Meta) -> bool) -> Option<Arc<Growing>> {
        let shard = self.growing_shard(key.hash);
        let all = shard.get(&key.hash)?.iter().rev();
        let mut all = all.filter(|one| one.meta().key == key.text && one.is_offered());
        all.find(|one| pick(one.meta())).cloned()
    }

    fn growing_shard(&self, hash: u128) -> MutexGuard<'_, OnTheWay> {
        let shard = &self.growing[hash as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory_max(&self) -> u64 {
        match self.disk {
            Some(_) => self.config.memory,
            None => self.config.size_max,
        }
    }

    /// Bytes of the largest body that is kept in memory.
    fn memory_object_max(&self) -> u64 {
        match self.disk {
            Some(_) => (self.config.memory / 16).min(held::BYTES_MAX),
            None => self.config.object_max,
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
