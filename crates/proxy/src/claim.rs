//! A place at a server for one try of one request: claimed at once or after a wait, given back by drop.
//!
//! Called by `call` and `tunnel`. The wait has two ends besides its turn: `queue.timeout`, and a client
//! that left. What must stay true: whatever happens to a waiting task, its place in line or the place
//! that was just given to it goes to the next.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::{ClientState, FaultKind, ListenerInfo};
use penstock_queue::{SlotId, Ticket};
use penstock_runtime::{LazyDeadline, clock, loops};
use penstock_sys::net::PeerAddress;
use penstock_wire::proxy_protocol;
use tokio::sync::oneshot;

use crate::connection::{Connection, Server};
use crate::failure::{Failure, Stage};
use crate::forward::keeps_connections;
use crate::roster::{Claimed, Ended, Grant, MemberKey, Outcome, Place, Reuse, Waiter, Want};
use crate::saturation::UnansweredGuard;
use crate::upstream::Shared;

/// A place at a server. Dropped without an end, it is given back without a verdict and its connection
/// is closed.
#[derive(Debug)]
pub(crate) struct Lease {
    shared: Arc<Shared>,
    slot: SlotId,
    key: MemberKey,
    server: Arc<Server>,
    number: u64,
    ended: Ended,
    waited: Duration,
    /// When the server got the request.
    pub(crate) handed_at: Instant,
    /// Its connection is new and the server has said nothing on it.
    unanswered: Option<UnansweredGuard>,
    is_released: bool,
}

/// What a claim came to at once.
#[derive(Debug)]
pub(crate) enum Claim {
    /// A place, with a kept connection if there is one that looks alive.
    Place(Lease, Option<Connection>),
    /// It stands in line.
    Waits(Box<Wait>),
}

/// Claims a place, now, for a request that has waited for `waited` in other lines. Should it have to wait, its
/// time in line ends at `deadline`, or when `client` leaves.
///
/// # Errors
/// The queue is full, or no server may have the request.
pub(crate) fn claim(
    shared: &Arc<Shared>,
    want: &Want<'_>,
    now: Instant,
    waited: Duration,
    deadline: Instant,
    client: Option<&Arc<ClientState>>,
) -> Result<Claim, Failure> {
    let mut receiver = None;
    let make = || {
        let (grant, granted) = oneshot::channel();
        receiver = Some(granted);
        let client = client.and_then(|client| client.limit_prefix());
        Waiter { grant, client }
    };
    let home = loops::current_index();
    let claimed = shared.change(|roster, after| roster.claim(now, home, want, make, after));
    let refused = |kind, cause: String| Err(Failure::new(kind, Stage::Ours, cause));
    match claimed {
        Claimed::Place(place) => Ok(Claim::place(shared, place, now, waited, want.is_new)),
        Claimed::Nobody { why } => refused(FaultKind::Unavailable, why.to_owned()),
        Claimed::Full { len } => refused(
            FaultKind::QueueFull,
            format!("the queue is full: queue.max = {len} requests wait"),
        ),
        Claimed::Waiting { ticket, position } => {
            let Some(granted) = receiver else {
                return refused(FaultKind::Internal, "a waiter without its end".to_owned());
            };
            Ok(Claim::Waits(Box::new(Wait {
                shared: Arc::clone(shared),
                ticket,
                position,
                granted,
                reuse: want.reuse,
                is_new: want.is_new,
                client: client.map(Arc::clone),
                since: now,
                waited,
                deadline: LazyDeadline::new(deadline),
            })))
        }
    }
}

impl Claim {
    fn place(
        shared: &Arc<Shared>,
        mut place: Place,
        now: Instant,
        waited: Duration,
        is_new: bool,
    ) -> Self {
        let kept = place.kept.take().and_then(alive);
        Self::Place(Lease::new(shared, place, now, waited, is_new), kept)
    }
}

/// A kept connection that looks alive, on this loop.
fn alive(connection: Connection) -> Option<Connection> {
    if !connection.stream.is_quiet() {
        return None;
    }
    let mut connection = match connection.stream.is_on_current_loop() {
        true => connection,
        false => connection.move_here().ok()?,
    };
    // Bytes that nobody asked for would be the next client's answer.
    if std::mem::take(&mut connection.is_doubtful) && !connection.stream.is_open() {
        return None;
    }
    Some(connection)
}

/// A request in line: a future of its place.
#[derive(Debug)]
pub(crate) struct Wait {
    shared: Arc<Shared>,
    ticket: Ticket,
    pub(crate) position: usize,
    granted: oneshot::Receiver<Result<Grant, String>>,
    reuse: Reuse,
    is_new: bool,
    client: Option<Arc<ClientState>>,
    since: Instant,
    /// In lines before.
    waited: Duration,
    deadline: LazyDeadline,
}

impl Wait {
    /// How long it has waited in all.
    pub(crate) fn time(&self) -> Duration {
        self.waited + clock::now().saturating_duration_since(self.since)
    }

    fn accept(&self, grant: &Grant) -> Result<Claim, Failure> {
        let (now, home) = (clock::now(), loops::current_index());
        let place = self
            .shared
            .change(|roster, after| roster.accept(now, grant.slot, home, self.reuse, after));
        let place =
            place.ok_or_else(|| ours(FaultKind::Unavailable, "the server was taken out"))?;
        let waited = self.waited + now.saturating_duration_since(self.since);
        Ok(Claim::place(&self.shared, place, now, waited, self.is_new))
    }
}

impl Future for Wait {
    /// Always a place, or why not.
    type Output = Result<Claim, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(granted) = Pin::new(&mut self.granted).poll(cx) {
            return Poll::Ready(match granted {
                Ok(Ok(grant)) => self.accept(&grant),
                Ok(Err(cause)) => Err(Failure::new(FaultKind::Overloaded, Stage::Ours, cause)),
                Err(_) => Err(ours(FaultKind::Unavailable, "the upstream was taken out")),
            });
        }
        if self
            .client
            .as_ref()
            .is_some_and(|client| client.is_disconnected())
        {
            self.shared.roster().count_abandoned(self.time());
            let cause = "left while waiting for a server";
            return Poll::Ready(Err(ours(FaultKind::ClientDisconnected, cause)));
        }
        ready!(self.deadline.poll(cx));
        self.shared.roster().count_timeout(self.time());
        let limit = self.shared.config.queue_timeout;
        let cause = format!("queue.timeout: no free server within {limit:?}");
        Poll::Ready(Err(Failure::new(
            FaultKind::QueueTimeout,
            Stage::Ours,
            cause,
        )))
    }
}

fn ours(kind: FaultKind, cause: &'static str) -> Failure {
    Failure::new(kind, Stage::Ours, cause)
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.shared.roster().cancel(self.ticket) {
            return;
        }
        // A place may have been given that nobody took: closing the channel settles who returns it.
        self.granted.close();
        if let Ok(Ok(grant)) = self.granted.try_recv() {
            self.shared.give_back(grant.slot);
        }
    }
}

impl Lease {
    fn new(
        shared: &Arc<Shared>,
        place: Place,
        now: Instant,
        waited: Duration,
        is_new: bool,
    ) -> Self {
        let ended = Ended {
            outcome: Outcome::Neutral,
            queue: is_new.then_some(waited),
            connect: None,
            answer: None,
        };
        Self {
            shared: Arc::clone(shared),
            slot: place.slot,
            key: place.key,
            server: place.server,
            number: place.number,
            ended,
            waited,
            handed_at: now,
            unanswered: None,
            is_released: false,
        }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn key(&self) -> MemberKey {
        self.key
    }

    /// What a sticky cookie says for its server.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The upstream.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes a connection, and introduces its client where servers want that. Count it with
    /// [`Lease::connected`].
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn connect(
        &self,
        peer: PeerAddress,
        listener: &ListenerInfo,
    ) -> impl Future<Output = Result<Connection, Failure>> + Send + use<> {
        let config = &self.shared.config;
        let (server, timeout) = (Arc::clone(self.server()), config.connect_timeout);
        let header = config
            .proxy_protocol
            .map(|version| proxy_header(version, peer, listener));
        async move {
            let connection = Connection::open(&server, clock::now() + timeout).await?;
            if let Some(header) = header {
                // Shorter than any socket's buffer: it goes at once or never.
                let sent = connection.stream.write_all(&header).await;
                sent.map_err(|error| {
                    let cause = format!("the server takes no PROXY header: {error}");
                    Failure::new(FaultKind::ConnectFailed, Stage::Unsent, cause)
                })?;
            }
            Ok(connection)
        }
    }

    /// A connection was made, begun at `handed_at`.
    pub(crate) fn connected(&mut self) {
        self.ended.connect = Some(clock::now().saturating_duration_since(self.handed_at));
        self.unanswered = Some(UnansweredGuard::new(&self.server));
        self.shared.roster().count_connect(self.slot);
    }

    /// Notes the first answer on a new `connection`.
    pub(crate) fn note_answer(&mut self, connection: &mut Connection) {
        if self.unanswered.take().is_some() {
            connection.counted.note_answer();
        }
    }

    /// Tells a server on trial that it has passed, before its request has ended: one that lasts must not
    /// keep all others away.
    pub(crate) fn pass_trial(&self) {
        if self.server.is_on_trial.load(Ordering::Relaxed) {
            let (now, key) = (clock::now(), self.key);
            self.shared.change(|roster, after| {
                roster.change(now, key, after, |ejection| ejection.success(now));
            });
        }
    }

    /// How long connecting took, if it was needed.
    pub(crate) fn connect_time(&self) -> Option<Duration> {
        self.ended.connect
    }

    /// How long its request waited in line.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// The head of the response has come.
    pub(crate) fn answered(&mut self, now: Instant) -> Duration {
        let took = now.saturating_duration_since(self.handed_at);
        self.ended.answer = Some(took);
        self.pass_trial();
        took
    }

    /// Gives the place back; `connection` may carry another request.
    pub(crate) fn finish(self, connection: Option<Connection>, outcome: Outcome) {
        self.finish_at(clock::now(), connection, outcome);
    }

    /// The same at a moment that is known already.
    pub(crate) fn finish_at(
        mut self,
        now: Instant,
        connection: Option<Connection>,
        outcome: Outcome,
    ) {
        self.unanswered = None;
        self.ended.outcome = outcome;
        self.is_released = true;
        let connection = connection
            .filter(|_| keeps_connections(&self.shared.config))
            .map(|it| (it, loops::current_index()));
        self.shared.release(now, self.slot, connection, &self.ended);
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
        self.unanswered = None;
        if !self.is_released {
            let now = clock::now();
            self.shared.release(now, self.slot, None, &self.ended);
        }
    }
}
