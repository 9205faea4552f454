//! The rate of new certificates on demand: a token bucket. Pure: `now` is an argument.

use std::time::{Duration, SystemTime};

/// A bucket that fills with `max_orders` tokens in `interval`, and holds as many.
#[derive(Debug)]
pub(super) struct IssuanceRate {
    interval: Duration,
    /// The time in which one token is added.
    step: Duration,
    /// When the bucket is full, if nothing more is taken.
    full_at: SystemTime,
}

impl IssuanceRate {
    pub(super) fn new(max_orders: u32, interval: Duration) -> Self {
        Self {
            interval,
            step: interval / max_orders.max(1),
            full_at: SystemTime::UNIX_EPOCH,
        }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// When the next one is there.
    pub(super) fn take(&mut self, now: SystemTime) -> Result<(), SystemTime> {
        // A clock that was set back would close the bucket for as long.
        let full_at = self.full_at.max(now).min(now + self.interval);
        let full_after = full_at + self.step;
        if full_after > now + self.interval {
            return Err(full_after - self.interval);
        }
        self.full_at = full_after;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut rate = IssuanceRate::new(6, Duration::from_secs(60));
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for _ in 0..6 {
            assert_eq!(rate.take(start), Ok(()));
        }
        let next = start + Duration::from_secs(10);
        assert_eq!(rate.take(start), Err(next));
        assert_eq!(rate.take(next), Ok(()));
        assert!(rate.take(next).is_err());
        // Set back by a day.
        let back = start - Duration::from_secs(86_400);
        assert_eq!(rate.take(back), Err(back + Duration::from_secs(10)));
    }
}
