//! Which charts a report has, and that they contain every value.

use super::*;
use crate::report::{ReportResult, test_reports};

fn chart(report: &Report, name: &str) -> Chart {
    let found = charts(report, &[])
        .into_iter()
        .find(|chart| chart.name == name);
    found.unwrap_or_else(|| panic!("no chart {name}"))
}

#[test]
fn every_value_lies_in_the_plotting_area() {
    for (kind, report) in test_reports::all_reports() {
        for chart in charts(&report, &[]) {
            let [left, top, right, bottom] = chart.plot_area;
            assert!(!chart.points.is_empty(), "{kind} {}", chart.name);
            for spot in &chart.points {
                let is_inside =
                    (left..=right).contains(&spot.x) && (top..=bottom).contains(&spot.y);
                assert!(
                    is_inside,
                    "{kind} {}: {spot:?} outside of {:?}",
                    chart.name, chart.plot_area
                );
            }
        }
    }
}

#[test]
fn a_sweep_shows_raw_points_and_the_curve() {
    let chart = chart(&test_reports::sweep_report(), "throughput");
    assert_eq!(
        chart.svg.matches("<circle").count(),
        20 + 1,
        "the points and the legend's"
    );
    for word in [
        "B-spline",
        "measured",
        "requests/s",
        "connections",
        ">\n2,000\n<",
    ] {
        assert!(chart.svg.contains(word), "{word}");
    }
    assert_eq!(chart.points[0].position, "1 connection");
    assert_eq!(chart.table.rows.len(), 20);
}

#[test]
fn errors_and_costs_are_drawn_only_when_there_are_any() {
    let mut report = test_reports::sweep_report();
    if let ReportResult::Sweep(sweep) = &mut report.result {
        for point in &mut sweep.points {
            point.server = None;
            point.loads[0].errors.timeout = 0;
        }
    }
    let names: Vec<String> = charts(&report, &[])
        .into_iter()
        .map(|chart| chart.name)
        .collect();
    assert_eq!(names, ["throughput", "latency"]);
}

#[test]
fn a_comparison_at_one_number_of_connections_has_bars_only() {
    let mut report = test_reports::compare_report();
    if let ReportResult::Compare(compare) = &mut report.result {
        for round in compare
            .deployments
            .iter_mut()
            .flat_map(|deployment| &mut deployment.rounds)
        {
            round.truncate(1);
        }
    }
    let names: Vec<String> = charts(&report, &[])
        .into_iter()
        .map(|chart| chart.name)
        .collect();
    assert_eq!(names, ["ranking", "cpu", "p99", "memory"]);
}

#[test]
fn many_deployments_can_be_told_apart() {
    let mut report = test_reports::compare_report();
    if let ReportResult::Compare(compare) = &mut report.result {
        let first = compare.deployments[0].clone();
        compare.ranking.clear();
        compare.deployments.clear();
        for index in 0..17 {
            let mut deployment = first.clone();
            deployment.name = format!("deployment <{index}>");
            compare.ranking.push(deployment.name.clone());
            compare.deployments.push(deployment);
        }
    }
    let curves = chart(&report, "throughput");
    // Seventeen entries; the last seven curves consist of many dashes.
    assert_eq!(curves.svg.matches("deployment &lt;").count(), 17);
    assert!(curves.svg.matches("<polyline").count() > 10 + 7 * 10);
    let bars = chart(&report, "ranking");
    assert_eq!(bars.svg.matches("deployment &lt;").count(), 17);
    assert!(bars.size.1 > 17 * 28);
}

#[test]
fn strange_reports_are_drawn_without_a_panic() {
    let mut report = test_reports::sweep_report();
    if let ReportResult::Sweep(sweep) = &mut report.result {
        let strange = [f64::NAN, f64::INFINITY, -1.0, f64::MAX];
        for (point, value) in sweep.points.iter_mut().zip(strange) {
            point.loads[0].requests_per_second = value;
            point.loads[0].connections = u32::MAX;
            point.loads[0].total.p99 = u64::MAX;
            point.loads[0].errors.reset = u64::MAX;
        }
        sweep.points[7].loads.clear();
        sweep.points[8].loads[0].name = "\u{1b}<&".to_owned();
    }
    assert!(!charts(&report, &[]).is_empty());
    if let ReportResult::Sweep(sweep) = &mut report.result {
        sweep.points.truncate(1);
        let _ = charts(&report, &[]);
    }
    if let ReportResult::Sweep(sweep) = &mut report.result {
        sweep.points.clear();
        assert!(charts(&report, &[]).is_empty());
    }
}

#[test]
fn held_streams_have_charts_against_connections_and_over_time() {
    let names = |report: &Report| -> Vec<String> {
        charts(report, &[])
            .into_iter()
            .map(|chart| chart.name)
            .collect()
    };
    let mut report = test_reports::hold_report();
    assert_eq!(
        names(&report),
        [
            "memory-by-connections",
            "probe-by-connections",
            "load-by-connections",
            "connections",
            "heard",
            "memory",
            "latency",
            "probe",
            "load"
        ]
    );
    let memory = chart(&report, "memory-by-connections");
    for word in ["server", "kernel, both ends", "agents of the bench", "MiB"] {
        assert!(memory.svg.contains(word), "{word}");
    }
    assert_eq!(memory.points[10].position, "1,000 connections");
    assert_eq!(chart(&report, "memory").points[40].position, "40.0 s");
    let ReportResult::Hold(hold) = &mut report.result else {
        panic!("a hold");
    };
    // A day of samples with nothing but the number of streams.
    hold.samples = (0..3000)
        .map(|second| crate::report::HoldSample {
            at: f64::from(second),
            open: 5,
            ..Default::default()
        })
        .collect();
    assert_eq!(names(&report), ["connections", "heard", "memory", "load"]);
    let spots = chart(&report, "connections").points;
    assert!((200..=240).contains(&spots.len()), "{}", spots.len());
    assert_eq!(spots.last().unwrap().position, "2,999 s");
}
