//! The timers of one event loop, ordered by time.
//!
//! Pure: `event_loop` takes due timers and sets the loop's timerfd to the nearest; `LazyDeadline`
//! arms and disarms. Wakers are stored apart from times, since a connection's deadline is polled by
//! several tasks and seldom moves.
//!
//! # Invariants
//! - The timerfd is set to a time no later than the nearest timer's. If it fires for a timer that
//!   was disarmed meanwhile, that costs one iteration.
//! - Most timers are disarmed long before their time, so a disarmed one keeps its place until it is
//!   due or such places are as many as all others: then all of them are removed at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;
use std::time::Instant;

/// So many places of disarmed timers are kept in any case.
const MIN_VACANT: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Timers that have not fired, and places of disarmed ones.
    by_time: BinaryHeap<Reverse<TimerKey>>,
    /// Places of disarmed timers.
    vacant: usize,
    /// Time and waker of each timer, by its number; `None` once it has fired.
    armed: Vec<Option<(Instant, Waker)>>,
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
            by_time: BinaryHeap::new(),
            vacant: 0,
            armed: Vec::new(),
            free: Vec::new(),
            armed_for: None,
            earliest_unarmed: None,
        }
    }

    /// Arms a timer that wakes `waker` at `at` or soon after.
    pub(super) fn arm(&mut self, at: Instant, waker: Waker) -> TimerKey {
        let number = self.free.pop().unwrap_or_else(|| {
            self.armed.push(None);
            u32::try_from(self.armed.len() - 1).expect("fewer timers than fit in memory")
        });
        self.armed[number as usize] = Some((at, waker));
        let key = TimerKey { at, number };
        self.by_time.push(Reverse(key));
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
        match self.armed.get_mut(key.number as usize) {
            Some(Some((_, wakes))) if wakes.will_wake(waker) => Ok(None),
            Some(Some((_, wakes))) => Ok(Some(std::mem::replace(wakes, waker.clone()))),
            _ => Err(TimerFired),
        }
    }

    /// Removes a timer, whether it has fired or not; returns its waker, to be dropped when nothing
    /// is borrowed.
    pub(super) fn disarm(&mut self, key: TimerKey) -> Option<Waker> {
        // Absent in a loop that has ended; its thread may run another one.
        let disarmed = self.armed.get_mut(key.number as usize)?.take();
        self.free.push(key.number);
        let (_, waker) = disarmed?;
        self.vacant += 1;
        if self.vacant > MIN_VACANT && self.vacant * 2 > self.by_time.len() {
            let armed = &self.armed;
            self.by_time.retain(|Reverse(key)| is_armed(armed, *key));
            self.vacant = 0;
        }
        Some(waker)
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
        self.armed_for = None;
        self.earliest_unarmed = None;
        while let Some(Reverse(first)) = self.by_time.peek().copied() {
            let is_armed = is_armed(&self.armed, first);
            if is_armed && first.at > now {
                self.earliest_unarmed = Some(first.at);
                break;
            }
            self.by_time.pop();
            if is_armed {
                let fired = self.armed[first.number as usize].take();
                due.extend(fired.map(|(_, waker)| waker));
            } else {
                self.vacant = self.vacant.saturating_sub(1);
            }
        }
        due
    }

    pub(super) fn drain(&mut self) -> Vec<Waker> {
        let all = std::mem::take(self);
        let armed = all.armed.into_iter().flatten();
        armed.map(|(_, waker)| waker).collect()
    }
}

/// Whether a place is that of a timer, and not of one that was disarmed before its number was given
/// to another.
fn is_armed(armed: &[Option<(Instant, Waker)>], key: TimerKey) -> bool {
    matches!(&armed[key.number as usize], Some((at, _)) if *at == key.at)
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
        assert_eq!(timers.vacant, 0);
        assert_eq!(timers.take_time_to_arm(), Some(at(40)));
        assert_eq!(timers.fire(at(50)).len(), 1);
        timers.disarm(far);
        assert_eq!(timers.armed.len(), 4, "numbers are used again");
        let again = timers.arm(at(60), waker());
        assert!(again.number < 4);
    }
    #[test]
    fn whatever_is_armed_and_disarmed_fires_once_at_its_time() {
        let (mut timers, start) = (Timers::new(), Instant::now());
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut now, mut armed) = (0, Vec::new());
        for _ in 0..20_000 {
            match random(8) {
                0..4 => {
                    let at = now + 1 + random(300);
                    let key = timers.arm(start + Duration::from_millis(at), Waker::noop().clone());
                    armed.push((at, key));
                }
                4..7 if !armed.is_empty() => {
                    let at = usize::try_from(random(armed.len() as u64)).unwrap();
                    let (_, key) = armed.swap_remove(at);
                    assert!(timers.disarm(key).is_some());
                }
                _ => {
                    now += random(20);
                    let due = timers.fire(start + Duration::from_millis(now)).len();
                    let (fired, left): (Vec<_>, Vec<_>) =
                        armed.into_iter().partition(|(at, _)| *at <= now);
                    assert_eq!(due, fired.len());
                    for (_, key) in fired {
                        assert!(timers.disarm(key).is_none(), "it has fired");
                    }
                    armed = left;
                    let nearest = armed.iter().map(|(at, _)| *at).min();
                    let nearest = nearest.map(|at| start + Duration::from_millis(at));
                    assert_eq!(timers.take_time_to_arm(), nearest);
                }
            }
            let places = timers.by_time.len();
            assert_eq!(places - timers.vacant, armed.len());
            assert!(
                places <= 2 * armed.len() + MIN_VACANT + 1,
                "{places} places"
            );
        }
    }
}
