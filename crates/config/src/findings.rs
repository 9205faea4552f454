//! Positions in the texts of a configuration, and the list of problems found there.
//!
//! One `Findings` lives for the reading of one file and those that it includes; every reading
//! function adds to it and goes on, so that one run reports everything.
//!
//! # Invariants
//! - Offsets are bytes of all texts one behind the other, and a line or column that is shown counts
//!   characters from 1.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::ListenAddr;
use crate::error::{ConfigError, ConfigErrors, line_suffix};

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

/// A text of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct SourceText<'a> {
    /// Its file, as messages name it.
    pub(crate) path: PathBuf,
    /// The text.
    pub(crate) text: &'a str,
    /// The offset of its first byte.
    pub(crate) start: usize,
}

/// The problems found in the texts so far.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    /// Every text, by its start; never empty.
    texts: Vec<SourceText<'a>>,
    base_dir: PathBuf,
    flags: ReadFlags,
    errors: RefCell<Vec<ConfigError>>,
    /// Where texts stand that had variables.
    expanded: RefCell<BTreeSet<usize>>,
    /// Files whose content is a value.
    value_files: RefCell<Vec<PathBuf>>,
    /// Listeners that conditions name, and where.
    named_listeners: RefCell<Vec<(usize, ListenAddr)>>,
    #[cfg(test)]
    recorded_lookups: RefCell<BTreeSet<(&'static str, String)>>,
}

impl<'a> Findings<'a> {
    /// Nothing found in `text` yet; messages name `file`, relative paths start from `base`.
    #[cfg(test)]
    pub(crate) fn new(text: &'a str, file: &Path, base: PathBuf) -> Self {
        let path = file.to_owned();
        let (texts, start) = (Vec::new(), 0);
        let mut findings = Self::in_texts(texts, base);
        findings.texts.push(SourceText { path, text, start });
        findings
    }

    /// Nothing found yet in these texts, of which the first is the main file's.
    pub(crate) fn in_texts(texts: Vec<SourceText<'a>>, base: PathBuf) -> Self {
        Self {
            texts,
            base_dir: base,
            flags: ReadFlags::default(),
            errors: RefCell::default(),
            expanded: RefCell::default(),
            value_files: RefCell::default(),
            named_listeners: RefCell::default(),
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
        let (file, line, column) = self.locate(at);
        let error = ConfigError {
            line,
            column,
            ..ConfigError::without_position(file, problem)
        };
        self.errors.borrow_mut().push(error);
    }

    /// Whether nothing was found so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// Where a byte is, as seen from another: ` on line 3`, with the file if it is another one.
    pub(crate) fn place_suffix(&self, at: usize, seen_from: usize) -> String {
        let (file, line, _) = self.locate(at);
        if file == self.locate(seen_from).0 {
            return line_suffix(line);
        }
        let file = file.strip_prefix(&self.base_dir).unwrap_or(file);
        format!("{} of {}", line_suffix(line), file.display())
    }

    /// Notes that the text there had variables, which are replaced by their values.
    pub(crate) fn mark_expanded(&self, at: usize) {
        self.expanded.borrow_mut().insert(at);
    }

    /// Whether the text there had variables.
    pub(crate) fn is_expanded(&self, at: usize) -> bool {
        self.expanded.borrow().contains(&at)
    }

    /// Notes a file whose content is a value.
    pub(crate) fn add_value_file(&self, path: PathBuf) {
        self.value_files.borrow_mut().push(path);
    }

    /// The files whose contents are values.
    pub(crate) fn value_files(&self) -> Vec<PathBuf> {
        self.value_files.borrow().clone()
    }

    /// Where a byte of a text's value stands: exactly, if the text is written as it is, without
    /// escapes; else where the text starts.
    pub(crate) fn offset_inside(&self, text: &LocatedValue<&str>, offset: usize) -> usize {
        let (source, at) = self.text_at(text.offset);
        let written = source.text.get(at..).unwrap_or_default();
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

    /// The text with a byte, and the byte's offset there.
    fn text_at(&self, at: usize) -> (&SourceText<'a>, usize) {
        let index = self.texts.partition_point(|text| text.start <= at);
        let text = &self.texts[index.saturating_sub(1)];
        (text, at - text.start)
    }

    /// The file, the line and the column of a byte.
    fn locate(&self, at: usize) -> (&Path, usize, usize) {
        let (source, at) = self.text_at(at);
        let mut at = at.min(source.text.len());
        while !source.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &source.text[..at];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        (&source.path, line, before[start..].chars().count() + 1)
    }
}

impl Findings<'_> {
    /// Records a listener that a condition names, which is checked once all are known.
    pub(crate) fn record_named_listener(&self, offset: usize, listener: ListenAddr) {
        self.named_listeners.borrow_mut().push((offset, listener));
    }

    /// Every listener that a condition names, with its place.
    pub(crate) fn named_listeners(&self) -> Vec<(usize, ListenAddr)> {
        self.named_listeners.borrow().clone()
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
            let (_, line, column) = findings.locate(at);
            assert_eq!((line, column), expected, "offset {at}");
        }
    }

    #[test]
    fn names_the_file_of_an_offset() {
        let text = |name: &str, text, start| SourceText {
            path: PathBuf::from(name),
            text,
            start,
        };
        let texts = vec![
            text("/d/a", "a\nb", 0),
            text("/d/b", "", 4),
            text("/d/c", "\nc", 5),
        ];
        let findings = Findings::in_texts(texts, PathBuf::from("/d"));
        let rows = [
            (0, "/d/a", 1),
            (3, "/d/a", 2),
            (4, "/d/b", 1),
            (5, "/d/c", 1),
            (6, "/d/c", 2),
        ];
        for (at, file, line) in rows {
            let (found, found_line, _) = findings.locate(at);
            assert_eq!((found, found_line), (Path::new(file), line), "offset {at}");
        }
        assert_eq!(findings.place_suffix(2, 0), " on line 2");
        assert_eq!(findings.place_suffix(6, 0), " on line 2 of c");
    }
}
