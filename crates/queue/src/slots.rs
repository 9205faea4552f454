//! The slots of one application or upstream, and which of the free ones is best.
//!
//! Used only by `queue.rs`. Free slots are threaded on short lists, one for each (generation, in
//! progress, home) that has any, most recently used first; the lists stand in a small sorted vector
//! whose end is the best choice. Claiming looks at the lists of the best rank only, at most one
//! for each loop, so the cost does not grow with the number of slots.
//! What must stay true: a slot is on a list exactly when it is not retired and has fewer in
//! progress than its capacity; `in_progress` and `places` are the sums over the slots.

use std::cmp::Reverse;
use std::fmt;

/// All slots, free and busy.
pub(crate) struct Slots {
    entries: Vec<Entry>,
    vacant: Vec<usize>,
    /// Sorted by `rank`, best last. No list is empty.
    lists: Vec<List>,
    epoch: u64,
    uses: u64,
    live: usize,
    in_progress: usize,
    /// Wide enough for any number of slots without a limit.
    places: u64,
}

/// Names one slot for ever: the index is reused after the slot is gone, the epoch is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    epoch: u64,
    index: usize,
}

/// What a slot is, told when it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpec {
    /// Which version of the code it runs; the newest gets work first.
    pub generation: u64,
    /// The loop that owns it.
    pub home: usize,
    /// How many requests it may have in progress; `u32::MAX` is no limit, 0 takes none.
    pub capacity: u32,
}

/// One slot as the status page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Its name.
    pub slot: SlotId,
    /// As it was added, with the capacity that it has now.
    pub spec: SlotSpec,
    /// Requests handed to it and not yet finished.
    pub in_progress: u32,
    /// Whether it gets no new jobs and goes when the last one ends.
    pub is_retired: bool,
}

struct Entry {
    /// Zero while the entry is vacant.
    epoch: u64,
    spec: SlotSpec,
    in_progress: u32,
    is_retired: bool,
    /// When it was last used, in uses of the whole table; zero is never.
    used: u64,
    prev: usize,
    next: usize,
}

/// A ring of free slots of one rank; `head.prev` is its tail.
struct List {
    rank: Rank,
    head: usize,
}

/// Compares lowest to highest: generation, then the fewer in progress, then the home.
type Rank = (u64, Reverse<u32>, usize);

impl Slots {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            lists: Vec::new(),
            epoch: 0,
            uses: 0,
            live: 0,
            in_progress: 0,
            places: 0,
        }
    }

    /// Slots that are not retired.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Requests in progress over all slots, retired ones included.
    pub(crate) fn in_progress(&self) -> usize {
        self.in_progress
    }

    /// How many more requests could start now.
    pub(crate) fn places(&self) -> usize {
        usize::try_from(self.places).unwrap_or(usize::MAX)
    }

    /// Adds a free slot, behind the others of its rank: it is not warm yet.
    pub(crate) fn add(&mut self, spec: SlotSpec) -> SlotId {
        self.epoch += 1;
        let entry = Entry {
            epoch: self.epoch,
            spec,
            in_progress: 0,
            is_retired: false,
            used: 0,
            prev: 0,
            next: 0,
        };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.entries[index] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.live += 1;
        self.places += u64::from(spec.capacity);
        self.link(index);
        SlotId {
            epoch: self.epoch,
            index,
        }
    }

    /// Takes a place at the best free slot, seen from `home`.
    pub(crate) fn claim_best(&mut self, home: usize) -> Option<SlotId> {
        let (generation, in_progress, _) = self.lists.last()?.rank;
        let mut best: Option<&List> = None;
        for list in self.lists.iter().rev() {
            if (list.rank.0, list.rank.1) != (generation, in_progress) {
                break;
            }
            if list.rank.2 == home {
                best = Some(list);
                break;
            }
            if best.is_none_or(|b| self.entries[b.head].used < self.entries[list.head].used) {
                best = Some(list);
            }
        }
        let index = best?.head;
        self.claim(index);
        Some(SlotId {
            epoch: self.entries[index].epoch,
            index,
        })
    }

    /// Takes a place at this slot if it has one.
    pub(crate) fn claim_at(&mut self, slot: SlotId) -> bool {
        let is_free = self.entry(slot).is_some_and(Entry::is_free);
        if is_free {
            self.claim(slot.index);
        }
        is_free
    }

    /// Adds a request to this slot beyond its capacity, up to `in_progress_max`.
    pub(crate) fn overbook(&mut self, slot: SlotId, in_progress_max: u32) -> bool {
        let allows = self.entry(slot).is_some_and(|entry| {
            !entry.is_retired && !entry.is_free() && entry.in_progress < in_progress_max
        });
        if allows {
            self.claim(slot.index);
        }
        allows
    }

    /// One request of this slot has ended; a retired slot goes with its last one.
    pub(crate) fn release(&mut self, slot: SlotId) {
        let Some(entry) = self.entry(slot) else {
            return;
        };
        if entry.in_progress == 0 {
            return;
        }
        let index = slot.index;
        self.unlink(index);
        self.uses += 1;
        self.in_progress -= 1;
        let entry = &mut self.entries[index];
        entry.in_progress -= 1;
        entry.used = self.uses;
        if entry.is_free() {
            self.places += 1;
        }
        if entry.is_retired && entry.in_progress == 0 {
            self.forget(index);
        } else {
            self.link(index);
        }
    }

    /// Changes how many the slot may have in progress; what it has goes on. Nothing for a retired
    /// slot.
    pub(crate) fn set_capacity(&mut self, slot: SlotId, capacity: u32) {
        let Some(entry) = self.entry(slot).filter(|entry| !entry.is_retired) else {
            return;
        };
        let (room, was_free) = (entry.room(), entry.is_free());
        let stays_listed = was_free && entry.in_progress < capacity;
        let index = slot.index;
        if !stays_listed {
            self.unlink(index);
        }
        let entry = &mut self.entries[index];
        entry.spec.capacity = capacity;
        self.places = self.places - u64::from(room) + u64::from(entry.room());
        if !stays_listed {
            // It counts as a use: whoever is linked in front must be the last used of its rank.
            self.uses += 1;
            entry.used = self.uses;
            self.link(index);
        }
    }

    /// Whether this slot is there and takes jobs when it has room.
    pub(crate) fn is_live(&self, slot: SlotId) -> bool {
        self.entry(slot).is_some_and(|entry| !entry.is_retired)
    }

    /// Gives the slot no more jobs; true when it is gone.
    pub(crate) fn retire(&mut self, slot: SlotId) -> bool {
        let Some(entry) = self.entry(slot) else {
            return true;
        };
        let is_idle = entry.in_progress == 0;
        if !entry.is_retired {
            self.withdraw(slot.index);
        }
        if is_idle {
            self.forget(slot.index);
        }
        is_idle
    }

    /// Forgets the slot with whatever it had in progress.
    pub(crate) fn remove(&mut self, slot: SlotId) {
        let Some(entry) = self.entry(slot) else {
            return;
        };
        let (in_progress, is_retired) = (entry.in_progress as usize, entry.is_retired);
        if !is_retired {
            self.withdraw(slot.index);
        }
        self.in_progress -= in_progress;
        self.forget(slot.index);
    }

    /// The slot as it stands, `None` when it is gone.
    pub(crate) fn view(&self, slot: SlotId) -> Option<SlotView> {
        self.entry(slot).map(|entry| entry.view(slot.index))
    }

    /// Every slot, in no particular order.
    pub(crate) fn views(&self) -> impl Iterator<Item = SlotView> {
        let entries = self.entries.iter().enumerate();
        let used = entries.filter(|(_, entry)| entry.epoch != 0);
        used.map(|(index, entry)| entry.view(index))
    }

    fn entry(&self, slot: SlotId) -> Option<&Entry> {
        let entry = self.entries.get(slot.index)?;
        (entry.epoch == slot.epoch).then_some(entry)
    }

    fn claim(&mut self, index: usize) {
        self.unlink(index);
        self.uses += 1;
        self.in_progress += 1;
        let entry = &mut self.entries[index];
        if entry.is_free() {
            self.places -= 1;
        }
        entry.used = self.uses;
        entry.in_progress += 1;
        self.link(index);
    }

    fn withdraw(&mut self, index: usize) {
        self.unlink(index);
        let entry = &mut self.entries[index];
        entry.is_retired = true;
        self.live -= 1;
        self.places -= u64::from(entry.room());
    }

    fn forget(&mut self, index: usize) {
        self.entries[index].epoch = 0;
        self.vacant.push(index);
    }

    fn link(&mut self, index: usize) {
        let entry = &self.entries[index];
        if !entry.is_free() {
            return;
        }
        let (rank, is_warm) = (entry.rank(), entry.used > 0);
        let place = match self.lists.binary_search_by_key(&rank, |list| list.rank) {
            Ok(place) => place,
            Err(place) => {
                self.lists.insert(place, List { rank, head: index });
                (self.entries[index].prev, self.entries[index].next) = (index, index);
                return;
            }
        };
        let head = self.lists[place].head;
        let tail = self.entries[head].prev;
        (self.entries[index].prev, self.entries[index].next) = (tail, head);
        self.entries[tail].next = index;
        self.entries[head].prev = index;
        if is_warm {
            self.lists[place].head = index;
        }
    }

    fn unlink(&mut self, index: usize) {
        let entry = &self.entries[index];
        if !entry.is_free() {
            return;
        }
        let (rank, prev, next) = (entry.rank(), entry.prev, entry.next);
        let Ok(place) = self.lists.binary_search_by_key(&rank, |list| list.rank) else {
            debug_assert!(false, "a free slot is on the list of its rank");
            return;
        };
        if next == index {
            self.lists.remove(place);
            return;
        }
        self.entries[prev].next = next;
        self.entries[next].prev = prev;
        if self.lists[place].head == index {
            self.lists[place].head = next;
        }
    }

    /// Walks every list and recounts every sum.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        assert!(self.lists.is_sorted_by(|a, b| a.rank < b.rank));
        let mut listed = 0;
        for list in &self.lists {
            let mut index = list.head;
            loop {
                let entry = &self.entries[index];
                assert!(entry.epoch != 0 && entry.is_free() && entry.rank() == list.rank);
                assert_eq!(self.entries[entry.next].prev, index);
                listed += 1;
                if entry.next == list.head {
                    break;
                }
                assert!(entry.used >= self.entries[entry.next].used, "warmest first");
                index = entry.next;
            }
        }
        let free = self.entries.iter().filter(|e| e.epoch != 0 && e.is_free());
        assert_eq!(listed, free.count());
        let views = || self.views();
        let (live, all) = (views().filter(|v| !v.is_retired), views().count());
        assert_eq!(self.live, live.count());
        assert_eq!(all + self.vacant.len(), self.entries.len());
        let in_progress: u32 = views().map(|v| v.in_progress).sum();
        assert_eq!(self.in_progress, in_progress as usize);
        let live = views().filter(|v| !v.is_retired);
        let places = live.map(|v| u64::from(v.spec.capacity.saturating_sub(v.in_progress)));
        assert_eq!(self.places, places.sum::<u64>());
    }
}

impl Entry {
    fn is_free(&self) -> bool {
        !self.is_retired && self.in_progress < self.spec.capacity
    }

    /// How many more it could take, if it takes any.
    fn room(&self) -> u32 {
        self.spec.capacity.saturating_sub(self.in_progress)
    }

    fn rank(&self) -> Rank {
        let spec = &self.spec;
        (spec.generation, Reverse(self.in_progress), spec.home)
    }

    fn view(&self, index: usize) -> SlotView {
        SlotView {
            slot: SlotId {
                epoch: self.epoch,
                index,
            },
            spec: self.spec,
            in_progress: self.in_progress,
            is_retired: self.is_retired,
        }
    }
}

impl SlotId {
    /// A small number, unique among the slots that exist now: good as an index for a side table.
    pub fn index(self) -> usize {
        self.index
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.epoch)
    }
}
