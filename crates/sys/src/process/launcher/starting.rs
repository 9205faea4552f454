//! One start, as the server sees it: from the order to the running program.
//!
//! Created by the [`Launcher`], advanced by `runtime` on an event loop or by a thread that blocks.
//!
//! # Invariants
//!
//! - Nothing here waits except [`StartingProcess::finish`].
//! - The process is in the table of children before its program runs, so that only its owner takes
//!   its exit status.
//! - A cancelled process is killed, and left to be reaped as an orphan.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::process::Signal;

use super::launch_order::LaunchOrder;
use super::{GO, LaunchReply, Launcher, MAX_REPLY_BYTES, START_TIMEOUT};
use crate::net::{self, MAX_DESCRIPTORS};
use crate::process::orphans::TrackedChild;
use crate::process::{ProcessHandle, SpawnedProcess, take_in};
use crate::{fd_packets, file};

/// Delay between two attempts to send to a launcher that is busy.
const BUSY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// A program that is being started. Dropping it before the program runs cancels the start.
#[derive(Debug)]
pub struct StartingProcess<'a> {
    launcher: &'a Launcher,
    /// Our end of the order's socket.
    socket: OwnedFd,
    /// The other end, until it is sent.
    theirs: Option<OwnedFd>,
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Our ends of its output pipes, until it runs.
    outputs: Option<(OwnedFd, OwnedFd)>,
    /// The process, once it exists.
    process: Option<(ProcessHandle, Arc<OwnedFd>, TrackedChild)>,
    deadline: Instant,
}

/// Progress of a start.
#[derive(Debug)]
pub enum StartProgress {
    /// Call again once [`StartingProcess::socket`] is readable.
    Waiting,
    /// The launcher is busy with others: call again in a few milliseconds.
    LauncherBusy,
    /// The program runs.
    Running(SpawnedProcess),
}

impl<'a> StartingProcess<'a> {
    pub(super) fn new(
        launcher: &'a Launcher,
        order: &LaunchOrder,
        descriptors: Vec<OwnedFd>,
        outputs: (OwnedFd, OwnedFd),
    ) -> io::Result<Self> {
        let text = file::memfd_with_content("penstock-launch-order", &order.encode())?;
        let (socket, theirs) = fd_packets::packet_pair()?;
        let count = u32::try_from(descriptors.len()).map_err(io::Error::other)?;
        let mut unsent = VecDeque::from([(count.to_le_bytes().to_vec(), vec![text])]);
        let mut rest = descriptors.into_iter().peekable();
        while rest.peek().is_some() {
            let part = rest.by_ref().take(MAX_DESCRIPTORS).collect();
            unsent.push_back((b"d".to_vec(), part));
        }
        Ok(Self {
            launcher,
            socket,
            theirs: Some(theirs),
            unsent,
            outputs: Some(outputs),
            process: None,
            deadline: Instant::now() + START_TIMEOUT,
        })
    }

    /// Becomes readable when there is more to do.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// When it is cancelled.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Does what can be done now. Not to be called again after an error, or once the program runs.
    ///
    /// # Errors
    /// Program not found, directory missing, `EAGAIN`/`ENOMEM` from fork; `TimedOut` after the
    /// deadline; that the launcher has ended.
    pub fn advance(&mut self) -> io::Result<StartProgress> {
        let is_sent = self.send()?;
        if let Some(theirs) = &self.theirs
            && self.launcher.hand_over(theirs)?
        {
            self.theirs = None;
        }
        if !is_sent || self.theirs.is_some() {
            return self.unless_late(StartProgress::LauncherBusy);
        }
        let mut buffer = [0; MAX_REPLY_BYTES];
        loop {
            match fd_packets::receive_packet(self.socket.as_fd(), &mut buffer) {
                Ok((0, _)) => return self.finished().map(StartProgress::Running),
                Ok((length, _)) => {
                    let pid = LaunchReply::decode(&buffer[..length])?.into_result()?;
                    self.take_in(pid)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.unless_late(StartProgress::Waiting);
                }
                // It ended with unread data.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return self.finished().map(StartProgress::Running);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Advances to the end. Blocks until the program runs, `START_TIMEOUT` at most.
    pub fn finish(mut self) -> io::Result<SpawnedProcess> {
        loop {
            match self.advance()? {
                StartProgress::Running(started) => return Ok(started),
                // A plain delay.
                StartProgress::LauncherBusy => drop(poll(&mut [], Some(&BUSY))),
                StartProgress::Waiting => {
                    let left = self.deadline.saturating_duration_since(Instant::now());
                    match fd_packets::wait_readable(self.socket.as_fd(), Some(left)) {
                        Err(error) if error.kind() != io::ErrorKind::TimedOut => return Err(error),
                        // The next call of `advance` finds the data, or the timeout.
                        _ => {}
                    }
                }
            }
        }
    }

    /// Sends the rest of the order; `false` when not all of it can be sent now.
    fn send(&mut self) -> io::Result<bool> {
        while let Some((bytes, descriptors)) = self.unsent.front() {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            // A packet is sent whole or not at all.
            match net::send_descriptors(self.socket.as_fd(), bytes, &descriptors) {
                Ok(_) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // The reply says why it is not read.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.unsent.clear(),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Tracks the new process and lets it continue.
    fn take_in(&mut self, pid: u32) -> io::Result<()> {
        if self.process.is_some() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (exit, known) = take_in(pid)?;
        let exit = Arc::new(exit);
        let handle = ProcessHandle::new(pid, Arc::clone(&exit), known.reaped_flag());
        self.process = Some((handle, exit, known));
        match fd_packets::send_packet(self.socket.as_fd(), GO, None) {
            // It has ended: the end of the socket is next.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent,
        }
    }

    /// The other end is closed: the program runs, or has ended already.
    fn finished(&mut self) -> io::Result<SpawnedProcess> {
        let (Some((handle, exit, known)), Some((stdout, stderr))) =
            (self.process.take(), self.outputs.take())
        else {
            let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(match self.launcher.has_ended() {
                true => self.launcher.note_end(&ended),
                false => io::Error::other("its process ended before the program ran"),
            });
        };
        Ok(SpawnedProcess {
            pid: handle.pid(),
            exit_fd: exit,
            stdout,
            stderr,
            tracked: known,
        })
    }

    fn unless_late(&self, step: StartProgress) -> io::Result<StartProgress> {
        if Instant::now() < self.deadline {
            return Ok(step);
        }
        let limit = Duration::as_secs(&START_TIMEOUT);
        let why = match (&step, &self.process) {
            (StartProgress::LauncherBusy, _) => "the launcher takes no order".to_owned(),
            (_, None) => "the launcher has started no process".to_owned(),
            (_, Some(_)) => {
                "the kernel still waits for its file (does the disk answer?)".to_owned()
            }
        };
        let why = format!("not started within {limit} s: {why}");
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }
}

impl Drop for StartingProcess<'_> {
    fn drop(&mut self) {
        if let Some((handle, _, _)) = &self.process {
            // A process that is gone needs no signal.
            let _ = handle.signal(Signal::KILL);
        }
    }
}
