//! Which changes count between two saved reports.

use super::*;
use crate::report::{ReportResult, test_reports};

fn find<'a>(changes: &'a ReportComparison, part: &str, figure: &str) -> &'a FigureChange {
    let mut all = changes.changes.iter();
    all.find(|change| change.part == part && change.figure == figure)
        .unwrap()
}

#[test]
fn a_report_is_within_the_noise_of_itself() {
    for (kind, report) in test_reports::all_reports() {
        let changes = compare_saved(&report, &report).unwrap();
        assert!(
            !changes.changes.is_empty() && !changes.has_regressions(),
            "{kind}"
        );
        assert!(
            changes
                .changes
                .iter()
                .all(|change| change.verdict == Verdict::WithinNoise)
        );
        assert!(
            changes.only_old.is_empty() && changes.only_new.is_empty(),
            "{kind}"
        );
    }
}

#[test]
fn different_kinds_are_refused() {
    let error =
        compare_saved(&test_reports::run_report(), &test_reports::sweep_report()).unwrap_err();
    let expected = "a report of `bench run` cannot be compared with one of `bench sweep`";
    assert_eq!(error, expected);
}

#[test]
fn says_what_changed_in_a_run_and_that_it_was_another_machine() {
    let (old, mut new) = (test_reports::run_report(), test_reports::run_report());
    new.context.machine.cpu = "Another".to_owned();
    if let ReportResult::Run(run) = &mut new.result {
        run.targets = vec!["http://127.0.0.1:9090/".to_owned()];
        run.figures.requests_per_second *= 1.2;
        run.figures.total.p99 *= 2;
        run.figures.generator.bottleneck = None;
    }
    let changes = compare_saved(&old, &new).unwrap();
    assert_eq!(find(&changes, "", "requests/s").verdict, Verdict::Better);
    assert_eq!(find(&changes, "", "p99 ms").verdict, Verdict::Worse);
    assert_eq!(
        find(&changes, "", "CPU us/request").verdict,
        Verdict::WithinNoise
    );
    let text = changes.to_text();
    for expected in [
        "WARNING: in the old report the load generator itself was the bottleneck: its thread",
        "WARNING: the processors differ: Some CPU; Another\n",
        "WARNING: the targets differ: http://127.0.0.1:8080/; http://127.0.0.1:9090/\n",
        "  requests/s      4,000  4,800   +20.0 %  better        5 %\n",
        "  p99 ms           12.5   25.0  +100.0 %  WORSE         10 %\n",
        "\n1 better, 1 worse, 4 within the noise.\nNoise: ",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn points_and_deployments_without_a_partner_are_listed() {
    let (old, mut new) = (test_reports::sweep_report(), test_reports::sweep_report());
    if let ReportResult::Sweep(sweep) = &mut new.result {
        sweep.points.remove(0);
        sweep.points.push(test_reports::point(500, 0));
    }
    let changes = compare_saved(&old, &new).unwrap();
    assert_eq!(changes.only_old, ["1 connection"]);
    assert_eq!(changes.only_new, ["500 connections"]);
    assert!(
        changes
            .warnings
            .iter()
            .any(|warning| warning.starts_with("the connections differ"))
    );

    let (old, mut new) = (
        test_reports::compare_report(),
        test_reports::compare_report(),
    );
    if let ReportResult::Compare(compare) = &mut new.result {
        compare.deployments[2].name = "another".to_owned();
    }
    let changes = compare_saved(&old, &new).unwrap();
    assert_eq!(changes.only_old, ["puma"]);
    assert_eq!(changes.only_new, ["another"]);
}

#[test]
fn comparisons_are_judged_by_their_rounds() {
    let (old, mut new) = (
        test_reports::compare_report(),
        test_reports::compare_report(),
    );
    if let ReportResult::Compare(compare) = &mut new.result
        && let Some(summary) = &mut compare.deployments[0].summary
    {
        let throughput = summary.requests_per_second.median;
        summary.requests_per_second = test_reports::spread(throughput * 1.06);
        summary.cpu_us_per_request = Some(test_reports::spread(30.0));
    }
    let changes = compare_saved(&old, &new).unwrap();
    let throughput = find(&changes, "penstock", "requests/s");
    assert_eq!(
        (throughput.verdict, &*throughput.noise),
        (Verdict::WithinNoise, "2 rounds")
    );
    assert_eq!(
        find(&changes, "penstock", "CPU us/request").verdict,
        Verdict::Better
    );
}

#[test]
fn says_that_scenarios_or_connections_were_others() {
    let (old, mut new) = (
        test_reports::compare_report(),
        test_reports::compare_report(),
    );
    if let ReportResult::Compare(compare) = &mut new.result {
        compare.title = "Another".to_owned();
        compare.first = "puma".to_owned();
        compare
            .deployments
            .iter_mut()
            .for_each(|one| one.rounds.truncate(1));
    }
    let text = compare_saved(&old, &new).unwrap().to_text();
    for expected in [
        "WARNING: the titles of the scenarios differ: Hello & <friends>; Another\n",
        "WARNING: the deployments that ratios refer to differ: penstock; puma\n",
        "WARNING: the numbers of rounds differ: 2; 1\n",
        "WARNING: in the old report failed: thin\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    for word in ["--no-keepalive", "-HConnection: close"] {
        let (old, mut new) = (test_reports::run_report(), test_reports::run_report());
        new.context.command.push(word.to_owned());
        let warnings = compare_saved(&old, &new).unwrap().warnings;
        let expected = "the uses of connections differ: kept; a new one for each request";
        assert!(warnings.iter().any(|found| found == expected), "{word}");
    }
}

#[test]
fn loads_of_one_name_are_matched_in_their_order() {
    let (mut old, mut new) = (test_reports::mix_report(), test_reports::mix_report());
    for report in [&mut old, &mut new] {
        if let ReportResult::Mix(mix) = &mut report.result {
            mix.loads[1].name = mix.loads[0].name.clone();
        }
    }
    let changes = compare_saved(&old, &new).unwrap();
    assert!(!changes.has_regressions());
    let second = find(&changes, "random files (2)", "requests/s");
    assert!(second.new > 7999.0, "{second:?}");
}

#[test]
fn loads_of_a_mix_are_matched_by_name() {
    let (old, mut new) = (test_reports::mix_report(), test_reports::mix_report());
    if let ReportResult::Mix(mix) = &mut new.result {
        mix.loads.reverse();
        mix.loads[0].requests_per_second /= 2.0;
    }
    let changes = compare_saved(&old, &new).unwrap();
    assert_eq!(
        find(&changes, "one file", "requests/s").verdict,
        Verdict::Worse
    );
    assert_eq!(
        find(&changes, "random files", "requests/s").verdict,
        Verdict::WithinNoise
    );
}
