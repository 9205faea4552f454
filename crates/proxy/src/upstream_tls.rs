//! TLS to the servers of an upstream: what is trusted, which name each server must prove, and why
//! a handshake failed.
//!
//! `connection` makes a session on each new connection; `probe` on each of its own.
//!
//! # Invariants
//!
//! - No byte of a request or of a tunnel leaves before the server has proved its name.
//! - Nothing that was received before the handshake is ever read as the server's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_config::Protocol;
use penstock_runtime::Stream;
use penstock_tls::HandshakeError;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore};
use serde::Serialize;

use crate::connection::{BackendServer, ResolvedAddress};

/// How an upstream's servers are reached over TLS.
#[derive(Debug, Clone)]
pub struct UpstreamTls {
    /// Trusted authorities, the client certificate, and sessions to resume.
    pub config: Arc<ClientConfig>,
    /// The name that every server must prove; without it, the host of the server's address.
    pub server_name: Option<ServerName<'static>>,
    /// What `config` was made of.
    pub material: TlsMaterial,
}

/// The content of the files behind a configuration: with the same, nothing has to change.
#[derive(Debug, Clone, Default)]
pub struct TlsMaterial {
    /// The trusted authorities; `None` where something else is trusted.
    pub authorities: Option<Arc<RootCertStore>>,
    /// The certificate that servers are shown.
    pub own_chain: Vec<CertificateDer<'static>>,
}

impl PartialEq for TlsMaterial {
    fn eq(&self, other: &Self) -> bool {
        let roots = |it: &Self| it.authorities.clone().map(|store| store.roots.clone());
        self.own_chain == other.own_chain && roots(self) == roots(other)
    }
}

/// What a connection is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPurpose {
    /// Requests and probes in the upstream's protocol.
    Exchange,
    /// The bytes of one client, whatever they are.
    Tunnel,
}

/// The sessions of one upstream's connections.
#[derive(Debug)]
pub(crate) struct TlsConnector {
    exchange_config: Arc<ClientConfig>,
    tunnel_config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
    material: TlsMaterial,
    /// Grows with each change of `material`. Connections of an earlier one are not used again.
    pub(crate) epoch: u32,
    pub(crate) counters: Arc<TlsCounters>,
}

/// Counters of handshakes, over all loops.
#[derive(Debug, Default)]
pub(crate) struct TlsCounters {
    handshakes: AtomicU64,
    resumptions: AtomicU64,
    failures: AtomicU64,
}

/// Handshakes with the servers of an upstream since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UpstreamTlsCounters {
    /// Completed handshakes.
    pub handshakes: u64,
    /// Those among them that continued an earlier session.
    pub resumptions: u64,
    /// Failed handshakes.
    pub failures: u64,
}

/// Why a server has no session; says what to do where that is known.
#[derive(Debug, thiserror::Error)]
#[error("TLS: {0}")]
pub(crate) struct TlsFailure(String);

impl TlsConnector {
    pub(crate) fn new(tls: UpstreamTls, protocol: Protocol, counters: Arc<TlsCounters>) -> Self {
        let exchange_config = match protocol {
            Protocol::Http => with_alpn(&tls.config, &[b"http/1.1"]),
            Protocol::FastCgi | Protocol::Scgi | Protocol::Uwsgi | Protocol::Ajp => {
                with_alpn(&tls.config, &[])
            }
        };
        Self {
            exchange_config,
            tunnel_config: with_alpn(&tls.config, &[]),
            server_name: tls.server_name,
            material: tls.material,
            epoch: 0,
            counters,
        }
    }

    /// The connector that follows this one; `None` if `tls` is made of the same files.
    pub(crate) fn successor(&self, tls: UpstreamTls, protocol: Protocol) -> Option<Self> {
        (tls.material != self.material).then(|| Self {
            epoch: self.epoch + 1,
            ..Self::new(tls, protocol, Arc::clone(&self.counters))
        })
    }

    /// Makes a session with `server` on a new connection; the caller bounds the wait.
    ///
    /// # Errors
    /// The server is not who it should be, or speaks no TLS that is accepted here.
    pub(crate) async fn secure(
        &self,
        stream: Stream,
        server: &BackendServer,
        purpose: ConnectionPurpose,
    ) -> Result<Stream, TlsFailure> {
        let config = match purpose {
            ConnectionPurpose::Exchange => &self.exchange_config,
            ConnectionPurpose::Tunnel => &self.tunnel_config,
        };
        // Dropped before its end, by a timeout or a client that leaves, it failed.
        let attempt = HandshakeAttempt(&self.counters);
        let name = self.name_of(server)?;
        // Boxed: the state of a handshake takes 16 KiB, and plain connections need none of it.
        let session = Box::pin(penstock_tls::connect(&stream, Arc::clone(config), name))
            .await
            .map_err(|error| TlsFailure(explain_handshake_error(&error)))?;
        attempt.succeed(session.info().is_resumed);
        Ok(session.over(stream))
    }

    fn name_of(&self, server: &BackendServer) -> Result<ServerName<'static>, TlsFailure> {
        if let Some(name) = &self.server_name {
            return Ok(name.clone());
        }
        let host = server_host(server);
        let name = host.and_then(|host| ServerName::try_from(host.to_owned()).ok());
        name.ok_or_else(|| {
            let cause = format!(
                "the name of {} is unknown: set `tls.server_name`",
                server.name
            );
            TlsFailure(cause)
        })
    }
}

/// The host of a server's address, without port and brackets.
fn server_host(server: &BackendServer) -> Option<&str> {
    match server.address {
        ResolvedAddress::Tcp(_) | ResolvedAddress::TcpPair(_) => {}
        ResolvedAddress::Unix(_) | ResolvedAddress::Joined(_) => return None,
    }
    let (host, _) = server.authority.rsplit_once(':')?;
    let address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    Some(address.unwrap_or(host))
}

/// The same configuration, with these protocols offered. Sessions are shared.
fn with_alpn(config: &Arc<ClientConfig>, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let protocols: Vec<Vec<u8>> = protocols.iter().map(|it| it.to_vec()).collect();
    if config.alpn_protocols == protocols {
        return Arc::clone(config);
    }
    let mut config = ClientConfig::clone(config);
    config.alpn_protocols = protocols;
    Arc::new(config)
}

/// A handshake that is counted as failed unless it succeeds.
struct HandshakeAttempt<'a>(&'a TlsCounters);

impl HandshakeAttempt<'_> {
    fn succeed(self, is_resumed: bool) {
        self.0.handshakes.fetch_add(1, Ordering::Relaxed);
        let resumed = u64::from(is_resumed);
        self.0.resumptions.fetch_add(resumed, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for HandshakeAttempt<'_> {
    fn drop(&mut self) {
        self.0.failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl TlsCounters {
    pub(crate) fn values(&self) -> UpstreamTlsCounters {
        UpstreamTlsCounters {
            handshakes: self.handshakes.load(Ordering::Relaxed),
            resumptions: self.resumptions.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

/// The error of a read or write on an established connection; a server may refuse a client
/// certificate only after the handshake (RFC 8446 §4.4.2.4).
pub(crate) fn explain_io_error(error: &io::Error) -> String {
    let violation = error.get_ref().and_then(|it| it.downcast_ref());
    match violation {
        Some(violation) => format!("TLS: {}", explain_protocol_error(violation)),
        None => error.to_string(),
    }
}

fn explain_handshake_error(error: &HandshakeError) -> String {
    match error {
        HandshakeError::Protocol(error) => explain_protocol_error(error),
        HandshakeError::Closed => "the server closed the connection in the handshake".to_owned(),
        other => other.to_string(),
    }
}

fn explain_protocol_error(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(problem) => explain_certificate_problem(problem),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not speak TLS at this port".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server wants a client certificate: set `tls.certificate` and `tls.key`".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "the server does not serve this name: set `tls.server_name`".to_owned()
        }
        rustls::Error::AlertReceived(alert) => format!("the server refused: {alert:?}"),
        other => other.to_string(),
    }
}

fn explain_certificate_problem(problem: &CertificateError) -> String {
    match problem {
        CertificateError::UnknownIssuer => {
            "the issuer of the certificate is unknown: set `tls.ca` to the certificate of its \
             authority"
                .to_owned()
        }
        CertificateError::BadSignature => {
            "no trusted authority has signed the certificate: `tls.ca` may be of before".to_owned()
        }
        CertificateError::Expired => "the certificate has expired".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => {
            let hours = time.as_secs().saturating_sub(not_after.as_secs()) / 3600;
            match hours {
                0..48 => format!("the certificate expired {hours} hours ago"),
                _ => format!("the certificate expired {} days ago", hours / 24),
            }
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet: compare the clocks of both machines".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let presented: Vec<_> = presented.iter().map(|name| plain_name(name)).collect();
            let presented = match presented.is_empty() {
                true => "no name".to_owned(),
                false => presented.join(", "),
            };
            let expected = expected.to_str();
            format!("the certificate is for {presented}, not for {expected}: set `tls.server_name`")
        }
        CertificateError::ApplicationVerificationFailure => {
            "the certificate has another fingerprint than `tls.fingerprint`".to_owned()
        }
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            "the server shows the certificate of an authority (CA:TRUE) as its own: make it one \
             with CA:FALSE, or set `tls.fingerprint`"
                .to_owned()
        }
        other => format!("the certificate is not accepted: {other}"),
    }
}

/// The name in webpki's `DnsName("a.example")` or `IpAddress(10.0.0.1)`.
fn plain_name(name: &str) -> &str {
    let inner = name
        .split_once('(')
        .and_then(|(_, it)| it.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

#[cfg(test)]
mod tests;
