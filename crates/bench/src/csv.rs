//! A report as CSV (RFC 4180) for `--csv`: one row per point and load (per sample of held streams:
//! `csv/hold.rs`).
//!
//! The first row names the columns. Numbers are plain (a decimal point, no thousands separators),
//! times in milliseconds, unknown values empty. Pure.

mod hold;

use crate::report::{Deployment, Figures, Report, ReportResult, ServerCost};

/// Returns the rows, with a first line of column names. A deployment that failed before it was
/// measured has a row with its failure.
#[must_use]
pub fn report_csv(report: &Report) -> String {
    if let ReportResult::Hold(hold) = &report.result {
        return hold::hold_csv(hold, report.context.interrupted);
    }
    let mut text = encode_row(&COLUMNS.map(str::to_owned));
    let alone = [const { String::new() }; 2];
    let interrupted = report.context.interrupted.to_string();
    let mut add = |place: (&str, usize),
                   loads: &[Figures],
                   server: Option<&ServerCost>,
                   [failed, doubts]: &[String; 2]| {
        for load in loads {
            let mut cells = vec![place.0.to_owned(), place.1.to_string()];
            cells.extend(figure_cells(load));
            cells.extend(cost_cells(server));
            cells.extend([interrupted.clone(), failed.clone(), doubts.clone()]);
            text += &encode_row(&cells);
        }
    };
    match &report.result {
        ReportResult::Run(run) => {
            let load = std::slice::from_ref(&run.figures);
            add(("", 1), load, run.server.as_ref(), &alone);
        }
        ReportResult::Mix(mix) => add(("", 1), &mix.loads, mix.server.as_ref(), &alone),
        ReportResult::Sweep(sweep) => {
            for point in &sweep.points {
                add(("", 1), &point.loads, point.server.as_ref(), &alone);
            }
        }
        ReportResult::Compare(compare) => {
            for deployment in &compare.deployments {
                let said = failure_and_doubts(deployment);
                for (round, points) in deployment.rounds.iter().enumerate() {
                    for point in points {
                        let place = (&*deployment.name, round + 1);
                        add(place, &point.loads, point.server.as_ref(), &said);
                    }
                }
            }
            for deployment in &compare.deployments {
                if deployment.failure.is_some() && deployment.rounds.is_empty() {
                    text += &failed_row(deployment, &interrupted);
                }
            }
        }
        // It has other columns, see above.
        ReportResult::Hold(_) => {}
    }
    text
}

/// Why a deployment failed, without its log, and why its figures are uncertain.
fn failure_and_doubts(deployment: &Deployment) -> [String; 2] {
    let failed = deployment.failure.as_deref().unwrap_or_default();
    let doubts = deployment.summary.as_ref();
    [
        failed.lines().next().unwrap_or_default().to_owned(),
        doubts.map_or_else(String::new, |summary| summary.doubts.join("; ")),
    ]
}

fn failed_row(deployment: &Deployment, interrupted: &str) -> String {
    let [failed, doubts] = failure_and_doubts(deployment);
    let mut cells = vec![String::new(); COLUMNS.len() - 3];
    cells[0].clone_from(&deployment.name);
    cells.extend([interrupted.to_owned(), failed, doubts]);
    encode_row(&cells)
}

const COLUMNS: [&str; 44] = [
    "deployment",
    "round",
    "load",
    "connections",
    "rate",
    "seconds",
    "requests",
    "requests_per_second",
    "bytes_per_second",
    "status_2xx",
    "status_3xx",
    "status_4xx",
    "status_5xx",
    "status_other",
    "error_connect",
    "error_timeout",
    "error_reset",
    "error_closed",
    "error_malformed",
    "error_length",
    "unfinished",
    "oldest_unfinished_ms",
    "retried",
    "due",
    "late",
    "skipped",
    "mean_ms",
    "p50_ms",
    "p75_ms",
    "p90_ms",
    "p95_ms",
    "p99_ms",
    "p99_9_ms",
    "p99_99_ms",
    "max_ms",
    "generator_bottleneck",
    "server_cpu_us_per_request",
    "server_busy_cores",
    "server_memory_bytes",
    "server_processes",
    "other_processes_share",
    "interrupted",
    "failed",
    "doubts",
];

/// From `load` to `generator_bottleneck`.
fn figure_cells(load: &Figures) -> Vec<String> {
    let (statuses, errors, total) = (&load.statuses, &load.errors, &load.total);
    let mut cells = vec![
        load.name.clone(),
        load.connections.to_string(),
        load.rate.map_or_else(String::new, |rate| rate.to_string()),
        load.seconds.to_string(),
        load.requests.to_string(),
        format!("{:.3}", load.requests_per_second),
        format!("{:.0}", load.bytes_per_second),
    ];
    let counts = [
        statuses.success,
        statuses.redirection,
        statuses.client_error,
        statuses.server_error,
        statuses.other,
        errors.connect,
        errors.timeout,
        errors.reset,
        errors.closed,
        errors.malformed,
        errors.length,
    ];
    cells.extend(counts.map(|count| count.to_string()));
    cells.extend([
        load.unfinished.to_string(),
        format_ms(load.oldest_unfinished_us),
        load.retried.to_string(),
    ]);
    cells.extend(match load.schedule {
        Some(found) => [found.due, found.late, found.skipped].map(|count| count.to_string()),
        None => [const { String::new() }; 3],
    });
    cells.push(format!("{:.3}", total.mean / 1000.0));
    let longest = [
        total.p50,
        total.p75,
        total.p90,
        total.p95,
        total.p99,
        total.p999,
        total.p9999,
        total.max,
    ];
    cells.extend(longest.map(format_ms));
    cells.push(load.generator.bottleneck.clone().unwrap_or_default());
    cells
}

/// Whole microseconds as milliseconds, with all digits.
fn format_ms(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}

fn cost_cells(server: Option<&ServerCost>) -> [String; 5] {
    server.map_or([const { String::new() }; 5], |cost| {
        [
            format!("{:.3}", cost.cpu_us_per_request),
            format!("{:.4}", cost.busy_cores),
            cost.memory_bytes.to_string(),
            cost.processes.to_string(),
            cost.other_processes_share
                .map_or_else(String::new, |others| format!("{others:.4}")),
        ]
    })
}

fn encode_row(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| quote_cell(cell)).collect();
    cells.join(",") + "\r\n"
}

/// RFC 4180 §2: quotes a cell with a separator, a quote or a line break; doubles quotes.
fn quote_cell(cell: &str) -> String {
    match cell.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    #[test]
    fn every_row_has_every_column() {
        for (kind, report) in testing::reports() {
            let text = report_csv(&report);
            let lines: Vec<&str> = text.split_terminator("\r\n").collect();
            assert!(lines.len() > 1, "{kind}");
            let columns = lines[0].split(',').count();
            for line in lines.iter().filter(|line| !line.contains('"')) {
                assert_eq!(line.split(',').count(), columns, "{kind}: {line}");
            }
        }
    }

    #[test]
    fn a_comparison_has_a_row_a_deployment_round_and_point() {
        let text = report_csv(&testing::compare());
        assert_eq!(
            text.matches("\r\n").count(),
            1 + 3 * 2 * 3 + 1,
            "three were measured, one failed"
        );
        assert!(text.contains("\r\npenstock,2,,10,"));
        let doubt = "100 connections: other programs used the measured cores";
        assert_eq!(text.matches(&format!(",false,,{doubt}\r\n")).count(), 2 * 3);
        assert!(text.contains("\r\nthin,,,"));
        assert!(text.ends_with(",false,not ready within 5 s,\r\n"));
        // Its name has a comma and quotes.
        assert!(text.contains("\r\n\"nginx, \"\"<b>tuned</b>\"\"\",1,,1,"));
    }

    #[test]
    fn rows_say_what_is_doubtful_about_them() {
        let text = report_csv(&testing::run());
        assert!(text.contains(",7,81.500,9,20000,12,34,"), "{text}");
        assert!(text.contains(",its thread was busy 99 % of the time,"));
        assert!(text.ends_with(",false,,\r\n"));
        assert!(report_csv(&testing::sweep()).ends_with(",true,,\r\n"));
    }

    #[test]
    fn quotes_what_would_break_a_row() {
        for (cell, expected) in [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"so\"", "\"say \"\"so\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("", ""),
        ] {
            assert_eq!(quote_cell(cell), expected);
        }
    }
}
