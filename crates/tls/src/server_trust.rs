//! How a server proves itself to this program: by an authority, or by its fingerprint.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::pem_file::{self, PemError};

/// What makes a server trusted.
#[derive(Debug, Clone)]
pub enum ServerTrust {
    /// A certificate for the server's name from one of these authorities (`system_roots`,
    /// `roots_from_pem`).
    Authorities(Arc<RootCertStore>),
    /// A certificate with one of these fingerprints, whatever its names and dates are.
    Fingerprints(Vec<Fingerprint>),
    /// Any certificate: the connection is encrypted, and may be with an attacker. Only for an
    /// explicit word of the operator.
    Anything,
}

/// The SHA-256 of a certificate in DER, as `openssl x509 -fingerprint -sha256` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; digest::SHA256_OUTPUT_LEN]);

/// The text is no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a SHA-256 fingerprint: 64 hexadecimal digits, with or without colons")]
pub struct InvalidFingerprint;

/// Why there are no authorities.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// The system has none.
    #[error(
        "this system has no certificate authorities{}: install the package \"ca-certificates\", \
         or name a file of authorities (SSL_CERT_FILE, or `ca`)",
        cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default()
    )]
    NoSystemRoots {
        /// The first error of the search.
        cause: Option<rustls_native_certs::Error>,
    },
    /// A file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// A text has no certificates.
    #[error("no authorities: {0}")]
    Pem(#[from] PemError),
    /// A certificate cannot be an authority.
    #[error("certificate {position} cannot be used as an authority: {cause}")]
    Rejected {
        /// Its place in the text, from 1.
        position: usize,
        /// What rustls says.
        cause: Error,
    },
}

/// The authorities of the operating system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`. Reads files
/// and parses 150 certificates: call it once, off the event loops.
pub fn system_roots() -> Result<Arc<RootCertStore>, RootsError> {
    usable_roots(rustls_native_certs::load_native_certs())
}

/// Some systems have authorities that cannot be parsed; the others still count.
pub(crate) fn usable_roots(
    found: rustls_native_certs::CertificateResult,
) -> Result<Arc<RootCertStore>, RootsError> {
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    let cause = found.errors.into_iter().next();
    match usable {
        0 => Err(RootsError::NoSystemRoots { cause }),
        _ => Ok(Arc::new(roots)),
    }
}

/// The authorities of a PEM file. Each must be usable. Blocks: not for event loops.
pub fn roots_from_file(path: &Path) -> Result<Arc<RootCertStore>, RootsError> {
    roots_from_pem(&pem_file::read(path)?.text)
}

/// The authorities of a PEM text. Each must be usable.
pub fn roots_from_pem(text: &[u8]) -> Result<Arc<RootCertStore>, RootsError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in pem_file::certificates(text)?.into_iter().enumerate() {
        let added = roots.add(certificate);
        added.map_err(|cause| RootsError::Rejected {
            position: index + 1,
            cause,
        })?;
    }
    Ok(Arc::new(roots))
}

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; digest::SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    /// Accepts digits in both cases, with or without colons between bytes.
    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let digits: Vec<char> = text.chars().filter(|c| *c != ':').collect();
        let mut bytes = [0; digest::SHA256_OUTPUT_LEN];
        if digits.len() != 2 * bytes.len() {
            return Err(InvalidFingerprint);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |c: char| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let (high, low) = digit(pair[0])
                .zip(digit(pair[1]))
                .ok_or(InvalidFingerprint)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

/// Accepts a server by its fingerprint, or any server. The server still proves that it has the key
/// of its certificate.
#[derive(Debug)]
pub(crate) struct FingerprintVerifier {
    /// `None` accepts any certificate.
    pub(crate) accepted: Option<Vec<Fingerprint>>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for FingerprintVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_accepted = |accepted: &Vec<Fingerprint>| accepted.contains(&Fingerprint::of(leaf));
        match self.accepted.as_ref().is_none_or(is_accepted) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
