//! Judges whether a change exceeds the noise. Pure.

use super::FigureChange;
use super::parts::ReportPart;
use crate::report::RoundSpread;

/// The verdict on a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may be chance.
    WithinNoise,
    /// More requests, or less of anything else.
    Better,
    /// The opposite.
    Worse,
}

/// The criteria for noise, as printed under the table.
pub(super) const NOISE_CRITERIA_TEXT: &str = "\
Noise: where both reports have rounds, a change counts when the ranges over the rounds do not overlap and
it is above 1 %; without rounds above 5 % for requests/s and CPU, 10 % for percentiles, memory and errors.
";

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FigureOverRounds {
    pub(super) spread: RoundSpread,
    pub(super) rounds: usize,
}

/// Reads a figure of a part.
type FigureOf = fn(&ReportPart) -> Option<FigureOverRounds>;

/// A figure and the rule for its verdict.
#[derive(Debug, Clone, Copy)]
pub(super) struct FigureRule {
    pub(super) name: &'static str,
    pub(super) of: FigureOf,
    more_is_better: bool,
    /// Without rounds the repeatability is unknown: a smaller change counts as chance.
    bound_percent: f64,
}

pub(super) const FIGURE_RULES: [FigureRule; 6] = [
    FigureRule::new("requests/s", |part| part.per_second, true, 5.0),
    FigureRule::new("CPU us/request", |part| part.cpu_us, false, 5.0),
    FigureRule::new("p50 ms", |part| part.p50_ms, false, 10.0),
    FigureRule::new("p99 ms", |part| part.p99_ms, false, 10.0),
    FigureRule::new("memory MiB", |part| part.memory, false, 10.0),
    FigureRule::new("errors", |part| part.errors, false, 10.0),
];

impl FigureRule {
    const fn new(
        name: &'static str,
        of: FigureOf,
        more_is_better: bool,
        bound_percent: f64,
    ) -> Self {
        Self {
            name,
            of,
            more_is_better,
            bound_percent,
        }
    }

    /// Judges the change of this figure in a part; `None` if one of them does not have it.
    pub(super) fn judge(&self, old: &ReportPart, new: &ReportPart) -> Option<FigureChange> {
        Some(judge_change(
            &old.name,
            self,
            (self.of)(old)?,
            (self.of)(new)?,
        ))
    }
}

/// The smallest change that counts even if ranges do not overlap: few rounds may be equal by
/// chance.
const MIN_PERCENT: f64 = 1.0;

fn judge_change(
    part: &str,
    rule: &FigureRule,
    old: FigureOverRounds,
    new: FigureOverRounds,
) -> FigureChange {
    let (before, after) = (old.spread.median, new.spread.median);
    let bound = rule.bound_percent;
    // Figures are never negative; from zero any change exceeds the bound.
    let moved = (after - before).abs();
    let (is_more_than_noise, noise) = match old.rounds.min(new.rounds) {
        2.. => {
            let is_apart = old.spread.max < new.spread.min || new.spread.max < old.spread.min;
            let rounds = old.rounds.min(new.rounds);
            (
                is_apart && moved > before * MIN_PERCENT / 100.0,
                format!("{rounds} rounds"),
            )
        }
        _ => (moved > before * bound / 100.0, format!("{bound} %")),
    };
    let is_good = rule.more_is_better == (after > before);
    let verdict = match (is_more_than_noise, is_good) {
        (false, _) => Verdict::WithinNoise,
        (true, true) => Verdict::Better,
        (true, false) => Verdict::Worse,
    };
    FigureChange {
        part: part.to_owned(),
        figure: rule.name,
        old: before,
        new: after,
        verdict,
        noise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(value: f64) -> FigureOverRounds {
        let spread = RoundSpread::single(value);
        FigureOverRounds { spread, rounds: 1 }
    }

    fn rounds(min: f64, median: f64, max: f64) -> FigureOverRounds {
        FigureOverRounds {
            spread: RoundSpread { median, min, max },
            rounds: 3,
        }
    }

    #[test]
    fn judges_by_ranges_or_by_bounds() {
        use Verdict::{Better, WithinNoise, Worse};
        for (what, name, old, new, expected) in [
            (
                "within the bound",
                "requests/s",
                once(1000.0),
                once(1049.0),
                WithinNoise,
            ),
            ("faster", "requests/s", once(1000.0), once(1051.0), Better),
            ("slower", "requests/s", once(1000.0), once(940.0), Worse),
            ("cheaper", "CPU us/request", once(10.0), once(9.0), Better),
            (
                "a percentile's bound",
                "p99 ms",
                once(10.0),
                once(10.9),
                WithinNoise,
            ),
            (
                "a worse percentile",
                "p99 ms",
                once(10.0),
                once(11.1),
                Worse,
            ),
            (
                "no errors as before",
                "errors",
                once(0.0),
                once(0.0),
                WithinNoise,
            ),
            ("the first errors", "errors", once(0.0), once(1.0), Worse),
            ("no errors any more", "errors", once(5.0), once(0.0), Better),
            (
                "ranges overlap",
                "requests/s",
                rounds(900.0, 1000.0, 1300.0),
                rounds(1200.0, 1400.0, 1500.0),
                WithinNoise,
            ),
            (
                "ranges lie apart",
                "requests/s",
                rounds(990.0, 1000.0, 1010.0),
                rounds(1020.0, 1030.0, 1040.0),
                Better,
            ),
            (
                "apart, but next to nothing",
                "requests/s",
                rounds(999.0, 1000.0, 1001.0),
                rounds(1002.0, 1003.0, 1004.0),
                WithinNoise,
            ),
            (
                "rounds on one side only",
                "requests/s",
                rounds(999.0, 1000.0, 1001.0),
                once(1040.0),
                WithinNoise,
            ),
        ] {
            let rule = FIGURE_RULES.iter().find(|rule| rule.name == name).unwrap();
            assert_eq!(judge_change("", rule, old, new).verdict, expected, "{what}");
        }
    }
}
