//! Short responses of a Mercure hub, and the response to each refusal.
//!
//! Used by `subscribe`, `publish` and `subscriptions`.
//!
//! # Invariants
//! - A client learns that its token is refused, not why; the log has the reason and not the token.

use std::fmt::Display;

use bytes::Bytes;
use penstock_exchange::Response;
use penstock_http::{RequestHead, Status};

use crate::access::AccessDenied;

pub(super) fn text_line_response(status: Status, text: impl Display) -> Response {
    plain_text_response(status, format!("{text}\n"))
}

pub(super) fn plain_text_response(status: Status, text: impl Into<Bytes>) -> Response {
    Response::with_text(status, "text/plain; charset=utf-8", text)
}

/// The response to a request without the right to it (RFC 6750 §3).
pub(super) fn denied_response(denied: &AccessDenied, head: &RequestHead) -> Response {
    log::info!(
        "mercure: {} of {} is refused: {denied}",
        head.method_str(),
        head.host()
    );
    match denied {
        AccessDenied::NotAllowed | AccessDenied::ForeignOrigin => {
            text_line_response(Status::FORBIDDEN, "Forbidden")
        }
        AccessDenied::NoToken => unauthorized_response("Bearer"),
        AccessDenied::NoKey
        | AccessDenied::InvalidToken(_)
        | AccessDenied::InvalidClaim(_)
        | AccessDenied::InvalidSelector(..) => {
            unauthorized_response("Bearer error=\"invalid_token\"")
        }
    }
}

fn unauthorized_response(challenge: &'static str) -> Response {
    let mut response = text_line_response(Status::UNAUTHORIZED, "Unauthorized");
    response.fields.push_static("WWW-Authenticate", challenge);
    response
}

/// The answer to a method that means nothing here.
pub(super) fn method_not_allowed(allowed: &'static str) -> Response {
    let mut response = text_line_response(Status::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.fields.push_static("Allow", allowed);
    response
}
