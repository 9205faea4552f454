//! A set of requests: paths and other keys of `match`, as a route has them.
//!
//! Translators of Caddyfile and haproxy.cfg join and compare conditions with it.

use crate::draft::DraftTable;
use crate::toml_value::{TomlTable, TomlValue};

/// A set of requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RequestMatcher {
    /// Patterns of paths as `match.path` has them, of which one must fit. Empty for every path.
    pub(crate) paths: Vec<String>,
    /// Other keys of `match`.
    pub(crate) matches: TomlTable,
}

impl RequestMatcher {
    /// Whether it has every request.
    pub(crate) fn is_any(&self) -> bool {
        self.paths.is_empty() && self.matches.is_empty()
    }

    /// The length of its only path, by which Caddy sorts.
    pub(crate) fn path_length(&self) -> usize {
        match self.paths.as_slice() {
            [path] if !path.starts_with('~') => path.trim_end_matches('*').len(),
            _ => 0,
        }
    }

    /// Whether all requests of `inner` are its requests, as far as paths tell.
    pub(crate) fn contains(&self, inner: &Self) -> bool {
        let same_matches = self.matches.is_empty() || self.matches == inner.matches;
        let below = |path: &String| self.paths.iter().any(|own| is_below(path, own));
        same_matches
            && (self.paths.is_empty() || (!inner.paths.is_empty() && inner.paths.iter().all(below)))
    }

    /// The requests of both; `None` where one `match` cannot say so.
    pub(crate) fn and(&self, other: &Self) -> Option<Self> {
        let mut both = self.clone();
        let (own, new) = (&self.paths, &other.paths);
        both.paths = match (own.is_empty(), new.is_empty()) {
            (true, _) => new.clone(),
            (_, true) => own.clone(),
            _ if other.contains_paths(own) => own.clone(),
            _ if self.contains_paths(new) => new.clone(),
            _ => return None,
        };
        for (key, value) in other.matches.iter() {
            match (both.matches.get(key), value) {
                (None, _) => both.matches.set(key, value.clone()),
                (Some(known), new) if known == new => {}
                (Some(TomlValue::Table(known)), TomlValue::Table(new)) if key != "not" => {
                    let mut joined = known.clone();
                    for (name, value) in new.iter() {
                        joined.set(name, value.clone());
                    }
                    both.matches.set(key, joined);
                }
                _ => return None,
            }
        }
        Some(both)
    }

    fn contains_paths(&self, paths: &[String]) -> bool {
        paths
            .iter()
            .all(|path| self.paths.iter().any(|own| is_below(path, own)))
    }

    /// Writes `path` and `match` of a route.
    pub(crate) fn write(&self, route: &mut DraftTable) {
        let mut matches = self.matches.clone();
        match self.paths.as_slice() {
            [] => {}
            [path] => match path.strip_prefix('~') {
                Some(regex) => route.keys.set("path", TomlTable::with("regex", regex)),
                None => route.keys.set("path", path.as_str()),
            },
            paths => matches.set("path", paths.to_vec()),
        }
        if !matches.is_empty() {
            route.keys.set("match", matches);
        }
    }

    /// All conditions as one table, for `not`.
    pub(crate) fn into_table(self) -> TomlTable {
        let mut table = self.matches;
        if !self.paths.is_empty() {
            table.set("path", self.paths);
        }
        table
    }
}

/// Whether every path of a pattern is one of another.
fn is_below(path: &str, outer: &str) -> bool {
    path == outer
        || outer
            .strip_suffix('*')
            .is_some_and(|prefix| !path.starts_with('~') && path.starts_with(prefix))
        || outer.strip_prefix("~^").is_some_and(|prefix| {
            path.starts_with(prefix) && !prefix.contains(['\\', '(', '[', '$', '.'])
        })
}
