//! A cache in front of one handler.
//!
//! A request comes here from `edge`. What is fresh in memory is answered at once, on the loop and without
//! a future; what is not for the cache goes on as it is (`handler/pass`); everything else is a
//! `handler/journey`. The smallest answers do not even need a request (`handler/plain`).
//!
//! What must stay true: a request that the cache does not answer reaches the handler behind in any case,
//! whatever state the stores are in; nothing here waits for a disk.

mod journey;
mod pass;
mod plain;

use std::sync::Arc;
use std::time::Duration;

use penstock_config::RouteCache;
use penstock_exchange::{Asked as AskedAtHand, AtHand, Handler, Handling, Request, Response};
use penstock_http::caching::{
    CacheStatus, ForwardReason, ReuseDecision, decide_reuse_with, push_cache_status, variant_key,
};
use penstock_http::{RequestHead, Status};
use penstock_runtime::{LogThrottle, PerLoop, clock};

use crate::counts::CacheCounts;
use crate::fetch::lifetime_of;
use crate::flight::Flights;
use crate::rules::{Asked, Asker, Rules, Use};
use crate::serve::{self, NAME, Note};
use crate::store::{Hit, Key, Meta, Shelf, Store};
use journey::Journey;
use plain::Scratch;

/// A cache in front of one handler, with the rules of its route.
#[derive(Debug)]
pub struct Cache {
    shared: Arc<Shared>,
}

/// What requests and fetches of one cache share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inner: Arc<dyn Handler>,
    pub(crate) rules: Rules,
    pub(crate) shelf: Shelf,
    pub(crate) flights: Arc<Flights>,
    pub(crate) counts: Arc<CacheCounts>,
    /// A back end that fails does so for each request.
    pub(crate) repeats: LogThrottle,
    scratch: PerLoop<Scratch>,
}

/// What was found for a request.
#[derive(Debug)]
pub(crate) enum Found {
    /// To be sent.
    Usable(Usable),
    /// The back end is to be asked about it first.
    Stale(Stale),
    /// Nothing that it selects; `names` are those by which variants that it does not are selected.
    Missing { names: Option<Vec<String>> },
    /// The request forbids to ask, and there is nothing to send.
    Unsatisfiable,
}

/// A stored response that may be sent.
#[derive(Debug)]
pub(crate) struct Usable {
    pub(crate) hit: Hit,
    pub(crate) age: Duration,
    pub(crate) ttl: i64,
    /// It is stale, and to be revalidated behind the client's back.
    pub(crate) is_revalidated: bool,
    pub(crate) is_stale: bool,
}

/// A stored response that may not be sent as it is.
#[derive(Debug)]
pub(crate) struct Stale {
    pub(crate) hit: Hit,
    pub(crate) age: Duration,
    pub(crate) ttl: i64,
    /// Whether it may be sent when the back end fails.
    pub(crate) is_for_errors: bool,
    /// Whether others could use what comes back without asking again.
    pub(crate) is_shared: bool,
}

impl Cache {
    /// Puts `stores` (those that `rules` names, in its order) in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Handler>, rules: &RouteCache, stores: Vec<Arc<Store>>) -> Self {
        Self::within("", inner, rules, stores)
    }

    /// The same for the route called `scope`, any text that is the same after a restart. It is in every key:
    /// routes of different back ends may see the same host and path, after a rewrite or an internal redirect,
    /// and share a store.
    #[must_use]
    pub fn within(
        scope: &str,
        inner: Arc<dyn Handler>,
        rules: &RouteCache,
        stores: Vec<Arc<Store>>,
    ) -> Self {
        let mut compiled = Rules::new(rules);
        compiled.set_scope(scope);
        let shared = Shared {
            inner,
            rules: compiled,
            shelf: Shelf::new(stores),
            flights: Arc::default(),
            counts: Arc::default(),
            repeats: LogThrottle::default(),
            scratch: PerLoop::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> &Arc<CacheCounts> {
        &self.shared.counts
    }
}

impl Handler for Cache {
    fn handle(&self, request: Request) -> Handling {
        let shared = &self.shared;
        let asked = match shared.rules.use_of(&request.head) {
            Use::Look(asked) => asked,
            Use::Pass(fwd, detail) => return pass::pass(shared, request, passed(fwd, detail)),
        };
        let key = shared.key(&request);
        let Some(store) = shared.shelf.store_for(&key) else {
            return pass::pass(shared, request, passed(ForwardReason::Miss, "store-out"));
        };
        let now = clock::wall_at(request.arrived);
        let found = shared.look(store, &key, &request.head, &asked, now);
        let is_missing = matches!(found, Found::Missing { .. });
        // It may be answered from slices, and is counted then.
        let is_far = is_missing && serve::wants_far_part(&request.head);
        if !is_far {
            store.count(matches!(found, Found::Usable(_)));
        }
        if let Found::Usable(usable) = &found
            && !usable.is_revalidated
            && let Some(response) = shared.answer_now(&request.head, usable)
        {
            return Handling::Now(Ok(response.into()));
        }
        if is_missing && !is_far && shared.flights.is_marked(&key, request.arrived) {
            let told = passed(ForwardReason::UriMiss, pass::MARKED);
            return pass::pass_marked(shared, request, told, key);
        }
        let journey = Journey::new(Arc::clone(shared), Arc::clone(store), key, asked, &request);
        Handling::Later(Box::pin(journey.answer(request, found)))
    }

    fn at_hand(&self, asked: &AskedAtHand<'_>, take: &mut dyn FnMut(AtHand<'_>)) {
        plain::at_hand(&self.shared, asked, take);
    }
}

impl Shared {
    /// The key of a request.
    fn key(&self, request: &Request) -> Key {
        self.scratch.with(|scratch| {
            let text = &mut scratch.key;
            text.clear();
            self.rules.write_key(&asker(request), text);
            Key::new(text)
        })
    }

    /// Looks for what `head` selects, and whether it may be sent at `now`.
    pub(crate) fn look(
        &self,
        store: &Arc<Store>,
        key: &Key,
        head: &RequestHead,
        asked: &Asked,
        now: Duration,
    ) -> Found {
        // The names and the request's values of the first variant that it does not select. Nearly all variants
        // have the same names, and this is under a lock.
        let mut other: Option<(Vec<String>, Vec<u8>)> = None;
        let found = store.find(key, &mut |meta| {
            // What is stored in slices has no body of its own.
            if meta.sliced.is_some() {
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
        let known = found.and_then(|hit| lifetime_of(&hit.meta).map(|lifetime| (hit, lifetime)));
        let Some((hit, lifetime)) = known else {
            return match asked.only_if_cached {
                true => Found::Unsatisfiable,
                false => Found::Missing {
                    names: other.map(|(names, _)| names),
                },
            };
        };
        let came = hit.meta.response_time;
        let ttl = lifetime.ttl(came, now);
        let usable = |hit, age, is_stale, is_revalidated| {
            Found::Usable(Usable {
                hit,
                age,
                ttl,
                is_revalidated,
                is_stale,
            })
        };
        match decide_reuse_with(&asked.directives, &lifetime, came, now) {
            ReuseDecision::Fresh { age } => usable(hit, age, false, false),
            ReuseDecision::Stale { age } => usable(hit, age, true, false),
            ReuseDecision::StaleWhileRevalidate { age } => usable(hit, age, true, true),
            ReuseDecision::OnlyIfCachedMiss => Found::Unsatisfiable,
            ReuseDecision::Validate {
                age,
                may_serve_stale_on_error,
            } => Found::Stale(Stale {
                hit,
                age,
                ttl,
                is_for_errors: may_serve_stale_on_error,
                is_shared: !lifetime.no_cache && !lifetime.fresh_for.is_zero(),
            }),
        }
    }

    /// The answer from memory, counted.
    fn answer_now(&self, head: &RequestHead, usable: &Usable) -> Option<Response> {
        let response = serve::answer_now(head, &usable.hit, &self.note(usable))?;
        self.count_hit(usable, response.body.length());
        Some(response)
    }

    fn count_hit(&self, usable: &Usable, length: Option<u64>) {
        match usable.is_stale {
            true => self.counts.stale.increment(),
            false => self.counts.hits.increment(),
        }
        self.counts.bytes.add(length.unwrap_or_default());
    }

    /// What is told with a stored response that may be sent.
    fn note(&self, usable: &Usable) -> Note<'static> {
        let status = CacheStatus {
            hit: true,
            ttl: Some(usable.ttl),
            ..CacheStatus::default()
        };
        Note {
            age: Some(usable.age),
            status: self.rules.tells.then_some(status),
        }
    }

    /// Takes out of a response that is not from a store what clients do not see, and tells what the cache did.
    fn tell(&self, response: &mut Response, told: &CacheStatus<'_>) {
        self.rules.remove_tags(&mut response.fields);
        response.fields.remove("x-accel-expires");
        response.fields.remove("surrogate-control");
        if self.rules.tells && !response.status.is_informational() {
            push_cache_status(&mut response.fields, NAME, told);
        }
    }
}

/// Whether a request selects a stored response (RFC 9111 §4.1).
pub(crate) fn selects(head: &RequestHead, meta: &Meta) -> bool {
    meta.vary_names.is_empty() || variant_key(head, &meta.vary_names) == meta.variant
}

/// What keys are made of for a request.
fn asker(request: &Request) -> Asker<'_> {
    Asker {
        head: &request.head,
        scheme: request.scheme(),
        is_trusted: request.is_from_proxy(),
        told: request.forwarded.as_deref(),
        mount: &request.mount,
    }
}

/// What is told of a request that went past the cache.
fn passed(fwd: ForwardReason, detail: &'static str) -> CacheStatus<'static> {
    CacheStatus {
        fwd: Some(fwd),
        detail: Some(detail),
        ..CacheStatus::default()
    }
}

/// The answer to a request that forbids to ask, when there is nothing to send (RFC 9111 §5.2.1.7).
fn unsatisfiable() -> Response {
    let text = "Nothing is stored that answers this request.\n";
    let mut response = Response::text(Status::GATEWAY_TIMEOUT, "text/plain; charset=utf-8", text);
    response.timing.handler = Some(penstock_exchange::Name::Room(serve::HANDLER));
    response
}

#[cfg(test)]
mod tests;
