//! `POST /publish/`: messages for the hub from applications and their GRIP libraries.
//!
//! [`crate::AdminOperations`] knows the hub and the format of the items; `penstock`
//! implements it (`admin_backend`). The responses are those that
//! GRIP libraries expect: text, or JSON if `Accept` asks for it.
//!
//! # Invariants
//! - 200 means that all items of the body are on their way.
//! - A body is read no further than its limit.

use penstock_exchange::{Body, Fault, RequestBody, Response};
use penstock_http::{RequestHead, Status, accepts_media_type, prefers_media_type};

use crate::{AdminOperations, api, authorization};

/// Why an item was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The body is malformed: 400. The text names the item and the mistake.
    #[error("{0}")]
    Malformed(String),
    /// The publisher does not have the key of a namespace: 401.
    #[error("{0}")]
    Unauthorized(String),
    /// The publisher has the key, but the token is invalid or expired: 401.
    #[error("{0}")]
    InvalidToken(String),
    /// A message is too large: 413.
    #[error("{0}")]
    TooLarge(String),
    /// Messages arrive faster than they can be delivered: 429. The text begins with the first item
    /// that was refused, `items[3]: `.
    #[error("{0}")]
    RateLimited(String),
    /// The server cannot publish now: 503.
    #[error("{0}")]
    Unavailable(String),
}

/// The form of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Text,
    Json,
}

const JSON_TYPE: &str = "application/json";
const TEXT_TYPE: &str = "text/plain";

impl ResponseFormat {
    /// The form that the value of `Accept` permits; `None` if it permits neither.
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

/// The token of a request, in `Authorization` or else in the query, if it looks like the JSON Web
/// Token of an application: three parts separated by dots. An admin token may look like one.
pub(crate) fn publisher_token(head: &RequestHead) -> Option<&str> {
    let token = match authorization::bearer_token(head) {
        Some(token) => std::str::from_utf8(token).ok()?,
        None => {
            let (_, query) = head.target_path_query().split_once('?')?;
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix("token="))?
        }
    };
    (token.matches('.').count() == 2).then_some(token)
}

/// Reads and publishes the items of a body, only in `namespace` if there is one.
///
/// # Errors
/// The client disconnected or is too slow.
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
    let Some(items) = body.read_limited(max).await? else {
        let text = format!("more than {max} bytes\n");
        return Ok(api::text_response(Status::CONTENT_TOO_LARGE, text));
    };
    Ok(match source.publish(&items, namespace) {
        Ok(()) => success_response(form),
        Err(error) => error_response(&error),
    })
}

/// The response to a publisher whose items were refused.
pub(crate) fn error_response(error: &PublishError) -> Response {
    let status = match error {
        PublishError::Malformed(_) => Status::BAD_REQUEST,
        PublishError::Unauthorized(_) | PublishError::InvalidToken(_) => Status::UNAUTHORIZED,
        PublishError::TooLarge(_) => Status::CONTENT_TOO_LARGE,
        PublishError::RateLimited(_) => Status::TOO_MANY_REQUESTS,
        PublishError::Unavailable(_) => return api::unavailable_response(format!("{error}\n")),
    };
    api::with_retry_fields(api::text_response(status, format!("{error}\n")))
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
