//! A client's session without a stream, for callers that own their sockets: ciphertext in, plaintext
//! out, and the other way round. `bench` holds thousands in a table.
//!
//! # Invariants
//! - It waits for nothing and knows no clock.
//! - It keeps no buffer but the start of a record, at most [`MAX_INCOMPLETE_BYTES`].

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};

use crate::handshake::HandshakeError;
use crate::layer::MAX_INCOMPLETE_BYTES;
use crate::session::{MAX_RECORD_OVERHEAD, MAX_RECORD_PLAINTEXT, MAX_SEALED_BYTES, Session};

/// One session with one server.
#[derive(Debug)]
pub struct ClientSession {
    session: Session<UnbufferedClientConnection>,
    /// The start of a record.
    incomplete: Vec<u8>,
}

impl ClientSession {
    /// Begins a session with the server that must prove to be `server_name`, and appends the first
    /// message to `out`.
    ///
    /// # Errors
    /// The configuration supports nothing that can be offered.
    pub fn begin(
        config: Arc<ClientConfig>,
        server_name: ServerName<'static>,
        out: &mut Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        let connection = UnbufferedClientConnection::new(config, server_name)?;
        let mut session = Session::new(connection);
        session.open(&mut [], out, &mut |_| {})?;
        Ok(Self {
            session,
            incomplete: Vec::new(),
        })
    }

    /// Processes received bytes, in place. Messages to the server are appended to `out`, also those
    /// of a failure, and plaintext is passed to `plaintext`.
    ///
    /// # Errors
    /// The server is not the one that it must be, or broke the protocol. The session is over.
    pub fn receive(
        &mut self,
        received: &mut [u8],
        out: &mut Vec<u8>,
        plaintext: &mut dyn FnMut(&[u8]),
    ) -> Result<(), HandshakeError> {
        if self.incomplete.is_empty() {
            let used = self.session.open(received, out, plaintext)?;
            self.incomplete = received[used..].to_vec();
        } else {
            self.incomplete.extend_from_slice(received);
            let used = self.session.open(&mut self.incomplete, out, plaintext)?;
            self.incomplete = self.incomplete[used..].to_vec();
        }
        match self.incomplete.len() > MAX_INCOMPLETE_BYTES {
            true => Err(HandshakeError::TooLarge),
            false => Ok(()),
        }
    }

    /// Whether the handshake is complete and plaintext may be sealed.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.session.is_established()
    }

    /// Whether the server has announced the end: a connection that ends without it is cut
    /// (RFC 8446 §6.1).
    #[must_use]
    pub fn has_peer_closed(&self) -> bool {
        self.session.has_peer_closed()
    }

    /// Whether an earlier session was resumed; false before the handshake is complete.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.session.negotiated().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Appends `plaintext` in records to `out`.
    ///
    /// # Errors
    /// The handshake is not complete, or the session is over.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        for piece in plaintext.chunks(MAX_SEALED_BYTES) {
            let start = out.len();
            let records = piece.len() / MAX_RECORD_PLAINTEXT + 1;
            out.resize(start + piece.len() + records * MAX_RECORD_OVERHEAD, 0);
            let sealed = self
                .session
                .seal(piece, &mut self.incomplete, &mut out[start..]);
            out.truncate(start + *sealed.as_ref().unwrap_or(&0));
            sealed?;
        }
        Ok(())
    }

    /// Appends the announcement that nothing more is sent to `out`, once.
    ///
    /// # Errors
    /// As [`ClientSession::seal`].
    pub fn seal_close(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let start = out.len();
        out.resize(start + MAX_RECORD_OVERHEAD, 0);
        let sealed = self
            .session
            .seal_close(&mut self.incomplete, &mut out[start..]);
        out.truncate(start + *sealed.as_ref().unwrap_or(&0));
        Ok(sealed.map(|_| ())?)
    }
}

#[cfg(test)]
mod tests;
