//! Which job of a pool runs next, and whether another may wait; called by `blocking` under its
//! lock.
//!
//! Within a queue the order is that of `fair_queue`.
//!
//! # Invariants
//! - With two threads or more, normal jobs never occupy all threads.
//! - Priority work is taken first, but does not occupy all threads while normal jobs wait: neither
//!   starves the other.
//! - At most as many jobs of a lane wait as its bound allows, whatever the other lanes do. A job
//!   that a thread can take at once does not wait, whatever the bound.

use std::time::{Duration, Instant};

use super::fair_queue::{FairQueue, QueuePosition, ReadId};
use crate::disk::FileKey;

pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Short work that is taken first.
    Priority,
    /// Reads and writes.
    Normal,
    /// Work that must be done eventually: queued with reads and writes, but with its own bound.
    Detached,
}

pub(super) enum Admission {
    /// A thread can take it now; with its position.
    Runnable(QueuePosition),
    Queued,
    /// There is no room; returns the job.
    Refused(Job),
}

struct QueuedJob {
    lane: Lane,
    job: Job,
    queued_at: Instant,
}

pub(super) struct NewJob {
    pub(super) lane: Lane,
    /// The part of a file that it reads and the number of its waiters; `None` for a single job.
    pub(super) read: Option<(ReadId<FileKey>, usize)>,
    pub(super) job: Job,
}

/// Jobs that share threads.
struct LaneQueue {
    jobs: FairQueue<FileKey, QueuedJob>,
    /// How many of them are [`Lane::Detached`].
    detached: usize,
    running: usize,
}

/// Waiting and running jobs.
pub(super) struct Lanes {
    max_threads: usize,
    priority: LaneQueue,
    normal: LaneQueue,
    /// With a single thread: the lanes alternate, and this tells which is next.
    is_normal_next: bool,
    /// Until when fewer normal jobs run than could.
    crowd_until: Option<Instant>,
    /// Whether `crowd_until` is in the future, as of the last `update_time`.
    is_crowded: bool,
}

impl Lanes {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            max_threads: threads_max,
            priority: LaneQueue::new(),
            normal: LaneQueue::new(),
            is_normal_next: false,
            crowd_until: None,
            is_crowded: false,
        }
    }

    /// Records a read with many waiters: for some time fewer normal jobs run at once. Requests that
    /// the disk has accepted precede that read whatever the order here, and a few reads at a time
    /// keep a disk busy.
    pub(super) fn record_crowded_read(&mut self, now: Instant) {
        self.crowd_until = Some(now + CROWD_TIME);
        self.update_time(now);
    }

    /// Sets the time, before jobs are admitted or taken.
    pub(super) fn update_time(&mut self, now: Instant) {
        self.is_crowded = self.crowd_until.is_some_and(|until| now < until);
    }

    fn max_normal(&self) -> usize {
        let most = self.max_threads - self.reserved_threads();
        match self.is_crowded {
            true => most.min((self.max_threads / CROWDED_SHARE).max(MIN_CROWDED_THREADS)),
            false => most,
        }
    }

    pub(super) fn max_threads(&self) -> usize {
        self.max_threads
    }

    pub(super) fn total_running_count(&self) -> usize {
        self.priority.running + self.normal.running
    }

    /// Jobs that could run now if their threads were awake.
    pub(super) fn startable_count(&self) -> usize {
        let (ahead, plain) = self.startable_by_queue();
        ahead + plain
    }

    /// Jobs that wait for another to end.
    pub(super) fn total_waiting_count(&self) -> usize {
        self.priority.jobs.len() + self.normal.jobs.len() - self.startable_count()
    }

    /// The same for one lane.
    fn waiting_in(&self, lane: Lane) -> usize {
        let (ahead, plain) = self.startable_by_queue();
        let startable = if lane == Lane::Priority { ahead } else { plain };
        let line = self.queue(lane);
        let first = line.jobs.iter().take(startable);
        line.waiting_count(lane) - first.filter(|entry| entry.lane == lane).count()
    }

    /// Threads that are never given to normal jobs, nor to priority jobs while normal jobs wait.
    fn reserved_threads(&self) -> usize {
        (self.max_threads / RESERVED_SHARE).max(1)
    }

    fn startable_by_queue(&self) -> (usize, usize) {
        let free = self.max_threads.saturating_sub(self.total_running_count());
        let (ahead, plain) = (self.priority.jobs.len(), self.normal.jobs.len());
        if self.max_threads == 1 {
            let is_plain = plain > 0 && (ahead == 0 || self.is_normal_next);
            return match is_plain {
                true => (0, free),
                false => (ahead.min(free), 0),
            };
        }
        let most = self.max_threads - self.reserved_threads();
        let ahead_max = if plain > 0 { most } else { self.max_threads };
        let ahead = ahead
            .min(free)
            .min(ahead_max.saturating_sub(self.priority.running));
        let plain = plain
            .min(free - ahead)
            .min(self.max_normal().saturating_sub(self.normal.running));
        (ahead, plain)
    }

    /// Admits a job if a thread is free for it or fewer than `waiting_max` of its lane wait.
    pub(super) fn admit(&mut self, arrival: NewJob, now: Instant, waiting_max: usize) -> Admission {
        let NewJob { lane, read, job } = arrival;
        let (waiting, startable) = (self.waiting_in(lane), self.startable_count());
        let line = self.queue_mut(lane);
        line.detached += usize::from(lane == Lane::Detached);
        let entry = QueuedJob {
            lane,
            job,
            queued_at: now,
        };
        let position = match read {
            Some((id, waiters)) => line.jobs.push_read(id, waiters, entry),
            None => line.jobs.push(entry),
        };
        if self.startable_count() > startable {
            return Admission::Runnable(position);
        }
        if waiting < waiting_max {
            return Admission::Queued;
        }
        match self.take_back_last(lane, position) {
            Some(job) => Admission::Refused(job),
            None => Admission::Queued,
        }
    }

    /// Takes back the job of that lane that was admitted last.
    pub(super) fn take_back_last(&mut self, lane: Lane, position: QueuePosition) -> Option<Job> {
        let line = self.queue_mut(lane);
        let entry = line.jobs.take_back_last(position)?;
        line.detached -= usize::from(entry.lane == Lane::Detached);
        Some(entry.job)
    }

    /// Counts a waiter of a normal read in or out, if the read has not begun.
    pub(super) fn update_waiters(&mut self, id: ReadId<FileKey>, has_come: bool) {
        self.normal.jobs.update_waiters(id, has_come);
    }

    /// Takes the next job to run, with the time when it was queued; [`Lanes::finish_job`] ends it.
    pub(super) fn take_next(&mut self) -> Option<(Lane, Job, Instant)> {
        let line = match self.startable_by_queue() {
            (0, 0) => return None,
            (0, _) => &mut self.normal,
            _ => &mut self.priority,
        };
        let QueuedJob {
            lane,
            job,
            queued_at,
        } = line.jobs.take()?;
        line.detached -= usize::from(lane == Lane::Detached);
        line.running += 1;
        self.is_normal_next = lane == Lane::Priority;
        Some((lane, job, queued_at))
    }

    pub(super) fn finish_job(&mut self, lane: Lane) {
        self.queue_mut(lane).running -= 1;
    }

    fn queue_mut(&mut self, lane: Lane) -> &mut LaneQueue {
        match lane {
            Lane::Priority => &mut self.priority,
            Lane::Normal | Lane::Detached => &mut self.normal,
        }
    }

    fn queue(&self, lane: Lane) -> &LaneQueue {
        match lane {
            Lane::Priority => &self.priority,
            Lane::Normal | Lane::Detached => &self.normal,
        }
    }
}

impl LaneQueue {
    fn new() -> Self {
        Self {
            jobs: FairQueue::new(),
            detached: 0,
            running: 0,
        }
    }

    /// Jobs of a lane that have not begun.
    fn waiting_count(&self, lane: Lane) -> usize {
        match lane {
            Lane::Detached => self.detached,
            Lane::Priority | Lane::Normal => self.jobs.len() - self.detached,
        }
    }
}

/// One thread in this many, rounded down but at least one, is reserved for priority jobs: four of
/// the usual 32, which allow 8,000 cold opens of half a millisecond a second. As many are reserved
/// for waiting normal jobs.
const RESERVED_SHARE: usize = 8;

/// After a read with many waiters, normal jobs get one thread in this many, but at least
/// [`MIN_CROWDED_THREADS`]: 4 of 32 threads, whose reads of half a megabyte take 20 ms of a disk of
/// 100 MB/s, instead of 150 ms.
const CROWDED_SHARE: usize = 8;
const MIN_CROWDED_THREADS: usize = 4;

/// How long that limit lasts after the last such read.
const CROWD_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Submits a job for each letter: `a` priority, `p` normal, `d` detached; returns `t`
    /// (runnable), `w` (waits) or `r` (refused) for each.
    fn admit(lanes: &mut Lanes, jobs: &str, queue_max: usize) -> String {
        let now = Instant::now();
        let mut said = |letter| {
            let lane = match letter {
                'a' => Lane::Priority,
                'p' => Lane::Normal,
                _ => Lane::Detached,
            };
            let arrival = NewJob {
                lane,
                read: None,
                job: Box::new(|| ()),
            };
            match lanes.admit(arrival, now, queue_max) {
                Admission::Runnable(_) => 't',
                Admission::Queued => 'w',
                Admission::Refused(_) => 'r',
            }
        };
        jobs.chars().map(&mut said).collect()
    }

    fn job_label(lane: Lane) -> char {
        match lane {
            Lane::Priority => 'a',
            Lane::Normal => 'p',
            Lane::Detached => 'd',
        }
    }

    fn take_all(lanes: &mut Lanes) -> String {
        let mut taken = String::new();
        while let Some((lane, _, _)) = lanes.take_next() {
            taken.push(job_label(lane));
        }
        taken
    }

    #[test]
    fn jobs_run_queue_or_are_refused() {
        for (threads, queue_max, jobs, expected) in [
            (1, 1, "ppp", "twr"),
            (1, 0, "pp", "tr"),
            (1, 0, "pa", "tr"),
            (2, 0, "ppa", "trt"),
            (2, 0, "aap", "ttr"),
            (2, 1, "pppaaa", "twrtwr"),
            (4, 2, "pppppp", "tttwwr"),
            (32, 0, &"p".repeat(29), &format!("{}r", "t".repeat(28))),
        ] {
            let mut lanes = Lanes::new(threads);
            let said = admit(&mut lanes, jobs, queue_max);
            assert_eq!(said, expected, "{threads} {queue_max} {jobs}");
            for lane in [Lane::Priority, Lane::Normal] {
                assert!(lanes.waiting_in(lane) <= queue_max, "{threads} {jobs}");
            }
        }
    }

    #[test]
    fn each_lane_has_its_own_limit() {
        let mut lanes = Lanes::new(2);
        assert_eq!(admit(&mut lanes, "pa", 0), "tt");
        assert_eq!(take_all(&mut lanes), "ap");
        // Waiting closes take no capacity from reads, nor reads from opens.
        assert_eq!(admit(&mut lanes, "ddd", 5), "www");
        assert_eq!(admit(&mut lanes, "ppp", 2), "wwr");
        assert_eq!(admit(&mut lanes, "aaa", 2), "wwr");
        assert_eq!(admit(&mut lanes, "ddd", 5), "wwr");
        assert_eq!(lanes.total_waiting_count(), 9);
        lanes.finish_job(Lane::Normal);
        // The first of them could run now: it does not wait.
        assert_eq!(lanes.waiting_in(Lane::Detached), 4);
        assert_eq!(lanes.waiting_in(Lane::Normal), 2);
    }

    #[test]
    fn priority_jobs_go_first_and_have_reserved_threads() {
        for (threads, jobs, expected) in [
            (1, "ppa", "a"),
            (2, "pppa", "ap"),
            (2, "aaa", "aa"),
            (4, "ppppp", "ppp"),
            (4, "aaaaa", "aaaa"),
            // While normal jobs wait, one thread is theirs.
            (4, "pppppaaaaa", "aaap"),
            (4, "aaaaadd", "aaad"),
            (16, "pppppppppppppppp", "pppppppppppppp"),
        ] {
            let mut lanes = Lanes::new(threads);
            admit(&mut lanes, jobs, 100);
            assert_eq!(take_all(&mut lanes), expected, "{threads} {jobs}");
        }
    }

    #[test]
    fn a_crowd_limits_normal_jobs_but_never_stops_them() {
        let start = Instant::now();
        let (during, after) = (start + CROWD_TIME / 2, start + CROWD_TIME);
        for (threads, at, expected) in [
            (32, during, "aaaapppp"),
            (64, during, "aaaapppppppp"),
            (32, after, &format!("aaaa{}", "p".repeat(28))),
            (8, during, "aaaapppp"),
            (2, during, "ap"),
        ] {
            let mut lanes = Lanes::new(threads);
            lanes.record_crowded_read(start);
            lanes.update_time(at);
            admit(&mut lanes, &format!("aaaa{}", "p".repeat(80)), 100);
            let taken = take_all(&mut lanes);
            assert_eq!(taken, expected, "{threads}");
            let plain = taken.matches('p').count();
            assert_eq!(lanes.total_waiting_count(), 84 - taken.len(), "{threads}");
            // Each job that ends makes room for one.
            for _ in 0..plain {
                lanes.finish_job(Lane::Normal);
                assert_eq!(
                    (lanes.startable_count(), take_all(&mut lanes).len()),
                    (1, 1)
                );
            }
        }
    }

    #[test]
    fn priority_jobs_do_not_starve_normal_ones() {
        for threads in [1, 2, 3, 32] {
            let mut lanes = Lanes::new(threads);
            admit(&mut lanes, "pppp", 100);
            let mut done = 0;
            // However many arrive, as fast as they are taken.
            for _ in 0..100 {
                admit(&mut lanes, &"a".repeat(2 * threads), 1000);
                let taken = take_all(&mut lanes);
                done += taken.chars().filter(|&letter| letter == 'p').count();
                for letter in taken.chars() {
                    lanes.finish_job(if letter == 'a' {
                        Lane::Priority
                    } else {
                        Lane::Normal
                    });
                }
            }
            assert_eq!(done, 4, "{threads}");
        }
        // A single thread alternates.
        let mut lanes = Lanes::new(1);
        admit(&mut lanes, "pppaa", 100);
        let mut order = String::new();
        while let Some((lane, _, _)) = lanes.take_next() {
            order.push(job_label(lane));
            lanes.finish_job(lane);
        }
        assert_eq!(order, "apapp");
        assert_eq!(
            (lanes.total_running_count(), lanes.total_waiting_count()),
            (0, 0)
        );
    }
}
