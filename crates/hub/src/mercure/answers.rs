//! Short answers of a Mercure hub, and which refusal is which.
//!
//! `subscribe`, `publish` and `subscriptions` make theirs here. What must stay true: a client learns that
//! its token is not believed, not why; the log has the reason and not the token.

use std::borrow::Cow;

use bytes::Bytes;
use penstock_exchange::{Fault, FaultKind, Response};
use penstock_http::{RequestHead, Status};

use super::access::Denied;
use crate::Refused;

/// A line of text.
pub(super) fn text(status: Status, text: impl Into<Cow<'static, str>>) -> Response {
    let mut text = text.into().into_owned();
    text.push('\n');
    plain(status, text)
}

/// A text as it is.
pub(super) fn plain(status: Status, text: impl Into<Bytes>) -> Response {
    Response::text(status, "text/plain; charset=utf-8", text)
}

/// The answer to who may not do what it asks for (RFC 6750 §3).
pub(super) fn denied(denied: &Denied, head: &RequestHead) -> Response {
    log::info!(
        "mercure: {} of {} is refused: {denied}",
        head.method_str(),
        head.host()
    );
    match denied {
        Denied::NotAllowed | Denied::Origin => text(Status::FORBIDDEN, "Forbidden"),
        Denied::NoToken => unauthorized("Bearer"),
        Denied::NoKey | Denied::Token(_) | Denied::Claims(_) | Denied::Selector(..) => {
            unauthorized("Bearer error=\"invalid_token\"")
        }
    }
}

fn unauthorized(challenge: &'static str) -> Response {
    let mut response = text(Status::UNAUTHORIZED, "Unauthorized");
    response.fields.push_static("WWW-Authenticate", challenge);
    response
}

/// The answer to a method that means nothing here.
pub(super) fn method_not_allowed(allowed: &'static str) -> Response {
    let mut response = text(Status::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.fields.push_static("Allow", allowed);
    response
}

/// What a refusal of the hub is for a client.
pub(super) fn refused(refused: Refused) -> Fault {
    let kind = match refused {
        Refused::Draining => FaultKind::Unavailable,
        _ => FaultKind::Overloaded,
    };
    Fault::new(kind, format!("mercure: {refused}"))
}
