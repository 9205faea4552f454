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
use crate::asks::{self, Answered, Said, Work, ask};
use crate::filters::{Filtered, Filters, Values};
use crate::plan::has_body;
use crate::redirect;
use crate::router::{Handlers, Whose};

impl Connection {
    /// What a trusted peer says of a request; costs a look at the names of its fields where it says
    /// nothing, and nothing with other peers.
    pub(super) fn read_forwarded(
        &self,
        settings: &Settings,
        head: &RequestHead,
    ) -> Option<Arc<ForwardedInfo>> {
        let trust = &settings.trust;
        if !self.sender.is_trusted(trust) || !ForwardedInfo::has_forwarding_fields(head, trust) {
            return None;
        }
        let (info, broken) = ForwardedInfo::read(head, trust);
        self.log_broken(&broken);
        Some(Arc::new(info))
    }

    /// The same of a head that a route's rules have made, which vouch for some of its fields.
    fn read_vouched(
        &self,
        exchange: &Exchange,
        head: &RequestHead,
        vouched: &TrustedHeaders,
    ) -> Option<Arc<ForwardedInfo>> {
        let (trust, sent) = (&exchange.settings.trust, &exchange.head);
        let is_trusted = self.sender.is_trusted(trust);
        let (info, broken) =
            ForwardedInfo::read_with_trusted_headers(head, sent, trust, is_trusted, vouched);
        self.log_broken(&broken);
        (info != ForwardedInfo::default()).then(|| Arc::new(info))
    }

    fn log_broken(&self, broken: &[InvalidForwardedField]) {
        for field in broken {
            if let Some(count) = self.edge.repeats.admit_line(&field.name, clock::now()) {
                log::warn!(
                    "edge: {} of proxy {} ignored: {} (value={:?}){}",
                    field.name,
                    access_log::peer(self.sender.address()),
                    field.cause,
                    field.value,
                    suppressed_suffix(count),
                );
            }
        }
    }

    /// Asks the handlers of the client's route.
    pub(super) fn ask_first(
        &self,
        exchange: &mut Exchange,
        path: RequestPath,
        handlers: Handlers,
        body: RequestBody,
    ) -> Said {
        let forwarded = exchange.forwarded.clone();
        let mut asked = match Asked::unambiguous(Arc::clone(&exchange.head), path, forwarded) {
            Ok(asked) => asked,
            Err(fault) => return Said::Answered(Err(fault)),
        };
        if let Some(filters) = &exchange.filters {
            asked = match self.filtered(exchange, filters, asked) {
                Ok(filtered) => filtered,
                Err(fault) => return Said::Answered(Err(fault)),
            };
        }
        if !Arc::ptr_eq(&asked.head, &exchange.head) {
            exchange.changed = Some(Box::new(asked.changed()));
        }
        ask(handlers, 0, self.request(exchange, asked, body))
    }

    /// Follows internal redirects until a handler answers or works.
    pub(super) fn followed(&self, exchange: &mut Exchange, mut said: Said) -> Followed {
        loop {
            said = match said {
                Said::Answered(answered) => return Followed::Answered(answered),
                Said::Works(work) => return Followed::Works(work),
                Said::Spoke(response, speaker) => {
                    asks::obey(&*speaker, self.spoken(exchange, response))
                }
                Said::Redirects(redirect) => self
                    .ask_redirected(exchange, *redirect)
                    .unwrap_or_else(|fault| Said::Answered(Err(fault))),
            };
        }
    }

    /// Asks the route of a redirect's target, in the client's stead.
    ///
    /// # Errors
    /// When there is no such target, or there were too many.
    fn ask_redirected(
        &self,
        exchange: &mut Exchange,
        redirect: InternalRedirect,
    ) -> Result<Said, Fault> {
        let redirected = exchange.redirected.get_or_insert_default();
        let (target, handler) = redirected.follow(redirect)?;
        let head = Arc::new(redirect::head_for(&exchange.head, &target)?);
        let path = redirect::path_of(&head)?;
        let mut asked = Asked::unambiguous(head, path, exchange.forwarded.clone())?;
        if let Some(handler) = handler {
            exchange.changed = Some(Box::new(asked.changed()));
            let request = self.request(exchange, asked, RequestBody::Empty);
            return Ok(ask([handler].into(), 0, request));
        }
        let settings = Arc::clone(&exchange.settings);
        let host = exchange.head.host();
        let path = asked.path.bytes(&asked.head);
        let route = asks::route(&settings, host, path, Whose::Redirect);
        let route = route.map_err(|fault| redirect::no_target(fault, &target))?;
        if let Some(filters) = &route.filters {
            asked = self.filtered(exchange, filters, asked)?;
            if let Some(redirected) = &mut exchange.redirected {
                redirected.filters = Some((Arc::clone(filters), target));
            }
        }
        exchange.changed = Some(Box::new(asked.changed()));
        let request = self.request(exchange, asked, RequestBody::Empty);
        Ok(ask(Arc::clone(&route.handlers), 0, request))
    }

    fn request(&self, exchange: &Exchange, asked: Asked, body: RequestBody) -> Request {
        let arrival = self.arrival(exchange, &asked.mount, asked.forwarded);
        let mut request = Request::new(asked.head, asked.path, body, arrival);
        request.trusted_headers = asked.vouched;
        request
    }

    /// Where a request came in; `mount` is what its route has stripped, `forwarded` what counts of
    /// the words about it.
    fn arrival(
        &self,
        exchange: &Exchange,
        mount: &Mount,
        forwarded: Option<Arc<ForwardedInfo>>,
    ) -> RequestOrigin {
        let trust = &exchange.settings.trust;
        RequestOrigin {
            peer: self.sender.address(),
            listener: Arc::clone(&self.listener),
            client_state: Arc::clone(&self.client),
            arrived: exchange.arrived,
            trusted_proxies: match self.sender.is_named() {
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
    fn spoken(&self, exchange: &Exchange, response: Box<Response>) -> GripResponse {
        let root = Mount::default();
        let (head, vouched, mount, forwarded) = match &exchange.changed {
            Some(changed) => {
                let Changed {
                    head,
                    vouched,
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
            had_body: exchange.redirected.is_none() && has_body(&exchange.head),
            head,
            trusted_headers: vouched,
            origin: self.arrival(exchange, mount, forwarded.clone()),
            response,
        }
    }

    /// What is asked once a route's filters have changed it.
    ///
    /// # Errors
    /// When they make no valid request of it.
    fn filtered(
        &self,
        exchange: &Exchange,
        filters: &Filters,
        asked: Asked,
    ) -> Result<Asked, Fault> {
        let settings = &exchange.settings;
        let trust = Some(&*settings.trust).filter(|trust| self.sender.is_trusted(trust));
        let filtered = filters.request(&asked.head, &self.values(exchange), trust)?;
        let Some(Filtered {
            head,
            vouched,
            mount,
        }) = filtered
        else {
            return Ok(asked);
        };
        let path = RequestPath::from_head(&head);
        let path = path.map_err(|error| Fault::new(FaultKind::BadRequest, error.to_string()))?;
        let forwarded = match filters.changes_forwarded(&settings.trust) {
            true => self.read_vouched(exchange, &head, &vouched),
            false => asked.forwarded,
        };
        let head = Arc::new(head);
        Ok(Asked {
            head,
            path,
            vouched,
            mount,
            forwarded,
        })
    }

    /// The same for a response: with prefix and host as its handlers have them.
    pub(super) fn values_of_response<'e>(&self, exchange: &'e Exchange) -> Values<'e> {
        let mut values = self.values(exchange);
        if let Some(changed) = &exchange.changed {
            let forwarded = changed.forwarded.as_deref();
            values.mount = forwarded.map(|forwarded| &forwarded.mount);
            values.told_host = forwarded.and_then(|forwarded| forwarded.host.as_deref());
        }
        values
    }

    /// What the placeholders of filters stand for.
    pub(super) fn values<'e>(&self, exchange: &'e Exchange) -> Values<'e> {
        let forwarded = exchange.forwarded.as_deref();
        Values {
            head: &exchange.head,
            client: (forwarded.and_then(|it| it.client)).unwrap_or_else(|| self.sender.address()),
            host: (forwarded.and_then(|it| it.host.as_deref()))
                .unwrap_or_else(|| exchange.head.host()),
            scheme: (forwarded.and_then(|it| it.scheme)).unwrap_or(self.listener.scheme),
            mount: forwarded.map(|it| &it.mount),
            told_host: None,
        }
    }
}

/// What the handlers came to, redirects followed.
pub(super) enum Followed {
    Answered(Answered),
    Works(Work),
}

/// What handlers are asked.
struct Asked {
    head: Arc<RequestHead>,
    path: RequestPath,
    vouched: TrustedHeaders,
    /// What its route has stripped from the path.
    mount: Mount,
    /// What counts of the words of proxies, and of the route's rules in their place.
    forwarded: Option<Arc<ForwardedInfo>>,
}

/// What handlers are asked in the place of what the client did.
pub(super) struct Changed {
    head: Arc<RequestHead>,
    vouched: TrustedHeaders,
    mount: Mount,
    forwarded: Option<Arc<ForwardedInfo>>,
}

impl Asked {
    fn changed(&self) -> Changed {
        Changed {
            head: Arc::clone(&self.head),
            vouched: self.vouched.clone(),
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
            return Ok(Self::plain(head, path, forwarded));
        }
        let refused = |cause: String| Fault::new(FaultKind::BadRequest, cause);
        let head = path.unambiguous_head(&head);
        let head = head.map_err(|error| refused(error.to_string()))?;
        let path = RequestPath::from_head(&head).map_err(|error| refused(error.to_string()))?;
        Ok(Self::plain(Arc::new(head), path, forwarded))
    }

    /// What no rule has changed.
    fn plain(
        head: Arc<RequestHead>,
        path: RequestPath,
        forwarded: Option<Arc<ForwardedInfo>>,
    ) -> Self {
        Self {
            head,
            path,
            vouched: TrustedHeaders::default(),
            mount: Mount::default(),
            forwarded,
        }
    }
}
