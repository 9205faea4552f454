//! The certificates of listeners with TLS, as the admin API shows them.

use penstock_runtime::clock;
use penstock_status::{CertificateSnapshot, CertificatesSnapshot};
use penstock_tls::{CertificateSource, CertificateStatus};

use crate::tls_service::TlsService;

/// All certificates in use, at this time.
pub(super) fn certificates(tls: &TlsService) -> CertificatesSnapshot {
    let all = tls.snapshot().into_iter().map(certificate).collect();
    CertificatesSnapshot::new(all, clock::wall_time().as_secs())
}

/// One certificate; its state follows.
fn certificate(status: CertificateStatus) -> CertificateSnapshot {
    let path = match &status.source {
        CertificateSource::File(path) => Some(path.display().to_string()),
        CertificateSource::Acme
        | CertificateSource::LocalAuthority
        | CertificateSource::SelfSigned => None,
    };
    CertificateSnapshot {
        hosts: status.hosts,
        names: status.names,
        issuer: status.issuer,
        source: status.source.label(),
        path,
        not_before: status.not_before,
        not_after: status.not_after,
        last_error: status.last_error,
        ..CertificateSnapshot::default()
    }
}
