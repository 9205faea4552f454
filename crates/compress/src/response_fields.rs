//! Changes the header of a response for a coding, or for the possibility of one. Pure.
//!
//! # Invariants
//! - `Vary` names `Accept-Encoding` once, however many handlers negotiate.
//! - A strong entity tag never names a body that was compressed here: encoders of another version
//!   give other bytes (RFC 9110 §8.8.3).

use penstock_config::ContentCoding;
use penstock_http::{FieldBlock, RequestHead, list_elements};

use crate::policy::values_of;

/// Makes the header that of the body in `coding`.
pub(crate) fn mark_encoded(fields: &mut FieldBlock, coding: ContentCoding) {
    // Ranges of such a body would not be those of the next one: no cache may offer them either
    // (RFC 9110 §14.3).
    fields.remove("Accept-Ranges");
    fields.push_static("Accept-Ranges", "none");
    fields.remove("Content-Length");
    fields.push_static("Content-Encoding", coding.as_str());
    weaken_tag(fields);
    add_vary(fields);
}

/// Adds `Accept-Encoding` to `Vary`.
pub(crate) fn add_vary(fields: &mut FieldBlock) {
    add_vary_name(fields, "Accept-Encoding");
}

/// Adds a name to `Vary` (RFC 9110 §12.5.5), unless it is there.
pub(crate) fn add_vary_name(fields: &mut FieldBlock, name: &str) {
    if varies_by(fields, name) {
        return;
    }
    let before = values_of(fields, "vary")
        .collect::<Vec<_>>()
        .join(&b", "[..]);
    let all = match before.is_empty() {
        true => name.as_bytes().to_vec(),
        false => [&before, &b", "[..], name.as_bytes()].concat(),
    };
    let set = fields.set("Vary", &all);
    debug_assert!(set.is_ok(), "a value of fields that were sent");
}

/// Whether `Vary` names `Accept-Encoding`, or everything.
pub(crate) fn varies_by_encoding(fields: &FieldBlock) -> bool {
    varies_by(fields, "Accept-Encoding")
}

fn varies_by(fields: &FieldBlock, name: &str) -> bool {
    let mut named = values_of(fields, "vary").flat_map(list_elements);
    named.any(|found| found == b"*" || found.eq_ignore_ascii_case(name.as_bytes()))
}

/// Whether the client may have a tag that [`mark_encoded`] weakened.
pub(crate) fn has_weak_condition(request: &RequestHead) -> bool {
    let mut tags = request
        .field_values("if-none-match")
        .flat_map(list_elements);
    tags.any(|tag| tag.starts_with(b"W/"))
}

/// Makes a 304 confirm the tag that the client has: [`mark_encoded`] weakened it, and the back end
/// knows the strong one. A cache would not find its stored response by that (RFC 9111 §4.3.4).
pub(crate) fn confirm_weakened_tag(request: &RequestHead, fields: &mut FieldBlock) {
    let Some(tag) = fields.get("etag").filter(|tag| tag.starts_with(b"\"")) else {
        return;
    };
    let weak = [b"W/", tag].concat();
    let (mut has_weak, mut has_strong) = (false, false);
    for known in (request.field_values("if-none-match")).flat_map(list_elements) {
        has_weak |= known == weak;
        has_strong |= known == tag;
    }
    if has_weak && !has_strong {
        weaken_tag(fields);
        add_vary(fields);
    }
}

fn weaken_tag(fields: &mut FieldBlock) {
    let Some(tag) = fields.get("etag").filter(|tag| tag.starts_with(b"\"")) else {
        return;
    };
    let weak = [b"W/", tag].concat();
    let set = fields.set("ETag", &weak);
    debug_assert!(set.is_ok(), "a value of fields that were sent");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fields, request};

    #[test]
    fn an_encoded_response_has_the_fields_of_its_coding() {
        let mut header = fields(&[
            ("Content-Type", "text/html"),
            ("ETag", "\"a\""),
            ("Accept-Ranges", "bytes"),
            ("Content-Length", "5000"),
            ("Vary", "Origin"),
        ]);
        mark_encoded(&mut header, ContentCoding::Gzip);
        assert_eq!(
            header,
            fields(&[
                ("Content-Type", "text/html"),
                ("Accept-Ranges", "none"),
                ("Content-Encoding", "gzip"),
                ("ETag", "W/\"a\""),
                ("Vary", "Origin, Accept-Encoding"),
            ])
        );
    }

    #[test]
    fn vary_names_the_field_once() {
        for (before, expected) in [
            (&[][..], &["Accept-Encoding"][..]),
            (&["Origin"], &["Origin, Accept-Encoding"]),
            (&["Origin", "Cookie"], &["Origin, Cookie, Accept-Encoding"]),
            (&["accept-encoding"], &["accept-encoding"]),
            (&["Origin, Accept-Encoding"], &["Origin, Accept-Encoding"]),
            (
                &["Origin", "Accept-Encoding"],
                &["Origin", "Accept-Encoding"],
            ),
            (&["*"], &["*"]),
        ] {
            let mut header = FieldBlock::new();
            for value in before {
                header.push("Vary", value.as_bytes()).unwrap();
            }
            add_vary(&mut header);
            add_vary(&mut header);
            let found: Vec<_> = values_of(&header, "vary").collect();
            let expected: Vec<_> = expected.iter().map(|value| value.as_bytes()).collect();
            assert_eq!(found, expected, "{before:?}");
        }
        let mut header = fields(&[("Vary", "Accept-Encoding")]);
        add_vary_name(&mut header, "Sec-Fetch-Site");
        add_vary_name(&mut header, "Sec-Fetch-Site");
        let expected = fields(&[("Vary", "Accept-Encoding, Sec-Fetch-Site")]);
        assert_eq!(header, expected);
    }

    #[test]
    fn only_strong_tags_are_weakened() {
        for (tag, expected) in [("\"a\"", "W/\"a\""), ("W/\"a\"", "W/\"a\""), ("a", "a")] {
            let mut header = fields(&[("ETag", tag)]);
            weaken_tag(&mut header);
            assert_eq!(header.get("etag"), Some(expected.as_bytes()), "{tag}");
        }
    }

    #[test]
    fn a_304_confirms_the_tag_that_the_client_has() {
        for (known, tag, expected) in [
            ("W/\"a\"", "\"a\"", "W/\"a\""),
            ("\"b\", W/\"a\"", "\"a\"", "W/\"a\""),
            ("\"a\"", "\"a\"", "\"a\""),
            ("W/\"a\", \"a\"", "\"a\"", "\"a\""),
            ("*", "\"a\"", "\"a\""),
            ("W/\"a\"", "W/\"a\"", "W/\"a\""),
        ] {
            let mut header = fields(&[("ETag", tag)]);
            confirm_weakened_tag(&request("GET", &[("If-None-Match", known)]), &mut header);
            assert_eq!(header.get("etag"), Some(expected.as_bytes()), "{known}");
            let is_changed = tag != expected;
            assert_eq!(header.contains("vary"), is_changed, "{known}");
        }
    }
}
