//! `client_certificate` of a route: clients with a certificate that their site accepts.
//!
//! The handshake has verified the certificate; this rule only looks at what it has found.

use penstock_exchange::{ClientVerification, Fault, FaultKind, Request};

use crate::admission::{AdmissionRule, Decision};

/// Admits clients with a verified certificate.
#[derive(Debug)]
pub struct ClientCertificateRule;

impl AdmissionRule for ClientCertificateRule {
    fn name(&self) -> &'static str {
        "client_certificate"
    }

    fn decide(&self, request: &Request) -> Decision {
        let tls = request.client_state.tls();
        match tls.map(|tls| &tls.client) {
            Some(ClientVerification::Verified(_)) => Decision::admit(),
            _ => {
                let cause = "the client has shown no certificate that the site accepts";
                Decision::refuse(Fault::new(FaultKind::Forbidden, cause))
            }
        }
    }
}
