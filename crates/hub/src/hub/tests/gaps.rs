//! The word that messages may be missing, as streams of each kind get it.

use super::*;
use crate::MessageFilter;

fn gap(channel: &str) -> Publication {
    Publication {
        channel: channel.into(),
        allows_any_order: true,
        stream: Some(StreamPart::Gap),
        ..Publication::default()
    }
}

#[test]
fn event_streams_get_a_gap_and_byte_streams_end() {
    let rig = HubHarness::new(settings());
    let of = |form, filters| HeldStream {
        form,
        subscriptions: vec![Subscription {
            filters,
            ..subscription("a")
        }],
        ..stream(&["a"])
    };
    let mut events = rig.hold(of(StreamForm::Events, Vec::new()));
    // Its filters do not keep it from hearing of it.
    let mut filtered = rig.hold(of(
        StreamForm::Events,
        vec![MessageFilter::RequireSubscription],
    ));
    let mut bytes = rig.hold(of(StreamForm::Bytes, Vec::new()));
    rig.hub.publish(message("a", "before")).unwrap();
    rig.hub.publish(gap("a")).unwrap();
    rig.hub.publish(message("a", "after")).unwrap();
    for client in [&mut events, &mut filtered] {
        let mut heard = String::new();
        while !heard.ends_with("after") {
            heard += &client.chunk();
        }
        assert_eq!(heard, "beforeevent: gap\ndata: {}\n\nafter");
    }
    assert_eq!(bytes.chunk(), "before");
    bytes.expect_end();
}

#[test]
fn arriving_streams_get_the_gap_too() {
    let rig = HubHarness::new(with_history(10));
    for (form, expected) in [
        (StreamForm::Events, "event: gap\ndata: {}\n\n"),
        (StreamForm::Bytes, ""),
    ] {
        let held = HeldStream {
            form,
            ..stream(&["a"])
        };
        let body = rig.hub.stream_body(held).unwrap();
        rig.hub.publish(gap("a")).unwrap();
        let mut client = rig.hand_over_body(body, HeldFraming::Chunked, b"", 0);
        if expected.is_empty() {
            client.expect_end();
        } else {
            assert_eq!(client.chunk(), expected);
        }
    }
}
