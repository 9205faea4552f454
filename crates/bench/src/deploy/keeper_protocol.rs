//! What the bench and a keeper tell each other: JSON lines over the keeper's standard streams.
//!
//! `link` writes an [`Order`] as the first line and [`STOP_LINE`] as the last; `keeper` answers with
//! [`Word`]s. Both ends are the same build, so that there is no version.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ExitReason;

/// The line that asks a keeper to end everything. The end of the stream means the same, and that
/// nobody is left who could tidy up.
pub(super) const STOP_LINE: &str = "stop";

/// What a keeper does.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeeperOrder {
    /// Shell commands, all started at once.
    pub(super) commands: Vec<String>,
    /// Added to the environment.
    pub(super) env: Vec<(String, String)>,
    /// Working directory.
    pub(super) dir: PathBuf,
    pub(super) output: CommandOutput,
    /// The core for everything.
    pub(super) core: Option<usize>,
    /// Whether the commands lead process groups of their own in a session without a terminal.
    pub(super) is_detached: bool,
    /// Control groups that the commands join; removed at the end.
    pub(super) groups: Vec<PathBuf>,
    /// Folders that are removed at the end.
    pub(super) folders: Vec<PathBuf>,
    /// Folders that are removed too, when the bench ended without asking to stop, or before we had.
    pub(super) orphaned: Vec<PathBuf>,
}

/// Where commands write to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum CommandOutput {
    /// To the keeper's standard error.
    Terminal,
    /// Everything to one file.
    Log(PathBuf),
    /// Standard output and standard error to a file each.
    Apart(PathBuf, PathBuf),
}

/// What a keeper has to say.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum KeeperMessage {
    /// All commands were started.
    Started,
    /// The order cannot be executed; the keeper ends.
    Failed(String),
    /// A command ended before it was asked to.
    Exited {
        /// Its index.
        command: usize,
        how: ExitReason,
        /// Whether any process of the commands is left; a daemon is.
        is_any_left: bool,
    },
    /// Some processes could not be ended.
    Survived(Vec<u32>),
}
