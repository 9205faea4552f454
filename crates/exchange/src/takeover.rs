//! Connections that stop being HTTP: an upgrade agreed by both sides, or a TCP listener.
//!
//! A handler that switches protocols answers with [`crate::Body::Takeover`]: edge sends the head, then
//! hands the client's socket over with whatever it had read already, and frees its own state. A TCP
//! listener does the same from the first byte, through a [`TunnelHandler`]. What must stay true: the
//! new owner reads what edge had read before it reads the socket.

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
    fn take(self: Box<Self>, client: Arc<Stream>, early: Vec<u8>) -> TakeoverFuture;
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
