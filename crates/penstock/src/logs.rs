//! Opens and reopens the log files.
//!
//! Used by `wiring` (the access log) and by `server` (its own log, SIGUSR1, `POST /logs/reopen`).
//!
//! # Invariants
//!
//! - If a file cannot be opened, the old one stays in use.

use std::fs::File;
use std::path::Path;

use penstock_config::LogTarget;
use penstock_runtime::logger::LogOutput;

/// Opens the destination of log lines. May block.
pub(crate) fn open_log_target(to: &LogTarget) -> Result<LogOutput, String> {
    Ok(match to {
        LogTarget::Stdout => LogOutput::Stdout,
        LogTarget::Stderr => LogOutput::Stderr,
        LogTarget::File(path) => LogOutput::File(open_log_file(path)?),
    })
}

/// Opens a file for appending, and creates its directory. May block.
pub(crate) fn open_log_file(path: &Path) -> Result<File, String> {
    let say = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(say)?;
    }
    let mut options = File::options();
    options.create(true).append(true).open(path).map_err(say)
}
