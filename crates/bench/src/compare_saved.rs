//! Compares two saved reports: what changed, and whether it exceeds the noise. Called by `bench
//! compare A.json B.json`. Pure.
//!
//! The reports are two runs, mixes, sweeps or comparisons. Parts are matched by load name,
//! connections or deployment name; unmatched parts are listed. A change counts if the ranges over
//! the rounds do not overlap or, without rounds on both sides, if it exceeds a fixed bound. The
//! output names the criterion.

mod conditions;
mod parts;
mod verdict;

use crate::report::{Report, ReportResult};
use crate::text::table::{ColumnKind, Table};
use crate::text::units::{format_figure, format_percent, sanitize};

pub use verdict::Verdict;

/// Why two reports cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompareSavedError {
    /// A sweep and a run, for instance.
    #[error("a report of `bench {old}` cannot be compared with one of `bench {new}`")]
    DifferentVerbs {
        /// The first report's verb.
        old: &'static str,
        /// The second's.
        new: &'static str,
    },
}

/// What changed between two reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// When and with what each was measured.
    pub contexts: [String; 2],
    /// Why the two may not be comparable, or a figure may not be the server's own.
    pub warnings: Vec<String>,
    /// Every figure that both have.
    pub changes: Vec<Change>,
    /// Parts of the first report without a partner.
    pub only_old: Vec<String>,
    /// Parts of the second report without a partner.
    pub only_new: Vec<String>,
}

/// One figure of both reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The part: a load, a number of connections, a deployment; empty if there is only one.
    pub part: String,
    /// The figure with its unit.
    pub figure: &'static str,
    /// In the first report.
    pub old: f64,
    /// In the second.
    pub new: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// The criterion for noise.
    pub noise: String,
}

impl Change {
    /// The change in percent of the old figure; `None` when that was zero.
    #[must_use]
    pub fn percent(&self) -> Option<f64> {
        (self.old != 0.0).then(|| (self.new / self.old - 1.0) * 100.0)
    }
}

impl Changes {
    /// Formats the changes for a terminal; ends with a line break.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "old  {}\nnew  {}\n",
            sanitize(&self.contexts[0]),
            sanitize(&self.contexts[1])
        );
        for warning in &self.warnings {
            text += &format!("WARNING: {}\n", sanitize(warning));
        }
        text += &format!("\n{}", self.table().text());
        for (which, parts) in [("old", &self.only_old), ("new", &self.only_new)] {
            if !parts.is_empty() {
                text += &format!("\nOnly in {which}: {}\n", sanitize(&parts.join(", ")));
            }
        }
        let count = |wanted: Verdict| {
            self.changes
                .iter()
                .filter(|change| change.verdict == wanted)
                .count()
        };
        let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
        let same = count(Verdict::WithinNoise);
        text += &format!(
            "\n{better} better, {worse} worse, {same} within the noise.\n{}",
            verdict::METHOD_TEXT
        );
        text
    }

    /// Whether any figure became worse beyond the noise.
    #[must_use]
    pub fn has_worse(&self) -> bool {
        self.changes
            .iter()
            .any(|change| change.verdict == Verdict::Worse)
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("part", ColumnKind::Text),
            ("figure", ColumnKind::Text),
            ("old", ColumnKind::Number),
            ("new", ColumnKind::Number),
            ("change", ColumnKind::Number),
            ("", ColumnKind::Text),
            ("noise", ColumnKind::Text),
        ]);
        let mut before = None;
        for change in &self.changes {
            let is_new = before.replace(&change.part) != Some(&change.part);
            let verdict = match change.verdict {
                Verdict::Better => "better",
                Verdict::Worse => "WORSE",
                Verdict::WithinNoise => "within noise",
            };
            table.rows.push(vec![
                if is_new {
                    sanitize(&change.part)
                } else {
                    String::new()
                },
                change.figure.to_owned(),
                format_figure(change.old),
                format_figure(change.new),
                change
                    .percent()
                    .map_or_else(|| "-".to_owned(), format_percent),
                verdict.to_owned(),
                change.noise.clone(),
            ]);
        }
        table.without_empty_columns()
    }
}

/// Compares two reports of the same kind; the first is the old one.
///
/// # Errors
/// The reports are of different kinds.
pub fn compare_saved(old: &Report, new: &Report) -> Result<Changes, CompareSavedError> {
    if std::mem::discriminant(&old.result) != std::mem::discriminant(&new.result) {
        let (old, new) = (verb_name(&old.result), verb_name(&new.result));
        return Err(CompareSavedError::DifferentVerbs { old, new });
    }
    let (old_parts, new_parts) = (
        parts::report_parts(&old.result),
        parts::report_parts(&new.result),
    );
    let mut changes = Vec::new();
    for part in &old_parts {
        let Some(partner) = new_parts.iter().find(|found| found.name == part.name) else {
            continue;
        };
        for (name, old) in &part.figures {
            let new = partner.figure(name);
            changes.extend(new.map(|new| verdict::judge_change(&part.name, name, *old, new)));
        }
    }
    let missing = |parts: &[parts::ReportPart], others: &[parts::ReportPart]| {
        let is_alone =
            |part: &&parts::ReportPart| others.iter().all(|other| other.name != part.name);
        parts
            .iter()
            .filter(is_alone)
            .map(|part| part.name.clone())
            .collect()
    };
    Ok(Changes {
        contexts: [
            conditions::describe_context(old),
            conditions::describe_context(new),
        ],
        warnings: conditions::condition_warnings(old, new),
        changes,
        only_old: missing(&old_parts, &new_parts),
        only_new: missing(&new_parts, &old_parts),
    })
}

fn verb_name(result: &ReportResult) -> &'static str {
    match result {
        ReportResult::Run(_) => "run",
        ReportResult::Mix(_) => "mix",
        ReportResult::Sweep(_) => "sweep",
        ReportResult::Compare(_) => "compare",
        ReportResult::Hold(_) => "hold",
    }
}

#[cfg(test)]
mod tests;
