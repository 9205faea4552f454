//! Loads a certificate chain and its key from PEM, and names every problem with them.
//!
//! `parse` is pure: bytes and a time in, a certificate or an error out. `load` reads the files
//! first. Both are for `check`, start, reload and the store of ACME.
//!
//! # Invariants
//!
//! - A certificate that is returned can complete a handshake: its key is its own and strong enough.
//! - What may still make clients refuse it is in `problems`. An expired certificate is such a
//!   problem and no error: after a restart, a site with an expired certificate is better than none,
//!   and `check` fails on it. `refresh` keeps the certificate in use, if that one is better.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SigningKey};

mod checks;
pub(crate) mod private_key;
mod refresh;
#[cfg(test)]
mod tests;

pub use checks::{CertificateProblem, ProblemSeverity};
pub use refresh::{KeepReason, RefreshOutcome, refresh};

use crate::certificate::{CertificateSource, ServerCertificate};
use crate::pem_file::{self, PemError};
use crate::x509::{CertificateFacts, KeyKind};

/// The longest chain that is accepted. Public chains have two or three certificates; each takes
/// room in every full handshake.
const MAX_CHAIN: usize = 10;

/// The smallest RSA modulus: browsers refuse less, and so does the provider.
const MIN_RSA_BITS: usize = 2048;

/// A certificate, and what clients may hold against it.
#[derive(Debug, Clone)]
pub struct LoadedCertificate {
    /// The certificate, ready for the store.
    pub certificate: ServerCertificate,
    /// Its problems, the worst first.
    pub problems: Vec<CertificateProblem>,
}

impl LoadedCertificate {
    /// The problems that make `check` fail.
    pub fn errors(&self) -> impl Iterator<Item = &CertificateProblem> {
        self.problems
            .iter()
            .filter(|problem| problem.severity() == ProblemSeverity::Error)
    }

    /// The hosts that the certificate does not cover: an error list for `check`, a warning at run
    /// time.
    pub fn uncovered_hosts<'a>(&self, hosts: &'a [String]) -> Vec<&'a str> {
        let facts = &self.certificate.facts;
        let uncovered = hosts.iter().filter(|host| !facts.covers(host));
        uncovered.map(String::as_str).collect()
    }
}

/// The files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, leaf first.
    pub certificate: PathBuf,
    /// The key; without it, the file of the chain holds the key too.
    pub key: Option<PathBuf>,
}

/// A file that is no usable certificate or key, with its cause.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct CertificateFileError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub cause: CertificateError,
}

/// Why a chain and a key are no usable certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// Every user of the machine may replace the key.
    #[error(
        "every user may write this key (mode {mode:o}): run \"chmod 600\" on it and replace it"
    )]
    WritableKey {
        /// The permission bits.
        mode: u32,
    },
    /// The text of the chain is no PEM with certificates.
    #[error("has no certificate: {0}")]
    NoCertificate(#[from] PemError),
    /// More certificates than a chain has.
    #[error(
        "has {0} certificates, and a chain has at most {MAX_CHAIN}: is it a bundle of authorities?"
    )]
    TooManyCertificates(usize),
    /// A certificate of the chain is damaged.
    #[error("certificate {0} of the chain is damaged: it cannot be read as X.509")]
    InvalidCertificate(usize),
    /// The text has no private key.
    #[error("has no private key: expected \"-----BEGIN PRIVATE KEY-----\" (also EC or RSA)")]
    NoKey,
    /// The key asks for a passphrase.
    #[error(
        "the key is encrypted: write it without a passphrase, \
         with \"openssl pkey -in FILE -out FILE\""
    )]
    EncryptedKey,
    /// The key is damaged or of a kind that cannot sign in TLS.
    #[error(
        "the key is damaged or of an unsupported kind: use ECDSA P-256 or P-384, Ed25519 or RSA"
    )]
    InvalidKey,
    /// The key can be broken.
    #[error(
        "the RSA key has {bits} bits, and clients accept {MIN_RSA_BITS} and more: make a new key"
    )]
    WeakKey {
        /// The size of its modulus.
        bits: usize,
    },
    /// The key belongs to another certificate of the chain.
    #[error("the key belongs to certificate {0} of the chain: the server's own must be the first")]
    LeafNotFirst(usize),
    /// The key belongs to none of the certificates.
    #[error("the key does not belong to the certificate for {0}")]
    Mismatch(String),
}

/// Reads and parses the files of a certificate. Blocks: not for event loops.
pub fn load(
    files: &CertificateFiles,
    now: UnixTime,
) -> Result<LoadedCertificate, CertificateFileError> {
    let key_path = files.key.as_ref().unwrap_or(&files.certificate);
    let failed = |path: &Path, cause| CertificateFileError {
        path: path.to_owned(),
        cause,
    };
    let read = |path: &Path| pem_file::read(path).map_err(|error| failed(path, error.into()));
    let chain = read(&files.certificate)?;
    let separate = files.key.as_deref().map(read).transpose()?;
    let key = separate.as_ref().unwrap_or(&chain);
    let access = checks::check_key_mode(key.mode).map_err(|cause| failed(key_path, cause))?;
    let source = CertificateSource::File(files.certificate.clone());
    let mut loaded = parse(&chain.text, &key.text, source, now).map_err(|cause| {
        let path = if cause.concerns_key() {
            key_path
        } else {
            &files.certificate
        };
        failed(path, cause)
    })?;
    loaded.problems.extend(access);
    loaded.problems.sort_by_key(CertificateProblem::severity);
    Ok(loaded)
}

/// Parses a chain and its key. The two texts may be one.
pub fn parse(
    chain: &[u8],
    key: &[u8],
    source: CertificateSource,
    now: UnixTime,
) -> Result<LoadedCertificate, CertificateError> {
    let chain = pem_file::certificates(chain)?;
    if chain.len() > MAX_CHAIN {
        return Err(CertificateError::TooManyCertificates(chain.len()));
    }
    let facts = chain_facts(&chain)?;
    check_strength(&facts[0])?;
    let certified_key = certify(&chain, private_key::parse(key)?, &facts[0])?;
    let mut problems = checks::check_chain(&chain, &facts, now);
    problems.sort_by_key(CertificateProblem::severity);
    let certificate = ServerCertificate {
        certified_key: Arc::new(certified_key),
        facts: facts
            .into_iter()
            .next()
            .ok_or(PemError::Empty("CERTIFICATE"))?,
        source,
    };
    Ok(LoadedCertificate {
        certificate,
        problems,
    })
}

impl CertificateError {
    /// Whether the cause is in the key's file.
    fn concerns_key(&self) -> bool {
        matches!(
            self,
            Self::NoKey | Self::EncryptedKey | Self::InvalidKey | Self::Mismatch(_)
        )
    }
}

fn chain_facts(chain: &[CertificateDer<'_>]) -> Result<Vec<CertificateFacts>, CertificateError> {
    let facts = |(index, der)| {
        CertificateFacts::from_der(der).map_err(|_| CertificateError::InvalidCertificate(index + 1))
    };
    chain.iter().enumerate().map(facts).collect()
}

fn check_strength(leaf: &CertificateFacts) -> Result<(), CertificateError> {
    match leaf.key {
        KeyKind::Rsa { bits } if bits < MIN_RSA_BITS => Err(CertificateError::WeakKey { bits }),
        _ => Ok(()),
    }
}

fn certify(
    chain: &[CertificateDer<'static>],
    key: PrivateKeyDer<'static>,
    leaf: &CertificateFacts,
) -> Result<CertifiedKey, CertificateError> {
    let provider = aws_lc_rs::default_provider();
    let loaded = provider.key_provider.load_private_key(key);
    let key: Arc<dyn SigningKey> = loaded.map_err(|_| CertificateError::InvalidKey)?;
    let belongs_to = |position: usize| {
        let certificate = chain[position].clone();
        CertifiedKey::new(vec![certificate], Arc::clone(&key))
            .keys_match()
            .is_ok()
    };
    match (0..chain.len()).find(|position| belongs_to(*position)) {
        Some(0) => Ok(CertifiedKey::new(chain.to_vec(), key)),
        Some(position) => Err(CertificateError::LeafNotFirst(position + 1)),
        None => {
            let name = leaf.names.first().unwrap_or(&leaf.subject);
            Err(CertificateError::Mismatch(name.clone()))
        }
    }
}
