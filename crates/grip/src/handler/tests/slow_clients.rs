//! Slow clients: one that loses messages gets a notice, also on a first visit.

use penstock_config::RouteHub;
use penstock_hub::{HubRouteHandler, SlowPolicy, WebSocketAction};
use penstock_runtime::clock;

use super::*;

fn settings(slow: SlowPolicy) -> Settings {
    Settings {
        max_backlog: 64 << 10,
        slow_policy: slow,
        ..Settings::default()
    }
}

/// Far more than a socket and a backlog hold, while the client does not read.
fn flood(hub: &Hub) {
    (0..1000).for_each(|_| publish(hub));
}

fn publish(hub: &Hub) {
    let content = Content {
        bytes: include_str!("slow_clients.rs").into(),
        filters: Vec::new(),
    };
    let publication = Publication {
        channel: "a".into(),
        stream: Some(StreamAction::Send(content.clone())),
        websocket: Some(WebSocketAction::Text(content)),
        ..Publication::default()
    };
    hub.publish(publication).unwrap();
}

const GAP: &[u8] = b"event: gap\ndata: {}\n\n";

#[test]
fn a_slow_route_stream_gets_a_gap_on_its_first_visit() {
    let harness = GripHarness::with(settings(SlowPolicy::DropOldest), None, []);
    let route = RouteHub {
        namespace: "hub".to_owned(),
        presence: false,
        channels: vec!["a".to_owned()],
        heartbeat_interval: None,
        origins: Vec::new(),
        heartbeat_event: None,
        publish: false,
    };
    let streams = Arc::new(HubRouteHandler::new(harness.hub.clone(), &route).unwrap());
    let mut client = harness.hold(response(await_backend_reply(
        &harness.begin_request_with(streams, get("/")),
    )));
    harness.await_subscribers("a", 1);
    flood(&harness.hub);
    client.read_until(GAP);
}

#[test]
fn a_slow_backend_stream_gets_a_gap_on_its_first_visit() {
    let events = ["Content-Type: text/event-stream", STREAM[1], STREAM[2]];
    let harness = GripHarness::with(
        settings(SlowPolicy::DropOldest),
        None,
        [scripted_reply(&events, "")],
    );
    let mut client = harness.hold(harness.response(get("/")));
    harness.await_subscribers("a", 1);
    flood(&harness.hub);
    client.read_until(GAP);
}

#[test]
fn a_slow_stream_with_a_next_link_gets_a_gap_on_its_first_visit() {
    const LINK: &str = "Grip-Link: </next>; rel=next";
    let lines = [
        "Content-Type: text/event-stream",
        STREAM[1],
        STREAM[2],
        LINK,
    ];
    let harness = GripHarness::with(
        settings(SlowPolicy::DropOldest),
        None,
        [scripted_reply(&lines, "")],
    );
    let mut client = harness.hold(harness.response(get("/")));
    harness.await_subscribers("a", 1);
    let deadline = clock::now() + TEST_TIMEOUT;
    for sent in 1..=1000 {
        publish(&harness.hub);
        // Each is published once more, to the stream alone: it is the client that falls behind, not
        // the task that publishes.
        while harness.hub.snapshot().counters.published < 2 * sent {
            assert!(clock::now() < deadline, "message {sent} is passed on");
            std::thread::yield_now();
        }
    }
    client.read_until(GAP);
}

/// A WebSocket that hears of the channel `a`.
fn socket(slow: SlowPolicy) -> (GripHarness, HarnessClient) {
    let control = r#"c:{"type": "subscribe", "channel": "a"}"#;
    let opening = format!("OPEN\r\nTEXT {:x}\r\n{control}\r\n", control.len());
    let lines = [
        "Content-Type: application/websocket-events",
        "Sec-WebSocket-Extensions: grip",
    ];
    let harness = GripHarness::with_websockets_and_settings(
        settings(slow),
        None,
        [scripted_reply(&lines, &opening)],
    );
    let handshake = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    let client = harness.take_over(harness.response(request("GET", "/", &handshake)));
    harness.await_subscribers("a", 1);
    (harness, client)
}

#[test]
fn a_websocket_that_lost_messages_is_closed_where_slow_ones_are() {
    let (harness, client) = socket(SlowPolicy::Disconnect);
    flood(&harness.hub);
    let close = [
        &[0x88, 22],
        &1013_u16.to_be_bytes()[..],
        b"messages are missing",
    ]
    .concat();
    assert!(client.read_rest_bytes().ends_with(&close));
    harness.await_subscribers("a", 0);
    harness.next_backend_request();
    assert_eq!(body_of(harness.next_backend_request()), "DISCONNECT\r\n");
}

#[test]
fn a_websocket_that_lost_messages_goes_on_where_the_oldest_are_dropped() {
    let (harness, mut client) = socket(SlowPolicy::DropOldest);
    flood(&harness.hub);
    let last = Publication {
        channel: "a".into(),
        websocket: Some(WebSocketAction::Text(Content {
            bytes: "and the last one".into(),
            filters: Vec::new(),
        })),
        ..Publication::default()
    };
    harness.hub.publish(last).unwrap();
    let found = client.read_until(b"and the last one");
    assert!(found.len() < 1000 * include_str!("slow_clients.rs").len());
}

#[test]
fn a_gap_between_servers_closes_a_websocket_where_slow_ones_are() {
    let gap = Publication {
        channel: "a".into(),
        stream: Some(StreamAction::Gap),
        ..Publication::default()
    };
    let (harness, client) = socket(SlowPolicy::Disconnect);
    harness.hub.publish_locally(gap).unwrap();
    let found = client.read_rest_bytes();
    assert!(found.starts_with(&[0x88]), "{found:?}");
}
