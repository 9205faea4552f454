//! One TLS session as a pure machine over rustls' unbuffered connections: ciphertext in, plaintext
//! out, and the other way round.
//!
//! It holds no buffer: the caller's slices are processed in place. A session with a client ends with
//! its handshake, and a [`RecordSession`] goes on. The next version of rustls changes this
//! interface, and with it this file alone.
//!
//! # Invariants
//! - Ciphertext that is not used up comes back first, with what follows it.
//! - Handshake messages leave before the plaintext that is sealed after them.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error};

use crate::records::{ExtractError, RecordSession, TrafficSecrets};

/// Most plaintext that [`Session::seal`] takes at once: four records.
pub(crate) const MAX_SEALED_BYTES: usize = 4 * MAX_RECORD_PLAINTEXT;

/// RFC 8446 §5.1.
pub(crate) const MAX_RECORD_PLAINTEXT: usize = 16 * 1024;

/// More than a record adds to its plaintext: a header of 5 bytes, and at most 32 for nonce, content
/// type and tag.
pub(crate) const MAX_RECORD_OVERHEAD: usize = 64;

/// One side of a session, as rustls implements it.
pub(crate) trait Connection: Send + Sync + 'static {
    /// rustls' state of this side.
    type Data;

    /// What was negotiated.
    fn negotiated(&self) -> &CommonState;

    /// As [`UnbufferedConnectionCommon::process_tls_records`].
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8])
    -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Connection for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn negotiated(&self) -> &CommonState {
        self
    }

    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }
}

impl Connection for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn negotiated(&self) -> &CommonState {
        self
    }

    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }
}

/// One session.
pub(crate) struct Session<C> {
    connection: C,
    is_established: bool,
    /// The peer has announced its end: no plaintext follows.
    has_peer_closed: bool,
    has_closed: bool,
    /// The peer broke the protocol. rustls may still refer to records that are gone, so it is asked
    /// for nothing more.
    has_failed: bool,
}

impl<C: Connection> Session<C> {
    pub(crate) fn new(connection: C) -> Self {
        Self {
            connection,
            is_established: false,
            has_peer_closed: false,
            has_closed: false,
            has_failed: false,
        }
    }

    /// Whether the handshake is complete and plaintext may be sealed.
    pub(crate) fn is_established(&self) -> bool {
        self.is_established
    }

    /// Whether the peer has sent a close_notify.
    pub(crate) fn has_peer_closed(&self) -> bool {
        self.has_peer_closed
    }

    /// What was negotiated, so far.
    pub(crate) fn negotiated(&self) -> &CommonState {
        self.connection.negotiated()
    }

    /// The connection, for its secrets.
    pub(crate) fn into_connection(self) -> C {
        self.connection
    }

    /// Processes the whole records at the start of `records`, in place, and returns their length.
    /// Messages to the peer are appended to `out`, and plaintext is passed to `plaintext`.
    ///
    /// # Errors
    /// A violation of the protocol; `out` has the alert for the peer. The session is over.
    pub(crate) fn open(
        &mut self,
        records: &mut [u8],
        out: &mut Vec<u8>,
        plaintext: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, Error> {
        if self.has_failed {
            return Err(Error::HandshakeNotComplete);
        }
        let opened = self.open_records(records, out, plaintext);
        self.has_failed = opened.is_err();
        opened
    }

    fn open_records(
        &mut self,
        records: &mut [u8],
        out: &mut Vec<u8>,
        plaintext: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, Error> {
        let mut used = 0;
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.connection.process(&mut records[used..]);
            let is_done = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        plaintext(record.payload);
                    }
                    false
                }
                Ok(ConnectionState::EncodeTlsData(mut message)) => {
                    append_message(&mut message, out)?;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(transmit)) => {
                    transmit.done();
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.has_peer_closed = true;
                    false
                }
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.is_established = true;
                    true
                }
                Ok(ConnectionState::BlockedHandshake | ConnectionState::Closed) => true,
                Ok(other) => return Err(Error::General(format!("unexpected state {other:?}"))),
                Err(error) => {
                    self.append_alert(out);
                    return Err(error);
                }
            };
            used += discard;
            if is_done {
                // Records behind the peer's end are not read (RFC 8446 §6.1).
                return Ok(if self.has_peer_closed {
                    records.len()
                } else {
                    used
                });
            }
        }
    }

    /// Appends what rustls has prepared for a violation, the alert last. While there is output,
    /// rustls looks at no input; without, it would look for the rest of the handshake again.
    fn append_alert(&mut self, out: &mut Vec<u8>) {
        while self.negotiated().wants_write()
            && let Ok(ConnectionState::EncodeTlsData(mut message)) =
                self.connection.process(&mut []).state
        {
            if append_message(&mut message, out).is_err() {
                return;
            }
        }
    }

    /// Seals `plaintext` into records at the start of `room`, and returns their length. `pending` are
    /// the bytes that [`Session::open`] has left.
    ///
    /// `plaintext` has at most [`MAX_SEALED_BYTES`]. `room` has as many, and [`MAX_RECORD_OVERHEAD`]
    /// for each record and for a message of the handshake before them.
    ///
    /// # Errors
    /// The session is over, or its keys are used up.
    pub(crate) fn seal(
        &mut self,
        plaintext: &[u8],
        pending: &mut [u8],
        room: &mut [u8],
    ) -> Result<usize, Error> {
        self.with_traffic(pending, |traffic| traffic.encrypt(plaintext, room))
    }

    /// Puts a close_notify at the start of `room`, once, and returns its length.
    ///
    /// # Errors
    /// As [`Session::seal`].
    pub(crate) fn seal_close(
        &mut self,
        pending: &mut [u8],
        room: &mut [u8],
    ) -> Result<usize, Error> {
        if std::mem::replace(&mut self.has_closed, true) {
            return Ok(0);
        }
        self.with_traffic(pending, |traffic| traffic.queue_close_notify(room))
    }

    fn with_traffic(
        &mut self,
        pending: &mut [u8],
        write: impl FnOnce(&mut WriteTraffic<'_, C::Data>) -> Result<usize, EncryptError>,
    ) -> Result<usize, Error> {
        if self.has_failed {
            return Err(Error::HandshakeNotComplete);
        }
        let written = match self.connection.process(pending).state? {
            ConnectionState::WriteTraffic(mut traffic) => write(&mut traffic),
            // The peer has closed its side, and still reads (RFC 8446 §6.1).
            ConnectionState::TransmitTlsData(mut transmit) => {
                let mut traffic = transmit.may_encrypt_app_data();
                let traffic = traffic.as_mut().ok_or(Error::HandshakeNotComplete)?;
                write(traffic)
            }
            _ => return Err(Error::HandshakeNotComplete),
        };
        written.map_err(|error| Error::General(format!("cannot seal: {error}")))
    }
}

impl Session<UnbufferedServerConnection> {
    /// Gives up rustls' state at the end of the handshake, whose `secrets` were captured.
    ///
    /// # Errors
    /// The secrets are not those of the session, or the configuration forbids their extraction.
    pub(crate) fn into_records(
        self,
        secrets: Option<&TrafficSecrets>,
    ) -> Result<RecordSession, ExtractError> {
        let suite = self.negotiated().negotiated_cipher_suite();
        let suite = suite.ok_or(ExtractError::UnsupportedSuite)?;
        let extracted = self.connection.dangerous_into_kernel_connection();
        let (extracted, _) = extracted.map_err(|_| ExtractError::NoSecrets)?;
        RecordSession::new(suite, &extracted, secrets)
    }
}

/// Appends a message of the handshake to `out`.
fn append_message<D>(message: &mut EncodeTlsData<'_, D>, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    let needed = match message.encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            required_size
        }
        _ => 0,
    };
    out.resize(start + needed, 0);
    let written = message.encode(&mut out[start..]);
    let written = written.map_err(|error| Error::General(format!("cannot encode: {error}")))?;
    out.truncate(start + written);
    Ok(())
}

impl<C> std::fmt::Debug for Session<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("is_established", &self.is_established)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ServerConnection, client::UnbufferedClientConnection};

    use super::*;
    use crate::profile::TlsProfile;
    use crate::testing::TestAuthority;
    use crate::testing::server::Server;
    use crate::testing::sessions::client;

    /// A server's certificate comes with the rest of its messages in one record.
    #[test]
    fn a_certificate_that_is_refused_in_the_midst_of_messages_leaves_an_alert() {
        let server = Server::new();
        let mut server = ServerConnection::new(server.tls().config).unwrap();
        let stranger = client(&TestAuthority::new("Other"), TlsProfile::Intermediate);
        let name = ServerName::try_from("a.test").unwrap();
        let client = UnbufferedClientConnection::new(Arc::new(stranger), name).unwrap();
        let mut session = Session::new(client);
        let (mut hello, mut flight, mut alert) = (Vec::new(), Vec::new(), Vec::new());
        session.open(&mut [], &mut hello, &mut |_| {}).unwrap();
        server.read_tls(&mut &hello[..]).unwrap();
        server.process_new_packets().unwrap();
        while server.wants_write() {
            server.write_tls(&mut flight).unwrap();
        }
        let refused = session.open(&mut flight, &mut alert, &mut |_| {});
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::InvalidCertificate(_)), "{refused}");
        server.read_tls(&mut &alert[..]).unwrap();
        let told = server.process_new_packets().unwrap_err();
        assert!(matches!(told, Error::AlertReceived(_)), "{told}");
    }
}
