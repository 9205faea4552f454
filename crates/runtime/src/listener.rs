//! A listening socket of one event loop; opened by `penstock` at start and reload, polled by
//! `edge`.
//!
//! Accepting never spins: when descriptors run out the caller waits before the next attempt.
//! Loopback connections are not paced if the listener has no others.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use penstock_sys::net::{self, PeerAddress};
use penstock_sys::poll::Interest;

use crate::registered_fd::RegisteredFd;

/// A non-blocking listener registered with the loop that created it.
#[derive(Debug)]
pub struct Listener {
    socket: RegisteredFd,
}

impl Listener {
    /// Registers a listening socket with the current loop.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        // Connections inherit it. Later would be too late: a connection that was paced once stays
        // so.
        let is_local = || net::local_address(&socket).is_ok_and(net::is_loopback);
        if net::is_paced(&socket) && is_local() {
            // Where this is not permitted, connections are only slower.
            let _ = net::stop_pacing(&socket);
        }
        Ok(Self {
            socket: RegisteredFd::new(socket, Interest::Read)?,
        })
    }

    /// Accepts the next connection.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(OwnedFd, PeerAddress)>> {
        loop {
            ready!(self.socket.poll_readable(cx))?;
            match net::accept(self.socket.as_fd()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.clear_readable(),
                // The client left between its connect and our accept.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Accepts a queued connection, if any. Used when the listener closes, so that no queued
    /// connection is reset.
    #[must_use]
    pub fn try_accept(&self) -> Option<(OwnedFd, PeerAddress)> {
        net::accept(self.socket.as_fd()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock, loops};
    use std::future::poll_fn;
    use std::time::Duration;

    /// A connection accepted by a listener at `address`, if the system has a pacing congestion
    /// control.
    #[expect(clippy::print_stderr, reason = "shows which test was skipped")]
    async fn accepted_at(address: &str) -> Option<OwnedFd> {
        let socket = net::listen_tcp(address.parse().unwrap()).unwrap();
        if rustix::net::sockopt::set_tcp_congestion(&socket, "bbr").is_err() {
            eprintln!("left out: there is no bbr here, or it is not allowed");
            return None;
        }
        assert!(net::is_paced(&socket));
        let port = net::local_address(&socket).unwrap().port();
        let listener = Listener::new(socket).unwrap();
        let _client = net::connect_tcp(([127, 0, 0, 1], port).into()).unwrap();
        let accepted = poll_fn(|cx| listener.poll_accept(cx));
        let accepted = clock::timeout(Duration::from_secs(10), accepted).await;
        Some(accepted.expect("one waits").unwrap().0)
    }

    #[test]
    fn only_loopback_connections_are_not_paced() {
        let test = async {
            for (address, expected) in [("127.0.0.1:0", false), ("0.0.0.0:0", true)] {
                if let Some(accepted) = accepted_at(address).await {
                    assert_eq!(net::is_paced(&accepted), expected, "{address}");
                }
            }
        };
        loops::block_on(test).unwrap();
    }
}
