//! The condition of an `if`, and of a variable that a `map` or `geo` makes.

use std::collections::BTreeMap;

use super::common::is_network;
use super::locations::PathRule;
use super::syntax::NginxDirective;
use super::values;
use crate::directives::DirectiveId;
use crate::toml_value::{TomlTable, TomlValue};

/// One case in which a condition holds.
#[derive(Debug, Clone, Default)]
pub(super) struct ConditionCase {
    /// Keys of `match`.
    pub(super) matches: TomlTable,
    /// Paths, where the condition is about the path.
    pub(super) rule: Option<PathRule>,
    /// The value of the variable in this case.
    pub(super) value: Option<(String, String)>,
    /// The entry of the map.
    pub(super) entry: Option<DirectiveId>,
}

/// Most entries of a map that become routes.
const MAX_ENTRIES: usize = 1_000;

/// The cases of a condition, without its parentheses.
///
/// # Errors
/// The reason why it cannot be written.
pub(super) fn cases(
    condition: &[String],
    maps: &BTreeMap<String, &NginxDirective>,
) -> Result<Vec<ConditionCase>, String> {
    let text = condition.join(" ");
    let text = text
        .trim()
        .trim_start_matches('(')
        .trim_end_matches(')')
        .trim();
    let words: Vec<&str> = text.split_whitespace().collect();
    let (variable, operator, value) = match words.as_slice() {
        [variable] if variable.starts_with('$') => (*variable, "", String::new()),
        [variable, operator, value @ ..] if variable.starts_with('$') => {
            (*variable, *operator, value.join(" "))
        }
        _ => return Err("routes do not look at files: `files.try` does".to_owned()),
    };
    let value = value.trim_matches(['"', '\'']);
    let name = variable.trim_start_matches('$').trim_matches(['{', '}']);
    if let Some(map) = maps.get(name) {
        return map_cases(name, map, operator, value);
    }
    let case = |matches: TomlTable| {
        vec![ConditionCase {
            matches,
            ..ConditionCase::default()
        }]
    };
    let is_negated = operator.starts_with('!');
    let test = single(name, operator.trim_start_matches('!'), value)?;
    match test {
        Test::Matches(matches) if is_negated => Ok(case(TomlTable::with("not", matches))),
        Test::Matches(matches) => Ok(case(matches)),
        Test::Absent(matches) if is_negated => Ok(case(matches)),
        Test::Absent(matches) => Ok(case(TomlTable::with("not", matches))),
        Test::Path(rule) if is_negated => {
            let path = TomlTable::with("path", vec![rule.as_condition()]);
            Ok(case(TomlTable::with("not", path)))
        }
        Test::Path(rule) => Ok(vec![ConditionCase {
            rule: Some(rule),
            ..ConditionCase::default()
        }]),
    }
}

enum Test {
    Matches(TomlTable),
    /// Holds where these conditions do not.
    Absent(TomlTable),
    Path(PathRule),
}

fn single(name: &str, operator: &str, value: &str) -> Result<Test, String> {
    let pattern = |operator: &str| -> Result<String, String> {
        Ok(match operator {
            "=" => exact(value),
            "~" => format!("~{}", values::regex(value, false)?),
            "~*" => format!("~*{}", values::regex(value, false)?),
            _ => "*".to_owned(),
        })
    };
    let field = |table: &str, name: &str| -> Result<Test, String> {
        let inner = |pattern: String| {
            let mut matches = TomlTable::default();
            matches.set_in(&[table, name], pattern);
            matches
        };
        if operator == "=" && value.is_empty() {
            return Ok(Test::Absent(inner("*".to_owned())));
        }
        Ok(Test::Matches(inner(pattern(operator)?)))
    };
    match name {
        "request_method" => methods(operator, value),
        "scheme" if operator == "=" && ["http", "https"].contains(&value) => {
            Ok(Test::Matches(TomlTable::with("scheme", value)))
        }
        "scheme" => Err("`match.scheme` is \"http\" or \"https\"".to_owned()),
        "https" => {
            let scheme = if value.is_empty() && operator == "=" {
                "http"
            } else {
                "https"
            };
            Ok(Test::Matches(TomlTable::with("scheme", scheme)))
        }
        "host" | "http_host" | "server_name" => match operator {
            "=" if is_host(value) => Ok(Test::Matches(TomlTable::with("host", vec![value]))),
            _ => field("header", "Host"),
        },
        "request_uri" | "uri" | "document_uri" => match operator {
            "=" => Ok(Test::Path(PathRule::Exact(
                value.split('?').next().unwrap_or(value).to_owned(),
            ))),
            "~" | "~*" => {
                let regex = values::regex(value, operator == "~*")?;
                Ok(Test::Path(PathRule::Regex(regex)))
            }
            _ => Err("a path is never empty".to_owned()),
        },
        "remote_addr" | "binary_remote_addr" | "realip_remote_addr" => match operator {
            "=" if is_network(value) => Ok(Test::Matches(TomlTable::with("client", vec![value]))),
            _ => Err("`match.client` has addresses and networks".to_owned()),
        },
        "http_cookie" => match operator {
            "~" | "~*" => field("header", "Cookie"),
            _ => Err("`match.cookie` has single cookies".to_owned()),
        },
        _ => {
            if let Some(argument) = name.strip_prefix("arg_") {
                return field("query", argument);
            }
            if let Some(cookie) = name.strip_prefix("cookie_") {
                return field("cookie", cookie);
            }
            if let Some(header) = name.strip_prefix("http_") {
                return field("header", &values::field_name(header));
            }
            Err(format!("no condition is about `${name}`"))
        }
    }
}

fn methods(operator: &str, value: &str) -> Result<Test, String> {
    let plain = value
        .trim_matches(['^', '$', '(', ')', ' '])
        .replace("?:", "");
    let list: Vec<String> = match operator {
        "=" => vec![value.to_owned()],
        _ => plain
            .split('|')
            .map(|it| it.trim_matches(['^', '$', '(', ')']).to_owned())
            .collect(),
    };
    let is_method = |method: &String| {
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    match list.iter().all(is_method) {
        true => Ok(Test::Matches(TomlTable::with("method", list))),
        false => Err("`match.method` has whole methods".to_owned()),
    }
}

/// A value that matches as a whole.
fn exact(value: &str) -> String {
    match value.contains('*') || value.starts_with('~') {
        true => format!("~^{}$", values::escape(value)),
        false => value.to_owned(),
    }
}

fn is_host(text: &str) -> bool {
    penstock_config::HostPattern::parse(text).is_some()
}

/// Cases of a variable of `map` or `geo`: an entry each.
fn map_cases(
    name: &str,
    map: &NginxDirective,
    operator: &str,
    value: &str,
) -> Result<Vec<ConditionCase>, String> {
    let entries = map.children();
    if entries.len() > MAX_ENTRIES {
        return Err(format!(
            "the map has more than {MAX_ENTRIES} entries: write conditions"
        ));
    }
    let holds = |text: &str| match operator {
        "" => !text.is_empty() && text != "0",
        "=" => text == value,
        "!=" => text != value,
        _ => false,
    };
    let default = entries
        .iter()
        .find(|it| it.name == "default")
        .map_or("", |it| it.arg(0));
    if !["", "=", "!="].contains(&operator) || holds(default) {
        return Err("write a route for each case of the map, with `match`".to_owned());
    }
    let source = match map.args.as_slice() {
        [source, _] => source.trim_start_matches('$'),
        _ => "remote_addr",
    };
    let mut cases = Vec::new();
    for entry in entries
        .iter()
        .filter(|it| !is_setting(&it.name) && holds(it.arg(0)))
    {
        let (operator, pattern) = match entry.name.as_bytes() {
            [b'~', b'*', ..] => ("~*", &entry.name[2..]),
            [b'~', ..] => ("~", &entry.name[1..]),
            _ => ("=", entry.name.trim_start_matches('\\')),
        };
        if operator == "=" && source == "remote_addr" && !is_network(pattern) {
            return Err(format!("`{pattern}` is no network"));
        }
        let mut case = ConditionCase {
            value: Some((name.to_owned(), entry.arg(0).to_owned())),
            entry: Some(entry.id),
            ..ConditionCase::default()
        };
        match single(source, operator, pattern)? {
            Test::Matches(matches) => case.matches = matches,
            Test::Absent(matches) => case.matches.set("not", matches),
            Test::Path(rule) => case.rule = Some(rule),
        }
        cases.push(case);
    }
    Ok(join_same(cases))
}

/// Cases of one field with one value become one expression, and cases of networks one list.
fn join_same(cases: Vec<ConditionCase>) -> Vec<ConditionCase> {
    let all_clients = cases.len() > 1 && cases.iter().all(|it| it.matches.has("client"));
    let same_value = cases.windows(2).all(|pair| {
        pair[0].value.as_ref().map(|it| &it.1) == pair[1].value.as_ref().map(|it| &it.1)
    });
    if !(all_clients && same_value) {
        return cases;
    }
    let mut joined = cases[0].clone();
    let mut networks: Vec<TomlValue> = Vec::new();
    for case in &cases {
        if let Some(TomlValue::List(list)) = case.matches.get("client") {
            networks.extend(list.iter().cloned());
        }
    }
    joined.matches.set("client", TomlValue::List(networks));
    vec![joined]
}

/// Words of a map that are no entries.
fn is_setting(name: &str) -> bool {
    [
        "default",
        "hostnames",
        "volatile",
        "ranges",
        "delete",
        "proxy",
    ]
    .contains(&name)
}
