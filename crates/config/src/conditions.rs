//! Conditions on requests: the `match` tables of routes, and `[conditions.NAME]`.
//!
//! Called by `parse` and `route`.
//!
//! # Invariants
//! - Every condition that is named exists.
//! - Every listener in a condition is one of `server.listen`.
//! - Conditions with a name name no others, so there is no loop.

use std::collections::BTreeMap;

use crate::headers::is_token;
use crate::model::{Conditions, HttpListener, NamedCondition};
use crate::route::check_name_exists;
use crate::section::{Keys as _, Section};
use crate::server::parse_listen_addr;
use crate::values::{HostPattern, PathPattern, PathRegex, ValuePattern};

/// Reads every `[conditions.NAME]` table.
pub(crate) fn read_named(top: &Section<'_>) -> BTreeMap<String, Conditions> {
    let tables = top.named_tables("conditions");
    let conditions = tables
        .into_iter()
        .map(|(name, table)| (name.value, read_table(&table, &[])));
    conditions.collect()
}

/// Reads the conditions under `key`: a table, or the names of conditions.
pub(crate) fn read(table: &Section<'_>, key: &'static str, known: &[String]) -> Conditions {
    match table.is_table(key) {
        true => table
            .table(key)
            .map(|table| read_table(&table, known))
            .unwrap_or_default(),
        false => Conditions {
            named: read_names(table, key, known),
            ..Conditions::default()
        },
    }
}

fn read_table(table: &Section<'_>, known: &[String]) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.read_keys(table);
    let hosts = table.list("host", HostPattern::parse).unwrap_or_default();
    conditions.hosts = hosts.into_iter().map(|host| host.value).collect();
    let paths = table.list("path", parse_path).unwrap_or_default();
    conditions.paths = paths.into_iter().map(|path| path.value).collect();
    let listeners = table.list("listener", |text| parse_listen_addr(table.findings, text));
    let listeners = listeners.unwrap_or_default().into_iter();
    conditions.listeners = listeners
        .map(|listener| {
            table
                .findings
                .record_named_listener(listener.offset, listener.value.clone());
            listener.value
        })
        .collect();
    conditions.headers = read_values(table, "header", is_token);
    conditions.query = read_values(table, "query", |name| !name.is_empty());
    conditions.cookies = read_values(table, "cookie", is_token);
    conditions.named = read_names(table, "named", known);
    conditions.not = table
        .table("not")
        .map(|table| Box::new(read_table(&table, known)));
    for key in LISTS {
        table.check_not_empty(key);
    }
    conditions
}

/// A path as a route has it, or a regular expression after a tilde.
fn parse_path(text: &str) -> Option<PathPattern> {
    match text.strip_prefix('~') {
        Some(regex) => PathRegex::new(regex).ok().map(PathPattern::Regex),
        None => PathPattern::parse(text),
    }
}

/// Reports listeners in conditions that the server does not have.
pub(crate) fn check_listeners(top: &Section<'_>, known: &[HttpListener]) {
    for (offset, named) in top.findings.named_listeners() {
        if known.iter().any(|listener| listener.address == named) {
            continue;
        }
        let known: Vec<String> = known.iter().map(|it| it.address.as_text()).collect();
        top.report(
            offset,
            format!(
                "there is no listener `{}` in `server.listen`, which has {}",
                named.as_text(),
                known.join(", ")
            ),
        );
    }
}

/// Lists of which one item must hold.
const LISTS: [&str; 7] = [
    "method",
    "host",
    "path",
    "client",
    "listener",
    "protocol",
    "client_fingerprint",
];

fn read_names(table: &Section<'_>, key: &'static str, known: &[String]) -> Vec<NamedCondition> {
    let names = table.list(key, |text| Some(text.to_owned()));
    let names = names.unwrap_or_default().into_iter().map(|name| {
        let bare = name.value.strip_prefix('!');
        let is_negated = bare.is_some();
        let text = bare.unwrap_or(&name.value);
        let located = crate::findings::LocatedValue::new(text, name.offset);
        check_name_exists(
            table,
            "condition",
            &located,
            known.iter().map(String::as_str),
        );
        NamedCondition {
            name: text.to_owned(),
            is_negated,
        }
    });
    names.collect()
}

fn read_values(
    table: &Section<'_>,
    key: &'static str,
    is_name: impl Fn(&str) -> bool,
) -> BTreeMap<String, ValuePattern> {
    let mut values = BTreeMap::new();
    for (name, value) in table.string_map(key) {
        if !is_name(&name) {
            table.report_invalid_item(key, &name, value.offset, "a name");
            continue;
        }
        match ValuePattern::parse(&value.value) {
            Ok(pattern) => {
                values.insert(name, pattern);
            }
            Err(reason) => {
                let problem = format!("`{name}` is no regular expression: {reason}");
                table.report(value.offset, problem);
            }
        }
    }
    values
}

/// Whether a text is a method as clients write it (RFC 9110 §9.1): methods compare with case.
pub(crate) fn is_method(text: &str) -> bool {
    is_token(text) && !text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Whether a text is a version of HTTP that clients may use.
pub(crate) fn is_protocol(text: &str) -> bool {
    matches!(text, "HTTP/1.0" | "HTTP/1.1")
}

#[cfg(test)]
mod tests;
