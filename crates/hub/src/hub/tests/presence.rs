//! Which channels have subscribers, and events of presence.

use super::*;
use crate::{ChannelFilter, ChannelPresence};

/// The counts of the channels that are listed.
fn listed(rig: &HubHarness, filter: ChannelFilter, max: usize) -> Vec<(String, String, u64)> {
    let hub = rig.hub.clone();
    let found = rig.run(async move { hub.list_channels(&filter, max).await });
    let row = |each: ChannelPresence| (each.namespace, each.channel, each.subscribers);
    found.into_iter().map(row).collect()
}

fn events_stream(channels: &[&str]) -> HeldStream {
    HeldStream {
        message_format: StreamForm::Events,
        ..stream(channels)
    }
}

#[test]
fn channels_are_listed_with_their_subscribers() {
    let rig = HubHarness::new(with_history(10));
    let held = [
        &["room-1", "shop\u{1f}room-1"][..],
        &["room-1"],
        &["news", "\0internal"],
    ];
    let _clients = held.map(|channels| rig.hold(stream(channels)));
    // Kept, but with no subscribers.
    rig.hub.publish(message("old", "text")).unwrap();
    let row = |namespace: &str, channel: &str, count| (namespace.into(), channel.into(), count);
    let all = [
        row("hub", "news", 1),
        row("hub", "room-1", 2),
        row("shop", "room-1", 1),
    ];
    assert_eq!(listed(&rig, ChannelFilter::default(), 100), all);
    assert_eq!(listed(&rig, ChannelFilter::default(), 2).len(), 2);
    for (namespace, channel, expected) in [
        (Some("hub"), None, &all[..2]),
        (Some("shop"), None, &all[2..]),
        (Some("other"), None, &[]),
        (None, Some("room-*"), &all[1..]),
        (Some("hub"), Some("room-1"), &all[1..2]),
        (None, Some("room"), &[]),
    ] {
        let filter = ChannelFilter {
            namespace: namespace.map(str::to_owned),
            channel: channel.map(str::to_owned),
        };
        assert_eq!(listed(&rig, filter.clone(), 100), expected, "{filter:?}");
    }
}

#[test]
fn a_change_of_presence_is_an_event_that_is_not_kept() {
    let rig = HubHarness::new(with_history(10));
    rig.hub.set_presence_namespaces(&["hub".to_owned()]);
    let mut first = rig.hold(events_stream(&["room"]));
    let mut bytes = rig.hold(stream(&["room"]));
    let mut other = rig.hold(events_stream(&["shop\u{1f}room"]));
    let present = |count: u32| {
        format!("event: presence\ndata: {{\"channel\":\"room\",\"subscribers\":{count}}}\n\n")
    };
    assert_eq!(first.chunk(), present(2));
    rig.hub.publish(event("room", "1", "one")).unwrap();
    assert_eq!(first.chunk(), "id: 1\ndata: one\n\n");
    // It stands neither before nor after the last message that a client knows.
    assert_eq!(rig.hub.last_message_id("room").as_deref(), Some("1"));
    let mut resumed = rig.hold(HeldStream {
        resume_after: Some("1".into()),
        gap_notice: Some(crate::GAP_EVENT),
        ..events_stream(&["room"])
    });
    assert_eq!(resumed.chunk(), present(3));
    assert_eq!(first.chunk(), present(3));
    drop(first);
    assert_eq!(resumed.chunk(), present(2));
    rig.hub.set_presence_namespaces(&[]);
    drop(resumed);
    rig.until("the others are left", |hub| hub.snapshot().streams == 2);
    rig.hub
        .publish(event("shop\u{1f}room", "1", "two"))
        .unwrap();
    assert_eq!(other.chunk(), "id: 1\ndata: two\n\n");
    rig.hub.publish(message("room", "end")).unwrap();
    assert_eq!(bytes.chunk(), "one\n");
    assert_eq!(bytes.chunk(), "end");
}
