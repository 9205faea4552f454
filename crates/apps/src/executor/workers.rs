//! Processes that are workers: the bundled scripts under the application's own interpreter.
//!
//! The executor's hand for `wsgi` and `rack`. A worker gets a control socket, on which it says that it
//! is ready or why not, and one socket a thread; once admitted each of these is a slot of the queue,
//! driven on a loop (`slot`). What must stay true: a slot whose worker is gone leaves the queue at
//! once; a worker that lost a thread or is stuck in a request is replaced.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use penstock_queue::{SlotId, SlotSpec};
use penstock_runtime::{Stream, clock};
use penstock_sys::{file, net, process};
use penstock_wire::{ControlDecoder, ControlEvent, Dialect};
use tokio::sync::mpsc;

use super::{Child, ControlMessage, Executor, Input, Prepared, Readiness, Role};
use crate::dispatch::Mailbox;
use crate::embed::{self, Launch};
use crate::interpreter;
use crate::slot::{Driver, End};
use crate::supervisor::{Event, WorkerId};

/// How long a worker may live on after it closed a slot unasked.
const SLOT_GONE: Duration = Duration::from_secs(1);

/// What a worker offers: a slot for each of its threads.
#[derive(Debug)]
pub(super) struct Slots {
    /// Our ends of their sockets, until it is admitted.
    sockets: Vec<OwnedFd>,
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

    pub(super) fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        let mailboxes = self.slots.iter().map(|(_, mailbox)| Arc::clone(mailbox));
        mailboxes.collect()
    }
}

/// Starting a worker.
impl Executor {
    pub(super) fn prepare_worker(&self, dialect: Dialect) -> Result<Prepared, String> {
        let interpreter = interpreter::find(&self.config)?;
        let say = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let (control, control_theirs) = net::worker_pair().map_err(say("socketpair"))?;
        let bundle =
            file::in_memory("penstock-worker", &embed::bundle(dialect)).map_err(say("memfd"))?;
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
            dialect,
            interpreter: interpreter.as_os_str(),
            bundle_fd,
            control_fd,
            slot_fds: &slot_fds,
            app: &self.config.name,
            dir: self.config.dir.as_os_str(),
            entry: &self.config.entry,
        };
        let mut argv = launch.argv().into_iter();
        let launch = process::Launch {
            program: argv.next().unwrap_or_default(),
            args: argv.collect(),
            dir: self.config.dir.clone(),
            env: self.environment(),
            inherit,
            place: Vec::new(),
        };
        let slots = Slots {
            sockets,
            slots: Vec::new(),
            drivers: 0,
            is_stuck: false,
        };
        Ok(Prepared {
            launch,
            role: Role::Worker(slots),
            readiness: Readiness::Control(control),
            reserved: None,
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
        let own = self.config.env.iter().map(|(k, v)| (k.into(), v.into()));
        house.into_iter().chain(own).collect()
    }
}

/// Its slots.
impl Executor {
    pub(super) fn admit_slots(&mut self, worker: WorkerId) {
        let Some(child) = self.children.get_mut(&worker) else {
            return;
        };
        let (pid, generation) = (child.pid, child.generation);
        let Role::Worker(slots) = &mut child.role else {
            return;
        };
        for socket in slots.sockets.drain(..) {
            let home = self.next_home % self.loops.len();
            self.next_home += 1;
            let spec = SlotSpec {
                generation,
                home,
                capacity: 1,
            };
            let (slot, mailbox) = self.shared.dispatch.add_slot(clock::now(), spec);
            slots.slots.push((slot, Arc::clone(&mailbox)));
            slots.drivers += 1;
            let (app, inputs) = (Arc::clone(&self.shared), self.inputs.clone());
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
        if slots.is_stuck && is_last {
            self.event(Event::ResponseTimedOut { worker });
        } else if is_retiring && is_last {
            self.event(Event::Idle { worker });
        }
    }
}

fn slots_of(children: &mut HashMap<WorkerId, Child>, worker: WorkerId) -> Option<&mut Slots> {
    match &mut children.get_mut(&worker)?.role {
        Role::Worker(slots) => Some(slots),
        Role::Server(_) => None,
    }
}

/// Reads a worker's control socket to its end, or to the first thing that it must not say.
pub(super) async fn read_control(control: OwnedFd, worker: WorkerId, inputs: &mpsc::Sender<Input>) {
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
