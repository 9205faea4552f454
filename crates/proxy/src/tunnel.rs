//! Bytes both ways between a client and a server, whatever they mean: upgrades and TCP listeners.
//!
//! An upgrade comes here from `call` with its place and connection; a TCP listener's connection claims
//! its own. Bytes go through the loop's shared buffer; only what the other side does not take is kept.
//! What must stay true: an idle tunnel owns no buffer; each direction ends by itself (half-close) and
//! the tunnel with both; a side that takes nothing stops the other from being read.

use std::io::IoSlice;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use penstock_config as config;
use penstock_exchange::{FaultKind, ListenerInfo, Takeover, TakeoverFuture, TunnelHandler};
use penstock_runtime::{LazyDeadline, Stream, buffers, clock};
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
    fn take(self: Box<Self>, client: Arc<Stream>, early: Vec<u8>) -> TakeoverFuture {
        let Self {
            lease,
            connection,
            from_server,
        } = *self;
        let idle = lease.shared().config.tunnel_timeout;
        Box::pin(async move {
            copy_both(&client, &connection.stream, early, from_server, idle).await;
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
            copy_both(&client, &connection.stream, early, Vec::new(), idle).await;
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
            return Err(Failure::new(FaultKind::House, Stage::Ours, cause));
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
                lease.finish(None, outcome(&failure));
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
        if is_watched && let Poll::Ready(is_gone) = client.poll_gone(cx) {
            is_watched = false;
            if is_gone {
                let cause = "left while waiting for a server";
                let gone = Failure::new(FaultKind::ClientGone, Stage::Ours, cause);
                return Poll::Ready(Err(gone));
            }
        }
        Poll::Pending
    })
    .await
}

/// Copies until both sides have ended, one breaks, or nothing moved for `idle`.
async fn copy_both(
    client: &Stream,
    server: &Stream,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    idle: Duration,
) {
    let mut up = Flow::new(to_server);
    let mut down = Flow::new(to_client);
    let mut deadline = LazyDeadline::new(clock::now() + idle);
    let mut was_ending = false;
    std::future::poll_fn(|cx| {
        let (Some(sent_up), Some(sent_down)) = (
            up.poll_copy(cx, client, server),
            down.poll_copy(cx, server, client),
        ) else {
            // The other side must not take what it has for the whole.
            client.abort();
            server.abort();
            return Poll::Ready(());
        };
        if up.is_over && down.is_over {
            return Poll::Ready(());
        }
        // What nobody takes any more is only read over so that the last answer is not lost to a reset.
        let is_ending = up.is_refused && down.is_over || down.is_refused && up.is_over;
        if is_ending && !std::mem::replace(&mut was_ending, true) {
            deadline.set(clock::now() + LINGER);
        } else if !is_ending && (sent_up || sent_down) {
            deadline.set(clock::now() + idle);
        }
        deadline.poll(cx)
    })
    .await;
}

/// How long bytes that nobody takes are read over at the end.
const LINGER: Duration = Duration::from_secs(1);

/// Pieces copied in a row before other connections get their turn.
const TURN: usize = 16;

/// One direction.
#[derive(Debug)]
struct Flow {
    /// Read and not taken yet by the other side.
    pending: Vec<u8>,
    is_ended: bool,
    is_over: bool,
    /// The other side takes no more; what it said may still be on its way back.
    is_refused: bool,
}

impl Flow {
    fn new(pending: Vec<u8>) -> Self {
        Self {
            pending,
            is_ended: false,
            is_over: false,
            is_refused: false,
        }
    }

    /// Copies what is there; `None` when a side broke, else whether anything moved.
    fn poll_copy(&mut self, cx: &mut Context<'_>, from: &Stream, to: &Stream) -> Option<bool> {
        let mut moved = false;
        for _ in 0..TURN {
            match self.poll_piece(cx, from, to) {
                Poll::Ready(Some(true)) => moved = true,
                Poll::Ready(Some(false)) | Poll::Pending => return Some(moved),
                Poll::Ready(None) => return None,
            }
        }
        cx.waker().wake_by_ref();
        Some(moved)
    }

    /// One piece; ready with `Some(false)` when this direction is over, with `None` when it broke.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        from: &Stream,
        to: &Stream,
    ) -> Poll<Option<bool>> {
        if self.is_over {
            return Poll::Ready(Some(false));
        }
        if !self.pending.is_empty() {
            let Ok(written) = ready!(to.poll_write(cx, &[IoSlice::new(&self.pending)])) else {
                return self.refused();
            };
            self.pending.drain(..written);
            if self.pending.is_empty() {
                // An idle tunnel owns no buffer.
                self.pending = Vec::new();
            }
            return Poll::Ready(Some(true));
        }
        if self.is_ended {
            to.shutdown_write();
            self.is_over = true;
            return Poll::Ready(Some(true));
        }
        buffers::with_receive(|buffer| {
            let Ok(count) = ready!(from.poll_read(cx, buffer)) else {
                return Poll::Ready(None);
            };
            if count == 0 {
                self.is_ended = true;
                return Poll::Ready(Some(true));
            }
            if self.is_refused {
                return Poll::Ready(Some(true));
            }
            let written = match to.poll_write(cx, &[IoSlice::new(&buffer[..count])]) {
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(_)) => return self.refused(),
                Poll::Pending => 0,
            };
            self.pending.extend_from_slice(&buffer[written..count]);
            Poll::Ready(Some(true))
        })
    }

    fn refused(&mut self) -> Poll<Option<bool>> {
        self.pending = Vec::new();
        self.is_refused = true;
        Poll::Ready(Some(true))
    }
}
