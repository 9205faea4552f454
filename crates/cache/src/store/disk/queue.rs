//! The queues of a disk's maintenance task, filled by event loops and the pool, and emptied in
//! batches by `maintenance`.
//!
//! # Invariants
//!
//! - Every queue is bounded. Files to be removed are bounded by the index that their objects were
//!   in.
//! - The bytes of discarded files are counted, so that no object is evicted for space that is about
//!   to be free.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{Disk, DiskIndexEntry};
use crate::store::cache_dir::CacheDir;
use crate::store::object_file::ObjectFile;
use crate::store::purge_rules::{NumberedPurges, PurgeRule};

/// Discarded files, at most. Beyond that nothing new is stored.
pub(crate) const MAX_DISCARDED_FILES: usize = 100_000;

/// Queued reads into memory and metadata writes, at most.
const MAX_PROMOTIONS: usize = 64;
const MAX_REWRITES: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct MaintenanceQueue {
    /// Files to be removed or closed.
    pub(crate) discarded: Vec<DiscardedFile>,
    /// Objects with metadata to be written.
    pub(crate) rewrites: VecDeque<Arc<DiskIndexEntry>>,
    /// Objects to be read into memory.
    pub(crate) promotions: VecDeque<Arc<DiskIndexEntry>>,
    /// Purges for the directory's journal.
    pub(crate) purges: NumberedPurges,
    /// Numbers of the objects that were discarded when their directory was released: they must not
    /// return with it.
    pub(crate) discarded_numbers: HashSet<u64>,
    pub(crate) discarded_bytes: u64,
}

impl MaintenanceQueue {
    /// Takes the work for a released directory, to be dropped in a pool, as that closes files.
    /// Keeps what must be known when it is opened again.
    fn take_released_dir_work(&mut self) -> Self {
        let mut left = std::mem::take(self);
        self.purges = std::mem::take(&mut left.purges);
        self.discarded_numbers = std::mem::take(&mut left.discarded_numbers);
        let numbers = left.discarded.iter().filter_map(|dying| match dying {
            DiscardedFile::Object(object) => Some(object.name.number),
            DiscardedFile::Temporary { .. } => None,
        });
        self.discarded_numbers.extend(numbers);
        left
    }
}

#[derive(Debug)]
pub(crate) enum DiscardedFile {
    /// An object that was evicted, replaced or purged.
    Object(Arc<ObjectFile>),
    /// A temporary file that is not used any more.
    Temporary {
        dir: Arc<CacheDir>,
        file: File,
        /// Its number, unless it was renamed to an object.
        number: Option<u64>,
        /// Bytes reserved for it.
        bytes: u64,
    },
}

impl Disk {
    /// Queues the files of removed objects.
    pub(crate) fn queue_discarded(&self, items: impl IntoIterator<Item = Arc<DiskIndexEntry>>) {
        let mut work = self.maintenance_queue();
        let before = work.discarded.len();
        for item in items {
            item.body.set_discarded();
            work.discarded_bytes += item.body.disk_bytes();
            (work.discarded).push(DiscardedFile::Object(Arc::clone(&item.body)));
        }
        let is_more = work.discarded.len() > before;
        drop(work);
        if is_more {
            self.maintenance_wakeup.notify_one();
        }
    }

    pub(crate) fn queue_discarded_temporary(&self, dying: DiscardedFile) {
        let mut work = self.maintenance_queue();
        if let DiscardedFile::Temporary { bytes, .. } = &dying {
            work.discarded_bytes += bytes;
        }
        work.discarded.push(dying);
        drop(work);
        self.maintenance_wakeup.notify_one();
    }

    /// Queues an object to be read into memory, unless the queue is full.
    pub(crate) fn queue_promotion(&self, item: &Arc<DiskIndexEntry>) {
        let mut work = self.maintenance_queue();
        let is_queued = work.promotions.iter().any(|other| Arc::ptr_eq(other, item));
        if !is_queued && work.promotions.len() < MAX_PROMOTIONS {
            work.promotions.push_back(Arc::clone(item));
            drop(work);
            self.maintenance_wakeup.notify_one();
        }
    }

    /// Queues an object's metadata to be written. Returns `false` if the queue is full.
    pub(crate) fn queue_meta_rewrite(&self, item: &Arc<DiskIndexEntry>) -> bool {
        let mut work = self.maintenance_queue();
        if work.rewrites.len() >= MAX_REWRITES {
            return false;
        }
        work.rewrites.push_back(Arc::clone(item));
        drop(work);
        self.maintenance_wakeup.notify_one();
        true
    }

    pub(crate) fn queue_journal_entry(&self, rule: &PurgeRule) {
        let number = self.new_file_number();
        self.maintenance_queue().purges.add(number, rule.clone());
        self.maintenance_wakeup.notify_one();
    }

    /// Takes the work for a released directory, if there is any. It must be dropped in a pool.
    pub(crate) fn take_released_dir_work(&self) -> Option<MaintenanceQueue> {
        let mut work = self.maintenance_queue();
        let is_any =
            !work.discarded.is_empty() || !work.rewrites.is_empty() || !work.promotions.is_empty();
        is_any.then(|| work.take_released_dir_work())
    }

    /// The queues. The lock is never held across an await.
    pub(crate) fn maintenance_queue(&self) -> MutexGuard<'_, MaintenanceQueue> {
        self.maintenance_queue.lock()
    }
}
