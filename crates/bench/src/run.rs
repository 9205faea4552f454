//! `bench run` and `bench mix`: one load, or several at once, on a running server.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use clap::Parser;
use penstock_client::{Client, ClientError};
use penstock_runtime::loops::block_on;

use crate::command::{
    EXIT_FAILED, EXIT_INTERRUPTED, GeneratorArguments, MixArguments, OutputArguments,
    RequestArguments, RunArguments, VerbResult, parse_rate,
};
use crate::deploy::resource_usage::{ProcessTree, ResourceUsage};
use crate::live_line::LiveLine;
use crate::load::{EncodedRequest, Load, LoadPlan, RequestOrder, WindowEnd};
use crate::report::{LoadFigures, Mix, Point, ReportResult, Run, ServerCost};
use crate::target::{RequestTemplate, Target, TargetError, parse_headers, read_file, read_paths};
use crate::text::notes;
use crate::tls::TlsClient;
use crate::window::{WindowMonitor, measure_window};
use crate::{context, output};

/// Maximum time for a response of an admin interface.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);

/// More than the status of any server.
const MAX_STATUS_BYTES: usize = 64 << 20;

/// The duration of a run without another limit.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &RunArguments) -> VerbResult {
    let load = Load {
        connections: arguments.connections,
        rate: arguments.rate,
        ..base_load(&arguments.request)?
    };
    let until = WindowEnd::from_options(arguments.requests, arguments.duration)
        .unwrap_or(WindowEnd::Elapsed(DEFAULT_DURATION));
    let measurement = MeasurementPlan {
        points: vec![(String::new(), vec![load])],
        until,
        warm_up: arguments.warm_up,
        cool_down: Duration::ZERO,
        request: &arguments.request,
        generator: &arguments.generator,
    };
    measurement.measure_and_report(&arguments.output, |targets, points| {
        let (mut loads, server) = only_point(points);
        ReportResult::Run(Box::new(Run {
            targets,
            figures: loads.pop().unwrap_or_default(),
            server,
        }))
    })
}

pub(crate) fn mix(arguments: &MixArguments) -> VerbResult {
    let loads = arguments.loads.iter();
    let loads = loads.map(|text| parse_mix_load(text, &arguments.request));
    let loads = loads.collect::<Result<Vec<_>, _>>()?;
    let measurement = MeasurementPlan {
        points: vec![(String::new(), loads)],
        until: WindowEnd::Elapsed(arguments.duration),
        warm_up: arguments.warm_up,
        cool_down: Duration::ZERO,
        request: &arguments.request,
        generator: &arguments.generator,
    };
    measurement.measure_and_report(&arguments.output, |targets, points| {
        let (loads, server) = only_point(points);
        ReportResult::Mix(Mix {
            targets,
            loads,
            server,
        })
    })
}

fn only_point(mut points: Vec<Point>) -> (Vec<LoadFigures>, Option<ServerCost>) {
    let point = points.pop();
    point.map_or_else(Default::default, |point| (point.loads, point.server))
}

/// The loads to measure on a running server: one point, or several after one another.
pub(crate) struct MeasurementPlan<'a> {
    /// The label and the loads of each point.
    pub(crate) points: Vec<(String, Vec<Load>)>,
    pub(crate) until: WindowEnd,
    pub(crate) warm_up: Duration,
    /// A pause between two points.
    pub(crate) cool_down: Duration,
    pub(crate) request: &'a RequestArguments,
    pub(crate) generator: &'a GeneratorArguments,
}

impl MeasurementPlan<'_> {
    /// Measures all points, and reports the result of targets and points; returns the exit code.
    pub(crate) fn measure_and_report(
        self,
        output: &OutputArguments,
        result: impl FnOnce(Vec<String>, Vec<Point>) -> ReportResult,
    ) -> VerbResult {
        let started = SystemTime::now();
        let account = server_processes(self.generator)?;
        let mut live = LiveLine::new(self.generator.quiet)?;
        let (mut points, mut reasons) = (Vec::new(), Vec::new());
        let is_only = self.points.len() == 1;
        for (at, (label, loads)) in self.points.into_iter().enumerate() {
            if at > 0 {
                live.sleep_unless_stopped(self.cool_down);
            }
            if live.is_stop_requested() && at > 0 {
                break;
            }
            let plan = LoadPlan {
                loads,
                window_end: self.until,
                warm_up: self.warm_up,
                threads: usize::from(self.generator.threads),
                core: self.generator.core,
                stop: live.stop_flag(),
            };
            let window = WindowMonitor {
                usage: account.as_ref().map(|known| known as &dyn ResourceUsage),
                cores: &[],
                live: &mut live,
                label: &label,
            };
            match measure_window(&plan, window) {
                Ok(point) => {
                    let is_empty = point.loads.iter().all(|load| load.requests == 0);
                    // Of several points, one that ended before its window began is none.
                    if is_only || !is_empty || !live.is_stop_requested() {
                        points.push(point);
                    }
                }
                // The results so far are worth keeping.
                Err(error) if !points.is_empty() => {
                    live.print_line(&format!("{label}: {error}"));
                    reasons.push(format!("{label}: {error}"));
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let loads = points.iter().flat_map(|point| &point.loads);
        reasons.extend(loads.flat_map(notes::failure_reasons));
        let result = result(self.request.urls.clone(), points);
        let headers = &self.request.headers;
        let report =
            context::report_with_context(result, started, live.is_stop_requested(), headers);
        output::write_report(&report, output)?;
        Ok(exit_code(&reasons, &live))
    }
}

/// Maximum reasons printed for an exit code.
const MAX_REASONS: usize = 8;

/// The exit code of a run; reasons other than success go to standard error.
pub(crate) fn exit_code(reasons: &[String], live: &LiveLine) -> ExitCode {
    if live.is_stop_requested() {
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
fn server_processes(generator: &GeneratorArguments) -> Result<Option<ProcessTree>, Box<dyn Error>> {
    let pid = match (generator.pid, &generator.admin) {
        (Some(pid), _) => pid,
        (None, Some(admin)) => pid_of_admin(admin)?,
        (None, None) => return Ok(None),
    };
    let found = ProcessTree::from_pid(pid);
    Ok(Some(
        found.ok_or_else(|| format!("no such process: {pid}"))?,
    ))
}

/// Asks a Penstock's admin interface for its process ID.
fn pid_of_admin(admin: &str) -> Result<u32, Box<dyn Error>> {
    let url = match admin.contains(':') {
        true => admin.to_owned(),
        false => format!("127.0.0.1:{admin}"),
    };
    let target = Target::from_url(&url, None, &TlsClient::default())?.with_path("/status.json");
    let request = target.encode_request(&RequestTemplate::default(), 1)?.bytes;
    let mut client = Client::new(target.address).with_tls(target.tls);
    let answer = block_on(client.exchange(&request, ADMIN_TIMEOUT, MAX_STATUS_BYTES));
    let answer = answer.map_err(ClientError::Connect).flatten();
    let answer = answer.map_err(|error| format!("{admin}: {error}"))?;
    if answer.status != 200 {
        return Err(format!("{admin}: status {}", answer.status).into());
    }
    let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let pid = status["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    Ok(pid.ok_or_else(|| format!("{admin}: not the admin interface of a Penstock"))?)
}

/// Builds a load of one connection for the requests of the arguments.
pub(crate) fn base_load(arguments: &RequestArguments) -> Result<Load, TargetError> {
    Ok(Load {
        name: String::new(),
        requests: encode_requests(arguments)?,
        order: arguments.order,
        connections: 1,
        rate: None,
        keep_alive: !arguments.no_keepalive,
        timeout: arguments.timeout,
    })
}

fn encode_requests(arguments: &RequestArguments) -> Result<Vec<EncodedRequest>, TargetError> {
    let template = request_template(arguments)?;
    let targets = targets(arguments)?;
    if let Some(file) = &arguments.paths {
        let [target] = &targets[..] else {
            return Err(TargetError("--paths goes with one URL".to_owned()));
        };
        return target.encode_requests(&read_paths(file)?, &template);
    }
    let weights = &arguments.weights;
    if !weights.is_empty() && weights.len() != targets.len() || weights.contains(&0) {
        let what = "--weights has one number, not 0, for each URL";
        return Err(TargetError(what.to_owned()));
    }
    let weight = |at: usize| weights.get(at).copied().unwrap_or(1);
    let shapes = targets.iter().enumerate();
    shapes
        .map(|(at, target)| target.encode_request(&template, weight(at)))
        .collect()
}

fn targets(arguments: &RequestArguments) -> Result<Vec<Target>, TargetError> {
    let client = TlsClient::new(arguments.tls.settings()?);
    let urls = arguments.urls.iter();
    urls.map(|url| Target::from_url(url, arguments.unix.as_deref(), &client))
        .collect()
}

fn request_template(arguments: &RequestArguments) -> Result<RequestTemplate, TargetError> {
    let body = arguments.body.as_deref().map(read_file).transpose()?;
    Ok(RequestTemplate {
        method: arguments.method.clone(),
        headers: parse_headers(&arguments.headers)?,
        body: body.map(Bytes::from),
        keep_alive: !arguments.no_keepalive,
    })
}

/// One load of a mix, in addition to the command's own arguments.
#[derive(Parser)]
#[command(
    no_binary_name = true,
    disable_help_flag = true,
    override_usage = "c=N [name=NAME] [path=PATH | paths=FILE] [order=random|sequence] [rate=N]"
)]
struct MixLoad {
    #[arg(long)]
    name: Option<String>,
    #[arg(long, alias = "c", value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    #[arg(long)]
    path: Option<String>,
    #[arg(long, conflicts_with = "path")]
    paths: Option<PathBuf>,
    #[arg(long)]
    order: Option<RequestOrder>,
    #[arg(long, value_parser = parse_rate)]
    rate: Option<f64>,
}

/// Parses `name=hot c=50 path=/hot`; the command's own arguments are the defaults.
fn parse_mix_load(text: &str, arguments: &RequestArguments) -> Result<Load, String> {
    let words = text.split_whitespace().map(|word| format!("--{word}"));
    let given =
        MixLoad::try_parse_from(words).map_err(|error| format!("--load `{text}`: {error}"))?;
    let wrong = |error: TargetError| format!("--load `{text}`: {error}");
    let mut load = base_load(arguments).map_err(wrong)?;
    let file = given
        .paths
        .as_deref()
        .map(read_paths)
        .transpose()
        .map_err(wrong)?;
    if let Some(paths) = given.path.map(|path| vec![path]).or(file) {
        let template = request_template(arguments).map_err(wrong)?;
        let target = targets(arguments).map_err(wrong)?.remove(0);
        load.requests = target.encode_requests(&paths, &template).map_err(wrong)?;
    }
    Ok(Load {
        name: given.name.unwrap_or_else(|| text.to_owned()),
        order: given.order.unwrap_or(load.order),
        connections: given.connections,
        rate: given.rate,
        ..load
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::TlsArguments;

    fn arguments() -> RequestArguments {
        RequestArguments {
            urls: vec!["http://127.0.0.1:81/".to_owned()],
            weights: Vec::new(),
            unix: None,
            paths: None,
            order: RequestOrder::Random,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: None,
            no_keepalive: false,
            timeout: Duration::from_secs(1),
            tls: TlsArguments::default(),
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
            (load.order, load.rate),
            (RequestOrder::Sequence, Some(10.5))
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
