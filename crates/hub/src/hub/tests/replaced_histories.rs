//! Histories that come from elsewhere, while clients come, are on their way and come back.

use super::*;

/// A history of these messages, each named by its text.
fn restore(rig: &HubHarness, channel: &str, texts: &[&str]) {
    let history = texts.iter();
    let history = history.map(|text| (message_with_id(channel, text, text), Duration::ZERO));
    rig.hub
        .replace_history(&channel.into(), history.collect::<Vec<_>>());
}

fn publish(rig: &HubHarness, channel: &str, text: &str) {
    rig.hub
        .publish(message_with_id(channel, text, text))
        .unwrap();
}

fn back(channels: &[&str], id: &str) -> HeldStream {
    HeldStream {
        resume_after: Some(id.into()),
        gap_notice: Some(Bytes::from_static(b"(gap)")),
        ..fresh(channels)
    }
}

fn fresh(channels: &[&str]) -> HeldStream {
    HeldStream {
        gap_notice: Some(Bytes::from_static(b"(gap)")),
        ..stream(channels)
    }
}

/// What has come of a stream when it is ended.
fn all_of(rig: &HubHarness, mut client: Client, channel: &str) -> String {
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message(channel, "")
    };
    rig.hub.publish(end).unwrap();
    client.rest()
}

#[test]
fn arriving_streams_get_local_messages_and_no_old_history() {
    for count in [0, 10] {
        for (name, stages, expected) in [
            ("all is cut", &["m1", "=", "m2"][..], "m1m2"),
            ("others are restored", &["=old1 old2"][..], ""),
            ("and in between", &["m1", "=old1 m1", "m2"][..], "m1m2"),
            (
                "more than once",
                &["m1", "=old1", "m2", "=old1 m1", "m3", "="][..],
                "m1m2m3",
            ),
        ] {
            let rig = HubHarness::new(with_history(count));
            publish(&rig, "a", "before");
            let body = rig.hub.stream_body(fresh(&["a"])).unwrap();
            for stage in stages {
                match stage.strip_prefix('=') {
                    Some(texts) => {
                        let texts: Vec<&str> = texts.split_whitespace().collect();
                        restore(&rig, "a", &texts);
                    }
                    None => publish(&rig, "a", stage),
                }
            }
            let client = rig.hand_over_body(body, HeldFraming::Chunked, b"", 0);
            rig.until("it is held", |hub| hub.snapshot().counters.opened == 1);
            assert_eq!(all_of(&rig, client, "a"), expected, "{name}, {count}");
            let kept = rig.hub.shared.registry.find("a");
            assert!(
                kept.is_none_or(|kept| kept.lock().arriving_stream_history.is_none()),
                "{name}"
            );
        }
    }
}

#[test]
fn what_was_put_aside_counts_and_is_given_back() {
    let rig = HubHarness::new(with_history(10));
    let body = rig.hub.stream_body(fresh(&["a"])).unwrap();
    publish(&rig, "a", "m1");
    let bytes = rig.hub.snapshot().history_bytes.used;
    restore(&rig, "a", &[]);
    assert_eq!(
        rig.hub.snapshot().history_bytes.used,
        bytes,
        "it is kept for the stream"
    );
    restore(&rig, "a", &[]);
    assert_eq!(rig.hub.snapshot().history_bytes.used, bytes);
    drop(body);
    let counts = rig.hub.snapshot();
    assert_eq!((counts.history_bytes.used, counts.channels.used), (0, 0));
}

#[test]
fn returning_clients_get_the_new_history_or_a_gap() {
    let rig = HubHarness::new(with_history(10));
    for text in ["m1", "m2"] {
        publish(&rig, "a", text);
    }
    rig.hub.publish(message("a", "m3")).unwrap();
    let own = rig.hub.last_message_id("a").unwrap();
    restore(&rig, "a", &["m2", "n1", "m2", "n2"]);
    for (id, expected) in [
        ("m2", "n1n2"),
        ("n2", ""),
        ("m1", "(gap)m2n1n2"),
        (&*own, "(gap)m2n1n2"),
    ] {
        let client = rig.hold(back(&["a"], id));
        let mut other = rig.hold(back(&["a"], id));
        publish(&rig, "a", &format!("live after {id}"));
        let expected = format!("{expected}live after {id}");
        let mut got = String::new();
        while got.len() < expected.len() {
            got.push_str(&other.chunk());
        }
        assert_eq!(got, expected, "after {id}");
        drop((client, other));
        restore(&rig, "a", &["m2", "n1", "n2"]);
    }
}

#[test]
fn a_cut_is_a_gap_also_behind_the_last_message() {
    let rig = HubHarness::new(with_history(10));
    let other = rig.hold(stream(&["a"]));
    for text in ["m1", "m2"] {
        publish(&rig, "a", text);
    }
    restore(&rig, "a", &[]);
    assert_eq!(rig.hub.history_after("a", "m2").map(|all| all.len()), None);
    for id in ["m1", "m2"] {
        let mut client = rig.hold(back(&["a"], id));
        assert_eq!(client.chunk(), "(gap)", "{id}");
    }
    let knowing = HeldStream {
        subscriptions: vec![Subscription {
            prev_id: Some("m2".into()),
            ..subscription("a")
        }],
        ..fresh(&[])
    };
    assert_eq!(rig.hold(knowing).chunk(), "(gap)");
    let mut new = rig.hold(fresh(&["a"]));
    publish(&rig, "a", "m3");
    assert_eq!(new.chunk(), "m3", "who begins now has missed nothing");
    let all = rig.hub.history_after("a", "m3").map(|all| all.len());
    assert_eq!(all, Some(0));
    // Nor is it forgotten with the channel.
    restore(&rig, "a", &[]);
    drop((other, new));
    rig.until("the channel is let go of", |hub| {
        hub.snapshot().channels.used == 0
    });
    publish(&rig, "b", "x");
    let mut client = rig.hold(back(&["a"], "m3"));
    assert_eq!(client.chunk(), "(gap)");
}

#[test]
fn sequences_of_replaced_histories_are_not_comparable() {
    let rig = HubHarness::new(with_history(10));
    // The truth was a1, b1, a2; each is restored for itself.
    restore(&rig, "a", &["a1", "a2"]);
    restore(&rig, "b", &["b1"]);
    let gets = |id: &str, expected: &str| {
        let mut client = rig.hold(back(&["a", "b"], id));
        let mut got = String::new();
        while got.len() < expected.len() {
            got.push_str(&client.chunk());
        }
        assert_eq!(got, expected, "after {id}");
    };
    gets("b1", "(gap)a1a2");
    gets("a1", "(gap)a2b1");
    // Later publications of this server follow all of it.
    publish(&rig, "a", "a3");
    publish(&rig, "b", "b2");
    gets("a3", "b2");
    gets("b1", "(gap)a1a2a3b2");
    // And one that was restored since knows nothing of that.
    restore(&rig, "b", &["b1", "b2"]);
    gets("a3", "(gap)b1b2");
}

#[test]
fn what_was_published_long_ago_is_kept_for_less_long() {
    let history = History {
        max_age: Duration::from_secs(100),
        ..with_history(10).history
    };
    let rig = HubHarness::new(Settings {
        history,
        ..settings()
    });
    let aged = [("m1", 200), ("m2", 99), ("m3", 1)];
    let aged = aged.map(|(id, seconds)| {
        let age = Duration::from_secs(seconds);
        (message_with_id("a", id, id), age)
    });
    rig.hub.replace_history(&"a".into(), aged.to_vec());
    let after = |id| rig.hub.history_after("a", id).map(|all| all.len());
    assert_eq!((after("m1"), after("m2")), (None, Some(1)));
    // Two seconds later the next is too old.
    let channel = rig.hub.shared.registry.find("a").unwrap();
    let later = Instant::now() + Duration::from_secs(2);
    rig.hub.shared.trim_history(&mut channel.lock(), later);
    assert_eq!((after("m2"), after("m3")), (None, Some(0)));
}

#[test]
fn internal_channels_keep_no_history() {
    let rig = HubHarness::new(with_history(10));
    let own = "\u{1}own";
    publish(&rig, own, "to nobody");
    assert_eq!(rig.hub.snapshot().channels.used, 0);
    let body = rig.hub.stream_body(fresh(&[own])).unwrap();
    publish(&rig, own, "m1");
    assert!(
        rig.hub.snapshot().history_bytes.used > 0,
        "one is on its way"
    );
    let mut client = rig.hand_over_body(body, HeldFraming::Chunked, b"", 0);
    assert_eq!(client.chunk(), "m1");
    publish(&rig, own, "m2");
    assert_eq!(client.chunk(), "m2");
    assert_eq!(rig.hub.snapshot().history_bytes.used, 0);
    drop(client);
    rig.until("it is gone", |hub| hub.snapshot().channels.used == 0);
}
