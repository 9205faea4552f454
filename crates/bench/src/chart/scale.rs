//! Axes: maps values to a range and ticks, and a value to its position. Pure.
//!
//! The drawing library sees only positions on a linear axis. The positions of a logarithmic axis
//! are logarithms.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;

use crate::text::units;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    is_log: bool,
    /// The first position.
    pub(super) low: f64,
    /// The last position.
    high: f64,
    ticks: Vec<f64>,
}

impl Scale {
    /// From zero to slightly above the highest value.
    pub(super) fn zero_based(values: impl IntoIterator<Item = f64>) -> Self {
        let greatest = max_value(values);
        Self::linear(0.0, if greatest > 0.0 { greatest * 1.05 } else { 1.0 }, 8)
    }

    /// The same for counts: its ticks are whole numbers.
    pub(super) fn for_counts(values: impl IntoIterator<Item = f64>) -> Self {
        let mut scale = Self::zero_based([max_value(values).max(4.0)]);
        scale.ticks.retain(|place| place.fract() == 0.0);
        scale
    }

    /// For latencies: logarithmic if the highest value is more than [`MIN_LOG_RATIO`] times the
    /// lowest.
    pub(super) fn for_latencies(values: impl IntoIterator<Item = f64> + Clone) -> Self {
        let (least, greatest) = positive_range(values.clone());
        match greatest / least > MIN_LOG_RATIO {
            true => Self::logarithmic(least, greatest * 1.1),
            false => Self::zero_based(values),
        }
    }

    /// For connections: logarithmic if their steps grow, as those of a ladder by factor.
    pub(super) fn for_connections(values: &[f64]) -> Self {
        let (least, greatest) = positive_range(values.iter().copied());
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        // With even steps the middle one is half of the last; with growing steps far less.
        let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(greatest);
        if sorted.len() >= 3 && greatest / least >= 50.0 && middle < greatest / 4.5 {
            return Self::logarithmic(least / 1.15, greatest * 1.15);
        }
        let low = if least < greatest * 0.2 {
            0.0
        } else {
            least - (greatest - least) * 0.05
        };
        match greatest > low {
            true => Self::linear(low, greatest + (greatest - low) * 0.02, 12),
            false => Self::linear(0.0, greatest.max(1.0) * 1.05, 12),
        }
    }

    /// The position of a value.
    pub(super) fn position(&self, value: f64) -> f64 {
        let place = match self.is_log {
            true => value.max(f64::MIN_POSITIVE).log10(),
            false => value,
        };
        match place.is_finite() {
            true => place.clamp(self.low, self.high),
            false => self.low,
        }
    }

    pub(super) fn label(&self, place: f64) -> String {
        let value = match self.is_log {
            true => 10f64.powf(place),
            false => place,
        };
        // Rounding errors of summed steps must not show.
        let rounded = format!("{value:.9e}").parse().unwrap_or(value);
        units::format_tick(rounded)
    }

    /// The rows of a bar chart, from the top and without ticks.
    pub(super) fn for_bar_rows(count: usize) -> Self {
        Self {
            is_log: false,
            low: count as f64,
            high: 0.0,
            ticks: Vec::new(),
        }
    }

    fn linear(low: f64, high: f64, max_ticks: usize) -> Self {
        Self {
            is_log: false,
            low,
            high,
            ticks: RangedCoordf64::from(low..high).key_points(max_ticks),
        }
    }

    /// With ticks at 1, 2 and 5 of each decade while there are few decades.
    fn logarithmic(least: f64, greatest: f64) -> Self {
        let (low, high) = (least.log10(), greatest.log10());
        let digits: &[f64] = if high - low > 3.5 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let mut ticks = Vec::new();
        // From microseconds to hours in milliseconds, and beyond.
        for decade in -9..=12 {
            ticks.extend(digits.iter().map(|digit| digit.log10() + f64::from(decade)));
        }
        ticks.retain(|place| (low..=high).contains(place));
        Self {
            is_log: true,
            low,
            high,
            ticks,
        }
    }
}

/// The library's view: a linear axis of positions, with these ticks.
impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range()).map(place, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.clone(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// Below this ratio a linear axis shows the lowest value well enough.
const MIN_LOG_RATIO: f64 = 30.0;

/// The lowest and the highest positive value.
fn positive_range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let values = values
        .into_iter()
        .filter(|value| value.is_finite() && *value > 0.0);
    let found = values.fold(None, |found: Option<(f64, f64)>, value| match found {
        Some((least, greatest)) => Some((least.min(value), greatest.max(value))),
        None => Some((value, value)),
    });
    found.unwrap_or((1.0, 1.0))
}

/// The highest value, at least zero, and far enough from the largest number for its axis.
fn max_value(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = values.into_iter().filter(|value| value.is_finite());
    values.fold(0.0, f64::max).min(1e300)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<String> {
        scale
            .ticks
            .iter()
            .map(|&place| scale.label(place))
            .collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        for (name, scale, expected) in [
            (
                "throughput",
                Scale::zero_based([120.0, 9000.0]),
                &["0", "2,000", "4,000", "6,000", "8,000"][..],
            ),
            (
                "fractions",
                Scale::zero_based([0.3]),
                &["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"],
            ),
            (
                "none",
                Scale::zero_based([]),
                &["0", "0.2", "0.4", "0.6", "0.8", "1"],
            ),
            (
                "even steps",
                Scale::for_connections(&[1.0, 101.0, 201.0, 301.0, 401.0]),
                &["0", "50", "100", "150", "200", "250", "300", "350", "400"],
            ),
            (
                "few and far between",
                Scale::for_connections(&[1.0, 10.0, 50.0, 100.0, 200.0, 500.0]),
                &["1", "2", "5", "10", "20", "50", "100", "200", "500"],
            ),
            (
                "counts",
                Scale::for_counts([2.0]),
                &["0", "1", "2", "3", "4"],
            ),
            (
                "a ladder",
                Scale::for_connections(&[1.0, 4.0, 16.0, 64.0, 256.0]),
                &["1", "2", "5", "10", "20", "50", "100", "200"],
            ),
            (
                "a narrow range",
                Scale::for_latencies([2.0, 4.0]),
                &["0", "1", "2", "3", "4"],
            ),
            (
                "a wide range",
                Scale::for_latencies([0.4, 90.0]),
                &["0.5", "1", "2", "5", "10", "20", "50"],
            ),
            (
                "a very wide range",
                Scale::for_latencies([0.04, 900.0]),
                &["0.1", "1", "10", "100"],
            ),
        ] {
            assert_eq!(labels(&scale), expected, "{name}");
        }
    }

    #[test]
    fn no_value_falls_off_the_axis() {
        let strange = [f64::NAN, f64::INFINITY, -5.0, 0.0, 1e300, 7.0];
        let mut scales = vec![Scale::zero_based(strange), Scale::for_latencies(strange)];
        scales.push(Scale::for_connections(&strange));
        scales.push(Scale::for_connections(&[]));
        scales.push(Scale::for_connections(&[7.0]));
        for scale in scales {
            assert!(scale.low < scale.high, "{scale:?}");
            for value in strange {
                let place = scale.position(value);
                assert!(
                    place >= scale.low && place <= scale.high,
                    "{value} on {scale:?}"
                );
            }
        }
    }
}
