//! How often a key may ask: `rate_limit` of a route.
//!
//! The generic cell rate algorithm: a key has one number, the time at which it would be idle again.
//! A request moves it on by the time that one request takes at the rate; one that would move it
//! further ahead than the burst allows is refused, or waits. All loops share the table, so that the
//! limit is exact.
//!
//! # Invariants
//! - The memory of a rule is that of its table, however many keys there are. A full set of it forgets
//!   the key that will be idle soonest: with a burst, a key over its limit is further ahead than new
//!   ones and stays.
//! - Keys are hashed with a secret of this process: clients cannot choose keys that share a place.
//! - A request that is refused changes nothing.

mod handler;
mod request_key;
pub mod shared;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_exchange::metrics::RuleUsage;
use penstock_runtime::clock;

use crate::named_tables::NamedTables;

pub use handler::{RateLimitHandler, SharedLimit};
pub(crate) use request_key::request_key;
pub use shared::SharedRates;

/// Keys that share a place of the table.
const WAYS: usize = 8;

/// Parts of the table with a lock each.
const SHARDS: usize = 64;

/// The tables of all rules, by their names.
#[derive(Debug, Default)]
pub struct RateTables {
    tables: NamedTables<RateTable>,
    shared: Arc<SharedRates>,
}

impl RateTables {
    /// The rates that this server shares with others.
    #[must_use]
    pub fn shared(&self) -> &Arc<SharedRates> {
        &self.shared
    }

    /// The table of a rule. Only its own keys displace one another: a rule with a long period would
    /// fill a table that others share.
    #[must_use]
    pub fn table(&self, rule: &str) -> Arc<RateTable> {
        self.tables.table(rule)
    }
}

/// The rates of all keys of a rule.
#[derive(Debug)]
pub struct RateTable {
    epoch: Instant,
    hasher: RandomState,
    shards: Box<[Mutex<Sets>]>,
}

/// The places of one part of the table: a key is in one of the ways of its set.
type Sets = Box<[[Entry; WAYS]]>;

/// A key with the time in nanoseconds at which it is idle again. Without a key both are 0.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    key: u64,
    idle_at: u64,
}

/// A rate with its burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Nanoseconds that one request takes.
    interval: u64,
    /// Nanoseconds that a key may be ahead.
    burst: u64,
    /// Nanoseconds that a request may wait.
    max_delay: u64,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateDecision {
    /// It goes on.
    Allow,
    /// It goes on after this time.
    Delay(Duration),
    /// It is refused; one after this time may go on.
    Refuse(Duration),
}

impl RateLimit {
    /// The time that so many requests take at the rate.
    pub(crate) fn time_of(&self, requests: u32) -> Duration {
        Duration::from_nanos(self.interval.saturating_mul(u64::from(requests)))
    }

    /// So many requests in a time, `burst` of them at once, which is at least one.
    #[must_use]
    pub fn new(count: u32, per: Duration, burst: u32, max_delay: Duration) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let interval = (nanos(per) / u64::from(count.max(1))).max(1);
        Self {
            interval,
            burst: interval.saturating_mul(u64::from(burst.max(1)) - 1),
            max_delay: nanos(max_delay),
        }
    }
}

/// Keys of a table: a mebibyte, of which what was never used takes no memory.
const DEFAULT_KEYS: usize = 65_536;

impl Default for RateTable {
    fn default() -> Self {
        Self::new(DEFAULT_KEYS, Instant::now())
    }
}

impl RateTable {
    /// A table for about so many keys.
    #[must_use]
    pub fn new(keys: usize, now: Instant) -> Self {
        let sets = keys.div_ceil(WAYS * SHARDS).max(1);
        let shard = |_| Mutex::new(vec![[Entry::default(); WAYS]; sets].into_boxed_slice());
        Self {
            epoch: now,
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(shard).collect(),
        }
    }

    /// Counts a request of a key. Keys of rules that are not to share a rate differ.
    #[must_use]
    pub fn count(&self, key: &[u8], limit: &RateLimit, now: Instant) -> RateDecision {
        // No key has 0, the mark of a free place.
        let key = self.hasher.hash_one(key) | 1;
        let now = self.nanos(now);
        let (shard, place) = self.place(key);
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let sets = shard.len();
        let set = &mut shard[place % sets];
        let entry = match set.iter_mut().position(|entry| entry.key == key) {
            Some(at) => &mut set[at],
            None => {
                let Some(oldest) = set.iter_mut().min_by_key(|entry| entry.idle_at) else {
                    return RateDecision::Allow;
                };
                *oldest = Entry { key, idle_at: 0 };
                oldest
            }
        };
        let begin = entry.idle_at.max(now);
        let wait = (begin - now).saturating_sub(limit.burst);
        if wait > limit.max_delay {
            return RateDecision::Refuse(Duration::from_nanos(wait - limit.max_delay));
        }
        entry.idle_at = begin.saturating_add(limit.interval);
        match wait {
            0 => RateDecision::Allow,
            wait => RateDecision::Delay(Duration::from_nanos(wait)),
        }
    }

    /// Takes back a request of a key that should not have counted.
    pub fn give_back(&self, key: &[u8], limit: &RateLimit) {
        let key = self.hasher.hash_one(key) | 1;
        let (shard, place) = self.place(key);
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let sets = shard.len();
        let found = shard[place % sets]
            .iter_mut()
            .find(|entry| entry.key == key);
        if let Some(entry) = found {
            entry.idle_at = entry.idle_at.saturating_sub(limit.interval);
        }
    }

    /// How many keys have asked so lately that they are not idle.
    fn busy_keys(&self, now: Instant) -> usize {
        let now = self.nanos(now);
        let busy = |shard: &Mutex<Sets>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let entries = shard.iter().flatten();
            entries.filter(|entry| entry.idle_at > now).count()
        };
        self.shards.iter().map(busy).sum()
    }

    /// Nanoseconds since the table was made.
    fn nanos(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.epoch);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn place(&self, key: u64) -> (&Mutex<Sets>, usize) {
        let shard = (key >> 58) as usize % SHARDS;
        (&self.shards[shard], (key >> 1) as usize & (usize::MAX >> 8))
    }
}

impl RuleUsage for RateTable {
    fn in_use(&self) -> u64 {
        self.busy_keys(clock::now()) as u64
    }
}

#[cfg(test)]
mod tests;
