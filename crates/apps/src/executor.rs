//! Carries out the supervisor's decisions: starts processes, watches them, admits their slots.
//!
//! One task for each application, on the control loop. It turns events (control messages, exits,
//! ended drivers, commands, timers) into the supervisor's events, and the supervisor's actions into
//! system calls. A process has one of two roles ([`ProcessRole`]): a worker whose slots join the
//! queue (`workers`), or a server of its own for an upstream (`servers`). They differ in how they
//! are started, become ready and retire. Workers are forked from a template (`template`), which a
//! worker may replace (`refork`), or started by themselves. `process_task` and `control` are the
//! tasks beside a process.
//!
//! # Invariants
//! - Every started process is waited for, and its group killed when it ends, so nothing is left
//!   behind.
//! - A boot failure is reported before the exit.
//! - A start is awaited elsewhere (`launching`), as the kernel may wait for a disk.
//! - The task ends when no process is left.

pub(crate) mod access;
pub(crate) mod boot_check;
mod control;
mod cpu_usage;
mod forking;
mod kind_detection;
pub(crate) mod launching;
mod limits;
pub(crate) mod listen_address;
mod probe;
pub(crate) mod process_task;
mod processes;
mod refork;
pub(crate) mod reporting;
pub(crate) mod servers;
pub(crate) mod settings_query;
pub(crate) mod setup;
pub(crate) mod start_gate;
mod template;
#[cfg(test)]
mod tests;
pub(crate) mod workers;

use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use penstock_config as config;
use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::{LoopHandle, clock, loops};
use penstock_sys::account::Account;
use penstock_sys::process::{self, Launcher, ProcessHandle};
use tokio::sync::{mpsc, oneshot, watch};

use self::control::ControlHandle;
use self::cpu_usage::CpuUsage;
use self::launching::{PendingLaunch, ProgramLookup};
use self::limits::ProcessLimits;
use self::listen_address::SocketDir;
use self::process_task::{OutputTail, ReadinessSource};
use self::refork::Promotion;
use self::servers::ListedServer;
use self::setup::{AppResources, BootStatus};
use self::start_gate::StartGate;
use self::template::Templates;
use self::workers::WorkerSlots;
use crate::orphans;
use crate::shared::AppShared;
use crate::supervisor::{
    Supervisor, SupervisorAction, SupervisorEvent, SupervisorPolicy, WorkerId,
};

/// Inputs that may wait; senders wait when it is full.
const MAX_INPUTS: usize = 1024;

/// How often the executor looks for requests that wait too long.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum AppCommand {
    Restart(oneshot::Sender<Result<(), String>>),
    Drain {
        /// When the rest is ended; `None` leaves each request its own deadlines.
        deadline: Option<Instant>,
        done: oneshot::Sender<()>,
    },
    /// A restart was given up, because its release command failed: why.
    ReportFailedRelease(String),
}

#[derive(Debug)]
struct RestartInProgress {
    started_at: SystemTime,
    /// The callers that wait for its end.
    requesters: Vec<oneshot::Sender<Result<(), String>>>,
}

/// A process in the executor's messages. A worker that becomes a template keeps its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ProcessKey {
    Worker(WorkerId),
    /// A process that was started as a template.
    Template(u64),
}

/// News for the executor.
enum ExecutorInput {
    /// Reported by a process; the check of a boot waits for it as well.
    Control {
        key: ProcessKey,
        message: ControlMessage,
    },
    /// What is to be done about all else.
    Call(Box<dyn FnOnce(&mut Executor) + Send>),
}

impl ExecutorInput {
    fn call(what: impl FnOnce(&mut Executor) + Send + 'static) -> Self {
        Self::Call(Box::new(what))
    }
}

#[derive(Debug)]
enum ControlMessage {
    Ready {
        interpreter: String,
        /// The kind of its application, if that is WSGI or ASGI.
        kind: Option<config::AppKind>,
        /// Why nothing can be forked from it, if so.
        prevents_fork: Option<String>,
        /// The threads that its forks will not have, if any.
        leaves_threads: Option<String>,
    },
    BootFailed {
        traceback: String,
    },
    /// A template could not fork this worker.
    ForkFailed {
        worker: WorkerId,
        reason: String,
    },
    NoAnswer,
    ProtocolBroken(String),
}

#[derive(Debug)]
pub(crate) struct Executor {
    shared: Arc<AppShared>,
    config: config::App,
    loops: Vec<LoopHandle>,
    launcher: Option<Arc<Launcher>>,
    account: Option<Account>,
    supervisor: Supervisor,
    children: HashMap<WorkerId, ChildProcess>,
    /// Processes that do not run yet.
    pending_launches: HashMap<ProcessKey, PendingLaunch>,
    program_lookup: ProgramLookup,
    inputs: mpsc::Sender<ExecutorInput>,
    inbox: Option<mpsc::Receiver<ExecutorInput>>,
    boot_status: watch::Sender<BootStatus>,
    /// The callers of restarts that have not begun.
    queued_restarts: Vec<oneshot::Sender<Result<(), String>>>,
    /// The callers of the restart in progress, if there is one.
    restart: Option<RestartInProgress>,
    limits: ProcessLimits,
    cpu_usage: CpuUsage,
    drain_requesters: Vec<oneshot::Sender<()>>,
    wake_at: Option<Instant>,
    next_round_at: Instant,
    interpreter: String,
    next_loop: usize,
    /// The directory for sockets of servers of their own, from the first on.
    socket_dir: Option<SocketDir>,
    templates: Templates,
    is_draining: bool,
    /// When and how a process last ended unexpectedly or was killed.
    last_failure: Option<String>,
    /// An application that this one follows serves until this one has booted.
    has_predecessor: bool,
    is_development: bool,
    /// The current report repeats the last one.
    is_repeated_report: bool,
    /// The supervisor has stopped: only templates are left.
    is_supervisor_stopped: bool,
    is_stopped: bool,
}

/// A process that runs: a worker, a server of its own, or a template.
#[derive(Debug)]
struct RunningProcess {
    handle: ProcessHandle,
    /// Whether its group outlives it.
    is_group_held: watch::Sender<bool>,
    started_at: Instant,
    generation: u64,
    /// Its priority is lowered while it boots.
    has_low_priority: bool,
    output_tail: OutputTail,
    /// Whether it has become ready: a traceback that it writes is no failure to boot.
    has_booted: Arc<AtomicBool>,
    /// A worker's control socket, closed when this is dropped.
    control: Option<ControlHandle>,
}

#[derive(Debug)]
struct ChildProcess {
    process: RunningProcess,
    is_retiring: bool,
    has_reported_boot: bool,
    /// The template that it was forked from.
    template_key: Option<ProcessKey>,
    promotion: Promotion,
    role: ProcessRole,
}

#[derive(Debug)]
enum ProcessRole {
    Worker(WorkerSlots),
    Server(ListedServer),
}

/// The parts of a process that is about to be started.
#[derive(Debug)]
struct PreparedProcess {
    launch: process::ProcessSpec,
    role: ProcessRole,
    readiness: ReadinessSource,
    control: Option<ControlHandle>,
    /// Keeps a port reserved until the process takes it.
    reserved_port: Option<TcpListener>,
}

impl ChildProcess {
    fn new(process: RunningProcess, role: ProcessRole, template_key: Option<ProcessKey>) -> Self {
        Self {
            process,
            is_retiring: false,
            has_reported_boot: false,
            template_key,
            promotion: Promotion::None,
            role,
        }
    }

    fn pid(&self) -> u32 {
        self.process.handle.pid()
    }

    fn slots(&self) -> Option<&WorkerSlots> {
        match &self.role {
            ProcessRole::Worker(slots) => Some(slots),
            ProcessRole::Server(_) => None,
        }
    }

    fn slots_mut(&mut self) -> Option<&mut WorkerSlots> {
        match &mut self.role {
            ProcessRole::Worker(slots) => Some(slots),
            ProcessRole::Server(_) => None,
        }
    }

    fn server(&self) -> Option<&ListedServer> {
        match &self.role {
            ProcessRole::Server(listed) => Some(listed),
            ProcessRole::Worker(_) => None,
        }
    }
}

impl Executor {
    pub(crate) fn new(
        shared: Arc<AppShared>,
        config: config::App,
        boot: watch::Sender<BootStatus>,
        (policy, setup): (SupervisorPolicy, &AppResources),
    ) -> Self {
        let (inputs, inbox) = mpsc::channel(MAX_INPUTS);
        let limits = ProcessLimits::new(&config, clock::now());
        Self {
            shared,
            config,
            loops: setup.loops.clone(),
            launcher: setup.launcher.clone(),
            account: setup.account.clone(),
            supervisor: Supervisor::new(policy),
            children: HashMap::new(),
            pending_launches: HashMap::new(),
            program_lookup: ProgramLookup::default(),
            inputs,
            inbox: Some(inbox),
            boot_status: boot,
            queued_restarts: Vec::new(),
            restart: None,
            limits,
            cpu_usage: CpuUsage::default(),
            drain_requesters: Vec::new(),
            wake_at: None,
            next_round_at: clock::now() + ROUND_INTERVAL,
            interpreter: String::new(),
            next_loop: 0,
            socket_dir: None,
            templates: Templates::default(),
            is_draining: false,
            last_failure: None,
            has_predecessor: setup.yields_cpu_at_boot,
            is_development: setup.is_development,
            is_repeated_report: false,
            is_supervisor_stopped: false,
            is_stopped: false,
        }
    }
}

/// Runs the application until it is drained.
pub(crate) async fn run(executor: Executor, gate: StartGate, commands: mpsc::Receiver<AppCommand>) {
    tokio::select! {
        () = run_loop(executor, gate, commands) => {}
        () = orphans::reap_orphans() => {}
    }
}

async fn run_loop(
    mut executor: Executor,
    gate: StartGate,
    mut commands: mpsc::Receiver<AppCommand>,
) {
    let Some(mut inbox) = executor.inbox.take() else {
        return;
    };
    if let Err(error) = process::become_subreaper() {
        // Forked workers would not be found.
        executor.config.preload = config::Preload::Never;
        log::error!("{}: cannot fork workers: {error}", executor.shared.name);
    }
    if !Box::pin(executor.pass_start_gate(gate, &mut commands)).await {
        return executor.answer_drain_requesters();
    }
    executor.handle_event(SupervisorEvent::Started);
    if !executor.queued_restarts.is_empty() {
        executor.handle_event(SupervisorEvent::Restart);
    }
    executor.check_limits();
    let shared = Arc::clone(&executor.shared);
    let mut is_forgotten = false;
    while !executor.is_stopped {
        let sooner = [executor.wake_at, executor.limits.next_load_at];
        let at = sooner.into_iter().flatten().min();
        let at = at.map_or(executor.next_round_at, |at| at.min(executor.next_round_at));
        let timer = clock::sleep_until(at);
        tokio::select! {
            Some(input) = inbox.recv() => match input {
                ExecutorInput::Control { key, message } => executor.handle_control(key, message),
                ExecutorInput::Call(what) => what(&mut executor),
            },
            command = commands.recv(), if !is_forgotten => match command {
                Some(command) => executor.handle_command(command),
                None => {
                    // All handles of the application are dropped: end it.
                    is_forgotten = true;
                    executor.is_draining = true;
                    executor.handle_event(SupervisorEvent::Drain);
                    executor.handle_event(SupervisorEvent::DrainOverdue);
                }
            },
            () = shared.dispatch.limit_reached.notified() => executor.check_limits(),
            () = timer => executor.run_round(),
        }
        // All loops may send inputs, and without a pause.
        loops::yield_now().await;
    }
    // A process may have been started in the last moment.
    drop(inbox);
    executor.answer_drain_requesters();
}

impl Executor {
    fn answer_drain_requesters(self) {
        for done in self.drain_requesters {
            // The caller may have left.
            let _ = done.send(());
        }
    }

    fn handle_command(&mut self, command: AppCommand) {
        match command {
            AppCommand::Restart(done) => {
                self.queued_restarts.push(done);
                self.handle_event(SupervisorEvent::Restart);
            }
            AppCommand::Drain { deadline, done } => {
                self.drain_requesters.push(done);
                self.is_draining = true;
                self.refuse_requests("the application is stopping", None);
                if let Some(deadline) = deadline {
                    self.schedule(deadline, |executor| {
                        executor.handle_event(SupervisorEvent::DrainOverdue);
                    });
                }
                self.handle_event(SupervisorEvent::Drain);
            }
            AppCommand::ReportFailedRelease(report) => {
                self.supervisor.restart_error = Some(report);
                self.publish_view();
            }
        }
    }

    /// Runs once a second, when the supervisor asked for it, and when the load is to be reported.
    fn run_round(&mut self) {
        let now = clock::now();
        if self.next_round_at <= now {
            self.next_round_at = now + ROUND_INTERVAL;
            self.expire_queued(now);
            self.check_limits();
            self.measure_cpu();
            self.apply_thread_count();
            self.plan_refork();
        }
        self.report_load();
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
            self.handle_event(SupervisorEvent::Tick);
        }
    }

    /// Requests that a dead worker gave back have no other timer.
    fn expire_queued(&self, now: Instant) {
        for (mut job, waited) in self.shared.dispatch.expire(now) {
            self.shared.metrics.queue_timeout.increment();
            let cause = format!("no free worker within {waited:.1?}");
            let fault = Fault::new(FaultKind::QueueTimeout, cause);
            let timing = self.shared.wait_timing(waited);
            job.answer(Err(fault.with_timing(timing)));
        }
    }

    /// Gives the supervisor an event and carries out its actions, and those that follow from them.
    fn handle_event(&mut self, event: SupervisorEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.supervisor.handle_event(clock::now(), event) {
                self.carry_out(action, &mut events);
            }
        }
        self.end_unused_templates();
        self.publish_view();
    }

    fn carry_out(&mut self, action: SupervisorAction, events: &mut VecDeque<SupervisorEvent>) {
        match action {
            SupervisorAction::Spawn { worker, generation } => {
                events.extend(match self.spawn_worker(worker, generation) {
                    // `Spawned` or `SpawnFailed` follows.
                    Ok(()) => None,
                    Err(reason) => {
                        log::error!("{}: cannot start a worker: {reason}", self.shared.name);
                        Some(SupervisorEvent::SpawnFailed { worker, reason })
                    }
                });
            }
            SupervisorAction::Admit { worker } => self.admit_worker(worker),
            SupervisorAction::Retire { worker } => {
                if self.retire_worker(worker) && !self.request_promotion(worker) {
                    events.push_back(SupervisorEvent::Idle { worker });
                }
            }
            SupervisorAction::Abandon { worker } => {
                if self.abandon_spawn(worker) {
                    let reason = "it was not wanted any more".to_owned();
                    events.push_back(SupervisorEvent::SpawnFailed { worker, reason });
                }
            }
            SupervisorAction::Signal { worker, signal } => self.signal_worker(worker, signal),
            SupervisorAction::SetThreads(_) => self.apply_thread_count(),
            SupervisorAction::Report(report) => self.log_report(report),
            SupervisorAction::WakeAt(at) => self.wake_at = Some(at),
            SupervisorAction::Stopped => {
                self.is_supervisor_stopped = true;
                self.stop_when_empty();
            }
            SupervisorAction::RestartDone(result) => {
                // Callers during a restart wait for the next one, which they began.
                let asked = match self.restart.take() {
                    Some(rolling) => {
                        if result.is_ok() {
                            *self.shared.code_load_started_at.lock() = rolling.started_at;
                        }
                        rolling.requesters
                    }
                    None => std::mem::take(&mut self.queued_restarts),
                };
                for done in asked {
                    // The caller may have left.
                    let _ = done.send(result.clone());
                }
            }
        }
    }

    /// Ends the task once no process is left, templates included. Then the drain is over.
    fn stop_when_empty(&mut self) {
        if !self.is_supervisor_stopped || self.is_stopped || !self.templates.is_empty() {
            return;
        }
        self.is_stopped = true;
        // The caller may check that nothing is left.
        self.socket_dir = None;
        for mut job in self.shared.dispatch.close_queue() {
            let fault = Fault::new(FaultKind::Unavailable, "the application stopped".to_owned());
            job.answer(Err(fault));
        }
    }

    fn schedule(&self, at: Instant, what: impl FnOnce(&mut Self) + Send + 'static) {
        let inputs = self.inputs.clone();
        loops::spawn_here(async move {
            clock::sleep_until(at).await;
            // The executor may have ended first.
            let _ = inputs.send(ExecutorInput::call(what)).await;
        });
    }
}
