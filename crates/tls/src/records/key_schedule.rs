//! The steps of the key schedule behind a handshake: from a traffic secret to its key, to the next
//! secret, and from the exporter secret to a channel binding (RFC 8446 §7.2, §7.3, §7.5).

use std::fmt;

use aws_lc_rs::{digest, hkdf};
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
        self.expand_label(hash, b"traffic upd", b"", &mut next.0[..length])?;
        Ok(next)
    }

    /// `HKDF-Expand-Label(secret, label, context, out.len())` (RFC 8446 §7.1).
    pub(super) fn expand_label(
        &self,
        hash: hkdf::Algorithm,
        label: &[u8],
        context: &[u8],
        out: &mut [u8],
    ) -> Result<(), CipherError> {
        const PREFIX: &[u8] = b"tls13 ";
        const FAILED: CipherError = CipherError("HKDF");
        let length = u16::try_from(out.len()).map_err(|_| FAILED)?.to_be_bytes();
        let label_length = [u8::try_from(PREFIX.len() + label.len()).map_err(|_| FAILED)?];
        let context_length = [u8::try_from(context.len()).map_err(|_| FAILED)?];
        let info = [
            &length[..],
            &label_length,
            PREFIX,
            label,
            &context_length,
            context,
        ];
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

/// The `tls-exporter` of a session (RFC 9266 §2), from its exporter secret: `TLS-Exporter` with an
/// empty context (RFC 8446 §7.5). `None` if the secret is of no known hash.
pub(super) fn tls_exporter(exporter_secret: &[u8]) -> Option<[u8; 32]> {
    let hashes = [hkdf::HKDF_SHA256, hkdf::HKDF_SHA384];
    let is_its_hash = |hash: &hkdf::Algorithm| hash_bytes(*hash) == exporter_secret.len();
    let hash = hashes.into_iter().find(is_its_hash)?;
    let empty = digest::digest(hash.hmac_algorithm().digest_algorithm(), b"");
    let (mut derived, mut exported) = (Secret::NONE, [0; 32]);
    let length = exporter_secret.len();
    Secret::new(exporter_secret)?
        .expand_label(
            hash,
            b"EXPORTER-Channel-Binding",
            empty.as_ref(),
            &mut derived.0[..length],
        )
        .and_then(|()| derived.expand_label(hash, b"exporter", empty.as_ref(), &mut exported))
        .ok()?;
    Some(exported)
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
