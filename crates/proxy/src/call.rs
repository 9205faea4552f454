//! One request at an upstream, from its body to the head of the response: claim, send, read, judge.
//!
//! The future that edge awaits. In the common case a kept connection is at hand, the request leaves in
//! one system call, and one read brings the whole response. What must stay true: a try that fails is
//! repeated only where `failure` says it is safe and the budget allows; every wait has one of the named
//! clocks; a client that leaves frees the place at once.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_config as config;
use penstock_exchange::bodies::collect;
use penstock_exchange::{
    Body, Fault, FaultKind, InternalRedirect, ListenerInfo, Reply, Request, RequestBody, Response,
    Timing,
};
use penstock_http::Method;
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

use crate::balance::hash_key;
use crate::claim::{Claimant, Lease, Waited, claim};
use crate::connection::Connection;
use crate::failure::{Failure, Stage};
use crate::head::ReplyHead;
use crate::relay;
use crate::roster::{MemberKey, Outcome, Want};
use crate::source::Source;
use crate::talk::{End, Said, Talk};
use crate::tunnel::Tunnel;
use crate::upstream::{Buffering, Shared};

/// A response up to this size is taken whole before the client hears of it, if it is all there.
const AT_ONCE_BYTES: usize = 128 * 1024;

/// Most tries of a request that no server was sent: connecting costs a server nothing.
const CONNECTS_MAX: usize = 8;

/// Answers `request` from a server of the upstream.
///
/// # Errors
/// What the client is told when no server gave an answer.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut request: Request,
    buffering: Buffering,
) -> Result<Reply, Fault> {
    let source = match std::mem::replace(&mut request.body, RequestBody::Empty) {
        RequestBody::Empty => Source::Empty,
        body => Box::pin(take_body(&shared, body, buffering)).await?,
    };
    let mut call = Call {
        shared,
        request,
        source,
        buffering,
        tried: Vec::new(),
        waited: Waited::default(),
        timing: Timing::default(),
        tries: 0,
        begun: None,
    };
    call.run().await
}

/// Reads the body whole, or leaves it to be sent as it comes.
async fn take_body(
    shared: &Shared,
    body: RequestBody,
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
            Ok(Source::buffered(collect(body, &store).await?, &store))
        }
    }
}

/// A request and its tries.
struct Call {
    shared: Arc<Shared>,
    request: Request,
    source: Source,
    buffering: Buffering,
    tried: Vec<MemberKey>,
    waited: Waited,
    timing: Timing,
    /// Tries that a server was sent.
    tries: u32,
    /// When the first server had it: `total_timeout` runs from here.
    begun: Option<Instant>,
}

/// What one try came to.
enum Tried {
    Answered(Reply),
    /// The failure, and whether the connection was a kept one that had died before.
    Failed(Failure, bool),
}

impl Call {
    async fn run(&mut self) -> Result<Reply, Fault> {
        let queue_deadline = clock::now() + self.shared.config.queue_timeout;
        let mut last: Option<Failure> = None;
        loop {
            let lease = match self.claim(queue_deadline).await {
                Ok(lease) => lease,
                Err(refused) => {
                    // What the last server did says more than that there is no other.
                    let refused = match refused.kind {
                        FaultKind::Unavailable => last.unwrap_or(refused),
                        _ => refused,
                    };
                    return Err(self.fault(refused));
                }
            };
            let key = lease.key();
            let (failure, was_stale) = match self.attempt(lease).await {
                Tried::Answered(reply) => return Ok(reply),
                Tried::Failed(failure, was_stale) => (failure, was_stale),
            };
            if !self.may_try_again(&failure, was_stale) {
                return Err(self.fault(failure));
            }
            log::debug!(
                "{}: tried again after {}: {}",
                self.shared.name,
                self.timing.server.as_deref().unwrap_or("-"),
                failure.cause
            );
            if !was_stale {
                self.tried.push(key);
                last = Some(failure);
            }
            self.timing.retries = self.timing.retries.saturating_add(1);
        }
    }

    async fn claim(&mut self, deadline: Instant) -> Result<Lease, Failure> {
        let want = Want {
            key: self.key(),
            sticky: self.sticky(),
            tried: &self.tried,
        };
        let claimant = Claimant {
            deadline,
            client: Some(&*self.request.client),
        };
        let claimed = claim(&self.shared, &want, &claimant, &mut self.waited).await;
        self.timing.queue = self.waited.time;
        self.timing.queue_position = u32::try_from(self.waited.position).unwrap_or(u32::MAX);
        if let Ok(lease) = &claimed {
            self.timing.server = Some(Arc::clone(&lease.server().name));
        }
        claimed
    }

    /// One try at one server.
    async fn attempt(&mut self, mut lease: Lease) -> Tried {
        let is_idempotent = self.request.head.method().is_idempotent();
        let (peer, listener) = (self.request.peer, &*self.request.listener);
        let connection = match connection(&mut lease, is_idempotent, peer, listener).await {
            Ok(connection) => connection,
            Err(failure) => {
                lease.finish(None, outcome(&failure));
                return Tried::Failed(failure, false);
            }
        };
        let is_reused = connection.is_reused();
        let now = clock::now();
        lease.handed_at = now;
        self.begun.get_or_insert(now);
        let talk = Talk::begin(&self.shared, connection, &self.request, &mut self.source);
        let mut talk = match talk {
            Ok(talk) => talk,
            Err(failure) => {
                let is_stale = is_reused && failure.stage == Stage::Unsent;
                lease.finish(None, stale_or(is_stale, &failure));
                return Tried::Failed(failure, is_stale);
            }
        };
        let mut body = Vec::new();
        match self.read_head(&mut talk, &lease, &mut body).await {
            Ok((head, end, is_switched)) => {
                self.timing.app = lease.answered(clock::now());
                self.timing.connect = lease.connect_time().unwrap_or_default();
                let lead = Lead { head, end, body };
                match self.answer(lease, talk, lead, is_switched) {
                    Ok(reply) => Tried::Answered(reply),
                    Err(failure) => Tried::Failed(failure, false),
                }
            }
            Err(failure) => {
                // A server that closed a kept connection just now failed nobody.
                let is_stale =
                    is_reused && failure.kind == FaultKind::BackendDied && talk.is_unanswered();
                self.tries += u32::from(!is_stale);
                talk.cut();
                lease.finish(None, stale_or(is_stale, &failure));
                Tried::Failed(failure, is_stale)
            }
        }
    }

    /// Sends the request and reads until the head, and the whole body if it is there.
    async fn read_head(
        &mut self,
        talk: &mut Talk,
        lease: &Lease,
        body: &mut Vec<u8>,
    ) -> Result<(ReplyHead, Option<End>, bool), Failure> {
        let config = &*self.shared.config;
        let (client, source) = (&*self.request.client, &mut self.source);
        let total_deadline = config
            .total_timeout
            .zip(self.begun)
            .map(|(t, begun)| begun + t);
        let mut found: Option<Said> = None;
        let mut clock_began = lease.handed_at;
        let mut was_sent = false;
        std::future::poll_fn(|cx| {
            loop {
                let mut take = |piece: &[u8]| body.extend_from_slice(piece);
                let server = &lease.server().name;
                let read = talk.poll_read(cx, source, Some(client), server, &mut take);
                match read {
                    Poll::Ready(Ok(said)) => {
                        let so_far = found.get_or_insert_default();
                        so_far.is_switched |= said.is_switched;
                        so_far.head = said.head.or_else(|| so_far.head.take());
                        so_far.end = said.end.or_else(|| so_far.end.take());
                        let is_enough = so_far.end.is_some()
                            || so_far.is_switched
                            || body.len() > AT_ONCE_BYTES;
                        if !is_enough {
                            continue;
                        }
                    }
                    // Its head is whole: the rest goes another way, a failure included.
                    Poll::Ready(Err(failure)) if found.is_none() => {
                        return Poll::Ready(Err(failure));
                    }
                    Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                    Poll::Pending => {}
                }
                if let Some(Said {
                    head: Some(head),
                    end,
                    is_switched,
                }) = found.take()
                {
                    return Poll::Ready(Ok((head, end, is_switched)));
                }
                break;
            }
            if client.is_gone() {
                let cause = "left while a server worked on its request";
                return Poll::Ready(Err(Failure::new(FaultKind::ClientGone, Stage::Ours, cause)));
            }
            let is_sent = talk.is_sent();
            if is_sent && !was_sent {
                was_sent = true;
                if clock_began != lease.handed_at || clock::now() > lease.handed_at + SEND_SLACK {
                    clock_began = clock::now();
                }
            }
            let (limit, name) = match is_sent {
                true => (config.response_timeout, "response_timeout"),
                false => (config.stall_timeout, "stall_timeout"),
            };
            let (at, name) = match total_deadline {
                Some(total) if total < clock_began + limit => (total, "total_timeout"),
                _ => (clock_began + limit, name),
            };
            let deadline = &mut talk.connection().deadline;
            deadline.set(at);
            deadline.poll(cx).map(|()| {
                let cause = match is_sent {
                    true => format!("{name}: no response head in time"),
                    false => format!("{name}: the server does not take the request"),
                };
                Err(Failure::late(Stage::Sent, cause))
            })
        })
        .await
    }

    /// Makes the reply, and sees to the rest of the body.
    fn answer(
        &mut self,
        lease: Lease,
        talk: Talk,
        lead: Lead,
        is_switched: bool,
    ) -> Result<Reply, Failure> {
        let Lead { head, end, body } = lead;
        let ReplyHead {
            status,
            fields,
            length,
            is_unbuffered,
            accel,
        } = head;
        let mut response = Response::new(status, Body::Empty);
        response.fields = fields;
        self.timing.handler = Some((&self.shared.name).into());
        response.timing = self.timing.clone();
        self.keep_client(&lease, &mut response);
        if is_switched {
            if !self.asked_for(response.fields.get("upgrade")) {
                lease.finish(None, Outcome::Failure { timeout: false });
                let cause = "a switch to a protocol that nobody asked for";
                return Err(Failure::broken(Stage::Answered, cause));
            }
            response.body = Body::Takeover(Box::new(Tunnel::of_upgrade(lease, talk)));
            return Ok(response.into());
        }
        if let Some(accel) = accel {
            response.rate_max = accel.rate_max;
            let redirect = match self.redirect(&accel, &response) {
                Ok(redirect) => redirect,
                Err(failure) => {
                    lease.finish(None, Outcome::Success);
                    return Err(failure);
                }
            };
            if let Some(redirect) = redirect {
                // What the server has for a body is not wanted.
                let connection = end.and_then(|end| talk.into_connection(&end));
                lease.finish(connection, Outcome::Success);
                return Ok(Reply::Redirect(Box::new(redirect)));
            }
        }
        let is_head = self.request.head.method() == Method::Head;
        match end {
            Some(end) if end.trailers.is_none() => {
                response.body = match body {
                    _ if is_head => Body::Omitted(length),
                    body if body.is_empty() => Body::Empty,
                    body => Body::Bytes(Bytes::from(body)),
                };
                let connection = talk.into_connection(&end);
                lease.finish(connection, Outcome::Success);
            }
            end => {
                let is_unbuffered = is_unbuffered || !self.buffering.response;
                let source = std::mem::replace(&mut self.source, Source::Empty);
                let rest = relay::Rest {
                    talk,
                    lease,
                    source,
                    end,
                    total_deadline: self.total_deadline(),
                };
                response.body = relay::start(rest, body, length, is_unbuffered);
            }
        }
        Ok(response.into())
    }

    /// Whether the client asked for the protocol that a server switches to.
    fn asked_for(&self, protocol: Option<&[u8]>) -> bool {
        let Some(protocol) = protocol else {
            return false;
        };
        let mut asked = (self.request.head.field_all("upgrade"))
            .flat_map(|value| value.split(|&byte| byte == b','));
        asked.any(|asked| asked.trim_ascii().eq_ignore_ascii_case(protocol))
    }

    fn total_deadline(&self) -> Option<Instant> {
        let limit = self.shared.config.total_timeout?;
        Some(self.begun? + limit)
    }

    /// An internal redirect, if the head asks for one.
    ///
    /// # Errors
    /// When it may not be followed.
    fn redirect(
        &self,
        accel: &crate::head::Accel,
        response: &Response,
    ) -> Result<Option<InternalRedirect>, Failure> {
        let (target, handler) = match accel {
            crate::head::Accel {
                redirect: Some(target),
                ..
            } => (target.clone(), None),
            crate::head::Accel {
                sendfile: Some(path),
                ..
            } => {
                let Some(handler) = self.shared.sendfile.clone() else {
                    return Ok(None);
                };
                let root = self.shared.config.sendfile_root.as_deref();
                let target = root.and_then(|root| crate::accel::target_below(root, path));
                let target = target.ok_or_else(|| {
                    let path = String::from_utf8_lossy(path).escape_debug().to_string();
                    let cause = format!("X-Sendfile outside of sendfile_root: `{path}`");
                    Failure::broken(Stage::Answered, cause)
                })?;
                (target, Some(handler))
            }
            _ => return Ok(None),
        };
        if !target.starts_with('/') {
            let cause = format!("X-Accel-Redirect to no path: `{}`", target.escape_debug());
            return Err(Failure::broken(Stage::Answered, cause));
        }
        Ok(Some(InternalRedirect {
            target,
            handler,
            fields: crate::accel::surviving(&response.fields),
            rate_max: accel.rate_max,
            timing: self.timing.clone(),
        }))
    }

    /// Gives a client without the right cookie the one of its server.
    fn keep_client(&self, lease: &Lease, response: &mut Response) {
        let Some(cookie) = &self.shared.config.sticky else {
            return;
        };
        if self.sticky() == Some(lease.number()) {
            return;
        }
        let value = format!(
            "{cookie}={:016x}; Path=/; HttpOnly; SameSite=Lax",
            lease.number()
        );
        // Name and number are valid in a field.
        let _ = response.fields.push("Set-Cookie", value.as_bytes());
    }

    /// The server number that the client's cookie has.
    fn sticky(&self) -> Option<u64> {
        let cookie = self.shared.config.sticky.as_deref()?;
        let value = cookie_value(&self.request, cookie)?;
        u64::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
    }

    /// What the request is hashed by, where that is the balance.
    fn key(&self) -> Option<u64> {
        let config::Balance::Hash(key) = &self.shared.config.balance else {
            return None;
        };
        let head = &self.request.head;
        Some(match key {
            config::HashKey::Path => hash_key(self.request.path()),
            config::HashKey::Target => hash_key(head.target_path_query().as_bytes()),
            config::HashKey::Client => {
                hash_key(crate::accel::client_address(&self.request).as_bytes())
            }
            config::HashKey::Header(name) => hash_key(head.field(name)?),
            config::HashKey::Cookie(name) => hash_key(cookie_value(&self.request, name)?),
        })
    }

    /// Whether the request goes to another server, or on a fresh connection.
    fn may_try_again(&mut self, failure: &Failure, was_stale: bool) -> bool {
        let is_idempotent = self.request.head.method().is_idempotent();
        if !failure.allows_retry(is_idempotent) || self.request.client.is_gone() {
            return false;
        }
        if !self.source.rewind() {
            return false;
        }
        // Retries so far: at most one a kept connection, which are used up, so it ends.
        if was_stale || failure.stage == Stage::Unsent {
            let is_first = usize::from(self.timing.retries) < CONNECTS_MAX;
            if is_first {
                self.shared.roster().count_retry();
            }
            return is_first;
        }
        let attempts = self.shared.config.retry.attempts;
        self.tries < attempts && self.shared.roster().may_retry(clock::now())
    }

    fn fault(&mut self, failure: Failure) -> Fault {
        let mut timing = self.timing.clone();
        timing.handler = Some((&self.shared.name).into());
        let cause = match &timing.server {
            Some(server) if failure.blames_server() => {
                format!("{server}: {}", failure.cause).into()
            }
            _ => failure.cause,
        };
        Fault::new(failure.kind, cause).timed(timing)
    }
}

/// A kept connection that can be relied on, or a new one.
async fn connection(
    lease: &mut Lease,
    is_idempotent: bool,
    peer: PeerAddress,
    listener: &ListenerInfo,
) -> Result<Connection, Failure> {
    if let Some(kept) = lease.take_kept() {
        // A request that cannot be repeated is worth a look whether the server still listens.
        if is_idempotent || kept.stream.is_open() {
            return Ok(kept);
        }
    }
    Box::pin(lease.connect(peer, listener)).await
}

/// A request that is out within this time of its beginning is charged from its beginning.
const SEND_SLACK: Duration = Duration::from_millis(10);

/// What has come of a response.
struct Lead {
    head: ReplyHead,
    end: Option<End>,
    body: Vec<u8>,
}

fn stale_or(is_stale: bool, failure: &Failure) -> Outcome {
    match is_stale {
        true => Outcome::Neutral,
        false => outcome(failure),
    }
}

/// What a failure says of its server.
pub(crate) fn outcome(failure: &Failure) -> Outcome {
    match failure.blames_server() {
        true => Outcome::Failure {
            timeout: failure.kind == FaultKind::BackendTimeout,
        },
        false => Outcome::Neutral,
    }
}

/// RFC 6265 §4.2.1: pairs between semicolons.
fn cookie_value<'r>(request: &'r Request, name: &str) -> Option<&'r [u8]> {
    request.head.field_all("cookie").find_map(|line| {
        line.split(|&byte| byte == b';').find_map(|pair| {
            let pair = pair.trim_ascii();
            let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(value)
        })
    })
}
