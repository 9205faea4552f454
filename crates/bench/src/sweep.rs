//! `bench sweep`: the same load at one concurrency after the other.
//!
//! Each point is a window of its own: connections are opened anew, a warm-up is not counted, and a
//! pause follows, so that neither the ramp nor the point before is part of a figure.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use crate::command::{OutputArguments, SweepArguments};
use crate::deploy::account::Account;
use crate::ladder::Ladder;
use crate::live::Live;
use crate::load::{Load, Until};
use crate::report::{Outcome, Sweep};
use crate::run::{exit_code, load, pace, plan, server, until};
use crate::text::notes;
use crate::window::{Window, measure};
use crate::{output, taken};

/// Requests at each point when nothing else is said.
const REQUESTS: u64 = 1000;

/// Between two points, unless the step is given, as ApacheBench sweeps have long been made.
const STEP: u32 = 10;

pub(crate) fn run(arguments: &SweepArguments) -> Result<ExitCode, String> {
    let started = SystemTime::now();
    let ladder = ladder(arguments)?;
    let base = load(&arguments.request)?;
    let until = until(arguments.requests, arguments.duration).unwrap_or(Until::Requests(REQUESTS));
    let account = server(&arguments.generator)?;
    let mut live = Live::new(arguments.generator.quiet).map_err(|error| error.to_string())?;
    let mut points = Vec::new();
    let mut reasons = Vec::new();
    let count = ladder.0.len();
    for (at, &connections) in ladder.0.iter().enumerate() {
        let load = Load {
            connections,
            pace: pace(arguments.rate),
            ..base.clone()
        };
        let plan = plan(
            vec![load],
            until,
            arguments.warm_up,
            &arguments.generator,
            &live,
        );
        let label = format!("[{}/{count}] {connections} connections", at + 1);
        let window = Window {
            account: account.as_ref().map(|known| known as &dyn Account),
            cores: &[],
            live: &mut live,
            label: &label,
        };
        let point = match measure(&plan, window) {
            Ok(point) => point,
            // What was measured so far is worth keeping.
            Err(error) if !points.is_empty() => {
                live.say(&format!("{label}: {error}"));
                reasons.push(format!("{label}: {error}"));
                break;
            }
            Err(error) => return Err(error.to_string()),
        };
        // A window that was ended before it began is no point.
        if !live.is_stopped() || point.loads.iter().any(|load| load.requests > 0) {
            points.push(point);
        }
        if live.is_stopped() {
            break;
        }
        if at + 1 < count {
            pause(arguments.cool_down, &live);
        }
    }
    let loads = points.iter().flat_map(|point| &point.loads);
    reasons.extend(loads.flat_map(notes::reasons));
    let targets = arguments.request.urls.clone();
    let outcome = Outcome::Sweep(Sweep { targets, points });
    let report = taken::report(outcome, started, live.is_stopped());
    live.clear();
    output::give(&report, &outputs(arguments))?;
    Ok(exit_code(&reasons, &live))
}

/// Nothing, for a while or until the user wants to end.
#[expect(clippy::disallowed_methods, reason = "a command line tool, not a loop")]
pub(crate) fn pause(time: Duration, live: &Live) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if live.is_stopped() || left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

fn ladder(arguments: &SweepArguments) -> Result<Ladder, String> {
    let (from, to) = (arguments.from, arguments.to);
    if from > to {
        return Err(format!("--from {from} is beyond --to {to}"));
    }
    Ok(match arguments.factor {
        Some(factor) => Ladder::factors(from, to, factor),
        None => Ladder::steps(from, to, arguments.step.unwrap_or(STEP)),
    })
}

fn outputs(arguments: &SweepArguments) -> OutputArguments {
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
