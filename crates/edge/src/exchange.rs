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
//! - Each exchange is recorded once.

pub(crate) mod dispatch;
mod internal_redirect;
mod request;
mod response;

use std::sync::Arc;
use std::time::Instant;

use penstock_exchange::{
    ClientState, Fault, ForwardedInfo, Handler, ListenerInfo, Reply, RequestBody, RequestView,
};
use penstock_http::{BodyFraming, RequestHead};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

use self::dispatch::{HandlerOutcome, OwnedRoute, ResponseResult, RouteMatch, RunningHandler};
use self::internal_redirect::RedirectChain;
use crate::accept::ConnectionSource;
use crate::filters::Filters;
use crate::router::Route;
use crate::{Edge, Settings};

pub(crate) use response::{FinalResponse, SendError};

/// The connection that a request came by, as far as routing, handlers and records need it.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionContext<'c> {
    pub(crate) edge: &'c Edge,
    pub(crate) source: &'c ConnectionSource,
    pub(crate) listener: &'c Arc<ListenerInfo>,
    pub(crate) client_state: &'c Arc<ClientState>,
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
    arrived: Instant,
    /// Those of the client's route.
    filters: Option<Arc<Filters>>,
    redirects: Option<Box<RedirectChain>>,
}

/// What an exchange is judged and recorded by.
#[derive(Clone, Copy)]
pub(crate) struct RequestMeta<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) head: &'a RequestHead,
    pub(crate) forwarded: Option<&'a ForwardedInfo>,
    pub(crate) arrived: Instant,
}

/// How far the handlers got.
pub(crate) enum HandlerState {
    Finished(ResponseResult),
    Running(RunningHandler),
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
        let forwarded = self.read_forwarded(settings, &head);
        let route = dispatch::match_route(settings, &head, forwarded.as_deref());
        ReceivedRequest {
            settings,
            head,
            forwarded,
            arrived,
            route,
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
        if route.filters.is_some() || path.is_ambiguous() || has_request_body(&self.head) {
            return None;
        }
        let view = RequestView {
            head: &self.head,
            path: path.bytes(&self.head),
            scheme: connection.scheme(self.forwarded.as_deref()),
            arrived_at: self.arrived,
        };
        Some((&**route.handlers.first()?, view))
    }

    /// Makes the exchange, which no longer borrows the settings.
    pub(crate) fn into_exchange(self) -> (Exchange, RouteMatch<OwnedRoute>) {
        let exchange = Exchange {
            settings: Arc::clone(self.settings),
            head: Arc::new(self.head),
            handler_forwarded: self.forwarded.clone(),
            forwarded: self.forwarded,
            arrived: self.arrived,
            filters: None,
            redirects: None,
        };
        (exchange, self.route.into_owned())
    }
}

impl Exchange {
    pub(crate) fn request_meta(&self) -> RequestMeta<'_> {
        RequestMeta {
            settings: &self.settings,
            head: &self.head,
            forwarded: self.forwarded.as_deref(),
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
}

/// Whether a request announces a body with something in it.
pub(crate) fn has_request_body(head: &RequestHead) -> bool {
    !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0))
}
