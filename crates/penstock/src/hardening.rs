//! What keeps applications, and others of the same user, out of the server's own process.
//!
//! `cli` asks for it before anything is read; `server` again once the process is another user's,
//! and for what is to be warned of.
//!
//! # Invariants
//! - It is done before a secret is read.

use penstock_config::Config;
use penstock_sys::isolation::{Access, FileAccess};
use penstock_sys::{account, isolation};

/// Shuts this process: nothing of the same user reads its memory or its descriptors, and no program
/// that it starts inherits what it was started with.
///
/// # Errors
/// What the kernel says, in words.
pub(crate) fn harden_process() -> Result<(), String> {
    deny_inspection()?;
    isolation::mark_all_close_on_exec()
        .map_err(|error| format!("the descriptors that this process was started with: {error}"))
}

/// Shuts it again after it has become another user, which may have opened it.
///
/// # Errors
/// What the kernel says, in words.
pub(crate) fn deny_inspection() -> Result<(), String> {
    isolation::deny_inspection().map_err(|error| format!("prctl(PR_SET_DUMPABLE): {error}"))
}

/// What weakens the boundary and should be changed, a line each; of a process that is whom it will
/// be.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if account::effective_ids().0 == 0 {
        let whose = match config.apps.is_empty() {
            true => "the server runs",
            false => "the server and its applications run",
        };
        warnings.push(format!(
            "{whose} as root: name a user of their own in server.user (docs/isolation.md)"
        ));
    }
    if config.apps.values().any(|app| app.isolation) {
        warnings.extend(isolation::missing_isolation().iter().map(describe));
    }
    let isolated = || config.apps.values().filter(|app| app.isolation);
    let ports = isolated().any(|app| app.access.limits_ports());
    let limits = Access {
        files: (isolated().any(|app| app.access.limits_files())).then(FileAccess::default),
        connect_ports: ports.then(Vec::new),
        bind_ports: None,
    };
    let missing = limits.missing();
    warnings.extend(missing.iter().map(describe));
    warnings
}

fn describe(part: &isolation::MissingIsolation) -> String {
    let isolation::MissingIsolation { name, allows } = part;
    format!("this kernel or sandbox has no {name}: {allows} (docs/isolation.md)")
}
