//! What is queued for the keeper of a disk.
//!
//! Filled from loops and the pool, worked off by `keeper` one batch at a time. What must stay true: every queue is
//! bounded (files to be removed by the index, whose objects they were), and bytes of what is dying are
//! known, so that nobody evicts twice for the same room.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::sync::{Arc, MutexGuard};

use super::{Disk, DiskItem, lock};
use crate::store::cache_dir::CacheDir;
use crate::store::object_file::ObjectFile;
use crate::store::purge_rules::{MAX_PENDING_PURGES, PurgeRule};

/// Files that wait to be removed, at most: beyond it nothing new is stored.
pub(crate) const MAX_DISCARDED_FILES: usize = 100_000;

/// Objects that wait to be read into memory, and metas to be written, at most.
const MAX_PROMOTIONS: usize = 64;
const MAX_REWRITES: usize = 10_000;

/// What is queued for the keeper.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceQueue {
    /// Files to be removed or closed.
    pub(crate) discarded: Vec<DiscardedFile>,
    /// Objects whose meta is to be written.
    pub(crate) rewrites: VecDeque<Arc<DiskItem>>,
    /// Objects to be read into memory.
    pub(crate) promotions: VecDeque<Arc<DiskItem>>,
    /// Purges that are to be noted in the folder, with the first number that they do not mean.
    pub(crate) purges: Vec<(u64, PurgeRule)>,
    /// Numbers of objects that were dying when their folder was left: they are not to come back with it.
    pub(crate) discarded_numbers: HashSet<u64>,
    /// Of the dying: bytes.
    pub(crate) discarded_bytes: u64,
}

impl MaintenanceQueue {
    /// The folder was left: takes what was to be done in it, to be dropped in a pool, as that closes files. Stays
    /// what is to be known when it is opened anew.
    fn take_for_released_dir(&mut self) -> Self {
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

/// A file on its way out.
#[derive(Debug)]
pub(crate) enum DiscardedFile {
    /// An object that was evicted, replaced or purged.
    Object(Arc<ObjectFile>),
    /// A temporary file whose last user has gone.
    Temporary {
        /// Where it is.
        dir: Arc<CacheDir>,
        /// To be closed.
        file: File,
        /// Its number, if its name is still that of a temporary file.
        number: Option<u64>,
        /// Bytes reserved for it.
        bytes: u64,
    },
}

impl Disk {
    /// Queues files to be removed.
    pub(crate) fn discard(&self, items: impl IntoIterator<Item = Arc<DiskItem>>) {
        let mut work = self.maintenance_queue();
        let before = work.discarded.len();
        for item in items {
            item.body.set_discarded();
            work.discarded_bytes += item.body.disk_bytes();
            work.discarded
                .push(DiscardedFile::Object(Arc::clone(&item.body)));
        }
        let is_more = work.discarded.len() > before;
        drop(work);
        if is_more {
            self.wake_maintenance.notify_one();
        }
    }

    /// Queues a temporary file to be removed or closed.
    pub(crate) fn discard_temporary(&self, dying: DiscardedFile) {
        let mut work = self.maintenance_queue();
        if let DiscardedFile::Temporary { bytes, .. } = &dying {
            work.discarded_bytes += bytes;
        }
        work.discarded.push(dying);
        drop(work);
        self.wake_maintenance.notify_one();
    }

    /// Queues an object to be read into memory; not when many are.
    pub(crate) fn queue_promotion(&self, item: &Arc<DiskItem>) {
        let mut work = self.maintenance_queue();
        let is_queued = work.promotions.iter().any(|other| Arc::ptr_eq(other, item));
        if !is_queued && work.promotions.len() < MAX_PROMOTIONS {
            work.promotions.push_back(Arc::clone(item));
            drop(work);
            self.wake_maintenance.notify_one();
        }
    }

    /// Queues an object whose meta is to be written; false when there are too many.
    pub(crate) fn queue_rewrite(&self, item: &Arc<DiskItem>) -> bool {
        let mut work = self.maintenance_queue();
        let has_room = work.rewrites.len() < MAX_REWRITES;
        if has_room {
            work.rewrites.push_back(Arc::clone(item));
            drop(work);
            self.wake_maintenance.notify_one();
        }
        has_room
    }

    /// Queues a purge to be noted in the folder; too many are noted as one of everything.
    pub(crate) fn queue_purge_note(&self, rule: &PurgeRule) {
        let number = self.new_file_number();
        let mut work = self.maintenance_queue();
        if work.purges.len() >= MAX_PENDING_PURGES {
            work.purges = vec![(number, PurgeRule::All)];
        } else {
            work.purges.push((number, rule.clone()));
        }
        drop(work);
        self.wake_maintenance.notify_one();
    }

    /// Takes what was queued for a folder that was left; none if that is nothing. To be dropped in a pool.
    pub(crate) fn take_for_released_dir(&self) -> Option<MaintenanceQueue> {
        let mut work = self.maintenance_queue();
        let is_any =
            !work.discarded.is_empty() || !work.rewrites.is_empty() || !work.promotions.is_empty();
        is_any.then(|| work.take_for_released_dir())
    }

    /// What is queued; never held across a wait.
    pub(crate) fn maintenance_queue(&self) -> MutexGuard<'_, MaintenanceQueue> {
        lock(&self.maintenance_queue)
    }
}
