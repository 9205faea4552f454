//! The files of one configuration: its own, those that it includes, and the file of variables.
//!
//! `parse` gathers them before anything is read out of them. `source_tree` makes one tree of them.
//!
//! # Invariants
//! - Each file is read once, in the order in which it is named; what a pattern matches is sorted.
//! - Their number, their size and the depth of `include` have bounds.
//! - Relative paths start from the directory of the main file, in all files.

mod glob;
mod unclosed;

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use self::unclosed::find_unclosed_list;
use crate::disk;
use crate::findings::{Findings, LocatedValue, SourceText, make_absolute};
use crate::units;
use crate::variables::{VariableError, Variables, parse_env_file};

/// Files that a configuration may include.
const MAX_FILES: usize = 1000;

/// How deep files may include others.
const MAX_DEPTH: usize = 8;

/// Bytes of one file, and of all together.
const MAX_FILE_BYTES: u64 = 4 << 20;
const MAX_TOTAL_BYTES: usize = 32 << 20;

/// The files that a configuration was read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigSources {
    /// Every file: included ones, and those of variables and secrets, too.
    pub files: Vec<PathBuf>,
    /// The patterns of `include`, as absolute paths.
    pub patterns: Vec<PathBuf>,
}

impl ConfigSources {
    /// Whether a change of a file may change the configuration.
    #[must_use]
    pub fn contains(&self, path: &Path) -> bool {
        let is_one = |other: &PathBuf| other == path || glob::matches_path(other, path);
        self.files.iter().any(|file| file == path) || self.patterns.iter().any(is_one)
    }

    /// The directories in which such files are or may appear.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        let files = self.files.iter().chain(&self.patterns);
        let folders = files.filter_map(|file| file.parent());
        let folders = folders.filter(|folder| !glob::is_pattern(folder));
        let mut folders: Vec<_> = folders.map(Path::to_owned).collect();
        folders.sort();
        folders.dedup();
        folders
    }
}

/// The texts of a configuration, before they are read.
#[derive(Debug)]
pub(crate) struct SourceFiles {
    /// Every text, the main file's first.
    files: Vec<SourceFile>,
    /// The variables that the texts may name.
    pub(crate) variables: Variables,
    patterns: Vec<PathBuf>,
    problems: Vec<(usize, String)>,
    total: usize,
}

#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    text: String,
    /// Where its text begins in the offsets of all.
    start: usize,
    /// Whether it is a file of variables, which has no tables.
    has_variables: bool,
}

/// A file that includes others, as `include` knows it.
struct Includer<'c> {
    base: &'c Path,
    /// The files on the way to this one, itself last, by their real paths.
    chain: Vec<PathBuf>,
}

impl SourceFiles {
    /// Reads everything that the text of a main file names. Problems are kept for
    /// [`report`](Self::report).
    pub(crate) fn gather(text: &str, path: &Path, base: &Path, variables: Variables) -> Self {
        let mut all = Self {
            files: Vec::new(),
            variables,
            patterns: Vec::new(),
            problems: Vec::new(),
            total: 0,
        };
        let index = all.add(path.to_owned(), text.to_owned(), false);
        let chain = vec![disk::canonicalize_existing(&make_absolute(
            Path::new(""),
            path,
        ))];
        let Some(found) = all.look_into(index) else {
            return all;
        };
        if let Some(file) = &found.env_file {
            all.read_variables(file, base);
        }
        all.include(&found.include, &Includer { base, chain });
        all
    }

    /// The texts for messages.
    pub(crate) fn texts(&self) -> Vec<SourceText<'_>> {
        let texts = self.files.iter().map(|file| SourceText {
            path: file.path.clone(),
            text: &file.text,
            start: file.start,
        });
        texts.collect()
    }

    /// The texts with tables, each with the offset where it begins; the main file's first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = LocatedValue<&str>> {
        let files = self.files.iter().filter(|file| !file.has_variables);
        files.map(|file| LocatedValue::new(file.text.as_str(), file.start))
    }

    /// Adds what went wrong to the problems of the configuration.
    pub(crate) fn report(&self, findings: &Findings<'_>) {
        for (at, problem) in &self.problems {
            findings.add_problem(*at, problem);
        }
    }

    /// Where it all came from.
    pub(crate) fn sources(&self) -> ConfigSources {
        let paths = self
            .files
            .iter()
            .map(|file| make_absolute(Path::new(""), &file.path));
        ConfigSources {
            files: paths.collect(),
            patterns: self.patterns.clone(),
        }
    }

    fn add(&mut self, path: PathBuf, text: String, has_variables: bool) -> usize {
        let last = self.files.last();
        // A byte between two texts: the end of one is not the beginning of the next.
        let start = last.map_or(0, |last| last.start + last.text.len() + 1);
        self.total += text.len();
        self.files.push(SourceFile {
            path,
            text,
            start,
            has_variables,
        });
        self.files.len() - 1
    }

    fn report_at(&mut self, at: usize, problem: impl Into<String>) {
        self.problems.push((at, problem.into()));
    }

    /// What a file names by `include` and `env_file`; none when it is not TOML.
    fn look_into(&mut self, index: usize) -> Option<NamedFiles> {
        let file = &self.files[index];
        let (root, syntax) = DeTable::parse_recoverable(&file.text);
        let start = file.start;
        if syntax.is_empty() {
            return Some(NamedFiles::find(root.get_ref(), start));
        }
        if let Some(at) = find_unclosed_list(&file.text) {
            let problem = "not valid TOML: the list that begins here has no `]`".to_owned();
            self.problems.push((start + at, problem));
            return None;
        }
        // What was recovered would only give errors that follow from these.
        let problems: Vec<_> = (syntax.iter())
            .map(|error| {
                let message = error.message().lines().collect::<Vec<_>>().join("; ");
                let at = error.span().map_or(0, |span| span.start);
                (start + at, format!("not valid TOML: {message}"))
            })
            .collect();
        self.problems.extend(problems);
        None
    }

    fn read_variables(&mut self, file: &EnvFile, base: &Path) {
        // Another problem of the value is reported when the table is read.
        let Ok(path) = self.variables.expand(&file.path.value) else {
            return;
        };
        let path = make_absolute(base, Path::new(&*path));
        let text = match disk::read_text(&path, MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(error) if file.is_optional && error.is_absent => return,
            Err(error) => {
                let problem = format!("`env_file`: {} {}", path.display(), error.problem);
                return self.report_at(file.path.offset, problem);
            }
        };
        let found = parse_env_file(&text, &self.variables);
        let index = self.add(path, text, true);
        let start = self.files[index].start;
        match found {
            Ok(found) => self.variables.add_file(found, file.overrides),
            Err(errors) => {
                for VariableError { offset, problem } in errors {
                    self.report_at(start + offset, problem);
                }
            }
        }
    }

    fn include(&mut self, patterns: &[LocatedValue<String>], by: &Includer<'_>) {
        for pattern in patterns {
            let Ok(path) = self.variables.expand(&pattern.value) else {
                continue;
            };
            if path.is_empty() || path.contains('\0') {
                self.report_at(pattern.offset, "`include` needs a path");
                continue;
            }
            let path = make_absolute(by.base, Path::new(&*path));
            let is_pattern = glob::is_pattern(&path);
            if !self.patterns.contains(&path) {
                self.patterns.push(path.clone());
            }
            match is_pattern.then(|| glob::find_files(&path)) {
                None => self.include_file(path, pattern.offset, by, false),
                Some(Ok(found)) => {
                    for path in found {
                        self.include_file(path, pattern.offset, by, true);
                    }
                }
                Some(Err(error)) => {
                    self.report_at(pattern.offset, format!("`include`: {error}"));
                }
            }
        }
    }

    fn include_file(&mut self, path: PathBuf, at: usize, by: &Includer<'_>, is_match: bool) {
        let real = disk::canonicalize_existing(&path);
        if by.chain.contains(&real) {
            // A pattern may well match the file that it stands in.
            if !is_match {
                let problem = format!("`include`: {} includes itself", path.display());
                self.report_at(at, problem);
            }
            return;
        }
        let is_same = |file: &SourceFile| disk::canonicalize_existing(&file.path) == real;
        if self.files.iter().any(is_same) || self.files.len() > MAX_FILES {
            return;
        }
        if let Some(problem) = self.exceeded_bound(by) {
            return self.report_at(at, format!("`include`: {} {problem}", path.display()));
        }
        let text = match disk::read_text(&path, MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(error) => {
                let problem = format!("`include`: {} {}", path.display(), error.problem);
                return self.report_at(at, problem);
            }
        };
        let index = self.add(path, text, false);
        let chain = [by.chain.as_slice(), &[real]].concat();
        if let Some(found) = self.look_into(index) {
            self.include(&found.include, &Includer { chain, ..*by });
        }
    }

    fn exceeded_bound(&self, by: &Includer<'_>) -> Option<String> {
        if by.chain.len() > MAX_DEPTH {
            return Some(format!(
                "is included by more than {MAX_DEPTH} files in a row"
            ));
        }
        if self.files.len() == MAX_FILES {
            return Some(format!("is one of more than {MAX_FILES} files"));
        }
        (self.total > MAX_TOTAL_BYTES).then(|| {
            let max = units::format_size(MAX_TOTAL_BYTES as u64);
            format!("comes after more than {max} of other files")
        })
    }
}

/// The files that a table names.
struct NamedFiles {
    env_file: Option<EnvFile>,
    include: Vec<LocatedValue<String>>,
}

struct EnvFile {
    path: LocatedValue<String>,
    overrides: bool,
    is_optional: bool,
}

impl NamedFiles {
    /// Values of another type are reported when the table is read.
    fn find(root: &DeTable<'_>, start: usize) -> Self {
        let server = root.get("server").and_then(|it| it.get_ref().as_table());
        let text = |value: &toml::Spanned<DeValue<'_>>| {
            let text = value.get_ref().as_str()?.to_owned();
            Some(LocatedValue::new(text, start + value.span().start))
        };
        let include = server.and_then(|server| server.get("include")?.get_ref().as_array());
        let include = include.into_iter().flat_map(|items| items.iter());
        let env_file = server.and_then(|server| server.get("env_file"));
        let env_file = env_file.and_then(|value| match value.get_ref() {
            DeValue::Table(table) => {
                let flag = |key: &str| table.get(key).and_then(|it| it.get_ref().as_bool());
                Some(EnvFile {
                    path: text(table.get("path")?)?,
                    overrides: flag("override").unwrap_or(false),
                    is_optional: flag("optional").unwrap_or(false),
                })
            }
            _ => Some(EnvFile {
                path: text(value)?,
                overrides: false,
                is_optional: false,
            }),
        });
        Self {
            env_file,
            include: include.filter_map(text).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
