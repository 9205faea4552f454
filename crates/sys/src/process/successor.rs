//! The process that follows this one: a server's next, which gets its sockets and outlives it.
//!
//! Used by `penstock`'s upgrade. What must stay true: it does not die with us, no signal of our terminal
//! reaches it, and until it has taken over we can still end it. It leads a process group, but no session: the
//! kernel may share the processor among sessions first (`sched(7)`, the autogroup feature), and priorities,
//! by which code that is loaded goes last, count within one alone.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use rustix::process::{PidfdFlags, Signal};

use super::orphans::{Known, known};
use super::{Exit, Handle, as_pid, exit_watch, stay_open};
use crate::kernel;

/// How to start the next server.
#[derive(Debug)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// What it is told that it is called; its own path when none.
    pub called: Option<PathBuf>,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working directory.
    pub dir: PathBuf,
    /// Environment variables set on top of ours.
    pub env: Vec<(OsString, OsString)>,
    /// Environment variables that it does not get.
    pub env_removed: Vec<OsString>,
    /// A descriptor that stays open in it; the variable of that name tells its number.
    pub inherit: (OsString, OwnedFd),
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
    child: Child,
    known: Known,
}

impl Successor {
    /// How it ended, once `exit` is readable; `None` while it runs. Leaves no zombie.
    ///
    /// # Errors
    /// What `waitpid` says.
    pub fn try_exit(&mut self) -> io::Result<Option<Exit>> {
        let child = &mut self.child;
        (self.known).take_exit(|| Ok(child.try_wait()?.as_ref().map(Exit::of_status)))
    }

    /// Another hand on it, for when it serves: it can still be told things.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub fn reach(&self) -> io::Result<Reach> {
        let exit = Arc::new(self.exit.try_clone()?);
        let handle = Handle::new(self.pid, exit, self.known.mark());
        Ok(Reach(Way::Child(handle)))
    }

    /// Ends it and what it started in its group, at once. Waits until it is gone: a process that is killed is
    /// gone in milliseconds.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&mut self) -> io::Result<()> {
        let done = super::kill_group(self.pid);
        let child = &mut self.child;
        self.known
            .take_exit(|| Ok(Some(Exit::of_status(&child.wait()?))))?;
        done
    }
}

/// A way to send signals to the server after this one or before it, which meets no other process of its number.
#[derive(Debug)]
pub struct Reach(Way);

#[derive(Debug)]
enum Way {
    Child(Handle),
    /// The parent's descriptor.
    Parent(OwnedFd),
    /// Its number, where processes have no descriptors.
    NumberedParent(u32),
}

impl Reach {
    /// The way to the server before this one, `pid`, while that is there; `None` when it has ended.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub fn to_predecessor(pid: u32) -> io::Result<Option<Self>> {
        let way = if kernel::has_pidfd() {
            match rustix::process::pidfd_open(as_pid(pid)?, PidfdFlags::empty()) {
                Err(rustix::io::Errno::SRCH) => return Ok(None),
                way => Way::Parent(way?),
            }
        } else {
            Way::NumberedParent(pid)
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
            Way::Child(handle) => handle.signal(signal),
            Way::Parent(process) => Ok(rustix::process::pidfd_send_signal(process, signal)?),
            // A parent keeps its number until we have another.
            Way::NumberedParent(pid) if is_parent(*pid) => {
                Ok(rustix::process::kill_process(as_pid(*pid)?, signal)?)
            }
            Way::NumberedParent(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

fn is_parent(pid: u32) -> bool {
    std::os::unix::process::parent_id() == pid
}

impl Exit {
    fn of_status(status: &ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(-1)),
        }
    }
}

/// Starts the next server. Blocks until the program runs.
///
/// # Errors
/// Program not found, directory missing, `EAGAIN`/`ENOMEM` from fork.
pub fn start(launch: Launch) -> io::Result<Successor> {
    let (name, socket) = launch.inherit;
    let mut command = Command::new(&launch.program);
    if let Some(called) = &launch.called {
        command.arg0(called);
    }
    command
        .args(&launch.args)
        .current_dir(&launch.dir)
        .envs(launch.env)
        .env(name, socket.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    for gone in &launch.env_removed {
        command.env_remove(gone);
    }
    let number = socket.as_raw_fd();
    let open_files = *super::inherited_open_files();
    #[expect(unsafe_code, reason = "the child sets itself up between fork and exec")]
    // SAFETY: the closure runs in the forked child before exec and makes only async-signal-safe system
    // calls (signal, prlimit, fcntl); it allocates nothing.
    unsafe {
        command.pre_exec(move || {
            super::restore(open_files)?;
            // It may still write to our terminal, from behind (`stty tostop`).
            if libc::signal(libc::SIGTTOU, libc::SIG_IGN) == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
            stay_open(number)
        });
    }
    let (mut child, known) = known(|_| {
        let child = command.spawn()?;
        Ok((child.id(), child))
    })?;
    drop(socket);
    let ends = child.stderr.take().map(OwnedFd::from);
    let ends = ends.ok_or_else(|| io::Error::other("output pipe missing"));
    let ends = ends.and_then(|stderr| {
        rustix::io::ioctl_fionbio(&stderr, true)?;
        let pid = as_pid(child.id())?;
        Ok((exit_watch::watch(pid)?, stderr))
    });
    match ends {
        Ok((exit, stderr)) => Ok(Successor {
            pid: child.id(),
            exit,
            stderr,
            child,
            known,
        }),
        Err(error) => {
            // A process that nobody watches must not stay.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_leads_a_group_in_our_session_and_its_socket_is_named() {
        let (ours, theirs) = crate::handover::pair().unwrap();
        let session = own_session();
        let script = format!(
            "test -S /dev/fd/$THE_FD && test -z \"$GONE\" && \
             test \"$(cut -d' ' -f5,6 /proc/$$/stat)\" = \"$$ {session}\" && echo said >&2; exit 7"
        );
        let mut successor = start(Launch {
            program: "/bin/sh".into(),
            called: None,
            args: vec!["-c".into(), script.into()],
            dir: "/".into(),
            env: vec![("GONE".into(), "x".into())],
            env_removed: vec!["GONE".into()],
            inherit: ("THE_FD".into(), theirs),
        })
        .unwrap();
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(&successor.exit, PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&limit)).unwrap();
        assert_eq!(successor.try_exit().unwrap(), Some(Exit::Code(7)));
        let mut text = [0; 16];
        let count = rustix::io::read(&successor.stderr, &mut text).unwrap();
        assert_eq!(&text[..count], b"said\n");
        drop(ours);
    }

    /// As the kernel tells it: 0 where who leads the session is outside of our process namespace, which
    /// getsid(2)'s wrapper does not allow for.
    fn own_session() -> String {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let behind_name = &stat[stat.rfind(')').unwrap()..];
        // `) state ppid pgrp session` (proc(5)).
        behind_name.split(' ').nth(4).unwrap().to_string()
    }
}
