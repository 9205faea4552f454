//! Reads a whole response body: instructions, the initial bytes of a stream, the fallback of a
//! long poll.
//!
//! A body is bounded in bytes and in time; exceeding either is a fault of the back end that names
//! the limit.

use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{Body, BodyStream, Fault, FaultKind};
use penstock_runtime::clock;

/// The longest wait for a body; the bodies that are read here are small.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The name of a body in errors, and its bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimit {
    pub(crate) body_name: &'static str,
    pub(crate) max_bytes: usize,
    pub(crate) limit_name: &'static str,
}

impl BodyLimit {
    /// For a body that is small whatever the configuration: instructions, the response to a notice,
    /// the response for a long poll that times out.
    pub(crate) fn for_small_body(body_name: &'static str) -> Self {
        Self {
            body_name,
            max_bytes: 100_000,
            limit_name: "fixed",
        }
    }

    fn too_long_fault(self) -> Fault {
        let Self {
            body_name,
            max_bytes,
            limit_name,
        } = self;
        let cause = format!("{body_name} is longer than {max_bytes} bytes ({limit_name})");
        Fault::new(FaultKind::BackendProtocolError, cause)
    }
}

/// Reads all of a body.
///
/// # Errors
/// When it is too long, takes too long, breaks off, or is none that can be held in memory.
pub(crate) async fn read_whole_body(body: Body, bound: BodyLimit) -> Result<Bytes, Fault> {
    match body {
        Body::Empty | Body::Omitted(_) => Ok(Bytes::new()),
        Body::Bytes(bytes) if bytes.len() > bound.max_bytes => Err(bound.too_long_fault()),
        Body::Bytes(bytes) => Ok(bytes),
        Body::Stream(stream) => {
            if stream
                .length()
                .is_some_and(|length| length > bound.max_bytes as u64)
            {
                return Err(bound.too_long_fault());
            }
            let deadline = clock::now() + BODY_TIMEOUT;
            let read = clock::timeout_at(deadline, collect_chunks(stream, bound)).await;
            read.unwrap_or_else(|| {
                let cause = format!("{} takes longer than {BODY_TIMEOUT:?}", bound.body_name);
                Err(Fault::new(FaultKind::BackendTimeout, cause))
            })
        }
        Body::File(_) | Body::Takeover(_) | Body::Hold(_) => {
            let cause = format!("{} is a file or a connection", bound.body_name);
            Err(Fault::new(FaultKind::BackendProtocolError, cause))
        }
    }
}

async fn collect_chunks(mut stream: Box<dyn BodyStream>, bound: BodyLimit) -> Result<Bytes, Fault> {
    let mut whole = Vec::new();
    while let Some(piece) = std::future::poll_fn(|cx| stream.poll_chunk(cx)).await {
        let piece = piece?;
        if whole.len() + piece.len() > bound.max_bytes {
            return Err(bound.too_long_fault());
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.into())
}
