//! Held streams as text: the live line for `hold`, and the report for `text`. Pure.

use super::{breakdown, heading, labelled_line, targets, units};
use crate::hold::{HoldPhase, HoldProgress};
use crate::report::{
    HoldCost, HoldResult, MeasurementContext, ProbeResult, PublishResult, StreamCounts, Timings,
};
use units::{format_figure, format_ms, format_size, group_thousands, pluralize, sanitize, to_f64};

/// One line about streams that are opened or held: count, lost, receipts, latency, the probe. At
/// most 110 columns, without a line break, most important first.
#[must_use]
pub(crate) fn progress_line(now: &HoldProgress) -> String {
    let counts = &now.counts;
    let all = group_thousands(now.streams);
    let mut line = match now.phase {
        HoldPhase::Starting => return format!("starting, {all} streams"),
        HoldPhase::Opening => format!("opening {} of {all}", group_thousands(counts.begun)),
        HoldPhase::Holding => format!("holding {} of {all}", group_thousands(counts.open)),
        HoldPhase::AwaitingReceipts => format!(
            "{} open, waiting for the last messages",
            group_thousands(counts.open)
        ),
        HoldPhase::Ending => return "ending".to_owned(),
    };
    if now.phase == HoldPhase::Opening {
        line += &format!("  {} open", group_thousands(counts.open));
    }
    line += &format!("  {} lost", group_thousands(counts.lost.total()));
    if now.phase == HoldPhase::Holding {
        line += &format!("  {} left", super::progress::format_seconds(now.time_left));
    }
    line += &format!(
        "  {}/s received",
        format_figure(now.sample.receipts_per_second)
    );
    if let Some(p99) = now.sample.latency_p99 {
        line += &format!("  receipt p99 {} ms", format_figure(to_f64(p99) / 1000.0));
    }
    if let Some(mean) = now.sample.probe_mean {
        line += &format!("  probe {} ms", format_figure(mean / 1000.0));
    }
    line
}

/// Streams opened, held and lost, and their results.
#[must_use]
pub(crate) fn hold_text(taken: &MeasurementContext, hold: &HoldResult) -> String {
    let mut text = heading(taken);
    text += &targets(&hold.targets);
    for note in &hold.notes {
        text += &labelled_line("Note", &sanitize(note));
    }
    text.push('\n');
    text += &streams(hold);
    text += &heard(hold);
    text += &hold
        .published
        .as_ref()
        .map_or_else(String::new, |found| published(found, &hold.counts));
    text += &hold.probe.as_ref().map_or_else(String::new, probe);
    text += &cost(&hold.cost);
    text += &distributions(hold);
    text
}

fn streams(hold: &HoldResult) -> String {
    let counts = &hold.counts;
    let agents = pluralize(hold.agents as u64, "process", "processes");
    let sources = match hold.sources {
        0 => "any source address".to_owned(),
        count => pluralize(count as u64, "source address", "source addresses"),
    };
    let mut text = labelled_line(
        "Streams",
        &format!(
            "{} at {}/s, from {agents} and {sources}",
            group_thousands(hold.streams),
            format_figure(hold.rate)
        ),
    );
    text += &labelled_line(
        "Opened",
        &format!(
            "{} in {:.1} s, {}/s",
            group_thousands(hold.opened_first()),
            hold.opening_seconds,
            format_figure(hold.opened_per_second())
        ),
    );
    text += &labelled_line(
        "Held",
        &format!(
            "{} at the end of {:.1} s, at most {}",
            group_thousands(counts.open),
            hold.held_seconds,
            group_thousands(counts.max_open)
        ),
    );
    text += &labelled_line("Lost", &group_thousands(counts.lost.total()));
    if counts.lost.total() > 0 {
        text += &breakdown(&counts.lost.causes());
    }
    for (status, count) in &hold.statuses {
        let count = pluralize(*count, "answer", "answers");
        text += &format!("   status {}: {count}\n", sanitize(status));
    }
    for (cause, why) in &hold.first_reasons {
        text += &format!("   {}: {}\n", sanitize(cause), sanitize(why));
    }
    if counts.renewed > 0 {
        text += &labelled_line("Opened again", &group_thousands(counts.renewed));
    }
    if counts.unread > 0 {
        let value = format!(
            "{}, of which the server closed {}",
            group_thousands(counts.unread),
            group_thousands(counts.unread_closed)
        );
        text += &labelled_line("Never reading", &value);
    }
    text
}

fn heard(hold: &HoldResult) -> String {
    let counts = &hold.counts;
    let mut text = labelled_line(
        "Heard",
        &format!(
            "{} times; {}, {}",
            group_thousands(counts.receipts),
            pluralize(counts.events, "event", "events"),
            pluralize(counts.comments, "comment", "comments"),
        ),
    );
    text += &labelled_line("Transferred", &format!("{} bytes", counts.bytes));
    if let Some(beat) = hold.heartbeat_seconds {
        let value = format!(
            "something every {} s, and {} s of grace",
            units::format_tick(beat),
            units::format_tick(hold.grace_seconds)
        );
        text += &labelled_line("Required of each", &value);
    }
    text
}

fn published(published: &PublishResult, counts: &StreamCounts) -> String {
    let mut text = labelled_line("Published to", &sanitize(&published.target));
    text += &labelled_line(
        "Published",
        &format!(
            "{} at {}/s: {} refused, {} uncertain, {} skipped, {} late",
            pluralize(published.accepted, "message", "messages"),
            format_figure(published.rate),
            group_thousands(published.refused),
            group_thousands(published.uncertain),
            group_thousands(published.skipped),
            group_thousands(published.late),
        ),
    );
    if let Some(why) = &published.first_failure {
        text += &format!("   {}\n", sanitize(why));
    }
    text += &labelled_line(
        "Received",
        &format!(
            "{}, {} missed, {} repeated or out of order",
            group_thousands(counts.received),
            group_thousands(counts.missed),
            group_thousands(counts.repeated)
        ),
    );
    if let Some(each) = published.cpu_us_per_delivery {
        text += &labelled_line(
            "Server CPU",
            &format!("{} us for each receipt", format_figure(each)),
        );
    }
    text
}

fn probe(probe: &ProbeResult) -> String {
    let mut text = labelled_line("Probe", &sanitize(&probe.target));
    text += &labelled_line(
        "Probed",
        &format!(
            "{} at {}/s: {} failed, {} skipped",
            pluralize(probe.requests, "answer", "answers"),
            format_figure(probe.rate),
            group_thousands(probe.errors),
            group_thousands(probe.skipped)
        ),
    );
    if let Some(why) = &probe.first_error {
        text += &format!("   {}\n", sanitize(why));
    }
    text
}

fn cost(cost: &HoldCost) -> String {
    let each = |bytes: Option<f64>| {
        bytes.map_or_else(String::new, |bytes| {
            format!(", {} bytes a stream", format_figure(bytes))
        })
    };
    let mut text = String::new();
    if let Some(bytes) = cost.server_bytes {
        let before = cost.server_bytes_before.map_or_else(String::new, |before| {
            format!(" (before: {})", format_size(before))
        });
        let value = format!(
            "{}{before}{}",
            format_size(bytes),
            each(cost.server_bytes_per_stream)
        );
        text += &labelled_line("Server memory", &value);
    }
    if let Some(bytes) = cost.kernel_bytes {
        let median = cost.kernel_bytes_per_stream_median;
        let median =
            median.map_or_else(String::new, |it| format!("; median {}", format_figure(it)));
        let value = format!(
            "{}{}, of all on this machine{median}",
            format_size(bytes),
            each(cost.kernel_bytes_per_stream)
        );
        text += &labelled_line("Kernel memory", &value);
    }
    let value = format!(
        "{}{}",
        format_size(cost.tool_bytes),
        each(cost.tool_bytes_per_stream)
    );
    text += &labelled_line("Memory of the agents", &value);
    let server = cost.server_cpu_seconds;
    let server = server.map_or_else(String::new, |seconds| format!("server {seconds:.1} s, "));
    text += &labelled_line(
        "CPU time",
        &format!("{server}agents {:.1} s", cost.tool_cpu_seconds),
    );
    text += &labelled_line(
        "Load average, maximum",
        &format!("{:.2}", cost.max_load_average),
    );
    text
}

fn distributions(hold: &HoldResult) -> String {
    let mut rows: Vec<(&str, &Timings)> = vec![("Opening:", &hold.opening)];
    if let Some(published) = &hold.published {
        rows.push(("Accepting:", &published.accepting));
        rows.push(("Receipt:", &published.latency));
        rows.push(("Last receipt:", &published.last_receipt));
    }
    if let Some(probe) = &hold.probe {
        rows.push(("Probe:", &probe.total));
        rows.push(("Probe, held:", &probe.while_held));
    }
    rows.retain(|(_, timings)| timings.count > 0);
    if rows.is_empty() {
        return String::new();
    }
    times(&rows)
}

/// The table of times under its titles.
fn times(rows: &[(&str, &Timings)]) -> String {
    let mut text = format!("\nTimes (ms)\n{:<13}", "");
    for title in ["min", "mean", "50%", "90%", "99%", "99.9%", "max"] {
        text += &format!("{title:>11}");
    }
    text.push('\n');
    for (name, found) in rows {
        text += &format!("{name:<13}");
        let whole = [found.p50, found.p90, found.p99, found.p999, found.max].map(to_f64);
        let cells = [to_f64(found.min), found.mean].into_iter().chain(whole);
        text.extend(cells.map(|value| format!("{:>11}", format_ms(value))));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::{HoldSample, LostStreams};

    #[test]
    fn the_live_line_says_how_it_is() {
        let mut now = HoldProgress {
            streams: 1_000_000,
            counts: StreamCounts {
                begun: 123_456,
                open: 123_000,
                lost: LostStreams {
                    silent: 3,
                    ..LostStreams::default()
                },
                ..StreamCounts::default()
            },
            time_left: Duration::from_secs(599),
            sample: HoldSample {
                receipts_per_second: 8200.4,
                latency_p99: Some(12_345),
                probe_mean: Some(1500.0),
                ..HoldSample::default()
            },
            ..HoldProgress::default()
        };
        for (phase, expected) in [
            (HoldPhase::Starting, "starting, 1,000,000 streams"),
            (
                HoldPhase::Opening,
                "opening 123,456 of 1,000,000  123,000 open  3 lost  8,200/s received  \
                 receipt p99 12.3 ms  probe 1.50 ms",
            ),
            (
                HoldPhase::Holding,
                "holding 123,000 of 1,000,000  3 lost  9 min 59 s left  8,200/s received  \
                 receipt p99 12.3 ms  probe 1.50 ms",
            ),
            (HoldPhase::Ending, "ending"),
        ] {
            now.phase = phase;
            assert_eq!(progress_line(&now), expected);
        }
    }
}
