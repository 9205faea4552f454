//! Each bound, and that what it refuses leaves nothing behind.

use penstock_exchange::AddressPrefix;
use penstock_sys::net::PeerAddress;

use super::*;

#[test]
fn streams_and_channels_are_bounded() {
    let rig = Rig::new(Settings {
        streams_max: Some(3),
        channels_max: 4,
        channels_per_stream: 2,
        ..settings()
    });
    let refused = |channels: &[&str]| rig.hub.body(stream(channels)).unwrap_err();
    assert_eq!(refused(&["a", "b", "c"]), Refused::ChannelsOfStream(2));
    let first = rig.hub.body(stream(&["a", "b"])).unwrap();
    let _second = rig.hub.body(stream(&["c"])).unwrap();
    assert_eq!(refused(&["d", "e"]), Refused::Channels(4));
    assert_eq!(
        rig.hub.counts().channels,
        3,
        "the first of the two was let go of"
    );
    let _third = rig.hub.body(stream(&["a", "a"])).unwrap();
    assert_eq!(refused(&["a"]), Refused::Streams(3));
    let poll = LongPoll {
        subscriptions: vec![subscription("a")],
        ..LongPoll::default()
    };
    assert!(matches!(rig.hub.wait(poll), Err(Refused::Streams(3))));
    drop(first);
    let client = rig.hold(stream(&["d", "a"]));
    assert_eq!(refused(&["a"]), Refused::Streams(3));
    drop(client);
    rig.until("its place is free", |hub| hub.body(stream(&["a"])).is_ok());
}

#[test]
fn each_client_has_a_bound_of_its_own() {
    let rig = Rig::new(Settings {
        streams_max: Some(10),
        max_streams_per_client: Some(2),
        ..settings()
    });
    let client = |last| {
        let address = std::net::SocketAddr::from(([192, 0, 2, last], 0));
        Some(AddressPrefix::of(PeerAddress::tcp(address)))
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
    let polls = rig.hub.wait(poll_of(client(1))).unwrap();
    let full = Refused::StreamsOfClient(client(1).unwrap(), 2);
    assert_eq!(rig.hub.body(of(client(1))).unwrap_err(), full);
    assert_eq!(rig.hub.wait(poll_of(client(1))).err(), Some(full.clone()));
    assert_eq!(rig.hub.listen(client(1)).err(), Some(full));
    // Others, and those of a proxy that names nobody, are held.
    let _other = rig.hub.body(of(client(2))).unwrap();
    let _unnamed: Vec<_> = (0..4).map(|_| rig.hub.body(of(None)).unwrap()).collect();
    let counts = rig.hub.counts();
    assert_eq!((counts.client_most, counts.refused_of_client), (2, 3));
    drop(polls);
    let _second = rig.hub.listen(client(1)).unwrap();
    drop(first);
    rig.until("its place is free", |hub| hub.listen(client(1)).is_ok());
}

#[test]
fn messages_that_nobody_hears_leave_channels_to_streams() {
    let rig = Rig::new(Settings {
        channels_max: 8,
        ..with_history(10)
    });
    let refused = (0..20).find_map(|number| {
        let publication = message(&format!("new-{number}"), "x");
        rig.hub.publish(publication).err().map(|why| (number, why))
    });
    assert_eq!(refused, Some((6, Refused::Unheard(6))));
    rig.hub.publish(message("new-1", "again")).unwrap();
    let _first = rig.hub.body(stream(&["one"])).unwrap();
    let _second = rig.hub.body(stream(&["two"])).unwrap();
    rig.hub.publish(message("one", "x")).unwrap();
}

#[test]
fn a_message_is_bounded_in_all_its_forms() {
    let rig = Rig::new(Settings {
        message_bytes: 1_000,
        ..with_history(10)
    });
    rig.hub.publish(message("a", &"x".repeat(1_000))).unwrap();
    let refused = rig
        .hub
        .publish(message("a", &"x".repeat(1_001)))
        .unwrap_err();
    assert_eq!(refused, Refused::Message(1_000));
    let both = Publication {
        event: Some(EventPart {
            data: "x".repeat(600).into(),
            ..EventPart::default()
        }),
        ..message("a", &"x".repeat(600))
    };
    assert_eq!(rig.hub.publish(both).unwrap_err(), Refused::Message(1_000));
    assert_eq!(rig.hub.counts().published, 1);
}

#[test]
fn a_hundred_thousand_channels_come_and_go() {
    let rig = Rig::new(Settings {
        // Three quarters for messages that nobody hears.
        channels_max: 133_333,
        ..with_history(1)
    });
    for number in 0..100_000 {
        rig.hub
            .publish(message(&format!("channel {number}"), "x"))
            .unwrap();
    }
    let refused = rig.hub.publish(message("one more", "x")).unwrap_err();
    assert_eq!(refused, Refused::Unheard(100_000));
    assert_eq!(rig.hub.counts().channels, 100_000);
    let mut client = rig.hold(stream(&["channel 77777"]));
    rig.hub.publish(message("channel 77777", "heard")).unwrap();
    assert_eq!(client.chunk(), "heard");
    // A reload with less: all but the one that has a subscriber go.
    rig.hub.configure(Settings {
        history: History {
            bytes_all: 0,
            ..History::default()
        },
        ..Settings::default()
    });
    rig.hub.publish(message("channel 77777", "again")).unwrap();
    assert_eq!(client.chunk(), "again");
    assert_eq!(rig.hub.counts().channels, 1);
    assert_eq!(rig.hub.counts().history_bytes, 0);
}

#[test]
fn publishing_to_nobody_costs_nothing() {
    let rig = Rig::new(settings());
    for number in 0..1_000 {
        rig.hub.publish(message(&format!("{number}"), "x")).unwrap();
    }
    let counts = rig.hub.counts();
    assert_eq!(
        (counts.published, counts.channels, counts.history_bytes),
        (1_000, 0, 0)
    );
}
