//! The waiting jobs: a slab of waiters, linked into lists in order of age; used by `queue.rs`.
//!
//! Unbound waiters, which any slot may take, are on one list. Bound waiters, which wait for the
//! slots of one process, are on a second list and also on the list of that process. Adding at the
//! end and removing anywhere (a client disconnected) are O(1). Entries are reused, so memory
//! follows the longest queue so far, which is bounded.
//!
//! # Invariants
//!
//! - Every list is in order of arrival; of two equal arrivals a requeued job is in front.
//! - A ticket identifies one waiter for ever, even after its entry has been reused.

use std::time::Instant;

/// The waiting jobs, oldest first.
pub(crate) struct WaitList<J> {
    entries: Vec<WaitEntry<J>>,
    /// First reusable entry, chained through `links[BY_AGE].next`.
    vacant: usize,
    /// Waiters that any slot may take.
    unbound: EntryList,
    /// Waiters bound to any one process.
    bound: EntryList,
    /// The bound waiters again, by the index of their process.
    by_process: Vec<EntryList>,
    requeued_count: usize,
    serial: u64,
}

/// Identifies one waiting job; never reused, so a late cancel cannot hit another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    serial: u64,
    index: usize,
}

/// A job that was removed from the list, with facts about its wait.
pub(crate) struct Waiter<J> {
    pub(crate) ticket: Ticket,
    pub(crate) job: J,
    pub(crate) enqueued_at: Instant,
    pub(crate) position: usize,
}

struct WaitEntry<J> {
    job: Option<J>,
    serial: u64,
    enqueued_at: Instant,
    position: usize,
    is_requeued: bool,
    /// The index of the process that it is bound to; `NONE` if unbound.
    process: usize,
    links: [Links; 2],
}

#[derive(Clone, Copy)]
struct Links {
    prev: usize,
    next: usize,
}

#[derive(Clone, Copy)]
struct EntryList {
    head: usize,
    tail: usize,
    len: usize,
}

const NONE: usize = usize::MAX;

/// The links of `unbound` or of `bound`: every waiter is on one of these.
const BY_AGE: usize = 0;

/// The links of a list in `by_process`.
const BY_PROCESS: usize = 1;

impl<J> WaitList<J> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: NONE,
            unbound: EntryList::EMPTY,
            bound: EntryList::EMPTY,
            by_process: Vec::new(),
            requeued_count: 0,
            serial: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.unbound.len + self.bound.len
    }

    /// Number of waiters without requeued ones, which do not count against the bound.
    pub(crate) fn len_without_requeued(&self) -> usize {
        self.len() - self.requeued_count
    }

    /// Number of waiters bound to this process.
    pub(crate) fn len_bound(&self, process: usize) -> usize {
        self.by_process.get(process).map_or(0, |list| list.len)
    }

    /// Whether a waiter exists that any slot may take.
    pub(crate) fn has_unbound(&self) -> bool {
        self.unbound.len > 0
    }

    /// Whether a waiter exists that a slot of this process may take.
    pub(crate) fn has_waiter_for(&self, process: usize) -> bool {
        self.unbound.len > 0 || self.len_bound(process) > 0
    }

    pub(crate) fn oldest_enqueued_at(&self) -> Option<Instant> {
        let first = self.entries.get(self.oldest())?;
        Some(first.enqueued_at)
    }

    /// Adds a waiter at the end, bound to one process or unbound; returns its position, counted
    /// from 1.
    pub(crate) fn push_back(
        &mut self,
        now: Instant,
        job: J,
        process: Option<usize>,
    ) -> (Ticket, usize) {
        let position = self.len() + 1;
        let process = process.unwrap_or(NONE);
        let ticket = self.insert_entry(job, now, position, process, false);
        self.link(BY_AGE, ticket.index, NONE);
        if process != NONE {
            if self.by_process.len() <= process {
                self.by_process.resize(process + 1, EntryList::EMPTY);
            }
            self.link(BY_PROCESS, ticket.index, NONE);
        }
        (ticket, position)
    }

    /// Puts a dispatched job back among the unbound ones, ordered by age.
    pub(crate) fn requeue(&mut self, enqueued_at: Instant, job: J) -> (Ticket, usize) {
        let (ahead, before) = self.count_older(self.unbound.head, enqueued_at);
        let (ahead_bound, _) = self.count_older(self.bound.head, enqueued_at);
        let position = ahead + ahead_bound + 1;
        let ticket = self.insert_entry(job, enqueued_at, position, NONE, true);
        self.link(BY_AGE, ticket.index, before);
        (ticket, position)
    }

    pub(crate) fn pop(&mut self) -> Option<Waiter<J>> {
        self.remove_entry(self.oldest())
    }

    /// Removes the oldest waiter that a slot of this process may take.
    pub(crate) fn pop_for(&mut self, process: usize) -> Option<Waiter<J>> {
        let bound = self.by_process.get(process).map_or(NONE, |list| list.head);
        self.remove_entry(self.older(self.unbound.head, bound))
    }

    pub(crate) fn pop_unbound(&mut self) -> Option<Waiter<J>> {
        self.remove_entry(self.unbound.head)
    }

    /// Removes the waiter of this ticket; `None` if it has left before.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Waiter<J>> {
        let entry = self.entries.get(ticket.index)?;
        if entry.serial != ticket.serial {
            return None;
        }
        self.remove_entry(ticket.index)
    }

    /// All waiting jobs, in no order.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &J> {
        self.entries.iter().filter_map(|entry| entry.job.as_ref())
    }

    /// Removes the waiters that match, in no order.
    pub(crate) fn take_matching(&mut self, mut matches: impl FnMut(&J) -> bool) -> Vec<Waiter<J>> {
        let entries = self.entries.iter().enumerate();
        let found: Vec<_> = entries
            .filter(|(_, entry)| entry.job.as_ref().is_some_and(&mut matches))
            .map(|(index, _)| index)
            .collect();
        let taken = found
            .into_iter()
            .filter_map(|index| self.remove_entry(index));
        taken.collect()
    }

    /// Makes waiters bound to this process unbound, ordered by age.
    pub(crate) fn unbind(&mut self, process: usize) {
        let mut before = self.unbound.head;
        while let Some(list) = self.by_process.get(process)
            && list.len > 0
        {
            let index = list.head;
            self.unlink(BY_AGE, index);
            self.unlink(BY_PROCESS, index);
            self.entries[index].process = NONE;
            while before != NONE && self.older(before, index) == before {
                before = self.entries[before].links[BY_AGE].next;
            }
            self.link(BY_AGE, index, before);
        }
    }

    fn oldest(&self) -> usize {
        self.older(self.unbound.head, self.bound.head)
    }

    /// The older of two waiters, either of which may be absent.
    fn older(&self, one: usize, other: usize) -> usize {
        match (self.entries.get(one), self.entries.get(other)) {
            (Some(a), Some(b)) if b.age() < a.age() => other,
            (None, _) => other,
            _ => one,
        }
    }

    /// Counts the waiters from `index` on that are ahead of a job requeued now; also returns the
    /// first waiter behind it.
    fn count_older(&self, mut index: usize, enqueued_at: Instant) -> (usize, usize) {
        let mut count = 0;
        while let Some(entry) = self.entries.get(index)
            && (entry.enqueued_at, !entry.is_requeued) <= (enqueued_at, false)
        {
            count += 1;
            index = entry.links[BY_AGE].next;
        }
        (count, index)
    }

    fn insert_entry(
        &mut self,
        job: J,
        enqueued_at: Instant,
        position: usize,
        process: usize,
        returned: bool,
    ) -> Ticket {
        self.serial += 1;
        let serial = self.serial;
        let entry = WaitEntry {
            job: Some(job),
            serial,
            enqueued_at,
            position,
            is_requeued: returned,
            process,
            links: [Links::NONE; 2],
        };
        self.requeued_count += usize::from(returned);
        let index = self.vacant;
        if let Some(place) = self.entries.get_mut(index) {
            self.vacant = place.links[BY_AGE].next;
            *place = entry;
            return Ticket { serial, index };
        }
        self.entries.push(entry);
        Ticket {
            serial,
            index: self.entries.len() - 1,
        }
    }

    fn remove_entry(&mut self, index: usize) -> Option<Waiter<J>> {
        // An unused entry keeps its serial; only the job shows that the entry is in use.
        let job = self.entries.get_mut(index)?.job.take()?;
        self.unlink(BY_AGE, index);
        if self.entries[index].process != NONE {
            self.unlink(BY_PROCESS, index);
        }
        let vacant = std::mem::replace(&mut self.vacant, index);
        let entry = &mut self.entries[index];
        entry.links[BY_AGE].next = vacant;
        self.requeued_count -= usize::from(entry.is_requeued);
        Some(Waiter {
            ticket: Ticket {
                serial: entry.serial,
                index,
            },
            job,
            enqueued_at: entry.enqueued_at,
            position: entry.position,
        })
    }

    /// Puts the waiter in front of `next` on the list that its process selects.
    fn link(&mut self, by: usize, index: usize, next: usize) {
        let list = self.list_of(by, index);
        let prev = match self.entries.get_mut(next) {
            Some(after) => std::mem::replace(&mut after.links[by].prev, index),
            None => list.tail,
        };
        if let Some(before) = self.entries.get_mut(prev) {
            before.links[by].next = index;
        }
        self.entries[index].links[by] = Links { prev, next };
        *self.list_of_mut(by, index) = EntryList {
            head: if prev == NONE { index } else { list.head },
            tail: if next == NONE { index } else { list.tail },
            len: list.len + 1,
        };
    }

    fn unlink(&mut self, by: usize, index: usize) {
        let list = self.list_of(by, index);
        let Links { prev, next } = self.entries[index].links[by];
        if let Some(before) = self.entries.get_mut(prev) {
            before.links[by].next = next;
        }
        if let Some(after) = self.entries.get_mut(next) {
            after.links[by].prev = prev;
        }
        *self.list_of_mut(by, index) = EntryList {
            head: if prev == NONE { next } else { list.head },
            tail: if next == NONE { prev } else { list.tail },
            len: list.len - 1,
        };
    }

    fn list_of(&self, by: usize, index: usize) -> EntryList {
        let process = self.entries[index].process;
        match (by, process) {
            (BY_PROCESS, _) => self.by_process[process],
            (_, NONE) => self.unbound,
            _ => self.bound,
        }
    }

    fn list_of_mut(&mut self, by: usize, index: usize) -> &mut EntryList {
        let process = self.entries[index].process;
        match (by, process) {
            (BY_PROCESS, _) => &mut self.by_process[process],
            (_, NONE) => &mut self.unbound,
            _ => &mut self.bound,
        }
    }

    /// Checks every link and every total; returns the unbound and the bound jobs, and those of each
    /// process.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) -> (Vec<&J>, Vec<&J>, Vec<Vec<&J>>) {
        let free = self.walk(BY_AGE, &self.unbound, |process| process == NONE);
        let bound = self.walk(BY_AGE, &self.bound, |process| process != NONE);
        let lists = self.by_process.iter().enumerate();
        let by_process =
            lists.map(|(process, list)| self.walk(BY_PROCESS, list, |other| other == process));
        let by_process: Vec<_> = by_process.collect();
        assert_eq!(by_process.iter().map(Vec::len).sum::<usize>(), bound.len());
        let waiting = self.entries.iter().filter(|e| e.job.is_some());
        assert_eq!(
            self.requeued_count,
            waiting.filter(|e| e.is_requeued).count()
        );
        let (mut vacant, mut index) = (0, self.vacant);
        while let Some(entry) = self.entries.get(index) {
            assert!(entry.job.is_none(), "a vacant entry holds no job");
            (vacant, index) = (vacant + 1, entry.links[BY_AGE].next);
        }
        let entries = vacant + free.len() + bound.len();
        assert_eq!(entries, self.entries.len(), "no entry leaks");
        (free, bound, by_process)
    }

    #[cfg(test)]
    fn walk(&self, by: usize, list: &EntryList, belongs: impl Fn(usize) -> bool) -> Vec<&J> {
        let (mut jobs, mut prev, mut index) = (Vec::new(), NONE, list.head);
        while let Some(entry) = self.entries.get(index) {
            assert_eq!(entry.links[by].prev, prev, "links agree both ways");
            assert!(belongs(entry.process), "everybody stands where it belongs");
            if let Some(before) = self.entries.get(prev) {
                assert!(before.age() < entry.age(), "oldest first");
            }
            jobs.push(entry.job.as_ref().expect("a linked entry holds a job"));
            (prev, index) = (index, entry.links[by].next);
        }
        assert_eq!((list.tail, list.len), (prev, jobs.len()));
        jobs
    }

    /// Maximum number of entries in use at once so far.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }
}

impl<J> WaitEntry<J> {
    /// Compares lowest for the waiter that is first.
    fn age(&self) -> (Instant, bool, u64) {
        (self.enqueued_at, !self.is_requeued, self.serial)
    }
}

impl Links {
    const NONE: Self = Self {
        prev: NONE,
        next: NONE,
    };
}

impl EntryList {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}
