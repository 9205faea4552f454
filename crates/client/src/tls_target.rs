//! The server behind a connection with TLS.

use std::sync::Arc;

use penstock_runtime::Stream;
use penstock_tls::{EstablishedSession, HandshakeError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

/// The server that a connection must reach, and how it proves its name.
#[derive(Debug, Clone)]
pub struct TlsTarget {
    /// The trusted roots, the algorithms and the sessions that may be resumed.
    pub config: Arc<ClientConfig>,
    /// The name or address that the server's certificate must have.
    pub server_name: ServerName<'static>,
}

impl TlsTarget {
    /// Makes a session over `stream`. The caller bounds the wait.
    ///
    /// # Errors
    /// As [`HandshakeError`]. Cancel safety: none.
    pub async fn connect(&self, stream: &Stream) -> Result<EstablishedSession, HandshakeError> {
        let (config, name) = (Arc::clone(&self.config), self.server_name.clone());
        penstock_tls::connect(stream, config, name).await
    }
}

impl PartialEq for TlsTarget {
    /// The same configuration, not an equal one: sessions are resumed within one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.server_name == other.server_name
    }
}

impl Eq for TlsTarget {}
