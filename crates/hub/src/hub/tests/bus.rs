//! The calls that a bus gets, and the publications that come from it.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// Remembers what it was told; takes publications or not.
#[derive(Debug, Default)]
struct RecordingBus {
    accepts: AtomicBool,
    calls: Mutex<Vec<String>>,
}

impl RecordingBus {
    fn push(&self, what: &str, channel: &str) {
        self.calls.lock().unwrap().push(format!("{what} {channel}"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Bus for RecordingBus {
    fn publish(&self, publication: &Publication) -> Result<bool, HubError> {
        self.push("publish", &publication.channel);
        Ok(self.accepts.load(Ordering::SeqCst))
    }

    fn on_subscribed(&self, channel: &Arc<str>) {
        self.push("+", channel);
    }

    fn on_unsubscribed(&self, channel: &Arc<str>) {
        self.push("-", channel);
    }
}

#[test]
fn a_bus_gets_publications_and_subscriptions() {
    let rig = HubHarness::new(settings());
    let early = rig.hold(stream(&["early"]));
    let bus = Arc::new(RecordingBus::default());
    rig.hub.set_bus(Some(bus.clone()));
    assert_eq!(bus.take(), ["+ early"]);
    let mut client = rig.hold(stream(&["a", "b"]));
    let other = rig.hold(stream(&["a"]));
    assert_eq!(
        bus.take(),
        ["+ a", "+ b"],
        "only the first of a channel is told"
    );
    rig.hub.publish(message("a", "by this node")).unwrap();
    assert_eq!(client.chunk(), "by this node");
    bus.accepts.store(true, Ordering::SeqCst);
    rig.hub.publish(message("a", "by the bus")).unwrap();
    rig.hub
        .publish_locally(message("a", "from the bus"))
        .unwrap();
    assert_eq!(client.chunk(), "from the bus");
    assert_eq!(bus.take(), ["publish a", "publish a"]);
    drop(client);
    rig.until("b has nobody", |hub| hub.subscriber_count("b") == 0);
    rig.until("it is told", |_| !bus.calls.lock().unwrap().is_empty());
    assert_eq!(bus.take(), ["- b"]);
    let poll = LongPoll {
        subscriptions: vec![subscription("p")],
        ..LongPoll::default()
    };
    drop(rig.hub.long_poll(poll).unwrap());
    drop((other, early));
    rig.until("all have left", |_| bus.calls.lock().unwrap().len() == 4);
    let mut told = bus.take();
    told[2..].sort();
    assert_eq!(told, ["+ p", "- p", "- a", "- early"]);
    rig.hub.set_bus(None);
    let _client = rig.hold(stream(&["c"]));
    rig.hub.publish(message("c", "x")).unwrap();
    assert_eq!(bus.take(), [""; 0]);
}

#[test]
fn presence_changes_reach_the_bus_in_order() {
    let rig = HubHarness::new(settings());
    let bus = Arc::new(RecordingBus::default());
    rig.hub.set_bus(Some(bus.clone()));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let hub = rig.hub.clone();
            std::thread::spawn(move || {
                for _ in 0..500 {
                    let poll = LongPoll {
                        subscriptions: vec![subscription("a"), subscription("b")],
                        ..LongPoll::default()
                    };
                    drop(hub.long_poll(poll).unwrap());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for channel in ["a", "b"] {
        let told = bus.calls.lock().unwrap();
        let of_it = told.iter().filter(|told| told.ends_with(channel));
        let signs: Vec<&str> = of_it.map(|told| &told[..1]).collect();
        assert!(!signs.is_empty() && signs.len().is_multiple_of(2));
        assert!(signs.chunks(2).all(|pair| pair == ["+", "-"]), "{signs:?}");
    }
}

/// Panics when it hears of this one.
#[derive(Debug, Default)]
struct PanickingBus(RecordingBus);

impl Bus for PanickingBus {
    fn publish(&self, publication: &Publication) -> Result<bool, HubError> {
        self.0.publish(publication)
    }

    fn on_subscribed(&self, channel: &Arc<str>) {
        assert_ne!(&**channel, "bad", "a test's own");
        self.0.on_subscribed(channel);
    }

    fn on_unsubscribed(&self, channel: &Arc<str>) {
        self.0.on_unsubscribed(channel);
    }
}

#[test]
fn a_bus_that_panics_once_hears_of_the_next_all_the_same() {
    let rig = HubHarness::new(settings());
    let bus = Arc::new(PanickingBus::default());
    rig.hub.set_bus(Some(bus.clone()));
    let poll = |channel: &str| {
        let poll = LongPoll {
            subscriptions: vec![subscription(channel)],
            ..LongPoll::default()
        };
        rig.hub.long_poll(poll).map(drop)
    };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll("bad")));
    assert!(panicked.is_err());
    poll("good").unwrap();
    assert_eq!(bus.0.take(), ["- bad", "+ good", "- good"]);
}
