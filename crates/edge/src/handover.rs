//! Connections that count as open at the edge but are no longer HTTP, never were, or are held.
//!
//! A connection comes here when a handler switched protocols or holds the response, or from a TCP
//! listener. A tunnel keeps a small task: the count, the drain's guard and the new owner's future.
//! A held connection keeps its count.
//!
//! # Invariants
//! - Such a connection counts as open until it ends.
//! - The drain waits for a tunnel, and not for a held connection: its holder ends that.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_exchange::{
    AddressPrefix, ConnectionAdopter, HeldConnection, HeldConnectionCounter, HeldConnectionGuard,
    HeldFraming, Hold, ListenerInfo, RecordLayer, Takeover, TakeoverFuture,
};
use penstock_runtime::{Stream, clock, loops};
use penstock_sys::net::PeerAddress;
use penstock_tls::records::{HoldError, RecordSession};

use crate::connection_limits::ClientConnections;
use crate::{Edge, access_log};

/// The edge, with one connection counted in it until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    edge: Arc<Edge>,
    /// The client that it counts for.
    client_connections: Option<Arc<ClientConnections>>,
}

impl ConnectionGuard {
    /// Counts one more open connection.
    pub(crate) fn new(edge: &Arc<Edge>) -> Self {
        edge.open_connections.fetch_add(1, Ordering::Relaxed);
        edge.metrics().open_connections.add(1);
        Self {
            edge: Arc::clone(edge),
            client_connections: None,
        }
    }

    /// Counts the connection for its client. A trusted proxy may have any number.
    ///
    /// # Errors
    /// The client's bound, if it is reached.
    pub(crate) fn admit_client(&mut self, client: PeerAddress) -> Result<(), usize> {
        let is_many =
            client == PeerAddress::Unix || self.edge.settings().trusted_proxies.covers(client);
        let Some(max) = self.edge.max_connections_per_client().filter(|_| !is_many) else {
            return Ok(());
        };
        let address = AddressPrefix::from_address(client);
        self.client_connections = Some(
            self.edge
                .client_counts
                .admit(&self.edge, address, max)
                .ok_or(max)?,
        );
        Ok(())
    }

    /// Counts and logs a connection that is closed since its client has `max` of them.
    pub(crate) fn log_client_limit(
        &self,
        listener: &ListenerInfo,
        client: PeerAddress,
        max: usize,
    ) {
        self.edge.metrics().refused_connections.increment();
        if let Some(count) = self.edge.refusal_log.count_event(clock::now()) {
            log::warn!(
                "{}: connection of {} closed: the client has {max} connections already \
                 (limits.connections_per_client; list a proxy in server.trusted_proxies) \
                 (closed={count})",
                listener.name,
                access_log::format_peer(client),
            );
        }
    }

    /// Counts the same connection for another owner.
    pub(crate) fn duplicate(&self) -> Self {
        if let Some(client) = &self.client_connections {
            client.add_connection();
        }
        let mut again = Self::new(&self.edge);
        again
            .client_connections
            .clone_from(&self.client_connections);
        again
    }

    /// Counts the same connection as held, until the guard is dropped.
    fn held_guard(&self) -> HeldConnectionGuard {
        let client = self.client_connections.clone();
        if let Some(client) = &client {
            client.add_connection();
        }
        count_held(&self.edge, client)
    }
}

/// Counts a connection as held, until the guard is dropped; `client` counts it already.
fn count_held(edge: &Arc<Edge>, client: Option<Arc<ClientConnections>>) -> HeldConnectionGuard {
    edge.open_connections.fetch_add(1, Ordering::Relaxed);
    let metrics = edge.metrics();
    metrics.open_connections.add(1);
    metrics.held_connections.add(1);
    metrics.held_total.increment();
    match client {
        None => HeldConnectionGuard::new(Arc::clone(edge) as Arc<dyn HeldConnectionCounter>),
        Some(client) => HeldConnectionGuard::new(client as Arc<dyn HeldConnectionCounter>),
    }
}

/// Takes over held connections for an edge.
#[derive(Debug)]
pub struct EdgeAdopter(pub Arc<Edge>);

impl ConnectionAdopter for EdgeAdopter {
    fn adopt_held_connection(&self, client: Option<AddressPrefix>) -> HeldConnectionGuard {
        let edge = &self.0;
        let max = edge.max_connections_per_client();
        // One that has too many keeps what it has.
        let client = client
            .zip(max)
            .and_then(|(client, max)| edge.client_counts.admit(edge, client, max));
        count_held(edge, client)
    }

    fn restore_record_layer(&self, session: &[u8]) -> io::Result<Box<dyn RecordLayer>> {
        Ok(Box::new(RecordSession::from_bytes(session)?))
    }
}

impl Deref for ConnectionGuard {
    type Target = Edge;

    fn deref(&self) -> &Edge {
        &self.edge
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.edge.open_connections.fetch_sub(1, Ordering::Relaxed);
        self.edge.metrics().open_connections.add(-1);
        if let Some(client) = &self.client_connections {
            client.remove_connection();
        }
    }
}

impl HeldConnectionCounter for Edge {
    fn release_held_connection(&self) {
        self.open_connections.fetch_sub(1, Ordering::Relaxed);
        let metrics = self.metrics();
        metrics.open_connections.add(-1);
        metrics.held_connections.add(-1);
    }
}

/// The next owner of a connection, once the head of its last response is out.
#[derive(Debug)]
pub(crate) enum UpgradeTarget {
    /// Another protocol.
    Takeover(Box<dyn Takeover>),
    /// The holder of a response that has no end yet.
    Hold(Box<dyn Hold>, HeldFraming),
}

impl UpgradeTarget {
    /// Hands `stream` over; `early` was read from it already. The task that calls this ends in the
    /// same poll.
    pub(crate) fn hand_over(self, edge: &ConnectionGuard, stream: Arc<Stream>, early: Vec<u8>) {
        match self {
            Self::Takeover(takeover) => {
                spawn_takeover(edge.duplicate(), takeover.take_over(stream, early));
            }
            Self::Hold(hold, framing) => {
                let (guard, early_bytes) = (edge.held_guard(), early.len());
                // Runs when the task of the connection has ended, and with it its use of the
                // socket.
                loops::spawn_here(async move {
                    match Arc::try_unwrap(stream) {
                        Ok(stream) => match hold_connection(stream) {
                            Ok((client, unread)) => {
                                hold.hold(client, early_bytes + unread, framing, guard);
                            }
                            Err(error) => log::info!("edge: held response cut: {error}"),
                        },
                        Err(stream) => {
                            log::error!("edge: held response cut: its connection is still in use");
                            stream.abort();
                        }
                    }
                });
            }
        }
    }
}

/// The connection of `stream`, and how many bytes its client sent that were not read.
fn hold_connection(stream: Stream) -> Result<(HeldConnection, usize), HoldError> {
    match stream.into_parts() {
        (socket, None) => Ok((socket.into(), 0)),
        (socket, Some(layer)) => penstock_tls::hold(socket, layer),
    }
}

/// Runs `serving` in a task of its own, which is smaller than that of an HTTP connection.
pub(crate) fn spawn_takeover(edge: ConnectionGuard, serving: TakeoverFuture) {
    let guard = edge.drain.guard();
    loops::spawn_here(async move {
        serving.await;
        drop((guard, edge));
    });
}
