//! Whether a peer is too slow, and how fast a throttled body goes: pure arithmetic on times and
//! byte counts.
//!
//! Two limits: no byte for `body_idle_timeout`, or less than the minimum rate on average after its
//! grace period. The average allows two seconds' worth of bytes on their way, as a peer that sends
//! at just that rate sends in pieces. Only time spent waiting for the peer counts: the time that an
//! application takes for its next piece does not.

use std::time::{Duration, Instant};

use penstock_config::Limits;
use penstock_exchange::BodyRate;

use crate::router::RouteBodyLimits;

/// The time limit of one body in one direction, by its transfer rate.
#[derive(Debug)]
pub(crate) struct TransferTimeout {
    idle_timeout: Duration,
    min_rate: u64,
    grace: Duration,
    total_wait: Duration,
    bytes: u64,
    waiting_since: Option<Instant>,
}

/// How slow a peer may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferLimits {
    /// Without a byte.
    pub(crate) idle_timeout: Duration,
    /// Bytes a second; 0 is no minimum.
    min_rate: u64,
    /// Before the rate counts.
    grace: Duration,
}

impl TransferLimits {
    /// The limits of a route, by the server's where it has none of its own.
    pub(crate) fn new(limits: &Limits, route: RouteBodyLimits) -> Self {
        Self {
            idle_timeout: route.idle_timeout.unwrap_or(limits.body_idle_timeout),
            min_rate: route.min_rate.unwrap_or(limits.min_body_rate),
            grace: limits.body_rate_grace,
        }
    }
}

impl TransferTimeout {
    pub(crate) fn new(limits: TransferLimits) -> Self {
        Self {
            idle_timeout: limits.idle_timeout,
            min_rate: limits.min_rate,
            grace: limits.grace,
            total_wait: Duration::ZERO,
            bytes: 0,
            waiting_since: None,
        }
    }

    /// Starts or continues a wait for the peer.
    pub(crate) fn start_wait(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting_since.is_some()
    }

    /// Counts bytes that the peer sent or acknowledged.
    pub(crate) fn record_progress(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        if let Some(since) = self.waiting_since.take() {
            self.total_wait += now.saturating_duration_since(since);
        }
    }

    pub(crate) fn stop_wait(&mut self, now: Instant) {
        self.record_progress(now, 0);
    }

    /// The time at which the current wait is over the limit; call after
    /// [`TransferTimeout::start_wait`].
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let since = self.waiting_since.unwrap_or(now);
        let stalled = since + self.idle_timeout;
        if self.min_rate == 0 {
            return stalled;
        }
        // The moment at which the bytes so far, spread over the waiting time, fall below the rate.
        let earned = duration_at_rate(self.bytes, self.min_rate)
            .saturating_add(IN_FLIGHT_ALLOWANCE.min(self.grace))
            .max(self.grace);
        let slow = earned.saturating_sub(self.total_wait);
        // A rate of a few bytes a second may earn a large body more time than a clock can tell.
        since
            .checked_add(slow)
            .map_or(stalled, |slow| stalled.min(slow))
    }
}

/// Time by which a byte may come later than evenly sent: many senders write once a second, by
/// timers that are late by a little.
const IN_FLIGHT_ALLOWANCE: Duration = Duration::from_secs(2);

/// The time that `bytes` take at `rate` bytes a second, which is not 0; to the nanosecond.
fn duration_at_rate(bytes: u64, rate: u64) -> Duration {
    let rest = u128::from(bytes % rate) * 1_000_000_000 / u128::from(rate);
    // Less than a second.
    let nanos = u64::try_from(rest).unwrap_or_default();
    Duration::from_secs(bytes / rate) + Duration::from_nanos(nanos)
}

/// Bounds the rate of a body (`X-Accel-Limit-Rate`, `response_rate`). Time that a slow client did
/// not use is not saved up: a burst is at most [`BURST_DURATION`] worth of bytes.
#[derive(Debug)]
pub(crate) struct Throttle {
    rate: BodyRate,
    /// Bytes a second; read anew at each look, as others may share the rate.
    max_rate: u64,
    /// Bytes that may go now.
    credit: u64,
    credited_until: Instant,
}

/// Time whose bytes go in one piece: few wake-ups, and still smooth to a viewer.
const BURST_DURATION: Duration = Duration::from_millis(100);

impl Throttle {
    /// A bound of this rate.
    pub(crate) fn new(rate: BodyRate, now: Instant) -> Self {
        let mut throttle = Self {
            max_rate: rate.current(),
            rate,
            credit: 0,
            credited_until: now,
        };
        let unthrottled = throttle.rate.unthrottled;
        throttle.credit = throttle.burst_bytes().saturating_add(unthrottled);
        throttle
    }

    /// The number of `wanted` bytes that may go now; 0 before [`Throttle::ready_at`].
    pub(crate) fn available_bytes(&mut self, now: Instant, wanted: usize) -> usize {
        let since = now.saturating_duration_since(self.credited_until);
        self.max_rate = self.rate.current();
        let earned = u128::from(self.max_rate) * since.as_nanos() / 1_000_000_000;
        if earned > 0 {
            let earned = u64::try_from(earned).unwrap_or(u64::MAX);
            // The first bytes may be more than a burst.
            let most = self.credit.max(self.burst_bytes());
            self.credit = self.credit.saturating_add(earned).min(most);
            // The fraction of a byte that has been earned is kept.
            self.credited_until = match self.credit >= self.burst_bytes() {
                true => now,
                false => self.credited_until + duration_at_rate(earned, self.max_rate),
            };
        }
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        // In whole bursts: a trickle of a few bytes would cost a packet each.
        match self.credit >= wanted.min(self.burst_bytes()) {
            true => usize::try_from(self.credit.min(wanted)).unwrap_or(usize::MAX),
            false => 0,
        }
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.credit = self.credit.saturating_sub(bytes);
    }

    /// The time at which `wanted` bytes, or a burst of them, may go.
    pub(crate) fn ready_at(&self, wanted: usize) -> Instant {
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let missing = wanted.min(self.burst_bytes()).saturating_sub(self.credit);
        let nanos = u128::from(missing) * 1_000_000_000 / u128::from(self.max_rate) + 1;
        self.credited_until + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn burst_bytes(&self) -> u64 {
        let bytes = u128::from(self.max_rate) * BURST_DURATION.as_millis() / 1000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use penstock_exchange::{RateSharers, SharedRate};

    use super::*;

    #[test]
    fn the_first_bytes_may_come_without_a_bound() {
        let start = Instant::now();
        let rate = BodyRate {
            unthrottled: 5_000,
            ..BodyRate::of_response(1_000)
        };
        let mut throttle = Throttle::new(rate, start);
        assert_eq!(throttle.available_bytes(start, 10_000), 5_100);
        throttle.spend(4_000);
        // What is left of them is not lost by waiting, and no more is saved up than a burst.
        let later = start + Duration::from_secs(10);
        assert_eq!(throttle.available_bytes(later, 10_000), 1_100);
        throttle.spend(1_100);
        assert_eq!(throttle.available_bytes(later, 10_000), 0);
        assert_eq!(
            throttle.ready_at(10_000),
            later + Duration::from_nanos(100_000_001)
        );
        let much_later = later + Duration::from_secs(10);
        assert_eq!(throttle.available_bytes(much_later, 10_000), 100);
    }

    /// How long `bytes` take, when the socket takes at most `most` at once.
    fn time_to_send(rate_max: u64, bytes: usize, most: usize) -> Duration {
        let start = Instant::now();
        let mut throttle = Throttle::new(BodyRate::of_response(rate_max), start);
        let (mut now, mut left) = (start, bytes);
        while left > 0 {
            let count = throttle.available_bytes(now, left).min(most);
            if count == 0 {
                let next = throttle.ready_at(left);
                assert!(next > now, "a wait that ends before it begins");
                now = next;
            }
            throttle.spend(count);
            left -= count;
        }
        now - start
    }

    #[test]
    fn a_body_takes_as_long_as_its_rate_says() {
        for (rate_max, bytes, most) in [
            (1_000, 10_000, usize::MAX),
            (1_000, 10_000, 7),
            (1, 5, usize::MAX),
            (3, 7, 1),
            (50_000_000, 500_000_000, 65_536),
        ] {
            let seconds = time_to_send(rate_max, bytes, most).as_secs_f64();
            let expected = bytes as f64 / rate_max as f64;
            let burst = (rate_max as f64 / 10.0).max(1.0) / rate_max as f64;
            assert!(
                (expected - burst) * 0.99 <= seconds && seconds <= expected * 1.01,
                "{bytes} at {rate_max}: {seconds} s"
            );
        }
    }

    #[test]
    fn time_not_used_is_not_saved_up() {
        let start = Instant::now();
        let mut throttle = Throttle::new(BodyRate::of_response(1_000), start);
        throttle.spend(100);
        let later = start + Duration::from_secs(3600);
        assert_eq!(throttle.available_bytes(later, 1_000_000), 100);
    }

    #[derive(Debug)]
    struct Sharers(AtomicU32);

    impl RateSharers for Sharers {
        fn count(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_shared_rate_follows_the_number_of_its_bodies() {
        let start = Instant::now();
        let sharers = Arc::new(Sharers(AtomicU32::new(4)));
        let rate = BodyRate {
            of_response: None,
            shared: Some(SharedRate {
                bytes_per_second: 4_000,
                sharers: Arc::clone(&sharers) as _,
            }),
            unthrottled: 0,
        };
        let mut throttle = Throttle::new(rate, start);
        // A tenth of a second of a quarter of the rate.
        assert_eq!(throttle.available_bytes(start, 10_000), 100);
        throttle.spend(100);
        let later = start + Duration::from_millis(100);
        assert_eq!(throttle.available_bytes(later, 10_000), 100);
        throttle.spend(100);
        // The others have ended: all of the rate, from the next burst on.
        sharers.0.store(1, Ordering::Relaxed);
        let later = start + Duration::from_millis(200);
        assert_eq!(throttle.available_bytes(later, 10_000), 400);
    }

    fn timeout_of(limits: &Limits) -> TransferTimeout {
        TransferTimeout::new(TransferLimits::new(limits, RouteBodyLimits::default()))
    }

    #[test]
    fn a_route_may_have_limits_of_its_own() {
        let route = RouteBodyLimits {
            idle_timeout: Some(Duration::from_secs(300)),
            min_rate: Some(0),
            ..RouteBodyLimits::default()
        };
        let start = Instant::now();
        let mut timeout = TransferTimeout::new(TransferLimits::new(&Limits::default(), route));
        timeout.start_wait(start);
        assert_eq!(timeout.deadline(start), start + Duration::from_secs(300));
    }

    fn new_timeout() -> TransferTimeout {
        timeout_of(&Limits::default())
    }

    #[test]
    fn a_silent_peer_is_cut_when_the_grace_is_over() {
        let start = Instant::now();
        let mut timeout = new_timeout();
        timeout.start_wait(start);
        assert_eq!(timeout.deadline(start), start + Duration::from_secs(10));
    }

    #[test]
    fn a_fast_peer_that_stops_is_cut_by_the_stall() {
        let start = Instant::now();
        let mut timeout = new_timeout();
        timeout.start_wait(start);
        timeout.record_progress(start, 1_000_000);
        let later = start + Duration::from_secs(5);
        timeout.start_wait(later);
        assert_eq!(timeout.deadline(later), later + Duration::from_secs(30));
    }

    #[test]
    fn a_dripping_peer_is_cut_by_its_rate() {
        let start = Instant::now();
        let mut timeout = new_timeout();
        let mut now = start;
        loop {
            timeout.start_wait(now);
            let deadline = timeout.deadline(now);
            let next = now + Duration::from_secs(1);
            if deadline < next {
                now = deadline;
                break;
            }
            timeout.record_progress(next, 1);
            now = next;
        }
        assert_eq!(now - start, Duration::from_secs(10));
    }

    /// How long a peer that sends `bytes` every `every` lives, if it is cut within an hour.
    fn lifetime(bytes: u64, every: Duration, limits: &Limits) -> Option<Duration> {
        let start = Instant::now();
        let mut timeout = timeout_of(limits);
        let mut now = start;
        while now - start < Duration::from_secs(3600) {
            timeout.start_wait(now);
            let (deadline, next) = (timeout.deadline(now), now + every);
            if deadline < next {
                return Some(deadline - start);
            }
            timeout.record_progress(next, bytes);
            now = next;
        }
        None
    }

    #[test]
    fn a_peer_that_is_just_fast_enough_lives_and_a_slower_one_does_not() {
        let millis = Duration::from_millis;
        for (rate_min, bytes, every, lives) in [
            (1_000, 1_000, millis(1_000), true),
            (1_000, 1_000, millis(1_001), false),
            (100_000, 99_999, millis(1_000), true),
            (1_000, 999, millis(1_000), false),
            (1_000, 100, millis(100), true),
            (1_000, 1, millis(1), true),
            (1_000, 90, millis(100), false),
            (1_000, 1_500, millis(1_500), true),
            (1_000_000, 999_999, millis(1_000), true),
            (1_000_000, 999_000, millis(1_000), false),
            // Whole seconds would round each of these down to nothing.
            (700, 350, millis(500), true),
            (1 << 30, 1 << 29, millis(500), true),
            (1 << 30, 1 << 28, millis(500), false),
            (3, 1, millis(333), true),
            (1, 1, millis(1_100), false),
        ] {
            let limits = Limits {
                min_body_rate: rate_min,
                body_rate_grace: millis(2_000),
                ..Limits::default()
            };
            let lived = lifetime(bytes, every, &limits);
            assert_eq!(lived.is_none(), lives, "{bytes} in {every:?}: {lived:?}");
            assert!(lived.is_none_or(|lived| lived >= millis(2_000)));
        }
    }

    #[test]
    fn the_largest_body_at_the_least_rate_has_a_deadline() {
        let start = Instant::now();
        let mut timeout = timeout_of(&Limits {
            min_body_rate: 1,
            ..Limits::default()
        });
        timeout.record_progress(start, u64::MAX);
        timeout.start_wait(start);
        assert_eq!(timeout.deadline(start), start + Duration::from_secs(30));
    }

    #[test]
    fn time_held_back_by_a_rate_is_not_charged() {
        let start = Instant::now();
        let mut timeout = new_timeout();
        timeout.start_wait(start);
        timeout.stop_wait(start + Duration::from_secs(1));
        let later = start + Duration::from_secs(3600);
        timeout.start_wait(later);
        assert_eq!(timeout.deadline(later), later + Duration::from_secs(9));
    }

    #[test]
    fn time_that_the_application_takes_is_not_charged() {
        let start = Instant::now();
        let mut timeout = new_timeout();
        timeout.record_progress(start, 10);
        let later = start + Duration::from_secs(3600);
        timeout.start_wait(later);
        assert_eq!(timeout.deadline(later), later + Duration::from_secs(10));
    }
}
