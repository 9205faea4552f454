//! The timers of one loop, in the order of their moments.
//!
//! Pure: `turn` asks for what is due and sets the loop's one alarm to the nearest, `LazyDeadline` arms and
//! disarms. Whom a timer wakes stands apart from when it rings, since a connection's deadline is asked by one
//! task after the other and seldom moves. What must stay true: the alarm is set to no later a moment than the
//! nearest timer's; that it may ring for one that was disarmed meanwhile costs a turn.

use std::collections::BTreeSet;
use std::task::Waker;
use std::time::Instant;

/// The timers of a loop.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Those that have not rung.
    order: BTreeSet<TimerKey>,
    /// Whom each wakes, by its number; nobody once it has rung.
    wakes: Vec<Option<Waker>>,
    free: Vec<u32>,
    /// What the alarm is set to.
    set_to: Option<Instant>,
    /// The nearest moment that was armed since the alarm was set.
    wanted: Option<Instant>,
}

/// A timer: its moment, and a number that is its own until it is disarmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    pub(crate) at: Instant,
    number: u32,
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self {
            order: BTreeSet::new(),
            wakes: Vec::new(),
            free: Vec::new(),
            set_to: None,
            wanted: None,
        }
    }

    /// Arms a timer that wakes `waker` at `at` or soon after.
    pub(super) fn arm(&mut self, at: Instant, waker: Waker) -> TimerKey {
        let number = self.free.pop().unwrap_or_else(|| {
            self.wakes.push(None);
            u32::try_from(self.wakes.len() - 1).expect("fewer timers than fit in memory")
        });
        self.wakes[number as usize] = Some(waker);
        let key = TimerKey { at, number };
        self.order.insert(key);
        self.wanted = Some(self.wanted.map_or(at, |wanted| wanted.min(at)));
        key
    }

    /// Lets a timer wake `waker` and nobody else. Gives whom it would have woken, if that was another, to be
    /// dropped when nothing is borrowed.
    ///
    /// # Errors
    /// When it has rung.
    pub(super) fn turn_to(&mut self, key: TimerKey, waker: &Waker) -> Result<Option<Waker>, Rung> {
        match self.wakes.get_mut(key.number as usize) {
            Some(Some(wakes)) if wakes.will_wake(waker) => Ok(None),
            Some(Some(wakes)) => Ok(Some(std::mem::replace(wakes, waker.clone()))),
            _ => Err(Rung),
        }
    }

    /// Forgets a timer, whether it has rung or not; gives whom it would have woken, to be dropped when nothing
    /// is borrowed.
    pub(super) fn disarm(&mut self, key: TimerKey) -> Option<Waker> {
        // Not there in a loop that has ended, and perhaps another is run by its thread.
        let waker = self.wakes.get_mut(key.number as usize)?.take();
        if waker.is_some() {
            self.order.remove(&key);
        }
        self.free.push(key.number);
        waker
    }

    /// The moment that the alarm is to be set to, if it is not; taken as set then.
    pub(super) fn take_unset(&mut self) -> Option<Instant> {
        let wanted = self.wanted.take()?;
        if self.set_to.is_some_and(|set_to| set_to <= wanted) {
            return None;
        }
        self.set_to = Some(wanted);
        Some(wanted)
    }

    /// The alarm has rung at `now`: gives whom to wake.
    pub(super) fn ring(&mut self, now: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.order.first().filter(|first| first.at <= now) {
            due.extend(self.wakes[first.number as usize].take());
            self.order.pop_first();
        }
        self.set_to = None;
        self.wanted = self.order.first().map(|first| first.at);
        due
    }

    /// Forgets all of them.
    pub(super) fn drain(&mut self) -> Vec<Waker> {
        let all = std::mem::take(self);
        all.wakes.into_iter().flatten().collect()
    }
}

/// A timer has rung.
#[derive(Debug)]
pub(super) struct Rung;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timers_ring_in_order_and_the_alarm_is_set_to_the_nearest() {
        let (mut timers, start) = (Timers::new(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let waker = || Waker::noop().clone();
        assert_eq!(timers.take_unset(), None);
        let keys = [30, 10, 20].map(|ms| timers.arm(at(ms), waker()));
        assert_eq!(timers.take_unset(), Some(at(10)));
        assert_eq!(timers.take_unset(), None, "it is set");
        let far = timers.arm(at(40), waker());
        assert_eq!(timers.take_unset(), None, "something nearer is set");
        assert_eq!(timers.ring(at(9)).len(), 0);
        assert_eq!(timers.take_unset(), Some(at(10)));
        assert_eq!(timers.ring(at(20)).len(), 2);
        assert!(timers.turn_to(keys[1], &waker()).is_err());
        assert!(timers.turn_to(keys[0], &waker()).unwrap().is_none());
        for key in keys {
            assert_eq!(timers.disarm(key).is_some(), key == keys[0]);
        }
        // One disarmed may let the alarm ring for nobody, never too late for another.
        assert_eq!(timers.take_unset(), Some(at(30)));
        assert_eq!(timers.ring(at(30)).len(), 0);
        assert_eq!(timers.take_unset(), Some(at(40)));
        assert_eq!(timers.ring(at(50)).len(), 1);
        timers.disarm(far);
        assert_eq!(timers.wakes.len(), 4, "numbers are used again");
        let again = timers.arm(at(60), waker());
        assert!(again.number < 4);
    }
}
