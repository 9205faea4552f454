//! The one place where a fault becomes a status, a page and a log line.
//!
//! The client gets the kind of failure in one sentence, or its site's page for it. The cause goes
//! to the log, where each of the server's own faults is throttled. In development the page
//! (`faults/builtin_error_page.rs`) shows cause, traceback and request too. Failures of clients are
//! not errors in the log. Error responses of applications and back ends are not faults and never
//! come here.

mod builtin_error_page;

use std::borrow::Cow;

use log::Level;
use penstock_exchange::{AddressPrefix, Body, Fault, FaultKind, FaultSide, RequestId, Response};
use penstock_http::{FieldBlock, Method, RequestHead, Status};
use penstock_runtime::clock;
use penstock_runtime::log_throttle::{LogThrottle, suppressed_suffix};
use penstock_sys::net::PeerAddress;

use self::builtin_error_page::BuiltinErrorPage;
use crate::Settings;
use crate::access_log::{EscapedBytes, format_peer};
use crate::error_pages::ErrorPages;

/// Bytes of a refused request's first line that are logged.
pub(crate) const MAX_LOGGED_LINE_BYTES: usize = 200;

/// Seconds after which a client may try again when the server was too busy.
const RETRY_AFTER: &str = "1";

/// A request that gets an error in place of a response.
#[derive(Clone, Copy)]
pub(crate) struct FailedRequest<'a> {
    pub(crate) head: &'a RequestHead,
    pub(crate) settings: &'a Settings,
    /// The error pages of its route or site.
    pub(crate) pages: Option<&'a ErrorPages>,
    /// Its id, where requests have one.
    pub(crate) id: Option<&'a RequestId>,
}

/// The response to a fault; without `asked` there was no valid request.
pub(crate) fn respond_to_fault(
    fault: Fault,
    asked: Option<FailedRequest<'_>>,
    repeats: &LogThrottle,
) -> Response {
    log_fault(&fault, asked, repeats);
    let status = fault.kind.status();
    let page = asked.and_then(|it| configured_error_page(status, it));
    let mut response = page.unwrap_or_else(|| builtin_error_page(status, &fault, asked));
    let mut field = |name, value: &str| {
        // Literals are valid fields.
        let _ = response.fields.push(name, value.as_bytes());
    };
    field("Cache-Control", "no-store");
    let has_retry_after = |fields: &FieldBlock| fields.contains("Retry-After");
    match fault.kind {
        _ if fault.fields.as_deref().is_some_and(has_retry_after) => {}
        FaultKind::QueueFull
        | FaultKind::QueueTimeout
        | FaultKind::Unavailable
        | FaultKind::Overloaded => field("Retry-After", RETRY_AFTER),
        FaultKind::MethodNotAllowed => field("Allow", "GET, HEAD"),
        _ => {}
    }
    if let Some(fields) = &fault.fields {
        response.fields.append(fields);
    }
    response.timing = *fault.timing;
    response
}

/// The response to a browser's `EventSource` in place of an error that passes: after any status
/// but 200 it would never reconnect.
pub(crate) fn refuse_event_source(
    fault: &Fault,
    asked: FailedRequest<'_>,
    client: Option<AddressPrefix>,
    repeats: &LogThrottle,
) -> Option<Response> {
    let FailedRequest { head, settings, .. } = asked;
    let refusal = settings.stream_refusal.as_ref()?;
    if !fault.kind.is_transient() || !head.is_event_source() {
        return None;
    }
    let mut response = refusal.refuse_stream(client, &fault.cause)?;
    // The refusal has logged that there was no room.
    if fault.kind.status() != Status::SERVICE_UNAVAILABLE {
        log_fault(fault, Some(asked), repeats);
    }
    if let Some(origin) = head.field("origin") {
        // The application's own rules for other origins are not known. There is nothing to keep
        // from them, and a page that may not read the response would never reconnect.
        for (name, value) in [
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Credentials", b"true"),
            ("Vary", b"Origin"),
        ] {
            let _ = response.fields.push(name, value);
        }
    }
    response.timing = (*fault.timing).clone();
    Some(response)
}

/// The page of the request's route or site for a status. In development the built-in page says
/// more.
fn configured_error_page(status: Status, asked: FailedRequest<'_>) -> Option<Response> {
    match asked.settings.is_development {
        true => None,
        false => asked.pages?.response_for(status),
    }
}

fn builtin_error_page(status: Status, fault: &Fault, asked: Option<FailedRequest<'_>>) -> Response {
    let head = asked.map(|it| it.head);
    let shown = asked.filter(|it| it.settings.is_development);
    let page = BuiltinErrorPage {
        status,
        fault,
        request_id: asked.and_then(|it| it.id),
        debug_request: shown.map(|it| (it.head, &it.settings.log_mask)),
    };
    if penstock_http::prefers_media_type(
        head.and_then(|head| head.field("accept")),
        "text/html",
        "text/plain",
    ) {
        Response::with_text(status, "text/html; charset=utf-8", page.to_html())
    } else {
        Response::with_text(status, "text/plain; charset=utf-8", page.to_text())
    }
}

pub(crate) fn respond_malformed(status: Status, explanation: &str) -> Response {
    let text = format!("{} {}\n{explanation}\n", status.code(), status.reason());
    Response::with_text(status, "text/plain; charset=utf-8", text)
}

/// The response to `OPTIONS *` (RFC 9110 §9.3.7), which is about the server as a whole.
pub(crate) fn respond_options() -> Response {
    let mut response = Response::new(Status::NO_CONTENT, Body::Empty);
    let _ = response
        .fields
        .push("Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    response
}

/// Logs a request that was refused before a handler got it: client, reason, and its first line as
/// far as it was read. A few lines a second for each reason.
pub(crate) fn log_refused_head(
    client: PeerAddress,
    status: Status,
    reason: &str,
    line: &[u8],
    repeats: &LogThrottle,
) {
    if let Some(count) = repeats.admit_line(reason, clock::now()) {
        let (client, line, more) = (
            format_peer(client),
            EscapedBytes(line),
            suppressed_suffix(count),
        );
        log::info!(
            "edge: {} from {client}: {reason}: \"{line}\"{more}",
            status.code()
        );
    }
}

/// Logs a request whose head could be read and that was refused for its form.
pub(crate) fn log_refused_request(
    client: PeerAddress,
    fault: &Fault,
    FailedRequest { head, settings, .. }: FailedRequest<'_>,
    repeats: &LogThrottle,
) {
    if let FaultKind::BadRequest
    | FaultKind::HeadTooLarge
    | FaultKind::BodyTooLarge
    | FaultKind::ClientTooSlow
    | FaultKind::NotImplemented = fault.kind
    {
        let line = format!("{} {}", head.method_str(), head.target());
        let line = &line.as_bytes()[..line.len().min(MAX_LOGGED_LINE_BYTES)];
        let line = settings.log_mask.apply_url(line);
        log_refused_head(client, fault.kind.status(), &fault.cause, &line, repeats);
    }
}

/// Redirects to another path of the same host, keeping the method of a request with a body.
pub(crate) fn redirect_to_directory(method: Method, location: &[u8]) -> Response {
    let status = match method {
        Method::Get | Method::Head => Status::MOVED_PERMANENTLY,
        _ => Status::PERMANENT_REDIRECT,
    };
    let mut response = Response::new(status, Body::Empty);
    // Encoded paths have no control bytes, and the parser checked the query.
    let _ = response.fields.push("Location", location);
    response
}

/// Redirects a request to the scheme and host of its site; 308 keeps method and body (RFC 9110
/// §15.4.9).
pub(crate) fn redirect_to_site(location: &str) -> Response {
    let mut response = Response::new(Status::PERMANENT_REDIRECT, Body::Empty);
    // The parser checked host and target.
    let _ = response.fields.push("Location", location.as_bytes());
    response
}

fn log_fault(fault: &Fault, asked: Option<FailedRequest<'_>>, repeats: &LogThrottle) {
    let method = asked.map_or("-", |it| it.head.method_str());
    // The log masks lines as text, in which a quote ends a value.
    let target = asked.map_or(Cow::Borrowed("-"), |it| {
        it.settings.log_mask.apply_url_str(it.head.target())
    });
    let status = fault.kind.status().code();
    let handler = fault.timing.handler.as_deref().unwrap_or("edge");
    let (level, is_throttled) = match (fault.kind.side(), fault.kind) {
        // A name that is missing in `hosts` looks like a server that does not work.
        (_, FaultKind::UnknownHost) => (Level::Info, true),
        (FaultSide::Client, _) => (Level::Debug, false),
        (_, FaultKind::QueueFull | FaultKind::QueueTimeout | FaultKind::Unavailable) => {
            (Level::Warn, true)
        }
        // A disk or a pool that fails one request fails all of them.
        (_, FaultKind::Overloaded | FaultKind::Internal) => (Level::Error, true),
        _ => (Level::Error, false),
    };
    let suppressed = match is_throttled {
        true => repeats.admit_line(throttle_key(fault), clock::now()),
        false => Some(0),
    };
    let Some(more) = suppressed.map(suppressed_suffix) else {
        return;
    };
    let cause = &fault.cause;
    match asked.and_then(|it| it.id) {
        Some(id) => log::log!(
            level, request_id:% = id;
            "{handler}: {status} {method} {target}: {cause}{more}"
        ),
        None => log::log!(
            level,
            "{handler}: {status} {method} {target}: {cause}{more}"
        ),
    }
}

/// What counts as the same cause for the log: a stranger may ask for any number of hosts.
fn throttle_key(fault: &Fault) -> &str {
    match fault.kind {
        FaultKind::UnknownHost => "unknown host",
        _ => &fault.cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overload_response_has_retry_after() {
        let response = respond_to_fault(
            Fault::new(FaultKind::QueueFull, "100 wait"),
            None,
            &LogThrottle::default(),
        );
        assert_eq!(response.status, Status::SERVICE_UNAVAILABLE);
        assert_eq!(response.fields.get("retry-after"), Some(&b"1"[..]));
    }
}
