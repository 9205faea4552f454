//! Chooses the certificate of a handshake, for rustls.
//!
//! # Invariants
//!
//! - A challenge certificate (RFC 8737 §3) is for a client that offers `acme-tls/1` and nothing
//!   else, and such a client gets no other certificate.
//! - Nothing here waits: a name without a certificate is refused or gets the default, and the name
//!   is reported. The client's next attempt finds what was ordered meanwhile.

use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificates::CertificateStore;

#[cfg(test)]
mod tests;

/// The protocol of TLS-ALPN-01 (RFC 8737 §6.2). A session with it ends with its handshake: close
/// the connection, it carries no request.
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// Has the certificates that answer challenges of TLS-ALPN-01.
pub trait ChallengeCertificates: Send + Sync {
    /// The certificate for a pending challenge of this name. Called in handshakes: must not block.
    fn challenge_certificate(&self, name: &str) -> Option<Arc<CertifiedKey>>;
}

/// Learns which names clients ask for that have no certificate.
pub trait OnDemandNames: Send + Sync {
    /// A client asked for this name, in lower case. Called in handshakes, also for names that an
    /// attacker made up: must not block, and must bound what it keeps.
    fn name_requested(&self, name: &str);
}

impl ResolvesServerCert for CertificateStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name();
        if is_challenge(&hello) {
            return self.challenges.as_ref()?.challenge_certificate(name?);
        }
        if let (Some(on_demand), Some(name)) = (&self.on_demand, name)
            && !self.knows(name)
        {
            on_demand.name_requested(name);
        }
        self.choose(name, hello.signature_schemes())
    }
}

fn is_challenge(hello: &ClientHello<'_>) -> bool {
    let Some(mut protocols) = hello.alpn() else {
        return false;
    };
    protocols.next() == Some(ACME_TLS_ALPN) && protocols.next().is_none()
}

/// Turns the alert for a refused name into the right one, in the bytes that rustls wants to send
/// after `error`. rustls says `access_denied` where the resolver has no certificate; RFC 6066 §3
/// has `unrecognized_name`, which browsers and monitors explain better. Other bytes stay as they
/// are. Returns whether it was such an alert.
pub(crate) fn correct_refusal_alert(error: &rustls::Error, output: &mut [u8]) -> bool {
    const ALERT: u8 = 21;
    const FATAL: u8 = 2;
    const ACCESS_DENIED: u8 = 49;
    const UNRECOGNIZED_NAME: u8 = 112;
    // No key is agreed on yet: the alert is a record in clear, alone.
    let (rustls::Error::General(_), [ALERT, 3, _, 0, 2, FATAL, alert @ ACCESS_DENIED]) =
        (error, output)
    else {
        return false;
    };
    *alert = UNRECOGNIZED_NAME;
    true
}
