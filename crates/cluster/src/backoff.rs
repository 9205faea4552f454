//! When Redis is tried again, and which of its failures are logged. Used by `bus_driver`.
//!
//! # Invariants
//! - The delay grows with each failure up to [`MAX_DELAY`], with jitter, so that many servers do
//!   not reconnect at once.
//! - An outage is one log line, and one more for each new cause, at most every [`LOG_INTERVAL`].

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use penstock_runtime::clock;

const MIN_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(5);

/// A connection is logged as restored once it has worked for so long.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// One that works for so long starts anew with the shortest wait.
const RESET_AFTER: Duration = Duration::from_secs(5);

/// At most one line of the log in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How often it failed, and when it is due.
#[derive(Debug)]
pub(super) struct ReconnectBackoff {
    failures: u32,
    due_at: Option<Instant>,
    connected_at: Option<Instant>,
    outage_since: Option<Instant>,
    logged_cause: String,
    logged_at: Option<Instant>,
    hasher: RandomState,
    seed: u64,
}

impl ReconnectBackoff {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            failures: 0,
            due_at: None,
            connected_at: None,
            outage_since: None,
            logged_cause: String::new(),
            logged_at: None,
            hasher: RandomState::new(),
            seed,
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due_at.is_none_or(|at| now >= at)
    }

    pub(super) fn due_at(&self) -> Instant {
        self.due_at.unwrap_or_else(clock::now)
    }

    pub(super) fn record_failure(&mut self, now: Instant) {
        self.connected_at = None;
        self.outage_since.get_or_insert(now);
        let doubled = MIN_DELAY.saturating_mul(1 << self.failures.min(10));
        self.failures += 1;
        self.seed = self.hasher.hash_one(self.seed);
        // Between a half and the whole of it.
        let longest = doubled.min(MAX_DELAY);
        let half = longest / 2;
        let part = u32::try_from(self.seed % 1000).unwrap_or(0);
        self.due_at = Some(now + half + half * part / 1000);
    }

    pub(super) fn record_connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// It answers. How long it was away, the first time that this is sure.
    pub(super) fn record_reply(&mut self, now: Instant) -> Option<Duration> {
        let connected_at = self.connected_at?;
        let well = now.saturating_duration_since(connected_at);
        if well >= RESET_AFTER {
            self.failures = 0;
        }
        if well < STABLE_AFTER {
            return None;
        }
        self.logged_cause.clear();
        let since = self.outage_since.take()?;
        Some(connected_at.saturating_duration_since(since))
    }

    /// Logs why it is of no use, unless that is known.
    pub(super) fn log_failure(&mut self, now: Instant, address: &str, cause: &str) {
        let is_early = self
            .logged_at
            .is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL);
        if self.logged_cause == cause || is_early {
            return;
        }
        cause.clone_into(&mut self.logged_cause);
        self.logged_at = Some(now);
        log::warn!(
            "hub: Redis at {address}: {cause}: what is published reaches this server's own subscribers, and the \
             other servers' when it is back"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_longer_each_time_up_to_a_bound_and_from_the_start_when_it_was_well() {
        let now = Instant::now();
        let mut backoff = ReconnectBackoff::new(1);
        assert!(backoff.is_due(now));
        let wait = |backoff: &mut ReconnectBackoff| {
            backoff.record_failure(now);
            assert!(!backoff.is_due(now));
            backoff.due_at() - now
        };
        let mut bound = MIN_DELAY;
        for _ in 0..20 {
            let waited = wait(&mut backoff);
            assert!(
                bound / 2 <= waited && waited <= bound,
                "{waited:?} {bound:?}"
            );
            bound = (bound * 2).min(MAX_DELAY);
        }
        let later = now + MAX_DELAY;
        backoff.record_connected(later);
        assert_eq!(
            backoff.record_reply(later),
            None,
            "it may fail at its first use"
        );
        assert_eq!(backoff.record_reply(later + STABLE_AFTER), Some(MAX_DELAY));
        assert_eq!(
            backoff.record_reply(later + STABLE_AFTER),
            None,
            "it is told once"
        );
        assert!(wait(&mut backoff) > MIN_DELAY);
        backoff.record_connected(now);
        backoff.record_reply(now + RESET_AFTER);
        assert!(wait(&mut backoff) <= MIN_DELAY);
    }
}
