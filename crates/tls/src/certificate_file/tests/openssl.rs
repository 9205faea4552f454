//! Files that the real `openssl` makes, good and bad, and chains of every kind of authority.

use std::path::Path;

use rustls::pki_types::UnixTime;

use super::super::{CertificateFiles, CertificateProblem, load, parse};
use crate::certificate::CertificateSource;
use crate::testing::openssl;
use crate::x509::KeyKind;

/// Words of commands, and what they stand for.
const WORDS: [(&str, &str); 7] = [
    ("FILES", "-keyout k.pem -out c.pem"),
    ("SUBJECT", "-subj /CN=a.test"),
    ("NAME", "-addext subjectAltName=DNS:a.test"),
    ("P256", "ec -pkeyopt ec_paramgen_curve:P-256"),
    ("P384", "ec -pkeyopt ec_paramgen_curve:P-384"),
    ("P521", "ec -pkeyopt ec_paramgen_curve:P-521"),
    ("K256", "ec -pkeyopt ec_paramgen_curve:secp256k1"),
];

/// Runs `openssl` with the words of a command.
fn run(dir: &Path, command: &str) {
    let word = |word| {
        WORDS
            .iter()
            .find(|(name, _)| *name == word)
            .map_or(word, |it| it.1)
    };
    let words: Vec<&str> = command.split_whitespace().map(word).collect();
    openssl(dir, &words.join(" "));
}

/// One file pair that `openssl` makes, and the expected outcome.
struct OpensslRow {
    name: &'static str,
    commands: &'static [&'static str],
    expected: Result<KeyKind, &'static str>,
}

/// Each writes `c.pem` and `k.pem`.
const OPENSSL: &[OpensslRow] = &[
    OpensslRow {
        name: "P-256, PKCS#8",
        commands: &["req -x509 -newkey P256 -nodes FILES SUBJECT NAME"],
        expected: Ok(KeyKind::EcdsaP256),
    },
    OpensslRow {
        name: "P-384, SEC 1 with its parameters in front",
        commands: &[
            "ecparam -name secp384r1 -genkey -out k.pem",
            "req -x509 -key k.pem -out c.pem SUBJECT NAME",
        ],
        expected: Ok(KeyKind::EcdsaP384),
    },
    OpensslRow {
        name: "Ed25519",
        commands: &["req -x509 -newkey ed25519 -nodes FILES SUBJECT NAME"],
        expected: Ok(KeyKind::Ed25519),
    },
    OpensslRow {
        name: "RSA 2048, PKCS#1",
        commands: &[
            "genrsa -traditional -out k.pem 2048",
            "req -x509 -key k.pem -out c.pem SUBJECT NAME",
        ],
        expected: Ok(KeyKind::Rsa { bits: 2048 }),
    },
    OpensslRow {
        name: "RSA 1024",
        commands: &["req -x509 -newkey rsa:1024 -nodes FILES SUBJECT"],
        expected: Err("c.pem: the RSA key has 1024 bits"),
    },
    OpensslRow {
        name: "encrypted PKCS#8",
        commands: &["req -x509 -newkey P256 -passout pass:secret FILES SUBJECT"],
        expected: Err("k.pem: the key is encrypted"),
    },
    OpensslRow {
        name: "encrypted PKCS#1",
        commands: &[
            "genrsa -traditional -aes128 -passout pass:secret -out k.pem 2048",
            "req -x509 -key k.pem -passin pass:secret -out c.pem SUBJECT",
        ],
        expected: Err("k.pem: the key is encrypted"),
    },
    OpensslRow {
        name: "a curve that TLS does not use",
        commands: &["req -x509 -newkey K256 -nodes FILES SUBJECT"],
        expected: Err("k.pem: the key is damaged or of an unsupported kind"),
    },
    OpensslRow {
        name: "DER",
        commands: &["req -x509 -newkey P256 -nodes -keyout k.pem -outform der -out c.pem SUBJECT"],
        expected: Err("c.pem: has no certificate: it is in DER form"),
    },
    OpensslRow {
        name: "the key of another certificate",
        commands: &[
            "req -x509 -newkey P256 -nodes -keyout unused.pem -out c.pem SUBJECT",
            "genpkey -algorithm P256 -out k.pem",
        ],
        expected: Err("k.pem: the key does not belong to the certificate for CN=a.test"),
    },
];

#[test]
fn files_that_openssl_makes() {
    for row in OPENSSL {
        let dir = tempfile::tempdir().unwrap();
        for command in row.commands {
            run(dir.path(), command);
        }
        let files = CertificateFiles {
            certificate: dir.path().join("c.pem"),
            key: Some(dir.path().join("k.pem")),
        };
        match (load(&files, UnixTime::now()), row.expected) {
            (Ok(loaded), Ok(kind)) => {
                let certificate = &loaded.certificate;
                assert_eq!(certificate.facts.key, kind, "{}", row.name);
                assert_eq!(certificate.facts.names, ["a.test"], "{}", row.name);
                assert_eq!(
                    loaded.errors().count(),
                    0,
                    "{}: {:?}",
                    row.name,
                    loaded.problems
                );
                // `openssl req -x509` makes an authority, unasked.
                let authority = CertificateProblem::Authority {
                    is_self_issued: true,
                };
                let expected = [authority, CertificateProblem::SelfSigned];
                for problem in expected {
                    assert!(
                        loaded.problems.contains(&problem),
                        "{}: {problem}",
                        row.name
                    );
                }
            }
            (Err(error), Err(expected)) => {
                let error = error.to_string();
                assert!(error.contains(expected), "{}: {error}", row.name);
            }
            (result, expected) => panic!("{}: {result:?}, not {expected:?}", row.name),
        }
    }
}

/// Authorities of each kind: the key, and how it signs.
const AUTHORITIES: [(&str, &str); 9] = [
    ("rsa:2048", "-sha256"),
    ("rsa:3072", "-sha512"),
    (
        "rsa:2048",
        "-sha256 -sigopt rsa_padding_mode:pss -sigopt rsa_pss_saltlen:digest",
    ),
    ("P256", "-sha256"),
    ("P256", "-sha512"),
    ("P384", "-sha256"),
    ("P384", "-sha384"),
    ("P521", "-sha512"),
    ("ed25519", ""),
];

#[test]
fn chains_of_every_kind_of_authority_hold_together() {
    let dir = tempfile::tempdir().unwrap();
    for (key, how) in AUTHORITIES {
        let root = "-nodes -keyout ca.key -out ca.pem -subj /CN=CA";
        run(dir.path(), &format!("req -x509 -newkey {key} {root}"));
        let leaf = "-newkey P256 -nodes FILES SUBJECT NAME -CA ca.pem -CAkey ca.key";
        let plain = "-addext basicConstraints=critical,CA:FALSE";
        run(dir.path(), &format!("req -x509 {leaf} {plain} {how}"));
        let read = |name: &str| crate::pem_file::read(&dir.path().join(name)).unwrap().text;
        let chain = [read("c.pem").as_slice(), read("ca.pem").as_slice()].concat();
        let source = CertificateSource::Acme;
        let loaded = parse(&chain, &read("k.pem"), source, UnixTime::now()).unwrap();
        assert_eq!(loaded.problems, [], "{key} {how}");
    }
}
