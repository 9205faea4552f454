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

use crate::connection::Connection;
use crate::room::Shortage;
use crate::tunnel::Counted;
use crate::{Edge, access_log, heralded, tunnel};

/// How long to wait for a descriptor or a connection slot to come free.
const PAUSE: Duration = Duration::from_millis(20);

/// How long to wait for a connection that was told to close: its loop does so in its next turn.
const CLOSING_PAUSE: Duration = Duration::from_millis(1);

/// So many may be told to close and still be open. More newcomers are not let in: if a loop does
/// not get to it, that many descriptors too many are open at most.
const LEAVING_MAX: usize = 16;

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
    edge.metrics().accepted_connections.increment();
    let (edge, sender) = (Counted::new(edge), Sender::Peer(peer));
    let connection = Connection::new(edge, stream, sender, info, early);
    loops::spawn_here(connection.made_ahead().run());
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
    let mut stopped = std::pin::pin!(stop.wait_until_begun());
    let mut in_a_row = 0;
    loop {
        if in_a_row == TURN {
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
                door.make_room(&socket, &stop).await;
                door.admit(socket, peer);
            }
            // Nothing is taken from the backlog then.
            Some(Err(error))
                if descriptors::is_exhausted(&error) && door.evict_one("no descriptor is left") =>
            {
                clock::sleep(CLOSING_PAUSE).await;
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
    pub(crate) fn is_trusted(&self, trust: &TrustedProxies) -> bool {
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
    /// Waits until there is room for a connection that was accepted. The longest idle one is closed
    /// for it.
    async fn make_room(&mut self, socket: &OwnedFd, stop: &Drain) {
        let mut number = Some(socket.as_raw_fd());
        while let Some(shortage) = self.shortage(number) {
            if self.edge.waiting.leaving() >= LEAVING_MAX {
                clock::sleep(CLOSING_PAUSE).await;
            } else if self.evict_one(self.describe(shortage)) || stop.is_draining() {
                return;
            } else {
                self.warn(&format!(
                    "not accepting for now: {}, and no connection is idle",
                    self.describe(shortage)
                ));
                clock::sleep(PAUSE).await;
            }
            number = descriptors::next_fd_number(socket).ok();
        }
    }

    /// What is short, if anything is; `number` is that of a new descriptor, none if there was none.
    fn shortage(&self, number: Option<RawFd>) -> Option<Shortage> {
        let leaving = self.edge.waiting.leaving();
        let open = self.edge.connections().saturating_sub(leaving);
        if open >= self.edge.max_connections() {
            return Some(Shortage::Connections);
        }
        let number = number.and_then(|number| u64::try_from(number).ok());
        let open = number.map_or(u64::MAX, |number| number.saturating_sub(leaving as u64));
        let is_scarce = self.edge.descriptors.is_scarce(open);
        is_scarce.then_some(Shortage::Descriptors)
    }

    fn describe(&self, shortage: Shortage) -> &'static str {
        let configured = self.edge.settings().limits.connections;
        match shortage {
            Shortage::Connections if self.edge.max_connections() < configured => {
                "all connections that the limit of open files allows are open"
            }
            Shortage::Connections => "limits.connections is reached",
            Shortage::Descriptors => "the limit of open files is near",
        }
    }

    /// Closes the connection that has been idle for longest, for `cause`; `false` if there is none.
    fn evict_one(&self, cause: &str) -> bool {
        let now = clock::now();
        let is_closing = self.edge.waiting.close_oldest(now);
        if is_closing && let Some(count) = self.edge.evictions.count_event(now) {
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
        if self.info.proxy_protocol && !self.edge.settings().trust.covers(peer) {
            return self.warn(&format!(
                "{} closed: a PROXY protocol header is taken from server.trusted_proxies only",
                access_log::peer(peer)
            ));
        }
        let mut edge = Counted::new(&self.edge);
        if let Err(max) = edge.count_client(peer) {
            return edge.log_refused(&self.info, peer, max);
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
            loops::spawn_here(heralded::receive(edge, stream, peer, info, service));
        } else {
            let sender = Sender::Peer(peer);
            self.service.begin(edge, stream, sender, info, Vec::new());
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
