//! `http-request`, `http-response` and `redirect` rules of a proxy.
//!
//! Rules that answer become routes. Rules that change fields are tables with `when`. Rules that change
//! the path or ask for a password make a route of their own where they have a condition.

use super::conditions::{self, AclLines, HaproxyCase};
use super::frontends::tables;
use super::syntax::HaproxyLine;
use super::values::template;
use super::{HaproxyTranslator, ProxyLines};
use crate::draft::DraftTable;
use crate::matcher::RequestMatcher;
use crate::nginx::{is_field, is_value};
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::units;

/// The section of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Frontend,
    Backend,
}

/// Keys that routes get, for the requests of a matcher.
type ConditionalKeys = (RequestMatcher, TomlTable);

/// What rules have made so far.
#[derive(Debug, Clone, Default)]
pub(super) struct RuleState {
    /// Requests of the frontend, or of a route to a backend.
    pub(super) outer: RequestMatcher,
    pub(super) routes: Vec<DraftTable>,
    /// Keys of routes to backends.
    keys: TomlTable,
    /// Keys that some requests have.
    pub(super) conditional: Vec<ConditionalKeys>,
    request_headers: Vec<TomlTable>,
    response_headers: Vec<TomlTable>,
    /// Those of answers that no server gives: `http-after-response`.
    answer_headers: Vec<TomlTable>,
}

impl RuleState {
    pub(super) fn new(outer: RequestMatcher) -> Self {
        Self {
            outer,
            ..Self::default()
        }
    }

    /// The state for a route of these requests.
    pub(super) fn for_backend(&self, requests: RequestMatcher) -> Self {
        Self {
            outer: requests,
            routes: Vec::new(),
            ..self.clone()
        }
    }

    /// Writes the routes to an upstream.
    pub(super) fn write_backend(&mut self, upstream: &str) {
        for (requests, keys) in std::mem::take(&mut self.conditional) {
            let Some(both) = self.outer.and(&requests) else {
                continue;
            };
            let route = self.backend_route(&both, &keys, upstream);
            self.routes.push(route);
        }
        let outer = self.outer.clone();
        let route = self.backend_route(&outer, &TomlTable::default(), upstream);
        self.routes.push(route);
    }

    fn backend_route(
        &self,
        requests: &RequestMatcher,
        more: &TomlTable,
        upstream: &str,
    ) -> DraftTable {
        let mut route = DraftTable::default();
        requests.write(&mut route);
        route.keys.set("upstream", upstream);
        for (key, value) in self.keys.iter().chain(more.iter()) {
            route.keys.set(key, value.clone());
        }
        if !self.request_headers.is_empty() {
            route
                .keys
                .set("request_headers", tables(self.request_headers.clone()));
        }
        if !self.response_headers.is_empty() {
            route
                .keys
                .set("response_headers", tables(self.response_headers.clone()));
        }
        route
    }

    /// Adds a route in front for the requests of a case.
    fn answer(&mut self, case: &HaproxyCase, key: &str, value: TomlTable) -> bool {
        let Some(requests) = self.outer.and(&case.requests) else {
            return false;
        };
        let mut route = DraftTable::default();
        requests.write(&mut route);
        route.keys.set(key, value);
        if !self.answer_headers.is_empty() {
            route
                .keys
                .set("response_headers", tables(self.answer_headers.clone()));
        }
        self.routes.push(route);
        true
    }
}

impl<'a> HaproxyTranslator<'a> {
    /// Applies the rules of a proxy in their order.
    pub(super) fn rules(
        &mut self,
        proxy: &ProxyLines<'a>,
        acls: &AclLines<'a>,
        place: Place,
        state: &mut RuleState,
    ) {
        // Fields of responses are those of answers of rules, too.
        let all = proxy.defaults.iter().chain(&proxy.section.lines);
        for line in all
            .clone()
            .filter(|it| it.begins(&["http-response"]) || it.begins(&["http-after-response"]))
        {
            self.response_rule(line, acls, state);
        }
        let period = rate_period(proxy);
        for line in all {
            if self.is_full(1 + state.routes.len() / 64) {
                return;
            }
            if line.begins(&["http-request"]) {
                self.request_rule(line, acls, period, place, state);
            } else if line.begins(&["redirect"]) {
                self.redirect(line, line.rest(1), acls, state);
            }
        }
    }

    /// A comment for a rule at its place.
    pub(super) fn leave_rule(&mut self, line: &HaproxyLine, why: &str, state: &mut RuleState) {
        let mut note = DraftTable::default();
        self.leave(line.id, Coverage::ByHand, why, &mut note);
        state.routes.push(note);
    }

    fn request_rule(
        &mut self,
        line: &HaproxyLine,
        acls: &AclLines<'a>,
        period: Option<RatePeriod<'a>>,
        place: Place,
        state: &mut RuleState,
    ) {
        let action = line.word(1);
        if action.starts_with("track-sc") {
            match period {
                Some(_) => self.log.translated(line.id, "rate_limit.key"),
                None => self.leave_rule(line, "`rate_limit` is what most counters are for", state),
            }
            return;
        }
        if action == "redirect" {
            return self.redirect(line, line.rest(2), acls, state);
        }
        let known = [
            "deny",
            "reject",
            "return",
            "auth",
            "set-header",
            "add-header",
            "del-header",
            "replace-header",
            "replace-value",
            "set-path",
            "replace-path",
            "replace-pathq",
            "replace-uri",
        ];
        if !known.contains(&action) {
            let Some(word) = self.log.note_from_table(line.id) else {
                return;
            };
            let mut note = DraftTable::default();
            note.comment(word);
            state.routes.push(note);
            return;
        }
        let cases = match conditions::cases(&line.words, acls) {
            Ok(cases) => cases,
            Err(why) => return self.leave_rule(line, &why, state),
        };
        for case in &cases {
            match action {
                "deny" | "reject" if case.above_rate.is_some() => {
                    self.rate(line, case, period, state);
                }
                "deny" | "reject" => self.deny(line, case, state),
                "return" => self.return_rule(line, case, state),
                "auth" => self.auth(line, case, state),
                "set-path" | "replace-path" | "replace-pathq" | "replace-uri" => {
                    self.path_rule(line, case, state);
                }
                _ => self.field_rule(line, case, place, state),
            }
        }
    }

    fn deny(&mut self, line: &HaproxyLine, case: &HaproxyCase, state: &mut RuleState) {
        let status = value_of(line, "deny_status")
            .or_else(|| value_of(line, "status"))
            .and_then(units::number);
        let status = status.filter(|it| (400..=599).contains(it)).unwrap_or(403);
        let done =
            case.is_plain() && state.answer(case, "respond", TomlTable::with("status", status));
        self.note_rule(line, done, "respond", state);
    }

    fn note_rule(&mut self, line: &HaproxyLine, done: bool, key: &str, state: &mut RuleState) {
        match done {
            true => self.log.translated(line.id, key),
            false => self.leave_rule(line, "its conditions are more than one `match` has", state),
        }
    }

    fn return_rule(&mut self, line: &HaproxyLine, case: &HaproxyCase, state: &mut RuleState) {
        let mut respond = TomlTable::default();
        let status = value_of(line, "status")
            .and_then(units::number)
            .unwrap_or(200);
        if status != 200 {
            respond.set("status", status);
        }
        let text = value_of(line, "string").map(|it| Ok(it.to_owned()));
        let text = text.or_else(|| value_of(line, "lf-string").map(template));
        match text {
            Some(Ok(text)) if !text.is_empty() => {
                respond.set("body", text);
                let kind = value_of(line, "content-type").filter(|it| *it != "text/plain");
                if let Some(kind) = kind {
                    respond.set("content_type", kind);
                }
            }
            Some(Err(part)) => {
                return self.leave_rule(
                    line,
                    &format!("no placeholder stands for `{part}`"),
                    state,
                );
            }
            _ => {}
        }
        if let Some(file) = value_of(line, "file") {
            respond.set("file", file);
        }
        let is_good = (200..=599).contains(&status) && case.is_plain();
        let done = is_good && state.answer(case, "respond", respond);
        self.note_rule(line, done, "respond", state);
    }

    fn redirect(
        &mut self,
        line: &HaproxyLine,
        words: &[String],
        acls: &AclLines<'a>,
        state: &mut RuleState,
    ) {
        let cases = match conditions::cases(words, acls) {
            Ok(cases) => cases,
            Err(why) => return self.leave_rule(line, &why, state),
        };
        // Options such as `code 301` may stand before it.
        let is_kind = |word: &String| ["scheme", "prefix", "location"].contains(&word.as_str());
        let at = words.iter().position(is_kind).unwrap_or_default();
        let target = words.get(at + 1).map(String::as_str).unwrap_or_default();
        let to = match words.get(at).map(String::as_str) {
            Some("scheme") => template(target).map(|scheme| format!("{scheme}://{{host}}{{uri}}")),
            Some("prefix") => {
                template(target).map(|prefix| format!("{}{{uri}}", prefix.trim_end_matches('/')))
            }
            Some("location") => template(target),
            _ => Err(String::new()),
        };
        let status = words
            .iter()
            .position(|it| it == "code")
            .and_then(|at| words.get(at + 1));
        let status = status.and_then(|it| units::number(it)).unwrap_or(302);
        let begins_well = |to: &String| {
            ["/", "http://", "https://"]
                .iter()
                .any(|start| to.starts_with(start))
                && !to.starts_with("//")
        };
        let to = to
            .ok()
            .filter(|to| begins_well(to) && to.bytes().all(|it| it > b' '));
        let (Some(to), true) = (to, matches!(status, 301 | 302 | 303 | 307 | 308)) else {
            return self.leave_rule(
                line,
                "a redirect leads to a URL or a path, with placeholders",
                state,
            );
        };
        for case in &cases {
            let mut redirect = TomlTable::with("to", to.as_str());
            redirect.set("status", status);
            let done = case.is_plain() && state.answer(case, "redirect", redirect);
            self.note_rule(line, done, "redirect", state);
        }
    }

    fn auth(&mut self, line: &HaproxyLine, case: &HaproxyCase, state: &mut RuleState) {
        let mut auth = TomlTable::default();
        if let Some(realm) = value_of(line, "realm") {
            auth.set("realm", realm.replace(['"', '\\'], ""));
        }
        auth.set_in(&["users", "file"], "htpasswd");
        let mut note = DraftTable::default();
        let list = case.without_user_of.as_deref().unwrap_or("its list");
        note.comment(format!(
            "Write the file htpasswd: a line NAME:HASH for each user of {list}"
        ));
        state.routes.push(note);
        self.log.note(
            line.id,
            Coverage::ByHand,
            "`basic_auth`; its users are a file: a line NAME:HASH for each",
        );
        self.add_keys(case, "basic_auth", auth, state);
    }

    /// Gives routes to backends a key: all of them, or those of a case.
    fn add_keys(&mut self, case: &HaproxyCase, key: &str, value: TomlTable, state: &mut RuleState) {
        if case.requests.is_any() {
            state.keys.set(key, value.clone());
            for (_, keys) in &mut state.conditional {
                if !keys.has(key) {
                    keys.set(key, value.clone());
                }
            }
            return;
        }
        let known = state
            .conditional
            .iter_mut()
            .find(|(requests, _)| *requests == case.requests);
        match known {
            Some((_, keys)) => keys.set(key, value),
            None => state
                .conditional
                .push((case.requests.clone(), TomlTable::with(key, value))),
        }
    }

    fn rate(
        &mut self,
        line: &HaproxyLine,
        case: &HaproxyCase,
        period: Option<RatePeriod<'a>>,
        state: &mut RuleState,
    ) {
        let (Some(period), Some(number)) = (period, case.above_rate) else {
            return self.leave_rule(
                line,
                "`rate_limit` has a rate; no stick table tells its period",
                state,
            );
        };
        let rate = match period.seconds {
            1 => format!("{number}/s"),
            60 => format!("{number}/m"),
            3600 => format!("{number}/h"),
            seconds => format!(
                "{}/m",
                (number.saturating_mul(60) / seconds.max(1)).clamp(1, 1_000_000)
            ),
        };
        let mut limit = TomlTable::with("rate", rate);
        limit.set("burst", number);
        self.add_keys(case, "rate_limit", limit, state);
        self.log.translated(line.id, "rate_limit");
        self.log.translated(period.line.id, "rate_limit.rate");
    }

    fn path_rule(&mut self, line: &HaproxyLine, case: &HaproxyCase, state: &mut RuleState) {
        let Some(mut rewrite) = path_change(line) else {
            return self.leave_rule(
                line,
                "`rewrite` has `strip_prefix`, `add_prefix`, or `regex` and `to`",
                state,
            );
        };
        rewrite.set("response_paths", false);
        self.add_keys(case, "rewrite", rewrite, state);
        self.log.translated(line.id, "rewrite");
    }

    /// `set-header` and the like: a table of `request_headers`.
    fn field_rule(
        &mut self,
        line: &HaproxyLine,
        case: &HaproxyCase,
        place: Place,
        state: &mut RuleState,
    ) {
        let name = line.word(2);
        let lower = name.to_ascii_lowercase();
        let is_sent = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "host",
            "connection",
            "upgrade",
        ]
        .contains(&lower.as_str());
        let value = line.word(3).to_ascii_lowercase();
        let is_usual = match lower.as_str() {
            "host" | "x-forwarded-host" => value.contains("hdr(host)"),
            "x-forwarded-for" => value.contains("src") || value.contains("%ci"),
            "x-forwarded-proto" => value.contains("ssl_fc") || !case.requests.is_any(),
            _ => true,
        };
        if is_sent && line.word(1) != "del-header" && is_usual {
            let why = "`Host` and `X-Forwarded-*` are sent; `host` of the upstream is another host";
            return self.log.note(line.id, Coverage::BuiltIn, why);
        }
        let table = match field_change(line) {
            Ok(table) => table,
            Err(why) => return self.leave_rule(line, &why, state),
        };
        let own = if place == Place::Backend {
            RequestMatcher::default()
        } else {
            case.requests.clone()
        };
        let requests = if place == Place::Backend {
            case.requests.clone()
        } else {
            own
        };
        push_fields(&mut state.request_headers, table, &requests);
        self.log.translated(line.id, "request_headers");
    }

    fn response_rule(&mut self, line: &HaproxyLine, acls: &AclLines<'a>, state: &mut RuleState) {
        if ![
            "set-header",
            "add-header",
            "del-header",
            "replace-header",
            "replace-value",
        ]
        .contains(&line.word(1))
        {
            return;
        }
        let cases = match conditions::cases(&line.words, acls) {
            Ok(cases) if cases.iter().all(HaproxyCase::is_plain) => cases,
            Ok(_) => return self.leave_rule(line, "`when` has conditions on the request", state),
            Err(why) => return self.leave_rule(line, &why, state),
        };
        let table = match field_change(line) {
            Ok(table) => table,
            Err(why) => return self.leave_rule(line, &why, state),
        };
        let is_for_answers = line.word(0) == "http-after-response";
        for case in cases {
            push_fields(&mut state.response_headers, table.clone(), &case.requests);
            if is_for_answers {
                push_fields(&mut state.answer_headers, table.clone(), &case.requests);
            }
        }
        self.log.translated(line.id, "response_headers");
    }
}

/// Adds a change of fields: to the last table where both are for all requests.
fn push_fields(all: &mut Vec<TomlTable>, mut table: TomlTable, requests: &RequestMatcher) {
    if !requests.is_any() {
        table.set("when", requests.clone().into_table());
        if !all.contains(&table) {
            all.push(table);
        }
        return;
    }
    let last = all.iter_mut().find(|it| !it.has("when"));
    let Some(last) = last else {
        all.push(table);
        return;
    };
    for (verb, value) in table.iter() {
        match value {
            crate::toml_value::TomlValue::Table(fields) => {
                for (name, value) in fields.iter() {
                    last.set_in(&[verb, name], value.clone());
                }
            }
            crate::toml_value::TomlValue::List(names) => {
                for name in names {
                    last.push(verb, name.clone());
                }
            }
            value => last.set(verb, value.clone()),
        }
    }
}

/// The change of a field, as a table of `request_headers`.
fn field_change(line: &HaproxyLine) -> Result<TomlTable, String> {
    let (action, name) = (line.word(1), line.word(2));
    if !is_field(name) || line.words.iter().any(|it| it == "-m") {
        return Err(
            "fields of framing, of the connection, and patterns of names are no rule's to change"
                .to_owned(),
        );
    }
    let mut table = TomlTable::default();
    let value = |index: usize| {
        template(line.word(index)).map_err(|part| format!("no placeholder stands for `{part}`"))
    };
    match action {
        "del-header" => table.push("remove", name),
        "set-header" | "add-header" => {
            let text = value(3)?;
            if !is_value(&text) {
                return Err("a value has no control characters".to_owned());
            }
            table.set_in(
                &[if action == "add-header" { "add" } else { "set" }, name],
                text,
            );
        }
        _ => {
            if penstock_config::PathRegex::new(line.word(3)).is_err() {
                return Err("the expression is none of RE2".to_owned());
            }
            let with = template(&with_groups(line.word(4)))
                .map_err(|part| format!("no placeholder stands for `{part}`"))?;
            table.set_in(
                &["replace", name, "regex"],
                line.word(3).replace("${", "$${"),
            );
            table.set_in(&["replace", name, "with"], with);
        }
    }
    Ok(table)
}

/// `\1` as `{re.1}`.
fn with_groups(text: &str) -> String {
    let mut made = text.to_owned();
    for digit in 1..=9 {
        made = made.replace(&format!("\\{digit}"), &format!("{{re.{digit}}}"));
    }
    made
}

/// The keys of `rewrite` for a rule that changes the path.
fn path_change(line: &HaproxyLine) -> Option<TomlTable> {
    let is_target = |to: &str| to.starts_with('/') && to.bytes().all(|it| it.is_ascii_graphic());
    if line.word(1) != "set-path" {
        let regex = line.word(2);
        penstock_config::PathRegex::new(regex).ok()?;
        let to = template(&with_groups(line.word(3)))
            .ok()
            .filter(|to| is_target(to))?;
        let mut table = TomlTable::with("regex", regex.replace("${", "$${"));
        table.set("to", to);
        return Some(table);
    }
    let format = line.word(2);
    if let Some(prefix) = format.strip_suffix("%[path]") {
        let is_prefix =
            prefix.starts_with('/') && !prefix.contains(['%', ' ', '{']) && prefix.len() > 1;
        return is_prefix.then(|| TomlTable::with("add_prefix", prefix.trim_end_matches('/')));
    }
    let inner = format.strip_prefix("%[path,regsub(")?.strip_suffix(")]")?;
    let parts: Vec<&str> = inner
        .split(',')
        .map(|it| it.trim_matches(['"', '\'']))
        .collect();
    let (regex, with) = (*parts.first()?, parts.get(1).copied().unwrap_or_default());
    let prefix = regex.strip_prefix('^')?;
    let is_plain = prefix.starts_with('/')
        && prefix
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || b"/_-".contains(&it));
    if !is_plain || !(with.is_empty() || with.starts_with('/')) {
        return None;
    }
    let (strip, add) = (prefix.trim_end_matches('/'), with.trim_end_matches('/'));
    let mut table = TomlTable::default();
    if !strip.is_empty() {
        table.set("strip_prefix", strip);
    }
    if !add.is_empty() {
        table.set("add_prefix", add);
    }
    Some(table)
}

/// The word behind another.
fn value_of<'l>(line: &'l HaproxyLine, name: &str) -> Option<&'l str> {
    let at = line.words.iter().position(|word| word == name)?;
    line.words.get(at + 1).map(String::as_str)
}

/// The period that a stick table counts requests in.
#[derive(Debug, Clone, Copy)]
pub(super) struct RatePeriod<'a> {
    line: &'a HaproxyLine,
    seconds: u64,
}

fn rate_period<'a>(proxy: &ProxyLines<'a>) -> Option<RatePeriod<'a>> {
    let line = proxy.find(&["stick-table"])?;
    let text = line
        .words
        .iter()
        .find_map(|word| word.split_once("http_req_rate("))
        .map(|(_, rest)| rest)?;
    let time = text.split(')').next()?;
    let seconds = units::seconds(time, "ms").filter(|it| *it > 0)?;
    Some(RatePeriod { line, seconds })
}
