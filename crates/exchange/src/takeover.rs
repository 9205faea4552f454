//! Client connections that leave edge: for another protocol, for a response without an end, or from
//! a TCP listener.
//!
//! A handler that switches protocols responds with [`crate::Body::Takeover`], one that holds its
//! response with [`crate::Body::Hold`]. Edge sends the head, hands over the connection with the
//! bytes that it has read behind the request, and frees its own state. A TCP listener hands over
//! from the first byte, to a [`TunnelHandler`].
//!
//! # Invariants
//! - The new owner reads the bytes that edge had read before it reads the connection.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use penstock_runtime::pollset::{Interest, Pollset};
use penstock_runtime::{ByteStream, Stream, probe_peer};
use penstock_sys::net::{self, PeerAddress};

use crate::{AddressPrefix, ListenerInfo};

/// Serves a connection until it ends. Dropped when the drain's deadline has passed.
pub type TakeoverFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes over one client connection.
pub trait Takeover: Send + fmt::Debug {
    /// Serves `client`; `early` are bytes that were read from it already.
    fn take_over(self: Box<Self>, client: Arc<dyn ByteStream>, early: Vec<u8>) -> TakeoverFuture;
}

/// Keeps one client connection behind the head of a response that has no end yet, without a task.
///
/// Edge frames the response as one with a body of unknown length, and with `Connection: close`.
pub trait Hold: Send + fmt::Debug {
    /// Keeps `client`, on the event loop that this runs on, where `early_bytes` were read from it
    /// and dropped. Must not wait.
    fn hold(
        self: Box<Self>,
        client: HeldConnection,
        early_bytes: usize,
        framing: HeldFraming,
        guard: HeldConnectionGuard,
    );
}

/// A client connection with a held response: written without waiting, watched by a [`Pollset`].
#[derive(Debug)]
pub struct HeldConnection(OwnedFd);

impl From<OwnedFd> for HeldConnection {
    /// A non-blocking stream socket that is registered with no event loop.
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for HeldConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl HeldConnection {
    /// Writes a prefix of `slices`. Less than all of it means that the connection is full, and room
    /// raises an event.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        retry_interrupted(|| match slices {
            [one] => net::send(self.0.as_fd(), one),
            many => net::send_vectored(self.0.as_fd(), many),
        })
    }

    /// Reads into `buffer`; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        retry_interrupted(|| net::receive(self.0.as_fd(), buffer))
    }

    /// Lets the kernel find out whether a client that closed its sending side has left.
    pub fn probe_peer(&self) {
        probe_peer(self.0.as_fd());
    }

    /// Bounds the time in which the client acknowledges what is sent. With `is_silent` nothing may
    /// be sent for long, and the kernel probes the client after that time.
    pub fn set_dead_peer_timeout(&self, timeout: Duration, is_silent: bool) {
        // Unix sockets have neither, and need none: their peers are processes of this machine.
        let _ = net::set_user_timeout(self.0.as_fd(), timeout);
        if is_silent {
            let _ = net::enable_keepalive_after(self.0.as_fd(), timeout);
        }
    }

    /// Closes the sending side.
    pub fn shutdown_write(&self) {
        // A client that is gone already does not miss it.
        let _ = net::shutdown(self.0.as_fd(), net::Shutdown::Write);
    }

    /// Adds it to `pollset` under `token`.
    ///
    /// # Errors
    /// As [`Pollset::add`].
    pub fn add_to_pollset(
        &self,
        pollset: &Pollset,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        pollset.add(self.0.as_fd(), token, interest)
    }

    /// Changes the events that `pollset` reports.
    ///
    /// # Errors
    /// As [`Pollset::modify`].
    pub fn modify_in_pollset(
        &self,
        pollset: &Pollset,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        pollset.modify(self.0.as_fd(), token, interest)
    }

    /// Removes it from `pollset`.
    pub fn remove_from_pollset(&self, pollset: &Pollset) {
        // An error means that it was never in the set.
        let _ = pollset.remove(self.0.as_fd());
    }

    /// Gives the socket back.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.0
    }
}

/// Repeats a call that a signal interrupted.
fn retry_interrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// How a held body is framed (RFC 9112 §6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldFraming {
    /// In chunks; the last one ends it.
    Chunked,
    /// The end of the connection ends it.
    UntilClose,
}

/// Counts a held connection as open at the front end until it is dropped, on the event loop that it
/// was made on. The front end's drain does not wait for it: the holder ends the connection.
#[derive(Debug)]
pub struct HeldConnectionGuard(Arc<dyn HeldConnectionCounter>);

/// A front end that counts the connections that it handed over.
pub trait HeldConnectionCounter: Send + Sync + fmt::Debug {
    /// A held connection has ended.
    fn release_held_connection(&self);
}

/// A front end that takes over held connections which another process accepted.
pub trait ConnectionAdopter: Send + Sync + fmt::Debug {
    /// Counts a held connection on the event loop that this runs on, and for `client` if there is
    /// one.
    fn adopt_held_connection(&self, client: Option<AddressPrefix>) -> HeldConnectionGuard;
}

impl HeldConnectionGuard {
    /// The guard of a connection that `counter` has counted already.
    #[must_use]
    pub fn new(counter: Arc<dyn HeldConnectionCounter>) -> Self {
        Self(counter)
    }
}

impl Drop for HeldConnectionGuard {
    fn drop(&mut self) {
        self.0.release_held_connection();
    }
}

/// Serves the connections of a TCP listener, which are bytes of any protocol.
pub trait TunnelHandler: Send + Sync + fmt::Debug {
    /// Serves `client`, which is `peer`, on the event loop that this runs on; `early` are bytes
    /// that were read from it already.
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture;
}
