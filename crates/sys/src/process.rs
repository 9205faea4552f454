//! Processes: starting a worker that cannot outlive us, waiting for its end, signalling its group.
//!
//! Used by `apps`' executor. A worker leads a process group of its own, so that a Ctrl-C at the
//! terminal reaches only the server and a kill reaches what the worker started; it dies with the
//! *thread* that started it (`PR_SET_PDEATHSIG`), so callers start workers from a thread that lives
//! as long as the server.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal};

/// What to start and what it inherits.
#[derive(Debug)]
pub struct Launch {
    /// The program, looked up in `PATH` when it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working directory.
    pub dir: PathBuf,
    /// Environment variables set on top of ours.
    pub env: Vec<(OsString, OsString)>,
    /// Descriptors that stay open in it, under the same numbers.
    pub inherit: Vec<OwnedFd>,
    /// Descriptors that it gets under a number that it expects, 0 for its standard input. The number
    /// must not be one of `inherit`'s.
    pub place: Vec<(OwnedFd, RawFd)>,
}

/// A started process with our ends of its output pipes.
#[derive(Debug)]
pub struct Started {
    /// Its process id, also its process group's.
    pub pid: u32,
    /// Becomes readable when it ends.
    pub exit: OwnedFd,
    /// Its standard output, non-blocking.
    pub stdout: OwnedFd,
    /// Its standard error, non-blocking.
    pub stderr: OwnedFd,
    child: Child,
}

impl Started {
    /// How it ended, once `exit` is readable; `None` while it runs. Leaves no zombie.
    ///
    /// # Errors
    /// What `waitpid` says.
    pub fn try_exit(&mut self) -> io::Result<Option<Exit>> {
        Ok(self
            .child
            .try_wait()?
            .map(|s| match (s.code(), s.signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => Exit::Code(-1),
            }))
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It called exit.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(9) => write!(f, "SIGKILL"),
            Self::Signal(11) => write!(f, "SIGSEGV"),
            Self::Signal(15) => write!(f, "SIGTERM"),
            Self::Signal(n) => write!(f, "signal {n}"),
        }
    }
}

/// Starts a process in a group of its own, standard input closed, output on pipes.
///
/// # Errors
/// Program not found, directory missing, `EAGAIN`/`ENOMEM` from fork.
/// Blocks until the new program runs.
pub fn start(launch: &Launch) -> io::Result<Started> {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.args)
        .current_dir(&launch.dir)
        .envs(launch.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let keep: Vec<RawFd> = launch.inherit.iter().map(AsRawFd::as_raw_fd).collect();
    let raw = |(fd, number): &(OwnedFd, RawFd)| (fd.as_raw_fd(), *number);
    let place: Vec<(RawFd, RawFd)> = launch.place.iter().map(raw).collect();
    let parent = rustix::process::getpid();
    #[expect(unsafe_code, reason = "the child sets itself up between fork and exec")]
    // SAFETY: the closure runs in the forked child before exec and makes only async-signal-safe
    // system calls (prctl, getppid, fcntl, dup2); it allocates nothing and its lists are only read.
    unsafe {
        command.pre_exec(move || prepare_child(&keep, &place, parent));
    }
    let mut child = command.spawn()?;
    match take_ends(&mut child) {
        Ok((exit, stdout, stderr)) => Ok(Started {
            pid: child.id(),
            exit,
            stdout,
            stderr,
            child,
        }),
        Err(error) => {
            // Descriptors ran out right here: a process that nobody watches must not stay.
            let _ = kill_group(child.id());
            let _ = child.wait();
            Err(error)
        }
    }
}

fn take_ends(child: &mut Child) -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("output pipes missing"));
    };
    let (stdout, stderr) = (OwnedFd::from(stdout), OwnedFd::from(stderr));
    rustix::io::ioctl_fionbio(&stdout, true)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    let exit = rustix::process::pidfd_open(as_pid(child.id())?, PidfdFlags::NONBLOCK)?;
    Ok((exit, stdout, stderr))
}

fn prepare_child(keep: &[RawFd], place: &[(RawFd, RawFd)], parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The server may have died between fork and prctl; then nobody would send the signal.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::Error::other("the server is gone"));
    }
    for &fd in keep {
        stay_open(fd)?;
    }
    for &(fd, number) in place {
        if fd == number {
            stay_open(fd)?;
            continue;
        }
        #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
        // SAFETY: dup2 of a descriptor that the parent holds open over the fork, onto a number in the
        // child alone, where nothing that is still needed has it: the copy is not close-on-exec.
        let done = unsafe { libc::dup2(fd, number) };
        if done == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn stay_open(fd: RawFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
    // SAFETY: fcntl(F_SETFD) on a number; the parent holds the descriptor open over the fork.
    let done = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Lets this process, and those that it starts from now on, open as many descriptors as it may: the number
/// before and after.
///
/// # Errors
/// What `setrlimit` says; the limit is as it was.
pub fn raise_open_files() -> io::Result<(u64, u64)> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    // `None` is no limit.
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if number(current) < number(maximum) {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        rustix::process::setrlimit(Resource::Nofile, raised)?;
    }
    Ok((number(current), number(maximum)))
}

/// Sends SIGTERM to the process alone.
///
/// # Errors
/// When it is gone.
pub fn terminate(pid: u32) -> io::Result<()> {
    Ok(rustix::process::kill_process(as_pid(pid)?, Signal::TERM)?)
}

/// Sends SIGKILL to the process's whole group.
///
/// # Errors
/// When it is gone.
pub fn kill_group(pid: u32) -> io::Result<()> {
    Ok(rustix::process::kill_process_group(
        as_pid(pid)?,
        Signal::KILL,
    )?)
}

fn as_pid(pid: u32) -> io::Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such process id"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn wait(started: &mut Started) -> Exit {
        let mut fds = [PollFd::new(&started.exit, PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&limit)).unwrap();
        started.try_exit().unwrap().expect("it ended within 10 s")
    }

    fn shell(script: &str, inherit: Vec<OwnedFd>) -> Started {
        shell_with(script, inherit, Vec::new())
    }

    fn shell_with(script: &str, inherit: Vec<OwnedFd>, place: Vec<(OwnedFd, RawFd)>) -> Started {
        start(&Launch {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            dir: "/".into(),
            env: vec![("GREETING".into(), "hello".into())],
            inherit,
            place,
        })
        .unwrap()
    }

    #[test]
    fn a_process_inherits_the_descriptors_it_is_given() {
        let file = crate::file::in_memory("t", b"from the parent").unwrap();
        let number = file.as_raw_fd();
        let mut started = shell(
            &format!("cat <&{number} && printf \" $GREETING\""),
            vec![file],
        );
        assert_eq!(wait(&mut started), Exit::Code(0));
        let mut buffer = [0; 64];
        let n = rustix::io::read(&started.stdout, &mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"from the parent hello");
    }

    #[test]
    fn a_process_finds_a_descriptor_under_the_number_that_it_expects() {
        for number in [0, 3] {
            let file = crate::file::in_memory("t", b"here").unwrap();
            let ours = file.as_raw_fd();
            let script =
                format!("cat <&{number}; test {ours} = {number} || test ! -e /proc/self/fd/{ours}");
            let mut started = shell_with(&script, Vec::new(), vec![(file, number)]);
            assert_eq!(
                wait(&mut started),
                Exit::Code(0),
                "{ours} is not left open beside {number}"
            );
            let mut buffer = [0; 64];
            let n = rustix::io::read(&started.stdout, &mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"here");
        }
    }

    #[test]
    fn as_many_files_may_be_open_as_the_system_allows() {
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let low = Rlimit {
            current: Some(512),
            maximum,
        };
        rustix::process::setrlimit(Resource::Nofile, low).unwrap();
        let (before, after) = raise_open_files().unwrap();
        assert_eq!((before, Some(after)), (512, maximum.or(Some(u64::MAX))));
        let now = rustix::process::getrlimit(Resource::Nofile);
        assert_eq!(now.current, maximum);
        assert_eq!(raise_open_files().unwrap(), (after, after));
    }

    #[test]
    fn a_kill_reaches_what_the_process_started() {
        let mut started = shell("sleep 1000 & wait", Vec::new());
        kill_group(started.pid).unwrap();
        assert_eq!(wait(&mut started), Exit::Signal(9));
        // The pipe's end arrives only when the grandchild that also holds it is gone.
        let mut fds = [PollFd::new(&started.stdout, PollFlags::HUP)];
        let limit = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1);
    }
}
