//! The `error_pages` of a site: files by status or class. Called by `site`.
//!
//! # Invariants
//!
//! - Every file exists, is readable and fits in memory, as its loader expects.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::disk;
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
