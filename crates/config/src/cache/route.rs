//! The `cache` of a route: the names of its caches, or a table with its rules.
//!
//! Called by `crate::route` after the handler of the route is known.
//!
//! # Invariants
//! - A route has a cache only in front of an application or upstream, its stores exist and stand
//!   once, and every name in its rules could be that of a field, a cookie or a parameter.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::findings::LocatedValue;
use crate::headers::{is_removable_field, is_token};
use crate::model::{Cache, CacheBypass, CacheKey, QueryKey, RouteCache};
use crate::route::check_name_exists;
use crate::section::{Keys as _, MAX_DURATION, Section};
use crate::units::{self, TIME_EXPECTED};

/// Reads the value of `cache`, with `known` as the caches there are.
pub(crate) fn read(route: &Section<'_>, known: &BTreeMap<String, Cache>) -> Option<RouteCache> {
    if !route.has("cache") {
        return None;
    }
    if !route.is_table("cache") {
        return read_store_names(route, "cache", known).map(RouteCache::new);
    }
    let table = route.table("cache")?;
    let stores = read_store_names(&table, "stores", known);
    let mut cache = RouteCache::new(stores.unwrap_or_default());
    cache.read_keys(&table);
    if let Some(key) = table.table("key") {
        cache.has_known_cookies = key.has("cookies");
        cache.key = read_key(&key);
    }
    if let Some(bypass) = table.table("bypass") {
        cache.has_known_cookies |= bypass.has("cookies");
        cache.bypass = CacheBypass {
            headers: read_names_ignoring_case(&bypass, "headers", is_plain_token),
            cookies: read_names(&bypass, "cookies", is_cookie_pattern),
        };
    }
    cache.ttl_by_status = read_ttl_by_status(&table);
    if let Some(tags) = read_unique_names(
        &table,
        "tags",
        is_removable_field,
        str::eq_ignore_ascii_case,
    ) {
        cache.tags = tags;
    }
    Some(cache)
}

fn read_ttl_by_status(table: &Section<'_>) -> BTreeMap<u16, Duration> {
    let mut times = BTreeMap::new();
    for (status, time) in table.string_map("ttl_by_status") {
        let code = Some(&status).filter(|status| status.len() == 3);
        let code = code.and_then(|status| status.parse().ok());
        let Some(code) = code.filter(|code| STORABLE_STATUSES.contains(code)) else {
            let expected = "a status that a cache may store, such as 200 or 404";
            table.report_invalid_item("ttl_by_status", &status, time.offset, expected);
            continue;
        };
        match units::parse_duration(&time.value).filter(|time| *time <= MAX_DURATION) {
            Some(time) => drop(times.insert(code, time)),
            None => table.report_invalid_item(&status, &time.value, time.offset, TIME_EXPECTED),
        }
    }
    times
}

/// The statuses of responses that a cache may store, given a lifetime: the rule is in `http`
/// (`may_store_status`), and `cache` tests that they are the same.
#[rustfmt::skip]
pub const STORABLE_STATUSES: [u16; 44] = [
    200, 201, 202, 203, 204, 205, 207, 208, 226, 300, 301, 302, 303, 305, 307, 308,
    401, 402, 403, 404, 405, 406, 409, 410, 411, 412, 413, 414, 415, 417, 422, 423, 424, 426, 451,
    500, 501, 502, 503, 504, 505, 506, 507, 508,
];

/// The names of caches; none when the value is no list.
fn read_store_names(
    table: &Section<'_>,
    key: &'static str,
    known: &BTreeMap<String, Cache>,
) -> Option<Vec<String>> {
    let stores = table.list(key, |text| Some(text.to_owned()))?;
    table.check_not_empty(key);
    table.check_unique(key, &stores, |a, b| a == b);
    for store in &stores {
        let name = LocatedValue::new(store.value.as_str(), store.offset);
        check_name_exists(table, "cache", &name, known.keys().map(String::as_str));
    }
    Some(stores.into_iter().map(|store| store.value).collect())
}

fn read_key(table: &Section<'_>) -> CacheKey {
    let mut key = CacheKey::default();
    key.read_keys(table);
    key.query = read_query(table);
    key.headers = read_names_ignoring_case(table, "headers", is_plain_token);
    key.cookies = read_names(table, "cookies", is_plain_token);
    key
}

fn read_query(table: &Section<'_>) -> QueryKey {
    if table.is_table("query") {
        let Some(query) = table.table("query") else {
            return QueryKey::All;
        };
        query.check_not_empty("without");
        return QueryKey::AllExcept(read_names(&query, "without", is_parameter_pattern));
    }
    if table.is_list("query") {
        table.check_not_empty("query");
        return QueryKey::Only(read_names(table, "query", is_parameter_pattern));
    }
    match table.get("query") {
        Some(false) => QueryKey::None,
        Some(true) | None => QueryKey::All,
    }
}

/// Names without regard to case.
fn read_names_ignoring_case(
    table: &Section<'_>,
    key: &'static str,
    is_it: fn(&str) -> bool,
) -> Vec<String> {
    read_unique_names(table, key, is_it, str::eq_ignore_ascii_case).unwrap_or_default()
}

/// Names with regard to case.
fn read_names(table: &Section<'_>, key: &'static str, is_it: fn(&str) -> bool) -> Vec<String> {
    read_unique_names(table, key, is_it, |a, b| a == b).unwrap_or_default()
}

fn read_unique_names(
    table: &Section<'_>,
    key: &'static str,
    is_it: fn(&str) -> bool,
    is_same: fn(&str, &str) -> bool,
) -> Option<Vec<String>> {
    let names = table.list(key, |text| is_it(text).then(|| text.to_owned()))?;
    table.check_unique(key, &names, is_same);
    Some(names.into_iter().map(|name| name.value).collect())
}

/// A name of a field or a cookie. A star would be one too, but only a pattern is meant by it.
fn is_plain_token(text: &str) -> bool {
    is_token(text) && !text.contains('*')
}

fn is_cookie_pattern(text: &str) -> bool {
    is_plain_token(text.strip_suffix('*').unwrap_or(text))
}

/// A parameter as it stands in a query, or the beginning of one with a star behind it.
fn is_parameter_pattern(text: &str) -> bool {
    let name = text.strip_suffix('*').unwrap_or(text);
    let is_part = |b: u8| b.is_ascii_graphic() && !b"*&=#".contains(&b);
    !name.is_empty() && name.bytes().all(is_part)
}
