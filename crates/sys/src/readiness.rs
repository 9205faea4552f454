//! Descriptors registered with a loop's readiness queue (epoll, through tokio).
//!
//! Used by `runtime` for streams, listeners and pipes. Here because registration is only sound while
//! the descriptor stays open and the same, which the types below guarantee by owning it.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers an owned descriptor for reading and writing with the current loop.
///
/// # Errors
/// When the kernel refuses it (a regular file, or no descriptors left).
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register_with(fd, Interest::READABLE | Interest::WRITABLE)
}

/// Registers an owned descriptor for reading only.
///
/// # Errors
/// As [`register`].
pub fn register_read(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register_with(fd, Interest::READABLE)
}

fn register_with(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        unsafe_code,
        reason = "tokio's constructor asks for a promise about the descriptor"
    )]
    // SAFETY: `OwnedFd` is owned by the `AsyncFd`, always returns the same number and closes it only
    // when dropped, which `AsyncFd` does after its own deregistration.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(io::Error::from)
}
