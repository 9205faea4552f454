//! Splits a report into parts that can be matched with another report's, each with its figures.
//! Pure.

use std::collections::HashMap;

use super::verdict::FigureOverRounds;
use crate::report::{
    DeploymentResult, DurationSummary, HoldResult, LoadFigures, Point, ReportResult, RoundSpread,
    ServerCost,
};
use crate::summary::{
    counted_rounds, error_count, memory_bytes, points_of_full_round, spread_over_rounds,
};
use crate::text::units::{format_connections, to_f64, to_mebibytes};

/// A part, and as many of its figures as are known.
#[derive(Debug, Default)]
pub(super) struct ReportPart {
    /// The name for matching.
    pub(super) name: String,
    pub(super) per_second: Option<FigureOverRounds>,
    pub(super) cpu_us: Option<FigureOverRounds>,
    pub(super) p50_ms: Option<FigureOverRounds>,
    pub(super) p99_ms: Option<FigureOverRounds>,
    pub(super) memory: Option<FigureOverRounds>,
    pub(super) errors: Option<FigureOverRounds>,
}

/// Returns the parts of a report. Of parts with the same name, which is allowed, the second is
/// called `NAME (2)`, so that they are matched in order.
pub(super) fn report_parts(result: &ReportResult) -> Vec<ReportPart> {
    let mut parts = collect_parts(result);
    let mut seen: HashMap<String, u32> = HashMap::new();
    for part in &mut parts {
        let times = seen.entry(part.name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            part.name += &format!(" ({times})");
        }
    }
    parts
}

fn collect_parts(result: &ReportResult) -> Vec<ReportPart> {
    match result {
        ReportResult::Run(run) => vec![load_part(String::new(), &run.figures, run.server.as_ref())],
        ReportResult::Mix(mix) => load_parts("", &mix.loads, mix.server.as_ref()),
        ReportResult::Sweep(sweep) => sweep.points.iter().flat_map(point_parts).collect(),
        ReportResult::Compare(compare) => {
            let full = points_of_full_round(&compare.deployments);
            let part = |deployment| deployment_part(deployment, full);
            compare.deployments.iter().filter_map(part).collect()
        }
        ReportResult::Hold(hold) => hold_parts(hold),
    }
}

/// The streams, the messages published to them, and the probe's requests.
fn hold_parts(hold: &HoldResult) -> Vec<ReportPart> {
    let mut parts = vec![ReportPart {
        memory: hold
            .cost
            .server_bytes
            .and_then(|bytes| once(to_mebibytes(bytes))),
        ..timing_part("streams", &hold.opening, hold.counts.lost.total())
    }];
    parts.extend(hold.published.as_ref().map(|published| {
        let wrong = hold.counts.missed.saturating_add(hold.counts.repeated);
        timing_part("messages", &published.latency, wrong)
    }));
    parts.extend(hold.probe.as_ref().map(|probe| {
        let wrong = probe.errors.saturating_add(probe.skipped);
        timing_part("probe", &probe.while_held, wrong)
    }));
    parts
}

fn timing_part(name: &str, times: &DurationSummary, errors: u64) -> ReportPart {
    ReportPart {
        name: name.to_owned(),
        p50_ms: once(to_f64(times.p50) / 1000.0),
        p99_ms: once(to_f64(times.p99) / 1000.0),
        errors: once(to_f64(errors)),
        ..ReportPart::default()
    }
}

fn point_parts(point: &Point) -> Vec<ReportPart> {
    let place = format_connections(point.connections_total());
    match &*point.loads {
        [load] => vec![load_part(place, load, point.server.as_ref())],
        loads => load_parts(&format!("{place}, "), loads, point.server.as_ref()),
    }
}

/// Each load, and the server that they share.
fn load_parts(place: &str, loads: &[LoadFigures], server: Option<&ServerCost>) -> Vec<ReportPart> {
    let part = |load: &LoadFigures| load_part(format!("{place}{}", load.name), load, None);
    let mut parts: Vec<ReportPart> = loads.iter().map(part).collect();
    if server.is_some() {
        parts.push(server_part(format!("{place}server"), server));
    }
    parts
}

fn load_part(name: String, load: &LoadFigures, server: Option<&ServerCost>) -> ReportPart {
    let timing = timing_part("", &load.total, load.failed());
    ReportPart {
        per_second: once(load.requests_per_second),
        p50_ms: timing.p50_ms,
        p99_ms: timing.p99_ms,
        errors: timing.errors,
        ..server_part(name, server)
    }
}

fn server_part(name: String, server: Option<&ServerCost>) -> ReportPart {
    ReportPart {
        name,
        cpu_us: server.and_then(|cost| once(cost.cpu_us_per_request)),
        memory: server.and_then(|cost| once(to_mebibytes(cost.memory_bytes))),
        ..ReportPart::default()
    }
}

/// A deployment by its summary, completed from the rounds.
fn deployment_part(deployment: &DeploymentResult, full: usize) -> Option<ReportPart> {
    let summary = deployment.summary.as_ref()?;
    let rounds = counted_rounds(deployment, full);
    let count = rounds.len();
    let figure = |spread: Option<RoundSpread>| {
        let rounds = count;
        spread.map(|spread| FigureOverRounds { spread, rounds })
    };
    let p50_us = |points: &[Point]| {
        let slowest = points
            .iter()
            .map(|point| to_f64(point.slowest(|total| total.p50)));
        Some(slowest.sum::<f64>() / to_f64(points.len() as u64))
    };
    let scaled = |spread: Option<RoundSpread>, factor: f64| {
        figure(spread.map(|spread| spread.scale(factor)))
    };
    Some(ReportPart {
        name: deployment.name.clone(),
        per_second: figure(Some(summary.requests_per_second)),
        cpu_us: figure(summary.cpu_us_per_request),
        p50_ms: scaled(spread_over_rounds(&rounds, p50_us), 0.001),
        p99_ms: scaled(Some(summary.p99_us), 0.001),
        memory: scaled(spread_over_rounds(&rounds, memory_bytes), to_mebibytes(1)),
        errors: figure(spread_over_rounds(&rounds, error_count)),
    })
}

/// A figure of a single window.
fn once(value: f64) -> Option<FigureOverRounds> {
    let spread = RoundSpread::from_values([value])?;
    Some(FigureOverRounds { spread, rounds: 1 })
}
