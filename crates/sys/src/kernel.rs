//! Recent system calls that a kernel or a sandbox may lack, each detected once.
//!
//! Used by `file` and `process`, which replace each missing call, and by `penstock`, which reports
//! missing calls at the start. A kernel without a call returns `ENOSYS`; a filter (seccomp:
//! systemd, Docker, gVisor) returns that, `EPERM` or `EACCES`.
//!
//! # Invariants
//!
//! - Nothing here fails: a call that cannot be tested for lack of descriptors counts as present.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::LazyLock;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::fs::{openat2, statx};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::SocketFlags;
use rustix::pipe::{SpliceFlags, splice, vmsplice};
use rustix::process::PidfdFlags;
use rustix::time::{TimerfdClockId, TimerfdFlags};

/// Whether an error of a call means that this process does not have the call.
pub(crate) fn is_call_unavailable(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM | Errno::ACCESS)
}

/// Whether files can be opened beneath a root in one call (`openat2`, Linux 5.6).
pub(crate) static HAS_OPENAT2: LazyLock<bool> = LazyLock::new(|| {
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_MAGICLINKS);
    is_available(openat2(CWD, c"/", flags, Mode::empty(), resolve))
});

/// Whether processes can be watched and signalled by descriptors (`pidfd_open`, Linux 5.3;
/// `pidfd_send_signal`, Linux 5.1).
pub(crate) static HAS_PIDFD: LazyLock<bool> = LazyLock::new(|| {
    let us = rustix::process::getpid();
    match rustix::process::pidfd_open(us, PidfdFlags::empty()) {
        Ok(fd) => is_available(test_signal(&fd)),
        Err(error) => !is_call_unavailable(error),
    }
});

/// `pidfd_send_signal` with signal 0, which tests for a process as in `kill(2)`.
fn test_signal(pidfd: &OwnedFd) -> Result<(), Errno> {
    let (none, flags) = (std::ptr::null::<libc::siginfo_t>(), 0_u32);
    #[expect(unsafe_code, reason = "rustix sends only signals that there are")]
    // SAFETY: a descriptor that is open for the call, numbers, and no pointer.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            0,
            none,
            flags,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
}

/// Whether `statx` works (Linux 4.11; forbidden by Docker's filters before 18.04).
pub(crate) static HAS_STATX: LazyLock<bool> =
    LazyLock::new(|| is_available(statx(CWD, c"/", AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)));

/// Whether anonymous files in memory work (`memfd_create`, Linux 3.17).
pub(crate) static HAS_MEMFD: LazyLock<bool> =
    LazyLock::new(|| is_available(rustix::fs::memfd_create(c"penstock", MemfdFlags::CLOEXEC)));

/// Whether the kernel moves bytes from a file to a socket (`sendfile`; forbidden by some
/// sandboxes).
pub(crate) static HAS_SENDFILE: LazyLock<bool> = LazyLock::new(|| {
    nowhere().is_none_or(|fd| is_available(rustix::fs::sendfile(&fd, &fd, None, 1)))
});

/// Whether cached bytes can be read without a wait (`preadv2`, Linux 4.6).
fn has_preadv2() -> bool {
    nowhere().is_none_or(|fd| {
        let (mut byte, flags) = ([0], ReadWriteFlags::NOWAIT);
        let mut buffers = [IoSliceMut::new(&mut byte)];
        is_available(rustix::io::preadv2(&fd, &mut buffers, 0, flags))
    })
}

/// Whether bytes in memory can be sent to a socket by reference (`vmsplice` and `splice`).
fn has_splice() -> bool {
    nowhere().is_none_or(|fd| {
        let none = SpliceFlags::NONBLOCK;
        #[expect(unsafe_code, reason = "the kernel would keep references to pages")]
        // SAFETY: there are no pages.
        let filled = unsafe { vmsplice(&fd, &[], none) };
        is_available(filled) && is_available(splice(&fd, None, &fd, None, 1, none))
    })
}

/// The missing calls without which nothing works. All are of Linux 2.6.28 or older, so only a
/// sandbox forbids them.
#[must_use]
pub fn missing_essential_calls() -> Vec<&'static str> {
    let has_accept4 = nowhere()
        .is_none_or(|fd| is_available(rustix::net::accept_with(&fd, SocketFlags::CLOEXEC)));
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
    let all = [
        (
            is_available(epoll::create(epoll::CreateFlags::CLOEXEC)),
            "epoll_create1",
        ),
        (is_available(eventfd(0, EventfdFlags::CLOEXEC)), "eventfd2"),
        (is_available(timer), "timerfd_create"),
        (has_accept4, "accept4"),
    ];
    let missing = all.into_iter().filter(|(is_there, _)| !is_there);
    missing.map(|(_, name)| name).collect()
}

/// Whether the cached pages of a file can be counted (`cachestat`, Linux 6.5).
static CACHESTAT: LazyLock<bool> = LazyLock::new(|| {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(program) = rustix::fs::open(c"/proc/self/exe", flags, Mode::empty()) else {
        return true;
    };
    let program = std::fs::File::from(program);
    match crate::page_cache::cached_pages(&program, 0, 1) {
        Err(error) => Errno::from_io_error(&error).is_none_or(|error| !is_call_unavailable(error)),
        Ok(_) => true,
    }
});

/// The recent calls that this process does not have, each with what replaces it. Blocks for some
/// microseconds.
pub fn missing_calls() -> Vec<[&'static str; 2]> {
    let all = [
        (
            *HAS_OPENAT2,
            [
                "openat2",
                "files are opened directory by directory, in a pool",
            ],
        ),
        (
            *HAS_PIDFD,
            ["pidfd_open", "a thread waits for each process's end"],
        ),
        (*HAS_STATX, ["statx", "fstat is used instead"]),
        (
            *HAS_MEMFD,
            ["memfd_create", "worker scripts are temporary files"],
        ),
        (
            *HAS_SENDFILE,
            ["sendfile", "cached parts of files are copied"],
        ),
        (
            has_preadv2(),
            ["preadv2", "a pool reads data that may not be cached"],
        ),
        (
            has_splice(),
            [
                "splice",
                "bodies of a cache in memory are copied for each client",
            ],
        ),
        (
            *CACHESTAT,
            ["cachestat", "mincore is used to find resident pages"],
        ),
    ];
    let missing = all.into_iter().filter(|(is_there, _)| !is_there);
    missing.map(|(_, call)| call).collect()
}

/// Whether `/proc` is mounted and shows this process.
pub fn has_proc() -> bool {
    rustix::fs::stat(c"/proc/self/stat").is_ok()
}

/// A descriptor that can be neither read nor written.
fn nowhere() -> Option<OwnedFd> {
    rustix::fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn is_available<T>(answer: Result<T, Errno>) -> bool {
    answer.err().is_none_or(|error| !is_call_unavailable(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_denied_calls_count_as_missing() {
        for missing in [Errno::NOSYS, Errno::PERM, Errno::ACCESS] {
            assert!(!is_available::<()>(Err(missing)));
        }
        for other in [Errno::MFILE, Errno::NFILE, Errno::NOENT, Errno::INTR] {
            assert!(is_available::<()>(Err(other)));
        }
        assert!(is_available(Ok(())));
    }

    #[test]
    fn availability_is_probed_once() {
        assert_eq!(missing_calls(), missing_calls());
        assert!(has_proc());
    }
}
