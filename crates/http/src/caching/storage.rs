//! Whether a response may be stored, and what of it (RFC 9111 §3).
//!
//! `cache` calls [`storing`] when the head of a response is there, and keeps what [`stored_fields`]
//! leaves of its fields.
//!
//! What must stay true: nothing meant for one user and nothing that a malformed request could have
//! brought about is stored unless the response asks for it in so many words, and some not even
//! then. The order of the checks is that of [`StoreRefusal`]: what no header can change comes first.

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
    /// 511, and those that IANA does not list.
    Status,
    /// `no-store` in the request.
    RequestNoStore,
    /// `Set-Cookie`: a session of one user, whatever else the response says.
    SetCookie,
    /// `VaryFields: *`, so that no request selects it.
    VaryAny,
    /// `X-Accel-Expires: 0` or `off`.
    AccelExpiresOff,
    /// `no-store` in the response.
    NoStore,
    /// `private` in the response.
    Private,
    /// The request had `Authorization`, and the response does not say that it is for all (§3.5).
    Authorization,
    /// Only the route says how long it is fresh, and the request had cookies that the route does not know.
    Cookie,
    /// Nothing says how long it is fresh, and its status does not allow a guess.
    NoLifetime,
    /// Already stale, not to be sent stale, and without a validator to ask about it.
    ExpiredWithoutValidator,
}

impl StoreRefusal {
    /// A word for the `detail` of `Cache-Status`.
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

/// Whether a response may be stored, and for how long it is then good for what (§3, §4.2).
///
/// # Errors
/// The first reason against it.
pub fn check_storable(
    exchange: &OriginExchange<'_>,
    policy: &CachePolicy,
) -> Result<Lifetime, StoreRefusal> {
    let OriginExchange {
        request,
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
    // Every storable status is one whose rules are kept here, so `must-understand` lifts `no-store`
    // (§5.2.2.3).
    if said.no_store && !said.must_understand {
        return Err(StoreRefusal::NoStore);
    }
    if said.private {
        return Err(StoreRefusal::Private);
    }
    let is_for_all = said.public || said.must_revalidate || said.s_maxage.is_some();
    if request.field("authorization").is_some() && !is_for_all {
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

/// Whether a response of that status may be stored if it says so.
///
/// Out are: interim ones; 206 and 304, which are parts of others (§3.3, §4.3.4); what tells about
/// one connection or one request and would poison the resource for all (400, 407, 408, 416, 421,
/// 425); what RFC 6585 forbids (428, 429, 431, 511); and what is not known here, since nobody can say
/// what storing it would mean.
#[must_use]
pub fn may_store_status(status: Status) -> bool {
    let is_known = !status.is_informational() && !status.reason().is_empty();
    let is_never = matches!(
        status.code(),
        206 | 304 | 400 | 407 | 408 | 416 | 421 | 425 | 428 | 429 | 431 | 511
    );
    is_known && !is_never
}

/// The fields to keep of a response that came at `response_time`: without those of its connection
/// (RFC 9110 §7.6.1), of a proxy's authentication, and those that `no-cache="…"` and `private="…"`
/// name (§3.1); without cookies; without `Age`, which the caller writes anew, and `X-Accel-Expires`,
/// which is for the cache alone; with a `Date` (RFC 9110 §6.6.1).
#[must_use]
pub fn stored_fields(fields: &FieldBlock, response_time: Duration) -> FieldBlock {
    let directed = EffectiveDirectives::from_fields(fields, response_time);
    let named: Vec<&[u8]> = field_values(fields, "connection")
        .flat_map(list_elements)
        .collect();
    let mut kept = FieldBlock::with_capacity(fields.as_bytes().len() + 40);
    for (name, value) in fields.iter() {
        let is_named = |other: &[u8]| name.as_bytes().eq_ignore_ascii_case(other);
        let is_dropped = NEVER_STORED.iter().any(|never| is_named(never.as_bytes()))
            || named.iter().any(|other| is_named(other))
            || directed
                .directives
                .withheld
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

/// The values of all fields of that name.
pub(super) fn field_values<'a>(
    fields: &'a FieldBlock,
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

/// The first `Date`, in seconds since 1970; `None` without a valid one.
pub(super) fn parse_date_field(fields: &FieldBlock) -> Option<u64> {
    fields.get("date").and_then(parse_date_any_case)
}

/// Seconds since 1970 of a date, in whatever case its names are written (§4.2).
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
            // A year stands there in the oldest form, and has no case.
            zone.make_ascii_uppercase();
        }
        parse_http_date(&text)
    })
}

/// Fields of the connection, of authentication to a proxy, those about the cache itself, and cookies:
/// a response that sets one is not stored, and a 304 must not bring one into what is.
pub(super) const NEVER_STORED: &[&str] = &[
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
    "x-accel-expires",
    "surrogate-control",
    "set-cookie",
    "set-cookie2",
];
