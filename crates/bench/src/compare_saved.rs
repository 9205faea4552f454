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

use self::parts::ReportPart;
use crate::report::Report;
use crate::text::table::Table;
use crate::text::units::{format_figure, sanitize};

pub(crate) use verdict::Verdict;

/// The comparison of two reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReportComparison {
    /// When and with what each was measured.
    pub(crate) contexts: [String; 2],
    /// Why the two may not be comparable, or a figure may not be the server's own.
    pub(crate) warnings: Vec<String>,
    /// Every figure that both have.
    pub(crate) changes: Vec<FigureChange>,
    /// Parts of the first report without a partner.
    pub(crate) only_old: Vec<String>,
    /// Parts of the second report without a partner.
    pub(crate) only_new: Vec<String>,
}

/// One figure of both reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FigureChange {
    /// The part: a load, a number of connections, a deployment; empty if there is only one.
    pub(crate) part: String,
    /// The figure with its unit.
    pub(crate) figure: &'static str,
    /// In the first report.
    pub(crate) old: f64,
    /// In the second.
    pub(crate) new: f64,
    /// The verdict.
    pub(crate) verdict: Verdict,
    /// The criterion for noise.
    pub(crate) noise: String,
}

impl ReportComparison {
    /// Formats the changes for a terminal; ends with a line break.
    pub(crate) fn to_text(&self) -> String {
        let [old, new] = &self.contexts;
        let mut text = format!("old  {old}\nnew  {new}\n");
        for warning in &self.warnings {
            text += &format!("WARNING: {warning}\n");
        }
        text += &format!("\n{}", self.table().text());
        for (which, parts) in [("old", &self.only_old), ("new", &self.only_new)] {
            if !parts.is_empty() {
                text += &format!("\nOnly in {which}: {}\n", parts.join(", "));
            }
        }
        let count = |wanted: Verdict| {
            let changes = self.changes.iter();
            changes.filter(|change| change.verdict == wanted).count()
        };
        text += &format!(
            "\n{} better, {} worse, {} within the noise.\n{}",
            count(Verdict::Better),
            count(Verdict::Worse),
            count(Verdict::WithinNoise),
            verdict::NOISE_CRITERIA_TEXT
        );
        sanitize(&text)
    }

    /// Whether any figure became worse beyond the noise.
    pub(crate) fn has_regressions(&self) -> bool {
        self.changes
            .iter()
            .any(|change| change.verdict == Verdict::Worse)
    }

    fn table(&self) -> Table {
        let before = std::iter::once("").chain(self.changes.iter().map(|change| &*change.part));
        Table::of(before.zip(&self.changes))
            .text_column("part", |(before, change)| match change.part == *before {
                true => String::new(),
                false => change.part.clone(),
            })
            .text_column("figure", |(_, change)| change.figure)
            .number_column("old", |(_, change)| format_figure(change.old))
            .number_column("new", |(_, change)| format_figure(change.new))
            .number_column("change", |(_, change)| {
                // From nothing there is no percentage.
                let percent = (change.old != 0.0).then(|| (change.new / change.old - 1.0) * 100.0);
                percent.map_or_else(|| "-".to_owned(), |it| format!("{it:+.1} %"))
            })
            .text_column("", |(_, change)| match change.verdict {
                Verdict::Better => "better",
                Verdict::Worse => "WORSE",
                Verdict::WithinNoise => "within noise",
            })
            .text_column("noise", |(_, change)| change.noise.clone())
            .build_nonempty_columns()
    }
}

/// Compares two reports of the same kind; the first is the old one.
///
/// # Errors
/// The reports are of different kinds.
pub(crate) fn compare_saved(old: &Report, new: &Report) -> Result<ReportComparison, String> {
    let (command, other) = (old.result.verb(), new.result.verb());
    if command != other {
        return Err(format!(
            "a report of `bench {command}` cannot be compared with one of `bench {other}`"
        ));
    }
    let old_parts = parts::report_parts(&old.result);
    let new_parts = parts::report_parts(&new.result);
    let mut changes = Vec::new();
    for part in &old_parts {
        if let Some(partner) = new_parts.iter().find(|found| found.name == part.name) {
            let figures = verdict::FIGURE_RULES.iter();
            changes.extend(figures.filter_map(|figure| figure.judge(part, partner)));
        }
    }
    let missing = |parts: &[ReportPart], others: &[ReportPart]| {
        let is_alone = |part: &&ReportPart| others.iter().all(|other| other.name != part.name);
        let alone = parts.iter().filter(is_alone);
        alone.map(|part| part.name.clone()).collect()
    };
    Ok(ReportComparison {
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

#[cfg(test)]
mod tests;
