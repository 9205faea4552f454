//! The `[caches.NAME]` tables, and the checks between them.
//!
//! Called by `parse` after the pools, because caches name them; the `cache` of a route is in
//! `cache/route.rs`.
//!
//! # Invariants
//! - Two caches never share a directory, not even the one inside the other, by whatever links it
//!   is reached. The cache makes its directory when it starts.

mod route;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::disk;
use crate::findings::LocatedValue;
use crate::model::{BlockingPool, Cache};
use crate::route::check_name_exists;
use crate::section::{Keys as _, Section};

pub use route::STORABLE_STATUSES;
pub(crate) use route::read as read_route;

/// Reads every cache.
pub(crate) fn read(
    top: &Section<'_>,
    blocking: &BTreeMap<String, BlockingPool>,
) -> BTreeMap<String, Cache> {
    let mut folders: Vec<ClaimedDir> = Vec::new();
    let mut caches = BTreeMap::new();
    // Named tables come in the order of their names; the error of a pair is reported at the later
    // one in the file.
    let mut tables = top.named_tables("caches");
    tables.sort_by_key(|(name, _)| name.offset);
    for (name, table) in tables {
        let path = table.path("path");
        if let Some(path) = &path {
            check_cache_dir(&table, &name.value, path, &mut folders);
        }
        let is_wrong = table.has("path") && path.is_none();
        let mut cache = read_one(&name.value, &table, path.map(|path| path.value), blocking);
        if cache.path.is_none() && !is_wrong {
            table.report_not_applicable("max_memory");
            cache.max_memory = cache.max_size;
        }
        caches.insert(name.value, cache);
    }
    caches
}

fn read_one(
    name: &str,
    table: &Section<'_>,
    path: Option<PathBuf>,
    blocking: &BTreeMap<String, BlockingPool>,
) -> Cache {
    let mut cache = Cache::new(name, path);
    cache.read_keys(table);
    // Defaults give way to values that are set.
    cache.max_memory = cache.max_memory.min(cache.max_size);
    cache.max_object_size = cache.max_object_size.min(cache.max_size);
    table.read("max_memory", &mut cache.max_memory);
    table.read("max_object_size", &mut cache.max_object_size);
    table.check_order(
        ("max_object_size", cache.max_object_size),
        ("max_size", cache.max_size),
    );
    if let Some(pool) = table.text("blocking") {
        let names = blocking.keys().map(String::as_str);
        check_name_exists(table, "blocking pool", &pool, names);
        cache.blocking = pool.value.to_owned();
    }
    cache
}

/// A cache's directory.
struct ClaimedDir {
    cache_name: String,
    path: LocatedValue<PathBuf>,
    /// Without links.
    canonical_path: PathBuf,
}

/// Reports a path that is no directory and cannot become one, and one that an earlier cache has.
fn check_cache_dir(
    table: &Section<'_>,
    cache: &str,
    path: &LocatedValue<PathBuf>,
    earlier: &mut Vec<ClaimedDir>,
) {
    if let Err(problem) = disk::check_creatable_directory("path", &path.value) {
        table.report(path.offset, problem);
    }
    let real = disk::canonicalize_existing(&path.value);
    let overlaps = |other: &&ClaimedDir| {
        real.starts_with(&other.canonical_path) || other.canonical_path.starts_with(&real)
    };
    if let Some(other) = earlier.iter().find(overlaps) {
        let problem = format!(
            "`path`: {} and {}, the folder of cache `{}`{}, overlap: each cache needs a folder of \
             its own",
            path.value.display(),
            other.path.value.display(),
            other.cache_name,
            table.findings.place_suffix(other.path.offset, path.offset)
        );
        table.report(path.offset, problem);
    }
    earlier.push(ClaimedDir {
        cache_name: cache.to_owned(),
        path: path.clone(),
        canonical_path: real,
    });
}

#[cfg(test)]
mod tests;
