//! How sessions with `https://` servers are made: which certificates are trusted, which algorithms
//! are offered, and whether sessions are resumed.
//!
//! The command line and scenarios have [`TlsSettings`]; `target` and the agents of `hold` make a
//! configuration of them when a server needs one. `describe_failure` says what to do about a
//! handshake that failed.

mod ticket_store;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use penstock_tls::{
    ClientOffer, ClientTlsOptions, HandshakeError, ServerTrust, client_config_offering,
    roots_from_pem, system_roots,
};
use rustls::client::Resumption;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, InvalidMessage};
use serde::{Deserialize, Serialize};

use self::ticket_store::TicketStore;
use crate::target::{TargetError, read_file};

/// The arguments about TLS of all verbs.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsArguments {
    /// Trust the certificates in this PEM file, instead of the system's
    #[arg(long, visible_alias = "cacert", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Accept any certificate
    #[arg(short = 'k', long, conflicts_with = "ca")]
    insecure: bool,
    /// Make a full TLS handshake for each connection
    #[arg(long)]
    no_tls_resume: bool,
    /// Offer only these TLS cipher suites, such as TLS_AES_128_GCM_SHA256
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    tls_ciphers: Vec<String>,
    /// Offer only these TLS key exchanges, such as X25519
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    tls_groups: Vec<String>,
}

impl TlsArguments {
    /// Reads the file of trusted certificates.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn settings(&self) -> Result<TlsSettings, TargetError> {
        Ok(TlsSettings {
            trusted: self.ca.as_deref().map(TrustedFile::read).transpose()?,
            is_insecure: self.insecure,
            is_resuming: !self.no_tls_resume,
            cipher_suites: self.tls_ciphers.clone(),
            groups: self.tls_groups.clone(),
        })
    }
}

/// The settings of a load, or of held streams. They are passed to agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsSettings {
    /// What is trusted instead of the system's authorities.
    pub trusted: Option<TrustedFile>,
    /// Whether any certificate is accepted.
    pub is_insecure: bool,
    /// Whether a connection may resume the session of an earlier one.
    pub is_resuming: bool,
    /// The offered cipher suites; all if empty.
    pub cipher_suites: Vec<String>,
    /// The offered key exchanges; all if empty.
    pub groups: Vec<String>,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            trusted: None,
            is_insecure: false,
            is_resuming: true,
            cipher_suites: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// A file of trusted certificates: authorities, or a server's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustedFile {
    /// For errors.
    path: PathBuf,
    /// Its content. An agent may run on another machine.
    pem: String,
}

impl TrustedFile {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, or is larger than any bundle of certificates.
    pub fn read(path: &Path) -> Result<Self, TargetError> {
        let bytes = read_file(path)?;
        let wrong = |what: &str| TargetError(format!("{}: {what}", path.display()));
        if bytes.len() > MAX_TRUSTED_BYTES {
            return Err(wrong(&format!("larger than {MAX_TRUSTED_BYTES} bytes")));
        }
        let pem = String::from_utf8(bytes).map_err(|_| wrong("not a PEM file"))?;
        Ok(Self {
            path: path.to_owned(),
            pem: without_keys(&pem),
        })
    }
}

/// A server's file may have its key beside the certificate: it is passed to no other process.
fn without_keys(pem: &str) -> String {
    let (mut kept, mut is_key) = (String::new(), false);
    for line in pem.lines() {
        is_key |= line.starts_with("-----BEGIN ") && line.contains("PRIVATE KEY");
        if !is_key {
            kept.extend([line, "\n"]);
        }
        is_key &= !line.starts_with("-----END ");
    }
    kept
}

/// The bundle of all public authorities has 220 KiB; an agent's order has to hold it.
const MAX_TRUSTED_BYTES: usize = 1 << 20;

impl TlsSettings {
    /// Builds the configuration. It holds the sessions that can be resumed.
    ///
    /// # Errors
    /// There are no trusted certificates, or an algorithm is unknown.
    pub(crate) fn client_config(&self) -> Result<Arc<ClientConfig>, String> {
        let options = ClientTlsOptions {
            trust: self.server_trust()?,
            certificate: None,
            alpn: vec![b"http/1.1".to_vec()],
            key_log: None,
        };
        let offer = ClientOffer {
            cipher_suites: self.cipher_suites.clone(),
            groups: self.groups.clone(),
        };
        let config = client_config_offering(options, &offer);
        let config = config.map_err(|error| error.to_string())?;
        let mut config = (*config).clone();
        config.resumption = match self.is_resuming {
            true => Resumption::store(Arc::new(TicketStore::default())),
            false => Resumption::disabled(),
        };
        Ok(Arc::new(config))
    }

    fn server_trust(&self) -> Result<ServerTrust, String> {
        if self.is_insecure {
            return Ok(ServerTrust::Anything);
        }
        let roots = match &self.trusted {
            Some(file) => roots_from_pem(file.pem.as_bytes())
                .map_err(|error| format!("{}: {error}", file.path.display()))?,
            None => system_roots().map_err(|error| error.to_string())?,
        };
        Ok(ServerTrust::Authorities(roots))
    }
}

/// Builds the configuration once, when the first server needs it.
#[derive(Debug, Default)]
pub struct TlsClient {
    settings: TlsSettings,
    config: OnceCell<Arc<ClientConfig>>,
}

impl TlsClient {
    /// A client with these settings.
    #[must_use]
    pub fn new(settings: TlsSettings) -> Self {
        Self {
            settings,
            config: OnceCell::new(),
        }
    }

    /// The configuration, the same each time.
    ///
    /// # Errors
    /// As [`TlsSettings::client_config`].
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let config = self.settings.client_config()?;
        Ok(Arc::clone(self.config.get_or_init(|| config)))
    }
}

/// Why a handshake failed, and what to do.
pub(crate) fn describe_failure(error: &HandshakeError) -> String {
    let remedy = match error {
        HandshakeError::Protocol(Error::InvalidCertificate(cause)) => match cause {
            CertificateError::UnknownIssuer => {
                ": name its issuer with --ca, or accept it with --insecure"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                ": use a URL with that name, or accept it with --insecure"
            }
            _ => ": accept it with --insecure",
        },
        // The answer of a server that takes the handshake for a request, or speaks first.
        HandshakeError::Protocol(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            return "the server does not speak TLS on this port: is its URL http://?".to_owned();
        }
        HandshakeError::Protocol(Error::AlertReceived(AlertDescription::HandshakeFailure)) => {
            ": nothing that both sides support"
        }
        _ => "",
    };
    format!("{error}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_out_of_orders() {
        let file = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n\
            -----BEGIN CERTIFICATE-----\nopen\n-----END CERTIFICATE-----\n\
            -----BEGIN EC PRIVATE KEY-----\nsecret\n";
        let kept = "-----BEGIN CERTIFICATE-----\nopen\n-----END CERTIFICATE-----\n";
        assert_eq!(without_keys(file), kept);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let trusted = TrustedFile {
            path: "ca.pem".into(),
            pem: "nothing".to_owned(),
        };
        let settings = TlsSettings {
            trusted: Some(trusted),
            ..TlsSettings::default()
        };
        let error = settings.client_config().unwrap_err();
        assert!(error.starts_with("ca.pem: no authorities: "), "{error}");
        let settings = TlsSettings {
            is_insecure: true,
            groups: vec!["X448".to_owned()],
            ..TlsSettings::default()
        };
        let error = settings.client_config().unwrap_err();
        assert!(
            error.starts_with("no key exchange is named \"X448\""),
            "{error}"
        );
    }
}
