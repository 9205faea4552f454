//! The launcher: a process that starts all other programs for the server.
//!
//! Forked by `penstock` before its first thread, used by `apps`' executor for workers and by the
//! upgrade for the next server. Each launch order comes with its own socket, which returns the
//! reply ([`starting`]). A helper process carries it out and ends, so that the program becomes a
//! child of the server, the nearest subreaper, and is waited for there like any other.
//! docs/decisions/002-launcher.md says why there is a launcher.
//!
//! # Invariants
//!
//! - The launcher never uses the network: of the server's descriptors it keeps one socket.
//! - A program gets only the descriptors of its order.
//! - A start that hangs does not delay others: the launcher forks a helper for each and takes the
//!   next.
//! - A process runs its program only once the server has it in its table of children.
//! - The launcher ends when the server does: its socket closes.
//! - Incomplete orders occupy a bounded number of helpers, for a bounded time.
//! - It replies to the calls that sandboxes refuse, and reports them to the server; orders come
//!   first.
//! - It keeps root's rights only if an application has its own user. It then starts programs as
//!   users of a list from before the server gave up its rights.
//! - It starts the next server as this one was started, and nothing else without a sandbox.
//! - It puts programs only into cgroups that were created before it was forked; it removes them at
//!   its end.

mod child;
pub(crate) mod fuzzing;
mod launch_order;
mod privileges;
mod refusals;
mod starting;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::Shutdown;
use rustix::process::{Pid, Signal, WaitIdOptions, getpid};
use serde::{Deserialize, Serialize};

use self::child::{LaunchContext, LaunchHelpers};
use self::launch_order::{LaunchOrder, ProcessLifetime};
use self::refusals::RefusalMonitor;
pub use self::refusals::{LauncherReport, RefusedCall};
pub use self::starting::{StartProgress, StartingProcess};
use super::orphans::{TrackedChild, track_child};
use super::successor::Successor;
use super::{
    ProcessSpec, SpawnedProcess, become_subreaper, exit_watch, output_pipe, successor, to_pid,
    wait_for_exit,
};
use crate::account::Account;
use crate::cgroup::AppCgroup;
use crate::isolation::AccessRules;
use crate::{daemon, fd_packets, isolation};

/// How long the launcher may take to be ready for orders.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a start may take, from the order to the running program.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long its end may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest reply: the text of an error.
const MAX_REPLY_BYTES: usize = 4096;

/// Longest text of an error: a character takes up to six bytes.
const MAX_ERROR_CHARS: usize = 512;

/// Tells a process that it may run its program.
const GO: &[u8] = b"g";

/// The users that the launcher may start programs as, and their limits.
#[derive(Debug, Default)]
pub struct Privileges {
    /// The user that the server switches to, if any.
    pub server: Option<Account>,
    /// Users of applications.
    pub accounts: Vec<Account>,
    /// How the next server is started: its command, and the variable that contains its socket's
    /// number.
    pub successor: Option<(CommandLine, OsString)>,
    /// Users of programs that may run without a sandbox; `None` is the server's user.
    pub unconfined: Vec<Option<String>>,
    /// The limits of each application's programs.
    pub groups: Vec<AppCgroup>,
}

/// A command line with its directory and environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program, by its path.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working directory.
    pub dir: PathBuf,
    /// Environment variables set on top of those of this process.
    pub env: Vec<(OsString, OsString)>,
}

/// The process that starts programs. It ends when this is dropped.
#[derive(Debug)]
pub struct Launcher {
    /// Sends orders to it.
    socket: OwnedFd,
    pid: u32,
    /// Held only briefly.
    life: Mutex<Life>,
    refusals: Mutex<Option<OwnedFd>>,
}

#[derive(Debug)]
struct Life {
    /// The launcher among our children.
    known: TrackedChild,
    /// Why it takes no more orders, once that is so.
    end: Option<String>,
}

impl Launcher {
    /// Forks the launcher. `set_up` runs in it, before its first order: limits and the like, which
    /// programs inherit. Then it switches to the server's user, unless it may start programs as
    /// others.
    ///
    /// # Errors
    /// When other threads exist, or those of `socketpair`, `fork` and `prctl`.
    pub fn start(
        privileges: &Privileges,
        set_up: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Self> {
        daemon::check_single_threaded()?;
        // Before the fork: only later descendants use the subreaper.
        become_subreaper()?;
        let (ours, theirs) = fd_packets::packet_pair()?;
        let (refusals, reports) = fd_packets::packet_pair()?;
        let server = getpid();
        let (pid, known) = track_child(|_| {
            #[expect(unsafe_code, reason = "there is no safe fork")]
            // SAFETY: this is the only thread, so that no lock is held and no state half written in
            // the child, which never returns from here.
            match unsafe { libc::fork() } {
                -1 => Err(io::Error::last_os_error()),
                0 => {
                    let prepared = become_launcher([&theirs, &reports])
                        .and_then(|()| set_up())
                        .and_then(|()| privileges.drop_root())
                        .and_then(|()| die_with_server(server));
                    let served =
                        send_reply(&theirs, &LaunchReply::from_result(prepared.map(|()| 0)))
                            .and_then(|()| RefusalMonitor::new(reports, server))
                            .and_then(|refusals| serve(&theirs, server, privileges, refusals));
                    privileges.groups.iter().for_each(AppCgroup::remove);
                    exit_process(served.is_ok())
                }
                pid => Ok((pid.unsigned_abs(), pid.unsigned_abs())),
            }
        })?;
        let mut buffer = [0; MAX_REPLY_BYTES];
        let (length, _) =
            fd_packets::receive_packet_with_timeout(ours.as_fd(), &mut buffer, SET_UP_TIMEOUT)?;
        LaunchReply::decode(&buffer[..length])?.into_result()?;
        Ok(Self {
            socket: ours,
            pid,
            life: Mutex::new(Life { known, end: None }),
            refusals: Mutex::new(Some(refusals)),
        })
    }

    /// Takes the socket on which it reports calls that sandboxes refuse, and failures: a packet is
    /// a [`LauncherReport`]. It can be taken once; it need not be read.
    #[must_use]
    pub fn take_report_socket(&self) -> Option<OwnedFd> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.take()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Begins to start a program in its own group, with standard input closed and output on pipes;
    /// it dies with the server. Never blocks: [`StartingProcess::advance`] does the rest.
    ///
    /// # Errors
    /// That descriptors ran out, or that the launcher has ended.
    pub fn begin_launch(&self, launch: ProcessSpec) -> io::Result<StartingProcess<'_>> {
        let (stdout, stdout_theirs) = output_pipe()?;
        let (stderr, stderr_theirs) = output_pipe()?;
        let mut places: Vec<(OwnedFd, RawFd)> = vec![(stdout_theirs, 1), (stderr_theirs, 2)];
        let inherited = launch.inherited_fds.into_iter();
        places.extend(inherited.map(|fd| {
            let number = fd.as_raw_fd();
            (fd, number)
        }));
        places.extend(launch.placed_fds);
        let (descriptors, numbers) = places.into_iter().unzip();
        let order = LaunchOrder {
            arg0: launch.program.clone(),
            program: launch.program,
            args: launch.args,
            dir: launch.dir.into(),
            env: launch.env,
            fd_numbers: numbers,
            lifetime: ProcessLifetime::WithServer,
            sandbox: launch.sandbox,
            access: launch.access,
            account: launch.account,
            group: launch.group,
            app: launch.app,
        };
        StartingProcess::new(self, &order, descriptors, (stdout, stderr))
    }

    /// Like [`Self::begin_launch`], but blocks until the program runs, 10 s at most.
    ///
    /// # Errors
    /// Program not found, directory missing, `EAGAIN`/`ENOMEM` from fork, `TimedOut`; that the
    /// launcher has ended.
    pub fn launch(&self, launch: ProcessSpec) -> io::Result<SpawnedProcess> {
        self.begin_launch(launch)?.finish()
    }

    /// Starts the next server, which outlives this one, by [`Privileges::successor`]. The program
    /// may be another one if no application can have written it. Blocks as [`Self::launch`] does.
    ///
    /// # Errors
    /// As [`Self::launch`]; why the launcher does not start that program.
    pub fn launch_successor(&self, launch: successor::SuccessorSpec) -> io::Result<Successor> {
        let (stderr, stderr_theirs) = output_pipe()?;
        let (name, socket) = launch.inherited_fd;
        let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        let number = socket.as_raw_fd();
        let mut env = launch.command.env.clone();
        env.push((name, number.to_string().into()));
        let CommandLine {
            program, args, dir, ..
        } = launch.command;
        let program = program.into_os_string();
        let descriptors = vec![output, stderr_theirs, socket];
        let order = LaunchOrder {
            arg0: program.clone(),
            program,
            args,
            dir: dir.into(),
            env,
            fd_numbers: vec![1, 2, number],
            lifetime: ProcessLifetime::Independent,
            sandbox: None,
            access: AccessRules::default(),
            account: None,
            group: None,
            app: String::new(),
        };
        let (stdout, _) = output_pipe()?;
        let SpawnedProcess {
            pid,
            exit_fd: exit,
            stderr,
            tracked: known,
            ..
        } = StartingProcess::new(self, &order, descriptors, (stdout, stderr))?.finish()?;
        Ok(Successor {
            pid,
            exit_fd: exit.try_clone()?,
            stderr,
            tracked: known,
        })
    }

    /// Ends the launcher. Blocks until it has exited, 2 s at most. Programs that it started
    /// continue to run, except those in cgroups, which are removed with their processes.
    ///
    /// # Errors
    /// When it has not exited by then.
    pub fn stop(&self) -> io::Result<()> {
        self.life().end = Some("the server is stopping".to_owned());
        rustix::net::shutdown(&self.socket, Shutdown::Both)?;
        let pid = to_pid(self.pid)?;
        let exit = exit_watch::open_exit_fd(pid)?;
        fd_packets::wait_readable(exit.as_fd(), Some(STOP_TIMEOUT))?;
        let known = &mut self.life().known;
        known.take_exit(|| wait_for_exit(pid, WaitIdOptions::NOHANG))?;
        Ok(())
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an order's socket to the launcher; `false` when its queue is full.
    fn hand_over(&self, order: &OwnedFd) -> io::Result<bool> {
        if let Some(why) = &self.life().end {
            return Err(io::Error::other(why.clone()));
        }
        match fd_packets::send_packet(self.socket.as_fd(), b"o", Some(order.as_fd())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if is_of_end(&error) => Err(self.note_end(&error)),
            // Memory or descriptors in flight ran out: the next order may find some.
            Err(error) => Err(error),
        }
    }

    /// Records that it takes no more orders; later orders return this error.
    fn note_end(&self, error: &io::Error) -> io::Error {
        let why = format!("the launcher has failed ({error}): restart the server");
        io::Error::other(self.life().end.get_or_insert(why).clone())
    }

    /// Whether it has closed its end.
    fn has_ended(&self) -> bool {
        fd_packets::is_peer_closed(self.socket.as_fd())
    }
}

/// Whether an order could not be sent because the launcher has exited.
fn is_of_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

/// The reply to an order, from its helper or from the process itself.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum LaunchReply {
    /// The process exists, under this pid, and waits for [`GO`].
    Waits(u32),
    /// The program does not run, with this error number.
    Failed(i32),
    /// The program does not run, with this message.
    Refused(String),
}

impl LaunchReply {
    fn from_result(result: io::Result<u32>) -> Self {
        match result {
            Ok(pid) => Self::Waits(pid),
            Err(error) => match error.raw_os_error() {
                Some(number) => Self::Failed(number),
                None => {
                    let why = error.to_string();
                    Self::Refused(why.chars().take(MAX_ERROR_CHARS).collect())
                }
            },
        }
    }

    fn into_result(self) -> io::Result<u32> {
        match self {
            Self::Waits(pid) => Ok(pid),
            Self::Failed(number) => Err(io::Error::from_raw_os_error(number)),
            Self::Refused(why) => Err(io::Error::other(why)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a reply holds numbers and a string")
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let gone = |_| io::Error::new(io::ErrorKind::UnexpectedEof, "the launcher has exited");
        serde_json::from_slice(bytes).map_err(gone)
    }
}

/// Sets up the launcher: its own group, which no terminal signals, all signals ignored but the one
/// that cannot be, and no descriptors but its sockets.
fn become_launcher(sockets: [&OwnedFd; 2]) -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
    // The name is only for display.
    let _ = rustix::thread::set_name(c"penstock-launch");
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ] {
        #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
        // SAFETY: a number and a constant; in a process with one thread.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    // Its helpers end by themselves, without a wait for their status.
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: as above.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
    daemon::detach_from_terminal(None)?;
    let mut numbers = sockets.map(|socket| socket.as_raw_fd().unsigned_abs());
    numbers.sort_unstable();
    close_fds_except(numbers)
}

/// Closes every descriptor above standard error except two, given in order.
fn close_fds_except(kept: [libc::c_uint; 2]) -> io::Result<()> {
    let [low, high] = kept;
    let ranges = [
        (3, low - 1),
        (low + 1, high - 1),
        (high + 1, libc::c_uint::MAX),
    ];
    let ranges = ranges.into_iter().filter(|(first, last)| first <= last);
    for (first, last) in ranges {
        #[expect(unsafe_code, reason = "descriptors of the server, closed by number")]
        // SAFETY: they are copies in this process alone, which uses none of them: their owners are
        // never dropped here.
        let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if done == -1 {
            return close_each_fd_except(kept);
        }
    }
    Ok(())
}

/// The same without `close_range` (Linux 5.9).
fn close_each_fd_except(kept: [libc::c_uint; 2]) -> io::Result<()> {
    for number in isolation::open_fd_numbers()? {
        if !kept.contains(&number.unsigned_abs()) {
            #[expect(unsafe_code, reason = "descriptors of the server, closed by number")]
            // SAFETY: as above.
            unsafe {
                libc::close(number);
            }
        }
    }
    Ok(())
}

/// Makes this process end with the server, if that still runs; a change of users resets the signal
/// (prctl(2)).
fn die_with_server(server: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid() {
        Some(parent) if parent == server => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

fn serve(
    socket: &OwnedFd,
    server: Pid,
    privileges: &Privileges,
    mut refusals: RefusalMonitor,
) -> io::Result<()> {
    let mut helpers = LaunchHelpers::default();
    loop {
        refusals.answer_until_order(socket.as_fd())?;
        let (length, order) = match fd_packets::receive_packet(socket.as_fd(), &mut [0; 1]) {
            // That start fails; other programs are unaffected.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                refusals.send_note(format!(
                    "an order to start a program came without its socket ({error}): are there \
                     descriptors left (`ulimit -n`)?"
                ));
                continue;
            }
            received => received?,
        };
        match order {
            _ if length == 0 => return Ok(()),
            Some(order) => {
                let with = LaunchContext {
                    launcher_socket: socket,
                    server_pid: server,
                    privileges,
                    refusals: &refusals,
                };
                child::start_helper(&order, &mut helpers, with);
            }
            None => {}
        }
    }
}

fn send_reply(socket: &OwnedFd, answer: &LaunchReply) -> io::Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    fd_packets::send_packet_until(socket.as_fd(), &answer.encode(), &[], deadline)
}

/// Ends this process at once: its copies of the server's memory must not be cleaned up here.
fn exit_process(is_well: bool) -> ! {
    #[expect(unsafe_code, reason = "no safe wrapper exits without cleaning up")]
    // SAFETY: a number.
    unsafe {
        libc::_exit(i32::from(!is_well))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_round_trip() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let words = io::Error::other("no such thing");
        for (result, answer) in [
            (Ok(4711), LaunchReply::Waits(4711)),
            (Err(missing), LaunchReply::Failed(libc::ENOENT)),
            (Err(words), LaunchReply::Refused("no such thing".to_owned())),
        ] {
            let given = LaunchReply::from_result(result);
            assert_eq!(given, answer);
            assert_eq!(LaunchReply::decode(&given.encode()).unwrap(), answer);
        }
        let long = io::Error::other("\u{1}".repeat(MAX_REPLY_BYTES));
        let long = LaunchReply::from_result(Err(long)).encode();
        assert!(long.len() <= MAX_REPLY_BYTES && LaunchReply::decode(&long).is_ok());
        for bytes in [&b""[..], b"{", b"1234", b"{\"Waits\":-1}", b"x"] {
            assert!(LaunchReply::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn no_error_that_may_pass_is_the_end_of_all_starts() {
        for number in [libc::EPIPE, libc::ECONNRESET, libc::ENOTCONN] {
            assert!(is_of_end(&io::Error::from_raw_os_error(number)), "{number}");
        }
        for number in [
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::ETOOMANYREFS,
            libc::EMFILE,
            libc::EINTR,
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert!(!is_of_end(&error), "{error}");
        }
    }

    #[test]
    fn an_order_that_is_cut_ends_no_launcher() {
        let (ours, theirs) = fd_packets::packet_pair().unwrap();
        let (reports, theirs_of_reports) = fd_packets::packet_pair().unwrap();
        let refusals = RefusalMonitor::new(theirs_of_reports, getpid()).unwrap();
        // Longer than an order: the kernel truncates it, as it does when no descriptor is left.
        fd_packets::send_packet(ours.as_fd(), b"oo", None).unwrap();
        drop(ours);
        serve(&theirs, getpid(), &Privileges::default(), refusals).unwrap();
        let mut buffer = [0; MAX_REPLY_BYTES];
        let (length, _) = fd_packets::receive_packet(reports.as_fd(), &mut buffer).unwrap();
        let note = LauncherReport::decode(&buffer[..length]);
        assert!(
            matches!(&note, Some(LauncherReport::Note(text)) if text.contains("ulimit")),
            "{note:?}"
        );
    }

    #[test]
    fn the_launcher_is_refused_beside_other_threads() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv());
        assert!(Launcher::start(&Privileges::default(), || Ok(())).is_err());
        drop(stop);
        assert!(thread.join().unwrap().is_err());
    }
}
