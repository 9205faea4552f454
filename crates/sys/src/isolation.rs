//! Isolation between processes: keeps others out of this one, and limits the calls of started
//! programs.
//!
//! `penstock` closes its own process to inspection at the start ([`deny_inspection`]) and keeps
//! inherited descriptors to itself ([`mark_all_close_on_exec`]); `apps` starts programs within a
//! [`Sandbox`].
//!
//! # Invariants
//! - A started program receives only descriptors that are passed on explicitly.

mod access;
mod port_filter;
mod sandbox;
pub(crate) mod seccomp;
pub(crate) mod seccomp_listener;

use std::io;
use std::os::fd::RawFd;

use rustix::process::DumpableBehavior;

pub use access::{AccessRules, FileAccess};
pub use sandbox::{MissingIsolation, Sandbox, missing_isolation};
pub(crate) use sandbox::{SandboxFilters, process_group};

const FIRST_FD: libc::c_uint = 3;

/// Number of descriptors that are tried where a kernel can neither mark all in one call nor list
/// them.
const MAX_TRIED_FD: RawFd = 65_536;

/// Lets no process of the same user read this one's memory, environment or descriptors, trace it or
/// copy one of its descriptors; it also leaves no core file. Lasts until the process switches users
/// or executes another program: call it again then.
pub fn deny_inspection() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(
        DumpableBehavior::NotDumpable,
    )?)
}

/// Marks each descriptor but the standard streams close-on-exec. For the start of a process:
/// descriptors that it opens itself are marked anyway.
///
/// # Errors
/// Only where there is neither `close_range` (Linux 5.11) nor `/proc`: those of `getrlimit`.
pub fn mark_all_close_on_exec() -> io::Result<()> {
    #[expect(unsafe_code, reason = "descriptors are named by number")]
    // SAFETY: numbers only; no descriptor is closed by it, only a flag of each is set.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_FD,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        return Ok(());
    }
    mark_each_close_on_exec()
}

/// The same without `close_range`.
fn mark_each_close_on_exec() -> io::Result<()> {
    if let Ok(numbers) = open_fd_numbers() {
        numbers.into_iter().for_each(set_close_on_exec);
        return Ok(());
    }
    let limit = crate::resource_limits::read_limit(rustix::process::Resource::Nofile)?;
    let limit = limit.current.and_then(|limit| RawFd::try_from(limit).ok());
    (3..limit.unwrap_or(MAX_TRIED_FD).min(MAX_TRIED_FD)).for_each(set_close_on_exec);
    Ok(())
}

pub(crate) fn open_fd_numbers() -> io::Result<Vec<RawFd>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        numbers.extend(number.filter(|&number: &RawFd| number >= 3));
    }
    Ok(numbers)
}

/// A number that is not open is refused, which is fine.
fn set_close_on_exec(number: RawFd) {
    #[expect(unsafe_code, reason = "descriptors are named by number")]
    // SAFETY: fcntl(F_SETFD) on a number sets a flag and closes nothing.
    unsafe {
        libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};

    /// A descriptor that programs inherit.
    fn leaked() -> OwnedFd {
        let file = crate::file::memfd_with_content("leaked", b"x").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        file
    }

    fn is_marked(fd: &OwnedFd) -> bool {
        let flags = rustix::io::fcntl_getfd(fd).unwrap();
        flags.contains(rustix::io::FdFlags::CLOEXEC)
    }

    #[test]
    fn all_fds_but_the_standard_streams_are_close_on_exec() {
        // A high number: the list does not end at the first gap.
        let high = rustix::io::fcntl_dupfd_cloexec(leaked(), 700).unwrap();
        for mark_all in [mark_all_close_on_exec, mark_each_close_on_exec] {
            rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).unwrap();
            let low = leaked();
            assert!(!is_marked(&low) && !is_marked(&high));
            mark_all().unwrap();
            assert!(is_marked(&low) && is_marked(&high));
            assert!(!open_fd_numbers().unwrap().contains(&2));
            assert!(open_fd_numbers().unwrap().contains(&high.as_raw_fd()));
        }
    }
}
