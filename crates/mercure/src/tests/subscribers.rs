//! Subscriptions: their announcements, and the API that lists them.

use penstock_config::PathPattern;
use serde_json::{Value, json};

use super::harness::{
    EventStreamClient, MercureHarness, field, handle_request, hold, text, wait_until,
};
use crate::MercureHandler;
use crate::tests::fixtures::{
    SUBSCRIBERS_KEY, publisher_token, request, sign_token, subscriber_token,
};

const ALL: &str = "/.well-known/mercure/subscriptions";

fn route(harness: &MercureHarness) -> MercureHandler {
    harness.handler_with(|settings| settings.subscriptions = true)
}

fn ask(
    harness: &MercureHarness,
    mercure: &MercureHandler,
    path: &str,
    grants: &[&str],
) -> (u16, Value) {
    let token = format!("Authorization: Bearer {}", subscriber_token(grants));
    let response = harness
        .request(mercure, request(&format!("GET {path}"), &[&token], None))
        .unwrap();
    let status = response.status.code();
    if status != 200 {
        return (status, Value::Null);
    }
    assert_eq!(
        field(&response, "content-type"),
        Some("application/ld+json")
    );
    (status, serde_json::from_str(&text(&response)).unwrap())
}

/// The documents in events.
fn documents(events: &[String]) -> Vec<Value> {
    let data = events.iter().flat_map(|event| event.lines());
    let data = data.filter_map(|line| line.strip_prefix("data: "));
    data.map(|text| serde_json::from_str(text).unwrap())
        .collect()
}

fn watcher(harness: &MercureHarness, mercure: &MercureHandler) -> EventStreamClient {
    let grants = [&*format!("{ALL}/{{topic}}/{{subscriber}}")];
    let token = format!("Authorization: Bearer {}", subscriber_token(&grants));
    let query = format!("topic={ALL}/%7Btopic%7D/%7Bsubscriber%7D");
    let mut client = harness.subscribe_on(0, mercure, &query, &[&token]).1;
    // It hears of itself first.
    let own = documents(&client.events(1));
    assert_eq!(own[0]["active"], json!(true));
    client
}

#[test]
fn subscription_changes_are_announced_to_authorized_subscribers() {
    let harness = MercureHarness::new();
    let mercure = route(&harness);
    let mut watcher = watcher(&harness, &mercure);
    let mut stranger = harness.subscribe(&mercure, "topic=*");
    watcher.events(1);
    let claims = json!({ "mercure": { "payload": { "user": 7 } } });
    let token = format!(
        "Authorization: Bearer {}",
        sign_token(SUBSCRIBERS_KEY, &claims)
    );
    let topic = "https://example.com/a/{id}";
    let query = "topic=https%3A%2F%2Fexample.com%2Fa%2F%7Bid%7D&topic=b&topic=b";
    let client = harness.subscribe_on(1, &mercure, query, &[&token]).1;
    let came = documents(&watcher.events(2));
    assert_eq!(came[0]["topic"], json!("b"));
    let about = &came[1];
    let id = about["subscriber"].as_str().unwrap();
    assert!(id.starts_with("urn:uuid:"), "{about}");
    let escaped = id.replace(':', "%3A");
    let address = format!("{ALL}/https%3A%2F%2Fexample.com%2Fa%2F%7Bid%7D/{escaped}");
    assert_eq!(
        *about,
        json!({
            "@context": "https://mercure.rocks/",
            "id": address,
            "type": "Subscription",
            "subscriber": id,
            "topic": topic,
            "active": true,
            "payload": { "user": 7 },
        })
    );
    drop(client);
    let went = documents(&watcher.events(2));
    assert_eq!(
        (&went[1]["id"], &went[1]["active"]),
        (&about["id"], &json!(false))
    );
    harness.publish(&mercure, "topic=end&id=end");
    assert_eq!(stranger.ids_until("end"), ["end"]);
}

#[test]
fn subscriptions_are_shown_to_whose_token_names_the_address() {
    let harness = MercureHarness::new();
    let mercure = route(&harness);
    let (status, empty) = ask(&harness, &mercure, ALL, &[ALL]);
    assert_eq!((status, &empty["lastEventID"]), (200, &json!("earliest")));
    assert_eq!(empty["subscriptions"], json!([]));
    let _first = harness.subscribe(&mercure, "topic=a&topic=b");
    let second = harness.subscribe(&mercure, "topic=a");
    let (_, all) = ask(&harness, &mercure, ALL, &["*"]);
    assert_eq!(all["id"], json!(ALL));
    assert_eq!(all["type"], json!("Subscriptions"));
    assert_ne!(all["lastEventID"], json!("earliest"));
    assert_eq!(all["subscriptions"].as_array().unwrap().len(), 3, "{all}");
    let of_a = format!("{ALL}/a");
    let (_, some) = ask(
        &harness,
        &mercure,
        &format!("{of_a}?x=1"),
        &[&format!("{ALL}{{/topic}}")],
    );
    let some = some["subscriptions"].as_array().unwrap().clone();
    assert_eq!(some.len(), 2);
    assert!(
        some.iter().all(|each| each["topic"] == json!("a")),
        "{some:?}"
    );
    let one = some[0]["id"].as_str().unwrap();
    let (status, document) = ask(&harness, &mercure, one, &[one]);
    assert_eq!((status, &document["id"]), (200, &some[0]["id"]));
    assert_eq!(document["active"], json!(true));
    for (path, grants, status) in [
        (ALL, &[][..], 403),
        (ALL, &[&*of_a], 403),
        (&*of_a, &[ALL], 403),
        ("/.well-known/mercure/subscriptions/c", &["*"], 200),
        ("/.well-known/mercure/subscriptions/a/nobody", &["*"], 404),
        ("/.well-known/mercure/subscriptions/a/b/c", &["*"], 404),
    ] {
        assert_eq!(
            ask(&harness, &mercure, path, grants).0,
            status,
            "{path} {grants:?}"
        );
    }
    let anonymous = harness
        .request(&mercure, request(&format!("GET {ALL}"), &[], None))
        .unwrap();
    assert_eq!(anonymous.status.code(), 403);
    let post = harness
        .request(&mercure, request(&format!("POST {ALL}"), &[], Some("x")))
        .unwrap();
    assert_eq!(post.status.code(), 405);
    drop(second);
    wait_until("it has left", || {
        let (_, all) = ask(&harness, &mercure, ALL, &["*"]);
        all["subscriptions"].as_array().unwrap().len() == 2
    });
}

#[test]
fn a_hub_may_be_mounted_below_a_path_named_subscriptions() {
    const PATH: &str = "/api/subscriptions/hub";
    let harness = MercureHarness::new();
    let mercure = route(&harness).with_base_path(&PathPattern::Exact(PATH.to_owned()));
    let get = request(&format!("GET {PATH}?topic=a"), &[], None);
    let (response, mut client) = harness.run_on_loop(0, {
        let mercure = mercure.clone();
        async move { hold(handle_request(mercure, get).await.unwrap()) }
    });
    assert_eq!(response.status.code(), 200);
    let token = format!("Authorization: Bearer {}", publisher_token(&["*"]));
    let fields = [
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Length: 12",
        &token,
    ];
    let post = request(&format!("POST {PATH}"), &fields, Some("topic=a&id=1"));
    assert_eq!(harness.request(&mercure, post).unwrap().status.code(), 200);
    assert_eq!(client.ids_until("1"), ["1"]);
}
