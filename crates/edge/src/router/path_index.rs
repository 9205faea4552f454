//! The routes of a site by their paths, so that a look-up does not try each.
//!
//! Built with a site, searched once per request. Pure.
//!
//! # Invariants
//! - The result is that of a scan of the routes in their order.
//! - A search costs the logarithm of the number of routes, and the number of prefixes and endings of
//!   one path that have a route. Regular expressions are tried in order, those before the match alone.

use std::cmp::Ordering;
use std::collections::HashMap;

use penstock_config::{PathPattern, PathRegex};

/// Positions of routes in their site, by path.
#[derive(Debug, Default)]
pub(super) struct PathIndex {
    /// Sorted by path.
    exact_paths: Vec<IndexedPath>,
    /// Sorted by prefix: the paths below a prefix follow it.
    prefixes: Vec<IndexedPath>,
    /// Routes by the ending of a path, from a dot on.
    suffixes: HashMap<Box<[u8]>, Vec<usize>>,
    /// Bytes of the longest of them.
    max_suffix_bytes: usize,
    /// In the site's order.
    regexes: Vec<(usize, PathRegex)>,
}

/// One path, and the routes for it.
#[derive(Debug)]
struct IndexedPath {
    path: Box<[u8]>,
    /// In the site's order.
    routes: Vec<usize>,
    /// Among prefixes: the longest one that is a prefix of this.
    parent: Option<usize>,
}

impl PathIndex {
    pub(super) fn new<'a>(paths: impl Iterator<Item = &'a PathPattern>) -> Self {
        let (mut exact, mut prefixes, mut regexes) = (Vec::new(), Vec::new(), Vec::new());
        let mut suffixes: HashMap<Box<[u8]>, Vec<usize>> = HashMap::new();
        for (route, path) in paths.enumerate() {
            match path {
                PathPattern::Exact(path) => exact.push((path.as_bytes(), route)),
                PathPattern::Prefix(prefix) => prefixes.push((prefix.as_bytes(), route)),
                PathPattern::Suffix(suffix) => {
                    suffixes
                        .entry(suffix.as_bytes().into())
                        .or_default()
                        .push(route);
                }
                PathPattern::Regex(regex) => regexes.push((route, regex.clone())),
            }
        }
        let mut index = Self {
            exact_paths: group_by_path(exact),
            prefixes: group_by_path(prefixes),
            max_suffix_bytes: suffixes
                .keys()
                .map(|suffix| suffix.len())
                .max()
                .unwrap_or(0),
            suffixes,
            regexes,
        };
        let mut open: Vec<usize> = Vec::new();
        for at in 0..index.prefixes.len() {
            let path = &index.prefixes[at].path;
            while open
                .pop_if(|outer| !path.starts_with(&index.prefixes[*outer].path))
                .is_some()
            {}
            index.prefixes[at].parent = open.last().copied();
            open.push(at);
        }
        index
    }

    /// The first route for a path, in the site's order, of those that are `open`.
    pub(super) fn first_match(&self, path: &[u8], open: impl Fn(usize) -> bool) -> Option<usize> {
        let mut found = self.first_exact_match(path, &open);
        let mut at = self.longest_prefix(path);
        while let Some(entry) = at.map(|at| &self.prefixes[at]) {
            found = first_open_before(&entry.routes, found, &open);
            at = entry.parent;
        }
        if !self.suffixes.is_empty() {
            for suffix in dotted_suffixes(path, self.max_suffix_bytes) {
                let routes = self.suffixes.get(suffix).map_or(&[][..], Vec::as_slice);
                found = first_open_before(routes, found, &open);
            }
        }
        let regexes = self.regexes.iter();
        let mut earlier = regexes.take_while(|(route, _)| found.is_none_or(|found| *route < found));
        let matching = earlier.find(|(route, regex)| regex.is_match(path) && open(*route));
        matching.map(|(route, _)| *route).or(found)
    }

    /// The first route for exactly this path.
    pub(super) fn first_exact_match(
        &self,
        path: &[u8],
        open: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let compare = |entry: &IndexedPath| (*entry.path).cmp(path);
        let at = self.exact_paths.binary_search_by(compare).ok()?;
        first_open_before(&self.exact_paths[at].routes, None, &open)
    }

    /// The first route for all below the folder of this name: `/a/*` for `/a`.
    pub(super) fn first_directory_match(
        &self,
        folder: &[u8],
        open: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let compare = |entry: &IndexedPath| compare_with_slash(&entry.path, folder);
        let at = self.prefixes.binary_search_by(compare).ok()?;
        first_open_before(&self.prefixes[at].routes, None, &open)
    }

    fn longest_prefix(&self, path: &[u8]) -> Option<usize> {
        let after = self.prefixes.partition_point(|entry| *entry.path <= *path);
        let mut at = after.checked_sub(1);
        // The entry before a path shares its longest prefix, or is within that.
        while let Some(entry) = at.map(|at| &self.prefixes[at]) {
            if path.starts_with(&entry.path) {
                break;
            }
            at = entry.parent;
        }
        at
    }
}

fn group_by_path(mut paths: Vec<(&[u8], usize)>) -> Vec<IndexedPath> {
    // Stable: routes for one path keep their order.
    paths.sort_by_key(|(path, _)| *path);
    let same = |one: &(&[u8], usize), other: &(&[u8], usize)| one.0 == other.0;
    let entry = |routes: &[(&[u8], usize)]| IndexedPath {
        path: routes[0].0.into(),
        routes: routes.iter().map(|(_, route)| *route).collect(),
        parent: None,
    };
    paths.chunk_by(same).map(entry).collect()
}

/// The first of some routes that is open and before `found`, else `found`.
fn first_open_before(
    routes: &[usize],
    found: Option<usize>,
    open: &impl Fn(usize) -> bool,
) -> Option<usize> {
    let routes = routes.iter().copied();
    let mut earlier = routes.take_while(|route| found.is_none_or(|found| *route < found));
    earlier.find(|route| open(*route)).or(found)
}

/// The endings of a path that begin with a dot of its last segment, the longest first, and none that
/// is longer than `max`: their number and size are bounded by the routes, not by the path.
fn dotted_suffixes(path: &[u8], max: usize) -> impl Iterator<Item = &[u8]> {
    let segment = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let start = segment.max(path.len().saturating_sub(max));
    let segment = &path[start..];
    let dots = segment.iter().enumerate();
    dots.filter(|(_, byte)| **byte == b'.')
        .map(move |(at, _)| &segment[at..])
}

/// Compares a path with `folder` and a final slash.
fn compare_with_slash(path: &[u8], folder: &[u8]) -> Ordering {
    match path.split_at_checked(folder.len()) {
        Some((start, rest)) => start.cmp(folder).then_with(|| rest.cmp(b"/")),
        None => path.cmp(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a scan.
    fn scan(routes: &[PathPattern], path: &str, open: impl Fn(usize) -> bool) -> Option<usize> {
        (0..routes.len()).find(|at| open(*at) && routes[*at].matches(path.as_bytes()))
    }

    #[test]
    fn a_path_of_dots_costs_no_more_than_the_longest_ending() {
        let path = format!("/{}", "a.".repeat(4_000));
        for (max, count) in [(0, 0), (1, 1), (4, 2), (7, 4)] {
            let found: Vec<_> = dotted_suffixes(path.as_bytes(), max).collect();
            assert_eq!(found.len(), count, "{max}");
            assert!(found.iter().all(|suffix| suffix.len() <= max));
        }
    }

    #[test]
    fn a_search_finds_what_a_scan_finds() {
        // Few letters, so that paths are prefixes of one another, before and behind in the order.
        let mut state = 1_u64;
        let mut random = move |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut path = || {
            let parts = (0..random(4)).map(|_| ["a", "b", "a.b", "ab", "b.a.b"][random(5)]);
            let parts: Vec<&str> = parts.collect();
            format!("/{}", parts.join("/"))
        };
        let pick = |bits: u64, of: u64| usize::try_from(bits % of).unwrap();
        let mut seed = 7_u64;
        for _ in 0..2_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let routes: Vec<PathPattern> = (0..seed % 12)
                .map(|at| match (seed >> (2 * at)) & 7 {
                    0 | 1 => PathPattern::Exact(path()),
                    2 => PathPattern::Suffix([".b", ".a.b"][pick(seed >> at, 2)].into()),
                    3 => {
                        let text = ["^/a", "b$", "[.]b/", "^/(a|ab)/b"][pick(seed >> at, 4)];
                        PathPattern::Regex(PathRegex::new(text).unwrap())
                    }
                    _ => PathPattern::Prefix(format!("{}/", path().trim_end_matches('/'))),
                })
                .collect();
            let index = PathIndex::new(routes.iter());
            for asked in (0..20).map(|_| path()).chain(["/".to_owned()]) {
                for hidden in [u64::MAX, seed] {
                    let open = |route: usize| (hidden >> (route + 20)) & 1 == 1;
                    let bytes = asked.as_bytes();
                    let found = index.first_match(bytes, open);
                    assert_eq!(found, scan(&routes, &asked, open), "{asked} in {routes:?}");
                    let exact =
                        |at: &usize| open(*at) && routes[*at] == PathPattern::Exact(asked.clone());
                    let exact = (0..routes.len()).find(exact);
                    assert_eq!(
                        index.first_exact_match(bytes, open),
                        exact,
                        "{asked} in {routes:?}"
                    );
                    let below = PathPattern::Prefix(format!("{asked}/"));
                    let below = (0..routes.len()).find(|at| open(*at) && routes[*at] == below);
                    assert_eq!(
                        index.first_directory_match(bytes, open),
                        below,
                        "{asked} in {routes:?}"
                    );
                }
            }
        }
    }
}
