//! Bounds on the input of an import.

use crate::ImportError;

/// Largest file, in bytes.
pub(crate) const MAX_FILE_BYTES: usize = 4 << 20;
/// All files of one import together, in bytes.
pub(crate) const MAX_TOTAL_BYTES: usize = 16 << 20;
/// Files that are read for one import, each as often as it is included.
pub(crate) const MAX_FILES: usize = 500;
/// Blocks within blocks, and files within files.
pub(crate) const MAX_DEPTH: usize = 32;
/// Directives of one import.
pub(crate) const MAX_DIRECTIVES: usize = 100_000;
/// Routes of one import. Each directive of a level above is looked up for each of them.
pub(crate) const MAX_ROUTES: usize = 5_000;

/// Directives that all routes of an import inherit together.
pub(crate) const MAX_INHERITED: usize = 1_000_000;

/// Directives that are looked at for the routes of a Caddyfile or haproxy.cfg together.
pub(crate) const MAX_WORK: usize = 500_000;

/// Refuses a text that is too large.
pub(crate) fn check_size(file: &str, text: &str) -> Result<(), ImportError> {
    if text.len() <= MAX_FILE_BYTES {
        return Ok(());
    }
    Err(ImportError::Syntax {
        file: file.to_owned(),
        line: 1,
        column: 1,
        problem: format!(
            "the file has {} bytes, at most {MAX_FILE_BYTES} are read: import its parts",
            text.len()
        ),
    })
}
