//! `bench sweep`: the same load at a series of concurrencies.
//!
//! Each point is its own window: connections are opened anew, the warm-up is not counted, and a
//! pause follows, so that neither the ramp nor the previous point is part of a figure.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::command::{OutputArguments, SweepArguments, VerbResult};
use crate::connection_steps::ConnectionSteps;
use crate::deploy::resource_usage::ResourceUsage;
use crate::live_line::LiveLine;
use crate::load::{Load, WindowEnd};
use crate::report::{ReportResult, Sweep};
use crate::run::{base_load, exit_code, load_plan, server_processes};
use crate::text::notes;
use crate::window::{MeasurementWindow, measure_window};
use crate::{context, output};

/// The default number of requests per point.
const DEFAULT_REQUESTS: u64 = 1000;

/// The default step between two points, as is usual with ApacheBench.
const DEFAULT_STEP: u32 = 10;

pub(crate) fn run(arguments: &SweepArguments) -> VerbResult {
    let started = SystemTime::now();
    let ladder = connection_steps(arguments)?;
    let base = base_load(&arguments.request)?;
    let until = WindowEnd::from_options(arguments.requests, arguments.duration)
        .unwrap_or(WindowEnd::Requests(DEFAULT_REQUESTS));
    let account = server_processes(&arguments.generator)?;
    let mut live = LiveLine::new(arguments.generator.quiet)?;
    let mut points = Vec::new();
    let mut reasons = Vec::new();
    let count = ladder.0.len();
    for (at, &connections) in ladder.0.iter().enumerate() {
        let load = Load {
            connections,
            rate: arguments.rate,
            ..base.clone()
        };
        let plan = load_plan(
            vec![load],
            until,
            arguments.warm_up,
            &arguments.generator,
            &live,
        );
        let label = format!("[{}/{count}] {connections} connections", at + 1);
        let window = MeasurementWindow {
            usage: account.as_ref().map(|known| known as &dyn ResourceUsage),
            cores: &[],
            live: &mut live,
            label: &label,
        };
        let point = match measure_window(&plan, window) {
            Ok(point) => point,
            // The results so far are worth keeping.
            Err(error) if !points.is_empty() => {
                live.print_line(&format!("{label}: {error}"));
                reasons.push(format!("{label}: {error}"));
                break;
            }
            Err(error) => return Err(error.into()),
        };
        // A window that ended before it began is no point.
        if !live.is_stopped() || point.loads.iter().any(|load| load.requests > 0) {
            points.push(point);
        }
        if live.is_stopped() {
            break;
        }
        if at + 1 < count {
            cool_down(arguments.cool_down, &live);
        }
    }
    let loads = points.iter().flat_map(|point| &point.loads);
    reasons.extend(loads.flat_map(notes::failure_reasons));
    let targets = arguments.request.urls.clone();
    let outcome = ReportResult::Sweep(Sweep { targets, points });
    let headers = &arguments.request.headers;
    let report = context::report_with_context(outcome, started, live.is_stopped(), headers);
    live.clear_line();
    output::write_report(&report, &output_files(arguments))?;
    Ok(exit_code(&reasons, &live))
}

/// Waits for a while, or until the user wants to end.
#[expect(clippy::disallowed_methods, reason = "a command line tool, not a loop")]
pub(crate) fn cool_down(time: Duration, live: &LiveLine) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if live.is_stopped() || left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

fn connection_steps(arguments: &SweepArguments) -> Result<ConnectionSteps, String> {
    let (from, to) = (arguments.from, arguments.to);
    if from > to {
        return Err(format!("--from {from} is beyond --to {to}"));
    }
    match arguments.factor {
        Some(factor) => ConnectionSteps::by_factor(from, to, factor),
        None => ConnectionSteps::by_step(from, to, arguments.step.unwrap_or(DEFAULT_STEP)),
    }
}

fn output_files(arguments: &SweepArguments) -> OutputArguments {
    let named = |extension: &str| -> Option<PathBuf> {
        let mut name = arguments.output.clone().into_os_string();
        name.push(extension);
        Some(name.into())
    };
    OutputArguments {
        json: named(".json"),
        html: named(".html"),
        csv: named(".csv"),
        svg: None,
    }
}
