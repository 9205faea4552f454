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
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use penstock_runtime::{ByteStream, Stream};
use penstock_sys::net::PeerAddress;

use crate::{AddressPrefix, HeldConnection, ListenerInfo, RecordLayer};

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

    /// Continues the session of a held connection that another process had
    /// ([`RecordLayer::to_bytes`]).
    ///
    /// # Errors
    /// It cannot be continued here: the other process keeps the connection.
    fn restore_record_layer(&self, session: &[u8]) -> io::Result<Box<dyn RecordLayer>>;
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

    /// Whether [`TunnelHandler::serve`] also gets clients without TLS of a listener with TLS, to
    /// refuse them in their own protocol. Their streams have no session.
    fn refuses_plaintext(&self) -> bool {
        false
    }
}
