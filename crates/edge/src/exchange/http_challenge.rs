//! Answers challenges of ACME over HTTP (RFC 8555 §8.3), whatever site and route they are for.

use std::sync::Arc;

use penstock_config::PathPattern;
use penstock_exchange::{
    Fault, FaultKind, Handler, HandlerProgress, HttpChallenges, Reply, Request, Response,
    SharedChallenges,
};
use penstock_http::{Method, RequestHead, Status};

use crate::router::{Route, RouteBodyLimits};

/// RFC 8555 §8.3.
const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// Longest token that is looked up; those of authorities have 43 bytes.
const MAX_TOKEN_BYTES: usize = 256;

/// The response to a request for a token that is pending here. Others go to their route.
pub(super) fn respond(challenges: &dyn HttpChallenges, head: &RequestHead) -> Option<Response> {
    let answer = challenges.key_authorization(token(head)?)?;
    Some(answer_with(answer))
}

fn answer_with(key_authorization: String) -> Response {
    Response::with_text(Status::OK, "application/octet-stream", key_authorization)
}

/// The token that a request asks for, if it is that of a challenge.
pub(super) fn token(head: &RequestHead) -> Option<&str> {
    let token = head.target_path_query().strip_prefix(CHALLENGE_PATH)?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_possible = head.method() == Method::Get
        && token.len() <= MAX_TOKEN_BYTES
        && token.bytes().all(is_token);
    is_possible.then_some(token)
}

/// The route of challenges that other servers have begun.
#[must_use]
pub fn shared_challenge_route(challenges: Arc<dyn SharedChallenges>) -> Route {
    Route {
        path: PathPattern::any(),
        conditions: None,
        is_internal: false,
        redirects_directories: false,
        body_limits: RouteBodyLimits::default(),
        filters: None,
        policy: None,
        observation: None,
        handlers: [Arc::new(SharedChallengeHandler(challenges)) as Arc<dyn Handler>].into(),
    }
}

/// Looks tokens up where the other servers have put them.
#[derive(Debug)]
struct SharedChallengeHandler(Arc<dyn SharedChallenges>);

impl Handler for SharedChallengeHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let token = token(&request.head).unwrap_or_default().to_owned();
        let lookup = self.0.find_key_authorization(token);
        HandlerProgress::Pending(Box::pin(async move {
            let found = lookup.await.ok_or_else(|| {
                Fault::new(FaultKind::NotFound, "no such challenge of ACME is pending")
            })?;
            Ok(Reply::from(answer_with(found)))
        }))
    }
}
