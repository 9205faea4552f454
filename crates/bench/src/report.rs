//! What was measured, as it is saved: the JSON reports and their schema.
//!
//! Made by `run`, `mix`, `sweep`, `compare` and `hold`; read by `text`, `html`, `csv` and, saved, by a later
//! comparison. Durations are microseconds, sizes bytes, unless a name says otherwise. Fields may be
//! added; a change of meaning needs a new [`FORMAT_VERSION`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::units::to_f64;

mod hold;

pub use hold::{
    HoldCost, HoldResult, HoldSample, LostStreams, ProbeResult, PublishResult, StreamCounts,
};

/// The version of the format, in every report.
pub const FORMAT_VERSION: u32 = 1;

/// A saved report.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// [`FORMAT_VERSION`].
    pub format: u32,
    /// Where and when it was measured.
    pub taken: MeasurementContext,
    /// What was measured.
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
    Compare(Compare),
    /// `bench hold`: many streams.
    Hold(Box<HoldResult>),
}

/// Where and when.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementContext {
    /// Seconds since the epoch at the start.
    pub started: u64,
    /// `penstock 0.1.0`.
    pub tool: String,
    /// The command line, program left out; of header fields that may hold a secret only the name.
    pub command: Vec<String>,
    /// The machine of the generator.
    pub machine: Machine,
    /// Whether it was ended early (Ctrl-C); what is here was measured until then.
    pub interrupted: bool,
}

/// The machine that measured.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// As the kernel names it.
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
    /// Where to, as given.
    pub targets: Vec<String>,
    /// What came of it.
    pub figures: Figures,
    /// What it cost the server, when its processes are known.
    pub server: Option<ServerCost>,
}

/// Several loads at once.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Mix {
    /// Where to, as given.
    pub targets: Vec<String>,
    /// One for each load.
    pub loads: Vec<Figures>,
    /// What it cost the server, when its processes are known.
    pub server: Option<ServerCost>,
}

/// One load at several concurrencies.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// Where to, as given.
    pub targets: Vec<String>,
    /// In the order of measuring, which is by connections.
    pub points: Vec<Point>,
}

/// One concurrency of a sweep.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Connections, or the first load's when there are several.
    pub connections: u32,
    /// One for each load; one, but for a mix.
    pub loads: Vec<Figures>,
    /// What it cost the server, when its processes are known.
    pub server: Option<ServerCost>,
    /// Whether it is one load of a mix by itself, for comparison: no part of the ranking.
    #[serde(default)]
    pub alone: bool,
}

/// Several deployments, measured in turn.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Compare {
    /// The scenario's title.
    pub title: String,
    /// The deployment that ratios refer to.
    pub first: String,
    /// In the order of the scenario.
    pub deployments: Vec<Deployment>,
    /// Names, best mean throughput first; those that failed in any round left out.
    pub ranking: Vec<String>,
    /// The scenario's goals and what became of them.
    pub goals: Vec<Goal>,
}

/// One deployment of a comparison.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Deployment {
    /// Its name.
    pub name: String,
    /// What the programs say of their versions.
    pub versions: Vec<String>,
    /// Why it could not be measured, with the end of its log.
    pub failed: Option<String>,
    /// The points of each round.
    pub rounds: Vec<Vec<Point>>,
    /// All complete rounds together, or what there is when none is complete; `None` when nothing was
    /// measured.
    pub summary: Option<Summary>,
}

/// All rounds of a deployment.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Mean requests a second that were answered well, over the points of at least 10 connections (over
    /// all, if none has).
    pub requests_per_second: RoundSpread,
    /// CPU microseconds of all its processes for each request.
    pub cpu_us_per_request: Option<RoundSpread>,
    /// The most memory seen, in bytes.
    pub memory_bytes: Option<u64>,
    /// Microseconds, the mean over the points.
    pub p99_us: RoundSpread,
    /// Failed requests and responses of 4xx and 5xx, all rounds.
    pub errors: u64,
    /// Requests a second, as a ratio to the first deployment's in the same round.
    pub ratio: Option<RoundSpread>,
    /// CPU for each request, as a ratio to the first deployment's in the same round.
    pub cpu_ratio: Option<RoundSpread>,
    /// Why the figures are in doubt (the generator was the bottleneck, strangers used the cores,
    /// requests were left out or sent again).
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

/// A bound that a scenario sets.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Goal {
    /// In words.
    pub text: String,
    /// The figure over the rounds; `None` when it could not be had.
    pub found: Option<RoundSpread>,
    /// Whether the median meets it.
    pub met: bool,
}

/// What a load came to in its window.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// The load's name; empty when it is the only one.
    pub name: String,
    /// Connections.
    pub connections: u32,
    /// Arrivals a second that were asked for; `None` in a closed loop.
    pub rate: Option<f64>,
    /// Length of the window in seconds; the warm-up is no part of it.
    pub seconds: f64,
    /// Complete responses.
    pub requests: u64,
    /// Complete responses a second.
    pub requests_per_second: f64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Bytes of bodies.
    pub body_bytes: u64,
    /// Bytes received a second.
    pub bytes_per_second: f64,
    /// Responses by class.
    pub statuses: Statuses,
    /// Requests without a complete response, by cause.
    pub errors: Errors,
    /// Requests still under way when the window ended, neither in `requests` nor in `errors`. A closed
    /// loop leaves up to one a connection; an open loop's are in `first_byte` and `total`, with the
    /// time until then.
    #[serde(default)]
    pub unfinished: u64,
    /// Microseconds that the oldest of the unfinished had been under way.
    #[serde(default)]
    pub oldest_unfinished: u64,
    /// Requests sent again, since the server had closed a kept connection before any byte of the
    /// response, which RFC 9112 section 9.3.1 allows at any time.
    #[serde(default)]
    pub retried: u64,
    /// Open loop: what became of the schedule.
    pub schedule: Option<Schedule>,
    /// From the start of a connection to its being open.
    pub connect: Timings,
    /// From the start of a request to the first byte of its response. In an open loop the start is
    /// the intended one.
    pub first_byte: Timings,
    /// From the start of a request to the last byte. In an open loop the start is the intended one.
    pub total: Timings,
    /// Open loop: from the real start to the last byte, which is what the server took and hides how
    /// long a request had to wait for it.
    pub service: Option<Timings>,
    /// The generator's own state.
    pub generator: GeneratorLoad,
}

/// Responses by status class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Statuses {
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
pub struct Errors {
    /// The connection was refused or could not be made.
    pub connect: u64,
    /// No connection or no complete response in time.
    pub timeout: u64,
    /// The connection was reset within a request.
    pub reset: u64,
    /// The server closed before the response was complete.
    pub closed: u64,
    /// What came is no HTTP/1 response.
    pub malformed: u64,
    /// More bytes came than the response announced.
    pub length: u64,
}

/// What became of an open loop's arrivals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// Arrivals that were due in the window.
    pub due: u64,
    /// Handled by the generator more than a millisecond after their moment; those that were not sent
    /// for that reason are also in `skipped`.
    pub late: u64,
    /// Not sent, since all connections were busy, or since the generator itself came more than 100 ms
    /// late: each counts in `total` with the time until it could have been sent, the least that it
    /// would have had to wait.
    pub skipped: u64,
}

/// A distribution of durations, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timings {
    /// How many.
    pub count: u64,
    /// The shortest.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub sd: f64,
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

/// The generator's own state in the window.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorLoad {
    /// Threads that sent.
    pub threads: usize,
    /// The busiest thread's part of a core.
    pub busy: f64,
    /// CPU seconds of all its threads.
    pub cpu_seconds: f64,
    /// Open loop: how late arrivals were handled though a connection was free, 99 % of them.
    pub lag_p99: Option<u64>,
    /// Why the generator may have limited the result; empty when it did not.
    pub bottleneck: Option<String>,
}

/// What a window cost the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerCost {
    /// CPU seconds of all its processes.
    pub cpu_seconds: f64,
    /// The same in microseconds for each complete response.
    pub cpu_us_per_request: f64,
    /// The part of its cores that it used; above 1 with several cores.
    pub busy: f64,
    /// Memory of all its processes at the end (proportional set size where it can be read).
    pub memory_bytes: u64,
    /// Processes at the end.
    pub processes: usize,
    /// Bytes read from disks by those that live, where the kernel tells (proc(5), `io`).
    #[serde(default)]
    pub disk_read_bytes: Option<u64>,
    /// The part of the cores used by strangers, when cores are pinned.
    pub others: Option<f64>,
}

impl Errors {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let causes = [
            self.connect,
            self.timeout,
            self.reset,
            self.closed,
            self.malformed,
            self.length,
        ];
        saturating_sum(causes)
    }
}

impl Statuses {
    /// All responses.
    #[must_use]
    pub fn total(&self) -> u64 {
        saturating_sum([self.success, self.redirection, self.failed()])
    }

    /// Responses that say that something is wrong.
    #[must_use]
    pub fn failed(&self) -> u64 {
        saturating_sum([self.client_error, self.server_error, self.other])
    }
}

impl Figures {
    /// Whether all that was asked was sent and answered, in time and well.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failed() == 0 && self.requests > 0 && self.skipped() == 0 && !self.is_stuck()
    }

    /// Arrivals that were not sent; none in a closed loop.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.schedule.map_or(0, |schedule| schedule.skipped)
    }

    /// Whether a request had been under way for more than half of the window, and more than a second,
    /// when that ended: a server that stops to answer makes no errors until the time-out.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let age = to_f64(self.oldest_unfinished);
        age > 1e6 && age > self.seconds * 0.5e6
    }

    /// Whether more than 1 % of the requests had to be sent again.
    #[must_use]
    pub fn is_often_retried(&self) -> bool {
        to_f64(self.retried) * 100.0 > to_f64(self.requests)
    }

    /// Requests a second that were answered well: errors are quickly made, and no throughput.
    #[must_use]
    pub fn good_per_second(&self) -> f64 {
        let good = self.requests.saturating_sub(self.statuses.failed());
        self.requests_per_second * to_f64(good) / to_f64(self.requests.max(1))
    }

    /// Requests that failed, and responses that say that something is wrong.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.total().saturating_add(self.statuses.failed())
    }
}

impl Point {
    /// Connections of all loads.
    #[must_use]
    pub fn connections_total(&self) -> u32 {
        let connections = self.loads.iter().map(|load| load.connections);
        connections.fold(0, u32::saturating_add)
    }

    /// [`Figures::good_per_second`] of all loads.
    #[must_use]
    pub fn good_per_second(&self) -> f64 {
        self.loads.iter().map(Figures::good_per_second).sum()
    }

    /// What the slowest load's `total` says of itself, in microseconds.
    #[must_use]
    pub fn slowest(&self, percentile: impl Fn(&Timings) -> u64) -> u64 {
        let totals = self.loads.iter().map(|load| percentile(&load.total));
        totals.max().unwrap_or(0)
    }

    /// [`Figures::failed`] of all loads.
    #[must_use]
    pub fn failed(&self) -> u64 {
        saturating_sum(self.loads.iter().map(Figures::failed))
    }
}

impl RoundSpread {
    /// Of these values, those that are no numbers left out; `None` of none. The median of an even
    /// number of values is the mean of the middle two.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
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
}

/// A saved report may hold anything.
pub(crate) fn saturating_sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_answered_is_not_clean() {
        let calm = testing::figures(10, 1000.0, 5000);
        type Change = fn(&mut Figures);
        let rows: [(&str, bool, Change); 8] = [
            ("all answered", true, |_| {}),
            ("under way as usual", true, |load| {
                (load.unfinished, load.oldest_unfinished) = (10, 2_000_000);
            }),
            ("stuck for most of the window", false, |load| {
                (load.unfinished, load.oldest_unfinished) = (1, 2_000_001);
            }),
            ("a short window's last requests", true, |load| {
                load.seconds = 0.5;
                (load.unfinished, load.oldest_unfinished) = (1, 500_000);
            }),
            ("a server that closes kept connections", true, |load| {
                load.retried = load.requests;
            }),
            ("arrivals not sent", false, |load| {
                let (due, late, skipped) = (9, 0, 1);
                load.schedule = Some(Schedule { due, late, skipped });
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
