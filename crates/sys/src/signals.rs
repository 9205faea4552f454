//! Classifies the senders of signals to this process: descendants, or other processes.
//!
//! `penstock` receives signals through tokio and checks here which to obey: an application must not
//! end or reload the server that runs it. The sender is inspected inside the signal handler, while
//! it most likely still exists: a program such as `kill` has exited a moment later. The previous
//! server has applications too, while it runs: its descendants count as ours, it itself does not.
//!
//! # Invariants
//! - Nothing in the handler allocates, locks or touches `errno`.
//! - A sender that cannot be found is not taken for a descendant.

use std::ffi::CStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

/// Maximum number of generations to check; only a descendant has so many ancestors.
const MAX_GENERATIONS: usize = 128;

/// How often a chain that broke while it was followed is followed anew.
const MAX_TRIES: usize = 3;

/// Records the senders of one signal.
#[derive(Debug)]
pub struct SignalWatch {
    notes: Arc<SignalNotes>,
}

/// Written by the handler.
#[derive(Debug, Default)]
struct SignalNotes {
    /// It was sent by a process that is no descendant.
    outside: AtomicBool,
    /// The first descendant that sent it: its pid, and that of its ancestor that is our child or,
    /// with [`PREDECESSOR_BIT`], the previous server's; 0 when there was none.
    inside: AtomicU64,
}

/// Signals received since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignals {
    /// Whether a process that is no descendant has sent it.
    pub is_from_outside: bool,
    /// The first descendant that has sent it.
    pub descendant: Option<DescendantSender>,
}

/// A descendant that sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescendantSender {
    /// Its process id; it may have exited.
    pub pid: u32,
    /// The child of this process that it descends from, or is.
    pub child: u32,
    /// Whether that is a child of the previous server instead of this one.
    pub is_of_predecessor: bool,
}

/// Marks a descendant of the previous server; pids have 22 bits.
const PREDECESSOR_BIT: u64 = 1 << 63;

/// Processes that senders may descend from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessRoots {
    /// This process.
    own_pid: u32,
    /// The previous server, while it runs.
    predecessor: Option<u32>,
}

impl ProcessRoots {
    /// This process, and the previous server while that is its parent: later its pid may be reused.
    /// Async-signal-safe.
    pub(crate) fn with_live_predecessor(us: u32, predecessor: Option<u32>) -> Self {
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        let parent = parent.map_or(0, i32::unsigned_abs);
        Self {
            own_pid: us,
            predecessor: predecessor.filter(|pid| *pid == parent),
        }
    }
}

/// Begins to record the senders of this signal. Register the task to be woken by it afterwards, so
/// that it finds the record. `predecessor` is the previous server, the parent until it ends.
pub fn watch_signal(signal: i32, predecessor: Option<u32>) -> io::Result<SignalWatch> {
    let notes = Arc::new(SignalNotes::default());
    let (noted, us) = (Arc::clone(&notes), rustix::process::getpid());
    let us = us.as_raw_nonzero().get().unsigned_abs();
    let note = move |info: &libc::siginfo_t| {
        #[expect(unsafe_code, reason = "a field of a union")]
        // SAFETY: `si_pid` reads four bytes that the kernel has set, for signals without a sender
        // too.
        let pid = unsafe { info.si_pid() };
        noted.record(
            u32::try_from(pid).unwrap_or(0),
            ProcessRoots::with_live_predecessor(us, predecessor),
        );
    };
    #[expect(unsafe_code, reason = "the closure runs in a signal handler")]
    // SAFETY: it makes system calls without the C library's `errno` and stores to atomics; it does
    // not allocate, lock or panic.
    unsafe {
        signal_hook_registry::register_sigaction(signal, note)?;
    }
    Ok(SignalWatch { notes })
}

impl SignalWatch {
    /// Returns the signals received since the last call.
    #[must_use]
    pub fn take_received(&self) -> ReceivedSignals {
        let inside = self.notes.inside.swap(0, Ordering::AcqRel);
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        ReceivedSignals {
            is_from_outside: self.notes.outside.swap(false, Ordering::AcqRel),
            descendant: (inside != 0).then(|| DescendantSender {
                pid: half((inside & !PREDECESSOR_BIT) >> 32),
                child: half(inside),
                is_of_predecessor: inside & PREDECESSOR_BIT != 0,
            }),
        }
    }
}

impl SignalNotes {
    /// In the signal handler.
    fn record(&self, pid: u32, roots: ProcessRoots) {
        match root_child_above(pid, roots) {
            None => self.outside.store(true, Ordering::Release),
            Some((child, root)) => {
                let mark = if root == roots.own_pid {
                    0
                } else {
                    PREDECESSOR_BIT
                };
                let both = u64::from(pid) << 32 | u64::from(child) | mark;
                // Only the first is kept.
                let _ =
                    (self.inside).compare_exchange(0, both, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// It is, or descends from, this child of that root.
    Below {
        child: u32,
        /// The parent of the child.
        root: u32,
    },
    /// It descends from neither of them.
    Outside,
    /// It has exited, or cannot be inspected.
    Unknown,
}

/// The child of a root that `pid` is or descends from, and that root. Async-signal-safe.
fn root_child_above(pid: u32, roots: ProcessRoots) -> Option<(u32, u32)> {
    match find_lineage(pid, roots) {
        Lineage::Below { child, root } => Some((child, root)),
        Lineage::Outside | Lineage::Unknown => None,
    }
}

/// Determines the origin of `pid`. Async-signal-safe.
pub(crate) fn find_lineage(pid: u32, roots: ProcessRoots) -> Lineage {
    let ProcessRoots {
        own_pid: us,
        predecessor,
    } = roots;
    // Both may send any signal, and the one is a child of the other.
    if pid == us || Some(pid) == predecessor {
        return Lineage::Outside;
    }
    let mut hidden = None;
    for _ in 0..MAX_TRIES {
        let mut at = pid;
        for _ in 0..MAX_GENERATIONS {
            match parent_pid(at) {
                Some(above) if above == us || Some(above) == predecessor => {
                    return Lineage::Below {
                        child: at,
                        root: above,
                    };
                }
                // It has no parent, or one in another pid namespace.
                Some(0 | 1) => return Lineage::Outside,
                Some(above) => at = above,
                // A system that hides other users' processes (`hidepid` of /proc) hides none of
                // ours.
                None if is_of_another_user(at) => return Lineage::Outside,
                // Its children have another parent by now; or it runs, and /proc hides it although
                // it is ours (`hidepid`), as with another server, which cannot be traced.
                None if at != pid => {
                    hidden = process_exists(at).then_some(at);
                    break;
                }
                None => return Lineage::Unknown,
            }
        }
        if parent_pid(at).is_some() {
            return Lineage::Below {
                child: at,
                root: us,
            };
        }
    }
    match hidden {
        Some(child) => Lineage::Below { child, root: us },
        None => Lineage::Unknown,
    }
}

/// Whether a process with this pid exists, of any user.
pub(crate) fn process_exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| {
        matches!(
            rustix::process::test_kill_process(pid),
            Ok(()) | Err(Errno::PERM)
        )
    })
}

/// Whether a process runs that this one may send no signals. Async-signal-safe.
fn is_of_another_user(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::PERM))
}

/// The parent of a process; `None` when it is gone. Async-signal-safe.
fn parent_pid(pid: u32) -> Option<u32> {
    // "/proc/", ten digits, "/stat" and NUL.
    let mut path = [0; 24];
    let path = stat_path(pid, &mut path)?;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 128];
    let count = rustix::io::read(&file, &mut text).ok()?;
    let text = text.get(..count)?;
    // `PID (NAME) STATE PARENT ...`, and the name may be anything (proc_pid_stat(5)).
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let digits = text.get(name_end + 4..)?;
    let number = |sum: u32, byte: &u8| sum.wrapping_mul(10).wrapping_add(u32::from(byte - b'0'));
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, number))
}

/// `/proc/PID/stat` in `buffer`.
fn stat_path(pid: u32, buffer: &mut [u8; 24]) -> Option<&CStr> {
    let mut digits = [0; 10];
    let (mut rest, mut from) = (pid, digits.len());
    loop {
        from -= 1;
        *digits.get_mut(from)? = b'0' + u8::try_from(rest % 10).ok()?;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let mut at = 0;
    for part in [b"/proc/".as_slice(), digits.get(from..)?, b"/stat\0"] {
        buffer.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    CStr::from_bytes_with_nul(buffer.get(..at)?).ok()
}

/// The name of a process's program, as the kernel has it; `None` when it is gone.
#[expect(clippy::disallowed_methods, reason = "/proc is memory, no disk")]
pub fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn kill(script: &str) {
        let us = std::process::id();
        let mut shell = Command::new("sh");
        let status = shell.args(["-c", &script.replace("PARENT", &us.to_string())]);
        assert!(status.stdin(Stdio::null()).status().unwrap().success());
    }

    /// The kernel decides which thread takes it, and when.
    fn next(watch: &SignalWatch) -> ReceivedSignals {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let arrived = watch.take_received();
            if arrived.is_from_outside || arrived.descendant.is_some() {
                return arrived;
            }
            assert!(std::time::Instant::now() < deadline, "it does not come");
            std::thread::yield_now();
        }
    }

    #[test]
    fn senders_are_classified_by_descent() {
        let watch = watch_signal(libc::SIGUSR1, None).unwrap();
        let nothing = ReceivedSignals {
            is_from_outside: false,
            descendant: None,
        };
        assert_eq!(watch.take_received(), nothing);
        // A child, its child, and one in another session; they wait, so that they can be found.
        for script in [
            "kill -s USR1 PARENT; sleep 0.1",
            "sh -c 'kill -s USR1 PARENT; sleep 0.1'; :",
            "setsid sh -c 'kill -s USR1 PARENT; sleep 0.1'; :",
        ] {
            kill(script);
            let arrived = next(&watch);
            assert!(!arrived.is_from_outside, "{script}: {arrived:?}");
            let sender = arrived.descendant.unwrap();
            assert!(sender.pid >= sender.child, "{script}: {sender:?}");
            assert!(!sender.is_of_predecessor);
        }
        assert_eq!(watch.take_received(), nothing);
        // This process itself, like a program that starts a server and then signals it.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)
            .unwrap();
        let outside = ReceivedSignals {
            is_from_outside: true,
            descendant: None,
        };
        assert_eq!(next(&watch), outside);
    }

    #[test]
    fn odd_process_names_do_not_confuse_the_parent() {
        let mut odd = Command::new("sleep");
        std::os::unix::process::CommandExt::arg0(&mut odd, ") Z 1 (");
        let mut child = odd.arg("1000").spawn().unwrap();
        assert_eq!(parent_pid(child.id()), Some(std::process::id()));
        let ours = std::process::id();
        let alone = ProcessRoots {
            own_pid: ours,
            predecessor: None,
        };
        assert_eq!(
            root_child_above(child.id(), alone),
            Some((child.id(), ours))
        );
        assert_eq!(root_child_above(ours, alone), None);
        assert_eq!(root_child_above(0, alone), None);
        // A sibling: both have one parent, the previous server.
        let brother = ProcessRoots {
            own_pid: u32::MAX,
            predecessor: Some(ours),
        };
        assert_eq!(
            root_child_above(child.id(), brother),
            Some((child.id(), ours))
        );
        assert_eq!(root_child_above(ours, brother), None, "it itself may");
        child.kill().unwrap();
        assert_eq!(parent_pid(child.id()), Some(ours), "until it is waited for");
        child.wait().unwrap();
        assert_eq!(parent_pid(child.id()), None);
        assert_eq!(root_child_above(child.id(), alone), None);
    }
}
