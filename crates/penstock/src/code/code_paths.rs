//! Tells an application's code from its other files. Pure.
//!
//! Used by `code` before a directory is read and for each change.
//!
//! # Invariants
//!
//! - Files that an application writes at run time (logs, caches, databases, uploads) restart
//!   nothing.

use std::ffi::OsStr;
use std::path::{Component, Path};

/// Whether a directory of this name, anywhere below the application's, may contain code.
pub(crate) fn is_code_dir(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    // Version control, caches of tools, environments of editors.
    !name.starts_with('.') && !NON_CODE_DIRS.contains(&name.as_ref())
}

/// Whether a path, relative to the application's directory, is code.
pub(crate) fn is_code_path(path: &Path) -> bool {
    let Some(name) = path.file_name().map(OsStr::to_string_lossy) else {
        return false;
    };
    let folders = path.parent().into_iter().flat_map(Path::components);
    let mut folders = folders.filter_map(|component| match component {
        Component::Normal(folder) => Some(folder),
        _ => None,
    });
    if !folders.all(is_code_dir) || NON_CODE_DIRS.contains(&name.as_ref()) {
        return false;
    }
    // `.env` is configuration; other hidden files belong to tools and editors.
    let is_hidden = name.starts_with('.') && !name.starts_with(".env");
    let is_left_over = name.ends_with('~') || name.starts_with('#') || name == VIM_PROBE_FILE;
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let ending = ending.to_ascii_lowercase();
    let is_data = NON_CODE_EXTENSIONS.contains(&ending.as_str())
        || SQLITE_SUFFIXES.iter().any(|end| name.ends_with(end));
    !is_hidden && !is_left_over && !is_data
}

/// Directories without code of the application, or that it writes itself.
const NON_CODE_DIRS: [&str; 13] = [
    "__pycache__",
    "bundle",
    "coverage",
    "htmlcov",
    "log",
    "logs",
    "media",
    "node_modules",
    "site-packages",
    "storage",
    "tmp",
    "uploads",
    "venv",
];

/// Compiled files, logs, editors' temporary files, databases, pictures and the like.
const NON_CODE_EXTENSIONS: [&str; 28] = [
    "pyc", "pyo", "log", "swp", "swo", "swx", "tmp", "temp", "bak", "orig", "pid", "sock", "db",
    "sqlite", "sqlite3", "rdb", "aof", "png", "jpg", "jpeg", "gif", "webp", "ico", "mp3", "mp4",
    "pdf", "gz", "zip",
];

/// Suffixes of SQLite's files beside a database.
const SQLITE_SUFFIXES: [&str; 3] = ["-journal", "-wal", "-shm"];

/// Vim creates and removes a file of this name to test whether it may write.
const VIM_PROBE_FILE: &str = "4913";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_from_what_is_written_all_the_time() {
        let rows = [
            ("app.py", true),
            ("lib/views/index.html.erb", true),
            ("Gemfile.lock", true),
            (".env", true),
            (".env.local", true),
            ("config/settings.toml", true),
            ("static/app.js", true),
            (".git/index", false),
            (".gitignore", false),
            ("lib/.#view.py", false),
            ("lib/#view.py#", false),
            ("view.py~", false),
            (".view.py.swp", false),
            ("4913", false),
            ("__pycache__/app.cpython-311.pyc", false),
            ("pkg/__pycache__", false),
            ("tmp/restart.txt", false),
            ("log/development.log", false),
            ("error.LOG", false),
            (".venv/lib/python3.11/site.py", false),
            ("venv/lib/site.py", false),
            ("node_modules/x/index.js", false),
            ("db.sqlite3", false),
            ("db.sqlite3-journal", false),
            ("uploads/a.py", false),
            ("", false),
        ];
        for (path, expected) in rows {
            assert_eq!(is_code_path(Path::new(path)), expected, "{path}");
        }
    }
}
