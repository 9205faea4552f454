//! Finds the script in a path, by its text; called by `environ` for upstreams with a `root`, the
//! directory of scripts as their servers see it.
//!
//! PHP may still walk up a path whose script is missing and run `/uploads/a.jpg` for
//! `/uploads/a.jpg/x.php`: `cgi.fix_pathinfo = 0` in its configuration forbids that.
//!
//! # Invariants
//!
//! - Only a segment whose own name ends in `.php` is a script, so an uploaded file of another type
//!   never is.

use std::borrow::Cow;

/// A path split into the script and the rest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScriptPath<'p> {
    /// `SCRIPT_NAME`: relative to the root, with its slash; empty for none.
    pub(super) name: Cow<'p, [u8]>,
    pub(super) path_info: &'p [u8],
}

impl<'p> ScriptPath<'p> {
    /// Splits after the first script in `path`; a path without one belongs to `index`, if set.
    pub(super) fn split(path: &'p [u8], index: Option<&str>) -> Self {
        if let Some(end) = script_end(path) {
            let (name, path_info) = path.split_at(end);
            let name = Cow::Borrowed(name);
            return Self { name, path_info };
        }
        match index {
            Some(index) => Self {
                name: Cow::Owned([b"/", index.as_bytes()].concat()),
                // As `try_files $uri /index.php` of nginx: PHP builds `PHP_SELF` of both, and sites
                // derive the running script from it. They find the path in `REQUEST_URI`.
                path_info: match index.as_bytes().ends_with(SCRIPT_SUFFIX) {
                    true => b"",
                    false => path,
                },
            },
            None => Self::without_script(path),
        }
    }

    /// No script: the application reads the whole path.
    pub(super) fn without_script(path: &'p [u8]) -> Self {
        Self {
            name: Cow::Borrowed(&[]),
            path_info: path,
        }
    }
}

/// Whether an upstream with a `root` runs a script for `path`, or would if it existed. A file
/// server of the same directory must not serve such paths, or clients could read the script.
pub fn is_script_path(path: &[u8]) -> bool {
    script_end(path).is_some()
}

/// The end of the first segment that is a script.
fn script_end(path: &[u8]) -> Option<usize> {
    let mut end = 0;
    for segment in path.split_inclusive(|&byte| byte == b'/') {
        let name = segment.strip_suffix(b"/").unwrap_or(segment);
        // The suffix alone is the name of a hidden file.
        if name.len() > SCRIPT_SUFFIX.len() && name.ends_with(SCRIPT_SUFFIX) {
            return Some(end + name.len());
        }
        end += segment.len();
    }
    None
}

const SCRIPT_SUFFIX: &[u8] = b".php";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_behind_its_script() {
        let index = Some("index.php");
        for (path, index, name, info) in [
            ("/x.php", None, "/x.php", ""),
            ("/blog/x.php/extra", index, "/blog/x.php", "/extra"),
            ("/x.php/", index, "/x.php", "/"),
            ("/x.php/y.php", index, "/x.php", "/y.php"),
            ("//x.php//e", index, "//x.php", "//e"),
            ("/", index, "/index.php", ""),
            ("/2024/post", index, "/index.php", ""),
            ("/2024/post", Some("run.fcgi"), "/run.fcgi", "/2024/post"),
            ("/2024/post", None, "", "/2024/post"),
            ("/", Some("public/app.php"), "/public/app.php", ""),
            // The suffix is not at the end of the segment.
            ("/a.php.jpg", index, "/index.php", ""),
            ("/a.jpg/x.php", index, "/a.jpg/x.php", ""),
            ("/x.php5", index, "/index.php", ""),
            ("/x.php ", index, "/index.php", ""),
            ("/xphp", index, "/index.php", ""),
            ("/x.PHP", index, "/index.php", ""),
            ("/.php", index, "/index.php", ""),
            ("/.php/a", None, "", "/.php/a"),
            ("*", index, "/index.php", ""),
            ("", None, "", ""),
        ] {
            let script = ScriptPath::split(path.as_bytes(), index);
            let found = (&*script.name, script.path_info);
            assert_eq!(found, (name.as_bytes(), info.as_bytes()), "{path}");
            let is_named = !name.is_empty() && path.starts_with(name);
            assert_eq!(is_script_path(path.as_bytes()), is_named, "{path}");
        }
    }
}
