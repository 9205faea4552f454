//! Matchers: which requests a directive is for.

use std::collections::BTreeMap;

use penstock_config::PathRegex;

use super::syntax::CaddyDirective;
use crate::matcher::RequestMatcher;
use crate::toml_value::{TomlTable, TomlValue};

/// The networks of `private_ranges`.
const PRIVATE_RANGES: [&str; 6] = [
    "192.168.0.0/16",
    "172.16.0.0/12",
    "10.0.0.0/8",
    "127.0.0.1/8",
    "fd00::/8",
    "::1",
];

/// Matchers with names, or the reason why one cannot be written.
pub(super) type NamedMatchers = BTreeMap<String, Result<RequestMatcher, String>>;

/// The matcher of a path such as `/api/*`.
fn of_path(path: &str) -> RequestMatcher {
    RequestMatcher {
        paths: pattern(path).into_iter().collect(),
        matches: TomlTable::default(),
    }
}

/// A path of Caddy as `match.path` has it; `None` for every path.
fn pattern(path: &str) -> Option<String> {
    let path = super::placeholders::environment(path);
    let is_odd = |text: &str| text.contains(['*', '{', '~', '%', '$', '\\']) || text.contains("//");
    Some(match path.as_str() {
        "*" | "/*" | "/" if path != "/" => return None,
        text if text.ends_with("/*") && !is_odd(&text[..text.len() - 2]) => text.to_owned(),
        text if text.starts_with("*.") && !is_odd(&text[2..]) => text.to_owned(),
        text if text.starts_with('/') && !is_odd(text) => text.to_owned(),
        text => {
            let parts = text.split('*').map(crate::nginx::escape);
            let regex = format!("~^{}$", parts.collect::<Vec<_>>().join(".*"));
            regex.replace(".*$", "").replacen("~^.*", "~", 1)
        }
    })
}

/// The matcher in front of a directive's arguments, and the other arguments.
///
/// # Errors
/// The reason why the matcher cannot be written.
pub(super) fn split<'d>(
    directive: &'d CaddyDirective,
    named: &NamedMatchers,
) -> Result<(RequestMatcher, &'d [String]), String> {
    let Some((first, rest)) = directive.args.split_first() else {
        return Ok((RequestMatcher::default(), &[]));
    };
    if first == "*" {
        return Ok((RequestMatcher::default(), rest));
    }
    if first.starts_with('/') && directive.name != "root"
        || first.starts_with('/') && !rest.is_empty()
    {
        return Ok((of_path(first), rest));
    }
    if first.starts_with('@') {
        return match named.get(first.as_str()) {
            Some(matcher) => matcher.clone().map(|matcher| (matcher, rest)),
            None => Err(format!("no matcher has the name {first}")),
        };
    }
    Ok((RequestMatcher::default(), &directive.args))
}

/// The matcher of a definition `@name ...`.
///
/// # Errors
/// The reason why it cannot be written.
pub(super) fn definition(directive: &CaddyDirective) -> Result<RequestMatcher, String> {
    if let Some((kind, values)) = directive.args.split_first() {
        if kind.starts_with('/') {
            return Ok(of_path(kind));
        }
        return condition(kind, values, directive.children());
    }
    all_of(directive.children())
}

/// All conditions of a block. Several of one kind are alternatives.
fn all_of(conditions: &[CaddyDirective]) -> Result<RequestMatcher, String> {
    let mut all = RequestMatcher::default();
    let mut negated: Vec<RequestMatcher> = Vec::new();
    for directive in conditions {
        let one = condition(&directive.name, &directive.args, directive.children())?;
        if directive.name == "not" {
            negated.push(one);
        } else if directive.name == "path" && !all.paths.is_empty() {
            all.paths.extend(one.paths);
        } else {
            all = all
                .and(&one)
                .ok_or("its conditions are more than one `match` has")?;
        }
    }
    // Of several `not` none may hold; a table of `not` holds together, so that one key is a list.
    let mut iter = negated.into_iter();
    if let Some(first) = iter.next() {
        let mut table = first.matches.table("not").cloned().unwrap_or_default();
        for next in iter {
            let next = next.matches.table("not").cloned().unwrap_or_default();
            let one_key = table.iter().count() == 1 && next.iter().count() == 1;
            let key = table
                .iter()
                .next()
                .map(|(key, _)| key.to_owned())
                .unwrap_or_default();
            match (table.get(&key), next.get(&key)) {
                (Some(TomlValue::List(known)), Some(TomlValue::List(new))) if one_key => {
                    let joined: Vec<TomlValue> = known.iter().chain(new).cloned().collect();
                    table.set(&key, TomlValue::List(joined));
                }
                _ => return Err("a `match` has one table of `not`".to_owned()),
            }
        }
        all.matches.set("not", table);
    }
    Ok(all)
}

fn condition(
    kind: &str,
    values: &[String],
    block: &[CaddyDirective],
) -> Result<RequestMatcher, String> {
    let mut made = RequestMatcher::default();
    let list = |key: &str, values: Vec<String>| TomlTable::with(key, values);
    match kind {
        "path" => made.paths = values.iter().filter_map(|value| pattern(value)).collect(),
        "path_regexp" => {
            let regex = values.last().map(String::as_str).unwrap_or_default();
            made.paths = vec![format!("~{}", checked(regex)?)];
        }
        "host" => made.matches = list("host", values.iter().map(|it| it.to_lowercase()).collect()),
        "method" => {
            made.matches = list(
                "method",
                values.iter().map(|it| it.to_uppercase()).collect(),
            );
        }
        "header" => {
            let (name, value) = (
                values.first().map(String::as_str).unwrap_or_default(),
                values.get(1),
            );
            match (name.strip_prefix('!'), value) {
                (Some(name), _) => made.matches.set_in(&["not", "header", name], "*"),
                (None, value) => made
                    .matches
                    .set_in(&["header", name], glob(value.map_or("*", String::as_str))),
            }
        }
        "header_regexp" => {
            let [.., name, regex] = values else {
                return Err("a field and an expression are missing".to_owned());
            };
            made.matches
                .set_in(&["header", name], format!("~{}", checked(regex)?));
        }
        "query" => {
            for pair in values {
                let (name, value) = pair.split_once('=').unwrap_or((pair, "*"));
                if made.matches.table("query").is_some_and(|it| it.has(name)) {
                    return Err("a parameter has one pattern".to_owned());
                }
                made.matches.set_in(&["query", name], glob(value));
            }
        }
        "protocol" => match values.first().map(String::as_str) {
            Some(scheme @ ("http" | "https")) => made.matches.set("scheme", scheme),
            Some("http/1.0") => made.matches = list("protocol", vec!["HTTP/1.0".to_owned()]),
            Some("http/1.1") => made.matches = list("protocol", vec!["HTTP/1.1".to_owned()]),
            _ => return Err("`match.scheme` and `match.protocol` know HTTP/1".to_owned()),
        },
        "remote_ip" | "client_ip" => {
            let values = values.iter().filter(|it| *it != "forwarded");
            let networks = values.flat_map(|it| match it.as_str() {
                "private_ranges" => PRIVATE_RANGES.iter().map(|it| (*it).to_owned()).collect(),
                one => vec![one.to_owned()],
            });
            made.matches = list("client", networks.collect());
        }
        "not" => {
            let inner = match values.split_first() {
                Some((kind, values)) => condition(kind, values, block)?,
                None => all_of(block)?,
            };
            if inner.matches.has("not") {
                return Err("a `not` within a `not`".to_owned());
            }
            made.matches.set("not", inner.into_table());
        }
        _ => return Err(format!("no condition of a route is like `{kind}`")),
    }
    Ok(made)
}

/// A value in which `*` stands for anything, and a text of the file is no expression.
fn glob(value: &str) -> String {
    match value.starts_with('~') {
        true => format!("~^{}$", crate::nginx::escape(value)),
        false => value.to_owned(),
    }
}

fn checked(regex: &str) -> Result<String, String> {
    match PathRegex::new(regex) {
        Ok(_) => Ok(regex.replace("${", "$${")),
        Err(reason) => Err(format!("the expression is none of RE2: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_patterns() {
        let rows = [
            ("/api/*", Some("/api/*")),
            ("/about", Some("/about")),
            ("/gone*", Some("~^/gone")),
            ("*.php", Some("*.php")),
            ("*", None),
            ("/a/*/b", Some("~^/a/.*/b$")),
            ("*/b", Some("~/b$")),
        ];
        for (path, expected) in rows {
            assert_eq!(pattern(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn matchers_are_compared_and_joined() {
        let any = RequestMatcher::default();
        let (api, deep) = (of_path("/api/*"), of_path("/api/v1/*"));
        assert!(any.contains(&api) && api.contains(&deep) && !deep.contains(&api));
        assert_eq!(api.and(&deep), Some(deep.clone()));
        assert_eq!(any.and(&api), Some(api.clone()));
        assert_eq!(of_path("/x").and(&api), None);
    }
}
