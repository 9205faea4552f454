//! The share of each namespace in what all share: channels without subscribers, histories, and
//! messages on their way.
//!
//! `registry` gives each channel the [`NamespaceUsage`] of its namespace; `hub/publish` checks it before a
//! publication takes more.
//!
//! # Invariants
//! - Where there are several namespaces, none gets more than is left free then: half of all when
//!   no other has anything. Of channels and histories a quarter, divided equally, is for each in
//!   any case: where that is not free, the namespace with most gives way.
//! - A share counts exactly what its channels have; the sum of all shares is the hub's counter.
//! - A queue has each channel once, and none that the registry has removed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::Channel;
use crate::namespace::namespace_of_key;

#[derive(Debug)]
pub(crate) struct NamespaceUsages {
    /// By the name of the namespace. Never shrinks: a configuration has a few.
    all: Mutex<HashMap<Box<str>, Arc<NamespaceUsage>>>,
    /// How many namespaces the configuration has.
    namespaces: AtomicUsize,
}

/// What one namespace has.
#[derive(Debug, Default)]
pub(crate) struct NamespaceUsage {
    /// Channels that are there for their history alone, from the one with the last message that is
    /// the oldest.
    pub(crate) unsubscribed_channels: ChannelQueue,
    pub(crate) history_bytes: AtomicUsize,
    /// Bytes of its messages that shards have not delivered yet, or that are parked.
    pub(crate) pending_bytes: AtomicUsize,
    /// Its channels that have a history, in the order in which the keeper looks at them and in
    /// which they lose messages when there is no room for more.
    pub(crate) channels_with_history: ChannelQueue,
    /// Makes places in that order.
    last_place: AtomicU64,
}

/// Channels by their places. Each channel knows its own place: it is changed under the channel's
/// lock, which comes before the lock of the queue.
#[derive(Debug, Default)]
pub(crate) struct ChannelQueue(Mutex<BTreeMap<u64, Arc<Channel>>>);

impl Default for NamespaceUsages {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            namespaces: AtomicUsize::new(1),
        }
    }
}

impl NamespaceUsages {
    /// The share that counts for a channel of this key.
    pub(crate) fn usage_of_channel(&self, key: &str) -> Arc<NamespaceUsage> {
        let name = namespace_of_key(key);
        let mut all = self.lock();
        if let Some(share) = all.get(name) {
            return Arc::clone(share);
        }
        let share = Arc::<NamespaceUsage>::default();
        all.insert(name.into(), Arc::clone(&share));
        share
    }

    pub(crate) fn all(&self) -> Vec<Arc<NamespaceUsage>> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn unsubscribed_channel_count(&self) -> usize {
        self.lock()
            .values()
            .map(|share| share.unsubscribed_channels.len())
            .sum()
    }

    /// Whether there are several, which give way to each other.
    pub(crate) fn has_several_namespaces(&self) -> bool {
        self.namespaces.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn set_namespace_count(&self, count: usize) {
        self.namespaces.store(count, Ordering::Relaxed);
    }

    /// Whether a namespace that has `own` may have no more: `used` of `max` are in use, and what it
    /// has is more than is left, and more than each namespace may have in any case.
    pub(crate) fn exceeds_fair_share(&self, own: usize, used: usize, max: usize) -> bool {
        let namespaces = self.namespaces.load(Ordering::Relaxed);
        // One channel at least.
        let least = (max / (4 * namespaces.max(1))).max(1);
        namespaces > 1 && own > max.saturating_sub(used).max(least)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<NamespaceUsage>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NamespaceUsage {
    /// A place behind all others among the histories.
    pub(crate) fn next_queue_position(&self) -> u64 {
        self.last_place.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl ChannelQueue {
    /// The first channel with this place or a later one. Not under a channel's lock: what it says
    /// may be so no more when that is taken.
    pub(crate) fn first_from(&self, place: u64) -> Option<(u64, Arc<Channel>)> {
        let queue = self.lock();
        let (place, channel) = queue.range(place..).next()?;
        Some((*place, Arc::clone(channel)))
    }

    /// Moves a channel from the place that it has, if any, to another, if any.
    pub(crate) fn move_channel(
        &self,
        channel: &Arc<Channel>,
        place: &mut Option<u64>,
        to: Option<u64>,
    ) {
        if *place == to {
            return;
        }
        let mut queue = self.lock();
        if let Some(from) = place {
            queue.remove(from);
        }
        if let Some(to) = to {
            queue.insert(to, Arc::clone(channel));
        }
        *place = to;
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Channel>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes out the share that has most, by `count`.
pub(crate) fn take_largest_namespace(
    shares: &mut Vec<Arc<NamespaceUsage>>,
    count: impl Fn(&NamespaceUsage) -> usize,
) -> Option<Arc<NamespaceUsage>> {
    let largest = (0..shares.len()).max_by_key(|&at| count(&shares[at]))?;
    Some(shares.swap_remove(largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_alone_leaves_as_much_as_it_has() {
        let shares = NamespaceUsages::default();
        assert!(!shares.exceeds_fair_share(100, 100, 100));
        shares.set_namespace_count(2);
        assert!(!shares.exceeds_fair_share(50, 50, 100));
        assert!(shares.exceeds_fair_share(51, 51, 100));
        // Half of all is another's: then it is a quarter.
        assert!(!shares.exceeds_fair_share(25, 75, 100));
        assert!(shares.exceeds_fair_share(26, 76, 100));
        // There is nothing left, and still a little for each.
        assert!(!shares.exceeds_fair_share(12, 100, 100));
        assert!(shares.exceeds_fair_share(13, 100, 100));
    }

    #[test]
    fn a_channel_counts_for_its_namespace() {
        let shares = NamespaceUsages::default();
        let hub = shares.usage_of_channel("news");
        assert!(Arc::ptr_eq(&hub, &shares.usage_of_channel("\0next:1")));
        assert!(Arc::ptr_eq(
            &hub,
            &shares.usage_of_channel("\u{1f}a\u{1f}b")
        ));
        let shop = shares.usage_of_channel("shop\u{1f}news");
        assert!(!Arc::ptr_eq(&hub, &shop));
        assert!(Arc::ptr_eq(
            &shop,
            &shares.usage_of_channel("shop\u{1f}a\u{1f}b")
        ));
        assert_eq!(shares.all().len(), 2);
    }
}
