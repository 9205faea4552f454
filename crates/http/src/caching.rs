//! HTTP caching for a shared cache as pure rules (RFC 9111, 5861, 9211, 9213).
//!
//! `cache` asks here, in the order of a request: [`cache_eligibility`] (may the cache know of the request
//! at all), [`variant_key`] (which of the stored responses it selects), `reuse` (may that one be sent
//! now), [`revalidation_fields`], [`is_304_for`] and [`freshen`] (asking the back end about it),
//! `storage` and [`stored_fields`] (what comes back), [`invalidates_stored`] (what a write makes
//! worthless), [`push_cache_status`] (telling about all this). Keys, bodies and disks are the
//! caller's.
//!
//! What must stay true: no clock is read, times are given as the time since the Unix epoch; no
//! input panics and no clock that goes back makes anything fresher; where a header is malformed or
//! contradicts itself the answer is the one that stores and reuses less.

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
pub use freshness::{LIFETIME_WORDS, Lifetime};
pub use invalidation::{invalidated_targets, invalidates_stored};
pub use reuse::{
    BypassReason, CacheEligibility, ReuseDecision, cache_eligibility, decide_reuse,
    decide_reuse_with,
};
pub use storage::{StoreRefusal, check_storable, may_store_status, stored_fields};
pub use validation::{
    RevalidationFields, evaluate_condition, freshen, head_matches_stored, is_304_for,
    revalidation_fields,
};
pub use vary::{VaryFields, parse_vary, variant_key};

/// What a route says about responses that do not say it themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachePolicy {
    /// How long a response with such a status and without a lifetime of its own is fresh, errors included: before
    /// `default_ttl` and any guess. Statuses that are never stored mean nothing here ([`may_store_status`]).
    pub ttl_by_status: BTreeMap<u16, Duration>,
    /// How long a response without a lifetime of its own is fresh; with `None` it is not stored, unless
    /// a heuristic may be used.
    pub default_ttl: Option<Duration>,
    /// Whether the two above count for requests with `Cookie` too: the route names the cookies on which
    /// its pages depend. Without that a page may be meant for one session.
    pub has_known_cookies: bool,
    /// Whether the heuristic of RFC 9111 §4.2.2, a tenth of the time since `Last-Modified`, is used for
    /// responses that do not say `public`. For requests with `Cookie` or `Authorization` it never is.
    pub heuristic_freshness: bool,
    /// No response is fresh for longer, whatever it says.
    pub max_ttl: Option<Duration>,
    /// For responses without `stale-while-revalidate` (RFC 5861 §3).
    pub stale_while_revalidate: Duration,
    /// For responses without `stale-if-error` (RFC 5861 §4).
    pub stale_if_error: Duration,
}

/// A response and what it answers.
#[derive(Clone, Copy, Debug)]
pub struct OriginExchange<'a> {
    /// The request of the client, or the one the cache made of it.
    pub request: &'a RequestHead,
    /// The status of the response.
    pub status: Status,
    /// The fields of the response as they came.
    pub fields: &'a FieldBlock,
    /// When the request was sent to the back end, since the Unix epoch.
    pub request_time: Duration,
    /// When the head of the response was there, since the Unix epoch.
    pub response_time: Duration,
}
