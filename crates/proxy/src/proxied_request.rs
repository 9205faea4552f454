//! One request at an upstream, from its body to the response head: claim, send, read, judge.
//!
//! The future that edge awaits. In the common case an idle connection is available, the request
//! leaves in one system call, and one read brings the whole response, from which `response` builds
//! the reply.
//!
//! # Invariants
//!
//! - A request that is not idempotent is repeated only if no byte of it can have reached an
//!   application.
//! - A failed attempt of which something was sent is repeated only while the retry budget allows
//!   it.
//! - Every wait has one of the named timeouts.
//! - A client that disconnects frees the slot at once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_exchange::buffering::collect_body;
use penstock_exchange::{
    AddressPrefix, Fault, FaultKind, Handler, HandlerProgress, Reply, Request, RequestBody,
    RequestTiming,
};
use penstock_runtime::clock;

use crate::affinity;
use crate::balance::hash_key;
use crate::body_source::BodySource;
use crate::claim::{LeaseOutcome, SlotLease, SlotWaitFuture, claim_lease};
use crate::connection::{ResolvedAddress, UpstreamConnection};
use crate::failure::{AttemptFailure, AttemptStage};
use crate::join;
use crate::response::{self, PartialResponse};
use crate::server_pool::{AttemptOutcome, ReusePolicy, SelectionCriteria, ServerId};
use crate::upstream::{BufferingMode, SharedUpstream};
use crate::upstream_exchange::UpstreamExchange;
use crate::upstream_tls::ConnectionPurpose;

/// A response up to this size is read whole before the client gets any of it, if all of it is
/// available.
const MAX_WHOLE_RESPONSE_BYTES: usize = 128 * 1024;

/// Maximum retries of a request that was not sent to any server: connecting costs a server little.
const MAX_CONNECT_RETRIES: u8 = 8;

/// An upstream behind one route.
#[derive(Debug)]
pub(crate) struct UpstreamHandler {
    pub(crate) shared: Arc<SharedUpstream>,
    pub(crate) buffering: BufferingMode,
}

impl Handler for UpstreamHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        // Constructed in place: it is large.
        let memory = Box::<ProxiedRequest>::new_uninit();
        let shared = Arc::clone(&self.shared);
        let request = Box::write(memory, ProxiedRequest::new(shared, request, self.buffering));
        HandlerProgress::Pending(Box::into_pin(request))
    }
}

/// The attempts of a request that have failed.
#[derive(Default)]
struct FailedAttempts {
    servers: Vec<ServerId>,
    /// The last server's failure, while other servers are tried.
    last: Option<Box<AttemptFailure>>,
}

/// A request and its attempts: a future of its reply.
pub(crate) struct ProxiedRequest {
    pub(crate) shared: Arc<SharedUpstream>,
    pub(crate) request: Request,
    pub(crate) buffering: BufferingMode,
    pub(crate) body_source: BodySource,
    pub(crate) timing: RequestTiming,
    /// When the first server got it: `total_timeout` runs from here.
    pub(crate) first_sent_at: Option<Instant>,
    /// What has failed before; boxed, as few requests have it.
    failed: Option<Box<FailedAttempts>>,
    /// When its time in queues ends.
    queue_deadline: Option<Instant>,
    /// Attempts that were sent to a server.
    attempts: u32,
    /// An idle connection turned out to be closed: the next attempt opens a new one.
    needs_new_connection: bool,
    pub(crate) lease: Option<SlotLease>,
    /// Set during [`RequestStep::Exchange`]; stored outside the step so that it never moves.
    attempt: Option<Attempt>,
    pub(crate) partial_response: PartialResponse,
    step: RequestStep,
}

enum RequestStep {
    ReadBody(BoxedFuture<Result<BodySource, Fault>>),
    ClaimSlot,
    WaitInQueue(Box<SlotWaitFuture>),
    Connect(BoxedFuture<Result<UpstreamConnection, AttemptFailure>>),
    Exchange,
    Done,
}

type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request at a server.
struct Attempt {
    exchange: UpstreamExchange,
    is_reused: bool,
    /// The wait for the response head runs from here.
    wait_started_at: Instant,
}

impl ProxiedRequest {
    pub(crate) fn new(
        shared: Arc<SharedUpstream>,
        mut request: Request,
        buffering: BufferingMode,
    ) -> Self {
        let step = match std::mem::replace(&mut request.body, RequestBody::Empty) {
            RequestBody::Empty => RequestStep::ClaimSlot,
            body => {
                let client = request.client_state.counted_address_prefix();
                let taken = prepare_body(Arc::clone(&shared), body, client, buffering);
                RequestStep::ReadBody(Box::pin(taken))
            }
        };
        Self {
            shared,
            request,
            buffering,
            body_source: BodySource::Empty,
            timing: RequestTiming::default(),
            first_sent_at: None,
            failed: None,
            queue_deadline: None,
            attempts: 0,
            needs_new_connection: false,
            lease: None,
            attempt: None,
            partial_response: PartialResponse::default(),
            step,
        }
    }

    /// Claims a slot and continues from there.
    fn claim_slot(&mut self) -> Result<(), Fault> {
        let is_idempotent = self.request.head.method().is_idempotent();
        let reuse = match (self.needs_new_connection, is_idempotent) {
            (true, _) => ReusePolicy::KeepAliveServer,
            (false, true) => ReusePolicy::Any,
            (false, false) => ReusePolicy::Proven,
        };
        let criteria = SelectionCriteria {
            hash_key: affinity::balance_key(&self.shared.config, &self.request),
            sticky_name_hash: affinity::sticky_name_hash(&self.shared.config, &self.request),
            tried_servers: self.tried_servers(),
            reuse,
            is_first_attempt: self.queue_deadline.is_none(),
        };
        let now = clock::now();
        // Excludes the time of a slow body and the time before an internal redirect.
        let deadline = (self.queue_deadline).unwrap_or(now + self.shared.config.queue_timeout);
        let waited = self.timing.queue_time;
        let client = Some(&self.request.client_state);
        let claimed = claim_lease(&self.shared, &criteria, now, waited, deadline, client);
        self.queue_deadline = Some(deadline);
        match claimed {
            Ok(LeaseOutcome::Leased(lease)) => self.handle_lease(lease, now),
            Ok(LeaseOutcome::Queued(wait)) => {
                let position = u32::try_from(wait.position).unwrap_or(u32::MAX);
                self.timing.queue_position = self.timing.queue_position.max(position);
                self.step = RequestStep::WaitInQueue(wait);
                Ok(())
            }
            Err(refusal) => Err(self.refuse(refusal)),
        }
    }

    fn tried_servers(&self) -> &[ServerId] {
        self.failed.as_ref().map_or(&[], |failed| &failed.servers)
    }

    /// Fails a request that got no slot.
    fn refuse(&mut self, refusal: AttemptFailure) -> Fault {
        // The last server's failure is more specific than "no other server".
        let failure = match (
            refusal.kind,
            self.failed.as_mut().and_then(|failed| failed.last.take()),
        ) {
            (FaultKind::Unavailable, Some(last)) => *last,
            _ => refusal,
        };
        self.make_fault(failure)
    }

    fn handle_lease(&mut self, mut lease: SlotLease, now: Instant) -> Result<(), Fault> {
        self.timing.queue_time = lease.queue_time;
        self.timing.server = Some(Arc::clone(&lease.slot.server.name));
        let is_idempotent = self.request.head.method().is_idempotent();
        // For a request that cannot be repeated, a check whether the server still listens is worth
        // its cost.
        let kept = lease.slot.idle_connection.take();
        let kept = kept.filter(|kept| is_idempotent || kept.stream.is_open());
        let Some(connection) = kept else {
            let (client, listener) = (self.request.client_address(), &*self.request.listener);
            let connecting = lease.connect(client, listener, ConnectionPurpose::Exchange);
            self.step = RequestStep::Connect(Box::pin(connecting));
            self.lease = Some(lease);
            return Ok(());
        };
        self.lease = Some(lease);
        self.send_request(connection, now)
    }

    /// Sends the request, as much as is accepted at once.
    fn send_request(&mut self, connection: UpstreamConnection, now: Instant) -> Result<(), Fault> {
        let is_reused = connection.is_reused();
        if let Some(lease) = &mut self.lease {
            lease.sent_at = now;
        }
        self.first_sent_at.get_or_insert(now);
        let (request, source) = (&self.request, &mut self.body_source);
        let attempt = &mut self.attempt;
        let begun =
            UpstreamExchange::begin(&self.shared, connection, request, source, |exchange| {
                *attempt = Some(Attempt {
                    exchange,
                    is_reused,
                    wait_started_at: now,
                });
            });
        if let Err(failure) = begun {
            let is_stale = is_reused && failure.stage == AttemptStage::Unsent;
            return self.handle_failure(failure, is_stale);
        }
        self.step = RequestStep::Exchange;
        Ok(())
    }

    /// Reads until the head, and the whole body if it is available; the result is in
    /// `partial_response`.
    fn poll_response_start(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AttemptFailure>> {
        let (Some(attempt), Some(lease)) = (&mut self.attempt, &self.lease) else {
            // Called only at that step.
            return Poll::Pending;
        };
        let start = &mut self.partial_response;
        loop {
            let client = Some(&*self.request.client_state);
            let server = &lease.slot.server.name;
            let body = &mut start.body;
            let mut take = |piece: &[u8]| body.extend_from_slice(piece);
            match (attempt.exchange).poll_exchange(
                cx,
                &mut self.body_source,
                client,
                server,
                &mut take,
            ) {
                Poll::Ready(Ok(progress)) => {
                    start.is_upgraded |= progress.is_upgraded;
                    start.head = progress.head.or_else(|| start.head.take());
                    start.end = progress.end.or_else(|| start.end.take());
                    let is_enough = start.end.is_some() || start.is_upgraded;
                    if is_enough || start.body.len() > MAX_WHOLE_RESPONSE_BYTES {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Pending if start.head.is_some() => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        if self.request.client_state.is_disconnected() {
            let cause = "client disconnected while a server processed its request";
            return Poll::Ready(Err(AttemptFailure::local(
                FaultKind::ClientDisconnected,
                cause,
            )));
        }
        let total = self.total_deadline();
        let config = &self.shared.config;
        match &mut self.attempt {
            Some(attempt) => {
                let timeout = self.request.response_timeout();
                let timeout = timeout.unwrap_or(config.response_timeout);
                attempt.poll_timeout(cx, config, timeout, total)
            }
            None => Poll::Pending,
        }
    }

    /// When `total_timeout` ends, if it runs.
    pub(crate) fn total_deadline(&self) -> Option<Instant> {
        Some(self.first_sent_at? + self.shared.config.total_timeout?)
    }

    /// Handles a failed attempt: starts another, or fails the request.
    fn handle_failure(&mut self, failure: AttemptFailure, is_stale: bool) -> Result<(), Fault> {
        self.step = RequestStep::Done;
        self.partial_response = PartialResponse::default();
        let mut failed_server = None;
        if let Some(lease) = self.lease.take() {
            // Closing an idle connection is no failure. A server that left while this side
            // connected, or that opens no more connections, got nothing: the queue is open as
            // before.
            let is_unsent = failure.stage == AttemptStage::Unsent;
            let outcome = match is_stale || is_unsent && !may_connect(&self.shared, &lease) {
                true => AttemptOutcome::Neutral,
                false => {
                    failed_server = Some(lease.slot.server_id);
                    failure.outcome_for_server(|| request_hash(&self.request))
                }
            };
            // Only this side closes a joined connection: the server itself was lost.
            let server = &lease.slot.server;
            if is_stale && !matches!(server.address, ResolvedAddress::Joined(_)) {
                server.keeps_alive.store(false, Ordering::Relaxed);
            }
            // For the log.
            self.timing.connect_time = lease.report.connect_time.unwrap_or_default();
            if !is_unsent {
                self.timing.app_time = clock::now().saturating_duration_since(lease.sent_at);
            }
            lease.finish_attempt(None, outcome);
        }
        if !self.may_retry(&failure, failed_server) {
            return Err(self.make_fault(failure));
        }
        log::debug!(
            "{}: retrying after {}: {}",
            self.shared.name,
            self.timing.server.as_deref().unwrap_or("-"),
            failure.cause
        );
        self.needs_new_connection |= is_stale;
        let failed = self.failed.get_or_insert_default();
        failed.servers.extend(failed_server);
        failed.last = Some(Box::new(failure));
        self.timing.retries = self.timing.retries.saturating_add(1);
        self.step = RequestStep::ClaimSlot;
        Ok(())
    }

    /// Whether to retry, on a server other than `failed`, or without one on a fresh connection.
    fn may_retry(&mut self, failure: &AttemptFailure, failed: Option<ServerId>) -> bool {
        let is_repeatable = match failure.stage {
            AttemptStage::Unsent => true,
            AttemptStage::Sent => self.request.head.method().is_idempotent(),
            AttemptStage::ResponseStarted | AttemptStage::Local => false,
        };
        if !is_repeatable
            || self.request.client_state.is_disconnected()
            || !self.body_source.rewind()
        {
            return false;
        }
        let mut pool = self.shared.server_pool.lock();
        if failed.is_some_and(|failed| !pool.has_untried_server(self.tried_servers(), failed)) {
            return false;
        }
        if failed.is_none() || failure.stage == AttemptStage::Unsent {
            // It costs the servers nothing.
            let is_allowed = self.timing.retries < MAX_CONNECT_RETRIES;
            pool.counters.retries += u64::from(is_allowed);
            return is_allowed;
        }
        self.attempts < self.shared.config.retry.max_attempts && pool.spend_retry(clock::now())
    }

    fn make_fault(&mut self, failure: AttemptFailure) -> Fault {
        let mut timing = std::mem::take(&mut self.timing);
        timing.handler = Some((&self.shared.name).into());
        let cause = match &timing.server {
            Some(server) if failure.blames_server() => {
                format!("{server}: {}", failure.cause).into()
            }
            _ => failure.cause,
        };
        Fault::new(failure.kind, cause).with_timing(timing)
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Reply>, Fault>> {
        match &mut self.step {
            RequestStep::ReadBody(work) => {
                self.body_source = ready!(work.as_mut().poll(cx))?;
                self.step = RequestStep::ClaimSlot;
            }
            RequestStep::ClaimSlot => self.claim_slot()?,
            RequestStep::WaitInQueue(wait) => {
                let granted = ready!(Pin::new(&mut **wait).poll(cx));
                self.timing.queue_time = wait.total_wait();
                self.step = RequestStep::Done;
                match granted {
                    Ok(lease) => self.handle_lease(lease, clock::now())?,
                    Err(refusal) => return Poll::Ready(Err(self.refuse(refusal))),
                }
            }
            RequestStep::Connect(work) => match work.as_mut().poll(cx) {
                Poll::Pending if self.request.client_state.is_disconnected() => {
                    let cause = "client disconnected while connecting to a server";
                    let gone = AttemptFailure::local(FaultKind::ClientDisconnected, cause);
                    self.handle_failure(gone, false)?;
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(connection)) => {
                    if let Some(lease) = &mut self.lease {
                        lease.record_connected();
                    }
                    self.send_request(connection, clock::now())?;
                }
                Poll::Ready(Err(failure)) => self.handle_failure(failure, false)?,
            },
            RequestStep::Exchange => return self.poll_reply(cx),
            RequestStep::Done => {
                let cause = "a request was asked for its reply again";
                return Poll::Ready(Err(Fault::new(FaultKind::Internal, cause)));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Reply>, Fault>> {
        let read = ready!(self.poll_response_start(cx));
        self.step = RequestStep::Done;
        let (Some(attempt), Some(lease)) = (&mut self.attempt, &mut self.lease) else {
            // Called only at that step.
            return Poll::Pending;
        };
        if let Err(failure) = read {
            let is_disconnect = failure.kind == FaultKind::BackendDisconnected;
            let is_stale = attempt.is_reused && is_disconnect && !attempt.exchange.has_received;
            self.attempts += u32::from(!is_stale);
            attempt.exchange.abort_if_incomplete();
            self.attempt = None;
            return Poll::Ready(self.handle_failure(failure, is_stale).map(|()| None));
        }
        lease.count_connection_answered(&mut attempt.exchange.connection);
        let keeps_alive = &lease.slot.server.keeps_alive;
        // Read first: a write each time would bounce the cache line between loops.
        if attempt.is_reused && !keeps_alive.load(Ordering::Relaxed) {
            keeps_alive.store(true, Ordering::Relaxed);
        }
        let now = clock::now();
        self.timing.app_time = lease.record_response_head(now);
        self.timing.connect_time = lease.report.connect_time.unwrap_or_default();
        let reply = response::build_reply(self, now);
        Poll::Ready(reply.map(Some).map_err(|failure| self.make_fault(failure)))
    }

    /// Takes the slot and the connection, to continue elsewhere.
    ///
    /// # Errors
    /// Called only while both are here.
    pub(crate) fn take_exchange(
        &mut self,
    ) -> Result<(SlotLease, UpstreamExchange), AttemptFailure> {
        let exchange = self.lease.take().zip(self.attempt.take());
        let exchange = exchange.map(|(lease, attempt)| (lease, attempt.exchange));
        exchange.ok_or_else(|| {
            AttemptFailure::local(FaultKind::Internal, "a response without its connection")
        })
    }
}

impl Future for ProxiedRequest {
    type Output = Result<Reply, Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(reply) = ready!(self.poll_step(cx))? {
                return Poll::Ready(Ok(reply));
            }
        }
    }
}

impl Attempt {
    /// Ready when the server has not read the request, or not begun its response, for too long.
    fn poll_timeout(
        &mut self,
        cx: &mut Context<'_>,
        config: &config::Upstream,
        response_timeout: Duration,
        total: Option<Instant>,
    ) -> Poll<Result<(), AttemptFailure>> {
        let is_sent = self.exchange.is_request_sent();
        if let Some(at) = self.exchange.last_send_progress_at.take() {
            // The wait for the head begins after the last byte.
            self.wait_started_at = at;
        }
        let (limit, name) = match is_sent {
            true => (response_timeout, "response_timeout"),
            // The reader of the client's body watches for slow clients.
            false if self.exchange.waits_for_client => (Duration::MAX, "limits.body_idle_timeout"),
            false => (config.body_idle_timeout, "body_idle_timeout"),
        };
        let at = self.wait_started_at.checked_add(limit);
        let (at, name) = match (at, total) {
            (Some(at), Some(total)) if total < at => (total, "total_timeout"),
            (None, Some(total)) => (total, "total_timeout"),
            (None, None) => return Poll::Pending,
            (Some(at), _) => (at, name),
        };
        let deadline = &mut self.exchange.connection.deadline;
        deadline.set(at);
        ready!(deadline.poll(cx));
        let activity = match is_sent {
            true => "waiting for the response head",
            false => "while sending the request",
        };
        // The time for all attempts is over: no retry, and no single server is to blame.
        let stage = match name {
            "total_timeout" => AttemptStage::Local,
            _ => AttemptStage::Sent,
        };
        let cause = format!("{name}: timed out {activity}");
        Poll::Ready(Err(AttemptFailure::timed_out(stage, cause)))
    }
}

/// Whether the server can still be reached. A joined server that opens no more connections gets no
/// more requests than it has connections.
fn may_connect(shared: &SharedUpstream, lease: &SlotLease) -> bool {
    if let Some(joined) = lease.slot.server.address.exhausted_joined_connections() {
        join::update_member_max_active(shared, lease.slot.server_id, joined);
        return false;
    }
    shared
        .server_pool
        .lock()
        .server(lease.slot.server_id)
        .is_some()
}

/// Reads the whole body, or leaves it to be streamed.
async fn prepare_body(
    shared: Arc<SharedUpstream>,
    body: RequestBody,
    client: Option<AddressPrefix>,
    buffering: BufferingMode,
) -> Result<BodySource, Fault> {
    // The gateway protocols send the length first.
    let may_stream = |length: Option<u64>| {
        !buffering.request && (length.is_some() || shared.config.protocol == config::Protocol::Http)
    };
    match body {
        RequestBody::Incoming(body) if may_stream(body.length()) => Ok(BodySource::Stream {
            body,
            is_begun: false,
        }),
        body => {
            let store = shared.buffering_settings.load_full();
            let collected = collect_body(body, client, &store).await?;
            Ok(BodySource::from_collected(collected, &store))
        }
    }
}

/// Equal for requests that one fault of an application may affect alike.
pub(crate) fn request_hash(request: &Request) -> u64 {
    hash_key(request.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An allocation per request stays below the size that the allocator serves fastest.
    #[test]
    fn a_call_is_small() {
        let size = size_of::<ProxiedRequest>();
        assert!(size <= 1008, "{size}");
    }
}
