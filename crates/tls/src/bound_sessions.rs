//! Sessions between two programs that share a key: `penstock work` and its front end.
//!
//! The certificate proves nothing: the server makes a new one at each start, and the client accepts
//! any. Both sides prove the shared key inside the session, and their proofs cover its
//! [`channel_binding`](crate::channel_binding). A machine in between has one session with each side,
//! and the proofs of one session are wrong in the other.
//!
//! # Invariants
//! - TLS 1.3 only: its exporter covers the whole handshake, certificate and keys included
//!   (RFC 9266 §4.2).
//! - No session is resumed: each has keys of its own.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::UnixTime;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ServerConfig};

use crate::certificates::{CertificateStore, PolicyId};
use crate::profile::TlsProfile;
use crate::records::ChannelBindingLog;
use crate::server_config::ServerTls;
use crate::server_sessions::ServerSessions;
use crate::server_trust::FingerprintVerifier;
use crate::stand_in::{IssueError, stand_in};

/// The name in the certificate.
const BOUND_SESSION_NAME: &str = "penstock-join";

/// Why bound sessions cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BoundSessionError {
    /// The certificate could not be made.
    #[error(transparent)]
    Certificate(#[from] IssueError),
    /// rustls refuses the combination.
    #[error("the TLS configuration cannot be used: {0}")]
    Rejected(#[from] rustls::Error),
}

/// The server's side, with a certificate that is made now and has a key in memory alone.
///
/// # Errors
/// As [`BoundSessionError`].
pub fn bound_sessions(now: UnixTime) -> Result<Arc<ServerSessions>, BoundSessionError> {
    let certificate = stand_in(&[BOUND_SESSION_NAME.to_owned()], now)?;
    let resolver = SingleCertAndKey::from(certificate.certified_key);
    let profile = TlsProfile::Modern;
    let mut config = ServerConfig::builder_with_provider(Arc::new(profile.provider()))
        .with_protocol_versions(&profile.versions())?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(ChannelBindingLog);
    let tls = ServerTls {
        config: Arc::new(config),
        policy: PolicyId::NONE,
    };
    let no_sites = Arc::new(CertificateStore::new(None, None));
    Ok(Arc::new(ServerSessions::new(no_sites, tls, Vec::new())))
}

/// The client's side.
///
/// # Errors
/// As [`BoundSessionError`].
pub fn bound_client_config() -> Result<Arc<ClientConfig>, BoundSessionError> {
    let profile = TlsProfile::Modern;
    let provider = profile.provider();
    let any_certificate = FingerprintVerifier {
        accepted: None,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&profile.versions())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(any_certificate))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.key_log = Arc::new(ChannelBindingLog);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
