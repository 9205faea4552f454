//! What the executor says: log lines, the state for the status page, refusals.
//!
//! Called after each event of the supervisor. What must stay true: while the code does not boot no
//! request waits for a worker (it gets the report at once), and a state that is shown is the
//! supervisor's own.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::clock;

use super::{Executor, Role, Rolling};
use crate::app::{Boot, Refusal, StateView, WorkerView};
use crate::supervisor::{AppState, ExitSummary, KillReason, Report, Worker, WorkerState, Worn};

impl Executor {
    pub(super) fn report(&mut self, report: Report) {
        let name = &self.shared.name;
        let pid = |pid: Option<u32>| pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        match report {
            Report::WorkerReady {
                worker,
                pid: p,
                boot,
            } => {
                let place = match self.children.get(&worker).map(|child| &child.role) {
                    Some(Role::Server(listed)) => format!(" at {}", listed.address()),
                    Some(Role::Worker(_)) | None => String::new(),
                };
                log::info!("{name}[{}]: ready in {boot:.1?}{place}", pid(p));
                self.boot_failures = BootFailures::default();
            }
            Report::Up { took, .. } => {
                let interpreter = self.interpreter.clone();
                self.boot.send_replace(Boot::Ready { took, interpreter });
            }
            Report::Crashed {
                pid: p,
                status,
                next_try,
                ..
            } => {
                self.shared.metrics.crashed_workers.increment();
                let when = next_time(next_try);
                let how = match status {
                    ExitSummary::OutOfMemory => status.to_string(),
                    _ => format!("{status} unasked"),
                };
                log::error!("{name}[{}]: worker {how}; replaced {when}", pid(p));
                self.last_failure = Some(dated(&format!("process {} {how}", pid(p))));
            }
            Report::BootFailed {
                report, next_try, ..
            } => {
                self.shared.metrics.failed_boots.increment();
                let when = next_try.map_or_else(String::new, |next| {
                    format!("; tried again {}", next_time(next))
                });
                if !self.is_retelling {
                    log::error!("{name}: {}", self.boot_failures.describe(&report, &when));
                }
                if next_try.is_some() {
                    self.boot.send_if_modified(|boot| {
                        let is_first = *boot == Boot::Pending;
                        if is_first {
                            *boot = Boot::Failed { report };
                        }
                        is_first
                    });
                }
            }
            Report::Killed { pid: p, reason, .. } => {
                self.shared.metrics.killed_workers[killed_for(reason)].increment();
                let level = match reason {
                    KillReason::StopTimedOut => log::Level::Warn,
                    _ => log::Level::Error,
                };
                log::log!(level, "{name}[{}]: worker killed: {reason}", pid(p));
                self.last_failure = Some(dated(&format!("process {} killed: {reason}", pid(p))));
            }
            Report::RestartBegan { generation } => {
                log::info!("{name}: restart to generation {generation}");
                self.rolling = Some(Rolling {
                    since: SystemTime::now(),
                    asked: std::mem::take(&mut self.restarts),
                });
            }
            Report::Restarted { generation, took } => {
                log::info!("{name}: generation {generation} serves, after {took:.1?}");
            }
            Report::Scaled { from, to, why } => {
                self.shared.metrics.scale_events[usize::from(to < from)].increment();
                log::info!("{name}: {from} to {to} processes: {why}");
            }
            Report::ThreadsScaled { from, to, why } => {
                log::info!("{name}: {from} to {to} threads of each process: {why}");
            }
            Report::Recycled { pid: p, why, .. } => {
                self.shared.metrics.recycled_workers[recycled_for(why)].increment();
                log::info!("{name}[{}]: worker replaced: {why}", pid(p));
            }
            Report::OldVersionKept { generation, report } => {
                log::error!(
                    "{name}: the new version is given up, generation {generation} serves on\n{report}"
                );
            }
        }
    }

    /// Shows the state to the status page, and refuses requests while nothing can take them.
    pub(super) fn publish(&mut self) {
        let state = self.supervisor.state();
        let word = match &state {
            AppState::Starting => "starting",
            AppState::Ready => "ready",
            AppState::Degraded => "degraded",
            AppState::Failing { .. } => "failing",
            AppState::Draining => "draining",
            AppState::Stopped => "stopped",
        };
        let mut shown = self.supervisor.restart_error().map(str::to_owned);
        match state {
            AppState::Failing { report } if !self.supervisor.is_boot_failing() => {
                self.shared.refusing.store(None);
                shown = Some(report);
            }
            AppState::Failing { report } => {
                if self.shared.refusing.load().is_none() {
                    self.refuse(
                        "the application does not boot",
                        Some(report.as_str().into()),
                    );
                }
                shown = Some(report);
            }
            AppState::Starting | AppState::Ready | AppState::Degraded => {
                self.shared.refusing.store(None);
            }
            AppState::Draining | AppState::Stopped => {}
        }
        let workers: Vec<WorkerView> = self.supervisor.workers().map(|w| self.view(w)).collect();
        self.shared.set_state(StateView {
            state: word.to_owned(),
            report: shown,
            interpreter: self.interpreter.clone(),
            generation: workers.iter().map(|w| w.generation).max().unwrap_or(0),
            target: self.supervisor.target(),
            threads: self.supervisor.threads(),
            is_catching_up: self.supervisor.is_catching_up(),
            last_scaling: self.supervisor.last_scaling().map(str::to_owned),
            last_failure: self.last_failure.clone(),
            usage: self.limits.usage(),
            is_restarting: self.supervisor.is_restarting(),
            restart_error: self.supervisor.restart_error().map(str::to_owned),
            spawning: self.spawn_way(),
            workers,
            templates: self.template_views(),
        });
    }

    fn view(&self, worker: &Worker) -> WorkerView {
        let child = self.children.get(&worker.id);
        let role = child.map(|child| &child.role);
        WorkerView {
            pid: worker.pid,
            generation: worker.generation,
            state: match worker.state {
                WorkerState::Booting => "booting",
                WorkerState::Ready => "ready",
                WorkerState::Retiring => "retiring",
                WorkerState::Stopping => "stopping",
            },
            since: worker.since,
            restarts: worker.restarts,
            began: child.map(|child| child.began),
            ledger: match role {
                Some(Role::Worker(slots)) => Some(Arc::clone(slots.ledger())),
                Some(Role::Server(_)) | None => None,
            },
            memory: self.limits.memory(worker.id),
            worn: worker.worn().map(ToString::to_string),
            mailboxes: match role {
                Some(Role::Worker(slots)) => slots.mailboxes(),
                Some(Role::Server(_)) | None => Vec::new(),
            },
            address: match role {
                Some(Role::Server(listed)) => Some(listed.address().clone()),
                Some(Role::Worker(_)) | None => None,
            },
        }
    }

    /// Refuses new requests, and those that wait.
    pub(super) fn refuse(&self, cause: &str, detail: Option<Arc<str>>) {
        let refusal = Refusal {
            cause: cause.to_owned(),
            detail: detail.clone(),
        };
        self.shared.refusing.store(Some(Arc::new(refusal)));
        self.shared.model.wake();
        if detail.is_some() {
            self.fail_waiting(cause, detail);
        }
    }

    pub(super) fn fail_waiting(&self, cause: &str, detail: Option<Arc<str>>) {
        for mut job in self.shared.dispatch.clear() {
            let mut fault = Fault::new(FaultKind::Unavailable, cause.to_owned());
            fault.detail.clone_from(&detail);
            job.answer(Err(fault));
        }
    }
}

/// What was logged of boots that failed one after another.
#[derive(Debug, Default)]
pub(super) struct BootFailures {
    last: String,
    count: u32,
}

impl BootFailures {
    /// The log's text for a failure: whole once, then a line as long as it is the same.
    fn describe(&mut self, report: &str, when: &str) -> String {
        if self.last != report {
            report.clone_into(&mut self.last);
            self.count = 1;
            return format!("a worker did not start{when}\n{report}");
        }
        self.count += 1;
        let reason = reason_line(report);
        let count = self.count;
        format!("a worker did not start, {count} times now for the same reason{when}: {reason}")
    }
}

/// The line that says why: of a Python traceback the last one, of a Ruby backtrace the first.
fn reason_line(report: &str) -> &str {
    let first = report.lines().next().unwrap_or_default();
    // Ruby adds its suggestions below the message, and leaves out a backtrace of one line.
    if first.contains(":in `") || first.contains(":in '") {
        return first;
    }
    let mut lines = report.lines().filter(|line| !line.starts_with([' ', '\t']));
    lines
        .rfind(|line| !line.is_empty())
        .unwrap_or_else(|| report.trim())
}

/// The place of a reason in `RECYCLE_REASONS`.
fn recycled_for(why: Worn) -> usize {
    match why {
        Worn::Memory { .. } => 0,
        Worn::Requests(_) => 1,
        Worn::Age(_) => 2,
        Worn::Stuck => 3,
        Worn::Refork => 4,
    }
}

/// The place of a reason in `KILL_REASONS`.
fn killed_for(reason: KillReason) -> usize {
    match reason {
        KillReason::BootTimedOut => 0,
        KillReason::ResponseTimedOut => 1,
        KillReason::ProtocolBroken => 2,
        KillReason::StopTimedOut => 3,
        KillReason::MemoryExceeded { .. } => 4,
    }
}

/// What happened just now.
fn dated(what: &str) -> String {
    let date = penstock_http::imf_fixdate(clock::wall().as_secs());
    let date = String::from_utf8_lossy(&date);
    format!("{date}: {what}")
}

fn next_time(delay: Duration) -> String {
    if delay.is_zero() {
        "at once".to_owned()
    } else {
        format!("in {delay:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_failure_is_told_whole_once_and_then_in_a_line_until_it_is_another() {
        let mut failures = BootFailures::default();
        let python = "Traceback (most recent call last):\n  File \"a\"\nImportError: no b\n";
        let ruby = "a.ru:1:in `x': no c (LoadError)\n\tfrom a.ru:2:in `y'\n";
        let first = failures.describe(python, "; tried again in 1.0s");
        assert!(first.ends_with(python), "{first}");
        let again = failures.describe(python, "; tried again in 2.0s");
        assert_eq!(
            again,
            "a worker did not start, 2 times now for the same reason; tried again in 2.0s: \
             ImportError: no b"
        );
        assert!(failures.describe(ruby, "").ends_with(ruby));
        assert!(
            failures
                .describe(ruby, "")
                .ends_with("reason: a.ru:1:in `x': no c (LoadError)")
        );
        assert!(failures.describe(python, "").contains("File"));
        let suggesting = "a.rb:3:in '<main>': no roda (LoadError)\nDid you mean?  roadie\n";
        failures.describe(suggesting, "");
        let again = failures.describe(suggesting, "");
        assert!(
            again.ends_with(": a.rb:3:in '<main>': no roda (LoadError)"),
            "{again}"
        );
    }
}
