//! The seam between rooms: a handler turns a request into a response or passes it on.
//!
//! `penstock`'s wiring lists the handlers of each route in order; edge asks them one after the
//! other. A handler that knows its answer at once gives [`Handling::Now`], which costs no
//! allocation: a static file from memory, a refusal.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::{Fault, Request, Response};

/// Turns requests into responses.
pub trait Handler: Send + Sync + fmt::Debug {
    /// Begins to handle `request`. The future may be dropped at any wait when the client is gone.
    fn handle(&self, request: Request) -> Handling<'_>;
}

/// A handler's work in progress.
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + 'a>>;

/// How far a handler got at once.
pub enum Handling<'a> {
    /// Done.
    Now(Result<Reply, Fault>),
    /// To be awaited.
    Later(HandlerFuture<'a>),
}

/// What a handler came to.
#[derive(Debug)]
pub enum Reply {
    /// The answer.
    Response(Response),
    /// Not mine: the next handler of the route gets the request, unchanged.
    Pass(Box<Request>),
}

impl From<Response> for Reply {
    fn from(response: Response) -> Self {
        Self::Response(response)
    }
}

impl fmt::Debug for Handling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(reply) => f.debug_tuple("Now").field(reply).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}
