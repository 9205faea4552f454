//! Internal redirects: an answer that names another of the site's resources as its body.
//!
//! `connection` asks the target's route in the client's stead and lays the first answer's fields over
//! what comes of it. What must stay true: the number of redirects is bounded; the client sees one
//! response to its own request; of a request with a body only the head is asked again.

use std::sync::Arc;

use penstock_exchange::{Fault, FaultKind, Handler, InternalRedirect, RequestPath, RequestTiming};
use penstock_http::{FieldBlock, HeadWriter, Method, RequestHead};

use crate::dispatch::ResponseResult;
use crate::filters::Filters;

/// Redirects in a row: enough for any design, few enough to show a loop at once.
const MAX_REDIRECTS: u8 = 10;

/// Path and query, and the handler that has it if no route is to be looked for.
pub(crate) type RedirectTarget = (String, Option<Arc<dyn Handler>>);

/// What the redirects of one exchange have brought so far.
#[derive(Debug, Default)]
pub(crate) struct RedirectChain {
    count: u8,
    fields: FieldBlock,
    max_rate: Option<u64>,
    timing: RequestTiming,
    /// Those of the route that was found last, with the target that it was found for.
    pub(crate) filters: Option<(Arc<Filters>, String)>,
}

impl RedirectChain {
    /// Takes one more redirect; gives its target, and who is asked instead of the site's routes.
    ///
    /// # Errors
    /// When there were too many.
    pub(crate) fn follow(&mut self, redirect: InternalRedirect) -> Result<RedirectTarget, Fault> {
        let InternalRedirect {
            target,
            handler,
            fields,
            max_rate: rate_max,
            timing,
        } = redirect;
        // The answer nearest to the client has the last word.
        let nearer = std::mem::replace(&mut self.fields, fields);
        overlay_fields(&mut self.fields, &nearer);
        self.max_rate = self.max_rate.or(rate_max);
        self.timing = merge_timing(std::mem::take(&mut self.timing), timing);
        self.filters = None;
        self.count += 1;
        if self.count > MAX_REDIRECTS {
            let cause = format!("more than {MAX_REDIRECTS} internal redirects, last to {target}");
            return Err(Fault::new(FaultKind::Internal, cause));
        }
        Ok((target, handler))
    }

    /// The client's answer, from that of the last target.
    pub(crate) fn finish(self, answered: ResponseResult) -> ResponseResult {
        match answered {
            Ok(mut response) => {
                // The type of a document does not fit the page that says that it is not there.
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

/// The head of the request for `target` in the stead of `head`'s: GET, or HEAD for HEAD.
///
/// # Errors
/// When `target` is none.
pub(crate) fn redirect_head(head: &RequestHead, target: &str) -> Result<RequestHead, Fault> {
    let is_read = matches!(head.method(), Method::Get | Method::Head);
    let method = match head.method() {
        Method::Head => "HEAD",
        _ => "GET",
    };
    let mut writer = HeadWriter::new(head, method, target);
    if head.target() != head.target_path_query() {
        writer.field("Host", head.host().as_bytes());
    }
    for (name, value) in head.fields() {
        let is = |other: &&str| name.eq_ignore_ascii_case(other);
        let is_spent = head.target() != head.target_path_query() && is(&"host");
        // RFC 9110 §13, §14: what was asked of another method's answer is not meant for this one.
        if !is_spent
            && !BODY_FIELDS.iter().any(is)
            && (is_read || !CONDITIONAL_FIELDS.iter().any(is))
        {
            writer.field(name, value);
        }
    }
    let broken = |cause: String| Fault::new(FaultKind::AppProtocolError, cause);
    if !target.starts_with('/') {
        return Err(broken(format!("internal redirect to `{target}`: no path")));
    }
    let made = writer.finish();
    made.map_err(|error| broken(format!("internal redirect to `{target}`: {error}")))
}

/// The path of such a request.
///
/// # Errors
/// When the target's path is none.
pub(crate) fn redirect_path(head: &RequestHead) -> Result<RequestPath, Fault> {
    RequestPath::from_head(head).map_err(|error| {
        let cause = format!("internal redirect to `{}`: {error}", head.target());
        Fault::new(FaultKind::AppProtocolError, cause)
    })
}

/// What is said when no route has the target.
pub(crate) fn missing_target(fault: Fault, target: &str) -> Fault {
    let cause = format!("internal redirect to `{target}`: {}", fault.cause);
    Fault::new(fault.kind, cause)
}

/// Puts `over` into `fields`, in place of what is there by the same names; cookies are added.
fn overlay_fields(fields: &mut FieldBlock, over: &FieldBlock) {
    for (name, _) in over.iter() {
        if !name.eq_ignore_ascii_case("set-cookie") {
            fields.remove(name);
        }
    }
    fields.append(over);
}

/// Where the time went in two parts of one exchange; who answered is who answered first.
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
    }
}

/// Fields about the request's body, which is not sent again, and about its connection.
const BODY_FIELDS: [&str; 12] = [
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that make a read conditional or partial.
const CONDITIONAL_FIELDS: [&str; 6] = [
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "range",
];

#[cfg(test)]
mod tests;
