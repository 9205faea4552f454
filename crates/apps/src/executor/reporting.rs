//! The executor's reports: log lines, the state for the status page, refusals.
//!
//! Called after each event of the supervisor.
//!
//! # Invariants
//! - While the code does not boot no request waits for a worker: it gets the report at once.
//! - The shown state is the supervisor's own.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::{clock, loops};

use super::launching::LOOK_TIMEOUT;
use super::servers::ListedServer;
use super::setup::BootStatus;
use super::workers::WorkerSlots;
use super::{ChildProcess, Executor, RestartInProgress};
use crate::app::WorkerSnapshot;
use crate::interpreter::{MISSING_MODULE, missing_packages_hint};
use crate::shared::{Refusal, WorkerView};
use crate::stop_timeout;
use crate::supervisor::{
    AppState, ExitSummary, KillReason, ReplaceReason, SupervisorReport, Worker, WorkerState,
};

impl Executor {
    pub(super) fn log_report(&mut self, report: SupervisorReport) {
        let name = &self.shared.name;
        let pid = |pid: Option<u32>| pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        match report {
            SupervisorReport::WorkerReady {
                worker,
                pid: p,
                boot,
            } => {
                let server = self.children.get(&worker).and_then(ChildProcess::server);
                let address = server.and_then(ListedServer::address);
                let place = address.map_or_else(String::new, |it| format!(" at {it}"));
                log::info!("{name}[{}]: ready in {boot:.1?}{place}", pid(p));
                self.shared.boot_failures.lock().reset();
            }
            SupervisorReport::Up { took } => {
                let interpreter = self.interpreter.clone();
                self.boot_status
                    .send_replace(BootStatus::Ready { took, interpreter });
            }
            SupervisorReport::Crashed {
                pid: p,
                status,
                next_try,
            } => {
                self.shared.metrics.crashed_workers.increment();
                let when = describe_delay(next_try);
                let how = match status {
                    ExitSummary::OutOfMemory => status.to_string(),
                    _ => format!("{status} unasked"),
                };
                log::error!("{name}[{}]: worker {how}; replaced {when}", pid(p));
                self.last_failure = Some(with_date(&format!("process {} {how}", pid(p))));
            }
            SupervisorReport::BootFailed { report, next_try } => {
                self.shared.metrics.failed_boots.increment();
                let when = next_try.map_or_else(String::new, |next| {
                    format!("; tried again {}", describe_delay(next))
                });
                if !self.is_repeated_report {
                    let mut failures = self.shared.boot_failures.lock();
                    let is_news = !failures.has_logged(&report);
                    let text = failures.log_text("a worker did not start", &report, &when);
                    drop(failures);
                    log::error!("{name}: {text}");
                    if is_news {
                        self.explain_missing_packages(&report);
                    }
                }
                if next_try.is_some() {
                    self.boot_status.send_if_modified(|boot| {
                        let is_first = *boot == BootStatus::Pending;
                        if is_first {
                            *boot = BootStatus::Failed { report };
                        }
                        is_first
                    });
                }
            }
            SupervisorReport::Killed { pid: p, reason } => {
                self.shared.metrics.killed_workers[kill_reason_index(reason)].increment();
                let (level, why) = match reason {
                    KillReason::StopTimedOut { limit } => {
                        let option = stop_timeout::option_name(&self.config);
                        (
                            log::Level::Warn,
                            stop_timeout::describe_kill(limit, &option),
                        )
                    }
                    _ => (log::Level::Error, reason.to_string()),
                };
                log::log!(level, "{name}[{}]: worker killed: {why}", pid(p));
                self.last_failure = Some(with_date(&format!("process {} killed: {why}", pid(p))));
            }
            SupervisorReport::RestartBegan { generation } => {
                log::info!("{name}: restart to generation {generation}");
                self.shared.boot_failures.lock().reset();
                self.restart = Some(RestartInProgress {
                    started_at: SystemTime::now(),
                    requesters: std::mem::take(&mut self.queued_restarts),
                });
            }
            SupervisorReport::Restarted { generation, took } => {
                log::info!("{name}: generation {generation} serves, after {took:.1?}");
            }
            SupervisorReport::Scaled { from, to, why } => {
                let metrics = &self.shared.metrics;
                let events = if to < from {
                    &metrics.scale_downs
                } else {
                    &metrics.scale_ups
                };
                events.increment();
                log::info!("{name}: {from} to {to} processes: {why}");
            }
            SupervisorReport::ThreadsScaled { from, to, why } => {
                log::info!("{name}: {from} to {to} threads of each process: {why}");
            }
            SupervisorReport::Replaced { pid: p, why } => {
                self.shared.metrics.recycled_workers[replace_reason_index(why)].increment();
                log::info!("{name}[{}]: worker replaced: {why}", pid(p));
            }
            SupervisorReport::RestartReverted { generation, report } => {
                let report = match self.shared.boot_failures.lock().has_logged(&report) {
                    true => String::new(),
                    false => format!("\n{report}"),
                };
                log::error!(
                    "{name}: the new version is given up, generation {generation} serves on{report}"
                );
            }
        }
    }

    /// Shows that the release command failed before the first start, as code that does not boot.
    pub(super) fn show_failed_release(&mut self, report: &str, next_try: Duration) {
        self.shared.metrics.failed_boots.increment();
        let when = format!("; tried again {}", describe_delay(next_try));
        let mut failures = self.shared.boot_failures.lock();
        let text = failures.log_text("it did not start", report, &when);
        drop(failures);
        log::error!("{}: {text}", self.shared.name);
        self.boot_status.send_if_modified(|boot| {
            let is_first = *boot == BootStatus::Pending;
            if is_first {
                let report = report.to_owned();
                *boot = BootStatus::Failed { report };
            }
            is_first
        });
        self.refuse_requests("the release command failed", Some(report.into()));
        let mut view = self.shared.view.lock();
        "failing".clone_into(&mut view.snapshot.state);
        view.snapshot.boot_report = Some(report.to_owned());
    }

    /// Shows the state to the status page, and refuses requests while nothing can take them.
    pub(super) fn publish_view(&mut self) {
        let state = self.supervisor.app_state();
        let word = match &state {
            AppState::Starting => "starting",
            AppState::Ready => "ready",
            AppState::Degraded => "degraded",
            AppState::Failing { .. } => "failing",
            AppState::Draining => "draining",
            AppState::Stopped => "stopped",
        };
        let mut boot_report = self.supervisor.restart_error.clone();
        match state {
            AppState::Failing { report } if !self.supervisor.is_boot_failing() => {
                self.shared.refusal.store(None);
                boot_report = Some(report);
            }
            AppState::Failing { report } => {
                if self.shared.refusal.load().is_none() {
                    self.refuse_requests(
                        "the application does not boot",
                        Some(report.as_str().into()),
                    );
                }
                boot_report = Some(report);
            }
            AppState::Starting | AppState::Ready | AppState::Degraded => {
                self.shared.refusal.store(None);
            }
            AppState::Draining | AppState::Stopped => {}
        }
        let workers = self.supervisor.workers().map(|w| self.worker_view(w));
        let workers: Vec<WorkerView> = workers.collect();
        let all = workers.iter().map(|worker| &worker.snapshot);
        let usage = self.limits.cgroup_usage();
        let mut view = self.shared.view.lock();
        let shown = &mut view.snapshot;
        shown.state = word.to_owned();
        shown.boot_report = boot_report;
        shown.interpreter.clone_from(&self.interpreter);
        shown.generation = all.clone().map(|w| w.generation).max().unwrap_or(0);
        shown.processes.ready = all.filter(|w| w.state == "ready").count();
        shown.processes.target = self.supervisor.target_workers;
        shown.threads = self.supervisor.threads_per_worker;
        shown.last_scaling = self.supervisor.last_scaling().map(str::to_owned);
        shown.last_failure.clone_from(&self.last_failure);
        shown.bounds.tasks = usage.and_then(|usage| usage.tasks);
        shown.bounds.memory_bytes = usage.and_then(|usage| usage.memory);
        shown.is_restarting = self.supervisor.is_restarting();
        shown
            .restart_error
            .clone_from(&self.supervisor.restart_error);
        shown.start_method = self.spawn_method();
        view.is_growing_to_initial_size = self.supervisor.is_growing_to_initial_size;
        view.workers = workers;
        view.templates = self.template_views();
    }

    fn worker_view(&self, worker: &Worker) -> WorkerView {
        let child = self.children.get(&worker.id);
        let slots = child.and_then(ChildProcess::slots);
        WorkerView {
            snapshot: WorkerSnapshot {
                pid: worker.pid,
                generation: worker.generation,
                state: match worker.state {
                    WorkerState::Booting => "booting",
                    WorkerState::Ready => "ready",
                    WorkerState::Retiring => "retiring",
                    WorkerState::Stopping => "stopping",
                },
                restarts: worker.restarts,
                proportional_bytes: self.limits.worker_memory_bytes(worker.id),
                replace_reason: worker.replace_reason.map(|why| why.to_string()),
                ..WorkerSnapshot::default()
            },
            state_since: worker.state_since,
            started_at: child.map(|child| child.process.started_at),
            stats: slots.map(|slots| Arc::clone(slots.stats())),
            mailboxes: slots
                .into_iter()
                .flat_map(WorkerSlots::mailboxes)
                .cloned()
                .collect(),
            address: child.and_then(|child| child.server()?.address().cloned()),
        }
    }

    /// Refuses new requests, and those that wait.
    pub(super) fn refuse_requests(&self, cause: &str, detail: Option<Arc<str>>) {
        let refusal = Refusal {
            cause: cause.to_owned(),
            detail: detail.clone(),
        };
        self.shared.refusal.store(Some(Arc::new(refusal)));
        self.shared.model.wake_waiters();
        if detail.is_some() {
            self.fail_queued(cause, detail);
        }
    }

    pub(super) fn fail_queued(&self, cause: &str, detail: Option<Arc<str>>) {
        for mut job in self.shared.dispatch.drain_queue() {
            let mut fault = Fault::new(FaultKind::Unavailable, cause.to_owned());
            fault.detail.clone_from(&detail);
            job.answer(Err(fault));
        }
    }

    /// Logs what to do about a package that the code misses, where it has no environment. Looks in a
    /// pool: the disk may not answer.
    fn explain_missing_packages(&self, report: &str) {
        if !report.contains(MISSING_MODULE) {
            return;
        }
        let (shared, config) = (Arc::clone(&self.shared), self.config.clone());
        let report = report.to_owned();
        loops::spawn_here(async move {
            let settings = shared.buffering_settings.load_full();
            let look = move || missing_packages_hint(&config, &report);
            let hint = clock::timeout(LOOK_TIMEOUT, settings.pool.run_priority(look)).await;
            if let Some(Ok(Some(hint))) = hint {
                log::error!("{}: {hint}", shared.name);
            }
        });
    }
}

/// The index of a reason among the labels of recycled workers.
fn replace_reason_index(why: ReplaceReason) -> usize {
    match why {
        ReplaceReason::Memory { .. } => 0,
        ReplaceReason::Requests(_) => 1,
        ReplaceReason::Age(_) => 2,
        ReplaceReason::Stuck => 3,
        ReplaceReason::Refork => 4,
    }
}

/// The index of [`KillReason::StopTimedOut`] among the labels of killed workers.
pub(crate) const STOP_TIMED_OUT: usize = 3;

/// The index of a reason among the labels of killed workers.
fn kill_reason_index(reason: KillReason) -> usize {
    match reason {
        KillReason::BootTimedOut => 0,
        KillReason::ResponseTimedOut => 1,
        KillReason::ProtocolBroken => 2,
        KillReason::StopTimedOut { .. } => STOP_TIMED_OUT,
        KillReason::MemoryExceeded { .. } => 4,
    }
}

/// What happened just now.
fn with_date(what: &str) -> String {
    let date = penstock_http::imf_fixdate(clock::wall_time().as_secs());
    let date = String::from_utf8_lossy(&date);
    format!("{date}: {what}")
}

fn describe_delay(delay: Duration) -> String {
    if delay.is_zero() {
        "at once".to_owned()
    } else {
        format!("in {delay:.1?}")
    }
}
