//! What a client sends to a held stream: records in any split, and the answers to them.
//!
//! Application data is counted and dropped: a held stream reads none. Everything else is bounded by
//! [`PeerAllowance`], so that a client cannot keep the server busy with records that say nothing.

use rustls::AlertDescription;

use super::handshake::{HandshakeMessage, HandshakeReader, KEY_UPDATE_NOT_REQUESTED};
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

/// How many records without content a client may send until the server sends data. Content of the
/// client renews nothing: a held stream expects none, and its holder bounds it.
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
    /// The server has sent data.
    pub(super) fn renew(&mut self) {
        self.empty_records = 0;
        self.key_updates = 0;
        self.warnings = 0;
    }
}

impl RecordSession {
    /// Opens what the client sent, in place, and appends answers to `out`: a key update to one that
    /// asks for it, `no_renegotiation` and `close_notify` in TLS 1.2, or the alert that ends the
    /// session. What comes behind the client's `close_notify` is dropped.
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
        let mut opened = OpenedBytes::default();
        while self.can_receive && !bytes.is_empty() {
            let done = self.open_next(&mut bytes, &mut opened, out);
            done.map_err(|error| self.fail(error, out))?;
        }
        opened.is_ended = !self.can_receive;
        Ok(opened)
    }

    /// Takes a record off `bytes`, or keeps what has come of it.
    fn open_next(
        &mut self,
        bytes: &mut &mut [u8],
        opened: &mut OpenedBytes,
        out: &mut Vec<u8>,
    ) -> Result<(), OpenError> {
        if self.partial_record.is_empty() {
            let Some(length) = self.record_length(bytes)? else {
                return self.keep_partial(bytes, RECORD_HEADER_BYTES);
            };
            return match bytes.split_off_mut(..length) {
                Some(record) => self.open_record(record, opened, out),
                None => self.keep_partial(bytes, length),
            };
        }
        if self.partial_record.len() < RECORD_HEADER_BYTES {
            self.keep_partial(bytes, RECORD_HEADER_BYTES)?;
        }
        let Some(length) = self.record_length(&self.partial_record)? else {
            return Ok(());
        };
        self.keep_partial(bytes, length)?;
        if self.partial_record.len() < length {
            return Ok(());
        }
        let mut record = std::mem::take(&mut self.partial_record);
        self.open_record(&mut record, opened, out)
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
    fn keep_partial(&mut self, bytes: &mut &mut [u8], length: usize) -> Result<(), OpenError> {
        let kept = &mut self.partial_record;
        let count = bytes.len().min(length.saturating_sub(kept.len()));
        let Some(piece) = bytes.split_off_mut(..count) else {
            return Ok(());
        };
        // No more memory than twice what the client has sent.
        let needed = kept.len() + count;
        if kept.capacity() < needed {
            let room = needed.max(length.min(2 * kept.capacity()));
            kept.reserve_exact(room - kept.len());
        }
        kept.extend_from_slice(piece);
        Ok(())
    }

    fn open_record(
        &mut self,
        record: &mut [u8],
        opened: &mut OpenedBytes,
        out: &mut Vec<u8>,
    ) -> Result<(), OpenError> {
        let Some((header, body)) = record.split_first_chunk_mut() else {
            return Ok(());
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
            content_type::APPLICATION_DATA => {
                opened.data_bytes += plaintext.len();
                Ok(self.count_data(plaintext.len())?)
            }
            content_type::ALERT => self.handle_alert(plaintext, out),
            content_type::HANDSHAKE => self.handle_handshake(plaintext, out),
            other => Err(Violation::UnexpectedRecord(other).into()),
        }
    }

    fn count_data(&mut self, length: usize) -> Result<(), Violation> {
        if length > 0 {
            return Ok(());
        }
        let count = &mut self.allowance.empty_records;
        take_one(count, MAX_EMPTY_RECORDS, Violation::TooManyEmptyRecords)
    }

    fn handle_alert(&mut self, alert: &[u8], out: &mut Vec<u8>) -> Result<(), OpenError> {
        const WARNING: u8 = 1;
        let (level, description) = match *alert {
            [level, description] => (level, AlertDescription::from(description)),
            [] => return Err(Violation::EmptyRecord.into()),
            _ => return Err(Violation::BadAlertLength.into()),
        };
        let is_warning = match description {
            AlertDescription::CloseNotify => {
                self.end_receiving(out);
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

    /// The client has sent its last. TLS 1.2 closes both sides then (RFC 5246 §7.2.1), TLS 1.3 one
    /// (RFC 8446 §6.1).
    fn end_receiving(&mut self, out: &mut Vec<u8>) {
        self.can_receive = false;
        self.receive_keys.erase();
        self.handshake = HandshakeReader::default();
        if !self.suite.is_tls13() {
            self.close_notify(out);
        }
    }

    fn handle_handshake(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), OpenError> {
        if bytes.is_empty() {
            return Err(Violation::EmptyRecord.into());
        }
        while !bytes.is_empty() {
            match self.handshake.read(self.suite.is_tls13(), &mut bytes)? {
                Some(HandshakeMessage::KeyUpdate { is_requested }) => {
                    self.update_keys(is_requested, out)?;
                }
                Some(HandshakeMessage::Renegotiation) => self.refuse_renegotiation(out)?,
                None => {}
            }
        }
        Ok(())
    }

    /// The client has gone on with its next key, and may ask for ours (RFC 8446 §4.6.3).
    fn update_keys(&mut self, is_requested: bool, out: &mut Vec<u8>) -> Result<(), OpenError> {
        let count = &mut self.allowance.key_updates;
        take_one(count, MAX_KEY_UPDATES, Violation::TooManyKeyUpdates)?;
        self.receive_keys.advance(self.suite)?;
        if is_requested && self.can_send {
            let updated = self.update_send_key(KEY_UPDATE_NOT_REQUESTED, out);
            updated.map_err(OpenError::from_seal)?;
        }
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
