//! A cache lookup that cannot be answered at once: from disk, from the back end, or with the result
//! of another request's fetch.
//!
//! Runs in the task of the client's connection and may be dropped at any await. Fetches that it
//! leads continue on their own (`fetch`) while they are useful.
//!
//! # Invariants
//!
//! - A lookup ends: `lock_timeout` bounds its waiting for other requests, and the deadlines of the
//!   back end's handler bound its own fetch.
//! - A client receives a shared response or one made for it alone, never one made for another
//!   client.

mod slice_lookup;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use penstock_exchange::{
    ClientState, Fault, FaultKind, FaultSide, HandlerName, Reply, Request, RequestTiming, Response,
};
use penstock_http::caching::{
    CacheStatus, ForwardReason, ReuseDecision, decide_reuse, evaluate_stored_preconditions,
    head_response_matches_stored, variant_key,
};
use penstock_http::{Method, PreconditionResult, RequestHead, Status};
use penstock_runtime::clock;
use penstock_runtime::log_throttle::suppressed_suffix;

use self::slice_lookup::SliceLookupOutcome;
use super::bypass::{self, BypassedRequest};
use super::{
    LookupResult, SharedCache, StaleHit, UsableHit, bypass_status, hit_status, judge_hit,
    selects_variant, unsatisfiable_response,
};
use crate::backend_request::ClientRequest;
use crate::coalesced_fetch::{FetchOutcome, LeaderResult};
use crate::fetch::{Fetch, is_backend_failure};
use crate::route_rules::LookupOptions;
use crate::serve::{self, CacheHeaders, StoredBody};
use crate::store::{Hit, HitBody, ObjectGone, ObjectKey, ObjectMeta, PartialObject, Store};

/// Rounds of looking up what other requests have stored meanwhile; then the request goes to the
/// back end itself. More than two are needed only if variants multiply meanwhile. Rounds that end
/// with another request's failure do not count: `lock_timeout` bounds these.
const MAX_ROUNDS: u32 = 4;

#[derive(Debug)]
pub(super) struct CacheLookup {
    pub(super) shared: Arc<SharedCache>,
    pub(super) store: Arc<Store>,
    pub(super) key: ObjectKey,
    pub(super) directives: LookupOptions,
    pub(super) client: ClientRequest,
    pub(super) client_state: Arc<ClientState>,
    /// When the request stops waiting for others.
    pub(super) deadline: Instant,
}

/// The result of one round.
enum LookupStep {
    Done(Result<Reply, Fault>),
    RetryLookup,
    /// Look up again without counting the round: another client's request failed and is out.
    LeaderFailed,
    /// Send the request to the back end unchanged.
    Bypass(CacheStatus<'static>),
}

/// The request that receives a fetch's outcome.
struct OutcomeRecipient<'a> {
    stale: Option<&'a StaleHit>,
    fwd: ForwardReason,
    /// Set if this request led the fetch.
    leader_result: Option<LeaderResult>,
}

impl CacheLookup {
    pub(super) async fn run(
        self,
        request: Request,
        mut found: LookupResult,
    ) -> Result<Reply, Fault> {
        let is_far = serve::wants_far_part(&self.client.head);
        // A request that slices may answer is counted once that is known.
        let mut is_counted = !(is_far && matches!(found, LookupResult::Missing { .. }));
        let mut rounds = 0;
        while rounds < MAX_ROUNDS {
            rounds += 1;
            // A part of nothing that is stored, or far ahead in a partial object.
            let whole = match &found {
                LookupResult::Usable(usable) if self.is_far_part(usable) => {
                    Some(Some(Arc::clone(&usable.hit.meta)))
                }
                LookupResult::Missing { .. } if is_far => Some(None),
                _ => None,
            };
            if let Some(whole) = whole {
                let answered = self.answer_from_slices(whole.as_deref()).await;
                if !std::mem::replace(&mut is_counted, true) {
                    let is_hit = matches!(answered, SliceLookupOutcome::Answered(Ok((_, true))));
                    self.store.count_lookup(is_hit);
                }
                match answered {
                    SliceLookupOutcome::Answered(answered) => {
                        return answered.map(|(reply, _)| reply);
                    }
                    SliceLookupOutcome::LeaderFailed => {
                        rounds -= 1;
                        found = self.lookup();
                        continue;
                    }
                    SliceLookupOutcome::NotApplicable => found = self.lookup(),
                }
                match (&found, whole) {
                    (LookupResult::Missing { .. }, None) => {}
                    // It has arrived meanwhile.
                    (_, None) => continue,
                    (LookupResult::Usable(usable), _) if !self.is_far_part(usable) => continue,
                    (_, Some(_)) => {
                        let status = bypass_status(ForwardReason::Partial, "range");
                        return self.bypass(request, status, None).await;
                    }
                }
            }
            let (stale, names) = match found {
                LookupResult::Usable(usable) => match self.send_stored(&usable).await {
                    Ok(response) => return Ok(response.into()),
                    Err(ObjectGone) => {
                        // The file was removed, and the store has noticed.
                        found = self.lookup();
                        continue;
                    }
                },
                LookupResult::Unsatisfiable => {
                    let mut response = unsatisfiable_response();
                    let status = CacheStatus {
                        detail: Some("only-if-cached"),
                        ..CacheStatus::default()
                    };
                    self.shared.annotate_response(&mut response, &status);
                    return Ok(response.into());
                }
                LookupResult::Stale(stale) => (Some(stale), None),
                LookupResult::Missing { names } => (None, names),
            };
            match self.fetch_or_wait(stale.as_ref(), names).await {
                LookupStep::Done(answered) => return answered,
                LookupStep::Bypass(status) => return self.bypass(request, status, stale).await,
                LookupStep::RetryLookup => {}
                LookupStep::LeaderFailed => rounds -= 1,
            }
            found = self.lookup();
        }
        let status = bypass_status(ForwardReason::Miss, "rounds");
        self.bypass(request, status, None).await
    }

    fn lookup(&self) -> LookupResult {
        let (head, now) = (&self.client.head, clock::wall_time());
        (self.shared).lookup(&self.store, &self.key, head, &self.directives, now)
    }

    /// Whether the requested part is too far ahead in a partial object to wait for.
    fn is_far_part(&self, usable: &UsableHit) -> bool {
        let is_growing = matches!(usable.hit.body, HitBody::Partial(_));
        is_growing && serve::wants_far_part(&self.client.head)
    }

    /// Sends the stored response, and starts its revalidation if needed.
    async fn send_stored(&self, usable: &UsableHit) -> Result<Response, ObjectGone> {
        let headers = self.shared.headers_of(usable);
        let response = serve::respond_to_hit(&self.client.head, &usable.hit, &headers).await?;
        self.shared.count_hit(usable, &response);
        if usable.needs_revalidation {
            self.revalidate(&usable.hit);
        }
        Ok(response)
    }

    fn revalidate(&self, hit: &Hit) {
        let hint = variant_key(&self.client.head, &hit.meta.vary_names);
        if let Some(completer) = self.shared.fetches.begin_background(&self.key, hint) {
            self.new_fetch(Some(hit)).start(completer);
        }
    }

    fn new_fetch(&self, base: Option<&Hit>) -> Fetch {
        Fetch {
            shared: Arc::clone(&self.shared),
            store: Arc::clone(&self.store),
            key: self.key.clone(),
            client: self.client.clone(),
            stale_hit: base.cloned(),
            slice: None,
        }
    }

    /// Leads a fetch, or waits for another request's.
    async fn fetch_or_wait(
        &self,
        stale: Option<&StaleHit>,
        names: Option<Vec<String>>,
    ) -> LookupStep {
        let fwd = match (stale, &names) {
            (Some(stale), _) if stale.ttl > 0 => ForwardReason::Request,
            (Some(_), _) => ForwardReason::Stale,
            (None, Some(_)) => ForwardReason::VaryMiss,
            (None, None) => ForwardReason::UriMiss,
        };
        if let Some(detail) = self.bypass_reason(stale) {
            return LookupStep::Bypass(bypass_status(fwd, detail));
        }
        let base = stale.map(|stale| &stale.hit);
        let is_alone =
            self.client.is_authenticated() || stale.is_some_and(|stale| !stale.is_shareable);
        let (waiter, completer) = match is_alone {
            true => self.shared.fetches.begin_exclusive(&self.key),
            false => {
                // Distinguishes this fetch from those for other variants, if the selecting fields
                // are known.
                let names = base.map(|hit| &hit.meta.vary_names).or(names.as_ref());
                let hint = names.map(|names| variant_key(&self.client.head, names));
                // A fetch that began before this reload would bring a response that it does not
                // accept.
                let since = self.is_reload().then_some(self.client.origin.arrived_at);
                (self.shared.fetches).join_or_begin(&self.key, hint.unwrap_or_default(), since)
            }
        };
        if let Some(completer) = completer {
            // A fetch may have completed between the look-up and the join.
            let is_new = is_alone || stale.is_some();
            if !is_new && !matches!(self.lookup(), LookupResult::Missing { .. }) {
                completer.complete(FetchOutcome::RetryLookup, LeaderResult::default());
                return LookupStep::RetryLookup;
            }
            self.new_fetch(base).start(completer);
        }
        let outcome = waiter.wait(self.deadline);
        let outcome = match self.client_state.run_while_connected(outcome).await {
            Some(Some(outcome)) => outcome,
            // Passing the last failure on to all waiters would let a client that provokes failures
            // cause errors for others. The back end's queue bounds how many requests are sent at
            // once.
            Some(None) => return LookupStep::Bypass(bypass_status(fwd, "lock-timeout")),
            None => return LookupStep::Done(Err(client_disconnected())),
        };
        let leader_result = waiter.take_leader_result();
        drop(waiter);
        let recipient = OutcomeRecipient {
            stale,
            fwd,
            leader_result,
        };
        self.handle_outcome(outcome, recipient).await
    }

    /// Why the request bypasses the cache, with nothing stored.
    fn bypass_reason(&self, stale: Option<&StaleHit>) -> Option<&'static str> {
        let head = &self.client.head;
        let rules = &self.shared.rules;
        if head.method() == Method::Head {
            return Some("head");
        }
        if !self.directives.may_store {
            return Some("request-no-store");
        }
        if serve::wants_far_part(head) {
            return Some("range");
        }
        if stale.is_some() {
            return None;
        }
        if self.shared.fetches.is_uncacheable(&self.key, clock::now()) {
            return Some(bypass::RECENTLY_UNCACHEABLE_DETAIL);
        }
        (rules.config.min_uses > 1 && self.store.count_request(&self.key) < rules.config.min_uses)
            .then_some("min-uses")
    }

    async fn handle_outcome(
        &self,
        outcome: FetchOutcome,
        recipient: OutcomeRecipient<'_>,
    ) -> LookupStep {
        match outcome {
            FetchOutcome::Stored { partial, whole } => {
                self.respond_stored(partial, whole, recipient).await
            }
            FetchOutcome::Revalidated(hit) => self.respond_revalidated(&hit, recipient).await,
            FetchOutcome::RetryLookup => LookupStep::RetryLookup,
            FetchOutcome::NotStored { is_error } => {
                if is_error
                    && let Some(response) =
                        stale_response(&self.shared, &self.client.head, recipient.stale, None).await
                {
                    return LookupStep::Done(Ok(response.into()));
                }
                match recipient.leader_result {
                    Some(lead) => self.respond_unstored(lead, recipient.fwd),
                    None => LookupStep::Bypass(CacheStatus {
                        collapsed: true,
                        ..bypass_status(recipient.fwd, "not-stored")
                    }),
                }
            }
            FetchOutcome::Failed(kind, cause) => {
                if kind.side() != FaultSide::Client
                    && let Some(response) = stale_response(
                        &self.shared,
                        &self.client.head,
                        recipient.stale,
                        Some(&cause),
                    )
                    .await
                {
                    return LookupStep::Done(Ok(response.into()));
                }
                let leads = recipient.leader_result.is_some();
                match recipient.leader_result.and_then(|lead| lead.reply) {
                    Some(answered) => LookupStep::Done(answered),
                    None if kind.is_before_sending() => {
                        LookupStep::Done(Err(Fault::new(kind, cause)))
                    }
                    None if leads => LookupStep::RetryLookup,
                    // The leader's request may have provoked the failure: one of the waiters leads
                    // next, and the others wait for it.
                    None => LookupStep::LeaderFailed,
                }
            }
        }
    }

    async fn respond_stored(
        &self,
        partial: Arc<PartialObject>,
        whole: Option<Bytes>,
        recipient: OutcomeRecipient<'_>,
    ) -> LookupStep {
        let meta = Arc::clone(&partial.meta);
        if recipient.leader_result.is_none() && !self.may_use(&meta) {
            return LookupStep::RetryLookup;
        }
        let headers = self.headers_for(&meta, &recipient, true);
        let body = whole.map_or(StoredBody::Partial(partial), StoredBody::Memory);
        let answered = serve::respond_from_body(&self.client.head, &meta, body, &headers);
        let Ok(mut response) = answered else {
            return LookupStep::Bypass(bypass_status(recipient.fwd, "too-late"));
        };
        match recipient.leader_result {
            Some(lead) => {
                self.shared.counters.misses.increment();
                response.timing = lead.timing;
            }
            None => (self.shared).count_served(&self.shared.counters.collapsed, &response),
        }
        LookupStep::Done(Ok(response.into()))
    }

    async fn respond_revalidated(&self, hit: &Hit, recipient: OutcomeRecipient<'_>) -> LookupStep {
        if recipient.leader_result.is_none() && !self.may_use(&hit.meta) {
            return LookupStep::RetryLookup;
        }
        let headers = self.headers_for(&hit.meta, &recipient, false);
        match serve::respond_to_hit(&self.client.head, hit, &headers).await {
            Ok(response) => {
                (self.shared).count_served(&self.shared.counters.revalidated, &response);
                LookupStep::Done(Ok(response.into()))
            }
            Err(ObjectGone) => LookupStep::Bypass(bypass_status(recipient.fwd, "gone")),
        }
    }

    /// Answers with a response that is for this request only.
    fn respond_unstored(&self, lead: LeaderResult, fwd: ForwardReason) -> LookupStep {
        let mut response = match lead.reply {
            Some(Ok(Reply::Response(response))) => response,
            // The next handler must get the client's request, not the cache's.
            Some(Ok(Reply::Pass(_))) | None => {
                return LookupStep::Bypass(bypass_status(fwd, "not-stored"));
            }
            Some(answered) => return LookupStep::Done(answered),
        };
        let head = &self.client.head;
        // The cache requested the whole.
        if response.status == Status::OK && head.field("range").is_some() {
            return LookupStep::Bypass(bypass_status(fwd, "range"));
        }
        self.shared.counters.misses.increment();
        let status = CacheStatus {
            fwd: Some(fwd),
            fwd_status: lead.status,
            detail: lead.detail,
            ..CacheStatus::default()
        };
        self.shared.annotate_response(&mut response, &status);
        let result = evaluate_stored_preconditions(
            head,
            response.status,
            &response.fields,
            clock::wall_time(),
        );
        if result == PreconditionResult::NotModified {
            *response = serve::into_not_modified(*response);
        }
        LookupStep::Done(Ok(Reply::Response(response)))
    }

    /// Whether the request accepts only responses that the back end sent after it arrived.
    fn is_reload(&self) -> bool {
        let directives = &self.directives.directives;
        directives.no_cache || directives.max_age.is_some_and(|max_age| max_age.is_zero())
    }

    /// Whether a response that another request fetched may answer this one.
    fn may_use(&self, meta: &ObjectMeta) -> bool {
        if !selects_variant(&self.client.head, meta) {
            return false;
        }
        // A reload joined only fetches that began after it arrived.
        let (directives, now) = (&self.directives.directives, clock::wall_time());
        let reuse = decide_reuse(directives, &meta.lifetime, meta.response_time, now);
        self.is_reload()
            || matches!(
                reuse,
                ReuseDecision::Fresh { .. }
                    | ReuseDecision::Stale { .. }
                    | ReuseDecision::StaleWhileRevalidate { .. }
            )
    }

    /// The `Age` and `Cache-Status` of a response that was just fetched.
    fn headers_for(
        &self,
        meta: &ObjectMeta,
        recipient: &OutcomeRecipient<'_>,
        stored: bool,
    ) -> CacheHeaders<'static> {
        let (lifetime, came) = (&meta.lifetime, meta.response_time);
        let lead = recipient.leader_result.as_ref();
        let status = CacheStatus {
            fwd: Some(recipient.fwd),
            fwd_status: lead.and_then(|lead| lead.status),
            ttl: Some(lifetime.ttl(came, came)),
            stored,
            collapsed: lead.is_none(),
            ..CacheStatus::default()
        };
        // An `Age` from caches nearer to the origin stays.
        let age = Some(lifetime.age(came, came));
        let age = age.filter(|age| lead.is_none() || age.as_secs() > 0);
        self.shared.cache_headers(age, status)
    }

    /// Sends the request to the back end. If that fails, answers with the stale response where
    /// allowed.
    async fn bypass(
        self,
        request: Request,
        cache_status: CacheStatus<'static>,
        stale: Option<StaleHit>,
    ) -> Result<Reply, Fault> {
        let is_marked = cache_status.detail == Some(bypass::RECENTLY_UNCACHEABLE_DETAIL);
        self.shared.counters.bypassed.increment();
        let bypassed = BypassedRequest {
            shared: self.shared,
            client: self.client,
            cache_status,
            uncacheable_key: is_marked.then_some(self.key),
        };
        let answered = bypassed
            .shared
            .backend
            .handle(request)
            .wait_for_reply()
            .await;
        let Some(stale) = stale else {
            return bypassed.handle_reply(answered);
        };
        let (shared, head) = (&bypassed.shared, &bypassed.client.head);
        match &answered {
            Ok(Reply::Response(response)) if !is_backend_failure(response.status) => {
                let (meta, fields) = (&stale.hit.meta, &response.fields);
                if head.method() == Method::Head
                    && !head_response_matches_stored(&meta.fields, meta.length, fields)
                {
                    self.store.remove_hit(&stale.hit);
                }
            }
            Err(fault) if fault.kind.side() == FaultSide::Client => {}
            Ok(Reply::Pass(_) | Reply::Redirect(_)) => {}
            Ok(Reply::Response(_)) | Err(_) => {
                let cause = answered.as_ref().err().map(|fault| fault.cause.to_string());
                let cause = cause.as_deref();
                if let Some(response) = stale_response(shared, head, Some(&stale), cause).await {
                    return Ok(response.into());
                }
            }
        }
        bypassed.handle_reply(answered)
    }
}

/// The client has disconnected. Dropping the waiter lets the fetch end if no other request waits.
fn client_disconnected() -> Fault {
    let cause = "client disconnected while the cache waited for the back end";
    let timing = RequestTiming {
        handler: Some(HandlerName::Component(serve::HANDLER_NAME)),
        ..RequestTiming::default()
    };
    Fault::new(FaultKind::ClientDisconnected, cause).with_timing(timing)
}

/// The stale response, if it may be sent when the back end fails (RFC 5861 §4).
async fn stale_response(
    shared: &SharedCache,
    head: &RequestHead,
    stale: Option<&StaleHit>,
    cause: Option<&str>,
) -> Option<Response> {
    let stale = stale.filter(|stale| stale.may_serve_on_error)?;
    let status = CacheStatus {
        detail: Some("stale-if-error"),
        ..hit_status(stale.ttl)
    };
    let headers = shared.cache_headers(Some(stale.age), status);
    let response = serve::respond_to_hit(head, &stale.hit, &headers)
        .await
        .ok()?;
    if let Some(cause) = cause
        && let Some(count) = shared.log_throttle.admit_line(cause, clock::now())
    {
        let (target, suffix) = (head.target(), suppressed_suffix(count));
        log::warn!("cache: serving {target} stale: {cause}{suffix}");
    }
    shared.count_served(&shared.counters.stale, &response);
    Some(response)
}
