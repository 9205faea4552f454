//! What subscribers receive.

use std::time::Duration;

use penstock_hub::{History, Settings};
use serde_json::json;

use super::harness::{MercureHarness, field, handle_request, hold, ids, post, text, wait_until};
use crate::MercureHandler;
use crate::tests::fixtures::{
    SUBSCRIBERS_KEY, publisher_token, request, sign_token, subscriber_token,
};
use crate::update::EARLIEST_ID;

fn token(topics: &[&str]) -> String {
    format!("Authorization: Bearer {}", subscriber_token(topics))
}

#[test]
fn subscribers_get_the_updates_of_their_topics_once_and_in_order() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let mut exact = harness.subscribe(&mercure, "topic=/a/1&topic=/a/2");
    let mut template = harness.subscribe(&mercure, "topic=/a/%7Bid%7D&topic=/a/1");
    let mut all = harness.subscribe_on(1, &mercure, "topic=*", &[]).1;
    for form in [
        "topic=/a/1&id=1&data=one",
        "topic=/a/3&id=2",
        "topic=/b&id=3",
        "topic=/a/1&topic=/a/2&topic=/a/3&id=4",
        "topic=/a/1&id=5&type=changed&retry=100&data=x%0Ay",
        "topic=/end&topic=/a/2&id=end",
    ] {
        harness.publish(&mercure, form);
    }
    assert_eq!(
        exact.events(4),
        [
            "id: 1\ndata: one",
            "id: 4\ndata:",
            "retry: 100\nevent: changed\nid: 5\ndata: x\ndata: y",
            "id: end\ndata:"
        ]
    );
    assert_eq!(template.ids_until("end"), ["1", "2", "4", "5", "end"]);
    assert_eq!(all.ids_until("end"), ["1", "2", "3", "4", "5", "end"]);
}

#[test]
fn private_updates_reach_those_whose_token_names_one_of_their_topics() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let with = |grants: &[&str], query: &str| {
        harness
            .subscribe_on(0, &mercure, query, &[&token(grants)])
            .1
    };
    let mut nobody = harness.subscribe(&mercure, "topic=*");
    let mut one = with(&["/u/1"], "topic=*");
    let mut template = with(&["/u/{id}"], "topic=*");
    let mut root = with(&["*"], "topic=/u/1&topic=end");
    let mut cookie = harness.subscribe_on(
        0,
        &mercure,
        "topic=*",
        &[&format!(
            "Cookie: mercureAuthorization={}",
            subscriber_token(&["/u/2"])
        )],
    );
    for form in [
        "topic=/u/1&id=1&private=on",
        "topic=/u/2&id=2&private=on",
        "topic=/x&id=3&private=on",
        "topic=/x&topic=/u/1&id=4&private=on",
        "topic=end&id=end",
    ] {
        harness.publish(&mercure, form);
    }
    assert_eq!(nobody.ids_until("end"), ["end"]);
    assert_eq!(one.ids_until("end"), ["1", "4", "end"]);
    assert_eq!(template.ids_until("end"), ["1", "2", "4", "end"]);
    assert_eq!(root.ids_until("end"), ["1", "4", "end"]);
    assert_eq!(cookie.1.ids_until("end"), ["2", "end"]);
}

#[test]
fn a_returning_subscriber_gets_missed_updates() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    for form in [
        "topic=a&id=1",
        "topic=b&id=2",
        "topic=a&id=3&private=on",
        "topic=a&id=4",
    ] {
        harness.publish(&mercure, form);
    }
    let granted = token(&["a"]);
    for (query, fields, before, missed) in [
        ("topic=a", &[][..], None, &[][..]),
        ("topic=a&lastEventID=1", &[], Some("1"), &["4"]),
        ("topic=a&Last-Event-ID=1", &[], Some("1"), &["4"]),
        (
            "topic=a&lastEventID=1",
            &[&*granted],
            Some("1"),
            &["3", "4"],
        ),
        ("topic=a", &["Last-Event-ID: 2"], Some("2"), &["4"]),
        // The field wins.
        (
            "topic=a&lastEventID=1",
            &["Last-Event-ID: 4"],
            Some("4"),
            &[],
        ),
        (
            "topic=*&lastEventID=earliest",
            &[],
            Some("earliest"),
            &["1", "2", "4"],
        ),
        (
            "topic=a&lastEventID=lost",
            &[],
            Some("earliest"),
            &["1", "4"],
        ),
        ("topic=a&lastEventID=3", &[], Some("earliest"), &["4"]),
        ("topic=a&lastEventID=3", &[&*granted], Some("3"), &["4"]),
    ] {
        let (response, mut client) = harness.subscribe_on(1, &mercure, query, fields);
        assert_eq!(
            field(&response, "last-event-id"),
            before,
            "{query} {fields:?}"
        );
        let end = harness.publish(&mercure, "topic=a");
        let mut expected: Vec<String> = missed.iter().map(|id| (*id).to_owned()).collect();
        expected.push(end.clone());
        let mut got = client.ids_until(&end);
        // Updates of earlier rounds are newer than those of this round.
        got.retain(|id| !id.starts_with("urn:") || *id == end);
        assert_eq!(got, expected, "{query} {fields:?}");
    }
}

#[test]
fn a_history_that_is_too_long_comes_in_parts() {
    let harness = MercureHarness::with(Settings {
        max_backlog: 64,
        ..Settings::default()
    });
    let mercure = harness.default_handler();
    for number in 1..=10 {
        harness.publish(&mercure, &format!("topic=a&id={number}&data=0123456789"));
    }
    let mut known = "earliest".to_owned();
    let mut got = Vec::new();
    let client = loop {
        let line = format!("GET /.well-known/mercure?topic=a&lastEventID={known}");
        let mercure = mercure.clone();
        let request = request(&line, &[], None);
        let part = harness.run_on_loop(0, async move {
            let response = handle_request(mercure, request).await.unwrap();
            match &response.body {
                penstock_exchange::Body::Bytes(_) => Ok(text(&response)),
                _ => Err(hold(response).1),
            }
        });
        match part {
            Ok(part) => {
                let events: Vec<String> = part.split("\n\n").map(str::to_owned).collect();
                let part = ids(&events);
                assert!((1..4).contains(&part.len()), "{part:?}");
                known = part.last().unwrap().clone();
                got.extend(part);
            }
            Err(client) => break client,
        }
        assert!(got.len() <= 10, "{got:?}");
    };
    let mut client = client;
    harness.publish(&mercure, "topic=a&id=end");
    got.extend(client.ids_until("end"));
    let mut expected: Vec<String> = (1..=10).map(|number| number.to_string()).collect();
    expected.push("end".to_owned());
    assert_eq!(got, expected);
}

#[test]
fn a_reload_goes_on_with_subscribers_and_history() {
    let harness = MercureHarness::new();
    let before = harness.default_handler();
    let mut client = harness.subscribe(&before, "topic=a");
    harness.publish(&before, "topic=a&id=1");
    let after = harness.handler_with(|settings| settings.anonymous = false);
    drop(before);
    harness.publish(&after, "topic=a&id=2");
    assert_eq!(client.ids_until("2"), ["1", "2"]);
    let fields = [&*token(&[])];
    let (_, mut late) = harness.subscribe_on(0, &after, "topic=a&lastEventID=1", &fields);
    assert_eq!(late.ids_until("2"), ["2"]);
    // Another route is another hub.
    let other = harness
        .mercure_hubs
        .handler_for_route(
            "b",
            &crate::tests::fixtures::settings(),
            crate::tests::fixtures::no_key_sets,
        )
        .unwrap();
    harness.publish(&other, "topic=a&id=other");
    harness.publish(&after, "topic=a&id=3");
    assert_eq!(client.ids_until("3"), ["3"]);
}

#[test]
fn a_stream_ends_with_its_token() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let now = penstock_runtime::clock::wall_time().as_secs();
    let token = sign_token(SUBSCRIBERS_KEY, &json!({ "exp": now + 1 }));
    let mut client = harness.subscribe(&mercure, &format!("topic=a&authorization={token}"));
    client.expect_end();
    wait_until("the audience is gone", || {
        mercure.shared.broker.audience_count() == 0
    });
}

#[test]
fn an_audience_goes_with_its_last_member() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let first = harness.subscribe(&mercure, "topic=a");
    let second = harness.subscribe_on(1, &mercure, "topic=a", &[]).1;
    let other = harness.subscribe(&mercure, "topic=b");
    assert_eq!(mercure.shared.broker.audience_count(), 2);
    drop((first, other));
    wait_until("one is left", || {
        mercure.shared.broker.audience_count() == 1
    });
    drop(second);
    wait_until("none is left", || {
        mercure.shared.broker.audience_count() == 0
    });
}

/// More audiences than are handed an update at a time.
#[test]
fn an_update_reaches_a_thousand_audiences() {
    let harness = MercureHarness::new();
    let mercure = harness.default_handler();
    let mut clients: Vec<_> = (0..1000)
        .map(|number| {
            let token = token(&[&format!("/users/{number}")]);
            harness
                .subscribe_on(number % 2, &mercure, "topic=a&topic=end", &[&token])
                .1
        })
        .collect();
    assert_eq!(mercure.shared.broker.audience_count(), 1000);
    harness.publish(&mercure, "topic=a&id=1");
    harness.publish(&mercure, "topic=a&id=2&private=on");
    harness.publish(&mercure, "topic=/users/7&topic=a&id=3&private=on");
    harness.publish(&mercure, "topic=end&id=end");
    for (number, client) in clients.iter_mut().enumerate() {
        let ids = client.ids_until("end");
        match number {
            7 => assert_eq!(ids, ["1", "3", "end"]),
            _ => assert_eq!(ids, ["1", "end"], "{number}"),
        }
    }
    // And once more, when the first have been handed out.
    harness.publish(&mercure, "topic=end&id=again");
    for client in &mut clients {
        assert_eq!(client.ids_until("again"), ["again"]);
    }
}

/// A hub that takes no more than two of these updates at a time.
#[test]
fn a_hub_that_is_behind_gets_the_rest_later() {
    let harness = MercureHarness::with(Settings {
        max_backlog_total: 6000,
        ..Settings::default()
    });
    let mercure = harness.default_handler();
    let mut clients: Vec<_> = (0..4)
        .map(|number| {
            let query = format!("topic=a&topic={number}");
            harness.subscribe_on(number % 2, &mercure, &query, &[]).1
        })
        .collect();
    let expected: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let data = "a".repeat(5000);
    for id in &expected {
        harness.publish(&mercure, &format!("topic=a&id={id}&data={data}"));
    }
    for client in &mut clients {
        assert_eq!(client.ids_until("9"), expected);
    }
}

/// Whatever is published meanwhile is in the history that a newcomer is sent or comes behind it.
#[test]
fn nothing_is_lost_or_doubled_between_history_and_stream() {
    const UPDATES: usize = 500;
    let harness = MercureHarness::with(Settings {
        history: History {
            max_messages: 2 * UPDATES,
            ..History::default()
        },
        ..Settings::default()
    });
    let mercure = harness.default_handler();
    let publishing = {
        let mercure = mercure.clone();
        harness.spawn_on_loop(1, async move {
            for number in 0..UPDATES {
                publish_from_loop(&mercure, &format!("topic=a&id={number}")).await;
                penstock_runtime::loops::yield_now().await;
            }
        })
    };
    let subscribe = |token: &str, last: &str| {
        let query = format!("topic=a&topic=end&lastEventID={last}");
        harness.subscribe_on(0, &mercure, &query, &[token]).1
    };
    let mut clients: Vec<_> = (0..50)
        .map(|number| {
            // Some share an audience, some have their own.
            let token = token(&[&format!("{}", number % 10)]);
            let client = subscribe(&token, EARLIEST_ID);
            (token, client)
        })
        .collect();
    publishing.blocking_recv().unwrap();
    harness.publish(&mercure, "topic=end&id=end");
    let mut expected: Vec<String> = (0..UPDATES).map(|number| number.to_string()).collect();
    expected.push("end".to_owned());
    for (token, client) in &mut clients {
        let mut received = client.ids_until_end_or("end");
        // A loop that stood still for hundreds of updates ends the stream: the client resumes.
        while received.last() != expected.last() {
            let last = received
                .last()
                .map_or(EARLIEST_ID, String::as_str)
                .to_owned();
            *client = subscribe(token, &last);
            received.extend(client.ids_until_end_or("end"));
        }
        assert_eq!(received, expected);
    }
}

async fn publish_from_loop(mercure: &MercureHandler, form: &str) {
    let token = format!("Authorization: Bearer {}", publisher_token(&["*"]));
    let response = handle_request(mercure.clone(), post(&[&token], form))
        .await
        .unwrap();
    assert_eq!(response.status.code(), 200);
}

#[test]
fn a_quiet_stream_is_kept_alive_by_comments() {
    let harness = MercureHarness::new();
    let mercure =
        harness.handler_with(|settings| settings.heartbeat_interval = Some(Duration::from_secs(1)));
    let _client = harness.subscribe(&mercure, "topic=a");
    wait_until("a heart-beat was written", || {
        harness.hub.snapshot().counters.heartbeats > 0
    });
}
