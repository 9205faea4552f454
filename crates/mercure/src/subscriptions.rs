//! The subscriptions API: documents about subscribers, for clients with a token that allows it.
//!
//! Handles requests below `/subscriptions` where `mercure.subscriptions` is set: all
//! subscriptions, those to a topic, or one.
//!
//! # Invariants
//! - A token names the address that it opens.
//! - A response has a bound, and is refused rather than cut.

use penstock_exchange::{Body, Fault, FaultKind, Request, Response};
use penstock_http::{Method, Status};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::access::AccessDenied;
use crate::broker::{JSON_LD_CONTEXT, SUBSCRIPTIONS_PATH};
use crate::handler::MercureShared;
use crate::query::MercureQuery;
use crate::responses;
use crate::update::EARLIEST_ID;

/// Subscriptions in one document.
const MAX_DOCUMENTS: usize = 10_000;

/// The requested document.
#[derive(Debug, PartialEq, Eq)]
enum SubscriptionsPath {
    All,
    Topic(String),
    Subscription(String, String),
}

/// What follows the hub's own path in the path of a request for subscriptions. The paths of its
/// route begin with `base`, and the hub's is that or longer.
pub(super) fn path_below_subscriptions<'a>(path_query: &'a str, base: &str) -> Option<&'a str> {
    let (path, _) = path_query.split_once('?').unwrap_or((path_query, ""));
    // One that the route has rewritten, or that is spelled otherwise, is looked at whole.
    let own = path.strip_prefix(base).unwrap_or(path);
    let (_, rest) = own.split_once("/subscriptions")?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// Handles a request for the path `below` the address of all subscriptions.
pub(super) fn handle_subscriptions(
    shared: &MercureShared,
    request: &Request,
    below: &str,
) -> Result<Response, Fault> {
    let head = &request.head;
    let query = MercureQuery::parse(request.query().unwrap_or_default());
    let claims = match shared
        .access
        .authorize_subscriber(head, query.authorization.as_deref())
    {
        Ok(claims) => claims,
        Err(denied) => return Ok(responses::denied_response(&denied, head)),
    };
    let address = format!("{SUBSCRIPTIONS_PATH}{below}");
    if !claims.subscribe.matches(&address) {
        return Ok(responses::denied_response(&AccessDenied::NotAllowed, head));
    }
    let Some(asked) = SubscriptionsPath::parse(below) else {
        return Ok(responses::text_line(Status::NOT_FOUND, "Not Found"));
    };
    let last_id = shared.broker.last_id();
    let last_id: &str = last_id.as_deref().unwrap_or(EARLIEST_ID);
    let found = match asked {
        SubscriptionsPath::Subscription(topic, subscriber) => shared
            .broker
            .with_subscriptions(|roll| roll.document(&topic, &subscriber)),
        SubscriptionsPath::All => Some(subscriptions_document(shared, &address, None)?),
        SubscriptionsPath::Topic(topic) => {
            Some(subscriptions_document(shared, &address, Some(&topic))?)
        }
    };
    let Some(mut document) = found else {
        return Ok(responses::text_line(Status::NOT_FOUND, "Not Found"));
    };
    document["@context"] = JSON_LD_CONTEXT.into();
    document["lastEventID"] = last_id.into();
    let text = document.to_string();
    let body = match head.method() {
        Method::Head => Body::Omitted(Some(text.len() as u64)),
        _ => Body::Bytes(text.into()),
    };
    let mut response = Response::new(Status::OK, body);
    let fields = &mut response.fields;
    fields.push_static("Content-Type", "application/ld+json");
    fields.push_static("Cache-Control", "private, no-cache");
    Ok(response)
}

fn subscriptions_document(
    shared: &MercureShared,
    address: &str,
    topic: Option<&str>,
) -> Result<Value, Fault> {
    let documents = shared
        .broker
        .with_subscriptions(|roll| roll.documents(topic, MAX_DOCUMENTS + 1));
    if documents.len() > MAX_DOCUMENTS {
        let cause = format!("mercure: more than {MAX_DOCUMENTS} subscriptions in one answer");
        return Err(Fault::new(FaultKind::Overloaded, cause));
    }
    Ok(json!({
        "id": address,
        "type": "Subscriptions",
        "subscriptions": documents,
    }))
}

impl SubscriptionsPath {
    /// `/TOPIC/SUBSCRIBER`, each percent-encoded; `None` for any other path.
    fn parse(below: &str) -> Option<Self> {
        let mut segments = below.split('/').skip(1);
        let mut next = || match segments.next() {
            None => Some(None),
            Some("") => None,
            Some(segment) => Some(Some(percent_decode(segment)?)),
        };
        let (topic, subscriber, more) = (next()?, next()?, next()?);
        match (topic, subscriber, more) {
            (None, None, None) => Some(Self::All),
            (Some(topic), None, None) => Some(Self::Topic(topic)),
            (Some(topic), Some(subscriber), None) => Some(Self::Subscription(topic, subscriber)),
            _ => None,
        }
    }
}

fn percent_decode(segment: &str) -> Option<String> {
    let text = percent_decode_str(segment).decode_utf8().ok()?;
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_all_a_topic_or_one() {
        let (topic, one) = (
            |topic: &str| Some(SubscriptionsPath::Topic(topic.to_owned())),
            |topic: &str, id: &str| {
                Some(SubscriptionsPath::Subscription(
                    topic.to_owned(),
                    id.to_owned(),
                ))
            },
        );
        for (path, expected) in [
            (
                "/.well-known/mercure/subscriptions",
                Some(SubscriptionsPath::All),
            ),
            (
                "/.well-known/mercure/subscriptions?x=/subscriptions/a",
                Some(SubscriptionsPath::All),
            ),
            ("/hub/subscriptions/a", topic("a")),
            (
                "/hub/subscriptions/https%3A%2F%2Fa%2Fb%7Bid%7D/urn%3Auuid%3A1",
                one("https://a/b{id}", "urn:uuid:1"),
            ),
            ("/hub/subscriptions/a/b/c", None),
            ("/hub/subscriptions/", None),
            ("/hub/subscriptions//b", None),
            ("/hub/subscriptions/%FF", None),
            ("/hub/subscriptionsx", None),
            ("/hub", None),
            ("/hub?a=/subscriptions", None),
        ] {
            assert_eq!(
                path_below_subscriptions(path, "").and_then(SubscriptionsPath::parse),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn what_its_route_begins_with_is_none_of_it() {
        for (base, path, expected) in [
            ("/api/subscriptions/hub", "/api/subscriptions/hub", None),
            ("/api/subscriptions/hub", "/api/subscriptions/hub?a", None),
            ("/api/subscriptions", "/api/subscriptions/hub", None),
            (
                "/api/subscriptions",
                "/api/subscriptions/hub/subscriptions/subscriptions",
                Some("/subscriptions"),
            ),
            ("/hub", "/hub/subscriptions/a", Some("/a")),
            ("/public", "/hub/subscriptions", Some("")),
        ] {
            assert_eq!(
                path_below_subscriptions(path, base),
                expected,
                "{base} {path}"
            );
        }
    }
}
