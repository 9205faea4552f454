//! The samples of a run, taken at intervals and limited to what a chart can show. Pure.
//!
//! The coordinator adds samples. When there are too many, every other one is dropped and the
//! interval doubles: an hour and a day have the same number.

use std::time::{Duration, Instant};

use crate::report::HoldSample;
use crate::text::units::to_f64;

/// The samples so far.
#[derive(Debug)]
pub(super) struct SampleSeries {
    interval: Duration,
    next: Option<Instant>,
    /// When the last one was taken, and the number of receipts by then.
    previous: Option<(Instant, u64)>,
    samples: Vec<HoldSample>,
}

impl SampleSeries {
    pub(super) fn new(every: Duration) -> Self {
        Self {
            interval: every.max(MIN_INTERVAL),
            next: None,
            previous: None,
            samples: Vec::new(),
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Adds a sample; the number of receipts gives their rate.
    pub(super) fn add(&mut self, now: Instant, heard: u64, mut sample: HoldSample) {
        if let Some((then, before)) = self.previous {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            if seconds > 0.0 {
                sample.receipts_per_second = to_f64(heard.saturating_sub(before)) / seconds;
            }
        }
        self.previous = Some((now, heard));
        self.next = Some(now + self.interval);
        self.samples.push(sample);
        if self.samples.len() >= MAX_SAMPLES {
            let mut is_dropped = true;
            self.samples.retain(|_| {
                is_dropped = !is_dropped;
                !is_dropped
            });
            self.interval *= 2;
        }
    }

    pub(super) fn last(&self) -> HoldSample {
        self.samples.last().copied().unwrap_or_default()
    }

    pub(super) fn into_all(self) -> Vec<HoldSample> {
        self.samples
    }
}

/// An hour of seconds, and a report of a few megabytes.
const MAX_SAMPLES: usize = 4000;

/// A sample reads some files of /proc.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_rate_since_the_one_before() {
        let start = Instant::now();
        let mut samples = SampleSeries::new(Duration::from_secs(1));
        assert!(samples.is_due(start));
        samples.add(start, 10, HoldSample::default());
        assert!(!samples.is_due(start) && samples.is_due(start + Duration::from_secs(1)));
        samples.add(start + Duration::from_secs(2), 50, HoldSample::default());
        assert!((samples.last().receipts_per_second - 20.0).abs() < 1e-9);
    }

    #[test]
    fn a_day_has_no_more_samples_than_an_hour() {
        let start = Instant::now();
        let mut samples = SampleSeries::new(Duration::from_secs(1));
        for second in 0..86_400 {
            let now = start + Duration::from_secs(second);
            if samples.is_due(now) {
                let at = now.duration_since(start).as_secs_f64();
                samples.add(
                    now,
                    0,
                    HoldSample {
                        at,
                        ..HoldSample::default()
                    },
                );
            }
        }
        let all = samples.into_all();
        assert!((1500..4000).contains(&all.len()), "{}", all.len());
        assert!(all.windows(2).all(|two| two[0].at < two[1].at));
        assert!(all.last().unwrap().at > 86_000.0);
    }
}
