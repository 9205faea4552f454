//! Each bound, and that what it refuses leaves nothing behind.

use penstock_exchange::AddressPrefix;
use penstock_sys::net::PeerAddress;

use super::*;

#[test]
fn streams_and_channels_are_bounded() {
    let rig = HubHarness::new(Settings {
        max_streams: Some(3),
        max_channels: 4,
        max_channels_per_stream: 2,
        ..settings()
    });
    let refused = |channels: &[&str]| rig.hub.stream_body(stream(channels)).unwrap_err();
    assert_eq!(
        refused(&["a", "b", "c"]),
        HubError::TooManyStreamChannels(2)
    );
    let first = rig.hub.stream_body(stream(&["a", "b"])).unwrap();
    let _second = rig.hub.stream_body(stream(&["c"])).unwrap();
    assert_eq!(refused(&["d", "e"]), HubError::TooManyChannels(4));
    assert_eq!(
        rig.hub.snapshot().channels.used,
        3,
        "the first of the two was let go of"
    );
    let _third = rig.hub.stream_body(stream(&["a", "a"])).unwrap();
    assert_eq!(refused(&["a"]), HubError::TooManyStreams(3));
    let poll = LongPoll {
        subscriptions: vec![subscription("a")],
        ..LongPoll::default()
    };
    assert!(matches!(
        rig.hub.long_poll(poll),
        Err(HubError::TooManyStreams(3))
    ));
    drop(first);
    let client = rig.hold(stream(&["d", "a"]));
    assert_eq!(refused(&["a"]), HubError::TooManyStreams(3));
    drop(client);
    rig.until("its place is free", |hub| {
        hub.stream_body(stream(&["a"])).is_ok()
    });
}

#[test]
fn refused_streams_are_held_beyond_the_bound_by_a_part_of_it() {
    let rig = HubHarness::new(Settings {
        max_streams: Some(4),
        max_streams_per_client: Some(4),
        refusal_policy: RefusalPolicy::Hold,
        retry_interval: Duration::from_secs(4),
        ..settings()
    });
    let _held: Vec<Client> = (0..4).map(|_| rig.hold(stream(&["a"]))).collect();
    let refuse = || rig.hub.refuse_stream(None, "it is full").unwrap().body;
    let mut waiting = rig.hand_over_body(refuse(), HeldFraming::Chunked, b"", 0);
    rig.until("it is held", |hub| hub.snapshot().streams == 5);
    assert_eq!(rig.hub.subscriber_count("a"), 4);
    let Body::Bytes(retry) = refuse() else {
        panic!("a second one has no room");
    };
    assert!(retry.starts_with(b"retry: "), "{retry:?}");
    // It has waited for most of the time that the other one was told.
    let text = waiting.rest();
    let number = text.trim().strip_prefix("retry: ").unwrap();
    assert!((1_000..2_000).contains(&number.parse().unwrap()), "{text}");
    rig.until("its place is free", |hub| hub.snapshot().streams == 4);
    rig.hub.configure(Settings {
        refusal_policy: RefusalPolicy::Error,
        ..settings()
    });
    assert!(rig.hub.refuse_stream(None, "it is full").is_none());
}

#[test]
fn each_client_has_a_bound_of_its_own() {
    let rig = HubHarness::new(Settings {
        max_streams: Some(10),
        max_streams_per_client: Some(2),
        ..settings()
    });
    let client = |last| {
        let address = std::net::SocketAddr::from(([192, 0, 2, last], 0));
        Some(AddressPrefix::from_address(PeerAddress::tcp(address)))
    };
    let of = |client| HeldStream {
        client,
        ..stream(&["a"])
    };
    let poll_of = |client| LongPoll {
        subscriptions: vec![subscription("a")],
        client,
        ..LongPoll::default()
    };
    let first = rig.hold(of(client(1)));
    let polls = rig.hub.long_poll(poll_of(client(1))).unwrap();
    let full = HubError::TooManyClientStreams(client(1).unwrap(), 2);
    assert_eq!(rig.hub.stream_body(of(client(1))).unwrap_err(), full);
    assert_eq!(
        rig.hub.long_poll(poll_of(client(1))).err(),
        Some(full.clone())
    );
    assert_eq!(rig.hub.create_message_listener(client(1)).err(), Some(full));
    // Others, and those of a proxy that names no client, are held.
    let _other = rig.hub.stream_body(of(client(2))).unwrap();
    let _unnamed: Vec<_> = (0..4)
        .map(|_| rig.hub.stream_body(of(None)).unwrap())
        .collect();
    let counts = rig.hub.snapshot();
    assert_eq!(
        (
            counts.max_streams_of_one_client,
            counts.refused_client_streams
        ),
        (2, 3)
    );
    drop(polls);
    let _second = rig.hub.create_message_listener(client(1)).unwrap();
    drop(first);
    rig.until("its place is free", |hub| {
        hub.create_message_listener(client(1)).is_ok()
    });
}

#[test]
fn channels_without_subscribers_leave_room_for_streams() {
    let rig = HubHarness::new(Settings {
        max_channels: 8,
        ..with_history(10)
    });
    let refused = (0..20).find_map(|number| {
        let publication = message(&format!("new-{number}"), "x");
        rig.hub.publish(publication).err().map(|why| (number, why))
    });
    assert_eq!(refused, Some((6, HubError::TooManyUnsubscribedChannels(6))));
    rig.hub.publish(message("new-1", "again")).unwrap();
    let _first = rig.hub.stream_body(stream(&["one"])).unwrap();
    let _second = rig.hub.stream_body(stream(&["two"])).unwrap();
    rig.hub.publish(message("one", "x")).unwrap();
}

/// A key of this namespace.
fn of(namespace: &str, number: usize) -> String {
    crate::Namespace::new(namespace)
        .channel_key(&number.to_string())
        .to_string()
}

#[test]
fn one_namespace_cannot_use_up_the_channels_of_others() {
    let rig = HubHarness::new(Settings {
        max_channels: 40,
        ..with_history(10)
    });
    rig.hub.set_namespace_count(2);
    for number in 0..200 {
        rig.hub.publish(message(&of("a", number), "x")).unwrap();
        assert!(rig.hub.snapshot().channels.used <= 15);
    }
    // Its oldest channels gave way to its newest ones.
    let is_kept = |namespace, number| rig.hub.last_message_id(&of(namespace, number)).is_some();
    assert!(is_kept("a", 199) && is_kept("a", 186) && !is_kept("a", 0));
    for number in 0..200 {
        rig.hub.publish(message(&of("b", number), "x")).unwrap();
    }
    assert!(is_kept("b", 199) && is_kept("b", 195) && is_kept("a", 199));
    // Channels with subscribers do not count.
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let client = rig.hold(stream(&[&of("b", number)]));
            rig.hub.publish(message(&of("b", number), "heard")).unwrap();
            client
        })
        .collect();
    rig.hub.publish(message(&of("b", 500), "x")).unwrap();
    assert!(is_kept("b", 500) && is_kept("b", 3) && is_kept("a", 199));
    drop(clients);
}

#[test]
fn a_namespace_alone_has_all_channels() {
    let rig = HubHarness::new(Settings {
        max_channels: 40,
        ..with_history(10)
    });
    let publish = |number| rig.hub.publish(message(&of("a", number), "x"));
    assert!((0..30).all(|number| publish(number).is_ok()));
    assert_eq!(publish(30), Err(HubError::TooManyUnsubscribedChannels(30)));
}

#[test]
fn a_publisher_without_room_is_told_which_bound_it_meets() {
    let rig = HubHarness::new(Settings {
        max_channels: 12,
        ..with_history(10)
    });
    rig.hub.set_namespace_count(2);
    let parked = |number| Publication {
        id: Some("third".into()),
        prev_id: Some("second".into()),
        ..message(&of("a", number), "x")
    };
    for number in 0..4 {
        let first = Publication {
            id: Some("first".into()),
            ..message(&of("a", number), "x")
        };
        rig.hub.publish(first).unwrap();
        rig.hub.publish(parked(number)).unwrap();
    }
    // What waits for its turn is not let go of.
    let refused = rig.hub.publish(message(&of("a", 4), "x")).unwrap_err();
    assert_eq!(refused, HubError::TooManyNamespaceUnsubscribedChannels(4));
    assert!(refused.to_string().contains("hub.max_channels"));
    rig.hub.publish(message(&of("b", 0), "x")).unwrap();
}

/// Two namespaces, of which one alone has at most 15 channels without subscribers.
fn shared() -> HubHarness {
    let rig = HubHarness::new(Settings {
        max_channels: 40,
        ..with_history(10)
    });
    rig.hub.set_namespace_count(2);
    rig
}

#[test]
fn channels_with_subscribers_use_no_fair_share() {
    let rig = shared();
    let is_kept = |number| rig.hub.last_message_id(&of("a", number)).is_some();
    let clients: Vec<_> = (0..20)
        .map(|number| {
            rig.hub.publish(message(&of("a", number), "x")).unwrap();
            rig.hold(stream(&[&of("a", number)]))
        })
        .collect();
    // More channels than one search checks have subscribers.
    for number in 100..200 {
        rig.hub.publish(message(&of("a", number), "x")).unwrap();
    }
    assert!((0..20).all(is_kept) && is_kept(199) && is_kept(190) && !is_kept(100));
    drop(clients);
}

#[test]
fn the_channel_with_the_oldest_last_message_gives_way() {
    let rig = shared();
    let publish = |number| rig.hub.publish(message(&of("a", number), "x")).unwrap();
    (0..15).for_each(publish);
    [0, 2].into_iter().for_each(publish);
    // Earlier subscribers do not make it any newer.
    drop(rig.hub.stream_body(stream(&[&of("a", 3)])).unwrap());
    [15, 16].into_iter().for_each(publish);
    let is_kept = |number: &usize| rig.hub.last_message_id(&of("a", *number)).is_some();
    let gone: Vec<_> = (0..17).filter(|number| !is_kept(number)).collect();
    assert_eq!(gone, [1, 3]);
}

#[test]
fn a_channel_that_is_gone_makes_no_room() {
    let rig = shared();
    let publish = |number| rig.hub.publish(message(&of("a", number), "x")).unwrap();
    publish(0);
    let body = rig.hub.stream_body(stream(&[&of("a", 0)])).unwrap();
    rig.hub.configure(Settings {
        max_channels: 40,
        ..settings()
    });
    drop(body);
    assert_eq!(rig.hub.snapshot().channels.used, 0);
    rig.hub.configure(Settings {
        max_channels: 40,
        ..with_history(10)
    });
    for number in 1..40 {
        publish(number);
        assert!(rig.hub.snapshot().channels.used <= 15);
    }
}

#[test]
fn a_publication_that_is_refused_leaves_what_there_is() {
    let rig = HubHarness::new(Settings {
        max_channels: 8,
        ..with_history(10)
    });
    rig.hub.set_namespace_count(2);
    rig.hub.publish(message(&of("a", 0), "x")).unwrap();
    let streams = (0..7).map(|number| rig.hub.stream_body(stream(&[&of("b", number)])));
    let streams: Vec<_> = streams.collect::<Result<_, _>>().unwrap();
    // All channels are in use, and its own can give way.
    rig.hub.publish(message(&of("a", 1), "x")).unwrap();
    assert!(rig.hub.last_message_id(&of("a", 0)).is_none());
    // A parked message cannot, even if its place is needed.
    let waits = Publication {
        id: Some("third".into()),
        prev_id: Some("second".into()),
        ..message(&of("a", 1), "x")
    };
    rig.hub.publish(waits).unwrap();
    for namespace in ["a", "b"] {
        let refused = rig.hub.publish(message(&of(namespace, 9), "x"));
        assert_eq!(refused, Err(HubError::TooManyUnsubscribedChannels(1)));
        assert!(rig.hub.last_message_id(&of("a", 1)).is_some());
    }
    assert_eq!(rig.hub.snapshot().channels.used, 8);
    drop(streams);
}

#[test]
fn each_of_many_namespaces_has_a_little() {
    let rig = HubHarness::new(Settings {
        max_channels: 160,
        ..with_history(10)
    });
    let names: Vec<_> = (0..10).map(|number| format!("n{number}")).collect();
    rig.hub.set_namespace_count(names.len());
    for name in &names {
        for number in 0..200 {
            rig.hub.publish(message(&of(name, number), "x")).unwrap();
        }
        assert!(rig.hub.snapshot().channels.used <= 120);
    }
    // A quarter of the 120 is for the ten of them.
    for name in &names {
        let is_kept = |number| rig.hub.last_message_id(&of(name, number)).is_some();
        assert!((197..200).all(is_kept), "{name}");
    }
}

#[test]
fn a_small_namespace_keeps_its_history_where_a_large_one_has_too_much() {
    let bytes_all = |bytes_all| Settings {
        history: History {
            max_messages: 1_000,
            max_size_total: bytes_all,
            ..History::default()
        },
        ..Settings::default()
    };
    let rig = HubHarness::new(bytes_all(200_000));
    rig.hub.set_namespace_count(2);
    let text = "x".repeat(500);
    let publish = |namespace: &str, number: usize| {
        let publication = message(&of(namespace, number % 5), &text);
        rig.hub.publish(publication).unwrap();
    };
    (0..5).for_each(|number| publish("b", number));
    (0..200).for_each(|number| publish("a", number));
    let bytes = |namespace| {
        let usage = rig
            .hub
            .shared
            .registry
            .namespace_usages
            .usage_of_channel(&of(namespace, 0));
        usage.history_bytes.load(Ordering::Relaxed)
    };
    let before = bytes("b");
    assert!(bytes("a") > 80_000);
    rig.hub.configure(bytes_all(50_000));
    publish("b", 0);
    assert!(bytes("b") > before);
    assert!(bytes("a") > 40_000 && rig.hub.snapshot().history_bytes.used <= 50_000);
}

#[test]
fn a_channel_is_in_a_queue_once_whoever_changes_it() {
    let rig = HubHarness::new(Settings {
        history: History {
            max_size_total: 4_000,
            ..History::default()
        },
        ..Settings::default()
    });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let hub = &rig.hub;
            scope.spawn(move || {
                for number in 0..5_000 {
                    let name = format!("{}", (number + thread) % 7);
                    hub.publish(message(&name, &"x".repeat(500))).unwrap();
                }
            });
        }
    });
    let usage = rig
        .hub
        .shared
        .registry
        .namespace_usages
        .usage_of_channel("0");
    let channels = rig.hub.shared.registry.all_by_partition().flatten();
    let kept = channels.filter(|channel| !channel.lock().history.is_empty());
    let kept = kept.count();
    assert!((1..=7).contains(&kept));
    assert_eq!(
        (
            usage.channels_with_history.len(),
            usage.unsubscribed_channels.len()
        ),
        (kept, kept)
    );
}

#[test]
fn one_namespace_cannot_push_out_the_histories_of_others() {
    let history = History {
        max_messages: 1_000,
        max_size_total: 200_000,
        ..History::default()
    };
    let settings = || Settings {
        history,
        ..Settings::default()
    };
    let rig = HubHarness::new(settings());
    rig.hub.set_namespace_count(2);
    let publish = |namespace: &str, number: usize| {
        let text = "x".repeat(500);
        rig.hub
            .publish(message(&of(namespace, number), &text))
            .unwrap();
    };
    publish("b", 0);
    for number in 0..2_000 {
        publish("a", number % 50);
        assert!(rig.hub.snapshot().history_bytes.used <= 102_000);
    }
    assert!(rig.hub.snapshot().history_bytes.used > 90_000);
    assert!(rig.hub.last_message_id(&of("b", 0)).is_some());
    // What another takes comes off, once there is more.
    for number in 0..2_000 {
        publish("b", number % 50);
        publish("a", number % 50);
    }
    assert!(rig.hub.snapshot().history_bytes.used <= 200_000);
    let bytes = |namespace| {
        let usage = rig
            .hub
            .shared
            .registry
            .namespace_usages
            .usage_of_channel(&of(namespace, 0));
        usage.history_bytes.load(Ordering::Relaxed)
    };
    assert!(bytes("a") > 60_000 && bytes("b") > 60_000);
    assert_eq!(
        (bytes("a") + bytes("b")) as u64,
        rig.hub.snapshot().history_bytes.used
    );
}

#[test]
fn a_message_is_bounded_in_all_its_forms() {
    let rig = HubHarness::new(Settings {
        max_message_size: 1_000,
        ..with_history(10)
    });
    rig.hub.publish(message("a", &"x".repeat(1_000))).unwrap();
    let refused = rig
        .hub
        .publish(message("a", &"x".repeat(1_001)))
        .unwrap_err();
    assert_eq!(refused, HubError::MessageTooLarge(1_000));
    let both = Publication {
        event: Some(PublishedEvent {
            data: "x".repeat(600).into(),
            ..PublishedEvent::default()
        }),
        ..message("a", &"x".repeat(600))
    };
    assert_eq!(
        rig.hub.publish(both).unwrap_err(),
        HubError::MessageTooLarge(1_000)
    );
    assert_eq!(rig.hub.snapshot().counters.published, 1);
}

#[test]
fn a_hundred_thousand_channels_come_and_go() {
    let rig = HubHarness::new(Settings {
        // Three quarters for channels without subscribers.
        max_channels: 133_333,
        ..with_history(1)
    });
    for number in 0..100_000 {
        rig.hub
            .publish(message(&format!("channel {number}"), "x"))
            .unwrap();
    }
    let refused = rig.hub.publish(message("one more", "x")).unwrap_err();
    assert_eq!(refused, HubError::TooManyUnsubscribedChannels(100_000));
    assert_eq!(rig.hub.snapshot().channels.used, 100_000);
    let mut client = rig.hold(stream(&["channel 77777"]));
    rig.hub.publish(message("channel 77777", "heard")).unwrap();
    assert_eq!(client.chunk(), "heard");
    // A reload with less: all but the one that has a subscriber go.
    rig.hub.configure(Settings {
        history: History {
            max_size_total: 0,
            ..History::default()
        },
        ..Settings::default()
    });
    rig.hub.publish(message("channel 77777", "again")).unwrap();
    assert_eq!(client.chunk(), "again");
    assert_eq!(rig.hub.snapshot().channels.used, 1);
    assert_eq!(rig.hub.snapshot().history_bytes.used, 0);
}

#[test]
fn publishing_without_subscribers_keeps_nothing() {
    let rig = HubHarness::new(settings());
    for number in 0..1_000 {
        rig.hub.publish(message(&format!("{number}"), "x")).unwrap();
    }
    let counts = rig.hub.snapshot();
    assert_eq!(
        (
            counts.counters.published,
            counts.channels.used,
            counts.history_bytes.used
        ),
        (1_000, 0, 0)
    );
}
