//! One response on its way to the client, and the time that each part of it took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_http::caching::ForwardReason;
use penstock_http::{FieldBlock, Status};

use crate::grip::is_grip_field;
use crate::{Body, BodyRate};

/// One response. Framing fields (`Content-Length`, `Transfer-Encoding`, `Connection`) are added by
/// edge; handlers leave them out.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: Status,
    /// Its fields, ready to send.
    pub fields: FieldBlock,
    /// Its body.
    pub body: Body,
    /// Where the time went.
    pub timing: RequestTiming,
    /// When it was made, from a handler that has just read the clock: edge then need not.
    pub created_at: Option<Instant>,
    /// How fast its body is sent, at most (`X-Accel-Limit-Rate`, `response_rate`). Boxed, as few
    /// responses have one.
    pub max_rate: Option<Box<BodyRate>>,
    /// Whether instructions to a front end are among its fields, and to which.
    pub instructions: FrontEndInstructions,
}

/// Instructions to a front end among the fields of a response: `X-Accel-Expires` for its cache,
/// `X-Accel-Buffering`, `Grip-*` for its hub. Set by the reader of the fields, so that no later
/// stage searches each response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FrontEndInstructions {
    /// There are none.
    #[default]
    None,
    /// This server's cache and hub apply them where the route allows it; edge removes them.
    ForThisServer,
    /// Another Penstock in front of this one applies them: edge sends them.
    ForFrontEnd,
}

/// The time spent on a request, for the access log and the metrics. Zero where it does not apply.
#[derive(Debug, Clone, Default)]
pub struct RequestTiming {
    /// Waited for a slot.
    pub queue_time: Duration,
    /// Position in the queue on arrival; 0 when it did not wait.
    pub queue_position: u32,
    /// From being handed to a worker to the head of its response.
    pub app_time: Duration,
    /// The handler that responded: an application's name, `files`, `status`.
    pub handler: Option<HandlerName>,
    /// The worker's process id, or 0.
    pub worker_pid: u32,
    /// Connecting to the back end that responded; zero on a reused connection.
    pub connect_time: Duration,
    /// The back end that responded or was tried last, as configured.
    pub server: Option<Arc<str>>,
    /// How many back ends had the request before the last: 0 without a retry.
    pub retries: u8,
    /// What a cache in front of the back end did.
    pub cache: Option<CacheOutcome>,
}

/// What a cache did with a request, in the words of `Cache-Status` (RFC 9211 §2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    /// It had the response.
    Hit,
    /// It forwarded the request.
    Forwarded(ForwardReason),
}

impl CacheOutcome {
    /// The word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Forwarded(reason) => reason.as_str(),
        }
    }
}

/// The name of a handler. Components have fixed ones, which cost nothing to copy.
#[derive(Debug, Clone)]
pub enum HandlerName {
    /// A component.
    Component(&'static str),
    /// An application.
    App(Arc<str>),
    /// What pages ask for under `serve --dev`, in no access log.
    Development,
}

impl std::ops::Deref for HandlerName {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Component(name) => name,
            Self::App(name) => name,
            Self::Development => "dev",
        }
    }
}

impl From<&Arc<str>> for HandlerName {
    fn from(name: &Arc<str>) -> Self {
        Self::App(Arc::clone(name))
    }
}

impl Response {
    /// A response without fields.
    #[must_use]
    pub fn new(status: Status, body: Body) -> Self {
        Self {
            status,
            fields: FieldBlock::new(),
            body,
            timing: RequestTiming::default(),
            created_at: None,
            max_rate: None,
            instructions: FrontEndInstructions::None,
        }
    }

    /// Whether it has instructions for the hub (`Grip-*`), here or in front.
    #[must_use]
    pub fn has_grip(&self) -> bool {
        self.instructions != FrontEndInstructions::None
            && self
                .fields
                .iter()
                .any(|(name, _)| is_grip_field(name.as_bytes()))
    }

    /// A short page or text in memory with its type.
    #[must_use]
    pub fn with_text(
        status: Status,
        content_type: &'static str,
        body: impl Into<bytes::Bytes>,
    ) -> Self {
        let mut response = Self::new(status, Body::Bytes(body.into()));
        // A literal is a valid value.
        let _ = response
            .fields
            .push("Content-Type", content_type.as_bytes());
        response
    }
}
