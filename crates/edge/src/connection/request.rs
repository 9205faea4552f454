//! From a request to the handlers that get it: what proxies say of it is read, filters are applied,
//! internal redirects followed.
//!
//! A part of `connection`, which calls it once a head has found its route and each time a handler
//! said something. What must stay true: the handlers get the changed head, the log and the framing of
//! the answer go by the client's own.

use std::sync::Arc;

use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::request::RequestOrigin;
use penstock_exchange::{
    Fault, FaultKind, ForwardedInfo, GripResponse, InternalRedirect, InvalidForwardedField, Mount,
    Request, RequestBody, RequestPath, Response, TrustedProxies,
};
use penstock_http::RequestHead;
use penstock_runtime::clock;
use penstock_runtime::log_throttle::suppressed_suffix;

use super::{Connection, Exchange};
use crate::Settings;
use crate::access_log;
use crate::dispatch::{self, HandlerOutcome, ResponseResult, RunningHandler, run_handlers};
use crate::filters::{FilteredRequest, Filters, Placeholders};
use crate::internal_redirect;
use crate::response_plan::has_request_body;
use crate::router::{Handlers, LookupOrigin};

impl Connection {
    /// What a trusted peer says of a request; costs a look at the names of its fields where it says
    /// nothing, and nothing with other peers.
    pub(super) fn read_forwarded(
        &self,
        settings: &Settings,
        head: &RequestHead,
    ) -> Option<Arc<ForwardedInfo>> {
        let trust = &settings.trusted_proxies;
        if !self.source.is_trusted_proxy(trust)
            || !ForwardedInfo::has_forwarding_fields(head, trust)
        {
            return None;
        }
        let (info, broken) = ForwardedInfo::read(head, trust);
        self.log_broken_fields(&broken);
        Some(Arc::new(info))
    }

    /// The same of a head that a route's rules have made, which vouch for some of its fields.
    fn read_forwarded_with_rules(
        &self,
        exchange: &Exchange,
        head: &RequestHead,
        vouched: &TrustedHeaders,
    ) -> Option<Arc<ForwardedInfo>> {
        let (trust, sent) = (&exchange.settings.trusted_proxies, &exchange.head);
        let is_trusted = self.source.is_trusted_proxy(trust);
        let (info, broken) =
            ForwardedInfo::read_with_trusted_headers(head, sent, trust, is_trusted, vouched);
        self.log_broken_fields(&broken);
        (info != ForwardedInfo::default()).then(|| Arc::new(info))
    }

    fn log_broken_fields(&self, broken: &[InvalidForwardedField]) {
        for field in broken {
            if let Some(count) = self.edge.log_throttle.admit_line(&field.name, clock::now()) {
                log::warn!(
                    "edge: {} of proxy {} ignored: {} (value={:?}){}",
                    field.name,
                    access_log::peer_text(self.source.client_address()),
                    field.cause,
                    field.value,
                    suppressed_suffix(count),
                );
            }
        }
    }

    /// Asks the handlers of the client's route.
    pub(super) fn run_route(
        &self,
        exchange: &mut Exchange,
        path: RequestPath,
        handlers: Handlers,
        body: RequestBody,
    ) -> HandlerOutcome {
        let forwarded = exchange.forwarded.clone();
        let mut asked =
            match HandlerRequest::unambiguous(Arc::clone(&exchange.head), path, forwarded) {
                Ok(asked) => asked,
                Err(fault) => return HandlerOutcome::Finished(Err(fault)),
            };
        if let Some(filters) = &exchange.filters {
            asked = match self.apply_filters(exchange, filters, asked) {
                Ok(filtered) => filtered,
                Err(fault) => return HandlerOutcome::Finished(Err(fault)),
            };
        }
        if !Arc::ptr_eq(&asked.head, &exchange.head) {
            exchange.effective_request = Some(Box::new(asked.to_effective()));
        }
        run_handlers(handlers, 0, self.build_request(exchange, asked, body))
    }

    /// Follows internal redirects until a handler answers or works.
    pub(super) fn follow_redirects(
        &self,
        exchange: &mut Exchange,
        mut said: HandlerOutcome,
    ) -> RedirectOutcome {
        loop {
            said = match said {
                HandlerOutcome::Finished(answered) => return RedirectOutcome::Finished(answered),
                HandlerOutcome::Running(work) => return RedirectOutcome::Running(work),
                HandlerOutcome::Grip(response, speaker) => {
                    dispatch::apply_grip(&*speaker, self.grip_response(exchange, response))
                }
                HandlerOutcome::Redirect(redirect) => self
                    .run_redirect_target(exchange, *redirect)
                    .unwrap_or_else(|fault| HandlerOutcome::Finished(Err(fault))),
            };
        }
    }

    /// Asks the route of a redirect's target, in the client's stead.
    ///
    /// # Errors
    /// When there is no such target, or there were too many.
    fn run_redirect_target(
        &self,
        exchange: &mut Exchange,
        redirect: InternalRedirect,
    ) -> Result<HandlerOutcome, Fault> {
        let redirected = exchange.redirects.get_or_insert_default();
        let (target, handler) = redirected.follow(redirect)?;
        let head = Arc::new(internal_redirect::redirect_head(&exchange.head, &target)?);
        let path = internal_redirect::redirect_path(&head)?;
        let mut asked = HandlerRequest::unambiguous(head, path, exchange.forwarded.clone())?;
        if let Some(handler) = handler {
            exchange.effective_request = Some(Box::new(asked.to_effective()));
            let request = self.build_request(exchange, asked, RequestBody::Empty);
            return Ok(run_handlers([handler].into(), 0, request));
        }
        let settings = Arc::clone(&exchange.settings);
        let host = exchange.head.host();
        let path = asked.path.bytes(&asked.head);
        let route = dispatch::find_route(&settings, host, path, LookupOrigin::InternalRedirect);
        let route = route.map_err(|fault| internal_redirect::missing_target(fault, &target))?;
        if let Some(filters) = &route.filters {
            asked = self.apply_filters(exchange, filters, asked)?;
            if let Some(redirected) = &mut exchange.redirects {
                redirected.filters = Some((Arc::clone(filters), target));
            }
        }
        exchange.effective_request = Some(Box::new(asked.to_effective()));
        let request = self.build_request(exchange, asked, RequestBody::Empty);
        Ok(run_handlers(Arc::clone(&route.handlers), 0, request))
    }

    fn build_request(
        &self,
        exchange: &Exchange,
        asked: HandlerRequest,
        body: RequestBody,
    ) -> Request {
        let arrival = self.request_origin(exchange, &asked.mount, asked.forwarded);
        let mut request = Request::new(asked.head, asked.path, body, arrival);
        request.trusted_headers = asked.trusted_headers;
        request
    }

    /// Where a request came in; `mount` is what its route has stripped, `forwarded` what counts of
    /// the words about it.
    fn request_origin(
        &self,
        exchange: &Exchange,
        mount: &Mount,
        forwarded: Option<Arc<ForwardedInfo>>,
    ) -> RequestOrigin {
        let trust = &exchange.settings.trusted_proxies;
        RequestOrigin {
            peer: self.source.client_address(),
            listener: Arc::clone(&self.listener),
            client_state: Arc::clone(&self.client_state),
            arrived: exchange.arrived,
            trusted_proxies: match self.source.has_client_address() {
                true => Arc::clone(trust),
                false => Arc::new(TrustedProxies::none()),
            },
            mount: match &forwarded {
                Some(forwarded) => mount.nested_in(&forwarded.mount),
                None => mount.clone(),
            },
            forwarded,
        }
    }

    /// An answer that speaks to the hub, with what was asked last.
    fn grip_response(&self, exchange: &Exchange, response: Box<Response>) -> GripResponse {
        let root = Mount::default();
        let (head, vouched, mount, forwarded) = match &exchange.effective_request {
            Some(changed) => {
                let EffectiveRequest {
                    head,
                    trusted_headers: vouched,
                    mount,
                    forwarded,
                } = &**changed;
                (Arc::clone(head), vouched.clone(), mount, forwarded)
            }
            None => {
                let (head, forwarded) = (&exchange.head, &exchange.forwarded);
                (
                    Arc::clone(head),
                    TrustedHeaders::default(),
                    &root,
                    forwarded,
                )
            }
        };
        GripResponse {
            had_body: exchange.redirects.is_none() && has_request_body(&exchange.head),
            head,
            trusted_headers: vouched,
            origin: self.request_origin(exchange, mount, forwarded.clone()),
            response,
        }
    }

    /// What is asked once a route's filters have changed it.
    ///
    /// # Errors
    /// When they make no valid request of it.
    fn apply_filters(
        &self,
        exchange: &Exchange,
        filters: &Filters,
        asked: HandlerRequest,
    ) -> Result<HandlerRequest, Fault> {
        let settings = &exchange.settings;
        let trust =
            Some(&*settings.trusted_proxies).filter(|trust| self.source.is_trusted_proxy(trust));
        let filtered =
            filters.apply_to_request(&asked.head, &self.request_placeholders(exchange), trust)?;
        let Some(FilteredRequest {
            head,
            trusted_headers: vouched,
            mount,
        }) = filtered
        else {
            return Ok(asked);
        };
        let path = RequestPath::from_head(&head);
        let path = path.map_err(|error| Fault::new(FaultKind::BadRequest, error.to_string()))?;
        let forwarded = match filters.changes_forwarded(&settings.trusted_proxies) {
            true => self.read_forwarded_with_rules(exchange, &head, &vouched),
            false => asked.forwarded,
        };
        let head = Arc::new(head);
        Ok(HandlerRequest {
            head,
            path,
            trusted_headers: vouched,
            mount,
            forwarded,
        })
    }

    /// The same for a response: with prefix and host as its handlers have them.
    pub(super) fn response_placeholders<'e>(&self, exchange: &'e Exchange) -> Placeholders<'e> {
        let mut values = self.request_placeholders(exchange);
        if let Some(changed) = &exchange.effective_request {
            let forwarded = changed.forwarded.as_deref();
            values.outer_mount = forwarded.map(|forwarded| &forwarded.mount);
            values.forwarded_host = forwarded.and_then(|forwarded| forwarded.host.as_deref());
        }
        values
    }

    /// What the placeholders of filters stand for.
    pub(super) fn request_placeholders<'e>(&self, exchange: &'e Exchange) -> Placeholders<'e> {
        let forwarded = exchange.forwarded.as_deref();
        Placeholders {
            head: &exchange.head,
            client: (forwarded.and_then(|it| it.client))
                .unwrap_or_else(|| self.source.client_address()),
            host: (forwarded.and_then(|it| it.host.as_deref()))
                .unwrap_or_else(|| exchange.head.host()),
            scheme: (forwarded.and_then(|it| it.scheme)).unwrap_or(self.listener.scheme),
            outer_mount: forwarded.map(|it| &it.mount),
            forwarded_host: None,
        }
    }
}

/// What the handlers came to, redirects followed.
pub(super) enum RedirectOutcome {
    Finished(ResponseResult),
    Running(RunningHandler),
}

/// What handlers are asked.
struct HandlerRequest {
    head: Arc<RequestHead>,
    path: RequestPath,
    trusted_headers: TrustedHeaders,
    /// What its route has stripped from the path.
    mount: Mount,
    /// What counts of the words of proxies, and of the route's rules in their place.
    forwarded: Option<Arc<ForwardedInfo>>,
}

/// What handlers are asked in the place of what the client did.
pub(super) struct EffectiveRequest {
    head: Arc<RequestHead>,
    trusted_headers: TrustedHeaders,
    mount: Mount,
    forwarded: Option<Arc<ForwardedInfo>>,
}

impl HandlerRequest {
    fn to_effective(&self) -> EffectiveRequest {
        EffectiveRequest {
            head: Arc::clone(&self.head),
            trusted_headers: self.trusted_headers.clone(),
            mount: self.mount.clone(),
            forwarded: self.forwarded.clone(),
        }
    }

    /// What is asked before any rule: the head as it came, unless its target has two readings. No
    /// program behind gets to choose between them.
    ///
    /// # Errors
    /// When it makes no valid head.
    fn unambiguous(
        head: Arc<RequestHead>,
        path: RequestPath,
        forwarded: Option<Arc<ForwardedInfo>>,
    ) -> Result<Self, Fault> {
        if !path.is_ambiguous() {
            return Ok(Self::unfiltered(head, path, forwarded));
        }
        let refused = |cause: String| Fault::new(FaultKind::BadRequest, cause);
        let head = path.unambiguous_head(&head);
        let head = head.map_err(|error| refused(error.to_string()))?;
        let path = RequestPath::from_head(&head).map_err(|error| refused(error.to_string()))?;
        Ok(Self::unfiltered(Arc::new(head), path, forwarded))
    }

    /// What no rule has changed.
    fn unfiltered(
        head: Arc<RequestHead>,
        path: RequestPath,
        forwarded: Option<Arc<ForwardedInfo>>,
    ) -> Self {
        Self {
            head,
            path,
            trusted_headers: TrustedHeaders::default(),
            mount: Mount::default(),
            forwarded,
        }
    }
}
