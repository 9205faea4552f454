//! One request from its head to its record, whichever protocol carried it.
//!
//! A connection ([`crate::http1`]) passes a head to [`ConnectionContext::receive_request`], lends
//! the request a body, polls the handler that [`Exchange::dispatch`] starts, sends the response
//! that [`Exchange::finalize_response`] gives and reports the end by
//! [`RequestMeta::record_exchange`].
//!
//! # Invariants
//! - Nothing here knows how heads, bodies and responses are framed, or holds a socket.
//! - Handlers get the head as the filters changed it. The log, and the framing of the response, go
//!   by the client's own head.
//! - Handlers run in the route's order. If all of them pass, the response is 404.
//! - A response that cannot be sent as it is becomes an error that can.
//! - Fields that instruct the front end are removed before a client sees them.
//! - Each exchange is recorded once.

mod correlation;
mod http_challenge;
mod internal_redirect;
mod record;
mod request;

use std::sync::Arc;
use std::time::Instant;

use penstock_config::RequestIdMode;
use penstock_exchange::correlation::REQUEST_ID_FIELD;
use penstock_exchange::field_policy::remove_internal_fields;
use penstock_exchange::request::RequestEnvironment;
use penstock_exchange::{
    Body, ClientState, Correlation, Fault, FaultKind, ForwardedInfo, FrontEndInstructions, Handler,
    HandlerFuture, HandlerProgress, InternalRedirect, ListenerInfo, Reply, Request, RequestBody,
    RequestPath, RequestView, Response, TrustedProxies,
};
use penstock_http::{BodyFraming, RequestHead, Status, strip_port};
use penstock_rules::RequestFacts;
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;
use penstock_tls::ConnectionIdentity;

use self::internal_redirect::RedirectChain;
use self::request::HandlerRequest;
use crate::accept::ConnectionSource;
use crate::faults::FailedRequest;
use crate::filters::Filters;
use crate::response_policy::ResponsePolicy;
use crate::router::{
    HandlerChain, OwnedRoute, Route, RouteBodyLimits, RouteMatch, RouteObservation,
};
use crate::transfer_rate::TransferLimits;
use crate::{Edge, Settings, faults};

pub use correlation::TracePolicy;
pub use http_challenge::shared_challenge_route;
pub(crate) use record::SendError;

/// The connection that a request came by, as far as routing, handlers and records need it.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionContext<'c> {
    pub(crate) edge: &'c Edge,
    pub(crate) source: &'c ConnectionSource,
    pub(crate) listener: &'c Arc<ListenerInfo>,
    pub(crate) client_state: &'c Arc<ClientState>,
    /// What its TLS handshake has proved; `None` without TLS.
    pub(crate) identity: Option<&'c ConnectionIdentity>,
}

/// A request with its route, before anything of it is allocated.
pub(crate) struct ReceivedRequest<'s> {
    settings: &'s Arc<Settings>,
    head: RequestHead,
    forwarded: Option<Arc<ForwardedInfo>>,
    arrived: Instant,
    route: RouteMatch<&'s Route>,
}

/// One request while its connection works on it.
pub(crate) struct Exchange {
    pub(crate) settings: Arc<Settings>,
    pub(crate) head: Arc<RequestHead>,
    /// What trusted proxies say about the client.
    forwarded: Option<Arc<ForwardedInfo>>,
    /// The same as the handlers got it last: the route's rules may change it.
    handler_forwarded: Option<Arc<ForwardedInfo>>,
    /// What ties it to its records elsewhere.
    correlation: Correlation,
    arrived: Instant,
    /// Those of the client's route.
    filters: Option<Arc<Filters>>,
    /// What is done with its response; `None` for a request of no site.
    policy: Option<Arc<ResponsePolicy>>,
    /// The client's route, where logs or metrics need it.
    observation: Option<Arc<RouteObservation>>,
    /// The bounds of the client's route on its bodies.
    pub(crate) body_limits: RouteBodyLimits,
    redirects: Option<Box<RedirectChain>>,
}

/// What an exchange is judged and recorded by.
#[derive(Clone, Copy)]
pub(crate) struct RequestMeta<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) head: &'a RequestHead,
    pub(crate) forwarded: Option<&'a ForwardedInfo>,
    /// `None` where nothing has needed it yet.
    pub(crate) correlation: Option<&'a Correlation>,
    pub(crate) route: Option<&'a RouteObservation>,
    pub(crate) arrived: Instant,
}

/// How far the handlers got, those of internal redirects included.
pub(crate) enum HandlerState {
    Finished(ResponseResult),
    Running(RunningHandler),
}

/// The response of an exchange, or the reason why there is none.
pub(crate) type ResponseResult = Result<Box<Response>, Fault>;

/// A handler at work; `next_handler` runs if it passes.
pub(crate) struct RunningHandler {
    pub(crate) future: HandlerFuture,
    handlers: HandlerChain,
    next_handler: usize,
}

/// How far the handlers of one route got: its redirects are still to be followed.
enum HandlerOutcome {
    Finished(ResponseResult),
    Running(RunningHandler),
    Redirect(Box<InternalRedirect>),
}

/// A response as the client gets it, but for its framing.
pub(crate) struct FinalResponse {
    pub(crate) response: Box<Response>,
    /// The request was not understood: nothing behind it can be read.
    pub(crate) is_request_invalid: bool,
}

impl<'c> ConnectionContext<'c> {
    /// Counts a request, reads what a trusted proxy says about its client, and finds its route.
    pub(crate) fn receive_request<'s>(
        self,
        settings: &'s Arc<Settings>,
        head: RequestHead,
    ) -> ReceivedRequest<'s> {
        let arrived = clock::now();
        self.edge.metrics().active_requests.add(1);
        self.client_state.set_user(None);
        let forwarded = self.read_forwarded(settings, &head, arrived);
        let route = match self.is_misdirected(settings, &head) {
            false => self.find_route(settings, &head, forwarded.as_deref()),
            true => RouteMatch::EdgeResponse(Err(Fault::new(
                FaultKind::UnknownHost,
                "the TLS session is for another host",
            ))),
        };
        let known = match &route {
            RouteMatch::Route(_, route) => Some(*route),
            RouteMatch::EdgeResponse(_) => None,
        };
        let client = self.client_address(forwarded.as_deref());
        self.edge.top_lists.count(known, client, arrived);
        ReceivedRequest {
            settings,
            head,
            forwarded,
            arrived,
            route,
        }
    }

    /// The route of a request, or the response of the edge itself.
    fn find_route<'s>(
        self,
        settings: &'s Settings,
        head: &RequestHead,
        forwarded: Option<&ForwardedInfo>,
    ) -> RouteMatch<&'s Route> {
        let is_https = self.scheme(forwarded) == "https";
        if !is_https
            && let Some(challenges) = &settings.http_challenges
            && let Some(response) = http_challenge::respond(&**challenges, head)
        {
            return RouteMatch::EdgeResponse(Ok(Box::new(response)));
        }
        if let Some(route) = &settings.shared_challenges
            && !is_https
            && http_challenge::token(head).is_some()
            && let Ok(path) = RequestPath::from_head(head)
        {
            return RouteMatch::Route(path, route);
        }
        let facts = self.request_facts(head, forwarded);
        settings.routes.match_request(&facts, forwarded)
    }

    /// What conditions are about.
    fn request_facts<'f>(
        &'f self,
        head: &'f RequestHead,
        forwarded: Option<&ForwardedInfo>,
    ) -> RequestFacts<'f> {
        RequestFacts {
            head,
            client: self.client_address(forwarded),
            scheme: self.scheme(forwarded),
            listener: self.listener,
            tls: self.client_state.tls().map(|tls| &**tls),
        }
    }

    /// Whether its connection may not ask for the host of a request, as its TLS session is for
    /// another (RFC 9110 §15.5.20).
    fn is_misdirected(self, settings: &Settings, head: &RequestHead) -> bool {
        match (self.identity, &settings.tls) {
            (Some(identity), Some(tls)) => !tls.permits(identity, strip_port(head.host())),
            _ => false,
        }
    }

    /// The client's address: the one that a trusted proxy names, else the connection's.
    fn client_address(self, forwarded: Option<&ForwardedInfo>) -> PeerAddress {
        let named = forwarded.and_then(|it| it.client);
        named.unwrap_or_else(|| self.source.client_address())
    }

    fn scheme(self, forwarded: Option<&ForwardedInfo>) -> &'static str {
        let named = forwarded.and_then(|it| it.scheme);
        named.unwrap_or(self.listener.scheme)
    }
}

impl<'s> ReceivedRequest<'s> {
    pub(crate) fn request_meta(&self) -> RequestMeta<'_> {
        RequestMeta {
            settings: self.settings,
            head: &self.head,
            forwarded: self.forwarded.as_deref(),
            correlation: None,
            route: match &self.route {
                RouteMatch::Route(_, route) => route.observation.as_deref(),
                RouteMatch::EdgeResponse(_) => None,
            },
            arrived: self.arrived,
        }
    }

    /// The handler that may have the response in memory, and its view of the request. `None` for a
    /// request that has a body, or that its route changes first.
    pub(crate) fn inline_handler(
        &self,
        connection: ConnectionContext<'_>,
    ) -> Option<(&'s dyn Handler, RequestView<'_>)> {
        let RouteMatch::Route(path, route) = &self.route else {
            return None;
        };
        let scheme = connection.scheme(self.forwarded.as_deref());
        let policy = route.policy.as_ref();
        if policy.is_some_and(|policy| !policy.is_silent(scheme))
            || self.settings.request_id == RequestIdMode::Respond
            || route.filters.is_some()
            || path.is_ambiguous()
            || has_request_body(&self.head)
        {
            return None;
        }
        let view = RequestView {
            head: &self.head,
            path: path.bytes(&self.head),
            scheme,
            arrived_at: self.arrived,
        };
        Some((&**route.handlers.first()?, view))
    }

    /// Makes the exchange, which no longer borrows the settings.
    pub(crate) fn into_exchange(
        self,
        connection: ConnectionContext<'_>,
    ) -> (Exchange, RouteMatch<OwnedRoute>) {
        let correlation = connection.correlate(self.settings, &self.head);
        connection.client_state.set_correlation(correlation.clone());
        let (policy, body_limits) = match &self.route {
            RouteMatch::Route(_, route) => (route.policy.as_ref(), route.body_limits),
            RouteMatch::EdgeResponse(_) => (None, RouteBodyLimits::default()),
        };
        let policy = policy.or_else(|| self.settings.routes.response_policy(self.head.host()));
        let exchange = Exchange {
            correlation,
            settings: Arc::clone(self.settings),
            head: Arc::new(self.head),
            handler_forwarded: self.forwarded.clone(),
            forwarded: self.forwarded,
            arrived: self.arrived,
            filters: None,
            policy: policy.cloned(),
            observation: None,
            body_limits,
            redirects: None,
        };
        (exchange, self.route.into_owned())
    }
}

impl Exchange {
    /// How slow the client may be with its bodies.
    pub(crate) fn transfer_limits(&self) -> TransferLimits {
        TransferLimits::new(&self.settings.limits, self.body_limits)
    }

    pub(crate) fn request_meta(&self) -> RequestMeta<'_> {
        RequestMeta {
            settings: &self.settings,
            head: &self.head,
            forwarded: self.forwarded.as_deref(),
            correlation: Some(&self.correlation),
            route: self.observation.as_deref(),
            arrived: self.arrived,
        }
    }

    /// Starts the handlers of the client's route, until one responds or has to be awaited.
    pub(crate) fn dispatch(
        &mut self,
        connection: ConnectionContext<'_>,
        route: RouteMatch<OwnedRoute>,
        body: RequestBody,
    ) -> HandlerState {
        let outcome = match route {
            RouteMatch::EdgeResponse(response) => HandlerOutcome::Finished(response),
            RouteMatch::Route(path, route) => {
                self.filters = route.filters;
                self.observation = route.observation;
                self.run_route(connection, path, route.handlers, body)
                    .unwrap_or_else(HandlerOutcome::failed)
            }
        };
        self.follow_redirects(connection, outcome)
    }

    /// Continues behind the reply of a handler that was awaited.
    pub(crate) fn resume_after_reply(
        &mut self,
        connection: ConnectionContext<'_>,
        handler: &mut RunningHandler,
        reply: Result<Reply, Fault>,
    ) -> HandlerState {
        let outcome = handler.continue_with_reply(reply);
        self.follow_redirects(connection, outcome)
    }

    /// Runs the handlers of the client's route.
    ///
    /// # Errors
    /// When its target or the route's filters make no valid request.
    fn run_route(
        &mut self,
        connection: ConnectionContext<'_>,
        path: RequestPath,
        handlers: HandlerChain,
        body: RequestBody,
    ) -> Result<HandlerOutcome, Fault> {
        let (head, forwarded) = (Arc::clone(&self.head), self.forwarded.clone());
        let mut request = HandlerRequest::unambiguous(head, path, forwarded)?;
        if let Some(filters) = &self.filters {
            request = self.apply_filters(connection, filters, request)?;
        }
        let request = self.build_request(connection, request, body);
        Ok(run_handlers(handlers, 0, request))
    }

    /// Follows internal redirects until a handler responds or has to be awaited.
    fn follow_redirects(
        &mut self,
        connection: ConnectionContext<'_>,
        mut outcome: HandlerOutcome,
    ) -> HandlerState {
        loop {
            outcome = match outcome {
                HandlerOutcome::Finished(response) => return HandlerState::Finished(response),
                HandlerOutcome::Running(handler) => return HandlerState::Running(handler),
                HandlerOutcome::Redirect(redirect) => self
                    .run_redirect_target(connection, *redirect)
                    .unwrap_or_else(HandlerOutcome::failed),
            };
        }
    }

    /// The request as handlers get it, with what the connection knows of its client.
    fn build_request(
        &mut self,
        connection: ConnectionContext<'_>,
        request: HandlerRequest,
        body: RequestBody,
    ) -> Request {
        self.handler_forwarded.clone_from(&request.forwarded);
        let trust = &self.settings.trusted_proxies;
        let environment = RequestEnvironment {
            peer: connection.source.client_address(),
            listener: Arc::clone(connection.listener),
            client_state: Arc::clone(connection.client_state),
            arrived_at: self.arrived,
            trusted_proxies: match connection.source.has_client_address() {
                true => Arc::clone(trust),
                false => Arc::new(TrustedProxies::none()),
            },
            mount: match &request.forwarded {
                Some(forwarded) => request.mount.nested_in(&forwarded.mount),
                None => request.mount,
            },
            forwarded: request.forwarded,
        };
        let mut built = Request::new(request.head, request.path, body, environment);
        built.trusted_headers = request.trusted_headers;
        built.client_head = request.client_head;
        built
    }

    /// The response for the client: that of the handlers with the filters of the route applied, or
    /// the error page of a fault. `switch_refusal` gives the reason why the connection cannot
    /// switch protocols behind a head with this status.
    ///
    /// # Errors
    /// The fault of a client that left.
    pub(crate) fn finalize_response(
        &mut self,
        connection: ConnectionContext<'_>,
        result: ResponseResult,
        switch_refusal: impl FnOnce(&RequestHead, Status) -> Option<&'static str>,
    ) -> Result<FinalResponse, Fault> {
        let result = match self.redirects.take() {
            Some(chain) => self.finish_redirects(connection, *chain, result),
            None => result,
        };
        let head = &*self.head;
        let refusal = |status| switch_refusal(head, status);
        let result = result.and_then(|response| check_sendable(response, refusal));
        let mut is_request_invalid = false;
        let mut response = match result {
            Ok(mut response) => {
                if let Some(policy) = &self.policy
                    && !self.settings.is_development
                {
                    policy.intercept_error(&mut response);
                }
                response
            }
            Err(fault) if fault.kind == FaultKind::ClientDisconnected => return Err(fault),
            Err(fault) => {
                is_request_invalid = fault.kind == FaultKind::BadRequest;
                if fault.kind == FaultKind::ClientTooSlow {
                    connection.edge.metrics().slow_clients.increment();
                }
                let client = connection.client_address(self.forwarded.as_deref());
                let request = FailedRequest {
                    head: &self.head,
                    settings: &self.settings,
                    pages: self.policy.as_ref().map(|policy| &*policy.error_pages),
                    id: self.correlation.request_id.as_ref(),
                };
                let throttle = &connection.edge.log_throttle;
                faults::log_refused_request(client, &fault, request, throttle);
                let counted = connection.client_state.counted_address_prefix();
                let refused = faults::refuse_event_source(&fault, request, counted, throttle);
                let response = refused
                    .unwrap_or_else(|| faults::respond_to_fault(fault, Some(request), throttle));
                Box::new(response)
            }
        };
        if let Some(filters) = &self.filters {
            let values = self.response_placeholders(connection);
            let of = (response.status, self.head.target_path_query());
            filters.apply_to_response(&mut response.fields, &values, of);
        }
        if let Some(policy) = &self.policy {
            let scheme = connection.scheme(self.forwarded.as_deref());
            policy.add_default_fields(&mut response.fields, scheme);
        }
        if self.settings.request_id == RequestIdMode::Respond
            && let Some(id) = &self.correlation.request_id
        {
            // An id is a valid value.
            let _ = response
                .fields
                .set(REQUEST_ID_FIELD, id.as_str(&mut [0; 36]).as_bytes());
        }
        remove_instructions(&mut response);
        Ok(FinalResponse {
            response,
            is_request_invalid,
        })
    }
}

impl HandlerOutcome {
    fn failed(fault: Fault) -> Self {
        Self::Finished(Err(fault))
    }
}

impl RunningHandler {
    /// The outcome of a reply of this handler, which is over.
    fn continue_with_reply(&mut self, reply: Result<Reply, Fault>) -> HandlerOutcome {
        // The handler's future holds its resources until its reply and no longer.
        self.future = Box::pin(std::future::pending());
        split_reply(reply).unwrap_or_else(|request| {
            let handlers = std::mem::take(&mut self.handlers);
            run_handlers(handlers, self.next_handler, *request)
        })
    }
}

/// Runs the handlers in order from `next` on, until one responds or has to be awaited.
fn run_handlers(handlers: HandlerChain, next: usize, mut request: Request) -> HandlerOutcome {
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

/// Removes the fields that are for the front end's own cache and hub.
fn remove_instructions(response: &mut Response) {
    // No handler acts on such fields of a switch, wherever its head was copied from.
    let is_switch = matches!(response.body, Body::Takeover(_));
    if is_switch || response.instructions == FrontEndInstructions::ForThisServer {
        remove_internal_fields(&mut response.fields);
    }
}

/// Passes a response that can be sent: a final one, or a switch of protocols unless its connection
/// has a reason against it.
fn check_sendable(
    response: Box<Response>,
    switch_refusal: impl FnOnce(Status) -> Option<&'static str>,
) -> ResponseResult {
    let status = response.status;
    let cause = match response.body {
        Body::Takeover(_) => switch_refusal(status),
        _ => (status.is_informational()).then_some("an interim status on a final response"),
    };
    match cause {
        None => Ok(response),
        Some(cause) => {
            Err(Fault::new(FaultKind::BackendProtocolError, cause).with_timing(response.timing))
        }
    }
}

/// Whether a request announces a body with something in it.
pub(crate) fn has_request_body(head: &RequestHead) -> bool {
    !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0))
}
