//! What a node's hub has no room for.

use penstock_runtime::loops;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A hub that has room or not.
#[derive(Default)]
struct Full {
    has_room: AtomicBool,
    told: Mutex<Vec<String>>,
}

impl Local for Arc<Full> {
    fn deliver(&self, publication: Publication) -> bool {
        let has_room = self.has_room.load(Ordering::SeqCst);
        if has_room {
            assert!(matches!(publication.stream, Some(StreamPart::Gap)));
            let mut told = self.told.lock().unwrap();
            told.push(publication.channel.to_string());
        }
        has_room
    }

    fn restore(&self, _: &Channel, history: Vec<(Publication, Duration)>) {
        assert!(history.is_empty());
    }

    fn is_in_use(&self, channel: &str) -> bool {
        !channel.starts_with("unused")
    }

    fn keeping(&self) -> Keeping {
        Keeping {
            channels: 1000,
            entries: 100,
            age: Duration::from_secs(60),
        }
    }

    fn numbers(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

fn message(channel: &str) -> Publication {
    Publication {
        channel: channel.into(),
        ..Publication::default()
    }
}

#[test]
fn what_was_missed_is_told_when_there_is_room_and_bounded() {
    loops::block_on(async {
        let hub = Arc::new(Full::default());
        let target = Target::parse("redis://127.0.0.1:1/").unwrap();
        let inbox = Arc::new(Inbox::new());
        let mut driver = Driver::new(hub.clone(), NodeId(1), target, inbox);
        for channel in ["b", "unused", "a", "b"] {
            driver.deliver(message(channel));
        }
        driver.announce_missed();
        assert!(hub.told.lock().unwrap().is_empty());
        hub.has_room.store(true, Ordering::SeqCst);
        driver.announce_missed();
        let mut told = std::mem::take(&mut *hub.told.lock().unwrap());
        told.sort();
        assert_eq!(told, ["a", "b"]);
        assert!(driver.missed.is_empty());
        hub.has_room.store(false, Ordering::SeqCst);
        for number in 0..MISSED_MAX * 3 {
            driver.deliver(message(&format!("c{number}")));
            assert!(driver.missed.len() <= MISSED_MAX);
        }
        assert!(driver.have_all_missed);
    })
    .unwrap();
}
