//! The handler of a location: files, an upstream, or both.

use super::NginxTranslator;
use super::common::constants;
use super::locations::PathRule;
use super::routes::{Answer, RoutePlace, ServerBlock};
use super::scope::NginxScope;
use super::syntax::NginxDirective;
use super::upstreams::PassTarget;
use super::values;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlTable;

const PASSES: [&str; 4] = ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass"];

impl<'a> NginxTranslator<'a> {
    /// Writes the handler of a route.
    pub(super) fn content(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
    ) -> Answer {
        if let Some(directive) = pass_directive(scope) {
            if let Some(tries) = scope.own_named("try_files").last() {
                self.log.note(
                    tries.id,
                    Coverage::BuiltIn,
                    "a script that is missing is 404",
                );
            }
            return self.pass(server, place, scope, directive, route);
        }
        for name in [
            "grpc_pass",
            "memcached_pass",
            "content_by_lua_block",
            "content_by_lua_file",
        ] {
            if let Some(directive) = scope.own_named(name).last() {
                if let Some(comment) = self.log.note_from_table(directive.id) {
                    route.comment(comment);
                }
                route.keys.set("respond", TomlTable::with("status", 501));
                return Answer::Own;
            }
        }
        for name in ["stub_status", "empty_gif", "api", "status"] {
            if let Some(directive) = scope.own_named(name).last() {
                if let Some(comment) = self.log.note_from_table(directive.id) {
                    route.comment(comment);
                }
                route.keys.set("respond", TomlTable::with("status", 404));
                return Answer::Own;
            }
        }
        self.files(server, place, scope, route)
    }

    /// Writes the upstream of a route.
    pub(super) fn pass(
        &mut self,
        server: &ServerBlock<'a>,
        place: &RoutePlace<'a>,
        scope: &NginxScope<'a>,
        directive: &NginxDirective,
        route: &mut DraftTable,
    ) -> Answer {
        let mut value = values::with_constants(directive.arg(0), &place.constants);
        let has_uri_variable =
            value.ends_with("$request_uri") || value.ends_with("$uri$is_args$args");
        if has_uri_variable {
            let end = value.rfind("$request_uri").or_else(|| value.rfind("$uri"));
            value.truncate(end.unwrap_or(value.len()));
        }
        let Some(target) = PassTarget::parse(&directive.name, &value) else {
            let why = "a request has one upstream, which its route names. Write a route for each";
            self.leave(directive.id, Coverage::ByHand, why, route);
            route.keys.set("respond", TomlTable::with("status", 502));
            return Answer::Own;
        };
        let mut settings = self.upstream_settings(scope, &target);
        if target.protocol != "http" {
            self.gateway_settings(server, scope, &target, &mut settings, route);
        }
        let sends_own_name = target.protocol == "http"
            && !settings.has("host")
            && !(scope.find_all("proxy_set_header").iter())
                .any(|it| it.arg(0).eq_ignore_ascii_case("host"));
        let name = self.upstream(&target, settings);
        if sends_own_name {
            self.draft.upstreams.table_mut(&name).comment(format!(
                "{}: nginx sends `Host: {}` here, Penstock the client's. `host` changes that",
                self.log.place(directive.id),
                target.server
            ));
        }
        route.keys.set("upstream", name);
        self.log.translated(directive.id, "upstream");
        let breaks = scope
            .own_named("rewrite")
            .iter()
            .any(|it| it.args.iter().any(|arg| arg == "break"));
        if let Some(uri) = target
            .uri
            .as_deref()
            .filter(|_| !breaks && !has_uri_variable)
        {
            self.replace_path(place, uri, directive, route);
        }
        for directive in scope.own_named("proxy_pass_request_body") {
            let why = "a service that decides gets no body; others get it whole";
            self.log.note(directive.id, Coverage::BuiltIn, why);
        }
        // nginx obeys `X-Accel-Redirect` of any back end.
        if server.has_internal_locations() && scope.find("proxy_ignore_headers").is_none() {
            route.keys.set("sendfile", true);
        }
        if let Some(redirect) = scope.find("proxy_redirect") {
            let why = "`Location` of a back end's own address is put right; `response_paths`";
            self.log.note(redirect.id, Coverage::BuiltIn, why);
        }
        Answer::BackEnd
    }

    /// The path behind `proxy_pass http://name/path`: it takes the place of the location's prefix.
    fn replace_path(
        &mut self,
        place: &RoutePlace<'a>,
        uri: &str,
        directive: &NginxDirective,
        route: &mut DraftTable,
    ) {
        if uri.contains('$') {
            match values::template(uri, &place.constants, place.rule.regex().is_some()) {
                Ok(to) if place.rule.regex().is_some() && is_target(&to) => {
                    let regex = place.rule.regex().unwrap_or_default();
                    route.keys.set_in(
                        &["rewrite", "regex"],
                        format!(
                            "^.*?{}.*$",
                            regex.trim_start_matches('^').trim_end_matches('$')
                        ),
                    );
                    route.keys.set_in(&["rewrite", "to"], to);
                }
                _ => {
                    let why = "`rewrite.to` has the path, with placeholders";
                    self.leave(directive.id, Coverage::ByHand, why, route);
                }
            }
            return;
        }
        if !is_target(uri) {
            let why = "`rewrite.to` has the path, in ASCII and without spaces";
            self.leave(directive.id, Coverage::ByHand, why, route);
            return;
        }
        let plain = uri.trim_end_matches('/');
        let simple = !uri.contains('?');
        let keys = &mut route.keys;
        match &place.rule {
            PathRule::Any if uri == "/" => {}
            PathRule::Any if simple && uri.ends_with('/') => {
                keys.set_in(&["rewrite", "add_prefix"], plain);
            }
            PathRule::Any => {
                keys.set_in(&["rewrite", "regex"], "^/(.*)$");
                keys.set_in(&["rewrite", "to"], format!("{uri}{{re.1}}"));
            }
            PathRule::Exact(path) if path == uri => {}
            PathRule::Exact(_) => {
                keys.set_in(&["rewrite", "regex"], "^.*$");
                keys.set_in(&["rewrite", "to"], uri);
            }
            rule @ (PathRule::Below(_) | PathRule::Starts(_)) => {
                let slash = if matches!(rule, PathRule::Below(_)) {
                    "/"
                } else {
                    ""
                };
                let Some(prefix) = rule.strip_prefix() else {
                    return;
                };
                if uri == format!("{prefix}{slash}") {
                    return;
                }
                let same_end = uri.ends_with('/') || slash.is_empty();
                if simple && same_end {
                    keys.set_in(&["rewrite", "strip_prefix"], prefix);
                    if !plain.is_empty() {
                        keys.set_in(&["rewrite", "add_prefix"], plain);
                    }
                } else {
                    let regex = format!("^{}{slash}(.*)$", values::escape(prefix));
                    keys.set_in(&["rewrite", "regex"], regex);
                    keys.set_in(&["rewrite", "to"], format!("{uri}{{re.1}}"));
                }
            }
            PathRule::Regex(_) => {
                let why = "a location with an expression has no path to replace";
                self.leave(directive.id, Coverage::ByHand, why, route);
                return;
            }
        }
        if route.keys.has("rewrite") {
            route.keys.set_in(&["rewrite", "response_paths"], false);
        }
    }

    /// `root`, `index` and `params` of a FastCGI, uwsgi or SCGI upstream.
    fn gateway_settings(
        &mut self,
        server: &ServerBlock<'a>,
        scope: &NginxScope<'a>,
        target: &PassTarget,
        settings: &mut TomlTable,
        route: &mut DraftTable,
    ) {
        if let Some(root) = scope.find("root").or_else(|| server.scope.find("root"))
            && let value = values::with_constants(root.arg(0), &constants(scope))
            && !value.contains('$')
        {
            settings.set("root", value);
            self.log.translated(root.id, "root of the upstream");
        }
        if target.protocol == "fastcgi" {
            if let Some(index) = scope.find("fastcgi_index") {
                settings.set("index", index.arg(0));
                self.log.translated(index.id, "index of the upstream");
            } else if scope
                .find("index")
                .is_some_and(|it| it.args.iter().any(|it| it == "index.php"))
            {
                settings.set("index", "index.php");
            }
        }
        let mut params = TomlTable::default();
        let all = scope
            .find_all(&format!("{}_param", target.protocol))
            .to_vec();
        for param in all {
            let (name, value) = (param.arg(0), param.arg(1));
            if is_usual_param(name, value) {
                self.log
                    .note(param.id, Coverage::BuiltIn, "the usual variables are there");
            } else if value.contains('$') {
                let why = "values of `params` have no variables";
                self.leave(param.id, Coverage::ByHand, why, route);
            } else {
                params.set(name, value);
                self.log.translated(param.id, "params");
            }
        }
        if !params.is_empty() {
            settings.set("params", params);
        }
    }
}

/// The directive of a block that passes requests on.
pub(super) fn pass_directive<'a>(scope: &NginxScope<'a>) -> Option<&'a NginxDirective> {
    PASSES
        .iter()
        .find_map(|name| scope.own_named(name).last().copied())
}

/// Whether a text may be the target of a rewrite.
pub(super) fn is_target(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Parameters that the protocol has in any case.
fn is_usual_param(name: &str, value: &str) -> bool {
    const USUAL: [&str; 30] = [
        "SCRIPT_FILENAME",
        "SCRIPT_NAME",
        "QUERY_STRING",
        "REQUEST_METHOD",
        "CONTENT_TYPE",
        "CONTENT_LENGTH",
        "REQUEST_URI",
        "DOCUMENT_URI",
        "DOCUMENT_ROOT",
        "SERVER_PROTOCOL",
        "REQUEST_SCHEME",
        "HTTPS",
        "GATEWAY_INTERFACE",
        "SERVER_SOFTWARE",
        "REMOTE_ADDR",
        "REMOTE_PORT",
        "REMOTE_USER",
        "SERVER_ADDR",
        "SERVER_PORT",
        "SERVER_NAME",
        "REDIRECT_STATUS",
        "PATH_INFO",
        "PATH_TRANSLATED",
        "HTTP_PROXY",
        "HTTP_HOST",
        "UWSGI_SCHEME",
        "SSL_CLIENT_CERT",
        "SSL_CLIENT_S_DN",
        "SSL_CLIENT_VERIFY",
        "HTTP_X_FORWARDED_FOR",
    ];
    USUAL.contains(&name)
        && (value.contains('$')
            || value.is_empty()
            || name == "REDIRECT_STATUS"
            || name == "GATEWAY_INTERFACE"
            || name == "HTTPS")
}
