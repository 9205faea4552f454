//! One response on its way to the client, and how long each part of it took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_http::{FieldBlock, Status};

use crate::Body;

/// One response. Framing fields (`Content-Length`, `Transfer-Encoding`, `Connection`) are edge's:
/// makers leave them out.
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
    /// When it was made, from a handler that has just looked at the clock: edge then need not.
    pub created_at: Option<Instant>,
    /// Bytes of the body per second that the client is given at most (`X-Accel-Limit-Rate`).
    pub max_rate: Option<u64>,
    /// Among its fields is one for the house's own cache (`X-Accel-Expires`), which edge takes out. Known to
    /// those who read the fields, so that nobody looks for it in each response.
    pub has_accel_expires: bool,
    /// Among its fields is one for the house's own hub (`Grip-*`). Known to those who read the fields of a back
    /// end; obeyed where its route has a handler for that, and taken out by edge in any case.
    pub has_grip: bool,
    /// And another server of the house, in front of this one, is to obey it: the fields go on.
    pub passes_grip: bool,
    /// An application has asked that it be not held back (`X-Accel-Buffering: no`), which was obeyed. Known to those
    /// who read the fields.
    pub disables_buffering: bool,
}

/// Where a request's time went, for the access log and the metrics. Zero where it does not apply.
#[derive(Debug, Clone, Default)]
pub struct RequestTiming {
    /// Waited for a slot.
    pub queue_time: Duration,
    /// Place in line on arrival; 0 when it did not wait.
    pub queue_position: u32,
    /// From being handed to a worker to the head of its response.
    pub app_time: Duration,
    /// Who answered: an application's name, `files`, `status`.
    pub handler: Option<HandlerName>,
    /// The worker's process id, or 0.
    pub worker_pid: u32,
    /// Connecting to the back end that answered; zero on a connection that was there.
    pub connect_time: Duration,
    /// The back end that answered or was tried last, as configured.
    pub server: Option<Arc<str>>,
    /// How many back ends had the request before the last: 0 without a retry.
    pub retries: u8,
}

/// The name of a handler. Rooms of the house have fixed ones, which cost nothing to pass on.
#[derive(Debug, Clone)]
pub enum HandlerName {
    /// A room's.
    Component(&'static str),
    /// An application's.
    App(Arc<str>),
}

impl std::ops::Deref for HandlerName {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Component(name) => name,
            Self::App(name) => name,
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
            has_accel_expires: false,
            has_grip: false,
            passes_grip: false,
            disables_buffering: false,
        }
    }

    /// A short page or text in memory with its type.
    #[must_use]
    pub fn text(status: Status, content_type: &'static str, body: impl Into<bytes::Bytes>) -> Self {
        let mut response = Self::new(status, Body::Bytes(body.into()));
        // A literal is always a valid value.
        let _ = response
            .fields
            .push("Content-Type", content_type.as_bytes());
        response
    }
}
