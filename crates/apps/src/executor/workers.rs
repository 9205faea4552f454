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

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use penstock_config as config;
use penstock_config::{AppKind, Preload};
use penstock_queue::{SlotId, SlotSpec};
use penstock_runtime::{Stream, clock};
use penstock_sys::account::Account;
use penstock_sys::cgroup::AppCgroup;
use penstock_sys::isolation::Sandbox;
use penstock_sys::{file, net, process};
use penstock_wire::control::SocketKind;

use super::access;
use super::control::{ControlConnection, ControlHandle};
use super::process_task::ReadinessSource;
use super::{ChildProcess, Executor, ExecutorInput, PreparedProcess, ProcessRole};
use crate::dispatch::{Mailbox, WorkerStats};
use crate::driver::{ChannelDriver, DriverEnd, SlotDriver};
use crate::supervisor::{KillReason, SupervisorEvent, WorkerId};
use crate::worker_scripts::{self, LaunchRole, LaunchSockets};

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

    pub(super) fn mailboxes(&self) -> impl Iterator<Item = &Arc<Mailbox>> {
        self.driven_slots.iter().map(|(_, mailbox)| mailbox)
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
            let pair = net::worker_socket_pair().map_err(error_context("socketpair"))?;
            sockets.push((kind, pair.1));
            Ok(pair.0)
        };
        let held_back = (self.config.threads).saturating_sub(self.config.min_threads);
        let mut slots = WorkerSlots {
            stats: Arc::new(WorkerStats::with_standby_slots(held_back)),
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

    pub(super) fn prepare_worker(&self, worker: WorkerId) -> Result<PreparedProcess, String> {
        let WorkerSockets { slots, sockets } = self.create_worker_sockets()?;
        let numbers = |wanted: SocketKind| -> Vec<i32> {
            let of_kind = sockets.iter().filter(|(kind, _)| *kind == wanted);
            of_kind.map(|(_, socket)| socket.as_raw_fd()).collect()
        };
        let (channels, files) = (numbers(SocketKind::Channel), numbers(SocketKind::Files));
        let launch_sockets = LaunchSockets {
            slots: numbers(SocketKind::Slot),
            spare: numbers(SocketKind::Spare),
            reactor: channels.into_iter().zip(files).next(),
        };
        let role = LaunchRole::Worker(launch_sockets, worker.0);
        let (mut launch, control, connection) = self.prepare_launch(&role)?;
        let sockets = sockets.into_iter().map(|(_, socket)| socket);
        launch.inherited_fds.extend(sockets);
        Ok(PreparedProcess {
            launch,
            role: ProcessRole::Worker(slots),
            readiness: ReadinessSource::Control(connection),
            control: Some(control),
            reserved_port: None,
        })
    }

    pub(super) fn prepare_template(
        &self,
    ) -> Result<(process::ProcessSpec, ControlHandle, ControlConnection), String> {
        self.prepare_launch(&LaunchRole::Template {
            ignores_threads: self.config.preload == Preload::Always,
        })
    }

    /// The command line and all that is inherited but the sockets for requests.
    fn prepare_launch(
        &self,
        role: &LaunchRole,
    ) -> Result<(process::ProcessSpec, ControlHandle, ControlConnection), String> {
        WorkerCommand {
            config: &self.config,
            account: self.account.as_ref(),
            cgroup: self.shared.cgroup.as_deref(),
            interface_is_guess: self.is_kind_unknown(),
            is_development: self.is_development,
        }
        .build_process_spec(role)
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
    /// The cgroup that limits it, if any.
    pub(super) cgroup: Option<&'a AppCgroup>,
    pub(super) interface_is_guess: bool,
    pub(super) is_development: bool,
}

impl WorkerCommand<'_> {
    /// The command line without its program, all that is inherited but the sockets for requests,
    /// and our end of the control socket.
    ///
    /// # Errors
    /// A sentence: descriptors ran out.
    pub(super) fn build_process_spec(
        &self,
        role: &LaunchRole,
    ) -> Result<(process::ProcessSpec, ControlHandle, ControlConnection), String> {
        let config = self.config;
        let (socket, control) = net::worker_socket_pair().map_err(error_context("socketpair"))?;
        let is_template = matches!(role, LaunchRole::Template { .. });
        let (handle, connection) =
            ControlHandle::open(socket, is_template).map_err(error_context("control socket"))?;
        let bundle = worker_scripts::encode_script_bundle(worker_scripts::dialect(config));
        let bundle =
            file::memfd_with_content("penstock-worker", &bundle).map_err(error_context("memfd"))?;
        let descriptors = (bundle.as_raw_fd(), control.as_raw_fd());
        let spec = process::ProcessSpec {
            // Found later: it lies on a disk.
            program: OsString::new(),
            args: worker_scripts::worker_args(config, self.interface_is_guess, descriptors, role),
            dir: config.dir.clone(),
            env: self.environment(),
            account: self.account.map(|account| account.name.clone()),
            group: self.cgroup.map(|cgroup| cgroup.name().to_owned()),
            inherited_fds: vec![bundle, control],
            placed_fds: Vec::new(),
            sandbox: process_sandbox(config),
            access: access::access_rules(config),
            app: config.name.clone(),
        };
        Ok((spec, handle, connection))
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        let multiprocess = i32::from(self.config.processes.max > 1);
        let multiprocess = multiprocess.to_string().into();
        let mut env = process_environment(self.config, self.account);
        env.insert(0, ("PENSTOCK_MULTIPROCESS".into(), multiprocess));
        if self.config.kind == AppKind::Rack {
            let name = rack_env(self.config, self.is_development);
            env.insert(0, ("RACK_ENV".into(), name));
        }
        env
    }
}

/// The value of `RACK_ENV`: that of any of the usual variables, else `production`, or `development`.
#[must_use]
pub fn rack_env(config: &config::App, is_development: bool) -> OsString {
    let configured = ["RACK_ENV", "RAILS_ENV", "APP_ENV"]
        .into_iter()
        .find_map(|name| {
            let own = config.env.get(name).map(OsString::from);
            own.or_else(|| std::env::var_os(name))
                .filter(|configured| !configured.is_empty())
        });
    configured.unwrap_or_else(|| match is_development {
        true => "development".into(),
        false => "production".into(),
    })
}

/// The variables of any process of an application; those that its configuration sets are the last,
/// which count.
pub(super) fn process_environment(
    config: &config::App,
    account: Option<&Account>,
) -> Vec<(OsString, OsString)> {
    let mut env = vec![("PENSTOCK_APP".into(), config.name.as_str().into())];
    let account = account.map(Account::env_vars).unwrap_or_default();
    env.extend(
        account
            .into_iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    env.extend(access::temp_dir_variable(config));
    let own = config.env.iter();
    env.extend(own.map(|(name, value)| (name.into(), value.into())));
    env
}

/// Adds what has failed to the error.
pub(super) fn error_context(what: &'static str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

impl Executor {
    pub(super) fn admit_slots(&mut self, worker: WorkerId) {
        let idle_threads = self.idle_threads();
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        let (pid, generation) = (child.pid(), child.process.generation);
        let Some(slots) = child.slots_mut() else {
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
            let loop_index = self.next_loop % self.loops.len();
            self.next_loop += 1;
            let spec = SlotSpec {
                generation,
                group: worker.0,
                loop_index,
                request_capacity: capacity,
            };
            let now = clock::now();
            let (slot, mailbox) = self.shared.dispatch.add_slot(now, spec, &slots.stats);
            slots.driven_slots.push((slot, Arc::clone(&mailbox)));
            slots.active_drivers += 1;
            let (app, inputs) = (Arc::clone(&self.shared), self.inputs.clone());
            let files = files.take();
            self.loops[loop_index].spawn(async move {
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
                let call = ExecutorInput::call(move |it| it.handle_driver_ended(worker, end));
                let _ = inputs.send(call).await;
            });
        }
        let dispatch = &self.shared.dispatch;
        dispatch.reserve_slots(clock::now(), &slots.stats, idle_threads);
    }

    /// Sets how many threads of each worker take requests. Busy threads stay
    /// as they are until the next call.
    pub(super) fn apply_thread_count(&self) {
        if !self.config.has_spare_threads() {
            return;
        }
        for child in self.children.values() {
            if let Some(slots) = child.slots()
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
            .saturating_sub(self.supervisor.threads_per_worker)
    }

    /// Takes the worker's slots out of the queue; `true` when nothing is in progress.
    pub(super) fn retire_slots(&mut self, worker: WorkerId) -> bool {
        let Some(slots) = self.children.get(&worker).and_then(ChildProcess::slots) else {
            return false;
        };
        for (slot, mailbox) in &slots.driven_slots {
            self.shared.dispatch.retire_slot(*slot, mailbox);
        }
        slots.is_closed()
    }

    /// Ends the drivers of an ended process, even if other processes hold its sockets.
    pub(super) fn mark_slots_lost(&mut self, worker: WorkerId) {
        let slots = self.children.get(&worker).and_then(ChildProcess::slots);
        for (slot, mailbox) in slots.iter().flat_map(|slots| &slots.driven_slots) {
            self.shared.dispatch.mark_slot_lost(*slot, mailbox);
        }
    }

    pub(super) fn handle_driver_ended(&mut self, worker: WorkerId, end: DriverEnd) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        let (pid, is_retiring) = (child.pid(), child.is_retiring);
        let Some(slots) = child.slots_mut() else {
            return;
        };
        slots.active_drivers -= 1;
        let is_last = slots.is_closed();
        match end {
            DriverEnd::Retired => {}
            DriverEnd::WorkerDied if is_retiring => {}
            DriverEnd::WorkerDied => {
                // Its exit is about to be seen; a worker that only lost a thread is replaced.
                let at = clock::now() + SLOT_CLOSED_TIMEOUT;
                return self.schedule(at, move |executor| {
                    if executor.children.contains_key(&worker) {
                        let reason = KillReason::ProtocolBroken;
                        executor.handle_event(SupervisorEvent::KillRequested { worker, reason });
                    }
                });
            }
            DriverEnd::ProtocolBroken(why) => {
                log::error!(
                    "{}[{pid}]: broke the worker protocol: {why}",
                    self.shared.name
                );
                return self.handle_event(SupervisorEvent::KillRequested {
                    worker,
                    reason: KillReason::ProtocolBroken,
                });
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
