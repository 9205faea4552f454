//! The index of one tier, memory or disk: objects by key, and the eviction order.
//!
//! A look-up takes the short read lock of one of many shards and marks the object as used. A change
//! takes a shard's lock and then the queue's, never in reverse order, and neither is held across an
//! await. The call that removes an object from its shard owns the consequences (its file, its
//! bytes), so that they happen once.
//!
//! # Invariants
//!
//! - An object found has exactly the key's text.
//! - A key has one object per variant and at most [`MAX_VARIANTS`].
//! - The queued objects are the findable ones, except during a change.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::s3_fifo::{Evictable, EvictionState, S3Fifo};
use super::{ObjectKey, ObjectMeta};

/// Variants of one key. A response that varies by arbitrary client input must not grow a list
/// without limit.
pub(crate) const MAX_VARIANTS: usize = 64;

const SHARDS: usize = 64;

/// Keys removed under one lock.
const MAX_REMOVED_PER_LOCK: usize = 64;

#[derive(Debug)]
pub(crate) struct IndexedObject<B> {
    pub(crate) hash: u128,
    pub(crate) meta: Arc<ObjectMeta>,
    /// The body, or its location.
    pub(crate) body: B,
    /// In bytes.
    pub(crate) weight: u64,
    pub(crate) eviction_state: EvictionState,
}

#[derive(Debug)]
pub(crate) struct Tier<B> {
    shards: Box<[RwLock<TierShard<B>>]>,
    /// Locked after a shard's lock, or alone.
    eviction: Mutex<S3Fifo<IndexedObject<B>>>,
}

/// The map hashes the keys' hashes again, with its own secret: they are public, so clients that
/// choose URLs could choose keys that collide in a map.
type TierShard<B> = HashMap<u128, Vec<Arc<IndexedObject<B>>>>;

impl<B> IndexedObject<B> {
    /// Creates an object that weighs `weight` bytes.
    pub(crate) fn new(hash: u128, meta: Arc<ObjectMeta>, body: B, weight: u64) -> Arc<Self> {
        Arc::new(Self {
            hash,
            meta,
            body,
            weight,
            eviction_state: EvictionState::default(),
        })
    }
}

impl<B> Evictable for IndexedObject<B> {
    fn weight(&self) -> u64 {
        self.weight
    }

    fn ghost_key(&self) -> u64 {
        let hash = (self.hash >> 64) as u64;
        match self.meta.variant.is_empty() {
            true => hash,
            false => hash ^ twox_hash::XxHash3_64::oneshot(&self.meta.variant),
        }
    }

    fn eviction_state(&self) -> &EvictionState {
        &self.eviction_state
    }
}

impl<B> Tier<B> {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            eviction: Mutex::default(),
        }
    }

    /// Finds the newest variant of `key` that `pick` accepts, and marks it as used.
    pub(crate) fn find(
        &self,
        key: &ObjectKey,
        pick: &mut dyn FnMut(&ObjectMeta) -> bool,
    ) -> Option<Arc<IndexedObject<B>>> {
        let shard = self.shard(key.hash).read();
        let variants = shard.get(&key.hash)?.iter().rev();
        let mut variants = variants.filter(|item| item.meta.key == key.text);
        let item = variants.find(|item| pick(&item.meta))?;
        item.eviction_state.record_use();
        Some(Arc::clone(item))
    }

    /// Adds an object. Returns the objects that it replaces.
    pub(crate) fn insert(&self, item: &Arc<IndexedObject<B>>) -> Vec<Arc<IndexedObject<B>>> {
        self.write(item.hash, |shard| {
            let variants = shard.entry(item.hash).or_default();
            let is_replaced = |old: &mut Arc<_>| is_same_variant(old, item);
            let mut out: Vec<_> = variants.extract_if(.., is_replaced).collect();
            if variants.len() >= MAX_VARIANTS {
                out.push(variants.remove(0));
            }
            variants.push(Arc::clone(item));
            let mut fifo = self.eviction();
            for old in &out {
                fifo.remove(old);
            }
            fifo.insert(item);
            out
        })
    }

    /// Adds an object found after a restart. Fails if a newer one of its variant is present, as
    /// decided by `is_newer`, or if the key has too many variants. Returns the older object that it
    /// replaces.
    pub(crate) fn insert_recovered(
        &self,
        item: &Arc<IndexedObject<B>>,
        is_newer: impl Fn(&B) -> bool,
    ) -> Result<Option<Arc<IndexedObject<B>>>, ()> {
        self.write(item.hash, |shard| {
            let variants = shard.entry(item.hash).or_default();
            let at = variants.iter().position(|old| is_same_variant(old, item));
            if at.is_some_and(|at| is_newer(&variants[at].body)) || variants.len() >= MAX_VARIANTS {
                return Err(());
            }
            let old = at.map(|at| variants.remove(at));
            variants.insert(0, Arc::clone(item));
            let mut fifo = self.eviction();
            if let Some(old) = &old {
                fifo.remove(old);
            }
            fifo.insert_into_main(item);
            Ok(old)
        })
    }

    /// Replaces `old` with `new`. Returns `false` if `old` was removed or is being evicted.
    pub(crate) fn replace(&self, old: &Arc<IndexedObject<B>>, new: &Arc<IndexedObject<B>>) -> bool {
        self.write(old.hash, |shard| {
            let variants = shard.get_mut(&old.hash);
            let place = variants.and_then(|v| v.iter_mut().find(|item| Arc::ptr_eq(item, old)));
            let Some(place) = place else {
                return false;
            };
            // An object that has left the queue is removed from here by its eviction.
            let is_queued = self.eviction().replace(old, new);
            if is_queued {
                *place = Arc::clone(new);
            }
            is_queued
        })
    }

    /// Removes one object. Returns `false` if it was removed before.
    pub(crate) fn remove(&self, item: &Arc<IndexedObject<B>>) -> bool {
        self.write(item.hash, |shard| {
            let is_out = remove_from_shard(shard, item);
            if is_out {
                self.eviction().remove(item);
            }
            is_out
        })
    }

    /// Finds the object with this hash and a body that `is_meant` accepts.
    pub(crate) fn find_by_body(
        &self,
        hash: u128,
        is_meant: impl Fn(&B) -> bool,
    ) -> Option<Arc<IndexedObject<B>>> {
        let shard = self.shard(hash).read();
        let mut variants = shard.get(&hash).into_iter().flatten();
        variants.find(|item| is_meant(&item.body)).cloned()
    }

    /// Runs `then` while `item` cannot be removed. Returns `None` if it was removed before.
    pub(crate) fn run_if_present<R>(
        &self,
        item: &Arc<IndexedObject<B>>,
        then: impl FnOnce() -> R,
    ) -> Option<R> {
        let shard = self.shard(item.hash).read();
        let variants = shard.get(&item.hash)?;
        let is_there = variants.iter().any(|other| Arc::ptr_eq(other, item));
        is_there.then(then)
    }

    pub(crate) fn remove_key(&self, key: &ObjectKey) -> Vec<Arc<IndexedObject<B>>> {
        self.remove_matching(&[key.hash], |meta| meta.key == key.text)
    }

    /// Removes every object that `is_meant` accepts. Scans all objects, one shard at a time: some
    /// tens of nanoseconds each, about 50 ms for a million.
    pub(crate) fn remove_where(
        &self,
        is_meant: impl Fn(&ObjectMeta) -> bool,
    ) -> Vec<Arc<IndexedObject<B>>> {
        let mut out = Vec::new();
        for shard in &self.shards {
            let is_one =
                |items: &[Arc<IndexedObject<B>>]| items.iter().any(|item| is_meant(&item.meta));
            let meant: Vec<_> = {
                let shard = shard.read();
                let keys = shard.iter().filter(|(_, items)| is_one(items));
                keys.map(|(&hash, _)| hash).collect()
            };
            for hashes in meant.chunks(MAX_REMOVED_PER_LOCK) {
                out.extend(self.remove_matching(hashes, &is_meant));
            }
        }
        out
    }

    /// Removes the accepted objects of these hashes, which share a shard. Holding its lock
    /// throughout removes an object that is being replaced, too.
    fn remove_matching(
        &self,
        hashes: &[u128],
        is_meant: impl Fn(&ObjectMeta) -> bool,
    ) -> Vec<Arc<IndexedObject<B>>> {
        let Some(&first) = hashes.first() else {
            return Vec::new();
        };
        self.write(first, |shard| {
            let mut out = Vec::new();
            for hash in hashes {
                let Some(variants) = shard.get_mut(hash) else {
                    continue;
                };
                out.extend(variants.extract_if(.., |item| is_meant(&item.meta)));
                if variants.is_empty() {
                    shard.remove(hash);
                }
            }
            let mut fifo = self.eviction();
            for item in &out {
                fifo.remove(item);
            }
            out
        })
    }

    /// Evicts objects until the rest weighs at most `room` bytes and `is_enough` accepts the
    /// evicted ones.
    pub(crate) fn evict(
        &self,
        room: u64,
        mut is_enough: impl FnMut(&[Arc<IndexedObject<B>>]) -> bool,
    ) -> Vec<Arc<IndexedObject<B>>> {
        let mut out = Vec::new();
        loop {
            let item = {
                let mut fifo = self.eviction();
                if fifo.bytes() <= room && is_enough(&out) {
                    return out;
                }
                fifo.evict(room)
            };
            let Some(item) = item else {
                return out;
            };
            if self.write(item.hash, |shard| remove_from_shard(shard, &item)) {
                out.push(item);
            }
        }
    }

    /// Weight and number of the objects.
    pub(crate) fn weight_and_count(&self) -> (u64, u64) {
        let fifo = self.eviction();
        (fifo.bytes(), fifo.len() as u64)
    }

    fn shard(&self, hash: u128) -> &RwLock<TierShard<B>> {
        let index = (hash >> 122) as usize;
        &self.shards[index % SHARDS]
    }

    fn write<R>(&self, hash: u128, change: impl FnOnce(&mut TierShard<B>) -> R) -> R {
        change(&mut self.shard(hash).write())
    }

    fn eviction(&self) -> MutexGuard<'_, S3Fifo<IndexedObject<B>>> {
        self.eviction.lock()
    }
}

fn is_same_variant<B>(one: &IndexedObject<B>, other: &IndexedObject<B>) -> bool {
    one.meta.is_same_variant(&other.meta)
}

fn remove_from_shard<B>(shard: &mut TierShard<B>, item: &Arc<IndexedObject<B>>) -> bool {
    let Some(variants) = shard.get_mut(&item.hash) else {
        return false;
    };
    let at = variants.iter().position(|other| Arc::ptr_eq(other, item));
    if let Some(at) = at {
        variants.remove(at);
        if variants.is_empty() {
            shard.remove(&item.hash);
        }
    }
    at.is_some()
}

#[cfg(test)]
mod tests;
