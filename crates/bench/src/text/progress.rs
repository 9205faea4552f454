//! The live line: the progress of a load or of held streams. Pure; `window` and `hold` show it.

use std::time::Duration;

use crate::hold::{HoldPhase, HoldProgress};
use crate::load::{LoadProgress, WindowEnd};
use crate::text::units;

/// One line about a load in progress: progress, requests per second since `before`, errors, time
/// left. At most 70 columns, without a line break.
pub(crate) fn progress_line(
    now: &LoadProgress,
    before: &LoadProgress,
    until: WindowEnd,
    warm_up: Duration,
) -> String {
    if !now.is_measured {
        let left = warm_up.saturating_sub(now.elapsed);
        return format!("warm-up, {} left", format_seconds(left));
    }
    let (done, left) = match until {
        WindowEnd::Requests(all) => (percentage(now.requests, all), time_left_by_count(now, all)),
        WindowEnd::Elapsed(all) => (
            now.elapsed.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE),
            Some(all.saturating_sub(now.elapsed)),
        ),
    };
    let mut line = format!(
        "{:3.0} %  {} requests/s  {}",
        (done * 100.0).clamp(0.0, 100.0),
        units::format_figure(recent_rate(now, before)),
        units::pluralize(now.errors, "error", "errors"),
    );
    if let Some(left) = left {
        line += &format!("  {} left", format_seconds(left));
    }
    line
}

/// One line about streams that are opened or held: count, lost, receipts, latency, the probe. At
/// most 110 columns, without a line break, most important first.
pub(crate) fn hold_progress_line(now: &HoldProgress) -> String {
    let [all, begun, open, lost] = [
        now.streams,
        now.counts.begun,
        now.counts.open,
        now.counts.lost.total(),
    ]
    .map(units::group_thousands);
    let mut line = match now.phase {
        HoldPhase::Starting => return format!("starting, {all} streams"),
        HoldPhase::Opening => format!("opening {begun} of {all}  {open} open  {lost} lost"),
        HoldPhase::Holding => {
            let left = format_seconds(now.time_left);
            format!("holding {open} of {all}  {lost} lost  {left} left")
        }
        HoldPhase::AwaitingReceipts => {
            format!("{open} open, waiting for the last messages  {lost} lost")
        }
        HoldPhase::Ending => return "ending".to_owned(),
    };
    let sample = &now.sample;
    let receipts = units::format_figure(sample.receipts_per_second);
    line += &format!("  {receipts}/s received");
    let ms = |us: f64| units::format_figure(us / 1000.0);
    if let Some(p99) = sample.latency_p99 {
        line += &format!("  receipt p99 {} ms", ms(units::to_f64(p99)));
    }
    if let Some(mean) = sample.probe_mean {
        line += &format!("  probe {} ms", ms(mean));
    }
    line
}

fn percentage(part: u64, all: u64) -> f64 {
    units::to_f64(part) / units::to_f64(all.max(1))
}

/// Requests per second since the previous reading; overall if that was in another phase or just
/// now.
fn recent_rate(now: &LoadProgress, before: &LoadProgress) -> f64 {
    let is_later = before.is_measured && before.elapsed < now.elapsed;
    let (since, requests) = match is_later && before.requests <= now.requests {
        true => (now.elapsed - before.elapsed, now.requests - before.requests),
        false => (now.elapsed, now.requests),
    };
    match since.is_zero() {
        true => 0.0,
        false => units::to_f64(requests) / since.as_secs_f64(),
    }
}

/// The time for the rest at the mean rate so far; unknown before the first response.
fn time_left_by_count(now: &LoadProgress, all: u64) -> Option<Duration> {
    let left = units::to_f64(all.saturating_sub(now.requests));
    let seconds = now.elapsed.as_secs_f64() * left / units::to_f64(now.requests);
    (now.requests > 0).then(|| Duration::try_from_secs_f64(seconds).ok())?
}

/// Formats a time for people.
fn format_seconds(left: Duration) -> String {
    let seconds = left.as_secs_f64().ceil();
    match left.as_secs() {
        0..100 => format!("{seconds:.0} s"),
        whole @ 100..6000 => format!("{} min {:02} s", whole / 60, whole % 60),
        whole => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64, requests: u64, errors: u64) -> LoadProgress {
        LoadProgress {
            is_measured: true,
            elapsed: Duration::from_millis(ms),
            requests,
            errors,
        }
    }

    #[test]
    fn says_how_far_and_how_long() {
        let thousand = WindowEnd::Requests(1000);
        let ten_seconds = WindowEnd::Elapsed(Duration::from_secs(10));
        let hours = WindowEnd::Elapsed(Duration::from_secs(3 * 3600 + 60));
        for (name, before, now, until, expected) in [
            (
                "by count",
                at(500, 200, 0),
                at(1000, 500, 1),
                thousand,
                " 50 %  600.0 requests/s  1 error  1 s left",
            ),
            (
                "by time",
                at(1000, 9000, 2),
                at(2000, 21_345, 2),
                ten_seconds,
                " 20 %  12,345 requests/s  2 errors  8 s left",
            ),
            (
                "nothing yet",
                at(0, 0, 0),
                at(0, 0, 0),
                thousand,
                "  0 %  0.00 requests/s  0 errors",
            ),
            (
                "a look before that is later",
                at(900, 600, 0),
                at(500, 500, 0),
                thousand,
                " 50 %  1,000 requests/s  0 errors  1 s left",
            ),
            (
                "long",
                at(0, 0, 0),
                at(1000, 10, 0),
                hours,
                "  0 %  10.0 requests/s  0 errors  3 h 00 min left",
            ),
        ] {
            let line = progress_line(&now, &before, until, Duration::ZERO);
            assert_eq!(line, expected, "{name}");
        }
    }

    #[test]
    fn a_warm_up_is_no_measurement() {
        let now = LoadProgress {
            is_measured: false,
            ..at(500, 0, 0)
        };
        let line = progress_line(&now, &now, WindowEnd::Requests(1), Duration::from_secs(2));
        assert_eq!(line, "warm-up, 2 s left");
    }
}
