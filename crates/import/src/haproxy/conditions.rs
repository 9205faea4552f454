//! ACLs and the conditions behind `if` and `unless`.
//!
//! A condition is a list of alternatives, each a set of requests.

use std::collections::BTreeMap;

use penstock_config::PathRegex;

use super::syntax::HaproxyLine;
use crate::matcher::RequestMatcher;
use crate::nginx::escape;
use crate::toml_value::{TomlTable, TomlValue};

/// The lines of each ACL by its name.
pub(super) type AclLines<'a> = BTreeMap<&'a str, Vec<&'a HaproxyLine>>;

/// One alternative.
#[derive(Debug, Clone, Default)]
pub(super) struct HaproxyCase {
    pub(super) requests: RequestMatcher,
    /// The user list whose users are not these clients.
    pub(super) without_user_of: Option<String>,
    /// A rate that the client is above: requests in the period of the stick table.
    pub(super) above_rate: Option<u64>,
    /// Names that a client asks for in TLS.
    pub(super) sni: Vec<String>,
}

/// Whether a term asks for a user of a list.
fn is_user_test((is_negated, lines): &AclTerm) -> bool {
    let word = lines.first().and_then(|words| words.first());
    !is_negated && word.is_some_and(|word| word.starts_with("http_auth("))
}

/// Most alternatives of one condition.
const MAX_CASES: usize = 64;

/// The alternatives of the words behind `if` or `unless`; one that has all requests where there are
/// none.
///
/// # Errors
/// The reason why they cannot be written.
pub(super) fn cases(words: &[String], acls: &AclLines<'_>) -> Result<Vec<HaproxyCase>, String> {
    let at = words
        .iter()
        .position(|word| word == "if" || word == "unless");
    let Some(at) = at else {
        return Ok(vec![HaproxyCase::default()]);
    };
    let is_unless = words[at] == "unless";
    let mut all: Vec<HaproxyCase> = Vec::new();
    for terms in words[at + 1..].split(|word| word == "or" || word == "||") {
        let mut joined = vec![HaproxyCase::default()];
        let terms = terms_of(terms, acls)?;
        if is_unless && all.is_empty() && terms.len() == 1 && is_user_test(&terms[0]) {
            return Ok(vec![negated(&terms[0].1)?]);
        }
        for (is_negated, lines) in terms {
            let one = match is_negated {
                false => alternatives(&lines)?,
                true => vec![negated(&lines)?],
            };
            joined = product(&joined, &one)?;
        }
        all.extend(joined);
    }
    if all.len() > MAX_CASES {
        return Err(format!(
            "more than {MAX_CASES} alternatives: write conditions with names"
        ));
    }
    match (is_unless, all.as_slice()) {
        (false, _) => Ok(all),
        (true, [one]) if one.is_plain() => Ok(vec![HaproxyCase {
            requests: not(std::slice::from_ref(&one.requests))?,
            ..HaproxyCase::default()
        }]),
        (true, several) if several.iter().all(HaproxyCase::is_plain) => {
            let requests: Vec<RequestMatcher> =
                several.iter().map(|it| it.requests.clone()).collect();
            Ok(vec![HaproxyCase {
                requests: not(&requests)?,
                ..HaproxyCase::default()
            }])
        }
        (true, _) => Err("`unless` has conditions that a `match` cannot deny".to_owned()),
    }
}

impl HaproxyCase {
    /// Whether it is about requests alone.
    pub(super) fn is_plain(&self) -> bool {
        self.without_user_of.is_none() && self.above_rate.is_none() && self.sni.is_empty()
    }
}

/// A term: whether it is negated, and the words of each line of its ACL.
type AclTerm = (bool, Vec<Vec<String>>);

/// The terms of words that must hold together.
fn terms_of(words: &[String], acls: &AclLines<'_>) -> Result<Vec<AclTerm>, String> {
    let mut terms = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let mut word = words[at].as_str();
        let mut is_negated = false;
        while let Some(rest) = word.strip_prefix('!') {
            is_negated = !is_negated;
            word = rest;
        }
        if word.is_empty() {
            at += 1;
            word = words.get(at).map_or("", String::as_str);
        }
        if word == "{" {
            let length = words[at + 1..].iter().position(|word| word == "}");
            let length = length.ok_or("a brace that is not closed")?;
            terms.push((is_negated, vec![words[at + 1..=at + length].to_vec()]));
            at += length + 2;
            continue;
        }
        let lines = match acls.get(word) {
            Some(lines) => lines.iter().map(|line| line.words[2..].to_vec()).collect(),
            None => vec![predefined(word).ok_or_else(|| format!("no acl has the name `{word}`"))?],
        };
        terms.push((is_negated, lines));
        at += 1;
    }
    Ok(terms)
}

fn predefined(name: &str) -> Option<Vec<String>> {
    let words: &[&str] = match name {
        "METH_CONNECT" => &["method", "CONNECT"],
        "METH_GET" => &["method", "GET", "HEAD"],
        "METH_HEAD" => &["method", "HEAD"],
        "METH_OPTIONS" => &["method", "OPTIONS"],
        "METH_POST" => &["method", "POST"],
        "METH_PUT" => &["method", "PUT"],
        "METH_DELETE" => &["method", "DELETE"],
        "METH_TRACE" => &["method", "TRACE"],
        "LOCALHOST" => &["src", "127.0.0.1/8", "::1"],
        "TRUE" | "HTTP" => &["always_true"],
        _ => return None,
    };
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

fn product(left: &[HaproxyCase], right: &[HaproxyCase]) -> Result<Vec<HaproxyCase>, String> {
    if left.len() * right.len() > MAX_CASES {
        return Err(format!(
            "more than {MAX_CASES} alternatives: write conditions with names"
        ));
    }
    let mut all = Vec::new();
    for one in left {
        for other in right {
            let requests = one.requests.and(&other.requests);
            let requests = requests.ok_or("its conditions are more than one `match` has")?;
            let sni = if one.sni.is_empty() {
                other.sni.clone()
            } else {
                one.sni.clone()
            };
            all.push(HaproxyCase {
                requests,
                without_user_of: one
                    .without_user_of
                    .clone()
                    .or_else(|| other.without_user_of.clone()),
                above_rate: one.above_rate.or(other.above_rate),
                sni,
            });
        }
    }
    Ok(all)
}

/// One case for each line of an ACL; lines about one key are one case.
fn alternatives(lines: &[Vec<String>]) -> Result<Vec<HaproxyCase>, String> {
    let mut all: Vec<HaproxyCase> = Vec::new();
    for words in lines {
        for case in criterion(words)? {
            let joined = all.last_mut().is_some_and(|last| join_lists(last, &case));
            if !joined {
                all.push(case);
            }
        }
    }
    Ok(all)
}

/// Adds the items of a list to those of a case that has the same key alone.
fn join_lists(case: &mut HaproxyCase, other: &HaproxyCase) -> bool {
    let (own, new) = (&mut case.requests, &other.requests);
    if own.matches.is_empty()
        && new.matches.is_empty()
        && !own.paths.is_empty()
        && !new.paths.is_empty()
    {
        own.paths.extend(new.paths.iter().cloned());
        return true;
    }
    if !(own.paths.is_empty() && new.paths.is_empty()) {
        return false;
    }
    let key = |table: &TomlTable| {
        let mut keys = table.iter().map(|(key, _)| key.to_owned());
        let first = keys.next();
        if keys.next().is_none() { first } else { None }
    };
    let (Some(key), Some(new_key)) = (key(&own.matches), key(&new.matches)) else {
        return false;
    };
    match (own.matches.get(&key), new.matches.get(&key)) {
        (Some(TomlValue::List(known)), Some(TomlValue::List(more))) if key == new_key => {
            let all: Vec<TomlValue> = known.iter().chain(more).cloned().collect();
            own.matches.set(&key, TomlValue::List(all));
            true
        }
        _ => false,
    }
}

fn negated(lines: &[Vec<String>]) -> Result<HaproxyCase, String> {
    if let [words] = lines
        && let Some(list) = argument(words.first().map_or("", String::as_str), "http_auth")
    {
        return Ok(HaproxyCase {
            without_user_of: Some(list.to_owned()),
            ..HaproxyCase::default()
        });
    }
    let cases = alternatives(lines)?;
    if !cases.iter().all(HaproxyCase::is_plain) {
        return Err("a condition that a `match` cannot deny".to_owned());
    }
    let requests: Vec<RequestMatcher> = cases.into_iter().map(|it| it.requests).collect();
    Ok(HaproxyCase {
        requests: not(&requests)?,
        ..HaproxyCase::default()
    })
}

/// The requests that are in none of the sets.
fn not(sets: &[RequestMatcher]) -> Result<RequestMatcher, String> {
    let mut table: Option<TomlTable> = None;
    for set in sets {
        if set.matches.has("not") {
            let is_alone =
                sets.len() == 1 && set.paths.is_empty() && set.matches.iter().count() == 1;
            let inner = set.matches.table("not").filter(|_| is_alone).cloned();
            let mut inner = inner.ok_or("a `not` within a `not`")?;
            let mut matcher = RequestMatcher::default();
            if let Some(TomlValue::List(paths)) = inner.get("path").cloned() {
                let text = |it: TomlValue| {
                    if let TomlValue::Text(text) = it {
                        Some(text)
                    } else {
                        None
                    }
                };
                matcher.paths = paths.into_iter().filter_map(text).collect();
                inner.remove("path");
            }
            matcher.matches = inner;
            return Ok(matcher);
        }
        let next = set.clone().into_table();
        table = Some(match table {
            None => next,
            Some(known) => {
                let mut joined = known.clone();
                let one = |table: &TomlTable| table.iter().count() == 1;
                let key = known
                    .iter()
                    .next()
                    .map(|(key, _)| key.to_owned())
                    .unwrap_or_default();
                match (known.get(&key), next.get(&key)) {
                    (Some(TomlValue::List(a)), Some(TomlValue::List(b)))
                        if one(&known) && one(&next) =>
                    {
                        joined.set(&key, TomlValue::List(a.iter().chain(b).cloned().collect()));
                    }
                    _ => return Err("a `match` has one table of `not`".to_owned()),
                }
                joined
            }
        });
    }
    Ok(RequestMatcher {
        paths: Vec::new(),
        matches: TomlTable::with("not", table.unwrap_or_default()),
    })
}

/// The argument of `name(argument)`.
fn argument<'w>(word: &'w str, name: &str) -> Option<&'w str> {
    let rest = word.strip_prefix(name)?.strip_prefix('(')?;
    Some(rest.split([')', ',']).next().unwrap_or_default())
}

/// The flags and values of a criterion.
struct CriterionValues<'w> {
    ignores_case: bool,
    method: &'w str,
    values: Vec<&'w str>,
}

fn values<'w>(words: &'w [String]) -> Result<CriterionValues<'w>, String> {
    let mut made = CriterionValues {
        ignores_case: false,
        method: "",
        values: Vec::new(),
    };
    let mut at = 0;
    while at < words.len() {
        match words[at].as_str() {
            "-i" => made.ignores_case = true,
            "-m" => {
                at += 1;
                made.method = words.get(at).map_or("", String::as_str);
            }
            "-f" | "-M" => return Err("lists in files are not read: write their items".to_owned()),
            "-n" | "-u" => {}
            "--" => {}
            word => made.values.push(word),
        }
        at += 1;
    }
    Ok(made)
}

/// The cases of one criterion with its values, of which one must match.
fn criterion(words: &[String]) -> Result<Vec<HaproxyCase>, String> {
    let Some((name, rest)) = words.split_first() else {
        return Err("an empty condition".to_owned());
    };
    let found = values(rest)?;
    let base = name.split(',').next().unwrap_or(name);
    let folds = name.contains(",lower") || found.ignores_case;
    let plain = |requests: RequestMatcher| {
        Ok(vec![HaproxyCase {
            requests,
            ..HaproxyCase::default()
        }])
    };
    let list = |key: &str, items: Vec<String>| RequestMatcher {
        matches: TomlTable::with(key, items),
        ..RequestMatcher::default()
    };
    let texts = || {
        found
            .values
            .iter()
            .map(|it| (*it).to_owned())
            .collect::<Vec<_>>()
    };
    if base == "always_true" {
        return plain(RequestMatcher::default());
    }
    if let Some(kind) = path_kind(base, found.method) {
        let paths = found
            .values
            .iter()
            .map(|value| path_pattern(kind, value, folds));
        let paths: Result<Vec<String>, String> = paths.collect();
        return plain(RequestMatcher {
            paths: paths?,
            ..RequestMatcher::default()
        });
    }
    match base {
        "method" => return plain(list("method", texts())),
        "src" => return plain(list("client", texts())),
        "ssl_fc" => {
            let scheme = if found.values.first() == Some(&"0") {
                "http"
            } else {
                "https"
            };
            let matches = TomlTable::with("scheme", scheme);
            return plain(RequestMatcher {
                matches,
                ..RequestMatcher::default()
            });
        }
        "dst_port" => {
            let matches = TomlTable::with(
                "header",
                TomlTable::with("Host", format!("~:({})$", found.values.join("|"))),
            );
            return plain(RequestMatcher {
                matches,
                ..RequestMatcher::default()
            });
        }
        "req_ssl_sni" | "req.ssl_sni" | "ssl_fc_sni" => {
            return Ok(vec![HaproxyCase {
                sni: texts(),
                ..HaproxyCase::default()
            }]);
        }
        _ => {}
    }
    for counter in [
        "sc_http_req_rate",
        "sc0_http_req_rate",
        "sc1_http_req_rate",
        "src_http_req_rate",
    ] {
        if base.starts_with(counter) {
            let number = match found.values.as_slice() {
                ["gt", number] => number.parse::<u64>().ok(),
                ["ge", number] => number.parse::<u64>().ok().and_then(|it| it.checked_sub(1)),
                _ => None,
            };
            let number = number.filter(|it| (1..=1_000_000).contains(it));
            let number = number.ok_or("a rate is a number behind `gt`")?;
            return Ok(vec![HaproxyCase {
                above_rate: Some(number),
                ..HaproxyCase::default()
            }]);
        }
    }
    for (prefix, table) in [
        ("hdr", "header"),
        ("req.hdr", "header"),
        ("req.fhdr", "header"),
        ("cook", "cookie"),
        ("req.cook", "cookie"),
        ("url_param", "query"),
        ("urlp", "query"),
        ("req.urlp", "query"),
    ] {
        let Some(after) = base.strip_prefix(prefix) else {
            continue;
        };
        let (kind, field) = match after.split_once('(') {
            Some((kind, field)) => (kind.trim_start_matches('_'), field.trim_end_matches(')')),
            None => continue,
        };
        if !["", "beg", "end", "sub", "reg", "dom", "dir", "str"].contains(&kind) {
            continue;
        }
        let kind = if found.method.is_empty() {
            kind
        } else {
            found.method
        };
        return field_cases(
            table,
            field.split(',').next().unwrap_or(field),
            kind,
            &found,
            folds,
        );
    }
    Err(format!("no condition of a route is like `{name}`"))
}

/// The way in which `path`, `path_beg`, `url_reg` and their like compare.
fn path_kind<'w>(base: &'w str, method: &'w str) -> Option<&'w str> {
    let rest = ["path", "url", "capture.req.uri", "pathq", "base"]
        .iter()
        .find_map(|name| base.strip_prefix(name))?;
    if base.starts_with("base") && !rest.is_empty() {
        return None;
    }
    match rest {
        "" if method.is_empty() => Some("str"),
        "" => Some(method),
        rest => rest
            .strip_prefix('_')
            .filter(|it| ["beg", "end", "sub", "reg", "dir", "dom", "len", "str"].contains(it)),
    }
}

fn path_pattern(kind: &str, value: &str, folds: bool) -> Result<String, String> {
    let case = if folds { "(?i)" } else { "" };
    let is_odd = value.contains(['*', '~', '%', '$', '{', '\\']) || value.contains("//") || folds;
    let escaped = escape(value);
    Ok(match kind {
        "str" if value.starts_with('/') && !is_odd => value.to_owned(),
        "str" => format!("~{case}^{escaped}$"),
        "beg" if value == "/" => "/*".to_owned(),
        "beg" if value.starts_with('/') && value.ends_with('/') && !is_odd => format!("{value}*"),
        "beg" => format!("~{case}^{escaped}"),
        "end" if value.starts_with('.') && !is_odd => format!("*{value}"),
        "end" => format!("~{case}{escaped}$"),
        "sub" => format!("~{case}{escaped}"),
        "dir" => format!("~{case}(^|/){}(/|$)", escape(value.trim_matches('/'))),
        "reg" => {
            let regex = format!("{case}{value}");
            match PathRegex::new(&regex) {
                Ok(_) => format!("~{}", regex.replace("${", "$${")),
                Err(reason) => return Err(format!("the expression is none of RE2: {reason}")),
            }
        }
        other => return Err(format!("paths are not compared by `{other}`")),
    })
}

fn field_cases(
    table: &str,
    field: &str,
    kind: &str,
    found: &CriterionValues<'_>,
    folds: bool,
) -> Result<Vec<HaproxyCase>, String> {
    let is_host = table == "header" && field.eq_ignore_ascii_case("host");
    let plain_hosts = found
        .values
        .iter()
        .all(|it| penstock_config::HostPattern::parse(it).is_some());
    if is_host
        && matches!(kind, "" | "str" | "dom")
        && plain_hosts
        && !found.values.is_empty()
        && kind != "dom"
    {
        let hosts: Vec<String> = found.values.iter().map(|it| it.to_lowercase()).collect();
        let requests = RequestMatcher {
            matches: TomlTable::with("host", hosts),
            ..RequestMatcher::default()
        };
        return Ok(vec![HaproxyCase {
            requests,
            ..HaproxyCase::default()
        }]);
    }
    let name = match table {
        "header" => canonical(field),
        _ => field.to_owned(),
    };
    let tilde = if folds || is_host { "~*" } else { "~" };
    let pattern = match (kind, found.values.as_slice()) {
        ("found", _) | (_, []) => "*".to_owned(),
        ("" | "str", [one]) if !folds && !one.contains('*') && !one.starts_with('~') => {
            (*one).to_owned()
        }
        (kind, values) => {
            let parts = values.iter().map(|value| match kind {
                "beg" => format!("^{}", escape(value)),
                "end" => format!("{}$", escape(value)),
                "sub" | "dir" | "dom" => escape(value),
                "reg" => (*value).to_owned(),
                _ => format!("^{}$", escape(value)),
            });
            let regex = parts.collect::<Vec<_>>().join("|");
            if PathRegex::new(&regex).is_err() {
                return Err("the expression is none of RE2".to_owned());
            }
            format!("{tilde}{}", regex.replace("${", "$${"))
        }
    };
    let mut matches = TomlTable::default();
    matches.set_in(&[table, &name], pattern);
    let requests = RequestMatcher {
        matches,
        ..RequestMatcher::default()
    };
    Ok(vec![HaproxyCase {
        requests,
        ..HaproxyCase::default()
    }])
}

/// A field's name with capitals: `user-agent` is `User-Agent`.
pub(super) fn canonical(name: &str) -> String {
    let parts = name.split('-').map(|part| {
        let mut letters = part.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    parts.collect::<Vec<_>>().join("-")
}
