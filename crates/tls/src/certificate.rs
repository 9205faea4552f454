//! A certificate that a server can present: its chain, its key, its facts and its origin.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::sign::CertifiedKey;

use crate::x509::{CertificateFacts, KeyKind};

/// A chain with its private key. Cheap to share; never changes.
#[derive(Clone)]
pub struct ServerCertificate {
    /// What rustls signs with.
    pub certified_key: Arc<CertifiedKey>,
    /// The facts of the leaf.
    pub facts: CertificateFacts,
    /// Where it came from.
    pub source: CertificateSource,
}

/// Where a certificate came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// A file of the operator.
    File(PathBuf),
    /// An ACME server.
    Acme,
    /// The local authority for development.
    LocalAuthority,
    /// A stand-in that no client trusts, until the right one is there.
    SelfSigned,
}

impl CertificateSource {
    /// The name of the source in snapshots and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Acme => "acme",
            Self::LocalAuthority => "local",
            Self::SelfSigned => "self_signed",
        }
    }
}

impl ServerCertificate {
    /// Whether the client verifies signatures of this key.
    pub(crate) fn suits(&self, offered: &[SignatureScheme]) -> bool {
        schemes(self.facts.key)
            .iter()
            .any(|scheme| offered.contains(scheme))
    }
}

impl fmt::Debug for ServerCertificate {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificate")
            .field("facts", &self.facts)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The schemes that a key can sign with (RFC 8446 §4.2.3). A table, because asking the key builds
/// a signer on the heap.
fn schemes(key: KeyKind) -> &'static [SignatureScheme] {
    match key {
        KeyKind::EcdsaP256 => &[SignatureScheme::ECDSA_NISTP256_SHA256],
        KeyKind::EcdsaP384 => &[SignatureScheme::ECDSA_NISTP384_SHA384],
        KeyKind::EcdsaP521 => &[SignatureScheme::ECDSA_NISTP521_SHA512],
        KeyKind::Ed25519 => &[SignatureScheme::ED25519],
        KeyKind::Rsa { .. } => &[
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
        ],
        KeyKind::Other => &[],
    }
}
