//! Answers that speak to the hub and those that do not, with a real hub behind.

mod chained_servers;
mod cluster;
mod gone_links;
pub(crate) mod harness;
mod next_links;
mod returning_clients;
mod slow_clients;
mod upgrades;

use penstock_exchange::{Body, FaultKind};
use penstock_http::{FieldBlock, Status};
use penstock_hub::{
    Content, LongPollAction, LongPollResponse, Publication, Settings, StreamAction,
};
use penstock_tokens::Verifier;

use super::*;
use harness::*;

const STREAM: [&str; 3] = [
    "Content-Type: text/plain",
    "Grip-Hold: stream",
    "Grip-Channel: a",
];

/// The fields of a held stream with a type alone.
const STREAM_FIELDS: [&str; 3] = ["Content-Type", "X-Accel-Buffering", "Cache-Control"];

const POLL: [&str; 4] = [
    "Content-Type: application/json",
    "Grip-Hold: response",
    "Grip-Channel: a",
    "X-Own: 1",
];

fn text(channel: &str, bytes: &'static str) -> Publication {
    Publication {
        channel: channel.into(),
        stream: Some(StreamAction::Send(Content {
            bytes: bytes.into(),
            filters: Vec::new(),
        })),
        ..Publication::default()
    }
}

fn part(channel: &str, part: LongPollAction) -> Publication {
    Publication {
        channel: channel.into(),
        response: Some(part),
        ..Publication::default()
    }
}

fn held(status: Status, lines: &[&str], body: &'static str) -> LongPollResponse {
    LongPollResponse {
        status,
        fields: backend_response(200, lines, "").fields,
        body: Content {
            bytes: body.into(),
            filters: Vec::new(),
        },
        is_patch: false,
    }
}

fn names(fields: &FieldBlock) -> Vec<&str> {
    fields.iter().map(|(name, _)| name).collect()
}

#[test]
fn responses_without_grip_pass_unchanged() {
    let page = backend_response(201, &["A: 1", "Content-Type: text/plain"], "page");
    let fields = page.fields.clone();
    for target in ["/", "/a"] {
        let harness = GripHarness::new([Ok(backend_response(
            201,
            &["A: 1", "Content-Type: text/plain"],
            "page",
        )
        .into())]);
        let request = get(target);
        let head = Arc::clone(&request.head);
        let response = harness.response(request);
        assert_eq!(
            (response.status, &response.fields),
            (Status::CREATED, &fields)
        );
        assert_eq!(body_text(response.body), "page");
        // Nothing is copied where nothing is signed.
        assert!(Arc::ptr_eq(&harness.next_backend_request().head, &head));
    }
}

#[test]
fn requests_are_signed_and_clients_cannot_forge_grip_fields() {
    let signer = Signer::new("secret", "penstock").unwrap();
    let harness = GripHarness::with(Settings::default(), Some(signer), [scripted_reply(&[], "")]);
    let lines = [
        "Grip-Sig: forged",
        "grip-hold: stream",
        "Cookie: c=1",
        "GRIP-FEATURE: all",
        "Grip-Last: a; last-id=1",
    ];
    harness.response(request("GET", "/x?y", &lines));
    let asked = harness.next_backend_request();
    let fields: Vec<_> = asked.head.fields().map(|(name, _)| name).collect();
    assert_eq!(fields, ["Host", "Cookie", "Grip-Sig", "Grip-Feature"]);
    assert_eq!(asked.head.target(), "/x?y");
    let token = asked.head.field("grip-sig").unwrap();
    let verifier = Verifier::new("secret", "HS256").unwrap();
    let claims = verifier
        .verify(std::str::from_utf8(token).unwrap())
        .unwrap();
    assert_eq!(claims["iss"], "penstock");
    for name in ["grip-sig", "Grip-Feature", "Grip-Last"] {
        assert!(asked.trusted_headers.covers(name), "{name}");
    }
    assert!(!asked.trusted_headers.covers("grip-hold"));
}

#[test]
fn fields_of_the_route_stay_vouched_for() {
    let signer = Signer::new("secret", "penstock").unwrap();
    let harness = GripHarness::with(Settings::default(), Some(signer), [scripted_reply(&[], "")]);
    let mut asked = request(
        "GET",
        "/",
        &["X-Real-IP: 1", "Grip-Session-Id: of-the-route"],
    );
    asked.trusted_headers =
        TrustedHeaders::new(["X-Real-IP", "Grip-Session-Id"].map(str::to_owned));
    harness.response(asked);
    let asked = harness.next_backend_request();
    assert_eq!(
        asked.head.field("grip-session-id"),
        Some(&b"of-the-route"[..])
    );
    assert!(asked.trusted_headers.covers("x-real-ip") && asked.trusted_headers.covers("grip-sig"));
}

#[test]
fn another_handler_gets_the_request_that_came() {
    let signer = Signer::new("secret", "penstock").unwrap();
    let pass = Reply::Pass(Box::new(get("/")));
    let harness = GripHarness::with(Settings::default(), Some(signer), [Ok(pass)]);
    let request = get("/");
    let head = Arc::clone(&request.head);
    let Ok(Reply::Pass(passed)) = harness.request(request) else {
        panic!("it is passed on");
    };
    assert!(Arc::ptr_eq(&passed.head, &head));
    assert!(passed.trusted_headers.is_empty());
}

#[test]
fn a_stream_begins_with_its_body_and_goes_on_with_messages() {
    for target in ["/", "/a"] {
        let mut begun = backend_response(200, &STREAM, "");
        begun.body = Body::Stream(Box::new(ChunkedBody(vec!["hello ", "there\n"])));
        begun.fields.push("Grip-Status", b"202").unwrap();
        let harness = GripHarness::new([Ok(begun.into())]);
        let response = harness.response(get(target));
        assert_eq!(response.status, Status::ACCEPTED);
        assert_eq!(names(&response.fields), STREAM_FIELDS);
        assert!(!response.has_grip());
        let mut client = harness.hold(response);
        client.expect("hello there\n");
        harness.hub.publish(text("a", "one\n")).unwrap();
        harness.hub.publish(text("b", "not this\n")).unwrap();
        harness.hub.publish(text("a", "two\n")).unwrap();
        client.expect("one\ntwo\n");
        let mut end = text("a", "");
        end.stream = Some(StreamAction::Close);
        harness.hub.publish(end).unwrap();
        assert_eq!(client.read_rest(), "");
    }
}

#[test]
fn a_stream_resumes_after_prev_id_or_gets_a_gap() {
    let held = |prev_id: &str| {
        let channel = format!("Grip-Channel: a; prev-id={prev_id}");
        let lines = [
            "Content-Type: text/event-stream",
            "Grip-Hold: stream",
            &channel,
        ];
        let harness = GripHarness::new([scripted_reply(&lines, "")]);
        for id in ["1", "2"] {
            let mut message = text("a", "data: x\n\n");
            message.id = Some(id.into());
            harness.hub.publish(message).unwrap();
        }
        let client = harness.hold(harness.response(get("/")));
        (harness, client)
    };
    let (harness, mut client) = held("1");
    client.expect("data: x\n\n");
    harness.drain();
    assert_eq!(client.read_rest(), "retry: 1000\n\n");
    let (_world, mut client) = held("0");
    client.expect("event: gap\ndata: 0\n\n");
}

#[test]
fn a_body_of_instructions_holds_as_well() {
    let instruct = r#"{
        "hold": {"mode": "stream", "channels": [{"name": "a, b"}]},
        "response": {"headers": {"Content-Type": "text/plain"}, "body": "hi\n"}
    }"#;
    let harness = GripHarness::new([scripted_reply(
        &[
            "Content-Type: application/grip-instruct",
            "Grip-Hold: response",
            "A: 1",
        ],
        instruct,
    )]);
    let response = harness.response(get("/"));
    assert_eq!(names(&response.fields), STREAM_FIELDS);
    assert_eq!(
        response.fields.get("content-type"),
        Some(&b"text/plain"[..])
    );
    let mut client = harness.hold(response);
    client.expect("hi\n");
    harness.hub.publish(text("a, b", "one\n")).unwrap();
    client.expect("one\n");
}

#[test]
fn a_body_of_instructions_alone_is_an_ordinary_body() {
    // A client that can store a file can choose its media type.
    let instruct = r#"{
        "hold": {"mode": "stream", "channels": [{"name": "a"}]},
        "response": {"code": 404, "headers": {"Set-Cookie": "a=1"}, "body": "<script>"}
    }"#;
    for lines in [
        &["Content-Type: application/grip-instruct", "X-Safe: 1"][..],
        &[
            "Content-Type: Application/GRIP-Instruct;a",
            "Grip-Channel: a",
        ],
        &[
            "Content-Type: application/grip-instruct",
            "Grip-Status: 201",
        ],
    ] {
        let harness = GripHarness::new([scripted_reply(lines, instruct)]);
        let response = harness.response(get("/"));
        assert_eq!(body_text(response.body), instruct);
        assert!(!response.fields.contains("set-cookie"));
        assert_eq!(harness.hub.snapshot().counters.opened, 0);
    }
}

#[test]
fn the_channels_of_a_back_end_are_in_its_namespace() {
    let harness = GripHarness::in_namespace("chat", [scripted_reply(&STREAM, "hi\n")]);
    let response = harness.response(get("/"));
    let mut client = harness.hold(response);
    client.expect("hi\n");
    for key in ["a", "other\u{1f}a", "chat\u{1f}b"] {
        harness.hub.publish(text(key, "not for it\n")).unwrap();
    }
    harness.hub.publish(text("chat\u{1f}a", "one\n")).unwrap();
    client.expect("one\n");
}

#[test]
fn a_back_end_gets_its_own_names_back() {
    let lines = [&POLL[..], &["Grip-Channel: b; prev-id=0"]].concat();
    let harness = GripHarness::in_namespace(
        "chat",
        [scripted_reply(&lines, "own"), scripted_reply(&[], "news")],
    );
    harness.hub.publish(text("chat\u{1f}b", "x")).unwrap();
    let waiting = harness.begin(get("/"));
    let first = harness.next_backend_request();
    assert!(!first.head.fields().any(|(name, _)| name == "Grip-Last"));
    assert_eq!(
        body_text(response(await_backend_reply(&waiting)).body),
        "news"
    );
    let again = harness.next_backend_request();
    let last = again.head.field_values("Grip-Last");
    let last: Vec<_> = last.map(String::from_utf8_lossy).collect();
    assert!(
        last.iter().any(|last| last.starts_with("b; last-id=")),
        "{last:?}"
    );
    assert!(!last.iter().any(|last| last.contains("chat")), "{last:?}");
}

#[test]
fn a_long_poll_gets_a_message_over_its_own_answer() {
    for target in ["/", "/a"] {
        let harness = GripHarness::new([scripted_reply(&POLL, "{}")]);
        let waiting = harness.begin(get(target));
        harness.await_subscribers("a", 1);
        let message = held(
            Status::CREATED,
            &["content-type: text/plain", "B: 2"],
            "news",
        );
        let message = LongPollAction::Send(Box::new(message));
        harness.hub.publish(part("a", message)).unwrap();
        let response = response(await_backend_reply(&waiting));
        assert_eq!(response.status, Status::CREATED);
        assert_eq!(
            response.fields.as_bytes(),
            b"X-Own: 1\r\ncontent-type: text/plain\r\nB: 2\r\n"
        );
        assert_eq!(body_text(response.body), "news");
        harness.await_subscribers("a", 0);
    }
}

#[test]
fn a_message_may_be_a_patch_of_the_long_polls_own_answer() {
    let patched = |own: &str| {
        let harness = GripHarness::new([scripted_reply(&POLL, own)]);
        let waiting = harness.begin(get("/"));
        harness.await_subscribers("a", 1);
        let mut message = held(
            Status::OK,
            &[],
            r#"[{"op":"replace","path":"/n","value":[2]}]"#,
        );
        message.is_patch = true;
        let message = LongPollAction::Send(Box::new(message));
        harness.hub.publish(part("a", message)).unwrap();
        await_backend_reply(&waiting)
    };
    let response = response(patched("{\"n\": 1}\n"));
    assert_eq!(body_text(response.body), "{\"n\":[2]}\n");
    for own in ["not JSON", "{\"m\": 1}", ""] {
        let fault = patched(own).unwrap_err();
        assert_eq!(fault.kind, FaultKind::BackendProtocolError);
        assert!(
            fault.cause.contains("a patch that does not fit"),
            "{}",
            fault.cause
        );
    }
}

#[test]
fn a_hint_has_the_back_end_asked_again() {
    let signer = Signer::new("secret", "penstock").unwrap();
    let harness = GripHarness::with(
        Settings::default(),
        Some(signer),
        [scripted_reply(&POLL, "old")],
    );
    harness.script(scripted_reply(&["A: 1"], "new"));
    let waiting = harness.begin(request("GET", "/x?since=1", &["Cookie: c=1"]));
    harness.await_subscribers("a", 1);
    let first = harness.next_backend_request();
    harness
        .hub
        .publish(part("a", LongPollAction::Hint))
        .unwrap();
    let response = response(await_backend_reply(&waiting));
    assert_eq!(body_text(response.body), "new");
    assert_eq!(response.fields.as_bytes(), b"A: 1\r\n");
    let second = harness.next_backend_request();
    assert_eq!(second.head.target(), "/x?since=1");
    assert_eq!(second.head.field("cookie"), Some(&b"c=1"[..]));
    assert_eq!(second.peer, first.peer);
    assert!(second.head.field("grip-sig").is_some());
}

#[test]
fn who_knew_another_last_message_is_asked_for_again_with_the_right_one() {
    let stale = ["Grip-Hold: response", "Grip-Channel: a; prev-id=1"];
    let harness = GripHarness::new([
        scripted_reply(&stale, "stale"),
        scripted_reply(&[], "fresh"),
    ]);
    let mut message = text("a", "x");
    message.id = Some("2".into());
    harness.hub.publish(message).unwrap();
    let response = harness.response(get("/"));
    assert_eq!(body_text(response.body), "fresh");
    assert!(
        harness
            .next_backend_request()
            .head
            .field("grip-last")
            .is_none()
    );
    let again = harness.next_backend_request();
    assert_eq!(again.head.field("grip-last"), Some(&b"a; last-id=2"[..]));
    assert!(again.trusted_headers.covers("Grip-Last"));
}

#[test]
fn a_back_end_that_never_learns_is_not_asked_for_ever() {
    let stale = ["Grip-Hold: response", "Grip-Channel: a; prev-id=1"];
    let harness = GripHarness::new((0..50).map(|_| scripted_reply(&stale, "stale")));
    let mut message = text("a", "x");
    message.id = Some("2".into());
    harness.hub.publish(message).unwrap();
    assert_eq!(body_text(harness.response(get("/")).body), "stale");
    let mut count = 0;
    while !harness.has_no_more_requests() {
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn a_client_answered_after_too_many_repeats_is_reported_gone() {
    let stale = [
        "Grip-Hold: response",
        "Grip-Channel: a; prev-id=1",
        "Grip-Link: </gone>; rel=gone",
    ];
    let harness = GripHarness::new((0..50).map(|_| scripted_reply(&stale, "stale")));
    let mut message = text("a", "x");
    message.id = Some("2".into());
    harness.hub.publish(message).unwrap();
    assert_eq!(body_text(harness.response(get("/")).body), "stale");
    // It was still there each time it was asked for again, and now is not.
    for _ in 0..6 {
        assert_eq!(harness.next_backend_request().head.target(), "/");
    }
    assert_eq!(harness.next_backend_request().head.target(), "/gone");
}

#[test]
fn unrepeatable_requests_get_the_fallback() {
    let harness = GripHarness::new([scripted_reply(&POLL, "own")]);
    let waiting = harness.begin(request("POST", "/", &["Content-Length: 0"]));
    harness.await_subscribers("a", 1);
    harness
        .hub
        .publish(part("a", LongPollAction::Hint))
        .unwrap();
    assert_eq!(
        body_text(response(await_backend_reply(&waiting)).body),
        "own"
    );
    harness.next_backend_request();
    assert!(harness.has_no_more_requests());
}

#[test]
fn a_closed_long_poll_gets_no_answer() {
    let harness = GripHarness::new([scripted_reply(&POLL, "own")]);
    let waiting = harness.begin(get("/"));
    harness.await_subscribers("a", 1);
    harness
        .hub
        .publish(part("a", LongPollAction::Close))
        .unwrap();
    assert_eq!(
        await_backend_reply(&waiting).unwrap_err().kind,
        FaultKind::ClientDisconnected
    );
}

const INSTRUCTION_FIELDS: [&str; 2] = [
    "Content-Type: application/grip-instruct",
    "Grip-Hold: response",
];

#[test]
fn who_gets_no_body_is_not_held() {
    let lines = [&STREAM[..], &["Grip-Status: 204"]].concat();
    for (request, lines, body) in [
        (get("/"), &lines[..], Body::Empty),
        (
            request("HEAD", "/", &[]),
            &STREAM[..],
            Body::Omitted(Some(7)),
        ),
        (request("HEAD", "/", &[]), &POLL[..], Body::Omitted(None)),
        (
            request("HEAD", "/", &[]),
            &INSTRUCTION_FIELDS,
            Body::Omitted(Some(9)),
        ),
    ] {
        let mut said = backend_response(200, lines, "");
        said.body = body;
        let harness = GripHarness::new([Ok(said.into())]);
        let response = harness.response(request);
        assert!(matches!(response.body, Body::Empty | Body::Omitted(_)));
        assert!(
            !names(&response.fields)
                .iter()
                .any(|name| name.starts_with("Grip"))
        );
        assert_eq!(
            harness.hub.snapshot().streams + harness.hub.snapshot().long_polls,
            0
        );
    }
}

#[test]
fn impossible_holds_are_backend_faults_with_a_reason() {
    let long = "x".repeat(200_000);
    let encoded = [&STREAM[..], &["Content-Encoding: gzip"]].concat();
    let elsewhere = [&STREAM[..], &["Grip-Link: <http://b.test/gone>; rel=gone"]].concat();
    for (lines, body, expected) in [
        (
            &["Grip-Hold: for ever"][..],
            "",
            "Grip-Hold: `response` or `stream` is expected",
        ),
        (
            &POLL,
            &*long,
            "the body of a long poll is longer than 100000 bytes (fixed)",
        ),
        (
            &INSTRUCTION_FIELDS,
            &long,
            "the body of instructions is longer than 100000 bytes (fixed)",
        ),
        (
            &STREAM,
            &long,
            "the body that a held stream begins with is longer than 150000 bytes \
             (hub.max_message_size)",
        ),
        (
            &encoded,
            "",
            "a held stream has a Content-Encoding, and what is published has none",
        ),
        (
            &elsewhere,
            "",
            "Grip-Link: `http://b.test/gone` is of another host",
        ),
        (
            &INSTRUCTION_FIELDS,
            "{",
            "the instructions are no JSON: EOF while parsing an object at line 1 column 1",
        ),
    ] {
        let settings = Settings {
            max_message_size: 150_000,
            ..Settings::default()
        };
        let harness = GripHarness::with(settings, None, [scripted_reply(lines, body)]);
        let fault = harness.fault(get("/"));
        assert_eq!(fault.kind, FaultKind::BackendProtocolError);
        assert!(fault.cause.ends_with(expected), "{}", fault.cause);
    }
}

#[test]
fn a_long_body_in_pieces_is_not_gathered() {
    let mut said = backend_response(200, &POLL, "");
    said.body = Body::Stream(Box::new(ChunkedBody(vec!["0123456789"; 10_001])));
    let harness = GripHarness::new([Ok(said.into())]);
    assert_eq!(
        harness.fault(get("/")).kind,
        FaultKind::BackendProtocolError
    );
    let mut said = backend_response(200, &POLL, "");
    said.body = Body::Stream(Box::new(ChunkedBody(vec!["0123456789"; 10_000])));
    let harness = GripHarness::new([Ok(said.into())]);
    let _waiting = harness.begin(get("/"));
    harness.await_subscribers("a", 1);
}

/// A cache would send clients away when there is room again.
#[test]
fn no_cache_keeps_what_an_event_source_without_room_gets() {
    let lines = [
        "Content-Type: text/event-stream",
        "Cache-Control: public, max-age=60",
        "CDN-Cache-Control: max-age=60",
        "Expires: Thu, 01 Jan 2099 00:00:00 GMT",
        "Access-Control-Allow-Origin: *",
        STREAM[1],
        STREAM[2],
    ];
    let settings = Settings {
        max_streams: Some(0),
        ..Settings::default()
    };
    let harness = GripHarness::with(
        settings,
        None,
        [
            scripted_reply(&lines, "first"),
            scripted_reply(&lines, "first"),
        ],
    );
    let browser = || request("GET", "/", &["Accept: text/event-stream"]);
    let retry = || {
        let response = harness.response(browser());
        let fields = [
            "Content-Type",
            "Access-Control-Allow-Origin",
            "Cache-Control",
        ];
        assert_eq!(names(&response.fields), fields);
        assert_eq!(response.fields.get("cache-control"), Some(&b"no-store"[..]));
        let text = body_text(response.body);
        let delay = text.strip_prefix("retry: ");
        delay
            .and_then(|text| text.trim_end().parse::<u64>().ok())
            .expect(&text)
    };
    let delay = retry();
    assert!((7_500..22_500).contains(&delay), "{delay}");
    harness.drain();
    assert_eq!(retry(), 1000);
}

#[test]
fn a_full_hub_turns_clients_away() {
    for lines in [&STREAM[..], &POLL[..]] {
        let settings = Settings {
            max_streams: Some(0),
            ..Settings::default()
        };
        let harness = GripHarness::with(settings, None, [scripted_reply(lines, "")]);
        let fault = harness.fault(get("/"));
        assert_eq!(fault.kind, FaultKind::Overloaded);
        assert_eq!(fault.cause, "hub.max_streams (0) connections are held");
    }
    let channels: Vec<_> = (0..30).map(|n| n.to_string()).collect();
    let channels = format!("Grip-Channel: {}", channels.join(", "));
    let harness = GripHarness::new([scripted_reply(&["Grip-Hold: stream", &channels], "")]);
    assert_eq!(
        harness.fault(get("/")).kind,
        FaultKind::BackendProtocolError
    );
}
