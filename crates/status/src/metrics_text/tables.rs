//! The metrics of the server itself, of its limits and of its thread pools.

use penstock_exchange::metric_table;
use penstock_exchange::metrics::MetricValue;
use penstock_runtime::blocking::PoolSnapshot;

use crate::{CertificatesSnapshot, LimitStatus, MachineStatus, ServerState, Severity, Snapshot};

metric_table! {
    pub(super) static SERVER: |now: Snapshot| {
        gauge build_info = MetricValue::Label("version", now.version),
            "Build and version of the program; always 1.";
        gauge uptime_seconds = now.uptime, "Time since the server was started.";
        gauge draining = now.state == ServerState::Draining, "1 during a graceful shutdown.";
        gauge event_loops = now.event_loops, "Number of event loops.";
        gauge config_generation = now.config_generation, "Generation of the configuration in use.";
        counter config_reloads_total = now.config_reloads, "Successful configuration reloads.";
        counter log_lines_dropped_total = now.log_lines_dropped,
            "Log lines dropped because the log output was too slow.";
        counter event_loop_stalls_total = now.event_loop_stalls,
            "Times that an event loop was stalled for 5 s or longer.";
        gauge connections_limit = now.connections.max, "Limit on open client connections.";
        gauge problems = by_severity(now), "Problems that the status page lists, by severity.";
        gauge resident_memory_bytes = now.resident_bytes,
            "Resident memory of the server, without its workers.";
    }
}

/// The numbers of problems.
fn by_severity(now: &Snapshot) -> MetricValue<'_> {
    let count = |severity| {
        let found = now.problems.iter().filter(|it| it.severity == severity);
        found.count() as u64
    };
    let counts = [
        ("error", count(Severity::Error)),
        ("warning", count(Severity::Warning)),
    ];
    MetricValue::by_label("severity", counts)
}

metric_table! {
    pub(super) static MACHINE: |machine: MachineStatus| {
        gauge load_average = machine.load_average, "Load average of the last minute.";
        gauge socket_estimated_bytes = machine.estimated_socket_bytes,
            "Kernel memory of open connections without their data (estimate).";
        gauge tcp_buffer_bytes = machine.tcp_buffer_bytes,
            "Memory of TCP socket buffers, of all processes of the machine.";
    }
}

metric_table! {
    pub(super) static LIMITS: |limit: LimitStatus| {
        gauge limit_used = limit.used, "Current use of a limit, by its configuration key.";
        gauge limit_value = limit.used.map(|_| limit.max),
            "Configured limit, by its configuration key.";
        counter limit_reached_total = limit.reached,
            "Times that a request was refused or delayed by a limit.";
    }
}

metric_table! {
    pub(super) static CERTIFICATES: |all: CertificatesSnapshot| {
        gauge certificates = by_state(all),
            "Certificates in use, by whether they need attention.";
    }
}

/// The states of all certificates; nothing without TLS.
fn by_state(all: &CertificatesSnapshot) -> MetricValue<'_> {
    let valid = all.total - all.invalid - all.warning;
    let counts = [
        ("valid", valid),
        ("warning", all.warning),
        ("invalid", all.invalid),
    ];
    match all.total {
        0 => MetricValue::Number(None),
        _ => MetricValue::by_label("state", counts),
    }
}

/// The last second of a certificate, since the Unix epoch.
pub(super) struct CertificateExpiry(pub(super) u64);

metric_table! {
    pub(super) static CERTIFICATE_EXPIRIES: |expiry: CertificateExpiry| {
        gauge certificate_expiry_seconds = expiry.0,
            "Last second of a host's certificate, since the Unix epoch.";
    }
}

metric_table! {
    pub(super) static POOLS: |pool: PoolSnapshot| {
        gauge pool_queue_length = pool.queued, "Jobs waiting for a thread.";
        gauge pool_queue_limit = pool.max_queued, "Limit on waiting jobs.";
        gauge pool_threads_active = pool.active, "Threads running a job.";
        gauge pool_threads_limit = pool.max_threads, "Limit on threads.";
        gauge pool_queue_max_seconds = pool.max_queue_time,
            "Longest time that a job has waited since the start.";
        gauge pool_oldest_running_seconds = pool.oldest_running,
            "Run time of the job that has been running longest.";
        counter pool_jobs_refused_total = pool.refused, "Jobs refused because the queue was full.";
        counter pool_jobs_started_total = pool.queue_time.count, "Jobs started.";
        counter pool_queue_seconds_total = pool.queue_time.sum_seconds(),
            "Total time that started jobs waited.";
        counter pool_jobs_finished_total = pool.run_time.count, "Jobs finished.";
        counter pool_run_seconds_total = pool.run_time.sum_seconds(),
            "Total run time of finished jobs.";
    }
}
