//! `error_page` and errors of back ends.

use super::NginxTranslator;
use super::locations::NginxLocation;
use super::main_level::Level;
use super::routes::ServerBlock;
use super::scope::NginxScope;
use crate::draft::DraftTable;
use crate::report::Coverage;
use crate::toml_value::TomlValue;

impl<'a> NginxTranslator<'a> {
    /// `error_pages` of a site or route.
    pub(super) fn error_pages(
        &mut self,
        server: &ServerBlock<'a>,
        scope: &NginxScope<'a>,
        table: &mut DraftTable,
        level: Level,
    ) {
        let pages = match level {
            Level::Route => scope.own_named("error_page").to_vec(),
            _ => scope.find_all("error_page").to_vec(),
        };
        for directive in pages {
            let Some((target, statuses)) = directive.args.split_last() else {
                continue;
            };
            let statuses: Vec<&String> =
                statuses.iter().filter(|it| !it.starts_with('=')).collect();
            let changes_status = directive.args.iter().any(|it| it.starts_with('='));
            let file = match target.starts_with('/') && !changes_status {
                true => file_of(server, target),
                false => None,
            };
            let Some(file) = file else {
                let why = match target.starts_with('@') {
                    true => {
                        "an error page is a file. `files` passes missing files to the route's `upstream`"
                    }
                    false => "an error page is a file, and the status of an error stays",
                };
                self.leave(directive.id, Coverage::ByHand, why, table);
                continue;
            };
            for status in statuses {
                let is_error = status
                    .parse::<u16>()
                    .is_ok_and(|it| (400..=599).contains(&it));
                if is_error {
                    table.keys.set_in(&["error_pages", status], file.as_str());
                } else {
                    let why = format!("{status} is no status of an error");
                    self.leave(directive.id, Coverage::ByHand, why, table);
                }
            }
            self.log.translated(directive.id, "error_pages");
        }
        if let Some(directive) = scope.find("recursive_error_pages") {
            self.log
                .note(directive.id, Coverage::NotNeeded, "an error page is a file");
        }
    }

    /// `proxy_intercept_errors`.
    pub(super) fn intercepted_errors(
        &mut self,
        server: &ServerBlock<'a>,
        scope: &NginxScope<'a>,
        route: &mut DraftTable,
    ) {
        for prefix in ["proxy", "fastcgi", "uwsgi", "scgi"] {
            let Some(directive) = scope.find(&format!("{prefix}_intercept_errors")) else {
                continue;
            };
            self.log.translated(directive.id, "intercept_errors");
            if directive.arg(0) != "on" {
                continue;
            }
            let own = matches!(route.keys.get("error_pages"), Some(TomlValue::Table(_)));
            let pages = scope
                .find_all("error_page")
                .iter()
                .chain(server.scope.find_all("error_page"));
            let has_pages = own
                || pages
                    .into_iter()
                    .any(|it| file_of(server, it.args.last().map_or("", String::as_str)).is_some());
            if has_pages {
                route.keys.set("intercept_errors", true);
            }
        }
    }
}

/// The file that nginx would send for a path.
fn file_of(server: &ServerBlock<'_>, path: &str) -> Option<String> {
    if !path.starts_with('/') || path.contains(['$', '?']) {
        return None;
    }
    let location: Option<&NginxLocation<'_>> = server.locations.for_path(path);
    let scope = location.map_or(&server.scope, |it| &it.scope);
    if let Some(alias) = scope.own_named("alias").last() {
        let rule = location.map(|it| &it.rule)?;
        let rest = match rule.strip_prefix() {
            Some(prefix) => path
                .strip_prefix(prefix)?
                .trim_start_matches('/')
                .to_owned(),
            None => return Some(alias.arg(0).to_owned()),
        };
        return Some(format!("{}/{rest}", alias.arg(0).trim_end_matches('/')));
    }
    let root = scope.find("root")?.arg(0);
    (!root.contains('$')).then(|| format!("{}{path}", root.trim_end_matches('/')))
}
