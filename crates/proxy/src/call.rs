//! One request at an upstream, from its body to the head of the response: claim, send, read, judge.
//!
//! The future that edge awaits, one step after the other. In the common case a kept connection is at
//! hand, the request leaves in one system call, and one read brings the whole response, which `answer`
//! makes a reply of. What must stay true: a try that fails is repeated only where `failure` says it is
//! safe and the budget allows; every wait has one of the named clocks; a client that leaves frees the
//! place at once.

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

use crate::answer::{self, Lead};
use crate::balance::hash_key;
use crate::claim::{Claim, Lease, Wait, claim};
use crate::connection::{Address, Connection};
use crate::failure::{Failure, Stage};
use crate::join;
use crate::roster::{MemberKey, Outcome, Reuse, Want};
use crate::source::Source;
use crate::talk::{End, Said, Talk};
use crate::upstream::{Buffering, Shared};

/// A response up to this size is taken whole before the client hears of it, if it is all there.
const AT_ONCE_BYTES: usize = 128 * 1024;

/// Most tries of a request that no server was sent: connecting costs a server nothing.
const CONNECTS_MAX: u8 = 8;

/// A request and its tries: a future of its reply.
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    pub(crate) request: Request,
    pub(crate) buffering: Buffering,
    pub(crate) source: Source,
    pub(crate) timing: RequestTiming,
    /// When the first server had it: `total_timeout` runs from here.
    pub(crate) begun: Option<Instant>,
    tried: Vec<MemberKey>,
    /// What the last server did, when others are to be tried.
    last: Option<Box<Failure>>,
    /// Its time in lines ends here.
    queue_deadline: Option<Instant>,
    /// Tries that a server was sent.
    tries: u32,
    /// A kept connection turned out to be closed: the next is a new one.
    wants_fresh: bool,
    pub(crate) lease: Option<Lease>,
    /// There at the step of that name; beside the step, so that it stays where it was made.
    talking: Option<Talking>,
    pub(crate) lead: Lead,
    step: Step,
}

/// What is done now.
enum Step {
    /// The request's body is read.
    Body(Work<Result<Source, Fault>>),
    Claim,
    Wait(Box<Wait>),
    Connect(Work<Result<Connection, Failure>>),
    Talk,
    Over,
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request at a server.
struct Talking {
    talk: Talk,
    is_reused: bool,
    /// The clock of the wait for the head runs from here.
    clock_began: Instant,
}

impl Call {
    pub(crate) fn new(shared: Arc<Shared>, mut request: Request, buffering: Buffering) -> Self {
        let step = match std::mem::replace(&mut request.body, RequestBody::Empty) {
            RequestBody::Empty => Step::Claim,
            body => {
                let client = request.client_state.limit_prefix();
                let taken = take_body(Arc::clone(&shared), body, client, buffering);
                Step::Body(Box::pin(taken))
            }
        };
        Self {
            shared,
            request,
            buffering,
            source: Source::Empty,
            timing: RequestTiming::default(),
            begun: None,
            tried: Vec::new(),
            last: None,
            queue_deadline: None,
            tries: 0,
            wants_fresh: false,
            lease: None,
            talking: None,
            lead: Lead::default(),
            step,
        }
    }

    /// Claims a place and goes on from there.
    fn claim(&mut self) -> Result<(), Fault> {
        let is_idempotent = self.request.head.method().is_idempotent();
        let reuse = match (self.wants_fresh, is_idempotent) {
            (true, _) => Reuse::OfKeeper,
            (false, true) => Reuse::Any,
            (false, false) => Reuse::Proven,
        };
        let want = Want {
            key: answer::key(self),
            sticky: answer::sticky(self),
            tried: &self.tried,
            reuse,
            is_new: self.queue_deadline.is_none(),
        };
        let now = clock::now();
        // What a slow body took is not charged, nor what led to an internal redirect.
        let deadline = self
            .queue_deadline
            .unwrap_or(now + self.shared.config.queue_timeout);
        let client = Some(&self.request.client_state);
        let claimed = claim(
            &self.shared,
            &want,
            now,
            self.timing.queue_time,
            deadline,
            client,
        );
        self.queue_deadline = Some(deadline);
        self.claimed(claimed, now)
    }

    fn claimed(&mut self, claimed: Result<Claim, Failure>, now: Instant) -> Result<(), Fault> {
        match claimed {
            Ok(Claim::Place(lease, kept)) => self.placed(lease, kept, now),
            Ok(Claim::Waits(wait)) => {
                let position = u32::try_from(wait.position).unwrap_or(u32::MAX);
                self.timing.queue_position = self.timing.queue_position.max(position);
                self.step = Step::Wait(wait);
                Ok(())
            }
            Err(refused) => {
                // What the last server did says more than that there is no other.
                let failure = match (refused.kind, self.last.take()) {
                    (FaultKind::Unavailable, Some(last)) => *last,
                    _ => refused,
                };
                Err(self.fault(failure))
            }
        }
    }

    fn placed(
        &mut self,
        lease: Lease,
        kept: Option<Connection>,
        now: Instant,
    ) -> Result<(), Fault> {
        self.timing.queue_time = lease.waited();
        self.timing.server = Some(Arc::clone(&lease.server().name));
        let is_idempotent = self.request.head.method().is_idempotent();
        // A request that cannot be repeated is worth a look whether the server still listens.
        let kept = kept.filter(|kept| is_idempotent || kept.stream.is_open());
        let Some(connection) = kept else {
            let (client, listener) = (self.request.client_address(), &*self.request.listener);
            self.step = Step::Connect(Box::pin(lease.connect(client, listener)));
            self.lease = Some(lease);
            return Ok(());
        };
        self.lease = Some(lease);
        self.begin(connection, now)
    }

    /// Sends the request, as much as goes at once.
    fn begin(&mut self, connection: Connection, now: Instant) -> Result<(), Fault> {
        let is_reused = connection.is_reused();
        if let Some(lease) = &mut self.lease {
            lease.handed_at = now;
        }
        self.begun.get_or_insert(now);
        let (shared, request, source) = (&self.shared, &self.request, &mut self.source);
        let talking = &mut self.talking;
        let begun = Talk::begin(shared, connection, request, source, |talk| {
            *talking = Some(Talking {
                talk,
                is_reused,
                clock_began: now,
            });
        });
        match begun {
            Ok(()) => {
                self.step = Step::Talk;
                Ok(())
            }
            Err(failure) => {
                let is_stale = is_reused && failure.stage == Stage::Unsent;
                self.failed(failure, is_stale)
            }
        }
    }

    /// Reads until the head, and the whole body if it is there; what came is in `lead` then.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let (Some(talking), Some(lease)) = (&mut self.talking, &mut self.lease) else {
            // Only asked at that step.
            return Poll::Pending;
        };
        let (talk, lead) = (&mut talking.talk, &mut self.lead);
        loop {
            let client = Some(&*self.request.client_state);
            let server = &lease.server().name;
            let body = &mut lead.body;
            let mut take = |piece: &[u8]| body.extend_from_slice(piece);
            match talk.poll_read(cx, &mut self.source, client, server, &mut take) {
                Poll::Ready(Ok(Said {
                    head,
                    is_switched,
                    end,
                })) => {
                    lead.is_switched |= is_switched;
                    lead.head = head.or_else(|| lead.head.take());
                    lead.end = end.or_else(|| lead.end.take());
                    let is_enough = lead.end.is_some() || lead.is_switched;
                    if is_enough || lead.body.len() > AT_ONCE_BYTES {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Pending if lead.head.is_some() => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        if self.request.client_state.is_disconnected() {
            let cause = "left while a server worked on its request";
            return Poll::Ready(Err(Failure::new(
                FaultKind::ClientDisconnected,
                Stage::Ours,
                cause,
            )));
        }
        let config = &self.shared.config;
        let total = config.total_timeout.zip(self.begun);
        let total = total.map(|(limit, begun)| begun + limit);
        talking.poll_late(cx, config, total)
    }

    /// A try has failed: another is begun, or the client is told.
    fn failed(&mut self, failure: Failure, is_stale: bool) -> Result<(), Fault> {
        self.step = Step::Over;
        self.lead = Lead::default();
        let mut verdict = match is_stale {
            // A server that closed a kept connection just now failed nobody.
            true => Outcome::Neutral,
            false => outcome(&failure, || request_key(&self.request)),
        };
        let mut key = None;
        if let Some(lease) = self.lease.take() {
            key = Some(lease.key()).filter(|_| !is_stale);
            // One that has left while it was connected to, or brings no more connections, has had nothing: the line is open
            // as before.
            if failure.stage == Stage::Unsent && !may_connect(&self.shared, &lease) {
                (key, verdict) = (None, Outcome::Neutral);
            }
            // Of one that has dialled in nobody but this side closes a connection: it was the end of it.
            if is_stale && !matches!(lease.server().address, Address::Joined(_)) {
                lease.server().keeps.store(false, Ordering::Relaxed);
            }
            // The log says where the time went.
            self.timing.connect_time = lease.connect_time().unwrap_or_default();
            if failure.stage != Stage::Unsent {
                self.timing.app_time = clock::now().saturating_duration_since(lease.handed_at);
            }
            lease.finish(None, verdict);
        }
        if !self.may_try_again(&failure, key) {
            return Err(self.fault(failure));
        }
        log::debug!(
            "{}: tried again after {}: {}",
            self.shared.name,
            self.timing.server.as_deref().unwrap_or("-"),
            failure.cause
        );
        self.wants_fresh |= is_stale;
        self.tried.extend(key);
        self.last = Some(Box::new(failure));
        self.timing.retries = self.timing.retries.saturating_add(1);
        self.step = Step::Claim;
        Ok(())
    }

    /// Whether the request goes to another server than that of `key`, or, without one, on a fresh
    /// connection.
    fn may_try_again(&mut self, failure: &Failure, key: Option<MemberKey>) -> bool {
        let is_idempotent = self.request.head.method().is_idempotent();
        if !failure.allows_retry(is_idempotent) || self.request.client_state.is_disconnected() {
            return false;
        }
        if !self.source.rewind() {
            return false;
        }
        let mut roster = self.shared.roster();
        if key.is_some_and(|key| !roster.has_other(&self.tried, key)) {
            return false;
        }
        if key.is_none() || failure.stage == Stage::Unsent {
            let is_allowed = self.timing.retries < CONNECTS_MAX;
            if is_allowed {
                roster.count_retry();
            }
            return is_allowed;
        }
        let attempts = self.shared.config.retry.attempts;
        self.tries < attempts && roster.may_retry(clock::now())
    }

    fn fault(&mut self, failure: Failure) -> Fault {
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
            Step::Body(work) => {
                self.source = ready!(work.as_mut().poll(cx))?;
                self.step = Step::Claim;
            }
            Step::Claim => self.claim()?,
            Step::Wait(wait) => {
                let claimed = ready!(Pin::new(&mut **wait).poll(cx));
                self.timing.queue_time = wait.time();
                self.step = Step::Over;
                self.claimed(claimed, clock::now())?;
            }
            Step::Connect(work) => match work.as_mut().poll(cx) {
                Poll::Pending if self.request.client_state.is_disconnected() => {
                    let cause = "left while a server was connected to";
                    let gone = Failure::new(FaultKind::ClientDisconnected, Stage::Ours, cause);
                    self.failed(gone, false)?;
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(connection)) => {
                    if let Some(lease) = &mut self.lease {
                        lease.connected();
                    }
                    self.begin(connection, clock::now())?;
                }
                Poll::Ready(Err(failure)) => self.failed(failure, false)?,
            },
            Step::Talk => return self.poll_talk(cx),
            Step::Over => {
                let cause = "a request was asked for its reply again";
                return Poll::Ready(Err(Fault::new(FaultKind::Internal, cause)));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn poll_talk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Reply>, Fault>> {
        let read = ready!(self.poll_head(cx));
        self.step = Step::Over;
        let (Some(talking), Some(lease)) = (&mut self.talking, &mut self.lease) else {
            // Only asked at that step.
            return Poll::Pending;
        };
        if let Err(failure) = read {
            let is_died = failure.kind == FaultKind::BackendDisconnected;
            let is_stale = talking.is_reused && is_died && talking.talk.is_unanswered();
            self.tries += u32::from(!is_stale);
            talking.talk.cut();
            self.talking = None;
            return Poll::Ready(self.failed(failure, is_stale).map(|()| None));
        }
        lease.note_answer(talking.talk.connection());
        let keeps = &lease.server().keeps;
        // Looked at first: a write each time would be shared by all loops.
        if talking.is_reused && !keeps.load(Ordering::Relaxed) {
            keeps.store(true, Ordering::Relaxed);
        }
        let now = clock::now();
        self.timing.app_time = lease.answered(now);
        self.timing.connect_time = lease.connect_time().unwrap_or_default();
        let reply = answer::reply(self, now);
        Poll::Ready(reply.map(Some).map_err(|failure| self.fault(failure)))
    }

    /// The place and the connection, for whoever goes on with them.
    pub(crate) fn take_talk(&mut self) -> Option<(Lease, Talk)> {
        let lease = self.lease.take()?;
        Some((lease, self.talking.take()?.talk))
    }

    /// Gives the place back behind a response that is complete.
    pub(crate) fn complete(&mut self, end: &End, now: Instant) {
        if let Some((lease, talk)) = self.take_talk() {
            lease.finish_at(now, talk.into_connection(end), Outcome::Success);
        }
    }
}

impl Future for Call {
    type Output = Result<Reply, Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(reply) = ready!(self.poll_step(cx))? {
                return Poll::Ready(Ok(reply));
            }
        }
    }
}

impl Talking {
    /// Ready when the server has not taken the request, or not begun its answer, for too long.
    fn poll_late(
        &mut self,
        cx: &mut Context<'_>,
        config: &config::Upstream,
        total: Option<Instant>,
    ) -> Poll<Result<(), Failure>> {
        let is_sent = self.talk.is_sent();
        if let Some(at) = self.talk.take_progress() {
            // The wait for the head begins behind the last byte.
            self.clock_began = at;
        }
        let (limit, name) = match is_sent {
            true => (config.response_timeout, "response_timeout"),
            // A client that is slow to send is watched by those who read it.
            false if self.talk.waits_for_client() => (Duration::MAX, "limits.body_stall"),
            false => (config.stall_timeout, "stall_timeout"),
        };
        let at = self.clock_began.checked_add(limit);
        let (at, name) = match (at, total) {
            (Some(at), Some(total)) if total < at => (total, "total_timeout"),
            (None, Some(total)) => (total, "total_timeout"),
            (None, None) => return Poll::Pending,
            (Some(at), _) => (at, name),
        };
        let deadline = &mut self.talk.connection().deadline;
        deadline.set(at);
        ready!(deadline.poll(cx));
        let cause = match is_sent {
            true => format!("{name}: no response head in time"),
            false => format!("{name}: the server does not take the request"),
        };
        // The time for all tries is over: no other server gets it, and none is to blame alone.
        let stage = match name {
            "total_timeout" => Stage::Ours,
            _ => Stage::Sent,
        };
        Poll::Ready(Err(Failure::late(stage, cause)))
    }
}

/// Whether there is a way to the server still; one that brings no more connections gets no more than it has connections for.
fn may_connect(shared: &Shared, lease: &Lease) -> bool {
    if let Some(dialled) = lease.server().address.last_dialled() {
        join::fit(shared, lease.key(), dialled);
        return false;
    }
    shared.roster().member(lease.key()).is_some()
}

/// Reads the body whole, or leaves it to be sent as it comes.
async fn take_body(
    shared: Arc<Shared>,
    body: RequestBody,
    client: Option<AddressPrefix>,
    buffering: Buffering,
) -> Result<Source, Fault> {
    // The gateway protocols tell its length ahead.
    let may_stream = |length: Option<u64>| {
        !buffering.request && (length.is_some() || shared.config.protocol == config::Protocol::Http)
    };
    match body {
        RequestBody::Incoming(body) if may_stream(body.length()) => Ok(Source::streaming(body)),
        body => {
            let store = shared.store.load_full();
            let collected = collect_body(body, client, &store).await?;
            Ok(Source::buffered(collected, &store))
        }
    }
}

/// Alike for requests that one fault of an application may treat alike.
pub(crate) fn request_key(request: &Request) -> u64 {
    hash_key(request.path())
}

/// What a failure says of its server; `request` is what [`request_key`] gives.
pub(crate) fn outcome(failure: &Failure, request: impl FnOnce() -> u64) -> Outcome {
    match failure.blames_server() {
        true if failure.kind == FaultKind::BackendProtocolError => {
            Outcome::Malformed { request: request() }
        }
        true => Outcome::Failure {
            timeout: failure.kind == FaultKind::BackendTimeout,
        },
        false => Outcome::Neutral,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is allocated for each request stays below what the allocator serves fastest.
    #[test]
    fn a_call_is_small() {
        let size = size_of::<Call>();
        assert!(size <= 1008, "{size}");
    }
}
