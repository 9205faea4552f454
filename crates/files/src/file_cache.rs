//! What is known of recently asked paths, so that asking again costs one look-up and no system call.
//!
//! `handler` asks here first, and keeps here what `tree` found: small files whole, large ones open,
//! directories, and that there is nothing (which spares every request for an application behind the files
//! a trip to the disk). An entry counts for a second after its last check; then one request checks again
//! while others are served from it for a moment longer.
//!
//! What must stay true: bytes, entries and descriptors are bounded; an open file that nobody asks for is
//! closed in time, so that what is deleted gives its room on the disk back; each loop has entries of its
//! own, so that loops do not wait for one another and a look-up is no locked instruction. `now` is an
//! argument.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::PerLoop;

use crate::file_entry::{CacheEntry, FileEntry};

/// How long an entry counts without being checked.
const FRESH_DURATION: Duration = Duration::from_secs(1);

/// How long others are served from an entry while one request checks it; another one tries then.
const RECHECK_DELAY: Duration = Duration::from_millis(100);

/// Since its last check an entry may be served for so long at most, however slow the next check is.
const MAX_UNCHECKED: Duration = Duration::from_secs(10);

/// An open file that was not asked for this long is closed, when its loop next keeps something.
const MAX_IDLE: Duration = Duration::from_secs(60);

/// Memory for the files of one root.
const MAX_ROOT_BYTES: usize = 32 << 20;

/// Paths that one root's memory knows something of.
const MAX_ROOT_ENTRIES: usize = 32 << 10;

/// Large files that one root keeps open. Half of what a process may have open by default on most systems,
/// so that connections are left the other half.
pub(crate) const MAX_ROOT_DESCRIPTORS: usize = 512;

// What a loop has at least, however many there are: else a machine with many would keep nothing, and open
// for each request what it had open a moment before. The largest file that is compressed fits in each coding.
const MIN_LOOP_BYTES: usize = 4 << 20;
const MIN_LOOP_ENTRIES: usize = 1 << 10;
const MIN_LOOP_DESCRIPTORS: usize = 64;

/// Bounds of one memory, all loops together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileCacheLimits {
    pub(crate) loops: usize,
    pub(crate) max_bytes: usize,
    pub(crate) max_entries: usize,
    /// Open files.
    pub(crate) max_descriptors: usize,
}

impl FileCacheLimits {
    /// Those of one root, which loops share evenly, but not to less than each can work with.
    pub(crate) fn for_root(loops: usize) -> Self {
        let loops = loops.max(1);
        Self {
            loops,
            max_bytes: MAX_ROOT_BYTES.max(loops * MIN_LOOP_BYTES),
            max_entries: MAX_ROOT_ENTRIES.max(loops * MIN_LOOP_ENTRIES),
            max_descriptors: MAX_ROOT_DESCRIPTORS.max(loops * MIN_LOOP_DESCRIPTORS),
        }
    }
}

/// What the memory says of a path.
#[derive(Debug)]
pub(crate) enum FileCacheLookup {
    /// Checked within the last second.
    Fresh(CacheEntry),
    /// To be checked again, by the one that is told so.
    Stale(CacheEntry),
    /// To be checked again, and not to be served before.
    Expired(CacheEntry),
    /// Not known.
    Miss,
}

/// Entries by path, each loop's own.
#[derive(Debug)]
pub(crate) struct FileCache {
    shards: PerLoop<LoopCache>,
    max_bytes: usize,
    max_entries: usize,
    max_descriptors: usize,
}

impl FileCache {
    pub(crate) fn new(bounds: FileCacheLimits) -> Self {
        let count = bounds.loops.max(1);
        Self {
            shards: PerLoop::new(),
            max_bytes: bounds.max_bytes / count,
            max_entries: bounds.max_entries / count,
            max_descriptors: bounds.max_descriptors / count,
        }
    }

    /// What this loop knows of `path`.
    pub(crate) fn look_up(&self, path: &[u8], now: Instant) -> FileCacheLookup {
        self.shards.with(|shard| {
            let Some(slot) = shard.slot_of(path) else {
                return FileCacheLookup::Miss;
            };
            slot.was_used = true;
            let known = slot.entry.clone();
            if now < slot.fresh_until {
                return FileCacheLookup::Fresh(known);
            }
            if now > slot.checked_at + MAX_UNCHECKED {
                return FileCacheLookup::Expired(known);
            }
            slot.fresh_until = now + RECHECK_DELAY;
            FileCacheLookup::Stale(known)
        })
    }

    /// Lends what this loop knows of `path`, if it was checked within the last second.
    pub(crate) fn with_fresh(&self, path: &[u8], now: Instant, use_it: impl FnOnce(&CacheEntry)) {
        self.shards.with(|shard| {
            let slot = shard.slot_of(path);
            if let Some(slot) = slot.filter(|slot| now < slot.fresh_until) {
                slot.was_used = true;
                use_it(&slot.entry);
            }
        });
    }

    /// Keeps what was found at `path` by a check that began at `checked`, in place of what was known
    /// before; makes room if need be.
    pub(crate) fn insert(&self, path: Arc<[u8]>, known: CacheEntry, checked: Instant) {
        let cost = entry_cost(&path, &known);
        let descriptors = entry_descriptors(&known);
        self.shards.with(|shard| {
            shard.remove_path(&path);
            shard.close_idle(checked);
            if !self.has_room(cost, descriptors) {
                return;
            }
            while shard.open_descriptors + descriptors > self.max_descriptors {
                shard.close_oldest();
            }
            if descriptors > 0 {
                shard.open_paths.push_back(Arc::clone(&path));
                shard.open_descriptors += descriptors;
            }
            while shard.slots.len() >= self.max_entries || shard.bytes + cost > self.max_bytes {
                shard.evict_one();
            }
            shard.bytes += cost;
            let at = shard.slots.len();
            shard.index_by_path.insert(Arc::clone(&path), at);
            let fresh_until = checked + FRESH_DURATION;
            shard.slots.push(CacheSlot {
                path,
                entry: known,
                checked_at: checked,
                fresh_until,
                was_used: false,
                cost,
                open_descriptors: descriptors,
            });
        });
    }

    /// Whether something of that size fits, at the cost of everything else.
    fn has_room(&self, cost: usize, descriptors: usize) -> bool {
        cost <= self.max_bytes && self.max_entries > 0 && descriptors <= self.max_descriptors
    }

    /// While a check of `path` is under way nobody else begins one, as long as what is known may be served.
    pub(crate) fn suspend_checks(&self, path: &[u8]) {
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(path) {
                slot.fresh_until = slot.checked_at + MAX_UNCHECKED;
            }
        });
    }

    /// The check came to nothing: another one may begin in a moment.
    pub(crate) fn resume_checks(&self, path: &[u8], now: Instant) {
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(path) {
                slot.fresh_until = now + RECHECK_DELAY;
            }
        });
    }

    /// Puts a file of which more is known in place of what it was `before`, unless something else took its
    /// place meanwhile. It counts no longer than it would have.
    pub(crate) fn replace_if_same(
        &self,
        path: &[u8],
        before: &Arc<FileEntry>,
        after: Arc<FileEntry>,
    ) {
        let path: Arc<[u8]> = path.into();
        let times = self.shards.with(|shard| {
            let slot = shard.slot_of(&path)?;
            let is_same =
                matches!(&slot.entry, CacheEntry::File(known) if Arc::ptr_eq(known, before));
            is_same.then_some((slot.checked_at, slot.fresh_until))
        });
        // What does not fit is made again from what is known; without that it would have to be opened, too.
        let after = CacheEntry::File(after);
        if !self.has_room(entry_cost(&path, &after), entry_descriptors(&after)) {
            return;
        }
        let Some((checked, fresh_until)) = times else {
            return;
        };
        self.insert(Arc::clone(&path), after, checked);
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(&path) {
                slot.fresh_until = fresh_until;
                slot.was_used = true;
            }
        });
    }

    /// Drops what is known of `path`.
    pub(crate) fn remove(&self, path: &[u8]) {
        self.shards.with(|shard| shard.remove_path(path));
    }
}

/// The entries of one loop, evicted by second chance: what was used since the hand last came by
/// stays, so that a scan of unheard-of paths does not push out what is asked for.
#[derive(Debug, Default)]
struct LoopCache {
    /// Where in `slots` a path is.
    index_by_path: HashMap<Arc<[u8]>, usize>,
    slots: Vec<CacheSlot>,
    hand: usize,
    bytes: usize,
    /// The paths whose files are open, in the order of being opened; some may be gone meanwhile.
    open_paths: VecDeque<Arc<[u8]>>,
    open_descriptors: usize,
}

#[derive(Debug)]
struct CacheSlot {
    path: Arc<[u8]>,
    entry: CacheEntry,
    /// When its last check began.
    checked_at: Instant,
    fresh_until: Instant,
    was_used: bool,
    cost: usize,
    open_descriptors: usize,
}

impl LoopCache {
    fn slot_of(&mut self, path: &[u8]) -> Option<&mut CacheSlot> {
        let at = *self.index_by_path.get(path)?;
        self.slots.get_mut(at)
    }

    fn remove_path(&mut self, path: &[u8]) {
        if let Some(&at) = self.index_by_path.get(path) {
            self.remove(at);
        }
    }

    fn evict_one(&mut self) {
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        match self.slots.get_mut(self.hand) {
            Some(slot) if slot.was_used => {
                slot.was_used = false;
                self.hand += 1;
            }
            Some(_) => self.remove(self.hand),
            // Nothing is left, so nothing is held.
            None => self.bytes = 0,
        }
    }

    /// Closes the file that was opened first of those that nobody used since this last came by.
    fn close_oldest(&mut self) {
        let Some(path) = self.open_paths.pop_front() else {
            // Nothing is open, so nothing is held.
            self.open_descriptors = 0;
            return;
        };
        match self.open_slot(&path) {
            Some(slot) if slot.was_used => {
                slot.was_used = false;
                self.open_paths.push_back(path);
            }
            Some(_) => self.remove_path(&path),
            None => {}
        }
    }

    /// Looks at the one or two that were opened first, and closes what was not checked for long.
    fn close_idle(&mut self, now: Instant) {
        for _ in 0..2 {
            let Some(path) = self.open_paths.pop_front() else {
                return;
            };
            match self.open_slot(&path) {
                Some(slot) if slot.checked_at + MAX_IDLE < now => self.remove_path(&path),
                Some(_) => self.open_paths.push_back(path),
                None => {}
            }
        }
    }

    /// The slot of a path whose file is open, by the same key: a path that was kept again has a new one.
    fn open_slot(&mut self, path: &Arc<[u8]>) -> Option<&mut CacheSlot> {
        let slot = self.slot_of(path)?;
        (slot.open_descriptors > 0 && Arc::ptr_eq(&slot.path, path)).then_some(slot)
    }

    /// Removes a slot; the last one takes its number.
    fn remove(&mut self, at: usize) {
        let slot = self.slots.swap_remove(at);
        self.bytes -= slot.cost;
        self.open_descriptors -= slot.open_descriptors;
        self.index_by_path.remove(&slot.path);
        if let Some(moved) = self.slots.get(at) {
            self.index_by_path.insert(Arc::clone(&moved.path), at);
        }
    }
}

/// Bytes an entry takes, with about 230 for its slot, its place and what allocations round up.
fn entry_cost(path: &[u8], known: &CacheEntry) -> usize {
    let held = match known {
        CacheEntry::File(file) => file.memory_bytes(),
        CacheEntry::Listing(page) => page.len(),
        CacheEntry::DirectoryRedirect | CacheEntry::Script | CacheEntry::Absent => 0,
    };
    230 + path.len() + held
}

fn entry_descriptors(known: &CacheEntry) -> usize {
    match known {
        CacheEntry::File(file) => file.open_descriptors(),
        CacheEntry::Listing(_)
        | CacheEntry::DirectoryRedirect
        | CacheEntry::Script
        | CacheEntry::Absent => 0,
    }
}

#[cfg(test)]
mod tests;
