//! What is known of one process against its limits. Pure.
//!
//! Kept by `limits`, one for each process. What must stay true: a limit on memory speaks only after so
//! many looks in a row; chance makes a limit up to a tenth lower, never higher.

use std::time::{Duration, Instant};

use penstock_config::MemoryMax;

/// Parts of a tenth that chance may take away.
const PARTS: u32 = 1000;

/// One process.
#[derive(Debug)]
pub(super) struct Watch {
    /// What chance takes away from its limits, in parts of a tenth.
    luck: u32,
    /// Looks in a row that found it above the soft limit, and above the hard one.
    soft: u32,
    hard: u32,
    /// Its replacement has been asked for.
    pub(super) is_told: bool,
    /// Proportional memory when it was last measured, in bytes.
    pub(super) memory: Option<u64>,
    /// When its streams are cut, once it has been retired.
    pub(super) streams_until: Option<Instant>,
}

/// What a look at a process's memory means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// It is to be replaced.
    Worn,
    /// It is to be killed.
    Exceeded,
}

impl Watch {
    /// A process that has just been started; `chance` is any number.
    pub(super) fn new(chance: u64) -> Self {
        Self {
            luck: u32::try_from(chance % u64::from(PARTS + 1)).unwrap_or(0),
            soft: 0,
            hard: 0,
            is_told: false,
            memory: None,
            streams_until: None,
        }
    }

    /// Up to a tenth less than `max`, at least 1.
    pub(super) fn less(&self, max: u64) -> u64 {
        let off = u128::from(max) * u128::from(self.luck) / u128::from(10 * PARTS);
        max.saturating_sub(u64::try_from(off).unwrap_or(0)).max(1)
    }

    /// Up to a tenth less than `max`.
    pub(super) fn less_time(&self, max: Duration) -> Duration {
        max - max / 10 * self.luck / PARTS
    }

    /// Takes in one measurement.
    pub(super) fn judge(&mut self, bytes: u64, limit: MemoryMax) -> Verdict {
        let count = |run: u32, is_above: bool| if is_above { run.saturating_add(1) } else { 0 };
        self.soft = count(self.soft, bytes >= limit.soft);
        self.hard = count(self.hard, bytes >= limit.hard);
        let samples = limit.samples.max(1);
        if self.hard >= samples {
            Verdict::Exceeded
        } else if self.soft >= samples {
            Verdict::Worn
        } else {
            Verdict::Fine
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_speaks_after_so_many_looks_in_a_row() {
        use Verdict::{Exceeded, Fine, Worn};
        let limit = MemoryMax {
            soft: 100,
            hard: 200,
            samples: 3,
        };
        let rows: [(&str, &[u64], &[Verdict]); 5] = [
            ("below", &[99; 5], &[Fine; 5]),
            ("soft", &[100, 150, 199, 120], &[Fine, Fine, Worn, Worn]),
            ("a breath between", &[100, 100, 99, 100, 100], &[Fine; 5]),
            ("hard", &[200, 300, 200], &[Fine, Fine, Exceeded]),
            (
                "soft before hard",
                &[150, 150, 250, 250, 250],
                &[Fine, Fine, Worn, Worn, Exceeded],
            ),
        ];
        for (name, looks, expected) in rows {
            let mut watch = Watch::new(0);
            let seen: Vec<_> = looks.iter().map(|b| watch.judge(*b, limit)).collect();
            assert_eq!(seen, expected, "{name}");
        }
    }

    #[test]
    fn chance_takes_up_to_a_tenth_and_never_adds() {
        let day = Duration::from_secs(86_400);
        for (chance, requests, time) in [
            (0, 1000, day),
            (500, 950, day - day / 20),
            (1000, 900, day - day / 10),
            (1001, 1000, day),
        ] {
            let watch = Watch::new(chance);
            assert_eq!(watch.less(1000), requests, "{chance}");
            assert_eq!(watch.less_time(day), time, "{chance}");
        }
        for max in [1, 2, 9, u64::MAX] {
            let least = Watch::new(1000).less(max);
            assert!(least >= 1 && least >= max - max / 10 && least <= max);
        }
    }
}
