//! The folder of the authority, and certificates that a real client and `openssl` verify.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::UnixTime;

use super::{LocalAuthority, ROOT_VALIDITY, needs_renewal};
use crate::certificate::ServerCertificate;
use crate::certificates::CertificateStore;
use crate::profile::TlsProfile;
use crate::server_config::{ServerTlsOptions, server_config};
use crate::server_trust::roots_from_pem;
use crate::testing::{
    DAY, FixedClock, NOW, at, client_builder, handshake, now, openssl, store, write,
};
use crate::tickets::TicketKeys;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Whether a client with these authorities accepts a certificate for a name.
fn is_accepted(roots: &Arc<RootCertStore>, certificate: &ServerCertificate, name: &str) -> bool {
    let certificates = CertificateStore::new(None, None);
    certificates.replace(store(&[(&[name], &[certificate])]));
    let options = ServerTlsOptions {
        profile: TlsProfile::Modern,
        certificates: Arc::new(certificates),
        tickets: Arc::new(TicketKeys::new(Arc::new(FixedClock(NOW)))),
        alpn: Vec::new(),
        client_certificates: None,
    };
    let client = client_builder(TlsProfile::Modern).with_root_certificates(Arc::clone(roots));
    let client = Arc::new(client.with_no_client_auth());
    handshake(&client, &server_config(options).unwrap().config, name).is_ok()
}

#[test]
fn the_authority_is_made_once_and_its_key_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("data/local");
    let first = LocalAuthority::open(&folder, now()).unwrap();
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("authority.pem")), 0o600);
    assert_eq!(mode(&first.root_path()), 0o644);
    let read = |path: &Path| String::from_utf8(crate::pem_file::read(path).unwrap().text.to_vec());
    assert_eq!(read(&first.root_path()).unwrap(), first.root_pem());
    assert!(!first.root_pem().contains("KEY"));
    let facts = first.root_facts();
    assert!(
        facts.subject.starts_with("CN=Penstock local authority "),
        "{}",
        facts.subject
    );
    assert!(facts.is_authority && facts.is_self_issued);
    let second = LocalAuthority::open(&folder, at(NOW + DAY)).unwrap();
    assert_eq!(second.root_pem(), first.root_pem());
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, 2, "no temporary file is left");
    assert!(!format!("{second:?}").contains("issuer: Issuer"));
}

#[test]
fn clients_that_trust_the_root_accept_its_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open(dir.path(), now()).unwrap();
    let roots = roots_from_pem(authority.root_pem().as_bytes()).unwrap();
    let names = [
        "shop.test".to_owned(),
        "*.shop.test".to_owned(),
        "localhost".to_owned(),
    ];
    let certificate = authority.issue(&names, now()).unwrap();
    assert_eq!(
        certificate.facts.names,
        ["shop.test", "*.shop.test", "localhost", "127.0.0.1", "::1"]
    );
    for name in [
        "localhost",
        "shop.test",
        "www.shop.test",
        "127.0.0.1",
        "::1",
    ] {
        assert!(is_accepted(&roots, &certificate, name), "{name}");
    }
    assert!(!is_accepted(&roots, &certificate, "other.test"));
    let other = tempfile::tempdir().unwrap();
    let other = LocalAuthority::open(other.path(), now()).unwrap();
    let others = roots_from_pem(other.root_pem().as_bytes()).unwrap();
    assert!(!is_accepted(&others, &certificate, "localhost"));
    let again = authority.issue(&[], now()).unwrap();
    assert_eq!(again.facts.names, ["localhost", "127.0.0.1", "::1"]);
    assert!(is_accepted(&roots, &again, "localhost"));
}

#[test]
fn openssl_verifies_its_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let now = UnixTime::now();
    let authority = LocalAuthority::open(dir.path(), now).unwrap();
    let certificate = authority.issue(&["shop.test".to_owned()], now).unwrap();
    let der = certificate.certified_key.cert[0].to_vec();
    std::fs::File::create_new(dir.path().join("leaf.der"))
        .and_then(|mut file| std::io::Write::write_all(&mut file, &der))
        .unwrap();
    openssl(dir.path(), "x509 -inform der -in leaf.der -out leaf.pem");
    for name in [
        "-verify_hostname localhost",
        "-verify_hostname shop.test",
        "-verify_ip ::1",
    ] {
        let purpose = "-purpose sslserver -x509_strict -CAfile root.pem";
        openssl(dir.path(), &format!("verify {purpose} {name} leaf.pem"));
    }
}

#[test]
fn names_that_are_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open(dir.path(), now()).unwrap();
    let error = authority
        .issue(&["b\u{fc}cher.test".to_owned()], now())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot make a certificate for b\u{fc}cher.test"),
        "{error}"
    );
    let long = "a".repeat(63);
    let long = format!("{long}.{long}.test");
    assert_eq!(
        authority
            .issue(std::slice::from_ref(&long), now())
            .unwrap()
            .facts
            .names[0],
        long
    );
}

#[test]
fn certificates_are_renewed_in_their_last_third() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open(dir.path(), now()).unwrap();
    let facts = authority.issue(&[], now()).unwrap().facts;
    for (days, expected) in [(0, false), (59, false), (61, true), (89, true), (365, true)] {
        assert_eq!(
            needs_renewal(&facts, at(NOW + days * DAY)),
            expected,
            "{days} days"
        );
    }
    // No certificate outlives its root.
    let late = NOW + ROOT_VALIDITY - 5 * DAY;
    let facts = authority.issue(&[], at(late)).unwrap().facts;
    assert_eq!(facts.not_after, authority.root_facts().not_after);
}

#[test]
fn an_expired_root_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let old = LocalAuthority::open(dir.path(), now()).unwrap();
    let new = LocalAuthority::open(dir.path(), at(NOW + ROOT_VALIDITY + 1)).unwrap();
    assert_ne!(old.root_pem(), new.root_pem());
    let root = crate::pem_file::read(&new.root_path()).unwrap().text;
    assert_eq!(*root, new.root_pem().as_bytes());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    LocalAuthority::open(dir.path(), now()).unwrap();
    let path = dir.path().join("authority.pem");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let error = LocalAuthority::open(dir.path(), now())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("authority.pem: other users can read its key (mode 640)"),
        "{error}"
    );
}

#[test]
fn a_damaged_root_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "authority.pem", "nothing");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let error = LocalAuthority::open(dir.path(), now())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("authority.pem: has no certificate"),
        "{error}"
    );
    let file = dir.path().join("authority.pem/below");
    let error = LocalAuthority::open(&file, now()).unwrap_err().to_string();
    assert!(
        error.contains("authority.pem/below: Not a directory"),
        "{error}"
    );
}

#[test]
fn programs_that_start_at_once_agree_on_one_root() {
    let dir = tempfile::tempdir().unwrap();
    let barrier = std::sync::Barrier::new(8);
    let roots: Vec<String> = std::thread::scope(|scope| {
        let open = || {
            barrier.wait();
            LocalAuthority::open(dir.path(), now())
                .unwrap()
                .root_pem()
                .to_owned()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(roots.iter().all(|root| *root == roots[0]));
    let published = crate::pem_file::read(&dir.path().join("root.pem"))
        .unwrap()
        .text;
    assert_eq!(*published, roots[0].as_bytes());
}
