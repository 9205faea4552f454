//! A set of very many sockets that wait on one event loop, each for the price of a descriptor.
//!
//! The hub keeps its held streams in one and `bench` the streams that it opens. A socket in the set
//! has only the kernel's entry, no registration with the loop, no task and no timer; the set as a
//! whole is registered once. Interest is edge-triggered (`sys::poll`).
//!
//! # Invariants
//! - The caller removes a descriptor before it closes it, and tells stale tokens from fresh ones.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use penstock_sys::poll;

use crate::registered_fd::RegisteredFd;

pub use penstock_sys::poll::{Event, Interest, MAX_EVENTS};

/// A set of descriptors registered with the loop that created it.
#[derive(Debug)]
pub struct Pollset {
    set: RegisteredFd,
}

impl Pollset {
    /// Creates an empty set on the current loop.
    pub fn new() -> io::Result<Self> {
        Self::from_descriptor(poll::create()?)
    }

    /// Registers a set that was created elsewhere (`sys::poll::create`) with the current loop.
    pub fn from_descriptor(set: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            set: RegisteredFd::new(set, Interest::Read)?,
        })
    }

    /// Adds `fd` under `token`; events that are already pending are reported by the next poll.
    ///
    /// # Errors
    /// When it is in the set already, or memory ran out.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        poll::add(self.set.as_fd(), fd, token, interest)
    }

    /// Changes the interest in `fd`.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        poll::modify(self.set.as_fd(), fd, token, interest)
    }

    /// Removes `fd` from the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        poll::remove(self.set.as_fd(), fd)
    }

    /// Appends at most [`MAX_EVENTS`] events, so that the rest of the loop has its turn; the next
    /// call continues. May be ready without events; when pending, the task is woken.
    pub fn poll_events(&self, cx: &mut Context<'_>, into: &mut Vec<Event>) -> Poll<io::Result<()>> {
        ready!(self.set.poll_readable(cx))?;
        let count = poll::take_events(self.set.as_fd(), into)?;
        // Later events raise the set's own edge again.
        if count < MAX_EVENTS {
            self.set.clear_readable();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock, loops};
    use penstock_sys::net;
    use std::future::poll_fn;
    use std::time::Duration;

    fn on_a_loop(test: impl Future<Output = ()>) {
        loops::block_on(test).unwrap();
    }

    async fn next(set: &Pollset) -> Vec<Event> {
        let mut events = Vec::new();
        while events.is_empty() {
            let looked = poll_fn(|cx| set.poll_events(cx, &mut events));
            let looked = clock::timeout(Duration::from_secs(10), looked).await;
            looked.expect("something happened").unwrap();
        }
        events
    }

    #[test]
    fn each_event_wakes_the_loop_though_others_are_pending() {
        on_a_loop(async {
            let set = Pollset::new().unwrap();
            let pairs = [
                net::worker_socket_pair().unwrap(),
                net::worker_socket_pair().unwrap(),
            ];
            for (token, (ours, _)) in pairs.iter().enumerate() {
                set.add(ours.as_fd(), token as u64, Interest::Read).unwrap();
            }
            for round in 0..50 {
                let one = round % 2;
                // The bytes are not read: every arrival raises an edge.
                net::send(pairs[one].1.as_fd(), b"x").unwrap();
                let events = next(&set).await;
                assert_eq!(events.len(), 1, "round {round}");
                assert_eq!(events[0].token, one as u64, "round {round}");
            }
            set.remove(pairs[0].0.as_fd()).unwrap();
            net::send(pairs[0].1.as_fd(), b"x").unwrap();
            net::send(pairs[1].1.as_fd(), b"x").unwrap();
            let events = next(&set).await;
            assert!(events.iter().all(|event| event.token == 1));
        });
    }

    #[test]
    fn many_events_come_in_several_batches() {
        on_a_loop(async {
            let set = Pollset::new().unwrap();
            let pairs: Vec<_> = (0..3 * MAX_EVENTS)
                .map(|_| net::worker_socket_pair().unwrap())
                .collect();
            for (token, (ours, _)) in pairs.iter().enumerate() {
                set.add(ours.as_fd(), token as u64, Interest::Both).unwrap();
            }
            let mut seen = Vec::new();
            while seen.len() < pairs.len() {
                let events = next(&set).await;
                assert!(events.len() <= MAX_EVENTS);
                seen.extend(events.iter().map(|event| event.token));
            }
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..pairs.len() as u64));
        });
    }
}
