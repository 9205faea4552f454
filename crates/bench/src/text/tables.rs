//! The tables of sweeps and comparisons: which figures stand in them. Shown by `text` and `html`.

use crate::report::{
    Compare, Deployment, Figures, Point, ServerCost, Spread, Sweep, saturating_sum,
};
use crate::text::notes;
use crate::text::table::{Kind, Table};
use crate::text::units::{figure, grouped, mebibytes, ms, number, plain};

/// A line a point and load.
pub(crate) fn sweep(sweep: &Sweep) -> Table {
    points(&sweep.points)
}

/// A line a point and load; what is nowhere known is left out.
pub(crate) fn points(points: &[Point]) -> Table {
    let mut table = Table::new(&[
        ("connections", Kind::Number),
        ("load", Kind::Words),
        ("requests/s", Kind::Number),
        ("mean ms", Kind::Number),
        ("p50 ms", Kind::Number),
        ("p90 ms", Kind::Number),
        ("p99 ms", Kind::Number),
        ("p99.9 ms", Kind::Number),
        ("max ms", Kind::Number),
        ("failed", Kind::Number),
        ("4xx 5xx", Kind::Number),
        ("CPU us/request", Kind::Number),
        ("cores", Kind::Number),
        ("MiB", Kind::Number),
        ("", Kind::Words),
    ]);
    for point in points {
        for load in &point.loads {
            table.rows.push(point_row(load, point.server.as_ref()));
        }
    }
    table.without_empty_columns()
}

fn point_row(load: &Figures, server: Option<&ServerCost>) -> Vec<String> {
    let cost = |of: &dyn Fn(&ServerCost) -> String| server.map_or_else(String::new, of);
    let total = &load.total;
    let bound = load.generator.bottleneck.as_ref();
    let marks = bound.map(|_| "generator-bound".to_owned()).into_iter();
    let marks: Vec<String> = marks.chain(notes::unclean(load)).collect();
    vec![
        grouped(load.connections.into()),
        plain(&load.name),
        figure(load.requests_per_second),
        ms(total.mean),
        ms(number(total.p50)),
        ms(number(total.p90)),
        ms(number(total.p99)),
        ms(number(total.p999)),
        ms(number(total.max)),
        grouped(load.errors.total()),
        grouped(load.statuses.failed()),
        cost(&|cost| figure(cost.cpu_us_per_request)),
        cost(&|cost| format!("{:.2}", cost.busy)),
        cost(&|cost| figure(mebibytes(cost.memory_bytes))),
        marks.join(", "),
    ]
}

/// The ranking, best first. A number in brackets refers to a doubt of [`doubts`].
pub(crate) fn ranking(compare: &Compare) -> Table {
    let mut table = Table::new(&[
        ("#", Kind::Number),
        ("deployment", Kind::Words),
        ("requests/s", Kind::Number),
        ("(min - max)", Kind::Number),
        ("ratio", Kind::Number),
        ("CPU us/request", Kind::Number),
        ("CPU ratio", Kind::Number),
        ("p99 ms", Kind::Number),
        ("MiB", Kind::Number),
        ("errors", Kind::Number),
        ("", Kind::Words),
    ]);
    let doubts = doubts(compare);
    for (index, deployment) in ranked(compare).enumerate() {
        let Some(summary) = &deployment.summary else {
            continue;
        };
        let median =
            |spread: Option<Spread>| spread.map_or_else(|| "-".into(), |s| figure(s.median));
        let of_this = doubts
            .iter()
            .enumerate()
            .filter(|(_, doubt)| doubt.0 == deployment.name);
        let marks: Vec<String> = of_this.map(|(mark, _)| format!("[{}]", mark + 1)).collect();
        let per_second = summary.requests_per_second;
        table.rows.push(vec![
            (index + 1).to_string(),
            plain(&deployment.name),
            figure(per_second.median),
            format!("({} - {})", figure(per_second.min), figure(per_second.max)),
            summary
                .ratio
                .map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.median)),
            median(summary.cpu_us_per_request),
            summary
                .cpu_ratio
                .map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.median)),
            ms(summary.p99_us.median),
            summary
                .memory_bytes
                .map_or_else(|| "-".into(), |bytes| figure(mebibytes(bytes))),
            grouped(summary.errors),
            marks.join(""),
        ]);
    }
    table.without_empty_columns()
}

/// For deployments that several loads were put on at once: the medians of each load, which the
/// ranking adds up. Without rows when there is only one load.
pub(crate) fn loads(compare: &Compare) -> Table {
    let mut table = Table::new(&[
        ("deployment", Kind::Words),
        ("load", Kind::Words),
        ("requests/s", Kind::Number),
        ("MiB/s", Kind::Number),
        ("p50 ms", Kind::Number),
        ("p99 ms", Kind::Number),
        ("max ms", Kind::Number),
        ("errors", Kind::Number),
        ("disk MiB/s", Kind::Number),
    ]);
    for deployment in ranked(compare) {
        for name in load_names(compare) {
            let points = deployment.rounds.iter().flatten();
            let all: Vec<&Figures> = points
                .flat_map(|point| &point.loads)
                .filter(|load| load.name == name)
                .collect();
            let median = |of: &dyn Fn(&Figures) -> f64| {
                Spread::of(all.iter().map(|load| of(load))).map(|spread| spread.median)
            };
            let text = |value: Option<f64>, write: fn(f64) -> String| {
                value.map_or_else(|| "-".to_owned(), write)
            };
            table.rows.push(vec![
                plain(&deployment.name),
                plain(name),
                text(median(&Figures::good_per_second), figure),
                text(
                    median(&|load| load.bytes_per_second / f64::from(1 << 20)),
                    figure,
                ),
                text(median(&|load| number(load.total.p50)), ms),
                text(median(&|load| number(load.total.p99)), ms),
                text(
                    all.iter()
                        .map(|load| number(load.total.max))
                        .reduce(f64::max),
                    ms,
                ),
                grouped(saturating_sum(all.iter().map(|load| load.failed()))),
                disk_read(deployment, name).map_or_else(String::new, figure),
            ]);
        }
    }
    table.without_empty_columns()
}

/// What the server read from disks while that load was on, in MiB/s; the loads of a mix share it.
fn disk_read(deployment: &Deployment, load: &str) -> Option<f64> {
    let points = deployment.rounds.iter().flatten();
    let rates = points.filter_map(|point| {
        let load = point.loads.iter().find(|found| found.name == load)?;
        let bytes = point.server?.disk_read_bytes?;
        Some(number(bytes) / load.seconds.max(1e-9) / f64::from(1 << 20))
    });
    Spread::of(rates).map(|spread| spread.median)
}

/// The loads' names when there are several, in their order.
pub(crate) fn load_names(compare: &Compare) -> Vec<&str> {
    let rounds = compare
        .deployments
        .iter()
        .flat_map(|deployment| &deployment.rounds);
    let mut names: Vec<&str> = Vec::new();
    for load in rounds.flatten().flat_map(|point| &point.loads) {
        if !names.contains(&&*load.name) {
            names.push(&load.name);
        }
    }
    if names.len() < 2 { Vec::new() } else { names }
}

/// The ranked deployments, best first.
pub(crate) fn ranked(compare: &Compare) -> impl Iterator<Item = &Deployment> {
    let by_name = |name: &String| compare.deployments.iter().find(|found| found.name == *name);
    compare.ranking.iter().filter_map(by_name)
}

/// Why figures are in doubt: the deployment and its reasons, in the order of the ranking.
pub(crate) fn doubts(compare: &Compare) -> Vec<(&str, String)> {
    let mut doubts = Vec::new();
    for deployment in ranked(compare) {
        let all = deployment
            .summary
            .as_ref()
            .map_or(&[][..], |summary| &summary.doubts);
        let mut text = all
            .iter()
            .take(DOUBTS_SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join("; ");
        if all.len() > DOUBTS_SHOWN {
            text += &format!("; and {} more", all.len() - DOUBTS_SHOWN);
        }
        if !all.is_empty() {
            doubts.push((&*deployment.name, text));
        }
    }
    doubts
}

/// A sweep of many points may have a doubt for each.
const DOUBTS_SHOWN: usize = 3;

/// The goals and what became of them.
pub(crate) fn goals(compare: &Compare) -> Table {
    let mut table = Table::new(&[
        ("goal", Kind::Words),
        ("", Kind::Words),
        ("found", Kind::Number),
        ("(min - max)", Kind::Number),
    ]);
    for goal in &compare.goals {
        let verdict = if goal.met { "PASS" } else { "FALL SHORT" };
        let (found, spread) = match goal.found {
            Some(s) => (
                figure(s.median),
                format!("({} - {})", figure(s.min), figure(s.max)),
            ),
            None => ("not measured".to_owned(), String::new()),
        };
        table
            .rows
            .push(vec![plain(&goal.text), verdict.to_owned(), found, spread]);
    }
    table
}
