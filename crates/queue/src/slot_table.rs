//! Slots of one application or upstream, and which of the free ones is best; used by `queue.rs`.
//!
//! Each slot belongs to a group: its worker process, or itself alone. `ranked_groups.rs` chooses
//! the group, so that a request does not start in a process that has one in progress while another
//! process has none. Every change of a slot goes through `update`, which maintains the groups and
//! the totals.
//!
//! # Invariants
//!
//! - A slot is in its group's free list exactly when it is not retired and has fewer requests in
//!   progress than its capacity.
//! - `totals` are the sums over the slots.

use std::cmp::Reverse;
use std::fmt;

use crate::ranked_groups::{self, RankedGroups};

/// All slots, free and busy.
pub(crate) struct SlotTable {
    entries: Vec<SlotEntry>,
    vacant: Vec<usize>,
    groups: RankedGroups,
    epoch: u64,
    use_count: u64,
    totals: SlotTotals,
}

/// Identifies one slot for ever: the index is reused after the slot is gone, the epoch is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    epoch: u64,
    index: usize,
}

/// Properties of a slot, given when it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpec {
    /// Which version of the code it runs; the newest gets work first.
    pub generation: u64,
    /// The worker process of the slot: within one generation, the process with fewer requests in
    /// progress gets work first. 0 is a slot without a process.
    pub group: u64,
    /// The event loop that owns it, counted from 0: a small number.
    pub loop_index: usize,
    /// Maximum number of requests in progress; `u32::MAX` is no limit, 0 takes none.
    pub capacity: u32,
}

/// State of one slot, as the status page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Its id.
    pub id: SlotId,
    /// As it was added, with its present capacity.
    pub spec: SlotSpec,
    /// Requests dispatched to it and not yet finished.
    pub in_progress: u32,
    /// Whether it takes no new jobs and is removed when the last one ends.
    pub is_retired: bool,
}

struct SlotEntry {
    /// Zero while the entry is unused.
    epoch: u64,
    spec: SlotSpec,
    in_progress: u32,
    is_retired: bool,
    /// When it was last used, in uses of the whole table; zero is never.
    last_use: u64,
    /// Its group's free list for its loop.
    free_list: usize,
}

/// Sums over all slots; `u64` so that slots without a limit fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SlotTotals {
    live: u64,
    in_progress: u64,
    free_capacity: u64,
    capacity: u64,
}

impl SlotTable {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            groups: RankedGroups::new(),
            epoch: 0,
            use_count: 0,
            totals: SlotTotals {
                live: 0,
                in_progress: 0,
                free_capacity: 0,
                capacity: 0,
            },
        }
    }

    pub(crate) fn live_count(&self) -> usize {
        to_usize(self.totals.live)
    }

    /// Requests in progress over all slots, retired ones included.
    pub(crate) fn in_progress(&self) -> usize {
        to_usize(self.totals.in_progress)
    }

    /// How many more requests could be dispatched now.
    pub(crate) fn free_capacity(&self) -> usize {
        to_usize(self.totals.free_capacity)
    }

    /// How many requests could be in progress at once in slots that are not retired.
    pub(crate) fn capacity(&self) -> usize {
        to_usize(self.totals.capacity)
    }

    /// Adds a free slot behind the others of its group, as it was not recently used. A new group
    /// also goes behind those of its rank; for an existing group that was used, this counts as a
    /// use.
    pub(crate) fn add(&mut self, spec: SlotSpec) -> SlotId {
        self.epoch += 1;
        let entry = SlotEntry {
            epoch: self.epoch,
            spec,
            in_progress: 0,
            is_retired: false,
            last_use: 0,
            free_list: self
                .groups
                .add_slot(spec.generation, spec.group, spec.loop_index),
        };
        let (bench, sums) = (entry.free_list, entry.totals());
        self.totals = self.totals.replace(SlotTotals::default(), sums);
        let index = ranked_groups::insert_or_reuse(&mut self.entries, &mut self.vacant, entry);
        self.groups.remove_from_tier(bench);
        if self.groups.last_use(bench) > 0 {
            self.use_count += 1;
            self.groups.record_use(bench, self.use_count);
        }
        self.list_if_free(index);
        self.groups.add_to_tier(bench);
        SlotId {
            epoch: self.epoch,
            index,
        }
    }

    /// Claims the best free slot, seen from loop `home`.
    pub(crate) fn claim_best(&mut self, home: usize) -> Option<SlotId> {
        let entries = &self.entries;
        let index = self
            .groups
            .best_free_slot(home, |index| entries[index].preference())?;
        self.claim(index);
        Some(SlotId {
            epoch: self.entries[index].epoch,
            index,
        })
    }

    pub(crate) fn claim_at(&mut self, slot: SlotId) -> bool {
        let is_free = self.entry(slot).is_some_and(SlotEntry::is_free);
        if is_free {
            self.claim(slot.index);
        }
        is_free
    }

    /// Claims the best free slot of the process that this slot belongs to.
    pub(crate) fn claim_within(&mut self, slot: SlotId) -> Option<SlotId> {
        let (bench, entries) = (self.entry(slot)?.free_list, &self.entries);
        let index = self
            .groups
            .best_free_slot_in_group(bench, |index| entries[index].preference())?;
        self.claim(index);
        Some(SlotId {
            epoch: self.entries[index].epoch,
            index,
        })
    }

    /// The index of the process that this slot belongs to, unique among those that have slots now;
    /// `None` if the slot is gone.
    pub(crate) fn process_of(&self, slot: SlotId) -> Option<usize> {
        let entry = self.entry(slot)?;
        Some(self.groups.group_of(entry.free_list))
    }

    /// Whether another slot of the same process exists and is not retired.
    pub(crate) fn has_live_sibling(&self, slot: SlotId) -> bool {
        let process = self.process_of(slot);
        let mut others =
            self.entries.iter().enumerate().filter(|(index, entry)| {
                *index != slot.index && entry.epoch != 0 && !entry.is_retired
            });
        process.is_some()
            && others.any(|(_, entry)| Some(self.groups.group_of(entry.free_list)) == process)
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

    /// Ends one request of this slot and starts another one on it. Returns false and changes
    /// nothing if the slot may not have that many.
    pub(crate) fn reassign(&mut self, slot: SlotId) -> bool {
        let allows = self.entry(slot).is_some_and(|entry| {
            !entry.is_retired && (1..=entry.spec.capacity).contains(&entry.in_progress)
        });
        if allows {
            self.update(slot.index, |_| {});
        }
        allows
    }

    /// Ends one request of this slot; a retired slot is removed with its last one.
    pub(crate) fn release(&mut self, slot: SlotId) {
        if self.entry(slot).is_none_or(|entry| entry.in_progress == 0) {
            return;
        }
        self.update(slot.index, |entry| entry.in_progress -= 1);
        let entry = &self.entries[slot.index];
        if entry.is_retired && entry.in_progress == 0 {
            self.free_entry(slot.index);
        }
    }

    /// Changes how many requests the slot may have in progress; present ones continue. A retired
    /// slot is not changed.
    pub(crate) fn set_capacity(&mut self, slot: SlotId, capacity: u32) {
        let Some(entry) = self.entry(slot).filter(|entry| !entry.is_retired) else {
            return;
        };
        if entry.is_free() && entry.in_progress < capacity {
            // It keeps its place in the order.
            let before = entry.totals();
            let entry = &mut self.entries[slot.index];
            entry.spec.capacity = capacity;
            self.totals = self.totals.replace(before, entry.totals());
        } else {
            self.update(slot.index, |entry| entry.spec.capacity = capacity);
        }
    }

    pub(crate) fn is_live(&self, slot: SlotId) -> bool {
        self.entry(slot).is_some_and(|entry| !entry.is_retired)
    }

    /// Stops giving the slot jobs; returns true if it is removed.
    pub(crate) fn retire(&mut self, slot: SlotId) -> bool {
        let Some(entry) = self.entry(slot) else {
            return true;
        };
        let is_idle = entry.in_progress == 0;
        if !entry.is_retired {
            self.update(slot.index, |entry| entry.is_retired = true);
        }
        if is_idle {
            self.free_entry(slot.index);
        }
        is_idle
    }

    /// Removes the slot with all requests that it had in progress.
    pub(crate) fn remove(&mut self, slot: SlotId) {
        if self.entry(slot).is_some() {
            self.update(slot.index, |entry| {
                (entry.is_retired, entry.in_progress) = (true, 0);
            });
            self.free_entry(slot.index);
        }
    }

    /// Returns the state of the slot; `None` if it is gone.
    pub(crate) fn view(&self, slot: SlotId) -> Option<SlotView> {
        self.entry(slot).map(|entry| entry.view(slot.index))
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = SlotView> {
        let entries = self.entries.iter().enumerate();
        let used = entries.filter(|(_, entry)| entry.epoch != 0);
        used.map(|(index, entry)| entry.view(index))
    }

    fn entry(&self, slot: SlotId) -> Option<&SlotEntry> {
        let entry = self.entries.get(slot.index)?;
        (entry.epoch == slot.epoch).then_some(entry)
    }

    fn claim(&mut self, index: usize) {
        self.update(index, |entry| entry.in_progress += 1);
    }

    /// Changes a slot, which counts as a use of it and of its group: a slot or group that is put in
    /// front must be the last used.
    fn update(&mut self, index: usize, change: impl FnOnce(&mut SlotEntry)) {
        let entry = &mut self.entries[index];
        let (bench, before, was_free) = (entry.free_list, entry.totals(), entry.is_free());
        change(entry);
        self.use_count += 1;
        entry.last_use = self.use_count;
        let (after, is_free) = (entry.totals(), entry.is_free());
        self.totals = self.totals.replace(before, after);
        let (had, has) = (before.in_progress, after.in_progress);
        if was_free
            && is_free
            && self
                .groups
                .try_update_in_place(bench, had, has, self.use_count)
        {
            return;
        }
        self.groups.remove_from_tier(bench);
        if was_free {
            self.groups.remove_free(bench, index);
        }
        self.groups.update_in_progress(bench, had, has);
        self.groups.record_use(bench, self.use_count);
        self.list_if_free(index);
        self.groups.add_to_tier(bench);
    }

    fn list_if_free(&mut self, index: usize) {
        let (entries, entry) = (&self.entries, &self.entries[index]);
        if entry.is_free() {
            let merit = entry.preference();
            let is_better = |other: usize| entries[other].preference() >= merit;
            self.groups.push_free(entry.free_list, index, is_better);
        }
    }

    /// Frees the entry of a slot that is retired and has nothing in progress.
    fn free_entry(&mut self, index: usize) {
        self.entries[index].epoch = 0;
        self.groups.remove_slot(self.entries[index].free_list);
        self.vacant.push(index);
    }

    /// Walks every list and recounts every total.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let entries = self.entries.iter().enumerate();
        let used: Vec<_> = entries.filter(|(_, entry)| entry.epoch != 0).collect();
        assert_eq!(used.len() + self.vacant.len(), self.entries.len());
        let sums = used.iter().fold(SlotTotals::default(), |sums, (_, entry)| {
            sums.replace(SlotTotals::default(), entry.totals())
        });
        assert_eq!(self.totals, sums);
        let of_groups = used.iter().map(|(index, entry)| {
            let in_progress = u64::from(entry.in_progress);
            (
                entry.free_list,
                in_progress,
                entry.is_free().then_some(*index),
            )
        });
        let of_groups: Vec<_> = of_groups.collect();
        let merit = |index: usize| self.entries[index].preference();
        self.groups.check_invariants(&of_groups, merit);
    }
}

impl SlotEntry {
    fn is_free(&self) -> bool {
        !self.is_retired && self.in_progress < self.spec.capacity
    }

    /// Compares lowest to highest among the free slots of one group.
    fn preference(&self) -> (Reverse<u32>, u64) {
        (Reverse(self.in_progress), self.last_use)
    }

    fn totals(&self) -> SlotTotals {
        let (live, capacity) = match self.is_retired {
            true => (0, 0),
            false => (1, self.spec.capacity),
        };
        SlotTotals {
            live,
            in_progress: u64::from(self.in_progress),
            free_capacity: u64::from(capacity.saturating_sub(self.in_progress)),
            capacity: u64::from(capacity),
        }
    }

    fn view(&self, index: usize) -> SlotView {
        SlotView {
            id: SlotId {
                epoch: self.epoch,
                index,
            },
            spec: self.spec,
            in_progress: self.in_progress,
            is_retired: self.is_retired,
        }
    }
}

impl SlotTotals {
    /// Returns the totals after one slot's share changed from `before` to `after`.
    fn replace(self, before: Self, after: Self) -> Self {
        Self {
            live: self.live + after.live - before.live,
            in_progress: self.in_progress + after.in_progress - before.in_progress,
            free_capacity: self.free_capacity + after.free_capacity - before.free_capacity,
            capacity: self.capacity + after.capacity - before.capacity,
        }
    }
}

fn to_usize(sum: u64) -> usize {
    usize::try_from(sum).unwrap_or(usize::MAX)
}

impl SlotId {
    /// A small number, unique among the slots that exist now: usable as an index into a side table.
    pub fn index(self) -> usize {
        self.index
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.epoch)
    }
}
