//! One process of an application, from its start to its end: the common part of workers and of
//! servers of their own, however they were started.
//!
//! `template` has the start of forked workers.
//!
//! # Invariants
//! - The slots or the address of a process are given up before its end is reported.
//! - A process that never became ready is reported with its own output.

use std::sync::atomic::Ordering;

use penstock_runtime::clock;
use penstock_sys::cgroup::CgroupReading;
use penstock_sys::process::ProcessExit;

use super::control::ControlHandle;
use super::refork::Promotion;
use super::servers::ListedServer;
use super::setup::BootStatus;
use super::workers::WorkerSlots;
use super::{ChildProcess, ControlMessage, Executor, ProcessKey, ProcessRole, RunningProcess};
use crate::shared::DispatchMode;
use crate::supervisor::{ExitSummary, KillReason, StopSignal, SupervisorEvent, WorkerId};

impl Executor {
    /// Lowers the priority of a process while it boots, if the one that it replaces serves
    /// meanwhile; returns whether it did.
    pub(super) fn lower_boot_priority(&self, process: &RunningProcess) -> bool {
        let is_older = |child: &ChildProcess| {
            child.process.generation < process.generation && !child.is_retiring
        };
        let is_coming = *self.boot_status.borrow() == BootStatus::Pending
            || self.supervisor.is_growing_to_initial_size;
        let is_followed = self.has_predecessor && is_coming;
        (is_followed || self.children.values().any(is_older))
            && process.handle.lower_priority().unwrap_or(false)
    }

    /// Puts to use what a process that is ready offers.
    pub(super) fn admit_worker(&mut self, worker: WorkerId) {
        match self.shared.dispatch_mode {
            DispatchMode::Workers(_) => self.admit_slots(worker),
            DispatchMode::Servers(_) => self.add_to_server_set(worker),
        }
    }

    /// Gives a process no more requests; `true` when nothing is in progress.
    pub(super) fn retire_worker(&mut self, worker: WorkerId) -> bool {
        if let Some(child) = self.children.get_mut(&worker) {
            child.is_retiring = true;
        }
        self.set_stream_deadline(worker);
        match self.shared.dispatch_mode {
            DispatchMode::Workers(_) => self.retire_slots(worker),
            DispatchMode::Servers(_) => self.retire_server(worker),
        }
    }

    pub(super) fn remove_lost_worker(&mut self, worker: WorkerId) {
        match self.shared.dispatch_mode {
            DispatchMode::Workers(_) => self.mark_slots_lost(worker),
            DispatchMode::Servers(_) => self.remove_from_server_set(worker),
        }
    }

    pub(super) fn handle_idle(&mut self, worker: WorkerId) {
        if !self.request_promotion(worker) {
            self.handle_event(SupervisorEvent::Idle { worker });
        }
    }

    pub(super) fn handle_control(&mut self, key: ProcessKey, message: ControlMessage) {
        let ProcessKey::Worker(worker) = key else {
            return self.handle_template_message(key, message);
        };
        if self.templates.contains(key) {
            return self.handle_template_message(key, message);
        }
        if self.handle_promotion_ready(worker, &message) {
            return;
        }
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        match message {
            ControlMessage::Ready {
                interpreter, kind, ..
            } => {
                let pid = child.pid();
                if let Err(report) = self.record_detected_kind(pid, kind) {
                    return self.reject_worker(worker, report);
                }
                let Some(child) = self.children.get_mut(&worker) else {
                    return;
                };
                let boot = clock::now().saturating_duration_since(child.process.started_at);
                child.has_reported_boot = true;
                child.process.has_booted.store(true, Ordering::Relaxed);
                child.process.restore_priority();
                self.interpreter = interpreter;
                self.handle_event(SupervisorEvent::Ready { worker, boot });
            }
            ControlMessage::BootFailed { traceback } => {
                child.has_reported_boot = true;
                self.handle_event(SupervisorEvent::BootFailed {
                    worker,
                    report: traceback,
                });
            }
            ControlMessage::NoAnswer => {
                child.has_reported_boot = true;
                let address = child.server().and_then(ListedServer::address).cloned();
                let tail = child.process.output_tail.joined_lines();
                let place = address.map_or_else(
                    || "its socket".to_owned(),
                    |address| self.describe_address(&address),
                );
                let limit = self.config.boot_timeout;
                let report =
                    format!("the worker did not answer at {place} within {limit:?}\n{tail}");
                self.handle_event(SupervisorEvent::BootFailed { worker, report });
            }
            // Sent by templates only: the decoder sees to it.
            ControlMessage::ForkFailed { .. } => {}
            ControlMessage::ProtocolBroken(why) => {
                let pid = child.pid();
                log::error!(
                    "{}[{pid}]: broke the worker protocol: {why}",
                    self.shared.name
                );
                self.handle_event(SupervisorEvent::KillRequested {
                    worker,
                    reason: KillReason::ProtocolBroken,
                });
            }
        }
    }

    /// A worker that is ready and cannot be used: as if it had not booted.
    fn reject_worker(&mut self, worker: WorkerId, report: String) {
        if let Some(child) = self.children.get_mut(&worker) {
            child.has_reported_boot = true;
            // An ended process needs no signal.
            let _ = child.process.handle.kill();
        }
        self.handle_event(SupervisorEvent::BootFailed { worker, report });
    }

    pub(super) fn handle_exited(
        &mut self,
        key: ProcessKey,
        exit: Option<ProcessExit>,
        reading: Option<CgroupReading>,
    ) {
        let is_out_of_memory = reading.is_some_and(|reading| reading.is_out_of_memory);
        if let Some(reading) = reading {
            self.record_cgroup_reading(&reading);
        }
        let worker = match key {
            ProcessKey::Worker(worker) if !self.templates.contains(key) => worker,
            _ => return self.handle_template_exited(key, exit),
        };
        self.remove_lost_worker(worker);
        let Some(child) = self.children.remove(&worker) else {
            return;
        };
        if !child.has_reported_boot {
            let tail = child.process.output_tail.joined_lines();
            let how = exit.map_or_else(|| "ended".to_owned(), |exit| format!("ended with {exit}"));
            let hint = match (&child.role, exit) {
                // The first thing to think of with programs that were written to be daemons.
                (ProcessRole::Server(_), Some(ProcessExit::Code(0))) => {
                    " (it has to stay in the foreground)"
                }
                _ => "",
            };
            let report = format!("the worker {how} before it was ready{hint}\n{tail}");
            self.handle_event(SupervisorEvent::BootFailed { worker, report });
        }
        let status = match exit {
            Some(ProcessExit::Signal(_)) if is_out_of_memory => ExitSummary::OutOfMemory,
            Some(ProcessExit::Code(code)) => ExitSummary::Code(code),
            Some(ProcessExit::Signal(signal)) => ExitSummary::Signal(signal),
            None => ExitSummary::Unknown,
        };
        self.handle_event(SupervisorEvent::Exited { worker, status });
    }

    pub(super) fn signal_worker(&mut self, worker: WorkerId, signal: StopSignal) {
        let Some(child) = self.children.get(&worker) else {
            return;
        };
        let is_closed = child.slots().is_some_and(WorkerSlots::is_closed);
        if signal == StopSignal::Terminate && child.is_retiring && is_closed {
            // Its sockets are closed: it ends by itself once its threads have, with what it wants
            // to do at its end, and has until it is killed for that.
            return self.order_worker_exit(worker);
        }
        // A process that is gone already needs no signal.
        let _ = match signal {
            StopSignal::Terminate => child.process.handle.terminate(),
            StopSignal::Kill => child.process.handle.kill(),
        };
    }

    /// Tells a worker whose sockets are closed that it is not wanted as a template.
    fn order_worker_exit(&mut self, worker: WorkerId) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        // A reactor ends with its channel in any case.
        if self.config.has_reactor() {
            return;
        }
        let is_told = match child.promotion {
            // It may be a template already, which serves nothing and has nothing to end.
            Promotion::Cancelled => false,
            _ => {
                let control = child.process.control.as_ref();
                control.is_some_and(ControlHandle::order_exit)
            }
        };
        if !is_told {
            child.process.control = None;
        }
    }
}

impl RunningProcess {
    /// Ends what [`Executor::lower_boot_priority`] began.
    pub(super) fn restore_priority(&self) {
        if self.has_low_priority
            && let Err(error) = self.handle.restore_priority()
        {
            // It has ended, which its exit will report, or it serves on as it is.
            let pid = self.handle.pid();
            log::debug!("[{pid}]: its priority is not set back: {error}");
        }
    }
}
