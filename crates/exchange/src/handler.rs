//! The seam between rooms: a handler turns a request into a response or passes it on.
//!
//! `penstock`'s wiring lists the handlers of each route in order; edge asks them one after the
//! other. A handler that knows its answer at once gives [`HandlerProgress::Ready`], which boxes no future. One
//! that has it ready in memory lends it ([`Handler::try_inline`]) before a request is even made: that
//! way costs no allocation and no count of references.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use penstock_http::{FieldBlock, RequestHead, Status};

use crate::field_policy::TrustedHeaders;
use crate::request::RequestOrigin;
use crate::{Fault, FileBody, Request, RequestTiming, Response};

/// Turns requests into responses.
pub trait Handler: Send + Sync + fmt::Debug {
    /// Begins to handle `request`. The future may be dropped at any wait when the client is gone.
    fn handle(&self, request: Request) -> HandlerProgress;

    /// The same, for who takes an answer that speaks to the hub back to [`Handler::apply_grip`]: a handler that
    /// would obey it may leave it as it came, and then keeps nothing of all the requests with ordinary ones.
    /// Who hands this on to another handler hands on `apply_grip` too, or holds are lost.
    fn handle_deferring_grip(&self, request: Request) -> HandlerProgress {
        self.handle(request)
    }

    /// Does what an answer of [`Handler::handle_deferring_grip`] says to the hub. What this comes to is the answer, whatever it
    /// says.
    fn apply_grip(&self, spoken: GripResponse) -> HandlerProgress {
        HandlerProgress::Ready(Ok(Reply::Response(spoken.response)))
    }

    /// Lends `take` the answer to a request without a body, if it is at hand in memory; otherwise
    /// does not call it, and [`Handler::handle`] is asked. `take` copies (a body by reference, that reference) and
    /// does not wait.
    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        let _ = (asked, take);
    }
}

/// An answer that speaks to the hub ([`Response::has_grip`]), and the request that it is for.
#[derive(Debug)]
pub struct GripResponse {
    /// What was asked.
    pub head: Arc<RequestHead>,
    /// The fields of it that the route's own rules said, not the client.
    pub trusted_headers: TrustedHeaders,
    /// Whether it had a body, which is gone by now.
    pub had_body: bool,
    /// Where it came from.
    pub origin: RequestOrigin,
    /// The answer.
    pub response: Box<Response>,
}

/// A request without a body, before it is made.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a> {
    /// Its head.
    pub head: &'a RequestHead,
    /// Its path, as [`crate::request::RequestPath::bytes`] has it.
    pub path: &'a [u8],
    /// The scheme that the client used.
    pub scheme: &'static str,
    /// When its head was complete.
    pub arrived: Instant,
}

/// An answer in memory, lent while it is copied.
#[derive(Debug)]
pub struct InlineResponse<'a> {
    /// Its status.
    pub status: Status,
    /// Its fields, framing left out.
    pub fields: &'a FieldBlock,
    /// What GET gets; for HEAD only its length counts.
    pub body: InlineBody<'a>,
    /// The handler's name, for the log.
    pub handler: &'static str,
}

/// The body of an answer that is at hand.
#[derive(Debug)]
pub enum InlineBody<'a> {
    /// Copied behind its head.
    Bytes(&'a [u8]),
    /// Sent by reference.
    File(FileBody),
}

impl InlineBody<'_> {
    /// Its bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(file) => file.len,
        }
    }
}

/// A handler's work in progress. It owns what it needs (handlers are handles on shared state), so
/// that a connection has room for it only while there is such work.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send>>;

/// How far a handler got at once.
pub enum HandlerProgress {
    /// Done.
    Ready(Result<Reply, Fault>),
    /// To be awaited.
    Pending(HandlerFuture),
}

/// What a handler came to.
#[derive(Debug)]
pub enum Reply {
    /// The answer. It goes through many hands, so it is made where it stays.
    Response(Box<Response>),
    /// Not mine: the next handler of the route gets the request, unchanged.
    Pass(Box<Request>),
    /// Another route of this site has the body (`X-Accel-Redirect`).
    Redirect(Box<InternalRedirect>),
}

/// An answer that names where its body is: asked again inside, by GET (or HEAD), of the site's routes,
/// those marked internal included.
#[derive(Debug)]
pub struct InternalRedirect {
    /// Path and query; starts with `/`.
    pub target: String,
    /// Asked instead of the site's routes: the files below a folder of `X-Sendfile`.
    pub handler: Option<Arc<dyn Handler>>,
    /// Fields of the first answer that go into the final one, over its own.
    pub fields: FieldBlock,
    /// Bytes per second that the client is given at most, if limited (`X-Accel-Limit-Rate`).
    pub max_rate: Option<u64>,
    /// Where the time went so far.
    pub timing: RequestTiming,
}

impl From<Response> for Reply {
    fn from(response: Response) -> Self {
        Self::Response(Box::new(response))
    }
}

impl fmt::Debug for HandlerProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(reply) => f.debug_tuple("Now").field(reply).finish(),
            Self::Pending(_) => f.write_str("Later"),
        }
    }
}
