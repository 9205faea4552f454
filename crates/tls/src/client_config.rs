//! Builds the configuration of sessions with servers: upstreams, front ends to join, ACME, probes.

use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, KeyLog};

use crate::certificate::ServerCertificate;
use crate::client_offer::{ClientOffer, UnknownAlgorithm};
use crate::profile::TlsProfile;
use crate::server_trust::{FingerprintVerifier, ServerTrust};

#[cfg(test)]
mod tests;

/// What a configuration is built from.
#[derive(Debug, Clone)]
pub struct ClientTlsOptions {
    /// What makes a server trusted.
    pub trust: ServerTrust,
    /// The certificate that this program shows if a server asks for one.
    pub certificate: Option<ServerCertificate>,
    /// The protocols, most preferred first; empty offers none.
    pub alpn: Vec<Vec<u8>>,
    /// Receives the secrets of each session, for Wireshark (`SSLKEYLOGFILE`).
    pub key_log: Option<Arc<dyn KeyLog>>,
}

/// Why a configuration for sessions with servers cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// rustls refuses the combination.
    #[error("the TLS configuration for servers cannot be used: {0}")]
    Rejected(#[from] rustls::Error),
    /// The authorities cannot be used.
    #[error("servers cannot be verified: {0}")]
    Authorities(#[from] rustls::client::VerifierBuilderError),
    /// An algorithm is not known.
    #[error("{0}")]
    Algorithm(#[from] UnknownAlgorithm),
}

/// The text is no name that a server can prove.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no host name or address that a certificate can be for")]
pub struct InvalidServerName(String);

/// Server names whose sessions are kept for resumption. A configuration is for one upstream, and
/// an upstream has a few names; rustls keeps up to eight tickets for each.
const RESUMABLE_SERVERS: usize = 32;

/// Builds the configuration. Make one for each upstream and keep it: it holds the sessions that can
/// be resumed, and shares none with configurations of other trust.
pub fn client_config(options: ClientTlsOptions) -> Result<Arc<ClientConfig>, ClientTlsError> {
    client_config_offering(options, &ClientOffer::default())
}

/// As [`client_config`], with only the algorithms of `offer`.
pub fn client_config_offering(
    options: ClientTlsOptions,
    offer: &ClientOffer,
) -> Result<Arc<ClientConfig>, ClientTlsError> {
    let profile = TlsProfile::Intermediate;
    let provider = Arc::new(offer.restrict(profile.provider())?);
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&profile.versions())?;
    let by_fingerprint = |accepted| {
        Arc::new(FingerprintVerifier {
            accepted,
            algorithms,
        })
    };
    let builder = match options.trust {
        ServerTrust::Authorities(roots) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider);
            builder.with_webpki_verifier(verifier.build()?)
        }
        ServerTrust::Fingerprints(accepted) => builder
            .dangerous()
            .with_custom_certificate_verifier(by_fingerprint(Some(accepted))),
        ServerTrust::Anything => builder
            .dangerous()
            .with_custom_certificate_verifier(by_fingerprint(None)),
    };
    let mut config = match options.certificate {
        Some(certificate) => {
            let resolver = SingleCertAndKey::from(certificate.certified_key);
            builder.with_client_cert_resolver(Arc::new(resolver))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = options.alpn;
    config.resumption = Resumption::in_memory_sessions(RESUMABLE_SERVERS);
    if let Some(key_log) = options.key_log {
        config.key_log = key_log;
    }
    Ok(Arc::new(config))
}

/// The name that a server must prove: a host name or an address, without a port. Brackets of an
/// IPv6 address may stay.
pub fn server_name(text: &str) -> Result<ServerName<'static>, InvalidServerName> {
    let inside = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let name = ServerName::try_from(inside.unwrap_or(text));
    name.map(|name| name.to_owned())
        .map_err(|_| InvalidServerName(text.to_owned()))
}
