//! Why no certificate was obtained, in words for the log and the status page, and what follows.

use std::time::{Duration, SystemTime};

use instant_acme::Problem;

use crate::callbacks::CallbackError;
use crate::certificate::CertificateError;
use crate::schedule::{Failure, FailureKind};
use crate::settings::ChallengeKind;
use crate::storage::StorageError;

/// Why an attempt failed. No variant has a secret in it.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// No connection, or an answer that is not from an ACME server.
    #[error("{0}")]
    Call(#[from] CallError),
    /// The account could not be opened a moment ago.
    #[error("{}", .0.cause)]
    Account(SharedFailure),
    /// The authority refuses.
    #[error("the authority refuses: {}", describe(.0))]
    Refused(Box<Problem>),
    /// The authority could not validate the name.
    #[error("the authority could not validate the name by {kind}: {cause}")]
    Validation {
        /// The challenge that failed.
        kind: ChallengeKind,
        /// What the authority saw.
        cause: String,
    },
    /// The authority did not finish in time.
    #[error("the authority did not finish {step} within {after:?}")]
    Timeout {
        /// What it was doing.
        step: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// No allowed challenge can validate the name.
    #[error(
        "no allowed challenge can validate the name: the authority offers {offered}, allowed are \
         {allowed}; wildcards need dns-01 with a hook or dns-persist-01"
    )]
    NoChallenge {
        /// Kinds that the authority offers.
        offered: String,
        /// Kinds that are allowed and fit the name.
        allowed: String,
    },
    /// The DNS hook failed.
    #[error("the DNS hook failed to {verb} the record `{record}`: {source}")]
    Hook {
        /// `present` or `cleanup`.
        verb: &'static str,
        /// The record's name.
        record: String,
        /// The cause.
        source: CallbackError,
    },
    /// The profile is unknown to the authority.
    #[error("the authority has no profile `{profile}`; it has: {available}")]
    Profile {
        /// The profile of the settings.
        profile: String,
        /// Those of the authority.
        available: String,
    },
    /// The settings have no authority.
    #[error("no certificate authority is set")]
    NoAuthority,
    /// No authority of the settings can issue for this name.
    #[error(
        "public authorities issue no certificates for this name: use `tls = \"local\"` or a \
             private authority"
    )]
    NotPublic,
    /// The storage failed.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// The lock was lost during the order, so that another server may have ordered too.
    #[error("the lock in the certificate storage was lost during the order")]
    LockLost,
    /// What the authority issued cannot be used.
    #[error("the authority issued a certificate that cannot be used: {0}")]
    Certificate(#[from] CertificateError),
    /// A key or a certificate request could not be made.
    #[error("a key or certificate request could not be made: {0}")]
    Key(#[from] rcgen::Error),
    /// The roots for the authority's HTTPS server cannot be read.
    #[error("{0}")]
    Roots(String),
    /// Anything else that the protocol library reports.
    #[error("{0}")]
    Protocol(Box<instant_acme::Error>),
    /// A task ended by a panic.
    #[error("an internal error ended the attempt")]
    Internal,
}

/// Why a request to an authority has no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It took too long.
    #[error("{host} did not answer within {after:?}")]
    Timeout {
        /// The authority's host.
        host: String,
        /// The deadline.
        after: Duration,
    },
    /// No connection, or it broke.
    #[error("{host} cannot be reached: {cause}")]
    Unreachable {
        /// The authority's host.
        host: String,
        /// The cause.
        cause: String,
    },
    /// An error status, with the reason if the authority gave one.
    #[error("{host} answers with status {status}{}", describe_reason(.problem.as_deref()))]
    Status {
        /// The authority's host.
        host: String,
        /// The HTTP status.
        status: u16,
        /// The reason.
        problem: Option<Box<Problem>>,
        /// When it may be asked again (`Retry-After`).
        retry_at: Option<SystemTime>,
    },
}

/// A failure that concerns all names of an authority.
#[derive(Debug, Clone)]
pub struct SharedFailure {
    cause: String,
    failure: Failure,
}

impl SharedFailure {
    pub(crate) fn new(error: &AcmeError) -> Self {
        Self {
            cause: error.to_string(),
            failure: error.failure(),
        }
    }
}

impl AcmeError {
    pub(crate) fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Call(CallError::Status { problem, .. }) => problem.as_deref(),
            _ => None,
        }
    }

    /// Whether the authority named this error type (RFC 8555 §6.7).
    pub(crate) fn is_problem(&self, kind: &str) -> bool {
        let type_of = |problem: &Problem| problem.r#type.clone().unwrap_or_default();
        let found = self.problem().map(type_of).unwrap_or_default();
        found.rsplit(':').next() == Some(kind)
    }

    /// What the schedule should make of it.
    pub(crate) fn failure(&self) -> Failure {
        if let Self::Account(shared) = self {
            return shared.failure;
        }
        let is_any = |kinds: &[&str]| kinds.iter().any(|kind| self.is_problem(kind));
        let kind = match self {
            Self::Storage(_) | Self::LockLost | Self::Internal => FailureKind::Local,
            Self::Profile { .. } | Self::Roots(_) | Self::NotPublic => FailureKind::Refused,
            _ if is_any(&REFUSALS) => FailureKind::Refused,
            _ => FailureKind::Attempt,
        };
        let retry_at = match self {
            Self::Call(CallError::Status { retry_at, .. }) => *retry_at,
            _ => None,
        };
        Failure { kind, retry_at }
    }
}

/// Problems that the same authority will repeat, so that the next one is tried at once.
const REFUSALS: [&str; 9] = [
    "rateLimited",
    "rejectedIdentifier",
    "unsupportedIdentifier",
    "unsupportedContact",
    "invalidContact",
    "invalidProfile",
    "externalAccountRequired",
    "userActionRequired",
    "caa",
];

impl From<instant_acme::Error> for AcmeError {
    fn from(error: instant_acme::Error) -> Self {
        match error {
            instant_acme::Error::Api(problem) => Self::Refused(Box::new(problem)),
            instant_acme::Error::Other(source) => match source.downcast::<CallError>() {
                Ok(call) => Self::Call(*call),
                Err(source) => Self::Protocol(Box::new(instant_acme::Error::Other(source))),
            },
            other => Self::Protocol(Box::new(other)),
        }
    }
}

fn describe_reason(problem: Option<&Problem>) -> String {
    problem.map_or_else(String::new, |problem| format!(": {}", describe(problem)))
}

/// Words a problem document, with advice where the settings are the cause.
pub(crate) fn describe(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("unknown");
    let kind = kind.rsplit(':').next().unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("it gives no reason");
    let mut text = format!("{} ({})", printable(detail), printable(kind));
    for subproblem in problem.subproblems.iter().take(MAX_SUBPROBLEMS) {
        text.push_str("; ");
        text.push_str(&printable(&subproblem.to_string()));
    }
    if kind == "externalAccountRequired" {
        text.push_str("; set the key id and HMAC key of your account there");
    }
    text
}

/// Text of a foreign server for the log: one line, bounded.
pub(crate) fn printable(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(MAX_DETAIL_CHARS).collect()
}

const MAX_SUBPROBLEMS: usize = 4;
const MAX_DETAIL_CHARS: usize = 500;
