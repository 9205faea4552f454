//! The timers of one event loop, ordered by time.
//!
//! Pure: `event_loop` takes due timers and sets the loop's timerfd to the nearest; `LazyDeadline`
//! arms and disarms. Wakers are stored apart from times, since a connection's deadline is polled by
//! several tasks and seldom moves.
//!
//! # Invariants
//! - The timerfd is set to a time no later than the nearest timer's. If it fires for a timer that
//!   was disarmed meanwhile, that costs one iteration.

use std::collections::BTreeSet;
use std::task::Waker;
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Timers that have not fired.
    by_time: BTreeSet<TimerKey>,
    /// The waker of each timer, by its number; `None` once it has fired.
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
    /// The time that the timerfd is set to.
    armed_for: Option<Instant>,
    /// The earliest time that was armed since the timerfd was set.
    earliest_unarmed: Option<Instant>,
}

/// A timer: its time, and a number that is unique until it is disarmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    pub(crate) at: Instant,
    number: u32,
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self {
            by_time: BTreeSet::new(),
            wakers: Vec::new(),
            free: Vec::new(),
            armed_for: None,
            earliest_unarmed: None,
        }
    }

    /// Arms a timer that wakes `waker` at `at` or soon after.
    pub(super) fn arm(&mut self, at: Instant, waker: Waker) -> TimerKey {
        let number = self.free.pop().unwrap_or_else(|| {
            self.wakers.push(None);
            u32::try_from(self.wakers.len() - 1).expect("fewer timers than fit in memory")
        });
        self.wakers[number as usize] = Some(waker);
        let key = TimerKey { at, number };
        self.by_time.insert(key);
        self.earliest_unarmed = Some(self.earliest_unarmed.map_or(at, |wanted| wanted.min(at)));
        key
    }

    /// Replaces the waker of a timer. Returns the previous waker if it was another, to be dropped
    /// when nothing is borrowed.
    pub(super) fn set_waker(
        &mut self,
        key: TimerKey,
        waker: &Waker,
    ) -> Result<Option<Waker>, TimerFired> {
        match self.wakers.get_mut(key.number as usize) {
            Some(Some(wakes)) if wakes.will_wake(waker) => Ok(None),
            Some(Some(wakes)) => Ok(Some(std::mem::replace(wakes, waker.clone()))),
            _ => Err(TimerFired),
        }
    }

    /// Removes a timer, whether it has fired or not; returns its waker, to be dropped when nothing
    /// is borrowed.
    pub(super) fn disarm(&mut self, key: TimerKey) -> Option<Waker> {
        // Absent in a loop that has ended; its thread may run another one.
        let waker = self.wakers.get_mut(key.number as usize)?.take();
        if waker.is_some() {
            self.by_time.remove(&key);
        }
        self.free.push(key.number);
        waker
    }

    /// Returns the time to set the timerfd to, if it must be set, and records it as set.
    pub(super) fn take_time_to_arm(&mut self) -> Option<Instant> {
        let wanted = self.earliest_unarmed.take()?;
        if self.armed_for.is_some_and(|set_to| set_to <= wanted) {
            return None;
        }
        self.armed_for = Some(wanted);
        Some(wanted)
    }

    /// Fires the timers that are due at `now`; returns their wakers.
    pub(super) fn fire(&mut self, now: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.by_time.first().filter(|first| first.at <= now) {
            due.extend(self.wakers[first.number as usize].take());
            self.by_time.pop_first();
        }
        self.armed_for = None;
        self.earliest_unarmed = self.by_time.first().map(|first| first.at);
        due
    }

    pub(super) fn drain(&mut self) -> Vec<Waker> {
        let all = std::mem::take(self);
        all.wakers.into_iter().flatten().collect()
    }
}

#[derive(Debug)]
pub(super) struct TimerFired;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timers_fire_in_order_and_the_nearest_is_armed() {
        let (mut timers, start) = (Timers::new(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let waker = || Waker::noop().clone();
        assert_eq!(timers.take_time_to_arm(), None);
        let keys = [30, 10, 20].map(|ms| timers.arm(at(ms), waker()));
        assert_eq!(timers.take_time_to_arm(), Some(at(10)));
        assert_eq!(timers.take_time_to_arm(), None, "it is set");
        let far = timers.arm(at(40), waker());
        assert_eq!(timers.take_time_to_arm(), None, "something nearer is set");
        assert_eq!(timers.fire(at(9)).len(), 0);
        assert_eq!(timers.take_time_to_arm(), Some(at(10)));
        assert_eq!(timers.fire(at(20)).len(), 2);
        assert!(timers.set_waker(keys[1], &waker()).is_err());
        assert!(timers.set_waker(keys[0], &waker()).unwrap().is_none());
        for key in keys {
            assert_eq!(timers.disarm(key).is_some(), key == keys[0]);
        }
        // After a disarm the timerfd may fire for no timer, but never too late for another.
        assert_eq!(timers.take_time_to_arm(), Some(at(30)));
        assert_eq!(timers.fire(at(30)).len(), 0);
        assert_eq!(timers.take_time_to_arm(), Some(at(40)));
        assert_eq!(timers.fire(at(50)).len(), 1);
        timers.disarm(far);
        assert_eq!(timers.wakers.len(), 4, "numbers are used again");
        let again = timers.arm(at(60), waker());
        assert!(again.number < 4);
    }
}
