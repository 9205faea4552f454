//! All channels by name, and the ids that were published lately.
//!
//! `hub` opens channels here to publish and to subscribe. In 64 parts, so that threads seldom meet at a
//! lock and no part is ever large enough for its growth to be felt. What must stay true: a channel is here
//! as long as it has subscribers, a history or something parked, and no longer; there are at most
//! `channels_max`; a part's lock comes before a channel's.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::Refused;
use crate::channel::Channel;
use crate::order::Seen;
use crate::shares::Shares;

/// The channels of a hub.
#[derive(Debug)]
pub(crate) struct Registry {
    parts: Vec<Mutex<Part>>,
    hashers: [RandomState; 2],
    channels: AtomicUsize,
    bytes: AtomicUsize,
    pub(crate) shares: Shares,
}

const PARTS: usize = 64;

#[derive(Debug, Default)]
struct Part {
    channels: HashSet<ByName>,
    seen: Seen,
    /// The number of the last message of all channels that were let go of: of a channel that comes anew,
    /// nobody knows what there was until then.
    forgotten: u64,
}

/// A channel that is found by its name.
#[derive(Debug)]
struct ByName(Arc<Channel>);

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hashers: [RandomState::new(), RandomState::new()],
            channels: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            shares: Shares::default(),
        }
    }

    /// The channel, if it is there.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Channel>> {
        let part = self.part(name);
        part.channels.get(name).map(|found| found.0.clone())
    }

    /// The channel, made if it is not there.
    ///
    /// # Errors
    /// When there are `channels_max` already.
    pub(crate) fn open(
        &self,
        name: &Arc<str>,
        channels_max: usize,
    ) -> Result<Arc<Channel>, Refused> {
        let mut part = self.part(name);
        if let Some(found) = part.channels.get(&**name) {
            return Ok(found.0.clone());
        }
        // Counted first, so that openers in other parts see it.
        if self.channels.fetch_add(1, Ordering::AcqRel) >= channels_max {
            self.channels.fetch_sub(1, Ordering::AcqRel);
            return Err(Refused::Channels(channels_max));
        }
        let share = self.shares.of(name);
        let channel = Arc::new(Channel::new(name.clone(), part.forgotten, share));
        self.bytes.fetch_add(channel.own_bytes(), Ordering::Relaxed);
        part.channels.insert(ByName(channel.clone()));
        Ok(channel)
    }

    /// Lets go of the channel if nothing would be lost. Not under its lock.
    pub(crate) fn release(&self, channel: &Arc<Channel>) {
        let mut part = self.part(channel.name());
        let mut state = channel.lock();
        if state.is_dead || !state.is_idle() {
            return;
        }
        state.is_dead = true;
        state.update_places(channel);
        part.forgotten = part.forgotten.max(state.last).max(state.history.gone());
        drop(state);
        part.channels.remove(&**channel.name());
        if part.channels.capacity() > 4 * part.channels.len() + 64 {
            let room = 2 * part.channels.len();
            part.channels.shrink_to(room);
        }
        self.channels.fetch_sub(1, Ordering::AcqRel);
        self.bytes.fetch_sub(channel.own_bytes(), Ordering::Relaxed);
    }

    /// Whether this id was published to this channel within a minute; from now on it was.
    pub(crate) fn is_repeated(&self, channel: &str, id: &str, now: Instant) -> bool {
        let half = |hasher: &RandomState| u128::from(hasher.hash_one((channel, id)));
        let digest = half(&self.hashers[0]) << 64 | half(&self.hashers[1]);
        self.part(channel).seen.is_repeated(digest, now)
    }

    /// How many channels there are.
    pub(crate) fn len(&self) -> usize {
        self.channels.load(Ordering::Acquire)
    }

    /// What they cost, without histories and subscribers.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// All channels, part by part.
    pub(crate) fn all(&self) -> impl Iterator<Item = Vec<Arc<Channel>>> {
        self.parts.iter().map(|part| {
            let part = lock(part);
            part.channels.iter().map(|each| each.0.clone()).collect()
        })
    }

    fn part(&self, name: &str) -> MutexGuard<'_, Part> {
        let hash = self.hashers[0].hash_one(name);
        let index = usize::try_from(hash % PARTS as u64).unwrap_or(0);
        lock(&self.parts[index])
    }
}

/// A panic under the lock leaves a set that is whole: its changes are single calls.
fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        self.0.name()
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        str::hash(self.0.name(), state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for ByName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_stays_while_anything_would_be_lost() {
        let registry = Registry::new();
        let name: Arc<str> = "a".into();
        let channel = registry.open(&name, 10).unwrap();
        assert!(Arc::ptr_eq(&channel, &registry.open(&name, 10).unwrap()));
        channel.lock().expected = 1;
        registry.release(&channel);
        assert!(registry.find("a").is_some() && registry.len() == 1);
        channel.lock().expected = 0;
        channel.lock().last = 41;
        registry.release(&channel);
        registry.release(&channel);
        assert!(registry.find("a").is_none() && registry.len() == 0 && registry.bytes() == 0);
        assert!(channel.lock_alive().is_none());
        let anew = registry.open(&name, 10).unwrap();
        assert_eq!(anew.lock().last, 41, "nobody knows what there was before");
        assert!(anew.lock().history.has_gap(40) && !anew.lock().history.has_gap(41));
    }

    #[test]
    fn there_are_no_more_than_the_bound() {
        let registry = Registry::new();
        for number in 0..100 {
            registry.open(&format!("{number}").into(), 100).unwrap();
        }
        let refused = registry.open(&"one more".into(), 100).unwrap_err();
        assert_eq!(refused, Refused::Channels(100));
        assert!(registry.open(&"7".into(), 100).is_ok());
        let gone = registry.find("50").unwrap();
        registry.release(&gone);
        assert!(registry.open(&"one more".into(), 100).is_ok());
        assert_eq!(registry.len(), 100);
        assert_eq!(registry.all().flatten().count(), 100);
    }

    #[test]
    fn the_same_id_is_another_in_another_channel() {
        let (registry, now) = (Registry::new(), Instant::now());
        assert!(!registry.is_repeated("a", "1", now));
        assert!(registry.is_repeated("a", "1", now));
        assert!(!registry.is_repeated("b", "1", now));
        assert!(!registry.is_repeated("a", "2", now));
    }
}
