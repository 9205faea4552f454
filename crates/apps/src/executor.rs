//! Carries out what the supervisor decides: starts processes, watches them, admits what they offer.
//!
//! One task an application, on the control loop. It turns what happens (control messages, exits,
//! ended drivers, commands, timers) into the supervisor's events and the supervisor's actions into
//! system calls. A process is one of two things ([`Role`]): a worker whose slots join the queue
//! (`workers`), or a server of its own that an upstream is told of (`servers`); how it is started,
//! when it is ready and what retiring means differ, all else is here. Workers are forked from a
//! template (`template`), which one of them may follow (`refork`), or started by themselves.
//! `follow` and `control` are the tasks beside a process. What must stay true: every process that
//! was started is waited for, and its group killed when it ends, so nothing is left behind; a boot
//! failure is told before the exit; a start is awaited elsewhere (`launching`), as the kernel may
//! wait for a disk; the task ends when no process is left.

mod access;
mod busyness;
mod control;
mod follow;
mod forking;
mod kind;
mod launching;
mod limits;
pub(crate) mod place;
mod probe;
mod processes;
mod refork;
mod servers;
mod template;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
mod words;
mod workers;

use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use penstock_config as config;
use penstock_exchange::{Fault, FaultKind, RequestTiming};
use penstock_runtime::{LoopHandle, clock, loops};
use penstock_sys::account::Account;
use penstock_sys::cgroup::Reading;
use penstock_sys::process::{self, Launcher, ProcessExit, ProcessHandle};
use tokio::sync::{mpsc, oneshot, watch};

use self::busyness::{Busyness, Wanted};
use self::control::{Control, Line};
use self::follow::{Held, Readiness, Tail};
use self::launching::{Launching, Looking, UnclaimedProcess};
use self::limits::{Limits, Measured};
use self::place::Folder;
use self::refork::Promotion;
use self::servers::Listed;
use self::template::Templates;
use self::words::BootFailures;
use self::workers::Slots;
use crate::app::{AppShared, Boot, Setup};
use crate::orphans;
use crate::slot::End;
use crate::supervisor::{Action, Event, Policy, Supervisor, WorkerId};

/// Inputs that may wait; senders wait when it is full.
const INPUTS_MAX: usize = 1024;

/// How often the executor looks for requests that wait too long.
const ROUND: Duration = Duration::from_secs(1);

/// What the rest of the server asks of an application.
#[derive(Debug)]
pub(crate) enum Command {
    Restart(oneshot::Sender<Result<(), String>>),
    Drain {
        /// When what is left is ended; `None` leaves each request its own deadlines.
        deadline: Option<Instant>,
        done: oneshot::Sender<()>,
    },
}

/// A restart under way.
#[derive(Debug)]
struct Rolling {
    /// When it began.
    since: SystemTime,
    /// Who wait for its end.
    asked: Vec<oneshot::Sender<Result<(), String>>>,
}

/// A process in the executor's messages. A worker that becomes a template keeps its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Worker(WorkerId),
    /// One that was started as a template.
    Template(u64),
}

/// Everything that can happen.
#[derive(Debug)]
enum Input {
    Command(Command),
    Control {
        key: Key,
        message: ControlMessage,
    },
    /// A process was started, or why it could not be.
    Launched {
        key: Key,
        started: Result<UnclaimedProcess, String>,
    },
    /// Its process has ended; what it said last may still come.
    Gone {
        key: Key,
    },
    Exited {
        key: Key,
        exit: Option<ProcessExit>,
        /// What the application takes, if the process was killed.
        reading: Option<Reading>,
    },
    /// A forked worker has said HELLO: the kernel knows it by this number.
    Greeted {
        worker: WorkerId,
        pid: u32,
        line: Line,
    },
    /// A worker was to be forked and there is none.
    Unborn {
        worker: WorkerId,
        why: String,
    },
    /// A template has had its time: to load, or to end.
    TemplateOverdue {
        key: Key,
    },
    /// A worker has had its time to become a template.
    PromotionOverdue {
        worker: WorkerId,
    },
    DriverEnded {
        worker: WorkerId,
        end: End,
    },
    SlotGone {
        worker: WorkerId,
    },
    /// A server of its own has finished what it had, or has had its time.
    Idle {
        worker: WorkerId,
    },
    /// A worker with a stuck thread has had its time.
    StuckOverdue {
        worker: WorkerId,
    },
    /// What processes use of memory.
    Measured(Measured),
    /// And what they have wanted of a processor.
    Wanted(Option<Wanted>),
    /// The date of the file that asks for a restart, if it is there; `None` when nobody could look.
    RestartFile(Option<Option<SystemTime>>),
    DrainOverdue,
}

#[derive(Debug)]
enum ControlMessage {
    Ready {
        interpreter: String,
        /// What it has found its application to be, if that is WSGI or ASGI.
        kind: Option<config::AppKind>,
        /// Why nothing can be forked from it, if so.
        prevents_fork: Option<String>,
        /// The threads that what is forked from it will not have, if so.
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
    /// It does not answer.
    Silent,
    Broken(String),
}

/// The state of the task.
#[derive(Debug)]
pub(crate) struct Executor {
    shared: Arc<AppShared>,
    config: config::App,
    loops: Vec<LoopHandle>,
    launcher: Option<Arc<Launcher>>,
    account: Option<Account>,
    supervisor: Supervisor,
    children: HashMap<WorkerId, Child>,
    /// Processes that do not run yet.
    launching: HashMap<Key, Launching>,
    looking: Looking,
    inputs: mpsc::Sender<Input>,
    inbox: Option<mpsc::Receiver<Input>>,
    boot: watch::Sender<Boot>,
    /// Who asked for a restart that has not begun.
    restarts: Vec<oneshot::Sender<Result<(), String>>>,
    /// Who asked for the restart that is under way, if one is.
    rolling: Option<Rolling>,
    limits: Limits,
    busyness: Busyness,
    drained: Vec<oneshot::Sender<()>>,
    wake_at: Option<Instant>,
    next_round: Instant,
    interpreter: String,
    next_home: usize,
    /// Where servers of their own have their sockets, from the first on.
    folder: Option<Folder>,
    templates: Templates,
    is_draining: bool,
    /// The last process that ended unasked or was killed, when and how.
    last_failure: Option<String>,
    /// Something that this application follows serves until it has booted.
    follows: bool,
    /// Under `serve --dev`.
    is_development: bool,
    /// What is being said was said a moment ago.
    is_retelling: bool,
    /// Boots that failed since a worker was last ready.
    boot_failures: BootFailures,
    /// The supervisor has nothing left: only templates are waited for.
    is_over: bool,
    is_stopped: bool,
}

/// One process.
#[derive(Debug)]
struct Child {
    pid: u32,
    process: ProcessHandle,
    held: Held,
    began: Instant,
    generation: u64,
    /// It lets others go first while it boots.
    gives_way: bool,
    is_retiring: bool,
    has_reported: bool,
    tail: Tail,
    /// Of a worker: closed when this is dropped.
    control: Option<Control>,
    /// What it was forked from.
    template: Option<Key>,
    promotion: Promotion,
    role: Role,
}

/// What a process is to the rest of the server.
#[derive(Debug)]
enum Role {
    Worker(Slots),
    Server(Listed),
}

/// A process that is about to be started.
#[derive(Debug)]
struct Prepared {
    launch: process::ProcessSpec,
    role: Role,
    readiness: Readiness,
    control: Option<Control>,
    /// Keeps a port from others until the process is there to take it.
    reserved: Option<TcpListener>,
}

impl Executor {
    pub(crate) fn new(
        shared: Arc<AppShared>,
        config: config::App,
        boot: watch::Sender<Boot>,
        (policy, setup): (Policy, &Setup),
    ) -> Self {
        let (inputs, inbox) = mpsc::channel(INPUTS_MAX);
        let limits = Limits::new(&config, clock::now());
        Self {
            shared,
            config,
            loops: setup.loops.clone(),
            launcher: setup.launcher.clone(),
            account: setup.account.clone(),
            supervisor: Supervisor::new(policy),
            children: HashMap::new(),
            launching: HashMap::new(),
            looking: Looking::default(),
            inputs,
            inbox: Some(inbox),
            boot,
            restarts: Vec::new(),
            rolling: None,
            limits,
            busyness: Busyness::default(),
            drained: Vec::new(),
            wake_at: None,
            next_round: clock::now() + ROUND,
            interpreter: String::new(),
            next_home: 0,
            folder: None,
            templates: Templates::default(),
            is_draining: false,
            last_failure: None,
            follows: setup.gives_way,
            is_development: setup.development,
            is_retelling: false,
            boot_failures: BootFailures::default(),
            is_over: false,
            is_stopped: false,
        }
    }
}

/// Runs the application until it is drained.
pub(crate) async fn run(executor: Executor, commands: mpsc::Receiver<Command>) {
    tokio::select! {
        () = carry_out(executor, commands) => {}
        () = orphans::reap() => {}
    }
}

async fn carry_out(mut executor: Executor, mut commands: mpsc::Receiver<Command>) {
    let Some(mut inbox) = executor.inbox.take() else {
        return;
    };
    if let Err(error) = process::become_subreaper() {
        // Forked workers would not be found.
        executor.config.preload = config::Preload::Never;
        log::error!("{}: cannot fork workers: {error}", executor.shared.name);
    }
    executor.event(Event::Started);
    executor.look_at_limits();
    let shared = Arc::clone(&executor.shared);
    let mut is_forgotten = false;
    while !executor.is_stopped {
        let sooner = [executor.wake_at, executor.limits.load_at()];
        let at = sooner.into_iter().flatten().min();
        let at = at.map_or(executor.next_round, |at| at.min(executor.next_round));
        let timer = clock::sleep_until(at);
        tokio::select! {
            Some(input) = inbox.recv() => executor.handle(input),
            command = commands.recv(), if !is_forgotten => match command {
                Some(command) => executor.handle(Input::Command(command)),
                None => {
                    // Nobody can speak to the application any more: end it.
                    is_forgotten = true;
                    executor.is_draining = true;
                    executor.event(Event::Drain);
                    executor.event(Event::DrainOverdue);
                }
            },
            () = shared.dispatch.attention.notified() => executor.look_at_limits(),
            () = timer => executor.look_round(),
        }
        // All loops may send inputs, and without a pause.
        loops::yield_now().await;
    }
    // A process may have been started in the last moment.
    drop(inbox);
    for done in executor.drained {
        // Whoever asked may have left.
        let _ = done.send(());
    }
}

impl Executor {
    fn handle(&mut self, input: Input) {
        match input {
            Input::Command(Command::Restart(done)) => {
                self.restarts.push(done);
                self.event(Event::Restart);
            }
            Input::Command(Command::Drain { deadline, done }) => {
                self.drained.push(done);
                self.is_draining = true;
                self.refuse("the application is stopping", None);
                if let Some(deadline) = deadline {
                    self.later(deadline, Input::DrainOverdue);
                }
                self.event(Event::Drain);
            }
            Input::DrainOverdue => self.event(Event::DrainOverdue),
            Input::Control { key, message } => self.handle_control(key, message),
            Input::Launched { key, started } => self.handle_launched(key, started),
            Input::Gone {
                key: Key::Worker(worker),
            } => self.lose(worker),
            // It offers nothing.
            Input::Gone {
                key: Key::Template(_),
            } => {}
            Input::Exited { key, exit, reading } => self.handle_exited(key, exit, reading),
            Input::Greeted { worker, pid, line } => self.handle_greeted(worker, pid, line),
            Input::Unborn { worker, why } => self.handle_unborn(worker, &why),
            Input::TemplateOverdue { key } => self.handle_template_overdue(key),
            Input::PromotionOverdue { worker } => self.handle_promotion_overdue(worker),
            Input::DriverEnded { worker, end } => self.handle_driver_ended(worker, end),
            Input::Idle { worker } => self.idle(worker),
            Input::StuckOverdue { worker } => self.handle_stuck_overdue(worker),
            Input::Measured(measured) => self.handle_measured(measured),
            Input::Wanted(wanted) => self.handle_wanted(wanted),
            Input::RestartFile(looked) => self.handle_restart_file(looked),
            Input::SlotGone { worker } => {
                if self.children.contains_key(&worker) {
                    self.event(Event::ProtocolBroken { worker });
                }
            }
        }
    }

    /// Once a second, when the supervisor asked for it, and when the load is to be said.
    fn look_round(&mut self) {
        let now = clock::now();
        if self.next_round <= now {
            self.next_round = now + ROUND;
            self.expire_waiting(now);
            self.look_at_limits();
            self.ask_busyness();
            self.fit_threads();
            self.look_for_template();
        }
        self.say_load();
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
            self.event(Event::Tick);
        }
    }

    /// Requests that were given back by a dead worker have nobody else to end their wait.
    fn expire_waiting(&self, now: Instant) {
        for (mut job, waited) in self.shared.dispatch.expire(now) {
            self.shared.metrics.queue_timeout.increment();
            let cause = format!("no free worker within {waited:.1?}");
            let timing = RequestTiming {
                queue_time: waited,
                handler: Some((&self.shared.name).into()),
                ..RequestTiming::default()
            };
            job.answer(Err(
                Fault::new(FaultKind::QueueTimeout, cause).with_timing(timing)
            ));
        }
    }

    /// Gives the supervisor an event and carries out its actions, and those that follow from them.
    fn event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.supervisor.handle(clock::now(), event) {
                self.act(action, &mut events);
            }
        }
        self.tend_templates();
        self.publish();
    }

    fn act(&mut self, action: Action, events: &mut VecDeque<Event>) {
        match action {
            Action::Spawn { worker, generation } => {
                events.extend(match self.spawn(worker, generation) {
                    // `Spawned` or `SpawnFailed` will be said.
                    Ok(()) => None,
                    Err(reason) => {
                        log::error!("{}: cannot start a worker: {reason}", self.shared.name);
                        Some(Event::SpawnFailed { worker, reason })
                    }
                });
            }
            Action::Admit { worker } => self.admit(worker),
            Action::Retire { worker } => {
                if self.retire(worker) && !self.promote(worker) {
                    events.push_back(Event::Idle { worker });
                }
            }
            Action::Abandon { worker } => {
                if self.abandon(worker) {
                    let reason = "it was not wanted any more".to_owned();
                    events.push_back(Event::SpawnFailed { worker, reason });
                }
            }
            Action::Signal { worker, signal } => self.signal(worker, signal),
            Action::SetThreads(_) => self.fit_threads(),
            Action::Report(report) => self.report(report),
            Action::WakeAt(at) => self.wake_at = Some(at),
            Action::Stopped => {
                self.is_over = true;
                self.stop_when_empty();
            }
            Action::RestartDone(result) => {
                // Those who asked while one was under way wait for the next, which they began.
                let asked = match self.rolling.take() {
                    Some(rolling) => {
                        if result.is_ok() {
                            *self.shared.code_since() = rolling.since;
                        }
                        rolling.asked
                    }
                    None => std::mem::take(&mut self.restarts),
                };
                for done in asked {
                    // Whoever asked may have left.
                    let _ = done.send(result.clone());
                }
            }
        }
    }

    /// Ends the task once no process is left, a template neither. Then the drain is over.
    fn stop_when_empty(&mut self) {
        if !self.is_over || self.is_stopped || !self.templates.is_empty() {
            return;
        }
        self.is_stopped = true;
        // Whoever waits for the end may look whether anything is left.
        self.folder = None;
        for mut job in self.shared.dispatch.close() {
            let fault = Fault::new(FaultKind::Unavailable, "the application stopped".to_owned());
            job.answer(Err(fault));
        }
    }

    fn later(&self, at: Instant, input: Input) {
        let inputs = self.inputs.clone();
        loops::spawn_here(async move {
            clock::sleep_until(at).await;
            // The executor may have ended first.
            let _ = inputs.send(input).await;
        });
    }
}
