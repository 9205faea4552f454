//! One request at an upstream, from its body to the response head: claim, send, read, judge.
//!
//! The future that edge awaits. In the common case an idle connection is available, the request
//! leaves in one system call, and one read brings the whole response, from which `response` builds
//! the reply.
//!
//! # Invariants
//!
//! - A failed attempt is repeated only where `failure` says it is safe and the retry budget allows
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
    AddressPrefix, Fault, FaultKind, Reply, Request, RequestBody, RequestTiming,
};
use penstock_runtime::clock;

use crate::balance::hash_key;
use crate::body_source::BodySource;
use crate::claim::{Lease, LeaseOutcome, QueueWait, claim_lease};
use crate::connection::{ResolvedAddress, UpstreamConnection};
use crate::failure::{AttemptFailure, AttemptStage};
use crate::join;
use crate::response::{self, ResponseStart};
use crate::server_pool::{AttemptOutcome, ReusePolicy, SelectionCriteria, ServerId};
use crate::upstream::{BufferingMode, SharedUpstream};
use crate::upstream_exchange::{ResponseEnd, ResponseProgress, UpstreamExchange};

/// A response up to this size is read whole before the client gets any of it, if all of it is
/// available.
const MAX_WHOLE_RESPONSE_BYTES: usize = 128 * 1024;

/// Maximum attempts of a request that was not sent to any server: connecting costs a server little.
const MAX_CONNECT_ATTEMPTS: u8 = 8;

/// A request and its attempts: a future of its reply.
pub(crate) struct ProxiedRequest {
    pub(crate) shared: Arc<SharedUpstream>,
    pub(crate) request: Request,
    pub(crate) buffering: BufferingMode,
    pub(crate) body_source: BodySource,
    pub(crate) timing: RequestTiming,
    /// When the first server got it: `total_timeout` runs from here.
    pub(crate) first_sent_at: Option<Instant>,
    tried_servers: Vec<ServerId>,
    /// The last server's failure, while other servers are tried.
    last_failure: Option<Box<AttemptFailure>>,
    /// When its time in queues ends.
    queue_deadline: Option<Instant>,
    /// Attempts that were sent to a server.
    attempts: u32,
    /// An idle connection turned out to be closed: the next attempt opens a new one.
    needs_new_connection: bool,
    pub(crate) lease: Option<Lease>,
    /// Set during [`RequestStep::Exchange`]; stored outside the step so that it never moves.
    attempt: Option<Attempt>,
    pub(crate) response_start: ResponseStart,
    step: RequestStep,
}

enum RequestStep {
    ReadBody(BoxedFuture<Result<BodySource, Fault>>),
    ClaimSlot,
    WaitInQueue(Box<QueueWait>),
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
                let client = request.client_state.limit_prefix();
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
            tried_servers: Vec::new(),
            last_failure: None,
            queue_deadline: None,
            attempts: 0,
            needs_new_connection: false,
            lease: None,
            attempt: None,
            response_start: ResponseStart::default(),
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
        let want = SelectionCriteria {
            hash_key: response::balance_key(self),
            sticky_name_hash: response::sticky_cookie_id(self),
            tried_servers: &self.tried_servers,
            reuse,
            is_first_attempt: self.queue_deadline.is_none(),
        };
        let now = clock::now();
        // Excludes the time of a slow body and the time before an internal redirect.
        let deadline = self
            .queue_deadline
            .unwrap_or(now + self.shared.config.queue_timeout);
        let client = Some(&self.request.client_state);
        let claimed = claim_lease(
            &self.shared,
            &want,
            now,
            self.timing.queue_time,
            deadline,
            client,
        );
        self.queue_deadline = Some(deadline);
        self.handle_claim(claimed, now)
    }

    fn handle_claim(
        &mut self,
        claimed: Result<LeaseOutcome, AttemptFailure>,
        now: Instant,
    ) -> Result<(), Fault> {
        match claimed {
            Ok(LeaseOutcome::Leased(lease, kept)) => self.handle_lease(lease, kept, now),
            Ok(LeaseOutcome::Queued(wait)) => {
                let position = u32::try_from(wait.position).unwrap_or(u32::MAX);
                self.timing.queue_position = self.timing.queue_position.max(position);
                self.step = RequestStep::WaitInQueue(wait);
                Ok(())
            }
            Err(refused) => {
                // The last server's failure is more specific than "no other server".
                let failure = match (refused.kind, self.last_failure.take()) {
                    (FaultKind::Unavailable, Some(last)) => *last,
                    _ => refused,
                };
                Err(self.make_fault(failure))
            }
        }
    }

    fn handle_lease(
        &mut self,
        lease: Lease,
        kept: Option<UpstreamConnection>,
        now: Instant,
    ) -> Result<(), Fault> {
        self.timing.queue_time = lease.queue_time();
        self.timing.server = Some(Arc::clone(&lease.server().name));
        let is_idempotent = self.request.head.method().is_idempotent();
        // For a request that cannot be repeated, a check whether the server still listens is worth
        // its cost.
        let kept = kept.filter(|kept| is_idempotent || kept.stream.is_open());
        let Some(connection) = kept else {
            let (client, listener) = (self.request.client_address(), &*self.request.listener);
            self.step = RequestStep::Connect(Box::pin(lease.connect(client, listener)));
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
        let (shared, request, source) = (&self.shared, &self.request, &mut self.body_source);
        let talking = &mut self.attempt;
        let begun = UpstreamExchange::begin(shared, connection, request, source, |talk| {
            *talking = Some(Attempt {
                exchange: talk,
                is_reused,
                wait_started_at: now,
            });
        });
        match begun {
            Ok(()) => {
                self.step = RequestStep::Exchange;
                Ok(())
            }
            Err(failure) => {
                let is_stale = is_reused && failure.stage == AttemptStage::Unsent;
                self.handle_failure(failure, is_stale)
            }
        }
    }

    /// Reads until the head, and the whole body if it is available; the result is in
    /// `response_start`.
    fn poll_response_start(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AttemptFailure>> {
        let (Some(talking), Some(lease)) = (&mut self.attempt, &mut self.lease) else {
            // Called only at that step.
            return Poll::Pending;
        };
        let (talk, lead) = (&mut talking.exchange, &mut self.response_start);
        loop {
            let client = Some(&*self.request.client_state);
            let server = &lease.server().name;
            let body = &mut lead.body;
            let mut take = |piece: &[u8]| body.extend_from_slice(piece);
            match talk.poll_read(cx, &mut self.body_source, client, server, &mut take) {
                Poll::Ready(Ok(ResponseProgress {
                    head,
                    is_upgraded: is_switched,
                    end,
                })) => {
                    lead.is_upgraded |= is_switched;
                    lead.head = head.or_else(|| lead.head.take());
                    lead.end = end.or_else(|| lead.end.take());
                    let is_enough = lead.end.is_some() || lead.is_upgraded;
                    if is_enough || lead.body.len() > MAX_WHOLE_RESPONSE_BYTES {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Pending if lead.head.is_some() => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        if self.request.client_state.is_disconnected() {
            let cause = "client disconnected while a server processed its request";
            return Poll::Ready(Err(AttemptFailure::new(
                FaultKind::ClientDisconnected,
                AttemptStage::Local,
                cause,
            )));
        }
        let config = &self.shared.config;
        let total = config.total_timeout.zip(self.first_sent_at);
        let total = total.map(|(limit, begun)| begun + limit);
        talking.poll_timeout(cx, config, total)
    }

    /// Handles a failed attempt: starts another, or fails the request.
    fn handle_failure(&mut self, failure: AttemptFailure, is_stale: bool) -> Result<(), Fault> {
        self.step = RequestStep::Done;
        self.response_start = ResponseStart::default();
        let mut verdict = match is_stale {
            // Closing an idle connection is no failure.
            true => AttemptOutcome::Neutral,
            false => attempt_outcome(&failure, || request_hash(&self.request)),
        };
        let mut key = None;
        if let Some(lease) = self.lease.take() {
            key = Some(lease.server_id()).filter(|_| !is_stale);
            // A server that left while this side connected, or that opens no more connections, got
            // nothing: the queue is open as before.
            if failure.stage == AttemptStage::Unsent && !may_connect(&self.shared, &lease) {
                (key, verdict) = (None, AttemptOutcome::Neutral);
            }
            // Only this side closes a joined connection: the server itself was lost.
            if is_stale && !matches!(lease.server().address, ResolvedAddress::Joined(_)) {
                lease.server().keeps_alive.store(false, Ordering::Relaxed);
            }
            // For the log.
            self.timing.connect_time = lease.connect_time().unwrap_or_default();
            if failure.stage != AttemptStage::Unsent {
                self.timing.app_time = clock::now().saturating_duration_since(lease.sent_at);
            }
            lease.finish(None, verdict);
        }
        if !self.may_retry(&failure, key) {
            return Err(self.make_fault(failure));
        }
        log::debug!(
            "{}: retrying after {}: {}",
            self.shared.name,
            self.timing.server.as_deref().unwrap_or("-"),
            failure.cause
        );
        self.needs_new_connection |= is_stale;
        self.tried_servers.extend(key);
        self.last_failure = Some(Box::new(failure));
        self.timing.retries = self.timing.retries.saturating_add(1);
        self.step = RequestStep::ClaimSlot;
        Ok(())
    }

    /// Whether to retry, on a server other than `key`, or without a key on a fresh connection.
    fn may_retry(&mut self, failure: &AttemptFailure, key: Option<ServerId>) -> bool {
        let is_idempotent = self.request.head.method().is_idempotent();
        if !failure.allows_retry(is_idempotent) || self.request.client_state.is_disconnected() {
            return false;
        }
        if !self.body_source.rewind() {
            return false;
        }
        let mut roster = self.shared.server_pool();
        if key.is_some_and(|key| !roster.has_other(&self.tried_servers, key)) {
            return false;
        }
        if key.is_none() || failure.stage == AttemptStage::Unsent {
            let is_allowed = self.timing.retries < MAX_CONNECT_ATTEMPTS;
            if is_allowed {
                roster.count_retry();
            }
            return is_allowed;
        }
        let attempts = self.shared.config.retry.max_attempts;
        self.attempts < attempts && roster.spend_retry(clock::now())
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
                let claimed = ready!(Pin::new(&mut **wait).poll(cx));
                self.timing.queue_time = wait.total_wait();
                self.step = RequestStep::Done;
                self.handle_claim(claimed, clock::now())?;
            }
            RequestStep::Connect(work) => match work.as_mut().poll(cx) {
                Poll::Pending if self.request.client_state.is_disconnected() => {
                    let cause = "client disconnected while connecting to a server";
                    let gone = AttemptFailure::new(
                        FaultKind::ClientDisconnected,
                        AttemptStage::Local,
                        cause,
                    );
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
            RequestStep::Exchange => return self.poll_exchange(cx),
            RequestStep::Done => {
                let cause = "a request was asked for its reply again";
                return Poll::Ready(Err(Fault::new(FaultKind::Internal, cause)));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Reply>, Fault>> {
        let read = ready!(self.poll_response_start(cx));
        self.step = RequestStep::Done;
        let (Some(talking), Some(lease)) = (&mut self.attempt, &mut self.lease) else {
            // Called only at that step.
            return Poll::Pending;
        };
        if let Err(failure) = read {
            let is_died = failure.kind == FaultKind::BackendDisconnected;
            let is_stale = talking.is_reused && is_died && talking.exchange.is_unanswered();
            self.attempts += u32::from(!is_stale);
            talking.exchange.abort_if_incomplete();
            self.attempt = None;
            return Poll::Ready(self.handle_failure(failure, is_stale).map(|()| None));
        }
        lease.record_first_response(talking.exchange.connection());
        let keeps = &lease.server().keeps_alive;
        // Read first: a write each time would bounce the cache line between loops.
        if talking.is_reused && !keeps.load(Ordering::Relaxed) {
            keeps.store(true, Ordering::Relaxed);
        }
        let now = clock::now();
        self.timing.app_time = lease.record_response_head(now);
        self.timing.connect_time = lease.connect_time().unwrap_or_default();
        let reply = response::build_reply(self, now);
        Poll::Ready(reply.map(Some).map_err(|failure| self.make_fault(failure)))
    }

    /// Takes the slot and the connection, to continue elsewhere.
    pub(crate) fn take_exchange(&mut self) -> Option<(Lease, UpstreamExchange)> {
        let lease = self.lease.take()?;
        Some((lease, self.attempt.take()?.exchange))
    }

    /// Releases the slot after a complete response.
    pub(crate) fn finish_exchange(&mut self, end: &ResponseEnd, now: Instant) {
        if let Some((lease, talk)) = self.take_exchange() {
            lease.finish_at(now, talk.into_connection(end), AttemptOutcome::Success);
        }
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
        total: Option<Instant>,
    ) -> Poll<Result<(), AttemptFailure>> {
        let is_sent = self.exchange.is_sent();
        if let Some(at) = self.exchange.take_progress() {
            // The wait for the head begins after the last byte.
            self.wait_started_at = at;
        }
        let (limit, name) = match is_sent {
            true => (config.response_timeout, "response_timeout"),
            // The reader of the client's body watches for slow clients.
            false if self.exchange.waits_for_client() => {
                (Duration::MAX, "limits.body_idle_timeout")
            }
            false => (config.body_idle_timeout, "body_idle_timeout"),
        };
        let at = self.wait_started_at.checked_add(limit);
        let (at, name) = match (at, total) {
            (Some(at), Some(total)) if total < at => (total, "total_timeout"),
            (None, Some(total)) => (total, "total_timeout"),
            (None, None) => return Poll::Pending,
            (Some(at), _) => (at, name),
        };
        let deadline = &mut self.exchange.connection().deadline;
        deadline.set(at);
        ready!(deadline.poll(cx));
        let cause = match is_sent {
            true => format!("{name}: timed out waiting for the response head"),
            false => format!("{name}: timed out while sending the request"),
        };
        // The time for all attempts is over: no retry, and no single server is to blame.
        let stage = match name {
            "total_timeout" => AttemptStage::Local,
            _ => AttemptStage::Sent,
        };
        Poll::Ready(Err(AttemptFailure::timed_out(stage, cause)))
    }
}

/// Whether the server can still be reached. A joined server that opens no more connections gets no
/// more requests than it has connections.
fn may_connect(shared: &SharedUpstream, lease: &Lease) -> bool {
    if let Some(dialled) = lease.server().address.exhausted_joined() {
        join::update_member_capacity(shared, lease.server_id(), dialled);
        return false;
    }
    shared.server_pool().server(lease.server_id()).is_some()
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
        RequestBody::Incoming(body) if may_stream(body.length()) => {
            Ok(BodySource::from_incoming(body))
        }
        body => {
            let store = shared.body_store.load_full();
            let collected = collect_body(body, client, &store).await?;
            Ok(BodySource::from_collected(collected, &store))
        }
    }
}

/// Equal for requests that one fault of an application may affect alike.
pub(crate) fn request_hash(request: &Request) -> u64 {
    hash_key(request.path())
}

/// The outcome of a failure for its server; `request` returns [`request_hash`].
pub(crate) fn attempt_outcome(
    failure: &AttemptFailure,
    request: impl FnOnce() -> u64,
) -> AttemptOutcome {
    match failure.blames_server() {
        true if failure.kind == FaultKind::BackendProtocolError => AttemptOutcome::Malformed {
            request_hash: request(),
        },
        true => AttemptOutcome::Failure {
            is_timeout: failure.kind == FaultKind::BackendTimeout,
        },
        false => AttemptOutcome::Neutral,
    }
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
