//! The waiting jobs, in FIFOs ordered by age; used by `queue.rs`.
//!
//! Waiters that any slot may take are in one FIFO, those that wait for the slots of one process in
//! the FIFO of that process. Adding at the end is O(1), removing anywhere (a client disconnected)
//! O(log n): its entry stays, empty, until it comes to the front or most entries are empty. Memory
//! follows the longest queue so far, which is bounded.
//!
//! # Invariants
//!
//! - Every FIFO is in order of arrival; of two equal arrivals a requeued job is in front.
//! - The first entry of a FIFO has a job, and no more than half of the others are empty.
//! - A ticket identifies one waiter for ever.

use std::collections::VecDeque;
use std::time::Instant;

/// The waiting jobs, oldest first.
#[derive(Debug)]
pub(crate) struct WaitList<J> {
    /// Waiters that any slot may take.
    unbound: WaitFifo<J>,
    /// Waiters bound to a process, by its index.
    bound: Vec<WaitFifo<J>>,
    len: usize,
    requeued_count: usize,
    serial: u64,
}

/// Identifies one waiting job; never reused, so a late cancel cannot hit another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    age: Age,
    /// The process that the job was bound to at first.
    process: Option<usize>,
}

/// Arrival, whether the job is a new one, and a serial number: lowest for the waiter that is first.
type Age = (Instant, bool, u64);

/// A job that was removed from the list, with facts about its wait.
#[derive(Debug)]
pub(crate) struct Waiter<J> {
    pub(crate) job: J,
    pub(crate) enqueued_at: Instant,
    pub(crate) position: usize,
    is_requeued: bool,
}

#[derive(Debug)]
struct WaitFifo<J> {
    entries: VecDeque<WaitEntry<J>>,
    len: usize,
}

#[derive(Debug)]
struct WaitEntry<J> {
    age: Age,
    position: usize,
    /// `None` once it has left.
    job: Option<J>,
}

impl<J> WaitList<J> {
    pub(crate) const fn new() -> Self {
        Self {
            unbound: WaitFifo::new(),
            bound: Vec::new(),
            len: 0,
            requeued_count: 0,
            serial: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of waiters without requeued ones, which do not count against the bound.
    pub(crate) fn len_without_requeued(&self) -> usize {
        self.len - self.requeued_count
    }

    /// Number of waiters bound to this process.
    pub(crate) fn bound_job_count(&self, process: usize) -> usize {
        self.bound.get(process).map_or(0, |fifo| fifo.len)
    }

    /// Whether a waiter exists that any slot may take.
    pub(crate) fn has_unbound(&self) -> bool {
        self.unbound.len > 0
    }

    /// Whether a waiter exists that a slot of this process may take.
    pub(crate) fn has_waiter_for(&self, process: usize) -> bool {
        self.has_unbound() || self.bound_job_count(process) > 0
    }

    pub(crate) fn oldest_enqueued_at(&self) -> Option<Instant> {
        let firsts = self.fifos().filter_map(WaitFifo::first);
        firsts.min().map(|(enqueued_at, ..)| enqueued_at)
    }

    /// Adds a waiter, bound to one process or unbound; returns its position, counted from 1.
    pub(crate) fn push_back(
        &mut self,
        now: Instant,
        job: J,
        process: Option<usize>,
    ) -> (Ticket, usize) {
        let position = self.len + 1;
        let ticket = self.insert((now, true), job, position, process);
        (ticket, position)
    }

    /// Puts a dispatched job back among the unbound ones, ordered by age.
    pub(crate) fn requeue(&mut self, enqueued_at: Instant, job: J) -> (Ticket, usize) {
        let next = (enqueued_at, false, u64::MAX);
        let position = self
            .fifos()
            .map(|fifo| fifo.count_before(next))
            .sum::<usize>()
            + 1;
        self.requeued_count += 1;
        let ticket = self.insert((enqueued_at, false), job, position, None);
        (ticket, position)
    }

    pub(crate) fn pop(&mut self) -> Option<Waiter<J>> {
        let fifos = std::iter::once(&mut self.unbound).chain(&mut self.bound);
        let oldest = fifos
            .filter(|fifo| fifo.len > 0)
            .min_by_key(|fifo| fifo.first());
        let waiter = oldest?.pop();
        self.count_out(waiter)
    }

    /// Removes the oldest waiter that a slot of this process may take.
    pub(crate) fn pop_for(&mut self, process: usize) -> Option<Waiter<J>> {
        let unbound = &mut self.unbound;
        let bound = self.bound.get_mut(process).filter(|fifo| fifo.len > 0);
        let fifo = match bound {
            Some(bound) if unbound.len == 0 || bound.first() < unbound.first() => bound,
            _ => unbound,
        };
        let waiter = fifo.pop();
        self.count_out(waiter)
    }

    pub(crate) fn pop_unbound(&mut self) -> Option<Waiter<J>> {
        let waiter = self.unbound.pop();
        self.count_out(waiter)
    }

    /// Removes the waiter of this ticket; `None` if it has left before.
    pub(crate) fn remove(&mut self, Ticket { age, process }: Ticket) -> Option<Waiter<J>> {
        let bound = process.and_then(|process| self.bound.get_mut(process)?.remove(age));
        // It may have been unbound meanwhile.
        let waiter = bound.or_else(|| self.unbound.remove(age));
        self.count_out(waiter)
    }

    /// All waiting jobs, in no order.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &J> {
        let entries = self.fifos().flat_map(|fifo| &fifo.entries);
        entries.filter_map(|entry| entry.job.as_ref())
    }

    /// Removes the waiters that match, in no order.
    pub(crate) fn take_matching(&mut self, mut matches: impl FnMut(&J) -> bool) -> Vec<Waiter<J>> {
        let mut taken = Vec::new();
        for fifo in std::iter::once(&mut self.unbound).chain(&mut self.bound) {
            let is_match = |entry: &&WaitEntry<J>| entry.job.as_ref().is_some_and(&mut matches);
            let found: Vec<Age> = fifo
                .entries
                .iter()
                .filter(is_match)
                .map(|it| it.age)
                .collect();
            taken.extend(found.into_iter().filter_map(|age| fifo.remove(age)));
        }
        self.len -= taken.len();
        self.requeued_count -= taken.iter().filter(|waiter| waiter.is_requeued).count();
        taken
    }

    /// Makes waiters bound to this process unbound, ordered by age.
    pub(crate) fn unbind(&mut self, process: usize) {
        if let Some(fifo) = self.bound.get_mut(process)
            && fifo.len > 0
        {
            let WaitFifo { entries, len } = std::mem::replace(fifo, WaitFifo::new());
            self.unbound.entries.extend(entries);
            self.unbound.len += len;
            let entries = self.unbound.entries.make_contiguous();
            entries.sort_by_key(|entry| entry.age);
            self.unbound.drop_empty();
        }
    }

    fn fifos(&self) -> impl Iterator<Item = &WaitFifo<J>> {
        std::iter::once(&self.unbound).chain(&self.bound)
    }

    fn insert(
        &mut self,
        (enqueued_at, is_new): (Instant, bool),
        job: J,
        position: usize,
        process: Option<usize>,
    ) -> Ticket {
        self.serial += 1;
        self.len += 1;
        let age = (enqueued_at, is_new, self.serial);
        let fifo = match process {
            None => &mut self.unbound,
            Some(process) => {
                if self.bound.len() <= process {
                    self.bound.resize_with(process + 1, WaitFifo::new);
                }
                &mut self.bound[process]
            }
        };
        // Mostly at the end; a job may come with a time a little before that of another.
        let index = match fifo.entries.back() {
            Some(last) if last.age > age => fifo.entries.partition_point(|entry| entry.age < age),
            _ => fifo.entries.len(),
        };
        let job = Some(job);
        fifo.entries.insert(index, WaitEntry { age, position, job });
        fifo.len += 1;
        Ticket { age, process }
    }

    /// Counts a waiter out that has left its FIFO.
    fn count_out(&mut self, waiter: Option<Waiter<J>>) -> Option<Waiter<J>> {
        if let Some(waiter) = &waiter {
            self.len -= 1;
            self.requeued_count -= usize::from(waiter.is_requeued);
        }
        waiter
    }

    /// Checks every FIFO and every total; returns the unbound and the bound jobs, and those of each
    /// process.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) -> (Vec<&J>, Vec<&J>, Vec<Vec<&J>>) {
        for fifo in self.fifos() {
            assert!(
                fifo.entries.iter().is_sorted_by(|a, b| a.age < b.age),
                "oldest first"
            );
            let waiting = fifo.entries.iter().filter(|entry| entry.job.is_some());
            assert_eq!(waiting.count(), fifo.len);
            assert!(fifo.entries.front().is_none_or(|entry| entry.job.is_some()));
            assert!(fifo.entries.len() <= 2 * fifo.len, "no entry leaks");
        }
        let mut bound: Vec<_> = self.bound.iter().flat_map(|fifo| &fifo.entries).collect();
        bound.sort_by_key(|entry| entry.age);
        fn jobs<'j, J: 'j>(entries: impl IntoIterator<Item = &'j WaitEntry<J>>) -> Vec<&'j J> {
            entries
                .into_iter()
                .filter_map(|entry| entry.job.as_ref())
                .collect()
        }
        let unbound = jobs(&self.unbound.entries);
        let by_process: Vec<_> = self.bound.iter().map(|fifo| jobs(&fifo.entries)).collect();
        let bound = jobs(bound);
        assert_eq!(self.len, unbound.len() + bound.len());
        let requeued = self
            .unbound
            .entries
            .iter()
            .filter(|it| !it.age.1 && it.job.is_some());
        assert_eq!(self.requeued_count, requeued.count());
        (unbound, bound, by_process)
    }

    /// Number of entries, empty ones included.
    #[cfg(test)]
    pub(crate) fn entry_count(&self) -> usize {
        self.fifos().map(|fifo| fifo.entries.len()).sum()
    }
}

impl<J> WaitFifo<J> {
    const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            len: 0,
        }
    }

    fn first(&self) -> Option<Age> {
        self.entries.front().map(|entry| entry.age)
    }

    fn count_before(&self, age: Age) -> usize {
        let older = self.entries.iter().take_while(|entry| entry.age < age);
        older.filter(|entry| entry.job.is_some()).count()
    }

    fn pop(&mut self) -> Option<Waiter<J>> {
        self.take(0)
    }

    fn remove(&mut self, age: Age) -> Option<Waiter<J>> {
        self.take(
            self.entries
                .binary_search_by_key(&age, |entry| entry.age)
                .ok()?,
        )
    }

    fn take(&mut self, index: usize) -> Option<Waiter<J>> {
        let entry = self.entries.get_mut(index)?;
        let (enqueued_at, is_new, _) = entry.age;
        let waiter = Waiter {
            job: entry.job.take()?,
            enqueued_at,
            position: entry.position,
            is_requeued: !is_new,
        };
        self.len -= 1;
        self.drop_empty();
        Some(waiter)
    }

    /// Drops empty entries: those in front, or all once they are the most.
    fn drop_empty(&mut self) {
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.job.is_none())
        {
            self.entries.pop_front();
        }
        if self.entries.len() > 2 * self.len {
            self.entries.retain(|entry| entry.job.is_some());
        }
    }
}
