//! Saved results: the JSON reports and their schema.
//!
//! Written by `run`, `mix`, `sweep`, `compare` and `hold`; read by `text`, `html`, `csv` and later
//! comparisons. Durations are microseconds and sizes are bytes unless a name says otherwise. Fields
//! may be added; a change of meaning needs a new [`FORMAT_VERSION`].

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::units::to_f64;

mod hold;

pub use hold::{
    HoldCost, HoldResult, HoldSample, LostStreams, ProbeResult, PublishResult, StreamCounts,
};

/// The format version of every report.
pub const FORMAT_VERSION: u32 = 2;

/// A saved report.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// [`FORMAT_VERSION`].
    pub format: u32,
    /// Where and when it was measured.
    pub context: MeasurementContext,
    /// The result.
    #[serde(flatten)]
    pub result: ReportResult,
}

/// The result, by verb.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ReportResult {
    /// `bench run`: one load.
    Run(Box<Run>),
    /// `bench mix`: several loads at once.
    Mix(Mix),
    /// `bench sweep`: one load at several concurrencies.
    Sweep(Sweep),
    /// `bench compare`: several deployments.
    Compare(CompareResult),
    /// `bench hold`: many streams.
    Hold(Box<HoldResult>),
}

/// Where and when a report was measured.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementContext {
    /// Seconds since the epoch at the start.
    pub started: u64,
    /// `penstock 0.1.0`.
    pub tool: String,
    /// The command line without the program; secret header fields by name only.
    pub command: Vec<String>,
    /// The machine of the generator.
    pub machine: Machine,
    /// Whether it was ended early (Ctrl-C); the report covers the time until then.
    pub interrupted: bool,
}

/// The machine that measured.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// The CPU model, as named by the kernel.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Operating system and kernel release.
    pub system: String,
}

/// One load on one server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The URLs, as given.
    pub targets: Vec<String>,
    /// The figures of the load.
    pub figures: LoadFigures,
    /// The server's cost, if its processes are known.
    pub server: Option<ServerCost>,
}

/// Several loads at once.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Mix {
    /// The URLs, as given.
    pub targets: Vec<String>,
    /// One per load.
    pub loads: Vec<LoadFigures>,
    /// The server's cost, if its processes are known.
    pub server: Option<ServerCost>,
}

/// One load at several concurrencies.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// The URLs, as given.
    pub targets: Vec<String>,
    /// In order of measurement, by connections.
    pub points: Vec<Point>,
}

/// One concurrency of a sweep.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Connections, or the first load's when there are several.
    pub connections: u32,
    /// One per load; several only for a mix.
    pub loads: Vec<LoadFigures>,
    /// The server's cost, if its processes are known.
    pub server: Option<ServerCost>,
    /// Whether it is one load of a mix measured alone, for comparison; not part of the ranking.
    #[serde(default)]
    pub alone: bool,
}

/// Several deployments, measured in turn.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CompareResult {
    /// The scenario's title.
    pub title: String,
    /// The deployment that ratios refer to.
    pub first: String,
    /// In the order of the scenario.
    pub deployments: Vec<DeploymentResult>,
    /// Names, best mean throughput first, without those that failed in any round.
    pub ranking: Vec<String>,
    /// The scenario's goals and their results.
    pub goals: Vec<GoalResult>,
}

/// One deployment of a comparison.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentResult {
    /// Its name.
    pub name: String,
    /// The versions that the programs report.
    pub versions: Vec<String>,
    /// Why it could not be measured, with the end of its log.
    pub failure: Option<String>,
    /// The points of each round.
    pub rounds: Vec<Vec<Point>>,
    /// All complete rounds together, or the incomplete ones if none is complete; `None` when
    /// nothing was measured.
    pub summary: Option<DeploymentSummary>,
}

/// All rounds of a deployment.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentSummary {
    /// Mean of good responses per second, over the points of at least 10 connections (over all
    /// points, if none has).
    pub requests_per_second: RoundSpread,
    /// CPU microseconds of all its processes per request.
    pub cpu_us_per_request: Option<RoundSpread>,
    /// Peak memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Microseconds, the mean over the points.
    pub p99_us: RoundSpread,
    /// Failed requests and 4xx and 5xx responses, all rounds.
    pub errors: u64,
    /// Requests per second, as a ratio to the first deployment's in the same round.
    pub ratio: Option<RoundSpread>,
    /// CPU per request, as a ratio to the first deployment's in the same round.
    pub cpu_ratio: Option<RoundSpread>,
    /// Why the figures are uncertain (the generator was the bottleneck, other processes used the
    /// cores, requests were skipped or retried).
    pub doubts: Vec<String>,
}

/// A figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoundSpread {
    /// The median of the rounds.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

/// A goal of a scenario.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct GoalResult {
    /// The goal as text.
    pub text: String,
    /// The figure over the rounds; `None` when it is not available.
    pub measured: Option<RoundSpread>,
    /// Whether the median meets the goal.
    pub met: bool,
}

/// The figures of a load in its window.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadFigures {
    /// The load's name; empty when it is the only one.
    pub name: String,
    /// Connections.
    pub connections: u32,
    /// Requested arrivals per second; `None` in a closed loop.
    pub rate: Option<f64>,
    /// Length of the window in seconds, without the warm-up.
    pub seconds: f64,
    /// Complete responses.
    pub requests: u64,
    /// Complete responses per second.
    pub requests_per_second: f64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Bytes of bodies.
    pub body_bytes: u64,
    /// Bytes received per second.
    pub bytes_per_second: f64,
    /// Responses by class.
    pub statuses: StatusCounts,
    /// Requests without a complete response, by cause.
    pub errors: ErrorCounts,
    /// Requests in progress when the window ended, counted neither in `requests` nor in `errors`. A
    /// closed loop leaves at most one per connection; an open loop's are in `first_byte` and
    /// `total`, with the time until then.
    #[serde(default)]
    pub unfinished: u64,
    /// Microseconds since the oldest unfinished request began.
    #[serde(default)]
    pub oldest_unfinished_us: u64,
    /// Requests sent again, since the server had closed an idle connection before any byte of the
    /// response, as RFC 9112 section 9.3.1 allows at any time.
    #[serde(default)]
    pub retried: u64,
    /// Open loop: the schedule's arrivals.
    pub schedule: Option<ArrivalCounts>,
    /// From the start of connecting to the open connection, without the TLS handshake.
    pub connect: DurationSummary,
    /// With `https://`: the sessions and their handshakes.
    #[serde(default)]
    pub tls: Option<TlsFigures>,
    /// From the start of a request to the first byte of its response. In an open loop the start is
    /// the intended one.
    pub first_byte: DurationSummary,
    /// From the start of a request to the last byte. In an open loop the start is the intended one.
    pub total: DurationSummary,
    /// Open loop: from the actual start to the last byte. It hides how long a request had to wait
    /// for the server.
    pub service: Option<DurationSummary>,
    /// The load generator's own state.
    pub generator: GeneratorLoad,
}

/// The TLS sessions of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlsFigures {
    /// Sessions by version and cipher suite, also those that were made before the window.
    pub sessions: BTreeMap<String, u64>,
    /// Full handshakes of the window: from the open connection to the session.
    pub full: DurationSummary,
    /// Handshakes of the window that resumed an earlier session.
    pub resumed: DurationSummary,
    /// The first failure's reason.
    pub first_failure: Option<String>,
}

/// Responses by status class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusCounts {
    /// 200 to 299.
    pub success: u64,
    /// 300 to 399.
    pub redirection: u64,
    /// 400 to 499.
    pub client_error: u64,
    /// 500 to 599.
    pub server_error: u64,
    /// Anything else.
    pub other: u64,
}

/// Requests that failed, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorCounts {
    /// The connection was refused or could not be made.
    pub connect: u64,
    /// The TLS handshake failed, or the server sent an alert or an invalid record.
    #[serde(default)]
    pub tls: u64,
    /// No connection or no complete response in time.
    pub timeout: u64,
    /// The connection was reset within a request.
    pub reset: u64,
    /// The server closed before the response was complete.
    pub closed: u64,
    /// The response is not HTTP/1.
    pub malformed: u64,
    /// More bytes than the response announced.
    pub length: u64,
}

/// The arrivals of an open loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArrivalCounts {
    /// Arrivals that were due in the window.
    pub due: u64,
    /// Handled by the generator more than a millisecond late; those not sent for that reason are
    /// also in `skipped`.
    pub late: u64,
    /// Not sent, since all connections were busy or the generator itself was more than 100 ms late.
    /// Each counts in `total` with the time until it could have been sent, the least that it would
    /// have had to wait.
    pub skipped: u64,
}

/// A distribution of durations, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DurationSummary {
    /// Number of values.
    pub count: u64,
    /// The shortest.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub stddev: f64,
    /// 50 % took no longer.
    pub p50: u64,
    /// 75 %.
    pub p75: u64,
    /// 90 %.
    pub p90: u64,
    /// 95 %.
    pub p95: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// 99.99 %.
    pub p9999: u64,
    /// The longest.
    pub max: u64,
}

/// The load generator's own state in the window.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorLoad {
    /// Threads that sent.
    pub threads: usize,
    /// The busiest thread's share of a core.
    pub busy: f64,
    /// CPU seconds of all its threads.
    pub cpu_seconds: f64,
    /// Open loop: the lateness of arrivals although a connection was free, 99th percentile.
    pub lag_p99: Option<u64>,
    /// Why the generator may have limited the result; empty when it did not.
    pub bottleneck: Option<String>,
}

/// The server's cost in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerCost {
    /// CPU seconds of all its processes.
    pub cpu_seconds: f64,
    /// CPU microseconds per complete response.
    pub cpu_us_per_request: f64,
    /// The share of its cores that it used; above 1 with several cores.
    pub busy_cores: f64,
    /// Memory of all its processes at the end (proportional set size where readable).
    pub memory_bytes: u64,
    /// Processes at the end.
    pub processes: usize,
    /// Bytes read from disks by living processes, if the kernel reports them (proc(5), `io`).
    #[serde(default)]
    pub disk_read_bytes: Option<u64>,
    /// The share of the cores used by other processes, when cores are pinned.
    pub other_processes_share: Option<f64>,
}

/// Loads that were measured at once.
pub(crate) struct MeasuredWindow<'a> {
    /// The deployment of a comparison.
    pub(crate) deployment: Option<&'a DeploymentResult>,
    /// The round of a comparison, from 1; else 1.
    pub(crate) round: usize,
    pub(crate) loads: &'a [LoadFigures],
    pub(crate) server: Option<&'a ServerCost>,
}

impl ReportResult {
    /// The verb that measured it, as `kind` in JSON.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Self::Run(_) => "run",
            Self::Mix(_) => "mix",
            Self::Sweep(_) => "sweep",
            Self::Compare(_) => "compare",
            Self::Hold(_) => "hold",
        }
    }

    /// The URLs, as given; a comparison has none.
    pub(crate) fn targets(&self) -> &[String] {
        match self {
            Self::Run(run) => &run.targets,
            Self::Mix(mix) => &mix.targets,
            Self::Sweep(sweep) => &sweep.targets,
            Self::Compare(_) => &[],
            Self::Hold(hold) => &hold.targets,
        }
    }

    /// Every window of loads, in order of the report; held streams have none.
    pub(crate) fn windows(&self) -> Vec<MeasuredWindow<'_>> {
        let window = |loads, server| MeasuredWindow {
            deployment: None,
            round: 1,
            loads,
            server,
        };
        match self {
            Self::Run(run) => {
                let load = std::slice::from_ref(&run.figures);
                vec![window(load, run.server.as_ref())]
            }
            Self::Mix(mix) => vec![window(&mix.loads, mix.server.as_ref())],
            Self::Sweep(sweep) => {
                let points = sweep.points.iter();
                let windows = points.map(|point| window(&point.loads, point.server.as_ref()));
                windows.collect()
            }
            Self::Compare(compare) => {
                let deployments = compare.deployments.iter();
                deployments.flat_map(DeploymentResult::windows).collect()
            }
            Self::Hold(_) => Vec::new(),
        }
    }
}

impl DeploymentResult {
    fn windows(&self) -> impl Iterator<Item = MeasuredWindow<'_>> {
        (1..).zip(&self.rounds).flat_map(move |(round, points)| {
            points.iter().map(move |point| MeasuredWindow {
                deployment: Some(self),
                round,
                loads: &point.loads,
                server: point.server.as_ref(),
            })
        })
    }

    /// The figures of all loads in all rounds.
    pub(crate) fn figures(&self) -> impl Iterator<Item = &LoadFigures> {
        self.rounds.iter().flatten().flat_map(|point| &point.loads)
    }
}

impl TlsFigures {
    /// Handshakes of the window, full and resumed.
    pub fn handshakes(&self) -> u64 {
        self.full.count.saturating_add(self.resumed.count)
    }
}

impl ErrorCounts {
    /// The sum of all causes.
    pub fn total(&self) -> u64 {
        saturating_sum(self.causes().map(|(_, count)| count))
    }

    /// Each cause with its name.
    pub(crate) fn causes(&self) -> [(&'static str, u64); 7] {
        [
            ("connect", self.connect),
            ("TLS", self.tls),
            ("time-out", self.timeout),
            ("reset", self.reset),
            ("closed early", self.closed),
            ("malformed", self.malformed),
            ("length", self.length),
        ]
    }
}

impl StatusCounts {
    /// The sum of all classes.
    pub fn total(&self) -> u64 {
        saturating_sum([self.success, self.redirection, self.failed()])
    }

    /// Responses that report an error.
    pub fn failed(&self) -> u64 {
        saturating_sum([self.client_error, self.server_error, self.other])
    }
}

impl LoadFigures {
    /// Whether every request was sent and answered, in time and without an error.
    pub fn is_clean(&self) -> bool {
        self.failed() == 0 && self.requests > 0 && self.skipped() == 0 && !self.is_stuck()
    }

    /// Arrivals that were not sent; none in a closed loop.
    pub fn skipped(&self) -> u64 {
        self.schedule.map_or(0, |schedule| schedule.skipped)
    }

    /// Whether a request was in progress for more than half of the window, and more than a second,
    /// when it ended: a server that stops responding causes no errors until the timeout.
    pub fn is_stuck(&self) -> bool {
        let age = to_f64(self.oldest_unfinished_us);
        age > 1e6 && age > self.seconds * 0.5e6
    }

    /// Whether more than 1 % of the requests were sent again.
    pub fn is_often_retried(&self) -> bool {
        to_f64(self.retried) * 100.0 > to_f64(self.requests)
    }

    /// Good responses per second: errors are quickly made and are no throughput.
    pub fn good_per_second(&self) -> f64 {
        let good = self.requests.saturating_sub(self.statuses.failed());
        self.requests_per_second * to_f64(good) / to_f64(self.requests.max(1))
    }

    /// Errors by cause, and responses that report one by class.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let statuses = [
            ("4xx", self.statuses.client_error),
            ("5xx", self.statuses.server_error),
            ("other", self.statuses.other),
        ];
        self.errors.causes().into_iter().chain(statuses)
    }

    /// Failed requests and responses that report an error.
    pub fn failed(&self) -> u64 {
        self.errors.total().saturating_add(self.statuses.failed())
    }
}

impl Point {
    /// Connections of all loads.
    pub fn connections_total(&self) -> u32 {
        total_connections(&self.loads)
    }

    /// [`LoadFigures::good_per_second`] of all loads.
    pub fn good_per_second(&self) -> f64 {
        self.loads.iter().map(LoadFigures::good_per_second).sum()
    }

    /// A percentile of the slowest load's `total`, in microseconds.
    pub fn slowest(&self, percentile: impl Fn(&DurationSummary) -> u64) -> u64 {
        let totals = self.loads.iter().map(|load| percentile(&load.total));
        totals.max().unwrap_or(0)
    }

    /// [`LoadFigures::failed`] of all loads.
    pub fn failed(&self) -> u64 {
        saturating_sum(self.loads.iter().map(LoadFigures::failed))
    }
}

impl RoundSpread {
    /// Computes the spread of these values without NaN; `None` without any. The median of an even
    /// number of values is the mean of the middle two.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Self { median, min, max })
    }

    /// The same value in every round.
    pub(crate) fn single(value: f64) -> Self {
        Self {
            median: value,
            min: value,
            max: value,
        }
    }

    /// In another unit.
    pub(crate) fn scale(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
        }
    }
}

/// Connections of all loads.
pub(crate) fn total_connections(loads: &[LoadFigures]) -> u32 {
    let connections = loads.iter().map(|load| load.connections);
    connections.fold(0, u32::saturating_add)
}

/// Saturating, as a saved report may hold anything.
pub(crate) fn saturating_sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
pub(crate) mod test_reports;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_answered_is_not_clean() {
        let calm = test_reports::figures(10, 1000.0, 5000);
        type Change = fn(&mut LoadFigures);
        let rows: [(&str, bool, Change); 8] = [
            ("all answered", true, |_| {}),
            ("under way as usual", true, |load| {
                (load.unfinished, load.oldest_unfinished_us) = (10, 2_000_000);
            }),
            ("stuck for most of the window", false, |load| {
                (load.unfinished, load.oldest_unfinished_us) = (1, 2_000_001);
            }),
            ("a short window's last requests", true, |load| {
                load.seconds = 0.5;
                (load.unfinished, load.oldest_unfinished_us) = (1, 500_000);
            }),
            ("a server that closes kept connections", true, |load| {
                load.retried = load.requests;
            }),
            ("arrivals not sent", false, |load| {
                let (due, late, skipped) = (9, 0, 1);
                load.schedule = Some(ArrivalCounts { due, late, skipped });
            }),
            ("an error", false, |load| load.errors.reset = 1),
            ("nothing answered", false, |load| load.requests = 0),
        ];
        for (name, expected, change) in rows {
            let mut load = calm.clone();
            change(&mut load);
            assert_eq!(load.is_clean(), expected, "{name}");
        }
    }
}
