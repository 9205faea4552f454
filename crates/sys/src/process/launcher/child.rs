//! From an order to a running program.
//!
//! A helper is forked that forks the program's process, says its number and ends: that process is then
//! the server's child. It sets itself up and runs the program; a socket that closes then tells so, or
//! brings the error. The listener of its sandbox comes by that socket too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libc::sock_filter;
use rustix::event::{Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, waitpid};

use super::exit;
use super::order::{Lifetime, Order};
use crate::cgroup::Group;
use crate::handover;
use crate::identity::Account;
use crate::process::{inherited_open_files, restore, stay_open};

/// How long a program may take until it runs.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a process may wait to become the server's child: its parent ends at once.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The file system of pipes without a name (`linux/magic.h`).
const PIPEFS_MAGIC: rustix::fs::FsWord = 0x5049_5045;

/// Between two looks at whose child it is.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000,
};

/// Whom a program runs as, and what bounds it with all that it starts.
type Bounds<'a> = (Option<&'a Account>, Option<&'a Group>);

/// Starts the program, as another user than this process's if there is an account: its process id, once
/// it runs, and the listener of its sandbox if that has the filter.
///
/// # Errors
/// What kept it from running.
pub(super) fn start(
    order: &Order,
    descriptors: Vec<OwnedFd>,
    bounds: Bounds<'_>,
    server: Pid,
    filter: Option<&[sock_filter]>,
) -> io::Result<(u32, Option<OwnedFd>)> {
    if descriptors.len() != order.numbers.len() {
        return Err(io::Error::other("an order without its descriptors"));
    }
    let descriptors = move_away(descriptors, &order.numbers)?;
    let (result, told) = handover::pair()?;
    let told = out_of_the_way(told, &order.numbers)?;
    let helper = fork(|| {
        let program = fork(|| {
            // With the rights of the launcher, and before the program has any memory.
            if let Err(error) = bounds.1.map_or(Ok(()), Group::enter) {
                tell(&told, b'g', error.raw_os_error().unwrap_or(libc::EIO));
                return false;
            }
            let with = Surroundings {
                descriptors: &descriptors,
                bounds,
                server,
                filter,
                told: &told,
            };
            let error = run(order, with);
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            tell(&told, b'e', number);
            false
        });
        match program {
            Ok(pid) => tell(&told, b'p', pid.as_raw_nonzero().get()),
            Err(error) => tell(&told, b'e', error.raw_os_error().unwrap_or(libc::EAGAIN)),
        }
        true
    })?;
    drop(told);
    rustix::io::retry_on_intr(|| waitpid(Some(helper), WaitOptions::empty()))?;
    let mut said = Said::default();
    if listen(&result, &mut said).is_ok() {
        return Ok((outcome(&said.words)?, said.listener));
    }
    // It may wait for ever: for a disk that is gone, or for a file that somebody holds (`F_SETLEASE`).
    if let Ok(pid) = outcome(&said.words) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // What has ended meanwhile needs no signal: it is the server's child and not reaped yet.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
    }
    Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
}

/// What the process is given beside its order.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    descriptors: &'a [OwnedFd],
    bounds: Bounds<'a>,
    server: Pid,
    /// The filter of its sandbox, if its calls are to be reported.
    filter: Option<&'a [sock_filter]>,
    /// Where to send the listener.
    told: &'a OwnedFd,
}

/// What came by the socket.
#[derive(Default)]
struct Said {
    words: Vec<u8>,
    listener: Option<OwnedFd>,
}

/// Reads the socket to its end, [`START_TIMEOUT`] at most.
fn listen(result: &OwnedFd, said: &mut Said) -> io::Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut word = [0; 16];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match handover::receive_within(result.as_fd(), &mut word, left)? {
            (0, _) => return Ok(()),
            (_, Some(listener)) => said.listener = Some(listener),
            (count, None) => said.words.extend_from_slice(&word[..count]),
        }
    }
}

/// What the words are: a number, and an error if there was one.
fn outcome(said: &[u8]) -> io::Result<u32> {
    let mut pid = None;
    for word in said.chunks(5) {
        match word.split_first_chunk() {
            Some((b"e", number)) => {
                let number = number.try_into().map(i32::from_le_bytes);
                return Err(io::Error::from_raw_os_error(number.unwrap_or(libc::EIO)));
            }
            Some((b"g", number)) => {
                let number = number.try_into().map(i32::from_le_bytes);
                let error = io::Error::from_raw_os_error(number.unwrap_or(libc::EIO));
                let why = format!("its cgroup does not take it in: {error}");
                return Err(io::Error::new(error.kind(), why));
            }
            Some((b"p", number)) => {
                let number = number.try_into().map(i32::from_le_bytes);
                pid = number.ok().and_then(|number| u32::try_from(number).ok());
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    pid.ok_or_else(|| io::Error::other("no process was started"))
}

fn tell(told: &OwnedFd, kind: u8, number: i32) {
    let mut word = [kind, 0, 0, 0, 0];
    word[1..].copy_from_slice(&number.to_le_bytes());
    // The launcher waits for it; five bytes go at once.
    let _ = handover::send(told.as_fd(), &word, None);
}

/// Forks a process that does `act` and ends.
fn fork(act: impl FnOnce() -> bool) -> io::Result<Pid> {
    #[expect(unsafe_code, reason = "there is no safe fork")]
    // SAFETY: the launcher and its helpers have one thread each, so that no lock is held and no state
    // half written in the child, which never returns from here.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => exit(act()),
        pid => Pid::from_raw(pid).ok_or_else(|| io::Error::other("a child without a number")),
    }
}

/// Moves descriptors above all numbers that programs want, so that none is overwritten before its turn.
fn move_away(descriptors: Vec<OwnedFd>, numbers: &[RawFd]) -> io::Result<Vec<OwnedFd>> {
    let moved = descriptors
        .into_iter()
        .map(|fd| out_of_the_way(fd, numbers));
    moved.collect()
}

fn out_of_the_way(fd: OwnedFd, numbers: &[RawFd]) -> io::Result<OwnedFd> {
    let highest = numbers.iter().copied().max().unwrap_or(2).max(2);
    match fd.as_raw_fd() > highest {
        true => Ok(fd),
        false => Ok(rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), highest + 1)?),
    }
}

/// Becomes the program, in a process that is forked for it. Returns only what kept it.
fn run(order: &Order, with: Surroundings<'_>) -> io::Error {
    match set_up(order, with) {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    }
}

fn set_up(order: &Order, with: Surroundings<'_>) -> io::Result<Command> {
    let Surroundings {
        descriptors,
        bounds: (account, group),
        server,
        ..
    } = with;
    become_child_of(server)?;
    for (fd, &number) in descriptors.iter().zip(&order.numbers) {
        place(fd, number)?;
    }
    restore(*inherited_open_files())?;
    // Before the signal of the server's death, which a change of users takes back (prctl(2)).
    if let Some(account) = account {
        become_account(account)?;
        group.map_or(Ok(()), Group::limit_user)?;
    }
    match order.lifetime {
        Lifetime::OfServer => {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have ended before it was asked for that signal.
            if getppid() != Some(server) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Lifetime::OfItsOwn => ignore_terminal_output()?,
    }
    rustix::process::setpgid(None, None)?;
    let mut command = Command::new(&order.program);
    command
        .arg0(&order.arg0)
        .args(&order.args)
        .current_dir(&order.dir)
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .stdin(match order.numbers.contains(&0) {
            true => Stdio::inherit(),
            false => Stdio::null(),
        });
    if let Some(sandbox) = order.sandbox
        && let Some(listener) = sandbox.enter(with.filter)?
    {
        handover::send(with.told.as_fd(), b"l", Some(listener.as_fd()))?;
    }
    Ok(command)
}

/// Waits until the helper has ended: then the server is the parent.
fn become_child_of(server: Pid) -> io::Result<()> {
    let deadline = Instant::now() + ADOPTION_TIMEOUT;
    while getppid() != Some(server) {
        if Instant::now() > deadline {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // Nothing to wait for but time.
        let _ = poll(&mut [], Some(&LOOK));
    }
    debug_assert_ne!(getpid(), server);
    Ok(())
}

/// Becomes the user. Its outputs are its own then, so that it may open `/dev/stdout` and `/dev/stderr`: if
/// they are pipes and nothing else, which whoever gave the order would have made its own.
fn become_account(account: &Account) -> io::Result<()> {
    for output in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        if rustix::fs::fstatfs(output)?.f_type == PIPEFS_MAGIC {
            std::os::unix::fs::fchown(output, Some(account.user.uid), Some(account.gid))?;
        }
    }
    account.assume()
}

/// A server that follows may still write to our terminal, from behind (`stty tostop`).
fn ignore_terminal_output() -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: a number and a constant; in a process with one thread.
    let before = unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    match before {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn place(fd: &OwnedFd, number: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == number {
        return stay_open(number);
    }
    #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
    // SAFETY: dup2 of an open descriptor onto a number that none of ours has: they were moved above all
    // of these. The copy is not close-on-exec.
    let done = unsafe { libc::dup2(fd.as_raw_fd(), number) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_tell_a_number_or_an_error() {
        let word = |kind: u8, number: i32| {
            let mut word = vec![kind];
            word.extend(number.to_le_bytes());
            word
        };
        assert_eq!(outcome(&word(b'p', 77)).unwrap(), 77);
        // The program's process may say so before its number is told.
        for said in [
            [word(b'p', 77), word(b'e', libc::ENOENT)].concat(),
            [word(b'e', libc::ENOENT), word(b'p', 77)].concat(),
        ] {
            let error = outcome(&said).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        }
        let said = [word(b'p', 77), word(b'g', libc::ENOENT)].concat();
        let error = outcome(&said).unwrap_err().to_string();
        assert!(
            error.starts_with("its cgroup does not take it in: No such file"),
            "{error}"
        );
        for said in [&b""[..], b"p", b"x1234", b"p12345"] {
            assert!(outcome(said).is_err(), "{said:?}");
        }
    }

    #[test]
    fn no_descriptor_stands_where_another_is_wanted() {
        let files = ["a", "b", "c"].map(|name| crate::file::in_memory(name, b"").unwrap());
        let numbers: Vec<_> = files.iter().map(|fd| fd.as_raw_fd()).rev().collect();
        let moved = move_away(files.into(), &numbers).unwrap();
        let highest = numbers.iter().max().unwrap();
        assert!(moved.iter().all(|fd| fd.as_raw_fd() > *highest));
    }
}
