//! What a layer needs of a session behind its handshake, and the two kinds of sessions: our own
//! records with a client, and rustls' with a server, which sends it tickets.

use std::io::{self, IoSlice};

use crate::records::RecordSession;
use crate::session::{Connection, MAX_RECORD_OVERHEAD, MAX_RECORD_PLAINTEXT, Session};

/// A session behind its handshake.
pub(crate) trait LayerSession: Send + Sync + 'static {
    /// Whether the peer has sent a close_notify.
    fn has_peer_closed(&self) -> bool;

    /// Opens the whole records at the start of `records`, in place, and returns their length.
    /// Messages to the peer are appended to `out`, and plaintext is passed to `plaintext`.
    ///
    /// # Errors
    /// The peer ended the session or broke the protocol; `out` has the last words to it.
    fn open(
        &mut self,
        records: &mut [u8],
        out: &mut Vec<u8>,
        plaintext: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize>;

    /// Seals `plaintext`, at most [`crate::session::MAX_SEALED_BYTES`], into records at the start of
    /// `room`, and returns their length. `pending` are the bytes that [`LayerSession::open`] has
    /// left.
    ///
    /// # Errors
    /// The session is over, or its keys are used up.
    fn seal(
        &mut self,
        plaintext: &[u8],
        pending: &mut [u8],
        room: &mut Vec<u8>,
    ) -> io::Result<usize>;

    /// Puts a close_notify at the start of `room`, once, and returns its length.
    fn seal_close(&mut self, pending: &mut [u8], room: &mut Vec<u8>) -> usize;

    /// Whether it has something for [`LayerSession::release_keys`].
    fn has_expanded_keys(&self) -> bool;

    /// Erases what an idle session does not need.
    fn release_keys(&mut self);
}

impl LayerSession for RecordSession {
    fn has_peer_closed(&self) -> bool {
        !self.can_receive()
    }

    fn open(
        &mut self,
        records: &mut [u8],
        out: &mut Vec<u8>,
        plaintext: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        Ok(self.open_records(records, out, plaintext)?)
    }

    fn seal(&mut self, plaintext: &[u8], _: &mut [u8], room: &mut Vec<u8>) -> io::Result<usize> {
        room.clear();
        Self::seal(self, &[IoSlice::new(plaintext)], room)?;
        Ok(room.len())
    }

    fn seal_close(&mut self, _: &mut [u8], room: &mut Vec<u8>) -> usize {
        room.clear();
        self.close_notify(room);
        room.len()
    }

    fn has_expanded_keys(&self) -> bool {
        Self::has_expanded_keys(self)
    }

    fn release_keys(&mut self) {
        Self::release_keys(self);
    }
}

impl<C: Connection> LayerSession for Session<C> {
    fn has_peer_closed(&self) -> bool {
        Self::has_peer_closed(self)
    }

    fn open(
        &mut self,
        records: &mut [u8],
        out: &mut Vec<u8>,
        plaintext: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let opened = Self::open(self, records, out, plaintext);
        opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn seal(
        &mut self,
        plaintext: &[u8],
        pending: &mut [u8],
        room: &mut Vec<u8>,
    ) -> io::Result<usize> {
        // A message of the handshake may come before the records.
        let records = plaintext.len().div_ceil(MAX_RECORD_PLAINTEXT) + 1;
        let needed = plaintext.len() + records * MAX_RECORD_OVERHEAD;
        if room.len() < needed {
            room.resize(needed, 0);
        }
        let sealed = Self::seal(self, plaintext, pending, room);
        sealed.map_err(|error| io::Error::new(io::ErrorKind::BrokenPipe, error))
    }

    fn seal_close(&mut self, pending: &mut [u8], room: &mut Vec<u8>) -> usize {
        // An answer to an update of the keys may come first.
        room.resize(2 * MAX_RECORD_OVERHEAD, 0);
        Self::seal_close(self, pending, room).unwrap_or_default()
    }

    fn has_expanded_keys(&self) -> bool {
        false
    }

    fn release_keys(&mut self) {}
}
