//! A server of two sites, and clients for it.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use super::{FixedClock, Issued, NOW, TestAuthority, client, client_builder, store};
use crate::certificates::CertificateStore;
use crate::client_certificates::{ClientCertificateMode, ClientCertificates};
use crate::pem_file;
use crate::profile::TlsProfile;
use crate::server_config::{ServerTls, ServerTlsOptions, server_config};
use crate::tickets::TicketKeys;

/// A server for `a.test` and `b.test`, each with a certificate of its own, and its authority.
pub(crate) struct Server {
    pub(crate) authority: TestAuthority,
    pub(crate) store: Arc<CertificateStore>,
    pub(crate) tickets: Arc<TicketKeys>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let authority = TestAuthority::new("Root");
        let (a, b) = (
            authority.issue(&["a.test"]).load(),
            authority.issue(&["b.test"]).load(),
        );
        let certificates = CertificateStore::new(None, None);
        certificates.replace(store(&[(&["a.test"], &[&a]), (&["b.test"], &[&b])]));
        let tickets = Arc::new(TicketKeys::new(Arc::new(FixedClock(NOW))));
        Self {
            authority,
            store: Arc::new(certificates),
            tickets,
        }
    }

    pub(crate) fn options(&self) -> ServerTlsOptions {
        ServerTlsOptions {
            profile: TlsProfile::Intermediate,
            certificates: Arc::clone(&self.store),
            tickets: Arc::clone(&self.tickets),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            client_certificates: None,
        }
    }

    pub(crate) fn tls(&self) -> ServerTls {
        server_config(self.options()).unwrap()
    }

    /// The configuration with client certificates of an authority.
    pub(crate) fn tls_for_clients(
        &self,
        mode: ClientCertificateMode,
        clients: &TestAuthority,
    ) -> ServerTls {
        let pem = clients.pem();
        let client_certificates = ClientCertificates::from_pem(mode, pem.as_bytes(), None).unwrap();
        let client_certificates = Some(client_certificates);
        server_config(ServerTlsOptions {
            client_certificates,
            ..self.options()
        })
        .unwrap()
    }

    pub(crate) fn client(&self, profile: TlsProfile) -> Arc<ClientConfig> {
        Arc::new(client(&self.authority, profile))
    }

    /// A client that has a certificate.
    pub(crate) fn client_with(&self, issued: &Issued) -> Arc<ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.authority.der()).unwrap();
        let chain = pem_file::certificates(issued.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
        let builder = client_builder(TlsProfile::Intermediate).with_root_certificates(roots);
        Arc::new(builder.with_client_auth_cert(chain, key).unwrap())
    }
}

/// A client that speaks TLS 1.2 only.
pub(crate) fn tls12_client(server: &Server) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(server.authority.der()).unwrap();
    let provider = Arc::new(TlsProfile::Intermediate.provider());
    let client = ClientConfig::builder_with_details(provider, Arc::new(FixedClock(NOW)))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap();
    Arc::new(client.with_root_certificates(roots).with_no_client_auth())
}
