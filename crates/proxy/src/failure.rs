//! The failure of one attempt at one server: how far the attempt got, and whether the server is to
//! blame.
//!
//! Made by `connection`, `upstream_exchange` and `relay`; judged in `proxied_request`, which
//! retries or turns it into the client's [`Fault`].

use std::borrow::Cow;

use penstock_exchange::{Fault, FaultKind};

use crate::server_pool::AttemptOutcome;

#[derive(Debug)]
pub(crate) struct AttemptFailure {
    pub(crate) kind: FaultKind,
    pub(crate) cause: Cow<'static, str>,
    pub(crate) stage: AttemptStage,
}

/// How far an attempt got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptStage {
    /// No byte of the request left this process: any request may be retried.
    Unsent,
    /// The server may have begun to process it.
    Sent,
    /// A final response has begun: nothing can be repeated.
    ResponseStarted,
    /// Not the server's fault: the client's body failed, or a local error.
    Local,
}

impl AttemptFailure {
    pub(crate) fn new(
        kind: FaultKind,
        stage: AttemptStage,
        cause: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            kind,
            cause: cause.into(),
            stage,
        }
    }

    /// A failure that is not the server's fault.
    pub(crate) fn local(kind: FaultKind, cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(kind, AttemptStage::Local, cause)
    }

    pub(crate) fn server_disconnected(
        stage: AttemptStage,
        cause: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(FaultKind::BackendDisconnected, stage, cause)
    }

    pub(crate) fn protocol_error(stage: AttemptStage, cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::BackendProtocolError, stage, cause)
    }

    pub(crate) fn timed_out(stage: AttemptStage, cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::BackendTimeout, stage, cause)
    }

    /// Whether the failure counts against the server.
    pub(crate) fn blames_server(&self) -> bool {
        self.stage != AttemptStage::Local && self.kind != FaultKind::ClientDisconnected
    }

    /// How the attempt counts for its server; `request_hash` identifies the request.
    pub(crate) fn outcome_for_server(&self, request_hash: impl FnOnce() -> u64) -> AttemptOutcome {
        match self.blames_server() {
            true if self.kind == FaultKind::BackendProtocolError => AttemptOutcome::Malformed {
                request_hash: request_hash(),
            },
            true => AttemptOutcome::Failure {
                is_timeout: self.kind == FaultKind::BackendTimeout,
            },
            false => AttemptOutcome::Neutral,
        }
    }
}

impl From<Fault> for AttemptFailure {
    /// A failure of the request body, or a local error: no server caused it.
    fn from(fault: Fault) -> Self {
        Self::local(fault.kind, fault.cause)
    }
}
