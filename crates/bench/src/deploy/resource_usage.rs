//! CPU time and memory of a process and all its descendants, from /proc.
//!
//! `compare` asks a [`super::RunningDeployment`]; `run` and `sweep` use [`ProcessTree::from_pid`]
//! for a server that they did not start; `window` takes the difference of two readings. Ticks of 10
//! ms are too coarse for a window of 30 ms, so the scheduler's nanoseconds of living processes are
//! read too, and the larger value counts: ticks include threads that ended, nanoseconds do not.
//! Known limit: if a parent does not wait for its children, their time is lost.
//!
//! # Invariants
//!
//! - The time of a child that ended counts (its parent has it); the keeper's own time does not.

#![allow(
    clippy::disallowed_methods,
    reason = "/proc is memory, and is read before and after a window"
)]

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::fs;
use std::time::{Duration, Instant};

/// CPU time so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuTime {
    /// When it was read.
    pub read_at: Instant,
    /// Seconds, of all processes.
    pub cpu_seconds: f64,
}

/// Current memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Proportional set size of all processes; resident set size of those whose maps are not
    /// readable.
    pub bytes: u64,
    /// The number of processes; 0 if none is left, and then nothing else is known.
    pub processes: usize,
}

/// The resource usage of a set of processes.
pub trait ResourceUsage: Debug {
    /// CPU time so far, including processes that ended; unknown if `memory_usage` finds no process.
    fn cpu_time(&self) -> CpuTime;
    /// Memory of the living processes; no processes if the watched one is gone.
    fn memory_usage(&self) -> MemoryUsage;
    /// Bytes that the living processes had disks read, without reads from the page cache; `None` if
    /// one is not readable.
    fn disk_read_bytes(&self) -> Option<u64>;
    /// CPU seconds so far of companions, which belong neither to the server nor to other processes.
    fn companion_cpu_seconds(&self) -> f64 {
        0.0
    }
}

/// A process and its descendants, or the descendants of a keeper.
#[derive(Debug, Clone, Copy)]
pub struct ProcessTree {
    root: u32,
    /// A later process may get the same number.
    start_ticks: u64,
    /// Whether the root itself counts.
    counts_root: bool,
}

impl ProcessTree {
    /// Watches a process; `None` if there is none of that number.
    #[must_use]
    pub fn from_pid(pid: u32) -> Option<Self> {
        Some(Self {
            root: pid,
            start_ticks: ProcStat::read(pid)?.start_ticks,
            counts_root: true,
        })
    }

    /// Watches the descendants of a keeper.
    pub(super) fn from_keeper(keeper: u32) -> Option<Self> {
        let counts_root = false;
        Self::from_pid(keeper).map(|tree| Self {
            counts_root,
            ..tree
        })
    }

    /// Whether the process itself still exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        ProcStat::read(self.root).is_some_and(|stat| self.is_root(&stat))
    }

    fn is_root(&self, stat: &ProcStat) -> bool {
        stat.start_ticks == self.start_ticks && !stat.is_zombie
    }

    /// Its processes; none if the root has ended.
    fn pids(&self, table: &ProcessTable) -> Vec<u32> {
        let root = table.stats.get(&self.root);
        if !root.is_some_and(|stat| self.is_root(stat)) {
            return Vec::new();
        }
        let mut pids = table.descendants(self.root);
        pids.extend(self.counts_root.then_some(self.root));
        pids
    }
}

impl ResourceUsage for ProcessTree {
    fn cpu_time(&self) -> CpuTime {
        let table = ProcessTable::read();
        let pids = self.pids(&table);
        let alive: f64 = pids.iter().map(|pid| table.seconds(*pid)).sum();
        // A keeper has waited for children that were not its own commands.
        let keeper = table.stats.get(&self.root).filter(|_| !self.counts_root);
        let reaped = keeper.map_or(0, |stat| stat.reaped_ticks);
        CpuTime::from_seconds(alive + ticks_to_seconds(reaped))
    }

    fn memory_usage(&self) -> MemoryUsage {
        memory_of_all(std::slice::from_ref(self))
    }

    fn disk_read_bytes(&self) -> Option<u64> {
        let of_one = |pid: u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
            parse_number(find_field(&text, "read_bytes:")?.trim())
        };
        let pids = self.pids(&ProcessTable::read());
        pids.into_iter().map(of_one).sum()
    }
}

/// Finds processes with a text in their command line: each tree by its root, so that nothing counts
/// twice. Excludes this process and its ancestors.
pub(crate) fn process_trees_matching(text: &str) -> Vec<ProcessTree> {
    let table = ProcessTable::read();
    let own = table.ancestors(std::process::id());
    let is_meant = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line
            .split(|byte| *byte == 0)
            .map(String::from_utf8_lossy)
            .collect();
        words.join(" ").contains(text)
    };
    let mut found: Vec<u32> = table.stats.keys().copied().collect();
    found.retain(|pid| !own.contains(pid) && is_meant(pid));
    let is_root = |pid: &&u32| {
        let above = table.ancestors(**pid);
        above.iter().skip(1).all(|parent| !found.contains(parent))
    };
    let roots = found.iter().filter(is_root);
    roots
        .filter_map(|pid| ProcessTree::from_pid(*pid))
        .collect()
}

/// Memory of several process trees, with one reading of /proc; excludes those whose root has ended.
pub(crate) fn memory_of_all(trees: &[ProcessTree]) -> MemoryUsage {
    let table = ProcessTable::read();
    let pids = trees.iter().flat_map(|tree| tree.pids(&table));
    let mut memory = MemoryUsage::default();
    for bytes in pids.filter_map(process_memory_bytes) {
        memory.bytes += bytes;
        memory.processes += 1;
    }
    memory
}

/// Busy seconds of these cores since the machine started, including interrupts, which the kernel
/// counts to the interrupted process. The rest after server and generator belongs to other
/// processes. `None` without cores, or if one does not exist.
#[must_use]
pub fn cores_busy_seconds(cores: &[usize]) -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let distinct: HashSet<usize> = cores.iter().copied().collect();
    let ticks_of = |core: &usize| {
        let fields = find_field(&stat, &format!("cpu{core} "))?.split_whitespace();
        let [user, nice, system, _idle, _iowait, irq, softirq, ..] =
            fields.map_while(parse_number).collect::<Vec<_>>()[..]
        else {
            return None;
        };
        Some(user + nice + system + irq + softirq)
    };
    let ticks = distinct.iter().map(ticks_of).sum::<Option<u64>>()?;
    (!distinct.is_empty()).then(|| ticks_to_seconds(ticks))
}

/// The descendants of a process, including zombies.
pub(super) fn descendants(root: u32) -> Vec<u32> {
    ProcessTable::read().descendants(root)
}

/// The children of a process, without zombies.
pub(super) fn live_children(root: u32) -> Vec<u32> {
    let is_ours = |stat: &ProcStat| stat.parent == root && !stat.is_zombie;
    let table = ProcessTable::read();
    let found = table.stats.iter().filter(|(_, stat)| is_ours(stat));
    found.map(|(pid, _)| *pid).collect()
}

impl CpuTime {
    /// A reading of so many seconds, now.
    pub(super) fn from_seconds(cpu_seconds: f64) -> Self {
        Self {
            read_at: Instant::now(),
            cpu_seconds,
        }
    }
}

/// Bytes of one process; `None` if it has ended.
pub(crate) fn process_memory_bytes(pid: u32) -> Option<u64> {
    let kilobytes =
        |text: &str, key: &str| parse_number(find_field(text, key)?.split_whitespace().next()?);
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let found = rollup.ok().and_then(|text| kilobytes(&text, "Pss:"));
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).ok();
    found
        .or_else(|| kilobytes(&status()?, "VmRSS:"))
        .map(|found| found * 1024)
}

/// All processes of the machine at one moment.
struct ProcessTable {
    stats: HashMap<u32, ProcStat>,
}

impl ProcessTable {
    fn read() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let stats = pids.filter_map(|pid| Some((pid, ProcStat::read(pid)?)));
        Self {
            stats: stats.collect(),
        }
    }

    /// CPU time of a living process and of the children that it waited for.
    fn seconds(&self, pid: u32) -> f64 {
        let Some(stat) = self.stats.get(&pid) else {
            return 0.0;
        };
        ticks_to_seconds(stat.own_ticks).max(scheduled_seconds(pid))
            + ticks_to_seconds(stat.reaped_ticks)
    }

    /// A process and its ancestors, nearest first.
    fn ancestors(&self, pid: u32) -> Vec<u32> {
        let mut found = vec![pid];
        let mut at = pid;
        // Reused process numbers may form a cycle.
        while let Some(stat) = self.stats.get(&at).filter(|_| found.len() < MAX_ANCESTORS) {
            at = stat.parent;
            found.push(at);
        }
        found
    }

    fn descendants(&self, root: u32) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, stat) in &self.stats {
            children.entry(stat.parent).or_default().push(*pid);
        }
        let mut found = Vec::new();
        // Removed from the map, so that a cycle of reused numbers ends.
        let mut next = children.remove(&root).unwrap_or_default();
        while let Some(pid) = next.pop() {
            found.push(pid);
            next.extend(children.remove(&pid).unwrap_or_default());
        }
        found
    }
}

/// Deeper than any real nesting.
const MAX_ANCESTORS: usize = 256;

/// Exact seconds that a process's current threads have run; 0 if the kernel does not report them.
fn scheduled_seconds(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let of_thread = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        parse_number(text.split_whitespace().next()?)
    };
    let threads = threads.into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(of_thread).sum();
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// The relevant fields of /proc/PID/stat; proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcStat {
    parent: u32,
    is_zombie: bool,
    /// Ticks of its own.
    own_ticks: u64,
    /// Ticks of children that it waited for.
    reaped_ticks: u64,
    start_ticks: u64,
}

impl ProcStat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name before the last parenthesis may hold anything, including spaces and parentheses.
        let (_, behind) = text.rsplit_once(')')?;
        let fields: Vec<&str> = behind.split_whitespace().collect();
        let field = |index: usize| fields.get(index).and_then(|field| parse_number(field));
        Some(Self {
            parent: u32::try_from(field(1)?).ok()?,
            is_zombie: matches!(fields.first(), Some(&("Z" | "X"))),
            own_ticks: field(11)? + field(12)?,
            reaped_ticks: field(13)? + field(14)?,
            start_ticks: field(19)?,
        })
    }
}

/// The rest of the first line that begins with a key.
pub(crate) fn find_field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key))
}

fn parse_number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn ticks_to_seconds(ticks: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "ticks of years fit 52 bits")]
    let (ticks, per_second) = (
        ticks as f64,
        rustix::param::clock_ticks_per_second().max(1) as f64,
    );
    ticks / per_second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_stat_whose_name_has_parentheses_and_spaces() {
        let text = "7 (a) S (b)) Z 3 7 7 0 -1 0 0 0 0 0 11 22 33 44 20 0 1 0 555 0 0";
        let expected = ProcStat {
            parent: 3,
            is_zombie: true,
            own_ticks: 33,
            reaped_ticks: 77,
            start_ticks: 555,
        };
        assert_eq!(ProcStat::parse(text), Some(expected));
        assert_eq!(ProcStat::parse("7 (a) S"), None);
        assert_eq!(ProcStat::parse(""), None);
    }

    #[test]
    fn watches_this_process() {
        let us = ProcessTree::from_pid(std::process::id()).unwrap();
        assert!(us.is_alive());
        assert!(us.memory_usage().bytes > 100_000);
        assert!(us.memory_usage().processes >= 1);
        assert!(ProcessTree::from_pid(u32::MAX).is_none());
    }

    #[test]
    fn finds_processes_by_their_command_line_and_counts_none_twice() {
        let word = format!("bench-account-{}", std::process::id());
        // The inner one is below the outer one, and both have the word in their command lines.
        let script = format!("sh -c 'read line; : {word} inner'; : {word} outer");
        let mut outer = std::process::Command::new("sh")
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let pid = outer.id();
        while descendants(pid).is_empty() {
            assert!(Instant::now() < deadline, "the inner one does not start");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let found = process_trees_matching(&word);
        let roots: Vec<u32> = found.iter().map(|found| found.root).collect();
        // Ends both.
        drop(outer.stdin.take());
        outer.wait().unwrap();
        assert_eq!(roots, [pid]);
        assert!(process_trees_matching(&word).is_empty());
        let own = fs::read_to_string("/proc/self/cmdline").unwrap();
        let own = own.split('\0').next().unwrap();
        let us = std::process::id();
        assert!(
            process_trees_matching(own)
                .iter()
                .all(|found| found.root != us)
        );
    }

    #[test]
    fn counts_descendants_living_and_reaped_but_not_the_keeper() {
        let burn = |seconds: &str| {
            format!("python3 -c 'import time\nwhile time.process_time() < {seconds}: pass\n")
        };
        // The shell has reaped one child, and the other lives when the line arrives.
        let script = format!(
            "{}'; {}print(flush=True); time.sleep(1000)' & wait",
            burn("0.2"),
            burn("0.3")
        );
        let mut shell = std::process::Command::new("/bin/sh")
            .args(["-c", &script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let pid = shell.id();
        let descendants_of_shell = ProcessTree::from_keeper(pid).unwrap();
        let below = descendants_of_shell.cpu_time();
        let whole = ProcessTree::from_pid(pid).unwrap().cpu_time();
        let memory = descendants_of_shell.memory_usage();
        let children = descendants(pid);
        shell.kill().unwrap();
        shell.wait().unwrap();
        for child in children {
            super::super::send_signal(child, rustix::process::Signal::KILL);
        }
        assert!((0.4..1.5).contains(&below.cpu_seconds), "{below:?}");
        assert!(whole.cpu_seconds >= below.cpu_seconds, "{whole:?}");
        assert_eq!(memory.processes, 1);
    }

    #[test]
    fn knows_less_than_a_tick() {
        if !std::path::Path::new("/proc/self/schedstat").exists() {
            return;
        }
        let busy = std::process::Command::new("/bin/sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        let mut busy = busy.unwrap();
        let processes = ProcessTree::from_pid(busy.id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        // Ticks alone would be whole.
        let is_exact = std::iter::from_fn(|| Some(processes.cpu_time()))
            .take_while(|spent| spent.read_at < deadline)
            .any(|spent| {
                let ticks = spent.cpu_seconds * ticks_to_seconds(1).recip();
                (ticks - ticks.round()).abs() > 0.01
            });
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(is_exact);
    }

    #[test]
    fn knows_nothing_of_who_has_ended() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let processes = ProcessTree::from_pid(child.id()).unwrap();
        assert_eq!(processes.memory_usage().processes, 1);
        // It ends with its input.
        child.wait().unwrap();
        assert!(!processes.is_alive());
        assert_eq!(processes.memory_usage(), MemoryUsage::default());
        assert!(ProcessTree::from_keeper(child.id()).is_none());
    }

    #[test]
    fn knows_what_the_cores_worked() {
        assert!(cores_busy_seconds(&[0]).unwrap() > 0.0);
        assert!(cores_busy_seconds(&[0, 0]).is_some());
        assert_eq!(cores_busy_seconds(&[]), None);
        assert_eq!(cores_busy_seconds(&[99_999]), None);
    }
}
