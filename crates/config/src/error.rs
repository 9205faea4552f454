//! The errors of a configuration.
//!
//! All parsing files of this crate add errors; the binary's `check`, start and reload print them.
//!
//! # Invariants
//!
//! - One run reports all errors, sorted by position.
//! - Each message says what was expected, so that the reader need not look it up.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// All errors of one configuration; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigErrors {
    /// The errors, sorted by file, line and column.
    pub errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// Creates the errors of a configuration, given in any order.
    pub(crate) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        Self { errors }
    }

    /// Creates a single error without a position in a file.
    pub(crate) fn single(file: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self {
            errors: vec![ConfigError::without_position(file, problem)],
        }
    }

    /// Creates the error of a file that cannot be read.
    pub(crate) fn unreadable(file: impl Into<PathBuf>, kind: io::ErrorKind) -> Self {
        Self::single(file, format!("cannot be read: {kind}"))
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// One error and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigError {
    /// The file; without one, the directory or the words of the command line.
    pub file: PathBuf,
    /// From 1; 0 without a position in a file.
    pub line: usize,
    /// In characters, from 1; 0 without a position in a file.
    pub column: usize,
    /// The problem there, and what was expected.
    pub problem: String,
}

impl ConfigError {
    /// Creates an error about the whole of `file`.
    pub(crate) fn without_position(file: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line: 0,
            column: 0,
            problem: problem.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        write!(f, " {}", self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// `; did you mean ...?`, or nothing.
pub(crate) fn did_you_mean(suggestion: Option<String>) -> String {
    suggestion.map_or_else(String::new, |word| format!("; did you mean `{word}`?"))
}

/// ` on line N`; nothing for line 0.
pub(crate) fn line_suffix(line: usize) -> String {
    match line {
        0 => String::new(),
        line => format!(" on line {line}"),
    }
}

/// ` (permission denied)` and the like; nothing if the path does not exist.
pub(crate) fn access_error_suffix(kind: Option<io::ErrorKind>) -> String {
    match kind {
        None | Some(io::ErrorKind::NotFound) => String::new(),
        Some(kind) => format!(" ({kind})"),
    }
}

/// The namespace of routes with `hub` belongs to an application by accident.
pub(crate) const HUB_NAMESPACE_TAKEN: &str = "`hub` is the namespace of the routes with `hub`: say \
     `grip = { namespace = \"...\" }`, with \"hub\" only if these channels are to be shared";
