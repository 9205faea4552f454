//! How many of a pool's threads may compute at once.
//!
//! Given out by `Pool::share`, to `files` for its compressions: several folders use one pool, and
//! none of them knows of the others. What must stay true: a share comes back however its work ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One place in so many, but at least one.
const COMPUTING_SHARE: usize = 4;

/// The places of one pool.
#[derive(Debug)]
pub(super) struct Shares {
    /// Those that are free.
    left: Arc<AtomicUsize>,
}

/// A place that is taken; dropping it gives it back.
#[derive(Debug)]
pub struct Share(Arc<AtomicUsize>);

impl Shares {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new((threads / COMPUTING_SHARE).max(1))),
        }
    }

    pub(super) fn take(&self) -> Option<Share> {
        let one_less = |left: usize| left.checked_sub(1);
        let taken = (self.left).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        taken.ok().map(|_| Share(Arc::clone(&self.left)))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_threads_and_at_least_one_computes() {
        for (threads, expected) in [(0, 1), (1, 1), (7, 1), (8, 2), (32, 8)] {
            let shares = Shares::new(threads);
            let taken: Vec<_> = std::iter::from_fn(|| shares.take()).collect();
            assert_eq!(taken.len(), expected, "{threads}");
            drop(taken);
            assert!(shares.take().is_some(), "given back");
        }
    }
}
