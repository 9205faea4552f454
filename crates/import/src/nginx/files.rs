//! Files of a location: `root`, `alias`, `index`, `try_files`.

use super::NginxTranslator;
use super::content::{is_target, pass_directive};
use super::locations::PathRule;
use super::rewrites::is_file_test;
use super::routes::{Answer, RoutePlace, ServerBlock};
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::values;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;

/// The root of nginx without a directive, as Debian's packages have it.
const DEFAULT_ROOT: &str = "/usr/share/nginx/html";

impl<'a> NginxTranslator<'a> {
    /// Writes the files of a route.
    pub(super) fn files(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
    ) -> Answer {
        if !self.write_root(place, scope, route) {
            return Answer::Own;
        }
        if let Some(index) = scope.find("index") {
            self.log.translated(index.id, "files.try");
        }
        if scope.is_on("autoindex") {
            route.keys.set_in(&["files", "listing"], true);
        }
        if let Some(listing) = scope.find("autoindex") {
            self.log.translated(listing.id, "files.listing");
        }
        if let Some(answer) = self.file_test(server, place, scope, route) {
            return answer;
        }
        if let Some(tries) = scope.find("try_files") {
            return self.try_files(server, place, scope, tries, route);
        }
        let indexes = index_names(scope);
        if indexes.first().is_some_and(|name| *name != "index.html")
            && route
                .keys
                .table("files")
                .is_none_or(|files| !files.has("try"))
        {
            let names = indexes.iter().filter(|name| !name.ends_with(".php"));
            let mut tries = vec!["{path}".to_owned()];
            tries.extend(names.map(|name| format!("{{path}}/{name}")));
            if tries.len() > 1 {
                route.keys.set_in(&["files", "try"], tries);
            }
        }
        Answer::Files
    }

    /// The route in front that runs the script of a folder, such as `index.php`.
    pub(super) fn folder_script_route(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
    ) -> Option<DraftTable> {
        let index = scope.find("index")?;
        let names = index_names(scope);
        let script = *names.iter().find(|name| name.ends_with(".php"))?;
        let tries_folders = scope.find("try_files").is_none_or(|it| {
            let mut files = it.args.iter().rev().skip(1);
            files.any(|file| file.ends_with('/'))
        });
        let has_folders = match &place.rule {
            PathRule::Exact(path) => path.ends_with('/'),
            PathRule::Regex(regex) => !regex.ends_with('$') || regex.ends_with("/$"),
            PathRule::Any | PathRule::Below(_) | PathRule::Starts(_) => true,
        };
        if !tries_folders || !has_folders {
            return None;
        }
        let location = server.locations.for_path(&format!("/{script}"));
        let handler = location.map(|it| it.scope.clone());
        let pass = handler.and_then(|scope| Some((pass_directive(&scope)?, scope)));
        let folders = match &place.rule {
            PathRule::Any => Some("^/(.*/|)$".to_owned()),
            PathRule::Below(path) | PathRule::Starts(path) => {
                let inner = values::escape(path.trim_matches('/'));
                Some(format!("^/({inner}(?:/.*)?/)$"))
            }
            PathRule::Exact(_) | PathRule::Regex(_) => None,
        };
        let is_first = names.first() == Some(&script);
        let (Some((pass, handler)), Some(folders), true) = (pass, folders, is_first) else {
            let why = format!(
                "a folder's `{script}` is not run: write a route for paths that end in `/`, with \
                 the upstream and `rewrite.to`"
            );
            self.leave(index.id, Coverage::ByHand, why, route);
            return None;
        };
        let place = place.with_rule(PathRule::Regex(folders.clone()));
        let mut front = place.route();
        let answer = self.pass(server, &place, &handler, pass, &mut front);
        if answer == Answer::BackEnd {
            let mut rewrite = TomlTable::with("regex", folders);
            rewrite.set("to", format!("/{{re.1}}{script}"));
            front.keys.set("rewrite", rewrite);
        }
        self.rules(server, &place, &handler, &mut front, answer);
        self.log
            .translated(index.id, "rewrite of the route for folders");
        Some(front)
    }

    /// `if (!-f $request_filename)`: the back end gets what is no file.
    fn file_test(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
    ) -> Option<Answer> {
        let tests = scope.find_all("if").iter();
        let test = tests
            .copied()
            .find(|it| is_file_test(it) && it.arg(0).contains('!'))?;
        let inner = scope.within(test.children());
        let rewrite = inner.own_named("rewrite").last().copied();
        let answer = match (pass_directive(&inner), rewrite) {
            (Some(pass), _) => self.pass(server, place, &inner, pass, route),
            (None, Some(rewrite)) => {
                let mut items = vec!["{path}".to_owned(), "{path}/index.html".to_owned()];
                let path = rewrite.arg(1).split('$').next().unwrap_or_default();
                let answer = self.try_fallback(server, place, path, rewrite, &mut items, route);
                if items.len() > 2 {
                    route.keys.set_in(&["files", "try"], items);
                }
                self.log.translated(rewrite.id, "files.try");
                answer
            }
            (None, None) => return None,
        };
        self.log
            .translated(test.id, "files of a route with a back end");
        for directive in inner.own_named("break") {
            self.log.note(
                directive.id,
                Coverage::BuiltIn,
                "one route answers a request",
            );
        }
        Some(answer)
    }

    /// `files.root` from `root` or `alias`; whether there is one.
    fn write_root(
        &mut self,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
    ) -> bool {
        if let Some(alias) = scope.own_named("alias").last() {
            return self.write_alias(place, alias, route);
        }
        let root = scope.find("root");
        let value = root.map_or(DEFAULT_ROOT, |root| root.arg(0));
        let value = values::with_constants(value, &place.constants);
        if let Some(root) = root {
            if value.contains('$') {
                let why = "`files.root` has no variables. Write a site or route for each folder";
                self.leave(root.id, Coverage::ByHand, why, route);
                route.keys.set("respond", TomlTable::with("status", 404));
                return false;
            }
            self.log.translated(root.id, "files.root");
        }
        route.keys.set_in(&["files", "root"], folder(&value));
        true
    }

    fn write_alias(
        &mut self,
        place: &RoutePlace<'a>,
        alias: &NginxDirective,
        route: &mut DraftTable,
    ) -> bool {
        let value = &values::with_constants(alias.arg(0), &place.constants);
        self.log.translated(alias.id, "files.root and rewrite");
        let keys = &mut route.keys;
        match &place.rule {
            PathRule::Regex(regex) => {
                let start = value.find('$').unwrap_or(value.len());
                let root = &value[..value[..start].rfind('/').map_or(0, |at| at + 1)];
                let rest = format!("/{}", &value[root.len()..]);
                let to = values::template_of_regex(&rest, &place.constants, regex);
                match to {
                    Ok(to) if root.starts_with('/') && is_target(&to) => {
                        keys.set_in(&["files", "root"], folder(root));
                        keys.set_in(
                            &["rewrite", "regex"],
                            format!(
                                "^.*?{}.*$",
                                regex.trim_start_matches('^').trim_end_matches('$')
                            ),
                        );
                        keys.set_in(&["rewrite", "to"], to);
                        true
                    }
                    _ => {
                        let why = "`files.root` has no variables; `rewrite.to` may have groups";
                        self.leave(alias.id, Coverage::ByHand, why, route);
                        route.keys.set("respond", TomlTable::with("status", 404));
                        false
                    }
                }
            }
            _ if value.contains('$') => {
                let why = "`files.root` has no variables";
                self.leave(alias.id, Coverage::ByHand, why, route);
                route.keys.set("respond", TomlTable::with("status", 404));
                false
            }
            PathRule::Exact(path) => {
                let (root, name) = value.rsplit_once('/').unwrap_or((".", value));
                keys.set_in(&["files", "root"], folder(root));
                if !path.ends_with(&format!("/{name}")) || path.matches('/').count() > 1 {
                    keys.set_in(&["files", "try"], vec![format!("/{name}")]);
                }
                true
            }
            rule => {
                keys.set_in(&["files", "root"], folder(value));
                if let Some(prefix) = rule.strip_prefix() {
                    keys.set_in(&["rewrite", "strip_prefix"], prefix);
                    if let PathRule::Starts(path) = rule {
                        // nginx would serve /static2 from beside the folder.
                        let regex = format!("^{}(/|$)", values::escape(path));
                        keys.set("path", TomlTable::with("regex", regex));
                    }
                }
                true
            }
        }
    }

    fn try_files(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        tries: &'a NginxDirective,
        route: &mut DraftTable,
    ) -> Answer {
        self.log.translated(tries.id, "files.try");
        let mut items: Vec<String> = Vec::new();
        let (last, files) = match tries.args.split_last() {
            Some((last, files)) => (last.as_str(), files),
            None => return Answer::Files,
        };
        for file in files {
            for item in file_patterns(file, scope, place) {
                if !items.contains(&item) {
                    items.push(item);
                }
            }
        }
        let mut answer = Answer::Files;
        if let Some(name) = last.strip_prefix('@') {
            let _ = name;
            if let Some(location) = server.locations.named(last) {
                self.log
                    .translated(location.id, "upstream of the routes that lead to it");
                let handler = location.scope.clone();
                if let Some(directive) = pass_directive(&handler) {
                    answer = self.pass(server, place, &handler, directive, route);
                    self.request_headers(&handler, place, route);
                    self.hidden_headers(&handler, route);
                    self.cache(&handler, route);
                }
                self.leave_rest(handler.own(), route);
            }
        } else if let Some(status) = last.strip_prefix('=') {
            if status != "404" {
                items.push(format!("={status}"));
            }
        } else {
            answer = self.try_fallback(server, place, last, tries, &mut items, route);
        }
        if items.is_empty() {
            items.push("{path}".to_owned());
        }
        let default = ["{path}", "{path}/index.html"];
        if items != default {
            route.keys.set_in(&["files", "try"], items);
        }
        answer
    }

    /// `Cache-Control` of the location that nginx sends a fallback from.
    fn fallback_file(
        &mut self,
        place: &RoutePlace<'a>,
        target: Option<&NginxScope<'a>>,
        path: &str,
        route: &mut DraftTable,
    ) {
        let Some(scope) = target else { return };
        let mut there = DraftTable::default();
        self.response_headers(scope, place, &mut there, Answer::Files);
        let files = there
            .keys
            .table("files")
            .and_then(|it| it.table("cache_control"));
        if let Some(value) = files.and_then(|it| it.text("*")) {
            route.keys.set_in(&["files", "cache_control", path], value);
        }
    }

    /// The last item of `try_files`: a path that another location answers.
    fn try_fallback(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        last: &str,
        tries: &NginxDirective,
        items: &mut Vec<String>,
        route: &mut DraftTable,
    ) -> Answer {
        let path = last.split('?').next().unwrap_or_default();
        let target = server.locations.for_path(path).map(|it| it.scope.clone());
        let pass = target
            .as_ref()
            .and_then(|scope| Some((scope.clone(), pass_directive(scope)?)));
        let Some((handler, directive)) = pass else {
            match values::template(path, &place.constants, false) {
                Ok(item) if item == path && path.starts_with('/') => {
                    self.fallback_file(place, target.as_ref(), &item, route);
                    items.push(item);
                }
                _ => {
                    let why = "the last item is a file, a status, or a path of the back end";
                    self.leave(tries.id, Coverage::ByHand, why, route);
                }
            }
            return Answer::Files;
        };
        let answer = self.pass(server, place, &handler, directive, route);
        route.keys.remove("rewrite");
        let is_script = directive.name == "fastcgi_pass"
            && (last == path
                || last.ends_with("?$args")
                || last.ends_with("$is_args$args")
                || last.ends_with("?$query_string"));
        if is_script {
            let script = path.trim_start_matches('/');
            let name = route.keys.text("upstream").map(str::to_owned);
            if let Some(table) = name
                .filter(|name| self.draft.upstreams.has(name))
                .map(|name| self.draft.upstreams.table_mut(&name))
                && !table.keys.has("index")
            {
                table.keys.set("index", script);
            }
            return answer;
        }
        let query = last.split_once('?').map_or("$args", |(_, query)| query);
        match values::template(&format!("{path}?{query}"), &place.constants, false) {
            Ok(item) if item.starts_with('/') => items.push(item),
            _ => {
                let why = "the last item is a file, a status, or a path of the back end";
                self.leave(tries.id, Coverage::ByHand, why, route);
            }
        }
        answer
    }
}

/// The items of `files.try` for one of `try_files`.
fn file_patterns(file: &str, scope: &NginxScope<'_>, place: &RoutePlace<'_>) -> Vec<String> {
    let mut file = file
        .replace("$document_root", "")
        .replace("$request_filename", "$uri");
    for (name, value) in place.constants.iter() {
        file = file.replace(&format!("${name}"), value);
    }
    let made = file.replace("${uri}", "{path}").replace("$uri", "{path}");
    if made.contains('$') || !made.starts_with(['/', '{']) {
        return Vec::new();
    }
    match made.strip_suffix('/') {
        Some(folder) if !folder.is_empty() => {
            let indexes = index_names(scope);
            let names = indexes.iter().filter(|name| !name.ends_with(".php"));
            let names: Vec<String> = names.map(|name| format!("{folder}/{name}")).collect();
            if names.is_empty() {
                vec![format!("{folder}/index.html")]
            } else {
                names
            }
        }
        _ => vec![made],
    }
}

/// The index pages of a place.
fn index_names<'a>(scope: &NginxScope<'a>) -> Vec<&'a str> {
    let names = scope
        .find("index")
        .map_or(&[][..], |index| index.args.as_slice());
    let names = names.iter().map(String::as_str);
    names
        .filter(|name| !name.contains('$') && !name.starts_with('/'))
        .take(8)
        .collect()
}

/// A folder without its final slash.
fn folder(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    }
}
