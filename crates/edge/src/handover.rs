//! Connections that count as the edge's but are no longer HTTP, or never were, or only wait for more of a
//! response.
//!
//! `connection` ends here when a handler switched protocols or holds the response, `accept` begins here for a
//! TCP listener. What stays of a tunnel is a small task: the count, the drain's guard and the new owner's
//! future; of a held connection, its place in the count. What must stay true: such a connection counts as open
//! until it ends; the drain waits for a tunnel as for any other connection, and not for one that is held: who
//! holds it ends it, on a clock of its own.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_exchange::{
    AddressPrefix, HeldConnectionCounter, HeldConnectionGuard, HeldFraming, Hold, ListenerInfo,
    Takeover, TakeoverFuture,
};
use penstock_runtime::{Stream, clock, loops};
use penstock_sys::net::PeerAddress;

use crate::connection_limits::ClientConnections;
use crate::{Edge, access_log};

/// The edge, with one connection counted in it; the drop is the connection's end.
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

    /// Counts it for its client, unless that one has too many already. A trusted proxy has any
    /// number.
    ///
    /// # Errors
    /// The bound that is reached.
    pub(crate) fn count_client(&mut self, client: PeerAddress) -> Result<(), usize> {
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

    /// Notes that the connection is closed, since its client has `max` of them.
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
                access_log::peer_text(client),
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

    /// Counts the same connection as one that is held; [`Edge::left`] is its end.
    fn held_guard(&self) -> HeldConnectionGuard {
        self.open_connections.fetch_add(1, Ordering::Relaxed);
        let metrics = self.metrics();
        metrics.open_connections.add(1);
        metrics.held_connections.add(1);
        metrics.held_total.increment();
        match &self.client_connections {
            None => {
                HeldConnectionGuard::new(Arc::clone(&self.edge) as Arc<dyn HeldConnectionCounter>)
            }
            Some(client) => {
                client.add_connection();
                HeldConnectionGuard::new(Arc::clone(client) as Arc<dyn HeldConnectionCounter>)
            }
        }
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
    fn release_held(&self) {
        self.open_connections.fetch_sub(1, Ordering::Relaxed);
        let metrics = self.metrics();
        metrics.open_connections.add(-1);
        metrics.held_connections.add(-1);
    }
}

/// Who gets a connection once the head of its last response is out.
#[derive(Debug)]
pub(crate) enum UpgradeTarget {
    /// The other protocol's.
    Takeover(Box<dyn Takeover>),
    /// Whoever has the body of the response, which has no end yet.
    Hold(Box<dyn Hold>, HeldFraming),
}

impl UpgradeTarget {
    /// Leaves `stream` to it, with what was read behind the request. The connection that `edge` counts ends
    /// before the loop's next turn, and then nobody else has the stream.
    pub(crate) fn hand_over(self, edge: &ConnectionGuard, stream: Arc<Stream>, early: Vec<u8>) {
        match self {
            Self::Takeover(takeover) => {
                spawn_takeover(edge.duplicate(), takeover.take_over(stream, early));
            }
            Self::Hold(hold, framing) => hold.hold(stream, early, framing, edge.held_guard()),
        }
    }
}

/// Lets `serving` go on by itself. A task of its own: that of an HTTP connection is larger.
pub(crate) fn spawn_takeover(edge: ConnectionGuard, serving: TakeoverFuture) {
    let guard = edge.drain.guard();
    loops::spawn_here(async move {
        serving.await;
        drop((guard, edge));
    });
}
