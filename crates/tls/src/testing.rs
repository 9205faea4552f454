//! Certificates for tests: made by rcgen, and by the real `openssl`.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;

use crate::certificate::{CertificateSource, ServerCertificate};
use crate::certificate_file;

pub(crate) mod server;
pub(crate) mod sessions;

pub(crate) use sessions::{
    FailedHandshake, FixedClock, Session, client, client_builder, config, config_with_protocols,
    der, handshake, served, store, store_with,
};

/// The present of most tests: 2026-11-27 00:00:00 UTC.
pub(crate) const NOW: u64 = 1_795_737_600;
/// A day in seconds.
pub(crate) const DAY: u64 = 86_400;

pub(crate) fn now() -> UnixTime {
    at(NOW)
}

pub(crate) fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

fn date(seconds: u64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).unwrap()).unwrap()
}

/// An authority that signs certificates.
pub(crate) struct TestAuthority(pub(crate) CertifiedIssuer<'static, KeyPair>);

impl TestAuthority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(authority_params(name), key).unwrap())
    }

    /// An authority below this one.
    pub(crate) fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::signed_by(authority_params(name), key, &self.0).unwrap())
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate that is valid at `NOW`.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |_| {})
    }

    pub(crate) fn issue_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        self.issue_for(KeyPair::generate().unwrap(), names, change)
    }

    pub(crate) fn issue_for(
        &self,
        key: KeyPair,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let mut params = leaf_params(names);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A leaf below an intermediate below a root, with the chain that a server sends.
pub(crate) fn chained(change: impl FnOnce(&mut CertificateParams)) -> (Issued, TestAuthority) {
    let intermediate = TestAuthority::new("Root").intermediate("Intermediate");
    let mut issued = intermediate.issue_with(&["example.com", "www.example.com"], change);
    issued.certificate.push_str(&intermediate.pem());
    (issued, intermediate)
}

/// A certificate and its key, as PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Issued {
    pub(crate) fn load(&self) -> ServerCertificate {
        let (chain, key) = (self.certificate.as_bytes(), self.key.as_bytes());
        let source = CertificateSource::Acme;
        certificate_file::parse(chain, key, source, now())
            .unwrap()
            .certificate
    }
}

pub(crate) fn leaf_params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    set_validity(&mut params, NOW - DAY, NOW + 90 * DAY);
    params
}

pub(crate) fn set_validity(params: &mut CertificateParams, not_before: u64, not_after: u64) {
    (params.not_before, params.not_after) = (date(not_before), date(not_after));
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = leaf_params(&[]);
    set_validity(&mut params, NOW - DAY, NOW + 3650 * DAY);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Runs `openssl` with the words of `command` in a directory.
#[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
pub(crate) fn openssl(dir: &Path, command: &str) {
    let mut openssl = std::process::Command::new("openssl");
    let output = openssl
        .args(command.split_whitespace())
        .current_dir(dir)
        .output();
    let output = output.expect("openssl is installed (scripts/setup test)");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {command}: {error}");
}

#[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
pub(crate) fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}
