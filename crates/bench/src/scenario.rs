//! A scenario file: the deployments to compare, their load, and the goals. Nothing is started or
//! run here.
//!
//! `compare` calls [`Scenario::read`] and passes each deployment to `deploy`. The types below are
//! the file's sections; `check` finds the errors that a type cannot rule out, `units` parses
//! durations, sizes and rates, `placeholder` handles `{{port}}` and the like, `tls_spec` is the
//! section about TLS.
//!
//! # Invariants
//!
//! - A scenario that was read is complete, its names exist and its placeholders are known.
//! - Every error names file, line and column.
//! - No input panics.

mod check;
mod placeholder;
mod tls_spec;
mod units;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::load::{RequestOrder, WindowEnd};
use crate::target::{self, TargetError};

pub use crate::connection_steps::ConnectionSteps;
pub(crate) use placeholder::find_root;
pub use placeholder::{PerStartValues, PlaceholderValues};
pub use tls_spec::TlsSpec;
pub use units::{parse_duration, parse_rate, parse_size};

/// Why a scenario cannot be used: the file, the place and the error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(String);

/// A complete, checked scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Its title.
    pub title: String,
    /// The absolute directory of the file, `{{here}}`.
    #[serde(skip)]
    pub dir: PathBuf,
    /// The name of the deployment that ratios refer to; the first one by default.
    pub baseline: String,
    /// Shell commands, run once before anything else.
    pub setup: Vec<String>,
    /// How often each deployment is measured, in turn with the others; at least 1.
    pub rounds: u32,
    /// Each deployment is started once and keeps running, idle while others are measured. So
    /// windows can be short and many, and disturbances of the machine affect all alike.
    pub keep_running: bool,
    /// The cores of server and load, if pinned.
    pub cores: Option<CoreAssignment>,
    /// The time allowed until a deployment responds.
    #[serde(deserialize_with = "units::deserialize_duration")]
    pub ready_timeout: Duration,
    /// The requests of each window; either these or `duration` are set.
    pub requests: Option<u64>,
    /// The duration of each window.
    #[serde(deserialize_with = "units::deserialize_optional_duration")]
    pub duration: Option<Duration>,
    /// Before each window: the same load, not counted.
    #[serde(deserialize_with = "units::deserialize_duration")]
    pub warm_up: Duration,
    /// A pause after each window.
    #[serde(deserialize_with = "units::deserialize_duration")]
    pub cool_down: Duration,
    /// How `https://` is spoken.
    pub tls: TlsSpec,
    /// One load, at each of its numbers of connections in turn, or several at once, each with one
    /// number of connections.
    pub loads: Vec<LoadSpec>,
    /// A companion of every deployment, such as the back ends of front ends.
    pub companion: Option<Companion>,
    /// In the order of the file; at least one, names unique.
    pub deployments: Vec<Deployment>,
    /// Goals for the result.
    pub goals: Vec<Goal>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            title: String::new(),
            dir: PathBuf::new(),
            baseline: String::new(),
            setup: Vec::new(),
            rounds: 3,
            keep_running: false,
            cores: None,
            ready_timeout: Duration::from_secs(20),
            requests: None,
            duration: None,
            warm_up: Duration::from_secs(1),
            cool_down: Duration::ZERO,
            tls: TlsSpec::default(),
            loads: Vec::new(),
            companion: None,
            deployments: Vec::new(),
            goals: Vec::new(),
        }
    }
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// It cannot be read, or is invalid; the text has the position of the first error.
    #[allow(
        clippy::disallowed_methods,
        reason = "the command line reads its file before any loop runs"
    )]
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let unreadable = |error| ScenarioError(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let absolute = std::path::absolute(path).map_err(unreadable)?;
        let here = absolute.parent().unwrap_or_else(|| Path::new("/"));
        Self::parse(&text, path, here)
    }

    /// Parses and checks a scenario; `path` is named in errors, `here` is its directory.
    ///
    /// # Errors
    /// The position of the first error.
    pub fn parse(text: &str, path: &Path, here: &Path) -> Result<Self, ScenarioError> {
        let scenario = check::parse(text).map_err(|error| {
            let (line, column) = error.line_and_column(text);
            let (path, message) = (path.display(), error.message);
            ScenarioError(format!("{path}:{line}:{column}: {message}"))
        })?;
        Ok(Self {
            dir: here.to_owned(),
            ..scenario
        })
    }

    /// The end of each window.
    #[must_use]
    pub fn window_end(&self) -> WindowEnd {
        WindowEnd::from_options(self.requests, self.duration)
            .unwrap_or(WindowEnd::Elapsed(Duration::ZERO))
    }
}

/// The cores of server and load; may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreAssignment {
    /// All processes of the deployment.
    pub server: usize,
    /// The generator's threads.
    pub load: usize,
}

/// One load.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadSpec {
    /// Its name; the only load may have none.
    pub name: String,
    /// The paths to request, each beginning with a slash.
    pub paths: Vec<String>,
    /// A file with more paths, one per line, which the set-up may make; may have placeholders.
    pub paths_file: Option<String>,
    /// The order of the paths.
    pub order: RequestOrder,
    /// Its connections; of several loads, each has one number.
    pub connections: ConnectionSteps,
    /// Whether a connection serves more than one request.
    pub keepalive: bool,
    /// A method token, as given.
    pub method: String,
    /// Names and values, without line breaks.
    #[serde(deserialize_with = "pairs")]
    pub headers: Vec<(String, String)>,
    /// A file with the body; may have placeholders: see [`LoadSpec::read_body`].
    pub body_file: Option<String>,
    /// For connecting, and for a complete response.
    #[serde(deserialize_with = "units::deserialize_duration")]
    pub timeout: Duration,
    /// Arrivals per second of an open loop.
    pub rate: Option<f64>,
    /// The expected response.
    pub expect: ExpectedResponse,
    /// Of several loads: whether it is also measured alone, before all together.
    pub alone: bool,
}

impl Default for LoadSpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            paths: Vec::new(),
            paths_file: None,
            order: RequestOrder::Sequence,
            connections: ConnectionSteps::default(),
            keepalive: true,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body_file: None,
            timeout: Duration::from_secs(10),
            rate: None,
            expect: ExpectedResponse::default(),
            alone: false,
        }
    }
}

impl LoadSpec {
    /// The paths to request, at least one: `/` by default.
    ///
    /// # Errors
    /// The file cannot be read, has no path, or has an invalid line.
    pub fn read_paths(&self, values: &PlaceholderValues) -> Result<Vec<String>, TargetError> {
        let mut paths = self.paths.clone();
        if let Some(file) = &self.paths_file {
            paths.extend(target::read_paths(&values.resolve_file_path(file))?);
        }
        if paths.is_empty() {
            paths.push("/".to_owned());
        }
        Ok(paths)
    }

    /// The body of each request, if any.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_body(&self, values: &PlaceholderValues) -> Result<Option<Vec<u8>>, TargetError> {
        let file = self.body_file.as_ref();
        file.map(|file| target::read_file(&values.resolve_file_path(file)))
            .transpose()
    }
}

/// The expected response.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpectedResponse {
    /// The status.
    pub status: u16,
    /// The whole body, if it matters.
    pub body: Option<String>,
    /// A part of the body, if it matters.
    pub contains: Option<String>,
}

impl Default for ExpectedResponse {
    fn default() -> Self {
        Self {
            status: 200,
            body: None,
            contains: None,
        }
    }
}

/// Started before each deployment and stopped after it, in the same directory and with the same
/// ports. Its cost is separate.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Companion {
    /// Paths below `{{dir}}` and contents, placeholders in both.
    #[serde(default, deserialize_with = "pairs")]
    pub files: Vec<(String, String)>,
    /// Shell commands, all started at once; at least one.
    #[serde(default)]
    pub start: Vec<String>,
    /// The URL that must respond as the load expects before the deployment is started.
    pub url: String,
}

/// A deployment to compare.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deployment {
    /// Its name, unique in the scenario.
    pub name: String,
    /// Shell commands before its first start.
    pub setup: Vec<String>,
    /// Paths below `{{dir}}` and contents, placeholders in both.
    #[serde(deserialize_with = "pairs")]
    pub files: Vec<(String, String)>,
    /// Shell commands, all started at once; at least one.
    pub start: Vec<String>,
    /// Added to the environment.
    #[serde(deserialize_with = "pairs")]
    pub env: Vec<(String, String)>,
    /// The URL, with placeholders.
    #[serde(default = "default_url")]
    pub url: String,
    /// Shell commands whose first line of output is shown with the result.
    pub versions: Vec<String>,
    /// Maximum bytes of all its processes and their page cache.
    #[serde(deserialize_with = "units::deserialize_size")]
    pub memory: Option<u64>,
    /// Maximum bytes per second read from the disk.
    #[serde(deserialize_with = "units::deserialize_rate")]
    pub disk_read: Option<u64>,
}

fn default_url() -> String {
    "http://127.0.0.1:{{port}}".to_owned()
}

/// A goal for the result: bounds on a figure, whose median of the rounds counts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// The deployment that must meet it.
    pub deployment: String,
    /// The figure.
    pub metric: Metric,
    /// The figure is at most this.
    pub max: Option<f64>,
    /// The figure is at least this.
    pub min: Option<f64>,
    /// The other deployment of a ratio.
    pub to: Option<String>,
    /// The one of several loads that the figure is about.
    pub load: Option<String>,
    /// The one point of a sweep that counts, by its connections; otherwise all points count.
    pub connections: Option<u32>,
}

impl Goal {
    /// The deployments it needs: its own, and the one a ratio refers to.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.deployment).chain(&self.to)
    }
}

/// A figure that a goal bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// CPU per request, as a ratio to another deployment's.
    CpuRatio,
    /// Requests per second, as a ratio to another deployment's.
    RequestsRatio,
    /// The peak memory of a round, as a ratio to another deployment's.
    MemoryRatio,
    /// The 99th percentile of one of several loads, as a ratio to another deployment's.
    P99Ratio,
    /// The 99th percentile in milliseconds.
    P99Ms,
    /// CPU microseconds per request.
    CpuUs,
    /// Requests per second at the point with the most connections, as a ratio to the best point's.
    ThroughputRetained,
    /// Requests per second of one of several loads, as a ratio to the same load alone.
    RequestsVsAlone,
    /// The 99th percentile of one of several loads, as a ratio to the same load alone.
    P99VsAlone,
    /// Requests that failed or got an error response, in any round.
    Errors,
}

impl Metric {
    /// Whether it needs another deployment.
    fn is_ratio(self) -> bool {
        use Metric::{CpuRatio, MemoryRatio, P99Ratio, RequestsRatio};
        matches!(self, CpuRatio | RequestsRatio | MemoryRatio | P99Ratio)
    }

    /// Whether it needs a load that is also measured alone.
    fn is_vs_alone(self) -> bool {
        matches!(self, Self::RequestsVsAlone | Self::P99VsAlone)
    }
}

/// Reads a table as names and values.
fn pairs<'de, D: Deserializer<'de>>(table: D) -> Result<Vec<(String, String)>, D::Error> {
    Ok(BTreeMap::deserialize(table)?.into_iter().collect())
}
