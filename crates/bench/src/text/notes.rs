//! The warnings of a report: it was ended early, or the generator limited it. Pure.
//!
//! Every output (`text`, `html`, single drawings) shows these prominently.

use crate::report::{Figures, Point, Report, ReportResult};
use crate::text::{tables, units};

/// The note on a report that was ended early.
pub(crate) const INTERRUPTED_NOTE: &str =
    "INTERRUPTED: the run was ended early; the figures cover the time until then.";

/// The warnings that a single drawing must show, one per line; empty for a good report.
pub(crate) fn drawing_notes(report: &Report) -> Vec<String> {
    let mut marks = Vec::new();
    if report.context.interrupted {
        marks.push(INTERRUPTED_NOTE.to_owned());
    }
    marks.extend(bottleneck_note(report));
    if let ReportResult::Compare(compare) = &report.result {
        for (name, doubt) in tables::ranked_doubts(compare) {
            marks.push(format!("DOUBT: {name}: {doubt}"));
        }
    }
    marks.extend(hold_notes(report));
    marks
}

/// The notes of a run that held streams.
pub(crate) fn hold_notes(report: &Report) -> Vec<String> {
    match &report.result {
        ReportResult::Hold(hold) => hold
            .notes
            .iter()
            .map(|note| format!("NOTE: {note}"))
            .collect(),
        _ => Vec::new(),
    }
}

/// Why a load is not clean though nothing failed: requests that were not sent, not answered, or
/// sent again.
pub(crate) fn unclean_reasons(load: &Figures) -> Vec<String> {
    let mut reasons = Vec::new();
    if load.skipped() > 0 {
        let skipped = units::pluralize(load.skipped(), "arrival", "arrivals");
        reasons.push(format!("{skipped} skipped"));
    }
    if load.is_stuck() {
        let age = units::group_thousands(load.oldest_unfinished_us / 1000);
        reasons.push(format!("a request unanswered for {age} ms"));
    }
    if load.is_often_retried() {
        reasons.push(format!(
            "{} sent again",
            units::group_thousands(load.retried)
        ));
    }
    reasons
}

/// Why a run is not clean, one text per reason; empty for a clean one. Printed last by `bench` when
/// it exits with 1.
pub(crate) fn failure_reasons(load: &Figures) -> Vec<String> {
    if load.is_clean() {
        return Vec::new();
    }
    let errors = load.errors;
    let statuses = load.statuses;
    let kinds = [
        (errors.connect, "connections could not be made"),
        (errors.timeout, "requests timed out"),
        (errors.reset, "connections were reset within a request"),
        (
            errors.closed,
            "connections were closed before the response was complete",
        ),
        (errors.malformed, "responses were no HTTP/1"),
        (errors.length, "responses were longer than announced"),
        (statuses.client_error, "responses were 4xx"),
        (statuses.server_error, "responses were 5xx"),
        (statuses.other, "responses had another status"),
    ];
    let kinds = kinds.iter().filter(|(count, _)| *count > 0);
    let kinds = kinds.map(|(count, what)| format!("{} {what}", units::group_thousands(*count)));
    let none = (load.requests == 0).then(|| "no request got a response".to_owned());
    let name = match load.name.as_str() {
        "" => String::new(),
        name => format!("{name}: "),
    };
    let all = none.into_iter().chain(kinds).chain(unclean_reasons(load));
    all.map(|reason| format!("{name}{reason}")).collect()
}

/// The generator's own limits in a report, as one sentence; `None` if it never was the limit.
pub(crate) fn bottleneck_note(report: &Report) -> Option<String> {
    let found = limited_points(report);
    let (place, reason) = found.first()?;
    let place = match place.is_empty() {
        true => String::new(),
        false => format!(" ({place})"),
    };
    let more = match found.len() {
        1 => String::new(),
        all => format!("; in {} measurements", units::group_thousands(all as u64)),
    };
    let text = format!("NOTE: the load generator itself was the bottleneck: {reason}{place}{more}");
    Some(units::sanitize(&text))
}

/// The points where the generator was the limit, and why.
fn limited_points(report: &Report) -> Vec<(String, &str)> {
    match &report.result {
        ReportResult::Run(run) => reason("", &run.figures).into_iter().collect(),
        ReportResult::Mix(mix) => {
            let loads = mix.loads.iter();
            loads
                .filter_map(|load| reason(&format!("load `{}`", load.name), load))
                .collect()
        }
        ReportResult::Sweep(sweep) => {
            let points = sweep.points.iter();
            points
                .flat_map(|point| of_point(at(point), point))
                .collect()
        }
        ReportResult::Compare(compare) => {
            let deployments = compare.deployments.iter();
            let points = deployments.flat_map(|deployment| {
                let points = deployment.rounds.iter().flatten();
                points.map(move |point| (format!("{}, {}", deployment.name, at(point)), point))
            });
            points
                .flat_map(|(place, point)| of_point(place, point))
                .collect()
        }
        // It has notes of its own.
        ReportResult::Hold(_) => Vec::new(),
    }
}

fn of_point(place: String, point: &Point) -> impl Iterator<Item = (String, &str)> {
    point
        .loads
        .iter()
        .filter_map(move |load| reason(&place, load))
}

fn reason<'a>(place: &str, figures: &'a Figures) -> Option<(String, &'a str)> {
    let reason = figures.generator.bottleneck.as_deref()?;
    Some((place.to_owned(), reason))
}

fn at(point: &Point) -> String {
    units::pluralize(
        point.connections_total().into(),
        "connection",
        "connections",
    )
}
