//! The control socket of a process: its messages become the executor's inputs, the executor's
//! orders are sent.
//!
//! One task for each process that speaks the worker protocol ([`serve_control`]); the executor
//! holds its [`ControlHandle`]. For a forked worker [`await_hello`] runs first, which learns its
//! process id.
//!
//! # Invariants
//! - The socket is closed when the process's `ControlHandle` is dropped, which ends the process.
//! - A process that does not read delays nothing else.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use penstock_config::AppKind;
use penstock_runtime::{Stream, clock};
use penstock_sys::net;
use penstock_wire::control::SocketKind;
use penstock_wire::{ControlDecoder, ControlEvent, control};
use tokio::sync::mpsc;

use super::{ControlMessage, ExecutorInput, ProcessKey};
use crate::supervisor::WorkerId;

/// Orders that may wait for a process to read them: more than a template gets at once.
const MAX_ORDERS: usize = 256;

/// How long a template's FORK_FAILED may take to be read here after that fork's socket has closed.
const FORK_FAILURE_WAIT: Duration = Duration::from_millis(500);

/// How long a process may take to read an order.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The executor's handle of a process's control socket. Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct ControlHandle {
    orders: mpsc::Sender<ControlOrder>,
}

#[derive(Debug)]
struct ControlOrder {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// From then on READY may come again, and a template's messages.
    promotes: bool,
}

#[derive(Debug)]
pub(super) struct ControlConnection {
    stream: Stream,
    decoder: ControlDecoder,
    received: Vec<u8>,
    orders: mpsc::Receiver<ControlOrder>,
}

impl ControlHandle {
    /// Our side of a control socket.
    ///
    /// # Errors
    /// When the kernel refuses to watch it.
    pub(super) fn open(
        socket: OwnedFd,
        is_template: bool,
    ) -> io::Result<(Self, ControlConnection)> {
        let decoder = if is_template {
            ControlDecoder::for_template()
        } else {
            ControlDecoder::new()
        };
        let (orders, inbox) = mpsc::channel(MAX_ORDERS);
        let connection = ControlConnection {
            stream: Stream::new(socket)?,
            decoder,
            received: Vec::new(),
            orders: inbox,
        };
        Ok((Self { orders }, connection))
    }

    /// Has a template fork a worker with these descriptors: control socket, standard output,
    /// standard error. `false` when it reads no orders.
    pub(super) fn order_fork(&self, worker: WorkerId, descriptors: [OwnedFd; 3]) -> bool {
        self.send_order(
            control::encode_fork(worker.0).to_vec(),
            descriptors.into(),
            false,
        )
    }

    /// Gives a forked worker its sockets. `false` when it reads no orders.
    pub(super) fn send_sockets(&self, sockets: Vec<(SocketKind, OwnedFd)>) -> bool {
        let mut rest = sockets.into_iter().peekable();
        loop {
            let part: Vec<_> = rest.by_ref().take(control::MAX_SLOTS_PER_FRAME).collect();
            let (kinds, descriptors): (Vec<_>, Vec<_>) = part.into_iter().unzip();
            let is_last = rest.peek().is_none();
            let is_taken =
                self.send_order(control::encode_slots(&kinds, is_last), descriptors, false);
            if is_last || !is_taken {
                return is_taken;
            }
        }
    }

    /// Asks a worker to become a template. `false` when it reads no orders.
    pub(super) fn order_promotion(&self) -> bool {
        self.send_order(control::encode_promote().to_vec(), Vec::new(), true)
    }

    /// Asks a worker to exit once all its threads have ended. `false` when it reads no orders.
    pub(super) fn order_exit(&self) -> bool {
        self.send_order(control::encode_dismiss().to_vec(), Vec::new(), false)
    }

    fn send_order(&self, bytes: Vec<u8>, descriptors: Vec<OwnedFd>, promotes: bool) -> bool {
        let order = ControlOrder {
            bytes,
            descriptors,
            promotes,
        };
        self.orders.try_send(order).is_ok()
    }
}

/// Waits for a forked worker's HELLO, and sends the executor its process id or why it has none.
pub(super) async fn await_hello(
    mut connection: ControlConnection,
    worker: WorkerId,
    timeout: Duration,
    inputs: mpsc::Sender<ExecutorInput>,
) {
    let hello = clock::timeout(timeout, connection.read_hello()).await;
    let hello = match hello {
        Some(Ok(pid)) => Ok((pid, connection)),
        Some(Err(why)) => {
            // Its template may be about to report why, on a socket of its own.
            clock::sleep(FORK_FAILURE_WAIT).await;
            Err(why)
        }
        None => Err(format!("it did not say hello within {timeout:?}")),
    };
    let call = ExecutorInput::call(move |executor| match hello {
        Ok((pid, connection)) => executor.handle_fork_ready(worker, pid, connection),
        Err(why) => executor.handle_fork_missing(worker, &why),
    });
    // The executor may have ended: then the process ends with its socket.
    let _ = inputs.send(call).await;
}

/// Reads a process's control socket to its end, or to the first message that is not allowed, and
/// sends orders; ends also when its [`ControlHandle`] is dropped.
pub(super) async fn serve_control(
    mut connection: ControlConnection,
    key: ProcessKey,
    inputs: &mpsc::Sender<ExecutorInput>,
) {
    let mut chunk = vec![0; 4096];
    loop {
        while let Some(message) = connection.next_message() {
            let is_broken = matches!(message, ControlMessage::ProtocolBroken(_));
            let sent = inputs.send(ExecutorInput::Control { key, message }).await;
            if is_broken || sent.is_err() {
                return;
            }
        }
        tokio::select! {
            order = connection.orders.recv() => {
                let Some(order) = order else { return };
                if let Err(message) = connection.send_order(order).await {
                    // The executor ends only after the process.
                    let _ = inputs.send(ExecutorInput::Control { key, message }).await;
                    return;
                }
            }
            read = poll_fn(|cx| connection.stream.poll_read(cx, &mut chunk)) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => connection.received.extend_from_slice(&chunk[..count]),
            },
        }
    }
}

impl ControlConnection {
    /// Reads up to HELLO; returns the id of the process that sent it.
    async fn read_hello(&mut self) -> Result<u32, String> {
        let mut chunk = vec![0; 256];
        let mut sender = None;
        loop {
            let read = poll_fn(|cx| {
                self.stream
                    .poll_read_with_sender(cx, &mut chunk, &mut sender)
            });
            match read.await {
                Ok(0) => return Err("it ended before it said hello".to_owned()),
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) => return Err(format!("its control socket: {error}")),
            }
            match self.decoder.decode(&self.received) {
                Ok(None) => {}
                Ok(Some((_, used))) => {
                    self.received.drain(..used);
                    let unknown = || "the kernel does not say which process it is".to_owned();
                    return sender.ok_or_else(unknown);
                }
                Err(error) => return Err(format!("it broke the worker protocol: {error}")),
            }
        }
    }

    async fn send_order(&mut self, order: ControlOrder) -> Result<(), ControlMessage> {
        if order.promotes {
            self.decoder.expect_promotion();
        }
        let descriptors: Vec<_> = order.descriptors.iter().map(AsFd::as_fd).collect();
        let sent = self.stream.send_descriptors(&order.bytes, &descriptors);
        match clock::timeout(READ_TIMEOUT, sent).await {
            Some(Ok(())) => Ok(()),
            // Its end is about to be seen.
            Some(Err(error)) if is_disconnect(&error) => Ok(()),
            Some(Err(error)) => Err(ControlMessage::ProtocolBroken(format!(
                "control socket: {error}"
            ))),
            None => Err(ControlMessage::ProtocolBroken(format!(
                "it read nothing from its control socket for {READ_TIMEOUT:?}"
            ))),
        }
    }

    fn next_message(&mut self) -> Option<ControlMessage> {
        loop {
            let (message, used) = match self.decoder.decode(&self.received) {
                Ok(None) => return None,
                Ok(Some((event, used))) => (parse_control_event(&event), used),
                Err(error) => {
                    self.received.clear();
                    return Some(ControlMessage::ProtocolBroken(error.to_string()));
                }
            };
            self.received.drain(..used);
            if message.is_some() {
                return message;
            }
        }
    }
}

fn is_disconnect(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

fn parse_control_event(event: &ControlEvent<'_>) -> Option<ControlMessage> {
    match event {
        ControlEvent::Hello => None,
        ControlEvent::Ready { json } => {
            let about: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
            let word = |key: &str| about[key].as_str().unwrap_or("?").to_owned();
            let interpreter = format!("{}, {}", word("interpreter"), word("interface"));
            let interface = about["interface"].as_str().unwrap_or_default();
            let kind = match interface.split(' ').next() {
                Some("wsgi") => Some(AppKind::Wsgi),
                Some("asgi") => Some(AppKind::Asgi),
                _ => None,
            };
            Some(ControlMessage::Ready {
                interpreter,
                kind,
                prevents_fork: about["prevents_fork"].as_str().map(str::to_owned),
                leaves_threads: about["leaves_threads"].as_str().map(str::to_owned),
            })
        }
        ControlEvent::BootFailed { traceback } => Some(ControlMessage::BootFailed {
            traceback: (*traceback).to_owned(),
        }),
        ControlEvent::ForkFailed { worker, reason } => Some(ControlMessage::ForkFailed {
            worker: WorkerId(*worker),
            reason: (*reason).to_owned(),
        }),
    }
}

/// A pair of control sockets for a worker that is to be forked: ours reports the sender.
///
/// # Errors
/// `EMFILE` and the like.
pub(super) fn fork_socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = net::worker_socket_pair()?;
    net::enable_sender_credentials(&ours)?;
    Ok((ours, theirs))
}
