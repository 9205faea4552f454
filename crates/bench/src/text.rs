//! Reports as text, for a terminal.
//!
//! A run has the format of ApacheBench, a sweep has one line per point, a comparison is a ranking:
//! `assets/report.txt` is their template. `output` prints the text.
//!
//! # Invariants
//!
//! - An early end is always shown, and, as the last line, that the generator was the bottleneck.
//! - Control characters of external names and logs are removed.

use minijinja::value::Serde;
use minijinja::{Value, context};

use crate::report::{
    CompareResult, DurationSummary, HoldResult, LoadFigures, Report, ReportResult,
};

pub(crate) use progress::progress_line;

pub(crate) mod notes;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod tables;
pub(crate) mod template;
pub(crate) mod units;

/// Formats any report; ends with a line break.
pub(crate) fn report_text(report: &Report) -> String {
    let details = match &report.result {
        ReportResult::Run(run) => context! { loads => [load_values(&run.figures)] },
        ReportResult::Mix(mix) => {
            let loads: Vec<Value> = mix.loads.iter().map(load_values).collect();
            context! { loads }
        }
        ReportResult::Sweep(sweep) => context! {
            points_table => tables::points_table(&sweep.points).text(),
        },
        ReportResult::Compare(compare) => compare_values(compare),
        ReportResult::Hold(hold) => hold_values(hold),
    };
    let values = context! {
        bottleneck => notes::bottleneck_note(report),
        interrupted_note => notes::INTERRUPTED_NOTE,
        all_targets => Serde(report.result.targets()),
        ..context! { ..details, ..Serde(report) }
    };
    template::render("report.txt", values)
}

fn load_values(load: &LoadFigures) -> Value {
    let statuses = &load.statuses;
    let percentile =
        |(name, of): &Percentile| (*name, of(&load.total), load.service.as_ref().map(of));
    let percentiles: Vec<_> = PERCENTILES.iter().map(percentile).collect();
    context! {
        failed => load.errors.total(),
        causes => load.errors.causes(),
        unsuccessful => statuses.total() - statuses.success,
        classes => [
            ("3xx", statuses.redirection),
            ("4xx", statuses.client_error),
            ("5xx", statuses.server_error),
            ("other", statuses.other),
        ],
        percentiles,
        ..Serde(load)
    }
}

fn compare_values(compare: &CompareResult) -> Value {
    let rounds = compare.deployments.iter().map(|one| one.rounds.len());
    let loads = tables::loads_table(compare);
    context! {
        rounds => rounds.max(),
        ranking_table => tables::ranking_table(compare).text(),
        doubts => Serde(tables::ranked_doubts(compare)),
        loads_table => (!loads.rows.is_empty()).then(|| loads.text()),
    }
}

fn hold_values(hold: &HoldResult) -> Value {
    context! {
        opened_first => hold.opened_first(),
        opened_per_second => hold.opened_per_second(),
        lost => hold.counts.lost.total(),
        causes => hold.counts.lost.causes(),
    }
}

/// A percentile's name, and its value.
pub(crate) type Percentile = (&'static str, fn(&DurationSummary) -> u64);

/// The percentiles of [`DurationSummary`]; like ApacheBench's list it ends with the maximum.
pub(crate) const PERCENTILES: &[Percentile] = &[
    ("50", |timings| timings.p50),
    ("75", |timings| timings.p75),
    ("90", |timings| timings.p90),
    ("95", |timings| timings.p95),
    ("99", |timings| timings.p99),
    ("99.9", |timings| timings.p999),
    ("99.99", |timings| timings.p9999),
    ("100", |timings| timings.max),
];

#[cfg(test)]
mod tests;
