//! One blocking connection for the coordinator's own requests: published messages and probes.
//!
//! `publisher` has one on its thread, `probe` one on each of its threads. An idle connection is
//! checked before use, so that a connection that the server closed meanwhile is no failure (RFC
//! 9112 §9.3.1).
//!
//! # Invariants
//!
//! - Every wait has a deadline.
//! - A request of which a byte was sent is never reported as unsent.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::deploy::connect_unix;
use crate::load::Address;
use crate::load::response_reader::{FeedResult, RequestContext, ResponseReader};

/// A connection that is opened when needed, and kept.
#[derive(Debug)]
pub(super) struct RequestConnection {
    address: Address,
    /// For connecting, and for a response.
    timeout: Duration,
    socket: Option<ClientSocket>,
    response: ResponseReader,
    buffer: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestFailure {
    /// There is no connection: nothing was sent.
    #[error("{0}")]
    Unsent(io::Error),
    /// It was interrupted: the outcome of the request is unknown.
    #[error("{0}")]
    Interrupted(io::Error),
}

#[derive(Debug)]
enum ClientSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl RequestConnection {
    pub(super) fn new(address: Address, timeout: Duration) -> Self {
        Self {
            address,
            timeout,
            socket: None,
            response: ResponseReader::new(),
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    /// Opens the connection before the first request, if possible.
    pub(super) fn open_ahead(&mut self) {
        if self.socket.is_none() {
            self.socket = ClientSocket::connect(&self.address, self.timeout).ok();
        }
    }

    /// Sends a request and waits for the whole response; returns its status.
    ///
    /// # Errors
    /// No response in time.
    pub(super) fn exchange(&mut self, request: &[u8]) -> Result<u16, RequestFailure> {
        let deadline = Instant::now() + self.timeout;
        // Taken out: it is put back only if nothing about it is in doubt.
        let kept = self.socket.take().filter(ClientSocket::is_idle);
        let socket = match kept {
            Some(socket) => socket,
            None => ClientSocket::connect(&self.address, self.timeout)
                .map_err(RequestFailure::Unsent)?,
        };
        let mut socket = socket;
        self.send_and_receive(&mut socket, request, deadline)
            .map_err(RequestFailure::Interrupted)?;
        if self.response.keep_alive {
            self.socket = Some(socket);
        }
        Ok(self.response.status)
    }

    fn send_and_receive(
        &mut self,
        socket: &mut ClientSocket,
        request: &[u8],
        deadline: Instant,
    ) -> io::Result<()> {
        socket.set_timeouts(time_left(deadline)?)?;
        socket.write_all(request)?;
        self.response.begin(RequestContext::default());
        loop {
            socket.set_timeouts(time_left(deadline)?)?;
            let count = match socket.read(&mut self.buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(timeout_error());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let fed = match count {
                0 => self.response.end_of_stream(),
                count => self.response.feed(&self.buffer[..count]),
            };
            match fed.map_err(io::Error::other)? {
                FeedResult::Complete => return Ok(()),
                FeedResult::More => {}
            }
        }
    }
}

impl ClientSocket {
    fn connect(address: &Address, timeout: Duration) -> io::Result<Self> {
        Ok(match address {
            Address::Tcp(address) => {
                let socket = TcpStream::connect_timeout(address, timeout)?;
                socket.set_nodelay(true)?;
                Self::Tcp(socket)
            }
            Address::Unix(path) => Self::Unix(connect_unix(path, Instant::now() + timeout)?),
        })
    }

    /// Whether the server has neither closed nor sent unsolicited bytes.
    fn is_idle(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let found = match self {
            Self::Tcp(socket) => recv(socket.as_fd(), &mut byte[..], flags),
            Self::Unix(socket) => recv(socket.as_fd(), &mut byte[..], flags),
        };
        found.err() == Some(Errno::AGAIN)
    }

    fn set_timeouts(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => {
                socket.set_read_timeout(Some(time))?;
                socket.set_write_timeout(Some(time))
            }
            Self::Unix(socket) => {
                socket.set_read_timeout(Some(time))?;
                socket.set_write_timeout(Some(time))
            }
        }
    }
}

impl Read for ClientSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for ClientSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(timeout_error())
    } else {
        Ok(left)
    }
}

fn timeout_error() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no response in time")
}

/// The read size.
const BUFFER_BYTES: usize = 16 << 10;
