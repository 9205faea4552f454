//! Which job runs next, and whether one more may wait: the rules of a pool, without its threads.
//!
//! Called by `blocking` under its lock. What must stay true: plain jobs never run on all threads at
//! once (where there are two or more), work that goes ahead is taken first, and no more jobs wait than
//! the bound says. A job that a thread can take at once does not wait, whatever the bound.

use std::collections::VecDeque;
use std::time::Instant;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Short work that goes first.
    Ahead,
    /// Reads and writes.
    Plain,
}

/// What became of a new job.
pub(super) enum Admission {
    /// A thread can take it now.
    Taken,
    /// It waits for one.
    Waits,
    /// There is no room; here it is.
    Refused(Job),
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<(Job, Instant)>,
    running: usize,
}

/// Waiting and running jobs.
pub(super) struct Lanes {
    threads_max: usize,
    ahead: Line,
    plain: Line,
}

impl Lanes {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            threads_max,
            ahead: Line::default(),
            plain: Line::default(),
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
        let (ahead, plain) = self.startable_by_lane();
        ahead + plain
    }

    /// Jobs that wait for another to end.
    pub(super) fn waiting(&self) -> usize {
        self.ahead.jobs.len() + self.plain.jobs.len() - self.startable()
    }

    /// Threads that plain jobs may have at once.
    fn plain_max(&self) -> usize {
        let kept = (self.threads_max / KEPT_SHARE).max(1);
        self.threads_max.saturating_sub(kept).max(1)
    }

    fn startable_by_lane(&self) -> (usize, usize) {
        let free = self.threads_max.saturating_sub(self.running());
        let ahead = self.ahead.jobs.len().min(free);
        let plain_free = self.plain_max().saturating_sub(self.plain.running);
        let plain = self.plain.jobs.len().min(plain_free).min(free - ahead);
        (ahead, plain)
    }

    /// Takes a job in, if a thread is free for it or fewer than `queue_max` wait.
    pub(super) fn admit(
        &mut self,
        lane: Lane,
        job: Job,
        now: Instant,
        queue_max: usize,
    ) -> Admission {
        let (waiting, startable) = (self.waiting(), self.startable());
        self.line(lane).jobs.push_back((job, now));
        if self.startable() > startable {
            return Admission::Taken;
        }
        if waiting < queue_max {
            return Admission::Waits;
        }
        match self.take_back(lane) {
            Some(job) => Admission::Refused(job),
            None => Admission::Waits,
        }
    }

    /// The job that was taken in last.
    pub(super) fn take_back(&mut self, lane: Lane) -> Option<Job> {
        self.line(lane).jobs.pop_back().map(|(job, _)| job)
    }

    /// The next job to run, and since when it waits; [`Lanes::finish`] ends it.
    pub(super) fn take(&mut self) -> Option<(Lane, Job, Instant)> {
        let lane = match self.startable_by_lane() {
            (0, 0) => return None,
            (0, _) => Lane::Plain,
            _ => Lane::Ahead,
        };
        let line = self.line(lane);
        let (job, queued_at) = line.jobs.pop_front()?;
        line.running += 1;
        Some((lane, job, queued_at))
    }

    pub(super) fn finish(&mut self, lane: Lane) {
        self.line(lane).running -= 1;
    }

    fn line(&mut self, lane: Lane) -> &mut Line {
        match lane {
            Lane::Ahead => &mut self.ahead,
            Lane::Plain => &mut self.plain,
        }
    }
}

/// One thread in so many, rounded down but at least one, is kept for what goes ahead: four of the usual 32, which at half a
/// millisecond a cold open are 8,000 of them a second.
const KEPT_SHARE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes in a job of each letter: `a`head or `p`lain; says `t`aken, `w`aits or `r`efused.
    fn admit(lanes: &mut Lanes, jobs: &str, queue_max: usize) -> String {
        let now = Instant::now();
        let mut said = |letter| {
            let lane = if letter == 'a' {
                Lane::Ahead
            } else {
                Lane::Plain
            };
            match lanes.admit(lane, Box::new(|| ()), now, queue_max) {
                Admission::Taken => 't',
                Admission::Waits => 'w',
                Admission::Refused(_) => 'r',
            }
        };
        jobs.chars().map(&mut said).collect()
    }

    fn take_all(lanes: &mut Lanes) -> String {
        let mut taken = String::new();
        while let Some((lane, _, _)) = lanes.take() {
            taken.push(if lane == Lane::Ahead { 'a' } else { 'p' });
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
            (2, 1, "pppaa", "twrtr"),
            (4, 2, "pppppp", "tttwwr"),
            (32, 0, &"p".repeat(29), &format!("{}r", "t".repeat(28))),
        ] {
            let mut lanes = Lanes::new(threads);
            let said = admit(&mut lanes, jobs, queue_max);
            assert_eq!(said, expected, "{threads} {queue_max} {jobs}");
            assert!(lanes.waiting() <= queue_max, "{threads} {queue_max} {jobs}");
        }
    }

    #[test]
    fn what_goes_ahead_is_taken_first_and_threads_are_kept_for_it() {
        for (threads, jobs, expected) in [
            (1, "ppa", "a"),
            (2, "pppa", "ap"),
            (4, "ppppp", "ppp"),
            (4, "pppppaaaaa", "aaaa"),
            (16, "pppppppppppppppp", "pppppppppppppp"),
        ] {
            let mut lanes = Lanes::new(threads);
            admit(&mut lanes, jobs, 100);
            assert_eq!(take_all(&mut lanes), expected, "{threads} {jobs}");
        }
        let mut lanes = Lanes::new(1);
        admit(&mut lanes, "ppa", 100);
        let mut order = String::new();
        while let Some((lane, _, _)) = lanes.take() {
            order.push(if lane == Lane::Ahead { 'a' } else { 'p' });
            lanes.finish(lane);
        }
        assert_eq!(order, "app");
        assert_eq!((lanes.running(), lanes.waiting()), (0, 0));
    }
}
