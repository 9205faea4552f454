//! The exit of a process as a descriptor that becomes readable.
//!
//! Created for each child by `process`, awaited by `runtime`. It is a pidfd where available
//! (`pidfd_open`, Linux 5.3), otherwise an eventfd that a separate thread signals.
//!
//! # Invariants
//!
//! - The thread takes no exit status: the owner of the child still finds it.
//! - The thread ends with the child, so there are never more threads than children.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, waitid};

use crate::kernel;

/// The stack of a child's thread, which only waits and writes eight bytes.
const STACK_BYTES: usize = 64 * 1024;

/// Opens a descriptor that becomes readable when `child`, which is ours and not reaped, ends.
///
/// # Errors
/// `ESRCH` when there is no such process, or that descriptors or threads ran out.
pub(super) fn open_exit_fd(child: Pid) -> io::Result<OwnedFd> {
    if *kernel::HAS_PIDFD {
        return Ok(rustix::process::pidfd_open(child, PidfdFlags::empty())?);
    }
    open_exit_fd_by_thread(child)
}

fn open_exit_fd_by_thread(child: Pid) -> io::Result<OwnedFd> {
    // Checked first, as `pidfd_open` does.
    rustix::process::test_kill_process(child)?;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let event = rustix::event::eventfd(0, flags)?;
    let raised = event.try_clone()?;
    let thread = std::thread::Builder::new()
        .name("exit-watch".to_owned())
        .stack_size(STACK_BYTES);
    thread.spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // Any other error means that the child was reaped.
        while matches!(waitid(WaitId::Pid(child), options), Err(Errno::INTR)) {}
        // It has room for 2^64 of them.
        let _ = rustix::io::write(&raised, &1_u64.to_ne_bytes());
    })?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(event: &OwnedFd, wait: Duration) -> bool {
        let limit = Timespec::try_from(wait).unwrap();
        poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    #[test]
    fn the_thread_reports_an_exit_and_does_not_reap() {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "read x; exit 7"]);
        let mut child = shell.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let event = open_exit_fd_by_thread(pid).unwrap();
        assert!(!is_readable(&event, Duration::ZERO));
        drop(child.stdin.take());
        assert!(is_readable(&event, Duration::from_secs(10)));
        assert!(is_readable(&event, Duration::ZERO), "from then on");
        assert_eq!(child.wait().unwrap().code(), Some(7));
        let gone = open_exit_fd_by_thread(pid).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }
}
