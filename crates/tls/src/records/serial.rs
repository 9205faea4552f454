//! A session as bytes, for the next process of an upgrade.
//!
//! The format is private to Penstock: a version, fields of fixed length, and the partial record
//! with its length. Numbers are big-endian.

use zeroize::{Zeroize, Zeroizing};

use super::handshake::{HEADER_BYTES, HandshakeReader};
use super::incoming::{MAX_PARTIAL_BYTES, PeerAllowance};
use super::key_schedule::{MAX_SECRET_BYTES, Secret};
use super::record_keys::{IV_BYTES, MAX_KEY_BYTES, RecordKeys};
use super::suite::RecordSuite;
use super::{RecordSession, RestoreError};

const FORMAT: u8 = 1;

const KEYS_BYTES: usize = 8 + MAX_SECRET_BYTES + MAX_KEY_BYTES + IV_BYTES;

/// Bytes without the partial record.
const FIXED_BYTES: usize = 3 + 2 * KEYS_BYTES + HEADER_BYTES + 1 + 2 + 4 + 2;

const CAN_SEND: u8 = 1;
const CAN_RECEIVE: u8 = 2;
const IS_DEAD: u8 = 4;
const OWES_KEY_UPDATE: u8 = 8;

impl RecordSession {
    /// The session with its keys, for [`Self::from_bytes`] of one other process. This one must not
    /// be used again: two owners would seal two records with one nonce. The bytes are erased when
    /// they are dropped.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let partial = &self.partial_record;
        let length = FIXED_BYTES + partial.len();
        // Erased memory is never given back by a growing vector.
        let mut out = Zeroizing::new(Vec::with_capacity(length));
        let mut flags = 0;
        flags |= if self.can_send { CAN_SEND } else { 0 };
        flags |= if self.can_receive { CAN_RECEIVE } else { 0 };
        flags |= if self.is_dead { IS_DEAD } else { 0 };
        flags |= if self.owes_key_update {
            OWES_KEY_UPDATE
        } else {
            0
        };
        out.extend([FORMAT, self.suite as u8, flags]);
        for keys in [&self.send_keys, &self.receive_keys] {
            out.extend(keys.sequence.to_be_bytes());
            out.extend_from_slice(&keys.secret.0);
            out.extend_from_slice(&keys.key);
            out.extend_from_slice(&keys.iv);
        }
        out.extend(self.handshake.header);
        out.push(self.handshake.header_bytes);
        out.extend(self.handshake.skipped_bytes.to_be_bytes());
        let PeerAllowance {
            empty_records,
            key_updates,
            warnings,
            renegotiations,
        } = self.allowance;
        out.extend([empty_records, key_updates, warnings, renegotiations]);
        let partial_length = u16::try_from(partial.len()).unwrap_or(u16::MAX);
        out.extend(partial_length.to_be_bytes());
        out.extend_from_slice(partial);
        debug_assert_eq!(out.len(), length);
        out
    }

    /// The session of [`Self::to_bytes`].
    ///
    /// # Errors
    /// The bytes are none, or of another version. The session is lost with them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RestoreError> {
        let mut reader = FieldReader(bytes);
        let [format] = reader.read()?;
        if format != FORMAT {
            return Err(RestoreError::Version(format));
        }
        let [suite, flags] = reader.read()?;
        let suite = RecordSuite::from_number(suite).ok_or(RestoreError::Field("cipher suite"))?;
        let of_living = CAN_SEND | CAN_RECEIVE | OWES_KEY_UPDATE;
        if flags != IS_DEAD && flags & !of_living != 0 {
            return Err(RestoreError::Field("state"));
        }
        let (send_keys, receive_keys) = (reader.read_keys()?, reader.read_keys()?);
        let handshake = reader.read_handshake()?;
        let [empty_records, key_updates, warnings, renegotiations] = reader.read()?;
        let partial_length = usize::from(u16::from_be_bytes(reader.read()?));
        let partial = reader.0;
        if partial.len() != partial_length {
            return Err(RestoreError::Length);
        }
        if partial_length > MAX_PARTIAL_BYTES {
            return Err(RestoreError::Field("partial record"));
        }
        let mut session = Self::from_keys(suite, send_keys, receive_keys);
        session.can_send = flags & CAN_SEND != 0;
        session.can_receive = flags & CAN_RECEIVE != 0;
        session.is_dead = flags & IS_DEAD != 0;
        session.owes_key_update = flags & OWES_KEY_UPDATE != 0;
        session.handshake = handshake;
        session.allowance = PeerAllowance {
            empty_records,
            key_updates,
            warnings,
            renegotiations,
        };
        session.partial_record = partial.to_vec();
        session.check_partial()?;
        Ok(session)
    }

    /// A partial record is one that is not whole.
    fn check_partial(&self) -> Result<(), RestoreError> {
        const WRONG: RestoreError = RestoreError::Field("partial record");
        match self.record_length(&self.partial_record) {
            Ok(Some(length)) if self.partial_record.len() >= length => Err(WRONG),
            Ok(_) => Ok(()),
            Err(_) => Err(WRONG),
        }
    }
}

/// Reads fields of fixed length.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn read<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(RestoreError::Length)?;
        self.0 = rest;
        Ok(*field)
    }

    fn read_keys(&mut self) -> Result<RecordKeys, RestoreError> {
        let sequence = u64::from_be_bytes(self.read()?);
        let mut secret = self.read()?;
        let mut key = self.read()?;
        let iv = self.read()?;
        let keys = RecordKeys::from_parts(sequence, Secret(secret), key, iv);
        secret.zeroize();
        key.zeroize();
        Ok(keys)
    }

    fn read_handshake(&mut self) -> Result<HandshakeReader, RestoreError> {
        let header = self.read()?;
        let [header_bytes] = self.read()?;
        if usize::from(header_bytes) > HEADER_BYTES {
            return Err(RestoreError::Field("handshake message"));
        }
        Ok(HandshakeReader {
            header,
            header_bytes,
            skipped_bytes: u16::from_be_bytes(self.read()?),
        })
    }
}
