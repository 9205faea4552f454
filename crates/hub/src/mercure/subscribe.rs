//! Subscribing: a GET becomes a held stream of events.
//!
//! `Mercure` hands such requests here. What must stay true: who subscribes to what it may not see gets
//! nothing of it, now or from history; a stream does not outlive the token that opened it; history that is
//! more than a slow client may be behind comes in parts, each an ordinary answer, and nothing of it is left
//! out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{AddressPrefix, Body, Fault, FaultKind, Request, Response};
use penstock_http::{Method, Status};
use penstock_runtime::clock;

use super::Shared;
use super::answers::{self, refused};
use super::audiences::Wish;
use super::board::{Arrival, Start, Subscriber};
use super::query::Query;
use super::selector::{Selector, Selectors};
use crate::{HeldStream, KeepAlive, Refused, StreamForm, Subscription};

/// A comment, which means nothing to who reads events.
const COMMENT: &[u8] = b":\n\n";

/// The shortest life of a stream: its token may have ended just now.
const LIFETIME_MIN: Duration = Duration::from_secs(1);

/// Answers a subscriber.
pub(super) fn answer(shared: &Shared, request: &Request) -> Result<Response, Fault> {
    let head = &request.head;
    let query = Query::parse(request.query().unwrap_or_default());
    let in_query = query.authorization.as_deref();
    let claims = match shared.access.subscriber(head, in_query) {
        Ok(claims) => claims,
        Err(denied) => return Ok(answers::denied(&denied, head)),
    };
    let topics = match selectors(shared, &query) {
        Ok(topics) => topics,
        Err(refused) => return Ok(answers::text(Status::BAD_REQUEST, refused)),
    };
    if head.method() == Method::Head {
        return Ok(events(Body::Omitted(None)));
    }
    let header = head.field("last-event-id").filter(|id| !id.is_empty());
    let after = header.map(String::from_utf8_lossy).or(query.last_event_id);
    let lifetime = claims.lifetime(clock::wall());
    let texts = topics.iter().map(|topic| Arc::clone(topic.text()));
    let subscriber = (shared.has_subscriptions)
        .then(|| Arc::new(Subscriber::new(texts.collect(), claims.payload)));
    let client = request.client_state.limit_prefix();
    let arrival = Arrival {
        client,
        wish: Wish {
            topics: Selectors::new(topics),
            grants: claims.subscribe,
        },
        after: after.as_deref(),
        replay_bytes_max: shared.board.hub().settings().backlog_bytes,
        subscriber,
    };
    let joined = shared
        .board
        .join(arrival, |start| respond(shared, start, client, lifetime));
    let full = |full| Fault::new(FaultKind::Overloaded, format!("mercure: {full}"));
    match joined.map_err(full)? {
        Ok(response) => Ok(response),
        Err(error) => match shared.board.hub().come_back(head, &error) {
            Some(bytes) => Ok(events(Body::Bytes(bytes))),
            None => Err(refused(error)),
        },
    }
}

/// What a subscriber asks for, or what is wrong with it.
fn selectors(shared: &Shared, query: &Query<'_>) -> Result<Vec<Selector>, String> {
    if query.topics.is_empty() {
        return Err("Missing \"topic\" parameter".to_owned());
    }
    let max = shared.board.hub().settings().channels_per_stream;
    if query.topics.len() > max {
        return Err(format!(
            "More \"topic\" parameters than hub.channels_per_stream ({max})"
        ));
    }
    let selectors = query.topics.iter().map(|topic| Selector::new(topic));
    let selectors: Result<Vec<Selector>, _> = selectors.collect();
    selectors.map_err(|error| format!("Invalid \"topic\" parameter: {error}"))
}

fn respond(
    shared: &Shared,
    start: Start,
    client: Option<AddressPrefix>,
    lifetime: Option<Duration>,
) -> Result<Response, Refused> {
    let hub = shared.board.hub();
    let initial: Bytes = [COMMENT, &start.replay].concat().into();
    let body = match start.member {
        // The client comes back with the id of the last event in it, as after any end.
        None => Body::Bytes(initial),
        Some(member) => hub.body(HeldStream {
            subscriptions: vec![Subscription {
                channel: start.channel,
                ..Subscription::default()
            }],
            form: StreamForm::Events,
            keep_alive: Some(KeepAlive {
                bytes: Bytes::from_static(COMMENT),
                every: shared
                    .keep_alive
                    .unwrap_or_else(|| hub.settings().keep_alive),
                regardless: false,
            }),
            initial,
            ended: Some(member.until_ended()),
            lifetime: lifetime.map(|lifetime| lifetime.max(LIFETIME_MIN)),
            client,
            ..HeldStream::default()
        })?,
    };
    let mut response = events(body);
    if let Some(before) = start.before {
        // An id holds no control byte.
        let _ = response.fields.push("Last-Event-ID", before.as_bytes());
    }
    Ok(response)
}

/// A response of events that nobody on the way keeps or holds back.
fn events(body: Body) -> Response {
    let mut response = Response::new(Status::OK, body);
    let fields = &mut response.fields;
    fields.push_static("Content-Type", "text/event-stream");
    fields.push_static(
        "Cache-Control",
        "private, no-cache, no-store, must-revalidate, max-age=0",
    );
    fields.push_static("X-Accel-Buffering", "no");
    response
}
