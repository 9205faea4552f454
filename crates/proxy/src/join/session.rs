//! The TLS session of a joiner with its front end, whose certificate is not verified: the proofs of
//! the join are bound to the session (`wire/src/join/proof.rs`).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use penstock_runtime::Stream;
use penstock_tls::{BoundSessionError, HandshakeError, bound_client_config, channel_binding};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::JoinFailure;

/// How a joiner makes sessions with its front end.
#[derive(Debug)]
pub(super) struct FrontEndTls {
    config: Arc<ClientConfig>,
    /// Sent to the front end, for proxies on the way that route by name. An address is not sent.
    name: ServerName<'static>,
}

impl FrontEndTls {
    /// For a front end at `address`: `HOST:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub(super) fn new(address: &str) -> Result<Self, BoundSessionError> {
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        let no_name = || IpAddr::from(Ipv4Addr::UNSPECIFIED).into();
        Ok(Self {
            config: bound_client_config()?,
            name: penstock_tls::server_name(host).unwrap_or_else(|_| no_name()),
        })
    }

    /// Makes a session on a new connection; the caller bounds the wait.
    ///
    /// # Errors
    /// The front end speaks no TLS 1.3.
    pub(super) async fn secure(&self, stream: Stream) -> Result<Stream, JoinFailure> {
        let config = Arc::clone(&self.config);
        // Boxed: the state of a handshake takes 16 KiB, and plain connections need none of it.
        let session = Box::pin(penstock_tls::connect(&stream, config, self.name.clone()))
            .await
            .map_err(|error| JoinFailure::Tls(explain(&error)))?;
        let stream = session.over(stream);
        match channel_binding(&stream) {
            Some(_) => Ok(stream),
            // A proof that is bound to nothing would pass for one without TLS.
            None => Err(JoinFailure::Tls("the session has no exporter".to_owned())),
        }
    }
}

/// Why there is no session, and what to do where that is known.
fn explain(error: &HandshakeError) -> String {
    use rustls::{Error, InvalidMessage};
    let is_reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
    match error {
        HandshakeError::Protocol(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "the front end answers without TLS: remove `tls = false` from `join` of its [server], \
             or start with --plain here"
                .to_owned()
        }
        HandshakeError::Closed => CLOSED.to_owned(),
        HandshakeError::Io(error) if is_reset(error) => CLOSED.to_owned(),
        other => other.to_string(),
    }
}

const CLOSED: &str = "the front end closed the connection during the handshake: it may have an \
    older version of Penstock, or `tls = false` in `join` of its [server]";
