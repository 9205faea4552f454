//! The warnings of a report: it was ended early, or the generator limited it. Pure.
//!
//! Every output (`text`, `html`, single charts) shows these prominently.

use crate::report::{LoadFigures, Report, ReportResult, total_connections};
use crate::text::{tables, units};

/// The note on a report that was ended early.
pub(crate) const INTERRUPTED_NOTE: &str =
    "INTERRUPTED: the run was ended early; the figures cover the time until then.";

/// The warnings of a report, most important first.
pub(crate) fn report_notes(report: &Report) -> Vec<String> {
    let interrupted = report.context.interrupted;
    let interrupted = interrupted.then(|| INTERRUPTED_NOTE.to_owned());
    let mut notes: Vec<String> = interrupted.into_iter().collect();
    notes.extend(bottleneck_note(report));
    if let ReportResult::Hold(hold) = &report.result {
        notes.extend(hold.notes.iter().map(|note| format!("NOTE: {note}")));
    }
    notes
}

/// The warnings that a single chart must show, one per line; empty for a good report.
pub(crate) fn chart_notes(report: &Report) -> Vec<String> {
    let mut notes = report_notes(report);
    if let ReportResult::Compare(compare) = &report.result {
        let doubts = tables::ranked_doubts(compare).into_iter();
        notes.extend(doubts.map(|(name, doubt)| format!("DOUBT: {name}: {doubt}")));
    }
    notes
}

/// Why a load is not clean though nothing failed: requests that were not sent, not answered, or
/// sent again.
pub(crate) fn unclean_reasons(load: &LoadFigures) -> Vec<String> {
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
pub(crate) fn failure_reasons(load: &LoadFigures) -> Vec<String> {
    if load.is_clean() {
        return Vec::new();
    }
    let errors = load.errors;
    let statuses = load.statuses;
    let kinds = [
        (errors.connect, "connections could not be made"),
        (errors.tls, "TLS handshakes or sessions failed"),
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
    let tls = load.tls.as_ref().and_then(|tls| tls.first_failure.clone());
    let none = (load.requests == 0).then(|| "no request got a response".to_owned());
    let name = match load.name.as_str() {
        "" => String::new(),
        name => format!("{name}: "),
    };
    let all = none.into_iter().chain(kinds).chain(tls);
    let all = all.chain(unclean_reasons(load));
    all.map(|reason| format!("{name}{reason}")).collect()
}

/// The generator's own limits in a report, as one sentence; `None` if it never was the limit.
pub(crate) fn bottleneck_note(report: &Report) -> Option<String> {
    let windows = report.result.windows();
    let mut limited = windows.iter().flat_map(|window| {
        let loads = window.loads.iter();
        loads.filter_map(move |load| Some((window, load, load.generator.bottleneck.as_ref()?)))
    });
    let (window, load, reason) = limited.next()?;
    let at = units::format_connections(total_connections(window.loads));
    let place = match (&report.result, window.deployment) {
        (ReportResult::Run(_), _) => String::new(),
        (ReportResult::Mix(_), _) => format!(" (load `{}`)", load.name),
        (_, Some(deployment)) => format!(" ({}, {at})", deployment.name),
        (_, None) => format!(" ({at})"),
    };
    let more = match limited.count() as u64 {
        0 => String::new(),
        more => format!("; in {} measurements", units::group_thousands(more + 1)),
    };
    Some(format!(
        "NOTE: the load generator itself was the bottleneck: {reason}{place}{more}"
    ))
}
