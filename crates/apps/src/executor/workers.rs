//! Processes that are workers: the bundled scripts under the application's own interpreter.
//!
//! The executor's hand for `wsgi`, `asgi` and `rack`. A worker gets a control socket, on which it says
//! that it is ready or why not, and one socket a thread; once admitted each of these is a slot of the
//! queue, driven on a loop (`slot`). One with a reactor has a channel for all its requests instead, one
//! slot with room for many (`channel`). What must stay true: a slot whose worker is gone leaves the queue at
//! once; a worker that lost a thread or is stuck in a request is replaced.

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
use super::control::{Control, Line};
use super::follow::Readiness;
use super::{Child, Executor, Input, Prepared, Role};
use crate::channel::ChannelDriver;
use crate::dispatch::{Ledger, Mailbox};
use crate::embed::{self, Launch, Sockets};
use crate::slot::{Driver, End};
use crate::supervisor::{Event, WorkerId};

/// How long a worker may live on after it closed a slot unasked.
const SLOT_GONE: Duration = Duration::from_secs(1);

/// What a worker offers: a slot for each of its threads.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Our ends of their sockets, until it is admitted.
    sockets: Vec<OwnedFd>,
    /// Of a reactor: its channel, and where it gets bodies that are files. A worker that has to find out
    /// whether it is one has these beside the others, until it is admitted.
    reactor: Option<(OwnedFd, OwnedFd)>,
    /// Our ends of its spare slots' sockets (`io_threads`), until it is admitted.
    spare: Vec<OwnedFd>,
    /// What all of them have in common.
    ledger: Arc<Ledger>,
    slots: Vec<(SlotId, Arc<Mailbox>)>,
    drivers: usize,
    /// A request timed out: it is killed once its other slots have finished.
    is_stuck: bool,
}

impl Slots {
    /// Whether no slot is being driven: then the worker's sockets are closed.
    pub(super) fn is_closed(&self) -> bool {
        self.drivers == 0
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub(super) fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        let mailboxes = self.slots.iter().map(|(_, mailbox)| Arc::clone(mailbox));
        mailboxes.collect()
    }
}

/// Sockets of a worker that is about to be started: our ends, and its own.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) slots: Slots,
    pub(super) sockets: Vec<(SocketKind, OwnedFd)>,
}

/// Starting a worker.
impl Executor {
    /// Makes the sockets of a worker.
    pub(super) fn offer(&self) -> Result<Offer, String> {
        let mut sockets = Vec::new();
        let mut pair = |kind: SocketKind| -> Result<OwnedFd, String> {
            let pair = net::worker_socket_pair().map_err(|error| format!("socketpair: {error}"))?;
            sockets.push((kind, pair.1));
            Ok(pair.0)
        };
        let held_back = (self.config.threads).saturating_sub(self.config.threads_min);
        let mut slots = Slots {
            ledger: Arc::new(Ledger::holding_back(held_back)),
            ..Slots::default()
        };
        let is_open = self.is_kind_open();
        if self.config.has_reactor() || is_open {
            let channel = pair(SocketKind::Channel)?;
            slots.reactor = Some((channel, pair(SocketKind::Files)?));
        }
        if !self.config.has_reactor() || is_open {
            for _ in 0..self.config.threads {
                slots.sockets.push(pair(SocketKind::Slot)?);
            }
            for _ in 0..self.config.io_threads {
                slots.spare.push(pair(SocketKind::Spare)?);
            }
        }
        Ok(Offer { slots, sockets })
    }

    pub(super) fn prepare_worker(&self) -> Result<Prepared, String> {
        let Offer { slots, sockets } = self.offer()?;
        let numbers = |wanted: SocketKind| -> Vec<i32> {
            let of_kind = sockets.iter().filter(|(kind, _)| *kind == wanted);
            of_kind.map(|(_, socket)| socket.as_raw_fd()).collect()
        };
        let plain = numbers(SocketKind::Slot);
        let spare = numbers(SocketKind::Spare);
        let reactor = (numbers(SocketKind::Channel), numbers(SocketKind::Files));
        let sockets_said = match (reactor.0.first(), reactor.1.first()) {
            (Some(channel), Some(files)) if !plain.is_empty() => Sockets::Either {
                slots: &plain,
                spare: &spare,
                channel: *channel,
                files: *files,
            },
            (Some(channel), Some(files)) => Sockets::Reactor {
                channel: *channel,
                files: *files,
            },
            _ => Sockets::Slots {
                slots: &plain,
                spare: &spare,
            },
        };
        let (mut launch, control, line) = self.prepare(sockets_said, false)?;
        launch
            .inherited_fds
            .extend(sockets.into_iter().map(|(_, s)| s));
        Ok(Prepared {
            launch,
            role: Role::Worker(slots),
            readiness: Readiness::Control(line),
            control: Some(control),
            reserved: None,
        })
    }

    pub(super) fn prepare_template(&self) -> Result<(process::ProcessSpec, Control, Line), String> {
        let server_pid = std::process::id();
        let forks_anyway = self.config.preload == Preload::Always;
        let sockets = Sockets::Template {
            server_pid,
            forks_anyway,
        };
        self.prepare(sockets, true)
    }

    /// The command line and all that is inherited but the sockets for requests.
    fn prepare(
        &self,
        sockets: Sockets<'_>,
        is_template: bool,
    ) -> Result<(process::ProcessSpec, Control, Line), String> {
        let say = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let (socket, theirs) = net::worker_socket_pair().map_err(say("socketpair"))?;
        let (control, line) = Control::open(socket, is_template).map_err(say("control socket"))?;
        let command = WorkerCommand {
            config: &self.config,
            account: self.account.as_ref(),
            group: self.shared.group.as_deref(),
            interface_is_guess: self.is_kind_open(),
            is_development: self.is_development,
        };
        Ok((command.launch(sockets, theirs)?, control, line))
    }

    pub(super) fn reactor(&self) -> Option<&'static str> {
        reactor(&self.config)
    }
}

/// The walls around a process of an application, unless it has none.
pub(super) fn sandbox(config: &config::App) -> Option<Sandbox> {
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
    /// The command line without its program, and all that is inherited but the sockets for requests;
    /// `control` is the process's end of its control socket.
    ///
    /// # Errors
    /// A sentence: descriptors ran out.
    pub(super) fn launch(
        &self,
        sockets: Sockets<'_>,
        control: OwnedFd,
    ) -> Result<process::ProcessSpec, String> {
        let config = self.config;
        let dialect = match config.kind {
            AppKind::Rack => Dialect::Ruby,
            _ => Dialect::Python,
        };
        let bundle = file::memfd_with_content("penstock-worker", &embed::bundle(dialect))
            .map_err(|error| format!("memfd: {error}"))?;
        let launch = Launch {
            dialect,
            // Found later: it lies on a disk.
            interpreter: OsStr::new(""),
            bundle_fd: bundle.as_raw_fd(),
            control_fd: control.as_raw_fd(),
            sockets,
            interface: config.kind.as_str(),
            interface_is_guess: self.interface_is_guess,
            reactor: reactor(config),
            threads: config.threads,
            collects_when_idle: config.collect_when_idle,
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
            sandbox: sandbox(config),
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
            (self.config.kind == AppKind::Rack).then(|| ("RACK_ENV".into(), self.surroundings()));
        let own = self.config.env.iter().map(|(k, v)| (k.into(), v.into()));
        let house = house.into_iter().chain(account_variables(self.account));
        let temporary = access::temporary_folder(self.config);
        let house = house.chain(surroundings).chain(temporary);
        house.chain(own).collect()
    }

    /// What Ruby code asks where it is (`RACK_ENV`): as it was told by any of the usual names, else in
    /// production, or in development.
    fn surroundings(&self) -> OsString {
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

/// Who a process is that runs as a user of its own.
pub(super) fn account_variables(
    account: Option<&Account>,
) -> impl Iterator<Item = (OsString, OsString)> {
    let variables = account.map(Account::env_vars).unwrap_or_default();
    (variables.into_iter()).map(|(name, value)| (name.into(), value.into()))
}

/// What has the requests of an application in progress, when threads have not.
fn reactor(config: &config::App) -> Option<&'static str> {
    match config.concurrency {
        Concurrency::Gevent => Some("gevent"),
        _ if config.has_reactor() => Some("tasks"),
        Concurrency::Threads | Concurrency::Tasks => None,
    }
}

/// Its slots.
impl Executor {
    pub(super) fn admit_slots(&mut self, worker: WorkerId) {
        let idle_threads = self.idle_threads();
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        let (pid, generation) = (child.pid, child.generation);
        let Role::Worker(slots) = &mut child.role else {
            return;
        };
        let mut files = None;
        let mut room = 1;
        if let Some((channel, of_bodies)) = slots.reactor.take()
            && self.config.has_reactor()
        {
            // What was there for threads is closed.
            slots.sockets = vec![channel];
            slots.spare.clear();
            files = Some(of_bodies);
            room = self.config.in_progress_max;
        }
        let threads_min = self.config.threads_min;
        let plain = slots.sockets.drain(..).enumerate();
        let plain = plain.map(|(number, socket)| match number < threads_min {
            true => (socket, room),
            false => (socket, 0),
        });
        let spare = slots.spare.drain(..).map(|socket| (socket, 0));
        for (socket, capacity) in plain.chain(spare) {
            let home = self.next_home % self.loops.len();
            self.next_home += 1;
            let spec = SlotSpec {
                generation,
                group: worker.0,
                loop_index: home,
                capacity,
            };
            let now = clock::now();
            let (slot, mailbox) = self.shared.dispatch.add_slot(now, spec, &slots.ledger);
            slots.slots.push((slot, Arc::clone(&mailbox)));
            slots.drivers += 1;
            let (app, inputs) = (Arc::clone(&self.shared), self.inputs.clone());
            let files = files.take();
            self.loops[home].spawn(async move {
                let end = match (Stream::new(socket), files) {
                    (Ok(stream), None) => Driver::new(app, slot, mailbox, pid, stream).run().await,
                    (Ok(stream), Some(files)) => {
                        let driver = ChannelDriver::new(app, slot, mailbox, pid, stream, files);
                        driver.run().await
                    }
                    (Err(error), _) => {
                        let now = clock::now();
                        app.dispatch.remove(now, slot, &mailbox, Vec::new());
                        End::Broken(error.to_string())
                    }
                };
                // The executor ends only when all processes have.
                let _ = inputs.send(Input::DriverEnded { worker, end }).await;
            });
        }
        let dispatch = &self.shared.dispatch;
        dispatch.hold_back(clock::now(), &slots.ledger, idle_threads);
    }

    /// Has as many threads of each worker take requests as the supervisor says. What is still at work stays as it is
    /// until the next call.
    pub(super) fn fit_threads(&self) {
        if !self.config.has_spare_threads() {
            return;
        }
        for child in self.children.values() {
            if let Role::Worker(slots) = &child.role
                && !child.is_retiring
                && !slots.slots.is_empty()
            {
                let dispatch = &self.shared.dispatch;
                dispatch.hold_back(clock::now(), &slots.ledger, self.idle_threads());
            }
        }
    }

    /// Threads of each worker that are to take nothing.
    fn idle_threads(&self) -> usize {
        let config = &self.config;
        config.threads.saturating_sub(self.supervisor.threads())
    }

    /// Takes the worker's slots out of the queue; `true` when nothing is in progress.
    pub(super) fn retire_slots(&mut self, worker: WorkerId) -> bool {
        let Some(slots) = slots_of(&mut self.children, worker) else {
            return false;
        };
        for (slot, mailbox) in &slots.slots {
            self.shared.dispatch.retire(*slot, mailbox);
        }
        slots.is_closed()
    }

    /// Ends the drivers of a process that is gone, whoever else still holds its sockets.
    pub(super) fn lose_slots(&mut self, worker: WorkerId) {
        let slots = slots_of(&mut self.children, worker).map(|slots| &slots.slots);
        for (slot, mailbox) in slots.into_iter().flatten() {
            self.shared.dispatch.lose(*slot, mailbox);
        }
    }

    pub(super) fn handle_driver_ended(&mut self, worker: WorkerId, end: End) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        let (pid, is_retiring) = (child.pid, child.is_retiring);
        let Role::Worker(slots) = &mut child.role else {
            return;
        };
        slots.drivers -= 1;
        let is_last = slots.is_closed();
        match end {
            End::Retired => {}
            End::Died if is_retiring => {}
            End::Died => {
                // Its exit is about to be seen; a worker that only lost a thread is replaced.
                self.later(clock::now() + SLOT_GONE, Input::SlotGone { worker });
                return;
            }
            End::Broken(why) => {
                log::error!(
                    "{}[{pid}]: broke the worker protocol: {why}",
                    self.shared.name
                );
                return self.event(Event::ProtocolBroken { worker });
            }
            End::TimedOut => {
                slots.is_stuck = true;
                return self.handle_stuck(worker, is_last);
            }
        }
        if slots.is_stuck && is_last {
            self.kill_stuck(worker);
        } else if is_retiring && is_last {
            self.idle(worker);
        }
    }
}

fn slots_of(children: &mut HashMap<WorkerId, Child>, worker: WorkerId) -> Option<&mut Slots> {
    match &mut children.get_mut(&worker)?.role {
        Role::Worker(slots) => Some(slots),
        Role::Server(_) => None,
    }
}
