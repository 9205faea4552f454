//! Finds the route of a request and runs its handlers, or responds in place of them.
//!
//! Called for each complete head and for each internal redirect.
//!
//! # Invariants
//! - Handlers run in the route's order. If all of them pass, the response is 404.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_exchange::{
    Fault, FaultKind, ForwardedInfo, HandlerFuture, HandlerProgress, InternalRedirect, Mount,
    Reply, Request, RequestPath, Response,
};
use penstock_http::{Method, RequestHead};

use crate::filters::Filters;
use crate::router::{HandlerChain, LookupOrigin, Route};
use crate::{Settings, faults};

/// The response of an exchange, or the reason why there is none.
pub(crate) type ResponseResult = Result<Box<Response>, Fault>;

/// What responds to a request.
pub(crate) enum RouteMatch<R> {
    /// The handlers of a route, for this path.
    Route(RequestPath, R),
    /// Edge itself, with this.
    EdgeResponse(ResponseResult),
}

/// The parts of its route that an exchange keeps.
pub(crate) struct OwnedRoute {
    pub(crate) handlers: HandlerChain,
    pub(crate) filters: Option<Arc<Filters>>,
    pub(crate) max_body_bytes: Option<u64>,
}

/// A handler at work; `next_handler` runs if it passes.
pub(crate) struct RunningHandler {
    pub(crate) future: HandlerFuture,
    pub(crate) handlers: HandlerChain,
    pub(crate) next_handler: usize,
}

/// How far the handlers of a route got.
pub(crate) enum HandlerOutcome {
    Finished(ResponseResult),
    Running(RunningHandler),
    Redirect(Box<InternalRedirect>),
}

impl HandlerOutcome {
    pub(crate) fn failed(fault: Fault) -> Self {
        Self::Finished(Err(fault))
    }
}

impl RouteMatch<&Route> {
    pub(crate) fn into_owned(self) -> RouteMatch<OwnedRoute> {
        match self {
            Self::Route(path, route) => {
                let kept = OwnedRoute {
                    handlers: Arc::clone(&route.handlers),
                    filters: route.filters.clone(),
                    max_body_bytes: route.max_body_bytes,
                };
                RouteMatch::Route(path, kept)
            }
            Self::EdgeResponse(response) => RouteMatch::EdgeResponse(response),
        }
    }
}

impl RouteMatch<OwnedRoute> {
    /// The route's own bound on request bodies.
    pub(crate) fn max_body_bytes(&self) -> Option<u64> {
        match self {
            Self::Route(_, route) => route.max_body_bytes,
            Self::EdgeResponse(_) => None,
        }
    }
}

impl RunningHandler {
    /// The outcome of a reply of this handler, which is over.
    pub(crate) fn continue_with_reply(&mut self, reply: Result<Reply, Fault>) -> HandlerOutcome {
        // The handler's future holds its resources until its reply and no longer.
        self.future = Box::pin(std::future::pending());
        split_reply(reply).unwrap_or_else(|request| {
            let handlers = std::mem::take(&mut self.handlers);
            run_handlers(handlers, self.next_handler, *request)
        })
    }
}

/// Finds the route of a client's request.
pub(crate) fn match_route<'s>(
    settings: &'s Settings,
    head: &RequestHead,
    forwarded: Option<&ForwardedInfo>,
) -> RouteMatch<&'s Route> {
    let path = match RequestPath::from_head(head) {
        Ok(path) => path,
        Err(error) => {
            return RouteMatch::EdgeResponse(Err(Fault::new(
                FaultKind::BadRequest,
                error.to_string(),
            )));
        }
    };
    if let Some(response) = respond_without_route(head) {
        return RouteMatch::EdgeResponse(response);
    }
    // Not read where every site answers for any host: each read checks that it is text.
    let host = match settings.routes.depends_on_host() {
        true => head.host(),
        false => "",
    };
    let bytes = path.bytes(head);
    match settings
        .routes
        .find_route(host, bytes, LookupOrigin::Client)
    {
        Ok(route) if route.is_directory_redirect(bytes) => {
            let outer = forwarded.map_or(&Mount::ROOT, |it| &it.mount);
            let outer = match &route.filters {
                Some(filters) => filters.outer_mount(outer),
                None => Cow::Borrowed(outer),
            };
            let query = head.target_path_query().split_once('?');
            let location = outer.directory_location(bytes, query.map(|(_, query)| query));
            let response = faults::redirect_to_directory(head.method(), location.as_bytes());
            RouteMatch::EdgeResponse(Ok(Box::new(response)))
        }
        Ok(route) => RouteMatch::Route(path, route),
        Err(fault) => RouteMatch::EdgeResponse(Err(fault)),
    }
}

/// Runs the handlers in order from `next` on, until one responds or has to be awaited.
pub(crate) fn run_handlers(
    handlers: HandlerChain,
    next: usize,
    mut request: Request,
) -> HandlerOutcome {
    for at in next..handlers.len() {
        match handlers[at].handle(request) {
            HandlerProgress::Pending(future) => {
                return HandlerOutcome::Running(RunningHandler {
                    future,
                    handlers,
                    next_handler: at + 1,
                });
            }
            HandlerProgress::Ready(reply) => match split_reply(reply) {
                Ok(outcome) => return outcome,
                Err(passed) => request = *passed,
            },
        }
    }
    HandlerOutcome::failed(Fault::new(
        FaultKind::NotFound,
        "no handler of the route has it",
    ))
}

/// The outcome of a reply.
///
/// # Errors
/// The request, if the handler passed it on.
fn split_reply(reply: Result<Reply, Fault>) -> Result<HandlerOutcome, Box<Request>> {
    Ok(match reply {
        Ok(Reply::Response(response)) => HandlerOutcome::Finished(Ok(response)),
        Ok(Reply::Redirect(redirect)) => HandlerOutcome::Redirect(redirect),
        Ok(Reply::Pass(request)) => return Err(request),
        Err(fault) => HandlerOutcome::failed(fault),
    })
}

/// The response to requests about the connection or the server as a whole.
fn respond_without_route(head: &RequestHead) -> Option<ResponseResult> {
    let refuse = |kind, cause: &'static str| Some(Err(Fault::new(kind, cause)));
    if head.has_websocket_events() {
        // An application could not tell it from the hub's own events of a WebSocket.
        let cause = "a client poses as a front end: application/websocket-events";
        return refuse(FaultKind::Forbidden, cause);
    }
    match head.method() {
        Method::Connect => refuse(FaultKind::NotImplemented, "CONNECT: not a proxy"),
        Method::Trace => refuse(FaultKind::MethodNotAllowed, "TRACE is refused"),
        Method::Options if head.target_path_query() == "*" => {
            Some(Ok(Box::new(faults::respond_options())))
        }
        _ => None,
    }
}
