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

mod sliced;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use penstock_exchange::{
    ClientState, Fault, FaultKind, FaultSide, HandlerName, HandlerProgress, Reply, Request,
    RequestTiming, Response,
};
use penstock_http::caching::{
    CacheStatus, ForwardReason, ReuseDecision, decide_reuse, evaluate_condition,
    head_matches_stored, variant_key,
};
use penstock_http::{Method, PreconditionResult, RequestHead, Status};
use penstock_runtime::clock;
use penstock_runtime::log_throttle::suppressed_suffix;

use self::sliced::SlicedOutcome;
use super::{
    LookupResult, SharedCache, StaleHit, UsableHit, bypass, bypass_status, selects_variant,
    unsatisfiable_response,
};
use crate::backend_request::ClientRequest;
use crate::coalesced_fetch::{FetchOutcome, JoinOutcome, LeaderResult};
use crate::fetch::{Fetch, is_server_error, lifetime_of};
use crate::route_rules::CacheDirectives;
use crate::serve::{self, CacheHeaders};
use crate::store::{Hit, HitBody, ObjectGone, ObjectKey, ObjectMeta, PartialObject, Store};

/// Rounds of looking up what other requests have stored meanwhile; then the request goes to the
/// back end itself. More than two are needed only if variants multiply meanwhile. Rounds that end
/// with another request's failure do not count: `lock_timeout` bounds these.
const MAX_ROUNDS: u32 = 4;

#[derive(Debug)]
pub(super) struct CacheLookup {
    shared: Arc<SharedCache>,
    store: Arc<Store>,
    key: ObjectKey,
    directives: CacheDirectives,
    client: ClientRequest,
    /// Whether the client is still connected.
    client_state: Arc<ClientState>,
    /// When the request stops waiting for others.
    deadline: Instant,
}

/// The result of one round.
enum LookupStep {
    Done(Result<Reply, Fault>),
    LookAgain,
    /// Look up again without counting the round: another client's request failed and is out.
    NextLeader,
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
    pub(super) fn new(
        shared: Arc<SharedCache>,
        store: Arc<Store>,
        key: ObjectKey,
        asked: CacheDirectives,
        request: &Request,
    ) -> Self {
        let deadline = request.arrived + shared.rules.lock_timeout;
        Self {
            shared,
            store,
            key,
            directives: asked,
            client: ClientRequest::from_request(request),
            client_state: Arc::clone(&request.client_state),
            deadline,
        }
    }

    pub(super) async fn run(self, request: Request, found: LookupResult) -> Result<Reply, Fault> {
        let mut found = found;
        // A request that slices may answer is counted once that is known.
        let is_far = serve::wants_far_part(&self.client.head);
        let mut is_counted = !(is_far && matches!(found, LookupResult::Missing { .. }));
        let mut rounds = 0;
        while rounds < MAX_ROUNDS {
            rounds += 1;
            let stale = match found {
                LookupResult::Usable(usable) if self.is_far_part(&usable) => {
                    let answered = self.answer_from_slices(Some(&usable.hit.meta)).await;
                    found = self.lookup();
                    match answered {
                        SlicedOutcome::Answered(answered) => {
                            return answered.map(|(reply, _)| reply);
                        }
                        SlicedOutcome::NextLeader => {
                            rounds -= 1;
                            continue;
                        }
                        SlicedOutcome::NotApplicable => {}
                    }
                    match &found {
                        // The whole has arrived meanwhile.
                        LookupResult::Usable(usable) if !self.is_far_part(usable) => continue,
                        _ => {}
                    }
                    return self
                        .bypass(
                            request,
                            bypass_status(ForwardReason::Partial, "range"),
                            None,
                        )
                        .await;
                }
                LookupResult::Usable(usable) => match self.send_stored(&usable).await {
                    Ok(response) => return Ok(response.into()),
                    // The file was removed, and the store has noticed.
                    Err(ObjectGone) => None,
                },
                LookupResult::Unsatisfiable => {
                    let mut response = unsatisfiable_response();
                    let told = CacheStatus {
                        detail: Some("only-if-cached"),
                        ..CacheStatus::default()
                    };
                    self.shared.annotate_response(&mut response, &told);
                    return Ok(response.into());
                }
                LookupResult::Stale(stale) => Some((Some(stale), None)),
                LookupResult::Missing { names } => {
                    if is_far {
                        let answered = self.answer_from_slices(None).await;
                        if !std::mem::replace(&mut is_counted, true) {
                            let is_hit = matches!(answered, SlicedOutcome::Answered(Ok((_, true))));
                            self.store.count_lookup(is_hit);
                        }
                        let is_anothers = match answered {
                            SlicedOutcome::Answered(answered) => {
                                return answered.map(|(reply, _)| reply);
                            }
                            SlicedOutcome::NextLeader => true,
                            SlicedOutcome::NotApplicable => false,
                        };
                        found = self.lookup();
                        if is_anothers {
                            rounds -= 1;
                            continue;
                        }
                        match found {
                            LookupResult::Missing { .. } => {}
                            // It arrived meanwhile.
                            _ => continue,
                        }
                    }
                    Some((None, names))
                }
            };
            let step = match stale {
                Some((stale, names)) => {
                    let step = self.fetch_or_wait(stale.as_ref(), names).await;
                    match step {
                        LookupStep::Bypass(told) => return self.bypass(request, told, stale).await,
                        step => step,
                    }
                }
                None => LookupStep::LookAgain,
            };
            match step {
                LookupStep::Done(answered) => return answered,
                LookupStep::LookAgain | LookupStep::Bypass(_) => {}
                LookupStep::NextLeader => rounds -= 1,
            }
            found = self.lookup();
        }
        self.bypass(request, bypass_status(ForwardReason::Miss, "rounds"), None)
            .await
    }

    fn lookup(&self) -> LookupResult {
        let shared = &self.shared;
        let head = &self.client.head;
        shared.lookup(
            &self.store,
            &self.key,
            head,
            &self.directives,
            clock::wall(),
        )
    }

    /// Whether the requested part is too far ahead in a partial object to wait for.
    fn is_far_part(&self, usable: &UsableHit) -> bool {
        let is_growing = matches!(usable.hit.body, HitBody::Partial(_));
        is_growing && serve::wants_far_part(&self.client.head)
    }

    /// Sends the stored response, and starts its revalidation if needed.
    async fn send_stored(&self, usable: &UsableHit) -> Result<Response, ObjectGone> {
        let note = self.shared.cache_headers(usable);
        let response = serve::respond_to_hit(&self.client.head, &usable.hit, &note).await?;
        self.shared.count_hit(usable, response.body.length());
        if usable.needs_revalidation {
            self.revalidate(&usable.hit);
        }
        Ok(response)
    }

    fn revalidate(&self, hit: &Hit) {
        let guess = self.variant_hint(Some(&hit.meta.vary_names));
        let flights = &self.shared.fetches;
        if let Some(landing) = flights.begin_background(&self.key, guess) {
            self.new_fetch(Some(hit)).start(landing);
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

    /// Distinguishes this fetch from those for other variants, if the selecting fields are known.
    fn variant_hint(&self, names: Option<&Vec<String>>) -> Vec<u8> {
        names.map_or_else(Vec::new, |names| variant_key(&self.client.head, names))
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
        let is_alone = self.client.head.field("authorization").is_some()
            || stale.is_some_and(|stale| !stale.is_shareable);
        let (ticket, leads) = if is_alone {
            let (ticket, landing) = self.shared.fetches.begin_exclusive(&self.key);
            self.new_fetch(base).start(landing);
            (ticket, true)
        } else {
            let names = base.map(|hit| &hit.meta.vary_names).or(names.as_ref());
            // A fetch that began before this reload would bring a response that it does not accept.
            let since = self.is_reload().then_some(self.client.arrived());
            let flights = &self.shared.fetches;
            match flights.join(&self.key, self.variant_hint(names), since) {
                JoinOutcome::Waiter(ticket) => (ticket, false),
                JoinOutcome::Leader(ticket, landing) => {
                    // A fetch may have completed between the look-up and the join.
                    if stale.is_none() && !matches!(self.lookup(), LookupResult::Missing { .. }) {
                        landing.complete(FetchOutcome::LookAgain, LeaderResult::default());
                        return LookupStep::LookAgain;
                    }
                    self.new_fetch(base).start(landing);
                    (ticket, true)
                }
            }
        };
        let landed = async {
            match leads {
                true => Some(ticket.wait().await),
                false => clock::timeout_at(self.deadline, ticket.wait()).await,
            }
        };
        let outcome = match self.client_state.run_while_connected(landed).await {
            Some(Some(outcome)) => outcome,
            // Passing the last failure on to all waiters would let a client that provokes failures
            // cause errors for others. The back end's queue bounds how many requests are sent at
            // once.
            Some(None) => return LookupStep::Bypass(bypass_status(fwd, "lock-timeout")),
            None => return LookupStep::Done(Err(client_disconnected())),
        };
        let lead = leads.then(|| ticket.take_leader_result());
        drop(ticket);
        self.handle_outcome(
            outcome,
            OutcomeRecipient {
                stale,
                fwd,
                leader_result: lead,
            },
        )
        .await
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
            return Some(bypass::RECENTLY_UNCACHEABLE);
        }
        (rules.min_uses > 1 && self.store.count_request(&self.key) < rules.min_uses)
            .then_some("min-uses")
    }

    async fn handle_outcome(
        &self,
        outcome: FetchOutcome,
        getter: OutcomeRecipient<'_>,
    ) -> LookupStep {
        match outcome {
            FetchOutcome::Stored {
                partial: growing,
                whole,
            } => self.respond_stored(growing, whole, getter).await,
            FetchOutcome::Revalidated(hit) => self.respond_revalidated(&hit, getter).await,
            FetchOutcome::LookAgain => LookupStep::LookAgain,
            FetchOutcome::NotStored { is_error } => {
                if is_error && let Some(response) = self.stale_response(getter.stale, None).await {
                    return LookupStep::Done(Ok(response.into()));
                }
                match getter.leader_result {
                    Some(lead) => self.respond_unstored(lead, getter.fwd),
                    None => LookupStep::Bypass(CacheStatus {
                        collapsed: true,
                        ..bypass_status(getter.fwd, "not-stored")
                    }),
                }
            }
            FetchOutcome::Failed(kind, cause) => {
                if kind.side() != FaultSide::Client
                    && let Some(response) = self.stale_response(getter.stale, Some(&cause)).await
                {
                    return LookupStep::Done(Ok(response.into()));
                }
                let leads = getter.leader_result.is_some();
                match getter.leader_result.and_then(|lead| lead.reply) {
                    Some(answered) => LookupStep::Done(answered),
                    None if kind.is_before_sending() => {
                        LookupStep::Done(Err(Fault::new(kind, cause)))
                    }
                    None if leads => LookupStep::LookAgain,
                    // The leader's request may have provoked the failure: one of the waiters leads
                    // next, and the others wait for it.
                    None => LookupStep::NextLeader,
                }
            }
        }
    }

    async fn respond_stored(
        &self,
        growing: Arc<PartialObject>,
        whole: Option<Bytes>,
        getter: OutcomeRecipient<'_>,
    ) -> LookupStep {
        let meta = Arc::clone(growing.meta());
        if getter.leader_result.is_none() && !self.may_use(&meta) {
            return LookupStep::LookAgain;
        }
        let head = &self.client.head;
        let note = self.headers_for(&meta, &getter, true);
        let answered = match whole {
            Some(whole) => serve::respond_with_whole(head, &meta, whole, &note),
            None => {
                let body = HitBody::Partial(growing);
                serve::respond_to_hit(head, &Hit { meta, body }, &note).await
            }
        };
        let Ok(mut response) = answered else {
            return LookupStep::Bypass(bypass_status(getter.fwd, "too-late"));
        };
        match getter.leader_result {
            Some(lead) => {
                self.shared.counters.misses.increment();
                response.timing = lead.timing;
            }
            None => {
                self.shared.counters.collapsed.increment();
                let bytes = response.body.length();
                self.shared
                    .counters
                    .served_bytes
                    .add(bytes.unwrap_or_default());
            }
        }
        LookupStep::Done(Ok(response.into()))
    }

    async fn respond_revalidated(&self, hit: &Hit, getter: OutcomeRecipient<'_>) -> LookupStep {
        if getter.leader_result.is_none() && !self.may_use(&hit.meta) {
            return LookupStep::LookAgain;
        }
        let note = self.headers_for(&hit.meta, &getter, false);
        match serve::respond_to_hit(&self.client.head, hit, &note).await {
            Ok(response) => {
                let counts = &self.shared.counters;
                counts.revalidated.increment();
                counts
                    .served_bytes
                    .add(response.body.length().unwrap_or_default());
                LookupStep::Done(Ok(response.into()))
            }
            Err(ObjectGone) => LookupStep::Bypass(bypass_status(getter.fwd, "gone")),
        }
    }

    async fn stale_response(
        &self,
        stale: Option<&StaleHit>,
        cause: Option<&str>,
    ) -> Option<Response> {
        stale_response_on_error(&self.shared, &self.client.head, stale, cause).await
    }

    /// Answers with a response that is for this request only.
    fn respond_unstored(&self, lead: LeaderResult, fwd: ForwardReason) -> LookupStep {
        let answered = match lead.reply {
            Some(Ok(Reply::Response(response))) => response,
            // The next handler must get the client's request, not the cache's.
            Some(Ok(Reply::Pass(_))) | None => {
                return LookupStep::Bypass(bypass_status(fwd, "not-stored"));
            }
            Some(answered) => return LookupStep::Done(answered),
        };
        let head = &self.client.head;
        // The cache requested the whole.
        if answered.status == Status::OK && head.field("range").is_some() {
            return LookupStep::Bypass(bypass_status(fwd, "range"));
        }
        self.shared.counters.misses.increment();
        let mut response = answered;
        let told = CacheStatus {
            fwd: Some(fwd),
            fwd_status: lead.status,
            detail: lead.detail,
            ..CacheStatus::default()
        };
        self.shared.annotate_response(&mut response, &told);
        let had = evaluate_condition(head, response.status, &response.fields, clock::wall());
        if had == PreconditionResult::NotModified {
            *response = serve::not_modified(*response);
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
        let lifetime = lifetime_of(meta).filter(|_| selects_variant(&self.client.head, meta));
        if self.is_reload() {
            // It joined only fetches that began after it arrived.
            return lifetime.is_some();
        }
        let reuse = lifetime.map(|lifetime| {
            let now = clock::wall();
            decide_reuse(
                &self.directives.directives,
                &lifetime,
                meta.response_time,
                now,
            )
        });
        matches!(
            reuse,
            Some(
                ReuseDecision::Fresh { .. }
                    | ReuseDecision::Stale { .. }
                    | ReuseDecision::StaleWhileRevalidate { .. }
            )
        )
    }

    /// The `Age` and `Cache-Status` of a response that was just fetched.
    fn headers_for(
        &self,
        meta: &ObjectMeta,
        getter: &OutcomeRecipient<'_>,
        stored: bool,
    ) -> CacheHeaders<'static> {
        let lifetime = lifetime_of(meta);
        let came = meta.response_time;
        let status = CacheStatus {
            fwd: Some(getter.fwd),
            fwd_status: getter.leader_result.as_ref().and_then(|lead| lead.status),
            ttl: lifetime.map(|lifetime| lifetime.ttl(came, came)),
            stored,
            collapsed: getter.leader_result.is_none(),
            ..CacheStatus::default()
        };
        let age = lifetime.map(|lifetime| lifetime.age(came, came));
        let is_own = getter.leader_result.is_some();
        CacheHeaders {
            // An `Age` from caches nearer to the origin stays.
            age: age.filter(|age| !is_own || age.as_secs() > 0),
            status: self.shared.rules.sends_cache_status.then_some(status),
        }
    }

    /// Sends the request to the back end. If that fails, answers with the stale response where
    /// allowed.
    async fn bypass(
        self,
        request: Request,
        told: CacheStatus<'static>,
        stale: Option<StaleHit>,
    ) -> Result<Reply, Fault> {
        let Self {
            shared, store, key, ..
        } = self;
        let is_marked = told.detail == Some(bypass::RECENTLY_UNCACHEABLE);
        let after = bypass::BypassedRequest::new(&shared, &request, told);
        let after = after.with_uncacheable_key(is_marked.then_some(key));
        let Some(stale) = stale else {
            return after.finish(call_backend(&shared, request).await);
        };
        let head = Arc::clone(&request.head);
        let answered = call_backend(&shared, request).await;
        match &answered {
            Ok(Reply::Response(response)) if !is_server_error(response.status) => {
                let (meta, fields) = (&stale.hit.meta, &response.fields);
                if head.method() == Method::Head
                    && !head_matches_stored(&meta.fields, meta.length, fields)
                {
                    store.remove_hit(&stale.hit);
                }
            }
            Err(fault) if fault.kind.side() == FaultSide::Client => {}
            Ok(Reply::Pass(_) | Reply::Redirect(_)) => {}
            Ok(Reply::Response(_)) | Err(_) => {
                let cause = answered.as_ref().err();
                let cause = cause.map(|fault| fault.cause.clone().into_owned());
                let cause = cause.as_deref();
                if let Some(response) =
                    stale_response_on_error(&shared, &head, Some(&stale), cause).await
                {
                    return Ok(response.into());
                }
            }
        }
        after.finish(answered)
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
async fn stale_response_on_error(
    shared: &SharedCache,
    head: &RequestHead,
    stale: Option<&StaleHit>,
    cause: Option<&str>,
) -> Option<Response> {
    let stale = stale.filter(|stale| stale.may_serve_on_error)?;
    let status = CacheStatus {
        hit: true,
        ttl: Some(stale.ttl),
        detail: Some("stale-if-error"),
        ..CacheStatus::default()
    };
    let note = CacheHeaders {
        age: Some(stale.age),
        status: shared.rules.sends_cache_status.then_some(status),
    };
    let response = serve::respond_to_hit(head, &stale.hit, &note).await.ok()?;
    if let Some(cause) = cause
        && let Some(count) = shared.log_throttle.admit_line(cause, clock::now())
    {
        let target = head.target();
        log::warn!(
            "cache: serving {target} stale: {cause}{}",
            suppressed_suffix(count)
        );
    }
    shared.counters.stale.increment();
    let bytes = response.body.length();
    shared.counters.served_bytes.add(bytes.unwrap_or_default());
    Some(response)
}

async fn call_backend(shared: &SharedCache, request: Request) -> Result<Reply, Fault> {
    match shared.backend.handle(request) {
        HandlerProgress::Ready(answered) => answered,
        HandlerProgress::Pending(work) => work.await,
    }
}
