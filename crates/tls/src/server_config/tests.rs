//! Real handshakes in memory: profiles, protocols, tickets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::crypto::SupportedKxGroup;
use rustls::server::ProducesTickets;
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion};

use super::{ServerTlsOptions, server_config};
use crate::profile::TlsProfile;
use crate::testing::server::{Server, tls12_client};
use crate::testing::{FixedClock, NOW, client, handshake, store};
use crate::tickets::TicketKeys;

fn suite_names(profile: TlsProfile) -> Vec<CipherSuite> {
    profile
        .provider()
        .cipher_suites
        .iter()
        .map(|suite| suite.suite())
        .collect()
}

fn group_names(profile: TlsProfile) -> Vec<NamedGroup> {
    let group = |group: &&'static dyn SupportedKxGroup| group.name();
    profile.provider().kx_groups.iter().map(group).collect()
}

/// From `guidelines/6.0.json` of Mozilla's "Server Side TLS": `ciphersuites` of both profiles.
const GUIDELINE_TLS13: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// From the same file: `ciphers.iana` of "intermediate"; "modern" has none.
const GUIDELINE_TLS12: [CipherSuite; 6] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// From the same file: `tls_curves` of both profiles.
const GUIDELINE_GROUPS: [NamedGroup; 4] = [
    NamedGroup::X25519MLKEM768,
    NamedGroup::X25519,
    NamedGroup::secp256r1,
    NamedGroup::secp384r1,
];

#[test]
fn profiles_are_those_of_the_guideline() {
    assert_eq!(suite_names(TlsProfile::Modern), GUIDELINE_TLS13);
    let intermediate = [GUIDELINE_TLS13.as_slice(), &GUIDELINE_TLS12].concat();
    assert_eq!(suite_names(TlsProfile::Intermediate), intermediate);
    for profile in [TlsProfile::Intermediate, TlsProfile::Modern] {
        assert_eq!(group_names(profile), GUIDELINE_GROUPS);
    }
    let server = Server::new();
    // `server_preferred_order` is false in both.
    assert!(!server.tls().config.ignore_client_order);
}

#[test]
fn current_clients_agree_on_the_hybrid_key_exchange() {
    let server = Server::new();
    let session = handshake(
        &server.client(TlsProfile::Modern),
        &server.tls().config,
        "a.test",
    )
    .unwrap();
    assert_eq!(
        session.server.protocol_version(),
        Some(ProtocolVersion::TLSv1_3)
    );
    let group = session
        .server
        .negotiated_key_exchange_group()
        .unwrap()
        .name();
    assert_eq!(group, NamedGroup::X25519MLKEM768);
}

#[test]
fn only_intermediate_speaks_tls_1_2() {
    let server = Server::new();
    let old = tls12_client(&server);
    let session = handshake(&old, &server.tls().config, "a.test").unwrap();
    assert_eq!(
        session.server.protocol_version(),
        Some(ProtocolVersion::TLSv1_2)
    );
    let modern = ServerTlsOptions {
        profile: TlsProfile::Modern,
        ..server.options()
    };
    let modern = server_config(modern).unwrap();
    assert!(handshake(&old, &modern.config, "a.test").is_err());
}

#[test]
fn nothing_is_kept_and_no_early_data_is_taken() {
    let config = Server::new().tls().config;
    assert_eq!(config.max_early_data_size, 0);
    assert!(config.enable_secret_extraction);
    assert!(!config.session_storage.can_cache());
    assert_eq!(config.max_fragment_size, None);
    assert!(config.cert_compressors.is_empty() && config.cert_decompressors.is_empty());
}

#[test]
fn protocols_are_agreed_on() {
    let server = Server::new();
    let tls = server.tls();
    let rows = [
        ("http/1.1 h2", Some("h2")),
        ("http/1.1", Some("http/1.1")),
        ("", None),
    ];
    for (offered, expected) in rows {
        let mut client = client(&server.authority, TlsProfile::Intermediate);
        let offered = offered.split_whitespace();
        client.alpn_protocols = offered
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        let session = handshake(&Arc::new(client), &tls.config, "a.test").unwrap();
        assert_eq!(session.server.alpn_protocol(), expected.map(str::as_bytes));
    }
}

#[test]
fn sessions_resume_for_their_own_name() {
    let server = Server::new();
    let tls = server.tls();
    for client in [
        server.client(TlsProfile::Intermediate),
        tls12_client(&server),
    ] {
        let kind = |name: &str| {
            let session = handshake(&client, &tls.config, name).unwrap();
            (
                session.server.handshake_kind(),
                session.client.handshake_kind(),
            )
        };
        let full = (Some(HandshakeKind::Full), Some(HandshakeKind::Full));
        let resumed = (Some(HandshakeKind::Resumed), Some(HandshakeKind::Resumed));
        assert_eq!(kind("a.test"), full);
        assert_eq!(kind("a.test"), resumed);
        // From the new ticket of the resumed session.
        assert_eq!(kind("a.test"), resumed);
        assert_eq!(kind("b.test"), full);
        assert_eq!(kind("b.test"), resumed);
    }
}

/// A client that offers its tickets to every server, as an attacker would.
#[derive(Debug)]
struct StolenTickets(rustls::client::ClientSessionMemoryCache);

impl StolenTickets {
    fn any() -> rustls::pki_types::ServerName<'static> {
        rustls::pki_types::ServerName::try_from("any.test").unwrap()
    }
}

impl rustls::client::ClientSessionStore for StolenTickets {
    fn set_kx_hint(&self, _: rustls::pki_types::ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &rustls::pki_types::ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(
        &self,
        _: rustls::pki_types::ServerName<'static>,
        session: rustls::client::Tls12ClientSessionValue,
    ) {
        self.0.set_tls12_session(Self::any(), session);
    }

    fn tls12_session(
        &self,
        _: &rustls::pki_types::ServerName<'_>,
    ) -> Option<rustls::client::Tls12ClientSessionValue> {
        self.0.tls12_session(&Self::any())
    }

    fn remove_tls12_session(&self, _: &rustls::pki_types::ServerName<'static>) {}

    fn insert_tls13_ticket(
        &self,
        _: rustls::pki_types::ServerName<'static>,
        ticket: rustls::client::Tls13ClientSessionValue,
    ) {
        self.0.insert_tls13_ticket(Self::any(), ticket);
    }

    fn take_tls13_ticket(
        &self,
        _: &rustls::pki_types::ServerName<'static>,
    ) -> Option<rustls::client::Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(&Self::any())
    }
}

/// Counts the tickets that open.
#[derive(Debug)]
struct CountedTickets(Arc<TicketKeys>, AtomicUsize);

impl ProducesTickets for CountedTickets {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(session)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let session = self.0.decrypt(ticket)?;
        self.1.fetch_add(1, Ordering::Relaxed);
        Some(session)
    }
}

#[test]
fn a_ticket_of_one_name_does_not_resume_at_another() {
    // nginx, CVE-2025-23419: resumption on another virtual host passed by its checks.
    let server = Server::new();
    let counted = Arc::new(CountedTickets(
        Arc::clone(&server.tickets),
        AtomicUsize::new(0),
    ));
    let mut config = (*server.tls().config).clone();
    config.ticketer = counted.clone();
    for client in [
        server.client(TlsProfile::Intermediate),
        tls12_client(&server),
    ] {
        let mut client = (*client).clone();
        let stolen = StolenTickets(rustls::client::ClientSessionMemoryCache::new(32));
        client.resumption = rustls::client::Resumption::store(Arc::new(stolen));
        let client = Arc::new(client);
        let kind = |name: &str| {
            let session = handshake(&client, &config, name).unwrap();
            let opened = counted.1.swap(0, Ordering::Relaxed) > 0;
            (opened, session.server.handshake_kind())
        };
        assert_eq!(kind("a.test"), (false, Some(HandshakeKind::Full)));
        assert_eq!(kind("a.test"), (true, Some(HandshakeKind::Resumed)));
        // The ticket is good, and was made for a.test.
        assert_eq!(kind("b.test"), (true, Some(HandshakeKind::Full)));
    }
}

#[test]
fn tickets_open_in_the_next_process() {
    let server = Server::new();
    let client = server.client(TlsProfile::Intermediate);
    handshake(&client, &server.tls().config, "a.test").unwrap();
    let next_keys = TicketKeys::new(Arc::new(FixedClock(NOW + 60)));
    assert_eq!(next_keys.import(&server.tickets.export()).unwrap(), 1);
    let tickets = Arc::new(next_keys);
    let next = server_config(ServerTlsOptions {
        tickets,
        ..server.options()
    })
    .unwrap();
    let session = handshake(&client, &next.config, "a.test").unwrap();
    assert_eq!(
        session.server.handshake_kind(),
        Some(HandshakeKind::Resumed)
    );
    // A process that was started anew does not know them, and the handshake is a full one.
    let tickets = Arc::new(TicketKeys::new(Arc::new(FixedClock(NOW))));
    let other = server_config(ServerTlsOptions {
        tickets,
        ..server.options()
    })
    .unwrap();
    let session = handshake(&client, &other.config, "a.test").unwrap();
    assert_eq!(session.server.handshake_kind(), Some(HandshakeKind::Full));
}

#[test]
fn a_removed_site_resumes_no_session() {
    let server = Server::new();
    let tls = server.tls();
    let client = server.client(TlsProfile::Intermediate);
    handshake(&client, &tls.config, "b.test").unwrap();
    let a = server.authority.issue(&["a.test", "b.test"]).load();
    server.store.replace(store(&[(&["a.test"], &[&a])]));
    let refused = handshake(&client, &tls.config, "b.test")
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused.server, Some(rustls::Error::General(_))));
}
