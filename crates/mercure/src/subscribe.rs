//! Subscribing: a GET becomes a held stream of events.
//!
//! # Invariants
//! - A subscriber gets nothing of topics that it may not see, now or from history.
//! - A stream does not outlive the token that opened it.
//! - History that exceeds the bound of a backlog comes in parts, each an ordinary response, and
//!   none of it is left out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{AddressPrefix, Body, Fault, FaultKind, Request, Response};
use penstock_http::{Method, Status};
use penstock_hub::{HeldStream, HubError, StreamForm, Subscription, forbid_buffering};
use penstock_runtime::clock;

use crate::audiences::AudienceKey;
use crate::broker::{
    AudienceJoinRequest, AudienceMembership, JoinedSubscriber, ResumeAfter, Subscriber,
};
use crate::handler::MercureShared;
use crate::query::MercureQuery;
use crate::responses;
use crate::selector::{SelectorSet, TopicSelector};

/// A comment, which readers of events ignore.
const SSE_COMMENT: &[u8] = b":\n\n";

/// The shortest life of a stream: its token may have ended just now.
const MIN_LIFETIME: Duration = Duration::from_secs(1);

pub(super) fn handle_subscribe(
    shared: &MercureShared,
    request: &Request,
) -> Result<Response, Fault> {
    let head = &request.head;
    let query = MercureQuery::parse(request.query().unwrap_or_default());
    let in_query = query.authorization.as_deref();
    let claims = match shared.access.authorize_subscriber(head, in_query) {
        Ok(claims) => claims,
        Err(denied) => return Ok(responses::denied_response(&denied, head)),
    };
    let topics = match parse_selectors(shared, &query) {
        Ok(topics) => topics,
        Err(refused) => return Ok(responses::text_line_response(Status::BAD_REQUEST, refused)),
    };
    if head.method() == Method::Head {
        return Ok(event_stream_response(Body::Omitted(None)));
    }
    let header = head.field("last-event-id").filter(|id| !id.is_empty());
    let in_query = query.last_event_id.filter(|id| !id.is_empty());
    let after = header.map(String::from_utf8_lossy).or(in_query);
    let lifetime = claims.remaining_lifetime(clock::wall_time());
    let texts = topics.iter().map(|topic| Arc::clone(topic.selector_text()));
    let subscriber = (shared.has_subscriptions_api)
        .then(|| Arc::new(Subscriber::new(texts.collect(), claims.payload)));
    let client = request.client_state.counted_address_prefix();
    let arrival = AudienceJoinRequest {
        client,
        key: AudienceKey {
            topics: SelectorSet::new(topics),
            grants: claims.subscribe,
        },
        resume_after: after.as_deref().map(ResumeAfter::Update),
        max_replay_bytes: shared.broker.hub().settings().max_backlog,
        subscriber,
        is_new: true,
    };
    let joined = shared.broker.join(arrival, |start, membership| {
        start_response(shared, start, membership, client, lifetime)
    });
    let full = |full| Fault::new(FaultKind::Overloaded, format!("mercure: {full}"));
    match joined.map_err(full)? {
        Ok(response) => Ok(response),
        Err(error) => {
            let hub = shared.broker.hub();
            match hub.refused_stream_body(head, client, &error) {
                Some(body) => Ok(event_stream_response(body)),
                None => Err(error.into()),
            }
        }
    }
}

/// The topics of a subscriber, or the error in them.
fn parse_selectors(
    shared: &MercureShared,
    query: &MercureQuery<'_>,
) -> Result<Vec<TopicSelector>, String> {
    if query.topics.is_empty() {
        return Err("Missing \"topic\" parameter".to_owned());
    }
    let max = shared.broker.hub().settings().max_channels_per_stream;
    if query.topics.len() > max {
        return Err(format!(
            "More \"topic\" parameters than hub.max_channels_per_stream ({max})"
        ));
    }
    let selectors = query.topics.iter().map(|topic| TopicSelector::new(topic));
    let selectors: Result<Vec<TopicSelector>, _> = selectors.collect();
    selectors.map_err(|error| format!("Invalid \"topic\" parameter: {error}"))
}

fn start_response(
    shared: &MercureShared,
    start: JoinedSubscriber,
    membership: Option<AudienceMembership>,
    client: Option<AddressPrefix>,
    lifetime: Option<Duration>,
) -> Result<Response, HubError> {
    let hub = shared.broker.hub();
    let initial: Bytes = [SSE_COMMENT, &start.replay].concat().into();
    let body = match membership {
        // The client comes back with the id of the last event in it, as after any end.
        None => Body::Bytes(initial),
        Some(membership) => hub.stream_body(HeldStream {
            subscriptions: vec![Subscription {
                channel: start.channel,
                ..Subscription::default()
            }],
            message_format: StreamForm::Events,
            keep_alive: Some(
                hub.event_heartbeat(shared.heartbeat_event.as_deref(), shared.heartbeat_interval),
            ),
            initial_bytes: initial,
            on_end: Some(membership.into_end_callback()),
            max_lifetime: lifetime.map(|lifetime| lifetime.max(MIN_LIFETIME)),
            client,
            ..HeldStream::default()
        })?,
    };
    let mut response = event_stream_response(body);
    if let Some(before) = start.previous_id {
        // An id holds no control byte.
        let _ = response.fields.push("Last-Event-ID", before.as_bytes());
    }
    Ok(response)
}

/// A response of events that no proxy stores or buffers.
fn event_stream_response(body: Body) -> Response {
    let mut response = Response::new(Status::OK, body);
    let fields = &mut response.fields;
    fields.push_static("Content-Type", "text/event-stream");
    fields.push_static(
        "Cache-Control",
        "private, no-cache, no-store, must-revalidate, max-age=0",
    );
    forbid_buffering(fields);
    response
}
