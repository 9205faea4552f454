//! Chooses the charts of a report and their content. Pure; `lines` and `bars` draw.

use std::collections::BTreeMap;

use super::Chart;
use super::bars::{self, Bar, BarChart};
use super::lines::{self, HorizontalAxis, LineChart, LineStyle, Series, VerticalAxis};
use crate::report::{
    Compare, Deployment, Figures, Point, Report, ReportResult, RoundSpread, ServerCost, Summary,
    Sweep,
};
use crate::spline::CurvePoint;
use crate::text::units::{sanitize, to_f64, to_mebibytes};
use crate::text::{PERCENTILES, Percentile, tables};

/// The charts in display order.
pub(super) fn charts(report: &Report) -> Vec<Chart> {
    match &report.result {
        ReportResult::Run(run) => percentile_bars(std::slice::from_ref(&run.figures)),
        ReportResult::Mix(mix) => percentile_bars(&mix.loads),
        ReportResult::Sweep(sweep) => sweep_charts(sweep),
        ReportResult::Compare(compare) => compare_charts(compare),
        ReportResult::Hold(hold) => super::hold::charts(hold),
    }
}

/// The response times of a load: one bar per percentile.
fn percentile_bars(loads: &[Figures]) -> Vec<Chart> {
    let chart = |(index, load): (usize, &Figures)| {
        let bar = |(name, of): &Percentile| Bar {
            name: format!("{name} %"),
            value: single_value(to_f64(of(&load.total)) / 1000.0),
            color: index,
        };
        let (name, title) = match loads.len() {
            1 => ("latency".to_owned(), "Response times".to_owned()),
            _ => (
                format!("latency-{}", index + 1),
                format!("Response times: {}", sanitize(&load.name)),
            ),
        };
        bars::draw_bars(&BarChart {
            name,
            title,
            label: "as many requests took no longer, ms",
            unit: "ms",
            bars: PERCENTILES.iter().map(bar).collect(),
        })
    };
    loads.iter().enumerate().filter_map(chart).collect()
}

fn single_value(value: f64) -> RoundSpread {
    RoundSpread {
        median: value,
        min: value,
        max: value,
    }
}

fn sweep_charts(sweep: &Sweep) -> Vec<Chart> {
    let all = [
        sweep_throughput(sweep),
        sweep_latency(sweep),
        sweep_errors(sweep),
        sweep_cost(
            sweep,
            "cpu",
            "CPU time per request",
            ("CPU us/request", "us"),
            |cost| cost.cpu_us_per_request,
        ),
        sweep_cost(
            sweep,
            "cores",
            "Cores used by the server",
            ("cores", "cores"),
            |cost| cost.busy_cores,
        ),
        sweep_cost(
            sweep,
            "memory",
            "Memory of the server",
            ("MiB", "MiB"),
            |cost| to_mebibytes(cost.memory_bytes),
        ),
    ];
    all.into_iter().flatten().collect()
}

/// The connections of a point, for the horizontal axis.
fn connections_at(point: &Point) -> f64 {
    f64::from(point.connections_total())
}

/// The loads of the points and their names; a single load is named `alone`.
fn load_names(points: &[Point], alone: &str) -> Vec<String> {
    let most = points.iter().max_by_key(|point| point.loads.len());
    let loads = most.map_or(&[][..], |point| &point.loads);
    let name = |load: &Figures| match load.name.is_empty() {
        true => alone.to_owned(),
        false => sanitize(&load.name),
    };
    loads.iter().map(name).collect()
}

/// One load's value at each point.
fn load_series(points: &[Point], index: usize, value: impl Fn(&Figures) -> f64) -> Vec<CurvePoint> {
    let of = |point: &Point| Some((connections_at(point), value(point.loads.get(index)?)));
    let mut line: Vec<CurvePoint> = points.iter().filter_map(of).collect();
    line.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    line
}

fn sweep_throughput(sweep: &Sweep) -> Option<Chart> {
    let names = load_names(&sweep.points, "measured");
    let is_alone = names.len() == 1;
    let mut series = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let line = load_series(&sweep.points, index, |load| load.requests_per_second);
        let smooth = Series {
            name: if is_alone {
                "B-spline".to_owned()
            } else {
                name.clone()
            },
            line: line.clone(),
            points: if is_alone { Vec::new() } else { line.clone() },
            style: if is_alone {
                LineStyle::SmoothWithoutPoints
            } else {
                LineStyle::Smooth
            },
        };
        series.push(smooth);
        if is_alone {
            series.push(Series {
                name,
                points: line.clone(),
                line,
                style: LineStyle::Raw,
            });
        }
    }
    lines::draw_lines(&LineChart {
        name: "throughput".to_owned(),
        title: "Throughput".to_owned(),
        label: "requests/s",
        unit: "requests/s",
        vertical: VerticalAxis::Linear,
        horizontal: HorizontalAxis::Connections,
        series,
    })
}

fn sweep_latency(sweep: &Sweep) -> Option<Chart> {
    let names = load_names(&sweep.points, "");
    let mut series = Vec::new();
    for (index, load) in names.iter().enumerate() {
        for (name, of) in PERCENTILES {
            if ["50", "90", "99", "99.9"].contains(name) {
                let line = load_series(&sweep.points, index, |load| {
                    to_f64(of(&load.total)) / 1000.0
                });
                series.push(Series {
                    name: format!("{load} p{name}").trim().to_owned(),
                    points: line.clone(),
                    line,
                    style: LineStyle::Straight,
                });
            }
        }
    }
    lines::draw_lines(&LineChart {
        name: "latency".to_owned(),
        title: "Response times".to_owned(),
        label: "ms",
        unit: "ms",
        vertical: VerticalAxis::AutoLog,
        horizontal: HorizontalAxis::Connections,
        series,
    })
}

/// A kind of error and its count.
type ErrorKind = (&'static str, fn(&Figures) -> u64);

/// One curve for each kind of error that occurred; no chart without errors.
fn sweep_errors(sweep: &Sweep) -> Option<Chart> {
    let kinds: [ErrorKind; 8] = [
        ("connect", |load| load.errors.connect),
        ("time-out", |load| load.errors.timeout),
        ("reset", |load| load.errors.reset),
        ("closed early", |load| load.errors.closed),
        ("malformed", |load| load.errors.malformed),
        ("length", |load| load.errors.length),
        ("4xx", |load| load.statuses.client_error),
        ("5xx", |load| load.statuses.server_error),
    ];
    let mut series = Vec::new();
    for (name, of) in kinds {
        let sum = |point: &Point| point.loads.iter().map(|load| to_f64(of(load))).sum();
        let mut line: Vec<CurvePoint> = sweep
            .points
            .iter()
            .map(|point| (connections_at(point), sum(point)))
            .collect();
        line.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        if line.iter().any(|(_, count)| *count > 0.0) {
            series.push(Series {
                name: name.to_owned(),
                points: line.clone(),
                line,
                style: LineStyle::Straight,
            });
        }
    }
    // A single curve has no legend.
    let title = match &*series {
        [only] => format!("Errors: {}", only.name),
        _ => "Errors".to_owned(),
    };
    lines::draw_lines(&LineChart {
        name: "errors".to_owned(),
        title,
        label: "requests in the window",
        unit: "requests",
        vertical: VerticalAxis::Integers,
        horizontal: HorizontalAxis::Connections,
        series,
    })
}

fn sweep_cost(
    sweep: &Sweep,
    name: &str,
    title: &str,
    (label, unit): (&'static str, &'static str),
    of: fn(&ServerCost) -> f64,
) -> Option<Chart> {
    let place = |point: &Point| Some((connections_at(point), of(point.server.as_ref()?)));
    let mut line: Vec<CurvePoint> = sweep.points.iter().filter_map(place).collect();
    line.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    lines::draw_lines(&LineChart {
        name: name.to_owned(),
        title: title.to_owned(),
        label,
        unit,
        vertical: VerticalAxis::Linear,
        horizontal: HorizontalAxis::Connections,
        series: vec![Series {
            name: title.to_owned(),
            points: line.clone(),
            line,
            style: LineStyle::Straight,
        }],
    })
}

fn compare_charts(compare: &Compare) -> Vec<Chart> {
    let bars = |name: &str, title: &str, units, of: fn(&Summary) -> Option<RoundSpread>| {
        let value = |deployment: &Deployment| of(deployment.summary.as_ref()?);
        deployment_bars(compare, (name, title), units, value)
    };
    let mut charts = vec![
        bars(
            "ranking",
            "Ranking",
            ("requests/s, mean over the points", "requests/s"),
            |summary| Some(summary.requests_per_second),
        ),
        deployment_curves(
            compare,
            ("throughput", "Throughput"),
            ("requests/s", "requests/s"),
            |point| Some(point.good_per_second()),
        ),
        bars(
            "cpu",
            "CPU time per request",
            ("CPU us/request, all processes", "us"),
            |summary| summary.cpu_us_per_request,
        ),
        bars(
            "p99",
            "p99 response time, mean",
            ("p99 in ms, mean over the points", "ms"),
            |summary| Some(to_milliseconds(summary.p99_us)),
        ),
        deployment_curves(
            compare,
            ("latency", "p99 response time"),
            ("p99 in ms", "ms"),
            |point| Some(to_f64(point.slowest(|total| total.p99)) / 1000.0),
        ),
        bars(
            "memory",
            "Memory",
            ("MiB, the most seen", "MiB"),
            |summary| Some(single_value(to_mebibytes(summary.memory_bytes?))),
        ),
    ];
    for (index, load) in tables::load_names(compare).into_iter().enumerate() {
        charts.extend(load_bars(compare, index + 1, load));
    }
    charts.into_iter().flatten().collect()
}

fn to_milliseconds(us: RoundSpread) -> RoundSpread {
    RoundSpread {
        median: us.median / 1000.0,
        min: us.min / 1000.0,
        max: us.max / 1000.0,
    }
}

/// For several loads at once: the figures of each load, which the ranking sums.
fn load_bars(compare: &Compare, number_of_load: usize, load: &str) -> [Option<Chart>; 2] {
    let spread = |deployment: &Deployment, of: &dyn Fn(&Figures) -> f64| {
        let loads = deployment
            .rounds
            .iter()
            .flatten()
            .flat_map(|point| &point.loads);
        RoundSpread::from_values(loads.filter(|found| found.name == load).map(of))
    };
    let title = |what: &str| format!("{}: {what}", sanitize(load));
    [
        deployment_bars(
            compare,
            (
                &format!("load-{number_of_load}-throughput"),
                &title("throughput"),
            ),
            ("requests/s", "requests/s"),
            |deployment| spread(deployment, &Figures::good_per_second),
        ),
        deployment_bars(
            compare,
            (
                &format!("load-{number_of_load}-p99"),
                &title("p99 response time"),
            ),
            ("p99 in ms", "ms"),
            |deployment| spread(deployment, &|found| to_f64(found.total.p99) / 1000.0),
        ),
    ]
}

/// One bar for each ranked deployment with a known value.
fn deployment_bars(
    compare: &Compare,
    (name, title): (&str, &str),
    (label, unit): (&'static str, &'static str),
    value: impl Fn(&Deployment) -> Option<RoundSpread>,
) -> Option<Chart> {
    let ranked = tables::ranked_deployments(compare).enumerate();
    let bar = |(color, deployment): (usize, &Deployment)| {
        Some(Bar {
            name: deployment.name.clone(),
            value: value(deployment)?,
            color,
        })
    };
    bars::draw_bars(&BarChart {
        name: name.to_owned(),
        title: title.to_owned(),
        label,
        unit,
        bars: ranked.filter_map(bar).collect(),
    })
}

/// One curve per ranked deployment through the medians of the rounds, with every round's points; no
/// chart for a single number of connections.
fn deployment_curves(
    compare: &Compare,
    (name, title): (&str, &str),
    (label, unit): (&'static str, &'static str),
    of: fn(&Point) -> Option<f64>,
) -> Option<Chart> {
    let series: Vec<Series> = tables::ranked_deployments(compare)
        .map(|deployment| {
            let points = deployment.rounds.iter().flatten();
            let points: Vec<CurvePoint> = points
                .filter_map(|point| Some((connections_at(point), of(point)?)))
                .collect();
            Series {
                name: deployment.name.clone(),
                line: median_points(&points),
                points,
                style: LineStyle::Smooth,
            }
        })
        .collect();
    if series.iter().all(|series| series.line.len() < 2) {
        return None;
    }
    lines::draw_lines(&LineChart {
        name: name.to_owned(),
        title: title.to_owned(),
        label,
        unit,
        vertical: if unit == "ms" {
            VerticalAxis::AutoLog
        } else {
            VerticalAxis::Linear
        },
        horizontal: HorizontalAxis::Connections,
        series,
    })
}

/// The median point for each number of connections.
fn median_points(points: &[CurvePoint]) -> Vec<CurvePoint> {
    let mut by_connections: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (connections, value) in points {
        // Non-negative floats sort by their bits.
        by_connections
            .entry(connections.to_bits())
            .or_default()
            .push(*value);
    }
    let medians = by_connections
        .into_iter()
        .filter_map(|(connections, values)| {
            Some((
                f64::from_bits(connections),
                RoundSpread::from_values(values)?.median,
            ))
        });
    medians.collect()
}
