//! The directives of the input, each with its outcome so far.
//!
//! Parsers add directives, translators note outcomes, and the report is made of both.
//!
//! # Invariants
//! - A directive has one entry, however often it is applied. Of several outcomes the worst counts.
//! - A directive that no translator noted gets the answer of its server's table.

use crate::answers::{self, Product};
use crate::report::{Coverage, CoverageReport, DirectiveReport};

/// A directive of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DirectiveId(usize);

/// All directives of an import.
#[derive(Debug)]
pub(crate) struct DirectiveLog {
    product: Product,
    entries: Vec<LoggedDirective>,
}

#[derive(Debug)]
struct LoggedDirective {
    file: String,
    line: usize,
    /// The word of the table.
    word: String,
    text: String,
    outcome: Option<(Coverage, String)>,
}

/// Longest text of a directive in reports and comments, in characters.
const MAX_TEXT: usize = 120;

impl DirectiveLog {
    /// A log without directives, for words of this product.
    pub(crate) fn new(product: Product) -> Self {
        Self {
            product,
            entries: Vec::new(),
        }
    }

    /// Adds a directive.
    pub(crate) fn add(&mut self, file: &str, line: usize, word: &str, text: &str) -> DirectiveId {
        self.entries.push(LoggedDirective {
            file: file.to_owned(),
            line,
            word: word.to_owned(),
            text: shorten(text),
            outcome: None,
        });
        DirectiveId(self.entries.len() - 1)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Notes an outcome.
    pub(crate) fn note(&mut self, id: DirectiveId, coverage: Coverage, detail: impl Into<String>) {
        let detail = detail.into();
        let outcome = &mut self.entries[id.0].outcome;
        match outcome {
            None => *outcome = Some((coverage, detail)),
            Some((known, told)) if coverage > *known => {
                *known = coverage;
                *told = detail;
            }
            Some(_) => {}
        }
    }

    /// Notes that a key of the output has the directive.
    pub(crate) fn translated(&mut self, id: DirectiveId, key: &str) {
        self.note(id, Coverage::Translated, format!("`{key}`"));
    }

    /// Its outcome so far.
    pub(crate) fn coverage(&self, id: DirectiveId) -> Option<Coverage> {
        let outcome = self.entries[id.0].outcome.as_ref();
        outcome.map(|(coverage, _)| *coverage)
    }

    /// Whether it has an outcome.
    pub(crate) fn is_noted(&self, id: DirectiveId) -> bool {
        self.entries[id.0].outcome.is_some()
    }

    /// Notes the table's answer, unless there is an outcome. Returns the comment for the output,
    /// where a reader has to know of the directive.
    pub(crate) fn note_from_table(&mut self, id: DirectiveId) -> Option<String> {
        if self.is_noted(id) {
            return None;
        }
        let word = self.entries[id.0].word.clone();
        let (coverage, detail) = answers::outcome(self.product, &word);
        self.note(id, coverage, detail);
        (coverage >= Coverage::ByHand).then(|| self.comment(id))
    }

    /// Notes an outcome of a person's work, and returns its comment.
    pub(crate) fn leave(
        &mut self,
        id: DirectiveId,
        coverage: Coverage,
        detail: impl Into<String>,
    ) -> String {
        let detail = detail.into();
        let entry = &self.entries[id.0];
        let text = format!(
            "{}:{} `{}`: {}: {detail}",
            entry.file,
            entry.line,
            entry.text,
            coverage.as_str()
        );
        self.note(id, coverage, detail);
        text
    }

    /// The comment of a directive with an outcome.
    fn comment(&self, id: DirectiveId) -> String {
        let entry = &self.entries[id.0];
        let (coverage, detail) = match &entry.outcome {
            Some((coverage, detail)) => (coverage.as_str(), detail.as_str()),
            None => ("by hand", ""),
        };
        let (file, line, text) = (&entry.file, entry.line, &entry.text);
        format!("{file}:{line} `{text}`: {coverage}: {detail}")
    }

    /// The place of a directive: `nginx.conf:12`.
    pub(crate) fn place(&self, id: DirectiveId) -> String {
        let entry = &self.entries[id.0];
        format!("{}:{}", entry.file, entry.line)
    }

    /// Every directive.
    pub(crate) fn ids(&self) -> impl Iterator<Item = DirectiveId> + use<> {
        (0..self.entries.len()).map(DirectiveId)
    }

    /// The report; directives without an outcome get the answer of the table.
    pub(crate) fn into_report(mut self) -> CoverageReport {
        for id in self.ids() {
            let _ = self.note_from_table(id);
        }
        let directives = self.entries.into_iter().map(|entry| {
            let (coverage, detail) = entry.outcome.unwrap_or((Coverage::ByHand, String::new()));
            DirectiveReport {
                file: entry.file,
                line: entry.line,
                text: entry.text,
                coverage,
                detail,
            }
        });
        CoverageReport {
            directives: directives.collect(),
        }
    }
}

/// One line of at most [`MAX_TEXT`] characters, without control characters and backticks.
fn shorten(text: &str) -> String {
    let mut short = String::new();
    for word in text.split_whitespace() {
        if !short.is_empty() {
            short.push(' ');
        }
        let plain = word.chars().filter(|c| !c.is_control());
        short.extend(
            plain
                .map(|c| if c == '`' { '\'' } else { c })
                .take(MAX_TEXT + 1),
        );
        if short.chars().count() > MAX_TEXT {
            let cut = short
                .char_indices()
                .nth(MAX_TEXT - 1)
                .map_or(short.len(), |(at, _)| at);
            short.truncate(cut);
            short.push('…');
            break;
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_worst_outcome_and_asks_the_table_last() {
        let mut log = DirectiveLog::new(Product::Nginx);
        let one = log.add("nginx.conf", 3, "gzip_vary", "gzip_vary on");
        let two = log.add("nginx.conf", 4, "root", "root /srv");
        let three = log.add("nginx.conf", 5, "perl_set", "perl_set $a b");
        log.translated(two, "files.root");
        log.note(two, Coverage::BuiltIn, "later");
        let comment = log.note_from_table(three).unwrap();
        assert!(
            comment.starts_with("nginx.conf:5 `perl_set $a b`: not offered: "),
            "{comment}"
        );
        let report = log.into_report();
        assert_eq!(report.directives[0].coverage, Coverage::BuiltIn);
        assert_eq!(report.directives[1].detail, "`files.root`");
        assert_eq!(report.directives.len(), 3);
        let _ = one;
    }

    #[test]
    fn shortens_long_texts() {
        let long = shorten(&"word ".repeat(1_000));
        assert_eq!(long.chars().count(), MAX_TEXT);
        assert_eq!(shorten("a\n\tb `c`"), "a b 'c'");
        assert!(shorten(&"x".repeat(1_000_000)).len() < 4 * MAX_TEXT);
    }
}
