//! Refused requests: their status, and the rest of the responses.

use std::sync::Arc;

use penstock_config::{MercureKey, MercureKeys};
use penstock_exchange::RequestBody;
use penstock_exchange::{Body, FaultKind};
use penstock_hub::{HubError, Settings, TransferParticipant};
use serde_json::json;

use super::harness::{MercureHarness, field, post, text};
use crate::tests::fixtures::{
    ChunkedBody, PUBLISHER_KEY, SUBSCRIBERS_KEY, no_key_sets, publisher_token, request, settings,
    sign_token, sign_token_with_header, subscriber_token,
};

#[test]
fn invalid_publications_are_refused_with_a_reason() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let all = bearer(&publisher_token(&["*"]));
    let some = bearer(&publisher_token(&["/a/{id}"]));
    let public = bearer(&publisher_token(&[]));
    let nothing = bearer(&sign_token(PUBLISHER_KEY, &json!({ "mercure": {} })));
    let foreign = bearer(&subscriber_token(&["*"]));
    let none = bearer(&sign_token_with_header(
        "",
        &json!({ "alg": "none" }),
        &json!({}),
    ));
    let expired = bearer(&sign_token(
        PUBLISHER_KEY,
        &json!({ "exp": 1, "mercure": { "publish": ["*"] } }),
    ));
    let cookie = format!("Cookie: mercureAuthorization={}", publisher_token(&["*"]));
    let large = format!("topic=a&data={}", "a".repeat(2 << 20));
    let huge = format!("topic=a&data={}", "a".repeat(10 << 20));
    for (fields, form, status, answer) in [
        (&[][..], "topic=a", 401, "Unauthorized"),
        (
            &["Authorization: Bearer x.y.z"],
            "topic=a",
            401,
            "Unauthorized",
        ),
        (&[&*foreign], "topic=a", 401, "Unauthorized"),
        (&[&*none], "topic=a", 401, "Unauthorized"),
        (&[&*expired], "topic=a", 401, "Unauthorized"),
        (&[&*nothing], "topic=a", 403, "Forbidden"),
        (&[&*cookie], "topic=a", 403, "Forbidden"),
        (&[&*some], "topic=/a/1&topic=/b", 403, "Forbidden"),
        (&[&*some], "topic=/a/1/2", 403, "Forbidden"),
        (&[&*public], "topic=a&private=on", 403, "Forbidden"),
        (&[&*all], "data=1", 400, "Missing \"topic\" parameter"),
        (
            &[&*all],
            "topic=a&retry=x",
            400,
            "Invalid \"retry\" parameter",
        ),
        (&[&*all], "topic=a&id=%0A", 400, "Invalid \"id\" parameter"),
        (
            &[&*all],
            "topic=a&id=earliest",
            400,
            "Invalid \"id\" parameter",
        ),
        (
            &[&*all],
            &large,
            413,
            "An update may have hub.max_message_size (1048576) bytes",
        ),
        (
            &[&*all],
            &huge,
            413,
            "An update may have hub.max_message_size (1048576) bytes",
        ),
        (&[&*all], "topic=a&id=7", 200, "7"),
        (&[&*some], "topic=/a/1&topic=/a/2&id=8&private=on", 200, "8"),
        (&[&*public], "topic=anything&id=9", 200, "9"),
        (
            &[&*cookie, "Origin: https://page.example"],
            "topic=a&id=10",
            200,
            "10",
        ),
    ] {
        let response = harness.request(&mercure, post(fields, form)).unwrap();
        let head: String = form.chars().take(40).collect();
        let name = format!("{fields:?} {head}");
        assert_eq!(
            response.status.code(),
            status,
            "{name}: {}",
            text(&response)
        );
        assert!(
            text(&response).starts_with(answer),
            "{name}: {}",
            text(&response)
        );
        let challenge = field(&response, "www-authenticate");
        assert_eq!(challenge.is_some(), status == 401, "{name}");
        assert_eq!(
            response.timing.handler.as_deref(),
            Some("mercure"),
            "{name}"
        );
    }
    let id = harness.publish(&mercure, "topic=a");
    assert!(id.starts_with("urn:uuid:"), "{id}");
    assert_eq!(
        harness.hub.snapshot().counters.published,
        0,
        "nobody is there"
    );
}

#[test]
fn a_body_that_hides_its_length_is_bounded_as_well() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let token = format!("Authorization: Bearer {}", publisher_token(&["*"]));
    let mut request = post(&[&token], "");
    request.body = RequestBody::Incoming(Box::new(ChunkedBody {
        remaining: vec![b'a'; 10 << 20],
        length: None,
    }));
    let response = harness.request(&mercure, request).unwrap();
    assert_eq!(response.status.code(), 413);
}

#[test]
fn only_forms_are_read() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let token = format!("Authorization: Bearer {}", publisher_token(&["*"]));
    for (content_type, status) in [
        ("Content-Type: application/json", 415),
        ("Content-Type: multipart/form-data; boundary=x", 415),
        ("X-Nothing: x", 415),
        (
            "Content-Type: APPLICATION/X-WWW-Form-urlencoded ; charset=utf-8",
            200,
        ),
    ] {
        let fields = [&*token, content_type, "Content-Length: 7"];
        let request = request("POST /.well-known/mercure", &fields, Some("topic=a"));
        let response = harness.request(&mercure, request).unwrap();
        assert_eq!(response.status.code(), status, "{content_type}");
    }
}

#[test]
fn invalid_subscriptions_are_refused_with_a_reason() {
    let harness = MercureHarness::new();
    let open = harness.default_handler();
    let closed = harness.handler_with(|settings| settings.anonymous = false);
    let many = "topic=a&".repeat(1000);
    let long = format!("topic={}", "a".repeat(100_000));
    let complex = format!("topic={}", "%7Ba%7D".repeat(33));
    for (mercure, query, status, answer) in [
        (&open, "", 400, "Missing \"topic\" parameter"),
        (&open, "Topic=a", 400, "Missing \"topic\" parameter"),
        (
            &open,
            "topic=",
            400,
            "Invalid \"topic\" parameter: a topic is empty",
        ),
        (
            &open,
            &*many,
            400,
            "More \"topic\" parameters than hub.max_channels_per_stream (20)",
        ),
        (
            &open,
            &*long,
            400,
            "Invalid \"topic\" parameter: a topic is longer",
        ),
        (
            &open,
            &*complex,
            400,
            "Invalid \"topic\" parameter: a topic's template",
        ),
        (&open, "topic=a&authorization=x", 401, "Unauthorized"),
        (&closed, "topic=a", 401, "Unauthorized"),
    ] {
        let request = request(&format!("GET /.well-known/mercure?{query}"), &[], None);
        let response = harness.request(mercure, request).unwrap();
        let name: String = query.chars().take(40).collect();
        assert_eq!(response.status.code(), status, "{name}");
        assert!(
            text(&response).starts_with(answer),
            "{name}: {}",
            text(&response)
        );
    }
    assert_eq!(harness.hub.snapshot().streams, 0);
}

#[test]
fn other_methods_and_pages_of_other_origins() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    for (line, status, allow) in [
        (
            "PUT /.well-known/mercure",
            405,
            Some("GET, HEAD, POST, OPTIONS"),
        ),
        (
            "DELETE /.well-known/mercure?topic=a",
            405,
            Some("GET, HEAD, POST, OPTIONS"),
        ),
        ("OPTIONS /.well-known/mercure", 204, None),
        ("HEAD /.well-known/mercure?topic=a", 200, None),
        ("GET /.well-known/mercure/subscriptions", 404, None),
    ] {
        for (origin, allowed) in [
            ("https://page.example", Some("https://page.example")),
            ("https://evil.example", None),
        ] {
            let origin = format!("Origin: {origin}");
            let response = harness
                .request(&mercure, request(line, &[&origin], None))
                .unwrap();
            assert_eq!(response.status.code(), status, "{line}");
            assert_eq!(field(&response, "allow"), allow, "{line}");
            assert_eq!(
                field(&response, "access-control-allow-origin"),
                allowed,
                "{line}"
            );
        }
    }
    let head = request("HEAD /.well-known/mercure?topic=a", &[], None);
    let response = harness.request(&mercure, head).unwrap();
    assert!(
        matches!(response.body, Body::Omitted(None)),
        "{:?}",
        response.body
    );
    assert_eq!(field(&response, "content-type"), Some("text/event-stream"));
}

#[test]
fn a_hub_without_room_is_a_503() {
    let harness = MercureHarness::with(Settings {
        max_streams: Some(1),
        ..Settings::default()
    });
    let mercure = harness.default_handler();
    let _first = harness.subscribe(&mercure, "topic=a");
    let second = request("GET /.well-known/mercure?topic=b", &[], None);
    let fault = harness.request(&mercure, second).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Overloaded);
    assert_eq!(
        mercure.shared.broker.audience_count(),
        1,
        "its place was given back"
    );
}

#[test]
fn an_update_that_the_next_process_has_no_room_for_is_a_503() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let mut client = harness.subscribe(&mercure, "topic=a");
    // More than may wait for the other process, then an end of the transfer.
    let full = |_| Err(HubError::DeliveryBacklogFull(1));
    harness.mercure_hubs.begin_transfer(Arc::new(full));
    let token = format!("Authorization: Bearer {}", publisher_token(&["*"]));
    let update = || post(&[&token], "topic=a&data=one");
    let fault = harness.request(&mercure, update()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Overloaded);
    assert!(
        fault.cause.contains("wait to be handed out"),
        "{}",
        fault.cause
    );
    harness.mercure_hubs.cancel_transfer();
    harness.publish(&mercure, "topic=a&data=two");
    let events = client.events(1);
    assert!(events[0].contains("data: two"), "{events:?}");
}

#[test]
fn keys_that_cannot_be_used_are_named() {
    let harness = MercureHarness::new();
    let mut settings = settings();
    settings.subscriber_key = Some(MercureKeys::Single(MercureKey {
        key: SUBSCRIBERS_KEY.into(),
        algorithm: "RS256".to_owned(),
    }));
    let error = harness
        .mercure_hubs
        .handler_for_route("b", &settings, no_key_sets)
        .unwrap_err();
    assert!(
        error.starts_with("mercure.subscriber_key: RS256 needs"),
        "{error}"
    );
    assert!(
        crate::MercureHubs::new(harness.hub.clone())
            .handler_for_route("/", &settings, no_key_sets)
            .is_err()
    );
}
