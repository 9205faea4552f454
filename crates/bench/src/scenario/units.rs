//! Parses durations, sizes and rates such as `200ms`, `600MB`, `100MB/s`, for the scenario and the
//! command line.
//!
//! A number without a unit is refused, except a size in bytes. Decimal and binary units differ
//! (`MB` is 1000 kB, `MiB` 1024 KiB).

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

/// More is a mistake, and sums of such durations stay far from a clock's limits.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Parses a duration such as `4s`, `1.5s`, `200ms`, `2m`; `None` if invalid, or more than a year.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_number_and_unit(text)?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    let duration = Duration::try_from_secs_f64(number * seconds).ok();
    duration.filter(|duration| *duration <= MAX_DURATION)
}

/// Parses a size in bytes such as `600MB`, `512KiB`, `2GiB`, `4096`; `None` if invalid.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number_and_unit(text)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "TiB" => 1_099_511_627_776.0,
        _ => return None,
    };
    // Bytes beyond 2^53 would not be exact, and no machine has them.
    let bytes = (number * factor).round();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within 0..2^53"
    )]
    (0.0..9_007_199_254_740_992.0)
        .contains(&bytes)
        .then_some(bytes as u64)
}

/// Parses a rate in bytes per second such as `100MB/s`; `None` if invalid.
#[must_use]
pub fn parse_rate(text: &str) -> Option<u64> {
    parse_size(text.strip_suffix("/s")?)
}

/// Reads a text of a scenario by its parser; `example` tells what to write.
fn parsed<'de, D: Deserializer<'de>, T>(
    value: D,
    parse: fn(&str) -> Option<T>,
    example: &str,
) -> Result<T, D::Error> {
    let text = String::deserialize(value)?;
    parse(&text).ok_or_else(|| D::Error::custom(format_args!("expected {example}")))
}

pub(super) fn deserialize_duration<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Duration, D::Error> {
    let example = "a duration such as \"4s\" or \"200ms\", at most a year";
    parsed(value, parse_duration, example)
}

pub(super) fn deserialize_optional_duration<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<Duration>, D::Error> {
    deserialize_duration(value).map(Some)
}

pub(super) fn deserialize_size<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<u64>, D::Error> {
    let parse = |text: &str| parse_size(text).filter(|size| *size > 0);
    parsed(value, parse, "a size such as \"600MB\"").map(Some)
}

pub(super) fn deserialize_rate<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<u64>, D::Error> {
    let parse = |text: &str| parse_rate(text).filter(|rate| *rate > 0);
    parsed(value, parse, "a rate such as \"100MB/s\"").map(Some)
}

/// Splits the number from its unit; signs, exponents and names of numbers are not accepted.
fn split_number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|one: char| !one.is_ascii_digit() && one != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations() {
        for (text, expected) in [
            ("4s", Some(Duration::from_secs(4))),
            ("200ms", Some(Duration::from_millis(200))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("0s", Some(Duration::ZERO)),
            ("2m", Some(Duration::from_secs(120))),
            ("5", None),
            ("s", None),
            ("", None),
            ("-1s", None),
            ("1e3s", None),
            ("1.2.3s", None),
            ("4 parsecs", None),
            ("365d", Some(MAX_DURATION)),
            ("366d", None),
            ("99999999999999999999999d", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }

    #[test]
    fn reads_sizes_and_rates() {
        for (text, expected) in [
            ("600MB", Some(600_000_000)),
            ("1.5GB", Some(1_500_000_000)),
            ("512KiB", Some(524_288)),
            ("4096", Some(4096)),
            ("4 kB", Some(4000)),
            ("MB", None),
            ("1mb", None),
            ("1e300", None),
            ("999999999TB", None),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
        assert_eq!(parse_rate("100MB/s"), Some(100_000_000));
        assert_eq!(parse_rate("100MB"), None);
    }
}
