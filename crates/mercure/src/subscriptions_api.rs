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
    let Some((topic, subscriber)) = parse_path(below) else {
        return Ok(responses::text_line_response(
            Status::NOT_FOUND,
            "Not Found",
        ));
    };
    let last_id = shared.broker.last_update_id();
    let last_id: &str = last_id.as_deref().unwrap_or(EARLIEST_ID);
    let found = match (&topic, &subscriber) {
        (Some(topic), Some(subscriber)) => shared
            .broker
            .with_subscriptions(|roll| roll.find_subscription_document(topic, subscriber)),
        _ => Some(subscriptions_document(shared, &address, topic.as_deref())?),
    };
    let Some(mut document) = found else {
        return Ok(responses::text_line_response(
            Status::NOT_FOUND,
            "Not Found",
        ));
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
        .with_subscriptions(|roll| roll.subscription_documents(topic, MAX_DOCUMENTS + 1));
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

/// What `/TOPIC/SUBSCRIBER` names, each percent-encoded; `None` for any other path.
fn parse_path(below: &str) -> Option<(Option<String>, Option<String>)> {
    let names = below.split('/').skip(1).map(|segment| {
        let name = percent_decode_str(segment).decode_utf8().ok()?;
        (!name.is_empty()).then(|| name.into_owned())
    });
    let mut names = names.collect::<Option<Vec<_>>>()?.into_iter();
    let named = (names.next(), names.next());
    names.next().is_none().then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_all_a_topic_or_one() {
        let named = |topic: Option<&str>, id: Option<&str>| {
            Some((topic.map(str::to_owned), id.map(str::to_owned)))
        };
        let all = named(None, None);
        for (path, expected) in [
            ("/.well-known/mercure/subscriptions", all.clone()),
            ("/.well-known/mercure/subscriptions?x=/subscriptions/a", all),
            ("/hub/subscriptions/a", named(Some("a"), None)),
            (
                "/hub/subscriptions/https%3A%2F%2Fa%2Fb%7Bid%7D/urn%3Auuid%3A1",
                named(Some("https://a/b{id}"), Some("urn:uuid:1")),
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
                path_below_subscriptions(path, "").and_then(parse_path),
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
