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

use crate::connection::{UpstreamConnection, UpstreamConnectionInner};
use crate::failure::AttemptFailure;
use crate::request_head::uses_keep_alive;
use crate::saturation::UnansweredRequestGuard;
use crate::server_pool::{
    AttemptOutcome, AttemptReport, ClaimOutcome, ClaimedSlot, ReusePolicy, SelectionCriteria,
    SlotWaiter,
};
use crate::upstream::SharedUpstream;
use crate::upstream_tls::ConnectionPurpose;

/// A slot at a server. Dropped without [`SlotLease::finish`], it is released as neutral and its
/// connection closes.
#[derive(Debug)]
pub(crate) struct SlotLease {
    pub(crate) upstream: Arc<SharedUpstream>,
    /// With an idle connection if one looks alive.
    pub(crate) slot: ClaimedSlot,
    pub(crate) report: AttemptReport,
    pub(crate) queue_time: Duration,
    /// When the server got the request.
    pub(crate) sent_at: Instant,
    /// Set while the connection is new and has brought no response.
    unanswered_guard: Option<UnansweredRequestGuard>,
    is_released: bool,
}

#[derive(Debug)]
pub(crate) enum LeaseOutcome {
    Leased(SlotLease),
    Queued(Box<SlotWaitFuture>),
}

/// Claims a slot for a request that has already waited `waited` in queues. If it must wait again,
/// the wait ends at `deadline` or when `client` disconnects.
///
/// # Errors
/// The queue is full, or no server may serve the request.
pub(crate) fn claim_lease(
    shared: &Arc<SharedUpstream>,
    criteria: &SelectionCriteria<'_>,
    now: Instant,
    waited: Duration,
    deadline: Instant,
    client: Option<&Arc<ClientState>>,
) -> Result<LeaseOutcome, AttemptFailure> {
    let mut receiver = None;
    let make_waiter = || {
        let (grant_sender, granted) = oneshot::channel();
        receiver = Some(granted);
        let client = client.and_then(|client| client.counted_address_prefix());
        SlotWaiter {
            grant_sender,
            client,
        }
    };
    let loop_index = loops::current_loop_index();
    match shared.update_pool(|pool| pool.claim(now, loop_index, criteria, make_waiter)) {
        ClaimOutcome::Slot(slot) => {
            let lease = SlotLease::new(shared, slot, now, waited, criteria.is_first_attempt);
            Ok(LeaseOutcome::Leased(lease))
        }
        ClaimOutcome::Unavailable { reason } => {
            Err(AttemptFailure::local(FaultKind::Unavailable, reason))
        }
        ClaimOutcome::QueueFull { len } => {
            let cause = format!("the queue is full: queue.max = {len} requests wait");
            Err(AttemptFailure::local(FaultKind::QueueFull, cause))
        }
        ClaimOutcome::Queued { ticket, position } => {
            let Some(grant_receiver) = receiver else {
                let cause = "a waiter without its end";
                return Err(AttemptFailure::local(FaultKind::Internal, cause));
            };
            Ok(LeaseOutcome::Queued(Box::new(SlotWaitFuture {
                shared: Arc::clone(shared),
                ticket,
                position,
                grant_receiver,
                reuse: criteria.reuse,
                is_new: criteria.is_first_attempt,
                client: client.map(Arc::clone),
                queued_at: now,
                waited_before: waited,
                deadline: LazyDeadline::new(deadline),
            })))
        }
    }
}

/// The idle connection, on this loop, if it looks alive.
fn checked_idle_connection(connection: UpstreamConnection) -> Option<UpstreamConnection> {
    if !connection.stream.has_no_event() {
        return None;
    }
    let mut connection = match connection.stream.is_on_current_loop() {
        true => connection,
        false => connection.move_to_this_loop().ok()?,
    };
    // Unsolicited bytes would become the next client's response.
    if std::mem::take(&mut connection.needs_liveness_check) && !connection.stream.is_open() {
        return None;
    }
    Some(connection)
}

/// The future of a queued request; resolves to its slot.
#[derive(Debug)]
pub(crate) struct SlotWaitFuture {
    shared: Arc<SharedUpstream>,
    ticket: Ticket,
    pub(crate) position: usize,
    grant_receiver: oneshot::Receiver<Result<SlotId, String>>,
    reuse: ReusePolicy,
    is_new: bool,
    client: Option<Arc<ClientState>>,
    queued_at: Instant,
    /// Time in queues before this one.
    waited_before: Duration,
    deadline: LazyDeadline,
}

impl SlotWaitFuture {
    pub(crate) fn total_wait(&self) -> Duration {
        self.waited_before + clock::now().saturating_duration_since(self.queued_at)
    }

    fn accept_grant(&self, slot: SlotId) -> Result<SlotLease, AttemptFailure> {
        let (now, loop_index) = (clock::now(), loops::current_loop_index());
        let accepted =
            (self.shared).update_pool(|pool| pool.accept_grant(now, slot, loop_index, self.reuse));
        let slot = accepted.ok_or_else(|| {
            AttemptFailure::local(FaultKind::Unavailable, "the server was removed")
        })?;
        let waited = self.waited_before + now.saturating_duration_since(self.queued_at);
        Ok(SlotLease::new(&self.shared, slot, now, waited, self.is_new))
    }
}

impl Future for SlotWaitFuture {
    type Output = Result<SlotLease, AttemptFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(granted) = Pin::new(&mut self.grant_receiver).poll(cx) {
            return Poll::Ready(match granted {
                Ok(Ok(slot)) => self.accept_grant(slot),
                Ok(Err(cause)) => Err(AttemptFailure::local(FaultKind::Overloaded, cause)),
                Err(_) => {
                    let cause = "the upstream was removed";
                    Err(AttemptFailure::local(FaultKind::Unavailable, cause))
                }
            });
        }
        if self
            .client
            .as_ref()
            .is_some_and(|client| client.is_disconnected())
        {
            (self.shared.server_pool.lock()).count_queue_abandoned(self.total_wait());
            let cause = "client disconnected while waiting for a server";
            return Poll::Ready(Err(AttemptFailure::local(
                FaultKind::ClientDisconnected,
                cause,
            )));
        }
        ready!(self.deadline.poll(cx));
        (self.shared.server_pool.lock()).count_queue_timeout(self.total_wait());
        let limit = self.shared.config.queue_timeout;
        let cause = format!("queue.timeout: no free server within {limit:?}");
        Poll::Ready(Err(AttemptFailure::local(FaultKind::QueueTimeout, cause)))
    }
}

impl Drop for SlotWaitFuture {
    fn drop(&mut self) {
        if self.shared.server_pool.lock().cancel(self.ticket) {
            return;
        }
        // A slot may have been granted and not received: closing the channel decides which side
        // releases it.
        self.grant_receiver.close();
        if let Ok(Ok(slot)) = self.grant_receiver.try_recv() {
            self.shared.release_unused_slot(slot);
        }
    }
}

impl SlotLease {
    fn new(
        shared: &Arc<SharedUpstream>,
        mut slot: ClaimedSlot,
        now: Instant,
        queue_time: Duration,
        is_new: bool,
    ) -> Self {
        slot.idle_connection = slot.idle_connection.and_then(checked_idle_connection);
        Self {
            upstream: Arc::clone(shared),
            slot,
            report: AttemptReport {
                queue_time: is_new.then_some(queue_time),
                ..AttemptReport::default()
            },
            queue_time,
            sent_at: now,
            unanswered_guard: None,
            is_released: false,
        }
    }

    /// Opens a connection, with the PROXY header and TLS as configured. Count it with
    /// [`SlotLease::record_connected`].
    ///
    /// # Errors
    /// The attempt's failure.
    pub(crate) fn connect(
        &self,
        peer: PeerAddress,
        listener: &ListenerInfo,
        purpose: ConnectionPurpose,
    ) -> impl Future<Output = Result<UpstreamConnection, AttemptFailure>> + Send + use<> {
        let config = &self.upstream.config;
        let (server, timeout) = (Arc::clone(&self.slot.server), config.connect_timeout);
        let mut setup = self.upstream.connection_setup(purpose);
        setup.proxy_header = config
            .proxy_protocol
            .map(|version| proxy_protocol_header(version, peer, listener));
        async move { UpstreamConnectionInner::open(&server, &setup, clock::now() + timeout).await }
    }

    /// Records that a connection begun at `sent_at` was made.
    pub(crate) fn record_connected(&mut self) {
        self.report.connect_time = Some(clock::now().saturating_duration_since(self.sent_at));
        self.unanswered_guard = Some(UnansweredRequestGuard::new(&self.slot.server));
        self.upstream.server_pool.lock().count_connect(self.slot.id);
    }

    /// Counts a new `connection` as answered, for `saturation`.
    pub(crate) fn count_connection_answered(&mut self, connection: &mut UpstreamConnection) {
        if self.unanswered_guard.take().is_some() {
            connection.count_guard.count_answered();
        }
    }

    /// Ends the trial of a server before its request has ended: a long request must not keep all
    /// others away.
    pub(crate) fn pass_health_trial(&self) {
        if self.slot.server.is_on_trial.load(Ordering::Relaxed) {
            let (now, id) = (clock::now(), self.slot.server_id);
            self.upstream.update_pool(|pool| {
                pool.change_health(now, id, |health| health.record_success(now));
            });
        }
    }

    /// Records that the response head has arrived; returns the time it took.
    pub(crate) fn record_response_head(&mut self, now: Instant) -> Duration {
        let took = now.saturating_duration_since(self.sent_at);
        self.report.header_time = Some(took);
        self.pass_health_trial();
        took
    }

    /// Releases the slot; `connection` is given if it may carry another request.
    pub(crate) fn finish_attempt(
        self,
        connection: Option<UpstreamConnection>,
        outcome: AttemptOutcome,
    ) {
        self.finish_attempt_at(clock::now(), connection, outcome);
    }

    pub(crate) fn finish_attempt_at(
        mut self,
        now: Instant,
        connection: Option<UpstreamConnection>,
        outcome: AttemptOutcome,
    ) {
        self.report.outcome = outcome;
        self.release(
            now,
            connection.filter(|_| uses_keep_alive(&self.upstream.config)),
        );
    }

    fn release(&mut self, now: Instant, connection: Option<UpstreamConnection>) {
        self.unanswered_guard = None;
        self.is_released = true;
        let connection = connection.map(|it| (it, loops::current_loop_index()));
        self.upstream
            .update_pool(|pool| pool.release(now, self.slot.id, connection, &self.report));
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        if !self.is_released {
            self.release(clock::now(), None);
        }
    }
}

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
