//! Heartbeats: rings of streams by when their next one is due.
//!
//! `writing` visits the streams that are due and sends (`Shard::send_heartbeats`).
//!
//! Pure: time is a number of ticks. Each distinct keep-alive has a ring of slots that are visited
//! one after the other, once in its interval. A new stream gets a slot at random, so heartbeats
//! are spread from the start. A stream that was sent something lately moves to a later slot, again
//! at random, never so far that it would be silent for longer than the interval.
//!
//! # Invariants
//! - Every stream of a ring is visited within the ring's interval.
//! - A visit is a bounded piece of work.
//! - A visit goes through a slot from its end, so that a stream that leaves meanwhile causes none
//!   to be skipped.

use bytes::Bytes;

use crate::StreamKeepAlive;
use crate::channel::StreamFormat;

#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    rings: Vec<Option<HeartbeatRing>>,
    random_state: u64,
    memory_bytes: usize,
}

/// The streams of one keep-alive.
#[derive(Debug)]
struct HeartbeatRing {
    keep_alive: StreamKeepAlive,
    chunked: Bytes,
    interval_ticks: u32,
    ticks_per_slot: u32,
    slot_count: u32,
    slots: Vec<Vec<u32>>,
    len: usize,
    /// The next slot to visit, counted since the start: `turn % slot_count`, due at `turn * step`.
    next_slot: u32,
    /// How many of its streams are left to visit, once that has begun.
    left_in_slot: Option<usize>,
}

/// The position of a stream in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeartbeatRingPosition {
    ring: u8,
    slot: u8,
    index: u32,
}

/// A stream in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeartbeatRingMember {
    pub(super) stream: u32,
    pub(super) position: HeartbeatRingPosition,
}

/// Distinct keep-alives of a shard; streams of further ones share the ring of the nearest shorter
/// interval, with bytes of their own.
const MAX_RINGS: usize = 64;

/// Slots of a ring: a slot's number fits a byte.
const MAX_SLOTS: u32 = 240;

impl HeartbeatRingPosition {
    /// In no ring.
    pub(super) const NONE: Self = Self {
        ring: u8::MAX,
        slot: 0,
        index: 0,
    };

    pub(super) fn is_none(self) -> bool {
        self.ring == u8::MAX
    }
}

impl Heartbeats {
    pub(super) fn new(random: u64) -> Self {
        Self {
            random_state: random,
            ..Self::default()
        }
    }

    /// Puts a stream in the ring of its keep-alive with the interval `ticks`. False: the ring has
    /// other bytes, since there are too many rings.
    pub(super) fn insert(
        &mut self,
        stream: u32,
        keep_alive: &StreamKeepAlive,
        ticks: u32,
        now: u32,
    ) -> (HeartbeatRingPosition, bool) {
        let ticks = ticks.max(1);
        let (number, has_same_bytes) = self.find_ring(keep_alive, ticks, now);
        let random = self.next_random();
        let Some(Some(ring)) = self.rings.get_mut(number) else {
            return (HeartbeatRingPosition::NONE, false);
        };
        let slot = random_below(random, ring.slot_count);
        let at = ring.insert(number, slot, stream, &mut self.memory_bytes);
        (at, has_same_bytes)
    }

    fn find_ring(&mut self, keep_alive: &StreamKeepAlive, ticks: u32, now: u32) -> (usize, bool) {
        let is_same =
            |ring: &HeartbeatRing| ring.interval_ticks == ticks && ring.keep_alive == *keep_alive;
        let found = self
            .rings
            .iter()
            .position(|ring| ring.as_ref().is_some_and(is_same));
        if let Some(found) = found {
            return (found, true);
        }
        let free = self.rings.iter().position(Option::is_none);
        let next = self.rings.len();
        let free = free.or_else(|| (next < MAX_RINGS).then_some(next));
        if let Some(free) = free {
            let ring = HeartbeatRing::new(keep_alive, ticks, now);
            self.memory_bytes += ring.memory_bytes();
            if free == self.rings.len() {
                self.rings.push(None);
            }
            self.rings[free] = Some(ring);
            return (free, true);
        }
        // All are taken: beats that come too often do no harm.
        let rings = self.rings.iter().enumerate();
        let others =
            rings.filter_map(|(number, ring)| Some((number, ring.as_ref()?.interval_ticks)));
        let (shorter, longer): (Vec<_>, Vec<_>) = others.partition(|&(_, each)| each <= ticks);
        let nearest = shorter.into_iter().max_by_key(|&(_, each)| each);
        let nearest = nearest.or_else(|| longer.into_iter().min_by_key(|&(_, each)| each));
        (nearest.map_or(0, |(number, _)| number), false)
    }

    /// Removes a stream; returns the stream that moved into its place.
    pub(super) fn remove(&mut self, at: HeartbeatRingPosition) -> Option<HeartbeatRingMember> {
        let number = usize::from(at.ring);
        let ring = self.rings.get_mut(number)?.as_mut()?;
        let moved = ring.remove(at, &mut self.memory_bytes);
        if ring.len == 0 {
            self.memory_bytes -= ring.memory_bytes();
            for slot in &ring.slots {
                self.memory_bytes -= slot.capacity() * size_of::<u32>();
            }
            self.rings[number] = None;
        }
        moved
    }

    /// The next stream that is due; `None` when all are visited.
    pub(super) fn next_due_stream(&mut self, now: u32) -> Option<HeartbeatRingMember> {
        let rings = self.rings.iter_mut().enumerate();
        rings
            .filter_map(|(number, ring)| Some((number, ring.as_mut()?)))
            .find_map(|(number, ring)| ring.next_visit(number, now))
    }

    /// Checks whether a visited stream, sent something `idle` ticks ago, is due. If not, moves it
    /// to a later slot and reports the streams that moved (`Err`).
    pub(super) fn check_due_or_reschedule(
        &mut self,
        visit: HeartbeatRingMember,
        idle: u32,
    ) -> Result<(), [Option<HeartbeatRingMember>; 2]> {
        let random = self.next_random();
        let number = usize::from(visit.position.ring);
        let Some(Some(ring)) = self.rings.get_mut(number) else {
            return Ok(());
        };
        // From three quarters of the interval on, so that those that were sent something together
        // do not stay together.
        let soon = ring.interval_ticks - ring.interval_ticks / 4;
        if idle >= soon || ring.slot_count < 2 {
            return Ok(());
        }
        let (from, to) = (soon - idle, ring.interval_ticks - idle);
        let wait = from + random_below(random, to - from + 1);
        // The slot is visited once its time has come: rounded down, so that it is not late.
        let ahead = (wait / ring.ticks_per_slot).clamp(1, ring.slot_count - 1);
        let slot = (u32::from(visit.position.slot) + ahead) % ring.slot_count;
        let other = ring.remove(visit.position, &mut self.memory_bytes);
        let at = ring.insert(number, slot, visit.stream, &mut self.memory_bytes);
        let own = HeartbeatRingMember {
            stream: visit.stream,
            position: at,
        };
        Err([other, Some(own)])
    }

    /// The bytes of a ring's heartbeat, framed.
    pub(super) fn heartbeat_bytes(
        &self,
        at: HeartbeatRingPosition,
        format: StreamFormat,
    ) -> Option<&Bytes> {
        let ring = self.rings.get(usize::from(at.ring))?.as_ref()?;
        Some(if format.is_chunked {
            &ring.chunked
        } else {
            &ring.keep_alive.bytes
        })
    }

    /// The keep-alive of a ring.
    pub(super) fn keep_alive_at(&self, at: HeartbeatRingPosition) -> Option<&StreamKeepAlive> {
        let ring = self.rings.get(usize::from(at.ring))?.as_ref()?;
        Some(&ring.keep_alive)
    }

    /// Whether a ring's heartbeats come whatever else was sent.
    pub(super) fn is_unconditional(&self, at: HeartbeatRingPosition) -> bool {
        let ring = self.rings.get(usize::from(at.ring));
        matches!(ring, Some(Some(ring)) if ring.keep_alive.is_unconditional)
    }

    pub(super) fn next_due_tick(&self) -> Option<u32> {
        self.rings
            .iter()
            .flatten()
            .filter_map(HeartbeatRing::next_due)
            .min()
    }

    /// Memory of the rings.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// The next random number: a counter that is well mixed (splitmix64).
    fn next_random(&mut self) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.random_state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// A number below `sides` from a random one.
fn random_below(random: u64, sides: u32) -> u32 {
    u32::try_from(random % u64::from(sides.max(1))).unwrap_or(0)
}

impl HeartbeatRing {
    fn new(keep_alive: &StreamKeepAlive, ticks: u32, now: u32) -> Self {
        let step = ticks.div_ceil(MAX_SLOTS);
        let count = (ticks / step).max(1);
        Self {
            chunked: StreamFormat::CHUNKED_EVENTS.apply_framing(keep_alive.bytes.clone()),
            keep_alive: keep_alive.clone(),
            interval_ticks: ticks,
            ticks_per_slot: step,
            slot_count: count,
            slots: vec![Vec::new(); count as usize],
            len: 0,
            next_slot: now / step + 1,
            left_in_slot: None,
        }
    }

    fn insert(
        &mut self,
        ring: usize,
        slot: u32,
        stream: u32,
        bytes: &mut usize,
    ) -> HeartbeatRingPosition {
        let list = &mut self.slots[slot as usize];
        let before = list.capacity();
        if before == 0 {
            list.reserve_exact(1);
        }
        list.push(stream);
        *bytes += (list.capacity() - before) * size_of::<u32>();
        self.len += 1;
        HeartbeatRingPosition {
            ring: u8::try_from(ring).unwrap_or(u8::MAX),
            slot: u8::try_from(slot).unwrap_or(0),
            index: u32::try_from(list.len() - 1).unwrap_or(0),
        }
    }

    fn remove(
        &mut self,
        at: HeartbeatRingPosition,
        bytes: &mut usize,
    ) -> Option<HeartbeatRingMember> {
        let list = &mut self.slots[usize::from(at.slot)];
        let index = at.index as usize;
        list.swap_remove(index);
        self.len -= 1;
        let moved = list.get(index).map(|&stream| HeartbeatRingMember {
            stream,
            position: at,
        });
        if list.capacity() > 4 * list.len() + 8 {
            let before = list.capacity();
            list.shrink_to(2 * list.len());
            *bytes -= (before - list.capacity()) * size_of::<u32>();
        }
        moved
    }

    fn next_visit(&mut self, number: usize, now: u32) -> Option<HeartbeatRingMember> {
        let slots = self.slot_count;
        // After a pause that was longer than the interval each is visited once, not once for each
        // that was missed.
        let current = now / self.ticks_per_slot;
        if self.left_in_slot.is_none() && current.saturating_sub(self.next_slot) >= slots {
            self.next_slot = current + 1 - slots;
        }
        while self.next_slot <= current {
            let slot = (self.next_slot % slots) as usize;
            let list = &self.slots[slot];
            let left = self.left_in_slot.unwrap_or(list.len()).min(list.len());
            if left > 0 {
                self.left_in_slot = Some(left - 1);
                return Some(HeartbeatRingMember {
                    stream: list[left - 1],
                    position: HeartbeatRingPosition {
                        ring: u8::try_from(number).unwrap_or(u8::MAX),
                        slot: u8::try_from(slot).unwrap_or(0),
                        index: u32::try_from(left - 1).unwrap_or(0),
                    },
                });
            }
            self.left_in_slot = None;
            self.next_slot += 1;
        }
        None
    }

    fn next_due(&self) -> Option<u32> {
        let slots = self.slot_count;
        (self.next_slot..self.next_slot + slots)
            .find(|turn| !self.slots[(turn % slots) as usize].is_empty())
            .map(|turn| turn * self.ticks_per_slot)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.slots.len() * size_of::<Vec<u32>>() + self.chunked.len()
    }
}

#[cfg(test)]
mod tests;
