//! The sockets of an agent: connections begun from chosen addresses and ports, requests and receipts that
//! never wait.
//!
//! `agent` calls it for each stream. What must stay true: a socket that cannot be made, or connected at
//! once, is told by its [`Loss`] with what to change where that is known.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, send, socket_with, sockopt,
};

use super::tally::Loss;
use crate::hold::order::Source;

/// The sources of an agent, each port of each in turn.
#[derive(Debug)]
pub(super) struct Sources {
    sources: Vec<Source>,
    /// How many ports were tried of each source towards each server; servers are the rows. Several goals
    /// may be at one server, and share its row.
    tried: Vec<u32>,
    /// Connections begun towards each server.
    begun: Vec<usize>,
    servers: Vec<SocketAddr>,
}

impl Sources {
    pub(super) fn new(sources: Vec<Source>, goals: impl Iterator<Item = SocketAddr>) -> Self {
        let mut servers: Vec<SocketAddr> = goals.collect();
        servers.sort_unstable();
        servers.dedup();
        Self {
            tried: vec![0; sources.len() * servers.len()],
            begun: vec![0; servers.len()],
            sources,
            servers,
        }
    }

    /// Begins a connection to a server, from the next source and its next port that is free.
    ///
    /// # Errors
    /// What it is lost by, and what the system said.
    pub(super) fn begin(&mut self, address: SocketAddr) -> Result<OwnedFd, (Loss, String)> {
        let row = self.servers.binary_search(&address);
        let (Ok(row), false) = (row, self.sources.is_empty()) else {
            return connected(socket(address)?, address)
                .map_err(|error| lost(error, address, None));
        };
        let turn = self.begun[row];
        self.begun[row] = turn.wrapping_add(1);
        let mut last = None;
        for attempt in 0..ATTEMPTS_MAX {
            // Another address when the ports of one seem to be taken.
            let at = (turn + attempt / ATTEMPTS_PER_SOURCE) % self.sources.len();
            let source = self.sources[at];
            let from = self.port(row, at);
            match from_port(from, address) {
                Ok(socket) => return Ok(socket),
                Err(Refused::Taken) => last = Some(source),
                Err(Refused::Other(loss, why)) => return Err((loss, why)),
            }
        }
        let from = last.map_or_else(String::new, |source| source.address.to_string());
        Err((
            Loss::NoPort,
            format!("no port is left from {from} to {address}: name more addresses with --from"),
        ))
    }

    /// The next port of a source towards a server.
    fn port(&mut self, row: usize, at: usize) -> SocketAddr {
        let source = self.sources[at];
        let tried = &mut self.tried[row * self.sources.len() + at];
        let ports = u32::from(source.last_port - source.first_port) + 1;
        let offset = *tried % ports;
        *tried = tried.wrapping_add(1);
        let port = u16::try_from(u32::from(source.first_port) + offset);
        SocketAddr::new(source.address, port.unwrap_or(source.last_port))
    }
}

/// Half of the ports may be in use when streams are opened again and again; a run of so many that are is
/// no chance.
const ATTEMPTS_MAX: usize = 64;
const ATTEMPTS_PER_SOURCE: usize = 16;

enum Refused {
    /// The port, or this pair of addresses and ports, is in use.
    Taken,
    Other(Loss, String),
}

fn from_port(from: SocketAddr, to: SocketAddr) -> Result<OwnedFd, Refused> {
    let socket = socket(to).map_err(|(loss, why)| Refused::Other(loss, why))?;
    // So that a port serves towards several servers, and again soon after.
    let bound = sockopt::set_socket_reuseaddr(&socket, true).and_then(|()| bind(&socket, &from));
    match bound {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Err(Refused::Taken),
        Err(Errno::ADDRNOTAVAIL) => {
            let why = format!("{} is no address of this machine: see --from", from.ip());
            return Err(Refused::Other(Loss::NoPort, why));
        }
        Err(error) => {
            let (loss, why) = lost(error, to, Some(from));
            return Err(Refused::Other(loss, why));
        }
    }
    match connected(socket, to) {
        Ok(socket) => Ok(socket),
        Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE) => Err(Refused::Taken),
        Err(error) => {
            let (loss, why) = lost(error, to, Some(from));
            Err(Refused::Other(loss, why))
        }
    }
}

fn socket(to: SocketAddr) -> Result<OwnedFd, (Loss, String)> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family, SocketType::STREAM, flags, None).map_err(|error| lost(error, to, None))
}

/// A connection under way, or there already.
fn connected(socket: OwnedFd, to: SocketAddr) -> Result<OwnedFd, Errno> {
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// What became of a connection that was under way.
///
/// # Errors
/// What the system said, when there is none.
pub(super) fn outcome(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::socket_error(socket).and_then(|error| error)
}

/// Sends a request, which a new connection's buffer takes whole.
///
/// # Errors
/// When it does not, or the connection is broken.
pub(super) fn request(socket: &OwnedFd, request: &[u8]) -> Result<(), Errno> {
    match send(socket, request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) if count == request.len() => Ok(()),
        Ok(_) => Err(Errno::NOBUFS),
        Err(error) => Err(error),
    }
}

/// What a connection was lost by, in words.
pub(super) fn lost(error: Errno, to: SocketAddr, from: Option<SocketAddr>) -> (Loss, String) {
    let (loss, change) = match error {
        Errno::CONNREFUSED => (Loss::Refused, ""),
        Errno::CONNRESET | Errno::PIPE => (Loss::Reset, ""),
        Errno::TIMEDOUT => (Loss::Timeout, ""),
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => {
            (Loss::NoPort, ": name source addresses with --from")
        }
        Errno::MFILE => (
            Loss::NoDescriptor,
            ": raise the limit (ulimit -n), or --agents",
        ),
        Errno::NFILE => (Loss::NoDescriptor, ": raise fs.file-max"),
        Errno::NOMEM | Errno::NOBUFS => (
            Loss::NoDescriptor,
            ": see net.ipv4.tcp_mem and the machine's memory",
        ),
        _ => (Loss::Unreachable, ""),
    };
    let from = from.map_or_else(String::new, |from| format!("{from} to "));
    let why = std::io::Error::from(error);
    (loss, format!("{from}{to}: {why}{change}"))
}
