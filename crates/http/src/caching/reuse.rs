//! Whether a request may use the cache, and whether a stored response may answer it now (RFC 9111
//! §4, §5.2.1; RFC 5861).
//!
//! `cache` calls [`cache_eligibility`] before it computes a key, and [`decide_reuse`] for a stored
//! response.
//!
//! # Invariants
//!
//! - `Fresh` is returned only while the age is below the lifetime.
//! - A response that forbids stale use is never sent stale.
//! - A request can restrict reuse, and extend it only where the response does not forbid that.

use std::time::Duration;

use super::{Lifetime, RequestDirectives};
use crate::{BodyFraming, Method, RequestHead};

/// Why a request bypasses the cache and changes nothing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BypassReason {
    /// Neither GET nor HEAD.
    Method,
    /// It offers another protocol.
    Upgrade,
    /// A GET with content, which is not in the key.
    Body,
    /// `If-Match` or `If-Unmodified-Since`, which only the origin may evaluate (§4.3.2).
    Precondition,
}

impl BypassReason {
    /// The `detail` for `Cache-Status`.
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

/// How the cache treats a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheEligibility {
    /// Look up; on a miss send it to the back end.
    Cache {
        /// Whether the response may be stored: a GET without `no-store`. The response to a HEAD can
        /// only update or invalidate (`head_response_matches_stored`).
        may_store: bool,
        /// Whether the response is 504 if no stored one may be used (§5.2.1.7).
        only_if_cached: bool,
    },
    /// Send it to the back end; look up and store nothing.
    Bypass(BypassReason),
}

/// Decides by the head how the cache treats a request. `Range`, `If-None-Match` and
/// `If-Modified-Since` do not matter: the cache evaluates them itself, and the caller omits them
/// from its own request to store the whole.
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

/// How a stored response may be used for a request. `age` is sent as the `Age` field in whole
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReuseDecision {
    Fresh {
        age: Duration,
    },
    /// Send it: it is stale, and the client accepts that (`max-stale`).
    Stale {
        age: Duration,
    },
    /// Send it and revalidate it in the background (RFC 5861 §3).
    StaleWhileRevalidate {
        age: Duration,
    },
    /// Validate it with the back end first.
    Validate {
        age: Duration,
        /// Whether it may be sent if the back end cannot be reached or answers with a 5xx (RFC 5861
        /// §4).
        may_serve_stale_on_error: bool,
    },
    /// 504: the request has `only-if-cached`, and the stored response may not be used (§5.2.1.7).
    OnlyIfCachedMiss,
}

/// Decides at `now` about a response that arrived at `response_time` (both since the Unix epoch),
/// for a request with these directives that selects it. Clients have no influence by the default.
#[must_use]
pub fn decide_reuse(
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
        // A client that limits the age does not accept stale responses unless it says so (§5.2.1.1,
        // §5.2.1.3).
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
