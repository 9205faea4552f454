//! `bench sweep`: the same load at a series of concurrencies.
//!
//! Each point is its own window: connections are opened anew, the warm-up is not counted, and a
//! pause follows, so that neither the ramp nor the previous point is part of a figure.

use std::path::PathBuf;

use crate::command::{OutputArguments, SweepArguments, VerbResult};
use crate::connection_steps::ConnectionSteps;
use crate::load::{Load, WindowEnd};
use crate::report::{ReportResult, Sweep};
use crate::run::{MeasurementPlan, base_load};

/// The default number of requests per point.
const DEFAULT_REQUESTS: u64 = 1000;

/// The default step between two points, as is usual with ApacheBench.
const DEFAULT_STEP: u32 = 10;

pub(crate) fn run(arguments: &SweepArguments) -> VerbResult {
    let steps = connection_steps(arguments)?.0;
    let base = base_load(&arguments.request)?;
    let point = |(at, connections)| {
        let label = format!("[{}/{}] {connections} connections", at + 1, steps.len());
        let load = Load {
            connections,
            rate: arguments.rate,
            ..base.clone()
        };
        (label, vec![load])
    };
    let measurement = MeasurementPlan {
        points: steps.iter().copied().enumerate().map(point).collect(),
        until: WindowEnd::from_options(arguments.requests, arguments.duration)
            .unwrap_or(WindowEnd::Requests(DEFAULT_REQUESTS)),
        warm_up: arguments.warm_up,
        cool_down: arguments.cool_down,
        request: &arguments.request,
        generator: &arguments.generator,
    };
    measurement.measure_and_report(&output_files(arguments), |targets, points| {
        ReportResult::Sweep(Sweep { targets, points })
    })
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
