//! Which object goes when there is no room: S3-FIFO, weighed by bytes. Pure.
//!
//! Three queues (Yang et al., SOSP 2023): new objects enter `small`, about a tenth of the room; those used
//! there move on to `main`, the others leave and are remembered as ghosts; who comes back while its
//! ghost is there enters `main` at once; in `main` a use buys another round. A scan passes through `small`
//! and disturbs nothing, and a use is a mark in the object: no lock, no list.
//!
//! `tier` keeps one under a lock that is taken for changes only. Kept crates of the same idea
//! (`quick_cache`, `foyer-memory`) give each of their shards a fixed part of the room, so that an object
//! larger than a part is refused, and they cannot be asked for room that files still being written
//! need: with a disk's strict bound both matter.
//!
//! On the fixed trace of its test (Zipf 0.9 over 20,000 names of 1 to 16 kB, a scan now and then) it finds 35, 49
//! and 62 of 100 with room for a hundredth, a twentieth and a fifth of the bytes, where LRU finds 25, 40 and 55.
//!
//! What must stay true: the bytes told are those of the objects queued, each object is in one queue or in
//! none, and ghosts and objects taken out take bounded memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// What a queue has to know of an object.
pub(crate) trait Evictable {
    /// Its weight in bytes, always the same.
    fn weight(&self) -> u64;
    /// Its name for as long as it is a ghost: two that share one are taken for the same.
    fn ghost_key(&self) -> u64;
    /// Its marks.
    fn use_marks(&self) -> &UseMarks;
}

/// An object's uses since it was last looked at, and which queue it is in.
#[derive(Debug, Default)]
pub(crate) struct UseMarks {
    uses: AtomicU8,
    /// Changed by the queues' owner only.
    queue_state: AtomicU8,
}

const NOT_QUEUED: u8 = 0;
const SMALL: u8 = 1;
const MAIN: u8 = 2;
/// Taken out; its place in the queue is cleared later.
const REMOVED: u8 = 3;

/// Uses beyond this count for nothing (two bits, as in the paper).
const MAX_USES: u8 = 3;

impl UseMarks {
    /// Notes a use.
    pub(crate) fn record_use(&self) {
        let uses = self.uses.load(Relaxed);
        // A lost mark of two that coincide does not matter; a hot object's line stays unwritten.
        if uses < MAX_USES {
            self.uses.store(uses + 1, Relaxed);
        }
    }

    /// Uses since it was last looked at, at most 3.
    pub(crate) fn uses(&self) -> u8 {
        self.uses.load(Relaxed)
    }
}

/// The queues.
#[derive(Debug)]
pub(crate) struct S3Fifo<T> {
    small: FifoQueue<T>,
    main: FifoQueue<T>,
    ghosts: GhostQueue,
}

#[derive(Debug)]
struct FifoQueue<T> {
    items: VecDeque<Arc<T>>,
    bytes: u64,
    /// Of the items: taken out already.
    removed_count: usize,
}

#[derive(Debug, Default)]
struct GhostQueue {
    order: VecDeque<(u64, u64)>,
    counts: HashMap<u64, u32>,
    bytes: u64,
}

impl<T> Default for S3Fifo<T> {
    fn default() -> Self {
        Self {
            small: FifoQueue::default(),
            main: FifoQueue::default(),
            ghosts: GhostQueue::default(),
        }
    }
}

impl<T> Default for FifoQueue<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            bytes: 0,
            removed_count: 0,
        }
    }
}

impl<T: Evictable> S3Fifo<T> {
    /// Bytes of the objects queued.
    pub(crate) fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    /// How many objects are queued.
    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Queues a new object; nothing for one that was queued before.
    pub(crate) fn insert(&mut self, item: &Arc<T>) {
        if item.use_marks().queue_state.load(Relaxed) == NOT_QUEUED {
            if self.ghosts.take(item.ghost_key()) {
                self.main.push(item, MAIN);
            } else {
                self.small.push(item, SMALL);
            }
        }
    }

    /// Queues an object that has proved itself before: one that a restart found.
    pub(crate) fn insert_proven(&mut self, item: &Arc<T>) {
        if item.use_marks().queue_state.load(Relaxed) == NOT_QUEUED {
            self.main.push(item, MAIN);
        }
    }

    /// Takes `new`, which was not queued before, for `old`, with its uses and in its queue; false when `old` is
    /// not queued.
    pub(crate) fn replace(&mut self, old: &Arc<T>, new: &Arc<T>) -> bool {
        let place = old.use_marks().queue_state.load(Relaxed);
        let is_new = new.use_marks().queue_state.load(Relaxed) == NOT_QUEUED;
        if !is_new || !self.remove(old) {
            return false;
        }
        new.use_marks().uses.store(old.use_marks().uses(), Relaxed);
        match place {
            MAIN => self.main.push(new, MAIN),
            _ => self.small.push(new, SMALL),
        }
        true
    }

    /// Takes an object out; false when it is not queued.
    pub(crate) fn remove(&mut self, item: &Arc<T>) -> bool {
        let line = match item.use_marks().queue_state.load(Relaxed) {
            SMALL => &mut self.small,
            MAIN => &mut self.main,
            _ => return false,
        };
        item.use_marks().queue_state.store(REMOVED, Relaxed);
        line.bytes -= item.weight();
        line.removed_count += 1;
        line.compact();
        true
    }

    /// Takes out the next that has to go when all may weigh `room` bytes; none when nothing is queued.
    pub(crate) fn evict(&mut self, room: u64) -> Option<Arc<T>> {
        loop {
            let is_small_full = self.small.bytes > room / 10;
            if self.small.len() > 0 && (is_small_full || self.main.len() == 0) {
                let item = self.small.pop()?;
                if item.use_marks().uses() > 1 {
                    item.use_marks().uses.store(0, Relaxed);
                    self.main.push(&item, MAIN);
                    continue;
                }
                self.ghosts.remember(item.ghost_key(), item.weight(), room);
                item.use_marks().queue_state.store(REMOVED, Relaxed);
                return Some(item);
            }
            let item = self.main.pop()?;
            let uses = item.use_marks().uses();
            if uses > 0 {
                // Ends: each round takes a use away, and others' new uses are bounded by time.
                item.use_marks().uses.store(uses - 1, Relaxed);
                self.main.push(&item, MAIN);
                continue;
            }
            item.use_marks().queue_state.store(REMOVED, Relaxed);
            return Some(item);
        }
    }
}

impl<T: Evictable> FifoQueue<T> {
    fn len(&self) -> usize {
        self.items.len() - self.removed_count
    }

    fn push(&mut self, item: &Arc<T>, place: u8) {
        item.use_marks().queue_state.store(place, Relaxed);
        self.bytes += item.weight();
        self.items.push_back(Arc::clone(item));
    }

    /// The first that is still there.
    fn pop(&mut self) -> Option<Arc<T>> {
        while let Some(item) = self.items.pop_front() {
            if item.use_marks().queue_state.load(Relaxed) == REMOVED {
                self.removed_count -= 1;
            } else {
                self.bytes -= item.weight();
                return Some(item);
            }
        }
        None
    }

    /// Clears what was taken out once it is the greater part: a constant cost for each taking out. With
    /// nothing left nothing is held, as an object may hold a folder open.
    fn compact(&mut self) {
        let is_many = self.removed_count > 64 && self.removed_count > self.items.len() / 2;
        if is_many || self.removed_count == self.items.len() {
            let is_there = |item: &Arc<T>| item.use_marks().queue_state.load(Relaxed) != REMOVED;
            self.items.retain(is_there);
            self.removed_count = 0;
        }
    }
}

impl GhostQueue {
    /// Remembers one; as many as `room` bytes of objects are remembered.
    fn remember(&mut self, ghost: u64, weight: u64, room: u64) {
        self.order.push_back((ghost, weight));
        *self.counts.entry(ghost).or_default() += 1;
        self.bytes += weight;
        while self.bytes > room {
            let Some((oldest, weight)) = self.order.pop_front() else {
                return;
            };
            self.bytes -= weight;
            self.forget(oldest);
        }
    }

    /// Whether one is remembered; it is not any more (its place in the order goes later).
    fn take(&mut self, ghost: u64) -> bool {
        self.counts.remove(&ghost).is_some()
    }

    fn forget(&mut self, ghost: u64) {
        if let Some(count) = self.counts.get_mut(&ghost) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&ghost);
            }
        }
    }
}

#[cfg(test)]
mod tests;
