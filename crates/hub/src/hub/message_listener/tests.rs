//! Listeners that keep up, fall behind and leave.

use std::time::Duration;

use penstock_runtime::{EventLoops, loops};

use super::*;
use crate::{DrainPlan, Hub, Settings, WebSocketAction};

/// Nothing that works takes so long.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn hub(settings: Settings) -> (EventLoops, Hub) {
    let loops = EventLoops::start(1).unwrap();
    let hub = Hub::start(settings, loops.handles()).unwrap();
    (loops, hub)
}

fn subscription(channel: &str, filters: &[MessageFilter]) -> Subscription {
    Subscription {
        channel: channel.into(),
        filters: filters.to_vec(),
        ..Subscription::default()
    }
}

fn publish(hub: &Hub, channel: &str, bytes: &[u8]) {
    let content = Content {
        bytes: Bytes::copy_from_slice(bytes),
        filters: Vec::new(),
    };
    let publication = Publication {
        channel: channel.into(),
        websocket: Some(WebSocketAction::Binary(content)),
        meta: vec![("sender".into(), "alice".into())],
        ..Publication::default()
    };
    hub.publish(publication).unwrap();
}

/// The next event: bytes, or the number of missed messages.
async fn next_content(listener: &MessageListener) -> Result<Vec<u8>, u64> {
    let next = clock::timeout(TEST_TIMEOUT, listener.next_event()).await;
    match next.expect("something is heard") {
        ListenerEvent::Message(message) => match &message.publication.websocket {
            Some(WebSocketAction::Binary(content)) => Ok(content.bytes.to_vec()),
            other => panic!("bytes, not {other:?}"),
        },
        ListenerEvent::Missed(count) => Err(count),
        ListenerEvent::Draining => panic!("the hub stops"),
    }
}

#[test]
fn continues_where_another_listener_stopped() {
    loops::block_on(async {
        let (loops, hub) = hub(Settings::default());
        // As while streams move to another process.
        let _kept = hub.reserve_places(vec![subscription("a", &[])]).unwrap();
        let mut first = hub.create_message_listener(None).unwrap();
        let filtered = subscription("a", &[MessageFilter::SkipSelf]);
        first.subscribe(filtered).unwrap();
        for bytes in [b"1", b"2", b"3"] {
            publish(&hub, "a", bytes);
        }
        assert_eq!(next_content(&first).await, Ok(b"1".to_vec()));
        let positions = first.positions();
        assert!(!first.has_missed_messages());
        let text = serde_json::to_string(&positions).unwrap();
        let positions: Vec<ListenerPosition> = serde_json::from_str(&text).unwrap();
        publish(&hub, "a", b"4");
        drop(first);
        let mut second = hub.create_message_listener(None).unwrap();
        for position in positions {
            second.continue_from(position).unwrap();
        }
        publish(&hub, "a", b"5");
        for bytes in [b"2", b"3", b"4", b"5"] {
            assert_eq!(next_content(&second).await, Ok(bytes.to_vec()));
        }
        assert_eq!(second.filters("a"), Some(&[MessageFilter::SkipSelf][..]));
        loops.stop();
    })
    .unwrap();
}

#[test]
fn hears_its_channels_in_order_until_it_leaves_them() {
    loops::block_on(async {
        let (loops, hub) = hub(Settings::default());
        let mut listener = hub.create_message_listener(None).unwrap();
        for channel in ["a", "b"] {
            listener.subscribe(subscription(channel, &[])).unwrap();
        }
        assert_eq!(
            (hub.subscriber_count("a"), hub.subscriber_count("b")),
            (1, 1)
        );
        for (channel, bytes) in [("a", b"1"), ("c", b"2"), ("b", b"3"), ("a", b"4")] {
            publish(&hub, channel, bytes);
        }
        assert_eq!(next_content(&listener).await, Ok(b"1".to_vec()));
        // Queued messages of a channel that was left are not delivered.
        listener.unsubscribe("a");
        publish(&hub, "a", b"5");
        publish(&hub, "b", b"6");
        assert_eq!(next_content(&listener).await, Ok(b"3".to_vec()));
        assert_eq!(next_content(&listener).await, Ok(b"6".to_vec()));
        drop(listener);
        assert_eq!(
            (hub.subscriber_count("a"), hub.subscriber_count("b")),
            (0, 0)
        );
        loops.stop();
    })
    .unwrap();
}

#[test]
fn a_slow_listener_loses_the_oldest_and_is_notified() {
    loops::block_on(async {
        let (loops, hub) = hub(Settings::default());
        let mut listener = hub.create_message_listener(None).unwrap();
        listener.subscribe(subscription("a", &[])).unwrap();
        for number in 0..150_u8 {
            publish(&hub, "a", &[number]);
        }
        assert_eq!(next_content(&listener).await, Err(50));
        for number in 50..150 {
            assert_eq!(next_content(&listener).await, Ok(vec![number]));
        }
        loops.stop();
    })
    .unwrap();
}

#[test]
fn what_waits_is_bounded_in_bytes_too() {
    loops::block_on(async {
        let settings = Settings {
            max_backlog: 100_000,
            ..Settings::default()
        };
        let (loops, hub) = hub(settings);
        let mut listener = hub.create_message_listener(None).unwrap();
        listener.subscribe(subscription("a", &[])).unwrap();
        for number in 0..10 {
            publish(&hub, "a", &[number; 40_000]);
        }
        assert_eq!(next_content(&listener).await, Err(8));
        // A message larger than the limit is delivered if nothing else waits.
        next_content(&listener).await.unwrap();
        next_content(&listener).await.unwrap();
        publish(&hub, "a", &[7; 200_000]);
        assert_eq!(
            next_content(&listener).await.map(|bytes| bytes.len()),
            Ok(200_000)
        );
        loops.stop();
    })
    .unwrap();
}

#[test]
fn filters_keep_messages_back_and_may_change() {
    loops::block_on(async {
        let (loops, hub) = hub(Settings::default());
        let mut listener = hub.create_message_listener(None).unwrap();
        listener.set_subscriber_meta(vec![("user".into(), "alice".into())]);
        listener
            .subscribe(subscription("a", &[MessageFilter::SkipSelf]))
            .unwrap();
        publish(&hub, "a", b"own");
        publish(&hub, "a", b"own");
        listener.set_subscriber_meta(Vec::new());
        assert_eq!(next_content(&listener).await, Ok(b"own".to_vec()));
        listener.set_subscriber_meta(vec![("user".into(), "alice".into())]);
        listener.subscribe(subscription("a", &[])).unwrap();
        assert_eq!(next_content(&listener).await, Ok(b"own".to_vec()));
        assert_eq!(hub.subscriber_count("a"), 1);
        loops.stop();
    })
    .unwrap();
}

#[test]
fn bounds_and_the_drain_hold_for_listeners() {
    loops::block_on(async {
        let settings = Settings {
            max_channels_per_stream: 1,
            max_streams: Some(1),
            ..Settings::default()
        };
        let (loops, hub) = hub(settings);
        let mut listener = hub.create_message_listener(None).unwrap();
        assert_eq!(
            hub.create_message_listener(None).map(drop),
            Err(HubError::TooManyStreams(1))
        );
        listener.subscribe(subscription("a", &[])).unwrap();
        assert_eq!(
            listener.subscribe(subscription("b", &[])),
            Err(HubError::TooManyStreamChannels(1))
        );
        let draining = hub.clone();
        let drained = loops::spawn_with_handle(async move {
            draining
                .drain(DrainPlan::with_duration(Duration::ZERO))
                .await;
        });
        let next = clock::timeout(TEST_TIMEOUT, listener.next_event()).await;
        assert!(matches!(next, Some(ListenerEvent::Draining)));
        drop(listener);
        let drained = clock::timeout(TEST_TIMEOUT, drained).await;
        drained.expect("the drain ends").unwrap();
        loops.stop();
    })
    .unwrap();
}

#[test]
fn a_listener_with_prev_id_gets_later_messages() {
    loops::block_on(async {
        let (loops, hub) = hub(Settings::default());
        for (channel, id) in ["x", "y", "z", "none"]
            .into_iter()
            .flat_map(|c| ["1", "2", "3"].map(|id| (c, id)))
        {
            let content = Content {
                bytes: id.into(),
                filters: Vec::new(),
            };
            let publication = Publication {
                channel: channel.into(),
                id: Some(id.into()),
                websocket: Some(WebSocketAction::Binary(content)),
                ..Publication::default()
            };
            hub.publish(publication).unwrap();
        }
        for (channel, known, missed) in [
            ("x", Some("1"), &["2", "3"][..]),
            ("y", Some("3"), &[]),
            // All that is left.
            ("z", Some("0"), &["1", "2", "3"]),
            ("none", None, &[]),
        ] {
            let mut listener = hub.create_message_listener(None).unwrap();
            let mut subscription = subscription(channel, &[]);
            subscription.prev_id = known.map(Arc::from);
            listener.subscribe(subscription).unwrap();
            publish(&hub, channel, b"live");
            for bytes in missed {
                assert_eq!(next_content(&listener).await, Ok(bytes.as_bytes().to_vec()));
            }
            assert_eq!(
                next_content(&listener).await,
                Ok(b"live".to_vec()),
                "{known:?}"
            );
        }
        loops.stop();
    })
    .unwrap();
}

fn event(channel: &str, id: &str, sender: &str) -> Publication {
    Publication {
        channel: channel.into(),
        id: Some(id.into()),
        event: Some(crate::PublishedEvent {
            data: id.into(),
            ..crate::PublishedEvent::default()
        }),
        meta: vec![("sender".into(), sender.into())],
        ..Publication::default()
    }
}

#[test]
fn a_listener_resumes_after_a_message_of_any_channel() {
    loops::block_on(async {
        let (loops, hub) = hub(Settings::default());
        for (channel, id) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2")] {
            hub.publish(event(channel, id, "alice")).unwrap();
        }
        let bytes = StreamAction::Send(Bytes::from_static(b"data: raw\n\n").into());
        hub.publish(Publication {
            stream: Some(bytes),
            ..event("a", "a3", "bob")
        })
        .unwrap();
        let events = |ids: &[&str]| -> String {
            let one = |id: &&str| format!("id: {id}\ndata: {id}\n\n");
            ids.iter().map(one).collect()
        };
        let (raw, gap) = ("data: raw\n\n", "event: gap\ndata: never\n\n");
        for (after, filters, expected) in [
            ("a3", &[][..], String::new()),
            ("a2", &[], events(&["b2"]) + raw),
            ("b1", &[], events(&["a2", "b2"]) + raw),
            (
                "never",
                &[],
                gap.to_owned() + &events(&["a1", "b1", "a2", "b2"]) + raw,
            ),
            ("never", &[MessageFilter::SkipSelf], gap.to_owned() + raw),
        ] {
            let mut listener = hub.create_message_listener(None).unwrap();
            listener.set_subscriber_meta(vec![("user".into(), "alice".into())]);
            let subscriptions = ["a", "b"].map(|channel| subscription(channel, filters));
            let missed = listener.resume(subscriptions.into(), after).unwrap();
            assert_eq!(missed, expected, "{after}");
            if filters.is_empty() {
                publish(&hub, "b", b"live");
                assert_eq!(next_content(&listener).await, Ok(b"live".to_vec()));
            }
        }
        loops.stop();
    })
    .unwrap();
}

#[test]
fn a_listener_that_resumes_gets_no_more_than_a_backlog() {
    loops::block_on(async {
        let (loops, hub) = hub(Settings {
            max_backlog: 60,
            ..Settings::default()
        });
        for number in 1..=9 {
            hub.publish(event("a", &format!("m{number}"), "")).unwrap();
        }
        let mut listener = hub.create_message_listener(None).unwrap();
        let missed = listener.resume(vec![subscription("a", &[])], "m1").unwrap();
        assert_eq!(
            missed,
            "event: gap\ndata: m1\n\nid: m7\ndata: m7\n\nid: m8\ndata: m8\n\nid: m9\ndata: m9\n\n"
        );
        loops.stop();
    })
    .unwrap();
}
