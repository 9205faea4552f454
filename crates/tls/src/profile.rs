//! Which versions, cipher suites and key exchanges are offered.
//!
//! The values are those of Mozilla's "Server Side TLS", version 6.0 (`guidelines/6.0.json`). Both
//! profiles let the client choose among the suites: a phone knows best whether AES or ChaCha20 is
//! fast on it.

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

/// A set of versions and algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TlsProfile {
    /// TLS 1.2 and 1.3: for clients since 2014 (Firefox 31, Chrome 49, OpenSSL 1.0.1, Java 8).
    #[default]
    Intermediate,
    /// TLS 1.3 only: for clients since 2018 (Firefox 63, Chrome 70, OpenSSL 1.1.1, Java 11).
    Modern,
}

impl TlsProfile {
    /// The protocol versions.
    pub(crate) fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        match self {
            Self::Intermediate => vec![&version::TLS13, &version::TLS12],
            Self::Modern => vec![&version::TLS13],
        }
    }

    /// The algorithms.
    ///
    /// X25519MLKEM768 comes first, so that traffic recorded today stays secret when there are
    /// quantum computers. The client's order decides where it supports several; every current
    /// browser begins with it too.
    pub(crate) fn provider(self) -> CryptoProvider {
        let suites = match self {
            Self::Intermediate => [TLS13_SUITES, TLS12_SUITES].concat(),
            Self::Modern => TLS13_SUITES.to_vec(),
        };
        CryptoProvider {
            cipher_suites: suites,
            kx_groups: vec![
                kx_group::X25519MLKEM768,
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
            ],
            ..aws_lc_rs::default_provider()
        }
    }
}

const TLS13_SUITES: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

const TLS12_SUITES: &[SupportedCipherSuite] = &[
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];
