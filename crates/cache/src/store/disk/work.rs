//! What is queued for the keeper of a disk.
//!
//! Filled from loops and the pool, worked off by `keeper` one batch at a time. What must stay true: every queue is
//! bounded (files to be removed by the index, whose objects they were), and bytes of what is dying are
//! known, so that nobody evicts twice for the same room.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::sync::{Arc, MutexGuard};

use super::{Disk, DiskItem, lock};
use crate::store::file::ObjectFile;
use crate::store::folder::Folder;
use crate::store::purging::{REMEMBERED_MAX, Rule};

/// Files that wait to be removed, at most: beyond it nothing new is stored.
pub(crate) const DYING_MAX: usize = 100_000;

/// Objects that wait to be read into memory, and metas to be written, at most.
const PROMOTIONS_MAX: usize = 64;
const REWRITES_MAX: usize = 10_000;

/// What is queued for the keeper.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Files to be removed or closed.
    pub(crate) dying: Vec<Dying>,
    /// Objects whose meta is to be written.
    pub(crate) rewrites: VecDeque<Arc<DiskItem>>,
    /// Objects to be read into memory.
    pub(crate) promotions: VecDeque<Arc<DiskItem>>,
    /// Purges that are to be noted in the folder, with the first number that they do not mean.
    pub(crate) purges: Vec<(u64, Rule)>,
    /// Numbers of objects that were dying when their folder was left: they are not to come back with it.
    pub(crate) doomed: HashSet<u64>,
    /// Of the dying: bytes.
    pub(crate) dying_bytes: u64,
}

impl Work {
    /// The folder was left: takes what was to be done in it, to be dropped in a pool, as that closes files. Stays
    /// what is to be known when it is opened anew.
    fn take_left(&mut self) -> Self {
        let mut left = std::mem::take(self);
        self.purges = std::mem::take(&mut left.purges);
        self.doomed = std::mem::take(&mut left.doomed);
        let numbers = left.dying.iter().filter_map(|dying| match dying {
            Dying::Object(object) => Some(object.name.number),
            Dying::Temporary { .. } => None,
        });
        self.doomed.extend(numbers);
        left
    }
}

/// A file on its way out.
#[derive(Debug)]
pub(crate) enum Dying {
    /// An object that was evicted, replaced or purged.
    Object(Arc<ObjectFile>),
    /// A temporary file whose last user has gone.
    Temporary {
        /// Where it is.
        folder: Arc<Folder>,
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
    pub(crate) fn bury(&self, items: impl IntoIterator<Item = Arc<DiskItem>>) {
        let mut work = self.work();
        let before = work.dying.len();
        for item in items {
            item.body.set_dying();
            work.dying_bytes += item.body.disk_bytes();
            work.dying.push(Dying::Object(Arc::clone(&item.body)));
        }
        let is_more = work.dying.len() > before;
        drop(work);
        if is_more {
            self.bell.notify_one();
        }
    }

    /// Queues a temporary file to be removed or closed.
    pub(crate) fn bury_temporary(&self, dying: Dying) {
        let mut work = self.work();
        if let Dying::Temporary { bytes, .. } = &dying {
            work.dying_bytes += bytes;
        }
        work.dying.push(dying);
        drop(work);
        self.bell.notify_one();
    }

    /// Queues an object to be read into memory; not when many are.
    pub(crate) fn promote(&self, item: &Arc<DiskItem>) {
        let mut work = self.work();
        let is_queued = work.promotions.iter().any(|other| Arc::ptr_eq(other, item));
        if !is_queued && work.promotions.len() < PROMOTIONS_MAX {
            work.promotions.push_back(Arc::clone(item));
            drop(work);
            self.bell.notify_one();
        }
    }

    /// Queues an object whose meta is to be written; false when there are too many.
    pub(crate) fn rewrite(&self, item: &Arc<DiskItem>) -> bool {
        let mut work = self.work();
        let has_room = work.rewrites.len() < REWRITES_MAX;
        if has_room {
            work.rewrites.push_back(Arc::clone(item));
            drop(work);
            self.bell.notify_one();
        }
        has_room
    }

    /// Queues a purge to be noted in the folder; too many are noted as one of everything.
    pub(crate) fn note_purge(&self, rule: &Rule) {
        let number = self.number();
        let mut work = self.work();
        if work.purges.len() >= REMEMBERED_MAX {
            work.purges = vec![(number, Rule::All)];
        } else {
            work.purges.push((number, rule.clone()));
        }
        drop(work);
        self.bell.notify_one();
    }

    /// Takes what was queued for a folder that was left; none if that is nothing. To be dropped in a pool.
    pub(crate) fn take_left(&self) -> Option<Work> {
        let mut work = self.work();
        let is_any =
            !work.dying.is_empty() || !work.rewrites.is_empty() || !work.promotions.is_empty();
        is_any.then(|| work.take_left())
    }

    /// What is queued; never held across a wait.
    pub(crate) fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }
}
