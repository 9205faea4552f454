//! Held streams as text: the live line while they are opened and held, and the report.
//!
//! `hold` shows the one, `text` the other. Pure.

use super::{breakdown, heading, line, targets, units};
use crate::hold::{Phase, Progress};
use crate::report::{Hold, HoldCost, HoldCounts, Probed, Published, Taken, Timings};
use units::{figure, grouped, ms, number, plain, plural, size};

/// One line about streams that are opened or held: how many, lost, heard, latency, the probe. At most 110
/// columns, without a line break; what matters most stands first.
#[must_use]
pub(crate) fn progress_line(now: &Progress) -> String {
    let counts = &now.counts;
    let all = grouped(now.streams);
    let mut line = match now.phase {
        Phase::Starting => return format!("starting, {all} streams"),
        Phase::Opening => format!("opening {} of {all}", grouped(counts.begun)),
        Phase::Holding => format!("holding {} of {all}", grouped(counts.open)),
        Phase::Settling => format!(
            "{} open, what was published last arrives",
            grouped(counts.open)
        ),
        Phase::Ending => return "ending".to_owned(),
    };
    if now.phase == Phase::Opening {
        line += &format!("  {} open", grouped(counts.open));
    }
    line += &format!("  {} lost", grouped(counts.lost.total()));
    if now.phase == Phase::Holding {
        line += &format!("  {} left", super::progress::seconds(now.left));
    }
    line += &format!("  {}/s heard", figure(now.sample.heard_per_second));
    if let Some(p99) = now.sample.latency_p99 {
        line += &format!("  receipt p99 {} ms", figure(number(p99) / 1000.0));
    }
    if let Some(mean) = now.sample.probe_mean {
        line += &format!("  probe {} ms", figure(mean / 1000.0));
    }
    line
}

/// Streams opened, held and lost, and what came of them.
#[must_use]
pub(crate) fn hold(taken: &Taken, hold: &Hold) -> String {
    let mut text = heading(taken);
    text += &targets(&hold.targets);
    for note in &hold.notes {
        text += &line("Note", &plain(note));
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

fn streams(hold: &Hold) -> String {
    let counts = &hold.counts;
    let agents = plural(hold.agents as u64, "process", "processes");
    let sources = match hold.sources {
        0 => "any source address".to_owned(),
        count => plural(count as u64, "source address", "source addresses"),
    };
    let mut text = line(
        "Streams",
        &format!(
            "{} at {}/s, from {agents} and {sources}",
            grouped(hold.streams),
            figure(hold.rate)
        ),
    );
    text += &line(
        "Opened",
        &format!(
            "{} in {:.1} s, {}/s",
            grouped(hold.opened_first()),
            hold.opening_seconds,
            figure(hold.opened_per_second())
        ),
    );
    text += &line(
        "Held",
        &format!(
            "{} at the end of {:.1} s, at most {}",
            grouped(counts.open),
            hold.held_seconds,
            grouped(counts.open_max)
        ),
    );
    text += &line("Lost", &grouped(counts.lost.total()));
    if counts.lost.total() > 0 {
        text += &breakdown(&counts.lost.causes());
    }
    for (status, count) in &hold.statuses {
        let count = plural(*count, "answer", "answers");
        text += &format!("   status {}: {count}\n", plain(status));
    }
    for (cause, why) in &hold.said {
        text += &format!("   {}: {}\n", plain(cause), plain(why));
    }
    if counts.renewed > 0 {
        text += &line("Opened again", &grouped(counts.renewed));
    }
    if counts.deaf > 0 {
        let value = format!(
            "{}, of which the server cut {}",
            grouped(counts.deaf),
            grouped(counts.deaf_cut)
        );
        text += &line("Never reading", &value);
    }
    text
}

fn heard(hold: &Hold) -> String {
    let counts = &hold.counts;
    let mut text = line(
        "Heard",
        &format!(
            "{} times; {}, {}",
            grouped(counts.heard),
            plural(counts.events, "event", "events"),
            plural(counts.comments, "comment", "comments"),
        ),
    );
    text += &line("Transferred", &format!("{} bytes", counts.bytes));
    if let Some(beat) = hold.beat_seconds {
        let value = format!(
            "something every {} s, and {} s of grace",
            units::tick(beat),
            units::tick(hold.grace_seconds)
        );
        text += &line("Asked of each", &value);
    }
    text
}

fn published(published: &Published, counts: &HoldCounts) -> String {
    let mut text = line("Published to", &plain(&published.target));
    text += &line(
        "Published",
        &format!(
            "{} at {}/s: {} refused, {} doubtful, {} skipped, {} late",
            plural(published.accepted, "message", "messages"),
            figure(published.rate),
            grouped(published.refused),
            grouped(published.doubtful),
            grouped(published.skipped),
            grouped(published.late),
        ),
    );
    if let Some(why) = &published.said {
        text += &format!("   {}\n", plain(why));
    }
    text += &line(
        "Received",
        &format!(
            "{}, {} missed, {} again or out of order",
            grouped(counts.received),
            grouped(counts.missed),
            grouped(counts.repeated)
        ),
    );
    if let Some(each) = published.cpu_us_per_delivery {
        text += &line(
            "Server CPU",
            &format!("{} us for each receipt", figure(each)),
        );
    }
    text
}

fn probe(probe: &Probed) -> String {
    let mut text = line("Probe", &plain(&probe.target));
    text += &line(
        "Probed",
        &format!(
            "{} at {}/s: {} failed, {} skipped",
            plural(probe.requests, "answer", "answers"),
            figure(probe.rate),
            grouped(probe.errors),
            grouped(probe.skipped)
        ),
    );
    if let Some(why) = &probe.said {
        text += &format!("   {}\n", plain(why));
    }
    text
}

fn cost(cost: &HoldCost) -> String {
    let each = |bytes: Option<f64>| {
        bytes.map_or_else(String::new, |bytes| {
            format!(", {} bytes a stream", figure(bytes))
        })
    };
    let mut text = String::new();
    if let Some(bytes) = cost.server_bytes {
        let before = cost
            .server_before
            .map_or_else(String::new, |before| format!(" (before: {})", size(before)));
        let value = format!(
            "{}{before}{}",
            size(bytes),
            each(cost.server_bytes_per_stream)
        );
        text += &line("Server memory", &value);
    }
    if let Some(bytes) = cost.kernel_bytes {
        let median = cost.kernel_bytes_per_stream_median;
        let median = median.map_or_else(String::new, |it| format!("; median {}", figure(it)));
        let value = format!(
            "{}{}, of all on this machine{median}",
            size(bytes),
            each(cost.kernel_bytes_per_stream)
        );
        text += &line("Kernel memory", &value);
    }
    let value = format!(
        "{}{}",
        size(cost.tool_bytes),
        each(cost.tool_bytes_per_stream)
    );
    text += &line("Memory of the agents", &value);
    let server = cost.server_cpu_seconds;
    let server = server.map_or_else(String::new, |seconds| format!("server {seconds:.1} s, "));
    text += &line(
        "CPU time",
        &format!("{server}agents {:.1} s", cost.tool_cpu_seconds),
    );
    text += &line("Load average, most", &format!("{:.2}", cost.load_max));
    text
}

fn distributions(hold: &Hold) -> String {
    let mut rows: Vec<(&str, &Timings)> = vec![("Opening:", &hold.opening)];
    if let Some(published) = &hold.published {
        rows.push(("Accepting:", &published.accepting));
        rows.push(("Receipt:", &published.latency));
        rows.push(("Last receipt:", &published.last));
    }
    if let Some(probe) = &hold.probe {
        rows.push(("Probe:", &probe.total));
        rows.push(("Probe, held:", &probe.held));
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
        let whole = [found.p50, found.p90, found.p99, found.p999, found.max].map(number);
        let cells = [number(found.min), found.mean].into_iter().chain(whole);
        text.extend(cells.map(|value| format!("{:>11}", ms(value))));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::{HoldSample, Lost};

    #[test]
    fn the_live_line_says_how_it_is() {
        let mut now = Progress {
            streams: 1_000_000,
            counts: HoldCounts {
                begun: 123_456,
                open: 123_000,
                lost: Lost {
                    silent: 3,
                    ..Lost::default()
                },
                ..HoldCounts::default()
            },
            left: Duration::from_secs(599),
            sample: HoldSample {
                heard_per_second: 8200.4,
                latency_p99: Some(12_345),
                probe_mean: Some(1500.0),
                ..HoldSample::default()
            },
            ..Progress::default()
        };
        for (phase, expected) in [
            (Phase::Starting, "starting, 1,000,000 streams"),
            (
                Phase::Opening,
                "opening 123,456 of 1,000,000  123,000 open  3 lost  8,200/s heard  \
                 receipt p99 12.3 ms  probe 1.50 ms",
            ),
            (
                Phase::Holding,
                "holding 123,000 of 1,000,000  3 lost  9 min 59 s left  8,200/s heard  \
                 receipt p99 12.3 ms  probe 1.50 ms",
            ),
            (Phase::Ending, "ending"),
        ] {
            now.phase = phase;
            assert_eq!(progress_line(&now), expected);
        }
    }
}
