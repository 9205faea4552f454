//! The directives of a block in Caddy's order, as routes.

use super::CaddyTranslator;
use super::matchers::{self, NamedMatchers};
use super::syntax::CaddyDirective;
use crate::draft::DraftTable;
use crate::limits;
use crate::matcher::RequestMatcher;
use crate::report::Coverage;
use crate::toml_value::TomlTable;

/// The order in which Caddy runs directives.
const ORDER: [&str; 41] = [
    "tracing",
    "map",
    "vars",
    "fs",
    "root",
    "log_append",
    "log_skip",
    "skip_log",
    "log_name",
    "header",
    "copy_response_headers",
    "request_body",
    "redir",
    "method",
    "rewrite",
    "uri",
    "try_files",
    "basic_auth",
    "basicauth",
    "forward_auth",
    "request_header",
    "encode",
    "push",
    "intercept",
    "templates",
    "invoke",
    "handle",
    "handle_path",
    "route",
    "abort",
    "error",
    "copy_response",
    "respond",
    "metrics",
    "reverse_proxy",
    "php_fastcgi",
    "file_server",
    "acme_server",
    "log",
    "tls",
    "bind",
];

/// Directives that answer requests.
const ANSWERS: [&str; 11] = [
    "redir",
    "handle",
    "handle_path",
    "route",
    "abort",
    "error",
    "respond",
    "reverse_proxy",
    "php_fastcgi",
    "file_server",
    "metrics",
];

/// Directives that change requests and responses of those behind them.
const MODIFIERS: [&str; 15] = [
    "root",
    "header",
    "request_body",
    "rewrite",
    "uri",
    "try_files",
    "basic_auth",
    "basicauth",
    "forward_auth",
    "request_header",
    "encode",
    "method",
    "log_skip",
    "skip_log",
    "intercept",
];

/// A directive with its requests.
#[derive(Debug, Clone)]
pub(super) struct MatchedDirective<'d> {
    pub(super) directive: &'d CaddyDirective,
    pub(super) matcher: RequestMatcher,
    pub(super) args: &'d [String],
}

/// What holds in a block: matchers with names, directives in front of those that answer, its paths.
#[derive(Debug, Clone, Default)]
pub(super) struct BlockContext<'d> {
    pub(super) named: NamedMatchers,
    pub(super) modifiers: Vec<MatchedDirective<'d>>,
    /// The requests of the blocks around it.
    pub(super) outer: RequestMatcher,
    /// The prefix that `handle_path` takes off.
    pub(super) stripped: String,
}

impl<'d> CaddyTranslator<'_> {
    /// The routes of a block. `is_sorted` tells whether Caddy sorts its directives.
    pub(super) fn block_routes(
        &mut self,
        directives: &'d [CaddyDirective],
        context: &BlockContext<'d>,
        is_sorted: bool,
    ) -> Vec<DraftTable> {
        let mut context = context.clone();
        let mut notes = DraftTable::default();
        self.name_matchers(directives, &mut context);
        let mut ordered: Vec<MatchedDirective<'d>> = Vec::new();
        for directive in directives {
            let name = directive.name.as_str();
            if !ANSWERS.contains(&name) && !MODIFIERS.contains(&name) {
                continue;
            }
            match matchers::split(directive, &context.named) {
                Ok((matcher, args)) => ordered.push(MatchedDirective {
                    directive,
                    matcher,
                    args,
                }),
                Err(why) => {
                    self.leave(directive.id, Coverage::ByHand, why, &mut notes);
                    self.leave_rest(directive.children(), &mut notes);
                }
            }
        }
        if is_sorted {
            sort(&mut ordered);
        }
        let mut routes = Vec::new();
        let has_files = ordered.iter().any(|it| it.directive.name == "file_server");
        for (at, matched) in ordered.iter().enumerate() {
            let is_modifier = MODIFIERS.contains(&matched.directive.name.as_str());
            if is_modifier {
                continue;
            }
            self.work += 1 + ordered.len() + context.modifiers.len();
            let is_full = self.draft.route_count() + routes.len() > limits::MAX_ROUTES;
            if is_full || self.work > limits::MAX_WORK {
                self.has_too_many_routes = true;
                break;
            }
            let mut inner = context.clone();
            let in_front = if is_sorted { ordered.len() } else { at };
            let modifiers = ordered[..in_front].iter();
            inner.modifiers.extend(
                modifiers
                    .filter(|it| MODIFIERS.contains(&it.directive.name.as_str()))
                    .cloned(),
            );
            self.answer_routes(matched, &inner, has_files, &ordered, &mut routes);
        }
        self.settle_modifiers(&ordered, &mut notes);
        if !notes.comments.is_empty() {
            routes.insert(0, notes);
        }
        routes
    }

    fn name_matchers(&mut self, directives: &'d [CaddyDirective], context: &mut BlockContext<'d>) {
        for directive in directives.iter().filter(|it| it.name.starts_with('@')) {
            let matcher = matchers::definition(directive);
            match &matcher {
                Ok(_) => {
                    self.log
                        .translated(directive.id, "match of the routes that name it");
                    self.note_all(directive.children(), "match");
                }
                Err(why) => {
                    self.log.note(directive.id, Coverage::ByHand, why.as_str());
                    for inner in directive.children() {
                        self.log.note(inner.id, Coverage::ByHand, why.as_str());
                    }
                }
            }
            context.named.insert(directive.name.clone(), matcher);
        }
    }

    /// Notes all directives of a block as translated.
    pub(super) fn note_all(&mut self, directives: &[CaddyDirective], key: &str) {
        for directive in directives {
            self.log.translated(directive.id, key);
            self.note_all(directive.children(), key);
        }
    }

    /// The routes of one directive that answers.
    fn answer_routes(
        &mut self,
        matched: &MatchedDirective<'d>,
        context: &BlockContext<'d>,
        has_files: bool,
        siblings: &[MatchedDirective<'d>],
        routes: &mut Vec<DraftTable>,
    ) {
        let directive = matched.directive;
        let Some(requests) = context.outer.and(&matched.matcher) else {
            let mut note = DraftTable::default();
            let why = "its requests are those of two matchers: write them as one `match`";
            self.leave(directive.id, Coverage::ByHand, why, &mut note);
            self.leave_rest(directive.children(), &mut note);
            routes.push(note);
            return;
        };
        match directive.name.as_str() {
            "handle" | "route" | "handle_path" => {
                self.log.translated(directive.id, "[[sites.routes]]");
                let mut inner = context.clone();
                inner.outer = requests;
                if directive.name == "handle_path" {
                    let prefix = directive.arg(0).trim_end_matches('*').trim_end_matches('/');
                    inner.stripped = format!("{}{prefix}", context.stripped);
                }
                routes.extend(self.block_routes(
                    directive.children(),
                    &inner,
                    directive.name != "route",
                ));
            }
            // With a file server beside it, its files are those of the route of PHP.
            "file_server"
                if siblings.iter().any(|it| {
                    it.directive.name == "php_fastcgi" && it.matcher.contains(&matched.matcher)
                }) =>
            {
                self.log
                    .translated(directive.id, "files of the route with PHP");
                let mut note = DraftTable::default();
                self.leave_rest(directive.children(), &mut note);
            }
            _ => {
                let is_php_with_files = directive.name == "php_fastcgi" && has_files;
                self.split_routes(matched, context, &requests, is_php_with_files, routes);
            }
        }
    }

    /// A route for the requests, and in front of it one for each directive with fewer requests.
    fn split_routes(
        &mut self,
        matched: &MatchedDirective<'d>,
        context: &BlockContext<'d>,
        requests: &RequestMatcher,
        is_php_with_files: bool,
        routes: &mut Vec<DraftTable>,
    ) {
        let mut narrower: Vec<RequestMatcher> = Vec::new();
        for modifier in &context.modifiers {
            if modifier.matcher.contains(requests) || modifier.directive.name == "root" {
                continue;
            }
            let both = requests.and(&modifier.matcher);
            if let Some(both) = both.filter(|it| it != requests && !narrower.contains(it)) {
                narrower.push(both);
            }
        }
        narrower.truncate(MAX_SPLITS);
        narrower.sort_by_key(|it| usize::MAX - it.path_length());
        narrower.push(requests.clone());
        for requests in narrower {
            let mut route = DraftTable::default();
            requests.write(&mut route);
            let is_whole =
                self.write_answer(matched, context, &requests, is_php_with_files, &mut route);
            if is_whole {
                self.apply_modifiers(matched, context, &requests, &mut route);
            }
            routes.push(route);
        }
    }

    /// Applies the directives in front of a route.
    fn apply_modifiers(
        &mut self,
        matched: &MatchedDirective<'d>,
        context: &BlockContext<'d>,
        requests: &RequestMatcher,
        route: &mut DraftTable,
    ) {
        if !context.stripped.is_empty() && (route.keys.has("upstream") || route.keys.has("files")) {
            let mut rewrite = TomlTable::with("strip_prefix", context.stripped.as_str());
            if route.keys.has("upstream") {
                rewrite.set("response_paths", false);
            }
            route.keys.set("rewrite", rewrite);
        }
        for modifier in &context.modifiers {
            if modifier.matcher.contains(requests) {
                self.apply_modifier(modifier, matched, route);
            }
        }
    }

    /// Modifiers that no route has taken.
    fn settle_modifiers(&mut self, ordered: &[MatchedDirective<'d>], notes: &mut DraftTable) {
        for matched in ordered {
            let is_modifier = MODIFIERS.contains(&matched.directive.name.as_str());
            if is_modifier && !self.log.is_noted(matched.directive.id) {
                let name = matched.directive.name.as_str();
                if name == "root" {
                    self.log.note(
                        matched.directive.id,
                        Coverage::NotNeeded,
                        "no route serves its files",
                    );
                    continue;
                }
                if let Some(comment) = self.log.note_from_table(matched.directive.id) {
                    notes.comment(comment);
                }
                self.leave_rest(matched.directive.children(), notes);
            }
        }
    }
}

/// Most routes that one directive is split into.
const MAX_SPLITS: usize = 16;

/// Sorts as Caddy does: by the kind of directive, then longer paths first, then those without a
/// matcher last.
fn sort(ordered: &mut [MatchedDirective<'_>]) {
    let place = |name: &str| {
        let name = match name {
            // They are one kind in Caddy's order.
            "handle_path" => "handle",
            other => other,
        };
        ORDER
            .iter()
            .position(|known| *known == name)
            .unwrap_or(ORDER.len())
    };
    ordered.sort_by_key(|it| {
        let length = it.matcher.path_length();
        (
            place(&it.directive.name),
            it.matcher.is_any(),
            usize::MAX - length,
        )
    });
}
