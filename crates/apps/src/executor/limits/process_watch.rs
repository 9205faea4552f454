//! The state of one process against its limits. Pure.
//!
//! # Invariants
//! - A limit on memory applies only after so many measurements in a row.
//! - Chance makes a limit up to a tenth lower, never higher.

use std::time::{Duration, Instant};

use penstock_config::MemoryLimit;

/// Parts of a tenth that chance may take away.
const JITTER_PARTS: u32 = 1000;

#[derive(Debug)]
pub(super) struct ProcessWatch {
    /// What chance takes away from its limits, in parts of a tenth.
    jitter: u32,
    /// Looks in a row that found it above the soft limit, and above the hard one.
    above_soft: u32,
    above_hard: u32,
    pub(super) is_replacement_requested: bool,
    /// Proportional memory when it was last measured, in bytes.
    pub(super) memory_bytes: Option<u64>,
    /// When its streams are cut, once it has been retired.
    pub(super) streams_deadline: Option<Instant>,
}

/// What a look at a process's memory means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryVerdict {
    WithinLimits,
    SoftExceeded,
    HardExceeded,
}

impl ProcessWatch {
    /// A process that has just been started; `chance` is any number.
    pub(super) fn new(chance: u64) -> Self {
        Self {
            jitter: u32::try_from(chance % u64::from(JITTER_PARTS + 1)).unwrap_or(0),
            above_soft: 0,
            above_hard: 0,
            is_replacement_requested: false,
            memory_bytes: None,
            streams_deadline: None,
        }
    }

    /// Up to a tenth less than `max`, at least 1.
    pub(super) fn jittered_count(&self, max: u64) -> u64 {
        let off = u128::from(max) * u128::from(self.jitter) / u128::from(10 * JITTER_PARTS);
        max.saturating_sub(u64::try_from(off).unwrap_or(0)).max(1)
    }

    /// Up to a tenth less than `max`.
    pub(super) fn jittered_time(&self, max: Duration) -> Duration {
        max - max / 10 * self.jitter / JITTER_PARTS
    }

    pub(super) fn record_memory(&mut self, bytes: u64, limit: MemoryLimit) -> MemoryVerdict {
        let count = |run: u32, is_above: bool| if is_above { run.saturating_add(1) } else { 0 };
        self.above_soft = count(self.above_soft, bytes >= limit.soft);
        self.above_hard = count(self.above_hard, bytes >= limit.hard);
        let samples = limit.samples.max(1);
        if self.above_hard >= samples {
            MemoryVerdict::HardExceeded
        } else if self.above_soft >= samples {
            MemoryVerdict::SoftExceeded
        } else {
            MemoryVerdict::WithinLimits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_speaks_after_so_many_looks_in_a_row() {
        use MemoryVerdict::{HardExceeded, SoftExceeded, WithinLimits};
        let limit = MemoryLimit {
            soft: 100,
            hard: 200,
            samples: 3,
        };
        let rows: [(&str, &[u64], &[MemoryVerdict]); 5] = [
            ("below", &[99; 5], &[WithinLimits; 5]),
            (
                "soft",
                &[100, 150, 199, 120],
                &[WithinLimits, WithinLimits, SoftExceeded, SoftExceeded],
            ),
            (
                "a breath between",
                &[100, 100, 99, 100, 100],
                &[WithinLimits; 5],
            ),
            (
                "hard",
                &[200, 300, 200],
                &[WithinLimits, WithinLimits, HardExceeded],
            ),
            (
                "soft before hard",
                &[150, 150, 250, 250, 250],
                &[
                    WithinLimits,
                    WithinLimits,
                    SoftExceeded,
                    SoftExceeded,
                    HardExceeded,
                ],
            ),
        ];
        for (name, looks, expected) in rows {
            let mut watch = ProcessWatch::new(0);
            let seen: Vec<_> = looks
                .iter()
                .map(|b| watch.record_memory(*b, limit))
                .collect();
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
            let watch = ProcessWatch::new(chance);
            assert_eq!(watch.jittered_count(1000), requests, "{chance}");
            assert_eq!(watch.jittered_time(day), time, "{chance}");
        }
        for max in [1, 2, 9, u64::MAX] {
            let least = ProcessWatch::new(1000).jittered_count(max);
            assert!(least >= 1 && least >= max - max / 10 && least <= max);
        }
    }
}
