//! The interface between components: a handler turns a request into a response or passes it on.
//!
//! `penstock`'s wiring lists the handlers of each route; edge runs them in that order. A handler
//! that responds at once returns [`HandlerProgress::Ready`], which boxes no future. One that has
//! the response in memory lends it ([`Handler::try_inline`]) before a [`Request`] is made, which
//! costs no allocation and no reference count.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use penstock_http::{FieldBlock, RequestHead, Status};

use crate::{BodyRate, Fault, FileBody, Request, RequestTiming, Response};

/// Turns requests into responses.
pub trait Handler: Send + Sync + fmt::Debug {
    /// Starts to handle `request`. The future may be dropped at any await when the client leaves.
    fn handle(&self, request: Request) -> HandlerProgress;

    /// Lends `take` the response to a request without a body, if it is in memory. Otherwise `take`
    /// is not called, and [`Handler::handle`] is. `take` copies (of a body by reference, the
    /// reference) and does not wait.
    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        let _ = (asked, take);
    }
}

/// A request without a body, before a [`Request`] is made of it.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a> {
    /// Its head.
    pub head: &'a RequestHead,
    /// Its path, as [`crate::request::RequestPath::bytes`] has it.
    pub path: &'a [u8],
    /// The scheme that the client used.
    pub scheme: &'static str,
    /// When its head was complete.
    pub arrived_at: Instant,
}

/// A response in memory, lent while it is copied.
#[derive(Debug)]
pub struct InlineResponse<'a> {
    /// Its status.
    pub status: Status,
    /// Its fields, without framing.
    pub fields: &'a FieldBlock,
    /// The body for GET; for HEAD only its length counts.
    pub body: InlineBody<'a>,
    /// The handler's name, for the log.
    pub handler: &'static str,
}

/// The body of an [`InlineResponse`].
#[derive(Debug)]
pub enum InlineBody<'a> {
    /// Copied behind its head.
    Bytes(&'a [u8]),
    /// Sent by reference.
    File(FileBody),
}

impl InlineBody<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(file) => file.len,
        }
    }
}

/// A handler's work in progress. It owns what it needs, as handlers are handles on shared state, so
/// that a connection has room for it only while there is such work.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send>>;

/// How far a handler got at once.
pub enum HandlerProgress {
    /// Done.
    Ready(Result<Reply, Fault>),
    /// To be awaited.
    Pending(HandlerFuture),
}

/// The result of a handler.
#[derive(Debug)]
pub enum Reply {
    /// The response. Boxed, as it is moved often.
    Response(Box<Response>),
    /// The next handler of the route gets the request, unchanged.
    Pass(Box<Request>),
    /// Another route of this site has the body (`X-Accel-Redirect`).
    Redirect(Box<InternalRedirect>),
}

/// A response that names another resource as its body: requested by GET (or HEAD) from the site's
/// routes, including internal ones.
#[derive(Debug)]
pub struct InternalRedirect {
    /// Path and query; starts with `/`.
    pub target: String,
    /// The handler that serves it in place of a route: files below a directory of `X-Sendfile`.
    pub handler: Option<Arc<dyn Handler>>,
    /// Fields of the first response that replace those of the final one.
    pub fields: FieldBlock,
    /// How fast the body is sent to the client, at most (`X-Accel-Limit-Rate`).
    pub max_rate: Option<Box<BodyRate>>,
    /// The time spent so far.
    pub timing: RequestTiming,
}

impl From<Response> for Reply {
    fn from(response: Response) -> Self {
        Self::Response(Box::new(response))
    }
}

impl HandlerProgress {
    /// The result, once it is there.
    ///
    /// # Errors
    /// Those of the handler.
    pub async fn wait_for_reply(self) -> Result<Reply, Fault> {
        match self {
            Self::Ready(result) => result,
            Self::Pending(work) => work.await,
        }
    }
}

impl fmt::Debug for HandlerProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(reply) => f.debug_tuple("Ready").field(reply).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}
