//! How many things of each key are in progress: requests of `max_concurrent`, responses of
//! `response_rate`.
//!
//! # Invariants
//! - All loops share the counts: a bound is exact.
//! - The memory is that of the things in progress, whatever keys clients choose. Keys are hashed
//!   with a secret of this process.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_exchange::RateSharers;
use penstock_exchange::metrics::RuleUsage;

/// The things in progress by their keys.
#[derive(Debug, Default)]
pub struct KeyCounts {
    hasher: RandomState,
    /// Each held for one look-up.
    shards: [Mutex<HashMap<u64, u32>>; 16],
}

/// One thing in progress; its end is the drop.
#[derive(Debug)]
pub(crate) struct KeyPermit {
    counts: Arc<KeyCounts>,
    key: u64,
}

impl KeyCounts {
    /// Counts one more thing of a key, unless it has `max` already.
    pub(crate) fn acquire(self: &Arc<Self>, key: &[u8], max: u32) -> Option<KeyPermit> {
        let key = self.hasher.hash_one(key);
        let mut shard = self.shard(key);
        let count = shard.get(&key).copied().unwrap_or_default();
        if count >= max {
            return None;
        }
        shard.insert(key, count + 1);
        Some(KeyPermit {
            counts: Arc::clone(self),
            key,
        })
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, HashMap<u64, u32>> {
        let shard = &self.shards[(key >> 60) as usize % self.shards.len()];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        let mut shard = self.counts.shard(self.key);
        if let Some(count) = shard.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&self.key);
            }
        }
    }
}

impl RateSharers for KeyPermit {
    fn count(&self) -> u32 {
        let shard = self.counts.shard(self.key);
        shard.get(&self.key).copied().unwrap_or_default()
    }
}

impl RuleUsage for KeyCounts {
    fn in_use(&self) -> u64 {
        let shards = self.shards.iter();
        let counts = shards.map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().map(|count| u64::from(*count)).sum::<u64>()
        });
        counts.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_keys_that_have_ended() {
        let counts = Arc::new(KeyCounts::default());
        let permits: Vec<_> = (0..100_u32)
            .map(|number| counts.acquire(&number.to_be_bytes(), 1).unwrap())
            .collect();
        assert!(counts.acquire(&7_u32.to_be_bytes(), 1).is_none());
        let second = counts.acquire(&7_u32.to_be_bytes(), 2).unwrap();
        assert_eq!((second.count(), permits[8].count()), (2, 1));
        assert_eq!(counts.in_use(), 101);
        drop(permits);
        assert_eq!((second.count(), counts.in_use()), (1, 1));
        drop(second);
        let is_empty = |shard: &Mutex<HashMap<_, _>>| shard.lock().unwrap().is_empty();
        assert!(counts.shards.iter().all(is_empty));
    }
}
