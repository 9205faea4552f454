//! Bodies: of requests, which handlers read, and of responses, which edge sends.
//!
//! A request body is pulled by its handler (edge sends `100 Continue` at the first pull). A
//! response body is an enum, so that edge sends each kind in the cheapest way.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_http::FieldBlock;
use penstock_runtime::DiskFile;

use crate::{Fault, Hold, Takeover};

/// The body of a request.
pub enum RequestBody {
    /// No body.
    Empty,
    /// A body to be read.
    Incoming(Box<dyn IncomingBody>),
}

/// A request body on its way in. Dropping it returns the unread rest to the connection.
pub trait IncomingBody: Send {
    /// Appends some more of the body to `into`: at most what one read brings. Ready with `false`
    /// when the body is complete.
    ///
    /// # Errors
    /// Too large, stalled, too slow, malformed, or the client left: the exchange ends with it.
    fn poll_fill(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>>;

    /// As [`IncomingBody::poll_fill`], for bytes that are not needed yet: the client gets no `100
    /// Continue`, and the wait does not count against it.
    ///
    /// # Errors
    /// Too large, malformed, or the client left.
    fn poll_prefetch(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Fault>> {
        self.poll_fill(cx, into)
    }

    /// Whether the end has been read. `false` also while that is not known.
    fn is_at_end(&self) -> bool {
        false
    }

    /// Its declared length; `None` when it is chunked.
    fn length(&self) -> Option<u64>;
}

impl RequestBody {
    /// Reads all of a body that has at most `max_bytes`; `None` for a larger one, of which no more
    /// is read than shows that.
    ///
    /// # Errors
    /// As [`IncomingBody::poll_fill`].
    pub async fn read_limited(self, max_bytes: usize) -> Result<Option<Vec<u8>>, Fault> {
        let mut bytes = Vec::new();
        let Self::Incoming(mut body) = self else {
            return Ok(Some(bytes));
        };
        let declared = body.length();
        let mut is_too_large = declared.is_some_and(|length| length > max_bytes as u64);
        let mut is_more = true;
        while is_more && !is_too_large {
            is_more = std::future::poll_fn(|cx| body.poll_fill(cx, &mut bytes)).await?;
            is_too_large = bytes.len() > max_bytes;
        }
        Ok((!is_too_large).then_some(bytes))
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Incoming(body) => f.debug_tuple("Incoming").field(&body.length()).finish(),
        }
    }
}

/// The body of a response.
pub enum Body {
    /// None; a `Content-Length: 0` is sent where the status allows a body.
    Empty,
    /// All of it, in memory.
    Bytes(Bytes),
    /// A part of an open file.
    File(FileBody),
    /// Made piece by piece while it is sent.
    Stream(Box<dyn BodyStream>),
    /// The response to a HEAD request: not sent, with the length that GET would have, if known.
    Omitted(Option<u64>),
    /// The protocol is switched: the head (status 101) is sent, then the connection is handed over.
    Takeover(Box<dyn Takeover>),
    /// No end yet: the head is sent, then the connection is handed over for the rest.
    Hold(Box<dyn Hold>),
}

/// A part of an open regular file.
#[derive(Debug, Clone)]
pub struct FileBody {
    /// The file.
    pub file: Arc<DiskFile>,
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A response body made while it is sent.
pub trait BodyStream: Send {
    /// The next piece (never empty); `None` at the end.
    ///
    /// # Errors
    /// The body cannot be completed: edge cuts the connection, so that the client never takes a
    /// part for the whole.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>>;

    /// The declared length. Edge enforces it.
    fn length(&self) -> Option<u64>;

    /// The trailer fields, once [`BodyStream::poll_chunk`] has given its end. Edge sends them where
    /// the body is chunked (RFC 9110 §6.5).
    fn take_trailers(&mut self) -> Option<FieldBlock> {
        None
    }
}

impl Body {
    /// Its length, when that is known before it is sent.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File(file) => Some(file.len),
            Self::Stream(stream) => stream.length(),
            Self::Omitted(length) => *length,
            Self::Takeover(_) | Self::Hold(_) => None,
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Empty => "Empty",
            Self::Bytes(_) => "Bytes",
            Self::File(_) => "File",
            Self::Stream(_) => "Stream",
            Self::Omitted(_) => "Omitted",
            Self::Takeover(_) => "Takeover",
            Self::Hold(_) => "Hold",
        };
        f.debug_tuple(kind).field(&self.length()).finish()
    }
}
