//! What is wrong with a scenario file, and where.
//!
//! `check` finds a [`Wrong`] at a byte range; [`Wrong::into_scenario_error`] turns that into file, line and column.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("{path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{path}:{line}:{column}: {message}", path = path.display())]
    Invalid {
        /// The file, as it was named.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// What is wrong, and what would be right.
        message: String,
    },
}

/// Something wrong at a place in the text.
#[derive(Debug)]
pub(super) struct LocatedError {
    /// Bytes of the text.
    pub(super) span: Range<usize>,
    /// What is wrong.
    pub(super) message: String,
}

impl LocatedError {
    pub(super) fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { span, message }
    }

    pub(super) fn into_scenario_error(self, text: &str, path: &Path) -> ScenarioError {
        // Counted in bytes first: a span may end within a character of a broken text.
        let before = &text.as_bytes()[..self.span.start.min(text.len())];
        let line_start = before
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |newline| newline + 1);
        ScenarioError::Invalid {
            path: path.to_owned(),
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..])
                .chars()
                .count()
                + 1,
            message: self.message,
        }
    }
}
