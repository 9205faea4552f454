//! Splits a report into parts that can be matched with another report's, each with its figures.
//! Pure.

use std::collections::HashMap;

use super::verdict::{FIGURES, RoundedFigure};
use crate::report::{
    Deployment, Figures, HoldResult, Point, ReportResult, RoundSpread, ServerCost, Timings,
};
use crate::summary::{counted_rounds, points_of_full_round};
use crate::text::units::{pluralize, to_f64, to_mebibytes};

#[derive(Debug)]
pub(super) struct ReportPart {
    /// The name for matching.
    pub(super) name: String,
    /// The known ones of [`FIGURES`].
    pub(super) figures: Vec<(&'static str, RoundedFigure)>,
}

impl ReportPart {
    pub(super) fn figure(&self, name: &str) -> Option<RoundedFigure> {
        let found = self.figures.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| *value)
    }
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
        ReportResult::Run(run) => vec![load_part("", &run.figures, run.server.as_ref())],
        ReportResult::Mix(mix) => {
            let server = mix.server.as_ref();
            let mut parts = load_parts("", &mix.loads, None);
            parts.extend(server.map(|cost| server_part("server", cost)));
            parts
        }
        ReportResult::Sweep(sweep) => sweep.points.iter().flat_map(point_parts).collect(),
        ReportResult::Compare(compare) => {
            let full = points_of_full_round(&compare.deployments);
            let deployments = compare.deployments.iter();
            deployments
                .filter_map(|deployment| deployment_part(deployment, full))
                .collect()
        }
        ReportResult::Hold(hold) => hold_parts(hold),
    }
}

/// The streams, the messages published to them, and the probe's requests.
fn hold_parts(hold: &HoldResult) -> Vec<ReportPart> {
    let memory = hold.cost.server_bytes.map(to_mebibytes);
    let lost = hold.counts.lost.total();
    let mut parts = vec![timing_part("streams", &hold.opening, lost, memory)];
    parts.extend(hold.published.as_ref().map(|published| {
        let wrong = hold.counts.missed.saturating_add(hold.counts.repeated);
        timing_part("messages", &published.latency, wrong, None)
    }));
    parts.extend(hold.probe.as_ref().map(|probe| {
        let wrong = probe.errors.saturating_add(probe.skipped);
        timing_part("probe", &probe.while_held, wrong, None)
    }));
    parts
}

fn timing_part(name: &str, times: &Timings, errors: u64, memory: Option<f64>) -> ReportPart {
    build_part(name, |wanted| {
        let value = match wanted {
            "p50 ms" => Some(to_f64(times.p50) / 1000.0),
            "p99 ms" => Some(to_f64(times.p99) / 1000.0),
            "errors" => Some(to_f64(errors)),
            "memory MiB" => memory,
            _ => None,
        };
        single_round(value?)
    })
}

fn point_parts(point: &Point) -> Vec<ReportPart> {
    let connections = point.connections_total().into();
    let place = pluralize(connections, "connection", "connections");
    let mut parts = match &*point.loads {
        [load] => return vec![load_part(&place, load, point.server.as_ref())],
        loads => load_parts(&place, loads, None),
    };
    parts.extend(
        point
            .server
            .as_ref()
            .map(|cost| server_part(&format!("{place}, server"), cost)),
    );
    parts
}

fn load_parts(place: &str, loads: &[Figures], server: Option<&ServerCost>) -> Vec<ReportPart> {
    let name = |load: &Figures| match place.is_empty() {
        true => load.name.clone(),
        false => format!("{place}, {}", load.name),
    };
    loads
        .iter()
        .map(|load| load_part(&name(load), load, server))
        .collect()
}

fn load_part(name: &str, load: &Figures, server: Option<&ServerCost>) -> ReportPart {
    let mut figures = vec![
        ("requests/s", Some(load.requests_per_second)),
        ("p50 ms", Some(to_f64(load.total.p50) / 1000.0)),
        ("p99 ms", Some(to_f64(load.total.p99) / 1000.0)),
        ("errors", Some(to_f64(load.failed()))),
    ];
    figures.extend(server_figures(server));
    build_part(name, |wanted| {
        let (_, value) = figures.iter().find(|(name, _)| *name == wanted)?;
        single_round((*value)?)
    })
}

fn server_part(name: &str, cost: &ServerCost) -> ReportPart {
    let figures = server_figures(Some(cost));
    build_part(name, |wanted| {
        let (_, value) = figures.iter().find(|(name, _)| *name == wanted)?;
        single_round((*value)?)
    })
}

fn server_figures(server: Option<&ServerCost>) -> [(&'static str, Option<f64>); 2] {
    [
        ("CPU us/request", server.map(|cost| cost.cpu_us_per_request)),
        (
            "memory MiB",
            server.map(|cost| to_mebibytes(cost.memory_bytes)),
        ),
    ]
}

/// A deployment by its summary, completed from the rounds.
fn deployment_part(deployment: &Deployment, full: usize) -> Option<ReportPart> {
    let summary = deployment.summary.as_ref()?;
    let rounds = counted_rounds(deployment, full);
    let mean =
        |of: &dyn Fn(&Point) -> f64| {
            RoundSpread::from_values(rounds.iter().map(|(_, points)| {
                points.iter().map(of).sum::<f64>() / to_f64(points.len() as u64)
            }))
        };
    let memory = |points: &[Point]| {
        let found = points
            .iter()
            .filter_map(|point| Some(point.server?.memory_bytes));
        found.max().map(to_mebibytes)
    };
    let errors = |points: &[Point]| points.iter().map(|point| to_f64(point.failed())).sum();
    Some(build_part(&deployment.name, |name| {
        let spread = match name {
            "requests/s" => Some(summary.requests_per_second),
            "CPU us/request" => summary.cpu_us_per_request,
            "p50 ms" => mean(&|point| to_f64(point.slowest(|total| total.p50)) / 1000.0),
            "p99 ms" => Some(scale_spread(summary.p99_us, 0.001)),
            "memory MiB" => {
                RoundSpread::from_values(rounds.iter().filter_map(|(_, points)| memory(points)))
            }
            _ => RoundSpread::from_values(rounds.iter().map(|(_, points)| errors(points))),
        };
        let rounds = rounds.len();
        spread.map(|spread| RoundedFigure { spread, rounds })
    }))
}

fn scale_spread(spread: RoundSpread, factor: f64) -> RoundSpread {
    RoundSpread {
        median: spread.median * factor,
        min: spread.min * factor,
        max: spread.max * factor,
    }
}

/// A part with its known figures, in the order of [`FIGURES`].
fn build_part(name: &str, value: impl Fn(&str) -> Option<RoundedFigure>) -> ReportPart {
    let known = |name: &'static str| Some((name, value(name)?));
    ReportPart {
        name: name.to_owned(),
        figures: FIGURES
            .iter()
            .filter_map(|figure| known(figure.name))
            .collect(),
    }
}

fn single_round(value: f64) -> Option<RoundedFigure> {
    let spread = RoundSpread::from_values([value])?;
    Some(RoundedFigure { spread, rounds: 1 })
}
