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

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use penstock_runtime::loops;

/// No node.
const NO_NODE: u32 = u32::MAX;

/// No connection is idle.
const NO_IDLE_TICK: u32 = u32::MAX;

/// Nodes that an empty list keeps.
const MAX_KEPT_NODES: usize = 1024;

/// All idle connections of a front end.
#[derive(Debug)]
pub(crate) struct IdleConnections {
    /// Ticks are counted from here.
    epoch: Instant,
    shards: Box<[LoopShard]>,
    /// Connections that were told to close and are still open.
    closing: AtomicUsize,
}

/// The idle connections of one loop.
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

/// The entry of one connection.
#[derive(Debug)]
pub(crate) struct IdleEntry {
    node: u32,
    /// The tick of its last activity.
    idle_since: u32,
    shard: u16,
    /// The list does not have `idle_since` yet.
    needs_update: bool,
}

impl IdleEntry {
    /// The entry of a new connection.
    pub(crate) fn new(waiting: &IdleConnections, now: Instant) -> Self {
        Self {
            node: NO_NODE,
            idle_since: waiting.tick(now),
            shard: 0,
            needs_update: true,
        }
    }

    /// Restarts the idle time.
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

    /// Enters an idle connection; `waker` is its task's. Returns whether it is to close, which
    /// activity since it became idle prevents.
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

    /// Removes a connection that has a request, or ends.
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
                self.closing.fetch_add(1, Ordering::Relaxed);
                drop(list);
                waker.wake();
                return true;
            }
        }
    }

    /// Connections that were told to close and are still open.
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

    /// Publishes the oldest tick to other loops, while the lock is held.
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
    /// Told to close, and no longer in the list.
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
    /// Adds an owner that is idle since now; returns its node.
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

    /// Moves a node to the end; returns whether it was closing.
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

    /// Removes a node; returns its owner, and whether it was closing.
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

    /// Marks the node that has been idle longest, and since before `now`, as closing; returns its
    /// owner.
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
