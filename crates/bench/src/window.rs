//! One window of load on one server: the figures, and the cost to the server.
//!
//! `run`, `sweep` and `compare` measure through [`measure_window`]; the cost is read at the exact
//! moments at which `load` begins and ends the window.

use std::io;
use std::time::Duration;

use crate::deploy::resource_usage::{CpuTime, MemoryUsage, ResourceUsage, cores_busy_seconds};
use crate::live_line::LiveLine;
use crate::load::{self, LoadPlan, LoadProgress, Observer};
use crate::report::{Point, ServerCost};
use crate::text;

/// A server to measure, and how to show it.
pub(crate) struct MeasurementWindow<'a> {
    /// Reads the server's resource usage, if its processes are known.
    pub(crate) usage: Option<&'a dyn ResourceUsage>,
    /// The cores of server and load, if both are pinned.
    pub(crate) cores: &'a [usize],
    /// Shows progress under this label.
    pub(crate) live: &'a mut LiveLine,
    pub(crate) label: &'a str,
}

/// The cost so far at one moment: the server's usage and the busy time of the watched cores.
#[derive(Clone, Copy)]
struct UsageSnapshot {
    spent: CpuTime,
    /// CPU seconds of the companion.
    companion_cpu_seconds: f64,
    busy_core_seconds: Option<f64>,
    /// Bytes read from disks.
    disk_read: Option<u64>,
}

/// Follows a plan.
struct WindowObserver<'a> {
    window: MeasurementWindow<'a>,
    plan: &'a LoadPlan,
    began: Option<UsageSnapshot>,
    ended: Option<UsageSnapshot>,
    memory: MemoryUsage,
    before: Option<LoadProgress>,
}

/// Puts the plan's load on the server for one window.
///
/// # Errors
/// Nothing could be sent at all.
pub(crate) fn measure_window(plan: &LoadPlan, window: MeasurementWindow<'_>) -> io::Result<Point> {
    let mut follower = WindowObserver {
        window,
        plan,
        began: None,
        ended: None,
        memory: MemoryUsage::default(),
        before: None,
    };
    let loads = load::execute(plan, &mut follower)?;
    follower.window.live.clear_line();
    let looks = follower.began.zip(follower.ended);
    // A server without processes has ended: its usage is lost.
    let looks = looks.filter(|_| follower.memory.processes > 0);
    let server = looks.map(|(began, ended)| {
        let requests = loads.iter().map(|load| load.requests).sum();
        // The threads are the same for all loads.
        let generator = loads.first().map_or(0.0, |load| load.generator.cpu_seconds);
        ServerCost {
            disk_read_bytes: ended
                .disk_read
                .zip(began.disk_read)
                .map(|(now, then)| now.saturating_sub(then)),
            ..window_cost((began, ended), follower.memory, requests, generator)
        }
    });
    Ok(Point {
        connections: plan.loads.first().map_or(0, |load| load.connections),
        loads,
        server,
        alone: false,
    })
}

impl WindowObserver<'_> {
    fn take_snapshot(&self) -> Option<UsageSnapshot> {
        let account = self.window.usage?;
        Some(UsageSnapshot {
            busy_core_seconds: cores_busy_seconds(self.window.cores),
            companion_cpu_seconds: account.companion_cpu_seconds(),
            spent: account.cpu_time(),
            disk_read: account.disk_read_bytes(),
        })
    }
}

impl Observer for WindowObserver<'_> {
    fn window_begins(&mut self) {
        self.began = self.take_snapshot();
        self.before = None;
    }

    fn window_ends(&mut self) {
        self.ended = self.take_snapshot();
    }

    fn after_window(&mut self) {
        // Now: the server frees the memory of connections as soon as they are closed.
        if let Some(account) = self.window.usage {
            self.memory = account.memory_usage();
        }
    }

    fn progress(&mut self, progress: LoadProgress) {
        let before = self.before.unwrap_or(LoadProgress {
            elapsed: Duration::ZERO,
            requests: 0,
            errors: 0,
            ..progress
        });
        let plan = self.plan;
        let line = text::progress_line(&progress, &before, plan.window_end, plan.warm_up);
        let label = self.window.label;
        self.window.live.show_line(&format!("{label} {line}"));
        self.before = Some(progress);
    }
}

/// The resolution of the busy time of two cores, in seconds: the kernel counts ticks of a
/// hundredth.
const CPU_RESOLUTION_SECONDS: f64 = 0.02;

/// The cost between two snapshots; `generator` is the generator's CPU seconds in that time.
fn window_cost(
    looks: (UsageSnapshot, UsageSnapshot),
    memory: MemoryUsage,
    requests: u64,
    generator: f64,
) -> ServerCost {
    let (began, ended) = looks;
    let elapsed = ended
        .spent
        .read_at
        .duration_since(began.spent.read_at)
        .as_secs_f64();
    let elapsed = elapsed.max(1e-9);
    let cpu_seconds = (ended.spent.cpu_seconds - began.spent.cpu_seconds).max(0.0);
    let known = cpu_seconds
        + (ended.companion_cpu_seconds - began.companion_cpu_seconds).max(0.0)
        + generator;
    let others = |(before, after): (f64, f64)| {
        ((after - before - known - CPU_RESOLUTION_SECONDS) / elapsed).max(0.0)
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
    let cpu_us_per_request = cpu_seconds * 1e6 / requests.max(1) as f64;
    ServerCost {
        cpu_seconds,
        cpu_us_per_request,
        busy_cores: cpu_seconds / elapsed,
        memory_bytes: memory.bytes,
        processes: memory.processes,
        other_processes_share: began
            .busy_core_seconds
            .zip(ended.busy_core_seconds)
            .map(others),
        disk_read_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_a_server_is_neither_its_cost_nor_a_strangers() {
        let at = std::time::Instant::now();
        let look = |seconds: u64, cpu_seconds, beside, cores| UsageSnapshot {
            spent: CpuTime {
                read_at: at + Duration::from_secs(seconds),
                cpu_seconds,
            },
            companion_cpu_seconds: beside,
            busy_core_seconds: Some(cores),
            disk_read: None,
        };
        let looks = (look(0, 1.0, 2.0, 10.0), look(10, 5.0, 5.0, 20.0));
        let cost = window_cost(looks, MemoryUsage::default(), 1000, 2.0);
        assert!((cost.cpu_seconds - 4.0).abs() < 1e-9, "{cost:?}");
        // 10 s of work: 4 its own, 3 its companion's, 2 the generator's.
        let others = (1.0 - CPU_RESOLUTION_SECONDS) / 10.0;
        assert!(
            (cost.other_processes_share.unwrap() - others).abs() < 1e-9,
            "{cost:?}"
        );
    }
}
