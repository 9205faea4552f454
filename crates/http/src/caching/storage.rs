//! Whether a response may be stored, and which of its fields (RFC 9111 §3).
//!
//! `cache` calls [`check_storable`] when a response head arrives, and stores the fields that
//! [`storable_fields`] returns.
//!
//! # Invariants
//!
//! - A response for one user, or one that a malformed request may have caused, is not stored unless
//!   it permits that explicitly, and in some cases not even then.
//! - Checks run in the order of [`StoreRefusal`]: conditions that no header can change come first.

use std::time::Duration;

use super::{
    CachePolicy, Lifetime, OriginExchange, RequestDirectives, VaryFields,
    effective_directives::EffectiveDirectives, freshness, parse_vary,
};
use crate::{
    FieldBlock, Method, Status,
    date::{imf_fixdate, parse_http_date},
    grammar::list_elements,
};

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreRefusal {
    /// The request was no GET.
    Method,
    /// A status that is never stored: 1xx, 206, 304, 400, 407, 408, 416, 421, 425, 428, 429, 431,
    /// 511, and those not registered with IANA.
    Status,
    /// `no-store` in the request.
    RequestNoStore,
    /// `Set-Cookie`: a session of one user, whatever the directives.
    SetCookie,
    /// `Vary: *`: no request selects it.
    VaryAny,
    /// `X-Accel-Expires: 0` or `off`.
    AccelExpiresOff,
    /// `no-store` in the response.
    NoStore,
    /// `private` in the response.
    Private,
    /// The request is of a user, and the response does not permit sharing (§3.5).
    Authorization,
    /// Only the route sets a lifetime, and the request had cookies that the route does not know.
    Cookie,
    /// No lifetime is set, and the status permits no heuristic.
    NoLifetime,
    /// Already stale, not usable stale, and without a validator.
    ExpiredWithoutValidator,
}

impl StoreRefusal {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Status => "status",
            Self::RequestNoStore => "request-no-store",
            Self::SetCookie => "set-cookie",
            Self::VaryAny => "vary-any",
            Self::AccelExpiresOff => "accel-off",
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::Authorization => "authorization",
            Self::Cookie => "cookie",
            Self::NoLifetime => "no-lifetime",
            Self::ExpiredWithoutValidator => "expired",
        }
    }
}

/// Whether a response may be stored, and its lifetime (§3, §4.2).
///
/// # Errors
/// Returns the first reason against it.
pub fn check_storable(
    exchange: &OriginExchange<'_>,
    policy: &CachePolicy,
) -> Result<Lifetime, StoreRefusal> {
    let OriginExchange {
        request,
        is_authenticated,
        status,
        fields,
        ..
    } = *exchange;
    if request.method() != Method::Get {
        return Err(StoreRefusal::Method);
    }
    if !may_store_status(status) {
        return Err(StoreRefusal::Status);
    }
    if RequestDirectives::from_request(request).no_store {
        return Err(StoreRefusal::RequestNoStore);
    }
    if fields.contains("set-cookie") || fields.contains("set-cookie2") {
        return Err(StoreRefusal::SetCookie);
    }
    if parse_vary(fields) == VaryFields::Any {
        return Err(StoreRefusal::VaryAny);
    }
    let directed = EffectiveDirectives::from_fields(fields, exchange.response_time);
    let said = &directed.directives;
    if directed.is_accel_off {
        return Err(StoreRefusal::AccelExpiresOff);
    }
    // The rules of every storable status are implemented, so `must-understand` overrides `no-store`
    // (§5.2.2.3).
    if said.no_store && !said.must_understand {
        return Err(StoreRefusal::NoStore);
    }
    if said.private {
        return Err(StoreRefusal::Private);
    }
    let is_for_all = said.public || said.must_revalidate || said.s_maxage.is_some();
    if is_authenticated && !is_for_all {
        return Err(StoreRefusal::Authorization);
    }
    let lifetime = freshness::compute_lifetime(exchange, &directed, policy);
    let lifetime = lifetime.ok_or_else(|| match freshness::route_ttl(exchange, said, policy) {
        Some(_) => StoreRefusal::Cookie,
        None => StoreRefusal::NoLifetime,
    })?;
    let is_usable = lifetime.initial_age < lifetime.usable_for() && !lifetime.no_cache;
    if !is_usable && !fields.contains("etag") && !fields.contains("last-modified") {
        return Err(StoreRefusal::ExpiredWithoutValidator);
    }
    Ok(lifetime)
}

/// Whether a response of that status may be stored if its directives permit.
///
/// Excluded are interim responses; 206 and 304, which are parts of others (§3.3, §4.3.4); statuses
/// about one connection or request, which would poison the resource for all (400, 407, 408, 416,
/// 421, 425); those that RFC 6585 forbids to store (428, 429, 431, 511); and unregistered ones,
/// whose semantics are unknown.
#[must_use]
pub fn may_store_status(status: Status) -> bool {
    let is_known = !status.is_informational() && !status.reason().is_empty();
    let is_never = matches!(
        status.code(),
        206 | 304 | 400 | 407 | 408 | 416 | 421 | 425 | 428 | 429 | 431 | 511
    );
    is_known && !is_never
}

/// The fields to store of a response that arrived at `response_time`. Removes hop-by-hop fields
/// (RFC 9110 §7.6.1), proxy authentication, fields named by `no-cache="…"` and `private="…"`
/// (§3.1), cookies, `Age`, which the caller writes anew, and `X-Accel-*`, which are for the front
/// end only. Adds a missing `Date` (RFC 9110 §6.6.1).
#[must_use]
pub fn storable_fields(fields: &FieldBlock, response_time: Duration) -> FieldBlock {
    let directed = EffectiveDirectives::from_fields(fields, response_time);
    let named: Vec<&[u8]> = field_values(fields, "connection")
        .flat_map(list_elements)
        .collect();
    let mut kept = FieldBlock::with_capacity(fields.as_bytes().len() + 40);
    for (name, value) in fields.iter() {
        let is_named = |other: &[u8]| name.as_bytes().eq_ignore_ascii_case(other);
        let is_dropped = NEVER_STORED_FIELDS
            .iter()
            .any(|never| is_named(never.as_bytes()))
            || named.iter().any(|other| is_named(other))
            || directed
                .directives
                .withheld_fields
                .iter()
                .any(|withheld| is_named(withheld.as_bytes()));
        if !is_dropped {
            let pushed = kept.push(name, value);
            debug_assert!(pushed.is_ok(), "a block holds checked fields only");
        }
    }
    if parse_date_field(&kept).is_none() {
        let date = imf_fixdate(response_time.as_secs());
        let pushed = kept.set("Date", &date);
        debug_assert!(pushed.is_ok(), "a date is a valid value");
    }
    kept
}

pub(super) fn field_values<'a>(
    fields: &'a FieldBlock,
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

/// The first `Date` in seconds since 1970. `None` without a valid one.
pub(super) fn parse_date_field(fields: &FieldBlock) -> Option<u64> {
    fields.get("date").and_then(parse_date_any_case)
}

/// Parses a date into seconds since 1970, ignoring case (§4.2).
pub(super) fn parse_date_any_case(text: &[u8]) -> Option<u64> {
    parse_http_date(text).or_else(|| {
        let mut text = text.to_ascii_lowercase();
        let mut is_inside = false;
        for byte in &mut text {
            if !is_inside {
                byte.make_ascii_uppercase();
            }
            is_inside = byte.is_ascii_alphabetic();
        }
        if let Some(zone) = text.len().checked_sub(3).and_then(|at| text.get_mut(at..)) {
            // The oldest form ends with the year, which has no case.
            zone.make_ascii_uppercase();
        }
        parse_http_date(&text)
    })
}

/// Hop-by-hop fields, proxy authentication, fields about the cache itself, and cookies. A response
/// that sets a cookie is not stored, and a 304 must not add one to a stored response.
pub(super) const NEVER_STORED_FIELDS: &[&str] = &[
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "age",
    "x-accel-buffering",
    "x-accel-expires",
    "surrogate-control",
    "set-cookie",
    "set-cookie2",
];
