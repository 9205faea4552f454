//! Answers challenges of ACME over HTTP (RFC 8555 §8.3), whatever site and route they are for.

use penstock_exchange::{HttpChallenges, Response};
use penstock_http::{Method, RequestHead, Status};

/// RFC 8555 §8.3.
const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// Longest token that is looked up; those of authorities have 43 bytes.
const MAX_TOKEN_BYTES: usize = 256;

/// The response to a request for a token that is pending here. Others go to their route.
pub(super) fn respond(challenges: &dyn HttpChallenges, head: &RequestHead) -> Option<Response> {
    let token = head.target_path_query().strip_prefix(CHALLENGE_PATH)?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if head.method() != Method::Get || token.len() > MAX_TOKEN_BYTES || !token.bytes().all(is_token)
    {
        return None;
    }
    let answer = challenges.key_authorization(token)?;
    Some(Response::with_text(
        Status::OK,
        "application/octet-stream",
        answer,
    ))
}
