//! WebSockets whose back end only knows requests, with a real hub between.

use std::sync::Arc;

use penstock_exchange::{Body, FaultKind, Reply, Request, Takeover, TakeoverFuture};
use penstock_http::Status;
use penstock_hub::{Content, Publication, WebSocketAction};
use penstock_runtime::ByteStream;

use crate::handler::tests::harness::*;

const HANDSHAKE: [&str; 6] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Cookie: c=1",
    "Meta-User: forged",
];

fn handshake() -> Request {
    request("GET", "/chat?room=1", &HANDSHAKE)
}

/// An answer with events.
fn events(body: &str) -> ScriptedReply {
    events_with(&[], body)
}

fn events_with(lines: &[&str], body: &str) -> ScriptedReply {
    let mut all = vec!["Content-Type: application/websocket-events"];
    all.extend(lines);
    scripted_reply(&all, body)
}

fn text(content: &str) -> String {
    format!("TEXT {:x}\r\n{content}\r\n", content.len())
}

/// What a library answers to an opening: it takes it, and the client hears of a channel.
fn opened(controls: &[&str]) -> ScriptedReply {
    let mut body = "OPEN\r\n".to_owned();
    for control in controls {
        body.push_str(&text(&format!("c:{control}")));
    }
    events_with(&["Sec-WebSocket-Extensions: grip"], &body)
}

const SUBSCRIBE: &str = r#"{"type": "subscribe", "channel": "a"}"#;

/// A client's frame, masked as it must be (RFC 6455 §5.3).
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [1, 2, 3, 4];
    let len = u8::try_from(payload.len()).unwrap();
    assert!(len < 126);
    let mut frame = vec![0x80 | opcode, 0x80 | len];
    frame.extend_from_slice(&MASK);
    let masked = payload.iter().zip(MASK.iter().cycle());
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    frame
}

/// A server's frame.
fn from_server(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode, u8::try_from(payload.len()).unwrap()];
    frame.extend_from_slice(payload);
    frame
}

fn close(code: u16) -> [u8; 2] {
    code.to_be_bytes()
}

fn message(part: WebSocketAction) -> Publication {
    Publication {
        channel: "a".into(),
        websocket: Some(part),
        ..Publication::default()
    }
}

fn content(bytes: &'static [u8]) -> Content {
    Content {
        bytes: bytes.into(),
        filters: Vec::new(),
    }
}

/// A world with a WebSocket that is open, and what the back end was asked for that.
fn open(first: ScriptedReply) -> (GripHarness, HarnessClient, Request) {
    let harness = GripHarness::with_websockets([first]);
    let response = harness.response(handshake());
    assert_eq!(response.status, Status::SWITCHING_PROTOCOLS);
    let asked = harness.next_backend_request();
    let client = harness.take_over(response);
    (harness, client, asked)
}

#[test]
fn a_back_end_takes_a_websocket_by_answering_a_request() {
    let harness = GripHarness::with_websockets([events_with(
        &["Set-Cookie: s=1", "Grip-X: 1", "Set-Meta-User: alice"],
        "OPEN\r\n",
    )]);
    let response = harness.response(handshake());
    assert_eq!(response.status, Status::SWITCHING_PROTOCOLS);
    assert_eq!(
        String::from_utf8_lossy(response.fields.as_bytes()),
        "Connection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSet-Cookie: s=1\r\n"
    );
    let asked = harness.next_backend_request();
    assert_eq!(asked.head.method_str(), "POST");
    assert_eq!(asked.head.target(), "/chat?room=1");
    let names: Vec<_> = asked.head.fields().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "Host",
            "Cookie",
            "Content-Type",
            "Accept",
            "Connection-Id",
            "Sec-WebSocket-Extensions",
            "Content-Length"
        ]
    );
    let id = asked.head.field("connection-id").unwrap().to_vec();
    assert_eq!(id.len(), 32);
    assert_eq!(body_of(asked), "OPEN\r\n");
    // What it said for later comes with the next request, and its name with all.
    let mut client = harness.take_over(response);
    harness.script(events(""));
    client.send(&frame(1, b"hi"));
    let asked = harness.next_backend_request();
    assert_eq!(asked.head.field("meta-user"), Some(&b"alice"[..]));
    assert_eq!(asked.head.field("connection-id"), Some(&id[..]));
    assert!(asked.head.field("sec-websocket-extensions").is_none());
}

#[test]
fn messages_go_both_ways() {
    let (harness, mut client, _) = open(opened(&[]));
    let answer = [
        text("m:hello"),
        text("not for it"),
        "BINARY 4\r\nm:\0\u{1}\r\nPING 1\r\nx\r\n".to_owned(),
    ];
    harness.script(events(&answer.concat()));
    client.send(&frame(1, b"hi"));
    assert_eq!(body_of(harness.next_backend_request()), "TEXT 2\r\nhi\r\n");
    client.expect_bytes(&from_server(1, b"hello"));
    client.expect_bytes(&from_server(2, b"\0\x01"));
    client.expect_bytes(&from_server(9, b"x"));
    // Pings are answered here.
    client.send(&frame(9, b"p"));
    client.expect_bytes(&from_server(10, b"p"));
    assert!(harness.has_no_more_requests());
}

#[test]
fn without_the_extension_all_text_is_the_clients() {
    let (harness, mut client, _) = open(events("OPEN\r\n"));
    harness.script(events(&[text("m:a"), text("c:{}")].concat()));
    client.send(&frame(2, b"\x01"));
    assert_eq!(
        body_of(harness.next_backend_request()),
        "BINARY 1\r\n\u{1}\r\n"
    );
    client.expect_bytes(&from_server(1, b"m:a"));
    client.expect_bytes(&from_server(1, b"c:{}"));
}

#[test]
fn published_messages_reach_subscribed_websockets() {
    let (harness, mut client, _) = open(opened(&[SUBSCRIBE]));
    harness.await_subscribers("a", 1);
    for part in [
        WebSocketAction::Text(content(b"one")),
        WebSocketAction::Binary(content(b"\xff")),
        WebSocketAction::Ping("p".into()),
    ] {
        harness.hub.publish(message(part)).unwrap();
    }
    client.expect_bytes(&from_server(1, b"one"));
    client.expect_bytes(&from_server(2, b"\xff"));
    client.expect_bytes(&from_server(9, b"p"));
    // The back end ends that by a word, too.
    let word = text(r#"c:{"type": "unsubscribe", "channel": "a"}"#);
    harness.script(events(&[word, text("m:done")].concat()));
    client.send(&frame(1, b"stop"));
    client.expect_bytes(&from_server(1, b"done"));
    harness.await_subscribers("a", 0);
    harness
        .hub
        .publish(message(WebSocketAction::Text(content(b"two"))))
        .unwrap();
    assert_eq!(
        body_of(harness.next_backend_request()),
        "TEXT 4\r\nstop\r\n"
    );
}

#[test]
fn a_published_close_ends_it() {
    let (harness, mut client, _) = open(opened(&[SUBSCRIBE]));
    harness.await_subscribers("a", 1);
    let end = WebSocketAction::Close {
        code: 4001,
        reason: "bye".into(),
    };
    harness.hub.publish(message(end)).unwrap();
    let payload = [&close(4001)[..], b"bye"].concat();
    client.expect_bytes(&from_server(8, &payload));
    client.send(&frame(8, &close(4001)));
    assert_eq!(client.read_rest(), "");
    // The back end gets no publications.
    assert_eq!(body_of(harness.next_backend_request()), "DISCONNECT\r\n");
    harness.await_subscribers("a", 0);
}

#[test]
fn filters_use_the_meta_set_by_the_back_end() {
    let subscribe = r#"{"type": "subscribe", "channel": "a", "filters": ["skip-self"]}"#;
    let meta = r#"{"type": "set-meta", "name": "user", "value": "alice"}"#;
    let (harness, mut client, _) = open(opened(&[subscribe, meta]));
    harness.await_subscribers("a", 1);
    for (sender, bytes) in [("alice", &b"own"[..]), ("bob", b"bobs")] {
        let mut message = message(WebSocketAction::Text(content(bytes)));
        message.meta = vec![("sender".into(), sender.into())];
        harness.hub.publish(message).unwrap();
    }
    client.expect_bytes(&from_server(1, b"bobs"));
}

#[test]
fn a_client_close_is_reported_and_answered() {
    let (harness, mut client, _) = open(opened(&[]));
    harness.script(events(""));
    client.send(&frame(8, &close(0x0c1c)));
    assert_eq!(
        body_of(harness.next_backend_request()),
        "CLOSE 2\r\n\x0c\x1c\r\n"
    );
    client.expect_bytes(&from_server(8, &close(0x0c1c)));
    assert_eq!(client.read_rest(), "");
    assert!(harness.has_no_more_requests());
}

#[test]
fn a_back_end_closes() {
    let (harness, mut client, _) = open(opened(&[]));
    harness.script(events(&[&text("m:bye"), "CLOSE 2\r\n\0\0\r\n"].concat()));
    client.send(&frame(1, b"end"));
    client.expect_bytes(&from_server(1, b"bye"));
    client.expect_bytes(&from_server(8, &close(1000)));
    assert_eq!(client.read_rest(), "");
}

#[test]
fn a_broken_connection_is_reported() {
    let (harness, client, _) = open(opened(&[]));
    harness.script(events(""));
    drop(client);
    assert_eq!(body_of(harness.next_backend_request()), "DISCONNECT\r\n");
}

#[test]
fn a_detached_websocket_is_the_hubs_alone() {
    let (harness, mut client, _) = open(opened(&[SUBSCRIBE, r#"{"type": "detach"}"#]));
    harness.await_subscribers("a", 1);
    client.send(&frame(1, b"nobody listens"));
    harness
        .hub
        .publish(message(WebSocketAction::Text(content(b"one"))))
        .unwrap();
    client.expect_bytes(&from_server(1, b"one"));
    drop(client);
    harness.await_subscribers("a", 0);
    assert!(harness.has_no_more_requests());
}

#[test]
fn a_refusal_of_the_back_end_is_passed_on() {
    let harness =
        GripHarness::with_websockets([Ok(
            backend_response(403, &["Grip-X: 1", "A: 1"], "no").into()
        )]);
    let response = harness.response(handshake());
    assert_eq!(response.status, Status::FORBIDDEN);
    assert_eq!(response.fields.as_bytes(), b"A: 1\r\n");
    assert_eq!(body_text(response.body), "no");
    for (act, expected) in [
        (events(""), "it does not begin with OPEN"),
        (events("CLOSE\r\n"), "it does not begin with OPEN"),
        (events("OPEN"), "an event's first line does not end"),
        (
            events_with(&["Sec-WebSocket-Protocol: other"], "OPEN\r\n"),
            "a subprotocol that the client did not offer",
        ),
        (
            events_with(&["Content-Bytes-Accepted: 0"], "OPEN\r\n"),
            "Content-Bytes-Accepted is not supported",
        ),
    ] {
        let fault = GripHarness::with_websockets([act]).fault(handshake());
        assert_eq!(fault.kind, FaultKind::BackendProtocolError);
        assert!(fault.cause.ends_with(expected), "{}", fault.cause);
    }
}

#[test]
fn a_failing_back_end_closes_with_1011() {
    let broken = |act: ScriptedReply| {
        let (harness, mut client, _) = open(opened(&[]));
        harness.script(act);
        client.send(&frame(1, b"hi"));
        client.expect_bytes(&from_server(8, &close(1011)));
        assert_eq!(client.read_rest(), "");
    };
    broken(scripted_reply(&[], "a page"));
    broken(Ok(backend_response(500, &[], "").into()));
    broken(events("NONSENSE\r\n"));
    broken(events(&text("c:{}")));
    broken(Err(penstock_exchange::Fault::new(
        FaultKind::WorkerDied,
        "died",
    )));
}

#[test]
fn a_client_that_breaks_the_rules_is_closed() {
    let (harness, mut client, _) = open(opened(&[]));
    harness.script(events(""));
    // Not masked.
    client.send(&from_server(1, b"hi"));
    let mut head = [0; 4];
    client.read(&mut head);
    assert_eq!((head[0], &head[2..]), (0x88, &close(1002)[..]));
}

#[test]
fn handshakes_that_are_none_are_answered_here() {
    let without = |name: &str| {
        let lines: Vec<_> = HANDSHAKE
            .into_iter()
            .filter(|line| !line.starts_with(name))
            .collect();
        GripHarness::with_websockets([]).request(request("GET", "/", &lines))
    };
    let Ok(Reply::Response(response)) = without("Sec-WebSocket-Version") else {
        panic!("an answer");
    };
    assert_eq!(response.status, Status::UPGRADE_REQUIRED);
    let fault = without("Sec-WebSocket-Key").unwrap_err();
    assert_eq!(fault.kind, FaultKind::BadRequest);
}

/// A handshake with more lines.
fn handshake_with(lines: &[&str]) -> Request {
    request("GET", "/", &[&HANDSHAKE[..], lines].concat())
}

#[test]
fn a_page_of_another_origin_opens_nothing() {
    // The host of these requests is `a.test`.
    for (lines, is_let_in) in [
        (&[][..], true),
        (&["Origin: http://a.test"], true),
        (&["Origin: https://A.test:443"], false),
        (&["Origin: https://friend.test"], true),
        (&["Origin: http://friend.test"], false),
        (&["Origin: https://evil.test"], false),
        (&["Origin: https://a.test.evil.test"], false),
        (&["Origin: null"], false),
        (&["Origin:"], false),
        (&["Origin: http://a.test", "Origin: http://a.test"], false),
        (&["origin: http://evil.test"], false),
    ] {
        let harness = GripHarness::with_websockets([events("OPEN\r\n")]);
        let answered = harness.request(handshake_with(lines));
        match answered {
            Ok(Reply::Response(response)) if is_let_in => {
                assert_eq!(response.status, Status::SWITCHING_PROTOCOLS, "{lines:?}");
            }
            Err(fault) if !is_let_in => {
                assert_eq!(fault.kind, FaultKind::Forbidden, "{lines:?}");
                assert!(harness.has_no_more_requests(), "{lines:?}");
            }
            other => panic!("{lines:?}: {other:?}"),
        }
    }
}

#[test]
fn one_that_may_take_connections_over_is_not_asked_as_a_post_either() {
    let first = Ok(backend_response(404, &[], "no").into());
    let harness = GripHarness::with_websockets_unless_hijacked([first, events("OPEN\r\n")]);
    let fault = harness.fault(handshake_with(&["Origin: https://evil.test"]));
    assert_eq!(fault.kind, FaultKind::Forbidden);
    assert_eq!(harness.next_backend_request().head.method_str(), "GET");
    assert!(harness.has_no_more_requests());
}

#[test]
fn headers_of_the_hub_are_trusted_and_clients_cannot_forge_them() {
    let forged = [
        "Meta-User: admin",
        "meta-role: x",
        "Connection-Id: forged",
        "Grip-Sig: x",
    ];
    let harness = GripHarness::with_websockets([events("OPEN\r\n")]);
    let Ok(Reply::Response(response)) = harness.request(handshake_with(&forged)) else {
        panic!("an answer");
    };
    assert_eq!(response.status, Status::SWITCHING_PROTOCOLS);
    let asked = harness.next_backend_request();
    assert_eq!(asked.head.method_str(), "POST");
    for name in ["meta-user", "meta-role", "grip-sig"] {
        assert_eq!(asked.head.field(name), None, "{name}");
    }
    assert_ne!(asked.head.field("connection-id"), Some(&b"forged"[..]));
    assert!(
        asked.trusted_headers.covers("Connection-Id")
            && asked.trusted_headers.covers("Content-Type")
    );
}

#[test]
fn others_keep_their_upgrades() {
    let harness = GripHarness::new([scripted_reply(&[], "")]);
    harness.response(handshake());
    assert!(harness.next_backend_request().head.is_upgrade());
}

#[test]
fn a_draining_hub_closes_with_going_away() {
    let (harness, mut client, _) = open(opened(&[SUBSCRIBE]));
    harness.await_subscribers("a", 1);
    harness.drain();
    client.expect_bytes(&from_server(8, &close(1001)));
    assert_eq!(client.read_rest(), "");
}

#[test]
fn a_back_end_that_may_take_the_connection_over_is_asked_by_the_clients_own_request_first() {
    // It answers that like any request, and then the events.
    let plain = || Ok(backend_response(404, &["Grip-X: 1", "A: first"], "none").into());
    let harness = GripHarness::with_websockets_unless_hijacked([plain(), events("OPEN\r\n")]);
    let response = harness.response(handshake());
    assert_eq!(response.status, Status::SWITCHING_PROTOCOLS);
    assert_eq!(harness.next_backend_request().head.method_str(), "GET");
    let asked = harness.next_backend_request();
    assert_eq!(asked.head.method_str(), "POST");
    assert_eq!(body_of(asked), "OPEN\r\n");
    // It knows neither: the client has asked for what it answered first.
    let other = Ok(backend_response(405, &["A: second"], "no").into());
    let harness = GripHarness::with_websockets_unless_hijacked([plain(), other]);
    let response = harness.response(handshake());
    assert_eq!(response.status.code(), 404);
    assert_eq!(response.fields.get("a"), Some(&b"first"[..]));
    assert_eq!(response.fields.get("grip-x"), None);
    // It takes the connection, and is asked nothing else.
    let mut taken = backend_response(101, &["Upgrade: websocket", "A: b"], "");
    taken.body = Body::Takeover(Box::new(TakenConnection));
    let harness = GripHarness::with_websockets_unless_hijacked([Ok(taken.into())]);
    let response = harness.response(handshake());
    assert_eq!(response.fields.get("a"), Some(&b"b"[..]));
    assert!(matches!(response.body, Body::Takeover(_)));
    assert_eq!(harness.next_backend_request().head.method_str(), "GET");
}

/// The task that has taken a connection over.
#[derive(Debug)]
struct TakenConnection;

impl Takeover for TakenConnection {
    fn take_over(self: Box<Self>, _client: Arc<dyn ByteStream>, _early: Vec<u8>) -> TakeoverFuture {
        Box::pin(std::future::ready(()))
    }
}
