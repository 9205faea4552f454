//! Certificates for tests: made by rcgen, and by the real `openssl`.

use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, ConnectionCommon, RootCertStore, ServerConfig,
    ServerConnection, WantsVerifier,
};
use time::OffsetDateTime;

use crate::certificate::{CertificateSource, ServerCertificate};
use crate::certificate_file;
use crate::certificates::{PolicyId, SiteCertificates, StoreContents, UnknownHosts};
use crate::profile::TlsProfile;

pub(crate) mod server;

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
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A clock that always shows one time.
#[derive(Debug)]
pub(crate) struct FixedClock(pub(crate) u64);

impl TimeProvider for FixedClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(at(self.0))
    }
}

/// A session that both sides completed.
pub(crate) struct Session {
    pub(crate) client: ClientConnection,
    pub(crate) server: ServerConnection,
}

/// How a handshake failed.
#[derive(Debug)]
pub(crate) struct FailedHandshake {
    pub(crate) client: Option<rustls::Error>,
    pub(crate) server: Option<rustls::Error>,
    /// What the server sent last.
    pub(crate) alert: Vec<u8>,
}

/// A client that trusts an authority, at `NOW`, with the algorithms of `profile`.
pub(crate) fn client(authority: &TestAuthority, profile: TlsProfile) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der()).unwrap();
    client_builder(profile)
        .with_root_certificates(roots)
        .with_no_client_auth()
}

pub(crate) fn client_builder(profile: TlsProfile) -> ConfigBuilder<ClientConfig, WantsVerifier> {
    let clock = Arc::new(FixedClock(NOW));
    ClientConfig::builder_with_details(Arc::new(profile.provider()), clock)
        .with_protocol_versions(&profile.versions())
        .unwrap()
}

/// The same configuration with its clock at `NOW`.
pub(crate) fn at_now(config: &ServerConfig) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.time_provider = Arc::new(FixedClock(NOW));
    Arc::new(config)
}

/// Makes a handshake in memory and reads what the server sends behind it (tickets).
pub(crate) fn handshake(
    client: &Arc<ClientConfig>,
    server: &ServerConfig,
    name: &str,
) -> Result<Session, Box<FailedHandshake>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(at_now(server)).unwrap();
    let mut alert = Vec::new();
    loop {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        let server_error = feed(&mut server, &to_server);
        while server.wants_write() {
            server.write_tls(&mut to_client).unwrap();
        }
        let client_error = feed(&mut client, &to_client);
        if !to_client.is_empty() {
            alert.clone_from(&to_client);
        }
        if server_error.is_some() || client_error.is_some() {
            let failed = FailedHandshake {
                client: client_error,
                server: server_error,
                alert,
            };
            return Err(Box::new(failed));
        }
        if to_server.is_empty() && to_client.is_empty() {
            assert!(!client.is_handshaking() && !server.is_handshaking());
            return Ok(Session { client, server });
        }
    }
}

fn feed<D>(connection: &mut ConnectionCommon<D>, mut bytes: &[u8]) -> Option<rustls::Error> {
    while !bytes.is_empty() {
        connection.read_tls(&mut bytes).unwrap();
        if let Err(error) = connection.process_new_packets() {
            return Some(error);
        }
    }
    None
}

/// A store with one site per row: its hosts and its certificates.
pub(crate) fn store(rows: &[(&[&str], &[&ServerCertificate])]) -> StoreContents {
    let site = |(hosts, certificates): &(&[&str], &[&ServerCertificate])| SiteCertificates {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        certificates: certificates.iter().map(|c| (*c).clone()).collect(),
        policy: PolicyId::NONE,
        last_error: None,
    };
    StoreContents::new(
        rows.iter().map(site).collect(),
        Some(0),
        UnknownHosts::Refuse,
    )
}
