//! `bench compare`: starts deployments, measures them in turn, stops and ranks them; or compares
//! two saved reports.
//!
//! Rounds are interleaved: each round measures every deployment once, so that a drift of the
//! machine affects all alike. A deployment is started anew for each round, or once for all rounds
//! with `keep_running`.
//!
//! # Invariants
//!
//! - A deployment that fails loses only its own figures.
//! - No deployment has work while another is measured.

use std::error::Error;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;

use crate::command::{CompareArguments, EXIT_FAILED, VerbResult};
use crate::deploy::{DeployError, RunningDeployment, Testbed};
use crate::live_line::LiveLine;
use crate::load::{Load, LoadPlan, WindowEnd};
use crate::report::{CompareResult, DeploymentResult, LoadFigures, Point, ReportResult};
use crate::run::exit_code;
use crate::scenario::{self, LoadSpec, Scenario};
use crate::summary::{
    MAX_OTHER_PROCESSES_SHARE, alone_load_name, judge_goals, summarize_deployments,
};
use crate::target::{RequestTemplate, TargetError};
use crate::text::notes;
use crate::window::{WindowMonitor, measure_window};
use crate::{compare_saved, context, output, report_file};

/// Attempts per window. Other processes make a request cost up to twice as much (cold caches, a
/// starved generator), so a disturbed window is measured again and the least disturbed one counts.
const MAX_ATTEMPTS: usize = 3;

pub(crate) fn run(arguments: &CompareArguments) -> VerbResult {
    match &arguments.files[..] {
        [old, new] => compare_reports(old, new),
        [one] if one.extension().is_some_and(|extension| extension == "json") => {
            Err("a saved report is compared with another one: A.json B.json".into())
        }
        [scenario] => compare_deployments(scenario, arguments),
        _ => Err("a scenario, or two saved reports".into()),
    }
}

fn compare_reports(old: &Path, new: &Path) -> VerbResult {
    let changes = compare_saved::compare_saved(&report_file::read(old)?, &report_file::read(new)?)?;
    output::print(&changes.to_text());
    Ok(match changes.has_regressions() {
        true => {
            output::print_error(&format!(
                "bench: exit code {EXIT_FAILED}: a figure became worse"
            ));
            ExitCode::from(EXIT_FAILED)
        }
        false => ExitCode::SUCCESS,
    })
}

fn compare_deployments(file: &Path, arguments: &CompareArguments) -> VerbResult {
    let started = SystemTime::now();
    let scenario = with_overrides(Scenario::read(file)?, arguments)?;
    let live = LiveLine::new(arguments.quiet)?;
    let testbed = Testbed::new(&scenario.dir, live.stop_flag())?;
    if !arguments.no_setup {
        let done = testbed.run_setup(&scenario.setup);
        if live.is_stop_requested() {
            return Ok(exit_code(&[], &live));
        }
        done?;
    }
    let empty = |one: &scenario::Deployment| DeploymentResult {
        name: one.name.clone(),
        versions: Vec::new(),
        failure: None,
        rounds: Vec::new(),
        summary: None,
    };
    let mut comparison = Comparison {
        scenario: &scenario,
        testbed: &testbed,
        live,
        runs_setup: !arguments.no_setup,
        running: scenario.deployments.iter().map(|_| None).collect(),
        results: scenario.deployments.iter().map(empty).collect(),
    };
    comparison.measure_rounds();
    comparison.running.clear();
    let (live, mut deployments) = (comparison.live, comparison.results);
    let compare = CompareResult {
        ranking: summarize_deployments(&mut deployments, &scenario.baseline),
        goals: judge_goals(&scenario.goals, &deployments),
        title: scenario.title,
        first: scenario.baseline,
        deployments,
    };
    let reasons = failure_reasons(&compare);
    let result = ReportResult::Compare(compare);
    let report = context::report_with_context(result, started, live.is_stop_requested(), &[]);
    output::write_report(&report, &arguments.output)?;
    Ok(exit_code(&reasons, &live))
}

/// Why a comparison failed, one text per reason.
fn failure_reasons(compare: &CompareResult) -> Vec<String> {
    let goals = compare.goals.iter().filter(|goal| !goal.met);
    let goals = goals.map(|goal| format!("missed: {}", goal.text));
    let failed = compare.deployments.iter().filter_map(|one| {
        let why = one.failure.as_ref()?;
        let first = why.lines().next().unwrap_or_default();
        Some(format!("{} failed: {first}", one.name))
    });
    let loads = compare.deployments.iter().flat_map(|one| {
        let reasons = all_figures(one).flat_map(notes::failure_reasons);
        reasons.map(|reason| format!("{}: {reason}", one.name))
    });
    goals.chain(failed).chain(loads).collect()
}

fn all_figures(deployment: &DeploymentResult) -> impl Iterator<Item = &LoadFigures> {
    let points = deployment.rounds.iter().flatten();
    points.flat_map(|point| &point.loads)
}

/// Applies the command line's overrides to the scenario.
fn with_overrides(
    mut scenario: Scenario,
    arguments: &CompareArguments,
) -> Result<Scenario, String> {
    scenario.rounds = arguments.rounds.unwrap_or(scenario.rounds);
    scenario.warm_up = arguments.warm_up.unwrap_or(scenario.warm_up);
    scenario.cores = arguments.cores.or(scenario.cores);
    if arguments.requests.is_some() || arguments.duration.is_some() {
        (scenario.requests, scenario.duration) = (arguments.requests, arguments.duration);
    }
    match (&arguments.connections, &mut scenario.loads[..]) {
        (Some(steps), [load]) => load.connections.clone_from(steps),
        (Some(_), _) => {
            return Err("--connections: the scenario has several loads with their own".into());
        }
        (None, _) => {}
    }
    let is_asked = |name: &str| {
        let mut texts = arguments.only.iter();
        arguments.only.is_empty() || texts.any(|text| name.contains(&**text))
    };
    scenario.deployments.retain(|one| is_asked(&one.name));
    let Some(one) = scenario.deployments.first() else {
        return Err(format!("no such deployment: {}", arguments.only.join(", ")));
    };
    if !is_asked(&scenario.baseline) {
        scenario.baseline.clone_from(&one.name);
    }
    // A goal needs both of its deployments.
    let is_there = |name: &String| scenario.deployments.iter().any(|one| one.name == *name);
    let mut goals = std::mem::take(&mut scenario.goals);
    goals.retain(|goal| goal.names().all(is_there));
    // And the point that it refers to.
    let points = scenario.loads.iter().flat_map(|load| &load.connections.0);
    goals.retain(|goal| {
        goal.connections
            .is_none_or(|one| points.clone().any(|point| *point == one))
    });
    scenario.goals = goals;
    Ok(scenario)
}

/// All deployments while they are measured.
struct Comparison<'a> {
    scenario: &'a Scenario,
    testbed: &'a Testbed,
    live: LiveLine,
    runs_setup: bool,
    /// Those that keep running between rounds.
    running: Vec<Option<RunningDeployment>>,
    results: Vec<DeploymentResult>,
}

impl Comparison<'_> {
    fn measure_rounds(&mut self) {
        let rounds = self.scenario.rounds;
        for round in 1..=rounds {
            for (at, deployment) in self.scenario.deployments.iter().enumerate() {
                if self.live.is_stop_requested() {
                    return;
                }
                if self.results[at].failure.is_some() {
                    continue;
                }
                let name = &deployment.name;
                let label = format!("round {round} of {rounds}: {name}");
                self.live.show_line(&label);
                match self.measure_one(at, round == 1, &label) {
                    Ok(points) if points.is_empty() => return,
                    Ok(points) => self.results[at].rounds.push(points),
                    Err(_) if self.live.is_stop_requested() => return,
                    Err(why) => {
                        self.live.print_line(&format!("{name}: {why}"));
                        self.results[at].failure = Some(why.to_string());
                    }
                }
            }
        }
    }

    /// Measures all points of a round with a deployment that is started for it, or kept running.
    fn measure_one(
        &mut self,
        at: usize,
        is_first: bool,
        label: &str,
    ) -> Result<Vec<Point>, Box<dyn Error>> {
        let mut running = match self.running[at].take() {
            Some(running) => running,
            None => self.start_deployment(at, is_first)?,
        };
        let points = self.measure_points(&mut running, label)?;
        if self.scenario.keep_running {
            self.running[at] = Some(running);
        }
        Ok(points)
    }

    /// Starts a deployment; the first time with its set-up.
    fn start_deployment(
        &mut self,
        at: usize,
        is_first: bool,
    ) -> Result<RunningDeployment, DeployError> {
        let scenario = self.scenario;
        let deployment = &scenario.deployments[at];
        if is_first && self.runs_setup {
            self.testbed.run_setup(&deployment.setup)?;
        }
        if is_first {
            self.results[at].versions = self.testbed.versions(deployment);
        }
        RunningDeployment::start(self.testbed, scenario, deployment)
    }

    fn measure_points(
        &mut self,
        running: &mut RunningDeployment,
        label: &str,
    ) -> Result<Vec<Point>, Box<dyn Error>> {
        let mut points = Vec::new();
        let plans = plans_for(self.scenario, running, &self.live)?;
        let count = plans.len();
        for (at, (plan, alone)) in plans.iter().enumerate() {
            let mut point = self.measure_undisturbed(plan, running, label)?;
            point.alone = *alone;
            if let Some(ended) = running.unexpected_exit() {
                return Err(format!("{ended} under load\n{}", running.log_tail()).into());
            }
            let is_empty = point.loads.iter().all(|load| load.requests == 0);
            if is_empty && self.live.is_stop_requested() {
                break;
            }
            if is_empty {
                return Err(format!("no response under load\n{}", running.log_tail()).into());
            }
            points.push(point);
            if self.live.is_stop_requested() {
                break;
            }
            if at + 1 < count {
                self.live.sleep_unless_stopped(self.scenario.cool_down);
            }
        }
        Ok(points)
    }

    /// Measures a point; the least disturbed of a few windows if other programs used the cores.
    fn measure_undisturbed(
        &mut self,
        plan: &LoadPlan,
        running: &RunningDeployment,
        label: &str,
    ) -> io::Result<Point> {
        let cores = self.scenario.cores;
        let cores = cores.map_or_else(Vec::new, |cores| vec![cores.server, cores.load]);
        let connections: u32 = plan.loads.iter().map(|load| load.connections).sum();
        let label = format!("{label}, {connections} connections:");
        let mut measure = || {
            let window = WindowMonitor {
                usage: Some(running),
                cores: &cores,
                live: &mut self.live,
                label: &label,
            };
            measure_window(plan, window)
        };
        let others = |point: &Point| {
            let share = point.server.and_then(|cost| cost.other_processes_share);
            share.unwrap_or(0.0)
        };
        // A window of many seconds is not repeated: disturbances average out, and it would take too
        // long. Nor is one of many short windows: the median excludes disturbed ones.
        let is_long = matches!(plan.window_end, WindowEnd::Elapsed(time) if time.as_secs() >= 10);
        let attempts = match is_long || self.scenario.keep_running {
            true => 1,
            false => MAX_ATTEMPTS,
        };
        let mut best = measure()?;
        for _ in 1..attempts {
            if others(&best) <= MAX_OTHER_PROCESSES_SHARE || plan.stop.load(Ordering::Relaxed) {
                break;
            }
            let again = measure()?;
            if others(&again) < others(&best) {
                best = again;
            }
        }
        Ok(best)
    }
}

/// The plans, point by point, and which of them are loads of a mix measured alone.
fn plans_for(
    scenario: &Scenario,
    running: &RunningDeployment,
    live: &LiveLine,
) -> Result<Vec<(LoadPlan, bool)>, TargetError> {
    let plan = |loads: Vec<Load>| LoadPlan {
        loads,
        window_end: scenario.window_end(),
        warm_up: scenario.warm_up,
        threads: 1,
        core: scenario.cores.map(|cores| cores.load),
        stop: live.stop_flag(),
    };
    if let [spec] = &scenario.loads[..] {
        let base = load_for(spec, running)?;
        let at = |&connections: &u32| {
            let load = Load {
                connections,
                ..base.clone()
            };
            (plan(vec![load]), false)
        };
        return Ok(spec.connections.0.iter().map(at).collect());
    }
    let specs = scenario.loads.iter();
    let made = specs
        .map(|spec| load_for(spec, running))
        .collect::<Result<Vec<_>, _>>()?;
    let alone = scenario
        .loads
        .iter()
        .zip(&made)
        .filter(|(spec, _)| spec.alone);
    let alone = alone.map(|(_, load)| Load {
        name: alone_load_name(&load.name),
        ..load.clone()
    });
    let mut plans: Vec<_> = alone.map(|load| (plan(vec![load]), true)).collect();
    plans.push((plan(made), false));
    Ok(plans)
}

/// Builds a load with its first number of connections for a deployment.
fn load_for(spec: &LoadSpec, running: &RunningDeployment) -> Result<Load, TargetError> {
    let values = &running.values;
    let template = RequestTemplate {
        method: spec.method.clone(),
        headers: spec.headers.clone(),
        body: spec.read_body(values)?.map(Bytes::from),
        keep_alive: spec.keepalive,
    };
    Ok(Load {
        name: spec.name.clone(),
        requests: running
            .target()
            .encode_requests(&spec.read_paths(values)?, &template)?,
        order: spec.order,
        connections: spec.connections.0[0],
        rate: spec.rate,
        keep_alive: spec.keepalive,
        timeout: spec.timeout,
    })
}
