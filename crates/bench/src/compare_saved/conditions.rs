//! Checks whether two reports were measured under the same conditions. Pure.

use crate::report::{Compare, Figures, Report, ReportResult};
use crate::text::{notes, units};

/// When, where and with what a report was measured.
pub(super) fn describe_context(report: &Report) -> String {
    let taken = &report.context;
    let when = units::format_time(taken.started);
    format!("{when}, {}, {}", taken.tool, taken.machine.cpu)
}

/// Reasons to doubt the comparison.
pub(super) fn condition_warnings(old: &Report, new: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    for (which, report) in [("old", old), ("new", new)] {
        if report.context.interrupted {
            warnings.push(format!("the {which} report was interrupted"));
        }
        if let Some(note) = notes::bottleneck_note(report) {
            let note = note.trim_start_matches("NOTE: ");
            warnings.push(format!("in the {which} report {note}"));
        }
        if let ReportResult::Compare(compare) = &report.result {
            let summaries = compare
                .deployments
                .iter()
                .filter_map(|one| one.summary.as_ref());
            let doubts: usize = summaries.map(|summary| summary.doubts.len()).sum();
            if doubts > 0 {
                let doubts = units::pluralize(doubts as u64, "doubt", "doubts");
                warnings.push(format!("the {which} report has {doubts} of its own"));
            }
            let failed = compare
                .deployments
                .iter()
                .filter(|one| one.failure.is_some());
            let failed: Vec<&str> = failed.map(|one| &*one.name).collect();
            if !failed.is_empty() {
                let failed = truncate(&failed.join(", "));
                warnings.push(format!("in the {which} report failed: {failed}"));
            }
        }
    }
    compare_machines(old, new, &mut warnings);
    compare_loads(old, new, &mut warnings);
    warnings
}

fn compare_machines(old: &Report, new: &Report, warnings: &mut Vec<String>) {
    let (old, new) = (&old.context.machine, &new.context.machine);
    let pairs = [
        ("processors", old.cpu.clone(), new.cpu.clone()),
        (
            "numbers of cores",
            old.cores.to_string(),
            new.cores.to_string(),
        ),
        // Some kernel updates report slightly less memory on the same machine.
        (
            "sizes of memory",
            units::format_size(old.memory >> 28 << 28),
            units::format_size(new.memory >> 28 << 28),
        ),
        ("systems", old.system.clone(), new.system.clone()),
    ];
    for (what, old, new) in pairs {
        if old != new {
            warnings.push(format!("the {what} differ: {old}; {new}"));
        }
    }
}

/// Compares the requests: figures are comparable only for the same load.
fn compare_loads(old: &Report, new: &Report, warnings: &mut Vec<String>) {
    let of_scenario = |of: &dyn Fn(&Compare) -> String| {
        [old, new].map(|report| match &report.result {
            ReportResult::Compare(compare) => of(compare),
            _ => String::new(),
        })
    };
    let [old_title, new_title] = of_scenario(&|compare| compare.title.clone());
    let [old_first, new_first] = of_scenario(&|compare| compare.first.clone());
    let [old_rounds, new_rounds] = of_scenario(&|compare| {
        let rounds = compare.deployments.iter().map(|one| one.rounds.len());
        rounds.max().unwrap_or(0).to_string()
    });
    let pairs = [
        ("titles of the scenarios", old_title, new_title),
        ("deployments that ratios refer to", old_first, new_first),
        ("numbers of rounds", old_rounds, new_rounds),
        (
            "uses of connections",
            describe_connection_reuse(old),
            describe_connection_reuse(new),
        ),
        ("targets", describe_targets(old), describe_targets(new)),
        (
            "connections",
            distinct_values(old, &|load| load.connections.to_string()),
            distinct_values(new, &|load| load.connections.to_string()),
        ),
        (
            "arrival rates",
            distinct_values(old, &describe_rate),
            distinct_values(new, &describe_rate),
        ),
        ("streams", describe_streams(old), describe_streams(new)),
        (
            "loads",
            distinct_values(old, &|load| load.name.clone()),
            distinct_values(new, &|load| load.name.clone()),
        ),
    ];
    for (what, old, new) in pairs {
        if old != new {
            warnings.push(format!(
                "the {what} differ: {}; {}",
                truncate(&old),
                truncate(&new)
            ));
        }
    }
}

fn describe_rate(load: &Figures) -> String {
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

fn describe_targets(report: &Report) -> String {
    match &report.result {
        ReportResult::Run(run) => run.targets.join(" "),
        ReportResult::Mix(mix) => mix.targets.join(" "),
        ReportResult::Sweep(sweep) => sweep.targets.join(" "),
        ReportResult::Hold(hold) => hold.targets.join(" "),
        ReportResult::Compare(_) => String::new(),
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
fn distinct_values(report: &Report, of: &dyn Fn(&Figures) -> String) -> String {
    let loads: Vec<&Figures> = match &report.result {
        ReportResult::Run(run) => vec![&run.figures],
        ReportResult::Mix(mix) => mix.loads.iter().collect(),
        ReportResult::Sweep(sweep) => sweep.points.iter().flat_map(|point| &point.loads).collect(),
        ReportResult::Compare(compare) => {
            let rounds = compare
                .deployments
                .iter()
                .flat_map(|deployment| &deployment.rounds);
            rounds.flatten().flat_map(|point| &point.loads).collect()
        }
        ReportResult::Hold(_) => Vec::new(),
    };
    let mut values: Vec<String> = Vec::new();
    for load in loads {
        let value = of(load);
        if !values.contains(&value) {
            values.push(value);
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
