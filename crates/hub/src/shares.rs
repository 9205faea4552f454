//! What each namespace has of what all of them share: channels that nobody hears, histories, and
//! messages on their way.
//!
//! `registry` gives each channel the [`Share`] of its namespace, `hub/publish` looks at it before a
//! publication takes more.
//!
//! # Invariants
//! - Where there are several namespaces, none gets more than it leaves to the others: half of all
//!   when it is alone, so that the next one finds room. Each has a little, whatever others have.
//! - A share counts what its channels have, no more and no less; the sum of all is the tally's.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::Channel;
use crate::namespace::namespace_of;

/// The shares of all namespaces.
#[derive(Debug)]
pub(crate) struct Shares {
    /// By the name of the namespace. Never shrinks: a configuration has a few.
    all: Mutex<HashMap<Box<str>, Arc<Share>>>,
    /// How many namespaces the configuration has.
    namespaces: AtomicUsize,
}

/// What one namespace has.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Channels that are there for their history alone.
    pub(crate) unheard: AtomicUsize,
    /// Bytes of its histories.
    pub(crate) history_bytes: AtomicUsize,
    /// Bytes of its messages that shards have not got to, or whose turn has not come.
    pub(crate) pending_bytes: AtomicUsize,
    /// Its channels that have a history, in the line in which the keeper looks at them and in which
    /// they lose messages when there is no room for more.
    line: Mutex<VecDeque<Arc<Channel>>>,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            namespaces: AtomicUsize::new(1),
        }
    }
}

impl Shares {
    /// The share that counts for a channel of this key.
    pub(crate) fn of(&self, key: &str) -> Arc<Share> {
        let name = namespace_of(key);
        let mut all = self.lock();
        if let Some(share) = all.get(name) {
            return Arc::clone(share);
        }
        let share = Arc::<Share>::default();
        all.insert(name.into(), Arc::clone(&share));
        share
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Share>> {
        self.lock().values().cloned().collect()
    }

    /// There are so many namespaces from now on.
    pub(crate) fn set_namespaces(&self, count: usize) {
        self.namespaces.store(count, Ordering::Relaxed);
    }

    /// Whether one namespace that has `own` of all `used` has as much as it leaves to others of `max`.
    pub(crate) fn is_used_up(&self, own: usize, used: usize, max: usize) -> bool {
        let namespaces = self.namespaces.load(Ordering::Relaxed);
        let least = max / (4 * namespaces.max(1));
        namespaces > 1 && own > max.saturating_sub(used).max(least)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Share>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    pub(crate) fn line(&self) -> MutexGuard<'_, VecDeque<Arc<Channel>>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_alone_leaves_as_much_as_it_has() {
        let shares = Shares::default();
        assert!(!shares.is_used_up(100, 100, 100));
        shares.set_namespaces(2);
        assert!(!shares.is_used_up(50, 50, 100));
        assert!(shares.is_used_up(51, 51, 100));
        // Half of all is another's: then it is a quarter.
        assert!(!shares.is_used_up(25, 75, 100));
        assert!(shares.is_used_up(26, 76, 100));
        // There is nothing left, and still a little for each.
        assert!(!shares.is_used_up(12, 100, 100));
        assert!(shares.is_used_up(13, 100, 100));
    }

    #[test]
    fn a_channel_counts_for_its_namespace() {
        let shares = Shares::default();
        let hub = shares.of("news");
        assert!(Arc::ptr_eq(&hub, &shares.of("\0next:1")));
        assert!(Arc::ptr_eq(&hub, &shares.of("\u{1f}a\u{1f}b")));
        let shop = shares.of("shop\u{1f}news");
        assert!(!Arc::ptr_eq(&hub, &shop));
        assert!(Arc::ptr_eq(&shop, &shares.of("shop\u{1f}a\u{1f}b")));
        assert_eq!(shares.all().len(), 2);
    }
}
