//! The descriptors of one event loop: their known readiness and the wakers that wait for it.
//!
//! Pure: `event_loop` applies the kernel's events, `RegisteredFd` queries. Events are
//! edge-triggered, so readiness holds until the reader or writer exhausts it and calls
//! `clear_readiness`.
//!
//! # Invariants
//! - A waker is returned only when something becomes ready that was not.
//! - A waker stays with its descriptor, so that a connection that waits repeatedly registers once.

use std::task::Waker;

use penstock_sys::poll::Event;

use super::slots::{SlotKey, Slots};

/// State of a loop's descriptors.
#[derive(Debug)]
pub(super) struct FdTable {
    entries: Slots<FdEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoDirection {
    Read,
    Write,
}

#[derive(Debug, Default)]
struct FdEntry {
    read: DirectionState,
    write: DirectionState,
}

#[derive(Debug, Default)]
struct DirectionState {
    is_ready: bool,
    /// The peer has ended, or the connection broke: ready for ever, to report it.
    is_ended: bool,
    waker: Option<Waker>,
}

impl DirectionState {
    fn is_ready(&self) -> bool {
        self.is_ready || self.is_ended
    }

    /// Applies `tell`; returns the waker to wake.
    fn update(&mut self, tell: impl FnOnce(&mut Self)) -> Option<Waker> {
        let was_ready = self.is_ready();
        tell(self);
        match !was_ready && self.is_ready() {
            true => self.waker.take(),
            false => None,
        }
    }
}

impl FdTable {
    pub(super) const fn new() -> Self {
        Self {
            entries: Slots::new(),
        }
    }

    pub(super) fn add(&mut self) -> SlotKey {
        self.entries.add()
    }

    /// Frees an entry; returns its wakers, to be dropped when nothing is borrowed.
    pub(super) fn remove(&mut self, token: SlotKey) -> [Option<Waker>; 2] {
        let old = self.entries.remove(token).unwrap_or_default();
        [old.read.waker, old.write.waker]
    }

    /// Applies an event; returns the wakers to wake, which then go to [`FdTable::restore_waker`].
    pub(super) fn apply_event(&mut self, event: &Event) -> [Option<Waker>; 2] {
        let Some(source) = self.entries.get_mut(SlotKey::from_u64(event.token)) else {
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

    /// Restores a waker after it was woken: it waits again once the direction is no longer ready.
    pub(super) fn restore_waker(
        &mut self,
        token: SlotKey,
        side: IoDirection,
        waker: Waker,
    ) -> Option<Waker> {
        match self.direction(token, side) {
            Some(direction) if direction.waker.is_none() => direction.waker.replace(waker),
            _ => Some(waker),
        }
    }

    /// Whether the direction is ready, as far as reported.
    pub(super) fn is_ready(&self, token: SlotKey, side: IoDirection) -> bool {
        self.direction_of(token, side)
            .is_some_and(DirectionState::is_ready)
    }

    /// Whether the peer has ended, or the connection broke, as far as reported.
    pub(super) fn is_ended(&self, token: SlotKey, side: IoDirection) -> bool {
        self.direction_of(token, side)
            .is_some_and(|direction| direction.is_ended)
    }

    /// Sets the waker of the direction; returns the previous one, to be dropped when nothing is
    /// borrowed.
    pub(super) fn set_waker(
        &mut self,
        token: SlotKey,
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

    /// Records that the direction is not ready any more.
    pub(super) fn clear_readiness(&mut self, token: SlotKey, side: IoDirection) {
        if let Some(direction) = self.direction(token, side) {
            direction.is_ready = false;
        }
    }

    /// Sets whether the end of the readable side is reported. If not, the direction waits for the
    /// next edge, which a connection that breaks later raises.
    pub(super) fn set_end_reporting(&mut self, token: SlotKey, is_told: bool) {
        if let Some(source) = self.entries.get_mut(token) {
            (source.read.is_ready, source.read.is_ended) = (false, is_told);
        }
    }

    #[cfg(test)]
    pub(super) fn entry_count(&self) -> usize {
        self.entries.slot_count()
    }

    fn direction(&mut self, token: SlotKey, side: IoDirection) -> Option<&mut DirectionState> {
        let source = self.entries.get_mut(token)?;
        Some(match side {
            IoDirection::Read => &mut source.read,
            IoDirection::Write => &mut source.write,
        })
    }

    fn direction_of(&self, token: SlotKey, side: IoDirection) -> Option<&DirectionState> {
        let source = self.entries.get(token)?;
        Some(match side {
            IoDirection::Read => &source.read,
            IoDirection::Write => &source.write,
        })
    }
}
