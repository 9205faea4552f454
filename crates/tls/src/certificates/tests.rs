//! Which certificate serves which host, over which connections, before and after changes.

use std::sync::Arc;

use rcgen::KeyPair;
use rustls::SignatureScheme;

use super::{
    CertificateStore, ConnectionIdentity, PolicyId, SiteCertificates, StoreContents, UnknownHosts,
};
use crate::certificate::{CertificateSource, ServerCertificate};
use crate::profile::TlsProfile;
use crate::stand_in::stand_in;
use crate::testing::{
    DAY, NOW, TestAuthority, client, config, der, handshake, now, served, store, store_with,
};

#[test]
fn an_exact_host_wins_over_a_wildcard_and_a_wildcard_is_one_label() {
    let authority = TestAuthority::new("Root");
    let exact = authority.issue(&["www.example.com"]).load();
    let wildcard = authority.issue(&["*.example.com"]).load();
    let certificates = store_with(store(&[
        (&["*.example.com"], &[&wildcard]),
        (&["WWW.example.com."], &[&exact]),
    ]));
    let rows = [
        ("www.example.com", Some(&exact)),
        ("WwW.Example.Com", Some(&exact)),
        ("shop.example.com", Some(&wildcard)),
        ("a.shop.example.com", None),
        ("example.com", None),
        ("example.org", None),
    ];
    for (name, expected) in rows {
        assert_eq!(
            served(&certificates, &authority, name),
            expected.map(der),
            "{name}"
        );
        assert_eq!(
            certificates.certificate_for(name).is_some(),
            expected.is_some(),
            "{name}"
        );
    }
}

#[test]
fn of_two_sites_with_one_host_the_first_has_it() {
    let authority = TestAuthority::new("Root");
    let names = ["a.test", "*.a.test"];
    let (first, second) = (
        authority.issue(&names).load(),
        authority.issue(&names).load(),
    );
    let certificates = store_with(store(&[(&names, &[&first]), (&names, &[&second])]));
    for name in ["a.test", "b.a.test"] {
        assert_eq!(
            served(&certificates, &authority, name),
            Some(der(&first)),
            "{name}"
        );
    }
}

#[test]
fn hosts_are_found_in_every_form() {
    let certificate = stand_in(&["a.test".to_owned()], now()).unwrap();
    let hosts: &[&str] = &["a.test", "10.0.0.1", "[2001:DB8::1]"];
    let certificates = store_with(store(&[(hosts, &[&certificate])]));
    for host in [
        "a.test",
        "A.TEST",
        "a.test.",
        "10.0.0.1",
        "[2001:db8::1]",
        "2001:db8::1",
    ] {
        assert!(certificates.certificate_for(host).is_some(), "{host}");
    }
    let long = "A".repeat(254);
    for host in [
        "",
        ".",
        "b.test",
        "a.test..",
        "a.tes",
        &long,
        "\u{212a}.test",
    ] {
        assert!(certificates.certificate_for(host).is_none(), "{host}");
    }
}

#[test]
fn a_client_gets_the_first_certificate_that_it_verifies() {
    let authority = TestAuthority::new("Root");
    let names = ["a.test"];
    let issue = |algorithm| {
        let key = KeyPair::generate_for(algorithm).unwrap();
        authority.issue_for(key, &names, |_| {}).load()
    };
    let rsa = issue(&rcgen::PKCS_RSA_SHA256);
    let p256 = issue(&rcgen::PKCS_ECDSA_P256_SHA256);
    let p384 = issue(&rcgen::PKCS_ECDSA_P384_SHA384);
    let ed25519 = issue(&rcgen::PKCS_ED25519);
    let all = [&rsa, &ed25519, &p384, &p256];
    let certificates = store_with(store(&[(&["a.test"], &all)]));
    let rows: [(&[SignatureScheme], &ServerCertificate); 6] = [
        (
            &[
                SignatureScheme::RSA_PSS_SHA256,
                SignatureScheme::ECDSA_NISTP256_SHA256,
            ],
            &p256,
        ),
        (
            &[
                SignatureScheme::ECDSA_NISTP384_SHA384,
                SignatureScheme::RSA_PKCS1_SHA256,
            ],
            &p384,
        ),
        (
            &[SignatureScheme::RSA_PSS_SHA384, SignatureScheme::ED25519],
            &ed25519,
        ),
        (&[SignatureScheme::RSA_PSS_SHA512], &rsa),
        (&[SignatureScheme::RSA_PKCS1_SHA256], &rsa),
        // None of them: rustls refuses with the right alert.
        (&[SignatureScheme::ECDSA_SHA1_Legacy], &p256),
    ];
    for (offered, expected) in rows {
        let chosen = certificates.choose(Some("a.test"), offered).unwrap();
        assert_eq!(chosen.cert[0].to_vec(), der(expected), "{offered:?}");
    }
    assert_eq!(
        served(&certificates, &authority, "a.test"),
        Some(der(&p256))
    );
}

#[test]
fn every_kind_of_key_completes_a_handshake() {
    let authority = TestAuthority::new("Root");
    let algorithms = [
        &rcgen::PKCS_RSA_SHA256,
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_ED25519,
    ];
    for algorithm in algorithms {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = authority.issue_for(key, &["a.test"], |_| {}).load();
        let certificates = store_with(store(&[(&["a.test"], &[&certificate])]));
        assert_eq!(
            served(&certificates, &authority, "a.test"),
            Some(der(&certificate))
        );
    }
}

#[test]
fn a_client_without_a_name_gets_the_default() {
    let authority = TestAuthority::new("Root");
    let (a, ip) = (
        authority.issue(&["a.test"]).load(),
        authority.issue(&["127.0.0.1"]).load(),
    );
    let site = |certificate: &ServerCertificate, hosts: &[&str]| SiteCertificates {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        certificates: vec![certificate.clone()],
        policy: PolicyId::NONE,
        last_error: None,
    };
    let sites = || vec![site(&a, &["a.test"]), site(&ip, &[])];
    let with = |default| store_with(StoreContents::new(sites(), default, UnknownHosts::Refuse));
    // A client names no host when it connects to an address (RFC 6066 §3).
    assert_eq!(
        served(&with(Some(1)), &authority, "127.0.0.1"),
        Some(der(&ip))
    );
    assert_eq!(served(&with(None), &authority, "127.0.0.1"), None);
    assert_eq!(served(&with(Some(1)), &authority, "b.test"), None);
}

#[test]
fn unknown_names_get_the_default_where_that_is_wanted() {
    let authority = TestAuthority::new("Root");
    let certificate = authority.issue(&["a.test", "b.test"]).load();
    let site = SiteCertificates {
        hosts: vec!["a.test".to_owned()],
        certificates: vec![certificate.clone()],
        policy: PolicyId::NONE,
        last_error: None,
    };
    let contents = StoreContents::new(vec![site], Some(0), UnknownHosts::ServeDefault);
    let certificates = store_with(contents);
    assert_eq!(
        served(&certificates, &authority, "b.test"),
        Some(der(&certificate))
    );
    let connection = certificates.identify(Some("b.test"), PolicyId::NONE);
    assert!(certificates.permits(&connection, "b.test"));
}

#[test]
fn a_site_without_a_certificate_serves_none() {
    let site = SiteCertificates {
        hosts: vec!["a.test".to_owned()],
        certificates: Vec::new(),
        policy: PolicyId::NONE,
        last_error: None,
    };
    let certificates = store_with(StoreContents::new(
        vec![site],
        Some(0),
        UnknownHosts::ServeDefault,
    ));
    assert_eq!(certificates.certificate_for("a.test"), None);
    assert!(certificates.choose(None, &[]).is_none());
}

#[test]
fn a_renewal_changes_new_handshakes_and_keeps_connections() {
    let authority = TestAuthority::new("Root");
    let old = authority.issue(&["a.test", "b.test"]).load();
    let new = authority.issue(&["b.test", "a.test"]).load();
    let hosts: &[&str] = &["a.test", "b.test"];
    let certificates = store_with(store(&[(hosts, &[&old])]));
    let connection = certificates.identify(Some("a.test"), PolicyId::NONE);
    assert_eq!(served(&certificates, &authority, "a.test"), Some(der(&old)));
    let client = Arc::new(client(&authority, TlsProfile::Intermediate));
    let server = config(&certificates);
    let mut session = handshake(&client, &server, "a.test").unwrap();
    certificates.replace(store(&[(hosts, &[&new])]));
    assert_eq!(served(&certificates, &authority, "a.test"), Some(der(&new)));
    assert!(
        certificates.permits(&connection, "a.test") && certificates.permits(&connection, "b.test")
    );
    // The session from before goes on.
    use std::io::{Read, Write};
    session.client.writer().write_all(b"still here").unwrap();
    let mut bytes = Vec::new();
    session.client.write_tls(&mut bytes).unwrap();
    session.server.read_tls(&mut bytes.as_slice()).unwrap();
    session.server.process_new_packets().unwrap();
    let mut read = [0; 10];
    session.server.reader().read_exact(&mut read).unwrap();
    assert_eq!(&read, b"still here");
}

/// A store of three sites: `a` and `b` share a certificate, `c` has one of its own, and `d` shares
/// that of `a` but asks for client certificates.
fn shared() -> Arc<CertificateStore> {
    let authority = TestAuthority::new("Root");
    let common = authority.issue(&["a.test", "b.test", "d.test"]).load();
    let own = authority.issue(&["c.test"]).load();
    let site = |hosts: &[&str], certificate: &ServerCertificate, policy| SiteCertificates {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        certificates: vec![certificate.clone()],
        policy,
        last_error: None,
    };
    let sites = vec![
        site(&["a.test"], &common, PolicyId::NONE),
        site(&["b.test", "*.b.test"], &common, PolicyId::NONE),
        site(&["c.test"], &own, PolicyId::NONE),
        site(&["d.test"], &common, PolicyId(9)),
    ];
    store_with(StoreContents::new(sites, Some(0), UnknownHosts::Refuse))
}

#[test]
fn connections_carry_requests_for_hosts_of_their_certificate() {
    let certificates = shared();
    let connection = |name, policy| certificates.identify(name, policy);
    let rows: [(ConnectionIdentity, &str, bool); 16] = [
        (connection(Some("a.test"), PolicyId::NONE), "a.test", true),
        (connection(Some("a.test"), PolicyId::NONE), "A.test.", true),
        (connection(Some("a.test"), PolicyId::NONE), "b.test", true),
        (connection(Some("a.test"), PolicyId::NONE), "x.b.test", true),
        (connection(Some("a.test"), PolicyId::NONE), "c.test", false),
        (connection(Some("c.test"), PolicyId::NONE), "a.test", false),
        (connection(Some("c.test"), PolicyId::NONE), "c.test", true),
        (connection(Some("a.test"), PolicyId::NONE), "d.test", false),
        (connection(Some("d.test"), PolicyId(9)), "d.test", true),
        (connection(Some("d.test"), PolicyId(9)), "a.test", false),
        // A session that did not ask for a certificate, though the site's name was the name.
        (connection(Some("d.test"), PolicyId::NONE), "d.test", false),
        // No name: any host of the same policy.
        (connection(None, PolicyId::NONE), "c.test", true),
        (connection(None, PolicyId::NONE), "10.0.0.1", true),
        (connection(None, PolicyId::NONE), "d.test", false),
        // Hosts without a certificate are under that of the default.
        (
            connection(Some("a.test"), PolicyId::NONE),
            "unknown.test",
            true,
        ),
        (
            connection(Some("c.test"), PolicyId::NONE),
            "unknown.test",
            false,
        ),
    ];
    for (connection, host, expected) in rows {
        assert_eq!(
            certificates.permits(&connection, host),
            expected,
            "{connection:?} {host}"
        );
    }
}

#[test]
fn a_removed_site_is_asked_for_over_no_connection() {
    let authority = TestAuthority::new("Root");
    let (a, b) = (
        authority.issue(&["a.test"]).load(),
        authority.issue(&["b.test"]).load(),
    );
    let certificates = store_with(store(&[(&["a.test"], &[&a]), (&["b.test"], &[&b])]));
    let connection = certificates.identify(Some("b.test"), PolicyId::NONE);
    assert!(certificates.permits(&connection, "b.test"));
    certificates.replace(store(&[(&["a.test"], &[&a])]));
    assert!(!certificates.permits(&connection, "b.test"));
    assert_eq!(served(&certificates, &authority, "b.test"), None);
    certificates.replace(StoreContents::default());
    assert!(!certificates.permits(&connection, "b.test"));
}

#[test]
fn the_snapshot_shows_each_certificate_and_its_last_error() {
    let authority = TestAuthority::new("Root");
    let mut file = authority.issue(&["a.test"]).load();
    file.source = CertificateSource::File("/etc/a.pem".into());
    let waiting = stand_in(&["b.test".to_owned()], now()).unwrap();
    let certificates = store_with(store(&[
        (&["a.test"], &[&file]),
        (&["b.test"], &[&waiting]),
    ]));
    let message = "order failed: rate limited".to_owned();
    assert!(certificates.set_last_error("B.test", Some(message.clone())));
    assert!(!certificates.set_last_error("c.test", None));
    let [a, b] = &certificates.snapshot()[..] else {
        panic!("two certificates");
    };
    assert_eq!(
        (a.hosts.clone(), a.names.clone()),
        (vec!["a.test".into()], vec!["a.test".into()])
    );
    assert_eq!(
        (a.issuer.as_str(), a.not_after, a.source.label()),
        ("CN=Root", NOW + 90 * DAY, "file")
    );
    assert_eq!(a.last_error, None);
    assert_eq!(b.issuer, "CN=Penstock stand-in certificate");
    assert_eq!(
        (b.source.label(), &b.last_error),
        ("self_signed", &Some(message))
    );
    certificates.set_last_error("b.test", None);
    assert_eq!(certificates.snapshot()[1].last_error, None);
}
