//! The `error_pages` of a site or a route: files by status or class, and which errors of back ends
//! get them, too (`intercept_errors`). Called by `site` and `route`.
//!
//! # Invariants
//!
//! - Every file exists, is readable and fits in memory, as its loader expects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::disk;
use crate::model::{Route, Site};
use crate::section::Section;

/// Reads the pages; a class is kept under its first digit.
pub(crate) fn read(site: &Section<'_>) -> BTreeMap<u16, PathBuf> {
    let mut pages = BTreeMap::new();
    for (status, file) in site.string_map("error_pages") {
        let Some(code) = parse_status_or_class(&status) else {
            site.report_invalid_item("error_pages", &status, file.offset, STATUS_EXPECTED);
            continue;
        };
        if file.value.is_empty() || file.value.contains('\0') {
            site.report_invalid_item(&status, &file.value, file.offset, "a path");
            continue;
        }
        let path = site.findings.resolve_path(&file.value);
        match disk::check_error_page("error_pages", &path) {
            Ok(()) => drop(pages.insert(code, path)),
            Err(problem) => site.report(file.offset, problem),
        }
    }
    pages
}

/// Reads which errors of back ends get a page: statuses, and classes by their first digits.
pub(crate) fn read_intercepted(table: &Section<'_>) -> Option<BTreeSet<u16>> {
    if table.is_list("intercept_errors") {
        let statuses = table.list("intercept_errors", parse_status_or_class)?;
        return Some(statuses.into_iter().map(|status| status.value).collect());
    }
    let is_on = table.get::<bool>("intercept_errors")?;
    Some(if is_on {
        BTreeSet::from([4, 5])
    } else {
        BTreeSet::new()
    })
}

/// Reports errors that are intercepted for pages that nothing has.
pub(crate) fn check_intercepted(table: &Section<'_>, site: &Site) {
    if !site.error_pages.is_empty() {
        return;
    }
    let routes = site.routes.iter();
    let mut lacking = routes.filter(|route| route.error_pages.is_empty());
    let is_idle = |route: &Route| {
        route
            .intercept_errors
            .as_ref()
            .is_some_and(|it| !it.is_empty())
    };
    if !site.intercept_errors.is_empty() && site.routes.iter().all(|it| it.error_pages.is_empty()) {
        table.report_key("intercept_errors", NO_PAGES);
    } else if let Some(route) = lacking.find(|route| is_idle(route)) {
        table.report_key("routes", format!("route {}: {NO_PAGES}", route.path));
    }
}

const NO_PAGES: &str = "`intercept_errors` needs `error_pages`, which neither the site nor its \
     route has";

/// What a message says was expected of an item of `intercept_errors`.
pub(crate) const INTERCEPTED_EXPECTED: &str =
    "a status from \"400\" to \"599\", \"4xx\" or \"5xx\"";

/// Parses the status of an error, or the first digit of a class of errors.
fn parse_status_or_class(text: &str) -> Option<u16> {
    match text {
        "4xx" => Some(4),
        "5xx" => Some(5),
        _ if text.len() == 3 => {
            let status = text.parse().ok();
            status.filter(|status| (400..=599).contains(status))
        }
        _ => None,
    }
}

const STATUS_EXPECTED: &str = "a status from 400 to 599, \"4xx\" or \"5xx\"";

#[cfg(test)]
mod tests;
