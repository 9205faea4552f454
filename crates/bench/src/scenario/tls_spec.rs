//! The section `tls` of a scenario: how the load and the readiness probe speak to `https://`.

use serde::Deserialize;

use super::PlaceholderValues;
use crate::target::TargetError;
use crate::tls::{TlsSettings, TrustedFile};

/// The same for all deployments, so that their figures can be compared.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSpec {
    /// A PEM file of trusted certificates instead of the system's; may have placeholders.
    pub ca: Option<String>,
    /// Whether any certificate is accepted.
    pub insecure: bool,
    /// Whether a connection may resume the session of an earlier one.
    pub resume: bool,
    /// The offered cipher suites by their IANA names; all if empty.
    pub ciphers: Vec<String>,
    /// The offered key exchanges by their IANA names; all if empty.
    pub groups: Vec<String>,
}

impl Default for TlsSpec {
    fn default() -> Self {
        Self {
            ca: None,
            insecure: false,
            resume: true,
            ciphers: Vec::new(),
            groups: Vec::new(),
        }
    }
}

impl TlsSpec {
    /// The settings, with the file's content.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn settings(&self, values: &PlaceholderValues) -> Result<TlsSettings, TargetError> {
        let file = self.ca.as_ref();
        let file = file.map(|file| TrustedFile::read(&values.resolve_file_path(file)));
        Ok(TlsSettings {
            trusted: file.transpose()?,
            ..self.settings_without_file()
        })
    }

    /// The first algorithm that is not known.
    pub(super) fn unknown_algorithm(&self) -> Option<String> {
        let settings = TlsSettings {
            is_insecure: true,
            ..self.settings_without_file()
        };
        settings.client_config().err()
    }

    fn settings_without_file(&self) -> TlsSettings {
        TlsSettings {
            trusted: None,
            is_insecure: self.insecure,
            is_resuming: self.resume,
            cipher_suites: self.ciphers.clone(),
            groups: self.groups.clone(),
        }
    }
}
