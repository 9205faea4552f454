//! How often the log is told the same: an ill disk or a full pool fails each request, and a line for each of
//! those would fill the next disk.
//!
//! Whoever may have to write the same for each request (`edge` of what went wrong in the house, `cache` of a back end
//! that fails) asks [`Repeats`] before. What must stay true:
//! each cause is told for each of its first requests, then no more that second; what was left out is counted in
//! the next line; what is remembered has a bound. `now` is an argument.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time in which the same is told so often at most.
const PAUSE: Duration = Duration::from_secs(1);

/// Lines about the same in that time: each request is named as long as they are few.
const LINES_MAX: u32 = 10;

/// Causes that are told apart: a disk that fails names another file each time.
const CAUSES_MAX: usize = 8;

/// What the log was told of late, by all loops.
#[derive(Debug, Default)]
pub struct Repeats {
    /// Never held while a line is written.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    causes: Vec<Cause>,
    /// Left out of causes that are not remembered.
    others: u64,
}

#[derive(Debug)]
struct Cause {
    text: Box<str>,
    /// When the present second began.
    at: Instant,
    /// Lines since.
    told: u32,
    left_out: u64,
}

impl Repeats {
    /// Whether to write a line about `cause` now: with how many were left out since the last.
    #[must_use]
    pub fn admit(&self, cause: &str, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.admit(cause, now)
    }
}

impl State {
    fn admit(&mut self, cause: &str, now: Instant) -> Option<u64> {
        let is_over = |known: &Cause| now.saturating_duration_since(known.at) >= PAUSE;
        if let Some(known) = (self.causes.iter_mut()).find(|known| &*known.text == cause) {
            if is_over(known) {
                (known.at, known.told) = (now, 0);
            }
            if known.told == LINES_MAX {
                known.left_out += 1;
                return None;
            }
            known.told += 1;
            return Some(std::mem::take(&mut known.left_out) + std::mem::take(&mut self.others));
        }
        if self.causes.len() == CAUSES_MAX {
            let Some(over) = self.causes.iter().position(is_over) else {
                self.others += 1;
                return None;
            };
            self.others += self.causes.swap_remove(over).left_out;
        }
        self.causes.push(Cause {
            text: cause.into(),
            at: now,
            told: 1,
            left_out: 0,
        });
        Some(std::mem::take(&mut self.others))
    }
}

/// The end of a line behind which some were left out.
#[must_use]
pub fn left_out(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!(" (and {count} such failures that were not logged)"),
    }
}

/// Lets a line into the log once a second at most, with how often it happened.
#[derive(Debug, Default)]
pub struct OncePerSecond {
    state: Mutex<(Option<Instant>, u64)>,
}

impl OncePerSecond {
    /// Counts one more; gives how many there were since the last line if one is due.
    pub fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, count) = &mut *state;
        *count += 1;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < Duration::from_secs(1);
        if last.is_some_and(is_recent) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_for_a_cause_and_second_and_what_was_left_out_is_counted() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        for _ in 1..LINES_MAX {
            for cause in ["full", "EIO"] {
                assert_eq!(repeats.admit(cause, start), Some(0), "{cause}");
            }
        }
        for (millis, cause, expected) in [
            (0, "full", Some(0)),
            (1, "full", None),
            (2, "EIO", Some(0)),
            (999, "full", None),
            (1000, "full", Some(2)),
            (1001, "full", Some(0)),
            (1500, "EIO", Some(0)),
            (9000, "full", Some(0)),
        ] {
            assert_eq!(
                repeats.admit(cause, after(millis)),
                expected,
                "{millis} {cause}"
            );
        }
    }

    #[test]
    fn a_cause_that_is_another_each_time_is_bounded_too() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        let mut told_of = 0;
        for number in 0..1000 {
            told_of += u64::from(repeats.admit(&format!("/{number}: EIO"), start).is_some());
        }
        assert_eq!(told_of, CAUSES_MAX as u64);
        // A second later the first line says how many there were.
        let later = start + PAUSE;
        assert_eq!(repeats.admit("/1000: EIO", later), Some(1000 - told_of));
        assert_eq!(repeats.admit("/1001: EIO", later), Some(0));
        assert_eq!(repeats.state.lock().unwrap().causes.len(), CAUSES_MAX);
    }

    #[test]
    fn a_line_a_second_says_how_often_it_was() {
        let (log, now) = (OncePerSecond::default(), Instant::now());
        let at = |millis| log.count(now + Duration::from_millis(millis));
        assert_eq!(at(0), Some(1));
        assert_eq!((at(10), at(999)), (None, None));
        assert_eq!(at(1000), Some(3));
        assert_eq!(at(1999), None);
    }
}
