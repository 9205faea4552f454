//! Accepting connections on one loop's listener.
//!
//! One task per listener and loop. When connections or descriptors run short it closes the ones that
//! have waited longest for a request. If none waits, it waits instead of spinning; the kernel's backlog
//! holds the newcomers meanwhile. It takes a few at a time, so that a rush of them keeps nobody waiting
//! who is in. When the drain begins it still takes whoever already waits in the backlog, so that no
//! connection is reset, then closes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use penstock_exchange::{ListenerInfo, TrustedProxies, TunnelHandler};
use penstock_runtime::{Drain, Listener, Stream, clock, loops};
use penstock_sys::descriptors;
use penstock_sys::net::PeerAddress;

use crate::connection_limits::CapacityShortage;
use crate::handover::ConnectionGuard;
use crate::http1::Connection;
use crate::{Edge, access_log, handover, proxy_protocol};

/// How long to wait for a descriptor or a connection slot to come free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// How long to wait for a connection that was told to close: its loop does so in its next turn.
const EVICTION_DELAY: Duration = Duration::from_millis(1);

/// So many may be told to close and still be open. More newcomers are not let in: if a loop does
/// not get to it, that many descriptors too many are open at most.
const MAX_CLOSING: usize = 16;

/// Newcomers taken in a row before those who are in get their turn: in a rush of new connections, what
/// is ready on others must not wait until all of them are in.
const ACCEPT_BATCH: u32 = 16;

/// How long the same warning is not repeated.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

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
    accept_with_service(edge, socket, info, stop, ListenerService::Http).await
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
    accept_with_service(edge, socket, info, stop, ListenerService::Tunnel(handler)).await
}

/// Serves a connection that was not accepted but dialled, as one of `peer`'s, on the loop that this runs on; `early` was
/// read from it already. It counts as open, for `limits.connections` and for the drain.
pub fn serve_dialled(
    edge: &Arc<Edge>,
    stream: Arc<Stream>,
    peer: PeerAddress,
    info: Arc<ListenerInfo>,
    early: Vec<u8>,
) {
    edge.metrics().accepted_connections.increment();
    let (edge, sender) = (ConnectionGuard::new(edge), ConnectionSource::Peer(peer));
    let connection = Connection::new(edge, stream, sender, info, early);
    loops::spawn_here(connection.with_idle_deadline().run());
}

async fn accept_with_service(
    edge: Arc<Edge>,
    socket: OwnedFd,
    info: Arc<ListenerInfo>,
    stop: Drain,
    service: ListenerService,
) -> io::Result<()> {
    let listener = Listener::new(socket)?;
    let _running = stop.guard();
    let mut door = Acceptor {
        edge,
        info,
        service,
        warnings: WarningThrottle::default(),
    };
    let mut stopped = std::pin::pin!(stop.wait_until_begun());
    let mut in_a_row = 0;
    loop {
        if in_a_row == ACCEPT_BATCH {
            in_a_row = 0;
            loops::yield_now().await;
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
                door.ensure_capacity(&socket, &stop).await;
                door.admit(socket, peer);
            }
            // Nothing is taken from the backlog then.
            Some(Err(error))
                if descriptors::is_exhausted(&error)
                    && door.evict_oldest("no descriptor is left") =>
            {
                clock::sleep(EVICTION_DELAY).await;
            }
            Some(Err(error)) => {
                if door.warnings.is_due() {
                    log::error!("{}: cannot accept: {error}", door.info.name);
                }
                clock::sleep(ACCEPT_RETRY_DELAY).await;
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
pub(crate) enum ConnectionSource {
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

impl ConnectionSource {
    /// A client that a balancer has connected for, if it names one.
    pub(crate) fn proxied(balancer: PeerAddress, client: Option<PeerAddress>) -> Self {
        Self::Proxied(Box::new(ProxiedClient { balancer, client }))
    }

    /// The client, or who stands for it.
    pub(crate) fn client_address(&self) -> PeerAddress {
        match self {
            Self::Peer(peer) => *peer,
            Self::Proxied(proxied) => proxied.client.unwrap_or(proxied.balancer),
        }
    }

    /// Whether that address is the client's own. If not, nobody answers for what it says of itself.
    pub(crate) fn has_client_address(&self) -> bool {
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
    pub(crate) fn is_trusted_proxy(&self, trust: &TrustedProxies) -> bool {
        self.has_client_address() && trust.covers(self.client_address())
    }
}

/// What a listener's connections are served by.
#[derive(Debug, Clone)]
pub(crate) enum ListenerService {
    /// This crate.
    Http,
    /// Whoever gets the bytes as they are.
    Tunnel(Arc<dyn TunnelHandler>),
}

impl ListenerService {
    /// Begins to serve a connection; `early` was read from it already.
    pub(crate) fn start(
        &self,
        edge: ConnectionGuard,
        stream: Arc<Stream>,
        sender: ConnectionSource,
        info: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) {
        match self {
            Self::Http => {
                loops::spawn_here(Connection::new(edge, stream, sender, info, early).run());
            }
            Self::Tunnel(handler) => {
                handover::spawn_takeover(
                    edge,
                    handler.serve(stream, sender.client_address(), info, early),
                );
            }
        }
    }
}

/// One listener on one loop, with what becomes of those who come in.
#[derive(Debug)]
struct Acceptor {
    edge: Arc<Edge>,
    info: Arc<ListenerInfo>,
    service: ListenerService,
    warnings: WarningThrottle,
}

impl Acceptor {
    /// Waits until there is room for a connection that was accepted. The longest idle one is closed
    /// for it.
    async fn ensure_capacity(&mut self, socket: &OwnedFd, stop: &Drain) {
        let mut number = Some(socket.as_raw_fd());
        while let Some(shortage) = self.shortage(number) {
            if self.edge.idle_connections.closing() >= MAX_CLOSING {
                clock::sleep(EVICTION_DELAY).await;
            } else if self.evict_oldest(self.shortage_text(shortage)) || stop.is_draining() {
                return;
            } else {
                self.warn(&format!(
                    "not accepting for now: {}, and no connection is idle",
                    self.shortage_text(shortage)
                ));
                clock::sleep(ACCEPT_RETRY_DELAY).await;
            }
            number = descriptors::next_fd_number(socket).ok();
        }
    }

    /// What is short, if anything is; `number` is that of a new descriptor, none if there was none.
    fn shortage(&self, number: Option<RawFd>) -> Option<CapacityShortage> {
        let leaving = self.edge.idle_connections.closing();
        let open = self.edge.open_connections().saturating_sub(leaving);
        if open >= self.edge.max_connections() {
            return Some(CapacityShortage::Connections);
        }
        let number = number.and_then(|number| u64::try_from(number).ok());
        let open = number.map_or(u64::MAX, |number| number.saturating_sub(leaving as u64));
        let is_scarce = self.edge.descriptor_budget.is_scarce(open);
        is_scarce.then_some(CapacityShortage::Descriptors)
    }

    fn shortage_text(&self, shortage: CapacityShortage) -> &'static str {
        let configured = self.edge.settings().limits.max_connections;
        match shortage {
            CapacityShortage::Connections if self.edge.max_connections() < configured => {
                "all connections that the limit of open files allows are open"
            }
            CapacityShortage::Connections => "limits.connections is reached",
            CapacityShortage::Descriptors => "the limit of open files is near",
        }
    }

    /// Closes the connection that has been idle for longest, for `cause`; `false` if there is none.
    fn evict_oldest(&self, cause: &str) -> bool {
        let now = clock::now();
        let is_closing = self.edge.idle_connections.close_oldest(now);
        if is_closing && let Some(count) = self.edge.eviction_log.count_event(now) {
            log::warn!("edge: idle connections closed to make room: {cause} (closed={count})");
        }
        is_closing
    }

    fn warn(&mut self, what: &str) {
        if self.warnings.is_due() {
            log::warn!("{}: {what}", self.info.name);
        }
    }

    fn admit(&mut self, socket: OwnedFd, peer: PeerAddress) {
        self.edge.metrics().accepted_connections.increment();
        if self.info.proxy_protocol && !self.edge.settings().trusted_proxies.covers(peer) {
            return self.warn(&format!(
                "{} closed: a PROXY protocol header is taken from server.trusted_proxies only",
                access_log::peer_text(peer)
            ));
        }
        let mut edge = ConnectionGuard::new(&self.edge);
        if let Err(max) = edge.count_client(peer) {
            return edge.log_client_limit(&self.info, peer, max);
        }
        let stream = match Stream::new(socket) {
            Ok(stream) => Arc::new(stream),
            Err(error) => {
                log::error!("{}: cannot watch a connection: {error}", self.info.name);
                return;
            }
        };
        let info = Arc::clone(&self.info);
        if info.proxy_protocol {
            let service = self.service.clone();
            loops::spawn_here(proxy_protocol::read_header_and_serve(
                edge, stream, peer, info, service,
            ));
        } else {
            let sender = ConnectionSource::Peer(peer);
            self.service.start(edge, stream, sender, info, Vec::new());
        }
    }
}

/// Keeps a condition that lasts from filling the log.
#[derive(Debug, Default)]
struct WarningThrottle {
    last_warning: Option<Instant>,
}

impl WarningThrottle {
    fn is_due(&mut self) -> bool {
        let now = clock::now();
        let is_due = self
            .last_warning
            .is_none_or(|last| now.saturating_duration_since(last) > WARNING_INTERVAL);
        if is_due {
            self.last_warning = Some(now);
        }
        is_due
    }
}
