//! The process that follows this one: a server's next, which gets its sockets and outlives it.
//!
//! Started by the [`super::Launcher`] for `penstock`'s upgrade. What must stay true: it does not die with us, no signal of our terminal
//! reaches it, and until it has taken over we can still end it. It leads a process group, but no session: the
//! kernel may share the processor among sessions first (`sched(7)`, the autogroup feature), and priorities,
//! by which code that is loaded goes last, count within one alone.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::process::{PidfdFlags, Signal, WaitIdOptions};

use super::launcher::CommandLine;
use super::orphans::TrackedChild;
use super::{ProcessExit, ProcessHandle, to_pid, wait_for_exit};
use crate::kernel;

/// How to start the next server.
#[derive(Debug)]
pub struct SuccessorSpec {
    /// The program, and how it is run.
    pub command: CommandLine,
    /// A descriptor that stays open in it; the variable of that name tells its number.
    pub inherited_fd: (OsString, OwnedFd),
}

/// A process that is to follow this one: it leads a process group of its own and does not die with us.
#[derive(Debug)]
pub struct Successor {
    /// Its process id.
    pub pid: u32,
    /// Becomes readable when it ends.
    pub exit: OwnedFd,
    /// Its standard error, non-blocking, until it takes over.
    pub stderr: OwnedFd,
    pub(super) tracked: TrackedChild,
}

impl Successor {
    /// How it ended, once `exit` is readable; `None` while it runs. Leaves no zombie.
    ///
    /// # Errors
    /// What `waitid` says.
    pub fn try_exit(&mut self) -> io::Result<Option<ProcessExit>> {
        let pid = to_pid(self.pid)?;
        (self.tracked).take_exit(|| wait_for_exit(pid, WaitIdOptions::NOHANG))
    }

    /// Another hand on it, for when it serves: it can still be told things.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub fn signal_target(&self) -> io::Result<SignalTarget> {
        let exit = Arc::new(self.exit.try_clone()?);
        let handle = ProcessHandle::new(self.pid, exit, self.tracked.reaped_flag());
        Ok(SignalTarget(SignalRoute::Child(handle)))
    }

    /// Ends it and what it started in its group, at once. Waits until it is gone: a process that is killed is
    /// gone in milliseconds.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&mut self) -> io::Result<()> {
        let done = super::kill_group(self.pid);
        let pid = to_pid(self.pid)?;
        (self.tracked).take_exit(|| wait_for_exit(pid, WaitIdOptions::empty()))?;
        done
    }
}

/// A way to send signals to the server after this one or before it, which meets no other process of its number.
#[derive(Debug)]
pub struct SignalTarget(SignalRoute);

#[derive(Debug)]
enum SignalRoute {
    Child(ProcessHandle),
    /// The parent's descriptor.
    Parent(OwnedFd),
    /// Its number, where processes have no descriptors.
    ParentPid(u32),
}

impl SignalTarget {
    /// The way to the server before this one, `pid`, while that is there; `None` when it has ended.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub fn to_predecessor(pid: u32) -> io::Result<Option<Self>> {
        let way = if kernel::has_pidfd() {
            match rustix::process::pidfd_open(to_pid(pid)?, PidfdFlags::empty()) {
                Err(rustix::io::Errno::SRCH) => return Ok(None),
                way => SignalRoute::Parent(way?),
            }
        } else {
            SignalRoute::ParentPid(pid)
        };
        // Asked last: what is our parent now was the process of that number all along.
        Ok(is_parent(pid).then_some(Self(way)))
    }

    /// Asks it to read its configuration again.
    ///
    /// # Errors
    /// When it is gone.
    pub fn reload(&self) -> io::Result<()> {
        self.signal(Signal::HUP)
    }

    /// Asks it to finish what it has and end.
    ///
    /// # Errors
    /// When it is gone.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.0 {
            SignalRoute::Child(handle) => handle.signal(signal),
            SignalRoute::Parent(process) => {
                Ok(rustix::process::pidfd_send_signal(process, signal)?)
            }
            // A parent keeps its number until we have another.
            SignalRoute::ParentPid(pid) if is_parent(*pid) => {
                Ok(rustix::process::kill_process(to_pid(*pid)?, signal)?)
            }
            SignalRoute::ParentPid(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

fn is_parent(pid: u32) -> bool {
    std::os::unix::process::parent_id() == pid
}
