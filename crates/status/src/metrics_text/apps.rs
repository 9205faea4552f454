//! Applications in the metrics text: their counters and histograms, gauges from their snapshot.
//!
//! A part of `metrics_text`, by the same rules.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::metrics::{AppMetrics, Counter, Histogram, KILL_REASONS, RECYCLE_REASONS};

use super::{EscapedLabel, MetricRefRow, MetricRow, MetricsText, as_sample};
use crate::{AppStatus, HistogramSummary};

impl MetricsText {
    pub(super) fn push_app_counters(&mut self, apps: &[(String, Arc<AppMetrics>)]) -> fmt::Result {
        for (name, help, counter) in APP_COUNTERS {
            self.push_header(name, "counter", help)?;
            for (app, metrics) in apps {
                let count = counter(metrics).value();
                writeln!(
                    self.text,
                    "penstock_{name}{{app=\"{}\"}} {count}",
                    EscapedLabel(app)
                )?;
            }
        }
        let help = "How long its processes have waited for max_cpu.";
        self.push_header("app_throttled_seconds_total", "counter", help)?;
        for (app, metrics) in apps {
            let waited = Duration::from_micros(metrics.throttled_micros.value());
            let (app, waited) = (EscapedLabel(app), waited.as_secs_f64());
            writeln!(
                self.text,
                "penstock_app_throttled_seconds_total{{app=\"{app}\"}} {waited}"
            )?;
        }
        for (name, help, reasons, counters) in APP_COUNTERS_BY_REASON {
            self.push_header(name, "counter", help)?;
            for (app, metrics) in apps {
                for (reason, counter) in reasons.iter().zip(counters(metrics)) {
                    let (app, count) = (EscapedLabel(app), counter.value());
                    writeln!(
                        self.text,
                        "penstock_{name}{{app=\"{app}\",reason=\"{reason}\"}} {count}"
                    )?;
                }
            }
        }
        for (name, help, histogram) in APP_HISTOGRAMS {
            self.push_header(name, "histogram", help)?;
            for (app, metrics) in apps {
                let times = HistogramSummary::new(histogram(metrics));
                self.push_histogram(name, Some(("app", app)), &times)?;
            }
        }
        Ok(())
    }

    pub(super) fn push_app_gauges(&mut self, apps: &[AppStatus]) -> fmt::Result {
        for (name, help, value) in APP_GAUGES {
            self.push_header(name, "gauge", help)?;
            for app in apps {
                let label = EscapedLabel(&app.name);
                writeln!(
                    self.text,
                    "penstock_{name}{{app=\"{label}\"}} {}",
                    value(app)
                )?;
            }
        }
        for (name, help, value) in APP_BOUNDS {
            self.push_header(name, "gauge", help)?;
            for app in apps {
                let Some(value) = value(app) else { continue };
                let label = EscapedLabel(&app.name);
                writeln!(self.text, "penstock_{name}{{app=\"{label}\"}} {value}")?;
            }
        }
        self.push_header(
            "app_state",
            "gauge",
            "The application's state, as a label; always 1.",
        )?;
        for app in apps {
            let (name, state) = (EscapedLabel(&app.name), EscapedLabel(&app.state));
            writeln!(
                self.text,
                "penstock_app_state{{app=\"{name}\",state=\"{state}\"}} 1"
            )?;
        }
        self.push_header("app_workers", "gauge", "Workers by state.")?;
        for app in apps {
            for state in WORKER_STATES {
                let count = app.workers.iter().filter(|w| w.state == state).count();
                let name = EscapedLabel(&app.name);
                writeln!(
                    self.text,
                    "penstock_app_workers{{app=\"{name}\",state=\"{state}\"}} {count}"
                )?;
            }
        }
        Ok(())
    }
}

const APP_COUNTERS: [MetricRefRow<AppMetrics, Counter>; 18] = [
    (
        "app_requests_total",
        "Requests that reached the queue.",
        |m| &m.requests,
    ),
    (
        "app_queue_full_total",
        "Refused: the queue was full.",
        |m| &m.queue_full,
    ),
    (
        "app_queue_timeout_total",
        "Refused: waited too long for a slot.",
        |m| &m.queue_timeout,
    ),
    (
        "app_queue_abandoned_total",
        "Clients that left while waiting.",
        |m| &m.queue_abandoned,
    ),
    (
        "app_failed_total",
        "Requests on which the application failed.",
        |m| &m.failed_requests,
    ),
    (
        "app_worker_died_total",
        "Requests inside a worker when it died.",
        |m| &m.worker_deaths,
    ),
    (
        "app_timed_out_total",
        "Requests cut by response_timeout.",
        |m| &m.timed_out_requests,
    ),
    (
        "app_workers_boot_failed_total",
        "Workers that did not become ready.",
        |m| &m.failed_boots,
    ),
    (
        "app_scaled_up_total",
        "Times that the number of processes was raised with the load.",
        |m| &m.scale_events[0],
    ),
    (
        "app_scaled_down_total",
        "Times that the number of processes was lowered with the load.",
        |m| &m.scale_events[1],
    ),
    (
        "app_io_bound_total",
        "Requests that said that they are bound by I/O.",
        |m| &m.io_bound_requests,
    ),
    (
        "app_io_bound_alone_total",
        "Those of them for which there was no spare slot.",
        |m| &m.io_bound_without_spare_slot,
    ),
    (
        "app_collections_total",
        "Collections of garbage between requests.",
        |m| &m.gc_runs,
    ),
    (
        "app_refused_calls_total",
        "System calls that the sandbox refused.",
        |m| &m.refused_calls,
    ),
    ("app_workers_started_total", "Workers started.", |m| {
        &m.started_workers
    }),
    (
        "app_workers_crashed_total",
        "Workers that ended unasked.",
        |m| &m.crashed_workers,
    ),
    (
        "app_tasks_refused_total",
        "Processes and threads that could not be started for max_tasks.",
        |m| &m.tasks_refused,
    ),
    (
        "app_out_of_memory_kills_total",
        "Processes that the kernel killed for want of memory.",
        |m| &m.out_of_memory_kills,
    ),
];

/// Name, help, the words for its reasons, and where their counters are.
type ReasonRow = (
    &'static str,
    &'static str,
    &'static [&'static str],
    fn(&AppMetrics) -> &[Counter],
);

const APP_COUNTERS_BY_REASON: [ReasonRow; 2] = [
    (
        "app_workers_recycled_total",
        "Workers replaced in due form, by reason.",
        &RECYCLE_REASONS,
        |m| &m.recycled_workers,
    ),
    (
        "app_workers_killed_total",
        "Workers killed, by reason.",
        &KILL_REASONS,
        |m| &m.killed_workers,
    ),
];

const APP_HISTOGRAMS: [MetricRefRow<AppMetrics, Histogram>; 2] = [
    ("app_queue_time_seconds", "Waiting for a slot.", |m| {
        &m.queue_time
    }),
    (
        "app_time_seconds",
        "From a worker getting the request to its response's head.",
        |m| &m.app_time,
    ),
];

const APP_GAUGES: [MetricRow<AppStatus, f64>; 16] = [
    ("app_queue_waiting", "Requests waiting for a slot.", |a| {
        as_sample(a.queue.waiting as u64)
    }),
    ("app_queue_max", "The bound on waiting requests.", |a| {
        as_sample(a.queue.max as u64)
    }),
    (
        "app_queue_oldest_seconds",
        "How long the oldest request has waited.",
        |a| a.queue.oldest_wait.as_secs_f64(),
    ),
    (
        "app_slots",
        "Requests that can be in progress at once.",
        |a| as_sample(a.queue.slots as u64),
    ),
    ("app_in_progress", "Requests in progress.", |a| {
        as_sample(a.queue.in_progress as u64)
    }),
    ("app_processes_min", "The lower bound on processes.", |a| {
        as_sample(a.processes.min as u64)
    }),
    ("app_processes_max", "The upper bound on processes.", |a| {
        as_sample(a.processes.max as u64)
    }),
    (
        "app_processes_target",
        "Processes that there are to be, as the load is.",
        |a| as_sample(a.processes.target as u64),
    ),
    (
        "app_threads",
        "Threads of each process that take requests.",
        |a| as_sample(a.threads as u64),
    ),
    ("app_threads_min", "The lower bound on them.", |a| {
        as_sample(a.threads_min as u64)
    }),
    ("app_threads_max", "The upper bound on them.", |a| {
        as_sample(a.threads_max as u64)
    }),
    ("app_restarting", "1 while a restart is under way.", |a| {
        as_sample(u64::from(a.restarting))
    }),
    (
        "app_proportional_bytes",
        "Proportional memory of all workers as last measured: what they share counts in parts.",
        |a| as_sample(a.workers.iter().filter_map(|w| w.proportional_bytes).sum()),
    ),
    (
        "app_templates",
        "Processes from which workers are forked.",
        |a| as_sample(a.templates.len() as u64),
    ),
    ("app_generation", "The code that is served.", |a| {
        as_sample(a.generation)
    }),
    (
        "app_resident_bytes",
        "Resident memory of all workers.",
        |a| as_sample(a.workers.iter().filter_map(|w| w.resident_bytes).sum()),
    ),
];

/// Left out where nothing is counted or bounded.
const APP_BOUNDS: [MetricRow<AppStatus, Option<f64>>; 5] = [
    (
        "app_tasks",
        "Processes and threads of all that it starts.",
        |a| a.bounds.tasks.map(as_sample),
    ),
    ("app_max_tasks", "The bound on them.", |a| {
        a.bounds.tasks_max.map(as_sample)
    }),
    (
        "app_total_memory_bytes",
        "Memory of all that it starts together.",
        |a| a.bounds.memory_bytes.map(as_sample),
    ),
    ("app_max_total_memory_bytes", "The bound on it.", |a| {
        a.bounds.memory_bytes_max.map(as_sample)
    }),
    (
        "app_max_cpu",
        "The bound on processors of all that it starts.",
        |a| a.bounds.cpu_max,
    ),
];

/// Counted even at zero, so that a series does not end when its last worker leaves the state.
const WORKER_STATES: [&str; 4] = ["booting", "ready", "retiring", "stopping"];
