//! Checks whether two reports were measured under the same conditions. Pure.

use crate::report::{CompareResult, LoadFigures, Report, ReportResult};
use crate::text::{notes, units};

/// When, where and with what a report was measured.
pub(super) fn describe_context(report: &Report) -> String {
    let taken = &report.context;
    let when = units::format_timestamp(taken.started);
    format!("{when}, {}, {}", taken.tool, taken.machine.cpu)
}

/// Reasons to doubt the comparison.
pub(super) fn condition_warnings(old: &Report, new: &Report) -> Vec<String> {
    let mut warnings = own_warnings("old", old);
    warnings.extend(own_warnings("new", new));
    for (what, of) in CONDITIONS {
        let (old, new) = (of(old), of(new));
        if old != new {
            let (old, new) = (truncate(&old), truncate(&new));
            warnings.push(format!("the {what} differ: {old}; {new}"));
        }
    }
    warnings
}

/// Reasons to doubt one of the reports.
fn own_warnings(which: &str, report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    if report.context.interrupted {
        warnings.push(format!("the {which} report was interrupted"));
    }
    if let Some(note) = notes::bottleneck_note(report) {
        let note = note.trim_start_matches("NOTE: ");
        warnings.push(format!("in the {which} report {note}"));
    }
    if let ReportResult::Compare(compare) = &report.result {
        let deployments = || compare.deployments.iter();
        let summaries = deployments().filter_map(|one| one.summary.as_ref());
        let doubts: usize = summaries.map(|summary| summary.doubts.len()).sum();
        if doubts > 0 {
            let doubts = units::pluralize(doubts as u64, "doubt", "doubts");
            warnings.push(format!("the {which} report has {doubts} of its own"));
        }
        let failed = deployments().filter(|one| one.failure.is_some());
        let failed: Vec<&str> = failed.map(|one| &*one.name).collect();
        if !failed.is_empty() {
            let failed = truncate(&failed.join(", "));
            warnings.push(format!("in the {which} report failed: {failed}"));
        }
    }
    warnings
}

/// A condition of a measurement in words.
type Condition = (&'static str, fn(&Report) -> String);

/// The machine and the requests: figures are comparable only for the same load.
const CONDITIONS: [Condition; 13] = [
    ("processors", |report| report.context.machine.cpu.clone()),
    ("numbers of cores", |report| {
        report.context.machine.cores.to_string()
    }),
    // Some kernel updates report slightly less memory on the same machine.
    ("sizes of memory", |report| {
        units::format_size(report.context.machine.memory >> 28 << 28)
    }),
    ("systems", |report| report.context.machine.system.clone()),
    ("titles of the scenarios", |report| {
        of_scenario(report, |compare| compare.title.clone())
    }),
    ("deployments that ratios refer to", |report| {
        of_scenario(report, |compare| compare.first.clone())
    }),
    ("numbers of rounds", |report| {
        of_scenario(report, |compare| {
            let rounds = compare.deployments.iter().map(|one| one.rounds.len());
            rounds.max().unwrap_or(0).to_string()
        })
    }),
    ("uses of connections", describe_connection_reuse),
    ("targets", |report| report.result.targets().join(" ")),
    ("connections", |report| {
        distinct_values(report, |load| load.connections.to_string())
    }),
    ("arrival rates", |report| {
        distinct_values(report, describe_rate)
    }),
    ("streams", describe_streams),
    ("loads", |report| {
        distinct_values(report, |load| load.name.clone())
    }),
];

fn of_scenario(report: &Report, of: fn(&CompareResult) -> String) -> String {
    match &report.result {
        ReportResult::Compare(compare) => of(compare),
        _ => String::new(),
    }
}

fn describe_rate(load: &LoadFigures) -> String {
    load.rate
        .map_or_else(|| "closed loop".to_owned(), |rate| format!("{rate}/s"))
}

/// Whether connections were reused, as far as the command line shows it; a scenario sets it in its
/// file.
fn describe_connection_reuse(report: &Report) -> String {
    let command = &report.context.command;
    let closes = |word: &String| {
        let word = word.to_ascii_lowercase().replace([' ', '\t'], "");
        word == "--no-keepalive" || word.ends_with("connection:close")
    };
    match command.iter().any(closes) {
        true => "a new one for each request".to_owned(),
        false => "kept".to_owned(),
    }
}

/// The number of streams, and what they received.
fn describe_streams(report: &Report) -> String {
    let ReportResult::Hold(hold) = &report.result else {
        return String::new();
    };
    let rate = hold.published.as_ref().map_or(0.0, |found| found.rate);
    format!("{} with {rate} messages a second", hold.streams)
}

/// A property of all loads of a report: distinct values in order.
fn distinct_values(report: &Report, of: fn(&LoadFigures) -> String) -> String {
    let mut values: Vec<String> = Vec::new();
    for window in report.result.windows() {
        for value in window.loads.iter().map(of) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }
    values.join(", ")
}

fn truncate(text: &str) -> String {
    match text.chars().count() {
        0 => "none".to_owned(),
        1..=60 => text.to_owned(),
        _ => text.chars().take(57).chain("...".chars()).collect(),
    }
}
