//! The waiting line: a slab of waiters threaded on one doubly linked list.
//!
//! Used only by `queue.rs`. Joining, leaving from the front and leaving from the middle (a client
//! that went away) are all O(1); an entry is reused after its waiter left, so memory follows the
//! longest line there ever was, which the queue bounds.
//! What must stay true: jobs that were returned unbegun stand in front of all others, ordered by
//! when they first arrived; the others stand in order of arrival; a ticket names one waiter for
//! ever, even after its entry has been reused.

use std::time::Instant;

/// The line itself, oldest first.
pub(crate) struct Line<J> {
    entries: Vec<Entry<J>>,
    /// First reusable entry, chained through `next`.
    vacant: usize,
    head: usize,
    tail: usize,
    len: usize,
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
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

impl<J> Line<J> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: NONE,
            head: NONE,
            tail: NONE,
            len: 0,
            returned: 0,
            serial: 0,
        }
    }

    /// Everybody who waits.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Those who joined by themselves: the returned ones do not count against the bound.
    pub(crate) fn len_joined(&self) -> usize {
        self.len - self.returned
    }

    /// When the first in line arrived.
    pub(crate) fn front(&self) -> Option<Instant> {
        self.entries.get(self.head).map(|first| first.enqueued_at)
    }

    /// Joins at the end; answers the place in line, counted from 1.
    pub(crate) fn join(&mut self, now: Instant, job: J) -> (Ticket, usize) {
        let position = self.len + 1;
        let ticket = self.occupy(job, now, position, false);
        self.link(ticket.index, NONE);
        (ticket, position)
    }

    /// Puts a job that had already left back among the returned ones, by age.
    pub(crate) fn put_back(&mut self, enqueued_at: Instant, job: J) -> (Ticket, usize) {
        let mut position = 1;
        let mut before = self.head;
        while let Some(other) = self.entries.get(before) {
            if !other.returned || other.enqueued_at > enqueued_at {
                break;
            }
            position += 1;
            before = other.next;
        }
        let ticket = self.occupy(job, enqueued_at, position, true);
        self.link(ticket.index, before);
        (ticket, position)
    }

    /// The first in line leaves.
    pub(crate) fn pop(&mut self) -> Option<Waiter<J>> {
        self.vacate(self.head)
    }

    /// The named waiter leaves, wherever it stands; `None` when it left before.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Waiter<J>> {
        let entry = self.entries.get(ticket.index)?;
        if entry.serial != ticket.serial {
            return None;
        }
        self.vacate(ticket.index)
    }

    fn occupy(&mut self, job: J, enqueued_at: Instant, position: usize, returned: bool) -> Ticket {
        self.serial += 1;
        let serial = self.serial;
        let entry = Entry {
            job: Some(job),
            serial,
            enqueued_at,
            position,
            returned,
            prev: NONE,
            next: NONE,
        };
        let index = self.vacant;
        if let Some(place) = self.entries.get_mut(index) {
            self.vacant = place.next;
            *place = entry;
            return Ticket { serial, index };
        }
        self.entries.push(entry);
        Ticket {
            serial,
            index: self.entries.len() - 1,
        }
    }

    fn link(&mut self, index: usize, next: usize) {
        let prev = match self.entries.get_mut(next) {
            Some(after) => std::mem::replace(&mut after.prev, index),
            None => std::mem::replace(&mut self.tail, index),
        };
        match self.entries.get_mut(prev) {
            Some(before) => before.next = index,
            None => self.head = index,
        }
        let entry = &mut self.entries[index];
        entry.prev = prev;
        entry.next = next;
        self.len += 1;
        self.returned += usize::from(entry.returned);
    }

    fn vacate(&mut self, index: usize) -> Option<Waiter<J>> {
        let vacant = self.vacant;
        let entry = self.entries.get_mut(index)?;
        // A vacant entry keeps its serial, so the job is what tells that somebody stands here.
        let job = entry.job.take()?;
        let (prev, next) = (entry.prev, entry.next);
        let waiter = Waiter {
            ticket: Ticket {
                serial: entry.serial,
                index,
            },
            job,
            enqueued_at: entry.enqueued_at,
            position: entry.position,
        };
        self.len -= 1;
        self.returned -= usize::from(entry.returned);
        entry.next = vacant;
        self.vacant = index;
        match self.entries.get_mut(prev) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match self.entries.get_mut(next) {
            Some(after) => after.prev = prev,
            None => self.tail = prev,
        }
        Some(waiter)
    }

    /// The waiting jobs from the first to the last, checking every link on the way.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) -> Vec<&J> {
        let (mut jobs, mut returned, mut prev, mut index) = (Vec::new(), 0, NONE, self.head);
        while let Some(entry) = self.entries.get(index) {
            assert_eq!(entry.prev, prev, "links agree both ways");
            if entry.returned {
                assert_eq!(returned, jobs.len(), "returned jobs stand in front");
                returned += 1;
            }
            jobs.push(entry.job.as_ref().expect("a linked entry holds a job"));
            (prev, index) = (index, entry.next);
        }
        assert_eq!(self.tail, prev);
        assert_eq!(jobs.len(), self.len);
        assert_eq!(returned, self.returned);
        let (mut vacant, mut index) = (0, self.vacant);
        while let Some(entry) = self.entries.get(index) {
            assert!(entry.job.is_none(), "a vacant entry holds no job");
            (vacant, index) = (vacant + 1, entry.next);
        }
        assert_eq!(vacant + jobs.len(), self.entries.len(), "no entry leaks");
        jobs
    }

    /// How many entries were ever in use at once.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }
}
