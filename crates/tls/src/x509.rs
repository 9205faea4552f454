//! What a certificate says about itself: names, validity, key, issuer.
//!
//! Pure: DER in, facts out. `certificate` keeps the facts, `certificate_file` checks them, the
//! resolver orders certificates by their keys.

use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::{OID_EC_P256, OID_NIST_EC_P384, OID_NIST_EC_P521, OID_SIG_ED25519};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Name};

/// The facts of one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// DNS names and addresses of the subject alternative name, in lower case. A common name is
    /// none of them: no current client reads it (RFC 9110 §4.3.4).
    pub names: Vec<String>,
    /// The subject, as `CN=...` where it has a common name.
    pub subject: String,
    /// The issuer, in the same form.
    pub issuer: String,
    /// The first second of its validity, since the Unix epoch.
    pub not_before: u64,
    /// The last second of its validity, since the Unix epoch.
    pub not_after: u64,
    /// The kind of its public key.
    pub key: KeyKind,
    /// Whether it may sign certificates (RFC 5280 §4.2.1.9).
    pub is_authority: bool,
    /// Whether it names itself as its issuer.
    pub is_self_issued: bool,
}

/// The kind of a public key, in the order in which a server prefers certificates.
///
/// Browsers verify P-256 and P-384. Ed25519 is offered by few clients, P-521 by fewer. RSA comes
/// last: its signature takes a server more than ten times as long as one of P-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyKind {
    /// ECDSA on P-256.
    EcdsaP256,
    /// ECDSA on P-384.
    EcdsaP384,
    /// Ed25519.
    Ed25519,
    /// ECDSA on P-521.
    EcdsaP521,
    /// RSA.
    Rsa {
        /// The size of the modulus.
        bits: usize,
    },
    /// A key of another kind.
    Other,
}

/// The DER is no certificate (RFC 5280 §4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be read as an X.509 certificate")]
pub struct InvalidCertificate;

impl CertificateFacts {
    /// Reads the facts of a certificate.
    pub fn from_der(der: &CertificateDer<'_>) -> Result<Self, InvalidCertificate> {
        let certificate = parse(der)?;
        Ok(Self {
            names: alternative_names(&certificate),
            subject: display_name(certificate.subject()),
            issuer: display_name(certificate.issuer()),
            not_before: seconds(certificate.validity().not_before.timestamp()),
            not_after: seconds(certificate.validity().not_after.timestamp()),
            key: key_kind(certificate.public_key()),
            is_authority: certificate.is_ca(),
            is_self_issued: certificate.subject().as_raw() == certificate.issuer().as_raw(),
        })
    }

    /// Whether a client that asks for this host accepts the certificate (RFC 9525 §6.3): the name
    /// itself, or a wildcard for its first label. `*.example.com` asks for that wildcard. Case, a
    /// final dot and the brackets of an IPv6 address do not matter.
    pub fn covers(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let address = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = address.parse::<IpAddr>() {
            return self.names.contains(&address.to_string());
        }
        let parent = host.split_once('.').filter(|(first, _)| !first.is_empty());
        self.names.iter().any(|name| {
            let wildcard = name.strip_prefix("*.").zip(parent);
            name.eq_ignore_ascii_case(host)
                || wildcard.is_some_and(|(suffix, (_, parent))| suffix.eq_ignore_ascii_case(parent))
        })
    }

    /// Whether the validity has ended.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        now.as_secs() > self.not_after
    }

    /// Whether the validity has not begun.
    pub fn is_early(&self, now: UnixTime) -> bool {
        now.as_secs() < self.not_before
    }
}

/// Whether `issuer` signed `certificate`: by name and by signature. A signature of a kind that is
/// not known here counts as right, since clients may know it.
pub(crate) fn is_issued_by(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let (Ok(certificate), Ok(issuer)) = (parse(certificate), parse(issuer)) else {
        return false;
    };
    let names_match = certificate.issuer().as_raw() == issuer.subject().as_raw();
    let verified = || certificate.verify_signature(Some(issuer.public_key()));
    names_match
        && matches!(
            verified(),
            Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm)
        )
}

pub(crate) fn parse<'a>(
    der: &'a CertificateDer<'_>,
) -> Result<X509Certificate<'a>, InvalidCertificate> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(InvalidCertificate),
    }
}

fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
        _ => None,
    };
    extension
        .value
        .general_names
        .iter()
        .filter_map(name)
        .collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// The common name, or the whole name where there is none.
fn display_name(name: &X509Name<'_>) -> String {
    let common = name
        .iter_common_name()
        .next()
        .and_then(|cn| cn.as_str().ok());
    common.map_or_else(|| name.to_string(), |common| format!("CN={common}"))
}

fn key_kind(key: &SubjectPublicKeyInfo<'_>) -> KeyKind {
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => KeyKind::Rsa {
            bits: modulus_bits(rsa.modulus),
        },
        Ok(PublicKey::EC(_)) => curve_kind(key),
        _ if key.algorithm.algorithm == OID_SIG_ED25519 => KeyKind::Ed25519,
        _ => KeyKind::Other,
    }
}

fn curve_kind(key: &SubjectPublicKeyInfo<'_>) -> KeyKind {
    let curve = key
        .algorithm
        .parameters
        .as_ref()
        .and_then(|curve| curve.as_oid().ok());
    match curve {
        Some(curve) if curve == OID_EC_P256 => KeyKind::EcdsaP256,
        Some(curve) if curve == OID_NIST_EC_P384 => KeyKind::EcdsaP384,
        Some(curve) if curve == OID_NIST_EC_P521 => KeyKind::EcdsaP521,
        _ => KeyKind::Other,
    }
}

fn modulus_bits(modulus: &[u8]) -> usize {
    let first = modulus
        .iter()
        .position(|byte| *byte != 0)
        .unwrap_or(modulus.len());
    let digits = &modulus[first..];
    let unused = digits
        .first()
        .map_or(0, |byte| byte.leading_zeros() as usize);
    digits.len() * 8 - unused
}

/// A moment before 1970 is 1970: no certificate of use is that old.
fn seconds(timestamp: i64) -> u64 {
    u64::try_from(timestamp).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::modulus_bits;
    use crate::testing::{DAY, NOW, TestAuthority, at};

    #[test]
    fn validity_has_its_first_and_its_last_second() {
        let facts = TestAuthority::new("Root").issue(&["a.test"]).load().facts;
        let (first, last) = (NOW - DAY, NOW + 90 * DAY);
        let rows = [
            (first - 1, true, false),
            (first, false, false),
            (last, false, false),
            (last + 1, false, true),
        ];
        for (second, is_early, is_expired) in rows {
            assert_eq!(facts.is_early(at(second)), is_early, "{second}");
            assert_eq!(facts.is_expired(at(second)), is_expired, "{second}");
        }
    }

    #[test]
    fn a_modulus_is_as_long_as_its_first_one_bit_says() {
        let rows: [(&[u8], usize); 6] = [
            (&[], 0),
            (&[0], 0),
            (&[1], 1),
            (&[0x80], 8),
            // A zero in front keeps an integer of DER positive.
            (&[0, 0x80, 0], 16),
            (&[0x7f, 0xff], 15),
        ];
        for (modulus, bits) in rows {
            assert_eq!(modulus_bits(modulus), bits, "{modulus:?}");
        }
    }
}
