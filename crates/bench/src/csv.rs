//! A report as CSV (RFC 4180) for `--csv`: one row per point and load, or per sample of held
//! streams.
//!
//! The first row names the columns. Numbers are plain (a decimal point, no thousands separators),
//! times in milliseconds, unknown values empty. Pure.

use crate::report::{
    ArrivalCounts, DeploymentResult, HoldResult, LoadFigures, Report, ReportResult, ServerCost,
    TlsFigures,
};
use crate::text::table::Table;
use crate::text::units::{format_ms, to_f64};

/// Returns the rows, with a first line of column names. A deployment that failed before it was
/// measured has a row with its failure.
pub(crate) fn report_csv(report: &Report) -> String {
    let interrupted = report.context.interrupted;
    let table = match &report.result {
        ReportResult::Hold(hold) => samples_table(hold, interrupted),
        result => loads_table(result, interrupted),
    };
    let titles = table.columns.into_iter().map(|column| column.title);
    let mut text = Vec::new();
    let mut writer = csv::WriterBuilder::new()
        .terminator(csv::Terminator::CRLF)
        .from_writer(&mut text);
    for row in std::iter::once(titles.collect()).chain(table.rows) {
        // Memory takes all rows, and they have the same length.
        let _ = writer.write_record(row);
    }
    drop(writer);
    String::from_utf8(text).unwrap_or_default()
}

/// A load at a point, or a deployment that failed before it was measured.
#[derive(Default)]
struct Row<'a> {
    deployment: Option<&'a DeploymentResult>,
    round: Option<usize>,
    load: Option<&'a LoadFigures>,
    server: Option<&'a ServerCost>,
}

fn loads_table(result: &ReportResult, interrupted: bool) -> Table {
    let mut rows = Vec::new();
    for window in result.windows() {
        rows.extend(window.loads.iter().map(|load| Row {
            deployment: window.deployment,
            round: Some(window.round),
            load: Some(load),
            server: window.server,
        }));
    }
    if let ReportResult::Compare(compare) = result {
        let failed = compare.deployments.iter();
        let failed = failed.filter(|one| one.failure.is_some() && one.rounds.is_empty());
        rows.extend(failed.map(|one| Row {
            deployment: Some(one),
            ..Row::default()
        }));
    }
    Table::of(rows)
        .text_column("deployment", |row| {
            row.deployment.map_or("", |one| &one.name)
        })
        .number_column("round", |row| optional(row.round))
        .text_column("load", load(|load| load.name.clone()))
        .number_column("connections", load(|load| load.connections))
        .number_column("rate", load(|load| optional(load.rate)))
        .number_column("seconds", load(|load| load.seconds))
        .number_column("requests", load(|load| load.requests))
        .number_column(
            "requests_per_second",
            fixed(3, |load| load.requests_per_second),
        )
        .number_column("bytes_per_second", fixed(0, |load| load.bytes_per_second))
        .number_column("status_2xx", load(|load| load.statuses.success))
        .number_column("status_3xx", load(|load| load.statuses.redirection))
        .number_column("status_4xx", load(|load| load.statuses.client_error))
        .number_column("status_5xx", load(|load| load.statuses.server_error))
        .number_column("status_other", load(|load| load.statuses.other))
        .number_column("error_connect", load(|load| load.errors.connect))
        .number_column("error_tls", load(|load| load.errors.tls))
        .number_column("error_timeout", load(|load| load.errors.timeout))
        .number_column("error_reset", load(|load| load.errors.reset))
        .number_column("error_closed", load(|load| load.errors.closed))
        .number_column("error_malformed", load(|load| load.errors.malformed))
        .number_column("error_length", load(|load| load.errors.length))
        .number_column("unfinished", load(|load| load.unfinished))
        .number_column("oldest_unfinished_ms", ms(|load| load.oldest_unfinished_us))
        .number_column("retried", load(|load| load.retried))
        .number_column("due", schedule(|arrivals| arrivals.due))
        .number_column("late", schedule(|arrivals| arrivals.late))
        .number_column("skipped", schedule(|arrivals| arrivals.skipped))
        .number_column("mean_ms", load(|load| format_ms(load.total.mean)))
        .number_column("p50_ms", ms(|load| load.total.p50))
        .number_column("p75_ms", ms(|load| load.total.p75))
        .number_column("p90_ms", ms(|load| load.total.p90))
        .number_column("p95_ms", ms(|load| load.total.p95))
        .number_column("p99_ms", ms(|load| load.total.p99))
        .number_column("p99_9_ms", ms(|load| load.total.p999))
        .number_column("p99_99_ms", ms(|load| load.total.p9999))
        .number_column("max_ms", ms(|load| load.total.max))
        .number_column("tls_full_handshakes", tls(|tls| tls.full.count.to_string()))
        .number_column(
            "tls_full_p50_ms",
            tls(|tls| format_ms(to_f64(tls.full.p50))),
        )
        .number_column(
            "tls_full_p99_ms",
            tls(|tls| format_ms(to_f64(tls.full.p99))),
        )
        .number_column(
            "tls_resumed_handshakes",
            tls(|tls| tls.resumed.count.to_string()),
        )
        .number_column(
            "tls_resumed_p50_ms",
            tls(|tls| format_ms(to_f64(tls.resumed.p50))),
        )
        .number_column(
            "tls_resumed_p99_ms",
            tls(|tls| format_ms(to_f64(tls.resumed.p99))),
        )
        .text_column("generator_bottleneck", |row| {
            optional(row.load.and_then(|load| load.generator.bottleneck.as_ref()))
        })
        .number_column("server_cpu_us_per_request", |row| {
            optional(
                row.server
                    .map(|cost| format!("{:.3}", cost.cpu_us_per_request)),
            )
        })
        .number_column("server_busy_cores", |row| {
            optional(row.server.map(|cost| format!("{:.4}", cost.busy_cores)))
        })
        .number_column("server_memory_bytes", cost(|it| it.memory_bytes))
        .number_column("server_processes", cost(|it| it.processes))
        .number_column("other_processes_share", |row| {
            let share = row.server.and_then(|cost| cost.other_processes_share);
            optional(share.map(|share| format!("{share:.4}")))
        })
        .text_column("interrupted", |_| interrupted)
        .text_column("failed", |row| {
            // Without the log.
            let failure = row.deployment.and_then(|one| one.failure.as_ref());
            optional(failure.and_then(|text| text.lines().next()))
        })
        .text_column("doubts", |row| {
            let summary = row.deployment.and_then(|one| one.summary.as_ref());
            optional(summary.map(|summary| summary.doubts.join("; ")))
        })
        .build_all_columns()
}

fn load<D: ToString>(of: fn(&LoadFigures) -> D) -> impl Fn(&Row<'_>) -> String {
    move |row| optional(row.load.map(of))
}

fn ms(of: fn(&LoadFigures) -> u64) -> impl Fn(&Row<'_>) -> String {
    move |row| optional(row.load.map(|load| format_ms(to_f64(of(load)))))
}

fn fixed(digits: usize, of: fn(&LoadFigures) -> f64) -> impl Fn(&Row<'_>) -> String {
    move |row| optional(row.load.map(|load| format!("{:.digits$}", of(load))))
}

fn schedule(of: fn(ArrivalCounts) -> u64) -> impl Fn(&Row<'_>) -> String {
    move |row| optional(row.load.and_then(|load| load.schedule).map(of))
}

fn tls(of: fn(&TlsFigures) -> String) -> impl Fn(&Row<'_>) -> String {
    move |row| optional(row.load.and_then(|load| load.tls.as_ref()).map(of))
}

fn cost<D: ToString>(of: fn(&ServerCost) -> D) -> impl Fn(&Row<'_>) -> String {
    move |row| optional(row.server.map(of))
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn samples_table(hold: &HoldResult, interrupted: bool) -> Table {
    let ms = |us: Option<u64>| optional(us.map(|us| format_ms(to_f64(us))));
    Table::of(&hold.samples)
        .number_column("seconds", |sample| format!("{:.3}", sample.at))
        .text_column("opening", |sample| sample.is_opening)
        .number_column("streams", |sample| sample.open)
        .number_column("lost", |sample| sample.lost)
        .number_column("receipts_per_second", |sample| {
            format!("{:.1}", sample.receipts_per_second)
        })
        .number_column("server_memory_bytes", |sample| {
            optional(sample.server_bytes)
        })
        .number_column("kernel_memory_bytes", |sample| {
            optional(sample.kernel_bytes)
        })
        .number_column("agents_memory_bytes", |sample| sample.tool_bytes)
        .number_column("load_average", |sample| {
            format!("{:.2}", sample.load_average)
        })
        .number_column("probe_mean_ms", |sample| {
            optional(sample.probe_mean.map(format_ms))
        })
        .number_column("probe_p99_ms", |sample| ms(sample.probe_p99))
        .number_column("probe_errors", |sample| sample.probe_errors)
        .number_column("receipt_p50_ms", |sample| ms(sample.latency_p50))
        .number_column("receipt_p99_ms", |sample| ms(sample.latency_p99))
        .text_column("interrupted", |_| interrupted)
        .build_all_columns()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::test_reports;

    #[test]
    fn every_row_has_every_column() {
        for (kind, report) in test_reports::all_reports() {
            let text = report_csv(&report);
            let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
            let columns = reader.headers().unwrap().len();
            let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
            assert!(
                !rows.is_empty() && rows.iter().all(|row| row.len() == columns),
                "{kind}"
            );
        }
    }

    #[test]
    fn a_comparison_has_a_row_a_deployment_round_and_point() {
        let text = report_csv(&test_reports::compare_report());
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
        let text = report_csv(&test_reports::run_report());
        assert!(text.contains(",7,81.500,9,20000,12,34,"), "{text}");
        assert!(text.contains(",its thread was busy 99 % of the time,"));
        assert!(text.ends_with(",false,,\r\n"));
        assert!(report_csv(&test_reports::sweep_report()).ends_with(",true,,\r\n"));
    }

    #[test]
    fn held_streams_have_a_row_a_sample() {
        let text = report_csv(&test_reports::hold_report());
        assert_eq!(text.matches("\r\n").count(), 1 + 41);
        assert!(text.starts_with("seconds,opening,streams,lost,"));
        assert!(text.contains("\r\n5.000,true,500,0,33.3,"), "{text}");
        assert!(text.contains(",1.900,7.000,0,,,false\r\n"), "{text}");
        assert!(text.ends_with(",1.500,9.400,false\r\n"), "{text}");
    }
}
