//! An open loop's schedule on one event loop: which arrivals are due, and which connection serves
//! each. Pure: `now` is an argument.
//!
//! Inputs: `assign_due_arrivals` at the moment of the next arrival, `release_connection` when a
//! connection is free, `take_arrival` by that connection. The arrivals skipped since a connection
//! was last free are consecutive, so only their number is stored.
//!
//! # Invariants
//!
//! - A due arrival is either assigned to one connection with its own moment, or skipped and
//!   counted, never kept to be sent in a burst.
//! - Nothing grows with the number of arrivals.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::recorder::Recorder;

/// An arrival assigned to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Its intended moment.
    pub(super) due: Instant,
    /// Whether it belongs to the window.
    pub(super) is_counted: bool,
}

/// The arrivals of one load on one event loop.
#[derive(Debug)]
pub(super) struct ArrivalSchedule {
    base: Instant,
    interval_ns: f64,
    next_number: u64,
    /// The number of arrivals just before it that found no connection and are not recorded yet.
    unassigned: u64,
    /// Connections without a request, longest idle first.
    idle: VecDeque<usize>,
    slots: Vec<ConnectionSlot>,
}

#[derive(Debug, Default)]
struct ConnectionSlot {
    arrival: Option<Arrival>,
    waker: Option<Waker>,
}

/// Whether an arrival may still be sent in this window.
pub(super) enum SendPermission {
    /// It belongs to no window.
    Uncounted,
    /// It counts.
    Counted,
    /// No more requests: the schedule ends.
    Ended,
}

impl ArrivalSchedule {
    /// `rate` arrivals per second for that many connections, the first at `base`.
    pub(super) fn new(base: Instant, rate: f64, connections: usize) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(connections, ConnectionSlot::default);
        Self {
            base,
            interval_ns: 1e9 / rate,
            next_number: 0,
            unassigned: 0,
            idle: VecDeque::with_capacity(connections),
            slots,
        }
    }

    /// Sets the moment of the first arrival, before any was assigned.
    pub(super) fn set_start(&mut self, base: Instant) {
        self.base = base;
        self.next_number = 0;
    }

    /// Handles all due arrivals; returns the time until the next, `None` at the end.
    pub(super) fn assign_due_arrivals(
        &mut self,
        now: Instant,
        is_counted: bool,
        recorder: &mut Recorder,
        mut grant: impl FnMut() -> SendPermission,
    ) -> Option<Duration> {
        loop {
            let due = self.due_time(self.next_number);
            if due > now {
                return Some((due - now).max(MIN_TICK));
            }
            let is_free = !self.idle.is_empty();
            if !is_free || now - due > MAX_LATENESS {
                self.next_number += 1;
                self.record_skipped(is_counted, recorder);
                if is_free {
                    recorder.schedule.late += u64::from(is_counted);
                    self.record_unassigned(now, recorder);
                }
                continue;
            }
            let is_counted = match grant() {
                SendPermission::Uncounted => false,
                SendPermission::Counted => true,
                SendPermission::Ended => return None,
            };
            self.next_number += 1;
            if is_counted {
                recorder.schedule.due += 1;
            }
            if let Some(slot) = self.idle.pop_front().and_then(|it| self.slots.get_mut(it)) {
                slot.arrival = Some(Arrival { due, is_counted });
                if let Some(waker) = slot.waker.take() {
                    waker.wake();
                }
            }
        }
    }

    /// Connection `slot` is free from now on.
    pub(super) fn release_connection(
        &mut self,
        slot: usize,
        now: Instant,
        recorder: &mut Recorder,
    ) {
        self.record_unassigned(now, recorder);
        self.idle.push_back(slot);
    }

    /// Takes the arrival for connection `slot`; `None` if there is none yet, and `waker` is stored.
    pub(super) fn take_arrival(&mut self, slot: usize, waker: &Waker) -> Option<Arrival> {
        let slot = self.slots.get_mut(slot)?;
        let arrival = slot.arrival.take();
        if arrival.is_none() && !slot.waker.as_ref().is_some_and(|it| it.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
        arrival
    }

    /// Records the arrivals without a connection, which have waited until now, for a free one or
    /// for the end.
    pub(super) fn record_unassigned(&mut self, now: Instant, recorder: &mut Recorder) {
        // A long stall leaves very many: they are recorded in groups, at the group's middle.
        let group = self.unassigned.div_ceil(MAX_SETTLED_RECORDS).max(1);
        let mut number = self.next_number - self.unassigned;
        while number < self.next_number {
            let count = group.min(self.next_number - number);
            let due = self.due_time(number + count / 2);
            recorder.record_skipped(now.saturating_duration_since(due), count);
            number += count;
        }
        self.unassigned = 0;
    }

    /// Counted arrivals that were assigned but not begun: the connection's number, and the due
    /// time.
    pub(super) fn unstarted_arrivals(&self) -> impl Iterator<Item = (usize, Instant)> {
        let arrivals = self.slots.iter().map(|slot| slot.arrival);
        let counted = |arrival: Option<Arrival>| arrival.filter(|arrival| arrival.is_counted);
        (arrivals.enumerate()).filter_map(move |(slot, it)| Some((slot, counted(it)?.due)))
    }

    /// Discards arrivals due before now, which belong to no window.
    pub(super) fn discard_unassigned(&mut self) {
        self.unassigned = 0;
    }

    fn record_skipped(&mut self, is_counted: bool, recorder: &mut Recorder) {
        if is_counted {
            recorder.schedule.due += 1;
            recorder.schedule.skipped += 1;
            self.unassigned += 1;
        }
    }

    fn due_time(&self, number: u64) -> Instant {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "nanoseconds of a hundred days fit 53 bits; a cast of floats saturates"
        )]
        let offset = Duration::from_nanos((number as f64 * self.interval_ns) as u64);
        self.base + offset
    }
}

/// Arrivals closer than this are handled together: a wake-up for each would cost more than it
/// sends.
const MIN_TICK: Duration = Duration::from_micros(50);

/// An arrival that the generator handles later than this (it was stopped, or starved) is not sent:
/// a burst of old ones would be a different load.
const MAX_LATENESS: Duration = Duration::from_millis(100);

/// Maximum records made at once after a stall: a few milliseconds of work.
const MAX_SETTLED_RECORDS: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn schedule(connections: usize) -> (Instant, ArrivalSchedule, Recorder) {
        let base = Instant::now();
        let mut recorder = Recorder::new(true).unwrap();
        let mut arrivals = ArrivalSchedule::new(base, 1_000.0, connections);
        (0..connections).for_each(|slot| arrivals.release_connection(slot, base, &mut recorder));
        (base, arrivals, recorder)
    }

    fn hand_out(arrivals: &mut ArrivalSchedule, now: Instant, recorder: &mut Recorder) -> Duration {
        let wait = arrivals.assign_due_arrivals(now, true, recorder, || SendPermission::Counted);
        wait.expect("the schedule goes on")
    }

    #[test]
    fn each_arrival_has_its_own_moment_however_late_it_is_handled() {
        let (base, mut arrivals, mut recorder) = schedule(3);
        let wait = hand_out(&mut arrivals, base + 2 * MS + MS / 4, &mut recorder);
        assert_eq!(wait, MS * 3 / 4);
        for slot in 0..3_u32 {
            let arrival = arrivals.take_arrival(slot as usize, Waker::noop()).unwrap();
            assert_eq!(arrival.due, base + slot * MS);
        }
        assert_eq!((recorder.schedule.due, recorder.schedule.skipped), (3, 0));
    }

    #[test]
    fn what_was_handed_out_and_not_begun_is_known_at_the_end() {
        let (base, mut arrivals, mut recorder) = schedule(3);
        hand_out(&mut arrivals, base + 2 * MS, &mut recorder);
        arrivals.take_arrival(1, Waker::noop()).unwrap();
        let untaken: Vec<_> = arrivals.unstarted_arrivals().collect();
        assert_eq!(untaken, [(0, base), (2, base + 2 * MS)]);
    }

    #[test]
    fn skipped_arrivals_wait_until_a_connection_is_free_and_are_never_sent() {
        let (base, mut arrivals, mut recorder) = schedule(1);
        hand_out(&mut arrivals, base + 10 * MS, &mut recorder);
        assert_eq!((recorder.schedule.due, recorder.schedule.skipped), (11, 10));
        assert_eq!(recorder.figures(1.0).total.count, 0);
        assert!(arrivals.take_arrival(0, Waker::noop()).is_some());
        arrivals.release_connection(0, base + 20 * MS, &mut recorder);
        assert!(arrivals.take_arrival(0, Waker::noop()).is_none());
        let total = recorder.figures(1.0).total;
        // Due at 1 to 10 ms, free at 20 ms; with three digits.
        assert_eq!(
            (total.count, total.min / 100, total.max / 100),
            (10, 100, 190)
        );
    }

    #[test]
    fn arrivals_after_a_stop_of_the_generator_are_late_and_not_sent_in_a_bunch() {
        let (base, mut arrivals, mut recorder) = schedule(1_000);
        hand_out(&mut arrivals, base + 1_000 * MS, &mut recorder);
        let schedule = recorder.schedule;
        assert_eq!(
            (schedule.due, schedule.skipped, schedule.late),
            (1_001, 900, 900)
        );
        assert_eq!(recorder.figures(1.0).total.count, 900);
    }

    #[test]
    fn a_long_stall_is_settled_in_groups_and_every_arrival_counts() {
        let (base, mut arrivals, mut recorder) = schedule(1);
        hand_out(&mut arrivals, base + 600_000 * MS, &mut recorder);
        arrivals.record_unassigned(base + 600_000 * MS, &mut recorder);
        let total = recorder.figures(1.0).total;
        assert_eq!(total.count, recorder.schedule.skipped);
        assert!((total.mean / 300e6 - 1.0).abs() < 0.01, "{total:?}");
    }

    #[test]
    fn ends_when_no_more_requests_may_begin() {
        let (base, mut arrivals, mut recorder) = schedule(2);
        let ended =
            arrivals.assign_due_arrivals(base, true, &mut recorder, || SendPermission::Ended);
        assert_eq!((ended, recorder.schedule.due), (None, 0));
    }
}
