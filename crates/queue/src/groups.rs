//! Which process is next: the groups of slots, ranked by what all of their slots have in progress.
//!
//! Used only by `slots.rs`. The slots of one worker process are a **group**; a server, or whatever
//! else stands alone, is a group of one. The free slots of a group stand on its **benches**, one for
//! each loop that owns some of them. Groups of equal rank (generation, in progress) share a
//! **tier**, which has for each loop a ring of the benches there, the most recently used group
//! first; the tiers stand in a small sorted vector whose end is the best choice. A claim looks at
//! the first bench of each loop in the best tier at most, and moves one group, bench by bench: the
//! cost follows the number of loops, not of slots or groups.
//! What must stay true: a bench is in a tier exactly when it is not empty, and in the tier of its
//! group's rank; a group is forgotten with its last slot. Whoever changes a group takes it out
//! (`unlist`) and puts it back (`list`) around the change.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// All groups that have slots, and the order among those with room.
pub(crate) struct Groups {
    groups: Vec<Group>,
    vacant_groups: Vec<usize>,
    benches: Vec<Bench>,
    vacant_benches: Vec<usize>,
    /// The groups with a name, by generation and name.
    named: BTreeMap<(u64, u64), usize>,
    /// Sorted by `rank`, best last. No tier is empty.
    tiers: Vec<Tier>,
    /// The memory of tiers that were emptied, all `NONE`: tiers come and go with each request.
    spare_rings: Vec<Vec<usize>>,
}

/// Where a slot belongs: one group's slots of one loop.
struct Bench {
    group: usize,
    home: usize,
    /// The free ones, in the order that the caller of `seat` gives them; best last.
    free: Vec<usize>,
    /// The next bench of the group.
    sibling: usize,
    /// Its neighbours in the ring of the tier.
    prev: usize,
    next: usize,
}

struct Group {
    /// Zero for one that stands alone.
    name: u64,
    generation: u64,
    in_progress: u64,
    /// How many belong to it, busy and retired ones too.
    slots: usize,
    /// How many of them sit on its benches.
    free: usize,
    /// When one of its slots was last used, in uses of the whole table; zero is never.
    used: u64,
    /// The first of its benches.
    bench: usize,
}

/// The benches of all groups of one rank.
struct Tier {
    rank: Rank,
    /// By loop, the first bench of the ring, whose `prev` is the last one; `NONE` without any.
    rings: Vec<usize>,
    /// How many rings there are.
    occupied: usize,
}

/// Compares lowest to highest: generation, then the fewer in progress.
type Rank = (u64, Reverse<u64>);

const NONE: usize = usize::MAX;

impl Groups {
    pub(crate) const fn new() -> Self {
        Self {
            groups: Vec::new(),
            vacant_groups: Vec::new(),
            benches: Vec::new(),
            vacant_benches: Vec::new(),
            named: BTreeMap::new(),
            tiers: Vec::new(),
            spare_rings: Vec::new(),
        }
    }

    /// One more slot belongs to this group, of itself alone when `name` is 0; gives its bench.
    pub(crate) fn enter(&mut self, generation: u64, name: u64, home: usize) -> usize {
        let known = self.named.get(&(generation, name)).copied();
        let group = known.unwrap_or_else(|| self.add_group(generation, name));
        self.groups[group].slots += 1;
        let mut bench = self.groups[group].bench;
        while bench != NONE && self.benches[bench].home != home {
            bench = self.benches[bench].sibling;
        }
        if bench == NONE {
            bench = self.add_bench(group, home);
        }
        bench
    }

    /// A slot that is not seated belongs to the group of this bench no more.
    pub(crate) fn leave(&mut self, bench: usize) {
        let index = self.benches[bench].group;
        let group = &mut self.groups[index];
        group.slots -= 1;
        if group.slots > 0 {
            return;
        }
        if group.name != 0 {
            self.named.remove(&(group.generation, group.name));
        }
        let mut bench = group.bench;
        while bench != NONE {
            self.vacant_benches.push(bench);
            bench = self.benches[bench].sibling;
        }
        self.vacant_groups.push(index);
    }

    /// Takes the group of this bench out of its tier.
    pub(crate) fn unlist(&mut self, bench: usize) {
        let group = &self.groups[self.benches[bench].group];
        if group.free == 0 {
            return;
        }
        let (rank, mut bench) = (group.rank(), group.bench);
        let Ok(place) = self.tiers.binary_search_by_key(&rank, |tier| tier.rank) else {
            debug_assert!(false, "a group with room is in the tier of its rank");
            return;
        };
        while bench != NONE {
            let Bench { sibling, .. } = self.benches[bench];
            if !self.benches[bench].free.is_empty() {
                self.unlink(place, bench);
            }
            bench = sibling;
        }
        if self.tiers[place].occupied == 0 {
            let tier = self.tiers.remove(place);
            self.spare_rings.push(tier.rings);
        }
    }

    /// Puts the group of this bench into the tier of its rank, if a slot of it is free: in front, or
    /// behind all others while it was never used. It is in no tier yet.
    pub(crate) fn list(&mut self, bench: usize) {
        let group = &self.groups[self.benches[bench].group];
        if group.free == 0 {
            return;
        }
        let (is_warm, mut bench) = (group.used > 0, group.bench);
        let place = self.tier(group.rank());
        while bench != NONE {
            let Bench { sibling, .. } = self.benches[bench];
            if !self.benches[bench].free.is_empty() {
                self.link(place, bench, is_warm);
            }
            bench = sibling;
        }
    }

    /// A use of a free slot that stays free, where nothing else need move: it is its group's only one, and
    /// the group is alone in its tier before and after. `false`, and nothing has changed, elsewhere.
    pub(crate) fn count_alone(&mut self, bench: usize, had: u64, has: u64, used: u64) -> bool {
        let group = &mut self.groups[self.benches[bench].group];
        if group.slots != 1 {
            return false;
        }
        let before = group.rank();
        let Ok(place) = self.tiers.binary_search_by_key(&before, |tier| tier.rank) else {
            debug_assert!(false, "a group with room is in the tier of its rank");
            return false;
        };
        let is_alone = self.tiers[place].occupied == 1 && self.benches[bench].next == bench;
        let in_progress = group.in_progress + has - had;
        let after = (group.generation, Reverse(in_progress));
        let is_above = |tier: &Tier| tier.rank > after;
        let stays = self.tiers[..place]
            .last()
            .is_none_or(|tier| tier.rank < after)
            && self.tiers.get(place + 1).is_none_or(is_above);
        if !is_alone || !stays {
            return false;
        }
        self.tiers[place].rank = after;
        (group.in_progress, group.used) = (in_progress, used);
        true
    }

    /// Counts what a slot of this bench has in progress now, instead of what it had. The group is in
    /// no tier meanwhile.
    pub(crate) fn count(&mut self, bench: usize, had: u64, has: u64) {
        let group = &mut self.groups[self.benches[bench].group];
        group.in_progress = group.in_progress + has - had;
    }

    /// Makes the group of this bench the last used one. It is in no tier meanwhile.
    pub(crate) fn warm(&mut self, bench: usize, used: u64) {
        self.groups[self.benches[bench].group].used = used;
    }

    /// When a slot of the group of this bench was last used; zero is never.
    pub(crate) fn used(&self, bench: usize) -> u64 {
        self.groups[self.benches[bench].group].used
    }

    /// Puts a free slot on its bench, in front of those that `is_better` says are better. The group
    /// is in no tier meanwhile.
    pub(crate) fn seat(&mut self, bench: usize, slot: usize, is_better: impl Fn(usize) -> bool) {
        let Bench { group, free, .. } = &mut self.benches[bench];
        self.groups[*group].free += 1;
        let last = free.iter().rposition(|other| !is_better(*other));
        free.insert(last.map_or(0, |place| place + 1), slot);
    }

    /// Takes a free slot from its bench. The group is in no tier meanwhile.
    pub(crate) fn unseat(&mut self, bench: usize, slot: usize) {
        let Bench { group, free, .. } = &mut self.benches[bench];
        // The best and the last used one stand at the end.
        let place = free.iter().rposition(|other| *other == slot);
        debug_assert!(place.is_some(), "a free slot sits on its bench");
        if let Some(place) = place {
            free.remove(place);
            self.groups[*group].free -= 1;
        }
    }

    /// The best free slot of the best group, seen from `home`; of the last used group's slots the
    /// one with the highest merit when that loop has none.
    pub(crate) fn best<M: Ord>(&self, home: usize, merit: impl Fn(usize) -> M) -> Option<usize> {
        let rings = &self.tiers.last()?.rings;
        let bench = match rings.get(home) {
            Some(own) if *own != NONE => *own,
            _ => {
                let firsts = rings.iter().copied().filter(|bench| *bench != NONE);
                firsts.max_by_key(|bench| {
                    let slot = self.benches[*bench].free.last();
                    (self.used(*bench), slot.map(|slot| merit(*slot)))
                })?
            }
        };
        self.benches[bench].free.last().copied()
    }

    /// The number of the group of this bench, unique among those that have slots now.
    pub(crate) fn group_of(&self, bench: usize) -> usize {
        self.benches[bench].group
    }

    /// The best free slot in the group of this bench, on whichever loop.
    pub(crate) fn best_within<M: Ord>(
        &self,
        bench: usize,
        merit: impl Fn(usize) -> M,
    ) -> Option<usize> {
        let first = self.groups[self.benches[bench].group].bench;
        let benches = std::iter::successors(self.benches.get(first), |bench| {
            self.benches.get(bench.sibling)
        });
        let best = benches.filter_map(|bench| bench.free.last().copied());
        best.max_by_key(|slot| merit(*slot))
    }

    fn add_group(&mut self, generation: u64, name: u64) -> usize {
        let group = Group {
            name,
            generation,
            in_progress: 0,
            slots: 0,
            free: 0,
            used: 0,
            bench: NONE,
        };
        let index = place(&mut self.groups, &mut self.vacant_groups, group);
        if name != 0 {
            self.named.insert((generation, name), index);
        }
        index
    }

    fn add_bench(&mut self, group: usize, home: usize) -> usize {
        let bench = Bench {
            group,
            home,
            free: Vec::new(),
            sibling: self.groups[group].bench,
            prev: NONE,
            next: NONE,
        };
        let index = place(&mut self.benches, &mut self.vacant_benches, bench);
        self.groups[group].bench = index;
        index
    }

    /// Where the tier of this rank is; one that was made just now is empty.
    fn tier(&mut self, rank: Rank) -> usize {
        match self.tiers.binary_search_by_key(&rank, |tier| tier.rank) {
            Ok(place) => place,
            Err(place) => {
                let tier = Tier {
                    rank,
                    rings: self.spare_rings.pop().unwrap_or_default(),
                    occupied: 0,
                };
                self.tiers.insert(place, tier);
                place
            }
        }
    }

    fn link(&mut self, place: usize, bench: usize, in_front: bool) {
        let (tier, home) = (&mut self.tiers[place], self.benches[bench].home);
        if tier.rings.len() <= home {
            tier.rings.resize(home + 1, NONE);
        }
        let first = tier.rings[home];
        if first == NONE {
            (self.benches[bench].prev, self.benches[bench].next) = (bench, bench);
            (tier.rings[home], tier.occupied) = (bench, tier.occupied + 1);
            return;
        }
        let last = self.benches[first].prev;
        (self.benches[bench].prev, self.benches[bench].next) = (last, first);
        self.benches[last].next = bench;
        self.benches[first].prev = bench;
        if in_front {
            tier.rings[home] = bench;
        }
    }

    fn unlink(&mut self, place: usize, bench: usize) {
        let Bench {
            home, prev, next, ..
        } = self.benches[bench];
        let tier = &mut self.tiers[place];
        if next == bench {
            (tier.rings[home], tier.occupied) = (NONE, tier.occupied - 1);
            return;
        }
        self.benches[prev].next = next;
        self.benches[next].prev = prev;
        if tier.rings[home] == bench {
            tier.rings[home] = next;
        }
    }

    /// Walks every tier and recounts every sum. `slots` are all that belong to some group: the
    /// bench, what it has in progress, and its index while it is free. `merit` orders free ones.
    #[cfg(test)]
    pub(crate) fn check_invariants<M: Ord>(
        &self,
        slots: &[(usize, u64, Option<usize>)],
        merit: impl Fn(usize) -> M,
    ) {
        assert!(self.tiers.is_sorted_by(|a, b| a.rank < b.rank));
        let mut listed = Vec::new();
        for tier in &self.tiers {
            let rings = tier.rings.iter().enumerate();
            let rings: Vec<_> = rings.filter(|(_, first)| **first != NONE).collect();
            assert!(tier.occupied > 0 && tier.occupied == rings.len());
            for (home, first) in rings {
                listed.extend(self.walk(tier.rank, home, *first));
            }
        }
        let free = slots
            .iter()
            .filter_map(|(bench, _, index)| Some((*bench, (*index)?)));
        let mut free: Vec<_> = free.collect();
        let seated = listed.iter().flat_map(|bench| {
            let seats = &self.benches[*bench].free;
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

    /// The benches of one ring.
    #[cfg(test)]
    fn walk(&self, rank: Rank, home: usize, first: usize) -> Vec<usize> {
        let (mut walked, mut index) = (Vec::new(), first);
        loop {
            let bench = &self.benches[index];
            assert_eq!((bench.home, self.groups[bench.group].rank()), (home, rank));
            assert!(!bench.free.is_empty());
            assert_eq!(self.benches[bench.next].prev, index);
            walked.push(index);
            if bench.next == first {
                return walked;
            }
            assert!(self.used(index) >= self.used(bench.next), "warmest first");
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
                .filter(|slot| self.benches[slot.0].group == index);
            let own: Vec<_> = own.collect();
            let free = own.iter().filter(|slot| slot.2.is_some());
            assert_eq!(group.free, free.count());
            let in_progress = own.iter().map(|slot| slot.1);
            assert_eq!(group.slots, own.len());
            assert!(group.slots > 0, "a group goes with its last slot");
            assert_eq!(group.in_progress, in_progress.sum::<u64>());
            let name = self.named.get(&(group.generation, group.name));
            assert_eq!(name.copied(), (group.name != 0).then_some(index));
            named += usize::from(group.name != 0);
            let (mut homes, mut bench) = (Vec::new(), group.bench);
            while bench != NONE {
                assert_eq!(self.benches[bench].group, index);
                homes.push(self.benches[bench].home);
                bench = self.benches[bench].sibling;
            }
            benches += homes.len();
            homes.sort_unstable();
            assert!(homes.is_sorted_by(|a, b| a < b), "one bench for each loop");
        }
        assert_eq!(self.named.len(), named);
        assert_eq!(benches + self.vacant_benches.len(), self.benches.len());
    }
}

impl Group {
    fn rank(&self) -> Rank {
        (self.generation, Reverse(self.in_progress))
    }
}

/// Puts a new entry where an old one was, or at the end.
pub(crate) fn place<T>(entries: &mut Vec<T>, vacant: &mut Vec<usize>, entry: T) -> usize {
    if let Some(index) = vacant.pop() {
        entries[index] = entry;
        return index;
    }
    entries.push(entry);
    entries.len() - 1
}
