//! What answers a route, and the directives in front of it.

use super::CaddyTranslator;
use super::global::{compression, size};
use super::headers::add_operation;
use super::placeholders::{environment, template};
use super::routes::{BlockContext, MatchedDirective};
use super::syntax::CaddyDirective;
use crate::draft::DraftTable;
use crate::matcher::RequestMatcher;
use crate::report::Coverage;
use crate::toml_value::TomlTable;
use crate::units;

impl<'d> CaddyTranslator<'_> {
    /// Writes the answer of a route; whether the directives in front of it count.
    pub(super) fn write_answer(
        &mut self,
        matched: &MatchedDirective<'d>,
        context: &BlockContext<'d>,
        requests: &RequestMatcher,
        is_php_with_files: bool,
        route: &mut DraftTable,
    ) -> bool {
        let directive = matched.directive;
        match directive.name.as_str() {
            "redir" => self.redirect(matched, route),
            "respond" => self.respond(matched, route),
            "error" => self.error(matched, route),
            "abort" => {
                let why = "each request gets an answer: 403 is cheap";
                self.leave(directive.id, Coverage::NotOffered, why, route);
                route.keys.set("respond", TomlTable::with("status", 403));
                true
            }
            "metrics" => {
                if let Some(comment) = self.log.note_from_table(directive.id) {
                    route.comment(comment);
                }
                route.keys.set("respond", TomlTable::with("status", 404));
                false
            }
            "reverse_proxy" => self.reverse_proxy(matched, route),
            "php_fastcgi" => {
                let root = root_of(context, requests);
                if is_php_with_files && let Some(root) = &root {
                    route.keys.set_in(&["files", "root"], root.as_str());
                }
                self.php(matched, root, route)
            }
            _ => self.file_server(matched, context, requests, route),
        }
    }

    fn redirect(&mut self, matched: &MatchedDirective<'d>, route: &mut DraftTable) -> bool {
        let directive = matched.directive;
        let to = matched.args.first().map(String::as_str).unwrap_or_default();
        let status = match matched.args.get(1).map(String::as_str) {
            None | Some("temporary" | "html") => 302,
            Some("permanent") => 301,
            Some(code) => units::number(code).unwrap_or(0),
        };
        let to = template(to).map_err(|word| format!("no placeholder stands for `{word}`"));
        let begins_well = |to: &String| {
            ["/", "http://", "https://", "{scheme}://", "${"]
                .iter()
                .any(|start| to.starts_with(start))
                && !to.starts_with("//")
        };
        let is_plain = |to: &String| to.bytes().all(|byte| byte > b' ' && byte != 0x7f);
        match to {
            Ok(to)
                if begins_well(&to)
                    && is_plain(&to)
                    && matches!(status, 301 | 302 | 303 | 307 | 308) =>
            {
                match status {
                    302 => route.keys.set("redirect", to),
                    status => {
                        let mut table = TomlTable::with("to", to);
                        table.set("status", status);
                        route.keys.set("redirect", table);
                    }
                }
                if route
                    .keys
                    .text("path")
                    .is_some_and(|path| redirect_target(route) == Some(path))
                {
                    let why = "a redirect to its own path never arrives";
                    self.leave(directive.id, Coverage::ByHand, why, route);
                    route.keys.remove("redirect");
                    route.keys.set("respond", TomlTable::with("status", 404));
                    return true;
                }
                self.log.translated(directive.id, "redirect");
            }
            Ok(_) => {
                let why = "a redirect leads to a URL or a path, with 301, 302, 303, 307 or 308";
                self.leave(directive.id, Coverage::ByHand, why, route);
                route.keys.set("respond", TomlTable::with("status", 404));
            }
            Err(why) => {
                self.leave(directive.id, Coverage::ByHand, why, route);
                route.keys.set("respond", TomlTable::with("status", 404));
            }
        }
        true
    }

    fn respond(&mut self, matched: &MatchedDirective<'d>, route: &mut DraftTable) -> bool {
        let directive = matched.directive;
        let (mut body, mut status) = (None, None);
        match matched.args {
            [one] => match units::number(one).filter(|_| one.len() == 3) {
                Some(code) => status = Some(code),
                None => body = Some(one.as_str()),
            },
            [text, code, ..] => {
                body = Some(text);
                status = units::number(code);
            }
            [] => {}
        }
        for inner in directive.children() {
            if inner.name == "body" {
                body = Some(inner.arg(0));
                self.log.translated(inner.id, "respond.body");
            }
        }
        self.write_respond(directive, status.unwrap_or(200), body, route);
        self.leave_rest(directive.children(), route);
        true
    }

    fn error(&mut self, matched: &MatchedDirective<'d>, route: &mut DraftTable) -> bool {
        let code = matched
            .args
            .last()
            .and_then(|it| units::number(it))
            .unwrap_or(500);
        self.write_respond(matched.directive, code, None, route);
        for inner in matched.directive.children() {
            self.log
                .note(inner.id, Coverage::NotNeeded, "an error shows its page");
        }
        true
    }

    fn write_respond(
        &mut self,
        directive: &CaddyDirective,
        status: u64,
        body: Option<&str>,
        route: &mut DraftTable,
    ) {
        let mut respond = TomlTable::default();
        if !(200..=599).contains(&status) {
            let why = format!("no answer has the status {status}");
            self.leave(directive.id, Coverage::ByHand, why, route);
            route.keys.set("respond", TomlTable::with("status", 404));
            return;
        }
        if status != 200 {
            respond.set("status", status);
        }
        if let Some(body) = body.filter(|it| !it.is_empty() && !matches!(status, 204 | 205 | 304)) {
            match template(body) {
                Ok(text) => respond.set("body", text),
                Err(word) => {
                    let why = format!("no placeholder stands for `{word}`");
                    self.leave(directive.id, Coverage::ByHand, why, route);
                }
            }
        }
        route.keys.set("respond", respond);
        self.log.translated(directive.id, "respond");
    }

    fn file_server(
        &mut self,
        matched: &MatchedDirective<'d>,
        context: &BlockContext<'d>,
        requests: &RequestMatcher,
        route: &mut DraftTable,
    ) -> bool {
        let directive = matched.directive;
        let own = directive.child("root").map(|it| environment(it.arg(0)));
        let root = own.or_else(|| root_of(context, requests));
        if root.is_none() {
            route.comment("Caddy serves the folder in which it starts: write `files.root`");
        }
        route
            .keys
            .set_in(&["files", "root"], root.as_deref().unwrap_or("."));
        self.log.translated(directive.id, "files");
        if matched.args.iter().any(|it| it == "browse") {
            route.keys.set_in(&["files", "listing"], true);
        }
        for option in directive.children() {
            let key = match option.name.as_str() {
                "root" => "files.root",
                "browse" => {
                    route.keys.set_in(&["files", "listing"], true);
                    "files.listing"
                }
                "hide" => {
                    let patterns: Vec<String> =
                        option.args.iter().filter_map(|it| hidden(it)).collect();
                    if patterns.len() != option.args.len() {
                        let why = "`files.hide` has names, folders and paths below the root";
                        self.leave(option.id, Coverage::ByHand, why, route);
                    }
                    let mut all = vec!["default".to_owned()];
                    all.extend(patterns);
                    route.keys.set_in(&["files", "hide"], all);
                    "files.hide"
                }
                "index" => {
                    let mut tries = vec!["{path}".to_owned()];
                    tries.extend(option.args.iter().map(|name| format!("{{path}}/{name}")));
                    route.keys.set_in(&["files", "try"], tries);
                    "files.try"
                }
                "precompressed" => {
                    let known = option
                        .args
                        .iter()
                        .filter(|it| ["zstd", "br", "gzip"].contains(&it.as_str()));
                    let known: Vec<&str> = known.map(String::as_str).collect();
                    if !known.is_empty() {
                        route.keys.set_in(&["files", "precompressed"], known);
                    }
                    "files.precompressed"
                }
                _ => continue,
            };
            self.log.translated(option.id, key);
        }
        self.leave_rest(directive.children(), route);
        true
    }

    /// Applies one directive in front of a route.
    pub(super) fn apply_modifier(
        &mut self,
        modifier: &MatchedDirective<'d>,
        answer: &MatchedDirective<'d>,
        route: &mut DraftTable,
    ) {
        let directive = modifier.directive;
        let has_back_end = route.keys.has("upstream");
        let has_handler = has_back_end || route.keys.has("files");
        // A redirect is sent before anything asks for a password.
        let is_redirect = answer.directive.name == "redir";
        match directive.name.as_str() {
            "root" => self.log.translated(directive.id, "files.root"),
            "header" => self.fields(modifier, "response_headers", route),
            "request_header" if has_back_end => self.fields(modifier, "request_headers", route),
            "request_body" if has_back_end => {
                for inner in directive.children() {
                    if let (true, Some(bytes)) =
                        (inner.name == "max_size", size(&environment(inner.arg(0))))
                    {
                        route.keys.set("max_body_size", bytes);
                        self.log.translated(inner.id, "max_body_size");
                    }
                }
                self.log.translated(directive.id, "max_body_size");
                self.leave_rest(directive.children(), route);
            }
            "rewrite" | "uri" if has_handler => self.rewrite(modifier, route),
            "try_files" if has_handler => self.try_files(modifier, answer, route),
            "basic_auth" | "basicauth" if !is_redirect => self.basic_auth(modifier, route),
            "forward_auth" if !is_redirect => self.forward_auth(modifier, route),
            "encode" if has_handler && !self.site_encodes.contains(&directive.id) => {
                let value = self.encode(directive, modifier.args);
                route.keys.set("compress", value);
            }
            _ => {}
        }
    }

    /// The value of `compress` for an `encode`.
    pub(super) fn encode(&mut self, directive: &CaddyDirective, args: &[String]) -> TomlTable {
        let inner = directive.children().iter().map(|it| it.name.as_str());
        let names = args.iter().map(String::as_str).chain(inner);
        let mut algorithms: Vec<&str> = names
            .filter(|it| ["zstd", "br", "gzip"].contains(it))
            .collect();
        if algorithms.is_empty() {
            algorithms = vec!["zstd", "gzip"];
        }
        let mut table = compression(&algorithms);
        for option in directive.children() {
            match (option.name.as_str(), units::number(option.arg(0))) {
                ("minimum_length", Some(number)) => table.set("min_size", number),
                ("gzip", Some(level @ 1..=9)) => table.set("gzip_level", level),
                ("gzip" | "zstd" | "br", _) => {}
                _ => continue,
            }
            self.log.translated(option.id, "compress");
        }
        self.log.translated(directive.id, "compress");
        table
    }

    fn fields(&mut self, modifier: &MatchedDirective<'d>, key: &str, route: &mut DraftTable) {
        let directive = modifier.directive;
        let mut table = route.keys.table(key).cloned().unwrap_or_default();
        if !modifier.args.is_empty() {
            let outcome = add_operation(&mut table, modifier.args);
            self.note_field(directive, key, outcome, route);
        } else {
            self.log.translated(directive.id, key);
        }
        for inner in directive.children() {
            if inner.name == "defer" || inner.name == "match" {
                continue;
            }
            let words: Vec<String> = std::iter::once(inner.name.clone())
                .chain(inner.args.iter().cloned())
                .collect();
            let outcome = add_operation(&mut table, &words);
            self.note_field(inner, key, outcome, route);
        }
        if !table.is_empty() {
            route.keys.set(key, table);
        }
        self.leave_rest(directive.children(), route);
    }

    fn basic_auth(&mut self, modifier: &MatchedDirective<'d>, route: &mut DraftTable) {
        let directive = modifier.directive;
        route
            .keys
            .set_in(&["basic_auth", "users", "file"], "htpasswd");
        let place = self.log.place(directive.id);
        route.comment(format!(
            "Write the file htpasswd: a line NAME:HASH for each user of {place}"
        ));
        self.log.note(
            directive.id,
            Coverage::ByHand,
            "`basic_auth.users` is a file: a line NAME:HASH for each user",
        );
        for user in directive.children() {
            self.log.note(
                user.id,
                Coverage::ByHand,
                "a line of the file of `basic_auth.users`",
            );
        }
    }

    fn forward_auth(&mut self, modifier: &MatchedDirective<'d>, route: &mut DraftTable) {
        let directive = modifier.directive;
        let server = modifier
            .args
            .first()
            .and_then(|it| super::addresses::ServerAddress::parse(it, "80"));
        let server = server.filter(|it| !it.address.starts_with("unix:"));
        let Some(server) = server else {
            let why = "`forward_auth.url` is the address of the service";
            self.leave(directive.id, Coverage::ByHand, why, route);
            return self.leave_rest(directive.children(), route);
        };
        let scheme = if server.has_tls { "https" } else { "http" };
        let mut uri = String::from("/");
        let mut fields: Vec<String> = Vec::new();
        for option in directive.children() {
            match option.name.as_str() {
                "uri" => uri = environment(option.arg(0)),
                "copy_headers" => {
                    let inner = option.children().iter().map(|it| it.name.clone());
                    for name in option.args.iter().cloned().chain(inner) {
                        match name.split_once('>') {
                            Some(_) => {
                                let why = "`forward_auth.copy_headers` keeps the name of the field";
                                self.leave(option.id, Coverage::ByHand, why, route);
                            }
                            None => fields.push(name),
                        }
                    }
                    for inner in option.children() {
                        self.log.translated(inner.id, "forward_auth.copy_headers");
                    }
                }
                _ => continue,
            }
            self.log.translated(option.id, "forward_auth");
        }
        route.keys.set_in(
            &["forward_auth", "url"],
            format!("{scheme}://{}{uri}", server.address),
        );
        if !fields.is_empty() {
            route.keys.set_in(&["forward_auth", "copy_headers"], fields);
        }
        self.log.translated(directive.id, "forward_auth");
        self.leave_rest(directive.children(), route);
    }
}

/// The root that holds for requests: that of the last `root` in front of them.
fn root_of(context: &BlockContext<'_>, requests: &RequestMatcher) -> Option<String> {
    let roots = context
        .modifiers
        .iter()
        .filter(|it| it.directive.name == "root");
    let mut holding = roots.filter(|it| it.matcher.contains(requests));
    let last = holding.next_back()?;
    let path = environment(last.args.last()?);
    let is_plain = !path.contains('{') || path.contains("${");
    (!path.is_empty() && is_plain).then_some(path)
}

fn redirect_target(route: &DraftTable) -> Option<&str> {
    let table = route.keys.table("redirect").and_then(|it| it.text("to"));
    table.or_else(|| route.keys.text("redirect"))
}

/// A pattern of `files.hide`.
fn hidden(pattern: &str) -> Option<String> {
    let is_name = !pattern.contains('/') && !pattern.contains('{');
    (is_name && penstock_config::HidePattern::parse(pattern).is_some()).then(|| pattern.to_owned())
}
