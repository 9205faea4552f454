//! Which job runs next, and whether one more may wait: the rules of a pool, without its threads.
//!
//! Called by `blocking` under its lock. What must stay true: plain jobs never run on all threads at
//! once (where there are two or more); work that goes ahead is taken first, but not by all threads while plain
//! jobs wait, so that neither starves the other; no more jobs of a lane wait than its bound says, however
//! many of the other lanes do. A job that a thread can take at once does not wait, whatever the bound.
//! Within a line, what many wait for goes first and files have their turns (`fair_queue`).

use std::time::{Duration, Instant};

use super::fair_queue::{FairQueue, Position, ReadId};
use crate::disk::FileKey;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Short work that goes first.
    Ahead,
    /// Reads and writes.
    Plain,
    /// What must be done some time, in turn with reads and writes, but is counted apart.
    Detached,
}

/// What became of a new job.
pub(super) enum Admission {
    /// A thread can take it now; where it was put.
    Taken(Position),
    /// It waits for one.
    Waits,
    /// There is no room; here it is.
    Refused(Job),
}

struct Entry {
    lane: Lane,
    job: Job,
    queued_at: Instant,
}

/// A job that is to wait for a thread.
pub(super) struct Arrival {
    pub(super) lane: Lane,
    /// Which part of a file it reads, and how many wait for that; `None` for a job that stands alone.
    pub(super) read: Option<(ReadId<FileKey>, usize)>,
    pub(super) job: Job,
}

/// Jobs that take the same threads.
struct Line {
    jobs: FairQueue<FileKey, Entry>,
    /// Of them, [`Lane::Detached`].
    detached: usize,
    running: usize,
}

/// Waiting and running jobs.
pub(super) struct Lanes {
    threads_max: usize,
    ahead: Line,
    plain: Line,
    /// Whose turn it is where one thread does all: it was the other's before.
    is_plain_next: bool,
    /// Until when fewer plain jobs run than could.
    crowd_until: Option<Instant>,
    /// Whether that is still to come, as far as is known.
    is_crowded: bool,
}

impl Lanes {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            threads_max,
            ahead: Line::new(),
            plain: Line::new(),
            is_plain_next: false,
            crowd_until: None,
            is_crowded: false,
        }
    }

    /// A crowd waits for a disk: for some time fewer plain jobs run at once. What a disk has accepted already goes before
    /// what a crowd asks for, whatever the order here, and a few reads at a time are enough to keep it busy.
    pub(super) fn note_crowd(&mut self, now: Instant) {
        self.crowd_until = Some(now + CROWD_TIME);
        self.note_time(now);
    }

    /// Tells the time, before jobs are admitted or taken.
    pub(super) fn note_time(&mut self, now: Instant) {
        self.is_crowded = self.crowd_until.is_some_and(|until| now < until);
    }

    /// How many plain jobs may run at once.
    fn plain_max(&self) -> usize {
        let most = self.threads_max - self.kept();
        match self.is_crowded {
            true => most.min((self.threads_max / CROWDED_SHARE).max(CROWDED_MIN)),
            false => most,
        }
    }

    pub(super) fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Jobs at work.
    pub(super) fn running(&self) -> usize {
        self.ahead.running + self.plain.running
    }

    /// Jobs that could run now, were their threads awake.
    pub(super) fn startable(&self) -> usize {
        let (ahead, plain) = self.startable_by_line();
        ahead + plain
    }

    /// Jobs that wait for another to end.
    pub(super) fn waiting(&self) -> usize {
        self.ahead.jobs.len() + self.plain.jobs.len() - self.startable()
    }

    /// Of one lane.
    fn waiting_in(&self, lane: Lane) -> usize {
        let (ahead, plain) = self.startable_by_line();
        let startable = if lane == Lane::Ahead { ahead } else { plain };
        let line = self.line_of(lane);
        let first = line.jobs.iter().take(startable);
        line.count(lane) - first.filter(|entry| entry.lane == lane).count()
    }

    /// Threads that are never given to plain jobs, nor to those that go ahead while plain jobs wait.
    fn kept(&self) -> usize {
        (self.threads_max / KEPT_SHARE).max(1)
    }

    fn startable_by_line(&self) -> (usize, usize) {
        let free = self.threads_max.saturating_sub(self.running());
        let (ahead, plain) = (self.ahead.jobs.len(), self.plain.jobs.len());
        if self.threads_max == 1 {
            let is_plain = plain > 0 && (ahead == 0 || self.is_plain_next);
            return match is_plain {
                true => (0, free),
                false => (ahead.min(free), 0),
            };
        }
        let most = self.threads_max - self.kept();
        let ahead_max = if plain > 0 { most } else { self.threads_max };
        let ahead = ahead
            .min(free)
            .min(ahead_max.saturating_sub(self.ahead.running));
        let plain = plain
            .min(free - ahead)
            .min(self.plain_max().saturating_sub(self.plain.running));
        (ahead, plain)
    }

    /// Takes a job in, if a thread is free for it or fewer than `waiting_max` of its lane wait.
    pub(super) fn admit(
        &mut self,
        arrival: Arrival,
        now: Instant,
        waiting_max: usize,
    ) -> Admission {
        let Arrival { lane, read, job } = arrival;
        let (waiting, startable) = (self.waiting_in(lane), self.startable());
        let line = self.line(lane);
        line.detached += usize::from(lane == Lane::Detached);
        let entry = Entry {
            lane,
            job,
            queued_at: now,
        };
        let position = match read {
            Some((id, waiters)) => line.jobs.push_read(id, waiters, entry),
            None => line.jobs.push(entry),
        };
        if self.startable() > startable {
            return Admission::Taken(position);
        }
        if waiting < waiting_max {
            return Admission::Waits;
        }
        match self.take_back(lane, position) {
            Some(job) => Admission::Refused(job),
            None => Admission::Waits,
        }
    }

    /// The job of that lane that was admitted last.
    pub(super) fn take_back(&mut self, lane: Lane, position: Position) -> Option<Job> {
        let line = self.line(lane);
        let entry = line.jobs.take_back(position)?;
        line.detached -= usize::from(entry.lane == Lane::Detached);
        Some(entry.job)
    }

    /// Counts a waiter of a plain read in or out, as long as it did not begin.
    pub(super) fn count_waiter(&mut self, id: ReadId<FileKey>, has_come: bool) {
        self.plain.jobs.count_waiter(id, has_come);
    }

    /// The next job to run, and since when it waits; [`Lanes::finish`] ends it.
    pub(super) fn take(&mut self) -> Option<(Lane, Job, Instant)> {
        let line = match self.startable_by_line() {
            (0, 0) => return None,
            (0, _) => &mut self.plain,
            _ => &mut self.ahead,
        };
        let Entry {
            lane,
            job,
            queued_at,
        } = line.jobs.take()?;
        line.detached -= usize::from(lane == Lane::Detached);
        line.running += 1;
        self.is_plain_next = lane == Lane::Ahead;
        Some((lane, job, queued_at))
    }

    pub(super) fn finish(&mut self, lane: Lane) {
        self.line(lane).running -= 1;
    }

    fn line(&mut self, lane: Lane) -> &mut Line {
        match lane {
            Lane::Ahead => &mut self.ahead,
            Lane::Plain | Lane::Detached => &mut self.plain,
        }
    }

    fn line_of(&self, lane: Lane) -> &Line {
        match lane {
            Lane::Ahead => &self.ahead,
            Lane::Plain | Lane::Detached => &self.plain,
        }
    }
}

impl Line {
    fn new() -> Self {
        Self {
            jobs: FairQueue::new(),
            detached: 0,
            running: 0,
        }
    }

    /// Jobs of a lane that did not begin.
    fn count(&self, lane: Lane) -> usize {
        match lane {
            Lane::Detached => self.detached,
            Lane::Ahead | Lane::Plain => self.jobs.len() - self.detached,
        }
    }
}

/// One thread in so many, rounded down but at least one, is kept for what goes ahead: four of the usual 32, which at half a
/// millisecond a cold open are 8,000 of them a second. As many are kept for plain jobs that wait.
const KEPT_SHARE: usize = 8;

/// While a crowd waits plain jobs get one thread in so many, but not fewer than [`CROWDED_MIN`]: of 32 threads 4, whose reads
/// of half a megabyte take 20 ms of a disk of 100 MB/s, instead of 150 ms.
const CROWDED_SHARE: usize = 8;
const CROWDED_MIN: usize = 4;

/// How long a crowd is minded after the last time that one had to wait.
const CROWD_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes in a job of each letter: `a`head, `p`lain or `d`etached; says `t`aken, `w`aits or `r`efused.
    fn admit(lanes: &mut Lanes, jobs: &str, queue_max: usize) -> String {
        let now = Instant::now();
        let mut said = |letter| {
            let lane = match letter {
                'a' => Lane::Ahead,
                'p' => Lane::Plain,
                _ => Lane::Detached,
            };
            let arrival = Arrival {
                lane,
                read: None,
                job: Box::new(|| ()),
            };
            match lanes.admit(arrival, now, queue_max) {
                Admission::Taken(_) => 't',
                Admission::Waits => 'w',
                Admission::Refused(_) => 'r',
            }
        };
        jobs.chars().map(&mut said).collect()
    }

    fn letter(lane: Lane) -> char {
        match lane {
            Lane::Ahead => 'a',
            Lane::Plain => 'p',
            Lane::Detached => 'd',
        }
    }

    fn take_all(lanes: &mut Lanes) -> String {
        let mut taken = String::new();
        while let Some((lane, _, _)) = lanes.take() {
            taken.push(letter(lane));
        }
        taken
    }

    #[test]
    fn jobs_are_taken_wait_or_are_refused() {
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
            for lane in [Lane::Ahead, Lane::Plain] {
                assert!(lanes.waiting_in(lane) <= queue_max, "{threads} {jobs}");
            }
        }
    }

    #[test]
    fn each_lane_has_a_bound_of_its_own() {
        let mut lanes = Lanes::new(2);
        assert_eq!(admit(&mut lanes, "pa", 0), "tt");
        assert_eq!(take_all(&mut lanes), "ap");
        // Closes that wait take no room from reads, reads none from opens.
        assert_eq!(admit(&mut lanes, "ddd", 5), "www");
        assert_eq!(admit(&mut lanes, "ppp", 2), "wwr");
        assert_eq!(admit(&mut lanes, "aaa", 2), "wwr");
        assert_eq!(admit(&mut lanes, "ddd", 5), "wwr");
        assert_eq!(lanes.waiting(), 9);
        lanes.finish(Lane::Plain);
        // The first of them could run now: it waits for nothing.
        assert_eq!(lanes.waiting_in(Lane::Detached), 4);
        assert_eq!(lanes.waiting_in(Lane::Plain), 2);
    }

    #[test]
    fn what_goes_ahead_is_taken_first_and_threads_are_kept_for_it() {
        for (threads, jobs, expected) in [
            (1, "ppa", "a"),
            (2, "pppa", "ap"),
            (2, "aaa", "aa"),
            (4, "ppppp", "ppp"),
            (4, "aaaaa", "aaaa"),
            // While plain jobs wait, one thread is theirs.
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
    fn while_a_crowd_waits_fewer_plain_jobs_run_and_some_always_do() {
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
            lanes.note_crowd(start);
            lanes.note_time(at);
            admit(&mut lanes, &format!("aaaa{}", "p".repeat(80)), 100);
            let taken = take_all(&mut lanes);
            assert_eq!(taken, expected, "{threads}");
            let plain = taken.matches('p').count();
            assert_eq!(lanes.waiting(), 84 - taken.len(), "{threads}");
            // Those that end make room, one for one.
            for _ in 0..plain {
                lanes.finish(Lane::Plain);
                assert_eq!((lanes.startable(), take_all(&mut lanes).len()), (1, 1));
            }
        }
    }

    #[test]
    fn what_goes_ahead_does_not_starve_the_rest() {
        for threads in [1, 2, 3, 32] {
            let mut lanes = Lanes::new(threads);
            admit(&mut lanes, "pppp", 100);
            let mut done = 0;
            // However many come, as fast as they are taken.
            for _ in 0..100 {
                admit(&mut lanes, &"a".repeat(2 * threads), 1000);
                let taken = take_all(&mut lanes);
                done += taken.chars().filter(|&letter| letter == 'p').count();
                for letter in taken.chars() {
                    lanes.finish(if letter == 'a' {
                        Lane::Ahead
                    } else {
                        Lane::Plain
                    });
                }
            }
            assert_eq!(done, 4, "{threads}");
        }
        // One thread does them in turn.
        let mut lanes = Lanes::new(1);
        admit(&mut lanes, "pppaa", 100);
        let mut order = String::new();
        while let Some((lane, _, _)) = lanes.take() {
            order.push(letter(lane));
            lanes.finish(lane);
        }
        assert_eq!(order, "apapp");
        assert_eq!((lanes.running(), lanes.waiting()), (0, 0));
    }
}
