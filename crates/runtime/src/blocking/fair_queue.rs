//! The order in which a pool's waiting jobs are taken: by number of waiters, fair between files.
//!
//! Pure; `lanes` keeps the normal jobs of a pool in it, under the pool's lock. A job either is
//! single or reads a part of a file. The waiting reads of one file form a group; a single job is a
//! group of its own. Most turns follow weighted fair queueing: a group weighs as much as it has
//! waiters; with many waiters it grows with their square. A group is due when the virtual time has
//! advanced by [`UNIT`] divided by its weight since its arrival or last weighted turn. Each
//! weighted turn advances the virtual time by [`UNIT`] divided by the total weight, and by at least
//! one: it never stands still.
//!
//! Why the square: with linear weight, a file with 50 waiters had a fifth of the turns beside 200
//! other files, and one of eight chunks took a quarter of a second to read again. With the square
//! it has three in four or more. Few waiters weigh linearly, so that a file with one waiter is not
//! delayed for each file with two.
//!
//! # Invariants
//! - Groups that always have waiting jobs share the weighted turns in proportion to their weight: a
//!   read with 50 waiters precedes one with a single waiter, except for the rotation and for jobs
//!   that are nearly due.
//! - After [`WEIGHTED_TURNS_PER_ROTATION`] weighted turns, one belongs to the rotation: the group
//!   that has waited longest. A group is served within `WEIGHTED_TURNS_PER_ROTATION + 1` turns for
//!   each group up to it, whatever else arrives.
//! - A weighted turn takes the read of its group with the most waiters, the rotation takes the
//!   oldest: no read is overtaken by others of its file for ever.
//! - While no job has more than one waiter, groups are served in order of arrival.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// Weighted turns between two of the rotation. However popular a file is, the others together get a
/// quarter of the disk.
pub(super) const WEIGHTED_TURNS_PER_ROTATION: u32 = 3;

/// How far the virtual time advances until a group with one waiter is due.
const UNIT: u64 = 1 << 24;

/// From twice this many waiters, weight grows faster: it is multiplied by waiters divided by this.
const CROWD_WAITERS: u64 = 4;

/// More waiters do not add weight, so that no file's weight exceeds [`UNIT`]. All files together
/// may.
const MAX_WEIGHED_WAITERS: usize = 1 << 12;

/// Identifies a read that is or was in a [`FairQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadId<K> {
    pub(crate) file: K,
    /// Distinguishes the reads of a file; older ones are smaller.
    pub(crate) number: u64,
}

/// Waiting jobs `J`, some of which read files `K`.
#[derive(Debug)]
pub(super) struct FairQueue<K, J> {
    /// Groups by place, the next one first.
    rotation: BTreeMap<u64, JobGroup<K, J>>,
    /// The place of each file's group.
    place_by_file: HashMap<K, u64>,
    /// When each group is due for a weighted turn, and its place.
    due_order: BTreeSet<(u64, u64)>,
    virtual_time: u64,
    weight: u64,
    next_place: u64,
    /// Weighted turns since the rotation's last turn.
    weighted_turns: u32,
    len: usize,
}

#[derive(Debug)]
struct JobGroup<K, J> {
    /// The virtual time of its arrival or last weighted turn.
    virtual_start: u64,
    jobs: GroupJobs<K, J>,
}

#[derive(Debug)]
enum GroupJobs<K, J> {
    Single(J),
    Reads(Box<FileReads<K, J>>),
}

/// The waiting reads of one file; never empty.
#[derive(Debug)]
struct FileReads<K, J> {
    file: K,
    /// By number: the oldest first.
    jobs: BTreeMap<u64, QueuedRead<J>>,
    /// Reads with more than one waiter, the most wanted last.
    shared: BTreeSet<(usize, Reverse<u64>)>,
    /// Sum over its reads.
    waiters: usize,
}

#[derive(Debug)]
struct QueuedRead<J> {
    job: J,
    waiters: usize,
}

/// Where a job was put: it can be taken back until the queue changes in another way.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuePosition {
    place: u64,
    number: u64,
}

impl<K: Copy + Eq + Hash, J> FairQueue<K, J> {
    pub(super) fn new() -> Self {
        Self {
            rotation: BTreeMap::new(),
            place_by_file: HashMap::new(),
            due_order: BTreeSet::new(),
            virtual_time: 0,
            weight: 0,
            next_place: 0,
            weighted_turns: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The jobs in the order of the rotation.
    pub(super) fn iter(&self) -> impl Iterator<Item = &J> {
        self.rotation.values().flat_map(|group| {
            let (alone, reads) = match &group.jobs {
                GroupJobs::Single(job) => (Some(job), None),
                GroupJobs::Reads(reads) => (None, Some(&reads.jobs)),
            };
            let reads = reads.into_iter().flat_map(BTreeMap::values);
            alone.into_iter().chain(reads.map(|read| &read.job))
        })
    }

    pub(super) fn push(&mut self, job: J) -> QueuePosition {
        self.len += 1;
        let group = JobGroup {
            virtual_start: self.virtual_time,
            jobs: GroupJobs::Single(job),
        };
        let place = self.push_group(group);
        QueuePosition { place, number: 0 }
    }

    pub(super) fn push_read(&mut self, id: ReadId<K>, waiters: usize, job: J) -> QueuePosition {
        let ReadId { file, number } = id;
        let place = match self.place_by_file.get(&file) {
            Some(&place) => place,
            None => self.push_group(JobGroup {
                virtual_start: self.virtual_time,
                jobs: GroupJobs::Reads(Box::new(FileReads::new(file))),
            }),
        };
        self.len += 1;
        self.change_file_reads(place, |reads| {
            let read = QueuedRead { job, waiters: 0 };
            reads.jobs.insert(number, read);
            reads.set_waiters(number, waiters);
        });
        QueuePosition { place, number }
    }

    /// Counts a waiter of a read in (or out unless `has_come`), if that read is still queued.
    pub(super) fn update_waiters(&mut self, id: ReadId<K>, has_come: bool) {
        let Some(&place) = self.place_by_file.get(&id.file) else {
            return;
        };
        self.change_file_reads(place, |reads| {
            let waiters = reads.jobs.get(&id.number).map_or(0, |read| read.waiters);
            let now = match has_come {
                true => waiters + 1,
                false => waiters.saturating_sub(1),
            };
            reads.set_waiters(id.number, now);
        });
    }

    /// Removes the job that was just put there.
    pub(super) fn take_back_last(&mut self, position: QueuePosition) -> Option<J> {
        self.remove(position.place, position.number)
    }

    pub(super) fn take(&mut self) -> Option<J> {
        let is_weighted = self.weighted_turns < WEIGHTED_TURNS_PER_ROTATION;
        let (due, place) = match is_weighted {
            true => *self.due_order.first()?,
            false => (0, *self.rotation.first_key_value()?.0),
        };
        let group = self.rotation.get(&place)?;
        let number = match &group.jobs {
            GroupJobs::Single(_) => 0,
            GroupJobs::Reads(reads) if is_weighted => reads.most_wanted()?,
            GroupJobs::Reads(reads) => *reads.jobs.first_key_value()?.0,
        };
        let weight = self.weight.max(1);
        let job = self.remove(place, number);
        if is_weighted {
            self.weighted_turns += 1;
            self.virtual_time += (UNIT / weight).max(1);
            self.restart_weighted_wait(place, due.max(self.virtual_time));
        } else {
            self.weighted_turns = 0;
            self.move_to_end(place);
        }
        job
    }

    fn remove(&mut self, place: u64, number: u64) -> Option<J> {
        let is_alone = matches!(self.rotation.get(&place)?.jobs, GroupJobs::Single(_));
        let job = match is_alone {
            true => self.take_group(place).and_then(|group| match group.jobs {
                GroupJobs::Single(job) => Some(job),
                GroupJobs::Reads(_) => None,
            }),
            false => self.change_file_reads(place, |reads| {
                reads.set_waiters(number, 0);
                reads.jobs.remove(&number).map(|read| read.job)
            })?,
        };
        self.len -= usize::from(job.is_some());
        job
    }

    /// Changes the reads of a file, whose group is removed with the last of them.
    fn change_file_reads<T>(
        &mut self,
        place: u64,
        change: impl FnOnce(&mut FileReads<K, J>) -> T,
    ) -> Option<T> {
        let group = self.rotation.get_mut(&place)?;
        let (before, weight) = (group.due(), group.weight());
        let GroupJobs::Reads(reads) = &mut group.jobs else {
            return None;
        };
        let done = change(reads);
        let is_empty = reads.jobs.is_empty();
        let after = group.due();
        self.weight = self.weight - weight + group.weight();
        if before != after {
            self.due_order.remove(&(before, place));
            self.due_order.insert((after, place));
        }
        if is_empty {
            self.take_group(place);
        }
        Some(done)
    }

    /// After a weighted turn, the rest of the group waits for its next one from `since` on.
    fn restart_weighted_wait(&mut self, place: u64, since: u64) {
        if let Some(group) = self.rotation.get_mut(&place) {
            self.due_order.remove(&(group.due(), place));
            group.virtual_start = since;
            self.due_order.insert((group.due(), place));
        }
    }

    /// After a turn of the rotation, the rest of the group moves to the end.
    fn move_to_end(&mut self, place: u64) {
        if let Some(group) = self.take_group(place) {
            self.push_group(group);
        }
    }

    fn push_group(&mut self, group: JobGroup<K, J>) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        if let GroupJobs::Reads(reads) = &group.jobs {
            self.place_by_file.insert(reads.file, place);
        }
        self.weight += group.weight();
        self.due_order.insert((group.due(), place));
        self.rotation.insert(place, group);
        place
    }

    fn take_group(&mut self, place: u64) -> Option<JobGroup<K, J>> {
        let group = self.rotation.remove(&place)?;
        self.weight -= group.weight();
        self.due_order.remove(&(group.due(), place));
        if let GroupJobs::Reads(reads) = &group.jobs {
            self.place_by_file.remove(&reads.file);
        }
        Some(group)
    }
}

impl<K, J> JobGroup<K, J> {
    /// The virtual time at which it is due for a weighted turn.
    fn due(&self) -> u64 {
        self.virtual_start + UNIT / self.weight()
    }

    fn weight(&self) -> u64 {
        match &self.jobs {
            GroupJobs::Single(_) => 1,
            GroupJobs::Reads(reads) => weight_of_waiters(reads.waiters),
        }
    }
}

/// The weight of a group with this number of waiters.
fn weight_of_waiters(waiters: usize) -> u64 {
    let waiters = waiters.clamp(1, MAX_WEIGHED_WAITERS) as u64;
    waiters * (waiters / CROWD_WAITERS).max(1)
}

impl<K, J> FileReads<K, J> {
    fn new(file: K) -> Self {
        Self {
            file,
            jobs: BTreeMap::new(),
            shared: BTreeSet::new(),
            waiters: 0,
        }
    }

    /// The number of the read with the most waiters; the oldest among equals.
    fn most_wanted(&self) -> Option<u64> {
        match self.shared.last() {
            Some(&(_, Reverse(number))) => Some(number),
            None => self.jobs.first_key_value().map(|(&number, _)| number),
        }
    }

    fn set_waiters(&mut self, number: u64, waiters: usize) {
        let Some(read) = self.jobs.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut read.waiters, waiters);
        self.waiters = self.waiters - before + waiters;
        self.shared.remove(&(before, Reverse(number)));
        if waiters > 1 {
            self.shared.insert((waiters, Reverse(number)));
        }
    }
}

#[cfg(test)]
mod tests;
