//! Messages for the hub: `POST /publish/`, where applications and their GRIP libraries send them.
//!
//! `api` hands the request's body and `Accept` here; [`crate::AdminOperations`] knows the hub and the format of
//! the items, this file knows neither. The answers are those that the libraries of this protocol know:
//! text, or JSON for who asks for it. What must stay true: 200 is said once everything in the body is
//! on its way, and a body is read no further than to its bound.

use penstock_exchange::{Body, Fault, RequestBody, Response};
use penstock_http::{RequestHead, Status, accepts_media_type, prefers_media_type};

use crate::{AdminOperations, api, authority, server_changes};

/// Why something was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// It is not understood: 400. The text says which item, and what of it.
    #[error("{0}")]
    Malformed(String),
    /// The publisher has not the key of a namespace: 401.
    #[error("{0}")]
    Unauthorized(String),
    /// It has the key, and its token is not valid, or not now: 401.
    #[error("{0}")]
    Invalid(String),
    /// A message is longer than messages may be: 413.
    #[error("{0}")]
    TooLarge(String),
    /// Faster than it can be delivered: 429. The text begins with the first item that was not taken,
    /// `items[3]: `.
    #[error("{0}")]
    TooFast(String),
    /// It cannot be taken now: 503.
    #[error("{0}")]
    Rejected(String),
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Text,
    Json,
}

const JSON_TYPE: &str = "application/json";
const TEXT_TYPE: &str = "text/plain";

impl ResponseFormat {
    /// What the value of `Accept` lets an answer be; `None` when it allows neither form.
    pub(crate) fn from_accept(accept: Option<&[u8]>) -> Option<Self> {
        if prefers_media_type(accept, JSON_TYPE, TEXT_TYPE) {
            return Some(Self::Json);
        }
        match (
            accepts_media_type(accept, TEXT_TYPE),
            accepts_media_type(accept, JSON_TYPE),
        ) {
            (true, _) => Some(Self::Text),
            (false, true) => Some(Self::Json),
            (false, false) => None,
        }
    }
}

/// What may be the JSON Web Token by which applications publish, of the one token that a request
/// sends: three parts with dots between them. An administrator's token may look like one.
pub(crate) fn bearer_jwt(head: &RequestHead) -> Option<String> {
    let token = std::str::from_utf8(authority::bearer_token(head)?).ok()?;
    (token.matches('.').count() == 2).then(|| token.to_owned())
}

/// Reads what is to be published, and has it done: in that namespace only, if there is one.
///
/// # Errors
/// The client's: gone, or too slow.
pub(crate) async fn handle_publish(
    source: &dyn AdminOperations,
    form: Option<ResponseFormat>,
    namespace: Option<&str>,
    body: RequestBody,
) -> Result<Response, Fault> {
    let Some(form) = form else {
        let text = "the answer is text/plain or application/json\n";
        return Ok(api::text_response(Status::NOT_ACCEPTABLE, text));
    };
    let max = source.max_publish_bytes();
    let Ok(items) = server_changes::read_body_within(body, max).await? else {
        let text = format!("more than {max} bytes\n");
        return Ok(api::text_response(Status::CONTENT_TOO_LARGE, text));
    };
    Ok(match source.publish(&items, namespace) {
        Ok(()) => success_response(form),
        Err(error) => error_response(&error),
    })
}

/// The answer to a publisher whose items were not taken.
pub(crate) fn error_response(error: &PublishError) -> Response {
    let status = match error {
        PublishError::Malformed(_) => Status::BAD_REQUEST,
        PublishError::Unauthorized(_) | PublishError::Invalid(_) => Status::UNAUTHORIZED,
        PublishError::TooLarge(_) => Status::CONTENT_TOO_LARGE,
        PublishError::TooFast(_) => Status::TOO_MANY_REQUESTS,
        PublishError::Rejected(_) => return api::unavailable_response(format!("{error}\n")),
    };
    let mut response = api::text_response(status, format!("{error}\n"));
    match status {
        Status::TOO_MANY_REQUESTS => response.fields.push_static("Retry-After", "1"),
        Status::UNAUTHORIZED => response
            .fields
            .push_static("WWW-Authenticate", "Bearer realm=\"penstock\""),
        _ => {}
    }
    response
}

fn success_response(form: ResponseFormat) -> Response {
    match form {
        ResponseFormat::Text => api::text_response(Status::OK, "Published\n"),
        ResponseFormat::Json => {
            let body = Body::Bytes(b"{\"message\":\"Published\"}\n".as_slice().into());
            api::build_response(Status::OK, JSON_TYPE, body)
        }
    }
}

#[cfg(test)]
mod tests;
