//! Limits how often the log repeats a message: a failing disk or a full pool fails each request,
//! and a line for each would fill the next disk.
//!
//! Components that may log the same failure for each request consult [`LogThrottle`] first: `edge`
//! for internal errors, `cache` for a failing upstream. `now` is an argument.
//!
//! # Invariants
//! - Each cause is logged for its first requests, then no more in that second.
//! - Suppressed lines are counted in the next line.
//! - The number of remembered causes is bounded.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The window in which lines about one cause are limited.
const WINDOW: Duration = Duration::from_secs(1);

/// Maximum lines per cause and window: while failures are few, each request is named.
const MAX_LINES_PER_WINDOW: u32 = 10;

/// Maximum number of distinct causes: a failing disk names another file each time.
const MAX_CAUSES: usize = 8;

/// What was recently logged, shared by all loops.
#[derive(Debug, Default)]
pub struct LogThrottle {
    /// Never held while a line is written.
    state: Mutex<ThrottleState>,
}

#[derive(Debug, Default)]
struct ThrottleState {
    causes: Vec<ThrottledCause>,
    /// Suppressed lines of causes that are not remembered.
    suppressed_others: u64,
}

#[derive(Debug)]
struct ThrottledCause {
    text: Box<str>,
    /// Start of the present window.
    window_start: Instant,
    /// Lines since then.
    logged: u32,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns whether to log a line about `cause` now, with the number suppressed since the last
    /// one.
    #[must_use]
    pub fn admit_line(&self, cause: &str, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.admit_line(cause, now)
    }
}

impl ThrottleState {
    fn admit_line(&mut self, cause: &str, now: Instant) -> Option<u64> {
        let is_over =
            |known: &ThrottledCause| now.saturating_duration_since(known.window_start) >= WINDOW;
        if let Some(known) = (self.causes.iter_mut()).find(|known| &*known.text == cause) {
            if is_over(known) {
                (known.window_start, known.logged) = (now, 0);
            }
            if known.logged == MAX_LINES_PER_WINDOW {
                known.suppressed += 1;
                return None;
            }
            known.logged += 1;
            return Some(
                std::mem::take(&mut known.suppressed) + std::mem::take(&mut self.suppressed_others),
            );
        }
        if self.causes.len() == MAX_CAUSES {
            let Some(over) = self.causes.iter().position(is_over) else {
                self.suppressed_others += 1;
                return None;
            };
            self.suppressed_others += self.causes.swap_remove(over).suppressed;
        }
        self.causes.push(ThrottledCause {
            text: cause.into(),
            window_start: now,
            logged: 1,
            suppressed: 0,
        });
        Some(std::mem::take(&mut self.suppressed_others))
    }
}

/// The suffix of a line after suppressed ones.
#[must_use]
pub fn suppressed_suffix(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!(" ({count} similar messages suppressed)"),
    }
}

/// Allows one log line a second, with the number of events.
#[derive(Debug, Default)]
pub struct OncePerSecondThrottle {
    state: Mutex<(Option<Instant>, u64)>,
}

impl OncePerSecondThrottle {
    /// Counts an event; returns the number since the last line if one is due.
    pub fn count_event(&self, now: Instant) -> Option<u64> {
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
    fn lines_per_cause_and_second_are_limited_and_counted() {
        let (repeats, start) = (LogThrottle::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        for _ in 1..MAX_LINES_PER_WINDOW {
            for cause in ["full", "EIO"] {
                assert_eq!(repeats.admit_line(cause, start), Some(0), "{cause}");
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
                repeats.admit_line(cause, after(millis)),
                expected,
                "{millis} {cause}"
            );
        }
    }

    #[test]
    fn ever_new_causes_are_limited_too() {
        let (repeats, start) = (LogThrottle::default(), Instant::now());
        let mut told_of = 0;
        for number in 0..1000 {
            told_of += u64::from(
                repeats
                    .admit_line(&format!("/{number}: EIO"), start)
                    .is_some(),
            );
        }
        assert_eq!(told_of, MAX_CAUSES as u64);
        // A second later the first line reports the count.
        let later = start + WINDOW;
        assert_eq!(
            repeats.admit_line("/1000: EIO", later),
            Some(1000 - told_of)
        );
        assert_eq!(repeats.admit_line("/1001: EIO", later), Some(0));
        assert_eq!(repeats.state.lock().unwrap().causes.len(), MAX_CAUSES);
    }

    #[test]
    fn one_line_a_second_reports_the_count() {
        let (log, now) = (OncePerSecondThrottle::default(), Instant::now());
        let at = |millis| log.count_event(now + Duration::from_millis(millis));
        assert_eq!(at(0), Some(1));
        assert_eq!((at(10), at(999)), (None, None));
        assert_eq!(at(1000), Some(3));
        assert_eq!(at(1999), None);
    }
}
