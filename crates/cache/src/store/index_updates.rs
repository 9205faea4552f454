//! Insertion into and removal from a store's indexes.
//!
//! Called by `object_writer` (received objects), `maintenance` (recovered objects and those read
//! into memory) and `stored_object` (lost objects).
//!
//! # Invariants
//!
//! - The lock of the partial objects is taken before a tier's, so that a purge finds an object
//!   either there or in the index.
//! - The call that removes an object from the disk's index also queues its file for removal.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use penstock_runtime::DiskFile;
use penstock_runtime::disk::{Arena, ReadErrorSink};
use rustix::io::Errno;

use super::disk::{Disk, DiskIndexEntry, DiskOperationKind};
use super::memory_body::{self, MemoryBody};
use super::object_file::ObjectFile;
use super::purge_rules::NumberedPurges;
use super::tier::IndexedObject;
use super::{
    HOT_USES, MAX_OPEN_FILES, MAX_SINGLE_WRITE, ObjectKey, ObjectMeta, PartialObject, Store,
    maintenance,
};

/// Partial objects.
impl Store {
    /// Size up to which a partial object stays in memory until its end.
    pub(super) fn spool_threshold(&self) -> u64 {
        match self.disk {
            Some(_) => (self.config.max_memory / 16).clamp(64 << 10, MAX_SINGLE_WRITE),
            None => self.max_memory_object(),
        }
    }

    /// The arena for a body of `total` bytes; `None` if it is stored in a buffer.
    pub(super) fn arena_for(&self, total: u64) -> Option<&Arena> {
        self.arena
            .as_ref()
            .filter(|_| total > memory_body::MAX_BUFFERED_BODY_BYTES)
    }

    pub(super) fn fits_memory(&self, meta: &ObjectMeta) -> bool {
        meta.length <= self.max_memory_object()
    }

    /// Whether partial objects use more than their share: a quarter of the memory, or 8 MiB.
    pub(super) fn is_memory_short(&self) -> bool {
        self.partial_memory.load(Relaxed) > (self.max_memory() / 4).max(8 << 20)
    }

    /// Inserts an object into memory, unless it was purged while partial.
    pub(super) fn insert_in_memory(
        &self,
        key: &ObjectKey,
        partial: &PartialObject,
        meta: &Arc<ObjectMeta>,
        body: MemoryBody,
    ) -> bool {
        let item = new_memory_entry(key.hash, meta, body);
        if item.weight > self.max_memory() {
            return false;
        }
        let shard = self.partial_shard(key.hash);
        let mut state = partial.state.lock();
        if state.is_discarded {
            return false;
        }
        state.is_indexed = true;
        drop(state);
        self.memory.insert(&item);
        drop(shard);
        if self.disk.is_none() {
            self.counters.stored.fetch_add(1, Relaxed);
        }
        self.trim_memory();
        true
    }

    /// Inserts a committed object into the disk's index, unless it was purged while partial. Runs
    /// in a pool.
    pub(super) fn insert_in_disk_index(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        partial: &PartialObject,
        meta: &Arc<ObjectMeta>,
        file: ObjectFile,
    ) {
        let item =
            maintenance::new_disk_entry(Arc::new(file), Arc::clone(meta), self.config.max_size);
        let shard = self.partial_shard(key.hash);
        // A directory that was closed meanwhile adds nothing to the index.
        let out = if partial.can_be_stored() && !item.body.dir.is_closed() {
            let replaced = disk.tier.insert(&item);
            partial.state.lock().is_indexed = true;
            // Another object of the variant in memory is older.
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
        disk.queue_discarded(out);
        disk.evict_to_fit(0);
    }

    pub(super) fn remove_partial(&self, key: &ObjectKey, partial: &Arc<PartialObject>) {
        let mut shard = self.partial_shard(key.hash);
        if let Some(all) = shard.get_mut(&key.hash) {
            all.retain(|one| !Arc::ptr_eq(one, partial));
            if all.is_empty() {
                shard.remove(&key.hash);
            }
        }
    }

    pub(super) fn decrement_partial_count(&self) {
        self.partial_count.fetch_sub(1, Relaxed);
    }

    pub(super) fn trim_memory(&self) {
        let evicted = self.memory.evict(self.max_memory(), |_| true);
        if self.disk.is_none() {
            (self.counters.evicted).fetch_add(evicted.len() as u64, Relaxed);
        }
    }
}

/// Objects on the disk.
impl Store {
    /// Inserts a small object read from disk into memory, if it is still in the index.
    pub(super) fn insert_promoted(&self, disk: &Disk, item: &Arc<DiskIndexEntry>, body: Bytes) {
        let in_memory = new_memory_entry(item.hash, &item.meta, MemoryBody::Bytes(body));
        let entered = (disk.tier).run_if_present(item, || self.memory.insert(&in_memory));
        if entered.is_some() {
            self.trim_memory();
        }
    }

    /// Inserts an object found at a start, unless it was purged since. Runs in a pool.
    pub(super) fn insert_recovered(&self, disk: &Disk, item: Arc<DiskIndexEntry>) {
        let pending = self.pending_purges.lock();
        let number = item.body.name.number;
        let out = if pending.matches(&item.meta, number) {
            Some(item)
        } else {
            let is_newer = |there: &Arc<ObjectFile>| there.name.number >= number;
            match disk.tier.insert_recovered(&item, is_newer) {
                Ok(older) => older,
                Err(()) if disk.has_object(item.body.name) => {
                    // The same file is in the index already: it counts once.
                    item.body.dir.release_bytes(item.body.disk_bytes());
                    None
                }
                Err(()) => Some(item),
            }
        };
        drop(pending);
        disk.queue_discarded(out);
    }

    /// Ends the recovery: the index is complete.
    pub(super) fn finish_recovery(&self, disk: &Disk) {
        let mut pending = self.pending_purges.lock();
        *pending = NumberedPurges::default();
        disk.maintenance_queue().discarded_numbers.clear();
        disk.set_recovered();
    }
}

impl Disk {
    /// Keeps a file open for later requests.
    pub(super) fn keep_open(&self, object: &Arc<ObjectFile>, file: &Arc<DiskFile>) {
        object.set_open_handle(file);
        let mut open = self.open_files.lock();
        open.push_back((Arc::clone(object), Arc::clone(file)));
        let oldest = (open.len() > MAX_OPEN_FILES).then(|| open.pop_front());
        drop(open);
        drop(oldest);
    }

    /// Takes the kept open files of objects marked for removal. They must be dropped in a pool, as
    /// the last close of a removed file frees its blocks.
    pub(super) fn take_open_files_of_discarded(&self) -> Vec<Arc<DiskFile>> {
        let mut open = self.open_files.lock();
        let (discarded, others): (VecDeque<_>, _) = open
            .drain(..)
            .partition(|(object, _)| object.is_discarded());
        *open = others;
        drop(open);
        discarded.into_iter().map(|(_, file)| file).collect()
    }

    /// Takes the kept open files, which must be dropped in a pool.
    pub(super) fn take_open_files(&self) -> VecDeque<(Arc<ObjectFile>, Arc<DiskFile>)> {
        std::mem::take(&mut self.open_files.lock())
    }

    /// Queues a small object that is used repeatedly for the memory tier.
    pub(super) fn promote_if_hot(&self, item: &Arc<DiskIndexEntry>) {
        if item.eviction_state.uses() >= HOT_USES && item.meta.length <= self.max_promoted_size {
            self.queue_promotion(item);
        }
    }

    fn record_damaged(&self) {
        self.counters.errors.fetch_add(1, Relaxed);
        self.log_throttled("a stored object is damaged: it is removed");
    }

    /// Removes an object from the index, and its file.
    pub(super) fn remove_item(&self, item: &Arc<DiskIndexEntry>) {
        if self.tier.remove(item) {
            self.queue_discarded([Arc::clone(item)]);
        }
    }

    /// Removes an object whose read failed with an error that does not pass.
    pub(super) fn remove_if_unreadable(&self, item: &Arc<DiskIndexEntry>, error: &io::Error) {
        if is_damage(error) {
            self.record_damaged();
        }
        if is_damage(error) || error.raw_os_error() == Some(Errno::IO.raw_os_error()) {
            self.remove_item(item);
        }
    }

    /// Empties the index after the directory was released, and closes its files. Blocks.
    pub(super) fn drop_index(&self) {
        drop(self.take_released_dir_work());
        drop(self.tier.remove_where(|_| true));
        drop(self.take_open_files());
    }

    /// Handles a read error of an open file: removes a damaged object, and takes the disk out of
    /// service if the error is the disk's. Never blocks.
    fn handle_read_failure(&self, object: &Arc<ObjectFile>, error: &io::Error) {
        // Read errors of a released directory say nothing about the current one.
        if object.dir.is_closed() {
            return;
        }
        if error.kind() == io::ErrorKind::TimedOut {
            self.check_stall();
        }
        let is_it = |other: &Arc<ObjectFile>| Arc::ptr_eq(other, object);
        if let Some(item) = self.tier.find_by_body(object.name.hash, is_it) {
            self.remove_if_unreadable(&item, error);
        }
        self.handle_error(DiskOperationKind::Read, error);
    }
}

/// Reports read errors of an object's open file to the store.
#[derive(Debug)]
pub(super) struct ReadErrorReporter {
    pub(super) disk: Weak<Disk>,
    pub(super) object: Weak<ObjectFile>,
}

impl ReadErrorSink for ReadErrorReporter {
    fn read_failed(&self, error: &io::Error) {
        if let (Some(disk), Some(object)) = (self.disk.upgrade(), self.object.upgrade()) {
            disk.handle_read_failure(&object, error);
        }
    }
}

/// Whether the file exists but is not as written.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, UnexpectedEof};
    matches!(error.kind(), InvalidData | UnexpectedEof)
}

pub(super) fn new_memory_entry(
    hash: u128,
    meta: &Arc<ObjectMeta>,
    body: MemoryBody,
) -> Arc<IndexedObject<MemoryBody>> {
    let weight = body.memory_bytes() + meta.memory_bytes();
    IndexedObject::new(hash, Arc::clone(meta), body, weight)
}
