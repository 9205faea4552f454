//! Sizes, durations and rates: text to numbers.
//!
//! Used by `section` for values of a file.
//!
//! # Invariants
//! - A number without a unit is bytes for sizes and refused for durations, and nothing overflows:
//!   what does not fit is no value at all.

use std::time::Duration;

/// What a message says was expected of a size.
pub(crate) const SIZE_EXPECTED: &str = "a size such as \"8KiB\", \"10MB\" or a number of bytes";
/// What a message says was expected of a duration.
pub(crate) const TIME_EXPECTED: &str =
    "a duration such as \"500ms\", \"10s\", \"5m\", \"1h\" or \"1d\"";
/// What a message says was expected of a duration that may be long.
pub(crate) const AGE_EXPECTED: &str = "a duration such as \"30d\", \"1y\" or \"2y\"";
/// What a message says was expected of a rate.
pub(crate) const RATE_EXPECTED: &str = "a rate such as \"500B/s\" or \"1KiB/s\"";

/// Reads `8KiB`, `10MB`, `500B` or `500`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number_and_unit(text)?;
    number.checked_mul(unit_factor(&SIZE_UNITS, unit)?)
}

/// Reads `500ms`, `10s`, `5m`, `1h`, `1d`, `1w` or `1y`; `None` for any other text.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_number_and_unit(text)?;
    number
        .checked_mul(unit_factor(&DURATION_UNITS, unit)?)
        .map(Duration::from_millis)
}

/// Reads `500B/s` or `1KiB/s`, in bytes a second.
pub(crate) fn parse_rate(text: &str) -> Option<u64> {
    let size = text.trim().strip_suffix("/s")?;
    let (_, unit) = split_number_and_unit(size)?;
    if unit.is_empty() {
        None
    } else {
        parse_size(size)
    }
}

/// A number in the largest binary unit that divides it, such as `8KiB`.
pub fn format_size(bytes: u64) -> String {
    let binary = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    let unit = binary
        .iter()
        .find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    unit.map_or_else(
        || format!("{bytes}B"),
        |(name, factor)| format!("{}{name}", bytes / factor),
    )
}

/// Milliseconds in seconds, if they are whole ones, such as `1s`.
pub(crate) fn format_duration(millis: u64) -> String {
    match millis > 0 && millis.is_multiple_of(1_000) {
        true => format!("{}s", millis / 1_000),
        false => format!("{millis}ms"),
    }
}

/// Digits, then a unit, with or without a space between.
fn split_number_and_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

fn unit_factor(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, factor)| *factor)
}

const SIZE_UNITS: [(&str, u64); 11] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

/// In milliseconds.
const DURATION_UNITS: [(&str, u64); 7] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 7 * 86_400_000),
    ("y", 365 * 86_400_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        let rows: [(&str, Option<u64>); 12] = [
            ("8KiB", Some(8192)),
            ("1GiB", Some(1 << 30)),
            ("512MiB", Some(512 << 20)),
            ("10MB", Some(10_000_000)),
            ("500", Some(500)),
            ("500B", Some(500)),
            ("8 KiB", Some(8192)),
            ("8kib", None),
            ("", None),
            ("-1", None),
            ("1.5GiB", None),
            ("99999999999TiB", None),
        ];
        for (text, expected) in rows {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }

    #[test]
    fn reads_durations() {
        let rows = [
            ("500ms", Some(500)),
            ("10s", Some(10_000)),
            ("1m", Some(60_000)),
            ("1h", Some(3_600_000)),
            ("1d", Some(86_400_000)),
            ("2w", Some(14 * 86_400_000)),
            ("1y", Some(365 * 86_400_000)),
            ("10", None),
            ("s", None),
            ("10 sec", None),
            ("99999999999999999999d", None),
            ("999999999999999d", None),
        ];
        for (text, expected) in rows {
            assert_eq!(
                parse_duration(text),
                expected.map(Duration::from_millis),
                "{text}"
            );
        }
    }

    #[test]
    fn shows_a_duration_so_that_it_reads_back() {
        for (millis, shown) in [(0, "0ms"), (1, "1ms"), (1_000, "1s"), (1_500, "1500ms")] {
            assert_eq!(format_duration(millis), shown);
            let expected = Some(Duration::from_millis(millis));
            assert_eq!(parse_duration(shown), expected, "{shown}");
        }
    }

    #[test]
    fn reads_rates() {
        let rows = [
            ("500B/s", Some(500)),
            ("1KiB/s", Some(1024)),
            ("500", None),
            ("500/s", None),
        ];
        for (text, expected) in rows {
            assert_eq!(parse_rate(text), expected, "{text}");
        }
    }

    #[test]
    fn shows_a_size_so_that_it_reads_back() {
        for (bytes, shown) in [(0, "0B"), (500, "500B"), (8192, "8KiB"), (1 << 30, "1GiB")] {
            assert_eq!(format_size(bytes), shown);
            assert_eq!(parse_size(shown), Some(bytes), "{shown}");
        }
    }
}
