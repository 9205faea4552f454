//! Streams whose back end has more to say at a link.

use super::*;

const NEXT: &str = "Grip-Link: </next?after=1>; rel=next";

fn following(channel: &str) -> ScriptedReply {
    scripted_reply(
        &[
            "Content-Type: text/plain",
            "Grip-Hold: stream",
            &format!("Grip-Channel: {channel}"),
            NEXT,
        ],
        "begin\n",
    )
}

/// What a link brings: more, and how it goes on.
fn more(channel: &str, body: &str) -> ScriptedReply {
    scripted_reply(
        &[
            "Grip-Hold: stream",
            &format!("Grip-Channel: {channel}"),
            NEXT,
        ],
        body,
    )
}

fn numbered(id: u32, prev_id: u32, bytes: &'static str) -> Publication {
    let mut message = text("a", bytes);
    message.id = Some(id.to_string().into());
    message.prev_id = Some(prev_id.to_string().into());
    message
}

#[test]
fn a_hint_has_the_link_asked_and_its_body_sent() {
    let signer = Signer::new("secret", "penstock").unwrap();
    let harness = GripHarness::with(Settings::default(), Some(signer), [following("a")]);
    let response = harness.response(request("GET", "/", &["Cookie: c=1"]));
    assert_eq!(names(&response.fields), STREAM_FIELDS);
    harness.next_backend_request();
    let mut client = harness.hold(response);
    client.expect("begin\n");
    harness.hub.publish(text("a", "live\n")).unwrap();
    client.expect("live\n");
    harness.script(more("a", "more\n"));
    let mut hint = text("a", "");
    hint.stream = Some(StreamAction::Hint);
    harness.hub.publish(hint).unwrap();
    client.expect("more\n");
    let asked = harness.next_backend_request();
    assert_eq!(
        (asked.head.method_str(), asked.head.target()),
        ("GET", "/next?after=1")
    );
    assert!(asked.head.field("cookie").is_none());
    assert!(asked.head.field("grip-sig").is_some());
    harness.hub.publish(text("a", "live\n")).unwrap();
    client.expect("live\n");
    assert_eq!(harness.hub.subscriber_count("a"), 1);
    drop(client);
    harness.await_subscribers("a", 0);
}

#[test]
fn what_a_stream_missed_on_its_way_is_asked_for() {
    let harness = GripHarness::new([following("a; prev-id=1"), more("a; prev-id=3", "2, 3\n")]);
    for (id, bytes) in [(2, "two\n"), (3, "three\n")] {
        harness.hub.publish(numbered(id, id - 1, bytes)).unwrap();
    }
    let mut client = harness.hold(harness.response(get("/")));
    client.expect("begin\n2, 3\n");
    harness.next_backend_request();
    let asked = harness.next_backend_request();
    assert_eq!(asked.head.field("grip-last"), Some(&b"a; last-id=1"[..]));
    harness.hub.publish(numbered(4, 3, "four\n")).unwrap();
    client.expect("four\n");
    assert!(harness.has_no_more_requests());
}

#[test]
fn a_message_that_follows_another_has_the_link_asked() {
    let harness = GripHarness::new([following("a; prev-id=1"), more("a; prev-id=7", "2 to 7\n")]);
    let mut client = harness.hold(harness.response(get("/")));
    client.expect("begin\n");
    harness.hub.publish(numbered(7, 6, "seven\n")).unwrap();
    client.expect("2 to 7\n");
    harness.hub.publish(numbered(8, 7, "eight\n")).unwrap();
    client.expect("eight\n");
    harness.next_backend_request();
    harness.next_backend_request();
    assert!(harness.has_no_more_requests());
}

#[test]
fn a_link_may_end_the_stream() {
    let harness = GripHarness::new([following("a; prev-id=1"), scripted_reply(&[], "the end\n")]);
    harness.hub.publish(numbered(2, 1, "two\n")).unwrap();
    let client = harness.hold(harness.response(get("/")));
    assert_eq!(client.read_rest(), "begin\nthe end\n");
    harness.await_subscribers("a", 0);
}

#[test]
fn a_close_that_is_published_ends_the_stream_behind_its_messages() {
    let harness = GripHarness::new([following("a")]);
    let client = harness.hold(harness.response(get("/")));
    harness.hub.publish(text("a", "last\n")).unwrap();
    let mut end = text("a", "");
    end.stream = Some(StreamAction::Close);
    harness.hub.publish(end).unwrap();
    assert_eq!(client.read_rest(), "begin\nlast\n");
}

#[test]
fn other_channels_may_follow() {
    let harness = GripHarness::new([following("a, b"), more("b, c", "more\n")]);
    let mut client = harness.hold(harness.response(get("/")));
    client.expect("begin\n");
    let mut hint = text("a", "");
    hint.stream = Some(StreamAction::Hint);
    harness.hub.publish(hint).unwrap();
    client.expect("more\n");
    harness.await_subscribers("a", 0);
    harness.await_subscribers("c", 1);
    for channel in ["a", "b", "c"] {
        harness.hub.publish(text(channel, "x")).unwrap();
    }
    client.expect("xx");
    harness.drain();
    assert_eq!(client.read_rest(), "");
}
