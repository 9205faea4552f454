//! The lines of reports as text.

use super::*;
use crate::report::{ArrivalCounts, TlsFigures, test_reports};

fn check(text: &str, expected: &[&str]) {
    for line in expected {
        assert!(text.contains(line), "missing: {line}\n{text}");
    }
    assert!(text.ends_with('\n') && text.is_ascii());
    assert!(
        !text.lines().any(|line| line.ends_with(' ')),
        "blanks at the end\n{text}"
    );
}

#[test]
fn a_run_looks_as_users_of_apachebench_expect() {
    let text = report_text(&test_reports::run_report());
    check(
        &text,
        &[
            "Taken:                  2027-01-01 00:00:00 UTC, penstock 0.1.0\n",
            "Machine:                Some CPU, 2 cores, 8.0 GiB, Linux 6.18\n",
            "Target:                 http://127.0.0.1:8080/\n",
            "Concurrency Level:      50\n",
            "Arrival rate:           5000.00 [#/sec] (open loop)\n",
            "Time taken for tests:   4.000 seconds\n",
            "Complete requests:      16000\n",
            "Failed requests:        21\n   (connect: 1, time-out: 2, reset: 3, closed early: 4, ",
            "malformed: 5, length: 6)\n",
            "Non-2xx responses:      7\n   (3xx: 3, 5xx: 4)\n",
            "Total transferred:      12800000 bytes\n",
            "Body transferred:       9792000 bytes\n",
            "Requests per second:    4000.00 [#/sec] (mean)\n",
            "Time per request:       4.167 [ms] (mean)\n",
            "Time per request:       0.250 [ms] (mean, across all concurrent requests)\n",
            "Transfer rate:          3125.00 [Kbytes/sec] received\n",
            "Unfinished at the end:  7, the oldest for 81.500 ms\n",
            "Sent again:             9 (kept connections that the server closed)\n",
            "Schedule:               20000 due, 12 late, 34 skipped (no connection was free, or 100 ms late)\n",
            "Connection Times (ms)\n",
            "First byte:",
            "Total:          0.625    4.167    0.101    3.125   75.000\n",
            "     50%        3.125          0.300\n",
            "  99.99%       62.500          6.000\n",
            "    100%       75.000          7.200 (longest request)\n",
            "Server CPU:             48.0 us/request, 0.88 cores\n",
            "Server memory:          90.0 MiB in 3 processes\n",
            "Other programs:         1.2 % of the server's cores\n",
        ],
    );
    let last = text.lines().last().unwrap();
    let expected =
        "NOTE: the load generator itself was the bottleneck: its thread was busy 99 % of the time";
    assert_eq!(last, expected);
}

#[test]
fn sessions_and_handshakes_of_a_run_have_lines_of_their_own() {
    let mut report = test_reports::run_report();
    let ReportResult::Run(run) = &mut report.result else {
        panic!("not a run");
    };
    run.figures.errors.tls = 2;
    let handshakes = |count, us| DurationSummary {
        count,
        min: us,
        mean: 2.0 * us as f64,
        p50: us,
        max: 3 * us,
        ..DurationSummary::default()
    };
    let tls = TlsFigures {
        sessions: [("TLSv1.3 AES_128_GCM_SHA256".to_owned(), 50)].into(),
        full: handshakes(12, 1500),
        resumed: handshakes(38, 400),
        first_failure: Some("localhost: certificate expired".to_owned()),
    };
    run.figures.tls = Some(tls.clone());
    let text = report_text(&report);
    check(
        &text,
        &[
            "   (connect: 1, TLS: 2, time-out: 2, ",
            "TLS sessions:           TLSv1.3 AES_128_GCM_SHA256: 50\n\
             TLS handshakes:         50, of which 38 resumed a session\n   \
             localhost: certificate expired\nTotal transferred: ",
            "Handshake:      1.500    3.000    0.000    1.500    4.500\n\
             Resumed:        0.400    0.800    0.000    0.400    1.200\n",
        ],
    );
    let ReportResult::Run(run) = &mut report.result else {
        panic!("not a run");
    };
    run.figures.tls = Some(TlsFigures {
        sessions: std::collections::BTreeMap::new(),
        resumed: DurationSummary::default(),
        ..tls
    });
    let text = report_text(&report);
    check(
        &text,
        &["TLS sessions:           none\nTLS handshakes:         12, of which 0 "],
    );
    assert!(!text.contains("Resumed:"));
}

#[test]
fn a_calm_run_has_no_lines_about_trouble() {
    let mut report = test_reports::run_report();
    if let ReportResult::Run(run) = &mut report.result {
        run.figures = test_reports::figures(10, 1000.0, 5000);
        run.server = None;
    }
    let text = report_text(&report);
    let absent = [
        "NOTE",
        "INTERRUPTED",
        "Non-2xx",
        "(connect:",
        "Schedule",
        "Unfinished",
        "Sent again",
        "Server CPU",
        "Arrival",
    ];
    for word in absent {
        assert!(!text.contains(word), "{word}\n{text}");
    }
    check(
        &text,
        &[
            "Failed requests:        0\n",
            "    100%       30.000 (longest request)\n",
        ],
    );
}

#[test]
fn a_mix_shows_each_load() {
    let text = report_text(&test_reports::mix_report());
    check(&text, &["\nLoad: random files\n", "\nLoad: one file\n"]);
    assert_eq!(text.matches("Concurrency Level:      200\n").count(), 2);
}

#[test]
fn a_sweep_is_a_line_a_point() {
    let text = report_text(&test_reports::sweep_report());
    assert!(text.starts_with("INTERRUPTED: "));
    check(
        &text,
        &[
            "  connections  requests/s  mean ms  p50 ms  p90 ms  p99 ms  p99.9 ms",
            "4xx 5xx  CPU us/request",
        ],
    );
    let points = text
        .lines()
        .skip_while(|line| !line.contains("p99.9 ms"))
        .skip(1);
    assert_eq!(points.count(), 20);
}

#[test]
fn a_limited_point_of_a_sweep_is_marked() {
    let mut report = test_reports::sweep_report();
    if let ReportResult::Sweep(sweep) = &mut report.result {
        for index in [3, 4] {
            sweep.points[index].loads[0].generator.bottleneck = Some("too slow".to_owned());
        }
    }
    let text = report_text(&report);
    assert_eq!(text.matches("  generator-bound\n").count(), 2);
    let last = text.lines().last().unwrap();
    assert!(
        last.ends_with("too slow (31 connections); in 2 measurements"),
        "{last}"
    );
}

#[test]
fn a_point_that_is_not_clean_without_errors_says_why() {
    let mut report = test_reports::sweep_report();
    if let ReportResult::Sweep(sweep) = &mut report.result {
        let load = &mut sweep.points[3].loads[0];
        load.oldest_unfinished_us = 3_400_000;
        load.retried = 1000;
        let (due, late, skipped) = (100, 0, 20);
        load.schedule = Some(ArrivalCounts { due, late, skipped });
    }
    let expected = "  20 arrivals skipped, a request unanswered for 3,400 ms, 1,000 sent again\n";
    check(&report_text(&report), &[expected]);
}

#[test]
fn a_comparison_is_a_ranking_with_all_that_must_be_known() {
    let text = report_text(&test_reports::compare_report());
    check(
        &text,
        &[
            "Hello & <friends>\n",
            "Ranking:                2 rounds, ratios to penstock\n",
            "  #  deployment             requests/s      (min - max)  ratio  CPU us/request  CPU ratio  p99 ms   MiB  errors\n",
            "  1  penstock                    7,000  (6,650 - 7,280)   1.00            50.0       1.00   8.000  90.0       2\n",
            "       2  [1]\n  [1] puma: 100 connections: other programs used the measured cores\n",
            "\nFAILED thin: not ready within 5 s\n  | boom: </script> no such gem\n  | ?[31mbye\n",
            "\nGoals:\n  PASS        penstock: p99 <= 9 ms: 8.00 (7.60 - 8.32)\n",
            "  FAIL        penstock: requests/s >= 2 x thin: not measured\n",
            "\nVersions:\n  penstock: penstock 1.0\n",
        ],
    );
}

#[test]
fn several_loads_of_a_comparison_are_shown_singly() {
    let mut report = test_reports::compare_report();
    if let ReportResult::Compare(compare) = &mut report.result {
        for point in compare.deployments[0].rounds.iter_mut().flatten() {
            point.loads[0].name = "random".to_owned();
            let mut second = point.loads[0].clone();
            second.name = "hot".to_owned();
            point.loads.push(second);
        }
        compare.deployments.truncate(1);
    }
    check(
        &report_text(&report),
        &[
            "\nEach load (medians):\n  deployment  load    requests/s",
            "\n  penstock    hot  ",
        ],
    );
}

#[test]
fn no_figures_are_no_mistake() {
    let mut report = test_reports::run_report();
    if let ReportResult::Run(run) = &mut report.result {
        run.figures = LoadFigures::default();
        run.targets = vec!["/".to_owned(); 9];
        run.figures.bytes = u64::MAX;
        run.figures.errors.connect = u64::MAX;
        run.figures.errors.length = u64::MAX;
        run.figures.statuses.other = u64::MAX;
        run.figures.statuses.success = u64::MAX;
    }
    check(
        &report_text(&report),
        &["Complete requests:      0\n", "and 4 more\n"],
    );
}

#[test]
fn held_streams_are_counted_by_what_became_of_them() {
    let text = report_text(&test_reports::hold_report());
    check(
        &text,
        &[
            "Note:                   an agent was busy 97 % of the time\n",
            "Streams:                1,000 at 100.0/s, from 2 processes and 2 source addresses\n",
            "Opened:                 997 in 10.0 s, 99.7/s\n",
            "Held:                   994 at the end of 30.0 s, at most 997\n",
            "Lost:                   6\n   (refused: 1, status: 2, silent: 3)\n",
            "   status 503: 2 answers\n",
            "   refused: Connection refused\n",
            "Heard:                  33,000 times; 29,820 events, 1,994 comments\n",
            "Required of each:       something every 15 s, and 5 s of grace\n",
            "Published:              30 messages at 1.00/s: 0 refused, 0 uncertain, 0 skipped, 1 late\n",
            "Received:               29,820, 4 missed, 5 repeated or out of order\n",
            "Server CPU:             2.50 us for each receipt\n",
            "Probed:                 4,000 answers at 100.0/s: 0 failed, 0 skipped\n",
            "Server memory:          20.6 MiB (before: 20.0 MiB), 590.0 bytes a stream\n",
            "Kernel memory:          6.7 MiB, 7,000 bytes a stream, of all on this machine; median 6,800\n",
            "CPU time:               server 1.5 s, agents 0.7 s\n",
            "\nTimes (ms)\n                     min       mean        50%        90%        99%      99.9%",
            "\nReceipt:           0.450      3.000      2.250      4.500      9.000     36.000",
            "\nProbe, held: ",
        ],
    );
    let mut report = test_reports::hold_report();
    if let ReportResult::Hold(hold) = &mut report.result {
        **hold = HoldResult::default();
    }
    let text = report_text(&report);
    check(
        &text,
        &[
            "Streams:                0 at",
            "Lost:                   0\n",
        ],
    );
    for absent in ["Published", "Probed", "Server", "Times", "Note"] {
        assert!(!text.contains(absent), "{absent}\n{text}");
    }
}
