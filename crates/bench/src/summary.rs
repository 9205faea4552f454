//! Summarises the rounds of all deployments in a ranking, and judges goals. Pure; called by
//! `compare` after the last round.
//!
//! A figure is computed per round and then spread over the rounds. A ratio is computed within a
//! round, so that a drift of the machine, which affects all deployments of a round alike, cancels
//! out.

use crate::report::{
    DeploymentResult, DeploymentSummary, GoalResult, LoadFigures, Point, RoundSpread, ServerCost,
    saturating_sum,
};
use crate::scenario::{self, Metric};
use crate::text::notes;
use crate::text::units::{format_connections, to_f64};

/// The minimum for means: with fewer connections all servers are much alike.
const MIN_CONNECTIONS: u32 = 10;

/// The share of the pinned cores that other processes may use before a figure is uncertain.
pub(crate) const MAX_OTHER_PROCESSES_SHARE: f64 = 0.05;

/// Fills in the summaries; returns the names in the order of the ranking.
pub(crate) fn summarize_deployments(
    deployments: &mut [DeploymentResult],
    first: &str,
) -> Vec<String> {
    let full = points_of_full_round(deployments);
    let reference = deployments.iter().find(|found| found.name == first);
    let reference = reference.map_or_else(Vec::new, |found| counted_rounds(found, full));
    let summaries: Vec<Option<DeploymentSummary>> = deployments
        .iter()
        .map(|deployment| summary(deployment, &counted_rounds(deployment, full), &reference))
        .collect();
    for (deployment, summary) in deployments.iter_mut().zip(summaries) {
        deployment.summary = summary;
    }
    let throughput = |found: &DeploymentResult| {
        let summary = found.summary.as_ref().filter(|_| found.failure.is_none());
        summary.map(|summary| summary.requests_per_second.median)
    };
    let mut ranked: Vec<(f64, &str)> = deployments
        .iter()
        .filter_map(|found| Some((throughput(found)?, &*found.name)))
        .collect();
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let names = ranked.into_iter().map(|(_, name)| name.to_owned());
    names.collect()
}

pub(crate) fn judge_goals(
    goals: &[scenario::Goal],
    deployments: &[DeploymentResult],
) -> Vec<GoalResult> {
    let judge = |goal| judge_goal(goal, deployments);
    goals.iter().map(judge).collect()
}

/// A counted round: its number from zero, and its points.
pub(crate) type NumberedRound<'a> = (usize, &'a [Point]);

/// The number of points of a complete round.
pub(crate) fn points_of_full_round(deployments: &[DeploymentResult]) -> usize {
    let rounds = deployments.iter().flat_map(|found| &found.rounds);
    rounds.map(Vec::len).max().unwrap_or(0)
}

/// The complete rounds of a deployment. Means over other points are not comparable, so incomplete
/// rounds count only if there are no others.
pub(crate) fn counted_rounds(deployment: &DeploymentResult, full: usize) -> Vec<NumberedRound<'_>> {
    let rounds = deployment.rounds.iter().map(Vec::as_slice).enumerate();
    let (whole, cut): (Vec<_>, Vec<_>) = rounds
        .filter(|(_, points)| !points.is_empty())
        .partition(|(_, points)| points.len() == full);
    if whole.is_empty() { cut } else { whole }
}

/// A figure of each round.
pub(crate) fn spread_over_rounds(
    rounds: &[NumberedRound<'_>],
    of: impl Fn(&[Point]) -> Option<f64>,
) -> Option<RoundSpread> {
    RoundSpread::from_values(rounds.iter().filter_map(|(_, points)| of(points)))
}

/// A figure of each round as a ratio to another deployment's in the same round, over the points
/// that both have.
fn ratio_over_rounds(
    own: &[NumberedRound<'_>],
    others: &[NumberedRound<'_>],
    of: impl Fn(&[Point]) -> Option<f64>,
) -> Option<RoundSpread> {
    let ratio = |&(number, own): &NumberedRound<'_>| {
        let (_, other) = others.iter().find(|(found, _)| *found == number)?;
        let both = own.len().min(other.len());
        Some(of(own.get(..both)?)? / of(other.get(..both)?)?)
    };
    RoundSpread::from_values(own.iter().filter_map(ratio))
}

/// The points of all loads at once.
fn together(points: &[Point]) -> impl Iterator<Item = &Point> {
    points.iter().filter(|point| !point.alone)
}

/// The mean over the points with at least [`MIN_CONNECTIONS`], or over all if none has.
fn mean(points: &[Point], of: impl Fn(&Point) -> f64) -> Option<f64> {
    let is_counted = |point: &&Point| point.connections_total() >= MIN_CONNECTIONS;
    let mut counted: Vec<&Point> = together(points).filter(is_counted).collect();
    if counted.is_empty() {
        counted = together(points).collect();
    }
    let sum: f64 = counted.iter().map(|point| of(point)).sum();
    (!counted.is_empty()).then(|| sum / to_f64(counted.len() as u64))
}

fn per_second(points: &[Point]) -> Option<f64> {
    mean(points, Point::good_per_second)
}

fn p99_us(points: &[Point]) -> Option<f64> {
    mean(points, |point| to_f64(point.slowest(|total| total.p99)))
}

/// CPU of all points divided by the requests of all points.
fn cpu_us(points: &[Point]) -> Option<f64> {
    let costs: Option<Vec<ServerCost>> = together(points).map(|point| point.server).collect();
    let seconds: f64 = costs?.iter().map(|cost| cost.cpu_seconds).sum();
    let loads = together(points).flat_map(|point| &point.loads);
    let requests = saturating_sum(loads.map(|load| load.requests));
    (requests > 0).then(|| seconds * 1e6 / to_f64(requests))
}

pub(crate) fn memory_bytes(points: &[Point]) -> Option<f64> {
    let costs = points.iter().filter_map(|point| point.server);
    costs.map(|cost| cost.memory_bytes).max().map(to_f64)
}

pub(crate) fn error_count(points: &[Point]) -> Option<f64> {
    Some(to_f64(saturating_sum(points.iter().map(Point::failed))))
}

fn summary(
    deployment: &DeploymentResult,
    counted: &[NumberedRound<'_>],
    reference: &[NumberedRound<'_>],
) -> Option<DeploymentSummary> {
    let points = || deployment.rounds.iter().flatten();
    let memory = points().filter_map(|point| point.server.map(|cost| cost.memory_bytes));
    Some(DeploymentSummary {
        requests_per_second: spread_over_rounds(counted, per_second)?,
        cpu_us_per_request: spread_over_rounds(counted, cpu_us),
        memory_bytes: memory.max(),
        p99_us: spread_over_rounds(counted, p99_us)?,
        errors: saturating_sum(points().map(Point::failed)),
        ratio: ratio_over_rounds(counted, reference, per_second),
        cpu_ratio: ratio_over_rounds(counted, reference, cpu_us),
        doubts: doubts(deployment),
    })
}

/// Why the figures may not be the server's own, each reason once.
fn doubts(deployment: &DeploymentResult) -> Vec<String> {
    let mut doubts: Vec<String> = Vec::new();
    for point in deployment.rounds.iter().flatten() {
        let mut reasons = Vec::new();
        let mut loads = point.loads.iter();
        if loads.any(|load| load.generator.bottleneck.is_some()) {
            reasons.push("the load generator itself was the bottleneck".to_owned());
        }
        let others = point.server.and_then(|cost| cost.other_processes_share);
        if others.is_some_and(|others| others > MAX_OTHER_PROCESSES_SHARE) {
            reasons.push("other programs used the measured cores".to_owned());
        }
        reasons.extend(point.loads.iter().flat_map(notes::unclean_reasons));
        let place = format_connections(point.connections_total());
        doubts.extend(reasons.iter().map(|reason| format!("{place}: {reason}")));
    }
    let mut seen = std::collections::HashSet::new();
    doubts.retain(|doubt| seen.insert(doubt.clone()));
    doubts
}

/// A figure of one round.
type FigureOf<'a> = &'a dyn Fn(&[Point]) -> Option<f64>;

fn judge_goal(goal: &scenario::Goal, deployments: &[DeploymentResult]) -> GoalResult {
    let full = points_of_full_round(deployments);
    // A deployment that failed in a round has no valid figures, neither its own nor as a reference.
    let rounds_of = |name: &str| {
        let mut sound = deployments.iter().filter(|found| found.failure.is_none());
        let found = sound.find(|found| found.name == name);
        let rounds = found.map_or_else(Vec::new, |found| counted_rounds(found, full));
        match goal.connections {
            Some(connections) => at_point(&rounds, connections),
            None => rounds,
        }
    };
    let rounds = rounds_of(&goal.deployment);
    let load = goal.load.as_deref().unwrap_or_default();
    let (what, unit, of): (_, _, FigureOf<'_>) = match goal.metric {
        Metric::CpuRatio => ("CPU per request".to_owned(), "", &cpu_us),
        Metric::CpuUs => ("CPU per request".to_owned(), " us", &cpu_us),
        Metric::RequestsRatio => ("requests/s".to_owned(), "", &per_second),
        Metric::MemoryRatio => ("memory".to_owned(), "", &memory_bytes),
        Metric::P99Ratio => (format!("p99 of {load}"), "", &|points| {
            find_load(points, false, load).map(p99_of)
        }),
        Metric::P99Ms => ("p99".to_owned(), " ms", &|points| {
            Some(p99_us(points)? / 1000.0)
        }),
        Metric::ThroughputRetained => (
            "requests/s at the most connections".to_owned(),
            " x its best",
            &throughput_retained,
        ),
        Metric::RequestsVsAlone => (
            format!("requests/s of {load} in the mix"),
            " x alone",
            &|points| ratio_to_alone(points, load, LoadFigures::good_per_second),
        ),
        Metric::P99VsAlone => (format!("p99 of {load} in the mix"), " x alone", &|points| {
            ratio_to_alone(points, load, p99_of)
        }),
        Metric::Errors => ("errors".to_owned(), "", &error_count),
    };
    let (unit, measured) = match &goal.to {
        Some(to) => (
            format!(" x {to}"),
            ratio_over_rounds(&rounds, &rounds_of(to), of),
        ),
        None => (unit.to_owned(), spread_over_rounds(&rounds, of)),
    };
    let place = goal.connections.map(|at| format!(" at {at} connections"));
    let bounds = [
        goal.min.map(|min| format!(">= {min}")),
        goal.max.map(|max| format!("<= {max}")),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    let meets = |found: RoundSpread| {
        // One failure in any round is enough.
        let figure = match goal.metric {
            Metric::Errors => found.max,
            _ => found.median,
        };
        goal.min.is_none_or(|min| figure >= min) && goal.max.is_none_or(|max| figure <= max)
    };
    GoalResult {
        text: format!(
            "{}{}: {what} {}{unit}",
            goal.deployment,
            place.unwrap_or_default(),
            bounds.join(" and ")
        ),
        measured,
        met: measured.is_some_and(meets),
    }
}

fn p99_of(figures: &LoadFigures) -> f64 {
    to_f64(figures.total.p99)
}

fn find_load<'a>(points: &'a [Point], alone: bool, name: &str) -> Option<&'a LoadFigures> {
    let mut points = points.iter().filter(|point| point.alone == alone);
    points.find_map(|point| point.loads.iter().find(|load| load.name == name))
}

/// A figure of one load in the mix as a ratio to the same load's alone.
fn ratio_to_alone(points: &[Point], load: &str, of: fn(&LoadFigures) -> f64) -> Option<f64> {
    let mixed = of(find_load(points, false, load)?);
    let alone = of(find_load(points, true, &alone_load_name(load))?);
    (alone > 0.0).then(|| mixed / alone)
}

/// The name of a load when measured alone.
pub(crate) fn alone_load_name(load: &str) -> String {
    format!("{load}, alone")
}

/// The rounds, each reduced to one of its points; rounds without it are excluded.
fn at_point<'a>(rounds: &[NumberedRound<'a>], connections: u32) -> Vec<NumberedRound<'a>> {
    let point = |&(number, points): &NumberedRound<'a>| {
        let mut each = points.chunks(1);
        let found = each.find(|point| point[0].connections_total() == connections)?;
        Some((number, found))
    };
    rounds.iter().filter_map(point).collect()
}

/// Requests per second at the most connections, as a ratio to the best point.
fn throughput_retained(points: &[Point]) -> Option<f64> {
    let last = together(points).max_by_key(|point| point.connections_total())?;
    let speeds = together(points).map(Point::good_per_second);
    Some(last.good_per_second() / speeds.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::DurationSummary;

    fn point(connections: u32, per_second: f64, cpu_us: f64) -> Point {
        Point {
            connections,
            loads: vec![LoadFigures {
                connections,
                requests: 1000,
                requests_per_second: per_second,
                total: DurationSummary {
                    p99: 5000,
                    ..DurationSummary::default()
                },
                ..LoadFigures::default()
            }],
            server: Some(ServerCost {
                cpu_seconds: cpu_us * 1000.0 / 1e6,
                memory_bytes: 7,
                ..ServerCost::default()
            }),
            alone: false,
        }
    }

    fn deployment(name: &str, rounds: &[&[(u32, f64, f64)]]) -> DeploymentResult {
        let of =
            |points: &&[(u32, f64, f64)]| points.iter().map(|&(c, r, u)| point(c, r, u)).collect();
        DeploymentResult {
            name: name.to_owned(),
            versions: Vec::new(),
            failure: None,
            rounds: rounds.iter().map(of).collect(),
            summary: None,
        }
    }

    fn is_near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9
    }

    #[test]
    fn ranks_by_the_mean_over_ten_connections_and_more() {
        let mut all = [
            deployment(
                "a",
                &[&[(1, 9000.0, 10.0), (10, 100.0, 10.0), (20, 300.0, 10.0)]],
            ),
            deployment(
                "b",
                &[&[(1, 1.0, 30.0), (10, 400.0, 30.0), (20, 200.0, 30.0)]],
            ),
            deployment("nothing", &[]),
        ];
        assert_eq!(summarize_deployments(&mut all, "a"), ["b", "a"]);
        let b = all[1].summary.as_ref().unwrap();
        assert!(is_near(b.requests_per_second.median, 300.0));
        assert!(is_near(b.ratio.unwrap().median, 1.5));
        assert!(is_near(b.cpu_ratio.unwrap().median, 3.0));
        assert_eq!(b.memory_bytes, Some(7));
        assert!(all[2].summary.is_none());
    }

    #[test]
    fn ratios_are_made_within_a_round() {
        // The machine was half as fast in the second round: the ratio is unaffected.
        let mut all = [
            deployment("a", &[&[(16, 1000.0, 1.0)], &[(16, 500.0, 2.0)]]),
            deployment("b", &[&[(16, 2000.0, 0.5)], &[(16, 1000.0, 1.0)]]),
        ];
        summarize_deployments(&mut all, "a");
        let ratio = all[1].summary.as_ref().unwrap().ratio.unwrap();
        assert!(is_near(ratio.min, 2.0) && is_near(ratio.max, 2.0));
    }

    #[test]
    fn what_failed_is_not_ranked_and_meets_no_goal() {
        let mut all = [
            deployment("a", &[&[(16, 1000.0, 2.0)]]),
            deployment("b", &[&[(16, 2000.0, 1.0)]]),
        ];
        all[1].failure = Some("exited with 1 under load".to_owned());
        assert_eq!(summarize_deployments(&mut all, "a"), ["a"]);
        for goal in [
            at_most("b", Metric::P99Ms, 99.0),
            at_most("b", Metric::CpuUs, 99.0),
            to("a", at_most("b", Metric::CpuRatio, 9.0)),
            to("b", at_most("a", Metric::CpuRatio, 9.0)),
        ] {
            let judged = judge_goals(&[goal], &all);
            let text = &judged[0].text;
            assert!(!judged[0].met && judged[0].measured.is_none(), "{text}");
        }
    }

    #[test]
    fn rounds_that_were_cut_short_do_not_count() {
        let full: &[(u32, f64, f64)] = &[(10, 100.0, 1.0), (20, 300.0, 1.0)];
        let fast: &[(u32, f64, f64)] = &[(10, 200.0, 1.0), (20, 600.0, 1.0)];
        let mut all = [
            deployment("a", &[full, full, full]),
            deployment("cut in the last", &[fast, fast, &fast[..1]]),
            deployment("cut in the first", &[&[], fast, fast]),
            deployment("never full", &[&fast[..1]]),
        ];
        let twice = |name: &str| to("a", at_least(name, Metric::RequestsRatio, 2.0));
        let goals = all[1..].iter().map(|found| twice(&found.name));
        for goal in judge_goals(&goals.collect::<Vec<_>>(), &all) {
            let found = goal.measured.unwrap();
            assert!(
                is_near(found.min, 2.0) && is_near(found.max, 2.0),
                "{goal:?}"
            );
        }
        summarize_deployments(&mut all, "a");
        for (found, expected) in all.iter().zip([200.0, 400.0, 400.0, 200.0]) {
            let mean = found.summary.as_ref().unwrap().requests_per_second;
            assert!(is_near(mean.min, expected), "{}: {mean:?}", found.name);
            assert!(is_near(mean.max, expected), "{}: {mean:?}", found.name);
        }
        for found in &all[1..] {
            let ratio = found.summary.as_ref().unwrap().ratio.unwrap();
            assert!(is_near(ratio.min, 2.0), "{}: {ratio:?}", found.name);
            assert!(is_near(ratio.max, 2.0), "{}: {ratio:?}", found.name);
        }
    }

    #[test]
    fn requests_without_an_answer_are_doubts() {
        let mut all = [deployment("a", &[&[(1, 100.0, 1.0), (20, 300.0, 1.0)]])];
        let load = &mut all[0].rounds[0][1].loads[0];
        load.seconds = 2.0;
        load.oldest_unfinished_us = 1_600_000;
        summarize_deployments(&mut all, "a");
        let doubts = &all[0].summary.as_ref().unwrap().doubts;
        assert_eq!(
            doubts[..],
            ["20 connections: a request unanswered for 1,600 ms"]
        );
    }

    #[test]
    fn judges_goals() {
        let all = [
            deployment("a", &[&[(16, 1000.0, 2.0)]]),
            deployment("b", &[&[(16, 2000.0, 1.0)]]),
        ];
        let ratio = |bound: f64| to("a", at_most("b", Metric::CpuRatio, bound));
        let more = |bound: f64| to("a", at_least("b", Metric::RequestsRatio, bound));
        for (goal, met) in [
            (ratio(0.5), true),
            (ratio(0.49), false),
            (more(2.0), true),
            (more(2.1), false),
            (at_most("b", Metric::P99Ms, 5.0), true),
            (at_most("b", Metric::P99Ms, 4.9), false),
            (at_most("b", Metric::CpuUs, 1.0), true),
            (at_most("b", Metric::CpuUs, 0.9), false),
            (between(0.4, 0.5), true),
            (between(0.51, 0.6), false),
        ] {
            let judged = judge_goals(&[goal], &all);
            assert_eq!(judged[0].met, met, "{}", judged[0].text);
        }
        let judged = judge_goals(&[between(0.4, 0.5)], &all);
        assert_eq!(judged[0].text, "b: CPU per request >= 0.4 and <= 0.5 x a");
        let judged = judge_goals(&[at_most("missing", Metric::CpuUs, 1.0)], &all);
        assert!(!judged[0].met && judged[0].measured.is_none());
    }

    #[test]
    fn memory_and_one_loads_p99_are_compared_round_by_round() {
        let made = |name: &str, bytes: u64, p99: u64| {
            let mut made = deployment(name, &[&[(16, 1000.0, 2.0)], &[(16, 1000.0, 2.0)]]);
            for point in made.rounds.iter_mut().flatten() {
                if let Some(cost) = &mut point.server {
                    cost.memory_bytes = bytes;
                }
                let mut short = point.loads[0].clone();
                short.name = "short".into();
                short.total.p99 = p99;
                point.loads.push(short);
            }
            made
        };
        let all = [made("a", 1000, 40), made("b", 500, 10)];
        let memory = |bound: f64| to("a", at_most("b", Metric::MemoryRatio, bound));
        let p99 = |load: &str, bound: f64| of(load, to("a", at_most("b", Metric::P99Ratio, bound)));
        for (goal, met) in [
            (memory(0.5), true),
            (memory(0.49), false),
            (p99("short", 0.25), true),
            (p99("short", 0.24), false),
            (p99("no such load", 9.0), false),
        ] {
            let judged = judge_goals(&[goal], &all);
            assert_eq!(judged[0].met, met, "{}", judged[0].text);
        }
    }

    #[test]
    fn a_goal_may_be_about_one_point() {
        let all = [
            deployment("a", &[&[(16, 1000.0, 2.0), (128, 1000.0, 2.0)]]),
            deployment("b", &[&[(16, 1000.0, 1.0), (128, 1000.0, 3.0)]]),
        ];
        for (connections, met) in [(None, true), (Some(16), true), (Some(128), false)] {
            let goal = scenario::Goal {
                connections,
                ..to("a", at_most("b", Metric::CpuRatio, 1.0))
            };
            let judged = judge_goals(&[goal], &all);
            assert_eq!(judged[0].met, met, "{connections:?}: {judged:?}");
        }
    }

    #[test]
    fn throughput_is_held_when_the_most_connections_are_near_the_best_point() {
        let falls: &[(u32, f64, f64)] = &[(1, 400.0, 1.0), (10, 1000.0, 1.0), (500, 960.0, 1.0)];
        let rises: &[(u32, f64, f64)] = &[(1, 400.0, 1.0), (10, 900.0, 1.0), (500, 1000.0, 1.0)];
        for (points, bound, met) in [
            (falls, 0.97, false),
            (falls, 0.96, true),
            (rises, 0.97, true),
        ] {
            let all = [deployment("a", &[points])];
            let judged = judge_goals(&[at_least("a", Metric::ThroughputRetained, bound)], &all);
            assert_eq!(judged[0].met, met, "{judged:?}");
        }
    }

    #[test]
    fn answers_that_are_errors_are_no_throughput() {
        let mut all = [
            deployment("a", &[&[(16, 1000.0, 1.0)]]),
            deployment("b", &[&[(16, 9000.0, 1.0)]]),
        ];
        all[1].rounds[0][0].loads[0].statuses.server_error = 900;
        assert_eq!(summarize_deployments(&mut all, "a"), ["a", "b"]);
        let b = all[1].summary.as_ref().unwrap();
        assert!(is_near(b.requests_per_second.median, 900.0));
    }

    #[test]
    fn errors_of_any_round_count() {
        let points: &[(u32, f64, f64)] = &[(10, 100.0, 1.0)];
        let mut all = [deployment("a", &[points, points, points])];
        assert!(judge_goals(&[at_most("a", Metric::Errors, 0.0)], &all)[0].met);
        all[0].rounds[1][0].loads[0].statuses.server_error = 2;
        for (bound, met) in [(0.0, false), (1.0, false), (2.0, true)] {
            let judged = judge_goals(&[at_most("a", Metric::Errors, bound)], &all);
            assert_eq!(judged[0].met, met, "{judged:?}");
        }
    }

    #[test]
    fn a_load_of_a_mix_is_compared_with_itself_alone() {
        let named = |name: &str, alone: bool, per_second: f64, p99: u64| {
            let mut point = point(50, per_second, 1.0);
            point.loads[0].name = name.to_owned();
            point.loads[0].total.p99 = p99;
            Point { alone, ..point }
        };
        let mut all = [deployment("a", &[&[]])];
        let mut mix = named("hot", false, 450.0, 130);
        mix.loads.extend(named("random", false, 30.0, 9000).loads);
        all[0].rounds = vec![vec![named("hot, alone", true, 500.0, 100), mix]];
        let requests = |load, bound| of(load, at_least("a", Metric::RequestsVsAlone, bound));
        let p99 = |load, bound| of(load, at_most("a", Metric::P99VsAlone, bound));
        for (goal, found, met) in [
            (requests("hot", 0.9), Some(0.9), true),
            (requests("hot", 0.91), Some(0.9), false),
            (requests("random", 0.1), None, false),
            (p99("hot", 1.3), Some(1.3), true),
            (p99("hot", 1.29), Some(1.3), false),
        ] {
            let judged = judge_goals(&[goal], &all);
            assert_eq!(judged[0].met, met, "{judged:?}");
            let value = judged[0].measured.map(|spread| spread.median);
            match (value, found) {
                (Some(value), Some(found)) => assert!(is_near(value, found), "{judged:?}"),
                (value, found) => assert_eq!(value, found, "{judged:?}"),
            }
        }
        // Points measured alone are not part of the ranking.
        summarize_deployments(&mut all, "a");
        let summary = all[0].summary.as_ref().unwrap();
        assert!(is_near(summary.requests_per_second.median, 480.0));
    }

    fn between(min: f64, max: f64) -> scenario::Goal {
        let goal = to("a", at_most("b", Metric::CpuRatio, max));
        let min = Some(min);
        scenario::Goal { min, ..goal }
    }

    fn at_most(deployment: &str, metric: Metric, bound: f64) -> scenario::Goal {
        scenario::Goal {
            deployment: deployment.to_owned(),
            metric,
            max: Some(bound),
            min: None,
            to: None,
            load: None,
            connections: None,
        }
    }

    fn at_least(deployment: &str, metric: Metric, bound: f64) -> scenario::Goal {
        scenario::Goal {
            max: None,
            min: Some(bound),
            ..at_most(deployment, metric, bound)
        }
    }

    fn to(other: &str, goal: scenario::Goal) -> scenario::Goal {
        let to = Some(other.to_owned());
        scenario::Goal { to, ..goal }
    }

    fn of(load: &str, goal: scenario::Goal) -> scenario::Goal {
        let load = Some(load.to_owned());
        scenario::Goal { load, ..goal }
    }
}
