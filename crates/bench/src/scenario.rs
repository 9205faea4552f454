//! A scenario file: the deployments to compare, their load, and the goals. Nothing is started or
//! run here.
//!
//! `compare` calls [`Scenario::read`] and passes each deployment to `deploy`. `raw` is the file as
//! written, `checked` validates it, `units` parses durations, sizes and rates, `placeholder`
//! handles `{{port}}` and the like.
//!
//! # Invariants
//!
//! - A scenario that was read is complete, its names exist and its placeholders are known.
//! - Every error names file, line and column.
//! - No input panics.

mod checked;
mod error;
mod placeholder;
mod raw;
mod units;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::load::{RequestOrder, WindowEnd};
use crate::target::{self, TargetError};

pub use error::ScenarioError;
pub(crate) use placeholder::find_root;
pub use placeholder::{PlaceholderValues, StartValues};
pub use units::{parse_duration, parse_rate, parse_size};

/// A complete, checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its title.
    pub title: String,
    /// The absolute directory of the file, `{{here}}`.
    pub dir: PathBuf,
    /// The name of the deployment that ratios refer to.
    pub reference: String,
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
    pub ready_timeout: Duration,
    /// The end of the window of a point, or of the mix.
    pub until: WindowEnd,
    /// Before each window: the same load, not counted.
    pub warm_up: Duration,
    /// A pause after each window.
    pub cool_down: Duration,
    /// Several concurrencies one after the other, or several loads at once.
    pub loads: Loads,
    /// A companion of every deployment, such as the back ends of front ends.
    pub companion: Option<Companion>,
    /// In the order of the file; at least one, names unique.
    pub deployments: Vec<Deployment>,
    /// Goals for the result.
    pub goals: Vec<Goal>,
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
        let unreadable = |source| ScenarioError::Unreadable {
            path: path.to_owned(),
            source,
        };
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
        checked::parse(text, here).map_err(|wrong| wrong.into_scenario_error(text, path))
    }
}

/// The cores of server and load; may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreAssignment {
    /// All processes of the deployment.
    pub server: usize,
    /// The generator's threads.
    pub load: usize,
}

/// The loads on each deployment.
#[derive(Debug, Clone)]
pub enum Loads {
    /// `[load]`: one load at each of these numbers of connections in turn.
    Sweep {
        /// Connections of each point, in the order of the file; at least one, each at least 1.
        connections: Vec<u32>,
        /// The load.
        load: Box<LoadSpec>,
    },
    /// `[[loads]]`: several at once, each with its number of connections; at least one.
    Mix(Vec<(u32, LoadSpec)>),
}

impl Loads {
    /// The load that provides the readiness probe's path and `expect`.
    #[must_use]
    pub fn first(&self) -> Option<&LoadSpec> {
        match self {
            Self::Sweep { load, .. } => Some(load),
            Self::Mix(loads) => loads.first().map(|(_, load)| load),
        }
    }

    /// Every load, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &LoadSpec> {
        let (one, several) = match self {
            Self::Sweep { load, .. } => (Some(&**load), [].as_slice()),
            Self::Mix(loads) => (None, loads.as_slice()),
        };
        one.into_iter().chain(several.iter().map(|(_, load)| load))
    }
}

/// One load, without its connections and its window.
#[derive(Debug, Clone)]
pub struct LoadSpec {
    /// Its name; empty for the only one.
    pub name: String,
    /// The paths.
    pub paths: Paths,
    /// The order of the paths.
    pub order: RequestOrder,
    /// Whether a connection serves more than one request.
    pub keepalive: bool,
    /// A method token, as given.
    pub method: String,
    /// Names and values, without line breaks.
    pub headers: Vec<(String, String)>,
    /// A file with the body; may have placeholders: see [`LoadSpec::read_body`].
    pub body_file: Option<String>,
    /// For connecting, and for a complete response.
    pub timeout: Duration,
    /// Arrivals per second of an open loop.
    pub rate: Option<f64>,
    /// The expected response.
    pub expect: Expect,
    /// In a mix: whether it is also measured alone, before the mix.
    pub alone: bool,
}

impl LoadSpec {
    /// The paths to request, at least one. A file of paths is read here, after the set-up may have
    /// made it.
    ///
    /// # Errors
    /// The file cannot be read, has no path, or has an invalid line.
    pub fn read_paths(&self, values: &PlaceholderValues) -> Result<Vec<String>, TargetError> {
        match &self.paths {
            Paths::Named(paths) => Ok(paths.clone()),
            Paths::File(file) => target::read_paths(&values.file(file)),
        }
    }

    /// The body of each request, if any.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_body(&self, values: &PlaceholderValues) -> Result<Option<Vec<u8>>, TargetError> {
        let file = self.body_file.as_ref();
        file.map(|file| target::read_file(&values.file(file)))
            .transpose()
    }
}

/// The paths of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paths {
    /// As given; at least one, each begins with a slash.
    Named(Vec<String>),
    /// A file, one path per line; may have placeholders.
    File(String),
}

/// The expected response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: ExpectedBody,
}

/// The expected body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedBody {
    /// Anything.
    Any,
    /// Exactly this.
    Exact(String),
    /// Any body that contains this.
    Contains(String),
}

/// Started before each deployment and stopped after it, in the same directory and with the same
/// ports. Its cost is separate.
#[derive(Debug, Clone)]
pub struct Companion {
    /// Paths below `{{dir}}` and contents, placeholders in both.
    pub files: Vec<(String, String)>,
    /// Shell commands, all started at once; at least one.
    pub start: Vec<String>,
    /// The URL that must respond as the load expects before the deployment is started.
    pub url: String,
}

/// A deployment to compare.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Its name, unique in the scenario.
    pub name: String,
    /// Shell commands before its first start.
    pub setup: Vec<String>,
    /// Paths below `{{dir}}` and contents, placeholders in both.
    pub files: Vec<(String, String)>,
    /// Shell commands, all started at once; at least one.
    pub start: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// The URL, with placeholders.
    pub url: String,
    /// Shell commands whose first line of output is shown with the result.
    pub versions: Vec<String>,
    /// Maximum bytes of all its processes and their page cache.
    pub memory: Option<u64>,
    /// Maximum bytes per second read from the disk.
    pub disk_read: Option<u64>,
}

/// A goal for the result.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    /// The deployment that must meet it.
    pub deployment: String,
    /// The one point of a sweep that counts, by its connections; otherwise all points count.
    pub connections: Option<u32>,
    /// The bounded figure.
    pub bound: GoalBound,
}

impl Goal {
    /// The deployments it needs: its own, and the one a ratio refers to.
    #[must_use]
    pub fn names(&self) -> Vec<&String> {
        let other = match &self.bound {
            GoalBound::CpuRatio { to, .. }
            | GoalBound::RequestsRatio { to, .. }
            | GoalBound::MemoryRatio { to, .. }
            | GoalBound::P99Ratio { to, .. } => Some(to),
            GoalBound::P99Ms(_)
            | GoalBound::CpuMicros(_)
            | GoalBound::ThroughputRetained(_)
            | GoalBound::OfAlone { .. }
            | GoalBound::P99OfAlone { .. }
            | GoalBound::Errors(_) => None,
        };
        [Some(&self.deployment), other]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The figure of a goal and its bound; the median of the rounds counts.
#[derive(Debug, Clone, PartialEq)]
pub enum GoalBound {
    /// CPU per request, as a ratio to another deployment's: at most.
    CpuRatio {
        /// The ratio.
        at_most: f64,
        /// The other deployment.
        to: String,
    },
    /// Requests per second, as a ratio to another deployment's: at least.
    RequestsRatio {
        /// The ratio.
        at_least: f64,
        /// The other deployment.
        to: String,
    },
    /// The peak memory of a round, as a ratio to another deployment's: at most.
    MemoryRatio {
        /// The ratio.
        at_most: f64,
        /// The other deployment.
        to: String,
    },
    /// The 99th percentile of one load of a mix, as a ratio to another deployment's: at most.
    P99Ratio {
        /// The load's name.
        load: String,
        /// The ratio.
        at_most: f64,
        /// The other deployment.
        to: String,
    },
    /// The 99th percentile in milliseconds: at most.
    P99Ms(f64),
    /// CPU microseconds per request: at most.
    CpuMicros(f64),
    /// Requests per second at the point with the most connections, as a ratio to the best point's:
    /// at least.
    ThroughputRetained(f64),
    /// Requests per second of one load in the mix, as a ratio to the same load alone: at least.
    OfAlone {
        /// The load's name.
        load: String,
        /// The ratio.
        at_least: f64,
    },
    /// The 99th percentile of one load in the mix, as a ratio to the same load alone: at most.
    P99OfAlone {
        /// The load's name.
        load: String,
        /// The ratio.
        at_most: f64,
    },
    /// Requests that failed or got an error response, of any round: at most.
    Errors(u64),
}
