//! The `error_pages` of a site: files by status or class.
//!
//! Called by `site`. What must stay true: every file is there, can be read and fits in memory, as the
//! one who loads it expects.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::disk;
use crate::section::Section;

/// Reads the pages; a class is kept under its first digit.
pub(crate) fn read(site: &Section<'_>) -> BTreeMap<u16, PathBuf> {
    let mut pages = BTreeMap::new();
    for (status, file) in site.map("error_pages") {
        let Some(code) = code(&status) else {
            site.bad_item("error_pages", &status, file.at, STATUS_EXPECTED);
            continue;
        };
        if file.value.is_empty() || file.value.contains('\0') {
            site.bad_item(&status, &file.value, file.at, "a path");
            continue;
        }
        let path = site.found.resolve(&file.value);
        match disk::check_page("error_pages", &path) {
            Ok(()) => drop(pages.insert(code, path)),
            Err(problem) => site.add(file.at, problem),
        }
    }
    pages
}

/// A status that is an error's, or the digit of a class of them.
fn code(text: &str) -> Option<u16> {
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
