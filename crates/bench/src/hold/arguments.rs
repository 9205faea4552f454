//! The arguments of `bench hold`: makes a [`HoldPlan`], and the report once it is executed.
//!
//! `command` has the verb. All arguments are checked before anything is opened; errors name the
//! remedy.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use super::agent_protocol::{SourceRange, StreamTarget};
use super::coordinator::execute;
use super::open_loop::OpenLoopSettings;
use super::plan::HoldPlan;
use super::probe::ProbeSpec;
use super::publisher::{MESSAGE_PLACEHOLDER, PublishSpec};
use super::source_addresses;
use crate::command::{OutputArguments, VerbResult, parse_duration, parse_rate};
use crate::deploy::resource_usage::{ProcessTree, process_trees_matching};
use crate::live_line::LiveLine;
use crate::load::{Address, EncodedRequest};
use crate::report::ReportResult;
use crate::run::exit_code;
use crate::target::{RequestTemplate, Target, parse_headers};
use crate::text::progress::hold_progress_line;
use crate::tls::{TlsArguments, TlsClient};
use crate::{context, output};

/// What `hold` takes.
#[derive(Debug, Args)]
pub struct HoldArguments {
    /// Where a stream is asked for: `http://HOST:PORT/PATH` or `https://...`; streams are spread
    /// evenly over several
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// Streams
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000_000))]
    pub(crate) streams: u32,
    /// Streams opened a second
    #[arg(long, default_value = "1000", value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: f64,
    /// How long they are held once all are open
    #[arg(long = "for", default_value = "1m", value_parser = parse_hold, value_name = "TIME")]
    pub(crate) hold: Duration,
    /// Within this time each must hear something; 0s asks for nothing
    #[arg(long, default_value = "15s", value_parser = parse_hold, value_name = "TIME")]
    pub(crate) heartbeat: Duration,
    /// What it is given beyond that
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) grace: Duration,
    /// How long a connection, its TLS handshake and the head of its response may take together
    #[arg(long, default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
    /// A header field of the streams' requests; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// Source addresses: A,B or A-B or A/BITS [default: as many of 127.64.0.0/10 as are needed, for
    /// servers on the loopback]
    #[arg(long, value_name = "ADDRESSES")]
    pub(crate) from: Option<String>,
    /// Processes that hold the streams [default: as few as the limit of descriptors allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) agents: Option<u32>,
    /// Once all are open, so many streams a second are closed and opened again
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) churn: Option<f64>,
    /// One in so many streams never reads behind its head
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) unread: Option<u32>,
    #[command(flatten)]
    pub(crate) publish: PublishArguments,
    /// Meanwhile this is asked for, at --probe-rate
    #[arg(long, value_name = "URL")]
    pub(crate) probe: Option<String>,
    /// Requests a second
    #[arg(long, default_value = "100", value_name = "N", value_parser = parse_rate)]
    pub(crate) probe_rate: f64,
    /// The server's processes, children included: their memory and CPU time are measured
    #[arg(long, value_delimiter = ',', value_name = "PID,PID")]
    pub(crate) server_pid: Vec<u32>,
    /// The same for all processes whose command line contains this
    #[arg(long, value_name = "TEXT", conflicts_with = "server_pid")]
    pub(crate) server_match: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArguments,
    /// No live line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// What is published while the streams are held.
#[derive(Debug, Args)]
pub struct PublishArguments {
    /// Publish numbered messages here, as JSON of GRIP unless --publish-body says otherwise
    #[arg(long = "publish", value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The channel that the streams hear
    #[arg(long, default_value = "test", value_name = "NAME")]
    pub(crate) channel: String,
    /// Messages a second
    #[arg(long, default_value = "1", value_name = "N", value_parser = parse_rate)]
    pub(crate) publish_rate: f64,
    /// A header field of publishing; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    pub(crate) publish_header: Vec<String>,
    /// What is posted: {message} is replaced by the message, a word without anything to escape
    #[arg(long, value_name = "TEXT")]
    pub(crate) publish_body: Option<String>,
}

/// Opens, holds and reports; returns the exit code.
pub(crate) fn run(arguments: &HoldArguments) -> VerbResult {
    let started = SystemTime::now();
    let mut live = LiveLine::new(arguments.quiet)?;
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let plan = hold_plan(arguments, &live, descriptors)?;
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut shown: Option<Instant> = None;
    let mut watch = |progress: &super::HoldProgress| {
        if shown.is_none_or(|shown| shown.elapsed() >= LIVE_INTERVAL) {
            shown = Some(Instant::now());
            live.show_line(&hold_progress_line(progress));
        }
    };
    let hold = execute(&plan, &program, &mut watch);
    live.clear_line();
    let hold = hold?;
    let reasons = hold.reasons();
    let headers = [&arguments.headers[..], &arguments.publish.publish_header].concat();
    let result = ReportResult::Hold(Box::new(hold));
    let report = context::report_with_context(result, started, live.is_stop_requested(), &headers);
    output::write_report(&report, &arguments.output)?;
    Ok(exit_code(&reasons, &live))
}

fn hold_plan(
    arguments: &HoldArguments,
    live: &LiveLine,
    descriptors: Option<u64>,
) -> Result<HoldPlan, String> {
    let tls = arguments.tls.settings()?;
    let client = TlsClient::new(tls.clone());
    let goals = stream_targets(arguments, &client)?;
    let shares = streams_per_agent(arguments.streams, arguments.agents, descriptors)?;
    let sources = agent_sources(arguments, &goals, &shares)?;
    Ok(HoldPlan {
        targets: arguments.urls.clone(),
        stream_targets: goals,
        shares,
        sources,
        rate: arguments.rate,
        hold: arguments.hold,
        heartbeat: (!arguments.heartbeat.is_zero()).then_some(arguments.heartbeat),
        grace: arguments.grace,
        timeout: arguments.timeout,
        churn: arguments.churn.unwrap_or(0.0),
        unread_one_in: arguments.unread,
        publish: publish_spec(arguments, &client)?,
        probe: probe_spec(arguments, &client)?,
        tls,
        servers: server_processes(arguments)?,
        baseline_time: BASELINE_TIME,
        sample_interval: SAMPLE_INTERVAL,
        stop: live.stop_flag(),
    })
}

/// The addresses of the URLs, and the request for each.
fn stream_targets(
    arguments: &HoldArguments,
    client: &TlsClient,
) -> Result<Vec<StreamTarget>, String> {
    let mut headers = parse_headers(&arguments.headers)?;
    if !has_header(&headers, "accept") {
        headers.push(("Accept".to_owned(), "text/event-stream".to_owned()));
    }
    let template = RequestTemplate {
        headers,
        ..RequestTemplate::default()
    };
    let goal = |url: &String| {
        let request = encode_request(url, &template, client)?;
        let Address::Tcp(address) = request.address else {
            return Err(format!("`{url}`: streams are held over TCP"));
        };
        if request.bytes.len() > MAX_REQUEST_BYTES {
            return Err(format!(
                "`{url}`: its request is longer than {MAX_REQUEST_BYTES} bytes"
            ));
        }
        let server_name = request.tls.as_ref().map(|tls| tls.server_name.to_str());
        Ok(StreamTarget {
            address,
            server_name: server_name.map(Into::into),
            request: header_text(url, &request)?,
        })
    };
    arguments.urls.iter().map(goal).collect()
}

fn encode_request(
    url: &str,
    template: &RequestTemplate,
    client: &TlsClient,
) -> Result<EncodedRequest, String> {
    Ok(Target::from_url(url, None, client)?.encode_request(template, 1)?)
}

fn header_text(url: &str, request: &EncodedRequest) -> Result<String, String> {
    let text = String::from_utf8(request.bytes.to_vec());
    text.map_err(|_| format!("`{url}`: header fields must be text"))
}

fn has_header(headers: &[(String, String)], name: &str) -> bool {
    headers
        .iter()
        .any(|(own, _)| own.eq_ignore_ascii_case(name))
}

/// The number of streams per agent, as even as possible.
fn streams_per_agent(
    streams: u32,
    agents: Option<u32>,
    descriptors: Option<u64>,
) -> Result<Vec<u32>, String> {
    let room = descriptors.map_or(u64::MAX, |limit| limit.saturating_sub(SPARE_DESCRIPTORS));
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    if room == 0 {
        return Err("the limit of descriptors is too low: raise it (ulimit -n)".to_owned());
    }
    let least = streams.div_ceil(room);
    let agents = agents.unwrap_or(least).min(streams);
    if agents < least {
        return Err(format!(
            "{streams} streams need {least} agents, since a process may have {room} streams: \
             give --agents {least}, or raise the limit (ulimit -n)"
        ));
    }
    if agents > MAX_AGENTS {
        return Err(format!(
            "{agents} agents are more than {MAX_AGENTS}: raise the limit of descriptors (ulimit -n)"
        ));
    }
    let (each, more) = (streams / agents, streams % agents);
    Ok((0..agents)
        .map(|agent| each + u32::from(agent < more))
        .collect())
}

fn agent_sources(
    arguments: &HoldArguments,
    goals: &[StreamTarget],
    shares: &[u32],
) -> Result<Vec<Vec<SourceRange>>, String> {
    let goals: Vec<SocketAddr> = goals.iter().map(|goal| goal.address).collect();
    let ports = source_addresses::ephemeral_ports();
    match &arguments.from {
        None => source_addresses::automatic_sources(&goals, shares, ports),
        Some(text) => source_addresses::parse_addresses(text, MAX_SOURCES)
            .and_then(|addresses| {
                source_addresses::assign_sources(&addresses, &goals, shares, ports)
            })
            .map_err(|why| format!("--from: {why}")),
    }
}

fn publish_spec(
    arguments: &HoldArguments,
    client: &TlsClient,
) -> Result<Option<PublishSpec>, String> {
    let given = &arguments.publish;
    let Some(url) = &given.url else {
        return Ok(None);
    };
    let mut headers = parse_headers(&given.publish_header)?;
    if !has_header(&headers, "content-type") {
        let kind = match given.publish_body {
            None => "application/json",
            Some(_) => "application/x-www-form-urlencoded",
        };
        headers.push(("Content-Type".to_owned(), kind.to_owned()));
    }
    let body = match &given.publish_body {
        Some(body) if body.contains(MESSAGE_PLACEHOLDER) => body.clone(),
        Some(_) => return Err(format!("--publish-body: no {MESSAGE_PLACEHOLDER} in it")),
        None => grip_body(&given.channel),
    };
    let template = RequestTemplate {
        method: "POST".to_owned(),
        headers,
        ..RequestTemplate::default()
    };
    let request = encode_request(url, &template, client)?;
    let mut head = header_text(url, &request)?;
    // Without the blank line.
    head.truncate(head.trim_end().len() + 2);
    Ok(Some(PublishSpec {
        target: url.clone(),
        open_loop: OpenLoopSettings {
            address: request.address,
            tls: request.tls,
            rate: given.publish_rate,
            timeout: arguments.timeout,
        },
        head,
        body,
        channel: given.channel.clone(),
    }))
}

/// A message in GRIP's format for streams: one event.
fn grip_body(channel: &str) -> String {
    let content = format!("data: {MESSAGE_PLACEHOLDER}\n\n");
    let formats = serde_json::json!({ "http-stream": { "content": content } });
    serde_json::json!({ "items": [{ "channel": channel, "formats": formats }] }).to_string()
}

fn probe_spec(arguments: &HoldArguments, client: &TlsClient) -> Result<Option<ProbeSpec>, String> {
    let Some(url) = &arguments.probe else {
        return Ok(None);
    };
    let request = encode_request(url, &RequestTemplate::default(), client)?;
    Ok(Some(ProbeSpec {
        target: url.clone(),
        open_loop: OpenLoopSettings {
            address: request.address,
            tls: request.tls,
            rate: arguments.probe_rate,
            timeout: PROBE_TIMEOUT,
        },
        request: request.bytes,
    }))
}

fn server_processes(arguments: &HoldArguments) -> Result<Vec<ProcessTree>, String> {
    if let Some(text) = &arguments.server_match {
        let found = process_trees_matching(text);
        return match found.is_empty() {
            true => Err(format!(
                "--server-match: no process has `{text}` in its command line"
            )),
            false => Ok(found),
        };
    }
    let process = |pid: &u32| ProcessTree::from_pid(*pid).ok_or(*pid);
    let found: Result<_, u32> = arguments.server_pid.iter().map(process).collect();
    found.map_err(|pid| format!("no such process: {pid}"))
}

/// Streams store times in tenths of a millisecond; 32 bits hold more than four days.
fn parse_hold(text: &str) -> Result<Duration, String> {
    let time = match text {
        "0" => Duration::ZERO,
        text => parse_duration(text)?,
    };
    match time <= MAX_HOLD {
        true => Ok(time),
        false => Err("at most 4 days".to_owned()),
    }
}

const MAX_HOLD: Duration = Duration::from_secs(4 * 86_400);

/// Between two live lines.
const LIVE_INTERVAL: Duration = Duration::from_millis(250);

/// For the baseline of memory and of the probe.
const BASELINE_TIME: Duration = Duration::from_secs(1);
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// For connecting, and for a response, of publisher and probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Fits the buffer of a new connection.
const MAX_REQUEST_BYTES: usize = 8 << 10;

/// Descriptors of an agent that are no streams: its standard streams, its epoll set, and
/// descriptors that libraries open briefly.
const SPARE_DESCRIPTORS: u64 = 64;

/// More than any machine has cores.
const MAX_AGENTS: u32 = 4096;

/// Of a named network; a thousand are enough for ten million streams.
const MAX_SOURCES: usize = 1 << 16;

#[cfg(test)]
mod tests;
