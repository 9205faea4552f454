//! The sandbox of a started program: prepared by the server, entered by the child.
//!
//! Used where `process` starts programs. It has three parts: no new privileges (set-user-ID
//! programs gain nothing), a Landlock domain, and a seccomp filter of calls that no application
//! needs. All processes that the program starts are within them, and cannot leave.
//!
//! # Invariants
//! - A part that the kernel lacks is left off and reported by [`missing_isolation`], never half
//!   entered.
//! - [`Sandbox::enter`] makes system calls and allocates nothing, once the parts were detected.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use landlock::{ABI, Access, BitFlags, Scope};
use libc::sock_filter;
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::access::OpenedAccessRules;
use super::seccomp::{self, DENIED_SYSTEM_CALLS, RefusalMode, SeccompRules};
use super::seccomp_listener;

/// The parts of one program's sandbox that this kernel supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    has_landlock: bool,
    has_seccomp: bool,
    has_reports: bool,
}

/// A part that this kernel, or an enclosing sandbox, does not support, and what an application may
/// do then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingIsolation {
    /// Its name.
    pub name: &'static str,
    /// What an application may do without it.
    pub allows: &'static str,
}

const LANDLOCK: MissingIsolation = MissingIsolation {
    name: "Landlock with scopes (Linux 6.12)",
    allows: "an application may signal, and read the memory of, other applications of its user, and \
             signal the server by the numbers of its threads",
};

const SECCOMP: MissingIsolation = MissingIsolation {
    name: "seccomp filters",
    allows: "an application may make system calls that it does not need, such as ptrace and bpf",
};

const REPORTS: MissingIsolation = MissingIsolation {
    name: "seccomp notifications (Linux 5.9)",
    allows: "system calls that an application is refused are refused, but not named in the log",
};

/// Returns the parts that are missing here. Detected once, by a temporary thread.
pub fn missing_isolation() -> &'static [MissingIsolation] {
    static MISSING: OnceLock<Vec<MissingIsolation>> = OnceLock::new();
    MISSING.get_or_init(|| {
        // Each part affects only the thread that enters it.
        let tried = std::thread::Builder::new()
            .name("sandbox-probe".to_owned())
            .spawn(try_parts);
        let tried = tried.map(std::thread::JoinHandle::join);
        match tried {
            Ok(Ok(missing)) => missing,
            // Without a thread to try it, nothing is entered that may fail.
            _ => vec![LANDLOCK, SECCOMP, REPORTS],
        }
    })
}

/// Abstract Unix sockets, and signals (Linux 6.12). Every domain denies access to the memory of
/// outside processes (ptrace, `/proc/PID/mem`).
fn scopes() -> BitFlags<Scope> {
    Scope::from_all(ABI::V6)
}

fn try_parts() -> Vec<MissingIsolation> {
    let mut missing = Vec::new();
    let entered = rustix::thread::set_no_new_privs(true).map_err(io::Error::from);
    let entered =
        entered.and_then(|()| OpenedAccessRules::default().enter_landlock_domain(scopes()));
    missing.extend(entered.is_err().then_some(LANDLOCK));
    // The one with a listener first: there is at most one listener. These are the longest filters.
    let filters = SandboxFilters::guarding_beside(&[], false);
    let has_reports = seccomp_listener::is_supported()
        && (filters.install_reporting())
            .is_ok_and(|listener| seccomp_listener::can_report_end(listener.as_fd()));
    missing.extend(filters.install_silent().is_err().then_some(SECCOMP));
    missing.extend((!has_reports).then_some(REPORTS));
    missing
}

impl Sandbox {
    /// Every part that this kernel has.
    #[must_use]
    pub fn available() -> Self {
        let missing = missing_isolation();
        Self {
            has_landlock: !missing.contains(&LANDLOCK),
            has_seccomp: !missing.contains(&SECCOMP),
            has_reports: !missing.contains(&REPORTS),
        }
    }

    /// Enters the sandbox for good, for this thread and all processes it starts, within the limits
    /// of `access`. If `is_watched`, and the kernel supports reports, returns the listener of its
    /// filter; otherwise the same calls are refused without one.
    pub(crate) fn enter(
        self,
        access: &OpenedAccessRules,
        filters: &SandboxFilters,
        is_watched: bool,
    ) -> io::Result<Option<OwnedFd>> {
        rustix::thread::set_no_new_privs(true)?;
        access.enter_landlock_domain(match self.has_landlock {
            true => scopes(),
            false => BitFlags::EMPTY,
        })?;
        if !self.has_seccomp {
            return Ok(None);
        }
        if self.has_reports && is_watched {
            return filters.install_reporting().map(Some);
        }
        filters.install_silent().map(|()| None)
    }
}

/// The filters of sandboxes that protect some processes: built by the parent, since a child may not
/// allocate.
#[derive(Debug)]
pub(crate) struct SandboxFilters {
    reporting: Option<Vec<sock_filter>>,
    silent: Option<Vec<sock_filter>>,
}

impl SandboxFilters {
    pub(crate) fn guarding(processes: &[u32]) -> Self {
        Self::guarding_beside(processes, !missing_isolation().contains(&LANDLOCK))
    }

    /// The same with or without a Landlock domain with scopes.
    fn guarding_beside(processes: &[u32], has_scopes: bool) -> Self {
        let mut guards = seccomp_listener::process_guards(processes);
        let denied: &[_] = match has_scopes {
            true => &[DENIED_SYSTEM_CALLS],
            false => &[DENIED_SYSTEM_CALLS, seccomp_listener::PIDFD_SIGNAL_CALLS],
        };
        if !has_scopes {
            guards.extend(seccomp_listener::file_signal_guards(processes));
        }
        let rules = |refusal| SeccompRules {
            denied,
            unsupported: &[],
            only_threads: false,
            own_limits_only: true,
            guards: &guards,
            refusal,
        };
        // There are none for a processor with unknown call numbers.
        let make = |refusal| seccomp::build(rules(refusal));
        Self {
            reporting: make(RefusalMode::Report),
            silent: make(RefusalMode::Error),
        }
    }

    pub(crate) fn guarding_this_process() -> Self {
        let this = rustix::process::getpid();
        let pid = this.as_raw_nonzero().get().unsigned_abs();
        Self::guarding(&[pid, process_group(this).unwrap_or(pid)])
    }

    fn install_reporting(&self) -> io::Result<OwnedFd> {
        seccomp::install_with_listener(self.reporting.as_deref().ok_or(Errno::NOSYS)?)
    }

    fn install_silent(&self) -> io::Result<()> {
        seccomp::install(self.silent.as_deref().ok_or(Errno::NOSYS)?)
    }
}

/// The process group of a process; `None` if its leader is outside of our pid namespace, or the
/// process has exited.
pub(crate) fn process_group(process: Pid) -> Option<u32> {
    // `rustix` takes the kernel's 0 for a process.
    let process = nix::unistd::Pid::from_raw(process.as_raw_nonzero().get());
    let group = nix::unistd::getpgid(Some(process)).ok()?.as_raw();
    u32::try_from(group).ok().filter(|group| *group != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_that_nobody_watches_guards_the_same_processes() {
        let sandbox = Sandbox::available();
        if !sandbox.has_seccomp {
            return;
        }
        let entered = std::thread::spawn(move || {
            let filters = SandboxFilters::guarding_this_process();
            let listener = sandbox.enter(&OpenedAccessRules::default(), &filters, false);
            assert!(listener.unwrap().is_none());
            let this = libc::c_long::from(std::process::id());
            let thread = rustix::thread::gettid().as_raw_nonzero().get().into();
            let calls = [
                (libc::SYS_kill, [this, 0, 0]),
                (libc::SYS_tgkill, [this, this, 0]),
                (libc::SYS_prlimit64, [this, 0, 1]),
                // A thread id works like the pid.
                (libc::SYS_prlimit64, [thread, 0, 1]),
                (libc::SYS_setpriority, [0, this, 0]),
                (libc::SYS_ioprio_set, [1, this, 0]),
                (libc::SYS_kill, [-1, 0, 0]),
            ];
            calls.map(|(number, [first, second, third])| {
                #[expect(unsafe_code, reason = "calls that are refused")]
                // SAFETY: numbers, and a null pointer that nothing is read from or written to.
                let done = unsafe { libc::syscall(number, first, second, third, 0) };
                (done, io::Error::last_os_error().raw_os_error())
            })
        });
        assert_eq!(entered.join().unwrap(), [(-1, Some(libc::EPERM)); 7]);
    }

    #[test]
    fn without_scopes_no_file_signals_a_guarded_process() {
        if !Sandbox::available().has_seccomp {
            return;
        }
        let entered = std::thread::spawn(|| {
            let this = libc::c_long::from(std::process::id());
            let filters = SandboxFilters::guarding_beside(&[std::process::id()], false);
            rustix::thread::set_no_new_privs(true).unwrap();
            let (fd, _other) = crate::fd_packets::packet_pair().unwrap();
            filters.install_silent().unwrap();
            let fd = libc::c_long::from(std::os::fd::AsRawFd::as_raw_fd(&fd));
            let calls = [
                (libc::SYS_pidfd_send_signal, [fd, 0, 0]),
                (libc::SYS_fcntl, [fd, libc::F_SETOWN.into(), this]),
                (libc::SYS_fcntl, [fd, libc::F_SETOWN.into(), -this]),
                (libc::SYS_fcntl, [fd, 15, 0]),
                (libc::SYS_ioctl, [fd, 0x8901, 0]),
                (libc::SYS_ioctl, [fd, 0x8902, 0]),
                // Calls that programs make for themselves.
                (libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE.into(), 0]),
                (libc::SYS_prlimit64, [this, libc::RLIMIT_NOFILE.into(), 0]),
                (libc::SYS_fcntl, [fd, libc::F_SETOWN.into(), 0]),
                (libc::SYS_fcntl, [fd, libc::F_GETFD.into(), this]),
            ];
            calls.map(|(number, [first, second, third])| {
                #[expect(unsafe_code, reason = "calls that are refused")]
                // SAFETY: numbers, and null pointers in calls that are refused.
                let done = unsafe { libc::syscall(number, first, second, third, 0) };
                (done == -1).then(|| io::Error::last_os_error().raw_os_error())
            })
        });
        let mut expected = [Some(Some(libc::EPERM)); 10];
        expected[6..].fill(None);
        assert_eq!(entered.join().unwrap(), expected);
    }

    #[test]
    fn a_sandbox_applies_to_its_thread_only() {
        let sandbox = Sandbox::available();
        let entered = std::thread::spawn(move || {
            let filters = SandboxFilters::guarding_this_process();
            (sandbox.enter(&OpenedAccessRules::default(), &filters, false)).unwrap();
            #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
            // SAFETY: a path of nothing to nowhere; the call is denied before it is read.
            let done = unsafe { libc::syscall(libc::SYS_umount2, c"/nowhere".as_ptr(), 0) };
            (done, io::Error::last_os_error().raw_os_error())
        });
        let (done, error) = entered.join().unwrap();
        assert_eq!(done, -1);
        // Without a filter the path is wrong, at least for root.
        assert!(
            !sandbox.has_seccomp || error == Some(libc::EPERM),
            "{error:?}"
        );
        assert!(!rustix::thread::no_new_privs().unwrap());
    }
}
