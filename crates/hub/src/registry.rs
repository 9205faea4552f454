//! All channels by name, and the ids that were published lately.
//!
//! `hub` opens channels here to publish and to subscribe. There are 64 parts, so that threads
//! seldom meet at a lock, and the growth of a part takes no noticeable time.
//!
//! # Invariants
//! - A channel is here as long as it has subscribers, a history or parked messages, and no longer.
//! - There are at most `max_channels`.
//! - The lock of a part comes before the lock of a channel.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::HubError;
use crate::channel::{Channel, is_internal_channel};
use crate::message_ordering::RecentMessageIds;
use crate::namespace_usages::NamespaceUsages;

#[derive(Debug)]
pub(crate) struct ChannelRegistry {
    partitions: Vec<Mutex<RegistryPartition>>,
    hash_builders: [RandomState; 2],
    channels: AtomicUsize,
    memory_bytes: AtomicUsize,
    pub(crate) namespace_usages: NamespaceUsages,
}

const PARTITIONS: usize = 64;

#[derive(Debug, Default)]
struct RegistryPartition {
    channels: HashSet<NamedChannel>,
    recent_ids: RecentMessageIds,
    /// The number of the last message of all channels that were let go of: of a channel that comes
    /// anew, it is unknown what there was until then.
    removed_up_to: u64,
}

#[derive(Debug)]
struct NamedChannel(Arc<Channel>);

impl ChannelRegistry {
    pub(crate) fn new() -> Self {
        Self {
            partitions: (0..PARTITIONS).map(|_| Mutex::default()).collect(),
            hash_builders: [RandomState::new(), RandomState::new()],
            channels: AtomicUsize::new(0),
            memory_bytes: AtomicUsize::new(0),
            namespace_usages: NamespaceUsages::default(),
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<Channel>> {
        let part = self.partition(name);
        part.channels.get(name).map(|found| found.0.clone())
    }

    /// The channel, made if it is not there.
    pub(crate) fn find_or_create(
        &self,
        name: &Arc<str>,
        channels_max: usize,
    ) -> Result<Arc<Channel>, HubError> {
        let mut part = self.partition(name);
        if let Some(found) = part.channels.get(&**name) {
            return Ok(found.0.clone());
        }
        // Counted first, so that openers in other parts see it.
        if self.channels.fetch_add(1, Ordering::AcqRel) >= channels_max {
            self.channels.fetch_sub(1, Ordering::AcqRel);
            return Err(HubError::TooManyChannels(channels_max));
        }
        let usage = self.namespace_usages.usage_of_channel(name);
        let channel = Arc::new(Channel::new(name.clone(), part.removed_up_to, usage));
        self.memory_bytes
            .fetch_add(channel.memory_bytes(), Ordering::Relaxed);
        part.channels.insert(NamedChannel(channel.clone()));
        Ok(channel)
    }

    /// Lets go of the channel if nothing would be lost. Not under its lock.
    pub(crate) fn remove_if_idle(&self, channel: &Arc<Channel>) {
        let mut part = self.partition(channel.name());
        let mut state = channel.lock();
        if state.is_removed || !state.is_idle() {
            return;
        }
        state.is_removed = true;
        state.update_queue_positions(channel);
        part.removed_up_to = part
            .removed_up_to
            .max(state.last_sequence)
            .max(state.history.dropped_up_to());
        drop(state);
        part.channels.remove(&**channel.name());
        if part.channels.capacity() > 4 * part.channels.len() + 64 {
            let room = 2 * part.channels.len();
            part.channels.shrink_to(room);
        }
        self.channels.fetch_sub(1, Ordering::AcqRel);
        self.memory_bytes
            .fetch_sub(channel.memory_bytes(), Ordering::Relaxed);
    }

    /// Records that a message of a channel without subscribers was not kept, unless the channel
    /// exists by now.
    pub(crate) fn record_unkept(&self, name: &str, sequence: u64) {
        if !is_internal_channel(name) {
            let mut part = self.partition(name);
            part.removed_up_to = part.removed_up_to.max(sequence);
        }
    }

    /// Records an id of a channel and returns whether it was recorded within the last minute.
    pub(crate) fn record_and_check_duplicate(&self, channel: &str, id: &str, now: Instant) -> bool {
        let half = |hasher: &RandomState| u128::from(hasher.hash_one((channel, id)));
        let digest = half(&self.hash_builders[0]) << 64 | half(&self.hash_builders[1]);
        self.partition(channel)
            .recent_ids
            .record_and_check_duplicate(digest, now)
    }

    /// The number of the last message of channels that are gone.
    pub(crate) fn removed_up_to(&self) -> u64 {
        let partitions = self.partitions.iter();
        let removed = partitions.map(|part| lock_partition(part).removed_up_to);
        removed.max().unwrap_or_default()
    }

    /// Channels that another process had and are not known here had messages up to this number.
    pub(crate) fn continue_after(&self, sequence: u64) {
        for part in &self.partitions {
            let mut part = lock_partition(part);
            part.removed_up_to = part.removed_up_to.max(sequence);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.channels.load(Ordering::Acquire)
    }

    /// Memory of the channels, without histories and subscribers.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// All channels, part by part.
    pub(crate) fn all_by_partition(&self) -> impl Iterator<Item = Vec<Arc<Channel>>> {
        self.partitions.iter().map(|part| {
            let part = lock_partition(part);
            part.channels.iter().map(|each| each.0.clone()).collect()
        })
    }

    fn partition(&self, name: &str) -> MutexGuard<'_, RegistryPartition> {
        let hash = self.hash_builders[0].hash_one(name);
        let index = usize::try_from(hash % PARTITIONS as u64).unwrap_or(0);
        lock_partition(&self.partitions[index])
    }
}

/// A panic under the lock leaves a set that is whole: its changes are single calls.
fn lock_partition(part: &Mutex<RegistryPartition>) -> MutexGuard<'_, RegistryPartition> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Borrow<str> for NamedChannel {
    fn borrow(&self) -> &str {
        self.0.name()
    }
}

impl Hash for NamedChannel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        str::hash(self.0.name(), state);
    }
}

impl PartialEq for NamedChannel {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for NamedChannel {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_stays_while_anything_would_be_lost() {
        let registry = ChannelRegistry::new();
        let name: Arc<str> = "a".into();
        let channel = registry.find_or_create(&name, 10).unwrap();
        assert!(Arc::ptr_eq(
            &channel,
            &registry.find_or_create(&name, 10).unwrap()
        ));
        channel.lock().arriving_streams = 1;
        registry.remove_if_idle(&channel);
        assert!(registry.find("a").is_some() && registry.len() == 1);
        channel.lock().arriving_streams = 0;
        channel.lock().last_sequence = 41;
        registry.remove_if_idle(&channel);
        registry.remove_if_idle(&channel);
        assert!(
            registry.find("a").is_none() && registry.len() == 0 && registry.memory_bytes() == 0
        );
        assert!(channel.lock_unless_removed().is_none());
        let anew = registry.find_or_create(&name, 10).unwrap();
        assert_eq!(
            anew.lock().last_sequence,
            41,
            "nobody knows what there was before"
        );
        assert!(anew.lock().history.has_gap_after(40) && !anew.lock().history.has_gap_after(41));
    }

    #[test]
    fn there_are_no_more_than_the_bound() {
        let registry = ChannelRegistry::new();
        for number in 0..100 {
            registry
                .find_or_create(&format!("{number}").into(), 100)
                .unwrap();
        }
        let refused = registry
            .find_or_create(&"one more".into(), 100)
            .unwrap_err();
        assert_eq!(refused, HubError::TooManyChannels(100));
        assert!(registry.find_or_create(&"7".into(), 100).is_ok());
        let gone = registry.find("50").unwrap();
        registry.remove_if_idle(&gone);
        assert!(registry.find_or_create(&"one more".into(), 100).is_ok());
        assert_eq!(registry.len(), 100);
        assert_eq!(registry.all_by_partition().flatten().count(), 100);
    }

    #[test]
    fn the_same_id_is_another_in_another_channel() {
        let (registry, now) = (ChannelRegistry::new(), Instant::now());
        assert!(!registry.record_and_check_duplicate("a", "1", now));
        assert!(registry.record_and_check_duplicate("a", "1", now));
        assert!(!registry.record_and_check_duplicate("b", "1", now));
        assert!(!registry.record_and_check_duplicate("a", "2", now));
    }
}
