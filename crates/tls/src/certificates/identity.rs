//! What a connection proved in its handshake, and which hosts may be asked for over it.
//!
//! A client may use one connection for all hosts that its certificate covers (RFC 9113 §9.1.1), and
//! the `Host` of a request need not be the name of the handshake. `edge` answers 421 to a request
//! that the connection may not carry (RFC 9110 §15.5.20); the client then opens another.

use super::{CertificateId, CertificateStore};

/// What clients must prove to the hosts of a site. Equal ids mean equal requirements, also between
/// two processes; a reload that changes the authorities changes the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PolicyId(pub(crate) u64);

impl PolicyId {
    /// Nothing: the site asks for no client certificate.
    pub const NONE: Self = Self(0);
}

/// What a connection proved in its handshake. `edge` keeps it with the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionIdentity {
    /// The name that the client asked for (SNI), in lower case.
    name: Option<Box<str>>,
    /// The certificate that served it.
    certificate: Option<CertificateId>,
    /// What the session required of the client.
    policy: PolicyId,
}

impl ConnectionIdentity {
    /// Whether the site asks its clients for certificates.
    pub(crate) fn requests_certificate(&self) -> bool {
        self.policy != PolicyId::NONE
    }
}

impl CertificateStore {
    /// The identity of a session whose handshake has ended: with the name that rustls reports, and
    /// the policy of the configuration that the session was made with (`ServerTls::policy`).
    pub fn identify(&self, server_name: Option<&str>, policy: PolicyId) -> ConnectionIdentity {
        let contents = self.contents.load();
        let entry = match server_name {
            Some(name) => contents.serving(name),
            None => contents.default.as_ref(),
        };
        ConnectionIdentity {
            name: server_name.map(Box::from),
            certificate: entry.map(|entry| entry.id),
            policy,
        }
    }

    /// What clients must prove that ask for this name.
    pub(crate) fn policy_for(&self, server_name: Option<&str>) -> PolicyId {
        let contents = self.contents.load();
        let entry = match server_name {
            Some(name) => contents.serving(name),
            None => contents.default.as_ref(),
        };
        entry.map_or(PolicyId::NONE, |entry| entry.site.policy)
    }

    /// Whether a request for a host may come over a connection; if not, the answer is 421.
    ///
    /// - The host's policy must be that of the session: no request reaches a site that asks for
    ///   client certificates over a session that did not ask, or asked another authority.
    /// - The host must be the name of the handshake, or be served with the same certificate. So a
    ///   host that has certificates of its own is reached through them only.
    /// - A client that named no host, such as one that connects to an address, may ask for any host
    ///   of the same policy.
    pub fn permits(&self, connection: &ConnectionIdentity, host: &str) -> bool {
        let contents = self.contents.load();
        let own = contents.serving(host);
        let Some(entry) = own.or(contents.default.as_ref()) else {
            return false;
        };
        if entry.site.policy != connection.policy {
            return false;
        }
        let Some(name) = &connection.name else {
            return true;
        };
        let is_named = || super::host::normalize(host, |host| *host == **name) == Some(true);
        connection.certificate == Some(entry.id) || own.is_some() && is_named()
    }
}
