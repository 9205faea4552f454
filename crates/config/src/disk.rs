//! The few looks at the disk that checking needs: a file's bytes, whether a folder or file is there.
//!
//! Used by `parse`, `entry` and `detect`; the only place of the crate that reads. Callers run it off
//! the event loops. What must stay true: nothing but a regular file is opened where a folder is
//! searched, so that a pipe of a telling name cannot hold up a start.

use std::io;
use std::path::Path;

use crate::error::Problem;

/// The bytes of a file that the user named.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "start, check and reload read off the loops"
    )]
    std::fs::read(path)
}

/// The text of a file that was found by searching; empty when it cannot be read.
pub(crate) fn source_text(path: &Path) -> String {
    if !path.is_file() {
        return String::new();
    }
    read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

/// Whether the folder that `key` names can be used.
pub(crate) fn check_folder(key: &'static str, path: &Path) -> Result<(), Problem> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Problem::NotAFolder {
            key,
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(Problem::NotAFolder {
            key,
            path: path.to_owned(),
        }),
        Err(error) => Err(Problem::NoSuchPath {
            key,
            path: path.to_owned(),
            reason: error.kind(),
        }),
    }
}

/// The names of everything inside a folder but folders; empty when it cannot be read.
pub(crate) fn files_in(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let files = entries.filter(|entry| !entry.path().is_dir());
    files
        .filter_map(|e| e.file_name().into_string().ok())
        .collect()
}

/// The names of the folders inside a folder, sorted; empty when it cannot be read.
pub(crate) fn folders_in(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
