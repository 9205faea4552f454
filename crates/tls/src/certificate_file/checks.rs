//! What clients may hold against a certificate that a server can use.

use rustls::pki_types::{CertificateDer, UnixTime};

use super::CertificateError;
use crate::stand_in::moment;
use crate::x509::{CertificateFacts, is_issued_by};

/// Something that is wrong with a certificate or its files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateProblem {
    /// The validity of a certificate of the chain has ended.
    #[error("certificate {position} of the chain expired on {}: renew it", date(*not_after))]
    Expired {
        /// Its place in the chain, from 1.
        position: usize,
        /// Its last second, since the Unix epoch.
        not_after: u64,
    },
    /// The validity of a certificate of the chain has not begun.
    #[error(
        "certificate {position} of the chain is valid from {} on: \
         is the clock of this machine right?",
        date(*not_before)
    )]
    NotYetValid {
        /// Its place in the chain, from 1.
        position: usize,
        /// Its first second, since the Unix epoch.
        not_before: u64,
    },
    /// A certificate was not signed by the next.
    #[error(
        "certificate {position} of the chain was issued by {issuer}, and another follows it: \
         put each certificate before its issuer"
    )]
    BrokenChain {
        /// The place in the chain, from 1.
        position: usize,
        /// The issuer that is expected to follow.
        issuer: String,
    },
    /// The certificate may sign others.
    #[error(
        "it is the certificate of an authority: many clients refuse it for a server \
         (openssl req: -addext basicConstraints=critical,CA:FALSE)"
    )]
    Authority {
        /// Whether it is its own issuer. `openssl req -x509` makes such certificates unasked.
        is_self_issued: bool,
    },
    /// The certificate has no subject alternative name.
    #[error(
        "it has no subject alternative name, and clients read no other: make it again with one"
    )]
    NoNames,
    /// The certificate is alone in its file.
    #[error(
        "the chain has no intermediate certificate: clients that do not know {issuer} refuse it \
         (use the file that the authority calls \"fullchain\")"
    )]
    NoIntermediate {
        /// The issuer of the only certificate.
        issuer: String,
    },
    /// No authority signed the certificate.
    #[error("it is self-signed: only clients that were told to trust it accept it")]
    SelfSigned,
    /// Every user of the machine can read the key.
    #[error("every user of this machine can read the key (mode {mode:o}): run \"chmod 600\" on it")]
    ReadableKey {
        /// The permission bits.
        mode: u32,
    },
}

/// How bad a problem is; the worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemSeverity {
    /// Clients refuse the certificate: `check` fails.
    Error,
    /// Some clients may refuse it, or it is at risk.
    Warning,
}

impl CertificateProblem {
    /// How bad the problem is.
    pub fn severity(&self) -> ProblemSeverity {
        match self {
            Self::Expired { .. }
            | Self::NotYetValid { .. }
            | Self::BrokenChain { .. }
            | Self::NoNames
            | Self::Authority {
                is_self_issued: false,
            } => ProblemSeverity::Error,
            Self::Authority {
                is_self_issued: true,
            }
            | Self::NoIntermediate { .. }
            | Self::SelfSigned
            | Self::ReadableKey { .. } => ProblemSeverity::Warning,
        }
    }
}

/// Checks the permission bits of the key's file.
///
/// nginx and OpenSSL check none. A key that each user can replace is refused. A key that each user
/// can read is a warning: secrets of Kubernetes (0644) and of Docker (0444) are mounted like that,
/// where there is no other user. Reading by the group is Debian's way (`ssl-cert`, 0640) and right.
pub(super) fn check_key_mode(mode: u32) -> Result<Option<CertificateProblem>, CertificateError> {
    const OTHERS_WRITE: u32 = 0o002;
    const OTHERS_READ: u32 = 0o004;
    if mode & OTHERS_WRITE != 0 {
        return Err(CertificateError::WritableKey { mode });
    }
    Ok((mode & OTHERS_READ != 0).then_some(CertificateProblem::ReadableKey { mode }))
}

/// Checks a chain of at least one certificate, leaf first.
pub(super) fn check_chain(
    chain: &[CertificateDer<'_>],
    facts: &[CertificateFacts],
    now: UnixTime,
) -> Vec<CertificateProblem> {
    let mut problems = Vec::new();
    for (index, facts) in facts.iter().enumerate() {
        problems.extend(check_validity(index + 1, facts, now));
    }
    for (index, pair) in chain.windows(2).enumerate() {
        if !is_issued_by(&pair[0], &pair[1]) {
            let issuer = facts[index].issuer.clone();
            problems.push(CertificateProblem::BrokenChain {
                position: index + 1,
                issuer,
            });
        }
    }
    let leaf = &facts[0];
    if leaf.is_authority {
        let is_self_issued = leaf.is_self_issued;
        problems.push(CertificateProblem::Authority { is_self_issued });
    }
    if leaf.names.is_empty() {
        problems.push(CertificateProblem::NoNames);
    }
    match (chain.len(), leaf.is_self_issued) {
        (1, true) => problems.push(CertificateProblem::SelfSigned),
        (1, false) => {
            let issuer = leaf.issuer.clone();
            problems.push(CertificateProblem::NoIntermediate { issuer });
        }
        _ => {}
    }
    problems
}

fn check_validity(
    position: usize,
    facts: &CertificateFacts,
    now: UnixTime,
) -> Option<CertificateProblem> {
    let (not_before, not_after) = (facts.not_before, facts.not_after);
    if facts.is_expired(now) {
        return Some(CertificateProblem::Expired {
            position,
            not_after,
        });
    }
    facts
        .is_early(now)
        .then_some(CertificateProblem::NotYetValid {
            position,
            not_before,
        })
}

/// The date of a second since the Unix epoch, as `2026-11-27`.
fn date(seconds: u64) -> time::Date {
    moment(seconds).date()
}
