//! Files that a configuration includes.
//!
//! The verb reads them from disk, tests from memory. Patterns are matched here.

use std::io;
use std::path::{Path, PathBuf};

/// Reads included files.
pub trait IncludeReader {
    /// The text of a regular file. Bytes that are no UTF-8 may be replaced.
    ///
    /// # Errors
    /// The file is missing, is no regular file, or cannot be read.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// The directory is missing or cannot be read.
    fn names(&self, directory: &Path) -> io::Result<Vec<String>>;
}

/// Most files that one pattern may stand for.
const MAX_MATCHES: usize = 500;

/// Whether a path is a pattern.
pub(crate) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The files of a pattern, sorted.
pub(crate) fn expand(reader: &dyn IncludeReader, pattern: &Path) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::new()];
    for part in pattern.components() {
        let text = part.as_os_str().to_string_lossy().into_owned();
        if !is_pattern(&text) {
            for path in &mut paths {
                path.push(part);
            }
            continue;
        }
        let mut matches = Vec::new();
        for folder in &paths {
            let mut names = reader.names(folder).unwrap_or_default();
            names.sort_unstable();
            let fitting = names.into_iter().filter(|name| {
                (!name.starts_with('.') || text.starts_with('.')) && fits(&text, name)
            });
            matches.extend(fitting.map(|name| folder.join(name)).take(MAX_MATCHES));
            matches.truncate(MAX_MATCHES);
        }
        paths = matches;
    }
    paths
}

/// Whether a name fits a pattern of `*`, `?` and `[...]`. It takes time in proportion to both.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut seen) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while seen < name.len() {
        let step = match pattern.get(at) {
            Some('*') => {
                retry = Some((at + 1, seen));
                at += 1;
                continue;
            }
            Some('?') => Some(at + 1),
            Some('[') => fits_class(&pattern, at, name[seen]),
            Some(c) if *c == name[seen] => Some(at + 1),
            _ => None,
        };
        match (step, retry) {
            (Some(next), _) => {
                at = next;
                seen += 1;
            }
            (None, Some((from, began))) => {
                retry = Some((from, began + 1));
                at = from;
                seen = began + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

/// The position behind a class that has `c`.
fn fits_class(pattern: &[char], at: usize, c: char) -> Option<usize> {
    let end = at + 2 + pattern.get(at + 2..)?.iter().position(|c| *c == ']')?;
    let (is_negated, class) = match pattern[at + 1] {
        '!' | '^' => (true, &pattern[at + 2..end]),
        _ => (false, &pattern[at + 1..end]),
    };
    let mut has = false;
    let mut index = 0;
    while index < class.len() {
        if class.get(index + 1) == Some(&'-') && index + 2 < class.len() {
            has |= (class[index]..=class[index + 2]).contains(&c);
            index += 3;
        } else {
            has |= class[index] == c;
            index += 1;
        }
    }
    (has != is_negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_patterns() {
        let rows = [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf~", false),
            ("a?c", "abc", true),
            ("[a-c]*", "beta", true),
            ("[!a-c]*", "beta", false),
            ("*", "", true),
            ("[", "[", false),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1b2", false),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
        assert!(!fits(&"*a".repeat(2_000), &"b".repeat(2_000)));
    }
}
