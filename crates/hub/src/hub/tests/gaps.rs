//! The word that messages may be missing, as streams of each kind get it.

use super::*;
use crate::MessageFilter;

fn gap(channel: &str) -> Publication {
    Publication {
        channel: channel.into(),
        allows_any_order: true,
        stream: Some(StreamAction::Gap),
        ..Publication::default()
    }
}

#[test]
fn event_streams_get_a_gap_and_byte_streams_end() {
    let rig = HubHarness::new(settings());
    let of = |form, filters| HeldStream {
        message_format: form,
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
            message_format: form,
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

#[test]
fn a_gap_that_cannot_be_announced_ends_an_arriving_stream_before_it() {
    let rig = HubHarness::new(settings());
    for (form, notice, expected) in [
        (StreamForm::Events, None, "initial"),
        (StreamForm::Bytes, None, "initial"),
        (StreamForm::Events, Some("(gap)"), "initial(gap)"),
    ] {
        let held = HeldStream {
            message_format: form,
            initial_bytes: Bytes::from_static(b"initial"),
            gap_notice: notice.map(|notice| Bytes::from_static(notice.as_bytes())),
            ..stream(&["a"])
        };
        let body = rig.hub.stream_body(held).unwrap();
        // More than a channel keeps for streams that are on their way.
        for _ in 0..300 {
            rig.hub.publish(message("a", ".")).unwrap();
        }
        let mut client = rig.hand_over_body(body, HeldFraming::Chunked, b"", 0);
        if notice.is_some() {
            rig.until("the stream is held", |hub| hub.snapshot().streams > 0);
            rig.hub.publish(close("a")).unwrap();
        }
        let rest = client.rest();
        assert_eq!(rest.trim_end_matches('.'), expected, "{form:?}");
        assert_eq!(rest.ends_with('.'), notice.is_some(), "{form:?}");
    }
}

fn close(channel: &str) -> Publication {
    Publication {
        stream: Some(StreamAction::Close),
        ..message(channel, "")
    }
}
