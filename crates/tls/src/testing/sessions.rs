//! Stores of certificates, and handshakes in memory between a client and a server of rustls.

use std::sync::Arc;

use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, ConnectionCommon, RootCertStore, ServerConfig,
    ServerConnection, WantsVerifier,
};

use super::{NOW, TestAuthority, at};
use crate::certificate::ServerCertificate;
use crate::certificates::{
    CertificateStore, PolicyId, SiteCertificates, StoreContents, UnknownHosts,
};
use crate::profile::TlsProfile;
use crate::server_config::{ServerTlsOptions, server_config};
use crate::tickets::TicketKeys;

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

pub(crate) fn store_with(contents: StoreContents) -> Arc<CertificateStore> {
    let store = CertificateStore::new(None, None);
    store.replace(contents);
    Arc::new(store)
}

pub(crate) fn config(certificates: &Arc<CertificateStore>) -> Arc<ServerConfig> {
    config_with_protocols(certificates, &[b"http/1.1"])
}

/// With these protocols of ALPN.
pub(crate) fn config_with_protocols(
    certificates: &Arc<CertificateStore>,
    protocols: &[&[u8]],
) -> Arc<ServerConfig> {
    let options = ServerTlsOptions {
        profile: TlsProfile::Intermediate,
        certificates: Arc::clone(certificates),
        tickets: Arc::new(TicketKeys::new(Arc::new(FixedClock(NOW)))),
        alpn: protocols.iter().map(|it| it.to_vec()).collect(),
        client_certificates: None,
    };
    server_config(options).unwrap().config
}

/// The certificate that a client gets, by its DER.
pub(crate) fn served(
    certificates: &Arc<CertificateStore>,
    authority: &TestAuthority,
    name: &str,
) -> Option<Vec<u8>> {
    let client = Arc::new(client(authority, TlsProfile::Intermediate));
    let session = handshake(&client, &config(certificates), name).ok()?;
    Some(session.client.peer_certificates().unwrap()[0].to_vec())
}

pub(crate) fn der(certificate: &ServerCertificate) -> Vec<u8> {
    certificate.certified_key.cert[0].to_vec()
}
