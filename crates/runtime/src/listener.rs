//! A listening socket of one loop.
//!
//! Opened by `penstock` at start and at reload (so that errors come before anything is changed),
//! polled by `edge`. `accept` never spins: when descriptors run out the caller waits before the next
//! try. Connections from this machine itself are not paced, whatever the system does with others.

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
    /// The system paces its connections: those from this machine need not be.
    is_paced: bool,
}

impl Listener {
    /// Registers a listening socket with the current loop.
    ///
    /// # Errors
    /// When the kernel refuses the registration.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let mut is_paced = net::is_paced(&socket);
        // Where nobody else can come from, they get it from the listener.
        if is_paced && net::local_address(&socket).is_ok_and(net::is_loopback) {
            is_paced = net::stop_pacing(&socket).is_err();
        }
        Ok(Self {
            socket: Registered::new(socket, Interest::Read)?,
            is_paced,
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
                done => return Poll::Ready(done.inspect(|taken| self.let_go(taken))),
            }
        }
    }

    fn let_go(&self, (socket, peer): &(OwnedFd, PeerAddress)) {
        if self.is_paced && peer.is_loopback() {
            // Where that is forbidden it is only slower.
            let _ = net::stop_pacing(socket);
        }
    }

    /// Takes a connection that already waits, if any: used when the listener closes, so that nobody
    /// who got through to the queue is reset.
    #[must_use]
    pub fn try_accept(&self) -> Option<(OwnedFd, PeerAddress)> {
        let taken = net::accept(self.socket.as_fd()).ok();
        taken.inspect(|taken| self.let_go(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock, loops};
    use std::future::poll_fn;
    use std::time::Duration;

    /// What a listener at `address` gives, when the system paces. `None` where it cannot.
    async fn accepted_at(address: &str) -> Option<OwnedFd> {
        let socket = net::listen_tcp(address.parse().unwrap()).unwrap();
        rustix::net::sockopt::set_tcp_congestion(&socket, "bbr").ok()?;
        assert!(net::is_paced(&socket));
        let port = net::local_address(&socket).unwrap().port();
        let listener = Listener::new(socket).unwrap();
        let _client = net::connect_tcp(([127, 0, 0, 1], port).into()).unwrap();
        let accepted = poll_fn(|cx| listener.poll_accept(cx));
        let accepted = clock::within(Duration::from_secs(10), accepted).await;
        Some(accepted.expect("one waits").unwrap().0)
    }

    #[test]
    fn who_comes_from_this_machine_is_not_paced() {
        let test = async {
            for address in ["127.0.0.1:0", "0.0.0.0:0"] {
                if let Some(accepted) = accepted_at(address).await {
                    assert!(!net::is_paced(&accepted), "{address}");
                }
            }
        };
        loops::block_on(test).unwrap();
    }
}
