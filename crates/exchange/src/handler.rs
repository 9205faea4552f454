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
    fn handle(&self, request: Request) -> Handling;
}

/// A handler's work in progress. It owns what it needs (handlers are handles on shared state), so
/// that a connection has room for it only while there is such work.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send>>;

/// How far a handler got at once.
pub enum Handling {
    /// Done.
    Now(Result<Reply, Fault>),
    /// To be awaited.
    Later(HandlerFuture),
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

impl fmt::Debug for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(reply) => f.debug_tuple("Now").field(reply).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}
