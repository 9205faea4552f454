//! Deployments: started by a scenario's commands, monitored, and reliably stopped.
//!
//! `compare` makes one [`Testbed`] per scenario, runs the set-up in it, and starts each deployment
//! with [`RunningDeployment::start`]. All commands run below a keeper (`keeper`), a process that
//! outlives the bench until it has ended them; `supervised` is the bench's view of one keeper's
//! commands. `probe` checks whether a deployment responds, `resource_usage` reads its CPU time and
//! memory, `cgroup` limits it.
//!
//! # Invariants
//!
//! - However this process ends, nothing started here is left.
//! - A deployment that does not respond as the scenario expects is an error, never a figure.

mod cgroup;
mod keeper;
mod keeper_link;
mod keeper_protocol;
mod probe;
pub mod resource_usage;
mod running;
mod supervised;
mod testbed;

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::target::TargetError;

pub use resource_usage::{CpuTime, MemoryUsage, ProcessTree, ResourceUsage, cores_busy_seconds};
pub use running::RunningDeployment;
pub use testbed::Testbed;

/// Runs the keeper, the hidden verb `bench keeper`: reads its order from standard input, and at the
/// end of the input ends all that it started.
#[must_use]
pub fn run_keeper() -> ExitCode {
    keeper::run()
}

/// Why a deployment, or a command of it, failed. `log` is the end of the commands' output.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// A set-up command failed.
    #[error("set-up `{command}` ended with {how}")]
    Setup {
        /// The command.
        command: String,
        /// How it ended.
        how: ExitStatus,
    },
    /// A command ended before the deployment responded.
    #[error("`{command}` ended with {how} before it responded{log}", log = LogTail(log))]
    Exited {
        /// The command.
        command: String,
        /// How it ended.
        how: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// It did not respond in time.
    #[error("not ready within {within:?}: {last}{log}", log = LogTail(log))]
    NotReady {
        /// The time allowed.
        within: Duration,
        /// The result of the last attempt.
        last: String,
        /// The end of its log.
        log: String,
    },
    /// It responds, but not as expected.
    #[error("unexpected response: {what}{log}", log = LogTail(log))]
    WrongAnswer {
        /// The difference.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// A requested limit cannot be set on this host.
    #[error("cannot limit {what}: {why}")]
    CannotLimit {
        /// `memory` or `disk_read`.
        what: &'static str,
        /// The missing requirement.
        why: String,
    },
    /// Its `url` has no address, or the load's paths cannot be read.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The keeper could not be started, or ended unexpectedly.
    #[error("keeper: {0}")]
    Keeper(String),
    /// A file or directory could not be made.
    #[error("{path}: {source}", path = path.display())]
    FileError {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The companion could not be started.
    #[error("companion: {0}")]
    CompanionFailed(Box<Self>),
    /// Aborted, since the run was ended.
    #[error("interrupted")]
    Interrupted,
}

/// The log below a message, if there is one.
struct LogTail<'a>(&'a str);

impl fmt::Display for LogTail<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trim_end() {
            "" => out.write_str("; it wrote nothing"),
            log => write!(out, "; the end of its log:\n{log}"),
        }
    }
}

/// Sends a signal to a process, which may have ended by now.
fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Creates a temporary directory. Others may read it: a front end drops its privileges before it
/// opens the files that a scenario puts there.
fn new_temp_dir() -> Result<TempDir, DeployError> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(Permissions::from_mode(0o755));
    let made = builder.prefix("penstock-bench-").tempdir();
    made.map_err(file_error(&std::env::temp_dir()))
}

/// Names the file in an error.
fn file_error(path: &Path) -> impl FnOnce(io::Error) -> DeployError {
    let path = path.to_owned();
    |source| DeployError::FileError { path, source }
}
