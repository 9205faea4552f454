//! The `[caches.NAME]` tables, and the checks between them.
//!
//! Called by `parse` after the pools, whose names they say; what a route says of its caches is in
//! `cache/route.rs`. What must stay true: two caches never share a folder, not even the one inside the
//! other, by whatever links it is reached. The folder itself is made by the one who starts the cache.

mod route;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::disk;
use crate::error::Problem;
use crate::model::{BlockingPool, Cache};
use crate::place::At;
use crate::route::check_name;
use crate::section::Section;

pub use route::STATUSES_STORED;
pub(crate) use route::read as read_route;

/// Reads every cache.
pub(crate) fn read(
    top: &Section<'_>,
    blocking: &BTreeMap<String, BlockingPool>,
) -> BTreeMap<String, Cache> {
    let mut folders: Vec<Folder> = Vec::new();
    let mut caches = BTreeMap::new();
    // Named tables come in the order of their names; the later one of a pair is told in that of the file.
    let mut tables = top.named("caches");
    tables.sort_by_key(|(name, _)| name.at);
    for (name, table) in tables {
        let path = table.path("path");
        if let Some(path) = &path {
            check_folder(&table, &name.value, path, &mut folders);
        }
        let is_wrong = table.has("path") && path.is_none();
        let mut cache = read_one(&name.value, &table, path.map(|path| path.value), blocking);
        if cache.path.is_none() && !is_wrong {
            table.refuse("memory");
            cache.memory = cache.size_max;
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
    table.size("size_max", &mut cache.size_max);
    // What is not said gives way to what is.
    cache.memory = cache.memory.min(cache.size_max);
    cache.object_max = cache.object_max.min(cache.size_max);
    table.size("memory", &mut cache.memory);
    table.size("object_max", &mut cache.object_max);
    table.check_order(
        ("object_max", cache.object_max),
        ("size_max", cache.size_max),
    );
    if let Some(pool) = table.text("blocking") {
        let names = blocking.keys().map(String::as_str);
        check_name(table, "blocking pool", &pool, names);
        cache.blocking = pool.value.to_owned();
    }
    table.duration("stall_timeout", &mut cache.stall_timeout);
    cache
}

/// A cache's folder.
struct Folder {
    cache: String,
    path: At<PathBuf>,
    /// Without links.
    real: PathBuf,
}

/// Reports a path that is no folder and cannot become one, and one that an earlier cache has.
fn check_folder(table: &Section<'_>, cache: &str, path: &At<PathBuf>, earlier: &mut Vec<Folder>) {
    if let Err(problem) = disk::check_future_folder("path", &path.value) {
        table.add(path.at, problem);
    }
    let real = disk::real(&path.value);
    let overlaps = |other: &&Folder| real.starts_with(&other.real) || other.real.starts_with(&real);
    if let Some(other) = earlier.iter().find(overlaps) {
        table.add(
            path.at,
            Problem::CachesOverlap {
                path: path.value.clone(),
                other: other.cache.clone(),
                other_path: other.path.value.clone(),
                line: table.found.line(other.path.at),
            },
        );
    }
    earlier.push(Folder {
        cache: cache.to_owned(),
        path: path.clone(),
        real,
    });
}

#[cfg(test)]
mod tests;
