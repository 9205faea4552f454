//! Formats numbers, sizes and times for people, and sanitises external text. Pure.
//!
//! Used by every output, so that a figure looks the same on the terminal, in a chart and in a
//! table.

use std::time::Duration;

/// Converts a count; counts and microseconds are far below 2^52.
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// The whole part of a count that is not negative.
pub(crate) fn to_count(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates"
    )]
    let count = value as u64;
    count
}

/// Microseconds as milliseconds with three decimals.
pub(crate) fn format_ms(us: f64) -> String {
    format!("{:.3}", us / 1000.0)
}

/// A count with thousands separators.
pub(crate) fn group_thousands(count: u64) -> String {
    insert_commas(&count.to_string())
}

/// A measured figure with a useful number of digits.
pub(crate) fn format_figure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = match size {
        _ if size >= 1000.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 || size == 0.0 => 2,
        _ => 3,
    };
    insert_commas(&format!("{value:.digits$}"))
}

/// The label of a tick: like [`format_figure`], without trailing zeros.
pub(crate) fn format_tick(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let text = insert_commas(&format!("{value:.6}"));
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(crate) fn to_mebibytes(bytes: u64) -> f64 {
    to_f64(bytes) / f64::from(1 << 20)
}

pub(crate) fn format_size(bytes: u64) -> String {
    let mib = to_mebibytes(bytes);
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{:.1} KiB", to_f64(bytes) / 1024.0),
        0x10_0000..0x4000_0000 => format!("{mib:.1} MiB"),
        _ => format!("{:.1} GiB", mib / 1024.0),
    }
}

/// A UTC time, from seconds since the epoch.
pub(crate) fn format_timestamp(seconds: u64) -> String {
    let text = penstock_http::rfc3339_millis(Duration::from_secs(seconds));
    format!("{} {} UTC", &text[..10], &text[11..19])
}

/// Singular or plural: `pluralize(2, "error", "errors")` is `2 errors`.
pub(crate) fn pluralize(count: u64, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        group_thousands(count),
        if count == 1 { one } else { many }
    )
}

pub(crate) fn format_connections(count: u32) -> String {
    pluralize(count.into(), "connection", "connections")
}

/// Removes control characters from external text, except line breaks.
pub(crate) fn sanitize(text: &str) -> String {
    let harmless = |char: char| match char {
        '\n' => '\n',
        '\t' => ' ',
        _ if char.is_control() => '?',
        _ => char,
    };
    text.chars()
        .filter(|&char| char != '\r')
        .map(harmless)
        .collect()
}

/// Inserts a comma before each third digit of the integer part.
fn insert_commas(digits: &str) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", digits),
    };
    let (whole, part) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut text = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_worth_reading() {
        for (value, expected) in [
            (0.0, "0.00"),
            (0.01234, "0.012"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (-999.9, "-999.9"),
            (12_345.6, "12,346"),
            (1_234_567.0, "1,234,567"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(format_figure(value), expected);
        }
        assert_eq!(format_tick(2500.0), "2,500");
        assert_eq!(format_tick(0.05), "0.05");
    }

    #[test]
    fn moments_are_in_utc() {
        assert_eq!(format_timestamp(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(format_timestamp(1_798_761_600), "2027-01-01 00:00:00 UTC");
        assert!(format_timestamp(u64::MAX).ends_with("UTC"));
    }

    #[test]
    fn strangers_cannot_command_the_terminal() {
        assert_eq!(sanitize("a\x1b[2Jb\r\nc\x07"), "a?[2Jb\nc?");
    }

    #[test]
    fn sizes_have_units() {
        for (bytes, expected) in [
            (12, "12 bytes"),
            (2048, "2.0 KiB"),
            (3 << 20, "3.0 MiB"),
            (3 << 30, "3.0 GiB"),
        ] {
            assert_eq!(format_size(bytes), expected);
        }
    }
}
