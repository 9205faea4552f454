//! Patterns of paths: `sites/*.toml`.
//!
//! Used for `include`, and later to see whether a file that changed is one of them.
//!
//! # Invariants
//! - What a pattern matches is sorted by path, so that a configuration reads the same everywhere.
//! - `*` and `?` never match a slash, nor the dot that begins a hidden name.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::disk;

/// Directories that one pattern may look into.
const MAX_DIRECTORIES: usize = 1000;

/// Whether a path has a part that stands for several names.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.components()
        .any(|part| part.as_os_str().to_str().is_some_and(has_wildcard))
}

/// Everything but directories that a pattern matches, sorted. Nothing is no error.
///
/// # Errors
/// The directory that cannot be read, or that there are too many.
pub(super) fn find_files(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![PathBuf::new()];
    let mut visited = 0;
    let parts: Vec<_> = pattern.components().collect();
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        let name = part.as_os_str().to_str().filter(|name| has_wildcard(name));
        let (Component::Normal(_), Some(name)) = (part, name) else {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        visited += found.len();
        if visited > MAX_DIRECTORIES {
            return Err(format!("matches in more than {MAX_DIRECTORIES} folders"));
        }
        let mut below = Vec::new();
        for dir in found {
            below.extend(matches_in(&dir, name, is_last)?);
        }
        found = below;
    }
    found.retain(|path| path.symlink_metadata().is_ok() && !path.is_dir());
    found.sort();
    Ok(found)
}

fn matches_in(dir: &Path, name: &str, is_last: bool) -> Result<Vec<PathBuf>, String> {
    let names = match disk::list_names(dir) {
        Ok(names) => names,
        Err(error) if is_absence(&error) => Vec::new(),
        Err(error) => {
            return Err(format!(
                "{} cannot be read: {}",
                dir.display(),
                error.kind()
            ));
        }
    };
    let matching = names.iter().filter(|it| matches_name(name, it));
    let paths = matching.map(|name| dir.join(name));
    Ok(paths.filter(|path| is_last || path.is_dir()).collect())
}

fn is_absence(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind())
}

/// Whether a pattern matches a path, whether there is one or not.
pub(super) fn matches_path(pattern: &Path, path: &Path) -> bool {
    let (mut patterns, mut parts) = (pattern.components(), path.components());
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) if pattern == part => {}
            (Some(pattern), Some(part)) => {
                let texts = pattern.as_os_str().to_str().zip(part.as_os_str().to_str());
                let matches = texts.is_some_and(|(a, b)| has_wildcard(a) && matches_name(a, b));
                if !matches {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

fn has_wildcard(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Whether a name is one that a pattern means. The time is bounded by the product of both lengths.
fn matches_name(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut done) = (0, 0);
    // Where the last star stands, and how much of the name it takes so far.
    let mut star = None;
    while done < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, done));
                at += 1;
            }
            Some(c) if *c == '?' || *c == name[done] => {
                at += 1;
                done += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else {
                    return false;
                };
                star = Some((star_at, taken + 1));
                at = star_at + 1;
                done = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn matches_names() {
        let rows = [
            ("*.toml", "a.toml", true),
            ("*.toml", ".toml", false),
            ("*.toml", ".a.toml", false),
            (".*.toml", ".a.toml", true),
            ("*.toml", "a.toml~", false),
            ("?-*.toml", "1-a.b.toml", true),
            ("?", "ü", true),
            ("?", "", false),
            ("a*b*c", "aXbXbYc", true),
            ("a*b*c", "aXbXbY", false),
            ("**", "", true),
            ("a", "a", true),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(matches_name(pattern, name), expected, "{pattern} {name}");
        }
        let slow = "*a".repeat(40);
        assert!(!matches_name(&slow, &"a".repeat(39)));
        let is_match = |path: &str| matches_path(Path::new("/etc/*/x.toml"), Path::new(path));
        assert!(is_match("/etc/a/x.toml") && !is_match("/etc/a/b/x.toml"));
        assert!(!is_match("/etc/a/y.toml") && !is_match("/etc/a"));
    }

    #[test]
    fn finds_files_in_order() {
        let folder = TestDir::with_files(&[
            ("b/2.toml", ""),
            ("b/1.toml", ""),
            ("a/1.toml", ""),
            ("a/.1.toml", ""),
            ("a/dir.toml/", ""),
            ("c", ""),
        ]);
        let find = |pattern: &str| {
            let found = find_files(&folder.join(pattern)).unwrap();
            let names = found
                .iter()
                .map(|it| it.strip_prefix(folder.path()).unwrap());
            names.map(|it| it.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(find("*/*.toml"), ["a/1.toml", "b/1.toml", "b/2.toml"]);
        assert_eq!(find("b/?.toml"), ["b/1.toml", "b/2.toml"]);
        assert_eq!(find("*/2.toml"), ["b/2.toml"]);
        assert_eq!(find("none/*.toml"), Vec::<String>::new());
        assert_eq!(find("c/*.toml"), Vec::<String>::new());
    }
}
