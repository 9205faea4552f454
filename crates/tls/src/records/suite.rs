//! The cipher suites of records: their algorithms, limits and forms.

use aws_lc_rs::{aead, hkdf};
use rustls::{ConnectionTrafficSecrets, SupportedCipherSuite};

use super::ExtractError;

/// A version of TLS with an AEAD. The numbers are in the bytes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RecordSuite {
    Tls13Aes128Gcm = 1,
    Tls13Aes256Gcm = 2,
    Tls13Chacha20Poly1305 = 3,
    Tls12Aes128Gcm = 4,
    Tls12Aes256Gcm = 5,
    Tls12Chacha20Poly1305 = 6,
}

/// Records that an AES-GCM key seals. The limit is 2^24 (RFC 8446 §5.5); half of it is left for
/// alerts and key updates.
const MAX_GCM_RECORDS: u64 = 1 << 23;

/// ChaCha20-Poly1305 has no limit before that of the sequence number.
const MAX_CHACHA_RECORDS: u64 = u64::MAX - (1 << 16);

impl RecordSuite {
    pub(super) const ALL: [Self; 6] = [
        Self::Tls13Aes128Gcm,
        Self::Tls13Aes256Gcm,
        Self::Tls13Chacha20Poly1305,
        Self::Tls12Aes128Gcm,
        Self::Tls12Aes256Gcm,
        Self::Tls12Chacha20Poly1305,
    ];

    pub(super) fn new(
        suite: SupportedCipherSuite,
        secrets: &ConnectionTrafficSecrets,
    ) -> Result<Self, ExtractError> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        Ok(match (suite.tls13().is_some(), secrets) {
            (true, Aes128Gcm { .. }) => Self::Tls13Aes128Gcm,
            (true, Aes256Gcm { .. }) => Self::Tls13Aes256Gcm,
            (true, Chacha20Poly1305 { .. }) => Self::Tls13Chacha20Poly1305,
            (false, Aes128Gcm { .. }) => Self::Tls12Aes128Gcm,
            (false, Aes256Gcm { .. }) => Self::Tls12Aes256Gcm,
            (false, Chacha20Poly1305 { .. }) => Self::Tls12Chacha20Poly1305,
            _ => return Err(ExtractError::UnsupportedSuite),
        })
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| *suite as u8 == number)
    }

    pub(super) fn is_tls13(self) -> bool {
        matches!(
            self,
            Self::Tls13Aes128Gcm | Self::Tls13Aes256Gcm | Self::Tls13Chacha20Poly1305
        )
    }

    fn is_chacha(self) -> bool {
        matches!(
            self,
            Self::Tls13Chacha20Poly1305 | Self::Tls12Chacha20Poly1305
        )
    }

    pub(super) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Tls13Aes128Gcm | Self::Tls12Aes128Gcm => &aead::AES_128_GCM,
            Self::Tls13Aes256Gcm | Self::Tls12Aes256Gcm => &aead::AES_256_GCM,
            Self::Tls13Chacha20Poly1305 | Self::Tls12Chacha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    /// The hash of the key schedule of TLS 1.3 (RFC 8446 §B.4).
    pub(super) fn hash(self) -> hkdf::Algorithm {
        match self {
            Self::Tls13Aes256Gcm => hkdf::HKDF_SHA384,
            _ => hkdf::HKDF_SHA256,
        }
    }

    pub(super) fn key_bytes(self) -> usize {
        self.aead().key_len()
    }

    /// Records that a key may seal.
    pub(super) fn max_records(self) -> u64 {
        if self.is_chacha() {
            MAX_CHACHA_RECORDS
        } else {
            MAX_GCM_RECORDS
        }
    }

    /// Bytes of the nonce that a record carries: GCM in TLS 1.2 (RFC 5288 §3).
    pub(super) fn explicit_nonce_bytes(self) -> usize {
        if self.is_tls13() || self.is_chacha() {
            0
        } else {
            8
        }
    }

    /// Whether the content type is behind the plaintext.
    pub(super) fn has_inner_type(self) -> bool {
        self.is_tls13()
    }
}
