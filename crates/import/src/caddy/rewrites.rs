//! `rewrite`, `uri` and `try_files`.

use super::CaddyTranslator;
use super::placeholders::template;
use super::routes::MatchedDirective;
use crate::draft::DraftTable;
use crate::nginx::escape;
use crate::report::Coverage;

impl<'d> CaddyTranslator<'_> {
    /// `rewrite` and `uri` in front of a handler.
    pub(super) fn rewrite(&mut self, modifier: &MatchedDirective<'d>, route: &mut DraftTable) {
        let directive = modifier.directive;
        let args = modifier.args;
        let arg = |index: usize| args.get(index).map(String::as_str).unwrap_or_default();
        let mut rewrite = route.keys.table("rewrite").cloned().unwrap_or_default();
        let done = match (directive.name.as_str(), arg(0)) {
            ("rewrite", _) => {
                let to = template(arg(0)).map(|to| to.replace("{uri}", "{path}"));
                match to {
                    Ok(to) if is_target(&to) => {
                        match to
                            .strip_suffix("{path}")
                            .filter(|it| !it.contains(['{', '?']) && it.len() > 1)
                        {
                            Some(prefix) => rewrite.set("add_prefix", prefix.trim_end_matches('/')),
                            None => {
                                rewrite.set("regex", route_regex(route));
                                rewrite.set("to", to);
                            }
                        }
                        true
                    }
                    _ => false,
                }
            }
            (_, "strip_prefix") if is_prefix(arg(1)) => {
                rewrite.set("strip_prefix", arg(1).trim_end_matches('/'));
                true
            }
            (_, "strip_suffix") if !arg(1).contains('{') && !arg(1).is_empty() => {
                rewrite.set("regex", format!("^/(.*){}$", escape(arg(1))));
                rewrite.set("to", "/{re.1}");
                true
            }
            (_, "replace")
                if is_prefix(arg(1)) && is_prefix(arg(2)) && starts_all(route, arg(1)) =>
            {
                rewrite.set("strip_prefix", arg(1).trim_end_matches('/'));
                rewrite.set("add_prefix", arg(2).trim_end_matches('/'));
                true
            }
            (_, "path_regexp")
                if arg(1).starts_with('^') && penstock_config::PathRegex::new(arg(1)).is_ok() =>
            {
                let to = with_groups(arg(2));
                let is_good = is_target(&to);
                if is_good {
                    rewrite.set("regex", arg(1).replace("${", "$${"));
                    rewrite.set("to", to);
                }
                is_good
            }
            _ => false,
        };
        if !done {
            if arg(0) == "query" {
                return;
            }
            let why = "`rewrite` has `strip_prefix`, `add_prefix`, or `regex` and `to`";
            return self.leave(directive.id, Coverage::ByHand, why, route);
        }
        if route.keys.has("upstream") {
            rewrite.set("response_paths", false);
        }
        route.keys.set("rewrite", rewrite);
        self.log.translated(directive.id, "rewrite");
    }

    /// `try_files` in front of files.
    pub(super) fn try_files(
        &mut self,
        modifier: &MatchedDirective<'d>,
        answer: &MatchedDirective<'d>,
        route: &mut DraftTable,
    ) {
        let directive = modifier.directive;
        if !route.keys.has("files") {
            let why = "the server gets each request: `files` of the same route come before it";
            return self.leave(directive.id, Coverage::ByHand, why, route);
        }
        let mut items: Vec<String> = Vec::new();
        let is_php = answer.directive.name == "php_fastcgi";
        for file in modifier.args {
            let item = match file.as_str() {
                "{path}/" => "{path}/index.html".to_owned(),
                status if status.starts_with('=') => status.to_owned(),
                script if script.contains(".php") && is_php => continue,
                text => match template(text) {
                    Ok(item) if item.starts_with(['/', '{']) => item,
                    _ => {
                        let why = format!("`files.try` has no item like `{text}`");
                        self.leave(directive.id, Coverage::ByHand, why, route);
                        continue;
                    }
                },
            };
            let item = if item == "=404" { continue } else { item };
            if !items.contains(&item) {
                items.push(item);
            }
        }
        // Caddy serves the index page of a folder that it finds.
        if items.iter().any(|it| it == "{path}")
            && !items
                .iter()
                .any(|it| it == "{path}/index.html" || it == "/index.html")
        {
            items.push("{path}/index.html".to_owned());
        }
        if !items.is_empty() {
            route.keys.set_in(&["files", "try"], items);
        }
        self.log.translated(directive.id, "files.try");
    }
}

/// The expression of a route, by which a rewrite has its groups.
fn route_regex(route: &DraftTable) -> String {
    let regex = route.keys.table("path").and_then(|it| it.text("regex"));
    match regex {
        Some(regex) => format!(
            "^.*?{}.*$",
            regex.trim_start_matches('^').trim_end_matches('$')
        ),
        None => "^.*$".to_owned(),
    }
}

fn is_prefix(text: &str) -> bool {
    text.starts_with('/') && text.len() > 1 && !text.contains(['{', '*', ' ', '?'])
}

/// Whether all paths of a route begin so.
fn starts_all(route: &DraftTable, prefix: &str) -> bool {
    route.keys.text("path").is_some_and(|path| {
        path.trim_end_matches('*')
            .starts_with(prefix.trim_end_matches('/'))
    })
}

fn is_target(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// `$1` as `{re.1}`.
fn with_groups(text: &str) -> String {
    let mut made = text.to_owned();
    for digit in 1..=9 {
        made = made.replace(&format!("${{{digit}}}"), &format!("{{re.{digit}}}"));
        made = made.replace(&format!("${digit}"), &format!("{{re.{digit}}}"));
    }
    made
}
