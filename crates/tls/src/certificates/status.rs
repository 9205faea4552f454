//! The snapshot of all certificates, for the status page, metrics and `penstock certificates`.

use std::sync::Arc;

use super::{CertificateStore, SiteEntry};
use crate::certificate::{CertificateSource, ServerCertificate};

/// One certificate, as a snapshot shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateStatus {
    /// The hosts that it serves; empty for one that is the default only.
    pub hosts: Vec<String>,
    /// The names that it covers.
    pub names: Vec<String>,
    /// The authority that signed it.
    pub issuer: String,
    /// Its first second, since the Unix epoch.
    pub not_before: u64,
    /// Its last second, since the Unix epoch.
    pub not_after: u64,
    /// Where it came from.
    pub source: CertificateSource,
    /// Why the last attempt to replace it failed; `None` if it did not.
    pub last_error: Option<String>,
}

impl CertificateStore {
    /// Every certificate that is in use, in the order of the sites.
    pub fn snapshot(&self) -> Vec<CertificateStatus> {
        let contents = self.contents.load();
        contents.entries.iter().flat_map(statuses).collect()
    }

    /// Notes that the certificates of a host could not be replaced and why, or that they could
    /// (`None`). Returns whether the host is known. The certificates stay in use.
    pub fn set_last_error(&self, host: &str, error: Option<String>) -> bool {
        let contents = self.contents.load();
        let entry = contents.find(host);
        if let Some(entry) = entry {
            *entry.last_error.lock() = error;
        }
        entry.is_some()
    }
}

fn statuses(entry: &Arc<SiteEntry>) -> impl Iterator<Item = CertificateStatus> {
    let last_error = entry.last_error.lock().clone();
    let status = move |certificate: &ServerCertificate| CertificateStatus {
        hosts: entry.site.hosts.clone(),
        names: certificate.facts.names.clone(),
        issuer: certificate.facts.issuer.clone(),
        not_before: certificate.facts.not_before,
        not_after: certificate.facts.not_after,
        source: certificate.source.clone(),
        last_error: last_error.clone(),
    };
    entry.site.certificates.iter().map(status)
}
