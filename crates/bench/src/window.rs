//! One window of load on one server: the figures, and the cost to the server.
//!
//! `run`, `sweep` and `compare` measure through [`measure_window`]; the cost is read at the exact
//! moments at which `load` begins and ends the window.

use std::io;

use crate::deploy::resource_usage::{CpuTime, MemoryUsage, ResourceUsage, cores_busy_seconds};
use crate::live_line::LiveLine;
use crate::load::{self, LoadEvent, LoadPlan};
use crate::report::{Point, ServerCost};
use crate::text;

/// What to watch and show during a window.
pub(crate) struct WindowMonitor<'a> {
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

impl UsageSnapshot {
    fn read(usage: &dyn ResourceUsage, cores: &[usize]) -> Self {
        Self {
            busy_core_seconds: cores_busy_seconds(cores),
            companion_cpu_seconds: usage.companion_cpu_seconds(),
            spent: usage.cpu_time(),
            disk_read: usage.disk_read_bytes(),
        }
    }
}

/// Puts the plan's load on the server for one window.
///
/// # Errors
/// Nothing could be sent at all.
pub(crate) fn measure_window(plan: &LoadPlan, monitor: WindowMonitor<'_>) -> io::Result<Point> {
    let WindowMonitor {
        usage,
        cores,
        live,
        label,
    } = monitor;
    let snapshot = || usage.map(|usage| UsageSnapshot::read(usage, cores));
    let (mut began, mut ended, mut before) = (None, None, None);
    let mut memory = MemoryUsage::default();
    let mut observe = |event| match event {
        LoadEvent::WindowBegins => (began, before) = (snapshot(), None),
        LoadEvent::WindowEnds => ended = snapshot(),
        // Now: the server frees the memory of connections as soon as they are closed.
        LoadEvent::AfterWindow => {
            memory = usage.map(ResourceUsage::memory_usage).unwrap_or_default();
        }
        LoadEvent::Progress(now) => {
            let line = text::progress_line(
                &now,
                before.as_ref().unwrap_or(&now),
                plan.window_end,
                plan.warm_up,
            );
            live.show_line(&format!("{label} {line}"));
            before = Some(now);
        }
    };
    let loads = load::execute(plan, &mut observe)?;
    live.clear_line();
    // A server without processes has ended: its usage is lost.
    let snapshots = began.zip(ended).filter(|_| memory.processes > 0);
    let server = snapshots.map(|snapshots| {
        let requests = loads.iter().map(|load| load.requests).sum();
        // The threads are the same for all loads.
        let generator = loads.first().map_or(0.0, |load| load.generator.cpu_seconds);
        window_cost(snapshots, memory, requests, generator)
    });
    Ok(Point {
        connections: plan.loads.first().map_or(0, |load| load.connections),
        loads,
        server,
        alone: false,
    })
}

/// The resolution of the busy time of two cores, in seconds: the kernel counts ticks of a
/// hundredth.
const CPU_RESOLUTION_SECONDS: f64 = 0.02;

/// The cost between two snapshots; `generator` is the generator's CPU seconds in that time.
fn window_cost(
    (began, ended): (UsageSnapshot, UsageSnapshot),
    memory: MemoryUsage,
    requests: u64,
    generator: f64,
) -> ServerCost {
    let elapsed = ended.spent.read_at.duration_since(began.spent.read_at);
    let elapsed = elapsed.as_secs_f64().max(1e-9);
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
        disk_read_bytes: ended
            .disk_read
            .zip(began.disk_read)
            .map(|(now, then)| now.saturating_sub(then)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
