//! Children that are not waited for: descendants that workers leave behind become ours.
//!
//! The kernel has one table of children for the whole process, so there is one here too, of the
//! children that are waited for ([`TrackedChild`]). All others are orphans. `apps` reaps those that
//! end, and the server kills the rest as its last act.
//!
//! # Invariants
//! - A child is created or adopted and added under one lock, and removed under the lock that takes
//!   its exit status, so that no pid in the table is ever another process's.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions, waitpid};

use super::{ProcessExit, exit_watch, to_pid};

/// How long [`kill_orphans`] may take altogether.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay between two checks of killed children.
const POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The pids of the children that are waited for.
static TRACKED_CHILDREN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A child that is waited for.
#[derive(Debug)]
pub(super) struct TrackedChild {
    pid: u32,
    reaped_flag: ReapedFlag,
}

/// Whether a child has been reaped, or left to be reaped as an orphan. Changes under the table's
/// lock only.
#[derive(Debug, Clone, Default)]
pub(super) struct ReapedFlag(Arc<AtomicBool>);

impl ReapedFlag {
    /// Runs `act` while the child's pid is certainly its own.
    pub(super) fn run_if_not_reaped(&self, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _table = tracked_children();
        if self.0.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        act()
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl TrackedChild {
    pub(super) fn reaped_flag(&self) -> ReapedFlag {
        self.reaped_flag.clone()
    }

    /// Takes its exit status by `wait` and removes it from the table.
    pub(super) fn take_exit(
        &mut self,
        wait: impl FnOnce() -> io::Result<Option<ProcessExit>>,
    ) -> io::Result<Option<ProcessExit>> {
        let mut table = tracked_children();
        let exit = wait()?;
        if exit.is_some() {
            self.reaped_flag.set();
            table.remove(&self.pid);
        }
        Ok(exit)
    }
}

impl Drop for TrackedChild {
    fn drop(&mut self) {
        // The pid of a reaped child may be another child's by now.
        let mut table = tracked_children();
        if !self.reaped_flag.is_set() {
            self.reaped_flag.set();
            table.remove(&self.pid);
        }
    }
}

/// Creates or adopts a child by `come`, and adds its pid.
pub(super) fn track_child<T>(
    come: impl FnOnce(&BTreeSet<u32>) -> io::Result<(u32, T)>,
) -> io::Result<(T, TrackedChild)> {
    let mut table = tracked_children();
    let (pid, child) = come(&table)?;
    table.insert(pid);
    let known = TrackedChild {
        pid,
        reaped_flag: ReapedFlag::default(),
    };
    Ok((child, known))
}

fn tracked_children() -> MutexGuard<'static, BTreeSet<u32>> {
    TRACKED_CHILDREN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A child that is not waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Its process id.
    pub pid: u32,
    /// The name of its program, as the kernel has it (15 bytes).
    pub name: String,
    /// Its process group.
    pub group: u32,
    /// Whether it has ended and waits to be reaped.
    pub has_ended: bool,
}

/// Returns all children that are not waited for.
pub fn list_orphans() -> io::Result<Vec<Orphan>> {
    let table = tracked_children();
    let mut all = children()?;
    all.retain(|child| !table.contains(&child.pid));
    Ok(all)
}

/// Reaps an orphan that has ended; `false` when there is nothing to reap.
pub fn reap_orphan(pid: u32) -> bool {
    let table = tracked_children();
    !table.contains(&pid) && reap(pid)
}

/// Kills every remaining child, and the orphans that these leave, for up to 2 s, except those in
/// `except`. Returns the killed ones. For the last act of a server: it also reaps children that are
/// waited for. Blocks.
pub fn kill_orphans(except: &[u32]) -> Vec<Orphan> {
    let deadline = Instant::now() + END_TIMEOUT;
    let mut ended: Vec<Orphan> = Vec::new();
    loop {
        let Ok(mut left) = children() else {
            return ended;
        };
        left.retain(|child| !except.contains(&child.pid));
        let Some(first) = left.first() else {
            return ended;
        };
        // Opened before it is killed, so that its exit is not missed.
        let first = to_pid(first.pid).and_then(exit_watch::open_exit_fd);
        for child in left {
            if !child.has_ended && !ended.contains(&child) {
                // A process that is gone needs no signal.
                let _ = to_pid(child.pid)
                    .and_then(|pid| Ok(rustix::process::kill_process(pid, Signal::KILL)?));
                ended.push(child);
            }
        }
        // One that cannot be killed, as it waits for a disk, is checked again.
        let _ = match &first {
            Ok(end) => poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&POLL_INTERVAL)),
            Err(_) => poll(&mut [], Some(&POLL_INTERVAL)),
        };
        for child in children().into_iter().flatten() {
            if child.has_ended && !except.contains(&child.pid) {
                reap(child.pid);
            }
        }
        if Instant::now() >= deadline {
            return ended;
        }
    }
}

fn reap(pid: u32) -> bool {
    let status = to_pid(pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
    matches!(status, Ok(Ok(Some(_))))
}

/// All children of this process, of any thread.
#[expect(clippy::disallowed_methods, reason = "/proc is memory, no disk")]
fn children() -> io::Result<Vec<Orphan>> {
    let number = |word: &str| word.parse::<u32>().ok();
    let mut pids = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        match std::fs::read_to_string(task?.path().join("children")) {
            Ok(list) => pids.extend(list.split_ascii_whitespace().filter_map(number)),
            // The thread has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // A kernel without CONFIG_PROC_CHILDREN, or a thread that has ended.
            Err(_) => return Ok(children_by_process_list()),
        }
    }
    let ours = std::process::id();
    let child = |pid: u32| read_stat(pid).filter(|(parent, _)| *parent == ours);
    let all = pids.into_iter().filter_map(child);
    Ok(all.map(|(_, child)| child).collect())
}

/// Like [`children`], from the list of all processes.
fn children_by_process_list() -> Vec<Orphan> {
    let ours = std::process::id();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let children = pids.filter_map(|pid| read_stat(pid).filter(|(parent, _)| *parent == ours));
    children.map(|(_, child)| child).collect()
}

/// The parent of a process, and other fields of its `stat` (proc_pid_stat(5)).
#[expect(clippy::disallowed_methods, reason = "/proc is memory, no disk")]
fn read_stat(pid: u32) -> Option<(u32, Orphan)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The name is in parentheses and may contain some itself.
    let (head, tail) = text.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let mut words = tail.split_ascii_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    let group = words.next()?.parse().ok()?;
    let orphan = Orphan {
        pid,
        name: name.to_owned(),
        group,
        has_ended: matches!(state, "Z" | "X"),
    };
    Some((parent, orphan))
}
