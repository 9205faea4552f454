//! A line of the access log for a terminal: the format `dev`.
//!
//! # Invariants
//! - No byte from a client reaches the terminal unescaped. Without `colours` a line has no control
//!   character but its end.

use std::fmt;
use std::time::Duration;

use penstock_http::LogMask;

use super::{AccessRecord, EscapedBytes, RefusedRecord, format_peer};

/// `GET /path 200 1.2 KiB 3.4 ms (queue 0.1, app 2.9)`.
pub(super) fn format_line(record: &AccessRecord<'_>, colours: bool, mask: &LogMask) -> String {
    let head = record.head;
    let mut line = format!(
        "{} {} {} {} {}",
        head.method_str(),
        EscapedBytes(&mask.apply_url(head.target().as_bytes())),
        StatusDisplay(record.status, colours),
        SizeDisplay(record.body_bytes),
        DurationDisplay(record.total_time),
    );
    let (queue, app) = (record.timing.queue_time, record.timing.app_time);
    if queue > Duration::ZERO || app > Duration::ZERO {
        let (queue, app) = (milliseconds(queue), milliseconds(app));
        line.push_str(&format!(" (queue {queue:.1}, app {app:.1})"));
    }
    line.push('\n');
    line
}

pub(super) fn format_refused(refused: &RefusedRecord<'_>, colours: bool) -> String {
    format!(
        "- {} refused, from {}: {}\n",
        StatusDisplay(refused.status, colours),
        format_peer(refused.client),
        EscapedBytes(refused.reason.as_bytes()),
    )
}

/// A status in the colour of its class.
struct StatusDisplay(u16, bool);

impl fmt::Display for StatusDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status, colours) = *self;
        let colour = match status / 100 {
            2 => 32,
            3 => 36,
            4 => 33,
            5 => 31,
            _ => 0,
        };
        match colours && colour > 0 {
            true => write!(f, "\x1b[{colour}m{status}\x1b[0m"),
            false => write!(f, "{status}"),
        }
    }
}

/// Bytes, in the largest unit that gives at least one.
struct SizeDisplay(u64);

impl fmt::Display for SizeDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(unit, _)| self.0 >= *unit) {
            // Tenths are shown: the loss of a float is smaller.
            #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
            Some((unit, name)) => write!(f, "{:.1} {name}", self.0 as f64 / *unit as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Milliseconds, or seconds from one second on.
struct DurationDisplay(Duration);

impl fmt::Display for DurationDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 < Duration::from_secs(1) {
            true => write!(f, "{:.1} ms", milliseconds(self.0)),
            false => write!(f, "{:.1} s", self.0.as_secs_f64()),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use penstock_exchange::RequestTiming;
    use penstock_sys::net::PeerAddress;

    use super::*;
    use crate::tests::LISTENER;

    #[test]
    fn a_line_is_short_and_cannot_be_forged() {
        let raw = b"GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n";
        let parsed = penstock_http::parse_head(raw, &penstock_http::HeadLimits::default());
        let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        let timing = RequestTiming {
            queue_time: Duration::from_micros(100),
            app_time: Duration::from_micros(2900),
            ..RequestTiming::default()
        };
        let mut record = AccessRecord {
            request_id: None,
            trace: None,
            route: None,
            host: "h",
            scheme: "http",
            user: None,
            head: &head,
            client: PeerAddress::Unix,
            peer: PeerAddress::Unix,
            status: 200,
            body_bytes: 1234,
            listener: &LISTENER,
            tls: None,
            timing: &timing,
            total_time: Duration::from_micros(3400),
        };
        let expected = "GET /a?b=c 200 1.2 KiB 3.4 ms (queue 0.1, app 2.9)\n";
        assert_eq!(format_line(&record, false, &LogMask::default()), expected);
        let coloured = "GET /a?b=c \x1b[32m200\x1b[0m 1.2 KiB 3.4 ms (queue 0.1, app 2.9)\n";
        assert_eq!(format_line(&record, true, &LogMask::default()), coloured);
        let none = RequestTiming::default();
        (record.timing, record.status, record.body_bytes) = (&none, 404, 0);
        record.total_time = Duration::from_millis(1500);
        assert_eq!(
            format_line(&record, false, &LogMask::default()),
            "GET /a?b=c 404 0 B 1.5 s\n"
        );
        let refused = RefusedRecord {
            client: PeerAddress::Unix,
            peer: PeerAddress::Unix,
            status: 400,
            line: b"",
            reason: "a bad \x1b",
        };
        assert_eq!(
            format_refused(&refused, false),
            "- 400 refused, from unix: a bad \\x1b\n"
        );
    }

    #[test]
    fn sizes_use_the_largest_whole_unit() {
        let rows = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (5 << 20, "5.0 MiB"),
            (3 << 30, "3.0 GiB"),
        ];
        for (bytes, expected) in rows {
            assert_eq!(SizeDisplay(bytes).to_string(), expected);
        }
    }
}
