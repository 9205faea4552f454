//! `return`, `rewrite` and `if`: routes in front of a location's own.

use super::NginxTranslator;
use super::conditions::{self, ConditionCase};
use super::content::is_target;
use super::locations::{NginxLocation, PathRule, Rank};
use super::routes::{Answer, RoutePlace, ServerBlock};
use super::syntax::NginxDirective;
use super::values;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::{limits, units};

impl<'a> NginxTranslator<'a> {
    /// Routes for the directives that nginx obeys first, and whether they answer every request.
    pub(super) fn rewrite_phase(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
    ) -> (Vec<DraftTable>, bool) {
        let (mut routes, is_final) = self.rewrite_directives(server, place);
        for route in &mut routes {
            if route.keys.has("redirect") || route.keys.has("respond") {
                self.response_headers(&place.scope, place, route, Answer::Own);
            }
        }
        (routes, is_final)
    }

    fn rewrite_directives(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
    ) -> (Vec<DraftTable>, bool) {
        let mut routes = Vec::new();
        for directive in place.scope.own() {
            if routes.len() > limits::MAX_ROUTES {
                self.has_too_many_routes = true;
                break;
            }
            match directive.name.as_str() {
                "set"
                    if place
                        .constants
                        .contains_key(directive.arg(0).trim_start_matches('$')) =>
                {
                    let why = "its value stands where the variable is used";
                    self.log.note(directive.id, Coverage::Translated, why);
                }
                "break" => self.log.note(
                    directive.id,
                    Coverage::BuiltIn,
                    "one route answers a request",
                ),
                "if" => routes.extend(self.if_routes(server, place, directive)),
                "return" => {
                    let mut route = place.route();
                    self.write_return(directive, place, &mut route);
                    routes.push(route);
                    return (routes, true);
                }
                "rewrite" if redirect_status(directive).is_some() || !place.is_location => {
                    routes.extend(self.rewrite_routes(server, place, directive));
                }
                _ => {}
            }
        }
        (routes, false)
    }

    /// Rewrites of a location that change the path for its own handler.
    pub(super) fn kept_rewrites(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        routes: &mut Vec<DraftTable>,
    ) -> Vec<TomlTable> {
        let mut kept = Vec::new();
        for directive in place.scope.own_named("rewrite").to_vec() {
            if redirect_status(directive).is_some() {
                continue;
            }
            let is_last = directive.arg(2) == "last";
            let target = literal_start(directive.arg(1));
            let location = server.locations.for_path(&target).filter(|_| is_last);
            if location.is_some_and(|it| it.rule != place.rule) {
                routes.extend(self.rewrite_routes(server, place, directive));
                continue;
            }
            match rewrite_pair(directive, place) {
                Ok((regex, to)) => {
                    let mut table = TomlTable::with("regex", regex);
                    table.set("to", to);
                    kept.push(table);
                    self.log.translated(directive.id, "rewrite");
                }
                Err(why) => {
                    let mut note = DraftTable::default();
                    self.leave(directive.id, Coverage::ByHand, why, &mut note);
                    routes.push(note);
                }
            }
        }
        kept
    }

    /// Routes of a `rewrite`: a redirect, or the handler of the location that it leads to.
    fn rewrite_routes(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        directive: &'a NginxDirective,
    ) -> Vec<DraftTable> {
        let (regex, to) = match rewrite_pair(directive, place) {
            Ok(pair) => pair,
            Err(why) => {
                let mut note = DraftTable::default();
                self.leave(directive.id, Coverage::ByHand, why, &mut note);
                return vec![note];
            }
        };
        if let Some(status) = redirect_status(directive) {
            let mut inner = place.with_rule(PathRule::Regex(regex));
            if place.rule != PathRule::Any {
                inner.matches.set("path", vec![place.rule.as_condition()]);
            }
            let mut route = inner.route();
            self.write_redirect(directive, &to, status, &mut route);
            return vec![route];
        }
        let mut routes = Vec::new();
        for (location, regex, to) in jumps(server, directive, &regex, &to) {
            routes.push(self.jump_route(server, place, location, &regex, &to));
        }
        match routes.is_empty() {
            true => {
                let mut note = DraftTable::default();
                let why = "a route of its own, with `rewrite.regex` and the handler it leads to";
                self.leave(directive.id, Coverage::ByHand, why, &mut note);
                routes.push(note);
            }
            false => self
                .log
                .translated(directive.id, "rewrite of a route of its own"),
        }
        routes
    }

    /// A route for paths of an expression with the handler of a location.
    fn jump_route(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        location: &NginxLocation<'a>,
        regex: &str,
        to: &str,
    ) -> DraftTable {
        let there = RoutePlace {
            rule: location.rule.clone(),
            scope: location.scope.clone(),
            is_location: false,
            ..place.clone()
        };
        let mut route = place.with_rule(PathRule::Regex(regex.to_owned())).route();
        if let Some(action) = location.scope.own_named("return").last() {
            self.write_return(action, &there, &mut route);
            return route;
        }
        let answer = self.content(server, &there, &location.scope, &mut route);
        let text = |route: &DraftTable, key: &str| {
            let table = route.keys.table("rewrite");
            table
                .and_then(|it| it.text(key))
                .unwrap_or_default()
                .to_owned()
        };
        let (strip, add) = (text(&route, "strip_prefix"), text(&route, "add_prefix"));
        let behind = to.strip_prefix(strip.as_str()).unwrap_or(to);
        for directive in location.scope.own_named("rewrite") {
            let why = "a path that another `rewrite` has made is not rewritten again";
            self.leave(directive.id, Coverage::ByHand, why, &mut route);
        }
        let mut rewrite = TomlTable::with("regex", regex);
        rewrite.set("to", format!("{add}{behind}"));
        if answer == Answer::BackEnd {
            rewrite.set("response_paths", false);
        }
        place
            .with_rule(PathRule::Regex(regex.to_owned()))
            .rule
            .write(&mut route);
        route.keys.set("rewrite", rewrite);
        self.rules(server, &there, &location.scope, &mut route, answer);
        route
    }

    /// The answer of a `return`.
    pub(super) fn write_return(
        &mut self,
        directive: &NginxDirective,
        place: &RoutePlace<'a>,
        route: &mut DraftTable,
    ) {
        let (status, text) = match (units::number(directive.arg(0)), directive.args.len()) {
            (Some(status), 1) => (status, None),
            (Some(status), _) => (status, Some(directive.arg(1))),
            (None, _) => (302, Some(directive.arg(0))),
        };
        if matches!(status, 301 | 302 | 303 | 307 | 308) && text.is_some() {
            let to = template_at(text.unwrap_or_default(), place);
            match to {
                Ok(to) => self.write_redirect(directive, &to, status, route),
                Err(variable) => self.refuse(directive, &variable, route),
            }
            return;
        }
        if !(200..=599).contains(&status) {
            let why = format!("no answer has the status {status}");
            self.leave(directive.id, Coverage::ByHand, why, route);
            route.keys.set("respond", TomlTable::with("status", 404));
            return;
        }
        if status == 444 {
            let why = "each request gets an answer: 403 is cheap";
            self.leave(directive.id, Coverage::NotOffered, why, route);
            route.keys.set("respond", TomlTable::with("status", 403));
            return;
        }
        let mut respond = TomlTable::default();
        if status != 200 {
            respond.set("status", status);
        }
        if let Some(text) =
            text.filter(|text| !text.is_empty() && !matches!(status, 204 | 205 | 304))
        {
            match template_at(text, place) {
                Ok(body) => respond.set("body", body),
                Err(variable) => return self.refuse(directive, &variable, route),
            }
            if let Some(kind) = place.scope.find("default_type") {
                let media_type = kind.arg(0);
                let is_usual =
                    media_type == "text/plain" || media_type == "application/octet-stream";
                if !is_usual && media_type.contains('/') && !media_type.contains('$') {
                    respond.set("content_type", media_type);
                }
                self.log.translated(kind.id, "respond.content_type");
            }
        }
        route.keys.set("respond", respond);
        self.log.translated(directive.id, "respond");
    }

    fn refuse(&mut self, directive: &NginxDirective, variable: &str, route: &mut DraftTable) {
        let why = format!("no placeholder stands for `{variable}`");
        self.leave(directive.id, Coverage::ByHand, why, route);
        route.keys.set("respond", TomlTable::with("status", 404));
    }

    fn write_redirect(
        &mut self,
        directive: &NginxDirective,
        to: &str,
        status: u64,
        route: &mut DraftTable,
    ) {
        let begins_well = ["/", "http://", "https://", "{scheme}://"]
            .iter()
            .any(|it| to.starts_with(it));
        let is_plain = to.bytes().all(|byte| byte > b' ' && byte != 0x7f);
        if !begins_well || to.starts_with("//") || !is_plain {
            let why = "a redirect leads to a URL or to a path";
            self.leave(directive.id, Coverage::ByHand, why, route);
            route.keys.set("respond", TomlTable::with("status", 404));
            return;
        }
        match status {
            302 => route.keys.set("redirect", to),
            status => {
                let mut table = TomlTable::with("to", to);
                table.set("status", status);
                route.keys.set("redirect", table);
            }
        }
        self.log.translated(directive.id, "redirect");
    }

    /// Routes of an `if` with one action.
    fn if_routes(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        directive: &'a NginxDirective,
    ) -> Vec<DraftTable> {
        if is_file_test(directive) {
            return Vec::new();
        }
        let mut note = DraftTable::default();
        let action = directive
            .children()
            .iter()
            .find(|it| it.name == "return" || it.name == "rewrite");
        let Some(action) = action else {
            self.leave_rest(std::slice::from_ref(directive), &mut note);
            return vec![note];
        };
        let cases = match conditions::cases(&directive.args, &self.maps) {
            Ok(cases) => cases,
            Err(why) => {
                self.leave(directive.id, Coverage::ByHand, why, &mut note);
                self.leave_rest(directive.children(), &mut note);
                return vec![note];
            }
        };
        let mut routes = Vec::new();
        for case in cases {
            let Some(inner) = self.place_of_case(place, &case) else {
                let why = "its conditions and those around it are one `match` of a route";
                self.leave(directive.id, Coverage::ByHand, why, &mut note);
                continue;
            };
            if action.name == "rewrite" {
                routes.extend(self.rewrite_routes(server, &inner, action));
                continue;
            }
            let mut route = inner.route();
            self.write_return(action, &inner, &mut route);
            routes.push(route);
        }
        self.log
            .translated(directive.id, "match of a route in front");
        self.leave_rest(directive.children(), &mut note);
        if !note.comments.is_empty() {
            routes.push(note);
        }
        routes
    }

    fn place_of_case(
        &mut self,
        place: &RoutePlace<'a>,
        case: &ConditionCase,
    ) -> Option<RoutePlace<'a>> {
        let mut inner = place.with_matches(&case.matches)?;
        if let Some(rule) = &case.rule {
            if inner.rule != PathRule::Any {
                let outer = TomlTable::with("path", vec![inner.rule.as_condition()]);
                inner = inner.with_matches(&outer)?;
            }
            inner.rule = rule.clone();
        }
        if let Some((name, value)) = &case.value {
            let mut constants = (*inner.constants).clone();
            constants.insert(name.clone(), value.clone());
            inner.constants = constants.into();
            if let Some(map) = self.maps.get(name.as_str()).copied() {
                let entries = map.children().iter().take(MAX_NOTED);
                for entry in entries.filter(|it| Some(it.id) == case.entry || it.name == "default")
                {
                    self.log.translated(entry.id, "a route");
                }
                self.log.translated(map.id, "a route for each entry");
            }
        }
        Some(inner)
    }
}

/// Entries of a map that are looked through for each case.
const MAX_NOTED: usize = 1_000;

/// Whether an `if` tests for a file: `files` translates it.
pub(super) fn is_file_test(directive: &NginxDirective) -> bool {
    let text = directive.args.join(" ");
    text.contains("-f ") || text.contains("-e ") || text.contains("-d ")
}

fn template_at(text: &str, place: &RoutePlace<'_>) -> Result<String, String> {
    match place.rule.regex() {
        Some(regex) => values::template_of_regex(text, &place.constants, regex),
        None => values::template(text, &place.constants, false),
    }
}

/// The status of a rewrite that the client sees.
fn redirect_status(directive: &NginxDirective) -> Option<u64> {
    let leads_away = ["http://", "https://", "$scheme://"];
    match directive.arg(2) {
        "permanent" => Some(301),
        "redirect" => Some(302),
        _ if leads_away
            .iter()
            .any(|start| directive.arg(1).starts_with(start)) =>
        {
            Some(302)
        }
        _ => None,
    }
}

/// Expression and target of a rewrite. The query stays, as nginx appends it.
fn rewrite_pair(
    directive: &NginxDirective,
    place: &RoutePlace<'_>,
) -> Result<(String, String), String> {
    let regex = values::regex(directive.arg(0), false)?;
    let to = values::template_of_regex(directive.arg(1), &place.constants, &regex);
    let mut to = to.map_err(|variable| format!("no placeholder stands for `{variable}`"))?;
    let drops_query = to.ends_with('?');
    if to.contains('?') && !drops_query {
        to.push_str("&{query}");
    }
    let is_redirect = redirect_status(directive).is_some();
    if is_redirect {
        // A redirect has the query only where it says so; `{uri}` has it.
        match drops_query {
            true => to.truncate(to.len() - 1),
            false if !to.contains('?') && !to.contains("{uri}") => to.push_str("?{query}"),
            false => {}
        }
    }
    match is_redirect || is_target(&to) {
        true => Ok((regex, to)),
        false => Err("`rewrite.to` is a path, in ASCII and without spaces".to_owned()),
    }
}

/// The text of a target in front of its first variable.
fn literal_start(target: &str) -> String {
    target
        .split(['$', '?'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The locations that a rewrite leads to, each with its expression and target.
fn jumps<'s, 'a>(
    server: &'s ServerBlock<'a>,
    directive: &NginxDirective,
    regex: &str,
    to: &str,
) -> Vec<(&'s NginxLocation<'a>, String, String)> {
    let start = literal_start(directive.arg(1));
    let rest = &directive.arg(1)[start.len()..];
    let mut found = Vec::new();
    // A tail that is taken over whole may lead to any location below.
    let tail = regex
        .strip_suffix("(.*)$")
        .or_else(|| regex.strip_suffix("(.*)"));
    if let Some(head) = tail.filter(|head| rest == "$1" && !head.contains('(')) {
        for location in server.locations.ordered.iter().take(MAX_JUMPS) {
            let (PathRule::Below(path), true) = (&location.rule, location.rank >= Rank::Strong)
            else {
                continue;
            };
            let Some(below) = path
                .strip_prefix(start.as_str())
                .filter(|it| !it.is_empty())
            else {
                continue;
            };
            let own = format!("{head}{}(.*)$", values::escape(below));
            found.push((location, own, format!("{start}{below}{{re.1}}")));
        }
    }
    if let Some(location) = server.locations.for_path(&start) {
        found.push((location, regex.to_owned(), to.to_owned()));
    }
    found
}

/// Most locations that one rewrite is compared with.
const MAX_JUMPS: usize = 200;
