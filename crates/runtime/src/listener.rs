//! A listening socket of one loop.
//!
//! Opened by `penstock` at start and at reload (so that errors come before anything is changed),
//! polled by `edge`. `accept` never spins: when descriptors run out the caller waits before the next
//! try. Connections over the loopback are not paced, where the listener has no others.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use penstock_sys::net::{self, PeerAddress};
use penstock_sys::poll::Interest;

use crate::registered_fd::RegisteredFd;

/// A non-blocking listener registered with the loop that made it.
#[derive(Debug)]
pub struct Listener {
    socket: RegisteredFd,
}

impl Listener {
    /// Registers a listening socket with the current loop.
    ///
    /// # Errors
    /// When the kernel refuses the registration.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        // Their connections have it from them: afterwards would be too late, as a connection that was paced once stays so.
        let is_local = || net::local_address(&socket).is_ok_and(net::is_loopback);
        if net::is_paced(&socket) && is_local() {
            // Where that is forbidden it is only slower.
            let _ = net::stop_pacing(&socket);
        }
        Ok(Self {
            socket: RegisteredFd::new(socket, Interest::Read)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock, loops};
    use std::future::poll_fn;
    use std::time::Duration;

    /// A connection that a listener at `address` gives, where the system paces.
    #[expect(
        clippy::print_stderr,
        reason = "whoever runs it sees what was left out"
    )]
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
