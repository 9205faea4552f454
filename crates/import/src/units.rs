//! Times and sizes of other servers, written as Penstock writes them.

/// A time of nginx (`30`, `10s`, `1h30m`, `500ms`); a bare number has the unit `bare`.
pub(crate) fn duration(text: &str, bare: &str) -> Option<String> {
    let mut total: u64 = 0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut last = (0, String::new());
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_alphabetic())
            .count();
        let unit = if letters == 0 { bare } else { &rest[..letters] };
        let factor: u64 = match unit {
            "us" => return Some(format!("{}ms", (number / 1_000).max(1))),
            "ms" => 1,
            "s" | "sec" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(factor)?)?;
        last = (number, unit.to_owned());
        parts += 1;
        rest = rest[letters..].trim_start();
    }
    let is_ours = ["ms", "s", "m", "h", "d"].contains(&last.1.as_str());
    if parts == 1 && is_ours {
        return Some(format!("{}{}", last.0, last.1));
    }
    Some(from_millis(total))
}

/// A time in the largest unit that divides it.
pub(crate) fn from_millis(millis: u64) -> String {
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let fitting = units
        .into_iter()
        .find(|(_, size)| millis > 0 && millis.is_multiple_of(*size));
    match fitting {
        Some((unit, size)) => format!("{}{unit}", millis / size),
        None => format!("{millis}ms"),
    }
}

/// Seconds of a time, for `max-age`.
pub(crate) fn seconds(text: &str, bare: &str) -> Option<u64> {
    let time = duration(text, bare)?;
    penstock_config::parse_duration(&time).map(|time| time.as_secs())
}

/// A size of nginx or HAProxy (`10m`, `8k`, `1g`, `512`), in binary units.
pub(crate) fn size(text: &str) -> Option<String> {
    bytes(text).map(penstock_config::format_size)
}

/// The same in bytes.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().ok()?;
    let factor: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// A number of at most eighteen digits.
pub(crate) fn number(text: &str) -> Option<u64> {
    let text = text.trim().replace('_', "");
    (text.len() <= 18).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times() {
        let rows = [
            ("30", Some("30s")),
            ("10s", Some("10s")),
            ("1h30m", Some("90m")),
            ("1h 30m", Some("90m")),
            ("500ms", Some("500ms")),
            ("1M", Some("30d")),
            ("2w", Some("14d")),
            ("off", None),
            ("", None),
            ("99999999999999999999", None),
            ("9999999999999999999y", None),
        ];
        for (text, expected) in rows {
            assert_eq!(duration(text, "s").as_deref(), expected, "{text}");
        }
        assert_eq!(seconds("30d", "s"), Some(2_592_000));
    }

    #[test]
    fn reads_sizes() {
        let rows = [
            ("1k", Some("1KiB")),
            ("10M", Some("10MiB")),
            ("0", Some("0B")),
            ("1000", Some("1000B")),
            ("99999999999999999999g", None),
            ("x", None),
        ];
        for (text, expected) in rows {
            assert_eq!(size(text).as_deref(), expected, "{text}");
        }
    }
}
