//! Clients that resume, publishers that ask for an order, and the history for both.

use super::*;

fn after(id: &str) -> HeldStream {
    HeldStream {
        resume_after: Some(id.into()),
        gap_notice: Some(Bytes::from_static(b"(gap)")),
        ..stream(&["a"])
    }
}

/// What a stream gets that begins now, up to a message that is published for it.
fn gets(rig: &HubHarness, stream: HeldStream) -> String {
    let mut client = rig.hold(stream);
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message("a", "")
    };
    rig.hub.publish(end).unwrap();
    client.rest()
}

#[test]
fn a_returning_client_gets_missed_messages() {
    let rig = HubHarness::new(with_history(4));
    for number in 1..=6 {
        rig.hub
            .publish(message_with_id(
                "a",
                &format!("m{number}"),
                &format!("{number}."),
            ))
            .unwrap();
    }
    // An end is in the history as well, and ends no later stream: each of these publishes
    // one.
    assert_eq!(gets(&rig, after("m5")), "6.");
    assert_eq!(gets(&rig, after("m4")), "5.6.");
    assert_eq!(
        gets(&rig, after("m4")),
        "(gap)5.6.",
        "two ends have taken places"
    );
    for number in 7..=10 {
        rig.hub
            .publish(message_with_id(
                "a",
                &format!("m{number}"),
                &format!("{number}."),
            ))
            .unwrap();
    }
    for (id, expected) in [
        ("m10", ""),
        ("m9", "10."),
        ("m7", "8.9.10."),
        ("m6", "(gap)7.8.9.10."),
        ("unknown", "(gap)7.8.9.10."),
    ] {
        let mut client = rig.hold(after(id));
        rig.hub.publish(message("b", "x")).unwrap();
        let mut got = String::new();
        while got.len() < expected.len() {
            got.push_str(&client.chunk());
        }
        assert_eq!(got, expected, "after {id}");
        assert!(client.read.is_empty(), "after {id}");
    }
    let mut fresh = rig.hold(stream(&["a"]));
    rig.hub.publish(message("a", "live")).unwrap();
    assert_eq!(
        fresh.chunk(),
        "live",
        "who does not come back gets nothing old"
    );
    let ids = |id| rig.hub.history_after("a", id).map(|all| all.len());
    assert_eq!((ids("m9"), ids("m6"), ids("?")), (Some(2), None, None));
}

#[test]
fn ids_of_the_hub_s_own_name_a_place_in_all_channels() {
    let rig = HubHarness::new(with_history(10));
    rig.hub.publish(message("a", "a1.")).unwrap();
    let id = rig.hub.last_message_id("a").unwrap();
    rig.hub.publish(message("b", "b1.")).unwrap();
    rig.hub.publish(message("a", "a2.")).unwrap();
    rig.hub.publish(message("b", "b2.")).unwrap();
    let mut client = rig.hold(HeldStream {
        resume_after: Some(id),
        gap_notice: Some(Bytes::from_static(b"(gap)")),
        ..stream(&["b", "a"])
    });
    for expected in ["b1.", "a2.", "b2."] {
        assert_eq!(client.chunk(), expected);
    }
    let last = rig.hub.last_message_id("b").unwrap();
    let mut client = rig.hold(HeldStream {
        resume_after: Some(last),
        ..stream(&["b", "a"])
    });
    rig.hub.publish(message("a", "a3.")).unwrap();
    assert_eq!(client.chunk(), "a3.");
}

#[test]
fn an_expired_history_frees_its_channel_and_leaves_a_gap() {
    let history = History {
        max_messages: 100,
        max_age: Duration::from_millis(50),
        ..History::default()
    };
    let rig = HubHarness::new(Settings {
        history,
        ..Settings::default()
    });
    rig.hub.publish(message("a", "old")).unwrap();
    let first = rig.hub.last_message_id("a").unwrap();
    rig.hub.publish(message("a", "old too")).unwrap();
    let last = rig.hub.last_message_id("a").unwrap();
    rig.until("nothing is kept", |hub| hub.snapshot().channels.used == 0);
    assert_eq!(rig.hub.snapshot().history_bytes.used, 0);
    // The channel is no longer known, nor is the id of its last message.
    assert_eq!(gets(&rig, after(&first)), "(gap)");
    let _ = last;
}

#[test]
fn what_all_histories_keep_is_bounded() {
    let history = History {
        max_messages: 1_000,
        max_size_total: 200_000,
        ..History::default()
    };
    let rig = HubHarness::new(Settings {
        history,
        ..Settings::default()
    });
    for number in 0..2_000 {
        let channel = format!("c{}", number % 700);
        rig.hub
            .publish(message(&channel, &"x".repeat(500)))
            .unwrap();
        assert!(rig.hub.snapshot().history_bytes.used <= 200_000);
    }
    let counts = rig.hub.snapshot();
    assert!(
        counts.history_bytes.used > 150_000 && counts.channels.used < 400,
        "{counts:?}"
    );
    // Other bounds count from the next message on.
    rig.hub.configure(Settings {
        history: History {
            max_size_total: 1_000,
            ..history
        },
        ..Settings::default()
    });
    rig.hub.publish(message("a", "x")).unwrap();
    assert!(rig.hub.snapshot().history_bytes.used <= 1_000);
}

#[test]
fn messages_wait_for_the_one_before_them() {
    let rig = HubHarness::new(settings());
    let mut client = rig.hold(stream(&["a"]));
    let next = |id: &str, prev_id: &str, text: &str| Publication {
        prev_id: Some(prev_id.into()),
        ..message_with_id("a", id, text)
    };
    rig.hub.publish(next("1", "0", "one")).unwrap();
    rig.hub.publish(next("4", "3", "four")).unwrap();
    rig.hub.publish(next("3", "2", "three")).unwrap();
    rig.hub.publish(next("3", "2", "three again")).unwrap();
    let at_once = Publication {
        allows_any_order: true,
        ..next("x", "7", "at once")
    };
    assert_eq!(client.chunk(), "one");
    rig.hub.publish(next("2", "1", "two")).unwrap();
    for expected in ["two", "three", "four"] {
        assert_eq!(client.chunk(), expected);
    }
    rig.hub.publish(at_once).unwrap();
    assert_eq!(client.chunk(), "at once");
    rig.hub
        .publish(message_with_id("a", "2", "repeated"))
        .unwrap();
    // One whose predecessor never comes is sent after five seconds.
    let parked = Instant::now();
    rig.hub.publish(next("9", "8", "late")).unwrap();
    assert!(rig.hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) > 0);
    assert_eq!(client.chunk(), "late");
    assert!(parked.elapsed() >= Duration::from_secs(5));
    rig.until("nothing is put aside", |hub| {
        hub.shared.metrics.pending_bytes.load(Ordering::Relaxed) == 0
    });
}

#[test]
fn a_stream_with_prev_id_gets_later_messages() {
    let rig = HubHarness::new(with_history(10));
    for number in 1..=3 {
        rig.hub
            .publish(message_with_id(
                "a",
                &format!("m{number}"),
                &format!("{number}."),
            ))
            .unwrap();
    }
    let knowing = |id: &str| HeldStream {
        subscriptions: vec![Subscription {
            prev_id: Some(id.into()),
            ..subscription("a")
        }],
        gap_notice: Some(Bytes::from_static(b"(gap)")),
        ..stream(&[])
    };
    for (id, expected) in [("m1", "2.3."), ("m3", ""), ("unknown", "(gap)1.2.3.")] {
        let mut client = rig.hold(knowing(id));
        let mut got = String::new();
        while got.len() < expected.len() {
            got.push_str(&client.chunk());
        }
        assert_eq!(got, expected);
    }
    let mut client = rig.hold(HeldStream {
        subscriptions: vec![Subscription {
            prev_id: Some("any".into()),
            ..subscription("new")
        }],
        gap_notice: Some(Bytes::from_static(b"(gap)")),
        ..stream(&[])
    });
    rig.hub.publish(message("new", "first")).unwrap();
    assert_eq!(client.chunk(), "first");
}

#[test]
fn a_forged_id_leaves_a_gap() {
    let rig = HubHarness::new(with_history(10));
    rig.hub.publish(message("a", "1.")).unwrap();
    let id = rig.hub.last_message_id("a").unwrap();
    let (prefix, number) = id.rsplit_once('-').unwrap();
    assert_eq!(gets(&rig, after(&id)), "");
    for forged in [
        format!("{prefix}-99999"),
        format!("{prefix}-0"),
        format!("{prefix}-+{number}"),
        format!("{prefix}-0{number}"),
        format!("{prefix}-"),
        format!("0.0-{number}"),
    ] {
        assert_eq!(gets(&rig, after(&forged)), "(gap)1.", "{forged}");
    }
}

#[test]
fn an_unkept_message_without_subscribers_leaves_a_gap() {
    let rig = HubHarness::new(with_history(0));
    let client = rig.hold(stream(&["a"]));
    rig.hub.publish(message("a", "1.")).unwrap();
    let id = rig.hub.last_message_id("a").unwrap();
    drop(client);
    rig.until("the channel is gone", |hub| {
        hub.last_message_id("a").is_none()
    });
    assert_eq!(gets(&rig, after(&id)), "", "nothing is missing yet");
    rig.until("the channel is gone", |hub| {
        hub.last_message_id("a").is_none()
    });
    rig.hub.publish(message("a", "2.")).unwrap();
    assert_eq!(gets(&rig, after(&id)), "(gap)");
}

#[test]
fn an_id_that_no_browser_can_return_is_refused() {
    let rig = HubHarness::new(with_history(10));
    for id in ["a\nb", "a\rb", "a\0b", &"x".repeat(1025)] {
        let refused = rig.hub.publish(message_with_id("a", id, "1."));
        assert_eq!(refused, Err(HubError::InvalidMessageId("id")), "{id:?}");
        let follows = Publication {
            prev_id: Some(id.into()),
            ..message("a", "1.")
        };
        let refused = rig.hub.publish_locally(follows);
        assert_eq!(
            refused,
            Err(HubError::InvalidMessageId("prev-id")),
            "{id:?}"
        );
    }
    assert!(rig.hub.last_message_id("a").is_none());
}

/// An empty `id` field would clear the last id of a browser.
#[test]
fn an_empty_id_counts_as_none() {
    let rig = HubHarness::new(with_history(10));
    let mut client = rig.hold(HeldStream {
        message_format: StreamForm::Events,
        ..stream(&["a"])
    });
    rig.hub.publish(event("a", "", "1")).unwrap();
    let id = rig.hub.last_message_id("a").unwrap();
    assert!(!id.is_empty());
    assert_eq!(client.chunk(), format!("id: {id}\ndata: 1\n\n"));
}

/// A publisher that writes whole events need not name their ids again.
#[test]
fn the_id_in_a_written_event_is_known_too() {
    let rig = HubHarness::new(with_history(10));
    for number in 1..=3 {
        let text = format!("id: {}\ndata: x\n\nid: {number}\ndata: x\n\n", number * 10);
        rig.hub.publish(message("a", &text)).unwrap();
    }
    rig.hub
        .publish(message_with_id("a", "2", "id: 4\n\n"))
        .unwrap();
    for (id, expected) in [
        ("4", ""),
        ("3", "id: 4\n\n"),
        // The message's own id comes first.
        ("2", ""),
        (
            "1",
            "id: 20\ndata: x\n\nid: 2\ndata: x\n\nid: 30\ndata: x\n\nid: 3\ndata: x\n\nid: 4\n\n",
        ),
    ] {
        assert_eq!(gets(&rig, after(id)), expected, "after {id}");
    }
    // The rest of its message may be missing.
    assert!(gets(&rig, after("30")).starts_with("(gap)"));
}
