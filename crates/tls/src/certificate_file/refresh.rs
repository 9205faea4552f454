//! Reads the files of a certificate that is in use again, and decides which one to present.

use rustls::pki_types::UnixTime;

use super::{CertificateFileError, CertificateFiles, CertificateProblem, LoadedCertificate, load};
use crate::certificate::ServerCertificate;

#[cfg(test)]
mod tests;

/// Which certificate to present from now on.
#[derive(Debug)]
pub enum RefreshOutcome {
    /// The files hold the certificate that is in use.
    Unchanged,
    /// The files hold another.
    Replaced(Box<LoadedCertificate>),
    /// The one in use is better than what the files hold.
    Kept(KeepReason),
}

/// Why a certificate stays in use: for the log, and for `CertificateStore::set_last_error`.
#[derive(Debug, thiserror::Error)]
pub enum KeepReason {
    /// The files have no usable certificate.
    #[error("{0}")]
    Unusable(#[from] CertificateFileError),
    /// Clients refuse the new certificate, and not the one in use.
    #[error("{}: {problem}", files.certificate.display())]
    Worse {
        /// The files.
        files: CertificateFiles,
        /// The problem of the new one.
        problem: CertificateProblem,
    },
}

/// Reads the files again. A certificate that clients accept is never replaced by one that cannot be
/// used, or that is out of its time. Blocks.
pub fn refresh(
    files: &CertificateFiles,
    current: &ServerCertificate,
    now: UnixTime,
) -> RefreshOutcome {
    let loaded = match load(files, now) {
        Ok(loaded) => loaded,
        Err(error) => return RefreshOutcome::Kept(error.into()),
    };
    if loaded.certificate.certified_key.cert == current.certified_key.cert {
        return RefreshOutcome::Unchanged;
    }
    let is_current_valid = !current.facts.is_expired(now) && !current.facts.is_early(now);
    let is_out_of_time = |problem: &&CertificateProblem| {
        matches!(
            problem,
            CertificateProblem::Expired { .. } | CertificateProblem::NotYetValid { .. }
        )
    };
    let problem = loaded.errors().find(is_out_of_time).cloned();
    match problem {
        Some(problem) if is_current_valid => RefreshOutcome::Kept(KeepReason::Worse {
            files: files.clone(),
            problem,
        }),
        _ => RefreshOutcome::Replaced(Box::new(loaded)),
    }
}
