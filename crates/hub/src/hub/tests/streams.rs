//! What a stream gets, in both forms and framings.

use super::*;
use crate::MessageFilter;

#[test]
fn a_stream_gets_what_it_begins_with_then_messages_then_a_proper_end() {
    let rig = HubHarness::new(settings());
    let mut client = rig.hold(HeldStream {
        initial_bytes: Bytes::from_static(b"hello\n"),
        ..stream(&["a"])
    });
    rig.hub.publish(message("a", "one")).unwrap();
    rig.hub.publish(message("b", "not for it")).unwrap();
    rig.hub.publish(message("a", "two")).unwrap();
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message("a", "")
    };
    rig.hub.publish(end).unwrap();
    assert_eq!(client.rest(), "hello\nonetwo");
    rig.until("it is gone", |hub| hub.snapshot().streams == 0);
    let counts = rig.hub.snapshot();
    assert_eq!(
        (
            counts.counters.opened,
            counts.counters.closed,
            counts.counters.closed_as_slow
        ),
        (1, 1, 0)
    );
    assert_eq!(
        (counts.counters.published, counts.counters.delivered),
        (4, 2)
    );
    assert_eq!((counts.channels.used, counts.backlog_bytes.used), (0, 0));
    rig.until("its place is given back", |_| {
        rig.front.0.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn a_body_without_chunks_ends_with_its_connection() {
    let rig = HubHarness::new(settings());
    let body = HeldStream {
        initial_bytes: Bytes::from_static(b"<"),
        ..stream(&["a"])
    };
    let mut client = rig.hand_over(body, HeldFraming::UntilClose, b"", 1);
    rig.until("it is held", |hub| hub.snapshot().streams == 1);
    rig.hub.publish(message("a", "raw")).unwrap();
    client.expect("<raw");
    rig.run({
        let hub = rig.hub.clone();
        async move { hub.drain(DrainPlan::with_duration(Duration::ZERO)).await }
    });
    client.expect_end();
    assert_eq!(client.read, b"");
}

#[test]
fn events_are_encoded_for_those_who_take_events() {
    let rig = HubHarness::new(settings());
    let mut events = rig.hold(HeldStream {
        message_format: StreamForm::Events,
        ..stream(&["a"])
    });
    let mut bytes = rig.hold(stream(&["a"]));
    rig.hub.publish(event("a", "7", "x\ny")).unwrap();
    assert_eq!(events.chunk(), "id: 7\ndata: x\ndata: y\n\n");
    assert_eq!(bytes.chunk(), "x\ny\n");
    let unnamed = Publication {
        id: None,
        ..event("a", "", "z")
    };
    rig.hub.publish(unnamed).unwrap();
    let id = rig.hub.last_message_id("a").unwrap();
    assert_eq!(events.chunk(), format!("id: {id}\ndata: z\n\n"));
}

#[test]
fn messages_of_several_channels_come_once_each() {
    let rig = HubHarness::new(settings());
    let mut client = rig.hold(stream(&["a", "b", "a", "c"]));
    assert_eq!(rig.hub.subscriber_count("a"), 1);
    for (channel, text) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("a", "5")] {
        rig.hub.publish(message(channel, text)).unwrap();
        if channel != "d" {
            assert_eq!(client.chunk(), text);
        }
    }
    drop(client);
    rig.until("it is gone", |hub| hub.snapshot().channels.used == 0);
}

#[test]
fn what_is_published_between_the_answer_and_the_hold_is_not_missed() {
    // Nothing is kept for clients that resume, and still.
    let rig = HubHarness::new(settings());
    let body = rig.hub.stream_body(stream(&["a"])).unwrap();
    assert_eq!(rig.hub.subscriber_count("a"), 0);
    for number in 0..20 {
        rig.hub
            .publish(message("a", &format!("{number},")))
            .unwrap();
    }
    assert!(rig.hub.snapshot().history_bytes.used > 0);
    let mut client = rig.hand_over_body(body, HeldFraming::Chunked, b"", 0);
    for number in 0..20 {
        assert_eq!(client.chunk(), format!("{number},"));
    }
    rig.until("nothing is kept", |hub| {
        hub.snapshot().history_bytes.used == 0
    });
    drop(client);
    // And an end is an end.
    let body = rig.hub.stream_body(stream(&["a"])).unwrap();
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message("a", "")
    };
    rig.hub.publish(message("a", "last")).unwrap();
    rig.hub.publish(end).unwrap();
    let mut client = rig.hand_over_body(body, HeldFraming::Chunked, b"", 1);
    assert_eq!(client.rest(), "last");
}

#[test]
fn a_body_that_is_never_held_leaves_nothing_behind() {
    let rig = HubHarness::new(settings());
    let (say, said) = std::sync::mpsc::sync_channel(1);
    let body = rig.hub.stream_body(HeldStream {
        on_end: Some(crate::EndCallback::new(move || say.send(()).unwrap())),
        ..stream(&["a", "b"])
    });
    assert_eq!(rig.hub.snapshot().channels.used, 2);
    drop(body);
    said.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(rig.hub.snapshot().channels.used, 0);
    rig.run({
        let hub = rig.hub.clone();
        async move { hub.drain(DrainPlan::with_duration(Duration::ZERO)).await }
    });
}

#[test]
fn heart_beats_come_while_nothing_else_does() {
    let rig = HubHarness::new(settings());
    let beating = |regardless| HeldStream {
        keep_alive: Some(StreamKeepAlive {
            bytes: Bytes::from_static(b":\n\n"),
            interval: Duration::from_secs(2),
            is_unconditional: regardless,
        }),
        ..stream(&["a"])
    };
    let mut client = rig.hold(beating(false));
    for _ in 0..3 {
        assert_eq!(client.chunk(), ":\n\n");
    }
    drop(client);
    // One that is written to in every tick hears none, unless it is to come regardless.
    rig.until("it is gone", |hub| hub.snapshot().streams == 0);
    for regardless in [false, true] {
        let beats = rig.hub.snapshot().counters.heartbeats;
        let mut client = rig.hold(beating(regardless));
        let start = Instant::now();
        let mut longest = Duration::ZERO;
        let mut last = start;
        let mut beaten = 0;
        while start.elapsed() < 60 * TICK || regardless && beaten == 0 {
            rig.hub.publish(message("a", "x")).unwrap();
            loop {
                match client.chunk().as_str() {
                    ":\n\n" => beaten += 1,
                    text => break assert!(text.trim_matches('x').is_empty(), "{text:?}"),
                }
            }
            longest = longest.max(last.elapsed());
            last = Instant::now();
            assert!(start.elapsed() < TEST_TIMEOUT);
        }
        // A machine that was too busy to write in time proves nothing.
        if !regardless && longest < 3 * TICK {
            assert_eq!((beaten, rig.hub.snapshot().counters.heartbeats), (0, beats));
        }
        drop(client);
        rig.until("it is gone", |hub| hub.snapshot().streams == 0);
    }
}

#[test]
fn filters_decide_for_each_stream_and_change_its_content() {
    let rig = HubHarness::new(settings());
    let of = |user: &str, filters: &[MessageFilter]| HeldStream {
        subscriptions: vec![Subscription {
            filters: filters.to_vec(),
            ..subscription("a")
        }],
        subscriber_meta: vec![("user".into(), user.into())],
        ..stream(&[])
    };
    let mut ann = rig.hold(of("ann", &[MessageFilter::SkipSelf]));
    let mut bob = rig.hold(of("bob", &[MessageFilter::SkipSelf]));
    let mut all = rig.hold(of("ann", &[]));
    let by_ann = Publication {
        meta: vec![("sender".into(), "ann".into())],
        ..message("a", "by ann")
    };
    rig.hub.publish(by_ann).unwrap();
    let for_each = Publication {
        stream: Some(StreamAction::Send(Content {
            bytes: Bytes::from_static(b"hi %(user)s"),
            filters: vec!["var-subst".into()],
        })),
        ..message("a", "")
    };
    rig.hub.publish(for_each).unwrap();
    assert_eq!(ann.chunk(), "hi ann");
    assert_eq!(
        (bob.chunk(), bob.chunk()),
        ("by ann".into(), "hi bob".into())
    );
    assert_eq!(
        (all.chunk(), all.chunk()),
        ("by ann".into(), "hi ann".into())
    );
    let broken = Publication {
        stream: Some(StreamAction::Send(Content {
            bytes: Bytes::from_static(b"%(unknown)s"),
            filters: vec!["var-subst".into()],
        })),
        ..message("a", "")
    };
    rig.hub.publish(broken).unwrap();
    rig.hub.publish(message("a", "next")).unwrap();
    assert_eq!(ann.chunk(), "next", "what cannot be made is not sent");
    rig.until("all three are counted", |hub| {
        hub.snapshot().counters.dropped == 3
    });
}
