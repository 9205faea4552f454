//! Accepting connections on one event loop's listener.
//!
//! One task per listener and loop. When connections or descriptors run short, it closes the
//! connections that have been idle longest. If none is idle, it waits instead of spinning, and the
//! kernel's backlog holds new connections. It accepts a few at a time, so that a burst does not
//! delay established connections. When the drain begins it still accepts the connections in the
//! backlog, so that none is reset, then closes.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use penstock_exchange::{ListenerInfo, TrustedProxies};
use penstock_runtime::{Drain, Listener, Stream, clock, loops};
use penstock_sys::descriptors;
use penstock_sys::net::PeerAddress;

use crate::handover::ConnectionGuard;
use crate::http1::Connection;
use crate::tunnel_switch::TunnelSwitch;
use crate::{Edge, access_log, handover, proxy_protocol, tls_handshake};

/// Wait for a descriptor or a connection slot to come free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Wait for a connection that was told to close: its loop closes it in its next turn.
const EVICTION_DELAY: Duration = Duration::from_millis(1);

/// Connections that may be told to close and still be open. Then no new one is accepted: if a loop
/// does not close them, at most that many descriptors too many are open.
const MAX_CLOSING: usize = 16;

/// Connections accepted in a row before established ones get their turn.
const ACCEPT_BATCH: u32 = 16;

/// Interval of the same warning.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Accepts on `socket` until `stop`, this listener's own drain, begins. All
/// connections count as open, for `limits.connections` and for the drain. They go to `tunnel`, if
/// there is one, from the first byte on or behind the handshake of TLS.
pub async fn accept_connections(
    edge: Arc<Edge>,
    socket: OwnedFd,
    info: Arc<ListenerInfo>,
    stop: Drain,
    tunnel: Option<Arc<TunnelSwitch>>,
) {
    let listener = match Listener::new(socket) {
        Ok(listener) => listener,
        Err(error) => return log::error!("listener {}: {error}", info.name),
    };
    let _running = stop.guard();
    let mut acceptor = Acceptor {
        edge,
        info,
        tunnel,
        last_warning: None,
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
                acceptor.ensure_capacity(&socket, &stop).await;
                acceptor.admit(socket, peer);
            }
            // The connection stays in the backlog then.
            Some(Err(error))
                if descriptors::is_fd_exhaustion(&error)
                    && acceptor.evict_oldest("no descriptor is left") =>
            {
                clock::sleep(EVICTION_DELAY).await;
            }
            Some(Err(error)) => {
                acceptor.log(log::Level::Error, &format!("cannot accept: {error}"));
                clock::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    while let Some((socket, peer)) = listener.try_accept() {
        acceptor.admit(socket, peer);
    }
}

/// Serves an existing connection as one of `peer`, on the loop that this runs on; `early` was read
/// from it already. It counts as open, for `limits.connections` and for the drain.
pub fn serve_connection(
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

/// The client of a connection.
#[derive(Debug)]
pub(crate) enum ConnectionSource {
    /// The other end of the connection.
    Peer(PeerAddress),
    /// A client behind a balancer. Boxed: few connections have one, and idle ones are counted in
    /// bytes.
    Proxied(Box<ProxiedClient>),
}

/// A client named by a PROXY protocol header.
#[derive(Debug)]
pub(crate) struct ProxiedClient {
    balancer: PeerAddress,
    /// `None` if the balancer has not named it.
    client: Option<PeerAddress>,
}

impl ConnectionSource {
    /// A client behind a balancer, if that names one.
    pub(crate) fn proxied(balancer: PeerAddress, client: Option<PeerAddress>) -> Self {
        Self::Proxied(Box::new(ProxiedClient { balancer, client }))
    }

    /// The client's address, or the balancer's.
    pub(crate) fn client_address(&self) -> PeerAddress {
        match self {
            Self::Peer(peer) => *peer,
            Self::Proxied(proxied) => proxied.client.unwrap_or(proxied.balancer),
        }
    }

    /// Whether that address is the client's own. If not, its forwarding headers are not trusted.
    pub(crate) fn has_client_address(&self) -> bool {
        match self {
            Self::Peer(_) => true,
            Self::Proxied(proxied) => proxied.client.is_some(),
        }
    }

    /// The other end of the connection.
    pub(crate) fn peer_address(&self) -> PeerAddress {
        match self {
            Self::Peer(peer) => *peer,
            Self::Proxied(proxied) => proxied.balancer,
        }
    }

    /// Whether its forwarding headers are trusted.
    pub(crate) fn is_trusted_proxy(&self, trust: &TrustedProxies) -> bool {
        self.has_client_address() && trust.covers(self.client_address())
    }
}

/// Starts to serve a connection, with a handshake first where its listener has TLS; `early` was read
/// from it already.
pub(crate) fn begin(
    edge: ConnectionGuard,
    stream: Stream,
    source: ConnectionSource,
    info: Arc<ListenerInfo>,
    tunnel: Option<Arc<TunnelSwitch>>,
    early: Vec<u8>,
) {
    match info.has_tls {
        true => loops::spawn_here(tls_handshake::shake_hands_and_serve(
            edge, stream, source, info, tunnel, early,
        )),
        false => {
            let stream = Arc::new(stream);
            serve_or_tunnel(edge, stream, source, info, tunnel.as_ref(), early);
        }
    }
}

/// Starts to serve a connection; `early` was read from it already.
pub(crate) fn serve_or_tunnel(
    edge: ConnectionGuard,
    stream: Arc<Stream>,
    sender: ConnectionSource,
    info: Arc<ListenerInfo>,
    tunnel: Option<&Arc<TunnelSwitch>>,
    early: Vec<u8>,
) {
    match tunnel {
        None => loops::spawn_here(Connection::new(edge, stream, sender, info, early).run()),
        Some(tunnel) => {
            let handler = &tunnel.target().handler;
            let serving = handler.serve(stream, sender.client_address(), info, early);
            handover::spawn_takeover(edge, serving);
        }
    }
}

/// One listener on one loop.
#[derive(Debug)]
struct Acceptor {
    edge: Arc<Edge>,
    info: Arc<ListenerInfo>,
    tunnel: Option<Arc<TunnelSwitch>>,
    /// When a lasting condition was logged last.
    last_warning: Option<Instant>,
}

impl Acceptor {
    /// Waits until there is capacity for an accepted connection, closing idle ones for it.
    async fn ensure_capacity(&mut self, socket: &OwnedFd, stop: &Drain) {
        let mut number = Some(socket.as_raw_fd());
        while let Some(shortage) = self.shortage(number) {
            if self.edge.closing_connections() >= MAX_CLOSING {
                clock::sleep(EVICTION_DELAY).await;
            } else if self.evict_oldest(shortage) || stop.is_draining() {
                return;
            } else {
                self.log(
                    log::Level::Warn,
                    &format!("not accepting for now: {shortage}, and no connection is idle"),
                );
                clock::sleep(ACCEPT_RETRY_DELAY).await;
            }
            number = descriptors::next_fd_number(socket).ok();
        }
    }

    /// The shortage, if there is one; `number` is that of a new descriptor, `None` if there was
    /// none.
    fn shortage(&self, number: Option<RawFd>) -> Option<&'static str> {
        let leaving = self.edge.closing_connections();
        let open = self.edge.open_connections().saturating_sub(leaving);
        let max = self.edge.max_connections();
        if open >= max {
            let configured = self.edge.settings().limits.max_connections;
            return Some(match max < configured {
                true => "all connections that the limit of open files allows are open",
                false => "limits.connections is reached",
            });
        }
        let number = number.and_then(|number| u64::try_from(number).ok());
        let open = number.map_or(u64::MAX, |number| number.saturating_sub(leaving as u64));
        let is_scarce = self.edge.descriptor_budget.is_scarce(open);
        is_scarce.then_some("the limit of open files is near")
    }

    /// Closes the connection that has been idle longest, for `cause`; `false` if none is idle.
    fn evict_oldest(&self, cause: &str) -> bool {
        let now = clock::now();
        // A handshake has not been worth a request yet.
        let is_closing = self.edge.handshakes.running.close_oldest(now)
            || self.edge.idle_connections.close_oldest(now);
        if is_closing && let Some(count) = self.edge.eviction_log.count_event(now) {
            log::warn!("edge: idle connections closed to make room: {cause} (closed={count})");
        }
        is_closing
    }

    /// Logs a condition that may last, now and then.
    fn log(&mut self, level: log::Level, what: &str) {
        let now = clock::now();
        let is_due = |last| now.saturating_duration_since(last) > WARNING_INTERVAL;
        if self.last_warning.is_none_or(is_due) {
            self.last_warning = Some(now);
            log::log!(level, "{}: {what}", self.info.name);
        }
    }

    fn admit(&mut self, socket: OwnedFd, peer: PeerAddress) {
        self.edge.metrics().accepted_connections.increment();
        if self.info.proxy_protocol && !self.edge.settings().trusted_proxies.covers(peer) {
            return self.log(
                log::Level::Warn,
                &format!(
                    "{} closed: a PROXY protocol header is taken from server.trusted_proxies only",
                    access_log::format_peer(peer)
                ),
            );
        }
        let mut edge = ConnectionGuard::new(&self.edge);
        if let Err(max) = edge.admit_client(peer) {
            return edge.log_client_limit(&self.info, peer, max);
        }
        let stream = match Stream::new(socket) {
            Ok(stream) => stream,
            Err(error) => {
                log::error!("{}: cannot watch a connection: {error}", self.info.name);
                return;
            }
        };
        let info = Arc::clone(&self.info);
        if info.proxy_protocol {
            let tunnel = self.tunnel.clone();
            loops::spawn_here(proxy_protocol::read_header_and_serve(
                edge, stream, peer, info, tunnel,
            ));
        } else {
            let source = ConnectionSource::Peer(peer);
            begin(edge, stream, source, info, self.tunnel.clone(), Vec::new());
        }
    }
}
