//! The tables of sweeps and comparisons and their figures, for `text` and `html`.

use crate::report::{
    CompareResult, DeploymentResult, LoadFigures, Point, RoundSpread, ServerCost, saturating_sum,
};
use crate::text::notes;
use crate::text::table::Table;
use crate::text::units::{format_figure, format_ms, group_thousands, to_f64, to_mebibytes};

/// One row per point and load, without unknown columns.
pub(crate) fn points_table(points: &[Point]) -> Table {
    let loads = points.iter().flat_map(|point| {
        let loads = point.loads.iter();
        loads.map(|load| (load, point.server.as_ref()))
    });
    type Row<'a> = (&'a LoadFigures, Option<&'a ServerCost>);
    let ms = |of: fn(&LoadFigures) -> u64| move |row: &Row<'_>| format_ms(to_f64(of(row.0)));
    let cost =
        |of: fn(&ServerCost) -> String| move |row: &Row<'_>| row.1.map(of).unwrap_or_default();
    Table::of(loads)
        .number_column("connections", |row| {
            group_thousands(row.0.connections.into())
        })
        .text_column("load", |row| row.0.name.clone())
        .number_column("requests/s", |row| format_figure(row.0.requests_per_second))
        .number_column("mean ms", |row| format_ms(row.0.total.mean))
        .number_column("p50 ms", ms(|load| load.total.p50))
        .number_column("p90 ms", ms(|load| load.total.p90))
        .number_column("p99 ms", ms(|load| load.total.p99))
        .number_column("p99.9 ms", ms(|load| load.total.p999))
        .number_column("max ms", ms(|load| load.total.max))
        .number_column("failed", |row| group_thousands(row.0.errors.total()))
        .number_column("4xx 5xx", |row| group_thousands(row.0.statuses.failed()))
        .number_column(
            "CPU us/request",
            cost(|cost| format_figure(cost.cpu_us_per_request)),
        )
        .number_column("cores", cost(|cost| format!("{:.2}", cost.busy_cores)))
        .number_column(
            "MiB",
            cost(|cost| format_figure(to_mebibytes(cost.memory_bytes))),
        )
        .text_column("", |row| doubt_marks(row.0))
        .build_nonempty_columns()
}

/// Why the figures of a load are uncertain.
fn doubt_marks(load: &LoadFigures) -> String {
    let bound = load.generator.bottleneck.as_ref();
    let bound = bound.map(|_| "generator-bound".to_owned()).into_iter();
    let marks: Vec<String> = bound.chain(notes::unclean_reasons(load)).collect();
    marks.join(", ")
}

/// The ranking, best first. A number in brackets refers to one of [`ranked_doubts`].
pub(crate) fn ranking_table(compare: &CompareResult) -> Table {
    let doubts = ranked_doubts(compare);
    let marks = |name: &str| -> String {
        let own = (1..).zip(&doubts).filter(|(_, doubt)| doubt.0 == name);
        own.map(|(mark, _)| format!("[{mark}]")).collect()
    };
    let median = |spread: Option<RoundSpread>, format: fn(f64) -> String| {
        spread.map_or_else(|| "-".to_owned(), |spread| format(spread.median))
    };
    let ratio = |ratio| format!("{ratio:.2}");
    let ranked = (1..).zip(ranked_deployments(compare));
    Table::of(ranked.filter_map(|(rank, one)| Some((rank, &one.name, one.summary.as_ref()?))))
        .number_column("#", |row| row.0)
        .text_column("deployment", |row| row.1.clone())
        .number_column("requests/s", |row| {
            format_figure(row.2.requests_per_second.median)
        })
        .number_column("(min - max)", |row| range_text(row.2.requests_per_second))
        .number_column("ratio", |row| median(row.2.ratio, ratio))
        .number_column("CPU us/request", |row| {
            median(row.2.cpu_us_per_request, format_figure)
        })
        .number_column("CPU ratio", |row| median(row.2.cpu_ratio, ratio))
        .number_column("p99 ms", |row| format_ms(row.2.p99_us.median))
        .number_column("MiB", |row| {
            let bytes = row.2.memory_bytes.map(to_mebibytes);
            bytes.map_or_else(|| "-".to_owned(), format_figure)
        })
        .number_column("errors", |row| group_thousands(row.2.errors))
        .text_column("", |row| marks(row.1))
        .build_nonempty_columns()
}

fn range_text(spread: RoundSpread) -> String {
    format!(
        "({} - {})",
        format_figure(spread.min),
        format_figure(spread.max)
    )
}

/// For deployments with several loads at once: the medians of each load, which the ranking sums.
/// Empty with only one load.
pub(crate) fn loads_table(compare: &CompareResult) -> Table {
    let names = load_names(compare);
    let rows = ranked_deployments(compare).flat_map(|deployment| {
        names.iter().map(move |&name| {
            let loads = deployment.figures().filter(|load| load.name == name);
            (deployment, name, loads.collect::<Vec<&LoadFigures>>())
        })
    });
    type Row<'a> = (&'a DeploymentResult, &'a str, Vec<&'a LoadFigures>);
    let median = |of: fn(&LoadFigures) -> f64, format: fn(f64) -> String| {
        move |row: &Row<'_>| {
            let spread = RoundSpread::from_values(row.2.iter().map(|load| of(load)));
            spread.map_or_else(|| "-".to_owned(), |spread| format(spread.median))
        }
    };
    Table::of(rows)
        .text_column("deployment", |row| row.0.name.clone())
        .text_column("load", |row| row.1.to_owned())
        .number_column(
            "requests/s",
            median(LoadFigures::good_per_second, format_figure),
        )
        .number_column(
            "MiB/s",
            median(
                |load| load.bytes_per_second / f64::from(1 << 20),
                format_figure,
            ),
        )
        .number_column("p50 ms", median(|load| to_f64(load.total.p50), format_ms))
        .number_column("p99 ms", median(|load| to_f64(load.total.p99), format_ms))
        .number_column("max ms", |row| {
            let longest = row.2.iter().map(|load| load.total.max).max();
            longest.map_or_else(|| "-".to_owned(), |us| format_ms(to_f64(us)))
        })
        .number_column("errors", |row| {
            group_thousands(saturating_sum(row.2.iter().map(|load| load.failed())))
        })
        .number_column("disk MiB/s", |row| {
            disk_read(row.0, row.1).map_or_else(String::new, format_figure)
        })
        .build_nonempty_columns()
}

/// The server's disk reads during that load, in MiB/s; the loads of a mix share them.
fn disk_read(deployment: &DeploymentResult, load: &str) -> Option<f64> {
    let points = deployment.rounds.iter().flatten();
    let rates = points.filter_map(|point| {
        let load = point.loads.iter().find(|found| found.name == load)?;
        let bytes = point.server?.disk_read_bytes?;
        Some(to_mebibytes(bytes) / load.seconds.max(1e-9))
    });
    RoundSpread::from_values(rates).map(|spread| spread.median)
}

/// The names of several loads, in order.
pub(crate) fn load_names(compare: &CompareResult) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for load in compare
        .deployments
        .iter()
        .flat_map(DeploymentResult::figures)
    {
        if !names.contains(&&*load.name) {
            names.push(&load.name);
        }
    }
    if names.len() < 2 { Vec::new() } else { names }
}

/// The ranked deployments, best first.
pub(crate) fn ranked_deployments(
    compare: &CompareResult,
) -> impl Iterator<Item = &DeploymentResult> {
    let by_name = |name: &String| compare.deployments.iter().find(|found| found.name == *name);
    compare.ranking.iter().filter_map(by_name)
}

/// Why figures are uncertain: the deployment and its reasons, in the order of the ranking.
pub(crate) fn ranked_doubts(compare: &CompareResult) -> Vec<(&str, String)> {
    let mut doubts = Vec::new();
    for deployment in ranked_deployments(compare) {
        let all = deployment.summary.as_ref();
        let all = all.map_or(&[][..], |summary| &summary.doubts);
        let (shown, more) = all.split_at(all.len().min(MAX_DOUBTS_SHOWN));
        let mut text = shown.join("; ");
        if !more.is_empty() {
            text += &format!("; and {} more", more.len());
        }
        if !all.is_empty() {
            doubts.push((&*deployment.name, text));
        }
    }
    doubts
}

/// A sweep of many points may have a doubt for each.
const MAX_DOUBTS_SHOWN: usize = 3;
