//! HTTP dates to and from seconds since 1970 (RFC 9110 §5.6.7).
//!
//! Reads no clock: `edge` formats each second once and shares it; `files` and `conditional` compare
//! dates. Parsing also accepts the two obsolete forms, as the RFC requires.

use std::{
    io::Write,
    str,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Formats the preferred form, always 29 bytes. Times after the year 9999 become its last second.
pub fn imf_fixdate(secs_since_epoch: u64) -> [u8; 29] {
    let time = UNIX_EPOCH + Duration::from_secs(secs_since_epoch.min(LAST_SECOND));
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    // A date before the year 10000 always fits. If writing failed, the epoch would remain.
    let _ = write!(text.as_mut_slice(), "{}", httpdate::HttpDate::from(time));
    text
}

/// Formats a time since 1970 as RFC 3339 in UTC with milliseconds: `2026-11-26T14:07:11.123Z`.
pub fn rfc3339_millis(since_epoch: Duration) -> String {
    const MONTHS: &[u8] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let text = imf_fixdate(since_epoch.as_secs());
    let month = MONTHS.chunks(3).position(|name| *name == text[8..11]);
    let part = |range: std::ops::Range<usize>| str::from_utf8(&text[range]).unwrap_or_default();
    format!(
        "{}-{:02}-{}T{}.{:03}Z",
        part(12..16),
        month.unwrap_or_default() + 1,
        part(5..7),
        part(17..25),
        since_epoch.subsec_millis()
    )
}

/// Parses a date in any of the three forms into seconds since 1970. `None` for anything else and
/// for dates before 1970.
pub fn parse_http_date(text: &[u8]) -> Option<u64> {
    let time: SystemTime = httpdate::parse_http_date(str::from_utf8(text).ok()?).ok()?;
    time.duration_since(UNIX_EPOCH)
        .ok()
        .map(|since| since.as_secs())
}

/// 9999-12-31T23:59:59Z.
const LAST_SECOND: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_the_preferred_form() {
        for (secs, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (LAST_SECOND, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(imf_fixdate(secs), expected.as_bytes());
        }
    }

    #[test]
    fn writes_the_time_of_a_log_line() {
        for (millis, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (784_111_777_042, "1994-11-06T08:49:37.042Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339_millis(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn reads_all_three_forms() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(
                parse_http_date(text.as_bytes()),
                Some(784_111_777),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_what_is_no_date() {
        for text in [
            "",
            "yesterday",
            "784111777",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 99 Nov",
        ] {
            assert_eq!(parse_http_date(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_http_date(b"Sun, 06 Nov 1994 08:49:37 \xff"), None);
    }

    #[test]
    fn reads_back_what_it_writes() {
        for secs in (0..4_000_000_000).step_by(98_765_431) {
            assert_eq!(parse_http_date(&imf_fixdate(secs)), Some(secs));
        }
    }
}
