//! Groups of slots, ranked by what all slots of a group have in progress; used by `slot_table.rs`.
//!
//! The slots of one worker process are a **group**; a server or any other slot without a process is
//! a group of one. The free slots of a group are in its **free lists**, one for each event loop
//! that owns some of them. Groups of equal rank (generation, in progress) share a **tier**. A tier
//! has for each loop a ring of free lists, the most recently used group first. The tiers are in a
//! small sorted vector whose end is the best choice. A claim looks at most at the first free list
//! of each loop in the best tier, and moves one group, list by list: the cost follows the number of
//! loops, not of slots or groups.
//!
//! # Invariants
//!
//! - A free list is in a tier exactly when it is not empty, and in the tier of its group's rank.
//! - A group is removed with its last slot.
//! - Every change of a group is enclosed by `remove_from_tier` and `add_to_tier`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// All groups that have slots, and the order among those with free capacity.
pub(crate) struct RankedGroups {
    groups: Vec<RankedGroup>,
    vacant_groups: Vec<usize>,
    free_lists: Vec<LoopFreeList>,
    vacant_free_lists: Vec<usize>,
    /// The named groups, by generation and name.
    groups_by_name: BTreeMap<(u64, u64), usize>,
    /// Sorted by `rank`, best last. No tier is empty.
    tiers: Vec<RankTier>,
    /// Rings of emptied tiers, all `NONE`, for reuse: tiers come and go with each request.
    spare_rings: Vec<Vec<usize>>,
}

/// Free slots of one group that one event loop owns.
struct LoopFreeList {
    group: usize,
    loop_index: usize,
    /// In the order that `push_free` gives them; best last.
    free_slots: Vec<usize>,
    /// The next free list of the group.
    next_in_group: usize,
    /// Neighbours in the ring of the tier.
    prev: usize,
    next: usize,
}

struct RankedGroup {
    /// Zero for a slot without a process.
    name: u64,
    generation: u64,
    in_progress: u64,
    /// Number of slots, busy and retired ones included.
    slot_count: usize,
    /// Number of slots in its free lists.
    free_count: usize,
    /// When one of its slots was last used, in uses of the whole table; zero is never.
    last_use: u64,
    /// The first of its free lists.
    first_free_list: usize,
}

struct RankTier {
    rank: GroupRank,
    /// By loop, the first free list of the ring, whose `prev` is the last one; `NONE` if empty.
    rings_by_loop: Vec<usize>,
    ring_count: usize,
}

/// Compares lowest to highest: generation, then fewest in progress.
type GroupRank = (u64, Reverse<u64>);

const NONE: usize = usize::MAX;

impl RankedGroups {
    pub(crate) const fn new() -> Self {
        Self {
            groups: Vec::new(),
            vacant_groups: Vec::new(),
            free_lists: Vec::new(),
            vacant_free_lists: Vec::new(),
            groups_by_name: BTreeMap::new(),
            tiers: Vec::new(),
            spare_rings: Vec::new(),
        }
    }

    /// Adds a slot to this group, or to a new group of one if `name` is 0, and returns its free
    /// list.
    pub(crate) fn add_slot(&mut self, generation: u64, name: u64, home: usize) -> usize {
        let known = self.groups_by_name.get(&(generation, name)).copied();
        let group = known.unwrap_or_else(|| self.add_group(generation, name));
        self.groups[group].slot_count += 1;
        let mut bench = self.groups[group].first_free_list;
        while bench != NONE && self.free_lists[bench].loop_index != home {
            bench = self.free_lists[bench].next_in_group;
        }
        if bench == NONE {
            bench = self.add_free_list(group, home);
        }
        bench
    }

    /// Removes a slot that is in no free list from the group of this free list.
    pub(crate) fn remove_slot(&mut self, bench: usize) {
        let index = self.free_lists[bench].group;
        let group = &mut self.groups[index];
        group.slot_count -= 1;
        if group.slot_count > 0 {
            return;
        }
        if group.name != 0 {
            self.groups_by_name.remove(&(group.generation, group.name));
        }
        let mut bench = group.first_free_list;
        while bench != NONE {
            self.vacant_free_lists.push(bench);
            bench = self.free_lists[bench].next_in_group;
        }
        self.vacant_groups.push(index);
    }

    /// Takes the group of this free list out of its tier.
    pub(crate) fn remove_from_tier(&mut self, bench: usize) {
        let group = &self.groups[self.free_lists[bench].group];
        if group.free_count == 0 {
            return;
        }
        let (rank, mut bench) = (group.rank(), group.first_free_list);
        let Ok(place) = self.tiers.binary_search_by_key(&rank, |tier| tier.rank) else {
            debug_assert!(false, "a group with room is in the tier of its rank");
            return;
        };
        while bench != NONE {
            let LoopFreeList {
                next_in_group: sibling,
                ..
            } = self.free_lists[bench];
            if !self.free_lists[bench].free_slots.is_empty() {
                self.unlink(place, bench);
            }
            bench = sibling;
        }
        if self.tiers[place].ring_count == 0 {
            let tier = self.tiers.remove(place);
            self.spare_rings.push(tier.rings_by_loop);
        }
    }

    /// Puts the group of this free list into the tier of its rank, if it has a free slot: in front,
    /// or behind all others if it was never used. It must be in no tier.
    pub(crate) fn add_to_tier(&mut self, bench: usize) {
        let group = &self.groups[self.free_lists[bench].group];
        if group.free_count == 0 {
            return;
        }
        let (is_warm, mut bench) = (group.last_use > 0, group.first_free_list);
        let place = self.tier_index(group.rank());
        while bench != NONE {
            let LoopFreeList {
                next_in_group: sibling,
                ..
            } = self.free_lists[bench];
            if !self.free_lists[bench].free_slots.is_empty() {
                self.link(place, bench, is_warm);
            }
            bench = sibling;
        }
    }

    /// Updates a free slot that stays free without moving anything. Works if it is the only slot of
    /// its group and the group is alone in its tier before and after; otherwise returns `false` and
    /// changes nothing.
    pub(crate) fn try_update_in_place(
        &mut self,
        bench: usize,
        had: u64,
        has: u64,
        used: u64,
    ) -> bool {
        let group = &mut self.groups[self.free_lists[bench].group];
        if group.slot_count != 1 {
            return false;
        }
        let before = group.rank();
        let Ok(place) = self.tiers.binary_search_by_key(&before, |tier| tier.rank) else {
            debug_assert!(false, "a group with room is in the tier of its rank");
            return false;
        };
        let is_alone = self.tiers[place].ring_count == 1 && self.free_lists[bench].next == bench;
        let in_progress = group.in_progress + has - had;
        let after = (group.generation, Reverse(in_progress));
        let is_above = |tier: &RankTier| tier.rank > after;
        let stays = self.tiers[..place]
            .last()
            .is_none_or(|tier| tier.rank < after)
            && self.tiers.get(place + 1).is_none_or(is_above);
        if !is_alone || !stays {
            return false;
        }
        self.tiers[place].rank = after;
        (group.in_progress, group.last_use) = (in_progress, used);
        true
    }

    /// Replaces what a slot of this free list had in progress. The group must be in no tier.
    pub(crate) fn update_in_progress(&mut self, bench: usize, had: u64, has: u64) {
        let group = &mut self.groups[self.free_lists[bench].group];
        group.in_progress = group.in_progress + has - had;
    }

    /// Makes the group of this free list the last used one. It must be in no tier.
    pub(crate) fn record_use(&mut self, bench: usize, used: u64) {
        self.groups[self.free_lists[bench].group].last_use = used;
    }

    /// When a slot of the group of this free list was last used; zero is never.
    pub(crate) fn last_use(&self, bench: usize) -> u64 {
        self.groups[self.free_lists[bench].group].last_use
    }

    /// Inserts a free slot in its free list, in front of those that `is_better` accepts. The group
    /// must be in no tier.
    pub(crate) fn push_free(
        &mut self,
        bench: usize,
        slot: usize,
        is_better: impl Fn(usize) -> bool,
    ) {
        let LoopFreeList {
            group,
            free_slots: free,
            ..
        } = &mut self.free_lists[bench];
        self.groups[*group].free_count += 1;
        let last = free.iter().rposition(|other| !is_better(*other));
        free.insert(last.map_or(0, |place| place + 1), slot);
    }

    /// Removes a free slot from its free list. The group must be in no tier.
    pub(crate) fn remove_free(&mut self, bench: usize, slot: usize) {
        let LoopFreeList {
            group,
            free_slots: free,
            ..
        } = &mut self.free_lists[bench];
        // The best slot and the last used slot are at the end.
        let place = free.iter().rposition(|other| *other == slot);
        debug_assert!(place.is_some(), "a free slot sits on its bench");
        if let Some(place) = place {
            free.remove(place);
            self.groups[*group].free_count -= 1;
        }
    }

    /// The best free slot of the best group, seen from loop `home`. If that loop has none: a slot
    /// of the last used group, the one with the highest `merit`.
    pub(crate) fn best_free_slot<M: Ord>(
        &self,
        home: usize,
        merit: impl Fn(usize) -> M,
    ) -> Option<usize> {
        let rings = &self.tiers.last()?.rings_by_loop;
        let bench = match rings.get(home) {
            Some(own) if *own != NONE => *own,
            _ => {
                let firsts = rings.iter().copied().filter(|bench| *bench != NONE);
                firsts.max_by_key(|bench| {
                    let slot = self.free_lists[*bench].free_slots.last();
                    (self.last_use(*bench), slot.map(|slot| merit(*slot)))
                })?
            }
        };
        self.free_lists[bench].free_slots.last().copied()
    }

    /// The index of the group of this free list, unique among groups that have slots now.
    pub(crate) fn group_of(&self, bench: usize) -> usize {
        self.free_lists[bench].group
    }

    /// The best free slot in the group of this free list, on any loop.
    pub(crate) fn best_free_slot_in_group<M: Ord>(
        &self,
        bench: usize,
        merit: impl Fn(usize) -> M,
    ) -> Option<usize> {
        let first = self.groups[self.free_lists[bench].group].first_free_list;
        let benches = std::iter::successors(self.free_lists.get(first), |bench| {
            self.free_lists.get(bench.next_in_group)
        });
        let best = benches.filter_map(|bench| bench.free_slots.last().copied());
        best.max_by_key(|slot| merit(*slot))
    }

    fn add_group(&mut self, generation: u64, name: u64) -> usize {
        let group = RankedGroup {
            name,
            generation,
            in_progress: 0,
            slot_count: 0,
            free_count: 0,
            last_use: 0,
            first_free_list: NONE,
        };
        let index = insert_or_reuse(&mut self.groups, &mut self.vacant_groups, group);
        if name != 0 {
            self.groups_by_name.insert((generation, name), index);
        }
        index
    }

    fn add_free_list(&mut self, group: usize, home: usize) -> usize {
        let bench = LoopFreeList {
            group,
            loop_index: home,
            free_slots: Vec::new(),
            next_in_group: self.groups[group].first_free_list,
            prev: NONE,
            next: NONE,
        };
        let index = insert_or_reuse(&mut self.free_lists, &mut self.vacant_free_lists, bench);
        self.groups[group].first_free_list = index;
        index
    }

    /// Index of the tier of this rank; a new tier is empty.
    fn tier_index(&mut self, rank: GroupRank) -> usize {
        match self.tiers.binary_search_by_key(&rank, |tier| tier.rank) {
            Ok(place) => place,
            Err(place) => {
                let tier = RankTier {
                    rank,
                    rings_by_loop: self.spare_rings.pop().unwrap_or_default(),
                    ring_count: 0,
                };
                self.tiers.insert(place, tier);
                place
            }
        }
    }

    fn link(&mut self, place: usize, bench: usize, in_front: bool) {
        let (tier, home) = (&mut self.tiers[place], self.free_lists[bench].loop_index);
        if tier.rings_by_loop.len() <= home {
            tier.rings_by_loop.resize(home + 1, NONE);
        }
        let first = tier.rings_by_loop[home];
        if first == NONE {
            (self.free_lists[bench].prev, self.free_lists[bench].next) = (bench, bench);
            (tier.rings_by_loop[home], tier.ring_count) = (bench, tier.ring_count + 1);
            return;
        }
        let last = self.free_lists[first].prev;
        (self.free_lists[bench].prev, self.free_lists[bench].next) = (last, first);
        self.free_lists[last].next = bench;
        self.free_lists[first].prev = bench;
        if in_front {
            tier.rings_by_loop[home] = bench;
        }
    }

    fn unlink(&mut self, place: usize, bench: usize) {
        let LoopFreeList {
            loop_index: home,
            prev,
            next,
            ..
        } = self.free_lists[bench];
        let tier = &mut self.tiers[place];
        if next == bench {
            (tier.rings_by_loop[home], tier.ring_count) = (NONE, tier.ring_count - 1);
            return;
        }
        self.free_lists[prev].next = next;
        self.free_lists[next].prev = prev;
        if tier.rings_by_loop[home] == bench {
            tier.rings_by_loop[home] = next;
        }
    }

    /// Walks every tier and recounts every total. `slots` are all slots of all groups: the free
    /// list, the requests in progress, and the index while the slot is free. `merit` orders free
    /// ones.
    #[cfg(test)]
    pub(crate) fn check_invariants<M: Ord>(
        &self,
        slots: &[(usize, u64, Option<usize>)],
        merit: impl Fn(usize) -> M,
    ) {
        assert!(self.tiers.is_sorted_by(|a, b| a.rank < b.rank));
        let mut listed = Vec::new();
        for tier in &self.tiers {
            let rings = tier.rings_by_loop.iter().enumerate();
            let rings: Vec<_> = rings.filter(|(_, first)| **first != NONE).collect();
            assert!(tier.ring_count > 0 && tier.ring_count == rings.len());
            for (home, first) in rings {
                listed.extend(self.walk(tier.rank, home, *first));
            }
        }
        let free = slots
            .iter()
            .filter_map(|(bench, _, index)| Some((*bench, (*index)?)));
        let mut free: Vec<_> = free.collect();
        let seated = listed.iter().flat_map(|bench| {
            let seats = &self.free_lists[*bench].free_slots;
            assert!(
                seats.is_sorted_by(|a, b| merit(*a) <= merit(*b)),
                "best last"
            );
            seats.iter().map(|slot| (*bench, *slot))
        });
        let mut seated: Vec<_> = seated.collect();
        free.sort_unstable();
        seated.sort_unstable();
        assert_eq!(seated, free);
        assert!(
            self.spare_rings
                .iter()
                .flatten()
                .all(|first| *first == NONE)
        );
        self.check_groups(slots);
    }

    /// The free lists of one ring.
    #[cfg(test)]
    fn walk(&self, rank: GroupRank, home: usize, first: usize) -> Vec<usize> {
        let (mut walked, mut index) = (Vec::new(), first);
        loop {
            let bench = &self.free_lists[index];
            assert_eq!(
                (bench.loop_index, self.groups[bench.group].rank()),
                (home, rank)
            );
            assert!(!bench.free_slots.is_empty());
            assert_eq!(self.free_lists[bench.next].prev, index);
            walked.push(index);
            if bench.next == first {
                return walked;
            }
            assert!(
                self.last_use(index) >= self.last_use(bench.next),
                "warmest first"
            );
            index = bench.next;
        }
    }

    #[cfg(test)]
    fn check_groups(&self, slots: &[(usize, u64, Option<usize>)]) {
        let is_used = |index: &usize| !self.vacant_groups.contains(index);
        let (mut benches, mut named) = (0, 0);
        for index in (0..self.groups.len()).filter(is_used) {
            let group = &self.groups[index];
            let own = slots
                .iter()
                .filter(|slot| self.free_lists[slot.0].group == index);
            let own: Vec<_> = own.collect();
            let free = own.iter().filter(|slot| slot.2.is_some());
            assert_eq!(group.free_count, free.count());
            let in_progress = own.iter().map(|slot| slot.1);
            assert_eq!(group.slot_count, own.len());
            assert!(group.slot_count > 0, "a group goes with its last slot");
            assert_eq!(group.in_progress, in_progress.sum::<u64>());
            let name = self.groups_by_name.get(&(group.generation, group.name));
            assert_eq!(name.copied(), (group.name != 0).then_some(index));
            named += usize::from(group.name != 0);
            let (mut homes, mut bench) = (Vec::new(), group.first_free_list);
            while bench != NONE {
                assert_eq!(self.free_lists[bench].group, index);
                homes.push(self.free_lists[bench].loop_index);
                bench = self.free_lists[bench].next_in_group;
            }
            benches += homes.len();
            homes.sort_unstable();
            assert!(homes.is_sorted_by(|a, b| a < b), "one bench for each loop");
        }
        assert_eq!(self.groups_by_name.len(), named);
        assert_eq!(
            benches + self.vacant_free_lists.len(),
            self.free_lists.len()
        );
    }
}

impl RankedGroup {
    fn rank(&self) -> GroupRank {
        (self.generation, Reverse(self.in_progress))
    }
}

/// Puts a new entry in place of an unused one, or at the end.
pub(crate) fn insert_or_reuse<T>(entries: &mut Vec<T>, vacant: &mut Vec<usize>, entry: T) -> usize {
    if let Some(index) = vacant.pop() {
        entries[index] = entry;
        return index;
    }
    entries.push(entry);
    entries.len() - 1
}
