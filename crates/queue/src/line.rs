//! The waiting line: a slab of waiters, threaded on lists in the order of their age.
//!
//! Used only by `queue.rs`. Free waiters, which any slot may take, stand on one list; bound ones,
//! which wait for the slots of one process, stand on a second and besides on the list of that
//! process. Joining,
//! leaving from the front and leaving from the middle (a client that went away) are all O(1); an
//! entry is reused after its waiter left, so memory follows the longest line there ever was, which
//! the queue bounds.
//! What must stay true: every list is in order of arrival, and of two that arrived at once a job
//! that was returned unbegun stands in front; a ticket names one waiter for ever, even after its
//! entry has been reused.

use std::time::Instant;

/// The line itself, oldest first.
pub(crate) struct Line<J> {
    entries: Vec<Entry<J>>,
    /// First reusable entry, chained through `links[AGE].next`.
    vacant: usize,
    /// Those whom any slot may take.
    free: List,
    /// Those who wait for one process, whichever it is.
    bound: List,
    /// The bound ones again, by the number of their process.
    by_process: Vec<List>,
    returned: usize,
    serial: u64,
}

/// Names one waiting job; never reused, so a late cancel cannot hit somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    serial: u64,
    index: usize,
}

/// A job that has left the line, with what was known about its wait.
pub(crate) struct Waiter<J> {
    pub(crate) ticket: Ticket,
    pub(crate) job: J,
    pub(crate) enqueued_at: Instant,
    pub(crate) position: usize,
}

struct Entry<J> {
    job: Option<J>,
    serial: u64,
    enqueued_at: Instant,
    position: usize,
    returned: bool,
    /// The number of the process it waits for; `NONE` when any will do.
    process: usize,
    links: [Links; 2],
}

#[derive(Clone, Copy)]
struct Links {
    prev: usize,
    next: usize,
}

#[derive(Clone, Copy)]
struct List {
    head: usize,
    tail: usize,
    len: usize,
}

const NONE: usize = usize::MAX;

/// The links of `free` or of `bound`: everybody stands on one of these.
const AGE: usize = 0;

/// The links of a list in `by_process`.
const PROCESS: usize = 1;

impl<J> Line<J> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: NONE,
            free: List::EMPTY,
            bound: List::EMPTY,
            by_process: Vec::new(),
            returned: 0,
            serial: 0,
        }
    }

    /// Everybody who waits.
    pub(crate) fn len(&self) -> usize {
        self.free.len + self.bound.len
    }

    /// Those who joined by themselves: the returned ones do not count against the bound.
    pub(crate) fn len_joined(&self) -> usize {
        self.len() - self.returned
    }

    /// Those who wait for this process and no other.
    pub(crate) fn len_bound(&self, process: usize) -> usize {
        self.by_process.get(process).map_or(0, |list| list.len)
    }

    /// Whether somebody waits whom any slot may take.
    pub(crate) fn has_free(&self) -> bool {
        self.free.len > 0
    }

    /// Whether somebody waits whom a slot of this process may take.
    pub(crate) fn has_for(&self, process: usize) -> bool {
        self.free.len > 0 || self.len_bound(process) > 0
    }

    /// When the oldest of all arrived.
    pub(crate) fn front(&self) -> Option<Instant> {
        let first = self.entries.get(self.oldest())?;
        Some(first.enqueued_at)
    }

    /// Joins at the end, for one process or for any; answers the place in line, counted from 1.
    pub(crate) fn join(&mut self, now: Instant, job: J, process: Option<usize>) -> (Ticket, usize) {
        let position = self.len() + 1;
        let process = process.unwrap_or(NONE);
        let ticket = self.occupy(job, now, position, process, false);
        self.link(AGE, ticket.index, NONE);
        if process != NONE {
            if self.by_process.len() <= process {
                self.by_process.resize(process + 1, List::EMPTY);
            }
            self.link(PROCESS, ticket.index, NONE);
        }
        (ticket, position)
    }

    /// Puts a job that had already left back among the free ones, by age.
    pub(crate) fn put_back(&mut self, enqueued_at: Instant, job: J) -> (Ticket, usize) {
        let (ahead, before) = self.older_than(self.free.head, enqueued_at);
        let (ahead_bound, _) = self.older_than(self.bound.head, enqueued_at);
        let position = ahead + ahead_bound + 1;
        let ticket = self.occupy(job, enqueued_at, position, NONE, true);
        self.link(AGE, ticket.index, before);
        (ticket, position)
    }

    /// The oldest of all leaves.
    pub(crate) fn pop(&mut self) -> Option<Waiter<J>> {
        self.vacate(self.oldest())
    }

    /// The oldest whom a slot of this process may take leaves.
    pub(crate) fn pop_for(&mut self, process: usize) -> Option<Waiter<J>> {
        let bound = self.by_process.get(process).map_or(NONE, |list| list.head);
        self.vacate(self.older(self.free.head, bound))
    }

    /// The oldest whom any slot may take leaves.
    pub(crate) fn pop_free(&mut self) -> Option<Waiter<J>> {
        self.vacate(self.free.head)
    }

    /// The named waiter leaves, wherever it stands; `None` when it left before.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Waiter<J>> {
        let entry = self.entries.get(ticket.index)?;
        if entry.serial != ticket.serial {
            return None;
        }
        self.vacate(ticket.index)
    }

    /// All that wait, in no order.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &J> {
        self.entries.iter().filter_map(|entry| entry.job.as_ref())
    }

    /// Those that match leave, in no order.
    pub(crate) fn take_matching(&mut self, mut matches: impl FnMut(&J) -> bool) -> Vec<Waiter<J>> {
        let entries = self.entries.iter().enumerate();
        let found: Vec<_> = entries
            .filter(|(_, entry)| entry.job.as_ref().is_some_and(&mut matches))
            .map(|(index, _)| index)
            .collect();
        let taken = found.into_iter().filter_map(|index| self.vacate(index));
        taken.collect()
    }

    /// Whoever waited for this process alone now waits for any, in the place of its age.
    pub(crate) fn unbind(&mut self, process: usize) {
        let mut before = self.free.head;
        while let Some(list) = self.by_process.get(process)
            && list.len > 0
        {
            let index = list.head;
            self.unlink(AGE, index);
            self.unlink(PROCESS, index);
            self.entries[index].process = NONE;
            while before != NONE && self.older(before, index) == before {
                before = self.entries[before].links[AGE].next;
            }
            self.link(AGE, index, before);
        }
    }

    fn oldest(&self) -> usize {
        self.older(self.free.head, self.bound.head)
    }

    /// The older of two waiters, either of whom may not be there.
    fn older(&self, one: usize, other: usize) -> usize {
        match (self.entries.get(one), self.entries.get(other)) {
            (Some(a), Some(b)) if b.age() < a.age() => other,
            (None, _) => other,
            _ => one,
        }
    }

    /// How many from `index` on stand before a job that is returned now, and who is the first
    /// behind it.
    fn older_than(&self, mut index: usize, enqueued_at: Instant) -> (usize, usize) {
        let mut count = 0;
        while let Some(entry) = self.entries.get(index)
            && (entry.enqueued_at, !entry.returned) <= (enqueued_at, false)
        {
            count += 1;
            index = entry.links[AGE].next;
        }
        (count, index)
    }

    fn occupy(
        &mut self,
        job: J,
        enqueued_at: Instant,
        position: usize,
        process: usize,
        returned: bool,
    ) -> Ticket {
        self.serial += 1;
        let serial = self.serial;
        let entry = Entry {
            job: Some(job),
            serial,
            enqueued_at,
            position,
            returned,
            process,
            links: [Links::NONE; 2],
        };
        self.returned += usize::from(returned);
        let index = self.vacant;
        if let Some(place) = self.entries.get_mut(index) {
            self.vacant = place.links[AGE].next;
            *place = entry;
            return Ticket { serial, index };
        }
        self.entries.push(entry);
        Ticket {
            serial,
            index: self.entries.len() - 1,
        }
    }

    fn vacate(&mut self, index: usize) -> Option<Waiter<J>> {
        // A vacant entry keeps its serial, so the job is what tells that somebody stands here.
        let job = self.entries.get_mut(index)?.job.take()?;
        self.unlink(AGE, index);
        if self.entries[index].process != NONE {
            self.unlink(PROCESS, index);
        }
        let vacant = std::mem::replace(&mut self.vacant, index);
        let entry = &mut self.entries[index];
        entry.links[AGE].next = vacant;
        self.returned -= usize::from(entry.returned);
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

    /// Puts the waiter in front of `next` on the list that its process says.
    fn link(&mut self, by: usize, index: usize, next: usize) {
        let list = self.list(by, index);
        let prev = match self.entries.get_mut(next) {
            Some(after) => std::mem::replace(&mut after.links[by].prev, index),
            None => list.tail,
        };
        if let Some(before) = self.entries.get_mut(prev) {
            before.links[by].next = index;
        }
        self.entries[index].links[by] = Links { prev, next };
        *self.list_mut(by, index) = List {
            head: if prev == NONE { index } else { list.head },
            tail: if next == NONE { index } else { list.tail },
            len: list.len + 1,
        };
    }

    fn unlink(&mut self, by: usize, index: usize) {
        let list = self.list(by, index);
        let Links { prev, next } = self.entries[index].links[by];
        if let Some(before) = self.entries.get_mut(prev) {
            before.links[by].next = next;
        }
        if let Some(after) = self.entries.get_mut(next) {
            after.links[by].prev = prev;
        }
        *self.list_mut(by, index) = List {
            head: if prev == NONE { next } else { list.head },
            tail: if next == NONE { prev } else { list.tail },
            len: list.len - 1,
        };
    }

    fn list(&self, by: usize, index: usize) -> List {
        let process = self.entries[index].process;
        match (by, process) {
            (PROCESS, _) => self.by_process[process],
            (_, NONE) => self.free,
            _ => self.bound,
        }
    }

    fn list_mut(&mut self, by: usize, index: usize) -> &mut List {
        let process = self.entries[index].process;
        match (by, process) {
            (PROCESS, _) => &mut self.by_process[process],
            (_, NONE) => &mut self.free,
            _ => &mut self.bound,
        }
    }

    /// Checks every link and every sum; gives the free and the bound jobs, and each process' own.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) -> (Vec<&J>, Vec<&J>, Vec<Vec<&J>>) {
        let free = self.walk(AGE, &self.free, |process| process == NONE);
        let bound = self.walk(AGE, &self.bound, |process| process != NONE);
        let lists = self.by_process.iter().enumerate();
        let by_process =
            lists.map(|(process, list)| self.walk(PROCESS, list, |other| other == process));
        let by_process: Vec<_> = by_process.collect();
        assert_eq!(by_process.iter().map(Vec::len).sum::<usize>(), bound.len());
        let waiting = self.entries.iter().filter(|e| e.job.is_some());
        assert_eq!(self.returned, waiting.filter(|e| e.returned).count());
        let (mut vacant, mut index) = (0, self.vacant);
        while let Some(entry) = self.entries.get(index) {
            assert!(entry.job.is_none(), "a vacant entry holds no job");
            (vacant, index) = (vacant + 1, entry.links[AGE].next);
        }
        let entries = vacant + free.len() + bound.len();
        assert_eq!(entries, self.entries.len(), "no entry leaks");
        (free, bound, by_process)
    }

    #[cfg(test)]
    fn walk(&self, by: usize, list: &List, belongs: impl Fn(usize) -> bool) -> Vec<&J> {
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

    /// How many entries were ever in use at once.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }
}

impl<J> Entry<J> {
    /// Compares lowest for whoever goes first.
    fn age(&self) -> (Instant, bool, u64) {
        (self.enqueued_at, !self.returned, self.serial)
    }
}

impl Links {
    const NONE: Self = Self {
        prev: NONE,
        next: NONE,
    };
}

impl List {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}
