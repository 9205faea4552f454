//! How objects come into a store's indexes, and leave them.
//!
//! Called by `filler` (what was received), `keeper` (what was found at a start or read into memory) and
//! `object` (what turned out lost). What must stay true: the lock of what is on its way in is taken before
//! a tier's, so that a purge either finds an object there or in the index; whoever takes an object out of
//! the disk's index has its file removed.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, Weak};

use bytes::Bytes;
use penstock_runtime::DiskFile;
use penstock_runtime::disk::{Arena, ReadErrorSink};
use rustix::io::Errno;

use super::disk::{Disk, DiskItem, OperationKind};
use super::memory_body::{self, MemoryBody};
use super::object_file::ObjectFile;
use super::tier::IndexedObject;
use super::{
    HOT_USES, MAX_OPEN_FILES, MAX_SINGLE_WRITE, ObjectKey, ObjectMeta, PartialObject, Store,
    maintenance, object_writer,
};

/// For those on their way in.
impl Store {
    pub(super) fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    /// Bytes of an object on its way in that stay in memory until its end.
    pub(super) fn max_buffered_body(&self) -> u64 {
        match self.disk {
            Some(_) => (self.config.max_memory / 16).clamp(64 << 10, MAX_SINGLE_WRITE),
            None => self.max_memory_object(),
        }
    }

    /// The arena for a body of `total` bytes; none where it is held in a buffer.
    pub(super) fn arena_for(&self, total: u64) -> Option<&Arena> {
        self.arena
            .as_ref()
            .filter(|_| total > memory_body::MAX_BUFFERED_BODY)
    }

    pub(super) fn fits_memory(&self, meta: &ObjectMeta) -> bool {
        meta.length <= self.max_memory_object()
    }

    /// Whether what is on its way in takes more than its share: a quarter of the memory, or 8 MiB.
    pub(super) fn is_memory_short(&self) -> bool {
        object_writer::exceeds(&self.partial_memory, (self.max_memory() / 4).max(8 << 20))
    }

    /// Enters an object into memory, unless it was purged on its way.
    pub(super) fn insert_in_memory(
        &self,
        key: &ObjectKey,
        growing: &PartialObject,
        meta: &Arc<ObjectMeta>,
        body: MemoryBody,
    ) -> bool {
        let item = memory_item(key.hash, meta, body);
        if item.weight() > self.max_memory() {
            return false;
        }
        let shard = self.partial_shard(key.hash);
        {
            let mut state = growing.lock();
            if state.is_discarded {
                return false;
            }
            state.is_in_memory_tier = true;
        }
        self.memory.insert(&item);
        drop(shard);
        if self.disk.is_none() {
            self.counters.stored.fetch_add(1, Relaxed);
        }
        self.trim_memory();
        true
    }

    /// Enters an object that has its file now, unless it was purged on its way. For a pool.
    pub(super) fn insert_on_disk(
        &self,
        key: &ObjectKey,
        growing: &PartialObject,
        meta: &Arc<ObjectMeta>,
        file: ObjectFile,
    ) {
        let Some(disk) = &self.disk else {
            return;
        };
        let item = maintenance::disk_item(Arc::new(file), Arc::clone(meta), self.config.max_size);
        let shard = self.partial_shard(key.hash);
        // A folder that was left meanwhile takes nothing with it into the index.
        let out = if growing.may_be_kept() && !item.body.dir.is_closed() {
            let replaced = disk.tier.insert(&item);
            growing.lock().is_in_memory_tier = true;
            // What memory holds of the variant is older, unless it is this object itself.
            let mut is_older = |other: &ObjectMeta| {
                other.is_same_variant(meta) && !std::ptr::eq(other, &raw const **meta)
            };
            if let Some(old) = self.memory.find(key, &mut is_older) {
                self.memory.remove(&old);
            }
            self.counters.stored.fetch_add(1, Relaxed);
            replaced
        } else {
            vec![item]
        };
        drop(shard);
        disk.discard(out);
        disk.evict_for(0);
    }

    /// One is not on its way in any more, or not to be found.
    pub(super) fn remove_partial(&self, key: &ObjectKey, growing: &Arc<PartialObject>) {
        let mut shard = self.partial_shard(key.hash);
        if let Some(all) = shard.get_mut(&key.hash) {
            all.retain(|one| !Arc::ptr_eq(one, growing));
            if all.is_empty() {
                shard.remove(&key.hash);
            }
        }
    }

    /// One fewer is on its way in.
    pub(super) fn count_partial_ended(&self) {
        self.partial_count.fetch_sub(1, Relaxed);
    }

    pub(super) fn trim_memory(&self) {
        let evicted = self.memory.evict(self.max_memory(), |_| true);
        if self.disk.is_none() {
            self.counters
                .evicted
                .fetch_add(evicted.len() as u64, Relaxed);
        }
    }
}

/// For objects on the disk.
impl Store {
    /// Keeps a file open for the next ones.
    pub(super) fn keep_open(&self, object: &Arc<ObjectFile>, file: &Arc<DiskFile>) {
        object.set_open_file(file);
        let mut open = self
            .open_files
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open.push_back((Arc::clone(object), Arc::clone(file)));
        let oldest = (open.len() > MAX_OPEN_FILES).then(|| open.pop_front());
        drop(open);
        drop(oldest);
    }

    /// Open files that are kept of objects that are to be removed: to be dropped in a pool, as the last
    /// closing of a removed file frees its blocks.
    pub(super) fn take_open_files_of_discarded(&self) -> Vec<Arc<DiskFile>> {
        let mut open = self
            .open_files
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (dying, others): (VecDeque<_>, _) = open
            .drain(..)
            .partition(|(object, _)| object.is_discarded());
        *open = others;
        drop(open);
        dying.into_iter().map(|(_, file)| file).collect()
    }

    /// An object on the disk is used: a small one that is used again comes to memory.
    pub(super) fn record_use(&self, item: &Arc<DiskItem>) {
        if let Some(disk) = &self.disk
            && item.uses() >= HOT_USES
            && self.fits_memory(&item.meta)
        {
            disk.queue_promotion(item);
        }
    }

    /// A small object was read: it is in memory from here on, if it is still there.
    pub(super) fn insert_promoted(&self, item: &Arc<DiskItem>, body: Bytes) {
        let Some(disk) = &self.disk else {
            return;
        };
        let in_memory = memory_item(item.hash, &item.meta, MemoryBody::Bytes(body));
        let entered = disk
            .tier
            .if_present(item, || self.memory.insert(&in_memory));
        if entered.is_some() {
            self.trim_memory();
        }
    }

    /// A stored object was found damaged.
    pub(super) fn record_damaged(&self) {
        if let Some(disk) = &self.disk {
            disk.counters.errors.fetch_add(1, Relaxed);
            disk.log_once("a stored object is damaged: it is removed");
        }
    }

    /// Takes an object out of the disk's index and removes its file.
    pub(super) fn remove_item(&self, item: &Arc<DiskItem>) {
        if let Some(disk) = &self.disk
            && disk.tier.remove(item)
        {
            disk.discard([Arc::clone(item)]);
        }
    }

    /// Enters an object that was found at a start, unless it was purged since. For a pool.
    pub(super) fn insert_recovered(&self, item: Arc<DiskItem>) {
        let Some(disk) = &self.disk else {
            return;
        };
        let remembered = self.pending_purges();
        let number = item.body.name.number;
        let out = if remembered.matches(&item.meta, number) {
            Some(item)
        } else {
            let is_newer = |there: &Arc<ObjectFile>| there.name.number >= number;
            match disk.tier.insert_recovered(&item, is_newer) {
                Ok(older) => older,
                Err(()) if disk.has_object(item.body.name) => {
                    // The very file is there already: it is counted once.
                    item.body.dir.release(item.body.disk_bytes());
                    None
                }
                Err(()) => Some(item),
            }
        };
        drop(remembered);
        disk.discard(out);
    }

    /// All that the folder holds is known.
    pub(super) fn finish_recovery(&self) {
        let mut remembered = self.pending_purges();
        remembered.clear();
        if let Some(disk) = &self.disk {
            disk.maintenance_queue().discarded_numbers.clear();
            disk.set_recovered();
        }
        drop(remembered);
    }

    /// The folder was left: nothing of the index is known to be in it, and nothing of it stays open. Blocks.
    pub(super) fn drop_disk_index(&self) {
        if let Some(disk) = &self.disk {
            drop(disk.take_for_released_dir());
            drop(disk.tier.remove_where(|_| true));
        }
        drop(self.take_open_files());
    }

    /// Takes the open files that are kept. To be dropped in a pool.
    pub(super) fn take_open_files(&self) -> VecDeque<(Arc<ObjectFile>, Arc<DiskFile>)> {
        let mut open = self
            .open_files
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut open)
    }

    /// An open file could not be read: its object goes, and the disk out where it is the disk's error. Never
    /// blocks.
    fn handle_read_failure(&self, object: &Arc<ObjectFile>, error: &io::Error) {
        // What is still read of a folder that was left says nothing of the one that is there now.
        let Some(disk) = self.disk.as_ref().filter(|_| !object.dir.is_closed()) else {
            return;
        };
        if error.kind() == io::ErrorKind::TimedOut {
            disk.check_stall();
        }
        if is_unrecoverable(error)
            && let Some(item) = disk
                .tier
                .find_body(object.name.hash, |other| Arc::ptr_eq(other, object))
        {
            if is_damage(error) {
                self.record_damaged();
            }
            self.remove_item(&item);
        }
        disk.handle_error(OperationKind::Read, error);
    }
}

/// Tells a store that an object's open file could not be read.
#[derive(Debug)]
pub(super) struct ReadFailureWatch {
    store: Weak<Store>,
    object: Weak<ObjectFile>,
}

impl ReadFailureWatch {
    pub(super) fn new(store: &Arc<Store>, object: &Arc<ObjectFile>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::downgrade(store),
            object: Arc::downgrade(object),
        })
    }
}

impl ReadErrorSink for ReadFailureWatch {
    fn read_failed(&self, error: &io::Error) {
        if let (Some(store), Some(object)) = (self.store.upgrade(), self.object.upgrade()) {
            store.handle_read_failure(&object, error);
        }
    }
}

/// Whether an object that cannot be read so is not worth a second try.
pub(super) fn is_unrecoverable(error: &io::Error) -> bool {
    is_damage(error) || error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Whether the file is there, but not as it was written.
pub(super) fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, UnexpectedEof};
    matches!(error.kind(), InvalidData | UnexpectedEof)
}

/// What a memory tier holds.
pub(super) fn memory_item(
    hash: u128,
    meta: &Arc<ObjectMeta>,
    body: MemoryBody,
) -> Arc<IndexedObject<MemoryBody>> {
    let weight = body.weight() + meta.memory_bytes();
    IndexedObject::new(hash, Arc::clone(meta), body, weight)
}
