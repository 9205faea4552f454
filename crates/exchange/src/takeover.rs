//! Connections that edge hands over: an upgrade agreed by both sides, a response without an end, or a TCP
//! listener.
//!
//! A handler that switches protocols answers with [`crate::Body::Takeover`], one whose response is held with
//! [`crate::Body::Hold`]: edge sends the head, then hands the client's socket over with whatever it had read
//! already, and frees its own state. A TCP listener does the same from the first byte, through a
//! [`TunnelHandler`]. What must stay true: the new owner reads what edge had read before it reads the socket.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use penstock_runtime::Stream;
use penstock_sys::net::PeerAddress;

use crate::ListenerInfo;

/// Serves a connection until it ends. Dropped when the drain's deadline has passed.
pub type TakeoverFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes over one client connection.
pub trait Takeover: Send + fmt::Debug {
    /// Takes `client`; `early` are bytes that were read from it already.
    fn take_over(self: Box<Self>, client: Arc<Stream>, early: Vec<u8>) -> TakeoverFuture;
}

/// Keeps one client connection behind the head of a response that has no end yet, without a task.
///
/// A handler answers with [`crate::Body::Hold`]: edge sends the head, framed as for a body of unknown
/// length and with `Connection: close`, then hands the socket over and frees its own state.
pub trait Hold: Send + fmt::Debug {
    /// Keeps `client`, on the loop that this runs on. Its other holder, the connection, lets go of it
    /// before the loop's next turn. `early` are bytes that were read from it already. Must not wait.
    fn hold(
        self: Box<Self>,
        client: Arc<Stream>,
        early: Vec<u8>,
        framing: HeldFraming,
        place: HeldConnectionGuard,
    );
}

/// How a held body is framed (RFC 9112 §6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldFraming {
    /// In chunks; the last one ends it.
    Chunked,
    /// Its end is the connection's.
    UntilClose,
}

/// The place of a held connection at the front end: counted as open until it is dropped, on the loop that
/// it was made on. The front end's drain does not wait for it: who holds a connection ends it.
#[derive(Debug)]
pub struct HeldConnectionGuard(Arc<dyn HeldConnectionCounter>);

/// A front end that counts what was handed over.
pub trait HeldConnectionCounter: Send + Sync + fmt::Debug {
    /// One that was handed over has ended.
    fn release_held(&self);
}

impl HeldConnectionGuard {
    /// A place that `front` has counted already.
    #[must_use]
    pub fn new(front: Arc<dyn HeldConnectionCounter>) -> Self {
        Self(front)
    }
}

impl Drop for HeldConnectionGuard {
    fn drop(&mut self) {
        self.0.release_held();
    }
}

/// Serves connections that are nothing but bytes: a TCP listener's.
pub trait TunnelHandler: Send + Sync + fmt::Debug {
    /// Serves `client`, which is `peer`, on the loop that this runs on; `early` are bytes that were
    /// read from it already.
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture;
}
