//! The steps of the key schedule behind a handshake: from a traffic secret to its key, and to the
//! next secret (RFC 8446 §7.2, §7.3).

use std::fmt;

use aws_lc_rs::hkdf;
use zeroize::Zeroize;

/// Bytes of the longest secret: SHA-384.
pub(super) const MAX_SECRET_BYTES: usize = 48;

/// The library failed at what it was given, which is no fault of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cryptographic library failed ({0})")]
pub struct CipherError(pub(super) &'static str);

/// A traffic secret, padded with zeros. Erased when dropped.
#[derive(Clone)]
pub(super) struct Secret(pub(super) [u8; MAX_SECRET_BYTES]);

impl Secret {
    pub(super) const NONE: Self = Self([0; MAX_SECRET_BYTES]);

    /// `None` if it is longer than the longest hash.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let mut secret = Self::NONE;
        secret.0.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(secret)
    }

    /// The secret behind this one: `HKDF-Expand-Label(secret, "traffic upd", "", length)`.
    pub(super) fn next(&self, hash: hkdf::Algorithm) -> Result<Self, CipherError> {
        let mut next = Self::NONE;
        let length = hash_bytes(hash);
        self.expand_label(hash, b"traffic upd", &mut next.0[..length])?;
        Ok(next)
    }

    /// `HKDF-Expand-Label(secret, label, "", out.len())` (RFC 8446 §7.1).
    pub(super) fn expand_label(
        &self,
        hash: hkdf::Algorithm,
        label: &[u8],
        out: &mut [u8],
    ) -> Result<(), CipherError> {
        const PREFIX: &[u8] = b"tls13 ";
        const FAILED: CipherError = CipherError("HKDF");
        let length = u16::try_from(out.len()).map_err(|_| FAILED)?.to_be_bytes();
        let label_length = [u8::try_from(PREFIX.len() + label.len()).map_err(|_| FAILED)?];
        // The context is empty.
        let info = [&length[..], &label_length, PREFIX, label, &[0]];
        let secret = &self.0[..hash_bytes(hash)];
        let expander = hkdf::Prk::new_less_safe(hash, secret);
        let expanded = expander.expand(&info, ByteCount(out.len()));
        expanded.and_then(|okm| okm.fill(out)).map_err(|_| FAILED)
    }

    pub(super) fn erase(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.erase();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Bytes of a hash, and of the secrets of suites with it.
fn hash_bytes(hash: hkdf::Algorithm) -> usize {
    hash.hmac_algorithm().tag_len()
}

struct ByteCount(usize);

impl hkdf::KeyType for ByteCount {
    fn len(&self) -> usize {
        self.0
    }
}
