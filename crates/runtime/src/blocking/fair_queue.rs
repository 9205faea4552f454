//! The order in which a pool's waiting jobs are taken: by how many wait for them, and every file in turn.
//!
//! Pure. `lanes` keeps the plain jobs of a pool in it, under the pool's lock. A job either stands alone or reads a part of
//! a file; the waiting reads of one file form a group, as a job alone does. Most turns are shared by weight, by weighted
//! fair queueing: a group weighs as much as it has waiters, and a crowd more, by the square. It is due when the virtual
//! time has advanced by [`UNIT`] divided by its weight since it came or had its last such turn. The virtual time
//! advances with each of them, by [`UNIT`] divided by all that weighs, and by one at least: it never stands still.
//!
//! Why the square: in proportion to its waiters, what 50 wait for had a fifth of the turns beside 200 others, and a file
//! of eight parts took a quarter of a second to come back. By the square it has three in four and more. Few waiters
//! weigh no more than they are, so that a file which only one wants is not put off for each that two want.
//!
//! # Invariants
//! - Of groups that wait all the time, each gets a share of the weighted turns in proportion to its weight: what 50 wait
//!   for is served before what one waits for, but for the rotation and what has nearly waited its time.
//! - After [`WEIGHTED_TURNS`] of these one turn belongs to the rotation: the group that has waited longest for its turn. So
//!   a group is served within `WEIGHTED_TURNS + 1` turns for each group before it and itself, whatever else arrives.
//! - A weighted turn takes the read of its group with the most waiters, the rotation's the oldest: no read is overtaken by
//!   others of its file for ever.
//! - Where nothing has more than one waiter, groups are served in order of arrival.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// Weighted turns between two of the rotation. However many want a file, all others together get a quarter of the disk.
pub(super) const WEIGHTED_TURNS: u32 = 3;

/// What the virtual time advances until a group that one waits for is due.
const UNIT: u64 = 1 << 24;

/// From twice as many on waiters are a crowd: their weight is multiplied by how many times so many they are.
const CROWD_WAITERS: u64 = 4;

/// More waiters weigh no more, so that no file's weight exceeds [`UNIT`]. All together may weigh more.
const MAX_WEIGHED_WAITERS: usize = 1 << 12;

/// A read that waits in a [`FairQueue`], or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadId<K> {
    /// The file.
    pub(crate) file: K,
    /// Tells a file's reads apart, the older from the newer.
    pub(crate) number: u64,
}

/// Jobs `J` that wait, some of which read files `K`.
#[derive(Debug)]
pub(super) struct FairQueue<K, J> {
    /// Groups by their place, the next first.
    rotation: BTreeMap<u64, JobGroup<K, J>>,
    /// The place of each file.
    place_by_file: HashMap<K, u64>,
    /// When each group is due for a weighted turn, and its place.
    due_order: BTreeSet<(u64, u64)>,
    virtual_time: u64,
    /// Of all groups.
    weight: u64,
    /// Where the next group comes.
    next_place: u64,
    /// Taken since the rotation's last turn.
    weighted_turns: u32,
    len: usize,
}

#[derive(Debug)]
struct JobGroup<K, J> {
    /// The virtual time at which it came or had its last weighted turn.
    virtual_start: u64,
    jobs: GroupJobs<K, J>,
}

#[derive(Debug)]
enum GroupJobs<K, J> {
    Single(J),
    Reads(Box<FileReads<K, J>>),
}

/// The reads of one file that wait; never none.
#[derive(Debug)]
struct FileReads<K, J> {
    file: K,
    /// By number: the oldest first.
    jobs: BTreeMap<u64, QueuedRead<J>>,
    /// Those with more than one waiter, the most wanted last.
    shared: BTreeSet<(usize, Reverse<u64>)>,
    /// Of all its reads.
    waiters: usize,
}

#[derive(Debug)]
struct QueuedRead<J> {
    job: J,
    waiters: usize,
}

/// Where a job was put: it can be taken back as long as nothing else was done to the queue.
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

    /// Takes in a job that stands alone.
    pub(super) fn push(&mut self, job: J) -> QueuePosition {
        self.len += 1;
        let group = JobGroup {
            virtual_start: self.virtual_time,
            jobs: GroupJobs::Single(job),
        };
        let place = self.push_group(group);
        QueuePosition { place, number: 0 }
    }

    /// Takes in a read that so many wait for.
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

    /// Counts a waiter of a read in (or, unless `has_come`, out), if that read waits still.
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

    /// Takes out the job that was just put there.
    pub(super) fn take_back_last(&mut self, position: QueuePosition) -> Option<J> {
        self.remove(position.place, position.number)
    }

    /// The job whose turn it is.
    pub(super) fn take(&mut self) -> Option<J> {
        let is_weighted = self.weighted_turns < WEIGHTED_TURNS;
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

    /// Changes the reads of a file, which goes with the last of them.
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

    /// What is left of a group that had a weighted turn waits for the next since then.
    fn restart_weighted_wait(&mut self, place: u64, since: u64) {
        if let Some(group) = self.rotation.get_mut(&place) {
            self.due_order.remove(&(group.due(), place));
            group.virtual_start = since;
            self.due_order.insert((group.due(), place));
        }
    }

    /// What is left of a group that had the rotation's turn is the last of all.
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
    /// The virtual time at which it is to have a weighted turn.
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

/// What a group with so many waiters weighs.
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

    /// The number of the read with the most waiters; of equals the oldest.
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
