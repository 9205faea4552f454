//! Connections that wait for a request, in the order in which they began to.
//!
//! `connection` enters its own when there is nothing to do, and takes it out when there is.
//! `accept` closes the one that has waited longest, on whichever loop, when connections or
//! descriptors run short.
//!
//! # Invariants
//!
//! - A connection with a request in progress is never closed: it is in no list, or finds the request
//!   before it finds that it is to close.
//! - To find the oldest one is a look at each loop's number, however many connections there are.
//! - A connection that is busy all the time takes its lock once a tick, not once a request.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use penstock_runtime::loops;

/// No node.
const NONE: u32 = u32::MAX;

/// Nobody waits.
const NOBODY: u32 = u32::MAX;

/// Nodes that an empty list keeps.
const KEPT_NODES: usize = 1024;

/// All waiting connections of a front end.
#[derive(Debug)]
pub(crate) struct WaitingConnections {
    /// Ticks are counted from here.
    epoch: Instant,
    shards: Box<[Shard]>,
    /// Connections that were told to close and are still open.
    leaving: AtomicUsize,
}

/// Those of one loop.
#[derive(Debug)]
#[repr(align(64))]
struct Shard {
    /// Held for a few instructions: by its own loop, and by another one that looks for room.
    list: Mutex<WaitingList<Waker>>,
    /// Since when its oldest one waits.
    oldest: AtomicU32,
    /// As [`WaitingConnections::leaving`], of this loop.
    leaving: AtomicUsize,
}

/// The place of one connection among those that wait.
#[derive(Debug)]
pub(crate) struct WaitingPlace {
    slot: u32,
    /// The tick of its last activity: it waits since then.
    since: u32,
    shard: u16,
    /// The list does not have that tick yet.
    is_fresh: bool,
}

impl WaitingPlace {
    /// The place of a connection that has just come.
    pub(crate) fn new(waiting: &WaitingConnections, now: Instant) -> Self {
        Self {
            slot: NONE,
            since: waiting.tick(now),
            shard: 0,
            is_fresh: true,
        }
    }

    /// Notes that something has happened that makes it wait anew.
    pub(crate) fn touch(&mut self, waiting: &WaitingConnections, now: Instant) {
        let since = waiting.tick(now);
        self.is_fresh |= since != self.since;
        self.since = since;
    }
}

impl WaitingConnections {
    pub(crate) fn new(loops: usize, epoch: Instant) -> Self {
        let shard = |_| Shard {
            list: Mutex::default(),
            oldest: AtomicU32::new(NOBODY),
            leaving: AtomicUsize::new(0),
        };
        Self {
            epoch,
            shards: (0..loops.max(1)).map(shard).collect(),
            leaving: AtomicUsize::new(0),
        }
    }

    /// The time in ticks of 2^25 nanoseconds (34 ms): enough for four years.
    fn tick(&self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.epoch);
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        let ticks = seconds.saturating_mul(30) + (since.subsec_nanos() >> 25);
        ticks.min(NOBODY - 1)
    }

    /// A connection has nothing to do; `waker` is its task's. Says whether it is to close, which it
    /// need not if something has happened since it waits.
    pub(crate) fn wait(&self, place: &mut WaitingPlace, waker: &Waker) -> bool {
        if !std::mem::take(&mut place.is_fresh) {
            return self.is_leaving(place);
        }
        if place.slot == NONE {
            let own = u16::try_from(loops::current_index()).unwrap_or_default();
            let is_known = usize::from(own) < self.shards.len();
            place.shard = if is_known { own } else { 0 };
        }
        let shard = self.shard(place);
        let mut list = shard.lock();
        if place.slot == NONE {
            place.slot = list.insert(place.since, waker.clone());
        } else if list.renew(place.slot, place.since) {
            self.end_leaving(shard);
        }
        shard.publish(&list);
        false
    }

    /// A connection has a request, or is no more.
    pub(crate) fn leave(&self, place: &mut WaitingPlace) {
        place.is_fresh = true;
        let slot = std::mem::replace(&mut place.slot, NONE);
        if slot == NONE {
            return;
        }
        let shard = self.shard(place);
        let mut list = shard.lock();
        let (waker, was_leaving) = list.remove(slot);
        if was_leaving {
            self.end_leaving(shard);
        }
        shard.publish(&list);
        // Never dropped under the lock: it may be all that is left of a task.
        drop(list);
        drop(waker);
    }

    /// Tells the connection to close that has waited longest, on all loops. One that came in this
    /// very tick is left alone: its request may be on its way. `false` if there is none.
    pub(crate) fn close_oldest(&self, now: Instant) -> bool {
        let now = self.tick(now);
        loop {
            let ages = self.shards.iter().map(|shard| {
                let oldest = shard.oldest.load(Ordering::Relaxed);
                (oldest, shard)
            });
            let oldest = ages.min_by_key(|(oldest, _)| *oldest);
            let Some((_, shard)) = oldest.filter(|(oldest, _)| *oldest < now) else {
                return false;
            };
            let mut list = shard.lock();
            let waker = list.take_oldest(now);
            shard.publish(&list);
            // If none, another loop was faster, and what is published is new.
            if let Some(waker) = waker {
                shard.leaving.fetch_add(1, Ordering::Relaxed);
                self.leaving.fetch_add(1, Ordering::Relaxed);
                drop(list);
                waker.wake();
                return true;
            }
        }
    }

    /// How many were told to close and are still open.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving.load(Ordering::Relaxed)
    }

    fn is_leaving(&self, place: &WaitingPlace) -> bool {
        let shard = self.shard(place);
        place.slot != NONE
            && shard.leaving.load(Ordering::Relaxed) > 0
            && shard.lock().is_leaving(place.slot)
    }

    fn end_leaving(&self, shard: &Shard) {
        shard.leaving.fetch_sub(1, Ordering::Relaxed);
        self.leaving.fetch_sub(1, Ordering::Relaxed);
    }

    fn shard(&self, place: &WaitingPlace) -> &Shard {
        &self.shards[usize::from(place.shard)]
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, WaitingList<Waker>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the other loops know, while the lock is held.
    fn publish(&self, list: &WaitingList<Waker>) {
        let oldest = list.oldest().unwrap_or(NOBODY);
        self.oldest.store(oldest, Ordering::Relaxed);
    }
}

/// A list through the nodes of a vector: every change is a few writes. Pure.
#[derive(Debug)]
struct WaitingList<T> {
    nodes: Vec<Node<T>>,
    /// Nodes in use.
    count: usize,
    free: u32,
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Node<T> {
    /// `None` of a node that is free.
    owner: Option<T>,
    previous: u32,
    next: u32,
    since: u32,
    /// Told to close, and not among those that wait.
    is_leaving: bool,
}

impl<T> Default for WaitingList<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            count: 0,
            free: NONE,
            first: NONE,
            last: NONE,
        }
    }
}

impl<T: Clone> WaitingList<T> {
    /// Enters one that waits since now; gives its node.
    fn insert(&mut self, since: u32, owner: T) -> u32 {
        let node = Node {
            owner: Some(owner),
            previous: NONE,
            next: NONE,
            since,
            is_leaving: false,
        };
        let slot = match self.free {
            NONE => {
                self.nodes.push(node);
                // There are fewer descriptors than that.
                u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
            }
            slot => {
                self.free = self.node(slot).next;
                *self.node(slot) = node;
                slot
            }
        };
        self.count += 1;
        self.link(slot);
        slot
    }

    /// One waits anew; says whether it was leaving.
    fn renew(&mut self, slot: u32, since: u32) -> bool {
        let node = self.node(slot);
        node.since = since;
        let was_leaving = std::mem::take(&mut node.is_leaving);
        if !was_leaving {
            self.unlink(slot);
        }
        self.link(slot);
        was_leaving
    }

    /// Takes one out; gives its owner, and whether it was leaving.
    fn remove(&mut self, slot: u32) -> (Option<T>, bool) {
        let was_leaving = self.node(slot).is_leaving;
        if !was_leaving {
            self.unlink(slot);
        }
        let free = self.free;
        let node = self.node(slot);
        let owner = node.owner.take();
        (node.next, node.is_leaving) = (free, false);
        self.free = slot;
        self.count -= 1;
        if self.count == 0 && self.nodes.capacity() > KEPT_NODES {
            *self = Self::default();
        }
        (owner, was_leaving)
    }

    /// The owner of the one that has waited longest, and since before `now`; it is leaving then.
    fn take_oldest(&mut self, now: u32) -> Option<T> {
        self.oldest().filter(|oldest| *oldest < now)?;
        let slot = self.first;
        self.unlink(slot);
        let node = self.node(slot);
        node.is_leaving = true;
        node.owner.clone()
    }

    fn oldest(&self) -> Option<u32> {
        self.nodes.get(self.first as usize).map(|node| node.since)
    }

    fn is_leaving(&self, slot: u32) -> bool {
        self.nodes[slot as usize].is_leaving
    }

    fn link(&mut self, slot: u32) {
        let last = std::mem::replace(&mut self.last, slot);
        let node = self.node(slot);
        (node.previous, node.next) = (last, NONE);
        match last {
            NONE => self.first = slot,
            last => self.node(last).next = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let node = self.node(slot);
        let (previous, next) = (node.previous, node.next);
        match previous {
            NONE => self.first = next,
            previous => self.node(previous).next = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.node(next).previous = previous,
        }
    }

    fn node(&mut self, slot: u32) -> &mut Node<T> {
        &mut self.nodes[slot as usize]
    }
}

#[cfg(test)]
mod tests;
