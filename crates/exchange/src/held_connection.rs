//! A client connection behind the head of a held response: a socket, and the session of TLS over it
//! if there is one.
//!
//! Its holder keeps the two parts where it likes: there are up to a million, and most have no
//! session. All I/O goes through [`HeldConnectionMut`], where bytes of the response are sealed on
//! their way.
//!
//! # Invariants
//! - Sealed bytes leave in the order in which they were sealed. What the socket does not take waits
//!   in [`SealedRecords`], at most [`MAX_UNSENT_BYTES`], and nothing is sealed behind it.
//! - An idle connection with a session has its state and no buffer.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use penstock_runtime::pollset::{Interest, Pollset};
use penstock_runtime::{buffers, probe_peer};
use penstock_sys::net;

/// Protects the bytes of a held connection: a session of TLS whose handshake is done.
pub trait RecordLayer: Send + Sync + fmt::Debug {
    /// Appends the records of `slices` to `out`.
    ///
    /// # Errors
    /// The session is over. Nothing was appended.
    fn seal(&mut self, slices: &[IoSlice<'_>], out: &mut Vec<u8>) -> io::Result<()>;

    /// Opens received bytes, in place, and appends answers to `out`. Returns how many bytes of
    /// content they had, or `None` when the client has announced that it sends no more.
    ///
    /// # Errors
    /// The client ended the session or broke its protocol: `out` has the last words to it.
    fn open(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> io::Result<Option<usize>>;

    /// Appends the announcement that nothing more comes, once.
    fn seal_end(&mut self, out: &mut Vec<u8>);

    /// The session, with its secrets, for another process. This one must not use it any more.
    fn to_bytes(&self) -> Vec<u8>;

    /// Memory of an idle session.
    fn memory_bytes(&self) -> usize;
}

/// A client connection with a held response.
#[derive(Debug)]
pub struct HeldConnection {
    /// Watched by a [`Pollset`].
    pub socket: HeldSocket,
    /// The session over the socket.
    pub records: Option<Box<SealedRecords>>,
}

/// The socket of a held connection.
#[derive(Debug)]
pub struct HeldSocket(OwnedFd);

/// The session of a held connection, and the records that its socket did not take.
#[derive(Debug)]
pub struct SealedRecords {
    layer: Box<dyn RecordLayer>,
    unsent: Vec<u8>,
}

/// A held connection, for reading and writing.
#[derive(Debug)]
pub struct HeldConnectionMut<'a> {
    socket: &'a HeldSocket,
    records: Option<&'a mut SealedRecords>,
}

/// Records that wait for the socket: those of one chunk, and answers to the client behind them.
pub const MAX_UNSENT_BYTES: usize = 32 << 10;

/// Content that is sealed before the socket is tried: one record (RFC 8446 §5.1).
const CHUNK_BYTES: usize = 16 << 10;

/// Slices of a chunk.
const CHUNK_SLICES: usize = 16;

impl From<OwnedFd> for HeldConnection {
    /// A non-blocking stream socket that is registered with no event loop.
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket: HeldSocket(socket),
            records: None,
        }
    }
}

impl HeldConnection {
    /// A socket as [`HeldConnection::from`] takes it, with a session over it. `unsent` are records
    /// that come first.
    #[must_use]
    pub fn sealed(socket: OwnedFd, layer: Box<dyn RecordLayer>, unsent: Vec<u8>) -> Self {
        Self {
            socket: HeldSocket(socket),
            records: Some(Box::new(SealedRecords { layer, unsent })),
        }
    }

    /// For reading and writing.
    pub fn borrow_mut(&mut self) -> HeldConnectionMut<'_> {
        HeldConnectionMut::new(&self.socket, &mut self.records)
    }

    /// Gives the socket back. A session over it is dropped.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket.0
    }
}

impl AsFd for HeldSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl HeldSocket {
    /// Lets the kernel find out whether a client that closed its sending side has left.
    pub fn probe_peer(&self) {
        probe_peer(self.as_fd());
    }

    /// Bounds the time in which the client acknowledges what is sent. With `is_silent` nothing may
    /// be sent for long, and the kernel probes the client after that time.
    pub fn set_dead_peer_timeout(&self, timeout: Duration, is_silent: bool) {
        // Unix sockets have neither, and need none: their peers are processes of this machine.
        let _ = net::set_user_timeout(self.as_fd(), timeout);
        if is_silent {
            let _ = net::enable_keepalive_after(self.as_fd(), timeout);
        }
    }

    /// Adds it to `pollset` under `token`.
    ///
    /// # Errors
    /// As [`Pollset::add`].
    pub fn add_to_pollset(
        &self,
        pollset: &Pollset,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        pollset.add(self.as_fd(), token, interest)
    }

    /// Changes the events that `pollset` reports.
    ///
    /// # Errors
    /// As [`Pollset::modify`].
    pub fn modify_in_pollset(
        &self,
        pollset: &Pollset,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        pollset.modify(self.as_fd(), token, interest)
    }

    /// Removes it from `pollset`.
    pub fn remove_from_pollset(&self, pollset: &Pollset) {
        // An error means that it was never in the set.
        let _ = pollset.remove(self.as_fd());
    }

    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        retry_interrupted(|| match slices {
            [one] => net::send(self.as_fd(), one),
            many => net::send_vectored(self.as_fd(), many),
        })
    }

    /// As [`Self::send`], where a full socket takes nothing.
    fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.send(&[IoSlice::new(bytes)]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            sent => sent,
        }
    }
}

impl SealedRecords {
    /// The session for another process, with its secrets. See [`RecordLayer::to_bytes`].
    #[must_use]
    pub fn session_bytes(&self) -> Vec<u8> {
        self.layer.to_bytes()
    }

    /// Records that the socket did not take.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.unsent
    }

    /// Memory of an idle session with what belongs to it.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.layer.memory_bytes()
    }

    /// Sends what waits; whether all of it is out.
    fn flush(&mut self, socket: &HeldSocket) -> io::Result<bool> {
        if self.unsent.is_empty() {
            return Ok(true);
        }
        let sent = socket.send_some(&self.unsent)?;
        if sent < self.unsent.len() {
            self.unsent.drain(..sent);
            return Ok(false);
        }
        self.unsent = Vec::new();
        Ok(true)
    }

    /// Seals a prefix of `slices` and sends it, until the socket is full.
    fn write(&mut self, socket: &HeldSocket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut written = 0;
        loop {
            let mut chunk = [IoSlice::new(&[]); CHUNK_SLICES];
            let (count, length) = take_chunk(slices, written, &mut chunk);
            if length == 0 {
                return Ok(written);
            }
            buffers::with_output_buffer(|out| {
                self.layer.seal(&chunk[..count], out)?;
                written += length;
                let sent = socket.send_some(out)?;
                self.unsent.extend_from_slice(&out[sent..]);
                io::Result::Ok(())
            })?;
            if !self.unsent.is_empty() {
                return Ok(written);
            }
        }
    }

    /// Reads until a client's content comes, and drops it.
    fn discard_input(&mut self, socket: &HeldSocket, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = retry_interrupted(|| net::receive(socket.as_fd(), buffer))?;
            if count == 0 {
                return Ok(0);
            }
            let opened = self.layer.open(&mut buffer[..count], &mut self.unsent);
            if let Ok(None) = opened {
                self.layer.seal_end(&mut self.unsent);
            }
            let flushed = self.flush(socket);
            let Some(content) = opened? else {
                return Err(io::ErrorKind::ConnectionAborted.into());
            };
            if !flushed? && self.unsent.len() > MAX_UNSENT_BYTES {
                return Err(io::Error::other(
                    "the client reads no answer to its records",
                ));
            }
            if content > 0 {
                return Ok(content);
            }
        }
    }
}

impl<'a> HeldConnectionMut<'a> {
    /// The connection of these parts.
    pub fn new(socket: &'a HeldSocket, records: &'a mut Option<Box<SealedRecords>>) -> Self {
        Self {
            socket,
            records: records.as_deref_mut(),
        }
    }

    /// Writes a prefix of `slices`. Less than all of it means that the connection is full, and room
    /// raises an event. What is written may wait still: see [`Self::unsent_bytes`].
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub fn try_write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.records {
            None => self.socket.send(slices),
            Some(records) => records.write(self.socket, slices),
        }
    }

    /// Bytes that were written and wait for the socket: [`Self::flush`] is to be called when it has
    /// room. Always 0 without a session.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.records
            .as_ref()
            .map_or(0, |records| records.unsent.len())
    }

    /// Sends what waits for the socket; whether all of it is out.
    ///
    /// # Errors
    /// The connection's error.
    pub fn flush(&mut self) -> io::Result<bool> {
        match &mut self.records {
            None => Ok(true),
            Some(records) => records.flush(self.socket),
        }
    }

    /// Reads once, into `buffer`, and drops what the client sent; how many bytes that were, which
    /// with a session may be more than `buffer` has. 0 is the end of the client's side. Answers of
    /// a session may wait afterwards.
    ///
    /// # Errors
    /// `WouldBlock`, the connection's error, or the end of the session: by its client, which is
    /// answered, or after a violation.
    pub fn discard_input(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.records {
            None => retry_interrupted(|| net::receive(self.socket.as_fd(), buffer)),
            Some(records) => records.discard_input(self.socket, buffer),
        }
    }

    /// Announces the end and closes the sending side. What waits is dropped.
    pub fn shutdown_write(&mut self) {
        // A client that is gone already does not miss it.
        if let Some(records) = &mut self.records {
            records.layer.seal_end(&mut records.unsent);
            let _ = records.flush(self.socket);
        }
        let _ = net::shutdown(self.socket.as_fd(), net::Shutdown::Write);
    }
}

/// Fills `chunk` with at most [`CHUNK_BYTES`] of `slices` behind the first `skipped` bytes. How
/// many slices it has, and how many bytes.
fn take_chunk<'a>(
    slices: &'a [IoSlice<'_>],
    mut skipped: usize,
    chunk: &mut [IoSlice<'a>; CHUNK_SLICES],
) -> (usize, usize) {
    let (mut count, mut length) = (0, 0);
    for slice in slices {
        let Some(rest) = slice.get(skipped..).filter(|rest| !rest.is_empty()) else {
            skipped -= slice.len();
            continue;
        };
        skipped = 0;
        let taken = rest.len().min(CHUNK_BYTES - length);
        chunk[count] = IoSlice::new(&rest[..taken]);
        count += 1;
        length += taken;
        if count == CHUNK_SLICES || length == CHUNK_BYTES {
            break;
        }
    }
    (count, length)
}

/// Repeats a call that a signal interrupted.
fn retry_interrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests;
