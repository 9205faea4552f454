//! Reports missing features of the kernel, container or sandbox once, at the start; a part of
//! `server`.
//!
//! `sys` replaces each missing call by another; without `/proc` some features are off.

use std::path::Path;

use penstock_sys::account;
use penstock_sys::kernel;

/// The features that are off without `/proc`.
const NO_PROC_WARNING: &str = "/proc is not mounted or hidden: memory and CPU use of workers are \
     unknown (`max_memory` has no effect), processes that workers leave behind are not killed, and \
     signals from applications to the server are obeyed";

/// Logs missing calls, in one line, and a temporary directory that cannot be written.
pub(super) fn log_missing_features(temporary: &Path) {
    if let Err(error) = account::check_dir_writable(temporary) {
        log::warn!(
            "server: cannot write limits.temp_dir {}: {error}. Requests with large bodies get 500 and \
             applications cannot start. Set limits.temp_dir to a writable directory",
            temporary.display()
        );
    }
    if let Some(line) = describe_missing_calls(&kernel::missing_calls()) {
        log::info!("server: {line}");
    }
    if !kernel::has_proc() {
        log::warn!("{NO_PROC_WARNING}");
    }
}

/// Checks the system calls that every start needs.
///
/// # Errors
/// The system calls that a sandbox forbids, and what to do about them.
pub(super) fn check_required_syscalls() -> Result<(), String> {
    match &*kernel::missing_essential_calls() {
        [] => Ok(()),
        names => Err(format!(
            "this sandbox forbids {}, without which nothing can be served: let its filter allow them \
             (systemd: SystemCallFilter=@system-service; Docker: its default profile)",
            names.join(", ")
        )),
    }
}

fn describe_missing_calls(missing: &[[&str; 2]]) -> Option<String> {
    let (names, instead): (Vec<_>, Vec<_>) = missing.iter().map(|&[name, it]| (name, it)).unzip();
    (!missing.is_empty()).then(|| {
        let (names, instead) = (names.join(", "), instead.join("; "));
        format!("this kernel or sandbox has no {names}: {instead}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_calls_are_one_line() {
        assert_eq!(describe_missing_calls(&[]), None);
        let line = describe_missing_calls(&[["openat2", "a is done"], ["statx", "b is done"]]);
        assert_eq!(
            line.unwrap(),
            "this kernel or sandbox has no openat2, statx: a is done; b is done"
        );
    }
}
