//! What went wrong with one try at one server, and whether another may be made.
//!
//! Made by `connection`, `exchange` steps in `call` and `relay`; judged in `call`, which either tries
//! again or turns it into the [`Fault`] that the client gets. What must stay true: a request that is
//! not idempotent is repeated only when no byte of it can have reached an application.

use std::borrow::Cow;

use penstock_exchange::{Fault, FaultKind};

/// One try's failure.
#[derive(Debug)]
pub(crate) struct AttemptFailure {
    pub(crate) kind: FaultKind,
    pub(crate) cause: Cow<'static, str>,
    pub(crate) stage: AttemptStage,
}

/// How far a try got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptStage {
    /// No byte of the request left this machine's hands: any request may go elsewhere.
    Unsent,
    /// The server may have begun on it.
    Sent,
    /// A final response has begun: nothing can be repeated.
    ResponseStarted,
    /// Not the server's doing: the client's body failed, or the house.
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

    /// Whether another try may be made of a request that is `idempotent` or not.
    pub(crate) fn allows_retry(&self, idempotent: bool) -> bool {
        match self.stage {
            AttemptStage::Unsent => true,
            AttemptStage::Sent => idempotent,
            AttemptStage::ResponseStarted | AttemptStage::Local => false,
        }
    }

    /// Whether it speaks against the server.
    pub(crate) fn blames_server(&self) -> bool {
        self.stage != AttemptStage::Local && self.kind != FaultKind::ClientDisconnected
    }
}

impl From<Fault> for AttemptFailure {
    /// A failure of the request's own body, or of the house: no server had a part in it.
    fn from(fault: Fault) -> Self {
        Self {
            kind: fault.kind,
            cause: fault.cause,
            stage: AttemptStage::Local,
        }
    }
}
