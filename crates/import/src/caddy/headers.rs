//! Fields of requests and responses: `header`, `request_header`, `header_up`, `header_down`.

use penstock_config::PathRegex;

use super::placeholders::template;
use crate::nginx::{is_field, is_value};
use crate::toml_value::TomlTable;

/// What came of the operation on a field.
pub(super) enum FieldOutcome {
    /// The table has it.
    Set(&'static str),
    /// The reason why it cannot be written.
    Refused(String),
}

/// Adds an operation on a field to a table of `request_headers` or `response_headers`.
pub(super) fn add_operation(table: &mut TomlTable, words: &[String]) -> FieldOutcome {
    let Some((field, values)) = words.split_first() else {
        return FieldOutcome::Refused("it names no field".to_owned());
    };
    let field = field.trim_end_matches(':');
    let (verb, name) = match field.as_bytes().first() {
        Some(b'-') => ("remove", &field[1..]),
        Some(b'+') => ("add", &field[1..]),
        Some(b'?') => ("default", &field[1..]),
        Some(b'>') => ("set", &field[1..]),
        _ => ("set", field),
    };
    if !is_field(name) {
        return FieldOutcome::Refused(
            "fields of framing, of the connection, and patterns of names are no rule's to change"
                .to_owned(),
        );
    }
    match (verb, values) {
        ("remove", _) => {
            table.push("remove", name);
            FieldOutcome::Set("remove")
        }
        (_, [regex, with, ..]) => replacement(table, name, regex, with),
        (verb, [value]) => match template(value) {
            Ok(text) if is_value(&text) => {
                table.set_in(&[verb, name], text);
                FieldOutcome::Set(verb_key(verb))
            }
            Ok(_) => FieldOutcome::Refused("a value has no control characters".to_owned()),
            Err(word) => FieldOutcome::Refused(format!("no placeholder stands for `{word}`")),
        },
        (_, []) => FieldOutcome::Refused("it has no value".to_owned()),
    }
}

fn verb_key(verb: &str) -> &'static str {
    match verb {
        "add" => "add",
        "default" => "default",
        _ => "set",
    }
}

fn replacement(table: &mut TomlTable, name: &str, regex: &str, with: &str) -> FieldOutcome {
    let with = template(&groups(with));
    match (PathRegex::new(regex), with) {
        (Ok(_), Ok(with)) if is_value(&with) => {
            table.set_in(&["replace", name, "regex"], regex.replace("${", "$${"));
            table.set_in(&["replace", name, "with"], with);
            FieldOutcome::Set("replace")
        }
        _ => FieldOutcome::Refused("`replace` has an expression of RE2 and a value".to_owned()),
    }
}

/// `$1` of a replacement as `{re.1}`.
fn groups(text: &str) -> String {
    let mut made = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match chars.peek() {
            Some(digit) if c == '$' && digit.is_ascii_digit() => {
                made.push_str(&format!("{{re.{digit}}}"));
                chars.next();
            }
            _ => made.push(c),
        }
    }
    made
}
