//! From a launch order to a running program.
//!
//! A helper reads the order, checks whether it may be carried out, forks the program's process and
//! ends: that process is then the server's child. It reports its pid, waits until the server tracks
//! it, sets itself up and runs the program; the order's socket then closes, or returns the error.
//! The listener of its sandbox is sent to the launcher.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, waitid};

use super::launch_order::{LaunchOrder, ProcessLifetime};
use super::refusals::RefusalMonitor;
use super::{GO, LaunchReply, Privileges, START_TIMEOUT, exit_process, send_reply};
use crate::account::Account;
use crate::cgroup::AppCgroup;
use crate::fd_packets;
use crate::process::{child_open_files, clear_close_on_exec, reset_child_state};
use crate::resource_limits;

/// How long a process may wait to become the server's child: its parent ends at once.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of helpers. One lives for milliseconds, or for [`START_TIMEOUT`] if its order
/// does not arrive.
const HELPERS_MAX: usize = 256;

/// Maximum number of descriptors of an order; that of a worker has four.
const ORDER_DESCRIPTORS_MAX: usize = 1024;

/// The file system of unnamed pipes (`linux/magic.h`).
const PIPEFS_MAGIC: rustix::fs::FsWord = 0x5049_5045;

/// Delay between two checks for the new parent.
const ADOPTION_POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000,
};

/// The user of a program, and the cgroup that limits it with its descendants.
type Bounds<'a> = (Option<&'a Account>, Option<&'a AppCgroup>);

/// The common context of a launcher's starts.
#[derive(Clone, Copy)]
pub(super) struct LaunchContext<'a> {
    /// The launcher's own socket.
    pub(super) launcher_socket: &'a OwnedFd,
    pub(super) server_pid: Pid,
    pub(super) privileges: &'a Privileges,
    /// Receives listeners.
    pub(super) refusals: &'a RefusalMonitor,
}

/// The helpers of a launcher that may still run.
#[derive(Debug, Default)]
pub(super) struct LaunchHelpers(Vec<Pid>);

impl LaunchHelpers {
    /// Whether there may be one more. Forgets those that have ended.
    fn has_room(&mut self) -> bool {
        if self.0.len() >= HELPERS_MAX {
            self.0.retain(|pid| is_running(*pid));
        }
        self.0.len() < HELPERS_MAX
    }
}

/// Whether a child of this process has not ended. The kernel reaps those of the launcher.
fn is_running(pid: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(pid), look), Ok(None))
}

/// Starts a helper that carries out an order, including everything that may take time.
pub(super) fn start_helper(socket: &OwnedFd, helpers: &mut LaunchHelpers, with: LaunchContext<'_>) {
    if !helpers.has_room() {
        let why = format!("{HELPERS_MAX} other starts are not carried out yet: try again later");
        return refuse(socket, io::Error::other(why));
    }
    let helper = fork(|| {
        // A hanging helper must not look like a launcher that listens.
        close(with.launcher_socket);
        let forked = carry_out(socket, with);
        write_result(socket, forked)
    });
    match helper {
        Ok(pid) => helpers.0.push(pid),
        Err(error) => refuse(socket, error),
    }
}

/// Replies why an order has no helper. The launcher does not wait if the socket is full.
fn refuse(socket: &OwnedFd, error: io::Error) {
    let _ = fd_packets::send_packet(
        socket.as_fd(),
        &LaunchReply::from_result(Err(error)).encode(),
        None,
    );
}

/// Reads the order and forks the process that becomes its program.
fn carry_out(socket: &OwnedFd, with: LaunchContext<'_>) -> io::Result<()> {
    let LaunchContext {
        server_pid: server,
        privileges,
        ..
    } = with;
    let (mut order, mut descriptors) = receive(socket.as_fd(), START_TIMEOUT)?;
    let account = privileges.authorize(&mut order, &mut descriptors)?;
    let bounds = (account, privileges.find_group(&order)?);
    if descriptors.len() != order.fd_numbers.len() {
        return Err(io::Error::other("launch order without its descriptors"));
    }
    let descriptors = move_fds_above(descriptors, &order.fd_numbers)?;
    let reply_socket = rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), 3)?;
    let reply_socket = move_fd_above(reply_socket, &order.fd_numbers)?;
    let registration_socket = move_fd_above(with.refusals.registrar()?, &order.fd_numbers)?;
    fork(|| {
        // With the rights of the launcher, and before the program has any memory.
        let becoming = enter_group(bounds.1)
            .and_then(|()| wait_to_be_child_of(server))
            .and_then(|()| await_go(&reply_socket));
        let error = becoming.map_or_else(
            |error| error,
            |()| {
                let sandboxed = || enter_sandbox(&order, with.refusals, &registration_socket);
                exec_program(&order, &descriptors, bounds, server, sandboxed)
            },
        );
        write_result(&reply_socket, Err(error))
    })?;
    Ok(())
}

fn enter_group(group: Option<&AppCgroup>) -> io::Result<()> {
    let entered = group.map_or(Ok(()), AppCgroup::enter);
    entered.map_err(|error| {
        let why = format!("its cgroup does not take it in: {error}");
        io::Error::new(error.kind(), why)
    })
}

/// Enters the sandbox, and sends the listener of its filter to the launcher.
fn enter_sandbox(
    order: &LaunchOrder,
    refusals: &RefusalMonitor,
    registration_socket: &OwnedFd,
) -> io::Result<()> {
    let Some(sandbox) = order.sandbox else {
        return Ok(());
    };
    let (access, filters) = (order.access.open(), refusals.filters());
    if let Some(listener) = sandbox.enter(&access, filters, refusals.has_room(&order.app))? {
        let deadline = Instant::now() + START_TIMEOUT;
        let (to, app) = (registration_socket.as_fd(), order.app.as_bytes());
        fd_packets::send_packet_until(to, app, &[listener.as_fd()], deadline)?;
    }
    Ok(())
}

/// Receives the order and its descriptors, if all of them arrive in time.
fn receive(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<(LaunchOrder, Vec<OwnedFd>)> {
    let mut head = [0; 4];
    let deadline = Instant::now() + limit;
    let receive = |buffer: &mut [u8]| {
        let left = deadline.saturating_duration_since(Instant::now());
        fd_packets::wait_readable(socket, Some(left))?;
        match fd_packets::receive_packet_with_fds(socket, buffer)? {
            (0, _) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            (_, descriptors) => Ok(descriptors),
        }
    };
    let text = receive(&mut head)?.into_iter().next().map(File::from);
    let text = text.ok_or_else(|| io::Error::other("launch order without its text"))?;
    let count = u32::from_le_bytes(head) as usize;
    if count > ORDER_DESCRIPTORS_MAX {
        return Err(io::Error::other(format!(
            "an order with {count} descriptors: {ORDER_DESCRIPTORS_MAX} is the limit"
        )));
    }
    let mut descriptors = Vec::new();
    while descriptors.len() < count {
        let more = receive(&mut [0; 1])?;
        if more.is_empty() {
            return Err(io::Error::other("launch order without its descriptors"));
        }
        descriptors.extend(more);
    }
    Ok((LaunchOrder::read(&text)?, descriptors))
}

/// Reports this process, and waits until the server has it in its table.
fn await_go(socket: &OwnedFd) -> io::Result<()> {
    let pid = getpid().as_raw_nonzero().get().unsigned_abs();
    send_reply(socket, &LaunchReply::Waits(pid))?;
    let mut word = [0; GO.len()];
    match fd_packets::receive_packet_with_timeout(socket.as_fd(), &mut word, START_TIMEOUT)? {
        (length, _) if word[..length] == *GO => Ok(()),
        // The start was cancelled.
        _ => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
    }
}

/// Sends the error, if any; returns whether there was none.
fn write_result(socket: &OwnedFd, result: io::Result<()>) -> bool {
    let Err(error) = result else {
        return true;
    };
    // A server that has exited, or cancelled the start, does not read it.
    let _ = send_reply(socket, &LaunchReply::from_result(Err(error)));
    false
}

fn close(fd: &OwnedFd) {
    #[expect(
        unsafe_code,
        reason = "a copy of a descriptor whose owner is never dropped here"
    )]
    // SAFETY: this process, which is forked, never returns to the owner.
    unsafe {
        libc::close(fd.as_raw_fd());
    }
}

/// Forks a process that runs `act` and ends.
fn fork(act: impl FnOnce() -> bool) -> io::Result<Pid> {
    #[expect(unsafe_code, reason = "there is no safe fork")]
    // SAFETY: the launcher and its helpers have one thread each, so that no lock is held and no
    // state half written in the child, which never returns from here.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => exit_process(act()),
        pid => Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process id received")),
    }
}

/// Moves descriptors above all numbers that the program gets, so that none is overwritten before it
/// is placed.
fn move_fds_above(descriptors: Vec<OwnedFd>, numbers: &[RawFd]) -> io::Result<Vec<OwnedFd>> {
    let moved = descriptors.into_iter().map(|fd| move_fd_above(fd, numbers));
    moved.collect()
}

fn move_fd_above(fd: OwnedFd, numbers: &[RawFd]) -> io::Result<OwnedFd> {
    let highest = numbers.iter().copied().max().unwrap_or(2).max(2);
    match fd.as_raw_fd() > highest {
        true => Ok(fd),
        false => Ok(rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), highest + 1)?),
    }
}

/// Becomes the program, in a process that is forked for it. Returns only on error.
fn exec_program(
    order: &LaunchOrder,
    descriptors: &[OwnedFd],
    bounds: Bounds<'_>,
    server: Pid,
    enter_sandbox: impl FnOnce() -> io::Result<()>,
) -> io::Error {
    let command = prepare_program(order, descriptors, bounds, server);
    match command.and_then(|command| enter_sandbox().map(|()| command)) {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    }
}

fn prepare_program(
    order: &LaunchOrder,
    descriptors: &[OwnedFd],
    bounds: Bounds<'_>,
    server: Pid,
) -> io::Result<Command> {
    let (account, group) = bounds;
    for (fd, &number) in descriptors.iter().zip(&order.fd_numbers) {
        place_fd(fd, number)?;
    }
    reset_child_state(*child_open_files())?;
    // Before the parent death signal, which a change of users resets (prctl(2)).
    if let Some(account) = account {
        become_account(account)?;
        group.map_or(Ok(()), AppCgroup::limit_user_tasks)?;
    }
    match order.lifetime {
        ProcessLifetime::WithServer => {
            // A unit may forbid to set limits (`SystemCallFilter=~@resources`): then there is no
            // mark.
            let _ = resource_limits::mark_as_application();
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The server may have ended before that.
            if getppid() != Some(server) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        ProcessLifetime::Independent => ignore_terminal_output()?,
    }
    rustix::process::setpgid(None, None)?;
    let mut command = Command::new(&order.program);
    command
        .arg0(&order.arg0)
        .args(&order.args)
        .current_dir(&order.dir)
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .stdin(match order.fd_numbers.contains(&0) {
            true => Stdio::inherit(),
            false => Stdio::null(),
        });
    Ok(command)
}

/// Waits until the helper has ended: then the server is the parent.
fn wait_to_be_child_of(server: Pid) -> io::Result<()> {
    let deadline = Instant::now() + ADOPTION_TIMEOUT;
    while getppid() != Some(server) {
        if Instant::now() > deadline {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // A plain delay.
        let _ = poll(&mut [], Some(&ADOPTION_POLL_INTERVAL));
    }
    debug_assert_ne!(getpid(), server);
    Ok(())
}

/// Switches to the user. Its outputs are chowned to it, so that it may open `/dev/stdout` and
/// `/dev/stderr`: only if they are pipes, as otherwise the sender of the order could have any file
/// chowned.
fn become_account(account: &Account) -> io::Result<()> {
    for output in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        if rustix::fs::fstatfs(output)?.f_type == PIPEFS_MAGIC {
            std::os::unix::fs::fchown(output, Some(account.user.uid), Some(account.gid))?;
        }
    }
    account.switch_to()
}

/// The next server may still write to our terminal from a background group (`stty tostop`).
fn ignore_terminal_output() -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: a number and a constant; in a process with one thread.
    let before = unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    match before {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn place_fd(fd: &OwnedFd, number: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == number {
        return clear_close_on_exec(number);
    }
    #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
    // SAFETY: dup2 of an open descriptor onto a number that none of ours has: they were moved above
    // all of these. The copy is not close-on-exec.
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
    fn an_order_has_a_bound_for_its_descriptors() {
        for (count, refusal) in [
            (1024_u32, "without its descriptors"),
            (1025, "the limit"),
            (u32::MAX, "the limit"),
        ] {
            let (ours, theirs) = fd_packets::packet_pair().unwrap();
            let text = crate::file::memfd_with_content("order", b"").unwrap();
            fd_packets::send_packet(ours.as_fd(), &count.to_le_bytes(), Some(text.as_fd()))
                .unwrap();
            // A packet without the descriptors.
            fd_packets::send_packet(ours.as_fd(), b"d", None).unwrap();
            let refused = receive(theirs.as_fd(), START_TIMEOUT).unwrap_err();
            assert!(refused.to_string().contains(refusal), "{count}: {refused}");
        }
    }

    #[test]
    fn an_order_that_dribbles_has_one_deadline() {
        let (ours, theirs) = fd_packets::packet_pair().unwrap();
        let text = crate::file::memfd_with_content("order", b"").unwrap();
        fd_packets::send_packet(ours.as_fd(), &1000_u32.to_le_bytes(), Some(text.as_fd())).unwrap();
        let sender = std::thread::spawn(move || {
            let sent = (0..1000).take_while(|_| {
                let _ = poll(
                    &mut [],
                    Some(&Timespec::try_from(Duration::from_millis(20)).unwrap()),
                );
                fd_packets::send_packet(ours.as_fd(), b"d", Some(text.as_fd())).is_ok()
            });
            sent.count()
        });
        let late = receive(theirs.as_fd(), Duration::from_millis(200)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
        assert!(sender.join().unwrap() < 1000);
    }

    #[test]
    fn there_are_no_more_helpers_than_the_bound() {
        let mut one = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(one.id().cast_signed()).unwrap();
        let mut helpers = LaunchHelpers(vec![pid; HELPERS_MAX - 1]);
        assert!(helpers.has_room());
        helpers.0.push(pid);
        assert!(!helpers.has_room());
        one.kill().unwrap();
        one.wait().unwrap();
        assert!(helpers.has_room());
        assert_eq!(helpers.0.len(), 0);
    }

    #[test]
    fn fds_are_moved_out_of_the_target_numbers() {
        let files = ["a", "b", "c"].map(|name| crate::file::memfd_with_content(name, b"").unwrap());
        let numbers: Vec<_> = files.iter().map(|fd| fd.as_raw_fd()).rev().collect();
        let moved = move_fds_above(files.into(), &numbers).unwrap();
        let highest = numbers.iter().max().unwrap();
        assert!(moved.iter().all(|fd| fd.as_raw_fd() > *highest));
    }
}
