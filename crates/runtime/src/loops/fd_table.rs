//! The descriptors of one loop: what is known of each to be ready, and who waits for it.
//!
//! Pure: `turn` tells it what the kernel said, `RegisteredFd` asks it. The kernel tells edges, so what it said
//! holds until whoever reads or writes has met the end and says so. What must stay true: a waker is given
//! out only when something becomes ready that was not, and stays with its descriptor, so that a connection
//! that waits for one thing after the other registers once.

use std::task::Waker;

use penstock_sys::poll::Event;

/// What there is to know of a loop's descriptors.
#[derive(Debug, Default)]
pub(super) struct FdTable {
    entries: Vec<FdEntry>,
    free: Vec<u32>,
}

/// A descriptor's place. One that is used again has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FdToken {
    index: u32,
    generation: u32,
}

/// One of the two directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoDirection {
    Read,
    Write,
}

#[derive(Debug, Default)]
struct FdEntry {
    generation: u32,
    read: DirectionState,
    write: DirectionState,
}

/// What is known of a direction.
#[derive(Debug, Default)]
struct DirectionState {
    is_ready: bool,
    /// The other side has ended, or the connection broke: ready for ever, to say so.
    is_ended: bool,
    waker: Option<Waker>,
}

impl DirectionState {
    fn is_ready(&self) -> bool {
        self.is_ready || self.is_ended
    }

    /// Notes what `tell` does; gives whom to wake.
    fn update(&mut self, tell: impl FnOnce(&mut Self)) -> Option<Waker> {
        let was_ready = self.is_ready();
        tell(self);
        match !was_ready && self.is_ready() {
            true => self.waker.take(),
            false => None,
        }
    }
}

impl FdToken {
    /// As the kernel keeps it.
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

impl FdTable {
    pub(super) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// A place for a descriptor of which nothing is known.
    pub(super) fn add(&mut self) -> FdToken {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(FdEntry::default());
            u32::try_from(self.entries.len() - 1).expect("descriptors are numbered by 31 bits")
        });
        FdToken {
            index,
            generation: self.entries[index as usize].generation,
        }
    }

    /// Frees a place; gives the wakers that it kept, to be dropped when nothing is borrowed.
    pub(super) fn remove(&mut self, token: FdToken) -> [Option<Waker>; 2] {
        let Some(source) = self.entry(token) else {
            return [None, None];
        };
        let generation = source.generation.wrapping_add(1);
        let old = std::mem::replace(
            source,
            FdEntry {
                generation,
                ..FdEntry::default()
            },
        );
        self.free.push(token.index);
        [old.read.waker, old.write.waker]
    }

    /// Notes what the kernel said; gives whom to wake, and then to [`FdTable::restore_waker`] again.
    pub(super) fn apply_event(&mut self, event: &Event) -> [Option<Waker>; 2] {
        let Some(source) = self.entry(FdToken::from_u64(event.token)) else {
            return [None, None];
        };
        let read = source.read.update(|read| {
            read.is_ready |= event.is_readable();
            read.is_ended |= event.is_ended();
        });
        let write = source.write.update(|write| {
            write.is_ready |= event.is_writable();
            write.is_ended |= event.is_broken();
        });
        [read, write]
    }

    /// Gives back who was woken: he waits again as soon as the direction is no longer ready.
    pub(super) fn restore_waker(
        &mut self,
        token: FdToken,
        side: IoDirection,
        waker: Waker,
    ) -> Option<Waker> {
        match self.direction(token, side) {
            Some(direction) if direction.waker.is_none() => direction.waker.replace(waker),
            _ => Some(waker),
        }
    }

    /// Whether the direction is ready, as far as was told.
    pub(super) fn is_ready(&self, token: FdToken, side: IoDirection) -> bool {
        self.direction_of(token, side)
            .is_some_and(DirectionState::is_ready)
    }

    /// Whether the other side has ended, or the connection broke, as far as was told.
    pub(super) fn is_ended(&self, token: FdToken, side: IoDirection) -> bool {
        self.direction_of(token, side)
            .is_some_and(|direction| direction.is_ended)
    }

    /// Notes who waits for the direction; gives who did before, to be dropped when nothing is borrowed.
    pub(super) fn set_waker(
        &mut self,
        token: FdToken,
        side: IoDirection,
        waker: &Waker,
    ) -> Option<Waker> {
        match self.direction(token, side) {
            Some(DirectionState {
                waker: Some(waits), ..
            }) if waits.will_wake(waker) => None,
            Some(direction) => direction.waker.replace(waker.clone()),
            None => None,
        }
    }

    /// The end of what was ready was met.
    pub(super) fn clear(&mut self, token: FdToken, side: IoDirection) {
        if let Some(direction) = self.direction(token, side) {
            direction.is_ready = false;
        }
    }

    /// Whether the end of what can be read is told: where it is not, the direction waits for the next edge,
    /// which a connection that breaks after all raises.
    pub(super) fn set_end_reporting(&mut self, token: FdToken, is_told: bool) {
        if let Some(source) = self.entry(token) {
            (source.read.is_ready, source.read.is_ended) = (false, is_told);
        }
    }

    #[cfg(test)]
    pub(super) fn entry_count(&self) -> usize {
        self.entries.len()
    }

    fn direction(&mut self, token: FdToken, side: IoDirection) -> Option<&mut DirectionState> {
        let source = self.entry(token)?;
        Some(match side {
            IoDirection::Read => &mut source.read,
            IoDirection::Write => &mut source.write,
        })
    }

    fn direction_of(&self, token: FdToken, side: IoDirection) -> Option<&DirectionState> {
        let source = self.entries.get(token.index as usize)?;
        let direction = match side {
            IoDirection::Read => &source.read,
            IoDirection::Write => &source.write,
        };
        (source.generation == token.generation).then_some(direction)
    }

    fn entry(&mut self, token: FdToken) -> Option<&mut FdEntry> {
        let source = self.entries.get_mut(token.index as usize)?;
        (source.generation == token.generation).then_some(source)
    }
}
