//! Heart-beats: rings of streams by when their next one is due.
//!
//! Pure: time is a number of ticks. Each distinct keep-alive has a ring of slots that are visited one
//! after the other, once in its interval; a new stream comes into a slot at random, so beats are spread
//! from the start. A stream that was sent something lately moves to a slot further on, again at random,
//! never so far that it would hear nothing for longer than the interval. What must stay true: every stream
//! of a ring is visited within the ring's interval; visits are bounded pieces of work; a visit goes
//! through a slot from its end, so that whoever leaves meanwhile makes nobody be passed over.

use bytes::Bytes;

use crate::KeepAlive;
use crate::channel::Shape;

/// All rings of a shard.
#[derive(Debug, Default)]
pub(super) struct Beats {
    rings: Vec<Option<Ring>>,
    random: u64,
    bytes: usize,
}

/// The streams of one keep-alive.
#[derive(Debug)]
struct Ring {
    keep_alive: KeepAlive,
    chunked: Bytes,
    /// The interval in ticks.
    ticks: u32,
    /// Ticks of a slot.
    step: u32,
    /// How many slots it has.
    count: u32,
    slots: Vec<Vec<u32>>,
    len: usize,
    /// The next slot to visit, counted since the start: `turn % slots`, due at `turn * step`.
    turn: u32,
    /// How many of its streams are left to visit, once that has begun.
    left: Option<usize>,
}

/// Where a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BeatAt {
    ring: u8,
    slot: u8,
    index: u32,
}

/// A stream that moved to another place in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) stream: u32,
    pub(super) at: BeatAt,
}

/// What a visited stream is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) stream: u32,
    pub(super) at: BeatAt,
}

/// Distinct keep-alives of a shard; streams of further ones share the ring of the nearest shorter
/// interval, with bytes of their own.
const RINGS_MAX: usize = 64;

/// Slots of a ring: a slot's number fits a byte.
const SLOTS_MAX: u32 = 240;

impl BeatAt {
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

impl Beats {
    pub(super) fn new(random: u64) -> Self {
        Self {
            random,
            ..Self::default()
        }
    }

    /// Puts a stream in the ring of its keep-alive, whose interval is `ticks`. False: the ring has other
    /// bytes, since there are too many rings.
    pub(super) fn insert(
        &mut self,
        stream: u32,
        keep_alive: &KeepAlive,
        ticks: u32,
        now: u32,
    ) -> (BeatAt, bool) {
        let ticks = ticks.max(1);
        let (number, is_own) = self.ring_for(keep_alive, ticks, now);
        let random = self.draw();
        let Some(Some(ring)) = self.rings.get_mut(number) else {
            return (BeatAt::NONE, false);
        };
        let slot = below(random, ring.count);
        let at = ring.put(number, slot, stream, &mut self.bytes);
        (at, is_own)
    }

    fn ring_for(&mut self, keep_alive: &KeepAlive, ticks: u32, now: u32) -> (usize, bool) {
        let is_same = |ring: &Ring| ring.ticks == ticks && ring.keep_alive == *keep_alive;
        let found = self
            .rings
            .iter()
            .position(|ring| ring.as_ref().is_some_and(is_same));
        if let Some(found) = found {
            return (found, true);
        }
        let free = self.rings.iter().position(Option::is_none);
        let next = self.rings.len();
        let free = free.or_else(|| (next < RINGS_MAX).then_some(next));
        if let Some(free) = free {
            let ring = Ring::new(keep_alive, ticks, now);
            self.bytes += ring.own_bytes();
            if free == self.rings.len() {
                self.rings.push(None);
            }
            self.rings[free] = Some(ring);
            return (free, true);
        }
        // All are taken: beats that come too often do no harm.
        let rings = self.rings.iter().enumerate();
        let others = rings.filter_map(|(number, ring)| Some((number, ring.as_ref()?.ticks)));
        let (shorter, longer): (Vec<_>, Vec<_>) = others.partition(|&(_, each)| each <= ticks);
        let nearest = shorter.into_iter().max_by_key(|&(_, each)| each);
        let nearest = nearest.or_else(|| longer.into_iter().min_by_key(|&(_, each)| each));
        (nearest.map_or(0, |(number, _)| number), false)
    }

    /// Takes a stream out; who moved into its place.
    pub(super) fn remove(&mut self, at: BeatAt) -> Option<Moved> {
        let number = usize::from(at.ring);
        let ring = self.rings.get_mut(number)?.as_mut()?;
        let moved = ring.take(at, &mut self.bytes);
        if ring.len == 0 {
            self.bytes -= ring.own_bytes();
            for slot in &ring.slots {
                self.bytes -= slot.capacity() * size_of::<u32>();
            }
            self.rings[number] = None;
        }
        moved
    }

    /// The next stream whose slot's time has come; none when all are visited.
    pub(super) fn next_visit(&mut self, now: u32) -> Option<Visit> {
        let rings = self.rings.iter_mut().enumerate();
        rings
            .filter_map(|(number, ring)| Some((number, ring.as_mut()?)))
            .find_map(|(number, ring)| ring.next_visit(number, now))
    }

    /// A visited stream that was sent something `idle` ticks ago: whether it is due. If not, it moves to a
    /// slot further on, and those that moved are told.
    pub(super) fn is_due(&mut self, visit: Visit, idle: u32) -> Result<(), [Option<Moved>; 2]> {
        let random = self.draw();
        let number = usize::from(visit.at.ring);
        let Some(Some(ring)) = self.rings.get_mut(number) else {
            return Ok(());
        };
        // From three quarters of the interval on, so that those that were sent something together do not
        // stay together.
        let soon = ring.ticks - ring.ticks / 4;
        if idle >= soon || ring.count < 2 {
            return Ok(());
        }
        let (from, to) = (soon - idle, ring.ticks - idle);
        let wait = from + below(random, to - from + 1);
        // The slot is visited once its time has come: rounded down, so that it is not late.
        let ahead = (wait / ring.step).clamp(1, ring.count - 1);
        let slot = (u32::from(visit.at.slot) + ahead) % ring.count;
        let other = ring.take(visit.at, &mut self.bytes);
        let at = ring.put(number, slot, visit.stream, &mut self.bytes);
        let own = Moved {
            stream: visit.stream,
            at,
        };
        Err([other, Some(own)])
    }

    /// The bytes of a ring's heart-beat, framed.
    pub(super) fn bytes_of(&self, at: BeatAt, shape: Shape) -> Option<&Bytes> {
        let ring = self.rings.get(usize::from(at.ring))?.as_ref()?;
        Some(if shape.is_chunked() {
            &ring.chunked
        } else {
            &ring.keep_alive.bytes
        })
    }

    /// Whether a ring's heart-beats come whatever else was sent.
    pub(super) fn is_regardless(&self, at: BeatAt) -> bool {
        let ring = self.rings.get(usize::from(at.ring));
        matches!(ring, Some(Some(ring)) if ring.keep_alive.regardless)
    }

    /// When the next visit is due.
    pub(super) fn next_due(&self) -> Option<u32> {
        self.rings.iter().flatten().filter_map(Ring::next_due).min()
    }

    /// What the rings take of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The next random number: a counter that is well mixed (splitmix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// A number below `sides` from a random one.
fn below(random: u64, sides: u32) -> u32 {
    u32::try_from(random % u64::from(sides.max(1))).unwrap_or(0)
}

impl Ring {
    fn new(keep_alive: &KeepAlive, ticks: u32, now: u32) -> Self {
        let step = ticks.div_ceil(SLOTS_MAX);
        let count = (ticks / step).max(1);
        Self {
            chunked: Shape::CHUNKED.frame(keep_alive.bytes.clone()),
            keep_alive: keep_alive.clone(),
            ticks,
            step,
            count,
            slots: vec![Vec::new(); count as usize],
            len: 0,
            turn: now / step + 1,
            left: None,
        }
    }

    fn put(&mut self, ring: usize, slot: u32, stream: u32, bytes: &mut usize) -> BeatAt {
        let list = &mut self.slots[slot as usize];
        let before = list.capacity();
        if before == 0 {
            list.reserve_exact(1);
        }
        list.push(stream);
        *bytes += (list.capacity() - before) * size_of::<u32>();
        self.len += 1;
        BeatAt {
            ring: u8::try_from(ring).unwrap_or(u8::MAX),
            slot: u8::try_from(slot).unwrap_or(0),
            index: u32::try_from(list.len() - 1).unwrap_or(0),
        }
    }

    fn take(&mut self, at: BeatAt, bytes: &mut usize) -> Option<Moved> {
        let list = &mut self.slots[usize::from(at.slot)];
        let index = at.index as usize;
        list.swap_remove(index);
        self.len -= 1;
        let moved = list.get(index).map(|&stream| Moved { stream, at });
        if list.capacity() > 4 * list.len() + 8 {
            let before = list.capacity();
            list.shrink_to(2 * list.len());
            *bytes -= (before - list.capacity()) * size_of::<u32>();
        }
        moved
    }

    fn next_visit(&mut self, number: usize, now: u32) -> Option<Visit> {
        let slots = self.count;
        // After a pause that was longer than the interval each is visited once, not once for each that
        // was missed.
        let current = now / self.step;
        if self.left.is_none() && current.saturating_sub(self.turn) >= slots {
            self.turn = current + 1 - slots;
        }
        while self.turn <= current {
            let slot = (self.turn % slots) as usize;
            let list = &self.slots[slot];
            let left = self.left.unwrap_or(list.len()).min(list.len());
            if left > 0 {
                self.left = Some(left - 1);
                return Some(Visit {
                    stream: list[left - 1],
                    at: BeatAt {
                        ring: u8::try_from(number).unwrap_or(u8::MAX),
                        slot: u8::try_from(slot).unwrap_or(0),
                        index: u32::try_from(left - 1).unwrap_or(0),
                    },
                });
            }
            self.left = None;
            self.turn += 1;
        }
        None
    }

    fn next_due(&self) -> Option<u32> {
        let slots = self.count;
        (self.turn..self.turn + slots)
            .find(|turn| !self.slots[(turn % slots) as usize].is_empty())
            .map(|turn| turn * self.step)
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>() + self.slots.len() * size_of::<Vec<u32>>() + self.chunked.len()
    }
}

#[cfg(test)]
mod tests;
