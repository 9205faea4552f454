//! What a route answers by itself: `redirect` and `respond`.
//!
//! Called by `route`.
//!
//! # Invariants
//! - A redirect has a status that redirects, and groups that its route's expression has.
//! - The file of an answer exists and fits in memory, as its loader expects.

use crate::disk;
use crate::findings::LocatedValue;
use crate::headers::{read_set_fields, read_template, read_value_template};
use crate::model::{Redirect, Respond};
use crate::section::{Keys as _, Section};
use crate::values::{PathPattern, Template};

/// Statuses that redirect (RFC 9110 §15.4).
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// Reads the redirect of a route with this path.
pub(crate) fn read_redirect(route: &Section<'_>, path: &PathPattern) -> Option<Redirect> {
    let mut status = None;
    let (table, key);
    let text = match route.is_table("redirect") {
        false => {
            key = "redirect";
            route.text(key)
        }
        true => {
            table = route.table("redirect")?;
            key = "to";
            let mut defaults = Redirect::new(Template::default());
            defaults.read_keys(&table);
            if !REDIRECTS.contains(&defaults.status) {
                let problem = format!(
                    "`status` {} does not redirect: expected 301, 302, 303, 307 or 308",
                    defaults.status
                );
                table.report_key("status", problem);
            }
            status = Some(defaults.status);
            table.text(key)
        }
    }?;
    let to = read_target(route, key, &text, path)?;
    let mut redirect = Redirect::new(to);
    redirect.status = status.unwrap_or(redirect.status);
    Some(redirect)
}

/// The target of a redirect: a URL, or a path on the same host.
fn read_target(
    route: &Section<'_>,
    key: &str,
    text: &LocatedValue<&str>,
    path: &PathPattern,
) -> Option<Template> {
    let is_target = ["/", "http://", "https://", "{scheme}://"]
        .iter()
        .any(|start| text.value.starts_with(start));
    let is_plain = |byte: u8| byte > b' ' && byte != 0x7f;
    if !is_target || text.value.starts_with("//") || !text.value.bytes().all(is_plain) {
        let expected = crate::options::expected::REDIRECT_TARGET;
        route.report_invalid_item(key, text.value, text.offset, expected);
        return None;
    }
    if matches!(path, PathPattern::Exact(own) if own == text.value) {
        let problem = format!("`{key}` leads to the route's own path: browsers would never arrive");
        route.report(text.offset, problem);
    }
    let owned = LocatedValue::new(text.value.to_owned(), text.offset);
    let template = read_value_template(route, key, &owned)?;
    check_captures(route, &template, path, text.offset);
    Some(template)
}

/// Reports groups that the expression of a route does not have.
pub(crate) fn check_captures(
    table: &Section<'_>,
    template: &Template,
    path: &PathPattern,
    at: usize,
) {
    let regex = match path {
        PathPattern::Regex(regex) => Some(regex),
        _ => None,
    };
    for group in template.captures() {
        if !regex.is_some_and(|regex| regex.has_group(group)) {
            let problem = format!(
                "`{{re.{group}}}` stands for nothing: the route's `path` has no such group"
            );
            table.report(at, problem);
        }
    }
}

/// Reads the answer of a route with this path.
pub(crate) fn read_respond(route: &Section<'_>, path: &PathPattern) -> Option<Respond> {
    let table = route.table("respond")?;
    let mut respond = Respond::default();
    respond.read_keys(&table);
    if let Some(text) = table.text("body") {
        let owned = LocatedValue::new(text.value.to_owned(), text.offset);
        respond.body = read_template(&table, "body", &owned);
        if let Some(body) = &respond.body {
            check_captures(&table, body, path, text.offset);
        }
    }
    if let Some(file) = table.path("file") {
        if let Err(problem) = disk::check_error_page("file", &file.value) {
            table.report(file.offset, problem);
        }
        respond.file = Some(file.value);
    }
    if table.has("body") {
        table.report_not_applicable("file");
    }
    if matches!(respond.status, 204 | 205 | 304) && (table.has("body") || table.has("file")) {
        let problem = format!("a response with status {} has no body", respond.status);
        table.report_key("status", problem);
    }
    respond.headers = read_set_fields(&table, "headers");
    Some(respond)
}

#[cfg(test)]
mod tests;
