//! Histograms of durations: counted in fine buckets, shown as percentiles and as the coarser buckets
//! of `/metrics`.
//!
//! Counting is two additions. The buckets grow by a quarter, so that a percentile that is
//! interpolated within its bucket is off by a few per cent. One histogram takes about 600 bytes.
//!
//! # Invariants
//! - Each bound of `/metrics` is a bound of the fine buckets: its counts are exact.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::exemplars::{Exemplar, ExemplarStore};
use super::metric_table::to_f64;

/// Upper bounds of the buckets in `/metrics`, in microseconds: 1-2-5 steps from 100 us to 60 s.
pub const METRIC_BOUNDS_US: [u64; 18] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Upper bounds of the buckets that are counted, in microseconds: ten in a decade (the series R10 of
/// preferred numbers) from 50 us to 10 s.
const BOUNDS_US: [u64; 58] = [
    50, 64, 80, 100, 125, 160, 200, 250, 320, 400, 500, 640, 800, 1_000, 1_250, 1_600, 2_000,
    2_500, 3_200, 4_000, 5_000, 6_400, 8_000, 10_000, 12_500, 16_000, 20_000, 25_000, 32_000,
    40_000, 50_000, 64_000, 80_000, 100_000, 125_000, 160_000, 200_000, 250_000, 320_000, 400_000,
    500_000, 640_000, 800_000, 1_000_000, 1_250_000, 1_600_000, 2_000_000, 2_500_000, 3_200_000,
    4_000_000, 5_000_000, 6_400_000, 8_000_000, 10_000_000, 15_000_000, 20_000_000, 30_000_000,
    60_000_000,
];

/// The buckets with the last, which counts longer durations and has no bound.
const BUCKETS: usize = BOUNDS_US.len() + 1;

/// A histogram of durations with fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    exemplars: ExemplarStore,
}

// There are several for each application, upstream and cache, and one for each counted route.
const _: () = assert!(size_of::<Histogram>() <= 560);

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::default()),
            sum_us: AtomicU64::default(),
            exemplars: ExemplarStore::default(),
        }
    }
}

/// A histogram's numbers at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramValues {
    /// Counts by bucket, not cumulative.
    counts: [u64; BUCKETS],
    /// Sum of all durations in microseconds.
    sum_us: u64,
    /// The latest trace in each bucket of `/metrics` that has one, in the order of the buckets.
    pub exemplars: Vec<Exemplar>,
}

impl Default for HistogramValues {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            sum_us: 0,
            exemplars: Vec::new(),
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        for (cell, by) in self.increments(duration) {
            cell.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Counts one duration in a histogram that only this thread changes.
    pub fn record_local(&self, duration: Duration) {
        for (cell, by) in self.increments(duration) {
            let sum = cell.load(Ordering::Relaxed).wrapping_add(by);
            cell.store(sum, Ordering::Relaxed);
        }
    }

    /// Names the trace of a duration that was counted.
    pub fn add_exemplar(&self, duration: Duration, trace_id: [u8; 16]) {
        let us = whole_micros(duration);
        self.exemplars.add(Exemplar {
            bucket: METRIC_BOUNDS_US.partition_point(|&bound| bound < us),
            trace_id,
            duration_us: us,
            observed_at: penstock_runtime::clock::wall_time(),
        });
    }

    fn increments(&self, duration: Duration) -> [(&AtomicU64, u64); 2] {
        let us = whole_micros(duration);
        let bucket = BOUNDS_US.partition_point(|&bound| bound < us);
        [(&self.counts[bucket], 1), (&self.sum_us, us)]
    }

    pub(super) fn merge(&self, other: &Self) {
        for (mine, theirs) in self.counts.iter().zip(&other.counts) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.sum_us
            .fetch_add(other.sum_us.load(Ordering::Relaxed), Ordering::Relaxed);
        for exemplar in other.exemplars.values() {
            self.exemplars.add(exemplar);
        }
    }

    /// The numbers so far.
    #[must_use]
    pub fn values(&self) -> HistogramValues {
        HistogramValues {
            counts: std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
            exemplars: self.exemplars.values(),
        }
    }
}

impl HistogramValues {
    /// The sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
    }

    /// The sum of all durations in seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        micros_to_seconds(self.sum_us)
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was counted since `before`: a histogram that was replaced has counted all anew.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let is_replaced = self.count() < before.count();
        let base = |index: usize| if is_replaced { 0 } else { before.counts[index] };
        Self {
            counts: std::array::from_fn(|i| self.counts[i].saturating_sub(base(i))),
            sum_us: match is_replaced {
                true => self.sum_us,
                false => self.sum_us.saturating_sub(before.sum_us),
            },
            exemplars: Vec::new(),
        }
    }

    /// The quantile `q` (0 to 1) in seconds, interpolated within its bucket; `None` of no duration.
    /// One beyond the last bound is that bound.
    #[must_use]
    pub fn quantile_seconds(&self, q: f64) -> Option<f64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let rank = q * to_f64(total);
        let mut seen = 0.0;
        for (index, &count) in self.counts.iter().enumerate() {
            let count = to_f64(count);
            if count > 0.0 && seen + count >= rank {
                let lower = index.checked_sub(1).map_or(0, |before| BOUNDS_US[before]);
                let upper = BOUNDS_US.get(index).copied().unwrap_or(lower);
                let share = (rank - seen) / count;
                return Some((to_f64(lower) + to_f64(upper - lower) * share) / 1e6);
            }
            seen += count;
        }
        Some(micros_to_seconds(BOUNDS_US[BOUNDS_US.len() - 1]))
    }

    /// The upper bound of each bucket in `/metrics`, in seconds, with its count: not cumulative. The
    /// last has no bound.
    pub fn metric_buckets(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let mut counts = BOUNDS_US
            .into_iter()
            .map(Some)
            .chain([None])
            .zip(self.counts);
        let bounds = METRIC_BOUNDS_US.into_iter().map(Some).chain([None]);
        bounds.map(move |bound| {
            let mut sum = 0;
            for (fine, count) in counts.by_ref() {
                sum += count;
                if fine == bound {
                    break;
                }
            }
            (bound.map(micros_to_seconds), sum)
        })
    }
}

/// A histogram as JSON: its summary, and the buckets for a summary of a shorter time.
#[derive(Serialize)]
struct HistogramJson<'a> {
    count: u64,
    sum_seconds: f64,
    p50_seconds: f64,
    p90_seconds: f64,
    p95_seconds: f64,
    p99_seconds: f64,
    p999_seconds: f64,
    buckets: BucketsJson<'a>,
}

#[derive(Serialize)]
struct BucketsJson<'a> {
    /// Upper bounds; one fewer than the counts, the last of which has no bound.
    #[serde(serialize_with = "serialize_bounds")]
    le_seconds: &'a [u64],
    /// Counts, not cumulative.
    #[serde(serialize_with = "serialize_counts")]
    counts: &'a [u64],
}

fn serialize_bounds<S: Serializer>(bounds: &&[u64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(bounds.iter().copied().map(micros_to_seconds))
}

fn serialize_counts<S: Serializer>(counts: &&[u64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(*counts)
}

/// Serialises the count, the sum, the percentiles and the buckets.
impl Serialize for HistogramValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quantile = |q| self.quantile_seconds(q).unwrap_or_default();
        let json = HistogramJson {
            count: self.count(),
            sum_seconds: self.sum_seconds(),
            p50_seconds: quantile(0.5),
            p90_seconds: quantile(0.9),
            p95_seconds: quantile(0.95),
            p99_seconds: quantile(0.99),
            p999_seconds: quantile(0.999),
            buckets: BucketsJson {
                le_seconds: &BOUNDS_US,
                counts: &self.counts,
            },
        };
        json.serialize(serializer)
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.values().serialize(serializer)
    }
}

fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn micros_to_seconds(us: u64) -> f64 {
    to_f64(us) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(micros: impl IntoIterator<Item = u64>) -> HistogramValues {
        let histogram = Histogram::default();
        for us in micros {
            histogram.record(Duration::from_micros(us));
        }
        histogram.values()
    }

    #[test]
    fn bounds_grow_and_each_of_the_metrics_is_one() {
        assert!(BOUNDS_US.is_sorted_by(|one, next| one < next));
        assert!(
            METRIC_BOUNDS_US
                .iter()
                .all(|bound| BOUNDS_US.contains(bound))
        );
    }

    #[test]
    fn a_duration_is_counted_in_the_bucket_that_bounds_it() {
        let counted = values([0, 100, 101, 60_000_000, 60_000_001]);
        let buckets: Vec<_> = counted.metric_buckets().collect();
        assert_eq!(buckets.len(), METRIC_BOUNDS_US.len() + 1);
        assert_eq!(
            (buckets[0], buckets[1]),
            ((Some(0.0001), 2), (Some(0.0002), 1))
        );
        assert_eq!((buckets[17], buckets[18]), ((Some(60.0), 1), (None, 1)));
        assert_eq!((counted.count(), counted.sum_us), (5, 120_000_202));
    }

    #[test]
    fn percentiles_are_off_by_a_few_per_cent() {
        // Of a uniform and of a skewed distribution; the bound of the error is half a bucket.
        let uniform: Vec<u64> = (1..=10_000).map(|n| n * 10).collect();
        let skewed: Vec<u64> = (1..=10_000).map(|n: u64| 100 + n * n / 1000).collect();
        for micros in [uniform, skewed] {
            let counted = values(micros.iter().copied());
            for q in [0.5, 0.9, 0.95, 0.99, 0.999] {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "an index below 10,000"
                )]
                let exact = micros_to_seconds(micros[(q * 10_000.0) as usize - 1]);
                let found = counted.quantile_seconds(q).unwrap();
                let error = (found - exact).abs() / exact;
                assert!(error < 0.06, "p{q}: {found} for {exact}");
            }
        }
        assert_eq!(values([]).quantile_seconds(0.5), None);
        assert_eq!(values([90_000_000]).quantile_seconds(0.5), Some(60.0));
    }

    #[test]
    fn a_difference_is_that_of_the_time_between() {
        let before = values([10, 10, 3000]);
        let after = values([10, 10, 3000, 3000, 70_000]);
        assert_eq!(after.since(&before), values([3000, 70_000]));
        assert_eq!(before.since(&after), before, "of another application");
    }

    #[test]
    fn a_histogram_is_serialised_as_its_summary() {
        let json = serde_json::to_value(values([1000, 1000, 1000, 40_000])).unwrap();
        assert_eq!(
            (&json["count"], &json["sum_seconds"]),
            (&4.into(), &0.043.into())
        );
        for (name, low, high) in [
            ("p50_seconds", 0.0008, 0.001),
            ("p99_seconds", 0.032, 0.04),
            ("p999_seconds", 0.032, 0.04),
        ] {
            let found = json[name].as_f64().unwrap();
            assert!((low..=high).contains(&found), "{name}: {found}");
        }
        let (bounds, counts) = (&json["buckets"]["le_seconds"], &json["buckets"]["counts"]);
        assert_eq!(bounds.as_array().unwrap().len(), BOUNDS_US.len());
        assert_eq!(counts.as_array().unwrap().len(), BUCKETS);
        let at = BOUNDS_US.iter().position(|&bound| bound == 1000).unwrap();
        assert_eq!((&bounds[at], &counts[at]), (&0.001.into(), &3.into()));
    }
}
