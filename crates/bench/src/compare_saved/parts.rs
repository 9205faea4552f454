//! A report taken apart into what can be matched with another's, each part with its figures. Pure.

use std::collections::HashMap;

use super::judge::{FIGURES, Value};
use crate::report::{Deployment, Figures, Hold, Outcome, Point, ServerCost, Spread, Timings};
use crate::summary::{counted, points_of_full_round};
use crate::text::units::{mebibytes, number, plural};

/// One part of a report.
#[derive(Debug)]
pub(super) struct Part {
    /// By which it is matched.
    pub(super) name: String,
    /// Those of [`FIGURES`] that are known.
    pub(super) figures: Vec<(&'static str, Value)>,
}

impl Part {
    pub(super) fn figure(&self, name: &str) -> Option<Value> {
        let found = self.figures.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| *value)
    }
}

/// The parts of a report. Of several with one name (nothing forbids that) the second is called
/// `NAME (2)`, so that they are matched in their order.
pub(super) fn of(result: &Outcome) -> Vec<Part> {
    let mut parts = all(result);
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

fn all(result: &Outcome) -> Vec<Part> {
    match result {
        Outcome::Run(run) => vec![of_load("", &run.figures, run.server.as_ref())],
        Outcome::Mix(mix) => {
            let server = mix.server.as_ref();
            let mut parts = of_loads("", &mix.loads, None);
            parts.extend(server.map(|cost| of_server("server", cost)));
            parts
        }
        Outcome::Sweep(sweep) => sweep.points.iter().flat_map(of_point).collect(),
        Outcome::Compare(compare) => {
            let full = points_of_full_round(&compare.deployments);
            let deployments = compare.deployments.iter();
            deployments
                .filter_map(|deployment| of_deployment(deployment, full))
                .collect()
        }
        Outcome::Hold(hold) => of_hold(hold),
    }
}

/// The streams, what was published to them, and what was asked for beside them.
fn of_hold(hold: &Hold) -> Vec<Part> {
    let memory = hold.cost.server_bytes.map(mebibytes);
    let lost = hold.counts.lost.total();
    let mut parts = vec![of_times("streams", &hold.opening, lost, memory)];
    parts.extend(hold.published.as_ref().map(|published| {
        let wrong = hold.counts.missed.saturating_add(hold.counts.repeated);
        of_times("messages", &published.latency, wrong, None)
    }));
    parts.extend(hold.probe.as_ref().map(|probe| {
        let wrong = probe.errors.saturating_add(probe.skipped);
        of_times("probe", &probe.held, wrong, None)
    }));
    parts
}

fn of_times(name: &str, times: &Timings, errors: u64, memory: Option<f64>) -> Part {
    part(name, |wanted| {
        let value = match wanted {
            "p50 ms" => Some(number(times.p50) / 1000.0),
            "p99 ms" => Some(number(times.p99) / 1000.0),
            "errors" => Some(number(errors)),
            "memory MiB" => memory,
            _ => None,
        };
        once(value?)
    })
}

fn of_point(point: &Point) -> Vec<Part> {
    let connections = point.connections_total().into();
    let place = plural(connections, "connection", "connections");
    let mut parts = match &*point.loads {
        [load] => return vec![of_load(&place, load, point.server.as_ref())],
        loads => of_loads(&place, loads, None),
    };
    parts.extend(
        point
            .server
            .as_ref()
            .map(|cost| of_server(&format!("{place}, server"), cost)),
    );
    parts
}

fn of_loads(place: &str, loads: &[Figures], server: Option<&ServerCost>) -> Vec<Part> {
    let name = |load: &Figures| match place.is_empty() {
        true => load.name.clone(),
        false => format!("{place}, {}", load.name),
    };
    loads
        .iter()
        .map(|load| of_load(&name(load), load, server))
        .collect()
}

fn of_load(name: &str, load: &Figures, server: Option<&ServerCost>) -> Part {
    let mut figures = vec![
        ("requests/s", Some(load.requests_per_second)),
        ("p50 ms", Some(number(load.total.p50) / 1000.0)),
        ("p99 ms", Some(number(load.total.p99) / 1000.0)),
        ("errors", Some(number(load.failed()))),
    ];
    figures.extend(server_figures(server));
    part(name, |wanted| {
        let (_, value) = figures.iter().find(|(name, _)| *name == wanted)?;
        once((*value)?)
    })
}

fn of_server(name: &str, cost: &ServerCost) -> Part {
    let figures = server_figures(Some(cost));
    part(name, |wanted| {
        let (_, value) = figures.iter().find(|(name, _)| *name == wanted)?;
        once((*value)?)
    })
}

fn server_figures(server: Option<&ServerCost>) -> [(&'static str, Option<f64>); 2] {
    [
        ("CPU us/request", server.map(|cost| cost.cpu_us_per_request)),
        (
            "memory MiB",
            server.map(|cost| mebibytes(cost.memory_bytes)),
        ),
    ]
}

/// A deployment by its summary; what that has not is made of the rounds.
fn of_deployment(deployment: &Deployment, full: usize) -> Option<Part> {
    let summary = deployment.summary.as_ref()?;
    let rounds = counted(deployment, full);
    let mean =
        |of: &dyn Fn(&Point) -> f64| {
            Spread::of(rounds.iter().map(|(_, points)| {
                points.iter().map(of).sum::<f64>() / number(points.len() as u64)
            }))
        };
    let memory = |points: &[Point]| {
        let found = points
            .iter()
            .filter_map(|point| Some(point.server?.memory_bytes));
        found.max().map(mebibytes)
    };
    let errors = |points: &[Point]| points.iter().map(|point| number(point.failed())).sum();
    Some(part(&deployment.name, |name| {
        let spread = match name {
            "requests/s" => Some(summary.requests_per_second),
            "CPU us/request" => summary.cpu_us_per_request,
            "p50 ms" => mean(&|point| number(point.slowest(|total| total.p50)) / 1000.0),
            "p99 ms" => Some(scaled(summary.p99_us, 0.001)),
            "memory MiB" => Spread::of(rounds.iter().filter_map(|(_, points)| memory(points))),
            _ => Spread::of(rounds.iter().map(|(_, points)| errors(points))),
        };
        let rounds = rounds.len();
        spread.map(|spread| Value { spread, rounds })
    }))
}

fn scaled(spread: Spread, factor: f64) -> Spread {
    Spread {
        median: spread.median * factor,
        min: spread.min * factor,
        max: spread.max * factor,
    }
}

/// A part with the figures that are known, in the order of [`FIGURES`].
fn part(name: &str, value: impl Fn(&str) -> Option<Value>) -> Part {
    let known = |name: &'static str| Some((name, value(name)?));
    Part {
        name: name.to_owned(),
        figures: FIGURES
            .iter()
            .filter_map(|figure| known(figure.name))
            .collect(),
    }
}

fn once(value: f64) -> Option<Value> {
    let spread = Spread::of([value])?;
    Some(Value { spread, rounds: 1 })
}
