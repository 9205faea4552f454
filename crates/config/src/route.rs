//! The `[[sites.routes]]` tables of one site and the checks between them.
//!
//! Called by `site`.
//!
//! # Invariants
//! - Every route of a site can match some path, has something to do and a handler, and names only
//!   what exists.

use std::collections::BTreeMap;

use crate::error::did_you_mean;
use crate::findings::LocatedValue;
use crate::model::{Compression, Route};
use crate::options::expected::ROUTE_PATH;
use crate::section::{Keys as _, Section};
use crate::site::RouteContext;
use crate::suggest::nearest_word;
use crate::values::PathPattern;
use crate::{
    admission, basic_auth, bounds, cache, compression, conditions, cors, error_pages, files,
    fixed_responses, forward_auth, grants, headers, hub, jwt, rate_limit, rewrite, rollout,
    security_headers, signed_url,
};

/// Reads the routes of a site, which has the rule `compress`.
pub(crate) fn read(
    site: &Section<'_>,
    known: &RouteContext<'_>,
    compress: Option<&Compression>,
) -> Vec<Route> {
    let tables = site.tables("routes");
    if tables.is_empty() && (!site.has("routes") || site.is_empty_list("routes")) {
        site.report(site.offset, "a site needs at least one [[sites.routes]]");
    }
    let mut routes: Vec<LocatedValue<Route>> = Vec::with_capacity(tables.len());
    for table in &tables {
        if let Some(mut route) = read_one(table, known) {
            route.value.compress = compression::read(table, compress);
            check_reachable(table, &routes, &route);
            routes.push(route);
        }
    }
    routes.into_iter().map(|route| route.value).collect()
}

/// One route, placed where its path stands.
fn read_one(table: &Section<'_>, known: &RouteContext<'_>) -> Option<LocatedValue<Route>> {
    let path = read_path(table);
    let files = files::read(table, known);
    let app = read_name(table, "app", known.app_names);
    let upstream = read_name(table, "upstream", known.upstream_names);
    if table.has("app") {
        table.report_not_applicable("upstream");
    }
    if table.has("app") || table.has("upstream") {
        table.report_not_applicable("split");
    }
    if !table.has("split") {
        table.report_not_applicable("split_by");
    }
    let mut route = Route {
        files,
        app,
        upstream,
        split: rollout::read_split(table, known),
        split_by: rollout::read_split_by(table),
        mirror: rollout::read_mirror(table, known),
        hub: hub::read_route(table, known.hub),
        mercure: hub::read_mercure(table),
        ..Route::new(PathPattern::any())
    };
    read_common_keys(table, known, &mut route);
    let (path, at) = match path {
        Some(path) => (path.value, path.offset),
        None if table.has("path") => return None,
        None => (PathPattern::any(), table.offset),
    };
    route.conditions = conditions::read(table, "match", known.conditions);
    route.cache = cache::read_route(table, known.caches);
    route.basic_auth = basic_auth::read(table);
    route.jwt = jwt::read(table);
    route.signed_url = signed_url::read(table);
    route.forward_auth = forward_auth::read(table);
    route.cors = cors::read(table);
    route.rate_limit = rate_limit::read(table);
    route.max_concurrent = bounds::read_max_concurrent(table);
    route.response_rate = bounds::read_response_rate(table);
    route.redirect = fixed_responses::read_redirect(table, &path);
    route.respond = fixed_responses::read_respond(table, &path);
    admission::check_satisfy(table, &route);
    route.sendfile = grants::read_sendfile(table);
    route.error_pages = error_pages::read(table);
    route.intercept_errors = error_pages::read_intercepted(table);
    route.security_headers = security_headers::read(table);
    for part in route.parts() {
        check_grants(table, known, &part);
    }
    check_header_captures(table, &route, &path);
    check_handlers(table, &path);
    route.path = path;
    Some(LocatedValue::new(route, at))
}

/// The paths of a route: a pattern, or a table with a regular expression.
fn read_path(table: &Section<'_>) -> Option<LocatedValue<PathPattern>> {
    if let Some((items, at)) = table.texts_of_list("path") {
        table.report(at, explain_path_list(&items));
        return None;
    }
    if !table.is_table("path") {
        let text = table.text("path")?;
        let path = PathPattern::parse(text.value);
        if path.is_none() {
            report_invalid_path(table, &text);
        }
        return path.map(|path| LocatedValue::new(path, text.offset));
    }
    let regex = table.table("path")?.regex()?;
    Some(LocatedValue::new(
        PathPattern::Regex(regex.value),
        regex.offset,
    ))
}

/// What to write for several paths, which a route has in its conditions.
fn explain_path_list(paths: &[&str]) -> String {
    let quoted: Vec<String> = paths.iter().map(|path| format!("{path:?}")).collect();
    format!(
        "`path` is one path; for several leave it out and write match = {{ path = [{}] }}",
        quoted.join(", ")
    )
}

/// Reports a path that is no pattern; `/admin*` is written as `/admin/*`.
fn report_invalid_path(table: &Section<'_>, text: &LocatedValue<&str>) {
    let folder = text.value.strip_suffix('*').map(|path| format!("{path}/*"));
    let Some(meant) = folder.filter(|path| PathPattern::parse(path).is_some()) else {
        return table.report_invalid("path", text);
    };
    let expected = format!("{ROUTE_PATH}{}", did_you_mean(Some(meant)));
    table.report_invalid_item("path", text.value, text.offset, &expected);
}

/// Checks what its back end's responses may ask of the front end on this route.
fn check_grants(table: &Section<'_>, known: &RouteContext<'_>, route: &Route) {
    let Some(name) = route.upstream.as_ref().or(route.app.as_ref()) else {
        return;
    };
    if route.grip != Some(true) {
        return;
    }
    let app = route.app.as_ref().and_then(|name| known.apps.get(name));
    let upstream = route.upstream.as_ref();
    let upstream = upstream.and_then(|name| known.upstreams.get(name));
    let of_app = app.is_some_and(|app| app.grip.is_some());
    if of_app || upstream.is_some_and(|upstream| upstream.grip.is_some()) {
        return;
    }
    let none = BTreeMap::new();
    let namesakes = if route.upstream.is_some() {
        known.apps
    } else {
        &none
    };
    grants::check_namespace(table, name, namesakes);
}

/// Reports values of headers with groups that the route's path does not have.
fn check_header_captures(table: &Section<'_>, route: &Route, path: &PathPattern) {
    let rules = [
        ("request_headers", &route.request_headers),
        ("response_headers", &route.response_headers),
    ];
    for (key, rules) in rules {
        let values = rules.iter().flat_map(|rules| {
            let added = rules.add.values().chain(rules.defaults.values());
            rules.set.values().chain(added)
        });
        for value in values {
            fixed_responses::check_captures(table, value, path, table.key_offset(&[key]));
        }
    }
}

/// Reports a route without a handler, and handlers that exclude each other.
fn check_handlers(table: &Section<'_>, path: &PathPattern) {
    let has_any = |keys: &[&str]| keys.iter().any(|key| table.has(key));
    let handlers = ["files", "app", "upstream", "split", "hub", "mercure"];
    if has_any(&handlers) {
        table.report_not_applicable("redirect");
    }
    if has_any(&["redirect", "respond"]) && table.has("rewrite") {
        let problem = "`rewrite` changes nothing beside `redirect` and `respond`: no back end gets \
                       the path";
        table.report_key("rewrite", problem);
    }
    if has_any(&handlers) || table.has("redirect") {
        table.report_not_applicable("respond");
    }
    if !has_any(&handlers) && !has_any(&["redirect", "respond"]) {
        let problem = format!(
            "route {path} has nothing to do: give it `files`, `app`, `upstream`, `split`, `hub`, \
             `mercure`, `redirect` or `respond`"
        );
        table.report(table.offset, problem);
    } else if !has_any(&["app", "upstream", "split"]) {
        table.report_not_applicable("mirror");
        table.report_not_applicable("intercept_errors");
        table.report_not_applicable("cache");
        table.report_not_applicable("grip");
        table.report_not_applicable("sendfile");
    }
    if !has_any(&["app", "upstream", "split", "files"]) {
        table.report_not_applicable("compress");
    }
    if has_any(&["app", "upstream", "split", "files"]) {
        table.report_not_applicable("hub");
    }
    if has_any(&["app", "upstream", "split", "files", "hub"]) {
        table.report_not_applicable("mercure");
    }
}

/// The name of an application or upstream.
pub(crate) fn read_name(
    table: &Section<'_>,
    key: &'static str,
    known: &[String],
) -> Option<String> {
    let name = table.text(key)?;
    check_name_exists(table, key, &name, known.iter().map(String::as_str));
    Some(name.value.to_owned())
}

/// Everything but the path and the handlers.
fn read_common_keys(table: &Section<'_>, known: &RouteContext<'_>, route: &mut Route) {
    route.read_keys(table);
    route.rewrite = rewrite::read(table);
    route.request_headers = headers::read(table, "request_headers", known.conditions);
    route.response_headers = headers::read(table, "response_headers", known.conditions);
    if !is_proxied(table, known, route) {
        table.report_not_applicable("request_buffering");
        table.report_not_applicable("response_buffering");
    }
    if !route.has_back_end() {
        table.report_not_applicable("response_timeout");
    }
}

/// Whether a back end answers; an application that could not be read is given the benefit of doubt.
fn is_proxied(table: &Section<'_>, known: &RouteContext<'_>, route: &Route) -> bool {
    let app = route.app.as_ref().map(|name| known.apps.get(name));
    match app {
        Some(app) => app.is_none_or(|app| app.upstream.is_some()),
        None => table.has("upstream") || table.has("app") || table.has("split"),
    }
}

/// A part of a path without a final slash; none when it could not be the front of a normalised
/// path.
pub(crate) fn parse_prefix(text: &str) -> Option<String> {
    let usable = text.len() > 1 && !text.ends_with('/') && !text.contains(char::is_control);
    let exact = matches!(PathPattern::parse(text), Some(PathPattern::Exact(_)));
    (usable && exact).then(|| text.to_owned())
}

/// Reports a name that nothing has.
pub(crate) fn check_name_exists<'n>(
    table: &Section<'_>,
    what: &'static str,
    name: &LocatedValue<&str>,
    known: impl Iterator<Item = &'n str> + Clone,
) {
    let text = name.value;
    if !known.clone().any(|known| known == text) {
        let suggestion = did_you_mean(nearest_word(text, known));
        table.report(
            name.offset,
            format!("there is no {what} `{text}`{suggestion}"),
        );
    }
}

/// Routes are tried in order, and the first that matches answers: with a file, its application or
/// upstream, or not found. Clients pass the internal ones by, internal redirects try all.
fn check_reachable(
    table: &Section<'_>,
    earlier: &[LocatedValue<Route>],
    route: &LocatedValue<Route>,
) {
    let path = &route.value.path;
    let earlier = earlier.iter();
    let earlier = earlier.filter(|first| route.value.internal || !first.value.internal);
    // Of conditions only those are known to hold that this route has itself.
    let conditions = &route.value.conditions;
    let mut earlier = earlier
        .filter(|first| first.value.conditions.is_empty() || first.value.conditions == *conditions);
    let same = |first: &&LocatedValue<Route>| first.value.path == *path;
    let wider = |first: &&LocatedValue<Route>| first.value.path.covers(path);
    if let Some(first) = earlier.clone().find(same) {
        let place = table.findings.place_suffix(first.offset, route.offset);
        let problem = format!("route {path} can never match: the site has the same path{place}");
        table.report(route.offset, problem);
    } else if let Some(first) = earlier.find(wider) {
        let place = table.findings.place_suffix(first.offset, route.offset);
        let wider = &first.value.path;
        let problem = format!(
            "route {path} can never match: {wider}{place} answers first; put this one before it"
        );
        table.report(route.offset, problem);
    }
}

#[cfg(test)]
mod tests;
