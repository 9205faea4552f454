//! A scenario file: which deployments are compared, under which load, against which goals.
//!
//! `compare` calls [`Scenario::read`] and gives each deployment to `deploy`. `raw` is the file as it is
//! written, `check` makes the checked values out of it, `units` reads durations, sizes and rates,
//! `placeholder` knows what `{{port}}` and its kind stand for.
//! What must stay true: a scenario that was read is whole, its names exist and its placeholders are
//! known; every error names file, line and column; no input panics. Nothing is started or run here.

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

/// A whole, checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What it shows, in words.
    pub title: String,
    /// The absolute folder of the file, `{{here}}`.
    pub dir: PathBuf,
    /// The name of the deployment that ratios refer to.
    pub reference: String,
    /// Shell commands, run once before anything else.
    pub setup: Vec<String>,
    /// How often each deployment is measured, in turn with the others; at least 1.
    pub rounds: u32,
    /// Each deployment is started once and stays, idle while others are measured: so windows can be short
    /// and many, and what a noisy machine does meanwhile hits all alike.
    pub keep_running: bool,
    /// Where server and load run, when they are pinned.
    pub cores: Option<CoreAssignment>,
    /// How long a deployment may take until it answers.
    pub ready_timeout: Duration,
    /// What ends the window of a point, or of the mix.
    pub until: WindowEnd,
    /// Before each window: the same load, not counted.
    pub warm_up: Duration,
    /// A pause after each window.
    pub cool_down: Duration,
    /// Several concurrencies one after the other, or several loads at once.
    pub loads: Loads,
    /// What every deployment talks to, such as the back ends of front ends.
    pub companion: Option<Companion>,
    /// In the order of the file; at least one, names unique.
    pub deployments: Vec<Deployment>,
    /// Bounds for the result.
    pub goals: Vec<Goal>,
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// When it cannot be read, or with the place of the first thing that is wrong in it.
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

    /// Checks the text of a scenario; `path` is named in errors, `here` is its folder.
    ///
    /// # Errors
    /// With the place of the first thing that is wrong.
    pub fn parse(text: &str, path: &Path, here: &Path) -> Result<Self, ScenarioError> {
        checked::parse(text, here).map_err(|wrong| wrong.into_scenario_error(text, path))
    }
}

/// Where server and load run; may be the same core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreAssignment {
    /// All processes of the deployment.
    pub server: usize,
    /// The generator's threads.
    pub load: usize,
}

/// What is put on each deployment.
#[derive(Debug, Clone)]
pub enum Loads {
    /// `[load]`: one load at each of these numbers of connections, one after the other.
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
    /// The load whose first path and `expect` the readiness probe uses.
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
    /// Where to.
    pub paths: Paths,
    /// Which path is next.
    pub order: RequestOrder,
    /// Whether a connection serves more than one request.
    pub keepalive: bool,
    /// A token, as it was given.
    pub method: String,
    /// Names and values, free of line breaks.
    pub headers: Vec<(String, String)>,
    /// A file with the body; may have placeholders: see [`LoadSpec::read_body`].
    pub body_file: Option<String>,
    /// For a connection to be open, and for a response to be complete.
    pub timeout: Duration,
    /// Arrivals a second of an open loop.
    pub rate: Option<f64>,
    /// What the readiness probe must see.
    pub expect: Expect,
    /// For one of several: whether it is also measured by itself, ahead of the mix.
    pub alone: bool,
}

impl LoadSpec {
    /// The paths to ask for, at least one; a file of paths is read here, after the set-up may have
    /// made it.
    ///
    /// # Errors
    /// When the file cannot be read, has no path, or a line that is none.
    pub fn read_paths(&self, values: &PlaceholderValues) -> Result<Vec<String>, TargetError> {
        match &self.paths {
            Paths::Named(paths) => Ok(paths.clone()),
            Paths::File(file) => target::read_paths(&values.file(file)),
        }
    }

    /// The body that each request carries, if any.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_body(&self, values: &PlaceholderValues) -> Result<Option<Vec<u8>>, TargetError> {
        let file = self.body_file.as_ref();
        file.map(|file| target::read_file(&values.file(file)))
            .transpose()
    }
}

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paths {
    /// As given; at least one, each begins with a slash.
    Named(Vec<String>),
    /// A file, one path a line; may have placeholders.
    File(String),
}

/// What a good answer looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: ExpectedBody,
}

/// What a body must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedBody {
    /// Anything.
    Any,
    /// Exactly this.
    Exact(String),
    /// Anything with this in it.
    Contains(String),
}

/// Started before each deployment and stopped after it, in the same folder and with the same ports. Its
/// cost is not the deployment's.
#[derive(Debug, Clone)]
pub struct Companion {
    /// Paths below `{{dir}}` and contents, placeholders in both.
    pub files: Vec<(String, String)>,
    /// Shell commands, all started at once; at least one.
    pub start: Vec<String>,
    /// Where it must answer what the load expects before the deployment is started.
    pub url: String,
}

/// One of the deployments that are compared.
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
    /// Where it listens, with placeholders.
    pub url: String,
    /// Shell commands whose first line of output is shown with the result.
    pub versions: Vec<String>,
    /// Bytes that all its processes and their page cache may have.
    pub memory: Option<u64>,
    /// Bytes a second that may be read from the disk.
    pub disk_read: Option<u64>,
}

/// A bound for the result.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    /// The deployment that must meet it.
    pub deployment: String,
    /// The only point of a sweep that counts, by its connections; else all points do.
    pub connections: Option<u32>,
    /// What is bounded.
    pub bound: GoalBound,
}

impl Goal {
    /// The deployments that it needs: its own, and the one that a ratio is to.
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

/// What a goal bounds; the median of the rounds counts.
#[derive(Debug, Clone, PartialEq)]
pub enum GoalBound {
    /// CPU a request, as a ratio to another deployment's: at most.
    CpuRatio {
        /// The ratio.
        at_most: f64,
        /// The other deployment.
        to: String,
    },
    /// Requests a second, as a ratio to another deployment's: at least.
    RequestsRatio {
        /// The ratio.
        at_least: f64,
        /// The other deployment.
        to: String,
    },
    /// The most memory of a round, as a ratio to another deployment's: at most.
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
    /// CPU microseconds a request: at most.
    CpuMicros(f64),
    /// Requests a second at the point of the most connections, as a ratio to the best point's: at least.
    ThroughputRetained(f64),
    /// Requests a second of one load in the mix, as a ratio to the same load alone: at least.
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
    /// Requests that failed or were answered with an error, of any round: at most.
    Errors(u64),
}
