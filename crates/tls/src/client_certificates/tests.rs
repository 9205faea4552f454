//! Real handshakes in memory with client certificates: good, absent, bad, revoked, resumed.

use rustls::HandshakeKind;

use super::{ClientCertificateMode, ClientCertificates};
use crate::certificates::PolicyId;
use crate::profile::TlsProfile;
use crate::server_config::{ServerTlsOptions, server_config};
use crate::stand_in::moment;
use crate::testing::server::{Server, tls12_client};
use crate::testing::{DAY, NOW, TestAuthority, handshake, set_validity};

#[test]
fn client_certificates_are_proved_in_every_handshake() {
    let server = Server::new();
    let clients = TestAuthority::new("Clients");
    let issued = clients.issue(&["someone"]);
    let open = server.tls();
    let closed = server.tls_for_clients(ClientCertificateMode::Require, &clients);
    let with_certificate = server.client_with(&issued);
    for _ in 0..2 {
        let session = handshake(&with_certificate, &closed.config, "a.test").unwrap();
        assert_eq!(session.server.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(session.server.peer_certificates().map(<[_]>::len), Some(1));
        assert_eq!(session.client.tls13_tickets_received(), 0);
    }
    // A ticket of a listener that asks for nothing, for the same name, from the same keys.
    let anonymous = server.client(TlsProfile::Intermediate);
    handshake(&anonymous, &open.config, "a.test").unwrap();
    let resumed = handshake(&anonymous, &open.config, "a.test").unwrap();
    assert_eq!(
        resumed.server.handshake_kind(),
        Some(HandshakeKind::Resumed)
    );
    let refused = handshake(&anonymous, &closed.config, "a.test")
        .map(|_| ())
        .unwrap_err();
    assert_eq!(refused.server, Some(rustls::Error::NoCertificatesPresented));
    // The same over TLS 1.2.
    let old = tls12_client(&server);
    handshake(&old, &open.config, "a.test").unwrap();
    assert!(handshake(&old, &closed.config, "a.test").is_err());
}

#[test]
fn requested_certificates_may_be_absent_and_must_be_valid() {
    let server = Server::new();
    let clients = TestAuthority::new("Clients");
    let tls = server.tls_for_clients(ClientCertificateMode::Request, &clients);
    let anonymous = server.client(TlsProfile::Intermediate);
    let session = handshake(&anonymous, &tls.config, "a.test").unwrap();
    assert!(session.server.peer_certificates().is_none());
    let good = server.client_with(&clients.issue(&["someone"]));
    let session = handshake(&good, &tls.config, "a.test").unwrap();
    assert!(session.server.peer_certificates().is_some());
    let expired = clients.issue_with(&["someone"], |params| {
        set_validity(params, NOW - 9 * DAY, NOW - DAY);
    });
    let foreign = TestAuthority::new("Others").issue(&["someone"]);
    for bad in [expired, foreign] {
        let refused = handshake(&server.client_with(&bad), &tls.config, "a.test");
        let error = refused.map(|_| ()).unwrap_err().server.unwrap();
        assert!(
            matches!(error, rustls::Error::InvalidCertificate(_)),
            "{error}"
        );
    }
}

/// The list of an authority with the serial number 7, until `next_update`.
fn revocation_list(authority: &TestAuthority, next_update: u64) -> String {
    let list = rcgen::CertificateRevocationListParams {
        this_update: moment(NOW - DAY),
        next_update: moment(next_update),
        crl_number: rcgen::SerialNumber::from_slice(&[1]),
        issuing_distribution_point: None,
        revoked_certs: vec![rcgen::RevokedCertParams {
            serial_number: rcgen::SerialNumber::from_slice(&[7]),
            revocation_time: moment(NOW - DAY),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    list.signed_by(&authority.0).unwrap().pem().unwrap()
}

#[test]
fn revoked_client_certificates_are_refused() {
    let server = Server::new();
    let clients = TestAuthority::new("Clients");
    let serial = |params: &mut rcgen::CertificateParams, number: u8| {
        params.serial_number = Some(rcgen::SerialNumber::from_slice(&[number]));
    };
    let revoked = clients.issue_with(&["revoked"], |params| serial(params, 7));
    let valid = clients.issue_with(&["valid"], |params| serial(params, 8));
    let list = revocation_list(&clients, NOW + DAY);
    let mode = ClientCertificateMode::Require;
    let authorities = clients.pem();
    let requirements =
        ClientCertificates::from_pem(mode, authorities.as_bytes(), Some(list.as_bytes())).unwrap();
    let without = ClientCertificates::from_pem(mode, authorities.as_bytes(), None).unwrap();
    assert_ne!(requirements.policy(), without.policy());
    let client_certificates = Some(requirements);
    let tls = server_config(ServerTlsOptions {
        client_certificates,
        ..server.options()
    })
    .unwrap();
    handshake(&server.client_with(&valid), &tls.config, "a.test").unwrap();
    let refused = handshake(&server.client_with(&revoked), &tls.config, "a.test");
    let error = refused.map(|_| ()).unwrap_err().server.unwrap();
    let expected = rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked);
    assert_eq!(error, expected);
}

#[test]
fn a_revocation_list_that_is_out_of_date_lets_no_client_in() {
    let server = Server::new();
    let clients = TestAuthority::new("Clients");
    let list = revocation_list(&clients, NOW - 1);
    let (mode, authorities) = (ClientCertificateMode::Require, clients.pem());
    let requirements =
        ClientCertificates::from_pem(mode, authorities.as_bytes(), Some(list.as_bytes())).unwrap();
    let client_certificates = Some(requirements);
    let tls = server_config(ServerTlsOptions {
        client_certificates,
        ..server.options()
    })
    .unwrap();
    let client = server.client_with(&clients.issue(&["someone"]));
    let refused = handshake(&client, &tls.config, "a.test")
        .map(|_| ())
        .unwrap_err();
    let error = refused.server.unwrap().to_string();
    assert!(error.contains("revocation list"), "{error}");
}

#[test]
fn equal_requirements_have_equal_policies() {
    let clients = TestAuthority::new("Clients").pem();
    let policy = |mode, pem: &str| {
        ClientCertificates::from_pem(mode, pem.as_bytes(), None)
            .unwrap()
            .policy()
    };
    let require = policy(ClientCertificateMode::Require, &clients);
    assert_eq!(require, policy(ClientCertificateMode::Require, &clients));
    assert_ne!(require, policy(ClientCertificateMode::Request, &clients));
    let others = TestAuthority::new("Others").pem();
    assert_ne!(require, policy(ClientCertificateMode::Require, &others));
    assert_ne!(require, PolicyId::NONE);
}

#[test]
fn files_for_client_certificates_are_checked() {
    let mode = ClientCertificateMode::Require;
    let error = ClientCertificates::from_pem(mode, b"", None)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the file of authorities for client certificates"),
        "{error}"
    );
    let pem = TestAuthority::new("Clients").pem();
    let error = ClientCertificates::from_pem(mode, pem.as_bytes(), Some(b"")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("the file of revocation lists cannot be used"),
        "{error}"
    );
}
