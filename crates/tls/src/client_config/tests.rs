//! Real handshakes in memory with servers that are right, wrong, expired and pinned.

use std::sync::Arc;

use rustls::{CertificateError, ClientConfig, Error, HandshakeKind, ProtocolVersion};

use super::{ClientTlsOptions, client_config, client_config_offering, server_name};
use crate::certificates::CertificateStore;
use crate::client_certificates::ClientCertificateMode;
use crate::client_offer::ClientOffer;
use crate::server_trust::{Fingerprint, RootsError, ServerTrust, roots_from_pem, system_roots};
use crate::testing::server::Server;
use crate::testing::{
    DAY, FailedHandshake, FixedClock, NOW, Session, TestAuthority, handshake, openssl,
    set_validity, store,
};

fn options(trust: ServerTrust) -> ClientTlsOptions {
    ClientTlsOptions {
        trust,
        certificate: None,
        alpn: Vec::new(),
        key_log: None,
    }
}

/// A configuration whose clock shows `NOW`.
fn client(options: ClientTlsOptions) -> Arc<ClientConfig> {
    let mut config = (*client_config(options).unwrap()).clone();
    config.time_provider = Arc::new(FixedClock(NOW));
    Arc::new(config)
}

fn connect(
    trust: ServerTrust,
    server: &Server,
    name: &str,
) -> Result<Session, Box<FailedHandshake>> {
    handshake(&client(options(trust)), &server.tls().config, name)
}

fn refusal(trust: ServerTrust, server: &Server, name: &str) -> Error {
    connect(trust, server, name)
        .map(|_| ())
        .unwrap_err()
        .client
        .unwrap()
}

fn authorities(authority: &TestAuthority) -> ServerTrust {
    ServerTrust::Authorities(roots_from_pem(authority.pem().as_bytes()).unwrap())
}

/// A server whose only certificate, for all names, is this one.
fn server_with(change: impl FnOnce(&mut rcgen::CertificateParams)) -> Server {
    let server = Server::new();
    let certificate = server.authority.issue_with(&["a.test"], change).load();
    server
        .store
        .replace(store(&[(&["a.test", "wrong.test"], &[&certificate])]));
    server
}

fn fingerprint(store: &CertificateStore, name: &str) -> Fingerprint {
    let chosen = store.choose(Some(name), &[]).unwrap();
    Fingerprint::of(&chosen.cert[0])
}

#[test]
fn a_server_is_verified_by_its_authority_and_name() {
    let server = server_with(|_| {});
    connect(authorities(&server.authority), &server, "a.test").unwrap();
    let error = refusal(authorities(&server.authority), &server, "wrong.test");
    assert!(
        error
            .to_string()
            .contains("not valid for name \"wrong.test\""),
        "{error}"
    );
    let error = refusal(
        authorities(&TestAuthority::new("Others")),
        &server,
        "a.test",
    );
    assert_eq!(
        error,
        Error::InvalidCertificate(CertificateError::UnknownIssuer)
    );
}

#[test]
fn an_expired_server_is_refused() {
    let server = server_with(|params| set_validity(params, NOW - 9 * DAY, NOW - DAY));
    let error = refusal(authorities(&server.authority), &server, "a.test");
    assert!(error.to_string().contains("certificate expired"), "{error}");
}

#[test]
fn a_fingerprint_trusts_one_certificate_whatever_its_name_and_dates_are() {
    let server = server_with(|params| set_validity(params, NOW - 9 * DAY, NOW - DAY));
    let pin = fingerprint(&server.store, "a.test");
    connect(ServerTrust::Fingerprints(vec![pin]), &server, "wrong.test").unwrap();
    let other = fingerprint(&Server::new().store, "a.test");
    connect(
        ServerTrust::Fingerprints(vec![other, pin]),
        &server,
        "a.test",
    )
    .unwrap();
    for pins in [vec![], vec![other]] {
        let error = refusal(ServerTrust::Fingerprints(pins), &server, "a.test");
        let expected = CertificateError::ApplicationVerificationFailure;
        assert_eq!(error, Error::InvalidCertificate(expected));
    }
}

#[test]
fn anything_is_trusted_only_where_that_is_said() {
    let server = server_with(|_| {});
    connect(ServerTrust::Anything, &server, "wrong.test").unwrap();
}

#[test]
fn a_stolen_certificate_without_its_key_does_not_pass_for_a_pinned_server() {
    let server = server_with(|_| {});
    let pin = fingerprint(&server.store, "a.test");
    let thief = server_with(|_| {});
    let mut stolen = thief.authority.issue(&["a.test"]).load();
    let chain = server
        .store
        .choose(Some("a.test"), &[])
        .unwrap()
        .cert
        .clone();
    let key = Arc::clone(&stolen.certified_key.key);
    stolen.certified_key = Arc::new(rustls::sign::CertifiedKey::new(chain, key));
    thief.store.replace(store(&[(&["a.test"], &[&stolen])]));
    for trust in [ServerTrust::Fingerprints(vec![pin]), ServerTrust::Anything] {
        let error = refusal(trust, &thief, "a.test");
        assert_eq!(
            error,
            Error::InvalidCertificate(CertificateError::BadSignature)
        );
    }
}

#[test]
fn the_client_shows_its_certificate() {
    let server = Server::new();
    let clients = TestAuthority::new("Clients");
    let tls = server.tls_for_clients(ClientCertificateMode::Require, &clients);
    let without = client(options(authorities(&server.authority)));
    assert!(handshake(&without, &tls.config, "a.test").is_err());
    let certificate = Some(clients.issue(&["proxy.test"]).load());
    let with = ClientTlsOptions {
        certificate,
        ..options(authorities(&server.authority))
    };
    let session = handshake(&client(with), &tls.config, "a.test").unwrap();
    assert_eq!(session.server.peer_certificates().map(<[_]>::len), Some(1));
}

#[test]
fn sessions_are_resumed_and_protocols_offered() {
    let server = Server::new();
    let alpn = vec![b"h2".to_vec()];
    let config = client(ClientTlsOptions {
        alpn,
        ..options(authorities(&server.authority))
    });
    let tls = server.tls();
    handshake(&config, &tls.config, "a.test").unwrap();
    let session = handshake(&config, &tls.config, "a.test").unwrap();
    assert_eq!(
        session.client.handshake_kind(),
        Some(HandshakeKind::Resumed)
    );
    assert_eq!(session.client.alpn_protocol(), Some(b"h2".as_slice()));
    assert!(!config.enable_early_data);
}

#[test]
fn fingerprints_are_those_of_openssl() {
    let dir = tempfile::tempdir().unwrap();
    openssl(
        dir.path(),
        "req -x509 -newkey ed25519 -nodes -keyout k.pem -out c.pem -subj /CN=a.test",
    );
    openssl(
        dir.path(),
        "x509 -in c.pem -noout -fingerprint -sha256 -out f.txt",
    );
    let read = |name| crate::pem_file::read(&dir.path().join(name)).unwrap().text;
    let shown = String::from_utf8(read("f.txt").to_vec()).unwrap();
    let shown = shown.trim().split_once('=').unwrap().1;
    let certificate = &crate::pem_file::certificates(&read("c.pem")).unwrap()[0];
    let fingerprint = Fingerprint::of(certificate);
    assert_eq!(fingerprint.to_string(), shown);
    for text in [
        shown.to_owned(),
        shown.replace(':', ""),
        shown.to_lowercase(),
    ] {
        assert_eq!(text.parse(), Ok(fingerprint));
    }
    for text in [
        "",
        "AA:BB",
        &shown[1..],
        &shown.replace('A', "G").replace('0', "x"),
        "é",
    ] {
        assert!(text.parse::<Fingerprint>().is_err(), "{text}");
    }
}

#[test]
fn files_of_authorities_are_checked() {
    let error = roots_from_pem(b"").unwrap_err().to_string();
    assert!(error.starts_with("no authorities: it holds no"), "{error}");
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let text = format!("{}{damaged}", TestAuthority::new("Root").pem());
    let error = roots_from_pem(text.as_bytes()).unwrap_err().to_string();
    assert!(
        error.starts_with("certificate 2 cannot be used as an authority"),
        "{error}"
    );
}

#[test]
fn a_system_without_authorities_is_told_what_to_install() {
    let found = rustls_native_certs::CertificateResult::default();
    let error = crate::server_trust::usable_roots(found).unwrap_err();
    assert!(matches!(error, RootsError::NoSystemRoots { cause: None }));
    let error = error.to_string();
    assert!(
        error.contains("install the package \"ca-certificates\""),
        "{error}"
    );
}

#[test]
fn the_system_has_authorities_or_says_what_to_install() {
    match system_roots() {
        Ok(roots) => assert!(!roots.is_empty()),
        Err(error) => assert!(error.to_string().contains("ca-certificates"), "{error}"),
    }
}

#[test]
fn server_names_are_hosts_or_addresses() {
    for name in ["a.test", "A.test", "127.0.0.1", "::1", "[::1]", "localhost"] {
        assert!(server_name(name).is_ok(), "{name}");
    }
    for name in ["", "a b", "a.test:443", "[::1", "http://a.test", "*.a.test"] {
        let error = server_name(name).unwrap_err().to_string();
        assert!(error.contains("is no host name or address"), "{error}");
    }
}

#[test]
fn only_chosen_algorithms_are_offered() {
    let server = Server::new();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    let offer = |suites, groups| ClientOffer {
        cipher_suites: words(suites),
        groups: words(groups),
    };
    let configure = |offer: &ClientOffer| {
        client_config_offering(options(authorities(&server.authority)), offer).map(|config| {
            let mut config = (*config).clone();
            config.time_provider = Arc::new(FixedClock(NOW));
            Arc::new(config)
        })
    };
    for (suites, groups, version, suite, group) in [
        (
            "tls_aes_256_gcm_sha384",
            "X25519",
            ProtocolVersion::TLSv1_3,
            "TLS13_AES_256_GCM_SHA384",
            "X25519",
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "secp384r1 secp256r1",
            ProtocolVersion::TLSv1_2,
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "secp384r1",
        ),
        (
            "",
            "",
            ProtocolVersion::TLSv1_3,
            "TLS13_AES_128_GCM_SHA256",
            "X25519MLKEM768",
        ),
    ] {
        let config = configure(&offer(suites, groups)).unwrap();
        let client = handshake(&config, &server.tls().config, "a.test")
            .unwrap()
            .client;
        let found = (
            client.protocol_version().unwrap(),
            client
                .negotiated_cipher_suite()
                .unwrap()
                .suite()
                .as_str()
                .unwrap(),
            client
                .negotiated_key_exchange_group()
                .unwrap()
                .name()
                .as_str()
                .unwrap(),
        );
        assert_eq!(found, (version, suite, group), "{suites} {groups}");
    }
    let error = configure(&offer("", "X25519 x448")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no key exchange is named \"x448\": use one of X25519MLKEM768, X25519, secp256r1, secp384r1"
    );
    let error = configure(&offer("AES_128", "")).unwrap_err().to_string();
    assert!(error.starts_with("no cipher suite is named \"AES_128\": use one of TLS_AES_128_"));
}
