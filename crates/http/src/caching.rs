//! HTTP caching for a shared cache as pure rules (RFC 9111, 5861, 9211, 9213).
//!
//! `cache` calls these for each request in order: [`cache_eligibility`] (whether the request may
//! use the cache), [`variant_key`] (which stored response it selects), [`decide_reuse`] (whether
//! that may be sent now), [`revalidation_fields`], [`is_304_for`] and [`freshen`] (validation with
//! the back end), [`check_storable`] and [`storable_fields`] (storing the response),
//! [`invalidates_stored`] (removal after a write), [`push_cache_status`] (the report to the
//! client). Keys, bodies and disks belong to the caller.
//!
//! # Invariants
//!
//! - No clock is read. Times are durations since the Unix epoch.
//! - No input panics, and a clock set back makes nothing fresher.
//! - A malformed or contradictory header leads to less storing and less reuse.

mod cache_control;
mod cache_status;
mod effective_directives;
mod freshness;
mod invalidation;
mod reuse;
mod storage;
#[cfg(test)]
mod tests;
mod validation;
mod vary;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{FieldBlock, RequestHead, Status};

pub use cache_control::RequestDirectives;
pub use cache_status::{CacheStatus, ForwardReason, encode_cache_status, push_cache_status};
pub use freshness::{LIFETIME_WORD_COUNT, Lifetime};
pub use invalidation::{invalidated_targets, invalidates_stored};
pub use reuse::{BypassReason, CacheEligibility, ReuseDecision, cache_eligibility, decide_reuse};
pub use storage::{StoreRefusal, check_storable, may_store_status, storable_fields};
pub use validation::{
    RevalidationFields, evaluate_stored_preconditions, freshen, head_response_matches_stored,
    is_304_for, revalidation_fields,
};
pub use vary::{VaryFields, parse_vary, variant_key};

/// A route's rules for responses without directives of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachePolicy {
    /// Lifetime by status, errors included, for responses without a lifetime of their own. Takes
    /// precedence over `default_ttl` and heuristics. Statuses that are never stored
    /// ([`may_store_status`]) have no effect.
    pub ttl_by_status: BTreeMap<u16, Duration>,
    /// Lifetime of responses without one of their own. With `None` they are not stored, unless a
    /// heuristic applies.
    pub default_ttl: Option<Duration>,
    /// Whether the two fields above also apply to requests with `Cookie`: the route names the
    /// cookies on which its pages depend. Otherwise a page may belong to one session.
    pub has_known_cookies: bool,
    /// Whether the heuristic of RFC 9111 §4.2.2, a tenth of the time since `Last-Modified`, applies
    /// to responses without `public`. It never applies to requests with `Cookie` or
    /// `Authorization`.
    pub heuristic_freshness: bool,
    /// Upper limit of every lifetime.
    pub max_ttl: Option<Duration>,
    /// For responses without `stale-while-revalidate` (RFC 5861 §3).
    pub stale_while_revalidate: Duration,
    /// For responses without `stale-if-error` (RFC 5861 §4).
    pub stale_if_error: Duration,
}

/// A response and its request.
#[derive(Clone, Copy, Debug)]
pub struct OriginExchange<'a> {
    /// The client's request, or the cache's own request derived from it.
    pub request: &'a RequestHead,
    /// Whether it is of a user: it has `Authorization` (§3.5), or the client has signed in by
    /// other means.
    pub is_authenticated: bool,
    pub status: Status,
    /// The fields of the response as received.
    pub fields: &'a FieldBlock,
    /// When the request was sent to the back end, since the Unix epoch.
    pub request_time: Duration,
    /// When the response head arrived, since the Unix epoch.
    pub response_time: Duration,
}
