//! Builds the configuration of sessions with clients.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;

use crate::certificates::{CertificateStore, PolicyId};
use crate::client_certificates::{ClientCertificates, ClientCertificatesError};
use crate::profile::TlsProfile;
use crate::records::TrafficKeyLog;
use crate::resolver::ACME_TLS_ALPN;
use crate::tickets::TicketKeys;

#[cfg(test)]
mod tests;

/// What a configuration is built from.
#[derive(Debug, Clone)]
pub struct ServerTlsOptions {
    /// Versions and algorithms.
    pub profile: TlsProfile,
    /// The certificates of the sites.
    pub certificates: Arc<CertificateStore>,
    /// The keys of tickets.
    pub tickets: Arc<TicketKeys>,
    /// The protocols, most preferred first (`h2`, `http/1.1`). Without any, clients may offer what
    /// they like, and no challenge is answered.
    pub alpn: Vec<Vec<u8>>,
    /// What clients must show; `None` asks for nothing.
    pub client_certificates: Option<ClientCertificates>,
}

/// A configuration of sessions with clients, and what it requires of them.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// For rustls.
    pub config: Arc<ServerConfig>,
    /// For `CertificateStore::identify`.
    pub policy: PolicyId,
}

/// A configuration of TLS cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// Client certificates cannot be verified.
    #[error(transparent)]
    ClientCertificates(#[from] ClientCertificatesError),
    /// rustls refuses the combination.
    #[error("the TLS configuration cannot be used: {0}")]
    Rejected(#[from] rustls::Error),
}

/// Tickets after a full or resumed handshake. A client uses a ticket once (RFC 8446 §C.4), and a
/// browser often opens two connections at a time, so one would cost it a full handshake. OpenSSL
/// and with it nginx send two as well.
const TICKETS_PER_HANDSHAKE: usize = 2;

/// Builds the configuration.
///
/// - No early data: a recorded request could be replayed (RFC 8446 §8).
/// - No store of sessions: tickets only, and none where client certificates are asked for.
/// - Secrets can be extracted, so that rustls' state ends with the handshake ([`crate::records`]).
pub fn server_config(options: ServerTlsOptions) -> Result<ServerTls, TlsConfigError> {
    let provider = Arc::new(options.profile.provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&options.profile.versions())?;
    let requirements = options.client_certificates.as_ref();
    let builder = match requirements {
        Some(requirements) => builder.with_client_cert_verifier(requirements.verifier(&provider)?),
        None => builder.with_no_client_auth(),
    };
    let answers_challenges = options.certificates.challenges.is_some();
    let mut config = builder.with_cert_resolver(options.certificates);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match requirements {
        Some(_) => config.send_tls13_tickets = 0,
        None => {
            config.ticketer = options.tickets;
            config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
        }
    }
    config.alpn_protocols = alpn(options.alpn, answers_challenges);
    config.max_early_data_size = 0;
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(TrafficKeyLog);
    let policy = requirements.map_or(PolicyId::NONE, ClientCertificates::policy);
    Ok(ServerTls {
        config: Arc::new(config),
        policy,
    })
}

/// The protocols with that of challenges behind them. Alone it would be a list that clients with
/// other protocols are refused by.
fn alpn(mut protocols: Vec<Vec<u8>>, answers_challenges: bool) -> Vec<Vec<u8>> {
    if answers_challenges && !protocols.is_empty() {
        protocols.push(ACME_TLS_ALPN.to_vec());
    }
    protocols
}
