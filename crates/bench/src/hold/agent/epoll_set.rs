//! The epoll set of an agent: streams by their row in the table, and the agent's input.
//!
//! Streams are watched edge-triggered for all events at once: one system call when a stream is
//! begun, none afterwards. A closed socket leaves the set by itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// The epoll set and its last events.
pub(super) struct EpollSet {
    epoll: OwnedFd,
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EpollEvent {
    Input,
    Stream(usize, EventFlags),
}

impl EpollSet {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(MAX_EVENTS),
        })
    }

    /// Watches the agent's input, level-triggered.
    pub(super) fn watch_input(&self, input: &impl AsFd) -> io::Result<()> {
        let data = EventData::new_u64(INPUT_TOKEN);
        Ok(epoll::add(&self.epoll, input, data, EventFlags::IN)?)
    }

    pub(super) fn watch_stream(&self, socket: &OwnedFd, slot: usize) -> Result<(), Errno> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, socket, EventData::new_u64(slot as u64), flags)
    }

    /// Watches only the end of a stream that is never read.
    pub(super) fn watch_end(&self, socket: &OwnedFd, slot: usize) -> Result<(), Errno> {
        let flags = EventFlags::RDHUP | EventFlags::ET;
        epoll::modify(&self.epoll, socket, EventData::new_u64(slot as u64), flags)
    }

    /// Waits for events; returns their number, at most [`MAX_EVENTS`].
    pub(super) fn wait(&mut self, at_most: Duration) -> io::Result<usize> {
        self.events.clear();
        let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            Some(&timeout),
        ) {
            Ok(_) => Ok(self.events.len()),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// One of the events of the last wait.
    pub(super) fn event(&self, index: usize) -> EpollEvent {
        let event = self.events[index];
        match event.data.u64() {
            INPUT_TOKEN => EpollEvent::Input,
            slot => EpollEvent::Stream(usize::try_from(slot).unwrap_or(usize::MAX), event.flags),
        }
    }
}

/// The maximum per call.
pub(super) const MAX_EVENTS: usize = 1024;

/// Not a row of the table.
const INPUT_TOKEN: u64 = u64::MAX;
