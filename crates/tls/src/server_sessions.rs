//! What every handshake with a client needs: the certificates, and a configuration for each set of
//! requirements on clients.
//!
//! `penstock` builds it for the edge, and again at a reload; connections keep what they have.

use std::collections::HashMap;
use std::sync::Arc;

use crate::certificates::{CertificateStore, ConnectionIdentity, PolicyId};
use crate::server_config::ServerTls;

/// The certificates and configurations of all listeners with TLS.
#[derive(Debug)]
pub struct ServerSessions {
    certificates: Arc<CertificateStore>,
    /// For sites without requirements on clients.
    default: ServerTls,
    /// For the others.
    by_policy: HashMap<PolicyId, ServerTls>,
}

impl ServerSessions {
    /// `default` asks clients for nothing; `others` are the configurations of sites that do.
    #[must_use]
    pub fn new(
        certificates: Arc<CertificateStore>,
        default: ServerTls,
        others: Vec<ServerTls>,
    ) -> Self {
        let by_policy = others.into_iter().map(|it| (it.policy, it)).collect();
        Self {
            certificates,
            default,
            by_policy,
        }
    }

    /// The certificates.
    #[must_use]
    pub fn certificates(&self) -> &Arc<CertificateStore> {
        &self.certificates
    }

    /// Whether a request for `host` may come over a connection; if not, the answer is 421
    /// (RFC 9110 §15.5.20).
    #[must_use]
    pub fn permits(&self, connection: &ConnectionIdentity, host: &str) -> bool {
        self.certificates.permits(connection, host)
    }

    /// The configuration for a client that asks for this name.
    pub(crate) fn select(&self, server_name: Option<&str>) -> &ServerTls {
        let policy = self.certificates.policy_for(server_name);
        self.by_policy.get(&policy).unwrap_or(&self.default)
    }

    /// The identity of a session with that configuration.
    pub(crate) fn identify(
        &self,
        server_name: Option<&str>,
        policy: PolicyId,
    ) -> ConnectionIdentity {
        self.certificates.identify(server_name, policy)
    }
}
