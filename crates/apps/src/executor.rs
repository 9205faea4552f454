//! Carries out what the supervisor decides: starts processes, watches them, admits their slots.
//!
//! One task an application, on the control loop. It turns what happens (control messages, exits,
//! ended drivers, commands, timers) into the supervisor's events and the supervisor's actions into
//! system calls. What must stay true: every process that was started is waited for, and its group
//! killed when it ends, so nothing is left behind; a boot failure is told before the exit.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::{Fault, FaultKind, Timing};
use penstock_queue::{SlotId, SlotSpec};
use penstock_runtime::{LoopHandle, Stream, clock, loops, process as watch_process};
use penstock_sys::process::{self, Exit, Started};
use penstock_sys::{file, net};
use penstock_wire::{ControlDecoder, ControlEvent};
use tokio::sync::{mpsc, oneshot, watch};

use crate::app::{AppShared, Boot, Refusal, StateView, WorkerView};
use crate::dispatch::Mailbox;
use crate::embed::{self, Launch};
use crate::interpreter;
use crate::slot::{Driver, End};
use crate::supervisor::{
    Action, AppState, Event, ExitSummary, KillReason, Policy, Report, Signal, Supervisor, WorkerId,
    WorkerState,
};

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

/// How long a worker may live on after it closed a slot unasked.
const SLOT_GONE: Duration = Duration::from_secs(1);

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
    /// A worker with a stuck thread has had its time.
    StuckOverdue {
        worker: WorkerId,
    },
    DrainOverdue,
}

#[derive(Debug)]
enum ControlMessage {
    Ready { interpreter: String },
    BootFailed { traceback: String },
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
    is_stopped: bool,
}

/// One process.
#[derive(Debug)]
struct Child {
    pid: u32,
    began: Instant,
    generation: u64,
    /// Our ends of its slot sockets, until it is admitted.
    sockets: Vec<OwnedFd>,
    slots: Vec<(SlotId, Arc<Mailbox>)>,
    drivers: usize,
    is_retiring: bool,
    /// A request timed out: it is killed once its other slots have finished.
    is_stuck: bool,
    has_reported: bool,
    tail: Arc<Mutex<VecDeque<String>>>,
}

impl Executor {
    pub(crate) fn new(
        shared: Arc<AppShared>,
        config: config::App,
        loops: Vec<LoopHandle>,
        boot: watch::Sender<Boot>,
    ) -> Self {
        let policy = Policy {
            processes: config.processes.max,
            boot_timeout: config.boot_timeout,
            ..Policy::default()
        };
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
            Input::Gone { worker } => self.lose_slots(worker),
            Input::Exited { worker, exit } => self.handle_exited(worker, exit),
            Input::DriverEnded { worker, end } => self.handle_driver_ended(worker, end),
            Input::Terminate { worker } => {
                if let Some(child) = self.children.get(&worker) {
                    // A process that is gone already needs no signal.
                    let _ = process::terminate(child.pid);
                }
            }
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
        let interpreter = interpreter::find(&self.config)?;
        let say = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let (control, control_theirs) = net::worker_pair().map_err(say("socketpair"))?;
        let bundle = file::in_memory("penstock-worker", &embed::bundle(self.shared.dialect))
            .map_err(say("memfd"))?;
        let mut sockets = Vec::new();
        let mut slot_fds = Vec::new();
        let (bundle_fd, control_fd) = (bundle.as_raw_fd(), control_theirs.as_raw_fd());
        let mut inherit = vec![bundle, control_theirs];
        for _ in 0..self.config.threads {
            let (ours, theirs) = net::worker_pair().map_err(say("socketpair"))?;
            slot_fds.push(theirs.as_raw_fd());
            sockets.push(ours);
            inherit.push(theirs);
        }
        let launch = Launch {
            dialect: self.shared.dialect,
            interpreter: interpreter.as_os_str(),
            bundle_fd,
            control_fd,
            slot_fds: &slot_fds,
            app: &self.config.name,
            dir: self.config.dir.as_os_str(),
            entry: &self.config.entry,
        };
        let mut argv = launch.argv().into_iter();
        let program = argv.next().unwrap_or_default();
        let started = process::start(&process::Launch {
            program,
            args: argv.collect(),
            dir: self.config.dir.clone(),
            env: self.environment(),
            inherit,
        })
        .map_err(|error| format!("{}: {error}", interpreter.display()))?;
        let pid = started.pid;
        self.shared.metrics.started.increment();
        let child = Child {
            pid,
            began: clock::now(),
            generation,
            sockets,
            slots: Vec::new(),
            drivers: 0,
            is_retiring: false,
            is_stuck: false,
            has_reported: false,
            tail: Arc::default(),
        };
        self.watch(worker, started, control, Arc::clone(&child.tail));
        self.children.insert(worker, child);
        Ok(pid)
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        let multiprocess = if self.config.processes.max > 1 {
            "1"
        } else {
            "0"
        };
        let house = [
            ("PENSTOCK_APP", self.config.name.as_str()),
            ("PENSTOCK_MULTIPROCESS", multiprocess),
        ];
        let house = house.map(|(k, v)| (k.into(), v.into()));
        let own = self.config.env.iter().map(|(k, v)| (k.into(), v.into()));
        house.into_iter().chain(own).collect()
    }

    /// Follows a process to its end: control messages, output lines, exit, in this order at the end.
    fn watch(
        &self,
        worker: WorkerId,
        mut started: Started,
        control: OwnedFd,
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
            let pipes = (started.stdout.try_clone(), started.stderr.try_clone());
            let words = async {
                let (Ok(stdout), Ok(stderr)) = pipes else {
                    return;
                };
                tokio::join!(
                    read_control(control, worker, &inputs),
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
        self.lose_slots(worker);
        let Some(child) = self.children.remove(&worker) else {
            return;
        };
        if !child.has_reported {
            let lines = child.tail.lock().unwrap_or_else(PoisonError::into_inner);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let how = exit.map_or_else(|| "ended".to_owned(), |exit| format!("ended with {exit}"));
            let report = format!("the worker {how} before it was ready\n{}", lines.join("\n"));
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
        if signal == Signal::Terminate && child.is_retiring && child.drivers == 0 {
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

/// Slots.
impl Executor {
    fn admit(&mut self, worker: WorkerId) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        for socket in child.sockets.drain(..) {
            let home = self.next_home % self.loops.len();
            self.next_home += 1;
            let spec = SlotSpec {
                generation: child.generation,
                home,
                capacity: 1,
            };
            let (slot, mailbox) = self.shared.dispatch.add_slot(clock::now(), spec);
            child.slots.push((slot, Arc::clone(&mailbox)));
            child.drivers += 1;
            let (app, inputs, pid) = (Arc::clone(&self.shared), self.inputs.clone(), child.pid);
            self.loops[home].spawn(async move {
                let end = match Stream::new(socket) {
                    Ok(stream) => Driver::new(app, slot, mailbox, pid, stream).run().await,
                    Err(error) => {
                        let now = clock::now();
                        app.dispatch.remove(now, slot, &mailbox, Vec::new());
                        End::Broken(error.to_string())
                    }
                };
                // The executor ends only when all processes have.
                let _ = inputs.send(Input::DriverEnded { worker, end }).await;
            });
        }
    }

    /// Takes the worker's slots out of the queue; `true` when nothing is in progress.
    fn retire(&mut self, worker: WorkerId) -> bool {
        let Some(child) = self.children.get_mut(&worker) else {
            return false;
        };
        child.is_retiring = true;
        for (slot, mailbox) in &child.slots {
            self.shared.dispatch.retire(*slot, mailbox);
        }
        child.drivers == 0
    }

    /// Ends the drivers of a process that is gone, whoever else still holds its sockets.
    fn lose_slots(&self, worker: WorkerId) {
        let slots = self.children.get(&worker).map(|child| &child.slots);
        for (slot, mailbox) in slots.into_iter().flatten() {
            self.shared.dispatch.lose(*slot, mailbox);
        }
    }

    fn handle_driver_ended(&mut self, worker: WorkerId, end: End) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        child.drivers -= 1;
        let is_last = child.drivers == 0;
        match end {
            End::Retired => {}
            End::Died if child.is_retiring => {}
            End::Died => {
                // Its exit is about to be seen; a worker that only lost a thread is replaced.
                self.later(clock::now() + SLOT_GONE, Input::SlotGone { worker });
                return;
            }
            End::Broken(why) => {
                let pid = child.pid;
                log::error!(
                    "{}[{pid}]: broke the worker protocol: {why}",
                    self.shared.name
                );
                return self.event(Event::ProtocolBroken { worker });
            }
            End::TimedOut => {
                child.is_stuck = true;
                if !is_last {
                    // Its other threads go on until a new worker has taken their place, and then finish
                    // what they have: but not for ever, as the stuck one may be burning a core.
                    let until =
                        clock::now() + self.config.boot_timeout + self.config.response_timeout;
                    self.later(until, Input::StuckOverdue { worker });
                    self.event(Event::Recycle { worker });
                    return;
                }
            }
        }
        let Some(child) = self.children.get(&worker) else {
            return;
        };
        if child.is_stuck && is_last {
            self.event(Event::ResponseTimedOut { worker });
        } else if child.is_retiring && is_last {
            self.event(Event::Idle { worker });
        }
    }
}

/// Words.
impl Executor {
    fn report(&mut self, report: Report) {
        let name = &self.shared.name;
        let pid = |pid: Option<u32>| pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        match report {
            Report::WorkerReady { pid: p, boot, .. } => {
                log::info!("{name}[{}]: ready in {boot:.1?}", pid(p));
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
    fn publish(&mut self) {
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

    fn view(&self, worker: &crate::supervisor::Worker) -> WorkerView {
        let child = self.children.get(&worker.id);
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
            mailboxes: child
                .map(|c| {
                    c.slots
                        .iter()
                        .map(|(_, mailbox)| Arc::clone(mailbox))
                        .collect()
                })
                .unwrap_or_default(),
        }
    }

    /// Refuses new requests, and those that wait.
    fn refuse(&self, cause: &str, detail: Option<Arc<str>>) {
        let refusal = Refusal {
            cause: cause.to_owned(),
            detail: detail.clone(),
        };
        self.shared.refusing.store(Some(Arc::new(refusal)));
        if detail.is_some() {
            self.fail_waiting(cause, detail);
        }
    }

    fn fail_waiting(&self, cause: &str, detail: Option<Arc<str>>) {
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

/// Reads a worker's control socket to its end, or to the first thing that it must not say.
async fn read_control(control: OwnedFd, worker: WorkerId, inputs: &mpsc::Sender<Input>) {
    let Ok(stream) = Stream::new(control) else {
        return;
    };
    let mut decoder = ControlDecoder::new();
    let mut received = Vec::new();
    let mut chunk = vec![0; 4096];
    loop {
        let read = std::future::poll_fn(|cx| stream.poll_read(cx, &mut chunk)).await;
        let count = match read {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        received.extend_from_slice(&chunk[..count]);
        while let Some(message) = next_message(&mut decoder, &mut received) {
            let is_broken = matches!(message, ControlMessage::Broken(_));
            let sent = inputs.send(Input::Control { worker, message }).await;
            if is_broken || sent.is_err() {
                return;
            }
        }
    }
}

fn next_message(decoder: &mut ControlDecoder, received: &mut Vec<u8>) -> Option<ControlMessage> {
    loop {
        let (message, used) = match decoder.decode(received) {
            Ok(None) => return None,
            Ok(Some((event, used))) => (control_message(&event), used),
            Err(error) => {
                received.clear();
                return Some(ControlMessage::Broken(error.to_string()));
            }
        };
        received.drain(..used);
        if message.is_some() {
            return message;
        }
    }
}

fn control_message(event: &ControlEvent<'_>) -> Option<ControlMessage> {
    match event {
        ControlEvent::Ready { json } => {
            let about: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
            let word = |key: &str| about[key].as_str().unwrap_or("?").to_owned();
            let interpreter = format!("{}, {}", word("interpreter"), word("interface"));
            Some(ControlMessage::Ready { interpreter })
        }
        ControlEvent::BootFailed { traceback } => Some(ControlMessage::BootFailed {
            traceback: (*traceback).to_owned(),
        }),
        _ => None,
    }
}
