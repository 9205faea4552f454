//! Positions in a text, and the list of problems found there.
//!
//! One `Findings` lives for the reading of one file; every reading function adds to it and goes
//! on, so that one run reports everything.
//!
//! # Invariants
//! - Offsets are bytes of the same text, and a line or column that is shown counts characters from
//!   1.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use crate::error::{ConfigError, ConfigErrors};

/// A value and the byte offset where it stands.
#[derive(Debug, Clone)]
pub(crate) struct LocatedValue<T> {
    /// The value.
    pub(crate) value: T,
    /// Where it starts.
    pub(crate) offset: usize,
}

/// What the command line says that a file is read by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadFlags {
    /// Some defaults are those of development.
    pub(crate) development: bool,
    /// There is a listener with TLS besides those of the file.
    pub(crate) has_tls_listener: bool,
    /// There is a certificate besides those of the file.
    pub(crate) has_certificate: bool,
}

impl<T> LocatedValue<T> {
    /// `value`, found at `at`.
    pub(crate) fn new(value: T, at: usize) -> Self {
        Self { value, offset: at }
    }
}

/// The problems found in one text so far.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    text: &'a str,
    file: PathBuf,
    base_dir: PathBuf,
    flags: ReadFlags,
    errors: RefCell<Vec<ConfigError>>,
    #[cfg(test)]
    recorded_lookups: RefCell<std::collections::BTreeSet<(&'static str, String)>>,
}

impl<'a> Findings<'a> {
    /// Nothing found in `text` yet; messages name `file`, relative paths start from `base`.
    pub(crate) fn new(text: &'a str, file: &Path, base: PathBuf) -> Self {
        Self {
            text,
            file: file.to_owned(),
            base_dir: base,
            flags: ReadFlags::default(),
            errors: RefCell::default(),
            #[cfg(test)]
            recorded_lookups: RefCell::default(),
        }
    }

    /// The same for a file that is read beside these words of the command line.
    pub(crate) fn with_flags(self, flags: ReadFlags) -> Self {
        Self { flags, ..self }
    }

    /// Whether the defaults are those of development.
    pub(crate) fn is_development(&self) -> bool {
        self.flags.development
    }

    /// Words of the command line that matter to the file.
    pub(crate) fn flags(&self) -> ReadFlags {
        self.flags
    }

    /// Adds a problem at a byte offset.
    pub(crate) fn add_problem(&self, at: usize, problem: impl Into<String>) {
        let (line, column) = self.line_and_column(at);
        let error = ConfigError {
            line,
            column,
            ..ConfigError::without_position(&self.file, problem)
        };
        self.errors.borrow_mut().push(error);
    }

    /// Whether nothing was found so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// The line of a byte offset.
    pub(crate) fn line_at(&self, at: usize) -> usize {
        self.line_and_column(at).0
    }

    /// Where a byte of a text's value stands: exactly, if the text is written as it is, without
    /// escapes; else where the text starts.
    pub(crate) fn offset_inside(&self, text: &LocatedValue<&str>, offset: usize) -> usize {
        let written = self.text.get(text.offset..).unwrap_or_default();
        let inner = written.trim_start_matches(['"', '\'']);
        let inner = inner.strip_prefix('\n').unwrap_or(inner);
        let is_plain = inner.starts_with(text.value);
        let before = written.len() - inner.len();
        text.offset + if is_plain { before + offset } else { 0 }
    }

    /// The absolute path that `path` means in this file.
    pub(crate) fn resolve_path(&self, path: &str) -> PathBuf {
        make_absolute(&self.base_dir, Path::new(path))
    }

    /// The absolute directory that relative paths start from.
    pub(crate) fn base_dir(&self) -> &Path {
        &self.base_dir
    }

    /// The value, when nothing was found; a missing one is always a finding.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, ConfigErrors> {
        let errors = self.errors.into_inner();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ => Err(ConfigErrors::new(errors)),
        }
    }

    fn line_and_column(&self, at: usize) -> (usize, usize) {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        (line, before[start..].chars().count() + 1)
    }
}

#[cfg(test)]
impl Findings<'_> {
    /// Records that the option was looked up.
    pub(crate) fn record_option_lookup(&self, section: &'static str, key: &str) {
        self.recorded_lookups
            .borrow_mut()
            .insert((section, key.to_owned()));
    }

    /// Every option that was looked up.
    pub(crate) fn option_lookups(&self) -> Vec<(&'static str, String)> {
        self.recorded_lookups.borrow().iter().cloned().collect()
    }
}

/// `path` seen from `base`, without `.` components; symbolic links and `..` stay.
pub(crate) fn make_absolute(base: &Path, path: &Path) -> PathBuf {
    let joined = base.join(path);
    std::path::absolute(&joined).unwrap_or(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_byte_of_a_text_where_it_is_written() {
        let rows = [
            ("k = \"ab{c}\"", 4, "ab{c}", 2, 7),
            ("k = 'ab'", 4, "ab", 1, 6),
            ("k = \"\"\"\nab\"\"\"", 4, "ab", 1, 9),
            ("k = \"\\u0061b\"", 4, "ab", 1, 4),
            ("k = '\"ab'", 4, "\"ab", 2, 4),
        ];
        for (text, at, value, offset, expected) in rows {
            let findings = Findings::new(text, Path::new("f"), PathBuf::from("/"));
            let found = findings.offset_inside(&LocatedValue::new(value, at), offset);
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn counts_lines_and_columns_in_characters_from_one() {
        let text = "a = 1\nü = \"ö\" x\n";
        let findings = Findings::new(text, Path::new("f"), PathBuf::from("/"));
        let rows = [
            (0, (1, 1)),
            (4, (1, 5)),
            (6, (2, 1)),
            (9, (2, 3)),
            (14, (2, 7)),
            (99, (3, 1)),
        ];
        for (at, expected) in rows {
            assert_eq!(findings.line_and_column(at), expected, "offset {at}");
        }
    }
}
