//! What a server's hub has no room for.

use penstock_runtime::loops;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A hub that has room or not.
#[derive(Default)]
struct FullHub {
    has_room: AtomicBool,
    announced: Mutex<Vec<String>>,
}

impl LocalHub for Arc<FullHub> {
    fn deliver_locally(&self, publication: Publication) -> bool {
        let has_room = self.has_room.load(Ordering::SeqCst);
        if has_room {
            assert!(matches!(publication.stream, Some(StreamAction::Gap)));
            let mut told = self.announced.lock().unwrap();
            told.push(publication.channel.to_string());
        }
        has_room
    }

    fn replace_history(&self, _: &ChannelName, history: SharedHistory) {
        assert!(history.messages.is_empty());
    }

    fn is_channel_in_use(&self, channel: &str) -> bool {
        !channel.starts_with("unused")
    }

    fn stream_retention(&self) -> StreamRetention {
        StreamRetention {
            max_channels: 1000,
            max_entries: 100,
            max_age: Duration::from_secs(60),
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
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
fn missed_channels_are_announced_when_there_is_room() {
    loops::block_on(async {
        let hub = Arc::new(FullHub::default());
        let target = RedisTarget::parse("redis://127.0.0.1:1/", None).unwrap();
        let inbox = Arc::new(BusInbox::new());
        let mut driver = BusDriver::new(hub.clone(), NodeId(1), target, inbox);
        for channel in ["b", "unused", "a", "b"] {
            driver.deliver(message(channel));
        }
        driver.announce_missed();
        assert!(hub.announced.lock().unwrap().is_empty());
        hub.has_room.store(true, Ordering::SeqCst);
        driver.announce_missed();
        let mut told = std::mem::take(&mut *hub.announced.lock().unwrap());
        told.sort();
        assert_eq!(told, ["a", "b"]);
        assert!(driver.missed_channels.is_empty());
        hub.has_room.store(false, Ordering::SeqCst);
        for number in 0..MAX_MISSED_CHANNELS * 3 {
            driver.deliver(message(&format!("c{number}")));
            assert!(driver.missed_channels.len() <= MAX_MISSED_CHANNELS);
        }
        assert!(driver.has_all_missed);
    })
    .unwrap();
}
