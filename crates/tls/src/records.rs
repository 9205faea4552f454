//! The record layer of connections with clients: what is left of a TLS session behind its handshake.
//!
//! `rustls` makes the handshake. Then its state is given up
//! ([`rustls::server::UnbufferedServerConnection::dangerous_into_kernel_connection`]), and a
//! [`RecordSession`] seals and opens the records of the connection in a tenth of the memory. It
//! answers what a client may still send: key updates, alerts, requests to renegotiate. It serves
//! requests below a stream, goes on under a held one, and the next process of an upgrade continues
//! it from [`RecordSession::to_bytes`].
//!
//! TLS 1.3 needs the traffic secrets for key updates, and `rustls` gives only keys. So a
//! [`TrafficKeyLog`] in the configuration and [`capture`] around the handshake get them.
//!
//! # Invariants
//! - Pure: bytes in, bytes out. It does no I/O and reads no clock.
//! - A sequence number is used once with a key. A session has one owner and cannot be cloned; bytes
//!   of [`RecordSession::to_bytes`] are continued by one process.
//! - After an error of [`RecordSession::open`] the session is dead: its keys are erased.
//! - Keys are erased when they are replaced or dropped, and appear in no `Debug` output.
//! - A session without expanded keys has no memory beside its own [`MAX_SESSION_BYTES`].

mod capture;
mod error;
pub mod fuzzing;
mod handshake;
mod incoming;
mod key_schedule;
mod record_keys;
mod record_layer;
mod serial;
mod suite;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::IoSlice;

use rustls::{AlertDescription, ExtractedSecrets, SupportedCipherSuite};

pub(crate) use capture::ChannelBindingLog;
pub use capture::{CapturedSecrets, TrafficKeyLog, TrafficSecrets, capture};
pub use error::{ExtractError, HoldError, OpenError, RestoreError, SealError, Violation};
pub use incoming::OpenedBytes;

use handshake::{HandshakeReader, KEY_UPDATE_NOT_REQUESTED};
use incoming::PeerAllowance;
use record_keys::RecordKeys;
use suite::RecordSuite;

/// Memory of an idle session.
pub const MAX_SESSION_BYTES: usize = 272;

const _: () = assert!(size_of::<RecordSession>() <= MAX_SESSION_BYTES);

/// Plaintext of a record (RFC 8446 §5.1).
pub const MAX_PLAINTEXT_BYTES: usize = 16 << 10;

/// What a record adds to its plaintext: header, explicit nonce or content type, tag.
pub const MAX_RECORD_OVERHEAD: usize = RECORD_HEADER_BYTES + 8 + 16;

const RECORD_HEADER_BYTES: usize = 5;

/// Types of records (RFC 8446 §5.1).
mod content_type {
    pub(super) const ALERT: u8 = 21;
    pub(super) const HANDSHAKE: u8 = 22;
    pub(super) const APPLICATION_DATA: u8 = 23;
}

/// The server's side of a TLS session behind its handshake.
///
/// Call [`Self::seal`] for what goes to the client, [`Self::open`] for what comes from it, and
/// [`Self::close_notify`] at the end. All three append records to a buffer, which goes to the
/// client in that order. Call [`Self::release_keys`] when the connection becomes idle.
pub struct RecordSession {
    send_keys: RecordKeys,
    receive_keys: RecordKeys,
    /// A record that has not come whole.
    partial_record: Vec<u8>,
    handshake: HandshakeReader,
    suite: RecordSuite,
    can_send: bool,
    can_receive: bool,
    /// The client has asked for an update of the key, and gets it with the next data.
    owes_key_update: bool,
    /// Something was wrong, and the keys are erased.
    is_dead: bool,
    allowance: PeerAllowance,
}

impl RecordSession {
    /// Continues the session of a server from what `rustls` extracted at the end of the handshake.
    /// TLS 1.3 needs its `traffic` secrets too.
    ///
    /// # Errors
    /// A cipher suite that is not one of those of `rustls` with `aws-lc-rs`, or secrets that do not
    /// belong together: also those of a session that has updated its keys.
    pub fn new(
        suite: SupportedCipherSuite,
        extracted: &ExtractedSecrets,
        traffic: Option<&TrafficSecrets>,
    ) -> Result<Self, ExtractError> {
        let (send_sequence, send) = &extracted.tx;
        let (receive_sequence, receive) = &extracted.rx;
        let suite = RecordSuite::new(suite, send)?;
        let mut send_keys = RecordKeys::from_extracted(suite, send, *send_sequence)?;
        let mut receive_keys = RecordKeys::from_extracted(suite, receive, *receive_sequence)?;
        if suite.is_tls13() {
            let traffic = traffic.ok_or(ExtractError::NoTrafficSecrets)?;
            send_keys.set_secret(suite, &traffic.server)?;
            receive_keys.set_secret(suite, &traffic.client)?;
        }
        Ok(Self::from_keys(suite, send_keys, receive_keys))
    }

    fn from_keys(suite: RecordSuite, send_keys: RecordKeys, receive_keys: RecordKeys) -> Self {
        Self {
            send_keys,
            receive_keys,
            partial_record: Vec::new(),
            handshake: HandshakeReader::default(),
            suite,
            can_send: true,
            can_receive: true,
            owes_key_update: false,
            is_dead: false,
            allowance: PeerAllowance::default(),
        }
    }

    /// Appends `slices` to `out`, in records of at most [`MAX_PLAINTEXT_BYTES`]. In TLS 1.3 it
    /// updates the key first if the client has asked for it (RFC 8446 §4.6.3), and before its limit
    /// is reached (RFC 8446 §5.5).
    ///
    /// # Errors
    /// Nothing is sealed: the session has ended, or a key of TLS 1.2 may not seal as many records.
    /// It still seals a `close_notify`.
    pub fn seal(&mut self, slices: &[IoSlice<'_>], out: &mut Vec<u8>) -> Result<(), SealError> {
        if !self.can_send {
            return Err(SealError::Closed);
        }
        let mut left: usize = slices.iter().map(|slice| slice.len()).sum();
        if left == 0 {
            return Ok(());
        }
        let records = left.div_ceil(MAX_PLAINTEXT_BYTES);
        if !self.suite.is_tls13() && !self.has_room_for(records) {
            return Err(SealError::KeyExhausted);
        }
        out.reserve(left + records * MAX_RECORD_OVERHEAD);
        let mut source = SliceReader::new(slices);
        while left > 0 {
            if self.owes_key_update || !self.has_room_for(1) {
                self.update_send_key(KEY_UPDATE_NOT_REQUESTED, out)?;
            }
            let length = left.min(MAX_PLAINTEXT_BYTES);
            let content = content_type::APPLICATION_DATA;
            let writer = self
                .send_keys
                .begin_record(self.suite, content, length, out);
            source.copy_to(length, out);
            self.send_keys.finish_record(writer, out)?;
            left -= length;
        }
        self.allowance.renew();
        Ok(())
    }

    /// Appends a `close_notify` alert (RFC 8446 §6.1), once. After it nothing is sealed; what the
    /// client sends can still be opened.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) {
        // Without room for it the client sees the end of the connection.
        let _ = self.send_alert(AlertDescription::CloseNotify, out);
        self.can_send = false;
    }

    /// Whether [`Self::seal`] may be called: no end was sent.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.can_send
    }

    /// Whether the client may send more: it has sent no `close_notify`, and nothing wrong.
    #[must_use]
    pub fn can_receive(&self) -> bool {
        self.can_receive
    }

    /// Erases the keys as the library uses them, 600 bytes each. The next record makes its one again,
    /// which takes a sixth of a microsecond.
    pub fn release_keys(&mut self) {
        self.send_keys.release();
        self.receive_keys.release();
    }

    /// Whether there is something to release ([`Self::release_keys`]).
    #[must_use]
    pub(crate) fn has_expanded_keys(&self) -> bool {
        self.send_keys.is_expanded() || self.receive_keys.is_expanded()
    }

    /// Memory of the session now, without that of expanded keys.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.partial_record.capacity()
    }

    fn has_room_for(&self, records: usize) -> bool {
        let used = self.send_keys.sequence().saturating_add(records as u64);
        used <= self.suite.max_records()
    }

    /// Appends a key update under the old key and goes on with the next (RFC 8446 §4.6.3).
    fn update_send_key(&mut self, message: [u8; 5], out: &mut Vec<u8>) -> Result<(), SealError> {
        self.seal_small(content_type::HANDSHAKE, &message, out)?;
        self.send_keys.advance(self.suite)?;
        self.owes_key_update = false;
        Ok(())
    }

    fn send_alert(
        &mut self,
        description: AlertDescription,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        let level = match description {
            AlertDescription::CloseNotify | AlertDescription::NoRenegotiation => WARNING,
            _ => FATAL,
        };
        let alert = [level, description.into()];
        self.seal_small(content_type::ALERT, &alert, out)
    }

    /// Seals a record beside the limit of data, which leaves as much room again for these.
    fn seal_small(
        &mut self,
        content: u8,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        if !self.can_send {
            return Err(SealError::Closed);
        }
        out.reserve(message.len() + MAX_RECORD_OVERHEAD);
        let record = self
            .send_keys
            .begin_record(self.suite, content, message.len(), out);
        out.extend_from_slice(message);
        self.send_keys.finish_record(record, out)?;
        Ok(())
    }

    /// Ends the session in both directions and erases what it knows.
    fn kill(&mut self) {
        self.can_send = false;
        self.can_receive = false;
        self.owes_key_update = false;
        self.is_dead = true;
        self.send_keys.erase();
        self.receive_keys.erase();
        self.partial_record = Vec::new();
        self.handshake = HandshakeReader::default();
    }
}

impl fmt::Debug for RecordSession {
    /// Without any key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSession")
            .field("suite", &self.suite)
            .field("sent_records", &self.send_keys.sequence())
            .field("received_records", &self.receive_keys.sequence())
            .field("can_send", &self.can_send)
            .field("can_receive", &self.can_receive)
            .finish_non_exhaustive()
    }
}

/// Reads slices as one.
struct SliceReader<'a> {
    slices: &'a [IoSlice<'a>],
    /// Where the first of them is read on.
    offset: usize,
}

impl<'a> SliceReader<'a> {
    fn new(slices: &'a [IoSlice<'a>]) -> Self {
        Self { slices, offset: 0 }
    }

    /// Appends the next `count` bytes; there are as many.
    fn copy_to(&mut self, mut count: usize, out: &mut Vec<u8>) {
        while count > 0
            && let Some(slice) = self.slices.first()
        {
            let rest = &slice[self.offset..];
            let taken = rest.len().min(count);
            out.extend_from_slice(&rest[..taken]);
            count -= taken;
            self.offset += taken;
            if self.offset == slice.len() {
                self.slices = &self.slices[1..];
                self.offset = 0;
            }
        }
    }
}
