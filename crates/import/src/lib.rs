//! Configurations of other servers, translated to Penstock's: text in, text and report out.
//!
//! The verb `penstock import` calls [`import`], `penstock config explain` asks [`explain_word`].
//! A parser for each language reads directives, a translator for each server writes into one
//! `draft`, and `answers` has the tables of `docs/migrate` for words without a translation.
//!
//! # Invariants
//! - Each directive of the input is in the report exactly once (`directives`).
//! - A directive without an equal is a comment at its place in the output, or at its end.
//! - No input panics or loops. `limits` bounds size, depth, files and directives.
//! - Nothing of the input is executed.

mod answers;
mod apps;
mod caddy;
mod directives;
mod draft;
mod explain;
mod haproxy;
mod include;
mod init;
mod kind;
mod limits;
mod matcher;
mod mend;
mod nginx;
mod output;
mod reachable;
mod report;
#[cfg(test)]
mod testing;
mod toml_value;
mod units;

pub use answers::{Product, known_words};
pub use explain::{Explanation, explain_word, similar_words};
pub use include::IncludeReader;
pub use init::{FolderHints, UnservedFiles, write_folder_config};
pub use kind::ServerKind;
pub use report::{Coverage, CoverageReport, DirectiveReport};

use std::collections::BTreeSet;
use std::path::Path;

use self::directives::DirectiveLog;
use self::draft::Draft;

/// A translated configuration.
#[derive(Debug)]
pub struct Translation {
    /// The text of `penstock.toml`, with comments.
    pub toml: String,
    /// The outcome of each directive.
    pub report: CoverageReport,
}

/// Why a file cannot be translated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The language of the file is not known.
    #[error("{file}: not recognised as a file of another server: name its kind by --from {kinds}")]
    UnknownKind {
        /// The file.
        file: String,
        /// The kinds, with bars between them.
        kinds: String,
    },
    /// A language of the server that is not read.
    #[error("{file}: {problem}")]
    Unsupported {
        /// The file.
        file: String,
        /// The cause, and a way around it.
        problem: String,
    },
    /// The file breaks the grammar of its language, or a bound.
    #[error("{file}:{line}:{column}: {problem}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// The problem.
        problem: String,
    },
}

/// Translates the text of `file`. Without a `kind`, name and text of the file tell it.
///
/// # Errors
/// The text is of no known kind, breaks its grammar, or is larger than the bounds.
pub fn import(
    file: &Path,
    text: &str,
    kind: Option<ServerKind>,
    reader: &dyn IncludeReader,
) -> Result<Translation, ImportError> {
    import_from_dir(file, text, kind, reader, None)
}

/// As [`import`], for a configuration that is to lie in another folder than the application: `dir`
/// is the application's. Configurations of front ends do not need it.
///
/// # Errors
/// As [`import`].
pub fn import_from_dir(
    file: &Path,
    text: &str,
    kind: Option<ServerKind>,
    reader: &dyn IncludeReader,
    dir: Option<&Path>,
) -> Result<Translation, ImportError> {
    let name = file.display().to_string();
    limits::check_size(&name, text)?;
    let kind = kind.or_else(|| ServerKind::detect(file, text));
    let Some(kind) = kind else {
        let kinds = ServerKind::ALL.map(ServerKind::as_str).join("|");
        return Err(ImportError::UnknownKind { file: name, kinds });
    };
    match kind {
        ServerKind::Nginx => nginx::import(file, text, reader),
        ServerKind::Caddy => caddy::import(file, text, reader),
        ServerKind::Haproxy => haproxy::import(file, text),
        _ => apps::import(kind, file, text, dir),
    }
}

impl Translation {
    /// Writes a draft, with a line of its origin, and what became of each directive.
    fn finish(file: &Path, mut draft: Draft, log: DirectiveLog) -> Self {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let origin = format!("Made from {name} by `penstock import`. Check it: penstock check");
        draft.head.insert(0, origin);
        let mut toml = draft.into_toml();
        let report = log.into_report();
        append_missing_comments(&report, &mut toml);
        Self { toml, report }
    }
}

/// Ends the text with a comment for each directive that is left to a person and has none.
fn append_missing_comments(report: &CoverageReport, toml: &mut String) {
    let comments = toml.lines().filter_map(|line| line.strip_prefix("# "));
    let heads = comments.filter_map(|line| Some(&line[..line.find("`: ")?]));
    let known: BTreeSet<&str> = heads.collect();
    let left = report
        .directives
        .iter()
        .filter(|it| it.coverage >= Coverage::ByHand);
    let missing = left.filter_map(|it| {
        let head = format!("{}:{} `{}", it.file, it.line, it.text);
        let is_there = known.contains(head.as_str());
        (!is_there).then(|| format!("# {head}`: {}: {}", it.coverage.as_str(), it.detail))
    });
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() {
        return;
    }
    toml.push('\n');
    for line in missing {
        toml.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
        toml.push('\n');
    }
}

impl ImportError {
    /// The refusal of a file that makes more routes than a server could have; `or` is what else may
    /// be too many.
    fn too_many_routes(file: &Path, or: &str) -> Self {
        let most = limits::MAX_ROUTES;
        Self::Syntax {
            file: file.display().to_string(),
            line: 1,
            column: 1,
            problem: format!("more than {most} routes, or {or}: import its parts"),
        }
    }
}
