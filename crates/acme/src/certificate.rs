//! A certificate with its private key: parsed, checked for its name and key, and dated.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::CertificateIdentifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use zeroize::Zeroizing;

use crate::name::CertificateName;

/// A certificate that the server can use from now on.
#[derive(Debug, Clone)]
pub struct CertificateReady {
    /// The names that it was ordered for.
    pub names: Vec<CertificateName>,
    /// The chain in PEM, the server's certificate first.
    pub chain_pem: Arc<str>,
    /// The private key in PEM.
    pub key_pem: PrivateKeyPem,
    /// When it expires.
    pub not_after: SystemTime,
    /// URL of the directory of the authority that issued it.
    pub directory: Arc<str>,
}

/// A private key in PEM. It is erased from memory with its last clone, and never shown.
#[derive(Clone)]
pub struct PrivateKeyPem(Arc<Zeroizing<String>>);

impl PrivateKeyPem {
    pub(crate) fn new(pem: Zeroizing<String>) -> Self {
        Self(Arc::new(pem))
    }

    /// The key itself. Never log it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKeyPem(..)")
    }
}

/// Why a chain and a key are no certificate for a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The chain is not PEM, or has no certificate.
    #[error("the certificate chain cannot be read")]
    Chain,
    /// The key is not PEM, or of a kind that cannot be used.
    #[error("the private key cannot be read")]
    Key,
    /// The key is another certificate's.
    #[error("the private key does not belong to the certificate")]
    KeyMismatch,
    /// The certificate is for other names.
    #[error("the certificate is not for {0}")]
    OtherName(CertificateName),
}

/// A checked certificate and the facts that renewal needs.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    pub(crate) ready: CertificateReady,
    pub(crate) facts: CertificateFacts,
}

/// When a certificate is valid, and which one it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFacts {
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// Its identifier for renewal information (RFC 9773 §4.1); `None` without a key identifier.
    pub(crate) ari_id: Option<String>,
    /// A number between 0 and 2^32 that is the same on every server: certificates are renewed at
    /// different times, and a certificate at one time.
    pub(crate) spread: u32,
}

impl Certificate {
    /// Parses and checks a chain with its key.
    pub(crate) fn parse(
        name: &CertificateName,
        chain_pem: &str,
        key_pem: Zeroizing<String>,
        directory: Arc<str>,
    ) -> Result<Self, CertificateError> {
        let chain = parse_chain(chain_pem)?;
        let facts = read_facts(name, &chain[0])?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes());
        let key = key.map_err(|_| CertificateError::Key)?;
        check_key(chain, key)?;
        let ready = CertificateReady {
            names: vec![name.clone()],
            chain_pem: chain_pem.into(),
            key_pem: PrivateKeyPem::new(key_pem),
            not_after: facts.not_after,
            directory,
        };
        Ok(Self { ready, facts })
    }

    pub(crate) fn leaf(&self) -> Result<CertificateDer<'static>, CertificateError> {
        Ok(parse_chain(&self.ready.chain_pem)?.swap_remove(0))
    }
}

/// Whether a chain contains a certificate of, or issued by, `common_name`.
pub(crate) fn chain_mentions(chain_pem: &str, common_name: &str) -> bool {
    let chain = parse_chain(chain_pem).unwrap_or_default();
    chain.iter().any(|der| {
        let Ok((_, certificate)) = X509Certificate::from_der(der) else {
            return false;
        };
        let names = [certificate.issuer(), certificate.subject()];
        names.into_iter().any(|name| {
            let mut common_names = name.iter_common_name().filter_map(|cn| cn.as_str().ok());
            common_names.any(|found| found == common_name)
        })
    })
}

fn parse_chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(CertificateError::Chain),
    }
}

fn read_facts(
    name: &CertificateName,
    leaf: &CertificateDer<'_>,
) -> Result<CertificateFacts, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::Chain)?;
    let names = parsed.subject_alternative_name().ok().flatten();
    let mut names = names
        .iter()
        .flat_map(|extension| &extension.value.general_names);
    if !names.any(|found| is_same_name(name, found)) {
        return Err(CertificateError::OtherName(name.clone()));
    }
    let ari_id = CertificateIdentifier::try_from(leaf).ok();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, leaf);
    let spread = digest
        .as_ref()
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes));
    Ok(CertificateFacts {
        not_before: system_time(parsed.validity().not_before.timestamp()),
        not_after: system_time(parsed.validity().not_after.timestamp()),
        ari_id: ari_id.map(|id| id.to_string()),
        spread,
    })
}

fn is_same_name(name: &CertificateName, found: &GeneralName<'_>) -> bool {
    match (name.ip(), found) {
        (None, GeneralName::DNSName(dns)) => dns.eq_ignore_ascii_case(name.as_str()),
        (Some(std::net::IpAddr::V4(ip)), GeneralName::IPAddress(bytes)) => *bytes == ip.octets(),
        (Some(std::net::IpAddr::V6(ip)), GeneralName::IPAddress(bytes)) => *bytes == ip.octets(),
        _ => false,
    }
}

fn check_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(), CertificateError> {
    let signing_key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key);
    let signing_key = signing_key.map_err(|_| CertificateError::Key)?;
    let pair = CertifiedKey::new(chain, signing_key);
    pair.keys_match().map_err(|_| CertificateError::KeyMismatch)
}

fn system_time(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn self_signed(name: &str) -> (String, Zeroizing<String>) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        (
            made.cert.pem(),
            Zeroizing::new(made.signing_key.serialize_pem()),
        )
    }

    fn parse(name: &str, chain: &str, key: &Zeroizing<String>) -> Result<(), CertificateError> {
        let name = CertificateName::parse(name).unwrap();
        Certificate::parse(&name, chain, key.clone(), "https://ca".into()).map(|_| ())
    }

    #[test]
    fn a_certificate_is_for_its_name_and_key_only() {
        for name in ["example.com", "*.example.com", "192.0.2.1", "2001:db8::1"] {
            let (chain, key) = self_signed(name);
            assert_eq!(parse(name, &chain, &key), Ok(()), "{name}");
        }
        let (chain, key) = self_signed("example.com");
        let other = CertificateName::parse("www.example.com").unwrap();
        let wrong_name = Err(CertificateError::OtherName(other));
        assert_eq!(parse("www.example.com", &chain, &key), wrong_name);
        let (_, other_key) = self_signed("example.com");
        let mismatch = Err(CertificateError::KeyMismatch);
        assert_eq!(parse("example.com", &chain, &other_key), mismatch);
        let torn = Zeroizing::new(key[..key.len() / 2].to_owned());
        assert_eq!(
            parse("example.com", &chain, &torn),
            Err(CertificateError::Key)
        );
        assert_eq!(
            parse("example.com", &chain[..80], &key),
            Err(CertificateError::Chain)
        );
        assert_eq!(parse("example.com", "", &key), Err(CertificateError::Chain));
    }

    #[test]
    fn debug_output_has_no_key() {
        let (chain, key) = self_signed("example.com");
        let name = CertificateName::parse("example.com").unwrap();
        let certificate = Certificate::parse(&name, &chain, key.clone(), "https://ca".into());
        let shown = format!("{certificate:?}");
        let secret = key.lines().nth(1).unwrap();
        assert!(!shown.contains("PRIVATE KEY") && !shown.contains(secret));
    }
}
