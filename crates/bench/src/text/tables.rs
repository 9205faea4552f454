//! The tables of sweeps and comparisons and their figures, for `text` and `html`.

use crate::report::{
    Compare, Deployment, Figures, Point, RoundSpread, ServerCost, Sweep, saturating_sum,
};
use crate::text::notes;
use crate::text::table::{ColumnKind, Table};
use crate::text::units::{
    format_figure, format_ms, group_thousands, sanitize, to_f64, to_mebibytes,
};

/// One row per point and load.
pub(crate) fn sweep_table(sweep: &Sweep) -> Table {
    points_table(&sweep.points)
}

/// One row per point and load, without unknown columns.
pub(crate) fn points_table(points: &[Point]) -> Table {
    let mut table = Table::new(&[
        ("connections", ColumnKind::Number),
        ("load", ColumnKind::Text),
        ("requests/s", ColumnKind::Number),
        ("mean ms", ColumnKind::Number),
        ("p50 ms", ColumnKind::Number),
        ("p90 ms", ColumnKind::Number),
        ("p99 ms", ColumnKind::Number),
        ("p99.9 ms", ColumnKind::Number),
        ("max ms", ColumnKind::Number),
        ("failed", ColumnKind::Number),
        ("4xx 5xx", ColumnKind::Number),
        ("CPU us/request", ColumnKind::Number),
        ("cores", ColumnKind::Number),
        ("MiB", ColumnKind::Number),
        ("", ColumnKind::Text),
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
    let marks: Vec<String> = marks.chain(notes::unclean_reasons(load)).collect();
    vec![
        group_thousands(load.connections.into()),
        sanitize(&load.name),
        format_figure(load.requests_per_second),
        format_ms(total.mean),
        format_ms(to_f64(total.p50)),
        format_ms(to_f64(total.p90)),
        format_ms(to_f64(total.p99)),
        format_ms(to_f64(total.p999)),
        format_ms(to_f64(total.max)),
        group_thousands(load.errors.total()),
        group_thousands(load.statuses.failed()),
        cost(&|cost| format_figure(cost.cpu_us_per_request)),
        cost(&|cost| format!("{:.2}", cost.busy_cores)),
        cost(&|cost| format_figure(to_mebibytes(cost.memory_bytes))),
        marks.join(", "),
    ]
}

/// The ranking, best first. A number in brackets refers to one of [`ranked_doubts`].
pub(crate) fn ranking_table(compare: &Compare) -> Table {
    let mut table = Table::new(&[
        ("#", ColumnKind::Number),
        ("deployment", ColumnKind::Text),
        ("requests/s", ColumnKind::Number),
        ("(min - max)", ColumnKind::Number),
        ("ratio", ColumnKind::Number),
        ("CPU us/request", ColumnKind::Number),
        ("CPU ratio", ColumnKind::Number),
        ("p99 ms", ColumnKind::Number),
        ("MiB", ColumnKind::Number),
        ("errors", ColumnKind::Number),
        ("", ColumnKind::Text),
    ]);
    let doubts = ranked_doubts(compare);
    for (index, deployment) in ranked_deployments(compare).enumerate() {
        let Some(summary) = &deployment.summary else {
            continue;
        };
        let median = |spread: Option<RoundSpread>| {
            spread.map_or_else(|| "-".into(), |s| format_figure(s.median))
        };
        let of_this = doubts
            .iter()
            .enumerate()
            .filter(|(_, doubt)| doubt.0 == deployment.name);
        let marks: Vec<String> = of_this.map(|(mark, _)| format!("[{}]", mark + 1)).collect();
        let per_second = summary.requests_per_second;
        table.rows.push(vec![
            (index + 1).to_string(),
            sanitize(&deployment.name),
            format_figure(per_second.median),
            format!(
                "({} - {})",
                format_figure(per_second.min),
                format_figure(per_second.max)
            ),
            summary
                .ratio
                .map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.median)),
            median(summary.cpu_us_per_request),
            summary
                .cpu_ratio
                .map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.median)),
            format_ms(summary.p99_us.median),
            summary
                .memory_bytes
                .map_or_else(|| "-".into(), |bytes| format_figure(to_mebibytes(bytes))),
            group_thousands(summary.errors),
            marks.join(""),
        ]);
    }
    table.without_empty_columns()
}

/// For deployments with several loads at once: the medians of each load, which the ranking sums.
/// Empty with only one load.
pub(crate) fn loads_table(compare: &Compare) -> Table {
    let mut table = Table::new(&[
        ("deployment", ColumnKind::Text),
        ("load", ColumnKind::Text),
        ("requests/s", ColumnKind::Number),
        ("MiB/s", ColumnKind::Number),
        ("p50 ms", ColumnKind::Number),
        ("p99 ms", ColumnKind::Number),
        ("max ms", ColumnKind::Number),
        ("errors", ColumnKind::Number),
        ("disk MiB/s", ColumnKind::Number),
    ]);
    for deployment in ranked_deployments(compare) {
        for name in load_names(compare) {
            let points = deployment.rounds.iter().flatten();
            let all: Vec<&Figures> = points
                .flat_map(|point| &point.loads)
                .filter(|load| load.name == name)
                .collect();
            let median = |of: &dyn Fn(&Figures) -> f64| {
                RoundSpread::from_values(all.iter().map(|load| of(load)))
                    .map(|spread| spread.median)
            };
            let text = |value: Option<f64>, write: fn(f64) -> String| {
                value.map_or_else(|| "-".to_owned(), write)
            };
            table.rows.push(vec![
                sanitize(&deployment.name),
                sanitize(name),
                text(median(&Figures::good_per_second), format_figure),
                text(
                    median(&|load| load.bytes_per_second / f64::from(1 << 20)),
                    format_figure,
                ),
                text(median(&|load| to_f64(load.total.p50)), format_ms),
                text(median(&|load| to_f64(load.total.p99)), format_ms),
                text(
                    all.iter()
                        .map(|load| to_f64(load.total.max))
                        .reduce(f64::max),
                    format_ms,
                ),
                group_thousands(saturating_sum(all.iter().map(|load| load.failed()))),
                disk_read(deployment, name).map_or_else(String::new, format_figure),
            ]);
        }
    }
    table.without_empty_columns()
}

/// The server's disk reads during that load, in MiB/s; the loads of a mix share them.
fn disk_read(deployment: &Deployment, load: &str) -> Option<f64> {
    let points = deployment.rounds.iter().flatten();
    let rates = points.filter_map(|point| {
        let load = point.loads.iter().find(|found| found.name == load)?;
        let bytes = point.server?.disk_read_bytes?;
        Some(to_f64(bytes) / load.seconds.max(1e-9) / f64::from(1 << 20))
    });
    RoundSpread::from_values(rates).map(|spread| spread.median)
}

/// The names of several loads, in order.
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
pub(crate) fn ranked_deployments(compare: &Compare) -> impl Iterator<Item = &Deployment> {
    let by_name = |name: &String| compare.deployments.iter().find(|found| found.name == *name);
    compare.ranking.iter().filter_map(by_name)
}

/// Why figures are uncertain: the deployment and its reasons, in the order of the ranking.
pub(crate) fn ranked_doubts(compare: &Compare) -> Vec<(&str, String)> {
    let mut doubts = Vec::new();
    for deployment in ranked_deployments(compare) {
        let all = deployment
            .summary
            .as_ref()
            .map_or(&[][..], |summary| &summary.doubts);
        let mut text = all
            .iter()
            .take(MAX_DOUBTS_SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join("; ");
        if all.len() > MAX_DOUBTS_SHOWN {
            text += &format!("; and {} more", all.len() - MAX_DOUBTS_SHOWN);
        }
        if !all.is_empty() {
            doubts.push((&*deployment.name, text));
        }
    }
    doubts
}

/// A sweep of many points may have a doubt for each.
const MAX_DOUBTS_SHOWN: usize = 3;

/// The goals and their results.
pub(crate) fn goals_table(compare: &Compare) -> Table {
    let mut table = Table::new(&[
        ("goal", ColumnKind::Text),
        ("", ColumnKind::Text),
        ("found", ColumnKind::Number),
        ("(min - max)", ColumnKind::Number),
    ]);
    for goal in &compare.goals {
        let verdict = if goal.met { "PASS" } else { "FAIL" };
        let (found, spread) = match goal.measured {
            Some(s) => (
                format_figure(s.median),
                format!("({} - {})", format_figure(s.min), format_figure(s.max)),
            ),
            None => ("not measured".to_owned(), String::new()),
        };
        table.rows.push(vec![
            sanitize(&goal.text),
            verdict.to_owned(),
            found,
            spread,
        ]);
    }
    table
}
