//! Caches recently requested paths: a repeated request costs one look-up and no system call.
//!
//! `handler` asks here first, and inserts what `file_tree` found: small files with their content,
//! large ones open, directories, and missing files (which saves requests for an application behind
//! the files a disk access). An entry is fresh for a second after its last check. Then one request
//! checks again, while others are served from the entry for a moment longer. `now` is an argument.
//!
//! # Invariants
//!
//! - Bytes, entries and descriptors are bounded.
//! - An open file that is not requested is closed after a while, so that a deleted file frees its
//!   disk space.
//! - Each event loop has its own entries: loops do not wait for each other, and a look-up needs no
//!   locked instruction.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::PerLoop;

use crate::file_entry::{CacheEntry, FileEntry};

/// How long an entry is fresh after a check.
const FRESH_DURATION: Duration = Duration::from_secs(1);

/// How long other requests are served from an entry while one checks it; then the next one tries.
const RECHECK_DELAY: Duration = Duration::from_millis(100);

/// Longest use of an entry since its last check, however slow the next check is.
const MAX_UNCHECKED: Duration = Duration::from_secs(10);

/// An open file not checked for this long is closed at a later insertion on its loop.
const MAX_IDLE: Duration = Duration::from_secs(60);

/// Memory for the files of one root.
const MAX_ROOT_BYTES: usize = 32 << 20;

/// Paths cached for one root.
const MAX_ROOT_ENTRIES: usize = 32 << 10;

/// Large files kept open for one root: half of the default limit of open files on most systems,
/// which leaves the other half for connections.
pub(crate) const MAX_ROOT_DESCRIPTORS: usize = 512;

// Minimum for each event loop. On machines with many, each would otherwise cache nothing and reopen
// files for each request. The largest compressible file fits in each coding.
const MIN_LOOP_BYTES: usize = 4 << 20;
const MIN_LOOP_ENTRIES: usize = 1 << 10;
const MIN_LOOP_DESCRIPTORS: usize = 64;

/// Limits of one cache for all event loops together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileCacheLimits {
    pub(crate) loops: usize,
    pub(crate) max_bytes: usize,
    pub(crate) max_entries: usize,
    pub(crate) max_descriptors: usize,
}

impl FileCacheLimits {
    /// The limits of one root. Event loops share them evenly, with a minimum for each.
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

#[derive(Debug)]
pub(crate) enum FileCacheLookup {
    /// Checked within the last second.
    Fresh(CacheEntry),
    /// The caller must check it; it may be served meanwhile.
    Stale(CacheEntry),
    /// It must be checked before it is served.
    Expired(CacheEntry),
    Miss,
}

/// Cached entries by path, separate for each event loop.
#[derive(Debug)]
pub(crate) struct FileCache {
    shards: PerLoop<LoopCache>,
    /// Those of one loop.
    limits: FileCacheLimits,
}

impl FileCache {
    pub(crate) fn new(bounds: FileCacheLimits) -> Self {
        let loops = bounds.loops.max(1);
        let limits = FileCacheLimits {
            loops: 1,
            max_bytes: bounds.max_bytes / loops,
            max_entries: bounds.max_entries / loops,
            max_descriptors: bounds.max_descriptors / loops,
        };
        let shards = PerLoop::new();
        Self { shards, limits }
    }

    /// Looks up `path` in this loop's entries.
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

    /// Passes this loop's entry for `path` to `use_it`, if it is fresh.
    pub(crate) fn with_fresh(&self, path: &[u8], now: Instant, use_it: impl FnOnce(&CacheEntry)) {
        self.shards.with(|shard| {
            let slot = shard.slot_of(path);
            if let Some(slot) = slot.filter(|slot| now < slot.fresh_until) {
                slot.was_used = true;
                use_it(&slot.entry);
            }
        });
    }

    /// Inserts the result of a check of `path` that began at `checked`, and replaces the previous
    /// entry. Evicts others if needed.
    pub(crate) fn insert(&self, path: Arc<[u8]>, known: CacheEntry, checked: Instant) {
        let cost = entry_cost(&path, &known);
        let descriptors = entry_descriptors(&known);
        self.shards.with(|shard| {
            shard.remove_path(&path);
            shard.close_idle(checked);
            if !self.has_room(cost, descriptors) {
                return;
            }
            while shard.open_descriptors + descriptors > self.limits.max_descriptors {
                shard.close_oldest();
            }
            if descriptors > 0 {
                shard.open_paths.push_back(Arc::clone(&path));
                shard.open_descriptors += descriptors;
            }
            while shard.slots.len() >= self.limits.max_entries
                || shard.bytes + cost > self.limits.max_bytes
            {
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

    /// Whether an entry of that size fits in an empty cache.
    fn has_room(&self, cost: usize, descriptors: usize) -> bool {
        cost <= self.limits.max_bytes
            && self.limits.max_entries > 0
            && descriptors <= self.limits.max_descriptors
    }

    /// Keeps other requests from starting a check of `path` during a running one, while the entry
    /// may be served.
    pub(crate) fn suspend_checks(&self, path: &[u8]) {
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(path) {
                slot.fresh_until = slot.checked_at + MAX_UNCHECKED;
            }
        });
    }

    /// Lets requests check `path` again after a failed check.
    pub(crate) fn resume_checks(&self, path: &[u8], now: Instant) {
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(path) {
                slot.fresh_until = now + RECHECK_DELAY;
            }
        });
    }

    /// Replaces `before` with an extended entry of the same file, unless the slot has changed. Its
    /// freshness stays.
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
        // If it does not fit, it is extended again from the old entry; without that, the file would
        // have to be opened as well.
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

    pub(crate) fn remove(&self, path: &[u8]) {
        self.shards.with(|shard| shard.remove_path(path));
    }
}

/// The entries of one event loop, evicted by second chance: entries used since the hand last passed
/// stay, so that a scan of unknown paths does not displace requested ones.
#[derive(Debug, Default)]
struct LoopCache {
    index_by_path: HashMap<Arc<[u8]>, usize>,
    slots: Vec<CacheSlot>,
    hand: usize,
    bytes: usize,
    /// Paths of open files, in the order of opening; may contain removed ones.
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
            // Nothing is left.
            None => self.bytes = 0,
        }
    }

    /// Closes the oldest open file that was not used since this last passed it.
    fn close_oldest(&mut self) {
        let Some(path) = self.open_paths.pop_front() else {
            // Nothing is open.
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

    /// Inspects the two oldest open files, and closes those not checked for long.
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

    /// The slot of an open file's path, if it has the same key: a path inserted again has a new
    /// one.
    fn open_slot(&mut self, path: &Arc<[u8]>) -> Option<&mut CacheSlot> {
        let slot = self.slot_of(path)?;
        (slot.open_descriptors > 0 && Arc::ptr_eq(&slot.path, path)).then_some(slot)
    }

    /// Removes a slot; the last slot gets its index.
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

/// Approximate bytes of an entry, with 230 for its slot, its index and rounding of allocations.
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
        CacheEntry::File(file) => file.open_descriptor_count(),
        CacheEntry::Listing(_)
        | CacheEntry::DirectoryRedirect
        | CacheEntry::Script
        | CacheEntry::Absent => 0,
    }
}

#[cfg(test)]
mod tests;
