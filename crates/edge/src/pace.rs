//! Whether a peer is too slow: pure arithmetic on times and byte counts.
//!
//! Two rules of `limits`: nothing at all for `body_stall`, or less than `body_rate_min` on average
//! once `body_rate_grace` has passed. Only time spent waiting *for the peer* counts: the time an
//! application takes to produce its next piece is not charged to its reader.

use std::time::{Duration, Instant};

use penstock_config::Limits;

/// The pace of one body in one direction.
#[derive(Debug)]
pub(crate) struct Pace {
    stall: Duration,
    rate_min: u64,
    grace: Duration,
    waited: Duration,
    bytes: u64,
    waiting_since: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            stall: limits.body_stall,
            rate_min: limits.body_rate_min,
            grace: limits.body_rate_grace,
            waited: Duration::ZERO,
            bytes: 0,
            waiting_since: None,
        }
    }

    /// A wait for the peer begins (or goes on).
    pub(crate) fn wait(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting_since.is_some()
    }

    /// The peer sent or took `bytes`.
    pub(crate) fn progress(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        if let Some(since) = self.waiting_since.take() {
            self.waited += now.saturating_duration_since(since);
        }
    }

    /// When the current wait is over the limit; call after [`Pace::wait`].
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let since = self.waiting_since.unwrap_or(now);
        let stalled = since + self.stall;
        if self.rate_min == 0 {
            return stalled;
        }
        // The moment at which the bytes so far, spread over the waiting time, fall below the rate.
        let earned = Duration::from_secs(self.bytes / self.rate_min).max(self.grace);
        let slow = since + earned.saturating_sub(self.waited);
        stalled.min(slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        Pace::new(&Limits::default())
    }

    #[test]
    fn a_silent_peer_is_cut_when_the_grace_is_over() {
        let start = Instant::now();
        let mut pace = pace();
        pace.wait(start);
        assert_eq!(pace.deadline(start), start + Duration::from_secs(10));
    }

    #[test]
    fn a_fast_peer_that_stops_is_cut_by_the_stall() {
        let start = Instant::now();
        let mut pace = pace();
        pace.wait(start);
        pace.progress(start, 1_000_000);
        let later = start + Duration::from_secs(5);
        pace.wait(later);
        assert_eq!(pace.deadline(later), later + Duration::from_secs(30));
    }

    #[test]
    fn a_dripping_peer_is_cut_by_its_rate() {
        let start = Instant::now();
        let mut pace = pace();
        let mut now = start;
        loop {
            pace.wait(now);
            let deadline = pace.deadline(now);
            let next = now + Duration::from_secs(1);
            if deadline < next {
                now = deadline;
                break;
            }
            pace.progress(next, 1);
            now = next;
        }
        assert_eq!(now - start, Duration::from_secs(10));
    }

    #[test]
    fn time_that_the_application_takes_is_not_charged() {
        let start = Instant::now();
        let mut pace = pace();
        pace.progress(start, 10);
        let later = start + Duration::from_secs(3600);
        pace.wait(later);
        assert_eq!(pace.deadline(later), later + Duration::from_secs(10));
    }
}
