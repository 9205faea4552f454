//! The one place where a fault becomes a status, a page and a log line.
//!
//! Clients are told the kind of failure in one sentence, or by the page that their site has for it; the
//! cause goes to the log, where each of the house's own is told some times a second (`repeats`). In development
//! the page shows cause and traceback too. Failures of clients are not errors in the log. What
//! applications and back ends answer with is no fault and never comes here.

use penstock_exchange::{Body, Fault, FaultKind, Response, Side};
use penstock_http::{RequestHead, Status};
use penstock_runtime::clock;

use crate::Settings;
use crate::repeats::{Repeats, left_out};

/// Seconds after which a client may try again when the server was too busy.
const RETRY_AFTER: &str = "1";

/// Answers with a fault; without `asked` the request did not come to be one.
pub(crate) fn respond(
    fault: Fault,
    asked: Option<(&RequestHead, &Settings)>,
    repeats: &Repeats,
) -> Response {
    log_fault(&fault, asked.map(|(head, _)| head), repeats);
    let status = fault.kind.status();
    let page = asked.and_then(|(head, settings)| of_site(status, head, settings));
    let mut response = page.unwrap_or_else(|| of_house(status, &fault, asked));
    let mut field = |name, value: &str| {
        // Literals are valid fields.
        let _ = response.fields.push(name, value.as_bytes());
    };
    field("Cache-Control", "no-store");
    match fault.kind {
        FaultKind::QueueFull
        | FaultKind::QueueTimeout
        | FaultKind::Unavailable
        | FaultKind::Overloaded => field("Retry-After", RETRY_AFTER),
        FaultKind::MethodNotAllowed => field("Allow", "GET, HEAD"),
        _ => {}
    }
    response.timing = *fault.timing;
    response
}

/// The page that the request's site has for a status. In development the house's says more.
fn of_site(status: Status, head: &RequestHead, settings: &Settings) -> Option<Response> {
    if settings.development {
        return None;
    }
    let pages = settings.routing.error_pages(head.host())?;
    pages.response(status)
}

/// The house's own page.
fn of_house(status: Status, fault: &Fault, asked: Option<(&RequestHead, &Settings)>) -> Response {
    let development = asked.is_some_and(|(_, settings)| settings.development);
    let accept = asked.and_then(|(head, _)| head.field("accept"));
    if penstock_http::prefers(accept, "text/html", "text/plain") {
        let page = html_page(status, fault, development);
        Response::text(status, "text/html; charset=utf-8", page)
    } else {
        let text = plain_page(status, fault, development);
        Response::text(status, "text/plain; charset=utf-8", text)
    }
}

/// Answers a head that was refused by the parser.
pub(crate) fn respond_malformed(status: Status, explanation: &str) -> Response {
    let text = format!("{} {}\n{explanation}\n", status.code(), status.reason());
    Response::text(status, "text/plain; charset=utf-8", text)
}

/// Answers `OPTIONS *` (RFC 9110 §9.3.7): the server as a whole is here.
pub(crate) fn respond_options() -> Response {
    let mut response = Response::new(Status::NO_CONTENT, Body::Empty);
    let _ = response
        .fields
        .push("Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    response
}

fn log_fault(fault: &Fault, head: Option<&RequestHead>, repeats: &Repeats) {
    let (method, target) = head.map_or(("-", "-"), |h| (h.method_str(), h.target()));
    let status = fault.kind.status().code();
    let handler = fault.timing.handler.as_deref().unwrap_or("edge");
    match (fault.kind.side(), fault.kind) {
        (Side::Client, _) => {
            log::debug!("{handler}: {status} {method} {target}: {}", fault.cause);
        }
        (_, FaultKind::QueueFull | FaultKind::QueueTimeout | FaultKind::Unavailable) => {
            log::warn!("{handler}: {status} {method} {target}: {}", fault.cause);
        }
        // A disk or a pool that fails one request fails all of them.
        (_, FaultKind::Overloaded | FaultKind::House) => {
            if let Some(count) = repeats.admit(&fault.cause, clock::now()) {
                let more = left_out(count);
                log::error!(
                    "{handler}: {status} {method} {target}: {}{more}",
                    fault.cause
                );
            }
        }
        _ => log::error!("{handler}: {status} {method} {target}: {}", fault.cause),
    }
}

fn plain_page(status: Status, fault: &Fault, development: bool) -> String {
    let mut text = format!(
        "{} {}\n{}\n",
        status.code(),
        status.reason(),
        fault.kind.explanation()
    );
    if development {
        text.push_str(&format!("\n{}\n", fault.cause));
        if let Some(detail) = &fault.detail {
            text.push_str(&format!("\n{detail}\n"));
        }
    }
    text
}

fn html_page(status: Status, fault: &Fault, development: bool) -> String {
    let (code, reason) = (status.code(), status.reason());
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{code} {reason}</title>\n<style>body{{font:16px/1.5 \
         system-ui,sans-serif;max-width:60rem;margin:4rem auto;padding:0 1rem;color:#223}}\
         h1{{font-size:1.5rem}}pre{{background:#f4f4f6;padding:1rem;overflow:auto}}</style>\n\
         <h1>{code} {reason}</h1>\n<p>{}</p>\n",
        fault.kind.explanation()
    );
    if development {
        page.push_str(&format!("<p>{}</p>\n", escape_html(&fault.cause)));
        if let Some(detail) = &fault.detail {
            page.push_str(&format!("<pre>{}</pre>\n", escape_html(detail)));
        }
    }
    page
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_is_shown_in_development_only_and_escaped() {
        let mut fault = Fault::new(FaultKind::Unavailable, "boot failed");
        fault.detail = Some("<script>".into());
        let page = html_page(Status::SERVICE_UNAVAILABLE, &fault, true);
        assert!(page.contains("boot failed") && page.contains("&lt;script&gt;"));
        let page = html_page(Status::SERVICE_UNAVAILABLE, &fault, false);
        assert!(!page.contains("boot failed") && !page.contains("script"));
    }

    #[test]
    fn a_busy_answer_says_when_to_come_back() {
        let response = respond(
            Fault::new(FaultKind::QueueFull, "100 wait"),
            None,
            &Repeats::default(),
        );
        assert_eq!(response.status, Status::SERVICE_UNAVAILABLE);
        assert_eq!(response.fields.get("retry-after"), Some(&b"1"[..]));
    }
}
