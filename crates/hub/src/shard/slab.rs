//! Values at numbered slots, in chunks: it grows without moving anything and gives memory back.
//!
//! A shard's streams and channels live in two of these. A list that doubled would copy a hundred
//! megabytes in the middle of a turn, and keep twice the memory that it needs.
//!
//! # Invariants
//! - A slot keeps its value until that is removed.

/// Slots of a chunk: numbers within one fit a byte.
const CHUNK_SLOTS: usize = 256;

/// Values by slot.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<SlabChunk<T>>,
    /// Chunks with room; the last one is filled next.
    chunks_with_room: Vec<u32>,
    len: usize,
    allocated_chunks: usize,
}

/// Without memory while it is empty.
#[derive(Debug)]
struct SlabChunk<T> {
    slots: Vec<Option<T>>,
    free: Vec<u8>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            chunks_with_room: Vec::new(),
            len: 0,
            allocated_chunks: 0,
        }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let index = match self.chunks_with_room.last() {
            Some(index) => *index as usize,
            None => {
                let index = self.chunks.len();
                self.chunks.push(SlabChunk {
                    slots: Vec::new(),
                    free: Vec::new(),
                });
                self.chunks_with_room.push(to_slot_number(index));
                index
            }
        };
        let chunk = &mut self.chunks[index];
        if chunk.slots.is_empty() {
            chunk.slots.reserve_exact(CHUNK_SLOTS);
            chunk.slots.resize_with(CHUNK_SLOTS, || None);
            chunk.free = (0..=u8::MAX).rev().collect();
            self.allocated_chunks += 1;
        }
        let within = chunk.free.pop().map_or(0, usize::from);
        if chunk.free.is_empty() {
            self.chunks_with_room.pop();
        }
        debug_assert!(chunk.slots[within].is_none());
        chunk.slots[within] = Some(value);
        self.len += 1;
        to_slot_number(index * CHUNK_SLOTS + within)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<T> {
        let (index, within) = (slot as usize / CHUNK_SLOTS, slot as usize % CHUNK_SLOTS);
        let chunk = self.chunks.get_mut(index)?;
        let value = chunk.slots.get_mut(within)?.take()?;
        if chunk.free.is_empty() {
            self.chunks_with_room.push(to_slot_number(index));
        }
        chunk.free.push(u8::try_from(within).unwrap_or(0));
        self.len -= 1;
        if chunk.free.len() == CHUNK_SLOTS {
            chunk.slots = Vec::new();
            chunk.free = Vec::new();
            self.allocated_chunks -= 1;
        }
        Some(value)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        let chunk = self.chunks.get(slot as usize / CHUNK_SLOTS)?;
        chunk.slots.get(slot as usize % CHUNK_SLOTS)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK_SLOTS)?;
        chunk.slots.get_mut(slot as usize % CHUNK_SLOTS)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first occupied slot from `from` on.
    pub(super) fn next_occupied_from(&self, from: u32) -> Option<u32> {
        let mut slot = from as usize;
        while let Some(chunk) = self.chunks.get(slot / CHUNK_SLOTS) {
            let rest = chunk.slots.get(slot % CHUNK_SLOTS..).unwrap_or_default();
            if let Some(found) = rest.iter().position(Option::is_some) {
                return Some(to_slot_number(slot + found));
            }
            slot = (slot / CHUNK_SLOTS + 1) * CHUNK_SLOTS;
        }
        None
    }

    /// Memory of the slab, without what its values point to.
    pub(super) fn memory_bytes(&self) -> usize {
        self.allocated_chunks * CHUNK_SLOTS * (size_of::<Option<T>>() + 1)
            + self.chunks.capacity() * size_of::<SlabChunk<T>>()
            + self.chunks_with_room.capacity() * size_of::<u32>()
    }
}

/// A number that counts things of which each takes memory: there are never four thousand million.
fn to_slot_number(index: usize) -> u32 {
    u32::try_from(index).expect("slots are counted in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_where_they_are_and_memory_comes_back() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert!(
            slots
                .iter()
                .zip(0..)
                .all(|(&slot, n)| slab.get(slot) == Some(&n))
        );
        let full = slab.memory_bytes();
        // Every second one, then the rest in another order than it was added.
        for &slot in slots.iter().step_by(2) {
            assert!(slab.remove(slot).is_some() && slab.remove(slot).is_none());
        }
        assert_eq!(slab.len(), 5_000);
        let again: Vec<u32> = (0..5_000).map(|n| slab.insert(n)).collect();
        assert!(slab.memory_bytes() <= full + 512, "holes are filled first");
        for (n, &slot) in again.iter().enumerate() {
            assert_eq!(slab.get_mut(slot), Some(&mut { n }));
        }
        for &slot in slots.iter().skip(1).step_by(2).chain(&again).rev() {
            assert!(slab.remove(slot).is_some(), "{slot}");
        }
        assert_eq!((slab.len(), slab.allocated_chunks), (0, 0));
        assert!(
            slab.memory_bytes() < full / 20,
            "{} of {full}",
            slab.memory_bytes()
        );
        assert_eq!(slab.get(3), None);
        let slot = slab.insert(7);
        assert_eq!(slab.get(slot), Some(&7));
    }

    #[test]
    fn all_values_are_met_in_the_order_of_their_slots() {
        let mut slab = Slab::new();
        assert_eq!(slab.next_occupied_from(0), None);
        let slots: Vec<u32> = (0..1_000).map(|n| slab.insert(n)).collect();
        for &slot in &slots {
            if slot % 3 != 0 && !(250..600).contains(&slot) {
                slab.remove(slot);
            }
        }
        let mut met = Vec::new();
        let mut from = 0;
        while let Some(slot) = slab.next_occupied_from(from) {
            met.push(slot);
            from = slot + 1;
        }
        let expected = (0..1_000).filter(|slot| slot % 3 == 0 || (250..600).contains(slot));
        assert!(met.into_iter().eq(expected));
    }
}
