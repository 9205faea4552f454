//! Protects the server's process from applications and other processes of the same user.
//!
//! `cli` calls it before anything is read; `server` calls it again after the switch to another
//! user, and for warnings.
//!
//! # Invariants
//!
//! - The process is protected before a secret is read.

use penstock_config::Config;
use penstock_sys::isolation::{AccessRules, FileAccess};
use penstock_sys::{account, isolation};

/// Protects this process: no process of the same user reads its memory or its descriptors, and no
/// child inherits the descriptors that it was started with.
pub(crate) fn harden_process() -> Result<(), String> {
    deny_inspection()?;
    isolation::mark_all_close_on_exec()
        .map_err(|error| format!("the descriptors that this process was started with: {error}"))
}

/// Protects the process again after a switch of the user, which may undo the protection.
pub(crate) fn deny_inspection() -> Result<(), String> {
    isolation::deny_inspection().map_err(|error| format!("prctl(PR_SET_DUMPABLE): {error}"))
}

/// Weaknesses of the boundary that should be fixed, a line each; for a process that has its final
/// user.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if account::effective_ids().0 == 0 {
        let whose = match config.programs().next().is_none() {
            true => "the server runs",
            false => "the server and its applications run",
        };
        warnings.push(format!(
            "{whose} as root: start it as an ordinary user, or set server.user to one (penstock config explain server.user)"
        ));
    }
    if config.programs().any(|app| app.isolation) {
        warnings.extend(isolation::missing_isolation().iter().map(describe));
    }
    let isolated = || config.programs().filter(|app| app.isolation);
    let ports = isolated().any(|app| app.access.limits_ports());
    let limits = AccessRules {
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
    format!("this kernel or sandbox has no {name}: {allows} (penstock config explain isolation)")
}
