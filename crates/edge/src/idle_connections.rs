//! Connections that wait for a request, longest first.
//!
//! A connection enters when it becomes idle, and leaves with its next request. `accept` closes the
//! one that has been idle longest, on whichever loop, when connections or descriptors run short.
//!
//! # Invariants
//! - A connection with a request in progress is never closed: it is in no list, or finds the
//!   request before it finds that it is to close.
//! - Finding the oldest connection reads one number for each loop, however many connections there
//!   are.
//! - A busy connection takes its loop's lock once a tick, not once a request.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use penstock_runtime::loops;

/// No connection is idle.
const NO_IDLE_TICK: u32 = u32::MAX;

/// All idle connections of a front end.
#[derive(Debug)]
pub(crate) struct IdleConnections {
    /// Ticks are counted from here.
    epoch: Instant,
    shards: Box<[LoopShard]>,
    /// Connections that were told to close and are still open.
    closing_count: AtomicUsize,
}

#[derive(Debug)]
#[repr(align(64))]
struct LoopShard {
    /// Held for a few instructions: by its own loop, or by one that needs a slot.
    list: Mutex<IdleList<Waker>>,
    /// The tick of its oldest connection.
    oldest_tick: AtomicU32,
    /// As [`IdleConnections::closing`], of this loop.
    closing: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct IdleEntry {
    /// Its key in the list of its loop. One that was told to close is no longer there.
    key: Option<IdleKey>,
    /// The tick of its last activity.
    idle_since: u32,
    shard: u16,
}

impl IdleEntry {
    pub(crate) fn new(waiting: &IdleConnections, now: Instant) -> Self {
        Self {
            key: None,
            idle_since: waiting.tick(now),
            shard: 0,
        }
    }

    pub(crate) fn record_activity(&mut self, waiting: &IdleConnections, now: Instant) {
        self.idle_since = waiting.tick(now);
    }
}

impl IdleConnections {
    pub(crate) fn new(loops: usize, epoch: Instant) -> Self {
        let shard = |_| LoopShard {
            list: Mutex::default(),
            oldest_tick: AtomicU32::new(NO_IDLE_TICK),
            closing: AtomicUsize::new(0),
        };
        Self {
            epoch,
            shards: (0..loops.max(1)).map(shard).collect(),
            closing_count: AtomicUsize::new(0),
        }
    }

    /// The time in ticks of 2^25 nanoseconds (34 ms): enough for four years.
    fn tick(&self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.epoch);
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        let ticks = seconds.saturating_mul(30) + (since.subsec_nanos() >> 25);
        ticks.min(NO_IDLE_TICK - 1)
    }

    /// Enters an idle connection; `waker` is its task's. Returns whether it is to close, which
    /// activity since it became idle prevents.
    pub(crate) fn mark_idle(&self, place: &mut IdleEntry, waker: &Waker) -> bool {
        if place
            .key
            .is_some_and(|(since, _)| since == place.idle_since)
        {
            return self.is_closing(place);
        }
        if place.key.is_none() {
            let own = u16::try_from(loops::current_loop_index()).unwrap_or_default();
            let is_known = usize::from(own) < self.shards.len();
            place.shard = if is_known { own } else { 0 };
        }
        let shard = self.shard(place);
        let mut list = shard.lock();
        let listed = place.key.map(|key| list.remove(key));
        if let Some(None) = listed {
            self.cancel_closing(shard);
        }
        let waker = listed.flatten().unwrap_or_else(|| waker.clone());
        place.key = Some(list.insert(place.idle_since, waker));
        shard.publish(&list);
        false
    }

    /// Removes a connection that has a request, or ends.
    pub(crate) fn remove(&self, place: &mut IdleEntry) {
        let Some(key) = place.key.take() else {
            return;
        };
        let shard = self.shard(place);
        let mut list = shard.lock();
        let waker = list.remove(key);
        if waker.is_none() {
            self.cancel_closing(shard);
        }
        shard.publish(&list);
        // Not dropped under the lock: it may be the last reference to a task.
        drop(list);
        drop(waker);
    }

    /// Tells the connection that has been idle longest, on all loops, to close. One that became
    /// idle in this tick is left alone: its request may be on its way. `false` if there is none.
    pub(crate) fn close_oldest(&self, now: Instant) -> bool {
        let now = self.tick(now);
        loop {
            let ages = self.shards.iter().map(|shard| {
                let oldest = shard.oldest_tick.load(Ordering::Relaxed);
                (oldest, shard)
            });
            let oldest = ages.min_by_key(|(oldest, _)| *oldest);
            let Some((_, shard)) = oldest.filter(|(oldest, _)| *oldest < now) else {
                return false;
            };
            let mut list = shard.lock();
            let waker = list.close_oldest(now);
            shard.publish(&list);
            // Otherwise another loop was faster, and has published a newer tick.
            if let Some(waker) = waker {
                shard.closing.fetch_add(1, Ordering::Relaxed);
                self.closing_count.fetch_add(1, Ordering::Relaxed);
                drop(list);
                waker.wake();
                return true;
            }
        }
    }

    /// Connections that were told to close and are still open.
    pub(crate) fn closing(&self) -> usize {
        self.closing_count.load(Ordering::Relaxed)
    }

    fn is_closing(&self, place: &IdleEntry) -> bool {
        let shard = self.shard(place);
        shard.closing.load(Ordering::Relaxed) > 0
            && (place.key).is_some_and(|key| !shard.lock().by_age.contains_key(&key))
    }

    fn cancel_closing(&self, shard: &LoopShard) {
        shard.closing.fetch_sub(1, Ordering::Relaxed);
        self.closing_count.fetch_sub(1, Ordering::Relaxed);
    }

    fn shard(&self, place: &IdleEntry) -> &LoopShard {
        &self.shards[usize::from(place.shard)]
    }
}

impl LoopShard {
    fn lock(&self) -> MutexGuard<'_, IdleList<Waker>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the oldest tick to other loops, while the lock is held.
    fn publish(&self, list: &IdleList<Waker>) {
        let oldest = list.oldest().unwrap_or(NO_IDLE_TICK);
        self.oldest_tick.store(oldest, Ordering::Relaxed);
    }
}

/// The tick since when a connection is idle, and its number, which no other one of that tick has.
type IdleKey = (u32, NonZeroU32);

/// Idle connections, longest first. Pure.
#[derive(Debug)]
struct IdleList<T> {
    by_age: BTreeMap<IdleKey, T>,
    last_number: NonZeroU32,
}

impl<T> Default for IdleList<T> {
    fn default() -> Self {
        Self {
            by_age: BTreeMap::new(),
            last_number: NonZeroU32::MIN,
        }
    }
}

impl<T> IdleList<T> {
    /// Adds an owner that is idle since a tick.
    fn insert(&mut self, since: u32, owner: T) -> IdleKey {
        self.last_number = self.last_number.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let key = (since, self.last_number);
        self.by_age.insert(key, owner);
        key
    }

    /// Removes an owner; `None` for one that was told to close.
    fn remove(&mut self, key: IdleKey) -> Option<T> {
        self.by_age.remove(&key)
    }

    /// Takes out the owner that has been idle longest, and since before `now`, to be told to close.
    fn close_oldest(&mut self, now: u32) -> Option<T> {
        let oldest = self.by_age.first_entry()?;
        (oldest.key().0 < now).then(|| oldest.remove())
    }

    fn oldest(&self) -> Option<u32> {
        self.by_age.first_key_value().map(|((since, _), _)| *since)
    }
}

#[cfg(test)]
mod tests;
