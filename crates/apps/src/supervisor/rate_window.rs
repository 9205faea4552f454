//! How often something happened within the last second.
//!
//! The supervisor counts spawns of workers with it, and the steps by which the load makes their
//! number grow.
//!
//! # Invariants
//! - No second, wherever it begins, has more than the given bound.
//! - The memory is bounded by it too.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// When things happened, as far as it is less than a second ago.
#[derive(Debug, Default)]
pub(super) struct RateWindow {
    times: VecDeque<Instant>,
}

impl RateWindow {
    /// How many more may happen now when `max` a second are allowed.
    pub(super) fn remaining(&mut self, now: Instant, max: usize) -> usize {
        let is_past = |at: &Instant| now.saturating_duration_since(*at) >= SECOND;
        while self.times.front().is_some_and(is_past) {
            self.times.pop_front();
        }
        max.saturating_sub(self.times.len())
    }

    /// One more has happened.
    pub(super) fn record(&mut self, now: Instant) {
        self.times.push_back(now);
    }

    /// When it was last recorded, if that is not long ago.
    pub(super) fn last_recorded_at(&self) -> Option<Instant> {
        self.times.back().copied()
    }

    /// When the next is allowed; `None` is at once. Only after `remaining` at the same time.
    pub(super) fn next_allowed_at(&self, max: usize) -> Option<Instant> {
        let last = self.times.len().checked_sub(max)?;
        self.times.get(last)?.checked_add(SECOND)
    }
}

const SECOND: Duration = Duration::from_secs(1);
