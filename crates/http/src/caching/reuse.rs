//! Whether the cache may know of a request, and whether a stored response may answer it now
//! (RFC 9111 §4, §5.2.1; RFC 5861).
//!
//! `cache` asks [`cache_eligibility`] before it computes a key and [`reuse`] when it found something.
//!
//! What must stay true: `Fresh` is only said while the age is below the lifetime; a response that
//! forbids stale ones is never sent stale; a request can ask for less than the response allows, and
//! for more only where the response does not forbid it.

use std::time::Duration;

use super::{Lifetime, RequestDirectives};
use crate::{BodyFraming, Method, RequestHead};

/// Why a request goes past the cache and leaves nothing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BypassReason {
    /// Neither GET nor HEAD.
    Method,
    /// It offers another protocol.
    Upgrade,
    /// A GET with content: what it means to the back end is not in the key.
    Body,
    /// `If-Match` or `If-Unmodified-Since`, which only the origin may judge (§4.3.2).
    Precondition,
}

impl BypassReason {
    /// A word for the `detail` of `Cache-Status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Upgrade => "upgrade",
            Self::Body => "request-body",
            Self::Precondition => "precondition",
        }
    }
}

/// What the cache may do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheEligibility {
    /// Look up; on a miss go to the back end.
    Cache {
        /// Whether the response may be stored: a GET without `no-store`. What comes back for HEAD
        /// updates or invalidates at most (`head_matches_stored`).
        may_store: bool,
        /// Whether the answer is 504 when nothing stored will do (§5.2.1.7).
        only_if_cached: bool,
    },
    /// Pass on; look nothing up, store nothing.
    Bypass(BypassReason),
}

/// What the cache may do with a request, as far as its head says. `Range`, `If-None-Match` and
/// `If-Modified-Since` do not matter here: they are answered from what is stored, and the caller
/// leaves them out of what it asks the back end when it wants to store the whole.
#[must_use]
pub fn cache_eligibility(request: &RequestHead) -> CacheEligibility {
    let is_get = match request.method() {
        Method::Get => true,
        Method::Head => false,
        _ => return CacheEligibility::Bypass(BypassReason::Method),
    };
    if request.is_upgrade() {
        return CacheEligibility::Bypass(BypassReason::Upgrade);
    }
    if !matches!(
        request.framing(),
        BodyFraming::None | BodyFraming::Length(0)
    ) {
        return CacheEligibility::Bypass(BypassReason::Body);
    }
    let is_origins = ["if-match", "if-unmodified-since"]
        .iter()
        .any(|name| request.field(name).is_some());
    if is_origins {
        return CacheEligibility::Bypass(BypassReason::Precondition);
    }
    let directives = RequestDirectives::from_request(request);
    CacheEligibility::Cache {
        may_store: is_get && !directives.no_store,
        only_if_cached: directives.only_if_cached,
    }
}

/// What may be done with a stored response for a request; `age` goes into the `Age` field in whole
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReuseDecision {
    /// Send it.
    Fresh {
        /// Its age now.
        age: Duration,
    },
    /// Send it: it is stale, and the client says that it takes that (`max-stale`).
    Stale {
        /// Its age now.
        age: Duration,
    },
    /// Send it and validate it behind the client's back (RFC 5861 §3).
    StaleWhileRevalidate {
        /// Its age now.
        age: Duration,
    },
    /// Ask the back end first.
    Validate {
        /// Its age now.
        age: Duration,
        /// Whether it may be sent after all when the back end cannot be reached or answers with a
        /// 5xx (RFC 5861 §4).
        may_serve_stale_on_error: bool,
    },
    /// 504: the request forbids to ask, and what is stored will not do (§5.2.1.7).
    OnlyIfCachedMiss,
}

/// What may be done at `now` with a response that came at `response_time` (both since the Unix
/// epoch), for a request that selects it.
#[must_use]
pub fn decide_reuse(
    request: &RequestHead,
    lifetime: &Lifetime,
    response_time: Duration,
    now: Duration,
) -> ReuseDecision {
    decide_reuse_with(
        &RequestDirectives::from_request(request),
        lifetime,
        response_time,
        now,
    )
}

/// As [`decide_reuse`], with directives that were read before, or with those of nobody
/// (`RequestDirectives::default()`) where clients have no say.
#[must_use]
pub fn decide_reuse_with(
    asked: &RequestDirectives,
    lifetime: &Lifetime,
    response_time: Duration,
    now: Duration,
) -> ReuseDecision {
    let age = lifetime.age(response_time, now);
    let fresh_for = lifetime.fresh_for;
    let is_fresh = age < fresh_for;
    let is_too_old = asked.max_age.is_some_and(|limit| age > limit);
    let is_fresh_enough = match asked.min_fresh {
        Some(more) => age.saturating_add(more) <= fresh_for,
        None => is_fresh,
    };
    let stale_by = age.saturating_sub(fresh_for);
    if !lifetime.no_cache && !asked.no_cache && !is_too_old {
        if is_fresh && is_fresh_enough {
            return ReuseDecision::Fresh { age };
        }
        let takes_stale = asked.max_stale.is_some_and(|limit| stale_by <= limit);
        if !is_fresh && takes_stale && !lifetime.must_revalidate && asked.min_fresh.is_none() {
            return ReuseDecision::Stale { age };
        }
        // Who names a limit of age wants nothing stale, unless it says so (§5.2.1.1, §5.2.1.3).
        let is_demanding = asked.max_age.is_some() || asked.min_fresh.is_some();
        if !is_fresh && !is_demanding && stale_by < lifetime.stale_while_revalidate {
            return ReuseDecision::StaleWhileRevalidate { age };
        }
    }
    if asked.only_if_cached {
        return ReuseDecision::OnlyIfCachedMiss;
    }
    ReuseDecision::Validate {
        age,
        may_serve_stale_on_error: may_serve_stale_on_error(asked, lifetime, age),
    }
}

fn may_serve_stale_on_error(asked: &RequestDirectives, lifetime: &Lifetime, age: Duration) -> bool {
    if lifetime.no_cache || asked.no_cache {
        return false;
    }
    if age < lifetime.fresh_for {
        return true;
    }
    let by_client = asked.stale_if_error.filter(|_| !lifetime.must_revalidate);
    let limit = lifetime.stale_if_error.max(by_client.unwrap_or_default());
    age.saturating_sub(lifetime.fresh_for) < limit
}
