//! The sockets of an agent: connections from chosen addresses and ports, and reads and writes that
//! never block.
//!
//! # Invariants
//!
//! - A socket that cannot be created or connected is reported by its [`LossCause`], with a remedy
//!   where one is known.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, send, socket_with, sockopt,
};

use super::tally::LossCause;
use crate::hold::agent_protocol::SourceRange;

/// The sources of an agent, each port of each in turn.
#[derive(Debug)]
pub(super) struct SourcePorts {
    sources: Vec<SourceRange>,
    /// The number of ports tried per source towards each server; servers are the rows. Stream
    /// targets at one server share its row.
    tried_ports: Vec<u32>,
    /// Connections begun towards each server.
    begun: Vec<usize>,
    servers: Vec<SocketAddr>,
}

impl SourcePorts {
    pub(super) fn new(sources: Vec<SourceRange>, goals: impl Iterator<Item = SocketAddr>) -> Self {
        let mut servers: Vec<SocketAddr> = goals.collect();
        servers.sort_unstable();
        servers.dedup();
        Self {
            tried_ports: vec![0; sources.len() * servers.len()],
            begun: vec![0; servers.len()],
            sources,
            servers,
        }
    }

    /// Begins a connection to a server, from the next source and its next free port.
    ///
    /// # Errors
    /// The cause of the loss, and the system's message.
    pub(super) fn begin_connection(
        &mut self,
        address: SocketAddr,
    ) -> Result<OwnedFd, (LossCause, String)> {
        let row = self.servers.binary_search(&address);
        let (Ok(row), false) = (row, self.sources.is_empty()) else {
            return begin_connect(new_socket(address)?, address)
                .map_err(|error| describe_loss(error, address, None));
        };
        let turn = self.begun[row];
        self.begun[row] = turn.wrapping_add(1);
        let mut last = None;
        for attempt in 0..MAX_ATTEMPTS {
            // Another address if the ports of one seem to be in use.
            let at = (turn + attempt / ATTEMPTS_PER_SOURCE) % self.sources.len();
            let source = self.sources[at];
            let from = self.next_port(row, at);
            match connect_from(from, address) {
                Ok(socket) => return Ok(socket),
                Err(None) => last = Some(source),
                Err(Some(failure)) => return Err(failure),
            }
        }
        let from = last.map_or_else(String::new, |source| source.address.to_string());
        Err((
            LossCause::NoPort,
            format!("out of ports from {from} to {address}: name more addresses with --from"),
        ))
    }

    /// The next port of a source towards a server.
    fn next_port(&mut self, row: usize, at: usize) -> SocketAddr {
        let source = self.sources[at];
        let tried = &mut self.tried_ports[row * self.sources.len() + at];
        let ports = u32::from(source.last_port - source.first_port) + 1;
        let offset = *tried % ports;
        *tried = tried.wrapping_add(1);
        let port = u16::try_from(u32::from(source.first_port) + offset);
        SocketAddr::new(source.address, port.unwrap_or(source.last_port))
    }
}

/// With churn, half of the ports may be in use; so many used ports in a row are no chance.
const MAX_ATTEMPTS: usize = 64;
const ATTEMPTS_PER_SOURCE: usize = 16;

/// Connects from a port; the error is `None` if the port, or this pair of addresses and ports, is
/// in use.
fn connect_from(from: SocketAddr, to: SocketAddr) -> Result<OwnedFd, Option<(LossCause, String)>> {
    let socket = new_socket(to)?;
    // So that a port can serve towards several servers, and again soon after.
    let bound = sockopt::set_socket_reuseaddr(&socket, true).and_then(|()| bind(&socket, &from));
    match bound {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Err(None),
        Err(Errno::ADDRNOTAVAIL) => {
            let address = from.ip();
            let why = format!("{address} is not an address of this machine: see --from");
            return Err(Some((LossCause::NoPort, why)));
        }
        Err(error) => return Err(Some(describe_loss(error, to, Some(from)))),
    }
    begin_connect(socket, to).map_err(|error| match error {
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => None,
        error => Some(describe_loss(error, to, Some(from))),
    })
}

fn new_socket(to: SocketAddr) -> Result<OwnedFd, (LossCause, String)> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|error| describe_loss(error, to, None))
}

/// Begins to connect; an immediate connection is fine too.
fn begin_connect(socket: OwnedFd, to: SocketAddr) -> Result<OwnedFd, Errno> {
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// The result of a connection in progress.
///
/// # Errors
/// The system's error.
pub(super) fn connect_result(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::socket_error(socket).and_then(|error| error)
}

/// Sends a request, which fits the buffer of a new connection.
///
/// # Errors
/// It does not fit, or the connection is broken.
pub(super) fn send_request(socket: &OwnedFd, request: &[u8]) -> Result<(), Errno> {
    match send(socket, request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) if count == request.len() => Ok(()),
        Ok(_) => Err(Errno::NOBUFS),
        Err(error) => Err(error),
    }
}

/// Describes why a connection was lost.
pub(super) fn describe_loss(
    error: Errno,
    to: SocketAddr,
    from: Option<SocketAddr>,
) -> (LossCause, String) {
    let (loss, change) = match error {
        Errno::CONNREFUSED => (LossCause::Refused, ""),
        Errno::CONNRESET | Errno::PIPE => (LossCause::Reset, ""),
        Errno::TIMEDOUT => (LossCause::Timeout, ""),
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => {
            (LossCause::NoPort, ": name source addresses with --from")
        }
        Errno::MFILE => (
            LossCause::NoDescriptor,
            ": raise the limit (ulimit -n), or --agents",
        ),
        Errno::NFILE => (LossCause::NoDescriptor, ": raise fs.file-max"),
        Errno::NOMEM | Errno::NOBUFS => (
            LossCause::NoDescriptor,
            ": see net.ipv4.tcp_mem and the machine's memory",
        ),
        _ => (LossCause::Unreachable, ""),
    };
    let from = from.map_or_else(String::new, |from| format!("{from} to "));
    let why = std::io::Error::from(error);
    (loss, format!("{from}{to}: {why}{change}"))
}
