//! TLS in front of a scripted origin: rustls' buffered server, which relays plaintext.
//!
//! The origin decides what is sent and when; an end or reset of it is one of the front.
//!
//! # Invariants
//!
//! - At most 64 KiB wait in each direction, so that a slow side slows the other.
//! - No thread outlives its connection by more than the patience of the tests.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustls::{ServerConfig, ServerConnection};

use super::{Address, Origin, PATIENCE, TestAuthority};

/// Bytes that wait for the origin.
const MAX_WAITING_BYTES: usize = 64 * 1024;

/// A listener with TLS before an origin.
pub(crate) struct TlsFront {
    port: u16,
    shared: Arc<SharedFront>,
}

struct SharedFront {
    config: Arc<ServerConfig>,
    origin: u16,
    /// Whether an end of the origin is announced by a close_notify.
    announces_end: bool,
    accepted: AtomicUsize,
    is_over: AtomicBool,
}

impl TlsFront {
    /// Listens with a certificate for `name`.
    pub(crate) fn before(origin: &Origin, authority: &TestAuthority, name: &str) -> Self {
        Self::start(origin, authority, name, true)
    }

    /// The same; connections end without a notice.
    pub(crate) fn cutting(origin: &Origin, authority: &TestAuthority, name: &str) -> Self {
        Self::start(origin, authority, name, false)
    }

    fn start(origin: &Origin, authority: &TestAuthority, name: &str, announces_end: bool) -> Self {
        let (chain, key) = authority.issue(&[name]).for_rustls();
        let builder = ServerConfig::builder().with_no_client_auth();
        let config = builder.with_single_cert(chain, key).unwrap();
        let Address::Tcp(origin) = origin.address() else {
            panic!("an origin with a port")
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(SharedFront {
            config: Arc::new(config),
            origin,
            announces_end,
            accepted: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                accepting.accepted.fetch_add(1, Ordering::Relaxed);
                let (client, front) = (client.unwrap(), Arc::clone(&accepting));
                std::thread::spawn(move || Relay::new(&front, client).run());
            }
        });
        Self { port, shared }
    }

    pub(crate) fn address(&self) -> Address {
        Address::Tcp(self.port)
    }

    /// How many connections were made to it.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// One connection.
struct Relay {
    session: ServerConnection,
    client: TcpStream,
    origin: TcpStream,
    announces_end: bool,
    to_origin: Vec<u8>,
    client_ended: bool,
    origin_ended: bool,
    /// The ends are passed on.
    told_origin: bool,
    told_client: bool,
}

impl Relay {
    fn new(front: &SharedFront, client: TcpStream) -> Self {
        let origin = TcpStream::connect(("127.0.0.1", front.origin)).unwrap();
        client.set_nonblocking(true).unwrap();
        origin.set_nonblocking(true).unwrap();
        Self {
            session: ServerConnection::new(Arc::clone(&front.config)).unwrap(),
            client,
            origin,
            announces_end: front.announces_end,
            to_origin: Vec::new(),
            client_ended: false,
            origin_ended: false,
            told_origin: false,
            told_client: false,
        }
    }

    /// Relays until both ends have passed, or either side breaks.
    fn run(mut self) {
        while !(self.told_origin && self.told_client) {
            if !self.wait() || self.step().is_err() {
                return;
            }
        }
    }

    /// Waits until a side is ready; false when none is for too long.
    fn wait(&self) -> bool {
        let mut client = PollFlags::empty();
        let reads_client = !self.client_ended && self.to_origin.len() < MAX_WAITING_BYTES;
        client.set(PollFlags::IN, reads_client);
        client.set(PollFlags::OUT, self.session.wants_write());
        let mut origin = PollFlags::empty();
        let reads_origin = !self.origin_ended && !self.session.wants_write();
        origin.set(
            PollFlags::IN,
            reads_origin && !self.session.is_handshaking(),
        );
        origin.set(PollFlags::OUT, !self.to_origin.is_empty());
        let mut fds = [
            PollFd::from_borrowed_fd(self.client.as_fd(), client),
            PollFd::from_borrowed_fd(self.origin.as_fd(), origin),
        ];
        let patience = rustix::time::Timespec::try_from(PATIENCE).unwrap();
        poll(&mut fds, Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    fn step(&mut self) -> std::io::Result<()> {
        while self.session.wants_write() && !is_blocked(self.session.write_tls(&mut self.client))? {
        }
        if !self.client_ended && self.to_origin.len() < MAX_WAITING_BYTES {
            self.read_client()?;
        }
        self.write_origin()?;
        if !self.origin_ended && !self.session.wants_write() && !self.session.is_handshaking() {
            self.read_origin()?;
        }
        if self.client_ended && self.to_origin.is_empty() && !self.told_origin {
            self.told_origin = true;
            let _ = self.origin.shutdown(Shutdown::Write);
        }
        if self.origin_ended && !self.session.wants_write() && !self.told_client {
            self.told_client = true;
            let _ = self.client.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn read_client(&mut self) -> std::io::Result<()> {
        match self.session.read_tls(&mut self.client) {
            Ok(0) => self.client_ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let state = self.session.process_new_packets();
        let state = state.map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
        self.client_ended |= state.peer_has_closed();
        let mut plaintext = vec![0; state.plaintext_bytes_to_read()];
        self.session.reader().read_exact(&mut plaintext)?;
        self.to_origin.append(&mut plaintext);
        Ok(())
    }

    fn write_origin(&mut self) -> std::io::Result<()> {
        if self.to_origin.is_empty() {
            return Ok(());
        }
        match self.origin.write(&self.to_origin) {
            Ok(count) => drop(self.to_origin.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read_origin(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        match self.origin.read(&mut buffer) {
            Ok(0) => {
                self.origin_ended = true;
                if self.announces_end {
                    self.session.send_close_notify();
                }
            }
            Ok(count) => self.session.writer().write_all(&buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Whether a write met a full socket.
fn is_blocked(written: std::io::Result<usize>) -> std::io::Result<bool> {
    match written {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}
