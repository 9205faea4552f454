//! A handle on one process, for signals that cannot reach another one.
//!
//! Created by `SpawnedProcess`, kept by code that may have to end the process.
//!
//! # Invariants
//! - Nothing is sent to a pid that has been reaped.
//! - A process that has left its group is still reached.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::process::{Pid, Signal};

use super::orphans::ReapedFlag;
use super::{kill_group, to_pid};
use crate::kernel;

/// A handle to signal a process. It never refers to another process, even after the pid was reused.
/// An error means that the process is gone.
#[derive(Debug, Clone)]
pub struct ProcessHandle {
    pid: u32,
    process: Arc<OwnedFd>,
    reaped_flag: ReapedFlag,
}

impl ProcessHandle {
    pub(super) fn new(pid: u32, process: Arc<OwnedFd>, mark: ReapedFlag) -> Self {
        Self {
            pid,
            process,
            reaped_flag: mark,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends SIGTERM to the process alone.
    pub fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Requests a dump of its threads' stacks (SIGQUIT).
    pub fn request_stack_dump(&self) -> io::Result<()> {
        self.signal(Signal::QUIT)
    }

    /// Sends SIGKILL to the process and to its group: it may have left that, or share it.
    pub fn kill(&self) -> io::Result<()> {
        // A group that is gone needs no signal.
        let _ = self.kill_group();
        self.signal(Signal::KILL)
    }

    /// Sends SIGKILL to the process alone.
    pub fn kill_process(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Sends SIGKILL to the process's group, unless the process has been reaped: then the number
    /// may be another group's.
    pub fn kill_group(&self) -> io::Result<()> {
        self.reaped_flag.run_if_not_reaped(|| kill_group(self.pid))
    }

    /// Runs `act` with its pid while that is certainly its own.
    pub(super) fn run_unless_reaped(
        &self,
        act: impl FnOnce(Pid) -> io::Result<()>,
    ) -> io::Result<()> {
        let pid = to_pid(self.pid)?;
        self.reaped_flag.run_if_not_reaped(|| act(pid))
    }

    /// Sends it a signal; without pidfds only until it is reaped.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        if *kernel::HAS_PIDFD {
            return Ok(rustix::process::pidfd_send_signal(&*self.process, signal)?);
        }
        self.run_unless_reaped(|pid| Ok(rustix::process::kill_process(pid, signal)?))
    }
}
