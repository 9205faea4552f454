//! An owned descriptor registered with an event loop: shared by streams, listeners, pipes and poll
//! sets.
//!
//! Events are edge-triggered and the loop remembers them: a descriptor stays ready until its user
//! exhausts it and calls [`RegisteredFd::clear_readable`].
//!
//! # Invariants
//! - It is used on the loop where it was created; it may be released with [`RegisteredFd::into_fd`]
//!   or dropped on any thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use penstock_sys::poll::Interest;

use crate::loops::{IoDirection, Registration};

/// A descriptor and its registration.
#[derive(Debug)]
pub struct RegisteredFd {
    registration: Registration,
    /// `None` once it was released.
    fd: Option<OwnedFd>,
}

impl RegisteredFd {
    /// Registers `fd` with the current loop. It must be non-blocking and have no other
    /// registration.
    ///
    /// # Errors
    /// When the kernel refuses it (a regular file, or no memory left), or no loop runs here.
    pub fn new(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        Ok(Self {
            registration: Registration::new(&fd, interest)?,
            fd: Some(fd),
        })
    }

    /// Ready when there is something to read, or no more will come.
    ///
    /// # Errors
    /// On another loop than the one it was created on.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.registration.poll_ready(cx, IoDirection::Read)
    }

    /// Ready when there is room to write, or the connection broke.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.registration.poll_ready(cx, IoDirection::Write)
    }

    /// Records that there is nothing more to read: the next poll waits for an edge.
    pub fn clear_readable(&self) {
        self.registration.clear_readiness(IoDirection::Read);
    }

    /// Records that there is no more room to write: the next poll waits for an edge.
    pub fn clear_writable(&self) {
        self.registration.clear_readiness(IoDirection::Write);
    }

    /// Whether it belongs to the loop that this code runs on.
    pub(crate) fn is_on_current_loop(&self) -> bool {
        self.registration.is_on_current_loop()
    }

    /// Whether it has been reported readable; `None` on another loop.
    pub(crate) fn is_readable(&self) -> Option<bool> {
        self.registration.is_ready(IoDirection::Read)
    }

    /// Whether the peer's end has been reported; `None` on another loop.
    pub(crate) fn is_ended(&self) -> Option<bool> {
        self.registration.is_ended(IoDirection::Read)
    }

    /// Whether the connection has been reported broken or ended on both sides; `None` on another
    /// loop.
    pub(crate) fn is_broken(&self) -> Option<bool> {
        self.registration.is_ended(IoDirection::Write)
    }

    /// Sets whether the end of the stream, once reached, makes every poll ready.
    pub(crate) fn set_end_reporting(&self, is_told: bool) {
        self.registration.set_end_reporting(is_told);
    }

    /// Deregisters and returns the descriptor.
    pub fn into_fd(mut self) -> OwnedFd {
        self.take_fd()
    }

    /// As [`RegisteredFd::into_fd`], for an owner that is dropped at once.
    pub(crate) fn take_fd(&mut self) -> OwnedFd {
        self.registration.remove(&*self);
        self.fd.take().expect(FD_IS_PRESENT)
    }
}

impl Drop for RegisteredFd {
    /// Closing alone is not enough: while a duplicate descriptor is open, the kernel would continue
    /// to report events and refuse to register the same number again (epoll(7), question 6).
    fn drop(&mut self) {
        if let Some(fd) = &self.fd {
            self.registration.remove(fd);
        }
    }
}

impl AsFd for RegisteredFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect(FD_IS_PRESENT).as_fd()
    }
}

const FD_IS_PRESENT: &str = "it is given back by value";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock, loops};
    use penstock_sys::net;
    use std::future::poll_fn;
    use std::time::Duration;

    #[test]
    fn duplicates_of_a_descriptor_can_be_registered() {
        let test = async {
            let (ours, theirs) = net::worker_socket_pair().unwrap();
            net::send(theirs.as_fd(), b"x").unwrap();
            for _ in 0..3 {
                // Each time with the same descriptor number.
                let again = RegisteredFd::new(ours.try_clone().unwrap(), Interest::Read).unwrap();
                poll_fn(|cx| again.poll_readable(cx)).await.unwrap();
            }
            let given = RegisteredFd::new(ours.try_clone().unwrap(), Interest::Read).unwrap();
            let given = given.into_fd();
            let again = RegisteredFd::new(given, Interest::Both).unwrap();
            poll_fn(|cx| again.poll_writable(cx)).await.unwrap();
        };
        let done = loops::block_on(clock::timeout(Duration::from_secs(10), test)).unwrap();
        done.expect("each sees the readiness");
    }
}
