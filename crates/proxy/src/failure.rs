//! The failure of one attempt at one server, and whether another attempt is allowed.
//!
//! Made by `connection`, `upstream_exchange` and `relay`; judged in `proxied_request`, which
//! retries or turns it into the client's [`Fault`].
//!
//! # Invariants
//!
//! - A request that is not idempotent is repeated only if no byte of it can have reached an
//!   application.

use std::borrow::Cow;

use penstock_exchange::{Fault, FaultKind};

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

    /// Whether a request, `idempotent` or not, may be attempted again.
    pub(crate) fn allows_retry(&self, idempotent: bool) -> bool {
        match self.stage {
            AttemptStage::Unsent => true,
            AttemptStage::Sent => idempotent,
            AttemptStage::ResponseStarted | AttemptStage::Local => false,
        }
    }

    /// Whether the failure counts against the server.
    pub(crate) fn blames_server(&self) -> bool {
        self.stage != AttemptStage::Local && self.kind != FaultKind::ClientDisconnected
    }
}

impl From<Fault> for AttemptFailure {
    /// A failure of the request body, or a local error: no server caused it.
    fn from(fault: Fault) -> Self {
        Self::local(fault.kind, fault.cause)
    }
}
