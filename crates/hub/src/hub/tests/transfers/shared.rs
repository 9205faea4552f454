//! Transfers where several servers share the channels.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::{Bus, CatchUpFuture, SharedChannelState};

/// Servers that get all messages in one order. Their ids are the same everywhere.
#[derive(Debug, Default)]
struct SharedBus {
    hubs: Mutex<Vec<Hub>>,
    is_in_step: AtomicBool,
    has_caught_up: AtomicBool,
    /// Requests to catch up, with their channels.
    catch_ups: Mutex<Vec<Vec<Arc<str>>>>,
}

impl SharedBus {
    fn join(hubs: &[&HubHarness]) -> Arc<Self> {
        let bus = Arc::new(Self {
            is_in_step: true.into(),
            has_caught_up: true.into(),
            ..Self::default()
        });
        for harness in hubs {
            harness.hub.set_bus(Some(bus.clone()));
            bus.hubs.lock().unwrap().push(harness.hub.clone());
        }
        bus
    }

    /// Publishes to some servers only.
    fn deliver(hubs: &[&HubHarness], id: &str) {
        for harness in hubs {
            let publication = message_with_id("a", id, id);
            harness.hub.publish_locally(publication).unwrap();
        }
    }
}

impl Bus for SharedBus {
    fn publish(&self, publication: &Publication) -> Result<bool, HubError> {
        for hub in &*self.hubs.lock().unwrap() {
            hub.publish_locally(publication.clone())?;
        }
        Ok(true)
    }

    fn on_subscribed(&self, _: &Arc<str>) {}

    fn on_unsubscribed(&self, _: &Arc<str>) {}

    fn shared_state(&self, channel: &Arc<str>) -> SharedChannelState {
        let is_in_step = self.is_in_step.load(Ordering::SeqCst);
        let old = self.hubs.lock().unwrap()[0].clone();
        match is_in_step {
            false => SharedChannelState::OutOfStep,
            true if old.last_message_id(channel).is_none() => SharedChannelState::Empty,
            true => SharedChannelState::InStep,
        }
    }

    /// Loads the channels that the last server knows nothing of.
    fn catch_up(&self, channels: Vec<Arc<str>>) -> CatchUpFuture {
        let hubs = self.hubs.lock().unwrap();
        let new = hubs.last().unwrap();
        for channel in &channels {
            if new.last_message_id(channel).is_none() {
                let history = SharedHistory {
                    is_whole: true,
                    ..SharedHistory::default()
                };
                new.replace_history(channel, history);
            }
        }
        self.catch_ups.lock().unwrap().push(channels);
        Box::pin(std::future::ready(
            self.has_caught_up.load(Ordering::SeqCst),
        ))
    }
}

fn events(channels: &[&str]) -> HeldStream {
    HeldStream {
        message_format: StreamForm::Events,
        gap_notice: Some("(gap)".into()),
        ..stream(channels)
    }
}

/// A pair of which the second has numbers of its own.
fn pair() -> (HubHarness, HubHarness) {
    let (old, new) = (
        HubHarness::new(with_history(10)),
        HubHarness::new(with_history(10)),
    );
    for number in 0..50 {
        let publication = message_with_id("other", &number.to_string(), "");
        new.hub.publish(publication).unwrap();
    }
    (old, new)
}

#[test]
fn streams_continue_behind_their_last_message() {
    let (old, new) = pair();
    let bus = SharedBus::join(&[&old, &new]);
    let mut clients: Vec<Client> = (0..200).map(|_| old.hold(events(&["a", "b"]))).collect();
    old.hub.publish(message_with_id("a", "1", "one")).unwrap();
    let transfer = begin(&old, &new);
    // The new one is ahead of the streams.
    SharedBus::deliver(&[&new], "2");
    let transfer = finish(&old, transfer);
    assert_eq!(transfer.moved_streams(), 200);
    old.hub.publish(message_with_id("a", "3", "three")).unwrap();
    for client in &mut clients {
        for text in ["one", "2", "three"] {
            assert_eq!(client.chunk(), text);
        }
    }
    let asked = bus.catch_ups.lock().unwrap();
    assert!(
        asked.iter().all(|channels| channels.len() == 2),
        "{asked:?}"
    );
    assert!(!old.hub.shared.is_mirror.load(Ordering::SeqCst));
}

#[test]
fn a_place_that_is_not_found_is_a_gap_or_an_end() {
    let (old, new) = pair();
    SharedBus::join(&[&old, &new]);
    let (mut client, mut bytes) = (old.hold(events(&["a"])), old.hold(stream(&["a"])));
    // The new one never had it, and has another.
    SharedBus::deliver(&[&new], "before");
    SharedBus::deliver(&[&old], "lost");
    let transfer = begin(&old, &new);
    let _transfer = finish(&old, transfer);
    new.hub.publish(message_with_id("a", "3", "after")).unwrap();
    for text in ["lost", "(gap)", "after"] {
        assert_eq!(client.chunk(), text);
    }
    assert_eq!(
        bytes.rest(),
        "lost",
        "a stream of bytes has no place for a notice"
    );
}

#[test]
fn a_channel_without_messages_continues_from_its_start() {
    for is_whole in [true, false] {
        let (old, new) = pair();
        SharedBus::join(&[&old, &new]);
        let mut client = old.hold(events(&["a"]));
        // Loaded when the channel is followed; its first message came meanwhile.
        let history = SharedHistory {
            messages: vec![(message_with_id("a", "1", "first"), Duration::ZERO)],
            is_whole,
        };
        new.hub.replace_history(&"a".into(), history);
        let transfer = begin(&old, &new);
        let _transfer = finish(&old, transfer);
        new.hub
            .publish(message_with_id("a", "2", "second"))
            .unwrap();
        let expected = if is_whole { "first" } else { "(gap)" };
        for text in [expected, "second"] {
            assert_eq!(client.chunk(), text);
        }
    }
}

#[test]
fn streams_wait_while_the_servers_are_out_of_step() {
    let (old, new) = pair();
    let bus = SharedBus::join(&[&old, &new]);
    bus.is_in_step.store(false, Ordering::SeqCst);
    bus.has_caught_up.store(false, Ordering::SeqCst);
    let mut clients: Vec<Client> = (0..100).map(|_| old.hold(events(&["a"]))).collect();
    let transfer = begin(&old, &new);
    transfer.hand_over_streams();
    old.hub.publish(message_with_id("a", "1", "one")).unwrap();
    for client in &mut clients {
        assert_eq!(client.chunk(), "one");
    }
    assert!(bus.catch_ups.lock().unwrap().is_empty());
    bus.is_in_step.store(true, Ordering::SeqCst);
    old.until("it asks again and again", |_| {
        bus.catch_ups.lock().unwrap().len() > 2
    });
    assert_eq!(
        (transfer.moved_streams(), new.hub.snapshot().streams),
        (0, 0)
    );
    bus.has_caught_up.store(true, Ordering::SeqCst);
    let _transfer = finish(&old, transfer);
    new.until("it has all", |hub| hub.snapshot().streams == 100);
    new.hub.publish(message_with_id("a", "2", "two")).unwrap();
    for client in &mut clients {
        assert_eq!(client.chunk(), "two");
    }
}

#[test]
fn listeners_continue_behind_their_last_message() {
    let (old, new) = pair();
    SharedBus::join(&[&old, &new]);
    SharedBus::deliver(&[&old, &new], "1");
    let mut listener = old.hub.create_message_listener(None).unwrap();
    listener.subscribe(subscription("a")).unwrap();
    // It waits for the listener, which has not received it.
    SharedBus::deliver(&[&old, &new], "2");
    SharedBus::deliver(&[&new], "3");
    let positions = serde_json::to_string(&listener.positions()).unwrap();
    let positions: Vec<ListenerPosition> = serde_json::from_str(&positions).unwrap();
    let mut continued = new.hub.create_message_listener(None).unwrap();
    for position in positions {
        continued.continue_from(position).unwrap();
    }
    for expected in ["2", "3"] {
        let event = new.run(async move {
            let event = continued.next_event().await;
            (continued, event)
        });
        let ListenerEvent::Message(message) = &event.1 else {
            panic!("{:?}", event.1);
        };
        assert_eq!(*message.id, *expected);
        continued = event.0;
    }
}

#[test]
fn a_process_without_the_same_servers_takes_nothing() {
    let (old, new) = pair();
    SharedBus::join(&[&old]);
    let mut client = old.hold(events(&["a"]));
    let (ours, theirs) = fd_packets::packet_pair().unwrap();
    let (hub, adopter) = (new.hub.clone(), Arc::new(Adopter(new.front.clone())));
    new.handles()[0].spawn(async move {
        let receiver = hub.receive_transfer(theirs, adopter).unwrap();
        let error = receiver.run().await.unwrap_err();
        assert!(error.to_string().contains("server.redis"), "{error}");
    });
    begin_to(&old, ours).unwrap_err();
    old.hub.publish(message_with_id("a", "1", "here")).unwrap();
    assert_eq!(client.chunk(), "here");
    assert!(!old.hub.shared.is_handing_over.load(Ordering::SeqCst));
}
