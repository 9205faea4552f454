//! The keeper: a small process between the bench and a deployment, which ends all that it started.
//! Run as `bench keeper`.
//!
//! It reads a [`KeeperOrder`], starts the commands, and supervises them until it is asked to stop,
//! is signalled, or its standard input ends, which happens however the bench ends, even killed. It
//! is the subreaper of everything below it (a daemon that left its parents becomes its child), so
//! no process escapes by forking. Two threads wait for the bench and for signals; the main thread
//! receives their events.
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
use std::io::{self, BufRead, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, wait,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::keeper_protocol::{CommandExit, KeeperMessage, KeeperOrder, OutputDestination};
use super::{resource_usage, send_signal};
use crate::child_link::write_json_line;
use crate::load::pin_to_core;

/// The time for commands to end by themselves.
const TERM_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for killed processes to disappear; only a hanging disk takes long.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval of checks for processes that became our children without a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// An order holds commands, not files.
const MAX_ORDER_BYTES: u64 = 16 << 20;

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
    match keeper.start_commands() {
        Ok(()) => keeper.wait_for_stop(),
        // The bench stops a failed keeper like any other.
        Err(error) => send_message(&KeeperMessage::Failed(error.to_string())),
    }
    let is_all_ended = keeper.end_all();
    keeper.tidy_up();
    match is_all_ended {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

struct Keeper {
    order: KeeperOrder,
    events: Receiver<Event>,
    /// Whether the bench has ended, or at least no longer listens.
    is_orphan: bool,
    /// Of each command while it runs.
    commands: Vec<Option<Pid>>,
}

enum Event {
    /// A line of the bench.
    Line(String),
    /// The bench sends nothing more.
    InputEnded,
    ChildExited,
    StopSignal,
}

impl Keeper {
    fn read_order() -> io::Result<Self> {
        let (sender, events) = sync_channel(16);
        // First of all: a signal from here on must not leave anything behind.
        let mut signals = Signals::new([SIGCHLD, SIGTERM, SIGINT, SIGHUP])?;
        let input = sender.clone();
        std::thread::spawn(move || forward_input(&input));
        std::thread::spawn(move || {
            let events = signals.forever().map(|signal| match signal {
                SIGCHLD => Event::ChildExited,
                _ => Event::StopSignal,
            });
            events.map_while(|event| sender.send(event).ok()).last()
        });
        let Ok(Event::Line(order)) = events.recv() else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        Ok(Self {
            order: serde_json::from_str(&order)?,
            events,
            is_orphan: false,
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
            OutputDestination::Terminal => (Stdio::from(io::stderr()), Stdio::inherit()),
            OutputDestination::LogFile(path) => (open_append(path)?, open_append(path)?),
            OutputDestination::SeparateFiles(out, error) => {
                (open_append(out)?, open_append(error)?)
            }
        };
        command.stdin(Stdio::null()).stdout(out).stderr(error);
        command.current_dir(&order.dir);
        command.envs(order.env.iter().map(|(name, value)| (name, value)));
        if order.is_detached {
            command.process_group(0);
        }
        Ok(command)
    }

    /// Waits until it must end.
    fn wait_for_stop(&mut self) {
        loop {
            match self.events.recv() {
                Ok(Event::ChildExited) => self.report_exits(),
                // The only line after the order asks to stop.
                Ok(Event::Line(_) | Event::StopSignal) => return,
                Ok(Event::InputEnded) | Err(_) => {
                    self.is_orphan = true;
                    return;
                }
            }
        }
    }

    fn report_exits(&mut self) {
        let (ended, is_any_left) = reap_children();
        for (pid, status) in ended {
            let command = self.commands.iter().position(|one| *one == Some(pid));
            if let Some(command) = command {
                self.commands[command] = None;
                send_message(&KeeperMessage::Exited(CommandExit {
                    command,
                    wait_status: status.as_raw(),
                    is_any_left,
                }));
            }
        }
    }

    /// Ends everything; returns whether no process is left.
    fn end_all(&mut self) -> bool {
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
            self.pause();
        }
        let deadline = Instant::now() + KILL_TIMEOUT;
        while reap_children().1 && Instant::now() < deadline {
            for pid in resource_usage::descendants(own) {
                send_signal(pid, Signal::KILL);
            }
            self.pause();
        }
        resource_usage::descendants(own).is_empty()
    }

    fn tidy_up(&mut self) {
        // A group is busy for a moment after its last process was reaped.
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline
            && !self.order.groups.iter().all(|group| remove_group(group))
        {
            self.pause();
        }
        // A bench that asked may end before we do, by a second Ctrl-C.
        let mut events = self.events.try_iter();
        self.is_orphan |= events.any(|event| matches!(event, Event::InputEnded));
        let orphaned = self.order.dirs_if_orphaned.iter();
        let orphaned = orphaned.filter(|_| self.is_orphan);
        for folder in self.order.dirs.iter().chain(orphaned) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    /// Waits for an event, such as the end of a child, or for a moment.
    fn pause(&mut self) {
        let event = self.events.recv_timeout(POLL_INTERVAL);
        self.is_orphan |= matches!(event, Ok(Event::InputEnded));
    }
}

/// Forwards the lines of standard input, of limited length.
fn forward_input(events: &SyncSender<Event>) {
    let lines = io::stdin().lock().take(MAX_ORDER_BYTES).lines();
    for line in lines.map_while(Result::ok) {
        if events.send(Event::Line(line)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::InputEnded);
}

/// Reaps ended children; returns whether any child is left.
fn reap_children() -> (Vec<(Pid, WaitStatus)>, bool) {
    let mut ended = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(child)) => ended.push(child),
            Ok(None) => return (ended, true),
            Err(Errno::INTR) => {}
            Err(_) => return (ended, false),
        }
    }
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

/// Sends a message to the bench, which may be gone.
fn send_message(message: &KeeperMessage) {
    let _ = write_json_line(&mut io::stdout(), message);
}
