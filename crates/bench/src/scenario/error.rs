//! Errors in a scenario file, with their positions.
//!
//! `checked` finds a [`LocatedError`] at a byte range; [`LocatedError::into_scenario_error`] adds
//! file, line and column.

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
        /// The cause.
        source: std::io::Error,
    },
    /// The file has an error.
    #[error("{path}:{line}:{column}: {message}", path = path.display())]
    Invalid {
        /// The file, as given.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// The error, and the expected value.
        message: String,
    },
}

/// An error at a position in the text.
#[derive(Debug)]
pub(super) struct LocatedError {
    /// Byte range.
    pub(super) span: Range<usize>,
    /// The error.
    pub(super) message: String,
}

impl LocatedError {
    pub(super) fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { span, message }
    }

    pub(super) fn into_scenario_error(self, text: &str, path: &Path) -> ScenarioError {
        // Counted in bytes first: a span may end within a character of invalid text.
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
