//! What each namespace uses of the shared limits: channels without subscribers, history bytes and
//! undelivered bytes.
//!
//! `registry` gives each channel the [`NamespaceUsage`] of its namespace; `hub/publish` checks it
//! before a publication takes more.
//!
//! # Invariants
//! - With several namespaces, none gets more than it leaves free: at most half of a limit. A
//!   quarter of the channels and histories is guaranteed, in equal parts: if a part is not free,
//!   the namespace that uses most is evicted from.
//! - A usage counts exactly what its channels have; the sum of all usages is the hub's counter.
//! - A queue has each channel once, and none that the registry has removed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::Channel;
use crate::namespace::{Namespace, namespace_of_key};

#[derive(Debug)]
pub(crate) struct NamespaceUsages {
    /// By the name of the namespace. Never shrinks: a configuration has a few.
    all: Mutex<HashMap<Box<str>, Arc<NamespaceUsage>>>,
    /// How many namespaces the configuration has.
    namespaces: AtomicUsize,
}

/// What one namespace uses.
#[derive(Debug, Default)]
pub(crate) struct NamespaceUsage {
    /// Channels with a history but no subscribers, by the age of their last message, oldest first.
    pub(crate) unsubscribed_channels: ChannelQueue,
    pub(crate) history_bytes: AtomicUsize,
    /// Bytes of its messages that are undelivered or parked.
    pub(crate) pending_bytes: AtomicUsize,
    /// Its channels with a history, in the order in which maintenance visits them and eviction
    /// takes messages from them.
    pub(crate) channels_with_history: ChannelQueue,
    /// The last position in `channels_with_history`.
    last_position: AtomicU64,
    /// Whether its channels get events of presence.
    pub(crate) has_presence: AtomicBool,
}

/// Channels by queue position. Each channel stores its position, which changes under the channel's
/// lock. That lock is taken before the lock of the queue.
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
    /// The usage of the namespace of a channel key.
    pub(crate) fn usage_of_channel(&self, key: &str) -> Arc<NamespaceUsage> {
        let name = namespace_of_key(key);
        let mut all = self.lock();
        if let Some(usage) = all.get(name) {
            return Arc::clone(usage);
        }
        let usage = Arc::<NamespaceUsage>::default();
        all.insert(name.into(), Arc::clone(&usage));
        usage
    }

    /// Switches events of presence on for these namespaces, and off for all others.
    pub(crate) fn set_presence_namespaces(&self, namespaces: &[String]) {
        let all = self.all();
        all.iter()
            .for_each(|usage| usage.has_presence.store(false, Ordering::Relaxed));
        for name in namespaces {
            let any_channel = Namespace::new(name).channel_key("");
            let usage = self.usage_of_channel(&any_channel);
            usage.has_presence.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<NamespaceUsage>> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn unsubscribed_channel_count(&self) -> usize {
        self.lock()
            .values()
            .map(|usage| usage.unsubscribed_channels.len())
            .sum()
    }

    pub(crate) fn has_several_namespaces(&self) -> bool {
        self.namespaces.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn set_namespace_count(&self, count: usize) {
        self.namespaces.store(count, Ordering::Relaxed);
    }

    /// Whether a namespace that has `own` exceeds its fair share: `used` of `max` are in use, and
    /// `own` is more than is left and more than the guaranteed part.
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
    /// A position behind all others in `channels_with_history`.
    pub(crate) fn next_queue_position(&self) -> u64 {
        self.last_position.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl ChannelQueue {
    /// The first channel at this position or later. Not under a channel's lock, so the result may
    /// be outdated once that is taken.
    pub(crate) fn first_from(&self, position: u64) -> Option<(u64, Arc<Channel>)> {
        let queue = self.lock();
        let (position, channel) = queue.range(position..).next()?;
        Some((*position, Arc::clone(channel)))
    }

    /// Moves a channel from its position, if any, to another, if any.
    pub(crate) fn move_channel(
        &self,
        channel: &Arc<Channel>,
        position: &mut Option<u64>,
        to: Option<u64>,
    ) {
        if *position == to {
            return;
        }
        let mut queue = self.lock();
        if let Some(from) = position {
            queue.remove(from);
        }
        if let Some(to) = to {
            queue.insert(to, Arc::clone(channel));
        }
        *position = to;
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

/// Removes the usage with the highest `count`.
pub(crate) fn take_largest_namespace(
    usages: &mut Vec<Arc<NamespaceUsage>>,
    count: impl Fn(&NamespaceUsage) -> usize,
) -> Option<Arc<NamespaceUsage>> {
    let largest = (0..usages.len()).max_by_key(|&at| count(&usages[at]))?;
    Some(usages.swap_remove(largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_alone_leaves_as_much_as_it_has() {
        let usages = NamespaceUsages::default();
        assert!(!usages.exceeds_fair_share(100, 100, 100));
        usages.set_namespace_count(2);
        assert!(!usages.exceeds_fair_share(50, 50, 100));
        assert!(usages.exceeds_fair_share(51, 51, 100));
        // Another has half of all, so a quarter is left.
        assert!(!usages.exceeds_fair_share(25, 75, 100));
        assert!(usages.exceeds_fair_share(26, 76, 100));
        // Nothing is left, but each has its guaranteed part.
        assert!(!usages.exceeds_fair_share(12, 100, 100));
        assert!(usages.exceeds_fair_share(13, 100, 100));
    }

    #[test]
    fn a_channel_counts_for_its_namespace() {
        let usages = NamespaceUsages::default();
        let hub = usages.usage_of_channel("news");
        assert!(Arc::ptr_eq(&hub, &usages.usage_of_channel("\0next:1")));
        assert!(Arc::ptr_eq(
            &hub,
            &usages.usage_of_channel("\u{1f}a\u{1f}b")
        ));
        let shop = usages.usage_of_channel("shop\u{1f}news");
        assert!(!Arc::ptr_eq(&hub, &shop));
        assert!(Arc::ptr_eq(
            &shop,
            &usages.usage_of_channel("shop\u{1f}a\u{1f}b")
        ));
        assert_eq!(usages.all().len(), 2);
    }
}
