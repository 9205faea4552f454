//! Finds the private key in a PEM text: PKCS#8, SEC 1 or PKCS#1, and not encrypted.

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{self, PemObject};

use super::CertificateError;

/// The first private key of a text, beside whatever else it holds (parameters, certificates).
pub(crate) fn parse(text: &[u8]) -> Result<PrivateKeyDer<'static>, CertificateError> {
    match PrivateKeyDer::from_pem_slice(text) {
        Ok(key) => Ok(key),
        // The lines of the old form's encryption are not base64.
        Err(_) if is_encrypted(text) => Err(CertificateError::EncryptedKey),
        Err(pem::Error::NoItemsFound) => Err(CertificateError::NoKey),
        Err(_) => Err(CertificateError::InvalidKey),
    }
}

/// Whether a key is encrypted, by PKCS#8 (RFC 5958 §3) or in OpenSSL's old form (RFC 1421 §4.6).
fn is_encrypted(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.any(|line| {
        line == b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
            || line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED")
    })
}
