//! A place at a server for one try of one request: claimed at once or after a wait, given back by drop.
//!
//! Called by `call` and `tunnel`. The wait has two ends besides its turn: `queue.timeout`, and a client
//! that left. What must stay true: whatever happens to a waiting task, its place in line or the place
//! that was just given to it goes to the next.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::{ClientState, FaultKind, ListenerInfo};
use penstock_queue::Ticket;
use penstock_runtime::{LazyDeadline, clock, loops};
use penstock_sys::net::PeerAddress;
use penstock_wire::proxy_protocol;
use tokio::sync::oneshot;

use crate::connection::{Connection, Server};
use crate::failure::{Failure, Stage};
use crate::forward::keeps_connections;
use crate::roster::{Claimed, Ended, Grant, MemberKey, Outcome, Place, Waiter, Want};
use crate::upstream::Shared;

/// A place at a server. Dropped without an end, it is given back without a verdict and its connection
/// is closed.
#[derive(Debug)]
pub(crate) struct Lease {
    shared: Arc<Shared>,
    place: Place,
    ended: Ended,
    /// When the server got the request.
    pub(crate) handed_at: Instant,
    is_released: bool,
}

/// What a wait came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Waited {
    pub(crate) time: Duration,
    pub(crate) position: usize,
}

/// Who may stop waiting.
#[derive(Debug)]
pub(crate) struct Claimant<'a> {
    /// Its time in line ends here.
    pub(crate) deadline: Instant,
    /// Says when it left.
    pub(crate) client: Option<&'a ClientState>,
}

/// Claims a place, waiting for it if need be.
///
/// # Errors
/// The queue is full, the time in line is over, the client left, or no server may have the request.
pub(crate) async fn claim(
    shared: &Arc<Shared>,
    want: &Want<'_>,
    claimant: &Claimant<'_>,
    waited: &mut Waited,
) -> Result<Lease, Failure> {
    let now = clock::now();
    let mut receiver = None;
    let make = || {
        let (grant, granted) = oneshot::channel();
        receiver = Some(granted);
        Waiter { grant }
    };
    let home = loops::current_index();
    let claimed = shared.change(|roster, after| roster.claim(now, home, want, make, after));
    let refused = |kind, cause: String| Err(Failure::new(kind, Stage::Ours, cause));
    match claimed {
        Claimed::Place(place) => Ok(Lease::new(shared, place, waited.time)),
        Claimed::Nobody { why } => refused(FaultKind::Unavailable, why.to_owned()),
        Claimed::Full { len } => refused(
            FaultKind::QueueFull,
            format!("the queue is full: queue.max = {len} requests wait"),
        ),
        Claimed::Waiting { ticket, position } => {
            let Some(granted) = receiver else {
                return refused(FaultKind::House, "a waiter without its end".to_owned());
            };
            let wait = Wait {
                shared,
                ticket,
                granted,
            };
            let before = waited.time;
            waited.position = waited.position.max(position);
            let result = Box::pin(wait.finish(claimant)).await;
            waited.time = before + clock::now().saturating_duration_since(now);
            let place = result?;
            Ok(Lease::new(shared, place, waited.time))
        }
    }
}

/// A request in line.
struct Wait<'a> {
    shared: &'a Arc<Shared>,
    ticket: Ticket,
    granted: oneshot::Receiver<Grant>,
}

impl Wait<'_> {
    async fn finish(mut self, claimant: &Claimant<'_>) -> Result<Place, Failure> {
        let mut timer = LazyDeadline::new(claimant.deadline);
        let granted = std::future::poll_fn(|cx| {
            if let Poll::Ready(granted) = std::pin::Pin::new(&mut self.granted).poll(cx) {
                return Poll::Ready(Ok(granted));
            }
            if claimant.client.is_some_and(ClientState::is_gone) {
                return Poll::Ready(Err(true));
            }
            timer.poll(cx).map(|()| Err(false))
        })
        .await;
        match granted {
            Ok(Ok(grant)) => {
                let place = self
                    .shared
                    .roster()
                    .accept(grant.slot, loops::current_index());
                place.ok_or_else(|| ours(FaultKind::Unavailable, "the server was taken out"))
            }
            Ok(Err(_)) => Err(ours(FaultKind::Unavailable, "the upstream was taken out")),
            Err(true) => {
                self.shared.roster().count_abandoned();
                Err(ours(
                    FaultKind::ClientGone,
                    "left while waiting for a server",
                ))
            }
            Err(false) => {
                self.shared.roster().count_timeout();
                let limit = self.shared.config.queue_timeout;
                let cause = format!("queue.timeout: no free server within {limit:?}");
                Err(Failure::new(FaultKind::QueueTimeout, Stage::Ours, cause))
            }
        }
    }
}

fn ours(kind: FaultKind, cause: &'static str) -> Failure {
    Failure::new(kind, Stage::Ours, cause)
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.shared.roster().cancel(self.ticket) {
            return;
        }
        // A place may have been given that nobody took: closing the channel settles who returns it.
        self.granted.close();
        if let Ok(grant) = self.granted.try_recv() {
            self.shared.give_back(grant.slot);
        }
    }
}

impl Lease {
    fn new(shared: &Arc<Shared>, place: Place, queue: Duration) -> Self {
        let ended = Ended {
            outcome: Outcome::Neutral,
            queue,
            connect: None,
            answer: None,
        };
        Self {
            shared: Arc::clone(shared),
            place,
            ended,
            handed_at: clock::now(),
            is_released: false,
        }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.place.server
    }

    pub(crate) fn key(&self) -> MemberKey {
        self.place.key
    }

    /// What a sticky cookie says for its server.
    pub(crate) fn number(&self) -> u64 {
        self.place.number
    }

    /// The upstream.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A kept connection, if there is one that looks alive.
    pub(crate) fn take_kept(&mut self) -> Option<Connection> {
        let (connection, home) = self.place.kept.take()?;
        if !connection.stream.is_quiet() {
            return None;
        }
        if home == loops::current_index() {
            return Some(connection);
        }
        connection.move_here().ok()
    }

    /// Makes a connection, and introduces its client where servers want that.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn connect(
        &mut self,
        peer: PeerAddress,
        listener: &ListenerInfo,
    ) -> Result<Connection, Failure> {
        let begun = clock::now();
        let deadline = begun + self.shared.config.connect_timeout;
        let connection = Connection::open(self.server(), deadline).await?;
        if let Some(version) = self.shared.config.proxy_protocol {
            let header = proxy_header(version, peer, listener);
            // Shorter than any socket's buffer: it goes at once or never.
            let sent = connection.stream.write_all(&header).await;
            sent.map_err(|error| {
                let cause = format!("the server takes no PROXY header: {error}");
                Failure::new(FaultKind::ConnectFailed, Stage::Unsent, cause)
            })?;
        }
        self.ended.connect = Some(clock::now().saturating_duration_since(begun));
        self.shared.roster().count_connect(self.place.slot);
        Ok(connection)
    }

    /// How long connecting took, if it was needed.
    pub(crate) fn connect_time(&self) -> Option<Duration> {
        self.ended.connect
    }

    /// The head of the response has come.
    pub(crate) fn answered(&mut self, now: Instant) -> Duration {
        let took = now.saturating_duration_since(self.handed_at);
        self.ended.answer = Some(took);
        took
    }

    /// Gives the place back; `connection` may carry another request.
    pub(crate) fn finish(mut self, connection: Option<Connection>, outcome: Outcome) {
        self.ended.outcome = outcome;
        self.is_released = true;
        let connection = connection
            .filter(|_| keeps_connections(&self.shared.config))
            .map(|it| (it, loops::current_index()));
        self.shared
            .release(self.place.slot, connection, &self.ended);
    }
}

/// What a server is told of the client that a connection is for.
fn proxy_header(
    version: config::ProxyProtocol,
    peer: PeerAddress,
    listener: &ListenerInfo,
) -> Vec<u8> {
    let addresses = match (peer, listener.address) {
        (PeerAddress::Tcp(from), Some(to)) => Some((from, to)),
        _ => None,
    };
    let mut header = Vec::new();
    match version {
        config::ProxyProtocol::V1 => proxy_protocol::encode_v1(&mut header, addresses),
        config::ProxyProtocol::V2 => proxy_protocol::encode_v2(&mut header, addresses),
    }
    header
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_released {
            self.shared.release(self.place.slot, None, &self.ended);
        }
    }
}
