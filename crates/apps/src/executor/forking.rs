//! Workers that are being forked from a template.
//!
//! A FORK carries the worker's own control socket and pipes. On that socket the kernel tells which
//! process sends HELLO; then it gets the sockets for its requests.
//!
//! # Invariants
//! - Each ordered worker is answered for, with `Spawned` or `SpawnFailed`, in bounded time.
//! - Only a new child of the server is accepted.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penstock_runtime::{clock, loops};
use penstock_sys::process;
use penstock_wire::control::SocketKind;

use super::control::{self, ControlConnection, ControlHandle};
use super::process_task::{PendingProcess, ReadinessSource};
use super::workers::{WorkerSlots, WorkerSockets, error_context};
use super::{ChildProcess, ControlMessage, Executor, ProcessKey, ProcessRole};
use crate::supervisor::{SupervisorEvent, WorkerId};

/// How long a forked worker may take to send HELLO.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// What each worker that is forked before it adds to that: more than a fork of a large process
/// takes.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);

/// Tries to fork that may fail in a row while nothing serves, before the code is loaded anew: with
/// the supervisor's back-off more than a second of them.
const MAX_FORK_FAILURES: u32 = 5;

#[derive(Debug)]
pub(super) struct PendingFork {
    pub(super) template: ProcessKey,
    pub(super) generation: u64,
    started_at: Instant,
    slots: WorkerSlots,
    sockets: Vec<(SocketKind, OwnedFd)>,
    control: ControlHandle,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Executor {
    /// Orders a worker from a template that is ready.
    pub(super) fn order_fork(&mut self, key: ProcessKey, worker: WorkerId) -> Result<(), String> {
        let Some(generation) = self.templates.generation(key) else {
            return Err("the template is gone".to_owned());
        };
        let WorkerSockets { slots, sockets } = self.create_worker_sockets()?;
        let (socket, theirs) = control::fork_socket_pair().map_err(error_context("socketpair"))?;
        let (control, connection) =
            ControlHandle::open(socket, false).map_err(error_context("control socket"))?;
        let (stdout, stdout_theirs) = process::output_pipe().map_err(error_context("pipe"))?;
        let (stderr, stderr_theirs) = process::output_pipe().map_err(error_context("pipe"))?;
        let descriptors = [theirs, stdout_theirs, stderr_theirs];
        let is_ordered = self.templates.order_fork(key, worker, descriptors);
        if !is_ordered {
            self.renew_template(key);
            return Err("the template takes no orders".to_owned());
        }
        let forking = PendingFork {
            template: key,
            generation,
            started_at: clock::now(),
            slots,
            sockets,
            control,
            stdout,
            stderr,
        };
        // Forks are made one after the other; how many wait for others has a bound.
        let before = u32::try_from(self.templates.pending_forks.len()).unwrap_or(u32::MAX);
        let timeout = HELLO_TIMEOUT + FORK_TIMEOUT.saturating_mul(before);
        self.templates.pending_forks.insert(worker, forking);
        let greeting = control::await_hello(connection, worker, timeout, self.inputs.clone());
        loops::spawn_here(greeting);
        Ok(())
    }

    pub(super) fn handle_fork_ready(
        &mut self,
        worker: WorkerId,
        pid: u32,
        connection: ControlConnection,
    ) {
        let Some(forking) = self.templates.pending_forks.remove(&worker) else {
            return;
        };
        let started = match process::adopt(pid, forking.stdout, forking.stderr) {
            Ok(started) => started,
            Err(error) => {
                let reason = format!("a forked worker is not accepted: {error}");
                self.fail_spawn(worker, reason);
                return self.fork_waiting_workers(forking.template);
            }
        };
        self.shared.metrics.started_workers.increment();
        let (key, template) = (ProcessKey::Worker(worker), forking.template);
        self.templates.record_fork_success(template);
        let is_given = forking.control.send_sockets(forking.sockets);
        let pending = PendingProcess {
            generation: forking.generation,
            started_at: forking.started_at,
            readiness: ReadinessSource::Control(connection),
            control: Some(forking.control),
        };
        let process = self.spawn_process_task(key, started, pending);
        let role = ProcessRole::Worker(forking.slots);
        let child = ChildProcess::new(process, role, Some(template));
        self.children.insert(worker, child);
        self.handle_event(SupervisorEvent::Spawned { worker, pid });
        if !is_given {
            let why = "it reads no orders".to_owned();
            self.handle_control(key, ControlMessage::ProtocolBroken(why));
        }
        self.fork_waiting_workers(template);
    }

    /// A template reports that it could not fork a worker: that is this worker's failure, which is
    /// tried again in due time, and no other's.
    pub(super) fn handle_fork_failed(&mut self, key: ProcessKey, worker: WorkerId, why: &str) {
        let forking = self.templates.pending_forks.get(&worker);
        match forking.map(|forking| forking.template) {
            Some(template) if template == key => {
                self.templates.pending_forks.remove(&worker);
                let refused = self.templates.record_fork_failure(key);
                self.fail_spawn(worker, format!("a worker was not forked: {why}"));
                if refused >= MAX_FORK_FAILURES && self.children.is_empty() {
                    // Nothing serves that could be lost: the code itself may be why.
                    self.renew_template(key);
                } else {
                    self.fork_waiting_workers(key);
                }
            }
            Some(_) => {
                let why = format!("it answers for {worker:?}, which another one is to fork");
                self.handle_template_message(key, ControlMessage::ProtocolBroken(why));
            }
            // It was given up already.
            None => {}
        }
    }

    /// There will be no such worker: nothing has sent HELLO.
    pub(super) fn handle_fork_missing(&mut self, worker: WorkerId, why: &str) {
        let Some(forking) = self.templates.pending_forks.remove(&worker) else {
            return;
        };
        // Whatever keeps it from forking may be cured by loading afresh.
        self.renew_template(forking.template);
        self.fail_spawn(worker, format!("a worker was not forked: {why}"));
    }

    pub(super) fn fail_spawn(&mut self, worker: WorkerId, reason: String) {
        log::error!("{}: {reason}", self.shared.name);
        self.handle_event(SupervisorEvent::SpawnFailed { worker, reason });
    }
}
