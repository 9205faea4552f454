//! Deployments: started by a scenario's commands, watched, and surely stopped.
//!
//! `compare` makes one [`Testbed`] for a scenario, runs the set-up in it, and starts each deployment
//! with [`Testbed::start`] when it is its turn. All commands run below a keeper (`keeper`), a process
//! of ours that outlives the bench by as long as it takes to end them; `kept` is the bench's view of one
//! keeper's commands. `probe` asks whether a deployment
//! answers, `account` reads what it spends, `cgroup` limits it, `folder` makes its temporary folder.
//! What must stay true: whatever way this process ends, nothing that was started here is left; a
//! deployment that does not answer as the scenario says is an error, never a figure.

mod cgroup;
mod keeper;
mod keeper_link;
mod keeper_protocol;
mod probe;
pub mod resource_usage;
mod running;
mod supervised;
mod temp_dir;
mod testbed;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::scenario::{Companion, Expect};
use crate::target::TargetError;

pub(crate) use probe::{connect_unix, fetch_body};
pub use resource_usage::{CpuTime, MemoryUsage, ProcessTree, ResourceUsage, cores_busy_seconds};
pub use running::RunningDeployment;
pub use testbed::Testbed;

/// The keeper: the hidden verb `bench keep`. Takes its order from the standard input, ends when that
/// ends, and leaves nothing behind.
#[must_use]
pub fn run_keeper() -> ExitCode {
    keeper::run()
}

/// How a deployment is started, beside what the scenario says of it.
#[derive(Debug)]
pub struct StartConditions<'a> {
    /// The core for all its processes, when they are pinned.
    pub core: Option<usize>,
    /// What is started before it and stopped after it, and the core for that.
    pub companion: Option<(&'a Companion, Option<usize>)>,
    /// What the readiness probe asks for.
    pub path: &'a str,
    /// Header fields that the probe sends, as the load does.
    pub headers: &'a [(String, String)],
    /// What the readiness probe must see.
    pub expect: &'a Expect,
    /// How long it may take until it answers.
    pub ready_timeout: Duration,
    /// Set from outside to give up.
    pub stop: &'a AtomicBool,
}

/// Why a deployment, or a command of it, failed. `log` is the end of what the commands wrote.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// A set-up command ended badly.
    #[error("set-up `{command}` {how}")]
    Setup {
        /// The command.
        command: String,
        /// How it ended.
        how: ExitReason,
    },
    /// A command ended before the deployment answered.
    #[error("`{command}` {how} before it answered{log}", log = LogTail(log))]
    Exited {
        /// The command.
        command: String,
        /// How it ended.
        how: ExitReason,
        /// The end of its log.
        log: String,
    },
    /// It did not answer in time.
    #[error("not ready within {within:?}: {last}{log}", log = LogTail(log))]
    NotReady {
        /// The time it had.
        within: Duration,
        /// What the last attempt met with.
        last: String,
        /// The end of its log.
        log: String,
    },
    /// It answers, and not as it must.
    #[error("wrong answer: {what}{log}", log = LogTail(log))]
    WrongAnswer {
        /// What is wrong with it.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// A limit was asked for that cannot be set here.
    #[error("cannot limit {what}: {why}")]
    CannotLimit {
        /// `memory` or `disk_read`.
        what: &'static str,
        /// What is missing.
        why: String,
    },
    /// Its `url` gives no address.
    #[error(transparent)]
    Url(#[from] TargetError),
    /// The keeper could not be started or ended unasked.
    #[error("keeper: {0}")]
    Keeper(String),
    /// A file or folder of it could not be made.
    #[error("{path}: {source}", path = path.display())]
    FileError {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What runs beside it could not be started.
    #[error("beside it: {0}")]
    CompanionFailed(Box<Self>),
    /// It was given up, since the run was ended.
    #[error("interrupted")]
    Interrupted,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitReason {
    /// With an exit status.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

impl fmt::Display for ExitReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(out, "exited with {status}"),
            Self::Signal(signal) => write!(out, "was ended by signal {signal}"),
        }
    }
}

/// A log below a message, when there is one.
struct LogTail<'a>(&'a str);

impl fmt::Display for LogTail<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trim_end() {
            "" => out.write_str("; it wrote nothing"),
            log => write!(out, "; the end of its log:\n{log}"),
        }
    }
}

/// Names the file in an error.
fn file_error(path: &Path) -> impl FnOnce(io::Error) -> DeployError {
    let path = path.to_owned();
    |source| DeployError::FileError { path, source }
}
