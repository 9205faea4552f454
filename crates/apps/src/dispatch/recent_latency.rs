//! How long an application's requests take of late, and so whether they may be handed over in
//! batches.
//!
//! Slot drivers record each response; all of them share the figure, as the next slow request may
//! come to any.
//!
//! # Invariants
//! - One slow request ends batches for a long while.
//! - An application that has not proved to be quick gets none.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A slot whose recent requests took less than this may be handed the next ones before it has
/// answered: then the hand-over costs more than the wait behind another request.
pub(super) const MAX_QUICK_REQUEST_TIME: Duration = Duration::from_micros(200);

/// Most requests that a quick slot has at once. Those behind the first wait for it should it turn
/// out to be slow, and cannot be taken back: so they are few.
pub(crate) const MAX_BATCH_REQUESTS: u32 = 16;

/// What a quick slot may have in any case. It has more as far as all of them together take less than
/// [`MAX_QUICK_REQUEST_TIME`].
const MIN_BATCH_REQUESTS: u32 = 4;

/// The slowest of recent requests, fading by a sixty-fourth with each.
#[derive(Debug)]
pub(crate) struct RecentLatency {
    slowest_us: AtomicU32,
}

impl Default for RecentLatency {
    /// Slow, until the first requests prove otherwise.
    fn default() -> Self {
        Self {
            slowest_us: AtomicU32::new(u32::MAX / 64),
        }
    }
}

impl RecentLatency {
    pub(crate) fn record(&self, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let recent = self.slowest_us.load(Ordering::Relaxed);
        // Two loops may overwrite one another: it is an estimate.
        let faded = recent - recent.div_ceil(64);
        self.slowest_us.store(faded.max(took), Ordering::Relaxed);
    }

    /// How many requests a slot may have at once.
    pub(crate) fn max_batch(&self) -> u32 {
        let slowest_us = self.slowest_us.load(Ordering::Relaxed).max(1);
        match MAX_QUICK_REQUEST_TIME.subsec_micros() / slowest_us {
            0 => 1,
            fitting => fitting.clamp(MIN_BATCH_REQUESTS, MAX_BATCH_REQUESTS),
        }
    }
}
