//! Bytes both ways between a client and a server, whatever they mean: upgrades and TCP listeners.
//!
//! An upgrade comes here from `call` with its place and connection; a TCP listener's connection claims
//! its own. `runtime`'s relay moves the bytes.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use penstock_config as config;
use penstock_exchange::{FaultKind, ListenerInfo, Takeover, TakeoverFuture, TunnelHandler};
use penstock_runtime::{Stream, clock, relay};
use penstock_sys::net::PeerAddress;

use crate::balance::hash_key;
use crate::call::outcome;
use crate::claim::{Claim, Lease, Wait, claim};
use crate::connection::Connection;
use crate::failure::{Failure, Stage};
use crate::roster::{Outcome, Reuse, Want};
use crate::talk::Talk;
use crate::upstream::{Shared, Upstream};

/// Most servers tried for one connection.
const CONNECTS_MAX: usize = 8;

/// An agreed upgrade, until edge hands the client over.
#[derive(Debug)]
pub(crate) struct Tunnel {
    lease: Lease,
    connection: Connection,
    /// What the server sent behind its answer.
    from_server: Vec<u8>,
}

impl Tunnel {
    pub(crate) fn of_upgrade(lease: Lease, talk: Talk) -> Self {
        let (connection, from_server) = talk.into_tunnel();
        Self {
            lease,
            connection,
            from_server,
        }
    }
}

impl Takeover for Tunnel {
    fn take_over(self: Box<Self>, client: Arc<Stream>, early: Vec<u8>) -> TakeoverFuture {
        let Self {
            lease,
            connection,
            from_server,
        } = *self;
        let idle = lease.shared().config.tunnel_timeout;
        Box::pin(async move {
            relay(&client, &connection.stream, early, from_server, idle).await;
            drop(connection);
            lease.finish(None, Outcome::Success);
        })
    }
}

/// A TCP listener's handler: each connection is one place at a server while it lasts.
#[derive(Debug)]
pub(crate) struct Passage {
    shared: Arc<Shared>,
}

impl Upstream {
    /// The handler of a TCP listener.
    #[must_use]
    pub fn tunnel(&self) -> Arc<dyn TunnelHandler> {
        Arc::new(Passage {
            shared: Arc::clone(&self.shared),
        })
    }
}

impl TunnelHandler for Passage {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (lease, connection) = match reach(&shared, &client, peer, &listener).await {
                Ok(reached) => reached,
                Err(failure) => {
                    // There is no protocol to say it in: the client sees a cut connection.
                    log::error!("{}: {}: {}", listener.name, shared.name, failure.cause);
                    client.abort();
                    return;
                }
            };
            let idle = shared.config.tunnel_timeout;
            relay(&client, &connection.stream, early, Vec::new(), idle).await;
            drop(connection);
            lease.finish(None, Outcome::Success);
        })
    }
}

/// A place and a connection of its own for one client.
async fn reach(
    shared: &Arc<Shared>,
    client: &Stream,
    peer: PeerAddress,
    listener: &ListenerInfo,
) -> Result<(Lease, Connection), Failure> {
    let deadline = clock::now() + shared.config.queue_timeout;
    let key = match (&shared.config.balance, peer) {
        (config::Balance::Hash(_), PeerAddress::Tcp(address)) => {
            Some(hash_key(address.ip().to_canonical().to_string().as_bytes()))
        }
        _ => None,
    };
    let (mut tried, mut waited) = (Vec::new(), Duration::ZERO);
    loop {
        let want = Want {
            key,
            sticky: None,
            tried: &tried,
            // Its connection is its own from the first byte on.
            reuse: Reuse::Proven,
            is_new: tried.is_empty(),
        };
        let claimed = match claim(shared, &want, clock::now(), waited, deadline, None)? {
            Claim::Waits(wait) => wait_for(*wait, client).await?,
            placed => placed,
        };
        let Claim::Place(mut lease, _) = claimed else {
            // A wait ends in a place or an error.
            let cause = "a claim without its place";
            return Err(Failure::new(FaultKind::Internal, Stage::Ours, cause));
        };
        waited = lease.waited();
        let key = lease.key();
        match lease.connect(peer, listener).await {
            Ok(connection) => {
                lease.connected();
                lease.pass_trial();
                return Ok((lease, connection));
            }
            Err(failure) => {
                lease.finish(None, outcome(&failure, || 0));
                let has_other = shared.roster().has_other(&tried, key);
                if !has_other || tried.len() >= CONNECTS_MAX || clock::now() >= deadline {
                    return Err(failure);
                }
                log::debug!("{}: tried another server: {}", shared.name, failure.cause);
                tried.push(key);
                shared.roster().count_retry();
            }
        }
    }
}

/// Waits for a place as long as the client does. One that speaks first is not seen to leave.
async fn wait_for(mut wait: Wait, client: &Stream) -> Result<Claim, Failure> {
    let mut is_watched = true;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(claimed) = std::pin::Pin::new(&mut wait).poll(cx) {
            return Poll::Ready(claimed);
        }
        if is_watched && let Poll::Ready(is_gone) = client.poll_disconnected(cx) {
            is_watched = false;
            if is_gone {
                let cause = "left while waiting for a server";
                let gone = Failure::new(FaultKind::ClientDisconnected, Stage::Ours, cause);
                return Poll::Ready(Err(gone));
            }
        }
        Poll::Pending
    })
    .await
}
