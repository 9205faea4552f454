//! Reads a cgroup's resource usage and limit events from the kernel's files, in version 1 and 2;
//! used by `cgroup`.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Controller;
use super::location::CgroupVersion;

/// Usage and refusals of a cgroup since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Processes and threads; none where they are not counted.
    pub tasks: Option<u64>,
    /// Bytes of memory, including the page cache of its files; none where they are not counted.
    pub memory: Option<u64>,
    /// Processes and threads that could not be started.
    pub tasks_refused: u64,
    /// Whether its memory limit has been reached.
    pub has_met_memory_bound: bool,
    /// Processes that were killed for lack of memory, of the cgroup or of the machine.
    pub out_of_memory_kills: u64,
    /// How long its processes have waited because of the CPU limit.
    pub throttled: Duration,
}

/// Usage of a cgroup, and events since the previous reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupReading {
    /// The usage.
    pub usage: CgroupUsage,
    /// Processes and threads that could not be started since.
    pub tasks_refused: u64,
    /// Processes that were killed for lack of memory since.
    pub out_of_memory_kills: u64,
    /// How long its processes have waited because of the CPU limit since.
    pub throttled: Duration,
    /// Whether a process was killed recently because the cgroup's memory limit was reached, even if
    /// an earlier reading has reported it.
    pub is_out_of_memory: bool,
}

/// How long an out-of-memory kill explains a process exit that is reported later.
const LATELY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct PreviousReading {
    usage: CgroupUsage,
    killed_at: Option<Instant>,
}

impl PreviousReading {
    /// Records the present usage and compares it with the previous one.
    pub(super) fn compare(&mut self, usage: CgroupUsage, now: Instant) -> CgroupReading {
        let before = std::mem::replace(&mut self.usage, usage);
        let kills = usage.out_of_memory_kills;
        let kills = kills.saturating_sub(before.out_of_memory_kills);
        if kills > 0 && usage.has_met_memory_bound {
            self.killed_at = Some(now);
        }
        let is_lately = |at: Instant| now.saturating_duration_since(at) <= LATELY;
        CgroupReading {
            usage,
            tasks_refused: usage.tasks_refused.saturating_sub(before.tasks_refused),
            out_of_memory_kills: kills,
            throttled: usage.throttled.saturating_sub(before.throttled),
            is_out_of_memory: self.killed_at.is_some_and(is_lately),
        }
    }
}

impl CgroupUsage {
    /// Adds the values of a controller in the directory of a cgroup.
    pub(super) fn read(&mut self, path: &Path, version: CgroupVersion, controller: Controller) {
        let text = |file: &str| super::read(path, file);
        let number = |file: &str| text(file).trim().parse::<u64>().ok();
        match (controller, version) {
            (Controller::Tasks, _) => {
                self.tasks = number("pids.current");
                self.tasks_refused = field(&text("pids.events"), "max");
            }
            (Controller::Memory, CgroupVersion::V1) => {
                self.memory = number("memory.usage_in_bytes");
                // The failure counts omit those caused by the limit with swap.
                self.has_met_memory_bound = ["memory", "memory.memsw"].iter().any(|kind| {
                    let most = number(&format!("{kind}.max_usage_in_bytes"));
                    let limit = number(&format!("{kind}.limit_in_bytes"));
                    most.zip(limit)
                        .is_some_and(|(most, limit)| most >= limit - limit / 64)
                });
                self.out_of_memory_kills = field(&text("memory.oom_control"), "oom_kill");
            }
            (Controller::Memory, CgroupVersion::V2) => {
                let events = text("memory.events");
                self.memory = number("memory.current");
                self.has_met_memory_bound = field(&events, "oom") > 0;
                self.out_of_memory_kills = field(&events, "oom_kill");
            }
            (Controller::Cpu, CgroupVersion::V1) => {
                let waited = field(&text("cpu.stat"), "throttled_time");
                self.throttled = Duration::from_nanos(waited);
            }
            (Controller::Cpu, CgroupVersion::V2) => {
                let waited = field(&text("cpu.stat"), "throttled_usec");
                self.throttled = Duration::from_micros(waited);
            }
        }
    }
}

/// The number behind a name, one a line; 0 where there is none.
fn field(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(key, _)| *key == name);
    found
        .and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the files of a cgroup.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("penstock-cgroup-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir(&folder).unwrap();
            for (file, text) in files {
                std::fs::write(folder.join(file), text).unwrap();
            }
            Self(folder)
        }

        fn usage(&self, version: CgroupVersion) -> CgroupUsage {
            let mut usage = CgroupUsage::default();
            for controller in Controller::ALL {
                usage.read(&self.0, version, controller);
            }
            usage
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn both_versions_tell_the_same() {
        let expected = CgroupUsage {
            tasks: Some(7),
            memory: Some(4096),
            tasks_refused: 3,
            has_met_memory_bound: true,
            out_of_memory_kills: 1,
            throttled: Duration::from_micros(1500),
        };
        let tasks = [("pids.current", "7\n"), ("pids.events", "max 3\n")];
        let first = [
            ("memory.usage_in_bytes", "4096\n"),
            ("memory.max_usage_in_bytes", "60\n"),
            ("memory.limit_in_bytes", "6400\n"),
            ("memory.memsw.max_usage_in_bytes", "6330\n"),
            ("memory.memsw.limit_in_bytes", "6400\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            ),
            (
                "cpu.stat",
                "nr_periods 9\nnr_throttled 4\nthrottled_time 1500000\n",
            ),
        ];
        let second = [
            ("memory.current", "4096\n"),
            (
                "memory.events",
                "low 0\nhigh 0\nmax 80\noom 2\noom_kill 1\noom_group_kill 0\n",
            ),
            (
                "cpu.stat",
                "usage_usec 5\nnr_throttled 4\nthrottled_usec 1500\n",
            ),
        ];
        let of = |name, more: &[(&'static str, &'static str)]| {
            Folder::new(name, &[&tasks[..], more].concat())
        };
        assert_eq!(of("v1", &first).usage(CgroupVersion::V1), expected);
        assert_eq!(of("v2", &second).usage(CgroupVersion::V2), expected);
    }

    #[test]
    fn a_reading_tells_what_is_new() {
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let mut last = PreviousReading::default();
        let mut usage = CgroupUsage {
            tasks_refused: 3,
            throttled: Duration::from_secs(1),
            ..CgroupUsage::default()
        };
        let reading = last.compare(usage, now);
        assert_eq!((reading.tasks_refused, reading.out_of_memory_kills), (3, 0));
        assert_eq!(reading.throttled, Duration::from_secs(1));
        usage.tasks_refused = 5;
        // The machine's memory was short, not the cgroup's.
        usage.out_of_memory_kills = 1;
        let reading = last.compare(usage, later(1));
        assert_eq!((reading.tasks_refused, reading.out_of_memory_kills), (2, 1));
        assert!(!reading.is_out_of_memory && reading.throttled.is_zero());
        usage.out_of_memory_kills = 2;
        usage.has_met_memory_bound = true;
        assert!(last.compare(usage, later(2)).is_out_of_memory);
        // A reading a moment later reports it as well, but no longer than that.
        let reading = last.compare(usage, later(7));
        assert!(reading.is_out_of_memory && reading.out_of_memory_kills == 0);
        assert!(!last.compare(usage, later(8)).is_out_of_memory);
    }

    #[test]
    fn what_is_not_there_or_odd_counts_nothing() {
        let odd = Folder::new(
            "odd",
            &[("pids.current", "max\n"), ("pids.events", "max\n")],
        );
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            assert_eq!(odd.usage(version), CgroupUsage::default());
        }
    }
}
