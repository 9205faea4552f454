//! A listening socket of one loop.
//!
//! Opened by `penstock` at start and at reload (so that errors come before anything is changed),
//! polled by `edge`. `accept` never spins: when descriptors run out the caller waits before the next
//! try.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use penstock_sys::net::{self, PeerAddress};
use penstock_sys::poll::Interest;

use crate::registered::Registered;

/// A non-blocking listener registered with the loop that made it.
#[derive(Debug)]
pub struct Listener {
    socket: Registered,
}

impl Listener {
    /// Registers a listening socket with the current loop.
    ///
    /// # Errors
    /// When the kernel refuses the registration.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: Registered::new(socket, Interest::Read)?,
        })
    }

    /// Takes the next connection.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(OwnedFd, PeerAddress)>> {
        loop {
            ready!(self.socket.poll_readable(cx))?;
            match net::accept(self.socket.as_fd()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.clear_readable(),
                // The client left between its connect and our accept: nobody to answer.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Takes a connection that already waits, if any: used when the listener closes, so that nobody
    /// who got through to the queue is reset.
    #[must_use]
    pub fn try_accept(&self) -> Option<(OwnedFd, PeerAddress)> {
        net::accept(self.socket.as_fd()).ok()
    }
}
