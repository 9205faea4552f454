//! A self-signed certificate that holds the place of one that is not there yet.
//!
//! With it, a site answers while its first certificate is being ordered: clients warn, but
//! challenges, health checks and clients that do not verify work.

use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;

use crate::certificate::{CertificateSource, ServerCertificate};
use crate::x509::CertificateFacts;

/// How long a stand-in is valid. Each start makes new ones.
const VALIDITY: u64 = 90 * 86_400;

/// How far back validity begins, for clients whose clocks are late.
pub(crate) const CLOCK_SKEW: u64 = 3600;

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A name is no host name or address, or the key could not be made.
    #[error("cannot make a certificate for {names}: {cause}")]
    Rejected {
        /// The names, with commas.
        names: String,
        /// What the library says.
        cause: rcgen::Error,
    },
    /// The certificate that was made cannot be read back.
    #[error("the certificate for {names} cannot be used: {cause}")]
    Unusable {
        /// The names, with commas.
        names: String,
        /// What rustls says.
        cause: rustls::Error,
    },
}

/// Makes a self-signed certificate for the hosts of a site.
pub fn stand_in(names: &[String], now: UnixTime) -> Result<ServerCertificate, IssueError> {
    let mut params = leaf_params(names, now, VALIDITY)?;
    params
        .distinguished_name
        .push(DnType::CommonName, "Penstock stand-in certificate");
    let key = KeyPair::generate().map_err(|cause| rejected(names, cause))?;
    let certificate = params
        .self_signed(&key)
        .map_err(|cause| rejected(names, cause))?;
    assemble(names, &certificate, &key, CertificateSource::SelfSigned)
}

/// The parameters of a server's certificate that is valid from now on, for `validity` seconds.
pub(crate) fn leaf_params(
    names: &[String],
    now: UnixTime,
    validity: u64,
) -> Result<CertificateParams, IssueError> {
    let params = CertificateParams::new(names).map_err(|cause| rejected(names, cause));
    let mut params = params?;
    params.not_before = moment(now.as_secs().saturating_sub(CLOCK_SKEW));
    params.not_after = moment(now.as_secs() + validity);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

/// Joins a certificate and its key.
pub(crate) fn assemble(
    names: &[String],
    certificate: &rcgen::Certificate,
    key: &KeyPair,
    source: CertificateSource,
) -> Result<ServerCertificate, IssueError> {
    let unusable = |cause| IssueError::Unusable {
        names: names.join(", "),
        cause,
    };
    let chain = vec![certificate.der().clone()];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = aws_lc_rs::default_provider();
    let certified_key = CertifiedKey::from_der(chain, key, &provider).map_err(unusable)?;
    let facts = CertificateFacts::from_der(certificate.der())
        .map_err(|error| unusable(rustls::Error::General(error.to_string())))?;
    Ok(ServerCertificate {
        certified_key: Arc::new(certified_key),
        facts,
        source,
    })
}

pub(crate) fn rejected(names: &[String], cause: rcgen::Error) -> IssueError {
    IssueError::Rejected {
        names: names.join(", "),
        cause,
    }
}

/// A second since the Unix epoch; the epoch itself for times that no certificate can have.
pub(crate) fn moment(seconds: u64) -> OffsetDateTime {
    let moment = i64::try_from(seconds).ok();
    let moment = moment.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    moment.unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
