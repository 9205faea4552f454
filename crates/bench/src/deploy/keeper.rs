//! The keeper: a small process between the bench and a deployment, which ends all that it started.
//! Run as `bench keep`.
//!
//! It reads a [`KeeperOrder`], starts the commands, and supervises them until it is asked to stop,
//! is signalled, or its standard input ends, which happens however the bench ends, even killed. It
//! is the subreaper of everything below it (a daemon that left its parents becomes its child), so
//! no process escapes by forking. One thread, which sleeps except for children that end.
//!
//! # Invariants
//!
//! - Unless killed, it never ends before its last descendant has.

#![allow(
    clippy::disallowed_methods,
    reason = "a process of its own, without loops"
)]

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, setsid, wait,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::keeper_protocol::{CommandOutput, KeeperMessage, KeeperOrder, STOP_LINE};
use super::{ExitReason, resource_usage};

/// The time for commands to end by themselves.
const TERM_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for killed processes to disappear; only a hanging disk takes long.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval of checks for processes that became our children without a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// An order holds commands, not files.
const MAX_ORDER_BYTES: usize = 16 << 20;

/// Joins groups, then becomes the command. The shell's own process joins, so its children are
/// included.
const JOIN_GROUPS_SCRIPT: &str = r#"command=$1; shift
for group; do echo 0 >"$group/cgroup.procs" || exit 125; done
exec /bin/sh -c "$command""#;

pub(super) fn run() -> ExitCode {
    let mut keeper = match Keeper::read_order() {
        Ok(keeper) => keeper,
        Err(error) => {
            send_message(&KeeperMessage::Failed(error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    let started = keeper.start_commands();
    let was_asked = match started {
        Ok(()) => keeper.wait_for_stop(),
        // The bench stops a failed keeper like any other.
        Err(error) => {
            send_message(&KeeperMessage::Failed(error.to_string()));
            true
        }
    };
    let survivors = keeper.end_all();
    keeper.tidy_up(was_asked);
    if survivors.is_empty() {
        return ExitCode::SUCCESS;
    }
    send_message(&KeeperMessage::StillRunning(survivors));
    ExitCode::FAILURE
}

struct Keeper {
    order: KeeperOrder,
    input: StdinLines,
    /// Readable after a child ended.
    child_ended: UnixStream,
    /// Readable after a stop signal.
    stop_signals: UnixStream,
    /// Of each command while it runs.
    commands: Vec<Option<Pid>>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WakeReason {
    ChildExited,
    Stop { was_asked: bool },
    TimedOut,
}

impl Keeper {
    fn read_order() -> io::Result<Self> {
        // First of all: a signal from here on must not leave anything behind.
        let child_ended = signal_stream(&[SIGCHLD])?;
        let signalled = signal_stream(&[SIGTERM, SIGINT, SIGHUP])?;
        let mut input = StdinLines::default();
        let order = input.next_line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let order = serde_json::from_str(&order)?;
        Ok(Self {
            order,
            input,
            child_ended,
            stop_signals: signalled,
            commands: Vec::new(),
        })
    }

    fn start_commands(&mut self) -> io::Result<()> {
        set_child_subreaper(Some(getpid()))?;
        if self.order.is_detached {
            setsid()?;
        }
        if let Some(core) = self.order.core {
            pin_to_core(core)?;
        }
        for command in &self.order.commands {
            let spawned = self.shell_command(command)?.spawn()?;
            // Reaped with all others, never through the handle.
            let pid = i32::try_from(spawned.id()).ok().and_then(Pid::from_raw);
            self.commands.push(pid);
        }
        send_message(&KeeperMessage::Started);
        Ok(())
    }

    fn shell_command(&self, text: &str) -> io::Result<Command> {
        let order = &self.order;
        let mut command = Command::new("/bin/sh");
        match &order.groups[..] {
            [] => command.args(["-c", text]),
            groups => command
                .args(["-c", JOIN_GROUPS_SCRIPT, "sh", text])
                .args(groups),
        };
        let (out, error) = match &order.output {
            CommandOutput::Terminal => (Stdio::from(io::stderr()), Stdio::inherit()),
            CommandOutput::LogFile(path) => (open_append(path)?, open_append(path)?),
            CommandOutput::SeparateFiles(out, error) => (open_append(out)?, open_append(error)?),
        };
        command.stdin(Stdio::null()).stdout(out).stderr(error);
        command.current_dir(&order.dir);
        command.envs(order.env.iter().map(|(name, value)| (name, value)));
        if order.is_detached {
            command.process_group(0);
        }
        Ok(command)
    }

    /// Waits until it must end; returns whether the bench asked for it, and so is alive.
    fn wait_for_stop(&mut self) -> bool {
        loop {
            match self.wait_for_event(None) {
                WakeReason::Stop { was_asked } => return was_asked,
                WakeReason::ChildExited | WakeReason::TimedOut => self.report_exits(),
            }
        }
    }

    fn report_exits(&mut self) {
        let (ended, is_any_left) = reap_children();
        for (pid, how) in ended {
            let command = self.commands.iter().position(|one| *one == Some(pid));
            if let Some(command) = command {
                self.commands[command] = None;
                send_message(&KeeperMessage::Exited {
                    command,
                    how,
                    is_any_left,
                });
            }
        }
    }

    /// Ends everything; returns the processes that could not be ended.
    fn end_all(&mut self) -> Vec<u32> {
        let own = std::process::id();
        let deadline = Instant::now() + TERM_TIMEOUT;
        let mut asked = HashSet::new();
        while reap_children().1 && Instant::now() < deadline {
            // Commands, and processes that became our children when their parent ended: daemons,
            // and children of a shell that did not pass the signal on.
            for child in resource_usage::live_children(own) {
                if asked.insert(child) {
                    send_signal(child, Signal::TERM);
                }
            }
            self.wait_for_event(Some(POLL_INTERVAL));
        }
        let deadline = Instant::now() + KILL_TIMEOUT;
        while reap_children().1 && Instant::now() < deadline {
            for pid in resource_usage::descendants(own) {
                send_signal(pid, Signal::KILL);
            }
            self.wait_for_event(Some(POLL_INTERVAL));
        }
        resource_usage::descendants(own)
    }

    fn tidy_up(&mut self, was_asked: bool) {
        // A group is busy for a moment after its last process was reaped.
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline
            && !self.order.groups.iter().all(|group| remove_group(group))
        {
            self.sleep_only(POLL_INTERVAL);
        }
        // A bench that asked may end before we do, by a second Ctrl-C.
        let is_orphan = !was_asked || self.input.is_at_end();
        let orphaned = self.order.dirs_if_orphaned.iter().filter(|_| is_orphan);
        for folder in self.order.dirs.iter().chain(orphaned) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    /// Sleeps until an event, or for a time.
    fn wait_for_event(&mut self, time: Option<Duration>) -> WakeReason {
        let is_open = !self.input.is_ended;
        let stdin = io::stdin();
        let mut ready = vec![
            PollFd::new(&self.child_ended, PollFlags::IN),
            PollFd::new(&self.stop_signals, PollFlags::IN),
        ];
        if is_open {
            ready.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut ready, time.as_ref()) {
            Ok(0) => return WakeReason::TimedOut,
            // Interrupted by a signal; its stream reports it next time.
            Err(_) => return WakeReason::ChildExited,
            Ok(_) => {}
        }
        let is_ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(ready);
        if is_ready[0] {
            drain_stream(&self.child_ended);
        }
        if is_ready[1] {
            drain_stream(&self.stop_signals);
            return WakeReason::Stop { was_asked: true };
        }
        if is_ready.get(2) == Some(&true) {
            return match self.input.next_line() {
                Ok(Some(line)) if line != STOP_LINE => WakeReason::ChildExited,
                Ok(Some(_)) => WakeReason::Stop { was_asked: true },
                Ok(None) | Err(_) => WakeReason::Stop { was_asked: false },
            };
        }
        WakeReason::ChildExited
    }

    fn sleep_only(&self, time: Duration) {
        let time = Timespec::try_from(time).ok();
        let _ = poll(&mut [], time.as_ref());
    }
}

/// Lines of standard input, read without a lock and without a buffer that poll does not see.
#[derive(Default)]
struct StdinLines {
    pending: Vec<u8>,
    is_ended: bool,
}

impl StdinLines {
    /// Whether the other end is closed; does not wait.
    fn is_at_end(&mut self) -> bool {
        let mut chunk = [0; 4096];
        while !self.is_ended {
            let stdin = io::stdin();
            let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut ready, Some(&Timespec::default())) {
                Ok(1..) => {}
                Err(Errno::INTR) => continue,
                Ok(0) | Err(_) => return false,
            }
            // Its remaining input no longer matters.
            self.is_ended = !matches!(
                rustix::io::read(&stdin, &mut chunk),
                Ok(1..) | Err(Errno::INTR)
            );
        }
        true
    }

    /// Reads the next line; blocks until it is there. `None` at the end.
    fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut chunk = [0; 64 << 10];
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.pending) {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line[..end]).into_owned();
                return Ok(Some(text));
            }
            if self.is_ended || self.pending.len() > MAX_ORDER_BYTES {
                return Ok(None);
            }
            match rustix::io::read(io::stdin(), &mut chunk) {
                Ok(0) => self.is_ended = true,
                Ok(count) => self.pending.extend_from_slice(&chunk[..count]),
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.is_ended = true;
                    return Err(error.into());
                }
            }
        }
    }
}

/// Reaps ended children; returns whether any child is left.
fn reap_children() -> (Vec<(Pid, ExitReason)>, bool) {
    let mut ended = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended.push((pid, exit_reason(status))),
            Ok(None) => return (ended, true),
            Err(Errno::INTR) => {}
            Err(_) => return (ended, false),
        }
    }
}

fn exit_reason(status: WaitStatus) -> ExitReason {
    match status.terminating_signal() {
        Some(signal) => ExitReason::Signal(signal),
        None => ExitReason::Status(status.exit_status().unwrap_or_default()),
    }
}

fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by now.
        let _ = kill_process(pid, signal);
    }
}

fn pin_to_core(core: usize) -> io::Result<()> {
    let wrong = || io::Error::other(format!("no core {core}"));
    if core >= CpuSet::MAX_CPU {
        return Err(wrong());
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|_| wrong())
}

fn open_append(path: &Path) -> io::Result<Stdio> {
    let file = File::options().append(true).create(true).open(path)?;
    Ok(file.into())
}

fn remove_group(group: &Path) -> bool {
    match std::fs::remove_dir(group) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// A stream that becomes readable when one of the signals arrives.
fn signal_stream(signals: &[i32]) -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    for signal in signals {
        pipe::register(*signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

fn drain_stream(mut stream: &UnixStream) {
    let mut bytes = [0; 256];
    while matches!(io::Read::read(&mut stream, &mut bytes), Ok(count) if count > 0) {}
}

/// Sends a message to the bench, which may be gone.
fn send_message(word: &KeeperMessage) {
    if let Ok(mut line) = serde_json::to_vec(word) {
        line.push(b'\n');
        let mut out = io::stdout();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}
