//! Responses to challenges: what the listeners answer while an authority validates a name.
//!
//! [`ChallengeStore`] is shared with the listeners. A lookup is one atomic load and a hash; without
//! a validation in progress the maps are empty.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::name::CertificateName;

/// The protocol that a TLS-ALPN-01 validation negotiates (RFC 8737 §6.2). A handshake that offers
/// it gets the certificate of [`ChallengeStore::tls_alpn_certificate`] and is then closed.
pub const TLS_ALPN_PROTOCOL: &[u8] = b"acme-tls/1";

/// The path in front of the token of an HTTP-01 validation (RFC 8555 §8.3).
pub const HTTP_PATH: &str = "/.well-known/acme-challenge/";

/// The responses to the challenges in progress.
#[derive(Default)]
pub struct ChallengeStore {
    http: ArcSwap<HashMap<Arc<str>, Arc<str>>>,
    tls_alpn: ArcSwap<HashMap<Arc<str>, Arc<TlsAlpnCertificate>>>,
}

/// The certificate that answers a TLS-ALPN-01 validation.
pub struct TlsAlpnCertificate {
    /// The self-signed certificate.
    pub certificate: CertificateDer<'static>,
    /// Its private key, PKCS#8 in DER.
    pub key_pkcs8: Zeroizing<Vec<u8>>,
}

impl ChallengeStore {
    /// The body for a request of [`HTTP_PATH`] and `token`: the key authorization, to be sent as
    /// `application/octet-stream`.
    #[must_use]
    pub fn http_response(&self, token: &str) -> Option<Arc<str>> {
        self.http.load().get(token).cloned()
    }

    /// The certificate for a handshake with this server name, in lower case, that offers
    /// [`TLS_ALPN_PROTOCOL`].
    #[must_use]
    pub fn tls_alpn_certificate(&self, server_name: &str) -> Option<Arc<TlsAlpnCertificate>> {
        self.tls_alpn.load().get(server_name).cloned()
    }

    /// Answers an HTTP-01 challenge until the guard is dropped.
    pub(crate) fn add_http(self: &Arc<Self>, token: &str, response: &str) -> ChallengeGuard {
        let token: Arc<str> = token.into();
        insert(&self.http, &token, response.into());
        ChallengeGuard {
            store: Arc::clone(self),
            key: ChallengeKey::Http(token),
        }
    }

    /// Answers a TLS-ALPN-01 challenge until the guard is dropped. `digest` is the SHA-256 of the
    /// key authorization.
    pub(crate) fn add_tls_alpn(
        self: &Arc<Self>,
        name: &CertificateName,
        digest: &[u8],
    ) -> Result<ChallengeGuard, rcgen::Error> {
        let server_name: Arc<str> = name.validation_server_name().into();
        let certificate = Arc::new(TlsAlpnCertificate::generate(name, digest)?);
        insert(&self.tls_alpn, &server_name, certificate);
        Ok(ChallengeGuard {
            store: Arc::clone(self),
            key: ChallengeKey::TlsAlpn(server_name),
        })
    }
}

impl TlsAlpnCertificate {
    /// Makes the certificate of RFC 8737 §3: the name alone, and the critical extension with the
    /// digest.
    fn generate(name: &CertificateName, digest: &[u8]) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::new([name.domain().to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?.der().clone(),
            key_pkcs8: Zeroizing::new(key.serialize_der()),
        })
    }
}

/// Removes a response when it is dropped, also where an order is cancelled.
#[derive(Debug)]
pub(crate) struct ChallengeGuard {
    store: Arc<ChallengeStore>,
    key: ChallengeKey,
}

#[derive(Debug)]
enum ChallengeKey {
    Http(Arc<str>),
    TlsAlpn(Arc<str>),
}

impl Drop for ChallengeGuard {
    fn drop(&mut self) {
        match &self.key {
            ChallengeKey::Http(token) => remove(&self.store.http, token),
            ChallengeKey::TlsAlpn(name) => remove(&self.store.tls_alpn, name),
        }
    }
}

fn insert<K: Clone + Eq + Hash, V: Clone>(map: &ArcSwap<HashMap<K, V>>, key: &K, value: V) {
    map.rcu(|old| {
        let mut new = HashMap::clone(old);
        new.insert(key.clone(), value.clone());
        new
    });
}

fn remove<K: Clone + Eq + Hash, V: Clone>(map: &ArcSwap<HashMap<K, V>>, key: &K) {
    map.rcu(|old| {
        let mut new = HashMap::clone(old);
        new.remove(key);
        new
    });
}

impl fmt::Debug for ChallengeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChallengeStore")
            .field("http", &self.http.load().len())
            .field("tls_alpn", &self.tls_alpn.load().len())
            .finish()
    }
}

impl fmt::Debug for TlsAlpnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsAlpnCertificate(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::{FromDer, X509Certificate};

    #[test]
    fn responses_exist_as_long_as_their_guard() {
        let store = Arc::new(ChallengeStore::default());
        let first = store.add_http("one", "one.key");
        let second = store.add_http("two", "two.key");
        assert_eq!(store.http_response("one").as_deref(), Some("one.key"));
        drop(first);
        assert_eq!(store.http_response("one"), None);
        assert_eq!(store.http_response("two").as_deref(), Some("two.key"));
        drop(second);
        assert!(store.http.load().is_empty());
    }

    #[test]
    fn a_validation_certificate_has_the_name_and_the_digest() {
        let store = Arc::new(ChallengeStore::default());
        let name = CertificateName::parse("*.example.com").unwrap();
        let guard = store.add_tls_alpn(&name, &[7; 32]).unwrap();
        let made = store.tls_alpn_certificate("example.com").unwrap();
        let (_, parsed) = X509Certificate::from_der(&made.certificate).unwrap();
        let digest = parsed.extensions().iter().find(|extension| {
            extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.31" && extension.critical
        });
        assert_eq!(digest.unwrap().value[2..], [7; 32]);
        drop(guard);
        assert!(store.tls_alpn_certificate("example.com").is_none());
    }
}
