//! Transfers between two hubs over a real packet socket: each has loops of its own, as two
//! processes do.

mod interrupted;
mod shared;

use super::*;
use crate::{
    HubReceiver, HubTransfer, ListenerEvent, LongPollAction, LongPollResponse, TransferError,
};
use penstock_exchange::{AddressPrefix, ConnectionAdopter, RecordLayer};
use penstock_sys::fd_packets;

/// The front end of the new hub.
#[derive(Debug)]
struct Adopter(Arc<CountingConnectionCounter>);

impl ConnectionAdopter for Adopter {
    fn adopt_held_connection(&self, _: Option<AddressPrefix>) -> HeldConnectionGuard {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        HeldConnectionGuard::new(self.0.clone())
    }

    fn restore_record_layer(&self, _: &[u8]) -> io::Result<Box<dyn RecordLayer>> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// Lets `new` take `old` over, up to the channels.
fn begin(old: &HubHarness, new: &HubHarness) -> HubTransfer {
    let (ours, theirs) = fd_packets::packet_pair().unwrap();
    let (hub, adopter) = (new.hub.clone(), Arc::new(Adopter(new.front.clone())));
    new.handles()[0].spawn(async move {
        let receiver: HubReceiver = hub.receive_transfer(theirs, adopter).unwrap();
        receiver.run().await.unwrap();
    });
    begin_to(old, ours).unwrap()
}

fn begin_to(old: &HubHarness, socket: OwnedFd) -> Result<HubTransfer, TransferError> {
    let hub = old.hub.clone();
    old.run(async move {
        let mut transfer = hub.transfer_to(socket)?;
        transfer.hand_over_channels().await?;
        Ok(transfer)
    })
}

/// Moves all streams.
fn finish(old: &HubHarness, transfer: HubTransfer) -> HubTransfer {
    transfer.hand_over_streams();
    old.run(async move {
        transfer.wait_until_streams_moved().await;
        transfer
    })
}

#[test]
fn streams_go_on_in_the_next_process_without_a_gap() {
    let (old, new) = (
        HubHarness::new(with_history(10)),
        HubHarness::new(with_history(10)),
    );
    let mut clients: Vec<Client> = (0..300).map(|_| old.hold(stream(&["a", "b"]))).collect();
    old.hub.publish(message_with_id("a", "1", "one")).unwrap();
    let transfer = begin(&old, &new);
    // Both publish while the streams are on their way.
    old.hub.publish(message_with_id("a", "2", "two")).unwrap();
    old.until("the new hub has it", |_| {
        new.hub.last_message_id("a").as_deref() == Some("2")
    });
    new.hub.publish(message_with_id("b", "3", "three")).unwrap();
    let transfer = finish(&old, transfer);
    assert_eq!(transfer.moved_streams(), 300);
    old.hub.publish(message_with_id("b", "4", "four")).unwrap();
    old.until("it has the last", |_| {
        new.hub.last_message_id("b").as_deref() == Some("4")
    });
    new.hub.publish(message_with_id("a", "5", "five")).unwrap();
    for client in &mut clients {
        for text in ["one", "two", "three", "four", "five"] {
            assert_eq!(client.chunk(), text);
        }
    }
    old.until("it has none", |hub| hub.snapshot().connections.used == 0);
    new.until("it has all", |hub| hub.snapshot().connections.used == 300);
    assert_eq!(old.front.0.load(Ordering::SeqCst), 0);
    assert_eq!(new.front.0.load(Ordering::SeqCst), 300);
    // What came before the transfer is history in the new process.
    let back = HeldStream {
        resume_after: Some("1".into()),
        ..stream(&["a"])
    };
    let mut back = new.hold(back);
    for text in ["two", "five"] {
        assert_eq!(back.chunk(), text);
    }
    drop(clients);
    new.until("they have left", |hub| hub.snapshot().connections.used == 1);
}

#[test]
fn ids_of_the_old_process_are_known_in_the_new_one() {
    let (old, new) = (
        HubHarness::new(with_history(10)),
        HubHarness::new(with_history(10)),
    );
    for text in ["x", "y"] {
        old.hub.publish(message("a", text)).unwrap();
    }
    let first = old.hub.history_after("a", "").is_none();
    assert!(first, "an empty id is none of them");
    let last = old.hub.last_message_id("a").unwrap();
    let _transfer = begin(&old, &new);
    new.hub.publish(message("a", "z")).unwrap();
    assert_ne!(new.hub.last_message_id("a").unwrap(), last);
    let mut back = new.hold(HeldStream {
        resume_after: Some(last),
        ..stream(&["a"])
    });
    assert_eq!(back.chunk(), "z");
}

#[test]
fn what_a_socket_did_not_take_goes_with_the_stream() {
    let (old, new) = (HubHarness::new(settings()), HubHarness::new(settings()));
    let mut client = old.hold(stream(&["a"]));
    let long = "x".repeat(600 << 10);
    old.hub.publish(message("a", &long)).unwrap();
    old.hub.publish(message("a", "next")).unwrap();
    old.until("some waits", |hub| hub.snapshot().backlog_bytes.used > 0);
    let transfer = begin(&old, &new);
    let _transfer = finish(&old, transfer);
    new.hub.publish(message("a", "last")).unwrap();
    assert_eq!(client.chunk(), long);
    assert_eq!(client.chunk(), "next");
    assert_eq!(client.chunk(), "last");
    assert_eq!(old.hub.snapshot().backlog_bytes.used, 0);
}

#[test]
fn long_polls_and_listeners_of_the_old_process_hear_of_the_new_one() {
    let (old, new) = (HubHarness::new(settings()), HubHarness::new(settings()));
    let poll = |channel: &str| LongPoll {
        subscriptions: vec![subscription(channel)],
        timeout: TEST_TIMEOUT,
        ..LongPoll::default()
    };
    let early = old.hub.long_poll(poll("a")).unwrap();
    let mut listener = old.hub.create_message_listener(None).unwrap();
    listener.subscribe(subscription("b")).unwrap();
    let _transfer = begin(&old, &new);
    // One that comes later, as of a request that the old process still had.
    let prepared = old.hub.prepare_channels(&["c".into()]);
    old.run(prepared.expect("the state of a channel comes from the other process"));
    let late = old.hub.long_poll(poll("c")).unwrap();
    let response = |channel: &str| Publication {
        channel: channel.into(),
        response: Some(LongPollAction::Send(Box::new(LongPollResponse {
            status: penstock_http::Status::OK,
            fields: penstock_http::FieldBlock::new(),
            body: Bytes::from(channel.to_owned()).into(),
            is_patch: false,
        }))),
        ..Publication::default()
    };
    for channel in ["a", "c"] {
        new.hub.publish(response(channel)).unwrap();
    }
    new.hub.publish(message("b", "heard")).unwrap();
    for (polled, expected) in [(early, "a"), (late, "c")] {
        let LongPollOutcome::Message(message) = old.run(polled) else {
            panic!("a message of {expected}");
        };
        assert_eq!(message.body.bytes, expected);
    }
    let heard = old.run(async move { listener.next_event().await });
    assert!(matches!(heard, ListenerEvent::Message(message) if message.id.contains('-')));
}

#[test]
fn without_its_successor_a_hub_takes_everything_back() {
    let old = HubHarness::new(with_history(10));
    let mut client = old.hold(stream(&["a"]));
    old.hub.publish(message("a", "one")).unwrap();
    let (ours, theirs) = fd_packets::packet_pair().unwrap();
    // A process that takes the channels, and dies before it takes anything else.
    let new = HubHarness::new(with_history(10));
    let (hub, adopter) = (new.hub.clone(), Arc::new(Adopter(new.front.clone())));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    new.handles()[0].spawn(async move {
        let receiver = hub.receive_transfer(theirs, adopter).unwrap();
        tokio::select! {
            biased;
            _ = ended => {}
            _ = receiver.run() => {}
        }
    });
    let transfer = begin_to(&old, ours).unwrap();
    end.send(()).unwrap();
    transfer.hand_over_streams();
    // Published while it is not known yet that the other one has ended, or after.
    for text in ["two", "three"] {
        old.hub.publish(message("a", text)).unwrap();
    }
    for text in ["one", "two", "three"] {
        assert_eq!(client.chunk(), text);
    }
    old.hub.publish(message("a", "four")).unwrap();
    assert_eq!(client.chunk(), "four");
    assert_eq!(old.hub.snapshot().connections.used, 1);
}

#[test]
fn streams_without_room_in_the_next_process_stay() {
    let old = HubHarness::new(settings());
    let new = HubHarness::new(Settings {
        max_streams: Some(2),
        ..settings()
    });
    let mut clients: Vec<Client> = (0..5).map(|_| old.hold(stream(&["a"]))).collect();
    let transfer = begin(&old, &new);
    let _transfer = finish(&old, transfer);
    old.until("three are back", |hub| hub.snapshot().connections.used == 3);
    new.hub.publish(message("a", "for all")).unwrap();
    for client in &mut clients {
        assert_eq!(client.chunk(), "for all");
    }
}

#[test]
fn a_process_of_another_version_ends_the_transfer_only() {
    let old = HubHarness::new(with_history(10));
    let mut client = old.hold(stream(&["a"]));
    let (ours, theirs) = fd_packets::packet_pair().unwrap();
    drop(theirs);
    begin_to(&old, ours).unwrap_err();
    old.hub.publish(message("a", "here")).unwrap();
    assert_eq!(client.chunk(), "here");
}

#[test]
fn a_transfer_that_is_given_up_halfway_leaves_a_hub_of_its_own() {
    let old = HubHarness::new(settings());
    let mut client = old.hold(stream(&["a"]));
    // It waits for the message before it, and is not forgotten.
    old.hub.publish(message_with_id("a", "1", "one")).unwrap();
    let parked = Publication {
        prev_id: Some("2".into()),
        ..message_with_id("a", "3", "three")
    };
    old.hub.publish(parked).unwrap();
    // A process that answers nothing.
    let (ours, _theirs) = fd_packets::packet_pair().unwrap();
    let hub = old.hub.clone();
    old.run(async move {
        let mut transfer = hub.transfer_to(ours).unwrap();
        let soon = Duration::from_millis(50);
        let handed = clock::timeout(soon, transfer.hand_over_channels()).await;
        assert!(handed.is_none(), "it waits for an answer");
    });
    for text in ["one", "three"] {
        assert_eq!(client.chunk(), text);
    }
    old.hub.publish(message("a", "four")).unwrap();
    assert_eq!(client.chunk(), "four");
}

#[test]
fn what_a_channel_lost_before_is_a_gap_in_the_next_process_too() {
    let (old, new) = (HubHarness::new(settings()), HubHarness::new(settings()));
    let ids: Vec<_> = ["one", "two"]
        .map(|text| {
            // Nothing is kept, and the channel goes with its only client.
            let mut client = old.hold(stream(&["a"]));
            old.hub.publish(message("a", text)).unwrap();
            assert_eq!(client.chunk(), text);
            let id = old.hub.last_message_id("a").unwrap();
            drop(client);
            old.until("it has left", |hub| hub.subscriber_count("a") == 0);
            id
        })
        .into();
    let _transfer = begin(&old, &new);
    let mut back = new.hold(HeldStream {
        resume_after: Some(ids[0].clone()),
        gap_notice: Some("gap".into()),
        ..stream(&["a"])
    });
    assert_eq!(back.chunk(), "gap");
}

#[test]
fn a_move_that_is_cancelled_leaves_each_stream_one_owner() {
    let old = HubHarness::new(settings());
    let new = HubHarness::new(settings());
    let mut clients: Vec<Client> = (0..300).map(|_| old.hold(stream(&["a"]))).collect();
    let transfer = begin(&old, &new);
    transfer.hand_over_streams();
    // In the middle of the move: what was taken belongs to one of the two, and so does the rest.
    drop(transfer);
    let held = |hub: &Hub| hub.snapshot().connections.used;
    old.until("every stream has one owner", |hub| {
        held(hub) + held(&new.hub) == 300
    });
    old.until("the old hub is its own again", |hub| {
        hub.publish(message("b", "x")).is_ok() && !hub.shared.is_mirror.load(Ordering::SeqCst)
    });
    for hub in [&old.hub, &new.hub] {
        hub.publish(message("a", "once")).unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.chunk(), "once");
        client.socket.set_nonblocking(true).unwrap();
        let more = client.socket.read(&mut [0; 16]);
        assert_eq!(more.unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test may wait for a disk")]
fn a_history_file_goes_as_far_as_it_is_whole() {
    let old = HubHarness::new(with_history(10));
    for channel in ["a", "b"] {
        old.hub
            .publish(message_with_id(channel, channel, "text"))
            .unwrap();
    }
    let name = format!("penstock-history-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    assert_eq!(old.hub.save_history(&file).unwrap(), 2);
    assert_eq!(
        old.hub.publish(message("a", "late")),
        Err(HubError::Draining),
        "it would be in no file"
    );
    let whole = std::fs::read(&file).unwrap();
    for (cut, is_read, kept) in [(0, true, 2), (20, false, 1), (whole.len() - 5, false, 0)] {
        std::fs::write(&file, &whole[..whole.len() - cut]).unwrap();
        let new = HubHarness::new(with_history(10));
        let read = new.hub.load_history(&file);
        assert_eq!(read.is_ok(), is_read, "{cut}: {read:?}");
        let known = ["a", "b"].map(|channel| new.hub.last_message_id(channel).is_some());
        assert_eq!(known.iter().filter(|known| **known).count(), kept, "{cut}");
        assert!(!file.exists(), "it is read once");
    }
    let new = HubHarness::new(with_history(10));
    assert_eq!(new.hub.load_history(&file).unwrap(), None);
}
