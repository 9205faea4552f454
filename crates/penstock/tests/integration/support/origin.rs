//! A scripted back end that sends exact bytes and records its requests.
//!
//! Proxy tests put it behind the real binary. `script` defines the steps of an exchange,
//! `connection` carries the bytes; this file has listeners and their records. Pauses are gates that
//! the test opens.
//!
//! # Invariants
//!
//! - A request that is malformed, framed twice or not meant for one host fails the test, as the
//!   proxy encodes all of it itself.
//! - No thread or socket outlives the `Origin`.

mod connection;
mod script;
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType};

use super::{PATIENCE, eventually};
use connection::{Listener, OriginConnection, OriginStream};
pub(crate) use script::{Script, Step, head_of, last_page, page};

/// A request as an origin received it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedRequest {
    /// The number of its connection, from 0.
    pub(crate) connection: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    /// The bytes of its head, with the empty line.
    pub(crate) head: Vec<u8>,
    /// Names as sent, values as Latin-1.
    pub(crate) fields: Vec<(String, String)>,
    /// Its body, decoded, as far as it was read.
    pub(crate) body: Vec<u8>,
    /// The trailers of a chunked body.
    pub(crate) trailers: Vec<(String, String)>,
    /// Whether the body was read to its end.
    pub(crate) complete: bool,
}

impl ReceivedRequest {
    /// The value of a field; names are case-insensitive; several values are joined by a bar.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let found: Vec<&str> = self
            .fields
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect();
        (!found.is_empty()).then(|| found.join(" | "))
    }

    /// `METHOD TARGET`.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.target)
    }
}

/// A listening origin; on drop it closes all its connections.
pub(crate) struct Origin {
    shared: Arc<SharedOrigin>,
    address: Address,
    listener: Arc<Listener>,
    acceptor: Option<JoinHandle<()>>,
}

/// Where an origin listens, as a configuration writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(u16),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(port) => write!(f, "127.0.0.1:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The state that the threads of an origin share.
struct SharedOrigin {
    behaviour: OriginBehaviour,
    state: Mutex<OriginState>,
    changed: Condvar,
}

/// How connections are handled.
enum OriginBehaviour {
    /// Requests are read, and the script made for each one responds.
    Http(Box<dyn Fn(&ReceivedRequest) -> Script + Send + Sync>),
    /// No request is read: these steps, once per connection.
    Raw(Vec<Step>),
}

#[derive(Default)]
struct OriginState {
    seen: Vec<ReceivedRequest>,
    /// All received bytes, by connection.
    received: Vec<Vec<u8>>,
    /// The open connections, to be closed with the origin.
    open: HashMap<usize, OriginStream>,
    /// Remaining passes by gate; `usize::MAX` is open for good.
    gates: HashMap<String, usize>,
    /// How many wait at each gate.
    waiting: HashMap<String, usize>,
    in_progress: usize,
    most_in_progress: usize,
    /// Malformed requests.
    wrong: Vec<String>,
    stopped: bool,
}

impl Origin {
    /// Listens on a free port and responds to every request by the `script` for its head.
    pub(crate) fn start(
        script: impl Fn(&ReceivedRequest) -> Script + Send + Sync + 'static,
    ) -> Self {
        ReservedPort::new().listen(script)
    }

    /// [`Origin::start`] on a Unix socket.
    pub(crate) fn start_unix(
        path: &Path,
        script: impl Fn(&ReceivedRequest) -> Script + Send + Sync + 'static,
    ) -> Self {
        let listener = Listener::Unix(UnixListener::bind(path).unwrap());
        let address = Address::Unix(path.to_owned());
        Self::over(listener, address, OriginBehaviour::Http(Box::new(script)))
    }

    /// An origin that responds with its name.
    pub(crate) fn named(name: &'static str) -> Self {
        Self::start(move |seen| page(seen, name))
    }

    /// An origin that reads no requests: each connection gets these steps.
    pub(crate) fn raw(steps: Vec<Step>) -> Self {
        ReservedPort::new().serve(OriginBehaviour::Raw(steps))
    }

    fn over(listener: Listener, address: Address, behaviour: OriginBehaviour) -> Self {
        let shared = Arc::new(SharedOrigin {
            behaviour,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let listener = Arc::new(listener);
        let (accepting, accepted) = (Arc::clone(&listener), Arc::clone(&shared));
        let acceptor = std::thread::spawn(move || accept_all(&accepting, &accepted));
        Self {
            shared,
            address,
            listener,
            acceptor: Some(acceptor),
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Address {
        self.address.clone()
    }

    /// The requests with received heads, in order.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.lock().seen.clone()
    }

    /// `METHOD TARGET` of each request.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lock().seen.iter().map(ReceivedRequest::line).collect()
    }

    /// The last request; waits for the end of its body.
    pub(crate) fn last(&self) -> ReceivedRequest {
        eventually(PATIENCE, "the origin has read a request whole", || {
            self.lock().seen.last().filter(|s| s.complete).cloned()
        })
    }

    /// Waits for the heads of this many requests.
    pub(crate) fn wait_requests(&self, count: usize) {
        let what = format!("{count} requests at the origin");
        eventually(PATIENCE, &what, || self.lock().seen.len() >= count);
    }

    /// How many connections were ever made to it.
    pub(crate) fn connections(&self) -> usize {
        self.lock().received.len()
    }

    /// All bytes received on a connection so far.
    pub(crate) fn received(&self, connection: usize) -> Vec<u8> {
        let state = self.lock();
        state.received.get(connection).cloned().unwrap_or_default()
    }

    /// Whether a connection is still open on this side.
    pub(crate) fn is_open(&self, connection: usize) -> bool {
        self.lock().open.contains_key(&connection)
    }

    /// Waits for the end of a connection.
    pub(crate) fn wait_closed(&self, connection: usize) {
        let what = format!("connection {connection} of the origin ends");
        eventually(PATIENCE, &what, || {
            self.connections() > connection && !self.is_open(connection)
        });
    }

    /// The maximum of concurrent requests so far.
    pub(crate) fn most_in_progress(&self) -> usize {
        self.lock().most_in_progress
    }

    /// Opens a gate for good.
    pub(crate) fn open_gate(&self, gate: &str) {
        self.lock().gates.insert(gate.to_owned(), usize::MAX);
        self.shared.changed.notify_all();
    }

    /// Lets one exchange pass a gate, now or when it arrives.
    pub(crate) fn release_gate_once(&self, gate: &str) {
        *self.lock().gates.entry(gate.to_owned()).or_default() += 1;
        self.shared.changed.notify_all();
    }

    /// Waits until this many wait at a gate.
    pub(crate) fn wait_at(&self, gate: &str, count: usize) {
        let what = format!("{count} wait at gate {gate}");
        eventually(PATIENCE, &what, || {
            self.lock().waiting.get(gate).copied().unwrap_or_default() == count
        });
    }

    /// Stops listening and closes every connection; the port stays reserved and refuses.
    pub(crate) fn stop_listening(mut self) -> ReservedPort {
        let Address::Tcp(port) = self.address else {
            panic!("only a port can be reserved");
        };
        self.stop();
        ReservedPort::at(port)
    }

    fn stop(&mut self) {
        {
            let mut state = self.lock();
            state.stopped = true;
            for link in state.open.values() {
                link.cut();
            }
        }
        self.shared.changed.notify_all();
        self.listener.stop();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // The listening socket itself must be closed before the port can be bound again.
        self.listener = Arc::new(Listener::None);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OriginState> {
        self.shared.state.lock().unwrap()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stop();
        let wrong = std::mem::take(&mut self.lock().wrong);
        if !wrong.is_empty() && !std::thread::panicking() {
            panic!("the origin was sent what is no request: {wrong:#?}");
        }
    }
}

fn accept_all(listener: &Listener, shared: &Arc<SharedOrigin>) {
    while let Some(link) = listener.accept() {
        let number = {
            let mut state = shared.state.lock().unwrap();
            if state.stopped {
                return;
            }
            let number = state.received.len();
            state.received.push(Vec::new());
            state.open.insert(number, link.duplicate());
            number
        };
        let shared = Arc::clone(shared);
        std::thread::spawn(move || OriginConnection::new(link, number, shared).run());
    }
}

impl SharedOrigin {
    /// Waits at a gate; false if the origin stops, or the gate is not opened in time.
    fn pass_gate(&self, gate: &str) -> bool {
        let deadline = Instant::now() + PATIENCE * 2;
        let mut state = self.state.lock().unwrap();
        *state.waiting.entry(gate.to_owned()).or_default() += 1;
        let passed = loop {
            match state.gates.get_mut(gate) {
                Some(&mut usize::MAX) => break true,
                Some(left @ 1..) => {
                    *left -= 1;
                    break true;
                }
                _ => {}
            }
            let now = Instant::now();
            if state.stopped || now >= deadline {
                break false;
            }
            state = self.changed.wait_timeout(state, deadline - now).unwrap().0;
        };
        *state.waiting.entry(gate.to_owned()).or_default() -= 1;
        passed
    }

    fn begin(&self, seen: ReceivedRequest) -> usize {
        let mut state = self.state.lock().unwrap();
        state.in_progress += 1;
        state.most_in_progress = state.most_in_progress.max(state.in_progress);
        state.seen.push(seen);
        state.seen.len() - 1
    }
}

/// A port reserved for this test that refuses connections until something listens on it.
pub(crate) struct ReservedPort {
    socket: OwnedFd,
    port: u16,
}

impl ReservedPort {
    pub(crate) fn new() -> Self {
        Self::at(0)
    }

    fn at(port: u16) -> Self {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        let wanted = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        rustix::net::bind(&socket, &wanted).unwrap();
        let bound = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        Self {
            socket,
            port: bound.port(),
        }
    }

    pub(crate) fn address(&self) -> Address {
        Address::Tcp(self.port)
    }

    /// Listens from now on.
    pub(crate) fn listen(
        self,
        script: impl Fn(&ReceivedRequest) -> Script + Send + Sync + 'static,
    ) -> Origin {
        self.serve(OriginBehaviour::Http(Box::new(script)))
    }

    fn serve(self, behaviour: OriginBehaviour) -> Origin {
        rustix::net::listen(&self.socket, 1024).unwrap();
        let address = self.address();
        let listener = Listener::Tcp(TcpListener::from(self.socket));
        Origin::over(listener, address, behaviour)
    }

    /// Listens so that a connection is neither made nor refused: the backlog is full.
    pub(crate) fn fill_backlog(self) -> UnresponsivePort {
        rustix::net::listen(&self.socket, 0).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.port);
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let fill = || {
            let family = AddressFamily::INET;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
            let _ = rustix::net::connect(socket.as_fd(), &to);
            socket
        };
        let _filling = (0..4).map(|_| fill()).collect();
        UnresponsivePort {
            _socket: self.socket,
            _filling,
            port: self.port,
        }
    }
}

/// A port on which connecting never ends.
pub(crate) struct UnresponsivePort {
    _socket: OwnedFd,
    _filling: Vec<OwnedFd>,
    port: u16,
}

impl UnresponsivePort {
    pub(crate) fn address(&self) -> Address {
        Address::Tcp(self.port)
    }
}
