//! `Cache-Status`: what the cache did with a request, told to who debugs it (RFC 9211).
//!
//! `cache` fills a [`CacheStatus`] as it decides and writes it into what it sends. The field is a
//! list in which the cache nearest to the origin comes first, so ours goes behind those that the
//! response brought.

use super::cache_control::MAX_DELTA_SECONDS;
use crate::{
    FieldBlock, Status,
    grammar::{is_token_byte, push_decimal},
};

/// Why a request went to the back end (RFC 9211 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardReason {
    /// The configuration says so.
    Bypass,
    /// The semantics of the method do.
    Method,
    /// Nothing is stored under the key.
    UriMiss,
    /// Something is, but no variant that the request selects.
    VaryMiss,
    /// Nothing is stored, without knowing which of the two it was.
    Miss,
    /// What is stored is fresh, and the request's own directives forbid to use it.
    Request,
    /// What is stored is stale.
    Stale,
    /// Only a part of what was asked for is stored.
    Partial,
}

impl ForwardReason {
    /// The token of the RFC.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Miss => "miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

/// What the cache did (RFC 9211 §2); the default says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// Answered without asking; not written beside `fwd`.
    pub hit: bool,
    /// Why it was asked.
    pub fwd: Option<ForwardReason>,
    /// The status of the answer, where it is not the one sent; only written beside `fwd`, as `stored`
    /// and `collapsed`.
    pub fwd_status: Option<Status>,
    /// Seconds until the response is stale, negative since when it is.
    pub ttl: Option<i64>,
    /// Whether the answer was stored.
    pub stored: bool,
    /// Whether the request waited for the answer to another one.
    pub collapsed: bool,
    /// The key; left out when it is not printable ASCII.
    pub key: Option<&'a str>,
    /// Anything else, one word best; left out when it is not printable ASCII.
    pub detail: Option<&'a str>,
}

/// Writes the member of the cache called `name`. A name that is not printable ASCII becomes `cache`.
pub fn encode_cache_status(out: &mut Vec<u8>, name: &str, status: &CacheStatus<'_>) {
    if !push_token_or_string(out, name) {
        out.extend_from_slice(b"cache");
    }
    match status.fwd {
        None if status.hit => out.extend_from_slice(b"; hit"),
        None => {}
        Some(fwd) => {
            out.extend_from_slice(b"; fwd=");
            out.extend_from_slice(fwd.as_str().as_bytes());
            if let Some(answer) = status.fwd_status {
                out.extend_from_slice(b"; fwd-status=");
                out.extend_from_slice(&answer.digits());
            }
        }
    }
    if let Some(ttl) = status.ttl {
        out.extend_from_slice(if ttl < 0 { b"; ttl=-" } else { b"; ttl=" });
        // No lifetime is longer, and a structured integer has at most 15 digits.
        push_decimal(out, ttl.unsigned_abs().min(MAX_DELTA_SECONDS));
    }
    for (is_set, text) in [
        (status.stored, "; stored"),
        (status.collapsed, "; collapsed"),
    ] {
        if is_set && status.fwd.is_some() {
            out.extend_from_slice(text.as_bytes());
        }
    }
    if let Some(key) = status.key.filter(|key| is_printable(key)) {
        out.extend_from_slice(b"; key=");
        push_string(out, key);
    }
    if let Some(detail) = status.detail.filter(|detail| is_printable(detail)) {
        out.extend_from_slice(b"; detail=");
        push_token_or_string(out, detail);
    }
}

/// Adds the field to those of a response, behind what caches nearer to the origin said.
pub fn push_cache_status(fields: &mut FieldBlock, name: &str, status: &CacheStatus<'_>) {
    let mut value = Vec::with_capacity(64);
    encode_cache_status(&mut value, name, status);
    let pushed = fields.push("Cache-Status", &value);
    debug_assert!(pushed.is_ok(), "printable ASCII is a valid value");
}

// A token where it is one, else a string (RFC 9651 §3.3); nothing and false when it is neither.
fn push_token_or_string(out: &mut Vec<u8>, text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_token = bytes
        .first()
        .is_some_and(|&first| first.is_ascii_alphabetic() || first == b'*')
        && bytes
            .iter()
            .all(|&byte| is_token_byte(byte) || matches!(byte, b':' | b'/'));
    if is_token {
        out.extend_from_slice(bytes);
    } else if is_printable(text) {
        push_string(out, text);
    } else {
        return false;
    }
    true
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for &byte in text.as_bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}
