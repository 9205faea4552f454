//! Relays bytes both ways between a client and a server: upgrades and TCP listeners.
//!
//! `proxied_request` hands an upgrade over with its slot and connection; a TCP listener's
//! connection claims its own. `runtime`'s relay moves the bytes.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use penstock_config as config;
use penstock_exchange::{FaultKind, ListenerInfo, Takeover, TakeoverFuture, TunnelHandler};
use penstock_runtime::{ByteStream, Stream, clock, relay};
use penstock_sys::net::PeerAddress;

use crate::balance::hash_key;
use crate::claim::{LeaseOutcome, SlotLease, SlotWaitFuture, claim_lease};
use crate::connection::UpstreamConnection;
use crate::failure::AttemptFailure;
use crate::server_pool::{AttemptOutcome, ReusePolicy, SelectionCriteria};
use crate::upstream::{SharedUpstream, Upstream};
use crate::upstream_exchange::UpstreamExchange;
use crate::upstream_tls::ConnectionPurpose;

/// Maximum servers tried for one connection.
const MAX_CONNECT_ATTEMPTS: usize = 8;

/// An accepted upgrade, until edge hands the client over.
#[derive(Debug)]
pub(crate) struct UpgradeTunnel {
    pub(crate) lease: SlotLease,
    pub(crate) exchange: UpstreamExchange,
}

impl Takeover for UpgradeTunnel {
    fn take_over(self: Box<Self>, client: Arc<dyn ByteStream>, early: Vec<u8>) -> TakeoverFuture {
        let Self { lease, exchange } = *self;
        Box::pin(async move {
            let (connection, from_server) = exchange.into_tunnel_parts();
            run_tunnel(lease, connection, &*client, early, from_server).await;
        })
    }
}

/// Relays until either side ends, then releases the slot.
async fn run_tunnel(
    lease: SlotLease,
    connection: UpstreamConnection,
    client: &dyn ByteStream,
    from_client: Vec<u8>,
    from_server: Vec<u8>,
) {
    let idle = lease.upstream.config.tunnel_timeout;
    relay(client, &connection.stream, from_client, from_server, idle).await;
    drop(connection);
    lease.finish_attempt(None, AttemptOutcome::Success);
}

/// The handler of a TCP listener: each connection holds one slot at a server.
#[derive(Debug)]
pub(crate) struct TcpProxy {
    shared: Arc<SharedUpstream>,
}

impl Upstream {
    /// Creates the handler of a TCP listener.
    #[must_use]
    pub fn tcp_handler(&self) -> Arc<dyn TunnelHandler> {
        Arc::new(TcpProxy {
            shared: Arc::clone(&self.shared),
        })
    }
}

impl TunnelHandler for TcpProxy {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            match connect_server(&shared, &client, peer, &listener).await {
                Ok((lease, connection)) => {
                    run_tunnel(lease, connection, &*client, early, Vec::new()).await;
                }
                Err(failure) => {
                    // There is no protocol to report it in: the connection closes.
                    log::error!("{}: {}: {}", listener.name, shared.name, failure.cause);
                    client.abort();
                }
            }
        })
    }
}

/// Claims a slot and opens a connection for one client.
async fn connect_server(
    shared: &Arc<SharedUpstream>,
    client: &Stream,
    peer: PeerAddress,
    listener: &ListenerInfo,
) -> Result<(SlotLease, UpstreamConnection), AttemptFailure> {
    let deadline = clock::now() + shared.config.queue_timeout;
    let key = match (shared.config.balance, peer) {
        (config::Balance::Hash, PeerAddress::Tcp(address)) => {
            Some(hash_key(address.ip().to_canonical().to_string().as_bytes()))
        }
        _ => None,
    };
    let (mut tried, mut waited) = (Vec::new(), Duration::ZERO);
    loop {
        let criteria = SelectionCriteria {
            hash_key: key,
            sticky_name_hash: None,
            tried_servers: &tried,
            reuse: ReusePolicy::Proven,
            is_first_attempt: tried.is_empty(),
        };
        let mut lease = match claim_lease(shared, &criteria, clock::now(), waited, deadline, None)?
        {
            LeaseOutcome::Leased(lease) => lease,
            LeaseOutcome::Queued(wait) => wait_for_slot(*wait, client).await?,
        };
        // A TCP client never shares or reuses a connection.
        lease.slot.idle_connection = None;
        waited = lease.queue_time;
        let id = lease.slot.server_id;
        match lease
            .connect(peer, listener, ConnectionPurpose::Tunnel)
            .await
        {
            Ok(connection) => {
                lease.record_connected();
                lease.pass_health_trial();
                return Ok((lease, connection));
            }
            Err(failure) => {
                lease.finish_attempt(None, failure.outcome_for_server(|| 0));
                let has_other = shared.server_pool.lock().has_untried_server(&tried, id);
                if !has_other || tried.len() >= MAX_CONNECT_ATTEMPTS || clock::now() >= deadline {
                    return Err(failure);
                }
                log::debug!(
                    "{}: retrying on another server: {}",
                    shared.name,
                    failure.cause
                );
                tried.push(id);
                shared.server_pool.lock().counters.retries += 1;
            }
        }
    }
}

/// Waits for a slot as long as the client does. A client that has sent bytes is not seen to
/// disconnect.
async fn wait_for_slot(
    mut wait: SlotWaitFuture,
    client: &Stream,
) -> Result<SlotLease, AttemptFailure> {
    let mut is_watched = true;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(claimed) = std::pin::Pin::new(&mut wait).poll(cx) {
            return Poll::Ready(claimed);
        }
        if is_watched && let Poll::Ready(is_gone) = client.poll_peer_activity(cx) {
            is_watched = false;
            if is_gone {
                let cause = "client disconnected while waiting for a server";
                return Poll::Ready(Err(AttemptFailure::local(
                    FaultKind::ClientDisconnected,
                    cause,
                )));
            }
        }
        Poll::Pending
    })
    .await
}
