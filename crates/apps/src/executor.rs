//! Carries out what the supervisor decides: starts processes, watches them, admits what they offer.
//!
//! One task an application, on the control loop. It turns what happens (control messages, exits,
//! ended drivers, commands, timers) into the supervisor's events and the supervisor's actions into
//! system calls. A process is one of two things ([`Role`]): a worker whose slots join the queue
//! (`workers`), or a server of its own that an upstream is told of (`servers`); how it is started,
//! when it is ready and what retiring means differ, all else is here. What must stay true: every
//! process that was started is waited for, and its group killed when it ends, so nothing is left
//! behind; a boot failure is told before the exit.

mod place;
mod probe;
mod servers;
#[cfg(test)]
mod tests;
mod words;
mod workers;

use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::{Fault, FaultKind, Timing};
use penstock_runtime::{LoopHandle, clock, loops, process as watch_process};
use penstock_sys::process::{self, Exit, Started};
use tokio::sync::{mpsc, oneshot, watch};

use self::place::Folder;
use self::probe::Probe;
use self::servers::Listed;
use self::workers::Slots;
use crate::app::{AppShared, Boot, Way};
use crate::slot::End;
use crate::supervisor::{Action, Event, ExitSummary, Policy, Signal, Supervisor, WorkerId};

/// Inputs that may wait; senders wait when it is full.
const INPUTS_MAX: usize = 1024;

/// Lines of a worker's output kept for the report of a boot that fails without a traceback.
const TAIL_LINES: usize = 40;

/// How long after a process's end its last words may take to arrive: something it started may hold
/// its pipes open for ever.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long a worker whose sockets are closed may take to end by itself before it is asked by signal.
const LAST_ACTS: Duration = Duration::from_secs(1);

/// How often the executor looks for requests that wait too long.
const ROUND: Duration = Duration::from_secs(1);

/// What the rest of the server asks of an application.
#[derive(Debug)]
pub(crate) enum Command {
    Restart(oneshot::Sender<Result<(), String>>),
    Drain {
        deadline: Instant,
        done: oneshot::Sender<()>,
    },
}

/// Everything that can happen.
#[derive(Debug)]
enum Input {
    Command(Command),
    Control {
        worker: WorkerId,
        message: ControlMessage,
    },
    /// Its process has ended; what it said last may still come.
    Gone {
        worker: WorkerId,
    },
    Exited {
        worker: WorkerId,
        exit: Option<Exit>,
    },
    DriverEnded {
        worker: WorkerId,
        end: End,
    },
    SlotGone {
        worker: WorkerId,
    },
    /// A worker that should have ended by itself has had its time.
    Terminate {
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
    DrainOverdue,
}

#[derive(Debug)]
enum ControlMessage {
    Ready {
        interpreter: String,
    },
    BootFailed {
        traceback: String,
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
    supervisor: Supervisor,
    children: HashMap<WorkerId, Child>,
    inputs: mpsc::Sender<Input>,
    inbox: Option<mpsc::Receiver<Input>>,
    boot: watch::Sender<Boot>,
    restarts: Vec<oneshot::Sender<Result<(), String>>>,
    drained: Vec<oneshot::Sender<()>>,
    wake_at: Option<Instant>,
    next_round: Instant,
    interpreter: String,
    next_home: usize,
    /// Where servers of their own have their sockets, from the first on.
    folder: Option<Folder>,
    is_stopped: bool,
}

/// One process.
#[derive(Debug)]
struct Child {
    pid: u32,
    began: Instant,
    generation: u64,
    is_retiring: bool,
    has_reported: bool,
    tail: Arc<Mutex<VecDeque<String>>>,
    role: Role,
}

impl Child {
    /// The last lines that it wrote.
    fn tail(&self) -> String {
        let mut lines = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        lines.make_contiguous().join("\n")
    }
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
    launch: process::Launch,
    role: Role,
    readiness: Readiness,
    /// Keeps a port from others until the process is there to take it.
    reserved: Option<TcpListener>,
}

/// How a process becomes ready.
#[derive(Debug)]
enum Readiness {
    /// It says so here.
    Control(OwnedFd),
    /// It answers.
    Probe(Probe),
}

impl Executor {
    pub(crate) fn new(
        shared: Arc<AppShared>,
        config: config::App,
        loops: Vec<LoopHandle>,
        boot: watch::Sender<Boot>,
        policy: Policy,
    ) -> Self {
        let (inputs, inbox) = mpsc::channel(INPUTS_MAX);
        Self {
            shared,
            config,
            loops,
            supervisor: Supervisor::new(policy),
            children: HashMap::new(),
            inputs,
            inbox: Some(inbox),
            boot,
            restarts: Vec::new(),
            drained: Vec::new(),
            wake_at: None,
            next_round: clock::now() + ROUND,
            interpreter: String::new(),
            next_home: 0,
            folder: None,
            is_stopped: false,
        }
    }
}

/// Runs the application until it is drained.
pub(crate) async fn run(mut executor: Executor, mut commands: mpsc::Receiver<Command>) {
    let Some(mut inbox) = executor.inbox.take() else {
        return;
    };
    executor.event(Event::Started);
    let mut is_forgotten = false;
    while !executor.is_stopped {
        let wake_at = executor.wake_at;
        let round = executor.next_round;
        let at = wake_at.map_or(round, |at| at.min(round));
        let timer = tokio::time::sleep_until(at.into());
        tokio::select! {
            Some(input) = inbox.recv() => executor.handle(input),
            command = commands.recv(), if !is_forgotten => match command {
                Some(command) => executor.handle(Input::Command(command)),
                None => {
                    // Nobody can speak to the application any more: end it.
                    is_forgotten = true;
                    executor.event(Event::Drain);
                    executor.event(Event::DrainOverdue);
                }
            },
            () = timer => executor.look_round(),
        }
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
                self.refuse("the application is stopping", None);
                self.later(deadline, Input::DrainOverdue);
                self.event(Event::Drain);
            }
            Input::DrainOverdue => self.event(Event::DrainOverdue),
            Input::Control { worker, message } => self.handle_control(worker, message),
            Input::Gone { worker } => self.lose(worker),
            Input::Exited { worker, exit } => self.handle_exited(worker, exit),
            Input::DriverEnded { worker, end } => self.handle_driver_ended(worker, end),
            Input::Terminate { worker } => {
                if let Some(child) = self.children.get(&worker) {
                    // A process that is gone already needs no signal.
                    let _ = process::terminate(child.pid);
                }
            }
            Input::Idle { worker } => self.event(Event::Idle { worker }),
            Input::StuckOverdue { worker } => {
                if self.children.contains_key(&worker) {
                    self.event(Event::ResponseTimedOut { worker });
                }
            }
            Input::SlotGone { worker } => {
                if self.children.contains_key(&worker) {
                    self.event(Event::ProtocolBroken { worker });
                }
            }
        }
    }

    /// Once a second, and when the supervisor asked for it.
    fn look_round(&mut self) {
        let now = clock::now();
        for (mut job, waited) in self.shared.dispatch.expire(now) {
            self.shared.metrics.queue_timeout.increment();
            let cause = format!("no free worker within {waited:.1?}");
            let timing = Timing {
                queue: waited,
                handler: Some((&self.shared.name).into()),
                ..Timing::default()
            };
            job.answer(Err(Fault::new(FaultKind::QueueTimeout, cause).timed(timing)));
        }
        self.next_round = now + ROUND;
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
            self.event(Event::Tick);
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
        self.publish();
    }

    fn act(&mut self, action: Action, events: &mut VecDeque<Event>) {
        match action {
            Action::Spawn { worker, generation } => {
                events.push_back(match self.spawn(worker, generation) {
                    Ok(pid) => Event::Spawned { worker, pid },
                    Err(reason) => {
                        log::error!("{}: cannot start a worker: {reason}", self.shared.name);
                        Event::SpawnFailed { worker, reason }
                    }
                });
            }
            Action::Admit { worker } => self.admit(worker),
            Action::Retire { worker } => {
                if self.retire(worker) {
                    events.push_back(Event::Idle { worker });
                }
            }
            Action::Signal { worker, signal } => self.signal(worker, signal),
            Action::Report(report) => self.report(report),
            Action::WakeAt(at) => self.wake_at = Some(at),
            Action::Stopped => {
                self.is_stopped = true;
                // Whoever waits for the end may look whether anything is left.
                self.folder = None;
                self.fail_waiting("the application stopped", None);
                for done in self.drained.drain(..) {
                    let _ = done.send(());
                }
            }
            Action::RestartDone(result) => {
                for done in self.restarts.drain(..) {
                    // Whoever asked may have left.
                    let _ = done.send(result.clone());
                }
            }
        }
    }

    fn later(&self, at: Instant, input: Input) {
        let inputs = self.inputs.clone();
        loops::spawn_here(async move {
            tokio::time::sleep_until(at.into()).await;
            // The executor may have ended first.
            let _ = inputs.send(input).await;
        });
    }
}

/// Processes.
impl Executor {
    fn spawn(&mut self, worker: WorkerId, generation: u64) -> Result<u32, String> {
        let prepared = match self.shared.way {
            Way::Workers(dialect) => self.prepare_worker(dialect),
            Way::Servers(_) => self.prepare_server(worker),
        };
        let Prepared {
            launch,
            role,
            readiness,
            reserved,
        } = prepared?;
        drop(reserved);
        let started = process::start(&launch)
            .map_err(|error| format!("{}: {error}", Path::new(&launch.program).display()))?;
        let pid = started.pid;
        self.shared.metrics.started.increment();
        let child = Child {
            pid,
            began: clock::now(),
            generation,
            is_retiring: false,
            has_reported: false,
            tail: Arc::default(),
            role,
        };
        self.watch(worker, started, readiness, Arc::clone(&child.tail));
        self.children.insert(worker, child);
        Ok(pid)
    }

    /// Puts to use what a process that is ready offers.
    fn admit(&mut self, worker: WorkerId) {
        match self.shared.way {
            Way::Workers(_) => self.admit_slots(worker),
            Way::Servers(_) => self.list(worker),
        }
    }

    /// Gives a process no more requests; `true` when nothing is in progress.
    fn retire(&mut self, worker: WorkerId) -> bool {
        if let Some(child) = self.children.get_mut(&worker) {
            child.is_retiring = true;
        }
        match self.shared.way {
            Way::Workers(_) => self.retire_slots(worker),
            Way::Servers(_) => self.retire_server(worker),
        }
    }

    /// Gives up what a process offered that is gone.
    fn lose(&mut self, worker: WorkerId) {
        match self.shared.way {
            Way::Workers(_) => self.lose_slots(worker),
            Way::Servers(_) => self.unlist(worker),
        }
    }

    /// Follows a process to its end: readiness, output lines, exit, in this order at the end.
    fn watch(
        &self,
        worker: WorkerId,
        mut started: Started,
        readiness: Readiness,
        tail: Arc<Mutex<VecDeque<String>>>,
    ) {
        let inputs = self.inputs.clone();
        let name = Arc::clone(&self.shared.name);
        loops::spawn_here(async move {
            let pid = started.pid;
            let line = |text: &str| {
                log::info!("{name}[{pid}]: {text}");
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(text.to_owned());
            };
            follow(worker, &started, readiness, line, &inputs).await;
            // Whatever it started in its group ends with it; before it is reaped its number is
            // certainly still its own.
            let _ = process::kill_group(pid);
            let exit = started.try_exit().ok().flatten();
            // The executor ends only after this message.
            let _ = inputs.send(Input::Exited { worker, exit }).await;
        });
    }

    fn handle_control(&mut self, worker: WorkerId, message: ControlMessage) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        match message {
            ControlMessage::Ready { interpreter } => {
                let boot = clock::now().saturating_duration_since(child.began);
                child.has_reported = true;
                self.interpreter = interpreter;
                self.event(Event::Ready { worker, boot });
            }
            ControlMessage::BootFailed { traceback } => {
                child.has_reported = true;
                self.event(Event::BootFailed {
                    worker,
                    report: traceback,
                });
            }
            ControlMessage::Silent => {
                child.has_reported = true;
                let place = match &child.role {
                    Role::Server(listed) => listed.address().to_string(),
                    Role::Worker(_) => "its socket".to_owned(),
                };
                let limit = self.config.boot_timeout;
                let tail = child.tail();
                let report =
                    format!("the worker did not answer at {place} within {limit:?}\n{tail}");
                self.event(Event::BootFailed { worker, report });
            }
            ControlMessage::Broken(why) => {
                let pid = child.pid;
                log::error!(
                    "{}[{pid}]: broke the worker protocol: {why}",
                    self.shared.name
                );
                self.event(Event::ProtocolBroken { worker });
            }
        }
    }

    fn handle_exited(&mut self, worker: WorkerId, exit: Option<Exit>) {
        self.lose(worker);
        let Some(child) = self.children.remove(&worker) else {
            return;
        };
        if !child.has_reported {
            let tail = child.tail();
            let how = exit.map_or_else(|| "ended".to_owned(), |exit| format!("ended with {exit}"));
            let hint = match (&child.role, exit) {
                // The first thing to think of with programs that were written to be daemons.
                (Role::Server(_), Some(Exit::Code(0))) => " (it has to stay in the foreground)",
                _ => "",
            };
            let report = format!("the worker {how} before it was ready{hint}\n{tail}");
            self.event(Event::BootFailed { worker, report });
        }
        let status = match exit {
            Some(Exit::Code(code)) => ExitSummary::Code(code),
            Some(Exit::Signal(signal)) => ExitSummary::Signal(signal),
            None => ExitSummary::Unknown,
        };
        self.event(Event::Exited { worker, status });
    }

    fn signal(&self, worker: WorkerId, signal: Signal) {
        let Some(child) = self.children.get(&worker) else {
            return;
        };
        let is_closed = matches!(&child.role, Role::Worker(slots) if slots.is_closed());
        if signal == Signal::Terminate && child.is_retiring && is_closed {
            // Its sockets are closed: it ends by itself, with what it wants to do at its end.
            return self.later(clock::now() + LAST_ACTS, Input::Terminate { worker });
        }
        // A process that is gone already needs no signal.
        let _ = match signal {
            Signal::Terminate => process::terminate(child.pid),
            Signal::Kill => process::kill_group(child.pid),
        };
    }
}

/// Waits for a process's end, and for its last words.
async fn follow(
    worker: WorkerId,
    started: &Started,
    readiness: Readiness,
    line: impl Fn(&str) + Copy + Send,
    inputs: &mpsc::Sender<Input>,
) {
    let pipes = (started.stdout.try_clone(), started.stderr.try_clone());
    let words = async {
        let boot = boot(worker, started, readiness, inputs);
        let (Ok(stdout), Ok(stderr)) = pipes else {
            return boot.await;
        };
        tokio::join!(
            boot,
            watch_process::read_lines(stdout, line),
            watch_process::read_lines(stderr, line),
        );
    };
    let mut words = std::pin::pin!(words);
    tokio::select! {
        () = &mut words => watch_process::ended(&started.exit).await,
        () = watch_process::ended(&started.exit) => {
            // The executor ends only after `Exited`.
            let _ = inputs.send(Input::Gone { worker }).await;
            clock::until(clock::now() + LAST_WORDS, &mut words).await;
        }
    }
}

/// Waits until a process is ready or says that it will never be; ends with it.
async fn boot(
    worker: WorkerId,
    started: &Started,
    readiness: Readiness,
    inputs: &mpsc::Sender<Input>,
) {
    match readiness {
        Readiness::Control(control) => workers::read_control(control, worker, inputs).await,
        Readiness::Probe(probe) => tokio::select! {
            answered = clock::until(probe.deadline, probe.answered()) => {
                let interpreter = probe.program;
                let message = match answered {
                    Some(()) => ControlMessage::Ready { interpreter },
                    None => ControlMessage::Silent,
                };
                // The executor ends only after `Exited`.
                let _ = inputs.send(Input::Control { worker, message }).await;
            }
            () = watch_process::ended(&started.exit) => {}
        },
    }
}
