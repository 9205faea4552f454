//! The end of a process as a descriptor that becomes readable.
//!
//! Made for each child by `process`, and awaited by `runtime`. Where processes have descriptors (`pidfd_open`,
//! Linux 5.3) it is that of the process; elsewhere that of an event, which a thread of its own raises.
//!
//! # Invariants
//!
//! - The thread takes no exit status: whoever owns the child finds it as before.
//! - The thread ends with the child, so there are never more of them than children.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, waitid};

use crate::kernel;

/// What the thread of a child needs: it waits and writes eight bytes.
const STACK_BYTES: usize = 64 * 1024;

/// A descriptor that becomes readable when `child`, which is ours and not reaped, ends.
///
/// # Errors
/// `ESRCH` when there is no such process, or that descriptors or threads ran out.
pub(super) fn open_exit_fd(child: Pid) -> io::Result<OwnedFd> {
    if kernel::has_pidfd() {
        return Ok(rustix::process::pidfd_open(child, PidfdFlags::empty())?);
    }
    open_exit_fd_by_thread(child)
}

fn open_exit_fd_by_thread(child: Pid) -> io::Result<OwnedFd> {
    // Asked first, as `pidfd_open` does.
    rustix::process::test_kill_process(child)?;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let event = rustix::event::eventfd(0, flags)?;
    let raised = event.try_clone()?;
    let thread = std::thread::Builder::new()
        .name("exit".to_owned())
        .stack_size(STACK_BYTES);
    thread.spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // Any other error means that the child is gone and reaped.
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
