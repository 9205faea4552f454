//! Validation: asking the back end about a stored response, and clients who ask about theirs
//! (RFC 9111 §4.3).
//!
//! `cache` puts [`revalidation_fields`] into its question; a 304 that [`is_304_for`] what is stored
//! [`freshen`]s it, and [`storing`](super::storing) of the result gives the new lifetime. A HEAD
//! that the back end answered goes through [`head_matches_stored`]. [`evaluate_condition`] answers clients.
//!
//! What must stay true: the content is that of the stored response, so no field that describes its
//! bytes is ever taken from a message that came without them.

use std::time::Duration;

use super::storage::{NEVER_STORED, field_values, parse_date_field, stored_fields};
use crate::{
    FieldBlock, PreconditionResult, RequestHead, Status, conditional::evaluate_preconditions,
    date::parse_http_date, grammar::parse_length,
};

/// What to ask the back end with; without either there is nothing to validate by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevalidationFields<'a> {
    /// The value for `If-None-Match`: the stored entity tag.
    pub if_none_match: Option<&'a [u8]>,
    /// The value for `If-Modified-Since`: the stored `Last-Modified`.
    pub if_modified_since: Option<&'a [u8]>,
}

impl RevalidationFields<'_> {
    /// Whether there is neither.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.if_none_match.is_none() && self.if_modified_since.is_none()
    }
}

/// The validators of a stored response (§4.3.1). They replace all conditions of the client and its
/// `Range`.
#[must_use]
pub fn revalidation_fields(stored: &FieldBlock) -> RevalidationFields<'_> {
    let date = stored.get("last-modified");
    RevalidationFields {
        if_none_match: stored.get("etag").filter(|tag| is_entity_tag(tag)),
        if_modified_since: date.filter(|date| parse_http_date(date).is_some()),
    }
}

/// Whether a 304 speaks of the stored response whose validators it was asked with (§4.3.4). If not,
/// the caller asks again without a condition. A 304 without any validator does: it answers a
/// question that named only one response.
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

/// The stored fields after a 304 that [`is_304_for`] them, or a HEAD that [`head_matches_stored`], came at
/// `response_time` (§3.2): each field of it replaces those of its name, but for fields of the
/// connection, cookies, those that describe the bytes of the content, and the entity tag.
///
/// [`storing`](super::check_storable) of these fields, with the stored status and what `Age` and
/// `X-Accel-Expires` the 304 has, gives the new lifetime. Where it refuses (`no-store` came with the
/// 304), the response answers this request and is dropped.
#[must_use]
pub fn freshen(stored: &FieldBlock, of_304: &FieldBlock, response_time: Duration) -> FieldBlock {
    // Also drops what its own directives withhold, and gives it a Date where it has none: without
    // one the age would be counted from the old.
    let news = stored_fields(of_304, response_time);
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

/// Whether the answer to HEAD describes the stored response, whose content has `body_len` bytes
/// (§4.3.5): if so it may [`freshen`] it, if not the stored one is to be dropped or validated. A
/// field that the answer does not have says nothing.
#[must_use]
pub fn head_matches_stored(stored: &FieldBlock, body_len: u64, head: &FieldBlock) -> bool {
    let is_same_length =
        field_values(head, "content-length").all(|value| parse_length(value) == Some(body_len));
    is_same_length
        && ["etag", "last-modified"].iter().all(|name| {
            head.get(name)
                .is_none_or(|value| stored.get(name) == Some(value))
        })
}

/// What the conditions of a client come to when the stored response answers it (§4.3.2): 304, or
/// as if there were none. They count only for a stored 200, and those that are the origin's to judge
/// never get here (`cache_eligibility`); a response without `Last-Modified` was modified at its `Date`,
/// or when it came.
#[must_use]
pub fn evaluate_condition(
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

/// Whether a field begins as those of conditions do: most requests have none, and nothing is then to be read of
/// what is stored.
fn has_condition(request: &RequestHead) -> bool {
    let starts = |name: &str| {
        name.get(..3)
            .is_some_and(|start| start.eq_ignore_ascii_case("if-"))
    };
    request.fields().any(|(name, _)| starts(name))
}

/// `W/` or nothing, and a quoted string without quotes in it (RFC 9110 §8.8.3).
fn is_entity_tag(tag: &[u8]) -> bool {
    match tag.strip_prefix(b"W/").unwrap_or(tag) {
        [b'"', inner @ .., b'"'] => !inner.contains(&b'"'),
        _ => false,
    }
}

/// Whether a field stays as stored whatever a later message says.
fn keeps_stored_value(name: &str) -> bool {
    CONTENT_FIELDS
        .iter()
        .chain(NEVER_STORED)
        .any(|kept| name.eq_ignore_ascii_case(kept))
}

/// Fields about the very bytes that are stored. The entity tag is one: where it is the same nothing
/// changes, and where only its weak form matched the stored bytes still go by the stored name.
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
