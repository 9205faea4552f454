//! What a client sends: records, and the answers to them.
//!
//! [`RecordSession::open_records`] passes on what is in whole records. [`RecordSession::open`] takes
//! them in any split for a held stream, which reads no data: it is counted and dropped. Everything
//! else is bounded by [`PeerAllowance`], so that a client cannot keep the server busy with records
//! that say nothing.

use rustls::AlertDescription;

use super::handshake::{HandshakeMessage, HandshakeReader};
use super::record_keys::RecordError;
use super::{
    MAX_PLAINTEXT_BYTES, OpenError, RECORD_HEADER_BYTES, RecordSession, Violation, content_type,
};

/// Bytes of the body of a record: 256 more than its plaintext (RFC 8446 §5.2).
const MAX_BODY_BYTES: usize = MAX_PLAINTEXT_BYTES + 256;

/// Bytes that a session keeps of a record that has not come whole.
pub(super) const MAX_PARTIAL_BYTES: usize = RECORD_HEADER_BYTES + MAX_BODY_BYTES - 1;

/// What came in with some bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenedBytes {
    /// Bytes of application data, which are dropped.
    pub data_bytes: usize,
    /// The client has sent `close_notify`: it sends no more.
    pub is_ended: bool,
}

/// How many records without content a client may send until the server sends data, or reads some.
/// Data that is dropped renews nothing: a held stream expects none, and its holder bounds it.
#[derive(Debug, Default)]
pub(super) struct PeerAllowance {
    pub(super) empty_records: u8,
    pub(super) key_updates: u8,
    pub(super) warnings: u8,
    /// Of the whole session.
    pub(super) renegotiations: u8,
}

const MAX_EMPTY_RECORDS: u8 = 32;
const MAX_KEY_UPDATES: u8 = 32;
const MAX_WARNINGS: u8 = 4;
const MAX_RENEGOTIATIONS: u8 = 1;

impl PeerAllowance {
    /// The server has sent or read data.
    pub(super) fn renew(&mut self) {
        self.empty_records = 0;
        self.key_updates = 0;
        self.warnings = 0;
    }
}

impl RecordSession {
    /// Opens the whole records at the start of `records`, in place, passes their data to
    /// `plaintext`, and returns their length. Otherwise as [`Self::open`]; use one of the two for a
    /// session.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_records(
        &mut self,
        records: &mut [u8],
        out: &mut Vec<u8>,
        plaintext: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, OpenError> {
        if self.is_dead {
            return Err(OpenError::Closed);
        }
        let total = records.len();
        let mut rest = records;
        while self.can_receive {
            let next = self.record_length(rest);
            let next = next.map_err(|error| self.fail(error.into(), out))?;
            let Some(record) = next.and_then(|length| rest.split_off_mut(..length)) else {
                return Ok(total - rest.len());
            };
            let opened = self.open_record(record, plaintext, out);
            if opened.map_err(|error| self.fail(error, out))? > 0 {
                self.allowance.renew();
            }
        }
        // What is behind the client's end is not read (RFC 8446 §6.1).
        Ok(total)
    }

    /// Opens what the client sent, in place, and appends answers to `out`: `no_renegotiation` in
    /// TLS 1.2, or the alert that ends the session. A key update to one that asks for it comes with
    /// the next data. What comes behind the client's `close_notify` is dropped.
    ///
    /// # Errors
    /// The client ended the session or broke a rule, and the session is dead. `out` still goes to
    /// the client.
    pub fn open(
        &mut self,
        mut bytes: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<OpenedBytes, OpenError> {
        if self.is_dead {
            return Err(OpenError::Closed);
        }
        let mut data_bytes = 0;
        while self.can_receive && !bytes.is_empty() {
            let done = self.open_next(&mut bytes, out);
            data_bytes += done.map_err(|error| self.fail(error, out))?;
        }
        Ok(OpenedBytes {
            data_bytes,
            is_ended: !self.can_receive,
        })
    }

    /// Takes a record off `bytes`, or keeps what has come of it. Returns how many bytes of data it
    /// had.
    fn open_next(&mut self, bytes: &mut &mut [u8], out: &mut Vec<u8>) -> Result<usize, OpenError> {
        if self.partial_record.is_empty() {
            let length = self.record_length(bytes)?;
            if let Some(record) = length.and_then(|length| bytes.split_off_mut(..length)) {
                return self.open_record(record, &mut |_| {}, out);
            }
            self.keep_partial(bytes, length.unwrap_or(RECORD_HEADER_BYTES));
            return Ok(0);
        }
        if self.partial_record.len() < RECORD_HEADER_BYTES {
            self.keep_partial(bytes, RECORD_HEADER_BYTES);
        }
        let Some(length) = self.record_length(&self.partial_record)? else {
            return Ok(0);
        };
        self.keep_partial(bytes, length);
        if self.partial_record.len() < length {
            return Ok(0);
        }
        let mut record = std::mem::take(&mut self.partial_record);
        self.open_record(&mut record, &mut |_| {}, out)
    }

    /// The length of the record at the start of `bytes`, once its header is there.
    pub(super) fn record_length(&self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        use content_type::{ALERT, APPLICATION_DATA, HANDSHAKE};
        let Some([kind, _, _, high, low]) = bytes.first_chunk() else {
            return Ok(None);
        };
        // A record in the clear belongs to the handshake, also `change_cipher_spec`
        // (RFC 8446 §5).
        let is_expected = match *kind {
            APPLICATION_DATA => true,
            ALERT | HANDSHAKE => !self.suite.is_tls13(),
            _ => false,
        };
        if !is_expected {
            return Err(Violation::UnexpectedRecord(*kind));
        }
        let body = usize::from(u16::from_be_bytes([*high, *low]));
        if body > MAX_BODY_BYTES {
            return Err(Violation::RecordOverflow);
        }
        Ok(Some(RECORD_HEADER_BYTES + body))
    }

    /// Keeps bytes of a record that is `length` bytes long, as far as they have come.
    fn keep_partial(&mut self, bytes: &mut &mut [u8], length: usize) {
        let kept = &mut self.partial_record;
        let count = bytes.len().min(length.saturating_sub(kept.len()));
        let Some(piece) = bytes.split_off_mut(..count) else {
            return;
        };
        // No more memory than twice what the client has sent.
        let needed = kept.len() + count;
        if kept.capacity() < needed {
            let room = needed.max(length.min(2 * kept.capacity()));
            kept.reserve_exact(room - kept.len());
        }
        kept.extend_from_slice(piece);
    }

    /// Opens a whole record, and returns how many bytes of data it had.
    fn open_record(
        &mut self,
        record: &mut [u8],
        data: &mut dyn FnMut(&[u8]),
        out: &mut Vec<u8>,
    ) -> Result<usize, OpenError> {
        let Some((header, body)) = record.split_first_chunk_mut() else {
            return Ok(0);
        };
        let keys = &mut self.receive_keys;
        let (content, plaintext) = match keys.open_record(self.suite, *header, body) {
            Ok((content, plaintext)) => (content, &*plaintext),
            Err(RecordError::Violation(violation)) => return Err(violation.into()),
            Err(RecordError::Cipher(error)) => return Err(error.into()),
        };
        if self.handshake.is_inside() && content != content_type::HANDSHAKE {
            return Err(Violation::MixedHandshake.into());
        }
        match content {
            content_type::APPLICATION_DATA if plaintext.is_empty() => {
                let count = &mut self.allowance.empty_records;
                take_one(count, MAX_EMPTY_RECORDS, Violation::TooManyEmptyRecords)?;
            }
            content_type::APPLICATION_DATA => {
                data(plaintext);
                return Ok(plaintext.len());
            }
            content_type::ALERT => self.handle_alert(plaintext)?,
            content_type::HANDSHAKE => self.handle_handshake(plaintext, out)?,
            other => return Err(Violation::UnexpectedRecord(other).into()),
        }
        Ok(0)
    }

    fn handle_alert(&mut self, alert: &[u8]) -> Result<(), OpenError> {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        let (level, description) = match *alert {
            [level @ (WARNING | FATAL), description] => {
                (level, AlertDescription::from(description))
            }
            [level, _] => return Err(Violation::BadAlertLevel(level).into()),
            [] => return Err(Violation::EmptyRecord.into()),
            _ => return Err(Violation::BadAlertLength.into()),
        };
        let is_warning = match description {
            AlertDescription::CloseNotify => {
                self.end_receiving();
                return Ok(());
            }
            AlertDescription::UserCanceled => true,
            // TLS 1.3 has no other warnings, whatever the level (RFC 8446 §6).
            _ => !self.suite.is_tls13() && level == WARNING,
        };
        if !is_warning {
            return Err(OpenError::PeerAlert(description));
        }
        let count = &mut self.allowance.warnings;
        take_one(count, MAX_WARNINGS, Violation::TooManyWarnings)?;
        Ok(())
    }

    /// The client has sent its last, and may still read (RFC 8446 §6.1). A server with TLS 1.2 may
    /// close both sides then (RFC 5246 §7.2.1), but clients wait for their response with that too.
    fn end_receiving(&mut self) {
        self.can_receive = false;
        self.receive_keys.erase();
        self.handshake = HandshakeReader::default();
    }

    fn handle_handshake(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), OpenError> {
        if bytes.is_empty() {
            return Err(Violation::EmptyRecord.into());
        }
        while !bytes.is_empty() {
            match self.handshake.read(self.suite.is_tls13(), &mut bytes)? {
                Some(HandshakeMessage::KeyUpdate { is_requested }) => {
                    self.update_keys(is_requested)?;
                }
                Some(HandshakeMessage::Renegotiation) => self.refuse_renegotiation(out)?,
                None => {}
            }
        }
        Ok(())
    }

    /// The client has gone on with its next key, and may ask for ours, which comes before the next
    /// data (RFC 8446 §4.6.3): many such requests of a client that reads nothing take no memory.
    fn update_keys(&mut self, is_requested: bool) -> Result<(), OpenError> {
        let count = &mut self.allowance.key_updates;
        take_one(count, MAX_KEY_UPDATES, Violation::TooManyKeyUpdates)?;
        self.receive_keys.advance(self.suite)?;
        self.owes_key_update |= is_requested && self.can_send;
        Ok(())
    }

    /// Without an answer some clients wait (RFC 5246 §7.2.2).
    pub(super) fn refuse_renegotiation(&mut self, out: &mut Vec<u8>) -> Result<(), OpenError> {
        let count = &mut self.allowance.renegotiations;
        take_one(count, MAX_RENEGOTIATIONS, Violation::TooManyRenegotiations)?;
        if self.can_send {
            let sent = self.send_alert(AlertDescription::NoRenegotiation, out);
            sent.map_err(OpenError::from_seal)?;
        }
        Ok(())
    }

    /// Sends the client the alert for its violation and ends the session.
    fn fail(&mut self, error: OpenError, out: &mut Vec<u8>) -> OpenError {
        if let OpenError::Violation(violation) = error {
            // The connection's end tells as much.
            let _ = self.send_alert(violation.alert(), out);
        }
        self.kill();
        error
    }
}

/// Counts one more, at most `max`.
fn take_one(count: &mut u8, max: u8, violation: Violation) -> Result<(), Violation> {
    if *count >= max {
        return Err(violation);
    }
    *count += 1;
    Ok(())
}
