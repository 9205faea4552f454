//! Processes: starting a worker that cannot outlive the server, waiting for its exit, signalling
//! its group.
//!
//! Used by `apps`' executor through the [`Launcher`]. A worker leads its own process group, so that
//! Ctrl-C at the terminal reaches only the server and a kill reaches all processes of the worker.
//! It dies with the *thread* that started it (`PR_SET_PDEATHSIG`), so callers start workers from a
//! thread that lives as long as the server. A worker that another one forked becomes a child of the
//! server ([`become_subreaper`]) and is adopted by its pid ([`adopt`]).
//!
//! # Invariants
//! - Every child that is waited for here is in the table of `orphans`, so that its exit status is
//!   taken only once.

mod exit_watch;
mod handle;
pub(crate) mod launcher;
mod orphans;
mod priority;
pub mod successor;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitIdStatus, waitid};

pub use handle::ProcessHandle;
pub use launcher::{
    CommandLine, Launcher, LauncherReport, Privileges, RefusedCall, StartProgress, StartingProcess,
};
pub use orphans::{Orphan, kill_orphans, list_orphans, reap_orphan};
use orphans::{TrackedChild, track_child};
pub use priority::allow_priority_restore;

use crate::isolation::{AccessRules, Sandbox, SandboxFilters};
use crate::resource_limits::read_limit;

/// What to start and what it inherits.
#[derive(Debug)]
pub struct ProcessSpec {
    /// The program, looked up in `PATH` when it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working directory.
    pub dir: PathBuf,
    /// Environment variables set on top of ours.
    pub env: Vec<(OsString, OsString)>,
    /// The user that it runs as, by the name of an [`Account`](crate::account::Account) of the
    /// launcher; `None` is the server's.
    pub account: Option<String>,
    /// The [`AppCgroup`](crate::cgroup::AppCgroup) of the launcher that it is put into; `None` is
    /// the server's own cgroup.
    pub group: Option<String>,
    /// Descriptors that stay open in it, under the same numbers.
    pub inherited_fds: Vec<OwnedFd>,
    /// Descriptors that it gets under a given number, 0 for its standard input. The number must not
    /// be one of `inherited_fds`.
    pub placed_fds: Vec<(OwnedFd, RawFd)>,
    /// Its sandbox; `None` does not confine it.
    pub sandbox: Option<Sandbox>,
    /// The limits of its sandbox.
    pub access: AccessRules,
    /// Its application, for reports of calls that the sandbox refuses.
    pub app: String,
}

/// A child process with our ends of its output pipes. Dropping it leaves the process running: it is
/// then an orphan.
#[derive(Debug)]
pub struct SpawnedProcess {
    /// Its process id, also its process group's.
    pub pid: u32,
    /// Becomes readable when it ends.
    pub exit_fd: Arc<OwnedFd>,
    /// Its standard output, non-blocking.
    pub stdout: OwnedFd,
    /// Its standard error, non-blocking.
    pub stderr: OwnedFd,
    tracked: TrackedChild,
}

impl SpawnedProcess {
    /// Returns how it ended, once `exit_fd` is readable; `None` while it runs. Leaves no zombie.
    pub fn try_exit(&mut self) -> io::Result<Option<ProcessExit>> {
        let pid = to_pid(self.pid)?;
        self.tracked
            .take_exit(|| wait_for_exit(pid, WaitIdOptions::NOHANG))
    }

    /// A handle to signal it.
    pub fn handle(&self) -> ProcessHandle {
        ProcessHandle::new(
            self.pid,
            Arc::clone(&self.exit_fd),
            self.tracked.reaped_flag(),
        )
    }
}

/// How a child ended; `None` while it runs. Called under the lock of the table of children, so that
/// the pid is not reused.
fn wait_for_exit(child: Pid, more: WaitIdOptions) -> io::Result<Option<ProcessExit>> {
    let options = WaitIdOptions::EXITED | more;
    let status = waitid(WaitId::Pid(child), options)?;
    Ok(status.as_ref().map(ProcessExit::from_status))
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    /// It called exit.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl ProcessExit {
    fn from_status(status: &WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(-1),
        }
    }
}

impl std::fmt::Display for ProcessExit {
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

/// Starts a process in its own group, with standard input closed and output on pipes.
///
/// # Errors
/// Program not found, directory missing, `EAGAIN`/`ENOMEM` from fork. Blocks until the new program
/// runs.
pub fn spawn_process(launch: &ProcessSpec) -> io::Result<SpawnedProcess> {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.args)
        .current_dir(&launch.dir)
        .envs(launch.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let keep: Vec<RawFd> = launch
        .inherited_fds
        .iter()
        .map(AsRawFd::as_raw_fd)
        .collect();
    let raw = |(fd, number): &(OwnedFd, RawFd)| (fd.as_raw_fd(), *number);
    let place: Vec<(RawFd, RawFd)> = launch.placed_fds.iter().map(raw).collect();
    let parent = rustix::process::getpid();
    let open_files = *child_open_files();
    let (sandbox, access) = (launch.sandbox, launch.access.open());
    let filters = SandboxFilters::guarding_this_process();
    #[expect(unsafe_code, reason = "the child sets itself up between fork and exec")]
    // SAFETY: the closure runs in the forked child before exec and makes only async-signal-safe
    // system calls (sigaction, prlimit, prctl, getppid, fcntl, dup2, Landlock's and seccomp); it
    // allocates nothing and its lists are only read.
    unsafe {
        command.pre_exec(move || {
            reset_child_state(open_files)?;
            prepare_child(&keep, &place, parent)?;
            sandbox.map_or(Ok(()), |sandbox| {
                sandbox.enter(&access, &filters, false).map(|_| ())
            })
        });
    }
    let (mut child, known) = track_child(|_| command.spawn().map(|child| (child.id(), child)))?;
    match take_pipes(&mut child) {
        Ok((exit, stdout, stderr)) => Ok(SpawnedProcess {
            pid: child.id(),
            exit_fd: Arc::new(exit),
            stdout,
            stderr,
            tracked: known,
        }),
        Err(error) => {
            // Descriptors ran out right here: an unwatched process must not stay. It may have left
            // its group already.
            let _ = kill_group(child.id());
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn take_pipes(child: &mut Child) -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("output pipes missing"));
    };
    let (stdout, stderr) = (OwnedFd::from(stdout), OwnedFd::from(stderr));
    rustix::io::ioctl_fionbio(&stdout, true)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    let exit = exit_watch::open_exit_fd(to_pid(child.id())?)?;
    Ok((exit, stdout, stderr))
}

/// Adopts a process that became our child by itself; `stdout` and `stderr` are our ends of its
/// pipes.
///
/// # Errors
/// `NotFound` when it was reaped, `InvalidInput` when it is not our child, `AlreadyExists` when it
/// is tracked already, or that descriptors ran out.
pub fn adopt(pid: u32, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<SpawnedProcess> {
    let (exit, known) = take_in(pid)?;
    Ok(SpawnedProcess {
        pid,
        exit_fd: Arc::new(exit),
        stdout,
        stderr,
        tracked: known,
    })
}

/// Tracks a child that is not waited for yet; returns its exit descriptor.
fn take_in(pid: u32) -> io::Result<(OwnedFd, TrackedChild)> {
    track_child(|table| {
        if table.contains(&pid) {
            let why = format!("process {pid} is already tracked");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let exit = exit_watch::open_exit_fd(to_pid(pid)?)?;
        match wait_for_exit(to_pid(pid)?, WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT) {
            Ok(_) => Ok((pid, exit)),
            Err(_) => {
                let why = format!("process {pid} is not a child of the server");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    })
}

/// Creates a pipe for the output of a future process: our end, non-blocking, and its end.
pub fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Makes orphaned descendants become our children, instead of those of the system's first process
/// (`PR_SET_CHILD_SUBREAPER`).
pub fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(
        rustix::process::getpid(),
    ))?)
}

fn prepare_child(keep: &[RawFd], place: &[(RawFd, RawFd)], parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The server may have died between fork and prctl; then the signal would never be sent.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::Error::other("the server has exited"));
    }
    for &fd in keep {
        clear_close_on_exec(fd)?;
    }
    for &(fd, number) in place {
        if fd == number {
            clear_close_on_exec(fd)?;
            continue;
        }
        #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
        // SAFETY: dup2 of a descriptor that the parent holds open over the fork, onto a number in
        // the child alone, where nothing that is still needed has it: the copy is not
        // close-on-exec.
        let done = unsafe { libc::dup2(fd, number) };
        if done == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn clear_close_on_exec(fd: RawFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
    // SAFETY: fcntl(F_SETFD) on a number; the parent holds the descriptor open over the fork.
    let done = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Maximum number of descriptors that this process may open (the hard limit); `None` without a
/// limit, or if a sandbox hides it.
#[must_use]
pub fn max_open_files() -> Option<u64> {
    read_limit(Resource::Nofile).ok()?.maximum
}

/// The soft limit of open files for processes that are started, if it differs from ours.
fn child_open_files() -> MutexGuard<'static, Option<u64>> {
    static LIMIT: Mutex<Option<u64>> = Mutex::new(None);
    LIMIT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child before its program runs: resets what this process has changed for itself. All signals
/// get their default action.
fn reset_child_state(open_files: Option<u64>) -> io::Result<()> {
    // The kernel's `struct sigaction` of SIG_DFL is zeros, and no longer than this on any
    // architecture.
    let default = [0_u64; 8];
    for signal in 1..=MAX_SIGNAL {
        #[expect(unsafe_code, reason = "the C library keeps two signals to itself")]
        // SAFETY: numbers, and a pointer to more bytes than the call reads; in a child with one
        // thread. Those that cannot be changed (SIGKILL, SIGSTOP) are refused.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SIGNAL_SET_BYTES,
            );
        }
    }
    let Some(current) = open_files else {
        return Ok(());
    };
    let maximum = read_limit(Resource::Nofile)?.maximum;
    let current = Some(maximum.map_or(current, |maximum| maximum.min(current)));
    Ok(rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current, maximum },
    )?)
}

/// The highest number of a signal on Linux, and the size of a set of them for the kernel.
const MAX_SIGNAL: i32 = 64;
const SIGNAL_SET_BYTES: usize = 8;

/// Undoes what the parent of this process may have left: blocked signals, and ignored SIGCHLD, with
/// which children's exits are not reported. Before the first thread.
pub fn reset_inherited_signals() {
    #[expect(unsafe_code, reason = "no safe wrapper offers these calls")]
    // SAFETY: a set on the stack that is made empty before it is read; one thread.
    unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Raises the soft limit of open descriptors to the hard limit; returns both values. Started
/// processes get the previous limit: programs that use `select`, or close all possible descriptors,
/// rely on that.
///
/// # Errors
/// Those of `getrlimit` or `setrlimit`; the limit is unchanged.
pub fn raise_open_files_limit() -> io::Result<(u64, u64)> {
    let Rlimit { current, maximum } = read_limit(Resource::Nofile)?;
    // `None` is no limit.
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if number(current) < number(maximum) {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        rustix::process::setrlimit(Resource::Nofile, raised)?;
        child_open_files().get_or_insert(number(current));
    }
    Ok((number(current), number(maximum)))
}

/// Sends SIGKILL to the process's whole group. Only for a process that has certainly not been
/// reaped; else use [`ProcessHandle::kill_group`].
pub fn kill_group(pid: u32) -> io::Result<()> {
    Ok(rustix::process::kill_process_group(
        to_pid(pid)?,
        Signal::KILL,
    )?)
}

/// How long the present threads of a process have wanted a processor since their start, running or
/// waiting for one (`sched-stats.rst`, the first two numbers). Zero where the kernel does not
/// count.
pub fn cpu_demand_time(pid: u32) -> io::Result<Duration> {
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        #[expect(
            clippy::disallowed_methods,
            reason = "called on threads of a pool, not on an event loop"
        )]
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
            continue; // It has just ended.
        };
        let times = text
            .split(' ')
            .take(2)
            .filter_map(|t| t.parse::<u64>().ok());
        total += times.sum::<u64>();
    }
    Ok(Duration::from_nanos(total))
}

fn to_pid(pid: u32) -> io::Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such process id"))
}

/// The name of this machine (uname(2)).
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    pub(super) fn wait(started: &mut SpawnedProcess) -> ProcessExit {
        let mut fds = [PollFd::new(&started.exit_fd, PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&limit)).unwrap();
        started.try_exit().unwrap().expect("it ended within 10 s")
    }

    pub(super) fn shell(script: &str, inherit: Vec<OwnedFd>) -> SpawnedProcess {
        shell_with(script, inherit, Vec::new())
    }

    fn shell_with(
        script: &str,
        inherit: Vec<OwnedFd>,
        place: Vec<(OwnedFd, RawFd)>,
    ) -> SpawnedProcess {
        spawn_process(&ProcessSpec {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            dir: "/".into(),
            env: vec![("GREETING".into(), "hello".into())],
            account: None,
            group: None,
            inherited_fds: inherit,
            placed_fds: place,
            sandbox: None,
            access: AccessRules::default(),
            app: "test".to_owned(),
        })
        .unwrap()
    }

    #[test]
    fn placed_and_inherited_fds_reach_the_process() {
        // A number of two digits, as it has when other tests run: a shell's own `<&` need not
        // support it.
        let file = crate::file::memfd_with_content("t", b"from the parent").unwrap();
        let file = rustix::io::fcntl_dupfd_cloexec(file, 10).unwrap();
        let number = file.as_raw_fd();
        let mut started = shell(
            &format!("cat /proc/self/fd/{number} && printf \" $GREETING\""),
            vec![file],
        );
        assert_eq!(wait(&mut started), ProcessExit::Code(0));
        let mut buffer = [0; 64];
        let n = rustix::io::read(&started.stdout, &mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"from the parent hello");
    }

    #[test]
    fn placed_fds_have_their_expected_numbers() {
        for number in [0, 3] {
            let file = crate::file::memfd_with_content("t", b"here").unwrap();
            let ours = file.as_raw_fd();
            let script =
                format!("cat <&{number}; test {ours} = {number} || test ! -e /proc/self/fd/{ours}");
            let mut started = shell_with(&script, Vec::new(), vec![(file, number)]);
            assert_eq!(
                wait(&mut started),
                ProcessExit::Code(0),
                "cannot place descriptor {ours} at {number}"
            );
            let mut buffer = [0; 64];
            let n = rustix::io::read(&started.stdout, &mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"here");
        }
    }

    #[test]
    fn the_open_file_limit_is_raised_to_the_maximum() {
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        // Only just below: the limit affects all tests in this process.
        let low = maximum.map_or(1 << 20, |maximum| maximum - 1);
        let current = Some(low);
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        let (before, after) = raise_open_files_limit().unwrap();
        assert_eq!((before, Some(after)), (low, maximum.or(Some(u64::MAX))));
        let now = rustix::process::getrlimit(Resource::Nofile);
        assert_eq!(now.current, maximum);
        assert_eq!(raise_open_files_limit().unwrap(), (after, after));
    }

    #[test]
    fn an_orphan_is_adopted_once() {
        become_subreaper().unwrap();
        let (numbers, theirs) = output_pipe().unwrap();
        // In its own group, so that the end of its parent's group does not end it.
        let script = "setsid sh -c 'echo $$ >&5; exec sleep 1000' & wait $!; :";
        let mut parent = shell_with(script, Vec::new(), vec![(theirs, 5)]);
        let mut fds = [PollFd::new(&numbers, PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1);
        let mut buffer = [0; 64];
        let count = rustix::io::read(&numbers, &mut buffer).unwrap();
        let pid: u32 = std::str::from_utf8(&buffer[..count])
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let pipes = || (output_pipe().unwrap().0, output_pipe().unwrap().0);
        let take_in = |pid| {
            let (stdout, stderr) = pipes();
            adopt(pid, stdout, stderr)
        };
        let early = take_in(pid).unwrap_err();
        assert!(early.to_string().contains("not a child"), "{early}");
        let known = take_in(parent.pid).unwrap_err();
        assert_eq!(known.kind(), io::ErrorKind::AlreadyExists, "{known}");
        kill_group(parent.pid).unwrap();
        assert_eq!(wait(&mut parent), ProcessExit::Signal(9));
        let mut child = take_in(pid).unwrap();
        assert!(child.try_exit().unwrap().is_none());
        kill_group(pid).unwrap();
        assert_eq!(wait(&mut child), ProcessExit::Signal(9));
        assert!(child.try_exit().is_err(), "it is reaped once");
    }

    #[test]
    fn a_reaped_process_is_not_signalled_by_pid() {
        let mut started = shell("exec sleep 1000", Vec::new());
        let handle = started.handle();
        handle.kill().unwrap();
        assert_eq!(wait(&mut started), ProcessExit::Signal(9));
        for signal in [
            ProcessHandle::kill,
            ProcessHandle::kill_group,
            ProcessHandle::terminate,
        ] {
            let error = signal(&handle).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{error}");
        }
    }

    #[test]
    fn kill_reaches_the_process_group() {
        let mut started = shell("sleep 1000 & wait", Vec::new());
        kill_group(started.pid).unwrap();
        assert_eq!(wait(&mut started), ProcessExit::Signal(9));
        // The pipe ends only when the grandchild that also holds it has exited.
        let mut fds = [PollFd::new(&started.stdout, PollFlags::HUP)];
        let limit = rustix::event::Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1);
    }
}
