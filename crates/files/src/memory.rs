//! What is known of recently asked paths, so that asking again costs one look-up and no system call.
//!
//! `handler` asks here first, and keeps here what `tree` found: small files whole, directories, and
//! that there is nothing (which spares every request for an application behind the files a trip to
//! the disk). An entry counts for a second after its last check; then one request checks again while
//! others are served from it for a moment longer.
//!
//! What must stay true: bytes and entries are bounded; each loop has entries of its own, so that
//! loops do not wait for one another and a look-up is no locked instruction. `now` is an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::PerLoop;

use crate::tree::Loaded;

/// How long an entry counts without being checked.
const FRESH: Duration = Duration::from_secs(1);

/// How long others are served from an entry while one request checks it; another one tries then.
const GRACE: Duration = Duration::from_millis(100);

/// Bounds of one memory, all loops together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) loops: usize,
    pub(crate) bytes: usize,
    pub(crate) entries: usize,
}

/// What was found at a path.
#[derive(Debug, Clone)]
pub(crate) enum Known {
    /// A small file.
    File(Arc<Loaded>),
    /// A directory with an index page, asked for without its final slash.
    Directory,
    /// Nothing to serve.
    Absent,
}

/// What the memory says of a path.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// Checked within the last second.
    Fresh(Known),
    /// To be checked again, by the one that is told so.
    Stale(Known),
    /// Not known.
    Unknown,
}

/// Entries by path, each loop's own.
#[derive(Debug)]
pub(crate) struct Memory {
    shards: PerLoop<Shard>,
    bytes_max: usize,
    entries_max: usize,
}

impl Memory {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let count = bounds.loops.max(1);
        Self {
            shards: PerLoop::new(),
            bytes_max: bounds.bytes / count,
            entries_max: bounds.entries / count,
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
        self.shards.with(|shard| {
            shard.forget(&path);
            if cost > self.bytes_max || self.entries_max == 0 {
                return;
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
                fresh_until,
                was_used: false,
                cost,
            });
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
}

#[derive(Debug)]
struct Slot {
    path: Arc<[u8]>,
    known: Known,
    fresh_until: Instant,
    was_used: bool,
    cost: usize,
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

    /// Removes a slot; the last one takes its number.
    fn remove(&mut self, at: usize) {
        let slot = self.slots.swap_remove(at);
        self.bytes -= slot.cost;
        self.places.remove(&slot.path);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(Arc::clone(&moved.path), at);
        }
    }
}

/// Bytes an entry takes, with about 200 for its slot, its place and what allocations round up.
fn cost(path: &[u8], known: &Known) -> usize {
    let held = match known {
        Known::File(file) => file.bytes_held(),
        Known::Directory | Known::Absent => 0,
    };
    200 + path.len() + held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: usize, entries: usize) -> Memory {
        Memory::new(Bounds {
            loops: 1,
            bytes,
            entries,
        })
    }

    fn keep(memory: &Memory, path: &str, now: Instant) {
        memory.keep(path.as_bytes().into(), Known::Absent, now);
    }

    fn state(memory: &Memory, path: &str, now: Instant) -> &'static str {
        match memory.find(path.as_bytes(), now) {
            Lookup::Fresh(_) => "fresh",
            Lookup::Stale(_) => "stale",
            Lookup::Unknown => "unknown",
        }
    }

    #[test]
    fn one_request_checks_again_after_a_second() {
        let memory = memory(10_000, 10);
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        keep(&memory, "/a", start);
        for (millis, expected) in [
            (0, "fresh"),
            (999, "fresh"),
            (1000, "stale"),
            (1001, "fresh"),
            (1099, "fresh"),
            (1100, "stale"),
            (1101, "fresh"),
        ] {
            assert_eq!(state(&memory, "/a", after(millis)), expected, "{millis} ms");
        }
        keep(&memory, "/a", after(1150));
        assert_eq!(state(&memory, "/a", after(2149)), "fresh");
        assert_eq!(state(&memory, "/b", start), "unknown");
    }

    #[test]
    fn forgets_what_it_is_told_to() {
        let memory = memory(10_000, 10);
        let now = Instant::now();
        for path in ["/a", "/b", "/c"] {
            keep(&memory, path, now);
        }
        memory.forget(b"/a");
        memory.forget(b"/never-there");
        assert_eq!(state(&memory, "/a", now), "unknown");
        assert_eq!(state(&memory, "/b", now), "fresh");
        assert_eq!(state(&memory, "/c", now), "fresh");
    }

    #[test]
    fn stays_within_its_bounds_whatever_is_kept() {
        let now = Instant::now();
        for (what, bytes, entries) in [
            ("few entries", 1 << 20, 3),
            ("few bytes", 1000, 100),
            ("one entry", 1 << 20, 1),
            ("no entry", 1 << 20, 0),
            ("no bytes", 0, 100),
        ] {
            let memory = memory(bytes, entries);
            for round in 0..500 {
                keep(&memory, &format!("/{}", round % 37), now);
                if round % 3 == 0 {
                    state(&memory, &format!("/{}", round % 11), now);
                }
                if round % 7 == 0 {
                    memory.forget(format!("/{}", round % 5).as_bytes());
                }
                memory.shards.with(|shard| {
                    assert!(
                        shard.bytes <= bytes && shard.slots.len() <= entries,
                        "{what}"
                    );
                    assert_eq!(shard.places.len(), shard.slots.len(), "{what}");
                    let costs = shard.slots.iter().map(|s| s.cost).sum::<usize>();
                    assert_eq!(shard.bytes, costs, "{what}");
                    for (at, slot) in shard.slots.iter().enumerate() {
                        assert_eq!(shard.places.get(&slot.path), Some(&at), "{what}");
                    }
                });
            }
        }
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_used() {
        let memory = memory(1 << 20, 10);
        let now = Instant::now();
        keep(&memory, "/used", now);
        for n in 0..1000 {
            assert_eq!(state(&memory, "/used", now), "fresh", "after {n}");
            keep(&memory, &format!("/scan/{n}"), now);
        }
    }

    #[test]
    fn loops_keep_apart_and_share_the_bounds() {
        let memory = Memory::new(Bounds {
            loops: 2,
            bytes: 10_000,
            entries: 10,
        });
        let now = Instant::now();
        keep(&memory, "/a", now);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert_eq!(state(&memory, "/a", now), "unknown");
                for n in 0..20 {
                    keep(&memory, &format!("/{n}"), now);
                }
                memory.shards.with(|shard| shard.slots.len())
            });
            assert_eq!(other.join().unwrap(), 5);
        });
        assert_eq!(state(&memory, "/a", now), "fresh");
    }
}
