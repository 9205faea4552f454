//! Approximate count of recent requests by key, for `min_uses`: a count-min sketch of small
//! counters that are halved periodically.
//!
//! # Invariants
//!
//! - It never undercounts requests since the last halving.
//! - Its size is fixed, and it has no lock.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Counters of each of the two rows.
const ROW_COUNTERS: usize = 1 << 16;

/// Requests after which all counts are halved, few enough that collisions do not fill the rows.
const HALVE_AFTER: u32 = 1 << 18;

/// Request counts by key.
#[derive(Debug)]
pub(crate) struct FrequencySketch {
    counters: Box<[AtomicU8]>,
    counted_requests: AtomicU32,
}

impl FrequencySketch {
    pub(crate) fn new() -> Self {
        Self {
            counters: (0..2 * ROW_COUNTERS).map(|_| AtomicU8::new(0)).collect(),
            counted_requests: AtomicU32::new(0),
        }
    }

    /// Counts a request and returns the count, at most 255.
    pub(crate) fn increment(&self, hash: u128) -> u32 {
        if self.counted_requests.fetch_add(1, Relaxed) >= HALVE_AFTER {
            self.counted_requests.store(0, Relaxed);
            for counter in &self.counters {
                counter.store(counter.load(Relaxed) / 2, Relaxed);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "bits of a hash")]
        let at = [
            hash as usize % ROW_COUNTERS,
            ROW_COUNTERS + (hash >> 64) as usize % ROW_COUNTERS,
        ];
        let counts = at.map(|at| {
            let counter = &self.counters[at];
            let more = |count: u8| count.checked_add(1);
            match counter.fetch_update(Relaxed, Relaxed, more) {
                Ok(before) => before + 1,
                Err(most) => most,
            }
        });
        u32::from(counts[0].min(counts[1]))
    }
}
