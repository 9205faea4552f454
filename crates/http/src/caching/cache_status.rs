//! `Cache-Status`: reports how the cache handled a request (RFC 9211).
//!
//! `cache` fills a [`CacheStatus`] and adds it to the response. The field is a list in which the
//! cache nearest to the origin comes first, so this cache's member is appended.

use super::cache_control::MAX_DELTA_SECONDS;
use crate::{
    FieldBlock, Status,
    grammar::{is_token_byte, push_decimal},
};

/// Why a request went to the back end (RFC 9211 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardReason {
    /// By configuration.
    Bypass,
    /// By the semantics of the method.
    Method,
    /// No response is stored under the key.
    UriMiss,
    /// Responses are stored, but none that the request selects.
    VaryMiss,
    /// No response is stored; which of the two reasons applies is unknown.
    Miss,
    /// The stored response is fresh, but the request's directives forbid its use.
    Request,
    /// The stored response is stale.
    Stale,
    /// Only a part of the requested content is stored.
    Partial,
}

impl ForwardReason {
    /// The token defined by the RFC.
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

/// How the cache handled a request (RFC 9211 §2). The default is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// Answered from the store; not written together with `fwd`.
    pub hit: bool,
    /// Why the request was forwarded.
    pub fwd: Option<ForwardReason>,
    /// The back end's status, if it differs from the sent one. Written only together with `fwd`, as
    /// are `stored` and `collapsed`.
    pub fwd_status: Option<Status>,
    /// Seconds until the response is stale; negative if it is stale already.
    pub ttl: Option<i64>,
    /// Whether the response was stored.
    pub stored: bool,
    /// Whether the request waited for another request's fetch.
    pub collapsed: bool,
    /// The key; omitted unless it is printable ASCII.
    pub key: Option<&'a str>,
    /// Further detail, preferably one word; omitted unless it is printable ASCII.
    pub detail: Option<&'a str>,
}

/// Writes the list member of the cache called `name`. A name that is not printable ASCII becomes
/// `cache`.
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

/// Appends the field to a response, after the members of caches nearer to the origin.
pub fn push_cache_status(fields: &mut FieldBlock, name: &str, status: &CacheStatus<'_>) {
    let mut value = Vec::with_capacity(64);
    encode_cache_status(&mut value, name, status);
    let pushed = fields.push("Cache-Status", &value);
    debug_assert!(pushed.is_ok(), "printable ASCII is a valid value");
}

// Writes a token if possible, else a string (RFC 9651 §3.3). Returns `false` if the text is
// neither.
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
