//! The cache in front of one handler, called by `edge` for each request.
//!
//! A fresh response in memory is sent at once, on the event loop and without a future. A request
//! that the cache may not serve goes to the back end unchanged (`handler/bypass`). Every other
//! request becomes a `handler/lookup`. For the smallest responses `edge` does not even build a
//! request (`handler/inline_response`).
//!
//! # Invariants
//!
//! - A request that the cache does not answer always reaches the back end, whatever the state of
//!   the stores.
//! - Nothing in this file waits for a disk.

mod bypass;
mod inline_response;
mod lookup;

use std::sync::Arc;
use std::time::Duration;

use penstock_config::RouteCache;
use penstock_exchange::metrics::Counter;
use penstock_exchange::{
    CacheOutcome, Handler, HandlerName, HandlerProgress, InlineResponse, Request, RequestView,
    Response,
};
use penstock_http::caching::{
    CacheStatus, ForwardReason, ReuseDecision, decide_reuse, push_cache_status, variant_key,
};
use penstock_http::{RequestHead, Status};
use penstock_runtime::{LogThrottle, PerLoop, clock};

use crate::backend_request::ClientRequest;
use crate::coalesced_fetch::CoalescedFetches;
use crate::counters::CacheCounters;
use crate::route_rules::{CacheDecision, KeySource, LookupOptions, RouteRules};
use crate::serve::{self, CACHE_STATUS_NAME, CacheHeaders};
use crate::store::{Hit, ObjectKey, ObjectMeta, Store, StoreSet};
use inline_response::LoopBuffers;
use lookup::CacheLookup;

/// A cache in front of one handler, with its route's rules.
#[derive(Debug)]
pub struct CacheHandler {
    shared: Arc<SharedCache>,
}

/// State shared by the requests and fetches of one cache.
#[derive(Debug)]
pub(crate) struct SharedCache {
    pub(crate) backend: Arc<dyn Handler>,
    pub(crate) rules: RouteRules,
    pub(crate) stores: StoreSet,
    pub(crate) fetches: Arc<CoalescedFetches>,
    pub(crate) counters: Arc<CacheCounters>,
    /// A failing back end would otherwise log a line for each request.
    pub(crate) log_throttle: LogThrottle,
    loop_buffers: PerLoop<LoopBuffers>,
}

#[derive(Debug)]
pub(crate) enum LookupResult {
    /// A stored response that may be sent.
    Usable(UsableHit),
    /// A stored response that must be revalidated first.
    Stale(StaleHit),
    /// No stored response matches. `names` are the selecting fields of variants that do not match.
    Missing { names: Option<Vec<String>> },
    /// The request has `only-if-cached`, and no stored response may be sent.
    Unsatisfiable,
}

#[derive(Debug)]
pub(crate) struct UsableHit {
    pub(crate) hit: Hit,
    pub(crate) age: Duration,
    pub(crate) ttl: i64,
    /// The response is stale and is revalidated in the background.
    pub(crate) needs_revalidation: bool,
    pub(crate) is_stale: bool,
}

/// A stored response that may not be sent unvalidated.
#[derive(Debug)]
pub(crate) struct StaleHit {
    pub(crate) hit: Hit,
    pub(crate) age: Duration,
    pub(crate) ttl: i64,
    /// Whether it may be sent when the back end fails.
    pub(crate) may_serve_on_error: bool,
    /// Whether other requests could use the new response without revalidating it again.
    pub(crate) is_shareable: bool,
}

impl CacheHandler {
    /// Creates a cache in front of `inner` with `stores`, the stores named by `rules` in the same
    /// order.
    #[must_use]
    pub fn new(inner: Arc<dyn Handler>, rules: &RouteCache, stores: Vec<Arc<Store>>) -> Self {
        Self::with_scope("", inner, rules, stores, Arc::default())
    }

    /// Like [`CacheHandler::new`], for the route called `scope`, a text that stays the same across
    /// restarts. The scope is part of every key: after a rewrite or an internal redirect, routes
    /// with different back ends may see the same host and path and share a store. The cache counts
    /// in `counters`.
    #[must_use]
    pub fn with_scope(
        scope: &str,
        inner: Arc<dyn Handler>,
        rules: &RouteCache,
        stores: Vec<Arc<Store>>,
        counters: Arc<CacheCounters>,
    ) -> Self {
        Self {
            shared: Arc::new(SharedCache {
                backend: inner,
                rules: RouteRules::new(rules, scope),
                stores: StoreSet::new(stores),
                fetches: Arc::default(),
                counters,
                log_throttle: LogThrottle::default(),
                loop_buffers: PerLoop::new(),
            }),
        }
    }

    /// The counters of this cache.
    #[must_use]
    pub fn counters(&self) -> &Arc<CacheCounters> {
        &self.shared.counters
    }
}

impl Handler for CacheHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let shared = &self.shared;
        let directives = match shared.rules.classify_request(&request.head) {
            CacheDecision::Lookup(directives) => directives,
            CacheDecision::Bypass(fwd, detail) => {
                return bypass::bypass(shared, request, bypass_status(fwd, detail), None);
            }
        };
        let key = shared.request_key(&request);
        let Some(store) = shared.stores.store_for(&key) else {
            let status = bypass_status(ForwardReason::Miss, "store-out");
            return bypass::bypass(shared, request, status, None);
        };
        let now = clock::wall_time_at(request.arrived_at);
        let found = shared.lookup(store, &key, &request.head, &directives, now);
        let is_missing = matches!(found, LookupResult::Missing { .. });
        // Slices may answer it; it is counted then.
        let is_far = is_missing && serve::wants_far_part(&request.head);
        if !is_far {
            store.count_lookup(matches!(found, LookupResult::Usable(_)));
        }
        if let LookupResult::Usable(usable) = &found
            && !usable.needs_revalidation
            && let Some(response) = shared.respond_from_memory(&request.head, usable)
        {
            return HandlerProgress::Ready(Ok(response.into()));
        }
        if is_missing && !is_far && shared.fetches.is_uncacheable(&key, request.arrived_at) {
            let status = bypass_status(ForwardReason::UriMiss, bypass::RECENTLY_UNCACHEABLE_DETAIL);
            return bypass::bypass(shared, request, status, Some(key));
        }
        let lookup = CacheLookup {
            shared: Arc::clone(shared),
            store: Arc::clone(store),
            key,
            directives,
            client: ClientRequest::from_request(&request),
            client_state: Arc::clone(&request.client_state),
            deadline: request.arrived_at + shared.rules.config.lock_timeout,
        };
        HandlerProgress::Pending(Box::pin(lookup.run(request, found)))
    }

    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        inline_response::try_inline(&self.shared, asked, take);
    }
}

impl SharedCache {
    fn request_key(&self, request: &Request) -> ObjectKey {
        self.loop_buffers.with(|scratch| {
            let text = &mut scratch.key;
            text.clear();
            self.rules.write_key(&key_source(request), text);
            ObjectKey::new(text)
        })
    }

    /// Finds the stored response that `head` selects, and decides whether it may be sent at `now`.
    pub(crate) fn lookup(
        &self,
        store: &Arc<Store>,
        key: &ObjectKey,
        head: &RequestHead,
        asked: &LookupOptions,
        now: Duration,
    ) -> LookupResult {
        // The names and the request's own values of the first variant that does not match. Nearly
        // all variants have the same names, and this runs under a lock.
        let mut other: Option<(Vec<String>, Vec<u8>)> = None;
        let found = store.find(key, &mut |meta| {
            // A slice index has no body of its own.
            if meta.slice_set.is_some() {
                return false;
            }
            if meta.vary_names.is_empty() {
                return true;
            }
            if let Some((names, own)) = &other
                && *names == meta.vary_names
            {
                return *own == meta.variant;
            }
            let own = variant_key(head, &meta.vary_names);
            let is_selected = own == meta.variant;
            if !is_selected && other.is_none() {
                other = Some((meta.vary_names.clone(), own));
            }
            is_selected
        });
        let Some(hit) = found else {
            return match asked.directives.only_if_cached {
                true => LookupResult::Unsatisfiable,
                false => LookupResult::Missing {
                    names: other.map(|(names, _)| names),
                },
            };
        };
        judge_hit(hit, asked, now)
    }

    /// Builds the response from memory and counts the hit.
    fn respond_from_memory(&self, head: &RequestHead, usable: &UsableHit) -> Option<Response> {
        let response = serve::respond_from_memory(head, &usable.hit, &self.headers_of(usable))?;
        self.count_hit(usable, &response);
        Some(response)
    }

    fn count_hit(&self, usable: &UsableHit, response: &Response) {
        match usable.is_stale {
            true => self.count_served(&self.counters.stale, response),
            false => self.count_served(&self.counters.hits, response),
        }
    }

    /// Counts a response whose body is not from the back end.
    fn count_served(&self, counter: &Counter, response: &Response) {
        counter.increment();
        (self.counters.served_bytes).add(response.body.length().unwrap_or_default());
    }

    /// The `Age` and `Cache-Status` of a stored response.
    fn headers_of(&self, usable: &UsableHit) -> CacheHeaders<'static> {
        self.cache_headers(Some(usable.age), hit_status(usable.ttl))
    }

    fn cache_headers<'a>(
        &self,
        age: Option<Duration>,
        status: CacheStatus<'a>,
    ) -> CacheHeaders<'a> {
        CacheHeaders {
            age,
            status: self.rules.config.cache_status.then_some(status),
        }
    }

    /// Removes internal fields from a response that is not from a store, and adds `Cache-Status`.
    fn annotate_response(&self, response: &mut Response, told: &CacheStatus<'_>) {
        self.rules.remove_tag_fields(&mut response.fields);
        response.fields.remove("x-accel-expires");
        response.fields.remove("surrogate-control");
        response.timing.cache = told.fwd.map(CacheOutcome::Forwarded);
        if self.rules.config.cache_status && !response.status.is_informational() {
            push_cache_status(&mut response.fields, CACHE_STATUS_NAME, told);
        }
    }
}

/// Decides whether a stored response may be sent at `now`.
fn judge_hit(hit: Hit, asked: &LookupOptions, now: Duration) -> LookupResult {
    let (lifetime, came) = (hit.meta.lifetime, hit.meta.response_time);
    let ttl = lifetime.ttl(came, now);
    let usable = |hit, age, is_stale, needs_revalidation| {
        LookupResult::Usable(UsableHit {
            hit,
            age,
            ttl,
            needs_revalidation,
            is_stale,
        })
    };
    match decide_reuse(&asked.directives, &lifetime, came, now) {
        ReuseDecision::Fresh { age } => usable(hit, age, false, false),
        ReuseDecision::Stale { age } => usable(hit, age, true, false),
        ReuseDecision::StaleWhileRevalidate { age } => usable(hit, age, true, true),
        ReuseDecision::OnlyIfCachedMiss => LookupResult::Unsatisfiable,
        ReuseDecision::Validate {
            age,
            may_serve_stale_on_error: may_serve_on_error,
        } => LookupResult::Stale(StaleHit {
            hit,
            age,
            ttl,
            may_serve_on_error,
            is_shareable: !lifetime.no_cache && !lifetime.fresh_for.is_zero(),
        }),
    }
}

/// Whether the request selects this stored response (RFC 9111 §4.1).
pub(crate) fn selects_variant(head: &RequestHead, meta: &ObjectMeta) -> bool {
    meta.vary_names.is_empty() || variant_key(head, &meta.vary_names) == meta.variant
}

fn key_source(request: &Request) -> KeySource<'_> {
    KeySource {
        head: &request.head,
        scheme: request.scheme(),
        is_from_trusted_proxy: request.is_from_trusted_proxy(),
        forwarded: request.forwarded.as_deref(),
        mount: &request.mount,
    }
}

/// The `Cache-Status` of a stored response.
fn hit_status(ttl: i64) -> CacheStatus<'static> {
    CacheStatus {
        hit: true,
        ttl: Some(ttl),
        ..CacheStatus::default()
    }
}

/// The `Cache-Status` of a request that bypassed the cache.
fn bypass_status(fwd: ForwardReason, detail: &'static str) -> CacheStatus<'static> {
    CacheStatus {
        fwd: Some(fwd),
        detail: Some(detail),
        ..CacheStatus::default()
    }
}

/// The response to `only-if-cached` when no stored response may be sent (RFC 9111 §5.2.1.7).
fn unsatisfiable_response() -> Response {
    let text = "No stored response matches this request.\n";
    let mut response =
        Response::with_text(Status::GATEWAY_TIMEOUT, "text/plain; charset=utf-8", text);
    response.timing.handler = Some(HandlerName::Component(serve::HANDLER_NAME));
    response
}

#[cfg(test)]
mod tests;
