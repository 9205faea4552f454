//! From a request to the handlers that get it: filters applied, internal redirects followed.
//!
//! A part of `connection`, which calls it once a head has found its route and each time a handler
//! said something. What must stay true: the handlers get the changed head, the log and the framing of
//! the answer go by the client's own.

use std::sync::Arc;

use penstock_exchange::request::Arrival;
use penstock_exchange::{Fault, FaultKind, InternalRedirect, Request, RequestBody, RequestPath};
use penstock_http::RequestHead;

use super::{Connection, Exchange};
use crate::asks::{self, Answered, Said, Work, ask};
use crate::filters::{Filters, Values};
use crate::redirect;
use crate::router::{Handlers, Whose};

impl Connection {
    /// Asks the handlers of the client's route.
    pub(super) fn ask_first(
        &self,
        exchange: &Exchange,
        path: RequestPath,
        handlers: Handlers,
        body: RequestBody,
    ) -> Said {
        let (mut head, mut path) = (Arc::clone(&exchange.head), path);
        if let Some(filters) = &exchange.filters {
            match filtered(filters, &head, &self.values(exchange)) {
                Ok(Some((new_head, new_path))) => (head, path) = (new_head, new_path),
                Ok(None) => {}
                Err(fault) => return Said::Answered(Err(fault)),
            }
        }
        ask(handlers, 0, self.request(exchange, head, path, body))
    }

    /// Follows internal redirects until a handler answers or works.
    pub(super) fn followed(&self, exchange: &mut Exchange, mut said: Said) -> Followed {
        loop {
            said = match said {
                Said::Answered(answered) => return Followed::Answered(answered),
                Said::Works(work) => return Followed::Works(work),
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
        let mut head = Arc::new(redirect::head_for(&exchange.head, &target)?);
        let mut path = redirect::path_of(&head)?;
        if let Some(handler) = handler {
            let request = self.request(exchange, head, path, RequestBody::Empty);
            return Ok(ask([handler].into(), 0, request));
        }
        let settings = Arc::clone(&exchange.settings);
        let host = exchange.head.host();
        let route = asks::route(&settings, host, path.bytes(&head), Whose::Redirect);
        let route = route.map_err(|fault| redirect::no_target(fault, &target))?;
        if let Some(filters) = &route.filters {
            if let Some(filtered) = filtered(filters, &head, &self.values(exchange))? {
                (head, path) = filtered;
            }
            if let Some(redirected) = &mut exchange.redirected {
                redirected.filters = Some(Arc::clone(filters));
            }
        }
        let request = self.request(exchange, head, path, RequestBody::Empty);
        Ok(ask(Arc::clone(&route.handlers), 0, request))
    }

    fn request(
        &self,
        exchange: &Exchange,
        head: Arc<RequestHead>,
        path: RequestPath,
        body: RequestBody,
    ) -> Request {
        let arrival = Arrival {
            peer: self.peer,
            listener: Arc::clone(&self.listener),
            client: Arc::clone(&self.client),
            at: exchange.arrived,
            trust: Arc::clone(&exchange.settings.trust),
        };
        Request::new(head, path, body, arrival)
    }

    /// What the placeholders of filters stand for.
    pub(super) fn values<'e>(&self, exchange: &'e Exchange) -> Values<'e> {
        Values {
            head: &exchange.head,
            peer: self.peer,
            scheme: self.listener.scheme,
        }
    }
}

/// What the handlers came to, redirects followed.
pub(super) enum Followed {
    Answered(Answered),
    Works(Work),
}

/// Head and path as a route's filters make them; `None` when they stay as they are.
fn filtered(
    filters: &Filters,
    head: &RequestHead,
    values: &Values<'_>,
) -> Result<Option<(Arc<RequestHead>, RequestPath)>, Fault> {
    let Some(head) = filters.request(head, values)? else {
        return Ok(None);
    };
    let path = RequestPath::of(&head);
    let path = path.map_err(|error| Fault::new(FaultKind::BadRequest, error.to_string()))?;
    Ok(Some((Arc::new(head), path)))
}
