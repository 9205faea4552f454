//! Selection of stored responses by `Vary` (RFC 9111 §4.1).
//!
//! `cache` reads the names when it stores a response, and derives the variant's key from its
//! request. A later request with the same key selects the response.
//!
//! # Invariants
//!
//! - Two requests have the same key only if they send the named fields alike, after changes that
//!   §4.1 allows.
//! - An absent field differs from an empty one.

use super::storage::field_values;
use crate::{
    FieldBlock, RequestHead,
    grammar::{is_token, list_elements, trim_blanks},
};

/// The selecting fields of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VaryFields {
    /// `*`: it depends on more than fields, and no request selects it.
    Any,
    /// The request fields that select it: lower case, sorted, unique; often none.
    Names(Vec<String>),
}

/// Reads the `Vary` fields of a response. A member that is no field name counts as `*`.
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

/// The key of the variant that a request selects, with the names of [`VaryFields::Names`]; equal
/// keys match. Lines of one field are joined, without blanks at their ends. In negotiation fields
/// (such as `Accept`) blanks between members are ignored too, and case where it does not matter. Of
/// `Accept-Encoding` only the set of acceptable codings counts, without order and weights, so that
/// a compressed variant serves all clients that accept it.
#[must_use]
pub fn variant_key(request: &RequestHead, names: &[String]) -> Vec<u8> {
    let mut key = Vec::new();
    for name in names {
        key.extend_from_slice(name.as_bytes());
        let start = key.len();
        for value in request.field_values(name) {
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
        // A value holds no line break, so that one field cannot look like two.
        key.push(b'\n');
    }
    key
}

// Also splits at commas in quoted parameters. That is the same for all requests, so equal keys
// still mean equal fields apart from blanks.
fn push_list_members(key: &mut Vec<u8>, value: &[u8], change: impl Fn(&[u8]) -> Vec<u8>) {
    for (at, member) in list_elements(value).enumerate() {
        if at > 0 {
            key.push(b',');
        }
        key.extend_from_slice(&change(member));
    }
}

/// The acceptable codings, sorted; `!` marks one that is refused but would be allowed by default or
/// by `*` (RFC 9110 §12.5.3). Unknown codings are kept, since the origin may know them.
fn push_accepted_codings(key: &mut Vec<u8>, request: &RequestHead) {
    let mut members: Vec<(Vec<u8>, bool)> = request
        .field_values("accept-encoding")
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
