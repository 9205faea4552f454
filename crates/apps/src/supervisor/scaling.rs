//! How many workers the load asks for.
//!
//! Used by the supervisor, which gives each [`Load`] and what it knows of its workers, and gets a
//! [`Step`] when their number should change. One more (several when many wait) when the first in line
//! has waited for `up_after` with every slot busy, unless those that boot already will take the line,
//! or it will be gone before more would help; one less when for `idle_ttl` one less would have done
//! with a quarter to spare. Where slots say little ([`Load::busy_percent`]), also one more when all workers are
//! busy for [`BUSY_FOR`], and none less unless the others would be half idle.
//!
//! Where the number of threads of each may change as well, what waits gets more of them (twice as many at most, and
//! then it is seen what they do) as long as the workers leave the processors room: it waits for something else, and
//! a thread costs next to nothing. It gets a worker where they do not, or where each has all threads that it may
//! have; and where there may be no more workers, in the end a thread at a time all the same: what is short must not
//! wait for ever behind what computes for long. When less is needed, workers go first.
//!
//! What must stay true, and is simulated: the number stays between its bounds; it grows by no more
//! than `spawn_rate` a second, and never do more boot than serve; it does not shrink for `idle_ttl`
//! after a change, so a load that comes and goes within that time makes it grow once and stay.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::rate::Rate;
use super::{Load, Policy};

/// What has been seen of the load, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Scaling {
    demand: Window,
    line: Line,
    /// The sum of how busy all are.
    busyness: Window,
    /// Since when every worker is busy.
    busy_since: Option<Instant>,
    growth: Rate,
    /// How many workers served at the last look, and when there were more last.
    ready: usize,
    workers_at: Option<Instant>,
    /// When there were more threads last.
    threads_at: Option<Instant>,
    /// Since when somebody waits with every slot busy.
    full_since: Option<Instant>,
    /// Since when it is not known how busy the workers are meanwhile.
    unknown_since: Option<Instant>,
    last: Option<String>,
}

/// The workers that there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet {
    /// How many there are to be.
    pub(super) target: usize,
    /// How many threads of each take requests.
    pub(super) threads: usize,
    /// Those that serve.
    pub(super) ready: usize,
    /// How long the last of them took to boot.
    pub(super) boot: Duration,
    /// Not while the code does not boot.
    pub(super) may_grow: bool,
    /// Not while workers are being replaced by a restart.
    pub(super) may_shrink: bool,
}

/// What a change is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// The workers.
    Processes,
    /// The threads of each that take requests.
    Threads,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// What changes.
    pub(super) of: Number,
    /// How many there are to be.
    pub(super) to: usize,
    /// What was seen, in words.
    pub(super) why: String,
}

impl Scaling {
    /// Takes in what there is to do, and answers how many workers there should be instead.
    pub(super) fn look(
        &mut self,
        now: Instant,
        load: &Load,
        fleet: Fleet,
        policy: &Policy,
    ) -> Option<Step> {
        self.demand
            .note(now, load.in_progress + load.waiting, policy.idle_ttl);
        self.line
            .note(now, load.waiting, fleet.ready * fleet.threads);
        if fleet.ready > self.ready {
            self.workers_at = Some(now);
        }
        self.ready = fleet.ready;
        if let Some(busy) = load.busy_percent {
            self.busyness.note(now, busy, policy.idle_ttl);
        }
        let more = self.more(now, load, fleet, policy);
        let more = more.or_else(|| self.more_for_busy(now, load, fleet, policy));
        let less = || {
            let workers = self.less(now, load, fleet, policy);
            workers.or_else(|| self.less_threads(now, load, fleet, policy))
        };
        let step = more.or_else(less)?;
        let (from, what) = match step.of {
            Number::Processes => (fleet.target, ""),
            Number::Threads => (fleet.threads, "threads "),
        };
        match step.of {
            _ if step.to < from => {}
            Number::Processes => (from..step.to).for_each(|_| self.growth.note(now)),
            Number::Threads => self.threads_at = Some(now),
        }
        // After a change, what was used before it says nothing.
        (self.demand, self.busyness) = (Window::default(), Window::default());
        self.busy_since = None;
        self.last = Some(format!("{what}from {from} to {}: {}", step.to, step.why));
        Some(step)
    }

    /// What changed last, and why, in words.
    pub(super) fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    fn more(&mut self, now: Instant, load: &Load, fleet: Fleet, policy: &Policy) -> Option<Step> {
        let each = slots_each(load, fleet)?;
        if load.waiting == 0 || load.in_progress < load.places {
            (self.full_since, self.unknown_since) = (None, None);
            return None;
        }
        let full_since = *self.full_since.get_or_insert(now);
        if load.oldest_wait < policy.up_after {
            return None;
        }
        if self.growth.last().is_some_and(|at| now < at + TREND / 2) {
            return None;
        }
        let why = || {
            let line = match load.waiting {
                1 => "1 request waited".to_owned(),
                waiting => format!("{waiting} requests waited up to"),
            };
            let slots = match load.places {
                1 => "the only slot".to_owned(),
                places => format!("all {places} slots"),
            };
            let millis = load.oldest_wait.as_millis();
            format!("{line} {millis} ms with {slots} busy")
        };
        if fleet.threads < policy.threads_max && load.busy_percent.is_some() {
            // What they do since somebody waits, and since there are as many as now.
            let since = self.threads_at.max(Some(full_since));
            let is_known = load.watched_from >= since;
            if is_known {
                self.unknown_since = None;
            } else if now < *self.unknown_since.get_or_insert(now) + DOUBT_MAX {
                return None;
            }
            let is_leaving = self.line.is_leaving(now, PATIENCE_FOR_THREADS);
            // Where nothing else has helped for long.
            let changed = since.max(self.workers_at);
            let is_last_resort = fleet.target >= policy.processes_max
                && fleet.ready >= fleet.target
                && changed.is_some_and(|at| now >= at + BUSY_FOR);
            let by = more_threads(load, fleet, policy, is_last_resort);
            let by = by.filter(|_| is_known && !is_leaving);
            if let Some(by) = by {
                return Some(Step {
                    of: Number::Threads,
                    to: fleet.threads + by,
                    why: why(),
                });
            }
        }
        if !fleet.may_grow || self.line.is_leaving(now, PATIENCE + fleet.boot) {
            return None;
        }
        let coming = fleet.target.saturating_sub(fleet.ready);
        let unmet = load.waiting.saturating_sub(coming * each);
        let rate = policy.spawn_rate.max(1) as usize;
        let by = unmet
            .div_ceil(each)
            // One for each time that the line fills all slots: a short one is mostly chance.
            .min(load.waiting.div_ceil(load.places))
            // The line grows while workers boot: if they boot slowly, more than serve would be too many.
            .min(fleet.ready.saturating_sub(coming))
            .min(policy.processes_max.saturating_sub(fleet.target))
            .min(self.growth.room(now, rate));
        (by > 0).then(|| Step {
            of: Number::Processes,
            to: fleet.target + by,
            why: why(),
        })
    }

    /// One more where all that serve have been busy, whatever room they have.
    fn more_for_busy(
        &mut self,
        now: Instant,
        load: &Load,
        fleet: Fleet,
        policy: &Policy,
    ) -> Option<Step> {
        let is_busy = |busy| fleet.ready > 0 && busy >= fleet.ready * BUSY_PERCENT;
        if !load.busy_percent.is_some_and(is_busy) {
            self.busy_since = None;
            return None;
        }
        // With threads of their own, what computes in one of each leaves the others free.
        let is_threaded = policy.threads_min < policy.threads_max;
        if is_threaded && load.in_progress <= fleet.ready {
            self.busy_since = None;
            return None;
        }
        let since = *self.busy_since.get_or_insert(now);
        let rate = policy.spawn_rate.max(1) as usize;
        let has_room = fleet.may_grow
            && fleet.ready >= fleet.target
            && fleet.target < policy.processes_max
            && self.growth.room(now, rate) > 0;
        let is_long = now.saturating_duration_since(since) >= BUSY_FOR;
        (is_long && has_room).then(|| Step {
            of: Number::Processes,
            to: fleet.target + 1,
            why: match fleet.ready {
                1 => format!("it was busy for {BUSY_FOR:?}"),
                ready => format!("all {ready} were busy for {BUSY_FOR:?}"),
            },
        })
    }

    fn less(&self, now: Instant, load: &Load, fleet: Fleet, policy: &Policy) -> Option<Step> {
        let each = slots_each(load, fleet)?;
        let peak = self.demand.peak(now, policy.idle_ttl)?;
        let to = fleet.target.checked_sub(1)?;
        let is_calm = match load.busy_percent {
            None => true,
            Some(_) => self.busyness.peak(now, policy.idle_ttl)? <= to * CALM_PERCENT,
        };
        let fits = is_calm && peak * 4 <= to * each * 3;
        let is_allowed = fleet.may_shrink && to >= policy.processes_min.max(1);
        (fits && is_allowed).then(|| Step {
            of: Number::Processes,
            to,
            why: unneeded(peak, load, policy),
        })
    }

    /// As few threads as would have done with a quarter to spare.
    fn less_threads(
        &self,
        now: Instant,
        load: &Load,
        fleet: Fleet,
        policy: &Policy,
    ) -> Option<Step> {
        let peak = self.demand.peak(now, policy.idle_ttl)?;
        let others = fleet.target.saturating_sub(1);
        let fits_others = peak * 4 <= others * fleet.threads * 3;
        let is_calm = |busy| busy <= others * CALM_PERCENT;
        if others >= policy.processes_min.max(1)
            && fits_others
            && load.busy_percent.is_none_or(is_calm)
        {
            // A worker is about to go, once all have been as calm for long enough.
            return None;
        }
        let needed = (peak * 4).div_ceil(3 * fleet.ready.max(1));
        let to = needed.max(policy.threads_min);
        (to < fleet.threads && fleet.ready > 0 && fleet.may_shrink).then(|| Step {
            of: Number::Threads,
            to,
            why: unneeded(peak, load, policy),
        })
    }
}

fn unneeded(peak: usize, load: &Load, policy: &Policy) -> String {
    let (places, time) = (load.places, policy.idle_ttl);
    format!("at most {peak} of {places} slots were needed for {time:?}")
}

/// How many threads more each worker should have for a line that they would help. Where the workers want all of their
/// processors already that is none, or one as the last resort.
fn more_threads(load: &Load, fleet: Fleet, policy: &Policy, is_last_resort: bool) -> Option<usize> {
    let is_busy = load.busy_percent? >= fleet.ready * BUSY_PERCENT;
    let by = match is_busy {
        // At most twice as many at once: what they will do to the processors is not known yet.
        false => load.waiting.div_ceil(fleet.ready.max(1)).min(fleet.threads),
        true => usize::from(is_last_resort),
    };
    let by = by.min(policy.threads_max.saturating_sub(fleet.threads));
    (by > 0).then_some(by)
}

/// Slots of one worker; `None` while none serves.
fn slots_each(load: &Load, fleet: Fleet) -> Option<usize> {
    (load.places > 0)
        .then(|| load.places.checked_div(fleet.ready))?
        .map(|each| each.max(1))
}

/// How long the line was within the last second, with as many workers and threads as now.
#[derive(Debug, Default)]
struct Line {
    slots: usize,
    /// At most [`LENGTHS_MAX`].
    lengths: VecDeque<(Instant, usize)>,
    /// Whether more have come since the lengths before.
    is_helped: bool,
}

impl Line {
    fn note(&mut self, now: Instant, waiting: usize, slots: usize) {
        if slots != self.slots {
            self.is_helped = slots > self.slots && self.slots > 0;
            self.slots = slots;
            self.lengths.clear();
        }
        while let Some((at, _)) = self.lengths.front()
            && (now.saturating_duration_since(*at) > TREND || self.lengths.len() == LENGTHS_MAX)
        {
            self.lengths.pop_front();
        }
        self.lengths.push_back((now, waiting));
    }

    /// Whether it needs no more workers than there are: the last one has only just come, or what
    /// they take from it will empty it within that time.
    fn is_leaving(&self, now: Instant, within: Duration) -> bool {
        let (Some((since, then)), Some((_, waiting))) = (self.lengths.front(), self.lengths.back())
        else {
            return false;
        };
        let watched = now.saturating_duration_since(*since);
        if watched < TREND / 2 {
            return self.is_helped;
        }
        let taken = then.saturating_sub(*waiting);
        let worth = watched.as_secs_f64() * *waiting as f64;
        taken > 0 && worth <= within.as_secs_f64() * taken as f64
    }
}

/// The most slots that were needed at once, over a time that moves along.
#[derive(Debug, Default)]
struct Window {
    /// When it began, and when it was last told something.
    seen: Option<(Instant, Instant)>,
    /// The peaks of its pieces, by their beginnings; at most [`PIECES`] and one more.
    peaks: VecDeque<(Instant, usize)>,
}

impl Window {
    fn note(&mut self, now: Instant, needed: usize, length: Duration) {
        let seen = self.seen;
        // Nobody looked for a while: what was needed then is not known.
        let seen = seen.filter(|(_, last)| now.saturating_duration_since(*last) < BLINK_MAX);
        if seen.is_none() {
            self.peaks.clear();
        }
        self.seen = Some((seen.map_or(now, |(since, _)| since), now));
        let piece = length / PIECES;
        let age = |at: &Instant| now.saturating_duration_since(*at);
        while self
            .peaks
            .front()
            .is_some_and(|(at, _)| age(at) >= length.saturating_add(piece))
        {
            self.peaks.pop_front();
        }
        match self.peaks.back_mut() {
            Some((at, peak)) if age(at) < piece => *peak = needed.max(*peak),
            _ => self.peaks.push_back((now, needed)),
        }
    }

    /// The peak of the last `length`; `None` when it has not been watched for so long.
    fn peak(&self, now: Instant, length: Duration) -> Option<usize> {
        let (since, _) = self.seen?;
        if now.saturating_duration_since(since) < length {
            return None;
        }
        self.peaks.iter().map(|(_, peak)| *peak).max()
    }
}

/// How busy a worker is of which another may relieve it.
const BUSY_PERCENT: usize = 85;

/// For how long all must be so busy.
const BUSY_FOR: Duration = Duration::from_secs(5);

/// How busy each may be at most when there is one less. What makes a number of workers grow is more than that for
/// the same number, so that no load makes them go up and down.
const CALM_PERCENT: usize = 50;

/// How long nothing is done about a line because nobody could see how busy the workers are.
const DOUBT_MAX: Duration = Duration::from_secs(3);

/// For how long the line is watched to see where it goes.
const TREND: Duration = Duration::from_secs(1);

/// Looks at the line that are kept: more than come within [`TREND`].
const LENGTHS_MAX: usize = 32;

/// A line that is gone within this time needs no more workers, even where they boot at once.
const PATIENCE: Duration = Duration::from_secs(3);

/// The same for threads, which cost next to nothing and are there at once.
const PATIENCE_FOR_THREADS: Duration = Duration::from_millis(500);

/// Into how many pieces a window is divided: it forgets by pieces.
const PIECES: u32 = 16;

/// How long the load may go unseen. It is told ten times a second.
const BLINK_MAX: Duration = Duration::from_secs(5);
