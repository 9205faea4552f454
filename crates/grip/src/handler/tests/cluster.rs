//! Two hubs: clients of one get publications of the other.

use std::sync::Mutex;
use std::time::Duration;

use penstock_config::RouteHub;
use penstock_hub::{Bus, HubError, HubRouteHandler, PrepareChannelsFuture, WebSocketAction};
use penstock_runtime::loops;

use super::*;

/// Another server with the history of one channel, of which this one knows what it has asked for.
#[derive(Debug)]
struct NeighbourBus {
    here: Hub,
    channel: Arc<str>,
    history: Vec<Publication>,
    prepared_channels: Mutex<Vec<Arc<str>>>,
}

impl Bus for NeighbourBus {
    fn publish(&self, _: &Publication) -> Result<bool, HubError> {
        Ok(false)
    }

    fn on_subscribed(&self, _: &Arc<str>) {}

    fn on_unsubscribed(&self, _: &Arc<str>) {}

    fn prepare_channels(&self, channels: &[Arc<str>]) -> Option<PrepareChannelsFuture> {
        let mut asked = self.prepared_channels.lock().unwrap();
        let new = channels.iter().filter(|name| !asked.contains(name));
        let new: Vec<_> = new.cloned().collect();
        asked.extend(new.iter().cloned());
        let here = self.here.clone();
        let (own, history) = (self.channel.clone(), self.history.clone());
        (!new.is_empty()).then(|| -> PrepareChannelsFuture {
            Box::pin(async move {
                loops::yield_now().await;
                for name in new {
                    let all = history.iter().filter(|_| name == own);
                    let aged = all.map(|message| (message.clone(), Duration::ZERO));
                    here.replace_history(&name, aged.collect::<Vec<_>>());
                }
            })
        })
    }
}

/// Joins the hub of `world` to another server, which has messages 1 and 2 of a channel.
fn join(harness: &GripHarness, channel: &str) -> Arc<NeighbourBus> {
    let history = ["1", "2"].map(|id| {
        let content = Content {
            bytes: bytes::Bytes::from(format!("data: {id}\n\n")),
            filters: Vec::new(),
        };
        Publication {
            channel: channel.into(),
            id: Some(id.into()),
            stream: Some(StreamAction::Send(content.clone())),
            websocket: Some(WebSocketAction::Text(content)),
            ..Publication::default()
        }
    });
    let neighbour = Arc::new(NeighbourBus {
        here: harness.hub.clone(),
        channel: channel.into(),
        history: history.into(),
        prepared_channels: Mutex::default(),
    });
    harness.hub.set_bus(Some(neighbour.clone()));
    neighbour
}

fn events_of(channel: &str) -> [String; 3] {
    [
        "Content-Type: text/event-stream".to_owned(),
        "Grip-Hold: stream".to_owned(),
        format!("Grip-Channel: {channel}"),
    ]
}

fn says_all(lines: &[String], body: &str) -> ScriptedReply {
    let lines: Vec<&str> = lines.iter().map(|line| &**line).collect();
    scripted_reply(&lines, body)
}

#[test]
fn a_route_finds_messages_of_other_nodes() {
    let harness = GripHarness::new([]);
    join(&harness, "a");
    let route = RouteHub {
        namespace: "hub".to_owned(),
        presence: false,
        channels: vec!["{path.1}".to_owned()],
        heartbeat_interval: None,
        origins: Vec::new(),
        heartbeat_event: None,
        publish: false,
    };
    let streams = Arc::new(HubRouteHandler::new(harness.hub.clone(), &route).unwrap());
    let request = request("GET", "/a", &["Last-Event-ID: 1"]);
    let answered = await_backend_reply(&harness.begin_request_with(streams, request));
    let mut client = harness.hold(response(answered));
    client.expect("data: 2\n\n");
    harness.hub.publish(text("a", "data: 3\n\n")).unwrap();
    client.expect("data: 3\n\n");
}

#[test]
fn a_returning_client_finds_messages_of_other_nodes() {
    let following = [
        &events_of("a")[..],
        &["Grip-Link: </next>; rel=next".to_owned()],
    ]
    .concat();
    for lines in [&events_of("a")[..], &following] {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let harness = GripHarness::new([scripted_reply(&lines, ":\n\n")]);
        join(&harness, "a");
        let returning = request("GET", "/", &["Last-Event-ID: 1"]);
        let mut client = harness.hold(harness.response(returning));
        client.expect(":\n\ndata: 2\n\n");
    }
}

#[test]
fn a_backend_stream_finds_messages_of_other_nodes() {
    let harness = GripHarness::new([says_all(&events_of("a; prev-id=1"), ":\n\n")]);
    join(&harness, "a");
    let mut client = harness.hold(harness.response(get("/")));
    client.expect(":\n\ndata: 2\n\n");
}

#[test]
fn a_long_poll_notices_newer_messages_of_other_nodes() {
    let stale = ["Grip-Hold: response", "Grip-Channel: a; prev-id=1"];
    let harness = GripHarness::new([
        scripted_reply(&stale, "stale"),
        scripted_reply(&[], "fresh"),
    ]);
    join(&harness, "a");
    assert_eq!(body_text(harness.response(get("/")).body), "fresh");
    harness.next_backend_request();
    let again = harness.next_backend_request();
    assert_eq!(again.head.field("grip-last"), Some(&b"a; last-id=2"[..]));
}

#[test]
fn a_next_link_is_fetched_for_messages_of_other_nodes() {
    let next = |channel: &str| {
        let mut lines = events_of(channel).to_vec();
        lines.push("Grip-Link: </next>; rel=next".to_owned());
        lines
    };
    let harness = GripHarness::new([
        says_all(&next("a; prev-id=1"), "begin\n"),
        says_all(&next("a; prev-id=2, b"), "more\n"),
    ]);
    let neighbour = join(&harness, "a");
    let mut client = harness.hold(harness.response(get("/")));
    client.expect("begin\nmore\n");
    harness.await_subscribers("b", 1);
    // The channels that a link adds are asked for, too; the stream's own is this server's.
    let asked = neighbour.prepared_channels.lock().unwrap();
    assert_eq!(
        asked.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["a", "b"]
    );
}

#[test]
fn a_websocket_finds_messages_of_other_nodes() {
    let control = r#"c:{"type": "subscribe", "channel": "a", "prev-id": "1"}"#;
    let opening = format!("OPEN\r\nTEXT {:x}\r\n{control}\r\n", control.len());
    let lines = [
        "Content-Type: application/websocket-events",
        "Sec-WebSocket-Extensions: grip",
    ];
    let harness = GripHarness::with_websockets([scripted_reply(&lines, &opening)]);
    join(&harness, "a");
    let handshake = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    let mut client = harness.take_over(harness.response(request("GET", "/", &handshake)));
    client.expect_bytes(b"\x81\x09data: 2\n\n");
}
