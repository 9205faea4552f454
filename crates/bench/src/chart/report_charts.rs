//! Chooses the charts of a report and their content. Pure; `lines` and `bars` draw.

use std::collections::BTreeMap;

use super::bars::Bar;
use super::lines::{HorizontalAxis, LineChart, LineStyle, Series, VerticalAxis};
use super::{ChartContent, ChartSpec, Units};
use crate::report::{
    CompareResult, DeploymentResult, DeploymentSummary, LoadFigures, Point, Report, ReportResult,
    RoundSpread, ServerCost, Sweep,
};
use crate::spline::CurvePoint;
use crate::text::units::{to_f64, to_mebibytes};
use crate::text::{PERCENTILES, Percentile, tables};

/// The charts in display order; one without values is not drawn.
pub(super) fn chart_specs(report: &Report) -> Vec<ChartSpec> {
    match &report.result {
        ReportResult::Run(run) => vec![percentile_bars(
            "latency",
            "Response times",
            0,
            &run.figures,
        )],
        ReportResult::Mix(mix) => {
            let chart = |(index, load): (usize, &LoadFigures)| {
                let name = format!("latency-{}", index + 1);
                let title = format!("Response times: {}", load.name);
                percentile_bars(&name, &title, index, load)
            };
            mix.loads.iter().enumerate().map(chart).collect()
        }
        ReportResult::Sweep(sweep) => sweep_charts(sweep),
        ReportResult::Compare(compare) => compare_charts(compare),
        ReportResult::Hold(hold) => super::hold::chart_specs(hold),
    }
}

/// A chart by connections.
fn line_chart(
    name: &str,
    title: &str,
    units: Units,
    vertical: VerticalAxis,
    series: Vec<Series>,
) -> ChartSpec {
    let lines = LineChart {
        vertical,
        horizontal: HorizontalAxis::Connections,
        series,
    };
    ChartSpec::new(name, title, units, ChartContent::Lines(lines))
}

/// The response times of a load: one bar per percentile.
fn percentile_bars(name: &str, title: &str, color: usize, load: &LoadFigures) -> ChartSpec {
    let bar = |(name, of): &Percentile| Bar {
        name: format!("{name} %"),
        value: RoundSpread::single(to_f64(of(&load.total)) / 1000.0),
        color,
    };
    let bars = ChartContent::Bars(PERCENTILES.iter().map(bar).collect());
    let units = ("as many requests took no longer, ms", "ms");
    ChartSpec::new(name, title, units, bars)
}

fn sweep_charts(sweep: &Sweep) -> Vec<ChartSpec> {
    let cost = |name, title, units, of: fn(&ServerCost) -> f64| {
        let points = sweep.points.iter();
        let place = |point: &Point| Some((connections_at(point), of(point.server.as_ref()?)));
        let series = Series::straight(title, points.filter_map(place));
        line_chart(name, title, units, VerticalAxis::Linear, vec![series])
    };
    vec![
        sweep_throughput(sweep),
        sweep_latency(sweep),
        sweep_errors(sweep),
        cost(
            "cpu",
            "CPU time per request",
            ("CPU us/request", "us"),
            |cost| cost.cpu_us_per_request,
        ),
        cost(
            "cores",
            "Cores used by the server",
            ("cores", "cores"),
            |cost| cost.busy_cores,
        ),
        cost("memory", "Memory of the server", ("MiB", "MiB"), |cost| {
            to_mebibytes(cost.memory_bytes)
        }),
    ]
}

/// The connections of a point, for the horizontal axis.
fn connections_at(point: &Point) -> f64 {
    f64::from(point.connections_total())
}

/// The names of the loads at the points.
fn load_names(points: &[Point]) -> Vec<&str> {
    let most = points.iter().max_by_key(|point| point.loads.len());
    let loads = most.map_or(&[][..], |point| &point.loads);
    loads.iter().map(|load| &*load.name).collect()
}

/// One load's value at each point.
fn load_series(
    sweep: &Sweep,
    name: &str,
    index: usize,
    value: impl Fn(&LoadFigures) -> f64,
) -> Series {
    let of = |point: &Point| Some((connections_at(point), value(point.loads.get(index)?)));
    Series::straight(name, sweep.points.iter().filter_map(of))
}

fn sweep_throughput(sweep: &Sweep) -> ChartSpec {
    let names = load_names(&sweep.points);
    let of = |(index, name): (usize, &&str)| {
        load_series(sweep, name, index, |load| load.requests_per_second)
    };
    let mut series: Vec<Series> = names.iter().enumerate().map(of).collect();
    if let [measured] = &mut series[..] {
        measured.style = LineStyle::Raw;
        let smooth = Series {
            name: "B-spline".to_owned(),
            line: measured.line.clone(),
            points: Vec::new(),
            style: LineStyle::SmoothWithoutPoints,
        };
        if measured.name.is_empty() {
            measured.name = "measured".to_owned();
        }
        series.insert(0, smooth);
    } else {
        series
            .iter_mut()
            .for_each(|load| load.style = LineStyle::Smooth);
    }
    let units = ("requests/s", "requests/s");
    line_chart(
        "throughput",
        "Throughput",
        units,
        VerticalAxis::Linear,
        series,
    )
}

fn sweep_latency(sweep: &Sweep) -> ChartSpec {
    let mut series = Vec::new();
    for (index, load) in load_names(&sweep.points).iter().enumerate() {
        for (percentile, of) in PERCENTILES {
            if ["50", "90", "99", "99.9"].contains(percentile) {
                let name = format!("{load} p{percentile}");
                let ms = |load: &LoadFigures| to_f64(of(&load.total)) / 1000.0;
                series.push(load_series(sweep, name.trim(), index, ms));
            }
        }
    }
    line_chart(
        "latency",
        "Response times",
        ("ms", "ms"),
        VerticalAxis::AutoLog,
        series,
    )
}

/// One curve for each kind of error that occurred; no chart without errors.
fn sweep_errors(sweep: &Sweep) -> ChartSpec {
    let mut series = Vec::new();
    for (kind, (name, _)) in LoadFigures::default().failures().enumerate() {
        let count = |load: &LoadFigures| load.failures().nth(kind).map_or(0.0, |it| to_f64(it.1));
        let points = sweep.points.iter();
        let points = points.map(|point| {
            let sum = point.loads.iter().map(count).sum();
            (connections_at(point), sum)
        });
        let errors = Series::straight(name, points);
        if errors.line.iter().any(|(_, count)| *count > 0.0) {
            series.push(errors);
        }
    }
    // A single curve has no legend.
    let title = match &*series {
        [only] => format!("Errors: {}", only.name),
        _ => "Errors".to_owned(),
    };
    let units = ("requests in the window", "requests");
    line_chart("errors", &title, units, VerticalAxis::Integers, series)
}

fn compare_charts(compare: &CompareResult) -> Vec<ChartSpec> {
    let bars = |name, title, units, of: fn(&DeploymentSummary) -> Option<RoundSpread>| {
        let value = |deployment: &DeploymentResult| of(deployment.summary.as_ref()?);
        deployment_bars(compare, (name, title), units, value)
    };
    let curves = |name, title, units, of: fn(&Point) -> f64| {
        deployment_curves(compare, (name, title), units, of)
    };
    let mut charts = vec![
        bars(
            "ranking",
            "Ranking",
            ("requests/s, mean over the points", "requests/s"),
            |summary| Some(summary.requests_per_second),
        ),
        curves(
            "throughput",
            "Throughput",
            ("requests/s", "requests/s"),
            Point::good_per_second,
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
            |summary| Some(summary.p99_us.scale(0.001)),
        ),
        curves(
            "latency",
            "p99 response time",
            ("p99 in ms", "ms"),
            |point| to_f64(point.slowest(|total| total.p99)) / 1000.0,
        ),
        bars(
            "memory",
            "Memory",
            ("MiB, the most seen", "MiB"),
            |summary| Some(RoundSpread::single(to_mebibytes(summary.memory_bytes?))),
        ),
    ];
    for (number, load) in (1..).zip(tables::load_names(compare)) {
        charts.extend(load_bars(compare, number, load));
    }
    charts
}

/// For several loads at once: the figures of each load, which the ranking sums.
fn load_bars(compare: &CompareResult, number: usize, load: &str) -> [ChartSpec; 2] {
    let bars = |name: &str, what: &str, units, of: fn(&LoadFigures) -> f64| {
        let name = format!("load-{number}-{name}");
        let title = format!("{load}: {what}");
        deployment_bars(compare, (&name, &title), units, |deployment| {
            let loads = deployment.figures().filter(|found| found.name == load);
            RoundSpread::from_values(loads.map(of))
        })
    };
    [
        bars(
            "throughput",
            "throughput",
            ("requests/s", "requests/s"),
            LoadFigures::good_per_second,
        ),
        bars("p99", "p99 response time", ("p99 in ms", "ms"), |found| {
            to_f64(found.total.p99) / 1000.0
        }),
    ]
}

/// One bar for each ranked deployment with a known value.
fn deployment_bars(
    compare: &CompareResult,
    (name, title): (&str, &str),
    units: Units,
    value: impl Fn(&DeploymentResult) -> Option<RoundSpread>,
) -> ChartSpec {
    let ranked = tables::ranked_deployments(compare).enumerate();
    let bar = |(color, deployment): (usize, &DeploymentResult)| {
        Some(Bar {
            name: deployment.name.clone(),
            value: value(deployment)?,
            color,
        })
    };
    let bars = ChartContent::Bars(ranked.filter_map(bar).collect());
    ChartSpec::new(name, title, units, bars)
}

/// One curve per ranked deployment through the medians of the rounds, with every round's points; no
/// curve for a single number of connections.
fn deployment_curves(
    compare: &CompareResult,
    (name, title): (&str, &str),
    units: Units,
    of: fn(&Point) -> f64,
) -> ChartSpec {
    let series = tables::ranked_deployments(compare).map(|deployment| {
        let points = deployment.rounds.iter().flatten();
        let points: Vec<CurvePoint> = points
            .map(|point| (connections_at(point), of(point)))
            .collect();
        Series {
            name: deployment.name.clone(),
            line: median_points(&points),
            points,
            style: LineStyle::Smooth,
        }
    });
    let mut series: Vec<Series> = series.collect();
    if series.iter().all(|series| series.line.len() < 2) {
        series.clear();
    }
    let vertical = match units.1 {
        "ms" => VerticalAxis::AutoLog,
        _ => VerticalAxis::Linear,
    };
    line_chart(name, title, units, vertical, series)
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
    let median = |(connections, values)| {
        let spread = RoundSpread::from_values(values)?;
        Some((f64::from_bits(connections), spread.median))
    };
    by_connections.into_iter().filter_map(median).collect()
}
