//! Replicas and back-off: the desired workers, and when the next try is allowed.
//!
//! An application has one replica for each process that it should have. A replica remembers how
//! often its workers crashed, so that one that crashes in a loop is slowed down without slowing the
//! replacement of another. Failed boots are counted for the whole application instead: code that
//! does not load fails alike in every replica.

use std::time::{Duration, Instant};

use super::{SupervisorPolicy, WorkerId};

#[derive(Debug, Default)]
pub(super) struct Replica {
    pub(super) worker: Option<WorkerId>,
    /// A worker that boots beside it and takes its place when it is ready.
    pub(super) successor: Option<WorkerId>,
    /// How many workers this replica has had.
    pub(super) spawn_count: u64,
    /// Whether one of them has been ready.
    pub(super) has_served: bool,
    crashes: RestartBackoff,
}

/// Counts failures in a row and says when to try again.
#[derive(Debug, Default)]
pub(super) struct RestartBackoff {
    failures: u32,
    next_attempt_at: Option<Instant>,
}

impl Replica {
    /// When a new worker may be spawned here; `None` is at once.
    pub(super) fn next_spawn_at(&self) -> Option<Instant> {
        self.crashes.next_attempt_at
    }

    /// Its worker failed after it had been ready: the first failure in a row costs no delay.
    pub(super) fn record_crash(
        &mut self,
        now: Instant,
        ready_for: Duration,
        policy: &SupervisorPolicy,
    ) -> Duration {
        if ready_for >= STABLE_READY_TIME {
            self.crashes = RestartBackoff::default();
        }
        // It served until now, so its successor will too: the delay is bounded, as capacity that is
        // missing costs more than the start of a process.
        let delay = match self.crashes.failures {
            0 => Duration::ZERO,
            failures => policy.backoff_delay(failures - 1).min(MAX_CRASH_DELAY),
        };
        self.crashes.count_failure(now, delay);
        delay
    }

    /// New code is not held to the record of the old.
    pub(super) fn reset_crashes(&mut self) {
        self.crashes = RestartBackoff::default();
    }
}

impl RestartBackoff {
    /// Whether failures are being counted: then only one try at a time is made.
    pub(super) fn has_failures(&self) -> bool {
        self.failures > 0
    }

    /// When the next try is allowed; `None` is at once.
    pub(super) fn next_attempt_at(&self) -> Option<Instant> {
        self.next_attempt_at
    }

    /// Counts a failed boot, and answers the time until the next try. Workers that were spawned
    /// together fail together: that is one failure.
    pub(super) fn record_failure(&mut self, now: Instant, policy: &SupervisorPolicy) -> Duration {
        if let Some(at) = self.next_attempt_at
            && at > now
        {
            return at - now;
        }
        let delay = policy.backoff_delay(self.failures);
        self.count_failure(now, delay);
        delay
    }

    fn count_failure(&mut self, now: Instant, delay: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.next_attempt_at = now.checked_add(delay);
    }
}

impl SupervisorPolicy {
    /// `min_backoff`, doubled for each earlier failure, up to `max_backoff`.
    fn backoff_delay(&self, earlier_failures: u32) -> Duration {
        let factor = 1_u32 << earlier_failures.min(31);
        let delay = self.min_backoff.saturating_mul(factor);
        delay.min(self.max_backoff).min(MAX_BACKOFF)
    }
}

/// A worker that served this long was not part of a crash loop.
const STABLE_READY_TIME: Duration = Duration::from_secs(10);

/// The longest delay before a worker that had been ready is replaced.
const MAX_CRASH_DELAY: Duration = Duration::from_millis(500);

/// Keeps the sum of now and a delay in range, whatever the policy says.
const MAX_BACKOFF: Duration = Duration::from_secs(24 * 60 * 60);
