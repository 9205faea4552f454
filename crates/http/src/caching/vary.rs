//! Which of the stored responses a request selects: `VaryFields` (RFC 9111 §4.1).
//!
//! `cache` reads the names once, when a response is stored, and makes the key of a variant from the
//! request that brought it; a later request selects the response when its key is the same.
//!
//! What must stay true: two requests have the same key only when they send the named fields alike,
//! after changes that §4.1 allows; an absent field is not an empty one.

use super::storage::field_values;
use crate::{
    FieldBlock, RequestHead,
    grammar::{is_token, list_elements, trim_blanks},
};

/// What a response depends on beside the URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VaryFields {
    /// On something that is in no field: no request selects it.
    Any,
    /// On these fields of the request: lower case, sorted, each once; often none.
    Names(Vec<String>),
}

/// Reads the `VaryFields` fields of a response. A member that is no field name counts as `*`.
#[must_use]
pub fn parse_vary(fields: &FieldBlock) -> VaryFields {
    let mut names = Vec::new();
    for name in field_values(fields, "vary").flat_map(list_elements) {
        if name == b"*" || !is_token(name) {
            return VaryFields::Any;
        }
        names.push(String::from_utf8_lossy(name).to_ascii_lowercase());
    }
    names.sort_unstable();
    names.dedup();
    VaryFields::Names(names)
}

/// The key of the variant that a request selects, given the names of [`VaryFields::Names`]: equal keys
/// match. Lines of one field are joined and blanks at their ends dropped; in the fields of
/// negotiation (`Accept` and its like) blanks between members do not count either, nor does case in
/// those that are case-insensitive. Of `Accept-Encoding` only what may be sent counts: the set of
/// codings, without order and preference, so that a compressed variant serves all who take it.
#[must_use]
pub fn variant_key(request: &RequestHead, names: &[String]) -> Vec<u8> {
    let mut key = Vec::new();
    for name in names {
        key.extend_from_slice(name.as_bytes());
        let start = key.len();
        for value in request.field_all(name) {
            key.push(if key.len() == start { b':' } else { b',' });
            match name.as_str() {
                "accept" => push_list_members(&mut key, value, <[u8]>::to_vec),
                "accept-language" | "accept-charset" => {
                    push_list_members(&mut key, value, <[u8]>::to_ascii_lowercase);
                }
                _ => key.extend_from_slice(trim_blanks(value)),
            }
        }
        if name == "accept-encoding" && key.len() > start {
            key.truncate(start + 1);
            push_accepted_codings(&mut key, request);
        }
        // No value holds a line break, so one field's text cannot pass for two.
        key.push(b'\n');
    }
    key
}

// A comma in a quoted parameter splits here too; alike for all, so equal keys still mean equal
// fields but for blanks.
fn push_list_members(key: &mut Vec<u8>, value: &[u8], change: impl Fn(&[u8]) -> Vec<u8>) {
    for (at, member) in list_elements(value).enumerate() {
        if at > 0 {
            key.push(b',');
        }
        key.extend_from_slice(&change(member));
    }
}

/// The codings that may be sent, sorted; `!` before one that may not, where it would be allowed by
/// default or by `*` (RFC 9110 §12.5.3). Codings nobody here knows stay in, since the origin may
/// know them.
fn push_accepted_codings(key: &mut Vec<u8>, request: &RequestHead) {
    let mut members: Vec<(Vec<u8>, bool)> = request
        .field_all("accept-encoding")
        .flat_map(list_elements)
        .map(|member| {
            let mut parts = member.split(|&byte| byte == b';').map(trim_blanks);
            let coding = parts.next().unwrap_or_default().to_ascii_lowercase();
            (coding, !parts.any(is_zero_weight))
        })
        .collect();
    for (coding, _) in &mut members {
        if coding == b"x-gzip" {
            *coding = b"gzip".to_vec();
        }
    }
    let has_any = members.contains(&(b"*".to_vec(), true));
    members.retain(|(coding, is_taken)| match (coding.as_slice(), is_taken) {
        (b"identity", true) => false,
        (b"identity" | b"*", false) | (_, true) => true,
        (_, false) => has_any,
    });
    members.sort_unstable();
    members.dedup();
    for (at, (coding, is_taken)) in members.iter().enumerate() {
        if at > 0 {
            key.push(b',');
        }
        if !is_taken {
            key.push(b'!');
        }
        key.extend_from_slice(coding);
    }
}

fn is_zero_weight(parameter: &[u8]) -> bool {
    let weight = parameter
        .strip_prefix(b"q=")
        .or_else(|| parameter.strip_prefix(b"Q="));
    weight.is_some_and(|weight| {
        weight.starts_with(b"0") && weight.iter().all(|byte| matches!(byte, b'0' | b'.'))
    })
}
