//! Limits the retries of a failing upstream: retries to an overloaded server make it worse.
//!
//! Each upstream has one [`RetryBudget`]. Its caller deposits for each request and withdraws for
//! each retry; retries are at most a part of the requests of the last ten seconds. A small number
//! per second is always allowed, as an upstream with little traffic would have no retries
//! otherwise. Pure (`now` is an argument) and of constant size: ten buckets of one second.
//!
//! # Invariants
//!
//! - Beyond the floor of its second, a retry is allowed only while the retries of the window,
//!   itself included, stay within the ratio.
//! - A clock that steps back grants nothing.

use std::time::{Duration, Instant};

/// Requests and retries of the last ten seconds.
#[derive(Debug, Clone)]
pub(crate) struct RetryBudget {
    ratio: f64,
    min_per_second: u64,
    buckets: [Bucket; WINDOW_SECONDS],
    /// The sum of all buckets.
    window_total: Bucket,
    current_bucket: usize,
    bucket_started_at: Instant,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    requests: u64,
    retries: u64,
}

/// Long enough to outlast a short burst, short enough to forget good times when an upstream begins
/// to fail.
const WINDOW_SECONDS: usize = 10;

/// Always allowed, as in Finagle and Linkerd: it causes no storm, and an upstream with occasional
/// requests can retry each of them.
const MIN_PER_SECOND: u64 = 10;

impl RetryBudget {
    /// Creates an empty budget; `ratio` is retries per request, 0 to 1.
    pub(crate) fn new(ratio: f64, now: Instant) -> Self {
        Self::with_min_per_second(ratio, MIN_PER_SECOND, now)
    }

    fn with_min_per_second(ratio: f64, min_per_second: u64, now: Instant) -> Self {
        Self {
            ratio: ratio.clamp(0.0, 1.0),
            min_per_second,
            buckets: [Bucket::default(); WINDOW_SECONDS],
            window_total: Bucket::default(),
            current_bucket: 0,
            bucket_started_at: now,
        }
    }

    /// Counts a request, at its first attempt.
    pub(crate) fn deposit(&mut self, now: Instant) {
        self.advance(now);
        self.buckets[self.current_bucket].requests += 1;
        self.window_total.requests += 1;
    }

    /// Whether a request may be retried now; if so, counts the retry.
    #[must_use = "the retry is already counted"]
    pub(crate) fn withdraw(&mut self, now: Instant) -> bool {
        self.advance(now);
        let second = &mut self.buckets[self.current_bucket];
        let is_earned = (self.window_total.retries + 1) as f64
            <= self.window_total.requests as f64 * self.ratio;
        let is_allowed = is_earned || second.retries < self.min_per_second;
        if is_allowed {
            second.retries += 1;
            self.window_total.retries += 1;
        }
        is_allowed
    }

    /// Forgets the seconds that have left the window.
    fn advance(&mut self, now: Instant) {
        let seconds = now
            .saturating_duration_since(self.bucket_started_at)
            .as_secs();
        if seconds == 0 {
            return;
        }
        for _ in 0..seconds.min(WINDOW_SECONDS as u64) {
            self.current_bucket = (self.current_bucket + 1) % WINDOW_SECONDS;
            let old = std::mem::take(&mut self.buckets[self.current_bucket]);
            self.window_total.requests -= old.requests;
            self.window_total.retries -= old.retries;
        }
        self.bucket_started_at += Duration::from_secs(seconds);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn millis(at: u64) -> Duration {
        Duration::from_millis(at)
    }

    /// How many of `tries` retries at one moment are allowed.
    fn granted(budget: &mut RetryBudget, now: Instant, tries: u32) -> usize {
        (0..tries).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn allows_the_ratio_of_recent_requests_or_the_floor_of_the_second() {
        let rows = [
            // name, ratio, floor, requests, after ms, allowed
            ("a fifth of a hundred", 0.2, 0, 100, 0, 20),
            ("exactly the ratio", 0.1, 0, 30, 0, 3),
            ("nine seconds later still", 0.2, 0, 100, 9_999, 20),
            ("nothing after ten", 0.2, 0, 100, 10_000, 0),
            ("no requests but a floor", 0.2, 3, 0, 0, 3),
            ("the floor is no addition", 0.2, 3, 100, 0, 20),
            ("less than the floor earned", 0.2, 3, 5, 0, 3),
            ("none at all", 0.0, 0, 100, 0, 0),
            ("as many as requests", 1.0, 0, 7, 0, 7),
            ("a ratio above one is one", 5.0, 0, 7, 0, 7),
            ("no number is none", f64::NAN, 0, 100, 0, 0),
        ];
        for (name, ratio, floor, requests, after, allowed) in rows {
            let zero = Instant::now();
            let mut budget = RetryBudget::with_min_per_second(ratio, floor, zero);
            for _ in 0..requests {
                budget.deposit(zero);
            }
            let now = zero + millis(after);
            assert_eq!(granted(&mut budget, now, 200), allowed, "{name}");
        }
    }

    #[test]
    fn gives_the_floor_again_each_second() {
        let zero = Instant::now();
        let mut budget = RetryBudget::with_min_per_second(0.2, 2, zero);
        for second in 0..30 {
            let now = zero + millis(second * 1000);
            assert_eq!(granted(&mut budget, now, 5), 2, "second {second}");
            assert_eq!(granted(&mut budget, now + millis(999), 5), 0);
        }
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_away() {
        let zero = Instant::now() + millis(60_000);
        let mut budget = RetryBudget::with_min_per_second(0.2, 1, zero);
        assert_eq!(granted(&mut budget, zero, 5), 1);
        assert_eq!(granted(&mut budget, zero - millis(30_000), 5), 0);
        assert_eq!(granted(&mut budget, zero + millis(1000), 5), 1);
    }

    #[test]
    fn an_outage_adds_a_fifth_to_the_load_and_no_more() {
        let zero = Instant::now();
        let mut budget = RetryBudget::new(0.2, zero);
        let mut sent = 0;
        for request in 0..60_000 {
            // A thousand per second; each fails and would be attempted three times.
            let now = zero + millis(request);
            budget.deposit(now);
            sent += 1 + granted(&mut budget, now, 2);
        }
        assert!((71_900..=72_000).contains(&sent), "{sent}");
    }

    /// Compares with a model that remembers every request: the budget allows exactly what the rule
    /// allows.
    #[test]
    fn agrees_with_a_model_that_remembers_everything() {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seeds = match number("PENSTOCK_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..number("PENSTOCK_SEEDS").unwrap_or(200),
        };
        for seed in seeds {
            run_against_model(seed);
        }
    }

    fn run_against_model(seed: u64) {
        let pick = |drawn: u64| usize::try_from(drawn).unwrap();
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        let (ratio, floor) = ([0.0, 0.1, 0.2, 1.0][pick(below(4))], below(4));
        let zero = Instant::now();
        let mut budget = RetryBudget::with_min_per_second(ratio, floor, zero);
        // The second of each event, and whether it is a retry.
        let mut events: VecDeque<(u64, bool)> = VecDeque::new();
        let (mut at, pace) = (0, [5, 300, 4000][pick(below(3))]);
        budget.deposit(zero);
        events.push_back((0, false));
        for _ in 0..600 {
            at += below(pace);
            let (now, second) = (zero + millis(at), at / 1000);
            events.retain(|(then, _)| *then + 10 > second);
            if below(3) > 0 {
                budget.deposit(now);
                events.push_back((second, false));
                continue;
            }
            let retries = events.iter().filter(|(_, is_retry)| *is_retry);
            let of_second = retries.clone().filter(|(then, _)| *then == second).count() as u64;
            let retries = retries.count();
            let requests = events.len() - retries;
            let is_earned = (retries + 1) as f64 <= requests as f64 * ratio;
            let expected = is_earned || of_second < floor;
            let case = format!("PENSTOCK_SEED={seed}: {retries} of {requests}, {of_second}");
            assert_eq!(budget.withdraw(now), expected, "{case}");
            if expected {
                events.push_back((second, true));
            }
        }
    }
}
