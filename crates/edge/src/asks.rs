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
use crate::router::{Found, Handlers, Route, Whose};
use crate::{Settings, faults};

/// What an exchange came to.
pub(crate) type Answered = Result<Box<Response>, Fault>;

/// Whom a request is for.
pub(crate) enum Asks<R> {
    /// The handlers of a route, for this path.
    Route(RequestPath, R),
    /// Edge itself, which answers this.
    Edge(Answered),
}

/// What an exchange keeps of its route.
pub(crate) struct KeptRoute {
    pub(crate) handlers: Handlers,
    pub(crate) filters: Option<Arc<Filters>>,
    pub(crate) max_body: Option<u64>,
}

/// A handler at work; `next` is the one to ask should it pass.
pub(crate) struct Work {
    pub(crate) work: HandlerFuture,
    pub(crate) handlers: Handlers,
    pub(crate) next: usize,
}

/// What the handlers of a route said so far.
pub(crate) enum Said {
    Answered(Answered),
    /// An answer that speaks to the hub, and who is to obey it.
    Spoke(Box<Response>, Arc<dyn Handler>),
    Works(Work),
    Redirects(Box<InternalRedirect>),
}

impl Asks<&Route> {
    pub(crate) fn kept(self) -> Asks<KeptRoute> {
        match self {
            Self::Route(path, route) => {
                let kept = KeptRoute {
                    handlers: Arc::clone(&route.handlers),
                    filters: route.filters.clone(),
                    max_body: route.max_body,
                };
                Asks::Route(path, kept)
            }
            Self::Edge(answered) => Asks::Edge(answered),
        }
    }
}

/// Finds whom a client's request is for.
pub(crate) fn find<'s>(
    settings: &'s Settings,
    head: &RequestHead,
    forwarded: Option<&ForwardedInfo>,
) -> Asks<&'s Route> {
    let path = match RequestPath::from_head(head) {
        Ok(path) => path,
        Err(error) => {
            return Asks::Edge(Err(Fault::new(FaultKind::BadRequest, error.to_string())));
        }
    };
    if let Some(answered) = answer_itself(head) {
        return Asks::Edge(answered);
    }
    // Not looked at where any will do: that it is text is checked each time.
    let host = match settings.routing.has_hosts() {
        true => head.host(),
        false => "",
    };
    let bytes = path.bytes(head);
    match route(settings, host, bytes, Whose::Client) {
        Ok(route) if route.leads_to_folder(bytes) => {
            let outer = forwarded.map_or(&Mount::ROOT, |told| &told.mount);
            let outer = match &route.filters {
                Some(filters) => filters.outer_mount(outer),
                None => Cow::Borrowed(outer),
            };
            let location = folder_location(head, bytes, &outer);
            let response = faults::respond_moved(head.method(), location.as_bytes());
            Asks::Edge(Ok(Box::new(response)))
        }
        Ok(route) => Asks::Route(path, route),
        Err(fault) => Asks::Edge(Err(fault)),
    }
}

/// Where a path is found with its final slash. An absolute path, so that it is on the same host, by the
/// same scheme and port.
fn folder_location(head: &RequestHead, path: &[u8], outer: &Mount) -> String {
    let mount = outer.encoded();
    let query = head.target_path_query().split_once('?');
    let (mark, query) = query.map_or(("", ""), |(_, query)| ("?", query));
    format!("{mount}{}/{mark}{query}", encode_path(path))
}

/// The route for a path.
///
/// # Errors
/// When no site answers for the host, or none of its routes for the path.
pub(crate) fn route<'s>(
    settings: &'s Settings,
    host: &str,
    path: &[u8],
    whose: Whose,
) -> Result<&'s Route, Fault> {
    match settings.routing.find(host, path, whose) {
        Found::Route(route) => Ok(route),
        Found::NoRoute => Err(Fault::new(FaultKind::NotFound, "no route matches")),
        Found::NoSite => {
            let cause = format!("no site for host `{host}`");
            Err(Fault::new(FaultKind::UnknownHost, cause))
        }
    }
}

/// Asks the handlers in order from `next` on, until one answers or works on it.
pub(crate) fn ask(handlers: Handlers, next: usize, mut request: Request) -> Said {
    for at in next..handlers.len() {
        match handlers[at].handle_deferring_grip(request) {
            HandlerProgress::Pending(work) => {
                return Said::Works(Work {
                    work,
                    handlers,
                    next: at + 1,
                });
            }
            HandlerProgress::Ready(Ok(Reply::Pass(passed))) => request = *passed,
            HandlerProgress::Ready(Ok(Reply::Response(response))) => {
                return Said::response(response, || Some(Arc::clone(&handlers[at])));
            }
            HandlerProgress::Ready(Ok(Reply::Redirect(redirect))) => {
                return Said::Redirects(redirect);
            }
            HandlerProgress::Ready(Err(fault)) => return Said::Answered(Err(fault)),
        }
    }
    let fault = Fault::new(FaultKind::NotFound, "no handler of the route has it");
    Said::Answered(Err(fault))
}

/// Who is at work, unless it obeys an answer of its own: then what that comes to is the last word.
pub(crate) fn speaker(handlers: &Handlers, next: usize) -> Option<Arc<dyn Handler>> {
    handlers.get(next.checked_sub(1)?).cloned()
}

/// Has a handler obey its own answer.
pub(crate) fn obey(handler: &dyn Handler, spoken: GripResponse) -> Said {
    match handler.apply_grip(spoken) {
        HandlerProgress::Pending(work) => Said::Works(Work {
            work,
            handlers: Handlers::default(),
            next: 0,
        }),
        HandlerProgress::Ready(Ok(Reply::Response(response))) => Said::Answered(Ok(response)),
        HandlerProgress::Ready(Ok(Reply::Redirect(redirect))) => Said::Redirects(redirect),
        HandlerProgress::Ready(Ok(Reply::Pass(request))) => ask(Handlers::default(), 0, *request),
        HandlerProgress::Ready(Err(fault)) => Said::Answered(Err(fault)),
    }
}

impl Said {
    /// An answer; `speaker` gave it, and obeys it if it speaks to the hub.
    pub(crate) fn response(
        response: Box<Response>,
        speaker: impl FnOnce() -> Option<Arc<dyn Handler>>,
    ) -> Self {
        if response.has_grip
            && !response.passes_grip
            && let Some(speaker) = speaker()
        {
            return Self::Spoke(response, speaker);
        }
        Self::Answered(Ok(response))
    }
}

/// What edge answers itself: methods that are about the connection or the server as a whole.
fn answer_itself(head: &RequestHead) -> Option<Answered> {
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
