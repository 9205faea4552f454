//! Which certificates clients must show: the authorities, the revocation lists, and how strictly.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use crate::certificates::{PolicyId, short_digest};
use crate::pem_file::{self, PemError};

#[cfg(test)]
mod tests;

/// Requirements on clients. Made once for a configuration; sites that share it share its policy.
#[derive(Clone)]
pub struct ClientCertificates {
    mode: ClientCertificateMode,
    authorities: Vec<CertificateDer<'static>>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
}

/// How strictly client certificates are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientCertificateMode {
    /// A client may show none; one that it shows must be valid. Like nginx's `optional`.
    Request,
    /// A client without a valid certificate is refused in the handshake.
    Require,
}

/// Why client certificates cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum ClientCertificatesError {
    /// The text of the authorities has no certificate.
    #[error("the file of authorities for client certificates cannot be used: {0}")]
    Authorities(#[source] PemError),
    /// A certificate of an authority cannot be used.
    #[error("authority {position} for client certificates cannot be used: {cause}")]
    Authority {
        /// Its place in the file, from 1.
        position: usize,
        /// What rustls says.
        cause: rustls::Error,
    },
    /// The text of the revocation lists has none.
    #[error("the file of revocation lists cannot be used: {0}")]
    RevocationLists(#[source] PemError),
    /// rustls refuses the authorities or the lists.
    #[error("client certificates cannot be verified: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl ClientCertificates {
    /// From PEM: the authorities, and revocation lists if there are any. With lists, each authority
    /// of a chain needs one that is not out of date, as with nginx's `ssl_crl`.
    pub fn from_pem(
        mode: ClientCertificateMode,
        authorities: &[u8],
        revocation_lists: Option<&[u8]>,
    ) -> Result<Self, ClientCertificatesError> {
        let authorities =
            pem_file::certificates(authorities).map_err(ClientCertificatesError::Authorities)?;
        let revoked = revocation_lists.map(pem_file::revocation_lists).transpose();
        let revoked = revoked.map_err(ClientCertificatesError::RevocationLists)?;
        Ok(Self {
            mode,
            authorities,
            revoked: revoked.unwrap_or_default(),
        })
    }

    /// The id of these requirements, equal for equal ones.
    pub fn policy(&self) -> PolicyId {
        let mode: &[u8] = match self.mode {
            ClientCertificateMode::Request => b"request",
            ClientCertificateMode::Require => b"require",
        };
        let mut parts = vec![mode];
        parts.extend(self.authorities.iter().map(AsRef::<[u8]>::as_ref));
        parts.extend(self.revoked.iter().map(AsRef::<[u8]>::as_ref));
        // Zero is "none".
        PolicyId(short_digest(&parts).max(1))
    }

    pub(crate) fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, ClientCertificatesError> {
        let mut roots = RootCertStore::empty();
        for (index, authority) in self.authorities.iter().enumerate() {
            let added = roots.add(authority.clone());
            added.map_err(|cause| ClientCertificatesError::Authority {
                position: index + 1,
                cause,
            })?;
        }
        let roots = Arc::new(roots);
        let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
        if !self.revoked.is_empty() {
            verifier = verifier
                .with_crls(self.revoked.clone())
                .enforce_revocation_expiration();
        }
        if self.mode == ClientCertificateMode::Request {
            verifier = verifier.allow_unauthenticated();
        }
        Ok(verifier.build()?)
    }
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificates")
            .field("mode", &self.mode)
            .field("authorities", &self.authorities.len())
            .field("revocation_lists", &self.revoked.len())
            .finish()
    }
}
