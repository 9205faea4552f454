//! The next server, which takes over this one's sockets and outlives it.
//!
//! Started by the [`super::Launcher`] for `penstock`'s upgrade. It leads a process group, but no
//! session: the kernel may share the processor among sessions first (`sched(7)`, the autogroup
//! feature), and priorities, which delay the loading of code, apply only within one.
//!
//! # Invariants
//! - It does not die with us, and no signal of our terminal reaches it.
//! - Until it has taken over we can still end it.

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
    /// A descriptor that stays open in it, and the variable that contains its number.
    pub inherited_fd: (OsString, OwnedFd),
}

/// A process that is to follow this one: it leads its own process group and does not die with us.
#[derive(Debug)]
pub struct Successor {
    /// Its process id.
    pub pid: u32,
    /// Becomes readable when it ends.
    pub exit_fd: OwnedFd,
    /// Its standard error, non-blocking, until it takes over.
    pub stderr: OwnedFd,
    pub(super) tracked: TrackedChild,
}

impl Successor {
    /// Returns how it ended, once `exit_fd` is readable; `None` while it runs. Leaves no zombie.
    pub fn try_exit(&mut self) -> io::Result<Option<ProcessExit>> {
        let pid = to_pid(self.pid)?;
        (self.tracked).take_exit(|| wait_for_exit(pid, WaitIdOptions::NOHANG))
    }

    /// Another handle on it, to signal it while it serves.
    pub fn signal_target(&self) -> io::Result<SignalTarget> {
        let exit = Arc::new(self.exit_fd.try_clone()?);
        let handle = ProcessHandle::new(self.pid, exit, self.tracked.reaped_flag());
        Ok(SignalTarget(SignalRoute::Child(handle)))
    }

    /// Kills it and its group. Waits until it has exited: a killed process does within
    /// milliseconds.
    pub fn kill(&mut self) -> io::Result<()> {
        let done = super::kill_group(self.pid);
        let pid = to_pid(self.pid)?;
        (self.tracked).take_exit(|| wait_for_exit(pid, WaitIdOptions::empty()))?;
        done
    }
}

/// Sends signals to the next or the previous server, never to another process with its pid. An
/// error means that it is gone.
#[derive(Debug)]
pub struct SignalTarget(SignalRoute);

#[derive(Debug)]
enum SignalRoute {
    Child(ProcessHandle),
    /// The parent's pidfd.
    Parent(OwnedFd),
    /// Its pid, where there are no pidfds.
    ParentPid(u32),
}

impl SignalTarget {
    /// The target for the server before this one, `pid`, while it runs; `None` when it has ended.
    pub fn to_predecessor(pid: u32) -> io::Result<Option<Self>> {
        let way = if *kernel::HAS_PIDFD {
            match rustix::process::pidfd_open(to_pid(pid)?, PidfdFlags::empty()) {
                Err(rustix::io::Errno::SRCH) => return Ok(None),
                way => SignalRoute::Parent(way?),
            }
        } else {
            SignalRoute::ParentPid(pid)
        };
        // Checked last: if it is our parent now, the pid was its own all along.
        Ok(is_parent(pid).then_some(Self(way)))
    }

    /// Requests a reload of its configuration.
    pub fn request_reload(&self) -> io::Result<()> {
        self.signal(Signal::HUP)
    }

    /// Requests a graceful shutdown.
    pub fn request_stop(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.0 {
            SignalRoute::Child(handle) => handle.signal(signal),
            SignalRoute::Parent(process) => {
                Ok(rustix::process::pidfd_send_signal(process, signal)?)
            }
            // A parent keeps its pid until we have another.
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
