//! Very many sockets that wait on one loop, for the price of a descriptor each.
//!
//! The hub keeps its held streams in one and `bench` the streams that it opens: a socket in here has no
//! registration with the loop, no task and no timer, only the kernel's entry; the set as a whole is
//! registered once. Interest is edge-triggered (`sys::poll`). What must stay true: whoever adds a
//! descriptor takes it out before it closes it, and knows stale tokens from fresh ones.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use penstock_sys::poll;

use crate::registered_fd::RegisteredFd;

pub use penstock_sys::poll::{Event, Interest, MAX_EVENTS};

/// A set of descriptors registered with the loop that made it.
#[derive(Debug)]
pub struct Pollset {
    set: RegisteredFd,
}

impl Pollset {
    /// An empty set on the current loop.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub fn new() -> io::Result<Self> {
        Self::from_descriptor(poll::create()?)
    }

    /// A set that was made elsewhere (`sys::poll::create`), on the current loop.
    ///
    /// # Errors
    /// When the kernel refuses the registration.
    pub fn from_descriptor(set: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            set: RegisteredFd::new(set, Interest::Read)?,
        })
    }

    /// Adds `fd` under `token`; what is there already is told by the next look.
    ///
    /// # Errors
    /// When it is in the set already, or memory ran out.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        poll::add(self.set.as_fd(), fd, token, interest)
    }

    /// Changes what of `fd` is waited for.
    ///
    /// # Errors
    /// When it is not in the set.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        poll::modify(self.set.as_fd(), fd, token, interest)
    }

    /// Takes `fd` out of the set.
    ///
    /// # Errors
    /// When it is not in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        poll::remove(self.set.as_fd(), fd)
    }

    /// Appends what happened, at most [`MAX_EVENTS`] of it, so that the rest of the loop has its turn; the
    /// next call goes on. Ready with nothing at times; pending means that the task is woken.
    ///
    /// # Errors
    /// What the kernel says, which it has no reason to.
    pub fn poll_events(&self, cx: &mut Context<'_>, into: &mut Vec<Event>) -> Poll<io::Result<()>> {
        ready!(self.set.poll_readable(cx))?;
        let count = poll::take_events(self.set.as_fd(), into)?;
        // What comes after this look raises the set's own edge anew.
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
                // Nobody reads what came: an edge needs no more than that something came.
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
