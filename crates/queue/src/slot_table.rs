//! Slots of one application or upstream, and which of the free ones is best; used by `queue.rs`.
//!
//! Each slot belongs to a group: its worker process, or itself alone. A claim looks at each group,
//! so that a request does not start in a process that has one in progress while another process has
//! none, and then at each slot of the best one. Every change of a slot goes through `update`, which
//! maintains the groups and the totals.
//!
//! # Invariants
//!
//! - A slot is free exactly when it is not retired and has fewer requests in progress than its
//!   capacity.
//! - The counts of a group and `totals` are the sums over its slots, and over all.
//! - A group without slots is unused.

use std::cmp::Reverse;
use std::fmt;

/// All slots, free and busy.
#[derive(Debug)]
pub(crate) struct SlotTable {
    entries: Vec<SlotEntry>,
    groups: Vec<SlotGroup>,
    /// The groups that have slots, the last used one last, those never used first.
    groups_by_use: Vec<usize>,
    newest_generation: u64,
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
    pub request_capacity: u32,
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

#[derive(Debug)]
struct SlotEntry {
    /// Zero while the entry is unused.
    epoch: u64,
    spec: SlotSpec,
    in_progress: u32,
    is_retired: bool,
    /// When it was last used, in uses of the whole table; zero is never.
    last_use: u64,
    group: usize,
}

#[derive(Debug, Default)]
struct SlotGroup {
    /// Zero for a slot without a process.
    name: u64,
    generation: u64,
    in_progress: u64,
    is_used: bool,
    /// In the order in which they were added, busy and retired ones included.
    slots: Vec<usize>,
    free_count: u32,
    /// Number of its free slots by the event loop that owns them.
    free_by_loop: Vec<u32>,
}

/// Sums over all slots; `u64` so that slots without a limit fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SlotTotals {
    in_progress: u64,
    free_capacity: u64,
    capacity: u64,
}

impl SlotTable {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            groups: Vec::new(),
            groups_by_use: Vec::new(),
            newest_generation: 0,
            epoch: 0,
            use_count: 0,
            totals: SlotTotals {
                in_progress: 0,
                free_capacity: 0,
                capacity: 0,
            },
        }
    }

    /// Requests in progress over all slots, retired ones included.
    pub(crate) fn requests_in_progress(&self) -> usize {
        to_usize(self.totals.in_progress)
    }

    /// How many more requests could be dispatched now.
    pub(crate) fn free_request_capacity(&self) -> usize {
        to_usize(self.totals.free_capacity)
    }

    /// How many requests could be in progress at once in slots that are not retired.
    pub(crate) fn request_capacity(&self) -> usize {
        to_usize(self.totals.capacity)
    }

    /// Adds a free slot behind the others of its group, as it was not recently used. A new group
    /// also goes behind those of its rank; for an existing group that was used, this counts as a
    /// use.
    pub(crate) fn add(&mut self, spec: SlotSpec) -> SlotId {
        self.epoch += 1;
        let unused = self.entries.iter().position(|entry| entry.epoch == 0);
        let index = unused.unwrap_or(self.entries.len());
        let group = self.join_group(&spec, index);
        let entry = SlotEntry {
            epoch: self.epoch,
            spec,
            in_progress: 0,
            is_retired: false,
            last_use: 0,
            group,
        };
        self.totals = self.totals.replace(SlotTotals::default(), entry.totals());
        self.groups[group].count_free(&entry, false);
        match self.entries.get_mut(index) {
            Some(unused) => *unused = entry,
            None => self.entries.push(entry),
        }
        self.id(index)
    }

    /// Adds a slot to its group, or to a new group of one if it has none; returns the group.
    fn join_group(&mut self, spec: &SlotSpec, slot: usize) -> usize {
        let is_it = |group: &SlotGroup| {
            let is_named = spec.group != 0 && !group.slots.is_empty();
            is_named && (group.generation, group.name) == (spec.generation, spec.group)
        };
        let groups = &mut self.groups;
        let known = groups.iter().position(is_it);
        let unused = || groups.iter().position(|group| group.slots.is_empty());
        let index = known.or_else(unused).unwrap_or(groups.len());
        if known.is_none() {
            let group = SlotGroup {
                name: spec.group,
                generation: spec.generation,
                ..SlotGroup::default()
            };
            match groups.get_mut(index) {
                Some(unused) => *unused = group,
                None => groups.push(group),
            }
            self.groups_by_use.insert(0, index);
        }
        let group = &mut self.groups[index];
        group.slots.push(slot);
        if group.is_used {
            self.record_use(index);
        }
        self.newest_generation = self.newest_generation.max(spec.generation);
        index
    }

    fn record_use(&mut self, group: usize) {
        self.groups[group].is_used = true;
        if let Some(index) = self.groups_by_use.iter().rposition(|it| *it == group) {
            self.groups_by_use[index..].rotate_left(1);
        }
    }

    /// Claims the best free slot, seen from `preferred_loop`.
    pub(crate) fn claim_best(&mut self, preferred_loop: usize) -> Option<SlotId> {
        if self.totals.free_capacity == 0 {
            return None;
        }
        let has_own = |group: &SlotGroup| {
            group
                .free_by_loop
                .get(preferred_loop)
                .is_some_and(|free| *free > 0)
        };
        let unbeatable = (
            self.newest_generation,
            Reverse(0),
            preferred_loop != NO_LOOP,
        );
        let mut best: Option<(GroupRank, &SlotGroup)> = None;
        for index in self.groups_by_use.iter().rev() {
            let group = &self.groups[*index];
            if group.free_count == 0 {
                continue;
            }
            let rank = (group.generation, Reverse(group.in_progress), has_own(group));
            if best.is_none_or(|(other, _)| rank > other) {
                best = Some((rank, group));
            }
            if rank == unbeatable {
                break;
            }
        }
        let (_, best) = best?;
        let loop_index = has_own(best).then_some(preferred_loop);
        let index = self.best_free_slot(best, loop_index)?;
        self.claim(index);
        Some(self.id(index))
    }

    /// The best free slot of a group: the idlest, then the last used.
    fn best_free_slot(&self, group: &SlotGroup, loop_index: Option<usize>) -> Option<usize> {
        let is_eligible = |index: &usize| {
            let entry = &self.entries[*index];
            entry.is_free() && loop_index.is_none_or(|own| entry.spec.loop_index == own)
        };
        let free = group.slots.iter().copied().rev().filter(is_eligible);
        free.max_by_key(|index| {
            let entry = &self.entries[*index];
            (Reverse(entry.in_progress), entry.last_use)
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
    pub(crate) fn claim_in_process_of(&mut self, slot: SlotId) -> Option<SlotId> {
        let group = &self.groups[self.entry(slot)?.group];
        let index = self.best_free_slot(group, None)?;
        self.claim(index);
        Some(self.id(index))
    }

    /// The index of the process that this slot belongs to, unique among those that have slots now;
    /// `None` if the slot is gone.
    pub(crate) fn process_of(&self, slot: SlotId) -> Option<usize> {
        self.entry(slot).map(|entry| entry.group)
    }

    /// Whether another slot of the same process exists and is not retired.
    pub(crate) fn has_live_sibling(&self, slot: SlotId) -> bool {
        let is_live = |index: &usize| *index != slot.index && !self.entries[*index].is_retired;
        let process = self.process_of(slot);
        process.is_some_and(|process| self.groups[process].slots.iter().any(is_live))
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
    pub(crate) fn replace_request(&mut self, slot: SlotId) -> bool {
        let allows = self.entry(slot).is_some_and(|entry| {
            !entry.is_retired && (1..=entry.spec.request_capacity).contains(&entry.in_progress)
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
    pub(crate) fn set_request_capacity(&mut self, slot: SlotId, capacity: u32) {
        let Some(entry) = self.entry(slot).filter(|entry| !entry.is_retired) else {
            return;
        };
        if entry.is_free() && entry.in_progress < capacity {
            // It keeps its position in the order.
            let before = entry.totals();
            let entry = &mut self.entries[slot.index];
            entry.spec.request_capacity = capacity;
            self.totals = self.totals.replace(before, entry.totals());
        } else {
            self.update(slot.index, |entry| entry.spec.request_capacity = capacity);
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
        self.entry(slot).map(|entry| SlotView {
            id: slot,
            spec: entry.spec,
            in_progress: entry.in_progress,
            is_retired: entry.is_retired,
        })
    }

    fn entry(&self, slot: SlotId) -> Option<&SlotEntry> {
        let entry = self.entries.get(slot.index)?;
        (entry.epoch == slot.epoch).then_some(entry)
    }

    fn id(&self, index: usize) -> SlotId {
        SlotId {
            epoch: self.entries[index].epoch,
            index,
        }
    }

    fn claim(&mut self, index: usize) {
        self.update(index, |entry| entry.in_progress += 1);
    }

    /// Changes a slot, which counts as a use of it and of its group.
    fn update(&mut self, index: usize, change: impl FnOnce(&mut SlotEntry)) {
        self.use_count += 1;
        let entry = &mut self.entries[index];
        let (before, was_free) = (entry.totals(), entry.is_free());
        change(entry);
        entry.last_use = self.use_count;
        let after = entry.totals();
        self.totals = self.totals.replace(before, after);
        let group = &mut self.groups[entry.group];
        group.in_progress = group.in_progress + after.in_progress - before.in_progress;
        group.count_free(entry, was_free);
        let group = entry.group;
        self.record_use(group);
    }

    /// Frees the entry of a slot that is retired and has nothing in progress.
    fn free_entry(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        entry.epoch = 0;
        let group_index = entry.group;
        let slots = &mut self.groups[group_index].slots;
        slots.retain(|slot| *slot != index);
        if slots.is_empty() {
            self.groups_by_use.retain(|group| *group != group_index);
            let generations = self
                .groups_by_use
                .iter()
                .map(|it| self.groups[*it].generation);
            self.newest_generation = generations.max().unwrap_or(0);
        }
    }

    /// Recounts every total.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let mut sums = SlotTotals::default();
        for (index, entry) in self.entries.iter().enumerate() {
            let is_listed = self.groups[entry.group].slots.contains(&index);
            assert_eq!(is_listed, entry.epoch != 0);
            if is_listed {
                sums = sums.replace(SlotTotals::default(), entry.totals());
            }
        }
        assert_eq!(self.totals, sums);
        let used = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| !group.slots.is_empty());
        let mut by_use = self.groups_by_use.clone();
        by_use.sort_unstable();
        assert!(used.map(|(index, _)| index).eq(by_use));
        for (group_index, group) in self.groups.iter().enumerate() {
            let own = group.slots.iter().map(|index| &self.entries[*index]);
            assert!(own.clone().all(|entry| entry.group == group_index));
            let in_progress = own.clone().map(|entry| u64::from(entry.in_progress));
            assert!(group.slots.is_empty() || group.in_progress == in_progress.sum::<u64>());
            let free = own.filter(|entry| entry.is_free());
            assert_eq!(group.free_count as usize, free.clone().count());
            for (loop_index, count) in group.free_by_loop.iter().enumerate() {
                let own = free
                    .clone()
                    .filter(|entry| entry.spec.loop_index == loop_index);
                assert_eq!(*count as usize, own.count());
            }
        }
    }
}

/// Compares lowest to highest: generation, fewest in progress, a free slot on the own loop.
type GroupRank = (u64, Reverse<u64>, bool);

/// No event loop has this index: a requeued job prefers no loop's slots.
pub(crate) const NO_LOOP: usize = usize::MAX;

impl SlotGroup {
    /// Counts a slot as free or not, after a change.
    fn count_free(&mut self, entry: &SlotEntry, was_free: bool) {
        if entry.is_free() == was_free {
            return;
        }
        let loop_index = entry.spec.loop_index;
        if self.free_by_loop.len() <= loop_index {
            self.free_by_loop.resize(loop_index + 1, 0);
        }
        for count in [&mut self.free_count, &mut self.free_by_loop[loop_index]] {
            *count = if was_free { *count - 1 } else { *count + 1 };
        }
    }
}

impl SlotEntry {
    fn is_free(&self) -> bool {
        !self.is_retired && self.in_progress < self.spec.request_capacity
    }

    fn totals(&self) -> SlotTotals {
        let capacity = if self.is_retired {
            0
        } else {
            self.spec.request_capacity
        };
        SlotTotals {
            in_progress: u64::from(self.in_progress),
            free_capacity: u64::from(capacity.saturating_sub(self.in_progress)),
            capacity: u64::from(capacity),
        }
    }
}

impl SlotTotals {
    /// Returns the totals after one slot's share changed from `before` to `after`.
    fn replace(self, before: Self, after: Self) -> Self {
        Self {
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
