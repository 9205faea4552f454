//! Tables of good and bad certificates, made by rcgen, and of the files that they are in.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::{CertificateError, CertificateFiles, CertificateProblem, LoadedCertificate, load};
use crate::certificate::CertificateSource;
use crate::testing::{DAY, Issued, NOW, TestAuthority, at, chained, now, set_validity, write};
use crate::x509::KeyKind;

mod openssl;

fn parse(issued: &Issued) -> Result<LoadedCertificate, CertificateError> {
    let (chain, key) = (issued.certificate.as_bytes(), issued.key.as_bytes());
    super::parse(chain, key, CertificateSource::Acme, now())
}

fn problems(issued: &Issued) -> Vec<String> {
    let loaded = parse(issued).unwrap();
    loaded
        .problems
        .iter()
        .map(CertificateProblem::to_string)
        .collect()
}

#[test]
fn a_right_chain_has_no_problem_and_tells_its_facts() {
    let loaded = parse(&chained(|_| {}).0).unwrap();
    assert_eq!(loaded.problems, []);
    let facts = &loaded.certificate.facts;
    assert_eq!(facts.names, ["example.com", "www.example.com"]);
    assert_eq!(facts.issuer, "CN=Intermediate");
    assert_eq!(
        (facts.not_before, facts.not_after),
        (NOW - DAY, NOW + 90 * DAY)
    );
    assert_eq!(facts.key, KeyKind::EcdsaP256);
    assert_eq!(loaded.certificate.certified_key.cert.len(), 2);
}

#[test]
fn problems_that_rcgen_can_make() {
    let authority = || TestAuthority::new("Root");
    let expired = |params: &mut CertificateParams| set_validity(params, NOW - 9 * DAY, NOW - DAY);
    let early = |params: &mut CertificateParams| set_validity(params, NOW + DAY, NOW + 9 * DAY);
    let authority_leaf = |params: &mut CertificateParams| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    };
    let mut other_order = chained(|_| {}).0;
    other_order.certificate.push_str(&authority().pem());
    let mut wrong_issuer = chained(|_| {}).0;
    // The same name as the right one, and another key.
    let twin = authority().intermediate("Intermediate").pem();
    let leaf_end = wrong_issuer.certificate.find("-----END").unwrap() + 26;
    wrong_issuer.certificate.replace_range(leaf_end.., &twin);
    let rows = [
        (
            "expired",
            chained(expired).0,
            "certificate 1 of the chain expired on 2026-11-26: renew it",
        ),
        (
            "early",
            chained(early).0,
            "certificate 1 of the chain is valid from 2026-11-28 on",
        ),
        (
            "authority",
            chained(authority_leaf).0,
            "it is the certificate of an authority",
        ),
        (
            "alone",
            authority().issue(&["a.test"]),
            "the chain has no intermediate certificate",
        ),
        (
            "no names",
            authority().issue(&[]),
            "it has no subject alternative name",
        ),
        (
            "order",
            other_order,
            "certificate 2 of the chain was issued by CN=Root, and another",
        ),
        (
            "twin",
            wrong_issuer,
            "certificate 1 of the chain was issued by CN=Intermediate, and",
        ),
    ];
    for (name, issued, expected) in rows {
        let problems = problems(&issued);
        let found = problems.iter().any(|problem| problem.starts_with(expected));
        assert!(found, "{name}: {problems:?}");
    }
}

#[test]
fn an_expired_intermediate_is_named_by_its_place() {
    let root = TestAuthority::new("Root");
    let (mut issued, _) = chained(|_| {});
    issued.certificate.push_str(&root.pem());
    let later = at(NOW + 3651 * DAY);
    let (chain, key) = (issued.certificate.as_bytes(), issued.key.as_bytes());
    let loaded = super::parse(chain, key, CertificateSource::Acme, later).unwrap();
    let positions: Vec<usize> = loaded
        .errors()
        .filter_map(|problem| match problem {
            CertificateProblem::Expired { position, .. } => Some(*position),
            _ => None,
        })
        .collect();
    assert_eq!(positions, [1, 2, 3]);
}

#[test]
fn errors_come_before_warnings() {
    let issued = TestAuthority::new("Root").issue_with(&["a.test"], |params| {
        set_validity(params, NOW - 9 * DAY, NOW - DAY);
    });
    let loaded = parse(&issued).unwrap();
    assert!(matches!(
        loaded.problems[0],
        CertificateProblem::Expired { position: 1, .. }
    ));
    assert!(matches!(
        loaded.problems[1],
        CertificateProblem::NoIntermediate { .. }
    ));
    assert_eq!(loaded.errors().count(), 1);
}

#[test]
fn texts_that_are_no_certificate() {
    let good = chained(|_| {}).0;
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    let (leaf, intermediate) = good
        .certificate
        .split_at(good.certificate.find("-----END").unwrap() + 26);
    let damaged = good.certificate.replacen("MII", "M!I", 1);
    let not_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let rows: [(&str, String, &str, &str); 9] = [
        (
            "empty",
            String::new(),
            &good.key,
            "has no certificate: it holds no \"-----BEGIN CERT",
        ),
        (
            "only a key",
            good.key.clone(),
            &good.key,
            "has no certificate: it holds no",
        ),
        (
            "DER",
            "0\u{3}\u{2}\u{1}".into(),
            &good.key,
            "has no certificate: it is in DER form",
        ),
        (
            "damaged",
            damaged,
            &good.key,
            "has no certificate: section 1 is damaged",
        ),
        (
            "no end",
            leaf[..80].into(),
            &good.key,
            "has no certificate: section 1 is damaged",
        ),
        (
            "no X.509",
            not_x509.into(),
            &good.key,
            "certificate 1 of the chain is damaged",
        ),
        (
            "reversed",
            format!("{intermediate}{leaf}"),
            &good.key,
            "the key belongs to certificate 2",
        ),
        (
            "a bundle",
            leaf.repeat(11),
            &good.key,
            "has 11 certificates, and a chain has at most 10",
        ),
        (
            "mismatch",
            leaf.into(),
            &other_key,
            "the key does not belong to the certificate for example.com",
        ),
    ];
    for (name, certificate, key, expected) in rows {
        let error = parse(&Issued {
            certificate,
            key: key.to_owned(),
        })
        .unwrap_err()
        .to_string();
        assert!(error.starts_with(expected), "{name}: {error}");
    }
}

#[test]
fn texts_that_are_no_key() {
    let good = chained(|_| {}).0;
    let not_a_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let legacy =
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,00\n\nAA\n";
    let rows = [
        ("empty", "", "has no private key"),
        (
            "a certificate",
            good.certificate.as_str(),
            "has no private key",
        ),
        (
            "no DER",
            not_a_key,
            "the key is damaged or of an unsupported kind",
        ),
        ("old encryption", legacy, "the key is encrypted"),
    ];
    for (name, key, expected) in rows {
        let certificate = good.certificate.clone();
        let error = parse(&Issued {
            certificate,
            key: key.to_owned(),
        })
        .unwrap_err()
        .to_string();
        assert!(error.starts_with(expected), "{name}: {error}");
        assert!(
            !error.contains("AAAA"),
            "an error shows no part of a key: {error}"
        );
    }
}

/// Writes a good pair into one file and loads it.
fn load_with_mode(dir: &Path, mode: u32) -> Result<LoadedCertificate, String> {
    let issued = chained(|_| {}).0;
    let path = write(
        dir,
        "both.pem",
        &format!("{}{}", issued.key, issued.certificate),
    );
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    let files = CertificateFiles {
        certificate: path,
        key: None,
    };
    load(&files, now()).map_err(|error| error.to_string())
}

#[test]
fn permissions_of_the_key_file() {
    let dir = tempfile::tempdir().unwrap();
    for mode in [0o600, 0o400, 0o640] {
        assert_eq!(
            load_with_mode(dir.path(), mode).unwrap().problems,
            [],
            "{mode:o}"
        );
    }
    for mode in [0o644, 0o444] {
        let problems = load_with_mode(dir.path(), mode).unwrap().problems;
        assert_eq!(problems, [CertificateProblem::ReadableKey { mode }]);
    }
    let error = load_with_mode(dir.path(), 0o666).unwrap_err();
    assert!(
        error.contains("both.pem: every user may write this key (mode 666)"),
        "{error}"
    );
}

#[test]
fn files_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let huge = std::fs::File::create_new(dir.path().join("huge.pem")).unwrap();
    huge.set_len(crate::pem_file::MAX_PEM_BYTES + 1).unwrap();
    let fifo = dir.path().join("pipe.pem");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let rows = [
        (
            "absent.pem",
            "absent.pem: cannot be read: No such file or directory",
        ),
        (".", "cannot be read: it is not a regular file"),
        (
            "pipe.pem",
            "pipe.pem: cannot be read: it is not a regular file",
        ),
        (
            "huge.pem",
            "huge.pem: cannot be read: it is larger than 8388608 bytes",
        ),
    ];
    for (name, expected) in rows {
        let files = CertificateFiles {
            certificate: dir.path().join(name),
            key: None,
        };
        let error = load(&files, now()).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn names_cover_hosts() {
    let names = ["example.com", "*.example.com", "10.0.0.1", "::1"];
    let loaded = parse(&TestAuthority::new("Root").issue(&names)).unwrap();
    let rows = [
        ("example.com", true),
        ("EXAMPLE.com.", true),
        ("www.example.com", true),
        ("*.example.com", true),
        ("a.b.example.com", false),
        ("*.b.example.com", false),
        ("example.org", false),
        ("com", false),
        ("", false),
        (".example.com", false),
        ("10.0.0.1", true),
        ("10.0.0.2", false),
        ("[::1]", true),
        ("0:0:0:0:0:0:0:1", true),
    ];
    for (host, expected) in rows {
        assert_eq!(loaded.certificate.facts.covers(host), expected, "{host}");
    }
    let hosts = ["example.com".to_owned(), "shop.test".to_owned()];
    assert_eq!(loaded.uncovered_hosts(&hosts), ["shop.test"]);
}

#[test]
fn debug_output_shows_no_key() {
    let loaded = parse(&chained(|_| {}).0).unwrap();
    let text = format!("{loaded:?}");
    assert!(
        text.contains("example.com") && !text.contains("certified_key"),
        "{text}"
    );
}
