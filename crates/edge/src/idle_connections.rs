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
const NO_NODE: u32 = u32::MAX;

/// Nobody waits.
const NO_IDLE_TICK: u32 = u32::MAX;

/// Nodes that an empty list keeps.
const MAX_KEPT_NODES: usize = 1024;

/// All waiting connections of a front end.
#[derive(Debug)]
pub(crate) struct IdleConnections {
    /// Ticks are counted from here.
    epoch: Instant,
    shards: Box<[LoopShard]>,
    /// Connections that were told to close and are still open.
    closing: AtomicUsize,
}

/// Those of one loop.
#[derive(Debug)]
#[repr(align(64))]
struct LoopShard {
    /// Held for a few instructions: by its own loop, and by another one that looks for room.
    list: Mutex<IdleList<Waker>>,
    /// Since when its oldest one waits.
    oldest_tick: AtomicU32,
    /// As [`IdleConnections::leaving`], of this loop.
    closing: AtomicUsize,
}

/// The place of one connection among those that wait.
#[derive(Debug)]
pub(crate) struct IdleEntry {
    node: u32,
    /// The tick of its last activity: it waits since then.
    idle_since: u32,
    shard: u16,
    /// The list does not have that tick yet.
    needs_update: bool,
}

impl IdleEntry {
    /// The place of a connection that has just come.
    pub(crate) fn new(waiting: &IdleConnections, now: Instant) -> Self {
        Self {
            node: NO_NODE,
            idle_since: waiting.tick(now),
            shard: 0,
            needs_update: true,
        }
    }

    /// Notes that something has happened that makes it wait anew.
    pub(crate) fn restart(&mut self, waiting: &IdleConnections, now: Instant) {
        let since = waiting.tick(now);
        self.needs_update |= since != self.idle_since;
        self.idle_since = since;
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
            closing: AtomicUsize::new(0),
        }
    }

    /// The time in ticks of 2^25 nanoseconds (34 ms): enough for four years.
    fn tick(&self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.epoch);
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        let ticks = seconds.saturating_mul(30) + (since.subsec_nanos() >> 25);
        ticks.min(NO_IDLE_TICK - 1)
    }

    /// A connection has nothing to do; `waker` is its task's. Says whether it is to close, which it
    /// need not if something has happened since it waits.
    pub(crate) fn mark_idle(&self, place: &mut IdleEntry, waker: &Waker) -> bool {
        if !std::mem::take(&mut place.needs_update) {
            return self.is_closing(place);
        }
        if place.node == NO_NODE {
            let own = u16::try_from(loops::current_index()).unwrap_or_default();
            let is_known = usize::from(own) < self.shards.len();
            place.shard = if is_known { own } else { 0 };
        }
        let shard = self.shard(place);
        let mut list = shard.lock();
        if place.node == NO_NODE {
            place.node = list.insert(place.idle_since, waker.clone());
        } else if list.renew(place.node, place.idle_since) {
            self.cancel_closing(shard);
        }
        shard.publish(&list);
        false
    }

    /// A connection has a request, or is no more.
    pub(crate) fn remove(&self, place: &mut IdleEntry) {
        place.needs_update = true;
        let slot = std::mem::replace(&mut place.node, NO_NODE);
        if slot == NO_NODE {
            return;
        }
        let shard = self.shard(place);
        let mut list = shard.lock();
        let (waker, was_leaving) = list.remove(slot);
        if was_leaving {
            self.cancel_closing(shard);
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
            // If none, another loop was faster, and what is published is new.
            if let Some(waker) = waker {
                shard.closing.fetch_add(1, Ordering::Relaxed);
                self.closing.fetch_add(1, Ordering::Relaxed);
                drop(list);
                waker.wake();
                return true;
            }
        }
    }

    /// How many were told to close and are still open.
    pub(crate) fn closing(&self) -> usize {
        self.closing.load(Ordering::Relaxed)
    }

    fn is_closing(&self, place: &IdleEntry) -> bool {
        let shard = self.shard(place);
        place.node != NO_NODE
            && shard.closing.load(Ordering::Relaxed) > 0
            && shard.lock().is_closing(place.node)
    }

    fn cancel_closing(&self, shard: &LoopShard) {
        shard.closing.fetch_sub(1, Ordering::Relaxed);
        self.closing.fetch_sub(1, Ordering::Relaxed);
    }

    fn shard(&self, place: &IdleEntry) -> &LoopShard {
        &self.shards[usize::from(place.shard)]
    }
}

impl LoopShard {
    fn lock(&self) -> MutexGuard<'_, IdleList<Waker>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the other loops know, while the lock is held.
    fn publish(&self, list: &IdleList<Waker>) {
        let oldest = list.oldest().unwrap_or(NO_IDLE_TICK);
        self.oldest_tick.store(oldest, Ordering::Relaxed);
    }
}

/// A list through the nodes of a vector: every change is a few writes. Pure.
#[derive(Debug)]
struct IdleList<T> {
    nodes: Vec<IdleNode<T>>,
    /// Nodes in use.
    count: usize,
    free: u32,
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct IdleNode<T> {
    /// `None` of a node that is free.
    owner: Option<T>,
    previous: u32,
    next: u32,
    idle_since: u32,
    /// Told to close, and not among those that wait.
    is_closing: bool,
}

impl<T> Default for IdleList<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            count: 0,
            free: NO_NODE,
            first: NO_NODE,
            last: NO_NODE,
        }
    }
}

impl<T: Clone> IdleList<T> {
    /// Enters one that waits since now; gives its node.
    fn insert(&mut self, since: u32, owner: T) -> u32 {
        let node = IdleNode {
            owner: Some(owner),
            previous: NO_NODE,
            next: NO_NODE,
            idle_since: since,
            is_closing: false,
        };
        let slot = match self.free {
            NO_NODE => {
                self.nodes.push(node);
                // There are fewer descriptors than that.
                u32::try_from(self.nodes.len() - 1).unwrap_or(NO_NODE)
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
        node.idle_since = since;
        let was_leaving = std::mem::take(&mut node.is_closing);
        if !was_leaving {
            self.unlink(slot);
        }
        self.link(slot);
        was_leaving
    }

    /// Takes one out; gives its owner, and whether it was leaving.
    fn remove(&mut self, slot: u32) -> (Option<T>, bool) {
        let was_leaving = self.node(slot).is_closing;
        if !was_leaving {
            self.unlink(slot);
        }
        let free = self.free;
        let node = self.node(slot);
        let owner = node.owner.take();
        (node.next, node.is_closing) = (free, false);
        self.free = slot;
        self.count -= 1;
        if self.count == 0 && self.nodes.capacity() > MAX_KEPT_NODES {
            *self = Self::default();
        }
        (owner, was_leaving)
    }

    /// The owner of the one that has waited longest, and since before `now`; it is leaving then.
    fn close_oldest(&mut self, now: u32) -> Option<T> {
        self.oldest().filter(|oldest| *oldest < now)?;
        let slot = self.first;
        self.unlink(slot);
        let node = self.node(slot);
        node.is_closing = true;
        node.owner.clone()
    }

    fn oldest(&self) -> Option<u32> {
        self.nodes
            .get(self.first as usize)
            .map(|node| node.idle_since)
    }

    fn is_closing(&self, slot: u32) -> bool {
        self.nodes[slot as usize].is_closing
    }

    fn link(&mut self, slot: u32) {
        let last = std::mem::replace(&mut self.last, slot);
        let node = self.node(slot);
        (node.previous, node.next) = (last, NO_NODE);
        match last {
            NO_NODE => self.first = slot,
            last => self.node(last).next = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let node = self.node(slot);
        let (previous, next) = (node.previous, node.next);
        match previous {
            NO_NODE => self.first = next,
            previous => self.node(previous).next = next,
        }
        match next {
            NO_NODE => self.last = previous,
            next => self.node(next).previous = previous,
        }
    }

    fn node(&mut self, slot: u32) -> &mut IdleNode<T> {
        &mut self.nodes[slot as usize]
    }
}

#[cfg(test)]
mod tests;
