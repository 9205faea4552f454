//! Processes that are workers: the bundled scripts under the application's own interpreter.
//!
//! The executor's part for `wsgi`, `asgi` and `rack`. A worker gets a control socket, on which it
//! reports that it is ready or why not, and one socket a thread; once admitted each of these is a
//! slot of the queue, with a driver on a loop. A worker with a reactor has a channel for all its
//! requests instead, one slot with room for many.
//!
//! # Invariants
//! - A slot whose worker has ended leaves the queue at once.
//! - A worker that lost a thread or is stuck in a request is replaced.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use penstock_config as config;
use penstock_config::{AppKind, Concurrency, Preload};
use penstock_queue::{SlotId, SlotSpec};
use penstock_runtime::{Stream, clock};
use penstock_sys::account::Account;
use penstock_sys::cgroup::Group;
use penstock_sys::isolation::Sandbox;
use penstock_sys::{file, net, process};
use penstock_wire::Dialect;
use penstock_wire::control::SocketKind;

use super::access;
use super::control::{ControlHandle, ControlLine};
use super::process_task::Readiness;
use super::{ChildProcess, Executor, ExecutorInput, PreparedProcess, ProcessRole};
use crate::dispatch::{Mailbox, WorkerStats};
use crate::driver::{ChannelDriver, DriverEnd, SlotDriver};
use crate::embed::{self, LaunchSockets, WorkerLaunch};
use crate::supervisor::{SupervisorEvent, WorkerId};

/// How long a worker may live on after it closed a slot unasked.
const SLOT_CLOSED_TIMEOUT: Duration = Duration::from_secs(1);

/// What a worker offers: a slot for each of its threads.
#[derive(Debug, Default)]
pub(super) struct WorkerSlots {
    /// Our ends of their sockets, until it is admitted.
    sockets: Vec<OwnedFd>,
    /// Of a reactor: its channel, and where it gets bodies that are files. A worker that has to
    /// find out whether it is one has these beside the others, until it is admitted.
    reactor_sockets: Option<(OwnedFd, OwnedFd)>,
    /// Our ends of its spare slots' sockets (`io_threads`), until it is admitted.
    spare_sockets: Vec<OwnedFd>,
    stats: Arc<WorkerStats>,
    driven_slots: Vec<(SlotId, Arc<Mailbox>)>,
    active_drivers: usize,
    /// A request timed out: it is killed once its other slots have finished.
    is_stuck: bool,
}

impl WorkerSlots {
    /// Whether no slot is being driven: then the worker's sockets are closed.
    pub(super) fn is_closed(&self) -> bool {
        self.active_drivers == 0
    }

    pub(super) fn stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }

    pub(super) fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        let mailboxes = self
            .driven_slots
            .iter()
            .map(|(_, mailbox)| Arc::clone(mailbox));
        mailboxes.collect()
    }
}

/// Sockets of a worker that is about to be started: our ends, and its own.
#[derive(Debug)]
pub(super) struct WorkerSockets {
    pub(super) slots: WorkerSlots,
    pub(super) sockets: Vec<(SocketKind, OwnedFd)>,
}

impl Executor {
    pub(super) fn create_worker_sockets(&self) -> Result<WorkerSockets, String> {
        let mut sockets = Vec::new();
        let mut pair = |kind: SocketKind| -> Result<OwnedFd, String> {
            let pair = net::worker_socket_pair().map_err(|error| format!("socketpair: {error}"))?;
            sockets.push((kind, pair.1));
            Ok(pair.0)
        };
        let held_back = (self.config.threads).saturating_sub(self.config.min_threads);
        let mut slots = WorkerSlots {
            stats: Arc::new(WorkerStats::with_reserved_slots(held_back)),
            ..WorkerSlots::default()
        };
        let is_open = self.is_kind_unknown();
        if self.config.has_reactor() || is_open {
            let channel = pair(SocketKind::Channel)?;
            slots.reactor_sockets = Some((channel, pair(SocketKind::Files)?));
        }
        if !self.config.has_reactor() || is_open {
            for _ in 0..self.config.threads {
                slots.sockets.push(pair(SocketKind::Slot)?);
            }
            for _ in 0..self.config.io_threads {
                slots.spare_sockets.push(pair(SocketKind::Spare)?);
            }
        }
        Ok(WorkerSockets { slots, sockets })
    }

    pub(super) fn prepare_worker(&self) -> Result<PreparedProcess, String> {
        let WorkerSockets { slots, sockets } = self.create_worker_sockets()?;
        let numbers = |wanted: SocketKind| -> Vec<i32> {
            let of_kind = sockets.iter().filter(|(kind, _)| *kind == wanted);
            of_kind.map(|(_, socket)| socket.as_raw_fd()).collect()
        };
        let plain = numbers(SocketKind::Slot);
        let spare = numbers(SocketKind::Spare);
        let reactor = (numbers(SocketKind::Channel), numbers(SocketKind::Files));
        let sockets_said = match (reactor.0.first(), reactor.1.first()) {
            (Some(channel), Some(files)) if !plain.is_empty() => LaunchSockets::Either {
                slots: &plain,
                spare: &spare,
                channel: *channel,
                files: *files,
            },
            (Some(channel), Some(files)) => LaunchSockets::Reactor {
                channel: *channel,
                files: *files,
            },
            _ => LaunchSockets::Slots {
                slots: &plain,
                spare: &spare,
            },
        };
        let (mut launch, control, line) = self.prepare_launch(sockets_said, false)?;
        launch
            .inherited_fds
            .extend(sockets.into_iter().map(|(_, s)| s));
        Ok(PreparedProcess {
            launch,
            role: ProcessRole::Worker(slots),
            readiness: Readiness::Control(line),
            control: Some(control),
            reserved_port: None,
        })
    }

    pub(super) fn prepare_template(
        &self,
    ) -> Result<(process::ProcessSpec, ControlHandle, ControlLine), String> {
        let server_pid = std::process::id();
        let ignores_threads = self.config.preload == Preload::Always;
        let sockets = LaunchSockets::Template {
            server_pid,
            ignores_threads,
        };
        self.prepare_launch(sockets, true)
    }

    /// The command line and all that is inherited but the sockets for requests.
    fn prepare_launch(
        &self,
        sockets: LaunchSockets<'_>,
        is_template: bool,
    ) -> Result<(process::ProcessSpec, ControlHandle, ControlLine), String> {
        let say = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let (socket, theirs) = net::worker_socket_pair().map_err(say("socketpair"))?;
        let (control, line) =
            ControlHandle::open(socket, is_template).map_err(say("control socket"))?;
        let command = WorkerCommand {
            config: &self.config,
            account: self.account.as_ref(),
            group: self.shared.group.as_deref(),
            interface_is_guess: self.is_kind_unknown(),
            is_development: self.is_development,
        };
        Ok((command.launch(sockets, theirs)?, control, line))
    }

    pub(super) fn reactor_name(&self) -> Option<&'static str> {
        reactor_name(&self.config)
    }
}

/// The walls around a process of an application, unless it has none.
pub(super) fn process_sandbox(config: &config::App) -> Option<Sandbox> {
    config.isolation.then(Sandbox::available)
}

/// What the command line of a worker or a template is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerCommand<'a> {
    pub(super) config: &'a config::App,
    pub(super) account: Option<&'a Account>,
    /// What bounds it; none is nothing.
    pub(super) group: Option<&'a Group>,
    pub(super) interface_is_guess: bool,
    pub(super) is_development: bool,
}

impl WorkerCommand<'_> {
    /// The command line without its program, and all that is inherited but the sockets for
    /// requests; `control` is the process's end of its control socket.
    ///
    /// # Errors
    /// A sentence: descriptors ran out.
    pub(super) fn launch(
        &self,
        sockets: LaunchSockets<'_>,
        control: OwnedFd,
    ) -> Result<process::ProcessSpec, String> {
        let config = self.config;
        let dialect = match config.kind {
            AppKind::Rack => Dialect::Ruby,
            _ => Dialect::Python,
        };
        let bundle = file::memfd_with_content("penstock-worker", &embed::bundle(dialect))
            .map_err(|error| format!("memfd: {error}"))?;
        let launch = WorkerLaunch {
            dialect,
            // Found later: it lies on a disk.
            interpreter: OsStr::new(""),
            bundle_fd: bundle.as_raw_fd(),
            control_fd: control.as_raw_fd(),
            sockets,
            interface: config.kind.as_str(),
            interface_is_guess: self.interface_is_guess,
            reactor: reactor_name(config),
            threads: config.threads,
            gc_when_idle: config.gc_when_idle,
            stop_timeout: config.stop_timeout,
            app: &config.name,
            dir: config.dir.as_os_str(),
            entry: &config.entry,
        };
        let mut argv = launch.argv().into_iter();
        Ok(process::ProcessSpec {
            program: argv.next().unwrap_or_default(),
            args: argv.collect(),
            dir: config.dir.clone(),
            env: self.environment(),
            account: self.account.map(|account| account.name.clone()),
            group: self.group.map(|group| group.name().to_owned()),
            inherited_fds: vec![bundle, control],
            placed_fds: Vec::new(),
            sandbox: process_sandbox(config),
            access: access::of(config),
            app: config.name.clone(),
        })
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
        let surroundings =
            (self.config.kind == AppKind::Rack).then(|| ("RACK_ENV".into(), self.rack_env()));
        let own = self.config.env.iter().map(|(k, v)| (k.into(), v.into()));
        let house = house.into_iter().chain(account_variables(self.account));
        let temporary = access::temporary_folder(self.config);
        let house = house.chain(surroundings).chain(temporary);
        house.chain(own).collect()
    }

    /// What Ruby code asks where it is (`RACK_ENV`): as it was told by any of the usual names, else
    /// in production, or in development.
    fn rack_env(&self) -> OsString {
        let said = ["RACK_ENV", "RAILS_ENV", "APP_ENV"]
            .into_iter()
            .find_map(|name| {
                let own = self.config.env.get(name).map(OsString::from);
                own.or_else(|| std::env::var_os(name))
                    .filter(|said| !said.is_empty())
            });
        said.unwrap_or_else(|| match self.is_development {
            true => "development".into(),
            false => "production".into(),
        })
    }
}

/// The variables of a process that runs as a user of its own.
pub(super) fn account_variables(
    account: Option<&Account>,
) -> impl Iterator<Item = (OsString, OsString)> {
    let variables = account.map(Account::env_vars).unwrap_or_default();
    (variables.into_iter()).map(|(name, value)| (name.into(), value.into()))
}

/// What has the requests of an application in progress, when threads have not.
fn reactor_name(config: &config::App) -> Option<&'static str> {
    match config.concurrency {
        Concurrency::Gevent => Some("gevent"),
        _ if config.has_reactor() => Some("tasks"),
        Concurrency::Threads | Concurrency::Tasks => None,
    }
}

impl Executor {
    pub(super) fn admit_slots(&mut self, worker: WorkerId) {
        let idle_threads = self.idle_threads();
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        let (pid, generation) = (child.pid, child.generation);
        let ProcessRole::Worker(slots) = &mut child.role else {
            return;
        };
        let mut files = None;
        let mut room = 1;
        if let Some((channel, of_bodies)) = slots.reactor_sockets.take()
            && self.config.has_reactor()
        {
            // What was there for threads is closed.
            slots.sockets = vec![channel];
            slots.spare_sockets.clear();
            files = Some(of_bodies);
            room = self.config.max_concurrent;
        }
        let threads_min = self.config.min_threads;
        let plain = slots.sockets.drain(..).enumerate();
        let plain = plain.map(|(number, socket)| match number < threads_min {
            true => (socket, room),
            false => (socket, 0),
        });
        let spare = slots.spare_sockets.drain(..).map(|socket| (socket, 0));
        for (socket, capacity) in plain.chain(spare) {
            let home = self.next_loop % self.loops.len();
            self.next_loop += 1;
            let spec = SlotSpec {
                generation,
                group: worker.0,
                loop_index: home,
                capacity,
            };
            let now = clock::now();
            let (slot, mailbox) = self.shared.dispatch.add_slot(now, spec, &slots.stats);
            slots.driven_slots.push((slot, Arc::clone(&mailbox)));
            slots.active_drivers += 1;
            let (app, inputs) = (Arc::clone(&self.shared), self.inputs.clone());
            let files = files.take();
            self.loops[home].spawn(async move {
                let end = match (Stream::new(socket), files) {
                    (Ok(stream), None) => {
                        SlotDriver::new(app, slot, mailbox, pid, stream).run().await
                    }
                    (Ok(stream), Some(files)) => {
                        let driver = ChannelDriver::new(app, slot, mailbox, pid, stream, files);
                        driver.run().await
                    }
                    (Err(error), _) => {
                        let now = clock::now();
                        app.dispatch.remove_slot(now, slot, &mailbox, Vec::new());
                        DriverEnd::ProtocolBroken(error.to_string())
                    }
                };
                // The executor ends only when all processes have.
                let _ = inputs
                    .send(ExecutorInput::DriverEnded { worker, end })
                    .await;
            });
        }
        let dispatch = &self.shared.dispatch;
        dispatch.reserve_slots(clock::now(), &slots.stats, idle_threads);
    }

    /// Has as many threads of each worker take requests as the supervisor says. Busy threads stay
    /// as they are until the next call.
    pub(super) fn apply_thread_count(&self) {
        if !self.config.has_spare_threads() {
            return;
        }
        for child in self.children.values() {
            if let ProcessRole::Worker(slots) = &child.role
                && !child.is_retiring
                && !slots.driven_slots.is_empty()
            {
                let dispatch = &self.shared.dispatch;
                dispatch.reserve_slots(clock::now(), &slots.stats, self.idle_threads());
            }
        }
    }

    /// Threads of each worker that are to take nothing.
    fn idle_threads(&self) -> usize {
        let config = &self.config;
        config
            .threads
            .saturating_sub(self.supervisor.threads_per_worker())
    }

    /// Takes the worker's slots out of the queue; `true` when nothing is in progress.
    pub(super) fn retire_slots(&mut self, worker: WorkerId) -> bool {
        let Some(slots) = worker_slots(&mut self.children, worker) else {
            return false;
        };
        for (slot, mailbox) in &slots.driven_slots {
            self.shared.dispatch.retire_slot(*slot, mailbox);
        }
        slots.is_closed()
    }

    /// Ends the drivers of an ended process, even if other processes hold its sockets.
    pub(super) fn lose_slots(&mut self, worker: WorkerId) {
        let slots = worker_slots(&mut self.children, worker).map(|slots| &slots.driven_slots);
        for (slot, mailbox) in slots.into_iter().flatten() {
            self.shared.dispatch.mark_lost(*slot, mailbox);
        }
    }

    pub(super) fn handle_driver_ended(&mut self, worker: WorkerId, end: DriverEnd) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        let (pid, is_retiring) = (child.pid, child.is_retiring);
        let ProcessRole::Worker(slots) = &mut child.role else {
            return;
        };
        slots.active_drivers -= 1;
        let is_last = slots.is_closed();
        match end {
            DriverEnd::Retired => {}
            DriverEnd::WorkerDied if is_retiring => {}
            DriverEnd::WorkerDied => {
                // Its exit is about to be seen; a worker that only lost a thread is replaced.
                self.schedule_input(
                    clock::now() + SLOT_CLOSED_TIMEOUT,
                    ExecutorInput::SlotClosed { worker },
                );
                return;
            }
            DriverEnd::ProtocolBroken(why) => {
                log::error!(
                    "{}[{pid}]: broke the worker protocol: {why}",
                    self.shared.name
                );
                return self.handle_event(SupervisorEvent::ProtocolBroken { worker });
            }
            DriverEnd::TimedOut => {
                slots.is_stuck = true;
                return self.handle_stuck(worker, is_last);
            }
        }
        if slots.is_stuck && is_last {
            self.schedule_stuck_kill(worker);
        } else if is_retiring && is_last {
            self.handle_idle(worker);
        }
    }
}

fn worker_slots(
    children: &mut HashMap<WorkerId, ChildProcess>,
    worker: WorkerId,
) -> Option<&mut WorkerSlots> {
    match &mut children.get_mut(&worker)?.role {
        ProcessRole::Worker(slots) => Some(slots),
        ProcessRole::Server(_) => None,
    }
}
