//! Claims a slot at a server for one attempt of one request, at once or after a wait in the queue.
//!
//! Called by `proxied_request` and `tunnel`. The wait also ends by `queue.timeout` or when the
//! client disconnects.
//!
//! # Invariants
//!
//! - If a waiting task is dropped, its queue position or the slot just granted to it goes to the
//!   next request.

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

use crate::connection::{BackendServer, UpstreamConnection};
use crate::failure::{AttemptFailure, AttemptStage};
use crate::request_head::uses_keep_alive;
use crate::saturation::UnansweredGuard;
use crate::server_pool::{
    AttemptOutcome, AttemptReport, ClaimOutcome, ClaimedSlot, ReusePolicy, SelectionCriteria,
    ServerId, SlotGrant, SlotWaiter,
};
use crate::upstream::SharedUpstream;

/// A slot at a server. Dropped without [`Lease::finish`], it is released as neutral and its
/// connection closes.
#[derive(Debug)]
pub(crate) struct Lease {
    upstream: Arc<SharedUpstream>,
    slot: SlotId,
    server_id: ServerId,
    server: Arc<BackendServer>,
    name_hash: u64,
    report: AttemptReport,
    queue_time: Duration,
    /// When the server got the request.
    pub(crate) sent_at: Instant,
    /// Set while the connection is new and has brought no response.
    unanswered_guard: Option<UnansweredGuard>,
    is_released: bool,
}

/// The immediate result of a claim.
#[derive(Debug)]
pub(crate) enum LeaseOutcome {
    /// A slot, with an idle connection if one looks alive.
    Leased(Lease, Option<UpstreamConnection>),
    Queued(Box<QueueWait>),
}

/// Claims a slot for a request that has already waited `waited` in queues. If it must wait again,
/// the wait ends at `deadline` or when `client` disconnects.
///
/// # Errors
/// The queue is full, or no server may serve the request.
pub(crate) fn claim_lease(
    shared: &Arc<SharedUpstream>,
    want: &SelectionCriteria<'_>,
    now: Instant,
    waited: Duration,
    deadline: Instant,
    client: Option<&Arc<ClientState>>,
) -> Result<LeaseOutcome, AttemptFailure> {
    let mut receiver = None;
    let make = || {
        let (grant, granted) = oneshot::channel();
        receiver = Some(granted);
        let client = client.and_then(|client| client.limit_prefix());
        SlotWaiter {
            grant_sender: grant,
            client,
        }
    };
    let home = loops::current_index();
    let claimed = shared.update_pool(|roster, after| roster.claim(now, home, want, make, after));
    let refused = |kind, cause: String| Err(AttemptFailure::new(kind, AttemptStage::Local, cause));
    match claimed {
        ClaimOutcome::Slot(place) => Ok(LeaseOutcome::leased(
            shared,
            place,
            now,
            waited,
            want.is_first_attempt,
        )),
        ClaimOutcome::Unavailable { reason: why } => {
            refused(FaultKind::Unavailable, why.to_owned())
        }
        ClaimOutcome::QueueFull { len } => refused(
            FaultKind::QueueFull,
            format!("the queue is full: queue.max = {len} requests wait"),
        ),
        ClaimOutcome::Queued { ticket, position } => {
            let Some(granted) = receiver else {
                return refused(FaultKind::Internal, "a waiter without its end".to_owned());
            };
            Ok(LeaseOutcome::Queued(Box::new(QueueWait {
                shared: Arc::clone(shared),
                ticket,
                position,
                grant_receiver: granted,
                reuse: want.reuse,
                is_new: want.is_first_attempt,
                client: client.map(Arc::clone),
                queued_at: now,
                waited_before: waited,
                deadline: LazyDeadline::new(deadline),
            })))
        }
    }
}

impl LeaseOutcome {
    fn leased(
        shared: &Arc<SharedUpstream>,
        mut place: ClaimedSlot,
        now: Instant,
        waited: Duration,
        is_new: bool,
    ) -> Self {
        let kept = place
            .idle_connection
            .take()
            .and_then(checked_idle_connection);
        Self::Leased(Lease::new(shared, place, now, waited, is_new), kept)
    }
}

/// The idle connection, on this loop, if it looks alive.
fn checked_idle_connection(connection: UpstreamConnection) -> Option<UpstreamConnection> {
    if !connection.stream.is_quiet() {
        return None;
    }
    let mut connection = match connection.stream.is_on_current_loop() {
        true => connection,
        false => connection.move_to_this_loop().ok()?,
    };
    // Unsolicited bytes would become the next client's response.
    if std::mem::take(&mut connection.needs_check) && !connection.stream.is_open() {
        return None;
    }
    Some(connection)
}

/// A queued request: a future of its slot.
#[derive(Debug)]
pub(crate) struct QueueWait {
    shared: Arc<SharedUpstream>,
    ticket: Ticket,
    pub(crate) position: usize,
    grant_receiver: oneshot::Receiver<Result<SlotGrant, String>>,
    reuse: ReusePolicy,
    is_new: bool,
    client: Option<Arc<ClientState>>,
    queued_at: Instant,
    /// Time in queues before this one.
    waited_before: Duration,
    deadline: LazyDeadline,
}

impl QueueWait {
    /// The total queue time.
    pub(crate) fn total_wait(&self) -> Duration {
        self.waited_before + clock::now().saturating_duration_since(self.queued_at)
    }

    fn accept_grant(&self, grant: &SlotGrant) -> Result<LeaseOutcome, AttemptFailure> {
        let (now, home) = (clock::now(), loops::current_index());
        let place = self.shared.update_pool(|roster, after| {
            roster.accept_grant(now, grant.slot, home, self.reuse, after)
        });
        let place =
            place.ok_or_else(|| local_failure(FaultKind::Unavailable, "the server was removed"))?;
        let waited = self.waited_before + now.saturating_duration_since(self.queued_at);
        Ok(LeaseOutcome::leased(
            &self.shared,
            place,
            now,
            waited,
            self.is_new,
        ))
    }
}

impl Future for QueueWait {
    /// A slot, or the failure.
    type Output = Result<LeaseOutcome, AttemptFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(granted) = Pin::new(&mut self.grant_receiver).poll(cx) {
            return Poll::Ready(match granted {
                Ok(Ok(grant)) => self.accept_grant(&grant),
                Ok(Err(cause)) => Err(AttemptFailure::new(
                    FaultKind::Overloaded,
                    AttemptStage::Local,
                    cause,
                )),
                Err(_) => Err(local_failure(
                    FaultKind::Unavailable,
                    "the upstream was removed",
                )),
            });
        }
        if self
            .client
            .as_ref()
            .is_some_and(|client| client.is_disconnected())
        {
            self.shared.server_pool().count_abandoned(self.total_wait());
            let cause = "client disconnected while waiting for a server";
            return Poll::Ready(Err(local_failure(FaultKind::ClientDisconnected, cause)));
        }
        ready!(self.deadline.poll(cx));
        self.shared.server_pool().count_timeout(self.total_wait());
        let limit = self.shared.config.queue_timeout;
        let cause = format!("queue.timeout: no free server within {limit:?}");
        Poll::Ready(Err(AttemptFailure::new(
            FaultKind::QueueTimeout,
            AttemptStage::Local,
            cause,
        )))
    }
}

fn local_failure(kind: FaultKind, cause: &'static str) -> AttemptFailure {
    AttemptFailure::new(kind, AttemptStage::Local, cause)
}

impl Drop for QueueWait {
    fn drop(&mut self) {
        if self.shared.server_pool().cancel(self.ticket) {
            return;
        }
        // A slot may have been granted and not received: closing the channel decides which side
        // releases it.
        self.grant_receiver.close();
        if let Ok(Ok(grant)) = self.grant_receiver.try_recv() {
            self.shared.release_unused_slot(grant.slot);
        }
    }
}

impl Lease {
    fn new(
        shared: &Arc<SharedUpstream>,
        place: ClaimedSlot,
        now: Instant,
        waited: Duration,
        is_new: bool,
    ) -> Self {
        let ended = AttemptReport {
            outcome: AttemptOutcome::Neutral,
            queue_time: is_new.then_some(waited),
            connect_time: None,
            header_time: None,
        };
        Self {
            upstream: Arc::clone(shared),
            slot: place.slot,
            server_id: place.server_id,
            server: place.server,
            name_hash: place.name_hash,
            report: ended,
            queue_time: waited,
            sent_at: now,
            unanswered_guard: None,
            is_released: false,
        }
    }

    pub(crate) fn server(&self) -> &Arc<BackendServer> {
        &self.server
    }

    pub(crate) fn server_id(&self) -> ServerId {
        self.server_id
    }

    /// The number that a sticky cookie holds for this server.
    pub(crate) fn name_hash(&self) -> u64 {
        self.name_hash
    }

    pub(crate) fn upstream(&self) -> &Arc<SharedUpstream> {
        &self.upstream
    }

    /// Opens a connection and sends the PROXY header if configured. Count it with
    /// [`Lease::record_connected`].
    ///
    /// # Errors
    /// The attempt's failure.
    pub(crate) fn connect(
        &self,
        peer: PeerAddress,
        listener: &ListenerInfo,
    ) -> impl Future<Output = Result<UpstreamConnection, AttemptFailure>> + Send + use<> {
        let config = &self.upstream.config;
        let (server, timeout) = (Arc::clone(self.server()), config.connect_timeout);
        let header = config
            .proxy_protocol
            .map(|version| proxy_protocol_header(version, peer, listener));
        async move {
            let connection = UpstreamConnection::open(&server, clock::now() + timeout).await?;
            if let Some(header) = header {
                // Shorter than any socket buffer: it is written at once or never.
                let sent = connection.stream.write_all(&header).await;
                sent.map_err(|error| {
                    let cause = format!("cannot send the PROXY header: {error}");
                    AttemptFailure::new(FaultKind::ConnectFailed, AttemptStage::Unsent, cause)
                })?;
            }
            Ok(connection)
        }
    }

    /// Records that a connection begun at `sent_at` was made.
    pub(crate) fn record_connected(&mut self) {
        self.report.connect_time = Some(clock::now().saturating_duration_since(self.sent_at));
        self.unanswered_guard = Some(UnansweredGuard::new(&self.server));
        self.upstream.server_pool().count_connect(self.slot);
    }

    /// Records the first response on a new `connection`.
    pub(crate) fn record_first_response(&mut self, connection: &mut UpstreamConnection) {
        if self.unanswered_guard.take().is_some() {
            connection.count_guard.record_first_response();
        }
    }

    /// Passes the trial of a server on trial before its request has ended: a long request must not
    /// keep all others away.
    pub(crate) fn pass_trial(&self) {
        if self.server.is_on_trial.load(Ordering::Relaxed) {
            let (now, key) = (clock::now(), self.server_id);
            self.upstream.update_pool(|roster, after| {
                roster.change_health(now, key, after, |ejection| ejection.record_success(now));
            });
        }
    }

    /// The connect time, if a connection was made.
    pub(crate) fn connect_time(&self) -> Option<Duration> {
        self.report.connect_time
    }

    /// The request's queue time.
    pub(crate) fn queue_time(&self) -> Duration {
        self.queue_time
    }

    /// Records that the response head has arrived; returns the time it took.
    pub(crate) fn record_response_head(&mut self, now: Instant) -> Duration {
        let took = now.saturating_duration_since(self.sent_at);
        self.report.header_time = Some(took);
        self.pass_trial();
        took
    }

    /// Releases the slot; `connection` is given if it may carry another request.
    pub(crate) fn finish(self, connection: Option<UpstreamConnection>, outcome: AttemptOutcome) {
        self.finish_at(clock::now(), connection, outcome);
    }

    /// Like `finish`, with a known time.
    pub(crate) fn finish_at(
        mut self,
        now: Instant,
        connection: Option<UpstreamConnection>,
        outcome: AttemptOutcome,
    ) {
        self.unanswered_guard = None;
        self.report.outcome = outcome;
        self.is_released = true;
        let connection = connection
            .filter(|_| uses_keep_alive(&self.upstream.config))
            .map(|it| (it, loops::current_index()));
        self.upstream
            .release_slot(now, self.slot, connection, &self.report);
    }
}

/// The PROXY header for the client of a connection.
fn proxy_protocol_header(
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
        self.unanswered_guard = None;
        if !self.is_released {
            let now = clock::now();
            self.upstream
                .release_slot(now, self.slot, None, &self.report);
        }
    }
}
