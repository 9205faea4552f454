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

use crate::known::{Found, Known};

/// How long an entry counts without being checked.
const FRESH: Duration = Duration::from_secs(1);

/// How long others are served from an entry while one request checks it; another one tries then.
const GRACE: Duration = Duration::from_millis(100);

/// Since its last check an entry may be served for so long at most, however slow the next check is.
const AGE_MAX: Duration = Duration::from_secs(10);

/// An open file that was not asked for this long is closed, when its loop next keeps something.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Memory for the files of one root.
const ROOT_BYTES: usize = 32 << 20;

/// Paths that one root's memory knows something of.
const ROOT_ENTRIES: usize = 32 << 10;

/// Large files that one root keeps open. Half of what a process may have open by default on most systems,
/// so that connections are left the other half.
pub(crate) const ROOT_DESCRIPTORS: usize = 512;

// What a loop has at least, however many there are: else a machine with many would keep nothing, and open
// for each request what it had open a moment before. The largest file that is compressed fits in each coding.
const LOOP_BYTES_MIN: usize = 4 << 20;
const LOOP_ENTRIES_MIN: usize = 1 << 10;
const LOOP_DESCRIPTORS_MIN: usize = 64;

/// Bounds of one memory, all loops together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) loops: usize,
    pub(crate) bytes: usize,
    pub(crate) entries: usize,
    /// Open files.
    pub(crate) descriptors: usize,
}

impl Bounds {
    /// Those of one root, which loops share evenly, but not to less than each can work with.
    pub(crate) fn of_root(loops: usize) -> Self {
        let loops = loops.max(1);
        Self {
            loops,
            bytes: ROOT_BYTES.max(loops * LOOP_BYTES_MIN),
            entries: ROOT_ENTRIES.max(loops * LOOP_ENTRIES_MIN),
            descriptors: ROOT_DESCRIPTORS.max(loops * LOOP_DESCRIPTORS_MIN),
        }
    }
}

/// What the memory says of a path.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// Checked within the last second.
    Fresh(Known),
    /// To be checked again, by the one that is told so.
    Stale(Known),
    /// To be checked again, and not to be served before.
    Old(Known),
    /// Not known.
    Unknown,
}

/// Entries by path, each loop's own.
#[derive(Debug)]
pub(crate) struct Memory {
    shards: PerLoop<Shard>,
    bytes_max: usize,
    entries_max: usize,
    descriptors_max: usize,
}

impl Memory {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let count = bounds.loops.max(1);
        Self {
            shards: PerLoop::new(),
            bytes_max: bounds.bytes / count,
            entries_max: bounds.entries / count,
            descriptors_max: bounds.descriptors / count,
        }
    }

    /// What this loop knows of `path`.
    pub(crate) fn find(&self, path: &[u8], now: Instant) -> Lookup {
        self.shards.with(|shard| {
            let Some(slot) = shard.slot_of(path) else {
                return Lookup::Unknown;
            };
            slot.was_used = true;
            let known = slot.known.clone();
            if now < slot.fresh_until {
                return Lookup::Fresh(known);
            }
            if now > slot.checked + AGE_MAX {
                return Lookup::Old(known);
            }
            slot.fresh_until = now + GRACE;
            Lookup::Stale(known)
        })
    }

    /// Lends what this loop knows of `path`, if it was checked within the last second.
    pub(crate) fn glance(&self, path: &[u8], now: Instant, use_it: impl FnOnce(&Known)) {
        self.shards.with(|shard| {
            let slot = shard.slot_of(path);
            if let Some(slot) = slot.filter(|slot| now < slot.fresh_until) {
                slot.was_used = true;
                use_it(&slot.known);
            }
        });
    }

    /// Keeps what was found at `path` by a check that began at `checked`, in place of what was known
    /// before; makes room if need be.
    pub(crate) fn keep(&self, path: Arc<[u8]>, known: Known, checked: Instant) {
        let cost = cost(&path, &known);
        let descriptors = descriptors(&known);
        self.shards.with(|shard| {
            shard.forget(&path);
            shard.close_idle(checked);
            if !self.has_room(cost, descriptors) {
                return;
            }
            while shard.descriptors + descriptors > self.descriptors_max {
                shard.close_one();
            }
            if descriptors > 0 {
                shard.open.push_back(Arc::clone(&path));
                shard.descriptors += descriptors;
            }
            while shard.slots.len() >= self.entries_max || shard.bytes + cost > self.bytes_max {
                shard.evict_one();
            }
            shard.bytes += cost;
            let at = shard.slots.len();
            shard.places.insert(Arc::clone(&path), at);
            let fresh_until = checked + FRESH;
            shard.slots.push(Slot {
                path,
                known,
                checked,
                fresh_until,
                was_used: false,
                cost,
                descriptors,
            });
        });
    }

    /// Whether something of that size fits, at the cost of everything else.
    fn has_room(&self, cost: usize, descriptors: usize) -> bool {
        cost <= self.bytes_max && self.entries_max > 0 && descriptors <= self.descriptors_max
    }

    /// While a check of `path` is under way nobody else begins one, as long as what is known may be served.
    pub(crate) fn hold(&self, path: &[u8]) {
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(path) {
                slot.fresh_until = slot.checked + AGE_MAX;
            }
        });
    }

    /// The check came to nothing: another one may begin in a moment.
    pub(crate) fn release(&self, path: &[u8], now: Instant) {
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(path) {
                slot.fresh_until = now + GRACE;
            }
        });
    }

    /// Puts a file of which more is known in place of what it was `before`, unless something else took its
    /// place meanwhile. It counts no longer than it would have.
    pub(crate) fn refine(&self, path: &[u8], before: &Arc<Found>, after: Arc<Found>) {
        let path: Arc<[u8]> = path.into();
        let times = self.shards.with(|shard| {
            let slot = shard.slot_of(&path)?;
            let is_same = matches!(&slot.known, Known::File(known) if Arc::ptr_eq(known, before));
            is_same.then_some((slot.checked, slot.fresh_until))
        });
        // What does not fit is made again from what is known; without that it would have to be opened, too.
        let after = Known::File(after);
        if !self.has_room(cost(&path, &after), descriptors(&after)) {
            return;
        }
        let Some((checked, fresh_until)) = times else {
            return;
        };
        self.keep(Arc::clone(&path), after, checked);
        self.shards.with(|shard| {
            if let Some(slot) = shard.slot_of(&path) {
                slot.fresh_until = fresh_until;
                slot.was_used = true;
            }
        });
    }

    /// Drops what is known of `path`.
    pub(crate) fn forget(&self, path: &[u8]) {
        self.shards.with(|shard| shard.forget(path));
    }
}

/// The entries of one loop, evicted by second chance: what was used since the hand last came by
/// stays, so that a scan of unheard-of paths does not push out what is asked for.
#[derive(Debug, Default)]
struct Shard {
    /// Where in `slots` a path is.
    places: HashMap<Arc<[u8]>, usize>,
    slots: Vec<Slot>,
    hand: usize,
    bytes: usize,
    /// The paths whose files are open, in the order of being opened; some may be gone meanwhile.
    open: VecDeque<Arc<[u8]>>,
    descriptors: usize,
}

#[derive(Debug)]
struct Slot {
    path: Arc<[u8]>,
    known: Known,
    /// When its last check began.
    checked: Instant,
    fresh_until: Instant,
    was_used: bool,
    cost: usize,
    descriptors: usize,
}

impl Shard {
    fn slot_of(&mut self, path: &[u8]) -> Option<&mut Slot> {
        let at = *self.places.get(path)?;
        self.slots.get_mut(at)
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(&at) = self.places.get(path) {
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
    fn close_one(&mut self) {
        let Some(path) = self.open.pop_front() else {
            // Nothing is open, so nothing is held.
            self.descriptors = 0;
            return;
        };
        match self.open_slot(&path) {
            Some(slot) if slot.was_used => {
                slot.was_used = false;
                self.open.push_back(path);
            }
            Some(_) => self.forget(&path),
            None => {}
        }
    }

    /// Looks at the one or two that were opened first, and closes what was not checked for long.
    fn close_idle(&mut self, now: Instant) {
        for _ in 0..2 {
            let Some(path) = self.open.pop_front() else {
                return;
            };
            match self.open_slot(&path) {
                Some(slot) if slot.checked + IDLE_MAX < now => self.forget(&path),
                Some(_) => self.open.push_back(path),
                None => {}
            }
        }
    }

    /// The slot of a path whose file is open, by the same key: a path that was kept again has a new one.
    fn open_slot(&mut self, path: &Arc<[u8]>) -> Option<&mut Slot> {
        let slot = self.slot_of(path)?;
        (slot.descriptors > 0 && Arc::ptr_eq(&slot.path, path)).then_some(slot)
    }

    /// Removes a slot; the last one takes its number.
    fn remove(&mut self, at: usize) {
        let slot = self.slots.swap_remove(at);
        self.bytes -= slot.cost;
        self.descriptors -= slot.descriptors;
        self.places.remove(&slot.path);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(Arc::clone(&moved.path), at);
        }
    }
}

/// Bytes an entry takes, with about 230 for its slot, its place and what allocations round up.
fn cost(path: &[u8], known: &Known) -> usize {
    let held = match known {
        Known::File(file) => file.bytes_held(),
        Known::Listing(page) => page.len(),
        Known::Directory | Known::Script | Known::Absent => 0,
    };
    230 + path.len() + held
}

fn descriptors(known: &Known) -> usize {
    match known {
        Known::File(file) => file.descriptors(),
        Known::Listing(_) | Known::Directory | Known::Script | Known::Absent => 0,
    }
}

#[cfg(test)]
mod tests;
