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
use crate::foreign_words::foreign_variable;
use crate::model::{HeaderRules, ReplaceRule};
use crate::section::{Keys, Section};
use crate::values::{PLACEHOLDER_EXPECTED, Template, UnknownPlaceholder};
use crate::{conditions, rewrite};

/// What a message says was expected of a field's name.
pub(crate) const FIELD_EXPECTED: &str =
    "a field name such as \"X-Frame-Options\", and none of framing or the connection";

/// What an item of `status` may be.
pub(crate) const STATUS_OR_CLASS: &str = "a status such as \"404\", or a class such as \"4xx\"";

/// Reads the table under `key`, or the list of tables.
pub(crate) fn read(route: &Section<'_>, key: &'static str, known: &[String]) -> Vec<HeaderRules> {
    let tables = route.table_or_tables(key);
    let read = |table: &Section<'_>| {
        let rules = read_table(table, known);
        if key == "request_headers" {
            table.report_not_applicable("status");
        }
        rules
    };
    tables.iter().map(read).collect()
}

fn read_table(table: &Section<'_>, known: &[String]) -> HeaderRules {
    let mut rules = HeaderRules::default();
    let remove = table.list("remove", |name| {
        is_changeable(name, HeaderChange::Remove).then(|| name.to_owned())
    });
    let remove = remove.unwrap_or_default();
    rules.remove = remove.into_iter().map(|name| name.value).collect();
    rules.read_keys(table);
    rules.set = read_fields(table, "set", HeaderChange::Set);
    rules.add = read_fields(table, "add", HeaderChange::Add);
    rules.defaults = read_fields(table, "default", HeaderChange::Add);
    rules.replace = read_replacements(table);
    rules.conditions = conditions::read(table, "when", known);
    let statuses = table.list("status", parse_status).unwrap_or_default();
    rules.status = statuses.into_iter().map(|status| status.value).collect();
    table.check_not_empty("status");
    rules
}

fn read_replacements(table: &Section<'_>) -> BTreeMap<String, ReplaceRule> {
    let named = table.named_tables("replace").into_iter();
    let read = named.filter_map(|(name, inner)| {
        if !is_changeable(&name.value, HeaderChange::Remove) {
            table.report_invalid_item("replace", &name.value, name.offset, FIELD_EXPECTED);
            return None;
        }
        let (regex, with) = (inner.regex(), inner.text("with"));
        let (regex, with) = (regex?, with?);
        if !is_field_part(with.value) {
            table.report_invalid_item("with", with.value, with.offset, PART_EXPECTED);
            return None;
        }
        let text = LocatedValue::new(with.value.to_owned(), with.offset);
        let template = read_template(&inner, "with", &text)?;
        rewrite::check_groups(&inner, &template, &regex.value, "regex", with.offset);
        let rule = ReplaceRule {
            regex: regex.value,
            with: template,
        };
        Some((name.value, rule))
    });
    read.collect()
}

/// A status, or the first digit of a class.
fn parse_status(text: &str) -> Option<u16> {
    let class = text.strip_suffix("xx").and_then(|digit| digit.parse().ok());
    let class = class.filter(|digit| (1..=5).contains(digit));
    class.or_else(|| {
        text.parse()
            .ok()
            .filter(|status| (100..=599).contains(status))
    })
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

/// As [`read_template`], for a value or an address, where a variable of nginx is a slip.
pub(crate) fn read_value_template(
    table: &Section<'_>,
    key: &str,
    text: &LocatedValue<String>,
) -> Option<Template> {
    let Some((variable, own)) = foreign_variable(&text.value) else {
        return read_template(table, key, text);
    };
    let problem = format!("`{key}` has `{variable}` of nginx: write {own}");
    table.report(text.offset, problem);
    None
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
        } else if let Some(template) = read_value_template(table, &name, &value) {
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

/// Whether a text can be a part of a field's value.
fn is_field_part(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() && c != '\t')
}

const PART_EXPECTED: &str = "a value without control characters";

/// Whether a text is a field's value (RFC 9110 §5.5), without blanks around it.
pub(crate) fn is_field_value(text: &str) -> bool {
    let is_plain = |b: u8| b == b'\t' || b >= b' ' && b != 0x7f;
    text.bytes().all(is_plain) && text.trim_matches([' ', '\t']) == text
}

const VALUE_EXPECTED: &str = "a value without control characters and without spaces around it";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, check_error_table, parse_valid};

    fn route(keys: &str) -> String {
        format!(
            "[conditions.beta]\nmethod = [\"GET\"]\n[[sites]]\n[[sites.routes]]\nrespond = {{}}\n{keys}\n"
        )
    }

    #[test]
    fn reads_lists_of_rules_with_conditions() {
        let folder = TestDir::with_sample_site();
        let keys = r#"response_headers = [
            { default = { X-A = "1" }, status = ["2xx", "404"], when = ["beta"] },
            { replace = { Location = { regex = "^http:(.*)", with = "https:{re.1}" } } },
        ]"#;
        let config = parse_valid(&folder, &route(keys));
        let rules = &config.sites[0].routes[0].response_headers;
        assert_eq!(rules[0].defaults["X-A"].as_str(), "1");
        assert_eq!(rules[0].status, [2, 404].into());
        assert!(!rules[0].conditions.is_empty() && rules[1].conditions.is_empty());
        assert_eq!(rules[1].replace["Location"].with.as_str(), "https:{re.1}");
        assert!(config.sites[0].routes[0].request_headers.is_empty());
    }

    #[test]
    fn reports_rules_that_make_no_sense() {
        let rows = [
            (
                "request_headers = { status = [\"404\"] }",
                "6:30: `status` is only for `response_headers`".to_owned(),
            ),
            (
                "response_headers = { status = [\"6xx\"] }",
                format!("6:32: `status` cannot be \"6xx\": expected {STATUS_OR_CLASS}"),
            ),
            (
                "response_headers = { when = [\"none\"] }",
                "6:30: there is no condition `none`".to_owned(),
            ),
            (
                "response_headers = { replace = { Host = { regex = \"a\", with = \"b\" } } }",
                format!("6:34: `replace` cannot be \"Host\": expected {FIELD_EXPECTED}"),
            ),
            (
                "response_headers = { replace = { A = { regex = \"(\", with = \"b\" } } }",
                "6:48: `regex` is no regular expression: unclosed group".to_owned(),
            ),
            (
                "response_headers = { replace = { A = { regex = \"a\", with = \"b\\n\" } } }",
                format!("6:60: `with` cannot be \"b\\n\": expected {PART_EXPECTED}"),
            ),
            (
                "response_headers = { replace = { A = { regex = \"a\", with = \"{re.1}\" } } }",
                "6:60: `{re.1}` stands for nothing: `regex` has no such group".to_owned(),
            ),
            (
                "response_headers = { default = { Connection = \"close\" } }",
                format!("6:34: `default` cannot be \"Connection\": expected {FIELD_EXPECTED}"),
            ),
        ];
        for (keys, expected) in rows {
            let expected = format!("penstock.toml:{expected}");
            check_error_table(&[(keys, &route(keys), &[&expected])]);
        }
    }

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
