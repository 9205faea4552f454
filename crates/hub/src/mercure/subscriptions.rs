//! Who subscribes: documents for those whose token allows it.
//!
//! `Mercure` hands requests for what is below `/subscriptions` here, where `mercure.subscriptions` is set:
//! all subscriptions, those to a topic, or one. What must stay true: a token names the address that it
//! opens; an answer has a bound, and is refused rather than cut.

use penstock_exchange::{Body, Fault, FaultKind, Request, Response};
use penstock_http::{Method, Status};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::Shared;
use super::access::Denied;
use super::answers;
use super::board::{CONTEXT, SUBSCRIPTIONS};
use super::query::Query;
use super::update::EARLIEST;

/// Subscriptions in one document.
const DOCUMENTS_MAX: usize = 10_000;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    All,
    Topic(String),
    One(String, String),
}

/// What follows the hub's own path in the path of a request for subscriptions. The paths of its route begin
/// with `base`, and the hub's is that or longer.
pub(super) fn below<'a>(path_query: &'a str, base: &str) -> Option<&'a str> {
    let (path, _) = path_query.split_once('?').unwrap_or((path_query, ""));
    // One that the route has rewritten, or that is spelled otherwise, is looked at whole.
    let own = path.strip_prefix(base).unwrap_or(path);
    let (_, rest) = own.split_once("/subscriptions")?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// Answers who asks for what is `below` the address of all.
pub(super) fn answer(shared: &Shared, request: &Request, below: &str) -> Result<Response, Fault> {
    let head = &request.head;
    let query = Query::parse(request.query().unwrap_or_default());
    let claims = match shared
        .access
        .subscriber(head, query.authorization.as_deref())
    {
        Ok(claims) => claims,
        Err(denied) => return Ok(answers::denied(&denied, head)),
    };
    let address = format!("{SUBSCRIPTIONS}{below}");
    if !claims.subscribe.matches(&address) {
        return Ok(answers::denied(&Denied::NotAllowed, head));
    }
    let Some(asked) = Asked::parse(below) else {
        return Ok(answers::text(Status::NOT_FOUND, "Not Found"));
    };
    let last_id = shared.board.last_id();
    let last_id: &str = last_id.as_deref().unwrap_or(EARLIEST);
    let found = match asked {
        Asked::One(topic, subscriber) => shared
            .board
            .with_roll(|roll| roll.document(&topic, &subscriber)),
        Asked::All => Some(collection(shared, &address, None)?),
        Asked::Topic(topic) => Some(collection(shared, &address, Some(&topic))?),
    };
    let Some(mut document) = found else {
        return Ok(answers::text(Status::NOT_FOUND, "Not Found"));
    };
    document["@context"] = CONTEXT.into();
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

fn collection(shared: &Shared, address: &str, topic: Option<&str>) -> Result<Value, Fault> {
    let documents = shared
        .board
        .with_roll(|roll| roll.documents(topic, DOCUMENTS_MAX + 1));
    if documents.len() > DOCUMENTS_MAX {
        let cause = format!("mercure: more than {DOCUMENTS_MAX} subscriptions in one answer");
        return Err(Fault::new(FaultKind::Overloaded, cause));
    }
    Ok(json!({
        "id": address,
        "type": "Subscriptions",
        "subscriptions": documents,
    }))
}

impl Asked {
    /// `/TOPIC/SUBSCRIBER`, each percent-encoded; `None` for what is neither.
    fn parse(below: &str) -> Option<Self> {
        let mut segments = below.split('/').skip(1);
        let mut next = || match segments.next() {
            None => Some(None),
            Some("") => None,
            Some(segment) => Some(Some(decode(segment)?)),
        };
        let (topic, subscriber, more) = (next()?, next()?, next()?);
        match (topic, subscriber, more) {
            (None, None, None) => Some(Self::All),
            (Some(topic), None, None) => Some(Self::Topic(topic)),
            (Some(topic), Some(subscriber), None) => Some(Self::One(topic, subscriber)),
            _ => None,
        }
    }
}

fn decode(segment: &str) -> Option<String> {
    let text = percent_decode_str(segment).decode_utf8().ok()?;
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_all_a_topic_or_one() {
        let (topic, one) = (
            |topic: &str| Some(Asked::Topic(topic.to_owned())),
            |topic: &str, id: &str| Some(Asked::One(topic.to_owned(), id.to_owned())),
        );
        for (path, expected) in [
            ("/.well-known/mercure/subscriptions", Some(Asked::All)),
            (
                "/.well-known/mercure/subscriptions?x=/subscriptions/a",
                Some(Asked::All),
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
            assert_eq!(below(path, "").and_then(Asked::parse), expected, "{path}");
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
            assert_eq!(below(path, base), expected, "{base} {path}");
        }
    }
}
