//! The `files` table of a route: a directory and how its files are served.
//!
//! Called by `route`.
//!
//! # Invariants
//! - The directory is there and no cache keeps its objects below it, and every value that a
//!   response may carry is a valid field.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::disk;
use crate::findings::LocatedValue;
use crate::headers::{is_field_value, is_token};
use crate::hide;
use crate::model::{ContentCoding, Files};
use crate::parse::report_unusable_dir;
use crate::route::check_name_exists;
use crate::section::{Keys as _, Section};
use crate::site::RouteContext;
use crate::values::{TryFallback, TryPattern};

/// Reads the table.
pub(crate) fn read(route: &Section<'_>, known: &RouteContext<'_>) -> Option<Files> {
    let table = route.table("files")?;
    let root = table.path("root");
    let usable = root
        .as_ref()
        .filter(|root| report_unusable_dir(&table, "root", root));
    if let Some(root) = usable {
        check_no_cache_below(&table, root, known);
    }
    let tries = read_tries(&table);
    let blocking = table.text("blocking");
    if let Some(blocking) = &blocking {
        let names = known.blocking.keys().map(String::as_str);
        check_name_exists(&table, "blocking pool", blocking, names);
    }
    let root = root.map(|root| root.value);
    let mut files = Files::new(root.clone().unwrap_or_default());
    if let Some((patterns, fallback)) = tries {
        files.try_ = patterns;
        files.fallback = fallback;
    }
    if matches!(files.fallback, Some(TryFallback::Target(_))) && !has_back_end(route) {
        let problem = "the last item of `try` is for the `app` or `upstream` of the route, which \
                       has none";
        table.report_key("try", problem);
    }
    if let Some(blocking) = blocking {
        files.blocking = blocking.value.to_owned();
    }
    read_delivery_keys(&table, &mut files);
    files.hide = hide::read(&table).unwrap_or_else(|| known.hide.to_vec());
    root.map(|_| files)
}

fn has_back_end(route: &Section<'_>) -> bool {
    ["app", "upstream", "split"]
        .iter()
        .any(|key| route.has(key))
}

/// The places of files, and what comes behind them.
fn read_tries(table: &Section<'_>) -> Option<(Vec<TryPattern>, Option<TryFallback>)> {
    let items = table.list("try", |text| Some(text.to_owned()))?;
    table.check_not_empty("try");
    let (mut patterns, mut fallback) = (Vec::new(), None);
    for (index, item) in items.iter().enumerate() {
        let text = item.value.as_str();
        match (TryFallback::parse(text), TryPattern::parse(text)) {
            (Some(Ok(found)), _) if index + 1 == items.len() => fallback = Some(found),
            (Some(Ok(_)), _) => {
                let problem = format!("`{text}` of `try` ends the search: put it last");
                table.report(item.offset, problem);
            }
            (Some(Err(expected)), _) => {
                table.report_invalid_item("try", text, item.offset, expected);
            }
            (None, Some(pattern)) => patterns.push(pattern),
            (None, None) => table.report_invalid("try", &LocatedValue::new(text, item.offset)),
        }
    }
    if patterns.is_empty() && fallback.is_some() {
        table.report_key("try", "`try` has no place for files before its last item");
    }
    Some((patterns, fallback))
}

/// How files are sent.
fn read_delivery_keys(table: &Section<'_>, files: &mut Files) {
    files.read_keys(table);
    if let Some(words) = table.choices("precompressed") {
        files.precompressed = parse_codings(&words);
    }
    if let Some(words) = table.choices("compress") {
        files.compress = parse_codings(&words);
    }
    files.cache_control = read_cache_control(table);
    files.types = read_types(table);
}

fn parse_codings(words: &[&str]) -> Vec<ContentCoding> {
    let words = words.iter();
    words
        .filter_map(|word| ContentCoding::from_word(word))
        .collect()
}

/// The rules in the order in which they were written: a TOML table has none of its own.
fn read_cache_control(table: &Section<'_>) -> Vec<(String, String)> {
    let mut rules: Vec<(String, LocatedValue<String>)> = Vec::new();
    for (pattern, value) in table.string_map("cache_control") {
        if !is_file_pattern(&pattern) {
            table.report_invalid_item("cache_control", &pattern, value.offset, PATTERN_EXPECTED);
        } else if value.value.is_empty() || !is_field_value(&value.value) {
            table.report_invalid_item(&pattern, &value.value, value.offset, CACHE_CONTROL_EXPECTED);
        } else {
            rules.push((pattern, value));
        }
    }
    rules.sort_by_key(|(_, value)| value.offset);
    let rules = rules.into_iter();
    rules
        .map(|(pattern, value)| (pattern, value.value))
        .collect()
}

/// Whether some file could have the name: its last part (`*.css`), or with a slash in front its
/// path below the root (`/img/*`). A star stands for anything.
fn is_file_pattern(text: &str) -> bool {
    let path = text.strip_prefix('/');
    let is_part = |part: &str| !["", ".", ".."].contains(&part);
    let is_plain = !text.contains('\0') && (path.is_some() || !text.contains('/'));
    is_plain && path.unwrap_or(text).split('/').all(is_part)
}

fn read_types(table: &Section<'_>) -> BTreeMap<String, String> {
    let mut types = BTreeMap::new();
    for (extension, media) in table.string_map("types") {
        if !is_extension(&extension) {
            table.report_invalid_item("types", &extension, media.offset, EXTENSION_EXPECTED);
        } else if !is_media_type(&media.value) {
            table.report_invalid_item(&extension, &media.value, media.offset, MEDIA_TYPE_EXPECTED);
        } else {
            types.insert(extension, media.value);
        }
    }
    types
}

fn is_extension(text: &str) -> bool {
    let is_small = |c: char| !c.is_uppercase() && !c.is_control() && !c.is_whitespace();
    !text.is_empty() && !text.contains(['.', '/']) && text.chars().all(is_small)
}

/// `type/subtype`, with or without parameters behind a semicolon (RFC 9110 §8.3.1).
fn is_media_type(text: &str) -> bool {
    let (essence, parameters) = text.split_once(';').unwrap_or((text, "a=b"));
    let is_named = |parameter: &str| {
        let named = parameter.trim().split_once('=');
        named.is_some_and(|(name, value)| is_token(name) && !value.is_empty())
    };
    let kinds = essence.trim_end().split_once('/');
    kinds.is_some_and(|(kind, sub)| is_token(kind) && is_token(sub))
        && parameters.split(';').all(is_named)
        && is_field_value(text)
}

/// Reports a cache whose directory is below the root: its objects, responses to other clients,
/// would be files like any other.
fn check_no_cache_below(
    table: &Section<'_>,
    root: &LocatedValue<PathBuf>,
    known: &RouteContext<'_>,
) {
    let real = disk::canonicalize_existing(&root.value);
    let caches = known.caches.values();
    for cache in caches {
        let path = cache.path.as_ref();
        if let Some(path) = path.filter(|path| disk::canonicalize_existing(path).starts_with(&real))
        {
            let problem = format!(
                "`root`: {}, the folder of cache `{}`, is inside: what it holds would be served as \
                 files",
                path.display(),
                cache.name
            );
            table.report(root.offset, problem);
        }
    }
}

const PATTERN_EXPECTED: &str = "a pattern such as \"*.css\", \"/img/*\" or \"/index.html\"";
const CACHE_CONTROL_EXPECTED: &str = "a value of `Cache-Control` such as \"public, max-age=3600\"";
const EXTENSION_EXPECTED: &str =
    "an extension such as \"webmanifest\", in small letters and without its dot";
const MEDIA_TYPE_EXPECTED: &str = "a media type such as \"text/plain; charset=utf-8\"";

#[cfg(test)]
mod tests;
