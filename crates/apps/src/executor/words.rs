//! What the executor says: log lines, the state for the status page, refusals.
//!
//! Called after each event of the supervisor. What must stay true: while the code does not boot no
//! request waits for a worker (it gets the report at once), and a state that is shown is the
//! supervisor's own.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Fault, FaultKind};

use super::{Executor, Role};
use crate::app::{Boot, Refusal, StateView, WorkerView};
use crate::supervisor::{AppState, KillReason, Report, Worker, WorkerState};

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
                self.shared.metrics.crashed.increment();
                let when = next_time(next_try);
                log::error!(
                    "{name}[{}]: worker {status} unasked; replaced {when}",
                    pid(p)
                );
            }
            Report::BootFailed {
                report, next_try, ..
            } => {
                let when = next_try.map_or_else(String::new, |next| {
                    format!("; tried again {}", next_time(next))
                });
                log::error!("{name}: a worker did not start{when}\n{report}");
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
                let level = match reason {
                    KillReason::StopTimedOut => log::Level::Warn,
                    _ => log::Level::Error,
                };
                log::log!(level, "{name}[{}]: worker killed: {reason}", pid(p));
            }
            Report::RestartBegan { generation } => {
                log::info!("{name}: restart to generation {generation}");
            }
            Report::Restarted { generation, took } => {
                log::info!("{name}: generation {generation} serves, after {took:.1?}");
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
            workers,
        });
    }

    fn view(&self, worker: &Worker) -> WorkerView {
        let role = self.children.get(&worker.id).map(|child| &child.role);
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

fn next_time(delay: Duration) -> String {
    if delay.is_zero() {
        "at once".to_owned()
    } else {
        format!("in {delay:.1?}")
    }
}
