//! One direction of a session: its key, its sequence number, and one record with them.
//!
//! TLS 1.3 protects records by RFC 8446 §5.2, TLS 1.2 by RFC 5288 (GCM) and RFC 7905
//! (ChaCha20-Poly1305). The first record expands the key, and [`RecordKeys::release`] drops what it
//! was expanded to: that takes more memory than all the rest of a session.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use rustls::ConnectionTrafficSecrets;
use zeroize::{Zeroize, Zeroizing};

use super::key_schedule::{CipherError, Secret};
use super::suite::RecordSuite;
use super::{ExtractError, MAX_PLAINTEXT_BYTES, RECORD_HEADER_BYTES, Violation, content_type};

pub(super) const MAX_KEY_BYTES: usize = 32;
pub(super) const IV_BYTES: usize = 12;

/// Bytes of the tag of every suite.
const TAG_BYTES: usize = 16;

/// The version in every header (RFC 8446 §5.2).
const LEGACY_VERSION: [u8; 2] = [3, 3];

/// What protects the records of one direction. Erased when dropped.
pub(super) struct RecordKeys {
    /// Of the next record.
    pub(super) sequence: u64,
    /// From which the next key comes. TLS 1.2 has none.
    pub(super) secret: Secret,
    /// Padded with zeros.
    pub(super) key: [u8; MAX_KEY_BYTES],
    pub(super) iv: [u8; IV_BYTES],
    /// `key` as the library uses it. Boxed: most sessions are idle, and have none.
    expanded: Option<Box<LessSafeKey>>,
}

/// A record that is being written.
pub(super) struct RecordWriter {
    suite: RecordSuite,
    content: u8,
    /// Where it begins in the buffer.
    start: usize,
    nonce: [u8; IV_BYTES],
}

impl RecordKeys {
    /// Keys as `rustls` extracts them, without their secret.
    pub(super) fn from_extracted(
        suite: RecordSuite,
        extracted: &ConnectionTrafficSecrets,
        sequence: u64,
    ) -> Result<Self, ExtractError> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let (Aes128Gcm { key, iv } | Aes256Gcm { key, iv } | Chacha20Poly1305 { key, iv }) =
            extracted
        else {
            return Err(ExtractError::UnsupportedSuite);
        };
        let (key, iv) = (key.as_ref(), iv.as_ref());
        if key.len() != suite.key_bytes() || iv.len() != IV_BYTES {
            return Err(ExtractError::UnsupportedSuite);
        }
        let mut keys = Self::empty(Secret::NONE, sequence);
        keys.key[..key.len()].copy_from_slice(key);
        keys.iv.copy_from_slice(iv);
        Ok(keys)
    }

    /// The first keys of a secret of TLS 1.3.
    pub(super) fn from_secret(suite: RecordSuite, secret: Secret) -> Result<Self, CipherError> {
        let mut keys = Self::empty(secret, 0);
        let key = &mut keys.key[..suite.key_bytes()];
        keys.secret.expand_label(suite.hash(), b"key", b"", key)?;
        keys.secret
            .expand_label(suite.hash(), b"iv", b"", &mut keys.iv)?;
        Ok(keys)
    }

    fn empty(secret: Secret, sequence: u64) -> Self {
        Self::from_parts(sequence, secret, [0; MAX_KEY_BYTES], [0; IV_BYTES])
    }

    pub(super) fn from_parts(
        sequence: u64,
        secret: Secret,
        key: [u8; MAX_KEY_BYTES],
        iv: [u8; IV_BYTES],
    ) -> Self {
        Self {
            sequence,
            secret,
            key,
            iv,
            expanded: None,
        }
    }

    /// Completes the keys of TLS 1.3 with their secret, the first of the session.
    pub(super) fn set_secret(
        &mut self,
        suite: RecordSuite,
        first: &Secret,
    ) -> Result<(), ExtractError> {
        let mut expected = Zeroizing::new([0; MAX_KEY_BYTES]);
        let key = &mut expected[..suite.key_bytes()];
        first.expand_label(suite.hash(), b"key", b"", key)?;
        verify_slices_are_equal(&*expected, &self.key)
            .map_err(|_| ExtractError::WrongTrafficSecrets)?;
        self.secret = first.clone();
        Ok(())
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Goes on with the next secret, from record 0.
    pub(super) fn advance(&mut self, suite: RecordSuite) -> Result<(), CipherError> {
        let next = self.secret.next(suite.hash())?;
        *self = Self::from_secret(suite, next)?;
        Ok(())
    }

    /// Drops the key as the library uses it, which erases it. The next record expands it again.
    pub(super) fn release(&mut self) {
        self.expanded = None;
    }

    pub(super) fn is_expanded(&self) -> bool {
        self.expanded.is_some()
    }

    /// The key as the library uses it.
    fn expand(&mut self, suite: RecordSuite) -> Result<&LessSafeKey, CipherError> {
        let expanded = match self.expanded.take() {
            Some(expanded) => expanded,
            None => {
                let key = UnboundKey::new(suite.aead(), &self.key[..suite.key_bytes()]);
                Box::new(LessSafeKey::new(key.map_err(|_| CipherError("AEAD key"))?))
            }
        };
        Ok(self.expanded.insert(expanded))
    }

    /// Appends what comes before the plaintext of a record, which the caller appends then:
    /// `length` bytes, at most [`MAX_PLAINTEXT_BYTES`].
    pub(super) fn begin_record(
        &self,
        suite: RecordSuite,
        content: u8,
        length: usize,
        out: &mut Vec<u8>,
    ) -> RecordWriter {
        debug_assert!(length <= MAX_PLAINTEXT_BYTES);
        let start = out.len();
        let nonce = self.nonce();
        let explicit = suite.explicit_nonce_bytes();
        let (outer, inner) = match suite.has_inner_type() {
            true => (content_type::APPLICATION_DATA, 1),
            false => (content, 0),
        };
        let body = length_bytes(explicit + length + inner + TAG_BYTES);
        out.push(outer);
        out.extend_from_slice(&LEGACY_VERSION);
        out.extend_from_slice(&body);
        // The sequence number makes it unique, and the rest of it is masked (RFC 5288 §3).
        out.extend_from_slice(&nonce[IV_BYTES - explicit..]);
        RecordWriter {
            suite,
            content,
            start,
            nonce,
        }
    }

    /// Encrypts the plaintext at the end of `out` and counts the record. On an error the record is
    /// taken back.
    pub(super) fn finish_record(
        &mut self,
        record: RecordWriter,
        out: &mut Vec<u8>,
    ) -> Result<(), CipherError> {
        let RecordWriter {
            suite,
            content,
            start,
            nonce,
        } = record;
        let body = start + RECORD_HEADER_BYTES + suite.explicit_nonce_bytes();
        let plaintext = out.len() - body;
        if suite.has_inner_type() {
            out.push(content);
        }
        let (before, in_out) = out.split_at_mut(body);
        let aad = additional_data(suite, self.sequence, &before[start..], plaintext);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = self.expand(suite).and_then(|key| {
            let sealed = key.seal_in_place_separate_tag(nonce, Aad::from(aad.bytes()), in_out);
            sealed.map_err(|_| CipherError("AEAD seal"))
        });
        let (Ok(tag), Some(next)) = (sealed, self.sequence.checked_add(1)) else {
            out.truncate(start);
            return Err(CipherError("AEAD seal"));
        };
        out.extend_from_slice(tag.as_ref());
        self.sequence = next;
        Ok(())
    }

    /// Decrypts the body of a record in place: its content type, and its plaintext. The body is at
    /// most [`MAX_BODY_BYTES`] long.
    pub(super) fn open_record<'a>(
        &mut self,
        suite: RecordSuite,
        header: [u8; RECORD_HEADER_BYTES],
        body: &'a mut [u8],
    ) -> Result<(u8, &'a mut [u8]), RecordError> {
        let explicit = suite.explicit_nonce_bytes();
        let Some(plaintext) = body.len().checked_sub(explicit + TAG_BYTES) else {
            return Err(Violation::BadRecordMac.into());
        };
        let mut nonce = self.nonce();
        let (explicit_nonce, in_out) = body.split_at_mut(explicit);
        nonce[IV_BYTES - explicit..].copy_from_slice(explicit_nonce);
        let aad = additional_data(suite, self.sequence, &header, plaintext);
        let key = self.expand(suite)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = key.open_in_place(nonce, Aad::from(aad.bytes()), in_out);
        let content = opened.map_err(|_| Violation::BadRecordMac)?;
        let next = self.sequence.checked_add(1);
        self.sequence = next.ok_or(Violation::SequenceExhausted)?;
        let opened = match suite.has_inner_type() {
            true => strip_padding(content)?,
            false => (header[0], content),
        };
        if opened.1.len() > MAX_PLAINTEXT_BYTES {
            return Err(Violation::RecordOverflow.into());
        }
        Ok(opened)
    }

    pub(super) fn erase(&mut self) {
        self.release();
        self.secret.erase();
        self.key.zeroize();
        self.iv.zeroize();
    }

    /// The IV and the sequence number (RFC 8446 §5.3, RFC 7905 §2).
    fn nonce(&self) -> [u8; IV_BYTES] {
        let mut nonce = self.iv;
        let sequence = self.sequence.to_be_bytes();
        for (byte, mask) in nonce[IV_BYTES - sequence.len()..].iter_mut().zip(sequence) {
            *byte ^= mask;
        }
        nonce
    }
}

impl Drop for RecordKeys {
    fn drop(&mut self) {
        self.erase();
    }
}

/// Why a record does not open.
pub(super) enum RecordError {
    Violation(Violation),
    Cipher(CipherError),
}

impl From<Violation> for RecordError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<CipherError> for RecordError {
    fn from(error: CipherError) -> Self {
        Self::Cipher(error)
    }
}

/// What a tag protects beside the content.
struct AdditionalData {
    bytes: [u8; 13],
    length: usize,
}

impl AdditionalData {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The header in TLS 1.3 (RFC 8446 §5.2); the sequence number and the header with the length of
/// the plaintext in TLS 1.2 (RFC 5246 §6.2.3.3). `header` may be longer than a header.
fn additional_data(
    suite: RecordSuite,
    sequence: u64,
    header: &[u8],
    plaintext: usize,
) -> AdditionalData {
    let mut bytes = [0; 13];
    let length = if suite.is_tls13() {
        bytes[..5].copy_from_slice(&header[..5]);
        5
    } else {
        bytes[..8].copy_from_slice(&sequence.to_be_bytes());
        bytes[8..11].copy_from_slice(&header[..3]);
        bytes[11..].copy_from_slice(&length_bytes(plaintext));
        13
    };
    AdditionalData { bytes, length }
}

/// The type behind the plaintext, and the plaintext without its padding (RFC 8446 §5.4).
fn strip_padding(content: &mut [u8]) -> Result<(u8, &mut [u8]), Violation> {
    if content.len() > MAX_PLAINTEXT_BYTES + 1 {
        return Err(Violation::RecordOverflow);
    }
    let end = content.iter().rposition(|byte| *byte != 0);
    let end = end.ok_or(Violation::NoContentType)?;
    let kind = content[end];
    Ok((kind, &mut content[..end]))
}

/// A length in a header; records are far below the limit of the field.
fn length_bytes(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}
