//! When clients whose streams end, or cannot begin, are asked to return: the `retry` of
//! server-sent events.
//!
//! `hub` asks for a delay for each such stream. The rules are pure: elapsed time and fraction are
//! arguments.
//!
//! # Invariants
//! - The returns of consecutive clients are spread evenly over their window, without a random
//!   burst: no part of it gets more than its share and two.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use penstock_http::sse;

/// How the streams of a hub end when its server stops, and when their clients return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainPlan {
    /// The ends are spread over this time.
    pub duration: Duration,
    /// Where clients find the next server.
    pub next_server: NextServer,
    /// The returns are spread over this time.
    pub return_window: Duration,
}

/// When the server that clients return to begins to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextServer {
    /// It serves already: clients return soon after their stream has ended.
    Serving,
    /// Once this one has ended: clients return after the drain.
    AfterDrain,
}

/// The shortest delay. Browsers wait for three to five seconds where they are told nothing.
const MIN_RETURN_DELAY: Duration = Duration::from_secs(1);

/// From the end of the drain until the next server is expected to serve. Clients that are earlier
/// wait in the listening socket of the service manager, if that keeps one, and begin all at once.
const RESTART_TIME: Duration = Duration::from_secs(3);

impl DrainPlan {
    /// Ends streams over `duration` with a server that serves already.
    #[must_use]
    pub fn with_duration(duration: Duration) -> Self {
        Self {
            duration,
            next_server: NextServer::Serving,
            return_window: Duration::ZERO,
        }
    }

    /// The delay of a client whose stream ends, or cannot begin, `elapsed` after the begin of the
    /// drain, at this `fraction` of the window.
    pub(crate) fn return_delay(&self, elapsed: Duration, fraction: f64) -> Duration {
        let earliest = match self.next_server {
            NextServer::Serving => MIN_RETURN_DELAY,
            NextServer::AfterDrain => self.duration.saturating_sub(elapsed) + RESTART_TIME,
        };
        earliest + self.return_window.mul_f64(fraction)
    }
}

/// The delay of a client whose stream cannot begin: `interval` on average, and half of it at least.
pub(crate) fn refusal_delay(interval: Duration, fraction: f64) -> Duration {
    interval.mul_f64(0.5 + fraction)
}

/// The delay of a client that the server itself made wait before its stream ends.
pub(crate) fn delay_after_hold(fraction: f64) -> Duration {
    MIN_RETURN_DELAY.mul_f64(1.0 + fraction)
}

/// The event that asks a client to return after `delay`.
pub(crate) fn retry_event(delay: Duration) -> Bytes {
    let mut event = Vec::new();
    sse::encode_retry(
        &mut event,
        u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
    );
    event.push(b'\n');
    event.into()
}

/// Fractions of one that are spread evenly, however many are drawn: multiples of the golden ratio.
#[derive(Debug)]
pub(crate) struct FractionSequence(AtomicU32);

/// 2³² divided by the golden ratio.
const GOLDEN_STEP: u32 = 0x9E37_79B9;

impl FractionSequence {
    /// Begins at random, so that several servers do not ask their clients for the same moments.
    pub(crate) fn new() -> Self {
        let hash = RandomState::new().hash_one(());
        Self(AtomicU32::new(
            u32::try_from(hash >> u32::BITS).unwrap_or_default(),
        ))
    }

    pub(crate) fn next_fraction(&self) -> f64 {
        let state = self.0.fetch_add(GOLDEN_STEP, Ordering::Relaxed);
        f64::from(state) / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seconds(count: u64) -> Duration {
        SECOND * u32::try_from(count).unwrap()
    }

    #[test]
    fn returns_after_a_stop_begin_behind_the_drain_and_are_even() {
        let plan = DrainPlan {
            duration: seconds(30),
            next_server: NextServer::AfterDrain,
            return_window: seconds(40),
        };
        for clients in [50, 400, 4_000] {
            let fractions = FractionSequence::new();
            let mut by_second = [0; 40];
            for client in 0..clients {
                let elapsed = seconds(30).mul_f64(f64::from(client) / f64::from(clients));
                let delay = plan.return_delay(elapsed, fractions.next_fraction());
                let behind = (elapsed + delay).checked_sub(plan.duration + RESTART_TIME);
                let behind = behind.expect("no client returns before the next server");
                by_second[usize::try_from(behind.as_secs()).unwrap()] += 1;
            }
            let most = by_second.iter().max().unwrap();
            assert!(*most <= clients / 40 + 2, "{clients}: {by_second:?}");
        }
    }

    #[test]
    fn clients_of_a_server_that_has_a_successor_return_at_once() {
        let plan = DrainPlan {
            return_window: seconds(2),
            ..DrainPlan::with_duration(seconds(30))
        };
        assert_eq!(plan.return_delay(seconds(0), 0.0), SECOND);
        assert_eq!(plan.return_delay(seconds(20), 0.5), seconds(2));
        // One that comes after the drain.
        let late = DrainPlan {
            next_server: NextServer::AfterDrain,
            ..plan
        };
        assert_eq!(late.return_delay(seconds(31), 0.0), RESTART_TIME);
    }

    #[test]
    fn a_refused_client_returns_after_the_interval_on_average() {
        assert_eq!(refusal_delay(seconds(10), 0.0), seconds(5));
        assert_eq!(refusal_delay(seconds(10), 0.5), seconds(10));
        assert_eq!(&retry_event(seconds(10))[..], b"retry: 10000\n\n");
    }
}
