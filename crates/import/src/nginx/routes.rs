//! The routes of one location: its rewrites, its handler, its rules.

use std::rc::Rc;

use super::NginxTranslator;
use super::common::constants;
use super::locations::{LocationTable, NginxLocation, PathRule};
use super::main_level::Level;
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::values::Constants;
use crate::draft::DraftTable;
use crate::limits;
use crate::report::Coverage;
use crate::toml_value::{TomlTable, TomlValue};

/// A server, as its locations see it.
#[derive(Debug)]
pub(super) struct ServerBlock<'a> {
    pub(super) scope: NginxScope<'a>,
    pub(super) locations: LocationTable<'a>,
    /// The first name, for `$server_name`.
    pub(super) name: String,
    /// Conditions of all routes: the scheme or the port of the server.
    pub(super) matches: TomlTable,
    has_internal: bool,
}

impl<'a> ServerBlock<'a> {
    /// A server with this name, for requests that match.
    pub(super) fn new(scope: NginxScope<'a>, name: String, matches: TomlTable) -> Self {
        let locations = LocationTable::collect(&scope);
        // Pages for errors are internal, too, and no back end leads to them.
        let is_internal = |it: &NginxLocation<'_>| {
            let is_file = matches!(it.rule, PathRule::Exact(_));
            !is_file && !it.scope.own_named("internal").is_empty()
        };
        Self {
            has_internal: locations.ordered.iter().any(is_internal),
            scope,
            locations,
            name,
            matches,
        }
    }

    /// Whether back ends may lead to locations that clients do not reach.
    pub(super) fn has_internal_locations(&self) -> bool {
        self.has_internal
    }
}

/// Where directives hold.
#[derive(Debug, Clone)]
pub(super) struct RoutePlace<'a> {
    pub(super) rule: PathRule,
    pub(super) scope: NginxScope<'a>,
    pub(super) matches: TomlTable,
    pub(super) constants: Rc<Constants>,
    /// Whether the block is a location, and not the server.
    pub(super) is_location: bool,
}

impl<'a> RoutePlace<'a> {
    /// The place of the server's own directives.
    pub(super) fn of_server(server: &ServerBlock<'a>) -> Self {
        Self::new(server, PathRule::Any, server.scope.clone(), false)
    }

    fn new(
        server: &ServerBlock<'a>,
        rule: PathRule,
        scope: NginxScope<'a>,
        is_location: bool,
    ) -> Self {
        let mut constants = constants(&scope);
        constants.insert("server_name".to_owned(), server.name.clone());
        Self {
            rule,
            matches: server.matches.clone(),
            constants: Rc::new(constants),
            scope,
            is_location,
        }
    }

    /// A route for the paths and conditions of the place.
    pub(super) fn route(&self) -> DraftTable {
        let mut route = DraftTable::default();
        self.rule.write(&mut route);
        self.write_matches(&mut route);
        route
    }

    fn write_matches(&self, route: &mut DraftTable) {
        if !self.matches.is_empty() {
            route.keys.set("match", self.matches.clone());
        }
    }

    /// The same place with further conditions; `None` where they cannot be joined.
    pub(super) fn with_matches(&self, more: &TomlTable) -> Option<Self> {
        let mut place = self.clone();
        for (key, value) in more.iter() {
            match (place.matches.get(key), value) {
                (None, _) => place.matches.set(key, value.clone()),
                (Some(TomlValue::Table(known)), TomlValue::Table(new)) if key != "not" => {
                    let mut joined = known.clone();
                    for (name, value) in new.iter() {
                        if joined.has(name) {
                            return None;
                        }
                        joined.set(name, value.clone());
                    }
                    place.matches.set(key, joined);
                }
                _ => return None,
            }
        }
        Some(place)
    }

    /// The same place for other paths.
    pub(super) fn with_rule(&self, rule: PathRule) -> Self {
        Self {
            rule,
            ..self.clone()
        }
    }
}

impl<'a> NginxTranslator<'a> {
    /// All routes of a server, in their order.
    pub(super) fn server_routes(&mut self, server: &ServerBlock<'a>) -> Vec<DraftTable> {
        let place = RoutePlace::of_server(server);
        let (mut routes, is_final) = self.rewrite_phase(server, &place);
        if is_final {
            // The server answers every request by itself. Its locations are translated for the
            // report alone.
            for location in &server.locations.ordered {
                let _ = self.location_routes(server, location);
                let why = "the server answers each request before a location is looked for";
                self.log.note(location.id, Coverage::NotNeeded, why);
            }
            return routes;
        }
        for location in &server.locations.ordered {
            if self.is_full(routes.len(), server.scope.work()) {
                return routes;
            }
            routes.extend(self.location_routes(server, location));
        }
        let answers_all = server
            .locations
            .ordered
            .iter()
            .any(|it| it.rule == PathRule::Any);
        if !answers_all {
            routes.extend(self.handler_routes(server, &place, &place.scope, Vec::new()));
        }
        for (_, location) in &server.locations.named {
            self.settle_named(location);
        }
        routes
    }

    fn is_full(&mut self, more: usize, work: usize) -> bool {
        self.has_too_many_routes |= self.draft.route_count() + more > limits::MAX_ROUTES;
        self.has_too_many_routes |= work > limits::MAX_INHERITED;
        self.has_too_many_routes
    }

    /// The routes of a location.
    fn location_routes(
        &mut self,
        server: &ServerBlock<'a>,
        location: &NginxLocation<'a>,
    ) -> Vec<DraftTable> {
        if let Some(problem) = &location.problem {
            let mut table = DraftTable::default();
            self.leave(
                location.id,
                Coverage::NotOffered,
                problem.as_str(),
                &mut table,
            );
            self.leave_rest(location.scope.own(), &mut table);
            return vec![table];
        }
        self.log.translated(location.id, "[[sites.routes]]");
        let rule = location.rule.clone();
        let mut place = RoutePlace::new(server, rule, location.scope.clone(), true);
        self.write_outer_rules(location, &mut place.matches);
        let (mut routes, is_final) = self.rewrite_phase(server, &place);
        if is_final {
            if let Some(last) = routes.last_mut() {
                self.rules(server, &place, &place.scope, last, Answer::Own);
                for directive in location.scope.own_named("internal") {
                    self.log.note(
                        directive.id,
                        Coverage::NotNeeded,
                        "the answer is the same for all",
                    );
                }
                self.leave_rest(location.scope.own(), last);
            }
            return routes;
        }
        let rewrites = self.kept_rewrites(server, &place, &mut routes);
        routes.extend(self.handler_routes(server, &place, &location.scope, rewrites));
        routes
    }

    /// The paths of the locations around one: `match.path`, and conditions with a name for those
    /// that are further out.
    fn write_outer_rules(&mut self, location: &NginxLocation<'a>, matches: &mut TomlTable) {
        let around = location.within.iter().map(|it| &it.rule);
        let around = around.filter(|rule| **rule != PathRule::Any);
        let mut around = around.map(PathRule::as_condition);
        if let Some(first) = around.next() {
            matches.set("path", vec![first]);
        }
        for path in around {
            let condition = TomlTable::with("path", vec![path]);
            let same = self.draft.conditions.iter();
            let same = same.filter(|(_, it)| it.keys == condition);
            let same = same.map(|(name, _)| name.to_owned()).next();
            let name = same.unwrap_or_else(|| {
                let name = self.draft.conditions.free_name("location");
                self.draft.conditions.table_mut(&name).keys = condition;
                name
            });
            matches.push("named", name);
        }
    }

    /// The route with the handler of a place, and those around it.
    fn handler_routes(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        rewrites: Vec<TomlTable>,
    ) -> Vec<DraftTable> {
        let mut routes = self.method_routes(place);
        let mut route = place.route();
        let handler = self.content(server, place, scope, &mut route);
        if handler == Answer::Files {
            routes.extend(self.folder_script_route(server, place, scope, &mut route));
        }
        if !rewrites.is_empty() {
            // A path that was rewritten by `break` is passed on as it is.
            let rewrites: TomlValue = match <[TomlTable; 1]>::try_from(rewrites) {
                Ok([table]) => table.into(),
                Err(tables) => tables.into(),
            };
            route.keys.set("rewrite", rewrites);
        }
        self.rules(server, place, scope, &mut route, handler);
        let internal = place.scope.own_named("internal").last();
        if let Some(directive) = internal {
            self.log.translated(directive.id, "internal");
        }
        if place.is_location {
            self.leave_rest(place.scope.own(), &mut route);
        }
        if internal.is_some() {
            route.keys.set("internal", true);
            let mut closed = place.route();
            closed.keys.set("respond", TomlTable::with("status", 404));
            routes.push(route);
            routes.push(closed);
        } else {
            routes.push(route);
        }
        routes
    }

    /// The rules of a route, for the block of its place and for the one with its handler.
    pub(super) fn rules(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        handler: &NginxScope<'a>,
        route: &mut DraftTable,
        answer: Answer,
    ) {
        let scope = &place.scope;
        self.access(scope, route, answer);
        if answer != Answer::Own {
            self.authentication(server, scope, route);
            self.rates(scope, route);
        }
        self.response_headers(scope, place, route, answer);
        if answer == Answer::BackEnd {
            self.request_headers(handler, place, route);
            self.hidden_headers(handler, route);
            self.body_limit(scope, route);
            self.buffering(handler, route);
            self.cache(handler, route);
        }
        if place.is_location {
            self.error_pages(server, scope, route, Level::Route);
            if answer != Answer::Own {
                self.compression(scope, Level::Route, Some(&mut route.keys));
            }
            self.common_settings(scope.own());
            self.quiet_logs(place);
        }
        if answer == Answer::BackEnd {
            self.intercepted_errors(server, handler, route);
        }
    }

    fn quiet_logs(&mut self, place: &RoutePlace<'a>) {
        for directive in place.scope.own_named("access_log") {
            if directive.arg(0) == "off" {
                self.leave_unlogged(directive, Some(place.rule.as_condition()));
            } else {
                self.leave_unlogged(directive, None);
            }
        }
    }

    /// Directives of a named location that a route has used are noted; the rest is in the report.
    fn settle_named(&mut self, location: &NginxLocation<'a>) {
        if !self.log.is_noted(location.id) {
            let why = "no translated directive leads to it";
            self.log.note(location.id, Coverage::ByHand, why);
        }
    }

    /// `limit_except`: a route in front for the methods that are refused.
    fn method_routes(&mut self, place: &RoutePlace<'a>) -> Vec<DraftTable> {
        let blocks: Vec<&NginxDirective> = place.scope.own_named("limit_except").to_vec();
        let mut routes = Vec::new();
        for directive in blocks {
            let mut methods: Vec<String> =
                directive.args.iter().map(|it| it.to_uppercase()).collect();
            if methods.iter().any(|method| method == "GET")
                && !methods.iter().any(|it| it == "HEAD")
            {
                methods.push("HEAD".to_owned());
            }
            let not = TomlTable::with("not", TomlTable::with("method", methods));
            let Some(inner) = place.with_matches(&not) else {
                continue;
            };
            let scope = place.scope.within(directive.children());
            let refuses_all = directive
                .children()
                .iter()
                .any(|it| it.name == "deny" && it.arg(0) == "all")
                && !directive.children().iter().any(|it| it.name == "allow");
            let mut route = inner.route();
            if !refuses_all {
                let why = "a route in front for the other methods, with its `allow`";
                self.leave(directive.id, Coverage::ByHand, why, &mut route);
                route.keys = TomlTable::default();
                self.leave_rest(scope.own(), &mut route);
                routes.push(route);
                continue;
            }
            route.keys.set("respond", TomlTable::with("status", 403));
            self.log
                .translated(directive.id, "match.method of a route in front");
            for inner in directive.children() {
                self.log.translated(inner.id, "respond");
            }
            routes.push(route);
        }
        routes
    }
}

/// What answers the requests of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// `respond` or `redirect`.
    Own,
    Files,
    BackEnd,
}
