//! Clients that return with the id of the last event that they received, without the application's
//! doing.

use super::*;

const EVENTS: [&str; 3] = [
    "Content-Type: text/event-stream",
    "Grip-Hold: stream",
    "Grip-Channel: a, b",
];

fn numbered(channel: &str, id: &str) -> Publication {
    Publication {
        // The first has its id in its event alone.
        id: (id != "1").then(|| id.into()),
        stream: Some(StreamAction::Send(
            bytes::Bytes::from(format!("id: {id}\ndata: x\n\n")).into(),
        )),
        ..text(channel, "")
    }
}

/// What a client gets that requests `target` with these fields, after its back end's own body.
/// Three messages were published before, and one comes while it is held.
fn received(answer: ScriptedReply, target: &str, lines: &[&str]) -> String {
    let harness = GripHarness::new([answer]);
    for (channel, id) in [("a", "1"), ("b", "2"), ("a", "3")] {
        harness.hub.publish(numbered(channel, id)).unwrap();
    }
    let response = harness.response(request("GET", target, lines));
    let mut client = harness.hold(response);
    harness.hub.publish(text("a", ":live\n\n")).unwrap();
    String::from_utf8(client.read_until(b":live\n\n")).unwrap()
}

fn events(ids: &[u8]) -> String {
    let one = |id: &u8| format!("id: {id}\ndata: x\n\n");
    ids.iter().map(one).collect::<String>() + ":live\n\n"
}

#[test]
fn a_returning_client_gets_what_it_missed_or_a_gap() {
    let instruct = r#"{"hold": {"mode": "stream", "channels": [{"name": "a"}, {"name": "b"}]},
        "response": {"headers": {"Content-Type": "text/event-stream"}, "body": ":hi\n\n"}}"#;
    let fields_alone = || scripted_reply(&EVENTS, ":hi\n\n");
    let with_body = || {
        let lines = [
            "Content-Type: application/grip-instruct",
            "Grip-Hold: stream",
        ];
        scripted_reply(&lines, instruct)
    };
    let with_link = || {
        let lines = [&EVENTS[..], &["Grip-Link: </next>; rel=next"]].concat();
        scripted_reply(&lines, ":hi\n\n")
    };
    let long = format!("Last-Event-ID: {}", "x".repeat(10_000));
    let gap = |id: &str| format!(":hi\n\nevent: gap\ndata: {id}\n\n{}", events(&[1, 2, 3]));
    for answer in [
        &fields_alone as &dyn Fn() -> ScriptedReply,
        &with_body,
        &with_link,
    ] {
        for (target, lines, expected) in [
            ("/", &[][..], format!(":hi\n\n{}", events(&[]))),
            ("/", &["Last-Event-ID:"], format!(":hi\n\n{}", events(&[]))),
            (
                "/",
                &["Last-Event-ID: 1"],
                format!(":hi\n\n{}", events(&[2, 3])),
            ),
            (
                "/",
                &["Last-Event-ID: 2"],
                format!(":hi\n\n{}", events(&[3])),
            ),
            (
                "/",
                &["Last-Event-ID: 3"],
                format!(":hi\n\n{}", events(&[])),
            ),
            ("/?lastEventID=2", &[], format!(":hi\n\n{}", events(&[3]))),
            (
                "/?lastEventID=1",
                &["Last-Event-ID: 2"],
                format!(":hi\n\n{}", events(&[3])),
            ),
            ("/", &["Last-Event-ID: 4"], gap("4")),
            (
                "/?lastEventID=%0A%0Aevent%3A%20x",
                &[],
                gap("\ndata: \ndata: event: x"),
            ),
            ("/", &[&long], gap(&"x".repeat(1028))),
        ] {
            assert_eq!(
                received(answer(), target, lines),
                expected,
                "{target} {lines:?}"
            );
        }
    }
}

#[test]
fn a_back_end_that_names_the_last_message_decides() {
    for (channels, expected) in [
        ("a; prev-id=3, b", events(&[])),
        ("a; prev-id=1, b", events(&[3])),
        (
            "a; prev-id=0",
            format!("event: gap\ndata: 0\n\n{}", events(&[1, 3])),
        ),
    ] {
        let channel = format!("Grip-Channel: {channels}");
        let answer = scripted_reply(&[EVENTS[0], EVENTS[1], &channel], "");
        let received = received(answer, "/", &["Last-Event-ID: not known"]);
        assert_eq!(received, expected, "{channels}");
    }
}

#[test]
fn a_stream_of_bytes_has_no_ids() {
    let lines = ["Content-Type: text/plain", EVENTS[1], EVENTS[2]];
    let received = received(scripted_reply(&lines, ""), "/", &["Last-Event-ID: 1"]);
    assert_eq!(received, events(&[]));
}

#[test]
fn what_stands_in_front_passes_a_stream_on_at_once() {
    for (lines, expected) in [
        (&[][..], "no-cache, no-transform"),
        (
            &["Cache-Control: private"][..],
            "private, no-cache, no-transform",
        ),
        (
            &[
                "Cache-Control: no-store",
                "X-Accel-Buffering: yes",
                "X-Accel-Expires: 60",
            ],
            "no-store, no-cache, no-transform",
        ),
    ] {
        let lines = [&EVENTS[..], lines].concat();
        let harness = GripHarness::new([scripted_reply(&lines, "")]);
        let response = harness.response(get("/"));
        assert_eq!(response.instructions, FrontEndInstructions::None);
        assert_eq!(names(&response.fields), STREAM_FIELDS, "{lines:?}");
        let field = |name| response.fields.get(name).map(String::from_utf8_lossy);
        assert_eq!(field("cache-control").as_deref(), Some(expected));
        assert_eq!(field("x-accel-buffering").as_deref(), Some("no"));
        harness.hold(response);
    }
}
