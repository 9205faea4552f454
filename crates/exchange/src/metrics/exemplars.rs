//! Traces of single durations of a histogram, so that a monitor can lead from one to the other.
//!
//! # Invariants
//! - One trace for each bucket, the latest: their number is bounded.
//! - A histogram without traces has no memory for them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The trace of one duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// The bucket of the duration.
    pub bucket: usize,
    /// The trace's id.
    pub trace_id: [u8; 16],
    /// The duration in microseconds.
    pub duration_us: u64,
    /// When it was counted, since 1970.
    pub observed_at: Duration,
}

/// The latest trace of each bucket. The lock is held for a copy only.
#[derive(Debug, Default)]
pub(super) struct ExemplarStore(Mutex<Vec<Exemplar>>);

impl ExemplarStore {
    pub(super) fn add(&self, new: Exemplar) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.binary_search_by_key(&new.bucket, |known| known.bucket) {
            Ok(at) if all[at].observed_at > new.observed_at => {}
            Ok(at) => all[at] = new,
            Err(at) => all.insert(at, new),
        }
    }

    pub(super) fn values(&self) -> Vec<Exemplar> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_each_bucket_stays() {
        let store = ExemplarStore::default();
        let trace = |bucket, second| Exemplar {
            bucket,
            trace_id: [1; 16],
            duration_us: 1,
            observed_at: Duration::from_secs(second),
        };
        for exemplar in [trace(3, 5), trace(1, 1), trace(3, 9), trace(3, 2)] {
            store.add(exemplar);
        }
        assert_eq!(store.values(), [trace(1, 1), trace(3, 9)]);
    }
}
