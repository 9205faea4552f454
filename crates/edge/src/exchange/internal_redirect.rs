//! Internal redirects: a response that names another resource of the site as its body.
//!
//! The exchange runs the target's route in place of the client's and puts the first response's
//! fields over the target's response.
//!
//! # Invariants
//! - The number of redirects is bounded.
//! - The client sees one response to its own request.
//! - The target gets the head of a request only, not its body.

use std::sync::Arc;

use penstock_exchange::field_policy::{is_conditional_field, is_content_field};
use penstock_exchange::{
    BodyRate, Fault, FaultKind, Handler, InternalRedirect, RequestBody, RequestPath, RequestTiming,
};
use penstock_http::{FieldBlock, HeadWriter, Method, RequestHead};

use super::request::HandlerRequest;
use super::{ConnectionContext, Exchange, HandlerOutcome, ResponseResult, run_handlers};
use crate::filters::Filters;
use crate::router::LookupOrigin;

/// Redirects in a row: enough for any design, few enough to show a loop at once.
const MAX_REDIRECTS: u8 = 10;

/// Path and query, and the handler that serves it in place of a route.
pub(crate) type RedirectTarget = (String, Option<Arc<dyn Handler>>);

#[derive(Debug, Default)]
pub(crate) struct RedirectChain {
    count: u8,
    fields: FieldBlock,
    max_rate: Option<Box<BodyRate>>,
    timing: RequestTiming,
    /// Those of the last target's route, with that target.
    pub(crate) filters: Option<(Arc<Filters>, String)>,
}

impl RedirectChain {
    /// Adds a redirect. Returns its target, and the handler that serves it in place of the routes.
    ///
    /// # Errors
    /// When there were too many.
    pub(crate) fn push_redirect(
        &mut self,
        redirect: InternalRedirect,
    ) -> Result<RedirectTarget, Fault> {
        let InternalRedirect {
            target,
            handler,
            fields,
            max_rate: rate_max,
            timing,
        } = redirect;
        // Fields of the response nearest to the client win.
        let nearer = std::mem::replace(&mut self.fields, fields);
        overlay_fields(&mut self.fields, &nearer);
        self.max_rate = self.max_rate.take().or(rate_max);
        self.timing = merge_timing(std::mem::take(&mut self.timing), timing);
        self.filters = None;
        self.count += 1;
        if self.count > MAX_REDIRECTS {
            let cause = format!("more than {MAX_REDIRECTS} internal redirects, last to {target}");
            return Err(Fault::new(FaultKind::Internal, cause));
        }
        Ok((target, handler))
    }

    /// The client's response, from the last target's.
    pub(crate) fn apply_to_result(self, result: ResponseResult) -> ResponseResult {
        match result {
            Ok(mut response) => {
                // The type of a document does not fit the page of an error.
                if !response.status.is_error() {
                    overlay_fields(&mut response.fields, &self.fields);
                }
                response.max_rate = self.max_rate.or(response.max_rate);
                response.timing = merge_timing(self.timing, response.timing);
                Ok(response)
            }
            Err(mut fault) => {
                *fault.timing = merge_timing(self.timing, *fault.timing);
                Err(fault)
            }
        }
    }
}

impl Exchange {
    /// Runs the route of a redirect's target in place of the client's.
    ///
    /// # Errors
    /// When there is no such target, or there were too many.
    pub(super) fn run_redirect_target(
        &mut self,
        connection: ConnectionContext<'_>,
        redirect: InternalRedirect,
    ) -> Result<HandlerOutcome, Fault> {
        let chain = self.redirects.get_or_insert_default();
        let (target, handler) = chain.push_redirect(redirect)?;
        let head = Arc::new(redirect_head(&self.head, &target)?);
        let path = redirect_path(&head)?;
        let mut request = HandlerRequest::unambiguous(head, path, self.forwarded.clone())?;
        if let Some(handler) = handler {
            let request = self.build_request(connection, request, RequestBody::Empty);
            return Ok(run_handlers([handler].into(), 0, request));
        }
        let settings = Arc::clone(&self.settings);
        let host = self.head.host();
        let path = request.path.bytes(&request.head);
        let facts = connection.request_facts(&request.head, self.forwarded.as_deref());
        let whose = LookupOrigin::InternalRedirect;
        let route = settings.routes.find_route(host, path, &facts, whose);
        let route = route.map_err(|fault| missing_target_fault(fault, &target))?;
        if let Some(filters) = &route.filters {
            request = self.apply_filters(connection, filters, request)?;
            if let Some(chain) = &mut self.redirects {
                chain.filters = Some((Arc::clone(filters), target));
            }
        }
        let request = self.build_request(connection, request, RequestBody::Empty);
        Ok(run_handlers(Arc::clone(&route.handlers), 0, request))
    }

    /// The client's response, from the one of a redirect's last target.
    pub(super) fn finish_redirects(
        &self,
        connection: ConnectionContext<'_>,
        mut chain: RedirectChain,
        result: ResponseResult,
    ) -> ResponseResult {
        let filters = chain.filters.take();
        let result = result.map(|mut response| {
            if let Some((filters, target)) = filters {
                let values = self.response_placeholders(connection);
                let of = (response.status, target.as_str());
                filters.apply_to_response(&mut response.fields, &values, of);
            }
            response
        });
        chain.apply_to_result(result)
    }
}

/// The head of the request for `target` in place of `head`'s: GET, or HEAD for HEAD.
///
/// # Errors
/// When `target` is no path.
fn redirect_head(head: &RequestHead, target: &str) -> Result<RequestHead, Fault> {
    let is_read = matches!(head.method(), Method::Get | Method::Head);
    let method = match head.method() {
        Method::Head => "HEAD",
        _ => "GET",
    };
    // RFC 9110 §13, §14: conditions on the response of another method do not apply here.
    let is_kept = |name: &str| {
        let is = |other: &&str| name.eq_ignore_ascii_case(other);
        !is_content_field(name)
            && !CONNECTION_FIELDS.iter().any(is)
            && (is_read || !is_conditional_field(name))
    };
    let broken = |cause: String| Fault::new(FaultKind::AppProtocolError, cause);
    if !target.starts_with('/') {
        return Err(broken(format!("internal redirect to `{target}`: no path")));
    }
    let made = HeadWriter::with_kept_fields(head, method, target, is_kept).finish();
    made.map_err(|error| broken(format!("internal redirect to `{target}`: {error}")))
}

/// The path of such a request.
///
/// # Errors
/// When the target has no valid path.
fn redirect_path(head: &RequestHead) -> Result<RequestPath, Fault> {
    RequestPath::from_head(head).map_err(|error| {
        let cause = format!("internal redirect to `{}`: {error}", head.target());
        Fault::new(FaultKind::AppProtocolError, cause)
    })
}

fn missing_target_fault(fault: Fault, target: &str) -> Fault {
    let cause = format!("internal redirect to `{target}`: {}", fault.cause);
    Fault::new(fault.kind, cause)
}

/// Puts `over` into `fields`, in place of fields of the same names; cookies are added.
fn overlay_fields(fields: &mut FieldBlock, over: &FieldBlock) {
    for (name, _) in over.iter() {
        if !name.eq_ignore_ascii_case("set-cookie") {
            fields.remove(name);
        }
    }
    fields.append(over);
}

/// The timing of two parts of one exchange; the handler is the one that responded first.
fn merge_timing(first: RequestTiming, then: RequestTiming) -> RequestTiming {
    RequestTiming {
        queue_time: first.queue_time + then.queue_time,
        queue_position: first.queue_position.max(then.queue_position),
        app_time: first.app_time + then.app_time,
        handler: first.handler.or(then.handler),
        worker_pid: if first.worker_pid == 0 {
            then.worker_pid
        } else {
            first.worker_pid
        },
        connect_time: first.connect_time + then.connect_time,
        server: first.server.or(then.server),
        retries: first.retries.saturating_add(then.retries),
        cache: first.cache.or(then.cache),
    }
}

/// Fields about the connection and the framing of the request's body, which is not sent again.
const CONNECTION_FIELDS: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

#[cfg(test)]
mod tests;
