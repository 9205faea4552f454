//! Validation of stored responses with the back end, and of clients' responses (RFC 9111 §4.3).
//!
//! `cache` adds [`revalidation_fields`] to its request. A 304 that matches the stored response
//! ([`is_304_for`]) is merged into it by [`freshen`], and [`check_storable`](super::check_storable)
//! of the result returns the new lifetime. The response to a HEAD goes through
//! [`head_response_matches_stored`]. [`evaluate_stored_preconditions`] answers clients' conditions.
//!
//! # Invariants
//!
//! - The content is the stored response's, so no field that describes its bytes is taken from a
//!   message without content.

use std::time::Duration;

use super::storage::{NEVER_STORED_FIELDS, field_values, parse_date_field, storable_fields};
use crate::{
    FieldBlock, PreconditionResult, RequestHead, Status,
    conditional::evaluate_preconditions,
    date::parse_http_date,
    grammar::{parse_content_length, starts_with_ignore_case},
};

/// Validators for a request to the back end. Empty if there is nothing to validate by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevalidationFields<'a> {
    /// The value for `If-None-Match`: the stored entity tag.
    pub if_none_match: Option<&'a [u8]>,
    /// The value for `If-Modified-Since`: the stored `Last-Modified`.
    pub if_modified_since: Option<&'a [u8]>,
}

impl RevalidationFields<'_> {
    /// Whether there is no validator.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.if_none_match.is_none() && self.if_modified_since.is_none()
    }
}

/// The validators of a stored response (§4.3.1). They replace the client's conditions and its
/// `Range`.
#[must_use]
pub fn revalidation_fields(stored: &FieldBlock) -> RevalidationFields<'_> {
    let date = stored.get("last-modified");
    RevalidationFields {
        if_none_match: stored.get("etag").filter(|tag| is_entity_tag(tag)),
        if_modified_since: date.filter(|date| parse_http_date(date).is_some()),
    }
}

/// Whether a 304 is about the stored response with whose validators it was requested (§4.3.4). If
/// not, the caller repeats the request without a condition. A 304 without validators matches: the
/// request named only one response.
#[must_use]
pub fn is_304_for(stored: &FieldBlock, of_304: &FieldBlock) -> bool {
    let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
    match (of_304.get("etag"), of_304.get("last-modified")) {
        (Some(tag), _) if tag.starts_with(b"W/") => stored
            .get("etag")
            .is_some_and(|own| opaque(own) == opaque(tag)),
        (Some(tag), _) => stored.get("etag") == Some(tag),
        (None, Some(date)) => match stored.get("last-modified") {
            Some(own) => own == date,
            None => stored.contains("etag"),
        },
        (None, None) => true,
    }
}

/// Updates the stored fields after a 304 that matches ([`is_304_for`]), or a HEAD that does
/// ([`head_response_matches_stored`]), arrived at `response_time` (§3.2). Each of its fields
/// replaces the stored ones of the same name, except hop-by-hop fields, cookies, fields that
/// describe the bytes of the content, and the entity tag.
///
/// [`check_storable`](super::check_storable) of these fields, with the stored status and the 304's
/// `Age` and `X-Accel-Expires`, returns the new lifetime. If it refuses (for example `no-store` in
/// the 304), the response answers this request and is removed.
#[must_use]
pub fn freshen(stored: &FieldBlock, of_304: &FieldBlock, response_time: Duration) -> FieldBlock {
    // Also removes fields that the 304's directives withhold, and adds a missing `Date`: the age
    // would otherwise count from the old one.
    let news = storable_fields(of_304, response_time);
    let is_news = |name: &str| !keeps_stored_value(name) && news.contains(name);
    let mut fields = FieldBlock::with_capacity(stored.as_bytes().len() + news.as_bytes().len());
    let from_stored = stored.iter().filter(|(name, _)| !is_news(name));
    let from_news = news.iter().filter(|(name, _)| !keeps_stored_value(name));
    for (name, value) in from_stored.chain(from_news) {
        let pushed = fields.push(name, value);
        debug_assert!(pushed.is_ok(), "a block holds checked fields only");
    }
    fields
}

/// Whether the response to a HEAD describes the stored response with `body_len` bytes (§4.3.5). If
/// so it may [`freshen`] the stored one, which is otherwise removed or validated. A missing field
/// does not count.
#[must_use]
pub fn head_response_matches_stored(stored: &FieldBlock, body_len: u64, head: &FieldBlock) -> bool {
    let is_same_length = field_values(head, "content-length")
        .all(|value| parse_content_length(value) == Some(body_len));
    is_same_length
        && ["etag", "last-modified"].iter().all(|name| {
            head.get(name)
                .is_none_or(|value| stored.get(name) == Some(value))
        })
}

/// Evaluates a client's conditions against a stored response (§4.3.2): 304, or proceed. They count
/// only for a stored 200. Conditions for the origin bypass the cache (`cache_eligibility`). Without
/// `Last-Modified` the response counts as modified at its `Date`, or at its arrival.
#[must_use]
pub fn evaluate_stored_preconditions(
    request: &RequestHead,
    status: Status,
    stored: &FieldBlock,
    response_time: Duration,
) -> PreconditionResult {
    if status != Status::OK || !has_condition(request) {
        return PreconditionResult::Proceed;
    }
    let modified = stored
        .get("last-modified")
        .and_then(parse_http_date)
        .or_else(|| parse_date_field(stored))
        .unwrap_or(response_time.as_secs());
    evaluate_preconditions(
        request,
        stored.get("etag").unwrap_or_default(),
        Some(modified),
    )
}

/// Whether a field name begins like a condition's. Most requests have none, and the stored fields
/// need not be read.
fn has_condition(request: &RequestHead) -> bool {
    let mut fields = request.fields_bytes();
    fields.any(|(name, _)| starts_with_ignore_case(name, "if-"))
}

/// Optional `W/`, then a quoted string without inner quotes (RFC 9110 §8.8.3).
fn is_entity_tag(tag: &[u8]) -> bool {
    match tag.strip_prefix(b"W/").unwrap_or(tag) {
        [b'"', inner @ .., b'"'] => !inner.contains(&b'"'),
        _ => false,
    }
}

/// Whether a later message never changes this stored field.
fn keeps_stored_value(name: &str) -> bool {
    CONTENT_FIELDS
        .iter()
        .chain(NEVER_STORED_FIELDS)
        .any(|kept| name.eq_ignore_ascii_case(kept))
}

/// Fields about the stored bytes. The entity tag is one of them: an equal tag changes nothing, and
/// if only the weak form matched, the bytes keep their stored tag.
const CONTENT_FIELDS: &[&str] = &[
    "content-length",
    "content-encoding",
    "content-range",
    "content-digest",
    "content-md5",
    "digest",
    "etag",
    "repr-digest",
];
