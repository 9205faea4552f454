//! The launcher: a process that starts all other programs for the server.
//!
//! Forked by `penstock` before its first thread, asked by `apps`' executor for workers and by the
//! upgrade for the next server. A program is started by a helper that ends at once, so that it becomes
//! a child of the server, the nearest subreaper, and is waited for there like any other
//! ([`super::adopt`]). docs/decisions/002-launcher.md says why there is one.
//!
//! # Invariants
//!
//! - The launcher never speaks to the network: of what the server has open it keeps one socket.
//! - A program gets the descriptors of its order and no other.
//! - Every order ends within [`ORDER_TIMEOUT`], and a late answer is nobody else's: each has a number.
//! - The launcher ends when the server does: its socket ends.
//! - It answers the calls that sandboxes refuse, and tells the server of them; orders come first.
//! - It keeps root's rights only if an application has a user of its own. It then starts programs as
//!   users of a list that it has from before the server gave its rights up, and the next server
//!   exactly as this one was started.
//! - It puts programs into cgroups that were made before it was split off, and into no other; it removes
//!   them at its end.

mod child;
mod order;
mod privileges;
mod refusals;

pub use refusals::RefusedCall;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::Shutdown;
use rustix::process::{Pid, Signal, WaitIdOptions, getpid};

use self::order::{Lifetime, Order};
use self::refusals::Refusals;
use super::orphans::{Known, known};
use super::successor::Successor;
use super::{
    Launch, Started, as_pid, become_subreaper, exit_watch, output_pipe, successor, wait_by,
};
use crate::cgroup::Group;
use crate::identity::Account;
use crate::net::DESCRIPTORS_MAX;
use crate::{daemon, file, handover, isolation, kernel};

/// How long an answer may take: longer than a start ([`child`]).
const ORDER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long its end may take.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest answer: a kind, a number and the text of an error.
const ANSWER_BYTES: usize = 1024;

/// Whom the launcher may start programs as, and within which bounds.
#[derive(Debug, Default)]
pub struct Privileges {
    /// Whom the server becomes, if it becomes another user.
    pub server: Option<Account>,
    /// Users of applications.
    pub accounts: Vec<Account>,
    /// How the next server is started: its command, and the variable that names its socket.
    pub successor: Option<(Command, OsString)>,
    /// Whose programs may go without a sandbox; `None` are those of the server's user.
    pub unconfined: Vec<Option<String>>,
    /// What bounds the programs of each application.
    pub groups: Vec<Group>,
}

/// A command line and its surroundings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
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
    line: Mutex<Line>,
    pid: u32,
    refusals: Mutex<Option<OwnedFd>>,
}

/// The server's end of the conversation.
#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    /// The launcher among our children.
    known: Known,
    /// The number of the order that is given, or of the next one; 0 is the beginning.
    orders: u32,
    /// Why no more can be asked, once something went wrong in between.
    broken: Option<String>,
}

impl Launcher {
    /// Splits the launcher off. `set_up` runs in it, before its first order: limits and the like, which
    /// programs inherit. Then it becomes the server's user, unless it may start programs as others.
    ///
    /// # Errors
    /// When other threads exist, or what `socketpair`, `fork` and `prctl` say.
    pub fn start(
        privileges: &Privileges,
        set_up: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Self> {
        daemon::check_alone()?;
        // Before the fork: only descendants that come later look for a subreaper.
        become_subreaper()?;
        let (ours, theirs) = handover::pair()?;
        let (refusals, reports) = handover::pair()?;
        let server = getpid();
        let (pid, known) = known(|_| {
            #[expect(unsafe_code, reason = "there is no safe fork")]
            // SAFETY: this is the only thread, so that no lock is held and no state half written in the
            // child, which never returns from here.
            match unsafe { libc::fork() } {
                -1 => Err(io::Error::last_os_error()),
                0 => {
                    let prepared = become_launcher([&theirs, &reports])
                        .and_then(|()| set_up())
                        .and_then(|()| privileges.give_up())
                        .and_then(|()| die_with(server));
                    let served = answer(&theirs, 0, prepared.map(|()| 0)).and_then(|()| {
                        let refusals = Refusals::new(reports, server);
                        serve(&theirs, server, privileges, refusals)
                    });
                    privileges.groups.iter().for_each(Group::remove);
                    exit(served.is_ok())
                }
                pid => Ok((pid.unsigned_abs(), pid.unsigned_abs())),
            }
        })?;
        let mut line = Line {
            socket: ours,
            known,
            orders: 0,
            broken: None,
        };
        line.hear(Instant::now() + ORDER_TIMEOUT)??;
        line.orders = 1;
        Ok(Self {
            line: Mutex::new(line),
            pid,
            refusals: Mutex::new(Some(refusals)),
        })
    }

    /// The socket on which it tells of calls that sandboxes refuse: a packet is a [`RefusedCall`]. It is
    /// given once; nobody has to read it.
    #[must_use]
    pub fn take_refusals(&self) -> Option<OwnedFd> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.take()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Starts a program in a group of its own, standard input closed, output on pipes; it dies with the
    /// server. Blocks until the program runs, 15 s at most.
    ///
    /// # Errors
    /// Program not found, directory missing, `EAGAIN`/`ENOMEM` from fork; that the launcher has ended.
    pub fn launch(&self, launch: &Launch) -> io::Result<Started> {
        let (stdout, stdout_theirs) = output_pipe()?;
        let (stderr, stderr_theirs) = output_pipe()?;
        let mut places: Vec<(BorrowedFd<'_>, RawFd)> =
            vec![(stdout_theirs.as_fd(), 1), (stderr_theirs.as_fd(), 2)];
        let inherited = launch.inherit.iter();
        places.extend(inherited.map(|fd| (fd.as_fd(), fd.as_raw_fd())));
        places.extend(
            launch
                .place
                .iter()
                .map(|(fd, number)| (fd.as_fd(), *number)),
        );
        let order = Order {
            program: launch.program.clone(),
            arg0: launch.program.clone(),
            args: launch.args.clone(),
            dir: launch.dir.clone(),
            env: launch.env.clone(),
            numbers: places.iter().map(|(_, number)| *number).collect(),
            lifetime: Lifetime::OfServer,
            sandbox: launch.sandbox,
            account: launch.account.clone(),
            group: launch.group.clone(),
            app: launch.app.clone(),
        };
        let descriptors = places.iter().map(|(fd, _)| *fd).collect();
        let ((pid, exit), known) = self.order(&order, descriptors)?;
        Ok(Started {
            pid,
            exit: Arc::new(exit),
            stdout,
            stderr,
            known,
        })
    }

    /// Starts the next server, which outlives this one. Blocks as [`Self::launch`] does.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub fn launch_successor(&self, launch: successor::Launch) -> io::Result<Successor> {
        let (stderr, stderr_theirs) = output_pipe()?;
        let (name, socket) = launch.inherit;
        let output = rustix::stdio::stdout();
        let number = socket.as_raw_fd();
        let mut env = launch.command.env.clone();
        env.push((name, number.to_string().into()));
        let Command {
            program, args, dir, ..
        } = launch.command;
        let program = program.into_os_string();
        let arg0 = launch.called.map_or_else(|| program.clone(), Into::into);
        let (mut numbers, mut descriptors) = (vec![1, 2, number], vec![output]);
        descriptors.extend([stderr_theirs.as_fd(), socket.as_fd()]);
        // Without /proc a descriptor has no path.
        let file = launch.file.filter(|_| kernel::has_proc());
        let program = match &file {
            Some(file) => {
                numbers.push(file.as_raw_fd());
                descriptors.push(file.as_fd());
                format!("/proc/self/fd/{}", file.as_raw_fd()).into()
            }
            None => program,
        };
        let order = Order {
            arg0,
            program,
            args,
            dir,
            env,
            numbers,
            lifetime: Lifetime::OfItsOwn,
            sandbox: None,
            account: None,
            group: None,
            app: String::new(),
        };
        let ((pid, exit), known) = self.order(&order, descriptors)?;
        Ok(Successor {
            pid,
            exit,
            stderr,
            known,
        })
    }

    /// Ends the launcher, once it has done what it was asked for. Blocks until it is gone, 2 s
    /// at most; the programs that it started live on.
    ///
    /// # Errors
    /// When it is not gone by then.
    pub fn end(&self) -> io::Result<()> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.broken = Some("the server ends".to_owned());
        rustix::net::shutdown(&line.socket, Shutdown::Both)?;
        let pid = as_pid(self.pid)?;
        let exit = exit_watch::watch(pid)?;
        handover::wait_readable(exit.as_fd(), Some(END_TIMEOUT))?;
        line.known
            .take_exit(|| wait_by(pid, WaitIdOptions::NOHANG))?;
        Ok(())
    }

    /// Has a program started and takes it in: its number and the descriptor of its end.
    fn order(
        &self,
        order: &Order,
        descriptors: Vec<BorrowedFd<'_>>,
    ) -> io::Result<((u32, OwnedFd), Known)> {
        let text = file::in_memory("penstock-order", &order.encode())?;
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock of the table of children: one that has ended by then is not taken for an orphan.
        known(|_| {
            let pid = line.ask(&text, &descriptors)?;
            let exit = exit_watch::watch(as_pid(pid)?)?;
            Ok((pid, (pid, exit)))
        })
    }
}

impl Line {
    fn ask(&mut self, order: &OwnedFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<u32> {
        if let Some(why) = &self.broken {
            return Err(io::Error::other(why.clone()));
        }
        let answer = self.exchange(order, descriptors);
        answer.unwrap_or_else(|error| {
            let why = format!(
                "the launcher does not start programs any more ({error}): restart the server"
            );
            self.broken = Some(why.clone());
            Err(io::Error::other(why))
        })
    }

    /// The inner error is the order's, the outer one the launcher's.
    fn exchange(
        &mut self,
        order: &OwnedFd,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<io::Result<u32>> {
        self.orders = self.orders.wrapping_add(1);
        let socket = self.socket.as_fd();
        let deadline = Instant::now() + ORDER_TIMEOUT;
        let count = u32::try_from(descriptors.len()).map_err(io::Error::other)?;
        let head = [self.orders.to_le_bytes(), count.to_le_bytes()].concat();
        // A send may fail for what others do: a user has a bound on descriptors that are on their way.
        match handover::send_within(socket, &head, &[order.as_fd()], deadline) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(error),
            Err(error) => return Ok(Err(error)),
            Ok(()) => {}
        }
        for some in descriptors.chunks(DESCRIPTORS_MAX) {
            if let Err(error) = handover::send_within(socket, b"d", some, deadline) {
                // The launcher forgets the order.
                handover::send_within(socket, b"x", &[], deadline)?;
                return Ok(Err(error));
            }
        }
        match self.hear(deadline) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let why = format!("it does not run within {} s", ORDER_TIMEOUT.as_secs());
                Ok(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
            heard => heard,
        }
    }

    /// The answer to the order that is given.
    fn hear(&self, deadline: Instant) -> io::Result<io::Result<u32>> {
        let mut buffer = [0; ANSWER_BYTES];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (length, _) = handover::receive_within(self.socket.as_fd(), &mut buffer, left)?;
            let (number, answer) = Answer::decode(&buffer[..length])?;
            // A late one is of an order that was given up.
            if number == self.orders {
                return Ok(answer.into_result());
            }
        }
    }
}

/// What the launcher says of an order.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The program runs, under this number.
    Runs(u32),
    /// It does not, by this error of the system.
    Failed(i32),
    /// It does not, in words.
    Refused(String),
}

impl Answer {
    fn of(result: io::Result<u32>) -> Self {
        match result {
            Ok(pid) => Self::Runs(pid),
            Err(error) => match error.raw_os_error() {
                Some(number) => Self::Failed(number),
                None => Self::Refused(error.to_string()),
            },
        }
    }

    fn into_result(self) -> io::Result<u32> {
        match self {
            Self::Runs(pid) => Ok(pid),
            Self::Failed(number) => Err(io::Error::from_raw_os_error(number)),
            Self::Refused(why) => Err(io::Error::other(why)),
        }
    }

    fn encode(&self, number: u32) -> Vec<u8> {
        let mut bytes = number.to_le_bytes().to_vec();
        match self {
            Self::Runs(pid) => {
                bytes.push(b'p');
                bytes.extend(pid.to_le_bytes());
            }
            Self::Failed(number) => {
                bytes.push(b'e');
                bytes.extend(number.to_le_bytes());
            }
            Self::Refused(why) => {
                bytes.push(b't');
                bytes.extend(why.bytes().take(ANSWER_BYTES - bytes.len()));
            }
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> io::Result<(u32, Self)> {
        let number = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok();
        let read = bytes.split_first_chunk::<4>().and_then(|(order, rest)| {
            let answer = match rest.split_first()? {
                (b'p', rest) => Self::Runs(u32::from_le_bytes(number(rest)?)),
                (b'e', rest) => Self::Failed(i32::from_le_bytes(number(rest)?)),
                (b't', rest) => Self::Refused(String::from_utf8_lossy(rest).into_owned()),
                _ => return None,
            };
            Some((u32::from_le_bytes(*order), answer))
        });
        read.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"))
    }
}

/// What is different from the server: its own group, which no terminal signals, no signals but the one
/// that cannot be ignored, and no descriptors but its sockets.
fn become_launcher(sockets: [&OwnedFd; 2]) -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
    // A name is for people.
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
    daemon::leave_terminal(None)?;
    let mut numbers = sockets.map(|socket| socket.as_raw_fd().unsigned_abs());
    numbers.sort_unstable();
    close_all_but(numbers)
}

/// Closes every descriptor above standard error but two, in their order.
fn close_all_but(kept: [libc::c_uint; 2]) -> io::Result<()> {
    let [low, high] = kept;
    let ranges = [
        (3, low - 1),
        (low + 1, high - 1),
        (high + 1, libc::c_uint::MAX),
    ];
    let ranges = ranges.into_iter().filter(|(first, last)| first <= last);
    for (first, last) in ranges {
        #[expect(unsafe_code, reason = "descriptors of the server, closed by number")]
        // SAFETY: they are copies in this process alone, which uses none of them: what owns them
        // here is never dropped.
        let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if done == -1 {
            return close_each_but(kept);
        }
    }
    Ok(())
}

/// The same without `close_range` (Linux 5.9).
fn close_each_but(kept: [libc::c_uint; 2]) -> io::Result<()> {
    for number in isolation::open_numbers()? {
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

/// Ends with the server, if that is there still; a change of users takes the signal back (prctl(2)).
fn die_with(server: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid() {
        Some(parent) if parent == server => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Takes orders until the server is gone.
fn serve(
    socket: &OwnedFd,
    server: Pid,
    privileges: &Privileges,
    mut refusals: Refusals,
) -> io::Result<()> {
    loop {
        refusals.answer_until_ready(socket.as_fd())?;
        let Some((number, order)) = receive_order(socket.as_fd())? else {
            return Ok(());
        };
        let started = order.and_then(|(mut order, mut descriptors)| {
            let account = privileges.permit(&mut order, &mut descriptors)?;
            let bounds = (account, privileges.find_group(&order)?);
            let (pid, listener) =
                child::start(&order, descriptors, bounds, server, refusals.filter())?;
            if let Some(listener) = listener {
                refusals.watch(&order.app, listener);
            }
            Ok(pid)
        });
        answer(socket, number, started)?;
    }
}

fn answer(socket: &OwnedFd, number: u32, result: io::Result<u32>) -> io::Result<()> {
    let answer = Answer::of(result).encode(number);
    let deadline = Instant::now() + ORDER_TIMEOUT;
    handover::send_within(socket.as_fd(), &answer, &[], deadline)
}

/// An order with its descriptors, or why there is none.
type Received = io::Result<(Order, Vec<OwnedFd>)>;

/// The next order with its number; `None` at the end.
fn receive_order(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, Received)>> {
    let mut head = [0; 8];
    handover::wait_readable(socket, None)?;
    let (length, text) = handover::receive_many(socket, &mut head)?;
    if length == 0 {
        return Ok(None);
    }
    let [number, count] = [&head[..4], &head[4..]].map(|it| it.try_into().map(u32::from_le_bytes));
    let number = number.map_err(io::Error::other)?;
    let count = count.map_err(io::Error::other)? as usize;
    let mut descriptors = Vec::new();
    while descriptors.len() < count {
        handover::wait_readable(socket, Some(ORDER_TIMEOUT))?;
        let (length, more) = handover::receive_many(socket, &mut [0; 1])?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if more.is_empty() {
            let why = io::Error::other("its descriptors did not come");
            return Ok(Some((number, Err(why))));
        }
        descriptors.extend(more);
    }
    let text = text.into_iter().next().map(File::from);
    let text = text.ok_or_else(|| io::Error::other("an order without its text"));
    let order = text.and_then(|text| Order::read(&text));
    Ok(Some((number, order.map(|order| (order, descriptors)))))
}

/// Ends this process as it is: what it has of the server's memory is not for it to tidy up.
fn exit(is_well: bool) -> ! {
    #[expect(
        unsafe_code,
        reason = "no safe wrapper offers an end without a tidying up"
    )]
    // SAFETY: a number.
    unsafe {
        libc::_exit(i32::from(!is_well))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_as_they_were_given() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let words = io::Error::other("no such thing");
        for (result, answer) in [
            (Ok(4711), Answer::Runs(4711)),
            (Err(missing), Answer::Failed(libc::ENOENT)),
            (Err(words), Answer::Refused("no such thing".to_owned())),
        ] {
            let given = Answer::of(result);
            assert_eq!(given, answer);
            assert_eq!(Answer::decode(&given.encode(7)).unwrap(), (7, answer));
        }
        let long = Answer::Refused("x".repeat(ANSWER_BYTES * 2)).encode(u32::MAX);
        assert_eq!(long.len(), ANSWER_BYTES);
        for bytes in [
            &b""[..],
            b"p",
            b"1234",
            b"1234p",
            b"1234p12345",
            b"1234e1",
            b"1234x",
        ] {
            assert!(Answer::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn beside_other_threads_there_is_no_launcher() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv());
        assert!(Launcher::start(&Privileges::default(), || Ok(())).is_err());
        drop(stop);
        assert!(thread.join().unwrap().is_err());
    }
}
