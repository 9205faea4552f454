//! Confines the process that faces the network: no starting of programs, no power over other
//! processes and the kernel.
//!
//! `penstock` calls it once, before its second thread, when the launcher runs, which starts
//! programs from then on. The kernel enforces it by a system call filter that threads inherit.

use std::io;

use crate::isolation::seccomp::{self, DENIED_SYSTEM_CALLS, RefusalMode, SeccompRules, SystemCall};

/// Calls that no front end needs, besides those that no application needs.
const FRONT_END_DENIED_CALLS: &[SystemCall] = &[
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    #[cfg(target_arch = "x86_64")]
    ("fork", libc::SYS_fork),
    #[cfg(target_arch = "x86_64")]
    ("vfork", libc::SYS_vfork),
    ("process_madvise", libc::SYS_process_madvise),
    ("chroot", libc::SYS_chroot),
    ("setns", libc::SYS_setns),
    ("unshare", libc::SYS_unshare),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("personality", libc::SYS_personality),
];

/// Confines the front end for good: it can start no programs or processes, inspect no others and
/// not change the system. New threads stay allowed. Forbidden calls fail with `EPERM`.
///
/// # Errors
/// The kernel's error: it may not support filters (`ENOSYS`, `EINVAL`).
pub fn confine_front_end() -> io::Result<()> {
    let rules = SeccompRules {
        denied: &[DENIED_SYSTEM_CALLS, FRONT_END_DENIED_CALLS],
        // Its arguments are in memory, which no filter sees; the C library then uses `clone`.
        unsupported: &[("clone3", libc::SYS_clone3)],
        only_threads: true,
        own_limits_only: false,
        guards: &[],
        refusal: RefusalMode::Error,
    };
    let filter = seccomp::build(rules).ok_or(io::ErrorKind::Unsupported)?;
    rustix::thread::set_no_new_privs(true)?;
    seccomp::install(&filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_thread_starts_threads_but_no_program() {
        // In a separate thread: it is irreversible.
        let confined = std::thread::spawn(|| {
            confine_front_end().unwrap();
            let thread = std::thread::spawn(|| std::process::Command::new("true").status());
            let started = thread.join().unwrap().unwrap_err();
            let us = rustix::process::getpid();
            #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
            // SAFETY: numbers and no memory: nothing would be read.
            let read = unsafe {
                let (us, none) = (us.as_raw_nonzero().get(), std::ptr::null::<libc::iovec>());
                libc::process_vm_readv(us, none, 0, none, 0, 0)
            };
            let read = (read, io::Error::last_os_error());
            (started, read)
        });
        let (started, (read, error)) = confined.join().unwrap();
        assert_eq!(started.raw_os_error(), Some(libc::EPERM));
        assert_eq!((read, error.raw_os_error()), (-1, Some(libc::EPERM)));
        let free = std::process::Command::new("true").status().unwrap();
        assert!(free.success(), "others are as they were");
    }
}
