//! Values in slots that are reused, each time under another key.
//!
//! The tasks and the descriptors of an event loop are in such slots: a late wake or event with an
//! old key finds nothing.

#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot<T> {
    generation: u32,
    value: T,
}

/// Identifies a value. Each reuse of a slot has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotKey {
    index: u32,
    generation: u32,
}

impl SlotKey {
    /// The key of no slot.
    pub(super) const NONE: Self = Self {
        index: u32::MAX,
        generation: 0,
    };

    /// The form in which epoll stores it.
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(super) fn from_u64(number: u64) -> Self {
        let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
        Self {
            index: half(number),
            generation: half(number >> 32),
        }
    }
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn get(&self, key: SlotKey) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        (slot.generation == key.generation).then_some(&slot.value)
    }

    pub(super) fn get_mut(&mut self, key: SlotKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        (slot.generation == key.generation).then_some(&mut slot.value)
    }

    /// Takes all values; their keys may be given again.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.free.clear();
        let slots = std::mem::take(&mut self.slots);
        slots.into_iter().map(|slot| slot.value)
    }

    #[cfg(test)]
    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }
}

impl<T: Default> Slots<T> {
    /// Adds a default value.
    pub(super) fn add(&mut self) -> SlotKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer values than fit in memory")
        });
        SlotKey {
            index,
            generation: self.slots[index as usize].generation,
        }
    }

    /// Takes a value and frees its slot.
    pub(super) fn remove(&mut self, key: SlotKey) -> Option<T> {
        let value = std::mem::take(self.get_mut(key)?);
        let slot = &mut self.slots[key.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }
}
