//! The report of an import: each directive of the input with its outcome.
//!
//! `penstock import` prints it to standard error, as text or JSON.

use std::fmt::Write as _;

/// What became of a directive, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coverage {
    /// Penstock does not need it.
    NotNeeded,
    /// Penstock does so without a key.
    BuiltIn,
    /// A key of the output has it.
    Translated,
    /// Penstock has a key for it, which is left to a person.
    ByHand,
    /// Penstock does not do this.
    NotOffered,
}

impl Coverage {
    const ALL: [Self; 5] = [
        Self::Translated,
        Self::BuiltIn,
        Self::NotNeeded,
        Self::NotOffered,
        Self::ByHand,
    ];

    /// The words of the report.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Translated => "translated",
            Self::BuiltIn => "built in",
            Self::NotNeeded => "not needed",
            Self::NotOffered => "not offered",
            Self::ByHand => "by hand",
        }
    }
}

/// One directive of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectiveReport {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The directive, shortened.
    pub text: String,
    /// The outcome.
    pub coverage: Coverage,
    /// The key, or the reason.
    pub detail: String,
}

/// All directives, in the order of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoverageReport {
    /// The directives.
    pub directives: Vec<DirectiveReport>,
}

impl CoverageReport {
    /// One line: `84 directives: 70 translated, 8 built in, 4 not needed, 2 not offered`.
    #[must_use]
    pub fn summary(&self) -> String {
        let total = self.directives.len();
        let plural = if total == 1 { "" } else { "s" };
        let parts = Coverage::ALL.into_iter().filter_map(|coverage| {
            let count = self.count(coverage);
            (count > 0).then(|| format!("{count} {}", coverage.as_str()))
        });
        let parts: Vec<String> = parts.collect();
        match parts.is_empty() {
            true => "0 directives".to_owned(),
            false => format!("{total} directive{plural}: {}", parts.join(", ")),
        }
    }

    /// How many directives have this outcome.
    #[must_use]
    pub fn count(&self, coverage: Coverage) -> usize {
        let same = self.directives.iter();
        same.filter(|directive| directive.coverage == coverage)
            .count()
    }

    /// A line for each directive, and the summary as the last line.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for directive in &self.directives {
            let DirectiveReport {
                file,
                line,
                text: words,
                coverage,
                detail,
            } = directive;
            let _ = writeln!(
                text,
                "{file}:{line} `{words}`: {}: {detail}",
                coverage.as_str()
            );
        }
        text.push_str(&self.summary());
        text
    }

    /// One JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let directives = self.directives.iter().map(|directive| {
            serde_json::json!({
                "file": directive.file,
                "line": directive.line,
                "directive": directive.text,
                "coverage": directive.coverage.as_str().replace(' ', "_"),
                "detail": directive.detail,
            })
        });
        let counts: serde_json::Map<String, serde_json::Value> = Coverage::ALL
            .into_iter()
            .map(|it| (it.as_str().replace(' ', "_"), self.count(it).into()))
            .collect();
        serde_json::json!({
            "summary": self.summary(),
            "counts": counts,
            "directives": directives.collect::<Vec<_>>(),
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_lists_outcomes() {
        let directive = |line, coverage| DirectiveReport {
            file: "nginx.conf".to_owned(),
            line,
            text: "gzip on".to_owned(),
            coverage,
            detail: "compress".to_owned(),
        };
        let report = CoverageReport {
            directives: vec![
                directive(1, Coverage::Translated),
                directive(2, Coverage::NotOffered),
                directive(3, Coverage::Translated),
            ],
        };
        assert_eq!(
            report.summary(),
            "3 directives: 2 translated, 1 not offered"
        );
        let text = report.to_text();
        assert!(
            text.contains("nginx.conf:2 `gzip on`: not offered: compress\n"),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["counts"]["translated"], 2);
        assert_eq!(json["directives"][1]["coverage"], "not_offered");
        let none = CoverageReport {
            directives: Vec::new(),
        };
        assert_eq!(none.summary(), "0 directives");
    }
}
