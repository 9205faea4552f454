//! The messages between the bench and a keeper: JSON lines over the keeper's standard streams.
//!
//! `keeper_link` writes a [`KeeperOrder`] as the first line and [`STOP_REQUEST`] as the last;
//! `keeper` answers with [`KeeperMessage`]s. Both ends are the same build, so there is no version.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

/// Asks a keeper to end everything. The end of the stream means the same, and that the bench is not
/// left to clean up.
pub(super) const STOP_REQUEST: &str = "stop";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeeperOrder {
    /// Shell commands, all started at once.
    pub(super) commands: Vec<String>,
    /// Added to the environment.
    pub(super) env: Vec<(String, String)>,
    /// Working directory.
    pub(super) dir: PathBuf,
    pub(super) output: OutputDestination,
    /// The core for everything.
    pub(super) core: Option<usize>,
    /// Whether the commands lead their own process groups in a session without a terminal.
    pub(super) is_detached: bool,
    /// Control groups that the commands join; removed at the end.
    pub(super) groups: Vec<PathBuf>,
    /// Directories that are removed at the end.
    pub(super) dirs: Vec<PathBuf>,
    /// Directories that are removed too if the bench ended without asking to stop, or before the
    /// keeper.
    pub(super) dirs_if_orphaned: Vec<PathBuf>,
}

/// Where the output of the commands goes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum OutputDestination {
    /// To the keeper's standard error.
    Terminal,
    /// Both streams to one file.
    LogFile(PathBuf),
    /// Standard output and standard error to one file each.
    SeparateFiles(PathBuf, PathBuf),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum KeeperMessage {
    /// The order cannot be executed; the keeper ends.
    Failed(String),
    Exited(CommandExit),
}

/// A command ended before it was asked to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommandExit {
    /// Its index in the order.
    pub(super) command: usize,
    /// As waitpid(2) reports it.
    pub(super) wait_status: i32,
    /// Whether any process of the commands is left, such as a daemon.
    pub(super) is_any_left: bool,
}

impl CommandExit {
    pub(super) fn how(&self) -> ExitStatus {
        ExitStatus::from_raw(self.wait_status)
    }
}
