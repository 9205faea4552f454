//! The few looks at the disk that checking needs: a file's bytes, whether a directory or file is
//! there and where it really is.
//!
//! Used by the readers of tables, `entry` and `detect`; the only place of the crate that reads.
//! Callers run it off the event loops.
//!
//! # Invariants
//! - Nothing but a regular file is opened where a directory is searched, so that a pipe of a
//!   telling name cannot hold up a start.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::units;

/// The bytes of a file that the user named.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "start, check and reload read off the loops"
    )]
    std::fs::read(path)
}

/// Why a file that another one names cannot be read.
#[derive(Debug)]
pub(crate) struct TextError {
    /// The problem, in words that stand behind the file's name.
    pub(crate) problem: String,
    /// Whether there is no such file.
    pub(crate) is_absent: bool,
}

/// The text of a file that another one names: a regular file of at most `max` bytes.
pub(crate) fn read_text(path: &Path, max: u64) -> Result<String, TextError> {
    let failed = |error: io::Error| TextError {
        is_absent: error.kind() == io::ErrorKind::NotFound,
        problem: match error.kind() {
            io::ErrorKind::NotFound => "does not exist".to_owned(),
            kind => format!("cannot be read: {kind}"),
        },
    };
    let unfit = |problem: String| TextError {
        problem,
        is_absent: false,
    };
    let found = std::fs::metadata(path).map_err(failed)?;
    if found.is_dir() {
        return Err(unfit(
            "is a folder: name its files, as in \"sites/*.toml\"".to_owned(),
        ));
    }
    if !found.is_file() {
        return Err(unfit("is not a regular file".to_owned()));
    }
    if found.len() > max {
        return Err(unfit(format!("is larger than {}", units::format_size(max))));
    }
    let bytes = read_file(path).map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| unfit("is not UTF-8".to_owned()))
}

/// The names of everything inside a directory that are UTF-8.
pub(crate) fn list_names(path: &Path) -> io::Result<Vec<String>> {
    let names = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name()));
    let names = names.filter_map(|name| name.map(|name| name.into_string().ok()).transpose());
    names.collect()
}

/// The text of a file that was found by searching; empty when it cannot be read.
pub(crate) fn read_source_or_empty(path: &Path) -> String {
    if !path.is_file() {
        return String::new();
    }
    read_file(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

/// Whether the directory that `key` names can be used.
pub(crate) fn check_directory(key: &str, path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotADirectory => {
            Err(path_not_found(key, path, &error))
        }
        Ok(_) | Err(_) => Err(format!("`{key}`: {} is not a folder", path.display())),
    }
}

fn path_not_found(key: &str, path: &Path, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        other => format!("cannot be read: {other}"),
    };
    format!("`{key}`: {} {reason}", path.display())
}

/// Whether the directory that `key` names is there, or can be made with those above it.
pub(crate) fn check_creatable_directory(key: &str, path: &Path) -> Result<(), String> {
    for ancestor in path.ancestors() {
        // A link that leads nowhere is in the way, too.
        match std::fs::metadata(ancestor) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !ancestor.is_symlink() => {}
            // The directory above it shows the cause.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            _ => return check_directory(key, ancestor),
        }
    }
    Ok(())
}

/// A path without links and `..`, as far as it exists; what does not is taken at its word.
pub(crate) fn canonicalize_existing(path: &Path) -> PathBuf {
    let known = path.ancestors().find_map(|ancestor| {
        let real = std::fs::canonicalize(ancestor).ok()?;
        Some((real, path.strip_prefix(ancestor).ok()?))
    });
    let Some((mut real, rest)) = known else {
        return path.to_owned();
    };
    for part in rest.components() {
        match part {
            Component::ParentDir => drop(real.pop()),
            part => real.push(part),
        }
    }
    real
}

/// Bytes of an error page, at most: it is kept in memory.
pub const MAX_ERROR_PAGE_BYTES: u64 = 1 << 20;

/// Whether the file that `key` names can be loaded as an error page.
pub(crate) fn check_error_page(key: &str, path: &Path) -> Result<(), String> {
    let failed = |error: io::Error| path_not_found(key, path, &error);
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        let path = path.display();
        return Err(format!("`{key}`: {path} is not a regular file"));
    }
    if found.len() > MAX_ERROR_PAGE_BYTES {
        let (path, max) = (path.display(), units::format_size(MAX_ERROR_PAGE_BYTES));
        return Err(format!("`{key}`: {path} is larger than {max}"));
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "start, check and reload read off the loops"
    )]
    std::fs::File::open(path).map(drop).map_err(failed)
}

/// The names of everything inside a directory but directories; empty when it cannot be read.
pub(crate) fn list_files(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let files = entries.filter(|entry| !entry.path().is_dir());
    files
        .filter_map(|e| e.file_name().into_string().ok())
        .collect()
}

/// The names of the directories inside a directory, sorted; empty when it cannot be read.
pub(crate) fn list_directories(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
