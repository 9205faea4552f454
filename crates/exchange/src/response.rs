//! One response on its way to the client, and how long each part of it took.

use std::sync::Arc;
use std::time::Duration;

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
    pub timing: Timing,
}

/// Where a request's time went, for the access log and the metrics. Zero where it does not apply.
#[derive(Debug, Clone, Default)]
pub struct Timing {
    /// Waited for a slot.
    pub queue: Duration,
    /// Place in line on arrival; 0 when it did not wait.
    pub queue_position: u32,
    /// From being handed to a worker to the head of its response.
    pub app: Duration,
    /// Who answered: an application's name, `files`, `status`.
    pub handler: Option<Arc<str>>,
    /// The worker's process id, or 0.
    pub worker: u32,
}

impl Response {
    /// A response without fields.
    #[must_use]
    pub fn new(status: Status, body: Body) -> Self {
        Self {
            status,
            fields: FieldBlock::new(),
            body,
            timing: Timing::default(),
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
