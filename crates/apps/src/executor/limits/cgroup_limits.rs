//! The cgroup limits of an application: counts and logs what ran into them.
//!
//! Read with the memory of processes, and when one was killed. The kernel enforces the limits.
//!
//! # Invariants
//! - Each kind of limit is logged once a minute at most, with all that has happened since.

use std::time::{Duration, Instant};

use penstock_runtime::clock;
use penstock_sys::cgroup::{AppCgroupLimits, CgroupReading, CgroupUsage};

use crate::executor::Executor;
use crate::shared::AppShared;

/// The least time between two log lines about the same limit.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How long a reading may take: a pool may wait for a disk.
const READING_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads what the application uses, if it has a cgroup.
pub(in crate::executor) async fn read_cgroup(shared: &AppShared) -> Option<CgroupReading> {
    let cgroup = shared.cgroup.clone()?;
    let settings = shared.buffering_settings.load_full();
    let read = settings.pool.run(move || cgroup.take_reading());
    clock::timeout(READING_TIMEOUT, read).await?.ok()
}

/// The last reading of an application's cgroup, and the log lines about it.
#[derive(Debug, Default)]
pub(super) struct CgroupWatch {
    cgroup_usage: Option<CgroupUsage>,
    tasks: Unlogged<u64>,
    kills: Unlogged<u64>,
    throttled: Unlogged<Duration>,
}

/// The sum since it was last logged, and when that was.
#[derive(Debug, Default)]
struct Unlogged<T> {
    sum: T,
    logged_at: Option<Instant>,
}

impl<T: Default + PartialEq + std::ops::AddAssign> Unlogged<T> {
    /// Adds to it; returns the sum if it is due for the log.
    fn add(&mut self, more: T, now: Instant) -> Option<T> {
        self.sum += more;
        let is_due = |at| now.saturating_duration_since(at) >= LOG_INTERVAL;
        if self.sum == T::default() || !self.logged_at.is_none_or(is_due) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.sum))
    }
}

impl CgroupWatch {
    pub(super) fn cgroup_usage(&self) -> Option<CgroupUsage> {
        self.cgroup_usage
    }

    /// Records a reading; returns the lines to log.
    fn record(
        &mut self,
        reading: &CgroupReading,
        plan: &AppCgroupLimits,
        now: Instant,
    ) -> Vec<String> {
        self.cgroup_usage = Some(reading.usage);
        let mut lines = Vec::new();
        if let Some(count) = self.tasks.add(reading.tasks_refused, now) {
            let bound = plan
                .max_tasks
                .map(|max| format!(" of {max}"))
                .unwrap_or_default();
            lines.push(format!(
                "could not start {count} processes or threads: the application is at its \
                 bound{bound} (max_tasks)"
            ));
        }
        if let Some(count) = self.kills.add(reading.out_of_memory_kills, now) {
            let why = match (reading.usage.has_met_memory_bound, plan.max_memory) {
                (true, Some(max)) => format!(
                    "the application has met its bound of {} MiB (max_total_memory)",
                    max >> 20
                ),
                _ => "the machine has no more, or what the server may take is used up".to_owned(),
            };
            lines.push(format!(
                "the kernel killed {count} of its processes for want of memory: {why}"
            ));
        }
        // Short waits are what a share is for.
        let waited = self.throttled.add(reading.throttled, now);
        if let Some(waited) = waited.filter(|waited| *waited > LOG_INTERVAL / 10) {
            let bound = plan
                .max_cpu
                .map(|max| format!(" of {max}"))
                .unwrap_or_default();
            lines.push(format!(
                "processes waited {waited:.1?} for processors: the application is at its \
                 bound{bound} (max_cpu)"
            ));
        }
        lines
    }
}

impl Executor {
    /// Counts and logs what the reading says of the application's limits.
    pub(in crate::executor) fn record_cgroup_reading(&mut self, reading: &CgroupReading) {
        let Some(cgroup) = &self.shared.cgroup else {
            return;
        };
        let metrics = &self.shared.metrics;
        metrics.tasks_refused.add(reading.tasks_refused);
        metrics.out_of_memory_kills.add(reading.out_of_memory_kills);
        let throttled = u64::try_from(reading.throttled.as_micros()).unwrap_or(u64::MAX);
        metrics.throttled_micros.add(throttled);
        for line in self
            .limits
            .cgroup_watch
            .record(reading, cgroup.plan(), clock::now())
        {
            log::warn!("{}: {line}", self.shared.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> AppCgroupLimits {
        AppCgroupLimits {
            name: "shop".to_owned(),
            account: None,
            max_tasks: Some(64),
            max_memory: Some(256 << 20),
            max_cpu: Some(1.5),
            weight: 1,
        }
    }

    #[test]
    fn each_bound_is_named_and_logged_once_a_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = CgroupWatch::default();
        let mut record =
            |reading: &CgroupReading, seconds| watch.record(reading, &plan(), at(seconds));
        assert!(record(&CgroupReading::default(), 0).is_empty());
        let mut reading = CgroupReading {
            tasks_refused: 7,
            out_of_memory_kills: 2,
            throttled: Duration::from_secs(30),
            ..CgroupReading::default()
        };
        reading.usage.has_met_memory_bound = true;
        let lines = record(&reading, 2);
        let [tasks, memory, cpu] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(
            tasks.starts_with("could not start 7 processes or threads"),
            "{tasks}"
        );
        assert!(tasks.ends_with("bound of 64 (max_tasks)"), "{tasks}");
        assert!(memory.starts_with("the kernel killed 2 of"), "{memory}");
        assert!(
            memory.ends_with("bound of 256 MiB (max_total_memory)"),
            "{memory}"
        );
        assert!(cpu.starts_with("processes waited 30.0s"), "{cpu}");
        assert!(cpu.ends_with("bound of 1.5 (max_cpu)"), "{cpu}");
        // The next line covers the whole minute.
        reading.out_of_memory_kills = 0;
        reading.throttled = Duration::ZERO;
        assert!(record(&reading, 30).is_empty());
        let lines = record(&reading, 63);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("could not start 14 processes"),
            "{lines:?}"
        );
    }

    #[test]
    fn the_machine_s_want_of_memory_is_not_the_application_s() {
        let mut watch = CgroupWatch::default();
        let reading = CgroupReading {
            out_of_memory_kills: 1,
            ..CgroupReading::default()
        };
        let lines = watch.record(&reading, &plan(), Instant::now());
        assert!(!lines[0].contains("max_total_memory"), "{lines:?}");
    }
}
