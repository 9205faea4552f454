//! Handshakes that get no certificate, or one of a challenge.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::sign::CertifiedKey;

use super::{ACME_TLS_ALPN, ChallengeCertificates, OnDemandNames, correct_refusal_alert};
use crate::certificates::CertificateStore;
use crate::profile::TlsProfile;
use crate::testing::{
    TestAuthority, client, config, config_with_protocols, der, handshake, store, store_with,
};

#[test]
fn an_unknown_name_is_refused_with_its_own_alert() {
    let authority = TestAuthority::new("Root");
    let certificate = authority.issue(&["a.test", "b.test"]).load();
    let certificates = store_with(store(&[(&["a.test"], &[&certificate])]));
    let client = Arc::new(client(&authority, TlsProfile::Intermediate));
    let failed = handshake(&client, &config(&certificates), "b.test")
        .map(|_| ())
        .unwrap_err();
    let mut alert = failed.alert;
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 49]);
    assert!(correct_refusal_alert(
        failed.server.as_ref().unwrap(),
        &mut alert
    ));
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 112]);
    // Other alerts and other errors stay as they are.
    let mut other = [21, 3, 3, 0, 2, 2, 40];
    assert!(!correct_refusal_alert(
        failed.server.as_ref().unwrap(),
        &mut other
    ));
    let mut denied = [21, 3, 3, 0, 2, 2, 49];
    assert!(!correct_refusal_alert(
        &rustls::Error::DecryptError,
        &mut denied
    ));
    assert_eq!((other[6], denied[6]), (40, 49));
}

/// Answers challenges for one name.
struct OneChallenge(Arc<CertifiedKey>);

impl ChallengeCertificates for OneChallenge {
    fn challenge_certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        (name == "a.test").then(|| Arc::clone(&self.0))
    }
}

#[test]
fn challenges_are_answered_apart_from_sites() {
    let authority = TestAuthority::new("Root");
    let site = authority.issue(&["a.test", "b.test"]).load();
    let challenge = authority.issue(&["a.test"]).load();
    let challenges = OneChallenge(Arc::clone(&challenge.certified_key));
    let certificates = CertificateStore::new(Some(Arc::new(challenges)), None);
    certificates.replace(store(&[(&["a.test", "b.test"], &[&site])]));
    let certificates = Arc::new(certificates);
    let server = config(&certificates);
    let answer = |protocols: &[&[u8]], name: &str| {
        let mut client = client(&authority, TlsProfile::Intermediate);
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let session = handshake(&Arc::new(client), &server, name).ok()?;
        let protocol = session.server.alpn_protocol().map(<[u8]>::to_vec);
        Some((
            session.client.peer_certificates().unwrap()[0].to_vec(),
            protocol,
        ))
    };
    let acme = Some(ACME_TLS_ALPN.to_vec());
    assert_eq!(
        answer(&[ACME_TLS_ALPN], "a.test"),
        Some((der(&challenge), acme))
    );
    assert_eq!(answer(&[ACME_TLS_ALPN], "b.test"), None);
    let http = Some(b"http/1.1".to_vec());
    assert_eq!(
        answer(&[b"http/1.1"], "a.test"),
        Some((der(&site), http.clone()))
    );
    assert_eq!(
        answer(&[ACME_TLS_ALPN, b"http/1.1"], "a.test"),
        Some((der(&site), http))
    );
    assert_eq!(answer(&[], "a.test"), Some((der(&site), None)));
    // Without protocols of its own it takes a client with any.
    let mut client = client(&authority, TlsProfile::Intermediate);
    client.alpn_protocols = vec![b"mqtt".to_vec()];
    let client = Arc::new(client);
    assert!(handshake(&client, &server, "a.test").is_err());
    let server = config_with_protocols(&certificates, &[]);
    let session = handshake(&client, &server, "a.test").unwrap();
    assert_eq!(session.server.alpn_protocol(), None);
}

/// Keeps the names that it gets.
#[derive(Default)]
struct Names(Mutex<Vec<String>>);

impl OnDemandNames for Names {
    fn name_requested(&self, name: &str) {
        self.0.lock().push(name.to_owned());
    }
}

#[test]
fn names_without_a_certificate_are_reported() {
    let authority = TestAuthority::new("Root");
    let certificate = authority.issue(&["a.test"]).load();
    let names = Arc::new(Names::default());
    let on_demand: Option<Arc<dyn OnDemandNames>> = Some(names.clone());
    let certificates = CertificateStore::new(None, on_demand);
    certificates.replace(store(&[(&["a.test"], &[&certificate])]));
    let server = config(&Arc::new(certificates));
    let client = Arc::new(client(&authority, TlsProfile::Intermediate));
    handshake(&client, &server, "a.test").unwrap();
    assert!(handshake(&client, &server, "New.test").is_err());
    assert!(handshake(&client, &server, "127.0.0.1").is_err());
    assert_eq!(*names.0.lock(), ["new.test"]);
}
