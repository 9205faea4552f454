//! Freshness lifetime and age of a response (RFC 9111 §4.2).
//!
//! `storage` computes a [`Lifetime`] once, when a response arrives. The store keeps it as a few
//! numbers, and `reuse` compares it with the clock at each hit.
//!
//! # Invariants
//!
//! - Arithmetic saturates.
//! - An age is never below the response's age at its arrival.
//! - Durations are whole milliseconds, so that storing does not change them.

use std::time::Duration;

use super::{
    CachePolicy, OriginExchange,
    cache_control::{MAX_DELTA_SECONDS, ResponseDirectives, parse_delta_seconds},
    effective_directives::EffectiveDirectives,
    storage::{parse_date_any_case, parse_date_field},
};
use crate::{FieldBlock, Status, grammar::list_elements};

/// Everything that decides how a stored response may be reused. Computed by
/// [`check_storable`](super::check_storable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The age at which the response stops being fresh (freshness_lifetime, §4.2.1).
    pub fresh_for: Duration,
    /// The response's age at its arrival (corrected_initial_age, §4.2.3).
    pub initial_age: Duration,
    /// How long past `fresh_for` it may be sent during revalidation (RFC 5861 §3); 0 if the
    /// response forbids stale use.
    pub stale_while_revalidate: Duration,
    /// How long past `fresh_for` it may be sent when the back end fails (RFC 5861 §4); 0 if the
    /// response forbids stale use.
    pub stale_if_error: Duration,
    /// Whether clients that accept stale responses (`max-stale`) must not get this one either.
    pub must_revalidate: bool,
    /// Whether it must be validated for each request, even if fresh.
    pub no_cache: bool,
    /// Whether `fresh_for` is a heuristic, set neither by the response nor by the route.
    pub is_heuristic: bool,
    /// Whether the content must not be changed, for example compressed (§5.2.2.6).
    pub no_transform: bool,
}

/// The number of words of [`Lifetime::to_words`].
pub const LIFETIME_WORD_COUNT: usize = 5;

impl Lifetime {
    /// The age at `now` of a response that arrived at `response_time` (current_age, §4.2.3). A
    /// clock set back does not reduce the age below that at arrival.
    #[must_use]
    pub fn age(&self, response_time: Duration, now: Duration) -> Duration {
        self.initial_age
            .saturating_add(now.saturating_sub(response_time))
    }

    /// Seconds until the response is stale, negative if it is stale: `ttl` of `Cache-Status`.
    #[must_use]
    pub fn ttl(&self, response_time: Duration, now: Duration) -> i64 {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let age = self.age(response_time, now);
        match self.fresh_for.checked_sub(age) {
            Some(left) => seconds(left),
            None => -seconds(age.saturating_sub(self.fresh_for)),
        }
    }

    /// The age from which on the response can never be sent without validation: past both stale
    /// periods.
    #[must_use]
    pub fn usable_for(&self) -> Duration {
        let stale = self.stale_while_revalidate.max(self.stale_if_error);
        self.fresh_for.saturating_add(stale)
    }

    /// Encodes the lifetime for a store: milliseconds, and flags in the last word.
    #[must_use]
    pub fn to_words(&self) -> [u64; LIFETIME_WORD_COUNT] {
        let flags = [
            self.must_revalidate,
            self.no_cache,
            self.is_heuristic,
            self.no_transform,
        ];
        let bits = flags
            .iter()
            .rev()
            .fold(0, |bits, &flag| bits << 1 | u64::from(flag));
        [
            millis(self.fresh_for),
            millis(self.initial_age),
            millis(self.stale_while_revalidate),
            millis(self.stale_if_error),
            bits,
        ]
    }

    /// Decodes a lifetime. `None` if the words are invalid (an unknown flag).
    #[must_use]
    pub fn from_words(words: [u64; LIFETIME_WORD_COUNT]) -> Option<Self> {
        let [fresh_for, initial_age, revalidate, error, bits] = words;
        let is_set = |bit: u32| bits >> bit & 1 == 1;
        (bits >> 4 == 0).then(|| Self {
            fresh_for: Duration::from_millis(fresh_for),
            initial_age: Duration::from_millis(initial_age),
            stale_while_revalidate: Duration::from_millis(revalidate),
            stale_if_error: Duration::from_millis(error),
            must_revalidate: is_set(0),
            no_cache: is_set(1),
            is_heuristic: is_set(2),
            no_transform: is_set(3),
        })
    }
}

/// The lifetime of a response. `None` if neither the response nor the route sets one and no
/// heuristic applies.
pub(super) fn compute_lifetime(
    exchange: &OriginExchange<'_>,
    directed: &EffectiveDirectives,
    policy: &CachePolicy,
) -> Option<Lifetime> {
    let said = &directed.directives;
    let initial_age = initial_age(exchange);
    let (fresh_for, is_heuristic) = freshness_lifetime(exchange, directed, policy, initial_age)?;
    let is_forbidden = said.must_revalidate || said.proxy_revalidate || said.no_cache;
    // `s-maxage` implies `proxy-revalidate` (§5.2.2.10), but a response that also sets a stale
    // period permits stale use explicitly (§4.2.4).
    let stale_for = |seconds: Option<u64>, default: Duration| match seconds {
        _ if is_forbidden => Duration::ZERO,
        Some(seconds) => Duration::from_secs(seconds),
        None if said.s_maxage.is_some() => Duration::ZERO,
        None => whole_millis(default),
    };
    Some(Lifetime {
        fresh_for,
        initial_age,
        stale_while_revalidate: stale_for(
            said.stale_while_revalidate,
            policy.stale_while_revalidate,
        ),
        stale_if_error: stale_for(said.stale_if_error, policy.stale_if_error),
        must_revalidate: is_forbidden || said.s_maxage.is_some(),
        no_cache: said.no_cache,
        is_heuristic,
        no_transform: said.no_transform,
    })
}

/// freshness_lifetime (§4.2.1), and whether it is a heuristic.
fn freshness_lifetime(
    exchange: &OriginExchange<'_>,
    directed: &EffectiveDirectives,
    policy: &CachePolicy,
    initial_age: Duration,
) -> Option<(Duration, bool)> {
    let bounded = |time: Duration| whole_millis(policy.max_ttl.map_or(time, |max| time.min(max)));
    let said = &directed.directives;
    if let Some(ttl) = directed.accel_ttl {
        // Counted from now, regardless of the age.
        return Some((bounded(ttl).saturating_add(initial_age), false));
    }
    if let Some(seconds) = said.s_maxage.or(said.max_age) {
        return Some((bounded(Duration::from_secs(seconds)), false));
    }
    if let Some(expires) = exchange
        .fields
        .get("expires")
        .filter(|_| !directed.is_targeted)
    {
        // An invalid date, especially "0", is in the past (§5.3).
        let expires = parse_date_any_case(expires).unwrap_or(0);
        let seconds = expires
            .saturating_sub(date_or_response_time(exchange))
            .min(MAX_DELTA_SECONDS);
        return Some((bounded(Duration::from_secs(seconds)), false));
    }
    if said.no_cache {
        return Some((Duration::ZERO, false));
    }
    let has_cookie = exchange.request.field("cookie").is_some();
    let ttl = route_ttl(exchange, said, policy);
    if let Some(ttl) = ttl.filter(|_| policy.has_known_cookies || !has_cookie) {
        return Some((bounded(ttl).saturating_add(initial_age), false));
    }
    let is_guessable =
        is_kept_by_default(exchange.status, said) || matches!(exchange.status.code(), 404 | 410);
    // A page for one user may be marked as such in a field that caches do not read.
    let is_meant_for_all = (said.public || policy.heuristic_freshness)
        && !has_cookie
        && (exchange.request.field("authorization")).is_none();
    let modified = exchange
        .fields
        .get("last-modified")
        .filter(|_| is_guessable && is_meant_for_all);
    let modified = parse_date_any_case(modified?)?;
    let tenth = date_or_response_time(exchange).saturating_sub(modified) / 10;
    Some((
        bounded(Duration::from_secs(tenth).min(MAX_HEURISTIC_LIFETIME)),
        true,
    ))
}

/// The route's lifetime for a response without its own.
pub(super) fn route_ttl(
    exchange: &OriginExchange<'_>,
    said: &ResponseDirectives,
    policy: &CachePolicy,
) -> Option<Duration> {
    let by_status = policy.ttl_by_status.get(&exchange.status.code()).copied();
    let is_default = is_kept_by_default(exchange.status, said);
    by_status.or_else(|| policy.default_ttl.filter(|_| is_default))
}

/// An error needs its own directive or the route's rule for its status. Otherwise errors that a
/// client provokes could be stored.
const fn is_kept_by_default(status: Status, said: &ResponseDirectives) -> bool {
    matches!(status.code(), 200 | 203 | 204 | 300 | 301 | 308)
        || (said.public && !status.is_error())
}

/// corrected_initial_age (§4.2.3).
fn initial_age(exchange: &OriginExchange<'_>) -> Duration {
    let response_time = exchange.response_time;
    let apparent = response_time
        .as_secs()
        .saturating_sub(date_or_response_time(exchange));
    let delay = response_time.saturating_sub(exchange.request_time);
    let corrected = age_value(exchange.fields).saturating_add(delay);
    let age = Duration::from_secs(apparent).max(corrected);
    Duration::from_millis(millis(age).saturating_add(u64::from(age > whole_millis(age))))
}

/// The first member of `Age`; zero if it is no number (§5.1).
fn age_value(fields: &FieldBlock) -> Duration {
    let first = fields
        .get("age")
        .and_then(|value| list_elements(value).next());
    Duration::from_secs(first.and_then(parse_delta_seconds).unwrap_or(0))
}

/// `Date` in seconds since 1970, or the arrival time without a valid one.
fn date_or_response_time(exchange: &OriginExchange<'_>) -> u64 {
    parse_date_field(exchange.fields).unwrap_or(exchange.response_time.as_secs())
}

fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(millis(time))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Limit of a heuristic lifetime: beyond a day RFC 7234 required a warning to clients.
const MAX_HEURISTIC_LIFETIME: Duration = Duration::from_secs(86_400);
