//! Whom a request is for: handlers of a route, or edge itself.
//!
//! Called by `connection` once a head is complete, and for each internal redirect. Pure: the routing
//! table and the head go in. What must stay true: handlers are asked in the route's order, and a
//! request that nobody takes is not found.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_exchange::{
    Fault, FaultKind, ForwardedInfo, GripResponse, Handler, HandlerFuture, HandlerProgress,
    InternalRedirect, Mount, Reply, Request, RequestPath, Response,
};
use penstock_http::{Method, RequestHead, encode_path};

use crate::filters::Filters;
use crate::router::{Handlers, LookupOrigin, Route, RouteLookup};
use crate::{Settings, faults};

/// What an exchange came to.
pub(crate) type ResponseResult = Result<Box<Response>, Fault>;

/// Whom a request is for.
pub(crate) enum RouteMatch<R> {
    /// The handlers of a route, for this path.
    Route(RequestPath, R),
    /// Edge itself, which answers this.
    Edge(ResponseResult),
}

/// What an exchange keeps of its route.
pub(crate) struct OwnedRoute {
    pub(crate) handlers: Handlers,
    pub(crate) filters: Option<Arc<Filters>>,
    pub(crate) max_body: Option<u64>,
}

/// A handler at work; `next` is the one to ask should it pass.
pub(crate) struct RunningHandler {
    pub(crate) future: HandlerFuture,
    pub(crate) handlers: Handlers,
    pub(crate) next_handler: usize,
}

/// What the handlers of a route said so far.
pub(crate) enum HandlerOutcome {
    Finished(ResponseResult),
    /// An answer that speaks to the hub, and who is to obey it.
    Grip(Box<Response>, Arc<dyn Handler>),
    Running(RunningHandler),
    Redirect(Box<InternalRedirect>),
}

impl RouteMatch<&Route> {
    pub(crate) fn into_owned(self) -> RouteMatch<OwnedRoute> {
        match self {
            Self::Route(path, route) => {
                let kept = OwnedRoute {
                    handlers: Arc::clone(&route.handlers),
                    filters: route.filters.clone(),
                    max_body: route.max_body,
                };
                RouteMatch::Route(path, kept)
            }
            Self::Edge(answered) => RouteMatch::Edge(answered),
        }
    }
}

/// Finds whom a client's request is for.
pub(crate) fn match_route<'s>(
    settings: &'s Settings,
    head: &RequestHead,
    forwarded: Option<&ForwardedInfo>,
) -> RouteMatch<&'s Route> {
    let path = match RequestPath::from_head(head) {
        Ok(path) => path,
        Err(error) => {
            return RouteMatch::Edge(Err(Fault::new(FaultKind::BadRequest, error.to_string())));
        }
    };
    if let Some(answered) = respond_without_route(head) {
        return RouteMatch::Edge(answered);
    }
    // Not looked at where any will do: that it is text is checked each time.
    let host = match settings.routes.depends_on_host() {
        true => head.host(),
        false => "",
    };
    let bytes = path.bytes(head);
    match find_route(settings, host, bytes, LookupOrigin::Client) {
        Ok(route) if route.is_directory_redirect(bytes) => {
            let outer = forwarded.map_or(&Mount::ROOT, |told| &told.mount);
            let outer = match &route.filters {
                Some(filters) => filters.outer_mount(outer),
                None => Cow::Borrowed(outer),
            };
            let location = directory_location(head, bytes, &outer);
            let response = faults::redirect_to_directory(head.method(), location.as_bytes());
            RouteMatch::Edge(Ok(Box::new(response)))
        }
        Ok(route) => RouteMatch::Route(path, route),
        Err(fault) => RouteMatch::Edge(Err(fault)),
    }
}

/// Where a path is found with its final slash. An absolute path, so that it is on the same host, by the
/// same scheme and port.
fn directory_location(head: &RequestHead, path: &[u8], outer: &Mount) -> String {
    let mount = outer.encoded();
    let query = head.target_path_query().split_once('?');
    let (mark, query) = query.map_or(("", ""), |(_, query)| ("?", query));
    format!("{mount}{}/{mark}{query}", encode_path(path))
}

/// The route for a path.
///
/// # Errors
/// When no site answers for the host, or none of its routes for the path.
pub(crate) fn find_route<'s>(
    settings: &'s Settings,
    host: &str,
    path: &[u8],
    whose: LookupOrigin,
) -> Result<&'s Route, Fault> {
    match settings.routes.find_route(host, path, whose) {
        RouteLookup::Route(route) => Ok(route),
        RouteLookup::NoRoute => Err(Fault::new(FaultKind::NotFound, "no route matches")),
        RouteLookup::NoSite => {
            let cause = format!("no site for host `{host}`");
            Err(Fault::new(FaultKind::UnknownHost, cause))
        }
    }
}

/// Asks the handlers in order from `next` on, until one answers or works on it.
pub(crate) fn run_handlers(
    handlers: Handlers,
    next: usize,
    mut request: Request,
) -> HandlerOutcome {
    for at in next..handlers.len() {
        match handlers[at].handle_deferring_grip(request) {
            HandlerProgress::Pending(work) => {
                return HandlerOutcome::Running(RunningHandler {
                    future: work,
                    handlers,
                    next_handler: at + 1,
                });
            }
            HandlerProgress::Ready(Ok(Reply::Pass(passed))) => request = *passed,
            HandlerProgress::Ready(Ok(Reply::Response(response))) => {
                return HandlerOutcome::from_response(response, || Some(Arc::clone(&handlers[at])));
            }
            HandlerProgress::Ready(Ok(Reply::Redirect(redirect))) => {
                return HandlerOutcome::Redirect(redirect);
            }
            HandlerProgress::Ready(Err(fault)) => return HandlerOutcome::Finished(Err(fault)),
        }
    }
    let fault = Fault::new(FaultKind::NotFound, "no handler of the route has it");
    HandlerOutcome::Finished(Err(fault))
}

/// Who is at work, unless it obeys an answer of its own: then what that comes to is the last word.
pub(crate) fn running_handler(handlers: &Handlers, next: usize) -> Option<Arc<dyn Handler>> {
    handlers.get(next.checked_sub(1)?).cloned()
}

/// Has a handler obey its own answer.
pub(crate) fn apply_grip(handler: &dyn Handler, spoken: GripResponse) -> HandlerOutcome {
    match handler.apply_grip(spoken) {
        HandlerProgress::Pending(work) => HandlerOutcome::Running(RunningHandler {
            future: work,
            handlers: Handlers::default(),
            next_handler: 0,
        }),
        HandlerProgress::Ready(Ok(Reply::Response(response))) => {
            HandlerOutcome::Finished(Ok(response))
        }
        HandlerProgress::Ready(Ok(Reply::Redirect(redirect))) => HandlerOutcome::Redirect(redirect),
        HandlerProgress::Ready(Ok(Reply::Pass(request))) => {
            run_handlers(Handlers::default(), 0, *request)
        }
        HandlerProgress::Ready(Err(fault)) => HandlerOutcome::Finished(Err(fault)),
    }
}

impl HandlerOutcome {
    /// An answer; `speaker` gave it, and obeys it if it speaks to the hub.
    pub(crate) fn from_response(
        response: Box<Response>,
        speaker: impl FnOnce() -> Option<Arc<dyn Handler>>,
    ) -> Self {
        if response.has_grip
            && !response.passes_grip
            && let Some(speaker) = speaker()
        {
            return Self::Grip(response, speaker);
        }
        Self::Finished(Ok(response))
    }
}

/// What edge answers itself: methods that are about the connection or the server as a whole.
fn respond_without_route(head: &RequestHead) -> Option<ResponseResult> {
    let refuse = |kind, cause: &'static str| Some(Err(Fault::new(kind, cause)));
    if head.has_websocket_events() {
        // An application could not tell it from what the hub says of a WebSocket.
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
