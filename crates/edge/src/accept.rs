//! Accepting connections on one loop's listener.
//!
//! One task per listener and loop. When descriptors or `limits.connections` run out it waits instead
//! of spinning; the kernel's backlog holds the newcomers meanwhile. It takes a few at a time, so that a
//! rush of them keeps nobody waiting who is in. When the drain begins it still takes whoever already
//! waits in the backlog, so that no connection is reset, then closes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use penstock_exchange::{ListenerInfo, Trust, TunnelHandler};
use penstock_runtime::{Drain, Listener, Stream, clock, loops};
use penstock_sys::net::PeerAddress;

use crate::connection::Connection;
use crate::tunnel::Counted;
use crate::{Edge, access_log, heralded, tunnel};

/// How long to wait for a descriptor or a connection slot to come free.
const PAUSE: Duration = Duration::from_millis(20);

/// Newcomers taken in a row before those who are in get their turn: in a rush of new connections, what
/// is ready on others must not wait until all of them are in.
const TURN: u32 = 16;

/// How long the same warning is not repeated.
const QUIET: Duration = Duration::from_secs(10);

/// Accepts on `socket` until `stop` (this listener's own drain) or the whole edge drains.
///
/// # Errors
/// When the socket cannot be registered with the loop.
pub async fn accept(
    edge: Arc<Edge>,
    socket: OwnedFd,
    info: Arc<ListenerInfo>,
    stop: Drain,
) -> io::Result<()> {
    accept_for(edge, socket, info, stop, Service::Http).await
}

/// Accepts on `socket` as [`accept`] does; `handler` gets each connection from its first byte on. Such
/// connections count as open, for `limits.connections` and for the drain.
///
/// # Errors
/// As [`accept`].
pub async fn accept_tunnel(
    edge: Arc<Edge>,
    socket: OwnedFd,
    info: Arc<ListenerInfo>,
    stop: Drain,
    handler: Arc<dyn TunnelHandler>,
) -> io::Result<()> {
    accept_for(edge, socket, info, stop, Service::Tunnel(handler)).await
}

/// Serves a connection that was not accepted but dialled, as one of `peer`'s, on the loop that this runs on; `early` was
/// read from it already. It counts as open, for `limits.connections` and for the drain.
pub fn serve(
    edge: &Arc<Edge>,
    stream: Arc<Stream>,
    peer: PeerAddress,
    info: Arc<ListenerInfo>,
    early: Vec<u8>,
) {
    edge.metrics().accepted.increment();
    let (edge, sender) = (Counted::new(edge), Sender::Peer(peer));
    Service::Http.begin(edge, stream, sender, info, early);
}

async fn accept_for(
    edge: Arc<Edge>,
    socket: OwnedFd,
    info: Arc<ListenerInfo>,
    stop: Drain,
    service: Service,
) -> io::Result<()> {
    let listener = Listener::new(socket)?;
    let _running = stop.guard();
    let mut door = Door {
        edge,
        info,
        service,
        warnings: Warnings::default(),
    };
    let mut stopped = std::pin::pin!(stop.begun());
    let mut in_a_row = 0;
    loop {
        if in_a_row == TURN {
            in_a_row = 0;
            loops::yield_now().await;
        }
        if door.is_full() {
            door.warn("limits.connections reached, not accepting for now");
            clock::sleep(PAUSE).await;
            if !stop.is_draining() {
                continue;
            }
        }
        let next = std::future::poll_fn(|cx| match listener.poll_accept(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            Poll::Pending => {
                in_a_row = 0;
                stopped.as_mut().poll(cx).map(|()| None)
            }
        })
        .await;
        match next {
            None => break,
            Some(Ok((socket, peer))) => {
                in_a_row += 1;
                door.admit(socket, peer);
            }
            Some(Err(error)) => {
                if door.warnings.is_due() {
                    log::error!("{}: cannot accept: {error}", door.info.name);
                }
                clock::sleep(PAUSE).await;
            }
        }
    }
    while let Some((socket, peer)) = listener.try_accept() {
        door.admit(socket, peer);
    }
    Ok(())
}

/// Whom a connection is from.
#[derive(Debug)]
pub(crate) enum Sender {
    /// The other end of the connection.
    Peer(PeerAddress),
    /// Somebody for whom a balancer has connected. Boxed: idle connections are counted in bytes,
    /// and few are such.
    Proxied(Box<ProxiedClient>),
}

/// A client by a PROXY protocol header.
#[derive(Debug)]
pub(crate) struct ProxiedClient {
    balancer: PeerAddress,
    /// None that the balancer has not named.
    client: Option<PeerAddress>,
}

impl Sender {
    /// A client that a balancer has connected for, if it names one.
    pub(crate) fn behind(balancer: PeerAddress, client: Option<PeerAddress>) -> Self {
        Self::Proxied(Box::new(ProxiedClient { balancer, client }))
    }

    /// The client, or who stands for it.
    pub(crate) fn address(&self) -> PeerAddress {
        match self {
            Self::Peer(peer) => *peer,
            Self::Proxied(proxied) => proxied.client.unwrap_or(proxied.balancer),
        }
    }

    /// Whether that address is the client's own. If not, nobody answers for what it says of itself.
    pub(crate) fn is_named(&self) -> bool {
        match self {
            Self::Peer(_) => true,
            Self::Proxied(proxied) => proxied.client.is_some(),
        }
    }

    /// The other end of the connection.
    pub(crate) fn peer(&self) -> PeerAddress {
        match self {
            Self::Peer(peer) => *peer,
            Self::Proxied(proxied) => proxied.balancer,
        }
    }

    /// Whether it may speak for clients of its own.
    pub(crate) fn is_trusted(&self, trust: &Trust) -> bool {
        self.is_named() && trust.covers(self.address())
    }
}

/// What a listener's connections are served by.
#[derive(Debug, Clone)]
pub(crate) enum Service {
    /// This crate.
    Http,
    /// Whoever gets the bytes as they are.
    Tunnel(Arc<dyn TunnelHandler>),
}

impl Service {
    /// Begins to serve a connection; `early` was read from it already.
    pub(crate) fn begin(
        &self,
        edge: Counted,
        stream: Arc<Stream>,
        sender: Sender,
        info: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) {
        match self {
            Self::Http => {
                loops::spawn_here(Connection::new(edge, stream, sender, info, early).run());
            }
            Self::Tunnel(handler) => {
                tunnel::go_on(edge, handler.serve(stream, sender.address(), info, early));
            }
        }
    }
}

/// One listener on one loop, with what becomes of those who come in.
#[derive(Debug)]
struct Door {
    edge: Arc<Edge>,
    info: Arc<ListenerInfo>,
    service: Service,
    warnings: Warnings,
}

impl Door {
    fn is_full(&self) -> bool {
        self.edge.open.load(Ordering::Relaxed) >= self.edge.settings().limits.connections
    }

    fn warn(&mut self, what: &str) {
        if self.warnings.is_due() {
            log::warn!("{}: {what}", self.info.name);
        }
    }

    fn admit(&mut self, socket: OwnedFd, peer: PeerAddress) {
        let stream = match Stream::new(socket) {
            Ok(stream) => Arc::new(stream),
            Err(error) => {
                log::error!("{}: cannot watch a connection: {error}", self.info.name);
                return;
            }
        };
        self.edge.metrics().accepted.increment();
        let info = Arc::clone(&self.info);
        if !info.proxy_protocol {
            let edge = Counted::new(&self.edge);
            let sender = Sender::Peer(peer);
            self.service.begin(edge, stream, sender, info, Vec::new());
        } else if self.edge.settings().trust.covers(peer) {
            let edge = Counted::new(&self.edge);
            let service = self.service.clone();
            loops::spawn_here(heralded::receive(edge, stream, peer, info, service));
        } else {
            self.warn(&format!(
                "{} closed: a PROXY protocol header is taken from server.trusted_proxies only",
                access_log::peer(peer)
            ));
        }
    }
}

/// Keeps a condition that lasts from filling the log.
#[derive(Debug, Default)]
struct Warnings {
    last: Option<Instant>,
}

impl Warnings {
    fn is_due(&mut self) -> bool {
        let now = clock::now();
        let is_due = self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) > QUIET);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}
