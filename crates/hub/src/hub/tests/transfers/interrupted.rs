//! Transfers that meet a full backlog, a drain, or the end of the other process.

use std::os::fd::AsFd;
use std::thread;

use serde_json::{Value, json};

use super::*;
use crate::SlowPolicy;

/// A process that takes the channels by hand.
struct ScriptedSuccessor {
    socket: OwnedFd,
}

impl ScriptedSuccessor {
    /// Lets it take `old` over, up to the channels.
    fn begin(old: &HubHarness) -> (Self, HubTransfer) {
        let (ours, socket) = fd_packets::packet_pair().unwrap();
        let successor = thread::spawn(move || {
            let successor = Self { socket };
            while successor.receive() != json!("channels_end") {}
            successor.send(&json!("imported"));
            successor
        });
        let transfer = begin_to(old, ours).unwrap();
        (successor.join().unwrap(), transfer)
    }

    /// The next message, whose descriptors are closed at once.
    fn receive(&self) -> Value {
        let mut text = Vec::new();
        loop {
            let mut packet = vec![0; 64 << 10];
            let received = fd_packets::receive_packet_with_timeout(
                self.socket.as_fd(),
                &mut packet,
                TEST_TIMEOUT,
            );
            let (length, _) = received.unwrap();
            text.extend_from_slice(&packet[1..length]);
            if packet[0] == b'.' {
                return serde_json::from_slice(&text).unwrap();
            }
        }
    }

    fn receive_until(&self, name: &str) -> Value {
        loop {
            let message = self.receive();
            if let Some(content) = message.get(name) {
                return content.clone();
            }
        }
    }

    fn send(&self, message: &Value) {
        let packet = format!(".{message}");
        fd_packets::send_packet(self.socket.as_fd(), packet.as_bytes(), None).unwrap();
    }
}

/// Numbered messages of 1,000 bytes, far more than a socket and a backlog take.
fn flood(harness: &HubHarness, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let text = format!("{number:>999}\n");
        harness.hub.publish(message("a", &text)).unwrap();
    }
    harness.until("all are through", |hub| {
        let pending = hub.shared.metrics.pending_bytes.load(Ordering::Relaxed);
        hub.snapshot().counters.dropped > 0 && pending == 0
    });
}

#[test]
fn a_begun_chunk_stays_whole_under_a_full_backlog() {
    let slow = || Settings {
        max_backlog: 64 << 10,
        slow_policy: SlowPolicy::DropOldest,
        send_timeout: Duration::from_secs(10_000),
        ..settings()
    };
    let (old, new) = (HubHarness::new(slow()), HubHarness::new(slow()));
    let mut client = old.hold(HeldStream {
        gap_notice: Some(Bytes::from_static(b"(gap)\n")),
        ..stream(&["a"])
    });
    flood(&old, 0..2_000);
    let transfer = begin(&old, &new);
    let transfer = finish(&old, transfer);
    assert_eq!(transfer.moved_streams(), 1);
    flood(&new, 2_000..4_000);
    let end = Publication {
        stream: Some(StreamAction::Close),
        ..message("a", "")
    };
    new.hub.publish(end).unwrap();
    let (mut expected, mut is_announced) = (0, false);
    for line in client.rest().lines() {
        if line == "(gap)" {
            is_announced = true;
            continue;
        }
        assert_eq!(line.len(), 999, "a part of a message");
        let number: u32 = line.trim().parse().unwrap();
        assert!(
            number == expected || number > expected && is_announced,
            "{number}"
        );
        (expected, is_announced) = (number + 1, false);
    }
    assert_eq!(expected, 4_000, "the newest are there");
}

#[test]
fn a_stream_that_comes_while_the_old_hub_drains_moves_too() {
    let (old, new) = (HubHarness::new(settings()), HubHarness::new(settings()));
    let mut first = old.hold(stream(&["a"]));
    let transfer = begin(&old, &new);
    let transfer = finish(&old, transfer);
    let hub = old.hub.clone();
    let plan = DrainPlan {
        duration: Duration::ZERO,
        next_server: NextServer::Serving,
        return_window: Duration::from_secs(1),
    };
    old.handles()[0].spawn(async move { hub.drain(plan).await });
    old.until("it drains", |hub| hub.shared.is_draining());
    let mut late = old.hold(stream(&["a"]));
    new.until("it has moved", |hub| hub.snapshot().connections.used == 2);
    new.hub.publish(message("a", "to both")).unwrap();
    for client in [&mut first, &mut late] {
        assert_eq!(client.chunk(), "to both");
    }
    // Without a move it ends as at any stop.
    transfer.stop_streams();
    old.until("it has none", |hub| hub.snapshot().connections.used == 0);
    old.hold(stream(&["a"])).expect_end();
}

#[test]
fn streams_that_were_not_reported_as_taken_stay() {
    let old = HubHarness::new(settings());
    let mut clients: Vec<Client> = (0..100).map(|_| old.hold(stream(&["a"]))).collect();
    let (successor, transfer) = ScriptedSuccessor::begin(&old);
    transfer.hand_over_streams();
    let batch = successor.receive_until("streams");
    assert!(!batch["streams"].as_array().unwrap().is_empty());
    // It dies with their sockets, and said nothing.
    drop(successor);
    old.until("they are back", |hub| {
        hub.snapshot().connections.used == 100 && !hub.shared.is_mirror.load(Ordering::SeqCst)
    });
    assert_eq!(transfer.moved_streams(), 0);
    old.hub.publish(message("a", "once")).unwrap();
    old.hub.publish(message("a", "twice")).unwrap();
    for client in &mut clients {
        assert_eq!(
            (client.chunk(), client.chunk()),
            ("once".into(), "twice".into())
        );
    }
}

#[test]
fn a_message_that_came_back_is_not_delivered_again() {
    let old = HubHarness::new(settings());
    let mut client = old.hold(stream(&["a"]));
    let (successor, _transfer) = ScriptedSuccessor::begin(&old);
    for publication in [message("a", "one"), message_with_id("a", "2", "two")] {
        old.hub.publish(publication).unwrap();
    }
    let one = successor.receive_until("publish");
    let two = successor.receive_until("publish");
    // It delivers both and dies before it says that it has accepted the second.
    for (sequence, message) in [(1_000, &one), (1_001, &two)] {
        if sequence > 1_000 {
            successor.send(&json!({ "accepted": one["number"] }));
        }
        successor.send(&json!({ "message": {
            "sequence": sequence,
            "channel": "a",
            "publication": message["publication"],
        } }));
    }
    drop(successor);
    old.until("the old hub is its own again", |hub| {
        !hub.shared.is_mirror.load(Ordering::SeqCst)
    });
    old.hub.publish(message("a", "three")).unwrap();
    for text in ["one", "two", "three"] {
        assert_eq!(client.chunk(), text);
    }
}

#[test]
fn messages_stay_in_order_when_the_authority_comes_back() {
    for round in 0..10 {
        let (old, new) = (
            HubHarness::new(with_history(10)),
            HubHarness::new(with_history(10)),
        );
        let mut client = old.hold(stream(&["a"]));
        let (ours, theirs) = fd_packets::packet_pair().unwrap();
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
        let _transfer = begin_to(&old, ours).unwrap();
        let mut end = Some(end);
        for number in 0..200 {
            if number == 20 * round {
                // The other process dies in between.
                drop(end.take());
            }
            old.hub
                .publish(message("a", &format!("{number}.")))
                .unwrap();
        }
        let mut text = String::new();
        while !text.ends_with("199.") {
            text.push_str(&client.chunk());
        }
        let expected: String = (0..200).map(|number| format!("{number}.")).collect();
        assert_eq!(text, expected, "round {round}");
    }
}
