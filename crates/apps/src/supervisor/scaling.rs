//! How many workers the load asks for.
//!
//! The supervisor passes in each [`AppLoad`] and its view of the workers, and gets a
//! [`ScalingStep`] when their number should change. One more (several when many requests wait) when
//! the first in the queue has waited for `up_after` with every slot busy, unless booting workers
//! will take the queue, or it will be gone before more would help. One less when for `idle_timeout`
//! one less would have done with a quarter to spare. Where slots tell little
//! ([`AppLoad::cpu_percent`]), also one more when all workers are busy for [`BUSY_DURATION`], and
//! none less unless the others would be half idle.
//!
//! If the number of threads of each may change as well, waiting requests get more threads (twice as
//! many at most, and then the effect is measured) as long as the workers leave the processors room:
//! then requests wait for something else, and a thread costs next to nothing. They get a worker
//! where the processors are busy, or where each worker has all its threads. Where there may be no
//! more workers, in the end they get a thread at a time all the same: short requests must not wait
//! for ever behind long computations. When less is needed, workers go first.
//!
//! # Invariants
//! - The number stays between its bounds.
//! - It grows by no more than `max_spawn_rate` a second, and never do more boot than serve.
//! - It does not shrink for `idle_timeout` after a change, so a load that comes and goes within
//!   that time makes it grow once and stay.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::rate_window::RateWindow;
use super::{AppLoad, SupervisorPolicy};

/// What has been seen of the load, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Autoscaler {
    slot_peaks: PeakWindow,
    queue_trend: QueueTrend,
    /// The sum of how busy all are.
    cpu_peaks: PeakWindow,
    /// Since when every worker is busy.
    cpu_busy_since: Option<Instant>,
    growth_rate: RateWindow,
    /// How many workers served at the last look, and when there were more last.
    last_ready: usize,
    workers_grew_at: Option<Instant>,
    /// When there were more threads last.
    threads_grew_at: Option<Instant>,
    /// Since when requests wait with every slot busy.
    all_busy_since: Option<Instant>,
    /// Since when it is not known how busy the workers are meanwhile.
    cpu_unknown_since: Option<Instant>,
    last_change: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentScale {
    /// How many there are to be.
    pub(super) target: usize,
    /// How many threads of each take requests.
    pub(super) threads: usize,
    /// Those that serve.
    pub(super) ready: usize,
    /// How long the last of them took to boot.
    pub(super) boot_time: Duration,
    /// Not while the code does not boot.
    pub(super) may_grow: bool,
    /// Not while workers are being replaced by a restart.
    pub(super) may_shrink: bool,
}

/// What a change is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaledQuantity {
    Processes,
    /// The threads of each that take requests.
    Threads,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScalingStep {
    pub(super) quantity: ScaledQuantity,
    /// How many there are to be.
    pub(super) target: usize,
    /// What was seen, in words.
    pub(super) reason: String,
}

impl Autoscaler {
    /// Takes in what there is to do, and answers how many workers there should be instead.
    pub(super) fn observe(
        &mut self,
        now: Instant,
        load: &AppLoad,
        fleet: CurrentScale,
        policy: &SupervisorPolicy,
    ) -> Option<ScalingStep> {
        self.slot_peaks
            .record(now, load.in_progress + load.queued, policy.scale_down_after);
        self.queue_trend
            .record(now, load.queued, fleet.ready * fleet.threads);
        if fleet.ready > self.last_ready {
            self.workers_grew_at = Some(now);
        }
        self.last_ready = fleet.ready;
        if let Some(busy) = load.cpu_percent {
            self.cpu_peaks.record(now, busy, policy.scale_down_after);
        }
        let more = self.scale_up(now, load, fleet, policy);
        let more = more.or_else(|| self.scale_up_for_cpu(now, load, fleet, policy));
        let less = || {
            let workers = self.scale_down(now, load, fleet, policy);
            workers.or_else(|| self.scale_down_threads(now, load, fleet, policy))
        };
        let step = more.or_else(less)?;
        let (from, what) = match step.quantity {
            ScaledQuantity::Processes => (fleet.target, ""),
            ScaledQuantity::Threads => (fleet.threads, "threads "),
        };
        match step.quantity {
            _ if step.target < from => {}
            ScaledQuantity::Processes => {
                (from..step.target).for_each(|_| self.growth_rate.record(now));
            }
            ScaledQuantity::Threads => self.threads_grew_at = Some(now),
        }
        // After a change, what was used before it says nothing.
        (self.slot_peaks, self.cpu_peaks) = (PeakWindow::default(), PeakWindow::default());
        self.cpu_busy_since = None;
        self.last_change = Some(format!(
            "{what}from {from} to {}: {}",
            step.target, step.reason
        ));
        Some(step)
    }

    /// What changed last, and why, in words.
    pub(super) fn last_change(&self) -> Option<&str> {
        self.last_change.as_deref()
    }

    fn scale_up(
        &mut self,
        now: Instant,
        load: &AppLoad,
        fleet: CurrentScale,
        policy: &SupervisorPolicy,
    ) -> Option<ScalingStep> {
        let each = slots_per_worker(load, fleet)?;
        if load.queued == 0 || load.in_progress < load.slots {
            (self.all_busy_since, self.cpu_unknown_since) = (None, None);
            return None;
        }
        let full_since = *self.all_busy_since.get_or_insert(now);
        if load.oldest_wait < policy.scale_up_after {
            return None;
        }
        if self
            .growth_rate
            .last_recorded_at()
            .is_some_and(|at| now < at + TREND_WINDOW / 2)
        {
            return None;
        }
        let why = || {
            let line = match load.queued {
                1 => "1 request waited".to_owned(),
                waiting => format!("{waiting} requests waited up to"),
            };
            let slots = match load.slots {
                1 => "the only slot".to_owned(),
                slots => format!("all {slots} slots"),
            };
            let millis = load.oldest_wait.as_millis();
            format!("{line} {millis} ms with {slots} busy")
        };
        if fleet.threads < policy.max_threads && load.cpu_percent.is_some() {
            // Their usage since requests wait, and since there are as many as now.
            let since = self.threads_grew_at.max(Some(full_since));
            let is_known = load.cpu_known_since >= since;
            if is_known {
                self.cpu_unknown_since = None;
            } else if now < *self.cpu_unknown_since.get_or_insert(now) + MAX_CPU_UNKNOWN {
                return None;
            }
            let is_leaving = self.queue_trend.is_shrinking(now, DRAIN_TIME_FOR_THREADS);
            // Where nothing else has helped for long.
            let changed = since.max(self.workers_grew_at);
            let is_last_resort = fleet.target >= policy.max_processes
                && fleet.ready >= fleet.target
                && changed.is_some_and(|at| now >= at + BUSY_DURATION);
            let by = more_threads(load, fleet, policy, is_last_resort);
            let by = by.filter(|_| is_known && !is_leaving);
            if let Some(by) = by {
                return Some(ScalingStep {
                    quantity: ScaledQuantity::Threads,
                    target: fleet.threads + by,
                    reason: why(),
                });
            }
        }
        if !fleet.may_grow
            || self
                .queue_trend
                .is_shrinking(now, DRAIN_TIME_FOR_WORKERS + fleet.boot_time)
        {
            return None;
        }
        let coming = fleet.target.saturating_sub(fleet.ready);
        let unmet = load.queued.saturating_sub(coming * each);
        let rate = policy.spawn_rate.max(1) as usize;
        let by = unmet
            .div_ceil(each)
            // One for each time that the line fills all slots: a short one is mostly chance.
            .min(load.queued.div_ceil(load.slots))
            // The line grows while workers boot: if they boot slowly, more than serve would be too
            // many.
            .min(fleet.ready.saturating_sub(coming))
            .min(policy.max_processes.saturating_sub(fleet.target))
            .min(self.growth_rate.remaining(now, rate));
        (by > 0).then(|| ScalingStep {
            quantity: ScaledQuantity::Processes,
            target: fleet.target + by,
            reason: why(),
        })
    }

    /// One more where all that serve have been busy, whatever room they have.
    fn scale_up_for_cpu(
        &mut self,
        now: Instant,
        load: &AppLoad,
        fleet: CurrentScale,
        policy: &SupervisorPolicy,
    ) -> Option<ScalingStep> {
        let is_busy = |busy| fleet.ready > 0 && busy >= fleet.ready * BUSY_PERCENT;
        if !load.cpu_percent.is_some_and(is_busy) {
            self.cpu_busy_since = None;
            return None;
        }
        // With threads of their own, what computes in one of each leaves the others free.
        let is_threaded = policy.min_threads < policy.max_threads;
        if is_threaded && load.in_progress <= fleet.ready {
            self.cpu_busy_since = None;
            return None;
        }
        let since = *self.cpu_busy_since.get_or_insert(now);
        let rate = policy.spawn_rate.max(1) as usize;
        let has_room = fleet.may_grow
            && fleet.ready >= fleet.target
            && fleet.target < policy.max_processes
            && self.growth_rate.remaining(now, rate) > 0;
        let is_long = now.saturating_duration_since(since) >= BUSY_DURATION;
        (is_long && has_room).then(|| ScalingStep {
            quantity: ScaledQuantity::Processes,
            target: fleet.target + 1,
            reason: match fleet.ready {
                1 => format!("it was busy for {BUSY_DURATION:?}"),
                ready => format!("all {ready} were busy for {BUSY_DURATION:?}"),
            },
        })
    }

    fn scale_down(
        &self,
        now: Instant,
        load: &AppLoad,
        fleet: CurrentScale,
        policy: &SupervisorPolicy,
    ) -> Option<ScalingStep> {
        let each = slots_per_worker(load, fleet)?;
        let peak = self.slot_peaks.peak(now, policy.scale_down_after)?;
        let to = fleet.target.checked_sub(1)?;
        let is_calm = match load.cpu_percent {
            None => true,
            Some(_) => self.cpu_peaks.peak(now, policy.scale_down_after)? <= to * MAX_CALM_PERCENT,
        };
        let fits = is_calm && peak * 4 <= to * each * 3;
        let is_allowed = fleet.may_shrink && to >= policy.min_processes.max(1);
        (fits && is_allowed).then(|| ScalingStep {
            quantity: ScaledQuantity::Processes,
            target: to,
            reason: describe_unneeded(peak, load, policy),
        })
    }

    /// As few threads as would have done with a quarter to spare.
    fn scale_down_threads(
        &self,
        now: Instant,
        load: &AppLoad,
        fleet: CurrentScale,
        policy: &SupervisorPolicy,
    ) -> Option<ScalingStep> {
        let peak = self.slot_peaks.peak(now, policy.scale_down_after)?;
        let others = fleet.target.saturating_sub(1);
        let fits_others = peak * 4 <= others * fleet.threads * 3;
        let is_calm = |busy| busy <= others * MAX_CALM_PERCENT;
        if others >= policy.min_processes.max(1)
            && fits_others
            && load.cpu_percent.is_none_or(is_calm)
        {
            // A worker is about to go, once all have been as calm for long enough.
            return None;
        }
        let needed = (peak * 4).div_ceil(3 * fleet.ready.max(1));
        let to = needed.max(policy.min_threads);
        (to < fleet.threads && fleet.ready > 0 && fleet.may_shrink).then(|| ScalingStep {
            quantity: ScaledQuantity::Threads,
            target: to,
            reason: describe_unneeded(peak, load, policy),
        })
    }
}

fn describe_unneeded(peak: usize, load: &AppLoad, policy: &SupervisorPolicy) -> String {
    let (slots, time) = (load.slots, policy.scale_down_after);
    format!("at most {peak} of {slots} slots were needed for {time:?}")
}

/// How many threads more each worker should have for a line that they would help. Where the workers
/// want all of their processors already that is none, or one as the last resort.
fn more_threads(
    load: &AppLoad,
    fleet: CurrentScale,
    policy: &SupervisorPolicy,
    is_last_resort: bool,
) -> Option<usize> {
    let is_busy = load.cpu_percent? >= fleet.ready * BUSY_PERCENT;
    let by = match is_busy {
        // At most twice as many at once: what they will do to the processors is not known yet.
        false => load.queued.div_ceil(fleet.ready.max(1)).min(fleet.threads),
        true => usize::from(is_last_resort),
    };
    let by = by.min(policy.max_threads.saturating_sub(fleet.threads));
    (by > 0).then_some(by)
}

/// Slots of one worker; `None` while none serves.
fn slots_per_worker(load: &AppLoad, fleet: CurrentScale) -> Option<usize> {
    (load.slots > 0)
        .then(|| load.slots.checked_div(fleet.ready))?
        .map(|each| each.max(1))
}

/// How long the line was within the last second, with as many workers and threads as now.
#[derive(Debug, Default)]
struct QueueTrend {
    slots: usize,
    /// At most [`MAX_LENGTHS`].
    lengths: VecDeque<(Instant, usize)>,
    /// Whether more have come since the lengths before.
    has_grown: bool,
}

impl QueueTrend {
    fn record(&mut self, now: Instant, waiting: usize, slots: usize) {
        if slots != self.slots {
            self.has_grown = slots > self.slots && self.slots > 0;
            self.slots = slots;
            self.lengths.clear();
        }
        while let Some((at, _)) = self.lengths.front()
            && (now.saturating_duration_since(*at) > TREND_WINDOW
                || self.lengths.len() == MAX_LENGTHS)
        {
            self.lengths.pop_front();
        }
        self.lengths.push_back((now, waiting));
    }

    /// Whether it needs no more workers than there are: the last one has only just come, or what
    /// they take from it will empty it within that time.
    fn is_shrinking(&self, now: Instant, within: Duration) -> bool {
        let (Some((since, then)), Some((_, waiting))) = (self.lengths.front(), self.lengths.back())
        else {
            return false;
        };
        let watched = now.saturating_duration_since(*since);
        if watched < TREND_WINDOW / 2 {
            return self.has_grown;
        }
        let taken = then.saturating_sub(*waiting);
        let worth = watched.as_secs_f64() * *waiting as f64;
        taken > 0 && worth <= within.as_secs_f64() * taken as f64
    }
}

/// The most slots that were needed at once, over a time that moves along.
#[derive(Debug, Default)]
struct PeakWindow {
    /// When it began, and when it was last told something.
    observed: Option<(Instant, Instant)>,
    /// The peaks of its pieces, by their beginnings; at most [`PIECES`] and one more.
    peaks: VecDeque<(Instant, usize)>,
}

impl PeakWindow {
    fn record(&mut self, now: Instant, needed: usize, length: Duration) {
        let seen = self.observed;
        // There was no reading for a while: the need then is unknown.
        let seen =
            seen.filter(|(_, last)| now.saturating_duration_since(*last) < MAX_OBSERVATION_GAP);
        if seen.is_none() {
            self.peaks.clear();
        }
        self.observed = Some((seen.map_or(now, |(since, _)| since), now));
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
        let (since, _) = self.observed?;
        if now.saturating_duration_since(since) < length {
            return None;
        }
        self.peaks.iter().map(|(_, peak)| *peak).max()
    }
}

/// How busy a worker is of which another may relieve it.
const BUSY_PERCENT: usize = 85;

/// For how long all must be so busy.
const BUSY_DURATION: Duration = Duration::from_secs(5);

/// How busy each may be at most when there is one less. What makes a number of workers grow is more
/// than that for the same number, so that no load makes them go up and down.
const MAX_CALM_PERCENT: usize = 50;

/// How long nothing is done about a queue because the usage of the workers is unknown.
const MAX_CPU_UNKNOWN: Duration = Duration::from_secs(3);

/// For how long the line is watched to see where it goes.
const TREND_WINDOW: Duration = Duration::from_secs(1);

/// Looks at the line that are kept: more than come within [`TREND_WINDOW`].
const MAX_LENGTHS: usize = 32;

/// A line that is gone within this time needs no more workers, even where they boot at once.
const DRAIN_TIME_FOR_WORKERS: Duration = Duration::from_secs(3);

/// The same for threads, which cost next to nothing and are there at once.
const DRAIN_TIME_FOR_THREADS: Duration = Duration::from_millis(500);

/// Into how many pieces a window is divided: it forgets by pieces.
const PIECES: u32 = 16;

/// How long there may be no load report. There are ten a second.
const MAX_OBSERVATION_GAP: Duration = Duration::from_secs(5);
