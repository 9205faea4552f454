//! Limits how many of a pool's threads compute at once; `files` uses it for compression.
//!
//! The limit is the pool's because several directories may use one pool.
//!
//! # Invariants
//! - A permit is released however its work ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One thread in this many may compute, but at least one.
const COMPUTING_SHARE: usize = 4;

#[derive(Debug)]
pub(super) struct ComputePermits {
    free: Arc<AtomicUsize>,
}

/// A permit; dropping it releases it.
#[derive(Debug)]
pub struct ComputePermit(Arc<AtomicUsize>);

impl ComputePermits {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            free: Arc::new(AtomicUsize::new((threads / COMPUTING_SHARE).max(1))),
        }
    }

    pub(super) fn try_acquire(&self) -> Option<ComputePermit> {
        let one_less = |left: usize| left.checked_sub(1);
        let taken = (self.free).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        taken.ok().map(|_| ComputePermit(Arc::clone(&self.free)))
    }
}

impl Drop for ComputePermit {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_threads_but_at_least_one_may_compute() {
        for (threads, expected) in [(0, 1), (1, 1), (7, 1), (8, 2), (32, 8)] {
            let shares = ComputePermits::new(threads);
            let taken: Vec<_> = std::iter::from_fn(|| shares.try_acquire()).collect();
            assert_eq!(taken.len(), expected, "{threads}");
            drop(taken);
            assert!(shares.try_acquire().is_some(), "given back");
        }
    }
}
