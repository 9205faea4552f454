//! `bench run` and `bench mix`: one load, or several at once, on a running server.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::command::{
    EXIT_FAILED, EXIT_INTERRUPTED, GeneratorArguments, MixArguments, OrderArgument,
    OutputArguments, RequestArguments, RunArguments,
};
use crate::deploy;
use crate::deploy::resource_usage::{ProcessTree, ResourceUsage};
use crate::live_line::LiveLine;
use crate::load::{ArrivalModel, EncodedRequest, Load, LoadPlan, RequestOrder, WindowEnd};
use crate::report::{Figures, Mix, ReportResult, Run};
use crate::target::{RequestTemplate, Target, TargetError, read_file, read_header, read_paths};
use crate::text::notes;
use crate::window::{MeasurementWindow, measure_window};
use crate::{context, output};

/// Maximum time for a response of an admin interface.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The duration of a run without another limit.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode, String> {
    let load = Load {
        connections: arguments.connections,
        arrivals: arrival_model(arguments.rate),
        ..base_load(&arguments.request)?
    };
    let until = window_end(arguments.requests, arguments.duration)
        .unwrap_or(WindowEnd::Elapsed(DEFAULT_DURATION));
    let plan = |live: &LiveLine| {
        load_plan(
            vec![load],
            until,
            arguments.warm_up,
            &arguments.generator,
            live,
        )
    };
    let targets = arguments.request.urls.clone();
    measure_and_report(
        plan,
        &arguments.generator,
        &arguments.output,
        |mut loads, server| {
            let figures = loads.pop().unwrap_or_default();
            ReportResult::Run(Box::new(Run {
                targets,
                figures,
                server,
            }))
        },
    )
}

pub(crate) fn mix(arguments: &MixArguments) -> Result<ExitCode, String> {
    let read = |text: &String| parse_mix_load(text, &arguments.request);
    let loads = arguments
        .loads
        .iter()
        .map(read)
        .collect::<Result<Vec<_>, _>>()?;
    let until = WindowEnd::Elapsed(arguments.duration);
    let plan =
        |live: &LiveLine| load_plan(loads, until, arguments.warm_up, &arguments.generator, live);
    let targets = arguments.request.urls.clone();
    measure_and_report(
        plan,
        &arguments.generator,
        &arguments.output,
        |loads, server| {
            ReportResult::Mix(Mix {
                targets,
                loads,
                server,
            })
        },
    )
}

/// Executes and reports; returns the exit code.
fn measure_and_report(
    plan: impl FnOnce(&LiveLine) -> LoadPlan,
    generator: &GeneratorArguments,
    to: &OutputArguments,
    outcome: impl FnOnce(Vec<Figures>, Option<crate::report::ServerCost>) -> ReportResult,
) -> Result<ExitCode, String> {
    let started = SystemTime::now();
    let account = server_processes(generator)?;
    let mut live = LiveLine::new(generator.quiet).map_err(|error| error.to_string())?;
    let plan = plan(&live);
    let window = MeasurementWindow {
        usage: account.as_ref().map(|known| known as &dyn ResourceUsage),
        cores: &[],
        live: &mut live,
        label: "",
    };
    let point = measure_window(&plan, window).map_err(|error| error.to_string())?;
    let reasons: Vec<String> = point
        .loads
        .iter()
        .flat_map(notes::failure_reasons)
        .collect();
    let report = context::report_with_context(
        outcome(point.loads, point.server),
        started,
        live.is_stopped(),
    );
    output::write_report(&report, to)?;
    Ok(exit_code(&reasons, &live))
}

/// Maximum reasons printed for an exit code.
const MAX_REASONS: usize = 8;

/// The exit code of a run; reasons other than success go to standard error.
pub(crate) fn exit_code(reasons: &[String], live: &LiveLine) -> ExitCode {
    if live.is_stopped() {
        return ExitCode::from(EXIT_INTERRUPTED);
    }
    if reasons.is_empty() {
        return ExitCode::SUCCESS;
    }
    let mut told = reasons[..reasons.len().min(MAX_REASONS)].join("; ");
    if let more @ 1.. = reasons.len().saturating_sub(MAX_REASONS) {
        told += &format!("; and {more} more");
    }
    output::print_error(&format!("bench: exit code {EXIT_FAILED}: {told}"));
    ExitCode::from(EXIT_FAILED)
}

/// The server's processes, if known.
pub(crate) fn server_processes(
    generator: &GeneratorArguments,
) -> Result<Option<ProcessTree>, String> {
    let pid = match (generator.pid, &generator.admin) {
        (Some(pid), _) => pid,
        (None, Some(admin)) => pid_of_admin(admin)?,
        (None, None) => return Ok(None),
    };
    let found = ProcessTree::from_pid(pid);
    found
        .map(Some)
        .ok_or_else(|| format!("no such process: {pid}"))
}

/// Asks a Penstock's admin interface for its process ID.
fn pid_of_admin(admin: &str) -> Result<u32, String> {
    let url = match admin.contains(':') {
        true => admin.to_owned(),
        false => format!("127.0.0.1:{admin}"),
    };
    let target = Target::read(&url, None).map_err(|error| error.to_string())?;
    let target = target.with_path("/status.json");
    let answer = deploy::fetch_body(&target, ADMIN_TIMEOUT);
    let answer = answer.map_err(|error| format!("{admin}: {error}"))?;
    let status: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
    let pid = status["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    pid.ok_or_else(|| format!("{admin}: not the admin interface of a Penstock"))
}

/// Builds the plan of these loads.
pub(crate) fn load_plan(
    loads: Vec<Load>,
    until: WindowEnd,
    warm_up: Duration,
    generator: &GeneratorArguments,
    live: &LiveLine,
) -> LoadPlan {
    LoadPlan {
        loads,
        window_end: until,
        warm_up,
        threads: usize::from(generator.threads),
        core: generator.core,
        stop: live.stop(),
    }
}

pub(crate) fn arrival_model(rate: Option<f64>) -> ArrivalModel {
    rate.map_or(ArrivalModel::ClosedLoop, ArrivalModel::OpenLoop)
}

pub(crate) fn window_end(requests: Option<u64>, duration: Option<Duration>) -> Option<WindowEnd> {
    let requests = requests.map(WindowEnd::Requests);
    requests.or_else(|| duration.map(WindowEnd::Elapsed))
}

/// Builds a load of one connection for the requests of the arguments.
pub(crate) fn base_load(arguments: &RequestArguments) -> Result<Load, String> {
    let shapes = encode_requests(arguments).map_err(|error| error.to_string())?;
    Ok(Load {
        name: String::new(),
        requests: shapes,
        order: arguments.order.into(),
        connections: 1,
        arrivals: ArrivalModel::ClosedLoop,
        keep_alive: !arguments.no_keepalive,
        timeout: arguments.timeout,
    })
}

fn encode_requests(arguments: &RequestArguments) -> Result<Vec<EncodedRequest>, TargetError> {
    let template = request_template(arguments)?;
    let targets = targets(arguments)?;
    if let Some(file) = &arguments.paths {
        let [target] = &targets[..] else {
            return Err(TargetError::Request("--paths goes with one URL".to_owned()));
        };
        let paths = read_paths(file)?;
        let shapes = paths
            .iter()
            .map(|path| target.with_path(path).encode_request(&template, 1));
        return shapes.collect();
    }
    let weights = &arguments.weights;
    if !weights.is_empty() && weights.len() != targets.len() || weights.contains(&0) {
        let what = "--weights has one number, not 0, for each URL";
        return Err(TargetError::Request(what.to_owned()));
    }
    let weight = |at: usize| weights.get(at).copied().unwrap_or(1);
    let shapes = targets.iter().enumerate();
    shapes
        .map(|(at, target)| target.encode_request(&template, weight(at)))
        .collect()
}

fn targets(arguments: &RequestArguments) -> Result<Vec<Target>, TargetError> {
    let urls = arguments.urls.iter();
    urls.map(|url| Target::read(url, arguments.unix.as_deref()))
        .collect()
}

fn request_template(arguments: &RequestArguments) -> Result<RequestTemplate, TargetError> {
    let headers = arguments.headers.iter().map(|text| read_header(text));
    let body = arguments.body.as_deref().map(read_file).transpose()?;
    Ok(RequestTemplate {
        method: arguments.method.clone(),
        headers: headers.collect::<Result<_, _>>()?,
        body: body.map(Bytes::from),
        keep_alive: !arguments.no_keepalive,
    })
}

/// Parses `name=hot c=50 path=/hot`; the command's own arguments are the defaults.
fn parse_mix_load(text: &str, arguments: &RequestArguments) -> Result<Load, String> {
    let wrong = |what: &str| format!("--load `{text}`: {what}");
    let own = |error: TargetError| wrong(&error.to_string());
    let mut load = base_load(arguments)?;
    load.name = text.to_owned();
    let template = request_template(arguments).map_err(own)?;
    let target = targets(arguments).map_err(own)?.remove(0);
    let mut counted = false;
    for part in text.split_whitespace() {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| wrong("expected key=value"))?;
        let number = || value.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 1e7);
        match key {
            "name" => value.clone_into(&mut load.name),
            "c" | "connections" => {
                let count = value.parse().ok().filter(|&count| count > 0);
                load.connections = count.ok_or_else(|| wrong("c is a number of connections"))?;
                counted = true;
            }
            "path" => {
                load.requests = vec![
                    target
                        .with_path(value)
                        .encode_request(&template, 1)
                        .map_err(own)?,
                ];
            }
            "paths" => {
                let paths = read_paths(value.as_ref()).map_err(own)?;
                let shapes = paths
                    .iter()
                    .map(|path| target.with_path(path).encode_request(&template, 1));
                load.requests = shapes.collect::<Result<_, _>>().map_err(own)?;
            }
            "order" => {
                load.order =
                    parse_order(value).ok_or_else(|| wrong("order is random or sequence"))?;
            }
            "rate" => {
                load.arrivals =
                    ArrivalModel::OpenLoop(number().ok_or_else(|| wrong("rate is a number"))?);
            }
            _ => {
                return Err(wrong(&format!(
                    "`{key}` is not one of name, c, path, paths, order, rate"
                )));
            }
        }
    }
    match counted {
        true => Ok(load),
        false => Err(wrong("c=CONNECTIONS is missing")),
    }
}

fn parse_order(text: &str) -> Option<RequestOrder> {
    match text {
        "random" => Some(OrderArgument::Random.into()),
        "sequence" => Some(OrderArgument::Sequence.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> RequestArguments {
        RequestArguments {
            urls: vec!["http://127.0.0.1:81/".to_owned()],
            weights: Vec::new(),
            unix: None,
            paths: None,
            order: OrderArgument::Random,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: None,
            no_keepalive: false,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn reads_the_loads_of_a_mix() {
        let load = parse_mix_load(
            "name=hot c=50 path=/hot order=sequence rate=10.5",
            &arguments(),
        );
        let load = load.unwrap();
        assert_eq!((&*load.name, load.connections), ("hot", 50));
        assert_eq!(
            (load.order, load.arrivals),
            (RequestOrder::InOrder, ArrivalModel::OpenLoop(10.5))
        );
        assert!(load.requests[0].bytes.starts_with(b"GET /hot HTTP/1.1\r\n"));
        for wrong in [
            "c=0",
            "c=x",
            "path=/",
            "c=1 path=hot",
            "c=1 speed=2",
            "c=1 rate=0",
            "c",
        ] {
            assert!(parse_mix_load(wrong, &arguments()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn weights_belong_to_urls() {
        let mut two = arguments();
        two.urls.push("http://127.0.0.1:82/b".to_owned());
        assert_eq!(base_load(&two).unwrap().requests[1].weight, 1);
        two.weights = vec![3, 1];
        assert_eq!(base_load(&two).unwrap().requests[0].weight, 3);
        for wrong in [vec![1], vec![1, 0], vec![1, 2, 3]] {
            two.weights = wrong;
            assert!(base_load(&two).is_err(), "{:?}", two.weights);
        }
    }
}
