//! What a route may do to fields of a header: `request_headers` and `response_headers`.
//!
//! Called by `route`.
//!
//! # Invariants
//! - Every name is a token and every value a field value (RFC 9110 §5.1 and §5.5), and no rule
//!   touches a field that frames the message or belongs to the connection: the sender of the
//!   message writes those.

use std::collections::BTreeMap;

use crate::findings::LocatedValue;
use crate::model::HeaderRules;
use crate::section::{Keys, Section};
use crate::values::{PLACEHOLDER_EXPECTED, Template, UnknownPlaceholder};

/// What a message says was expected of a field's name.
pub(crate) const FIELD_EXPECTED: &str =
    "a field name such as \"X-Frame-Options\", and none of framing or the connection";

/// Reads the table under `key`.
pub(crate) fn read(route: &Section<'_>, key: &'static str) -> HeaderRules {
    let mut rules = HeaderRules::default();
    let Some(table) = route.table(key) else {
        return rules;
    };
    let remove = table.list("remove", |name| {
        is_changeable(name, HeaderChange::Remove).then(|| name.to_owned())
    });
    let remove = remove.unwrap_or_default();
    rules.remove = remove.into_iter().map(|name| name.value).collect();
    rules.read_keys(&table);
    rules.set = read_fields(&table, "set", HeaderChange::Set);
    rules.add = read_fields(&table, "add", HeaderChange::Add);
    rules
}

/// Whether a text is a token (RFC 9110 §5.6.2): the name of a field or a cookie.
pub(crate) fn is_token(text: &str) -> bool {
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(is_tchar)
}

/// Whether a response's field may be taken out on its way.
pub(crate) fn is_removable_field(name: &str) -> bool {
    is_changeable(name, HeaderChange::Remove)
}

#[derive(Clone, Copy, PartialEq)]
enum HeaderChange {
    Remove,
    Set,
    Add,
}

/// A text with placeholders; one that is unknown is reported.
pub(crate) fn read_template(
    table: &Section<'_>,
    key: &str,
    text: &LocatedValue<String>,
) -> Option<Template> {
    match Template::parse(&text.value) {
        Ok(template) => Some(template),
        Err(UnknownPlaceholder(word)) => {
            table.report_invalid_item(key, &word, text.offset, PLACEHOLDER_EXPECTED);
            None
        }
    }
}

/// Fields with their values, of a table of strings.
pub(crate) fn read_set_fields(table: &Section<'_>, key: &str) -> BTreeMap<String, Template> {
    read_fields(table, key, HeaderChange::Set)
}

fn read_fields(table: &Section<'_>, key: &str, change: HeaderChange) -> BTreeMap<String, Template> {
    let mut fields: BTreeMap<String, Template> = BTreeMap::new();
    for (name, value) in table.string_map(key) {
        let text = value.value.as_str();
        if !is_changeable(&name, change) {
            table.report_invalid_item(key, &name, value.offset, FIELD_EXPECTED);
        } else if fields.keys().any(|known| known.eq_ignore_ascii_case(&name)) {
            table.report_invalid_item(
                key,
                &name,
                value.offset,
                "each field once, in whatever case",
            );
        } else if !is_field_value(text) {
            table.report_invalid_item(&name, text, value.offset, VALUE_EXPECTED);
        } else if let Some(template) = read_template(table, &name, &value) {
            fields.insert(name, template);
        }
    }
    fields
}

/// Whether the name is a token, and not of a field that only the sender of a message can know. A
/// second `Host`, or none, would make the request a bad one (RFC 9112 §3.2).
fn is_changeable(name: &str, change: HeaderChange) -> bool {
    let is_it = |own: &&str| own.eq_ignore_ascii_case(name);
    let is_host = change != HeaderChange::Set && name.eq_ignore_ascii_case("host");
    is_token(name) && !CONNECTION_FIELDS.iter().any(is_it) && !is_host
}

/// RFC 9112 §6, RFC 9110 §7.6.1 and §10.1.1.
const CONNECTION_FIELDS: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether a text is a field's value (RFC 9110 §5.5), without blanks around it.
pub(crate) fn is_field_value(text: &str) -> bool {
    let is_plain = |b: u8| b == b'\t' || b >= b' ' && b != 0x7f;
    text.bytes().all(is_plain) && text.trim_matches([' ', '\t']) == text
}

const VALUE_EXPECTED: &str = "a value without control characters and without spaces around it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_tokens_and_values() {
        for (text, expected) in [("X-A", true), ("a.b_c", true), ("", false), ("a b", false)] {
            assert_eq!(is_token(text), expected, "{text:?}");
        }
        let values = [
            ("", true),
            ("a b\tc", true),
            ("ä", true),
            (" a", false),
            ("a\r\nb", false),
            ("a\0", false),
        ];
        for (text, expected) in values {
            assert_eq!(is_field_value(text), expected, "{text:?}");
        }
    }

    #[test]
    fn leaves_framing_and_the_connection_alone() {
        let rows = [
            ("X-A", true, true),
            ("Host", true, false),
            ("Transfer-Encoding", false, false),
            ("content-length", false, false),
            ("Connection", false, false),
            ("Keep-Alive", false, false),
            ("TE", false, false),
            ("Trailer", false, false),
            ("Upgrade", false, false),
            ("Expect", false, false),
            ("Proxy-Connection", false, false),
        ];
        for (name, set, other) in rows {
            let asked = [HeaderChange::Set, HeaderChange::Add, HeaderChange::Remove]
                .map(|c| is_changeable(name, c));
            assert_eq!(asked, [set, other, other], "{name}");
        }
    }
}
