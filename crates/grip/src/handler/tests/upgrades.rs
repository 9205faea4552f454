//! Streams with links that another process continues.

use penstock_exchange::{AddressSource, ForwardedInfo, Mount};
use penstock_sys::net::PeerAddress;

use super::*;
use crate::handler::original_request::{OriginalRequest, RequestRecord};

const LINKS: &str = "Grip-Link: <next?after=1>; rel=next, </gone>; rel=gone";

/// A held stream of the channel `a` with these links.
fn hold(harness: &GripHarness, links: &str) -> HarnessClient {
    let lines = [&STREAM[..], &[links]].concat();
    harness.script(scripted_reply(&lines, "begin\n"));
    let response = harness.response(request("GET", "/dir/page", &["Cookie: c=1"]));
    harness.next_backend_request();
    let mut client = harness.hold(response);
    client.expect("begin\n");
    client
}

#[test]
fn a_stream_continues_with_its_links_in_the_next_process() {
    let [first, second, third] = [(); 3].map(|()| GripHarness::new([]));
    let mut client = hold(&first, LINKS);
    first.hub.publish(text("a", "one\n")).unwrap();
    client.expect("one\n");
    let transfer = first.move_streams_to(&second);
    assert_eq!(transfer.moved_streams(), 1);
    // The old process publishes as well.
    first.hub.publish(text("a", "two\n")).unwrap();
    client.expect("two\n");
    second.hub.publish(text("a", "three\n")).unwrap();
    client.expect("three\n");
    let more = [
        "Grip-Hold: stream",
        "Grip-Channel: a",
        "Grip-Link: </last>; rel=next",
    ];
    second.script(scripted_reply(&more, "more\n"));
    let hint = || Publication {
        stream: Some(StreamAction::Hint),
        ..text("a", "")
    };
    second.hub.publish(hint()).unwrap();
    client.expect("more\n");
    let asked = second.next_backend_request();
    assert_eq!(
        (asked.head.method_str(), asked.head.target()),
        ("GET", "/dir/next?after=1")
    );
    assert_eq!(asked.head.host(), "a.test");
    assert!(asked.head.field("cookie").is_none());
    drop(transfer);
    let _transfer = second.move_streams_to(&third);
    third.script(scripted_reply(&more, "again\n"));
    third.hub.publish(hint()).unwrap();
    client.expect("again\n");
    assert_eq!(third.next_backend_request().head.target(), "/last");
    drop(client);
    let told = third.next_backend_request();
    assert_eq!(
        (told.head.method_str(), told.head.target()),
        ("POST", "/gone")
    );
    for harness in [first, second, third] {
        assert!(harness.has_no_more_requests());
    }
}

#[test]
fn a_stream_with_a_notice_alone_keeps_its_channels() {
    let [old, new] = [(); 2].map(|()| GripHarness::new([]));
    let mut client = hold(&old, "Grip-Link: </gone>; rel=gone");
    old.hub.publish(text("a", "one\n")).unwrap();
    client.expect("one\n");
    assert_eq!(old.move_streams_to(&new).moved_streams(), 1);
    new.hub.publish(text("a", "two\n")).unwrap();
    client.expect("two\n");
    assert!(old.has_no_more_requests());
    drop(client);
    assert_eq!(new.next_backend_request().head.target(), "/gone");
    assert!(old.has_no_more_requests());
}

#[test]
fn a_stream_stays_if_the_next_process_has_no_such_back_end() {
    let (old, new) = (GripHarness::new([]), GripHarness::with_name("app:other"));
    let mut client = hold(&old, LINKS);
    let transfer = old.move_streams_to(&new);
    assert_eq!(transfer.moved_streams(), 0);
    new.hub.publish(text("a", "one\n")).unwrap();
    client.expect("one\n");
    drop(transfer);
    old.hub.publish(text("a", "two\n")).unwrap();
    client.expect("two\n");
    drop(client);
    assert_eq!(old.next_backend_request().head.target(), "/gone");
    assert!(new.has_no_more_requests());
}

#[test]
fn a_request_is_the_same_in_the_next_process() {
    let harness = GripHarness::new([]);
    let mut request = request("GET", "/app/a?b=%20", &["X-Own: 1", "X-Text: \u{e9}"]);
    request.mount = Mount::new("/app");
    request.trusted_headers = TrustedHeaders::new(["X-Own".to_owned()]);
    request.forwarded = Some(Arc::new(ForwardedInfo {
        client: Some(PeerAddress::Unix),
        scheme: Some("https"),
        host: Some("b.test".into()),
        port: Some(8443),
        mount: Mount::new("/outer"),
        source: AddressSource::Forwarded,
    }));
    let origin = OriginalRequest::from_request(&request);
    let text = serde_json::to_string(&origin.record()).unwrap();
    let record: RequestRecord = serde_json::from_str(&text).unwrap();
    let copy = record.into_request(&harness.grip.shared).unwrap();
    assert_eq!(copy.head.target(), request.head.target());
    assert!(copy.head.fields().eq(request.head.fields()));
    assert_eq!(copy.environment.peer, request.peer);
    assert_eq!(copy.environment.forwarded, request.forwarded);
    assert_eq!(copy.environment.mount, request.mount);
    assert_eq!(copy.environment.listener.name, request.listener.name);
    let asked = copy.build_events_request(&harness.grip.shared, &[], Vec::new());
    assert!(asked.unwrap().trusted_headers.covers("x-own"));
    let broken = text.replacen("\"head\":\"", "\"head\":\"AAAA", 1);
    let broken: RequestRecord = serde_json::from_str(&broken).unwrap();
    broken.into_request(&harness.grip.shared).unwrap_err();
}
