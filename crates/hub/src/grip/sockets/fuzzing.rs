//! Events and words of back ends: see `crate::fuzzing`.

use bytes::Bytes;

use super::control::{self, Control};
use super::events::{Event, decode, encode};

/// See [`crate::fuzzing::read_events`].
pub(crate) fn read_events(body: &[u8]) {
    read_control(body);
    let whole = Bytes::copy_from_slice(body);
    let Ok(events) = decode(&whole) else {
        return;
    };
    let carried: usize = events.iter().map(Event::len).sum();
    assert!(carried <= body.len() && events.len() * 6 <= body.len());
    let mut again = Vec::new();
    for event in &events {
        encode(&mut again, event);
        if let Event::Text(text) = event {
            assert!(std::str::from_utf8(text).is_ok());
            read_control(text.strip_prefix(b"c:").unwrap_or(text));
        }
    }
    assert_eq!(decode(&again.into()), Ok(events.clone()));
    // One that is cut has fewer events, or none.
    let cut = body.len() * 2 / 3;
    if let Ok(fewer) = decode(&whole.slice(..cut)) {
        assert!(fewer.len() <= events.len() && events.starts_with(&fewer));
    }
}

fn read_control(text: &[u8]) {
    match control::read(text) {
        Ok(Control::Subscribe(subscription)) => assert!(!subscription.channel.is_empty()),
        Ok(Control::Unsubscribe(channel)) => assert!(!channel.is_empty()),
        Ok(Control::SetMeta(name, _)) => assert!(!name.is_empty() && name.len() <= text.len()),
        Ok(Control::KeepAlive(Some(beat))) => {
            assert!((1..=24 * 3600).contains(&beat.every.as_secs()));
            match beat.event {
                Event::Text(text) => assert!(std::str::from_utf8(&text).is_ok()),
                Event::Ping(bytes) | Event::Pong(bytes) => assert!(bytes.len() <= 125),
                Event::Binary(bytes) => assert!(bytes.len() <= text.len()),
                other => panic!("{other:?} is no heart-beat"),
            }
        }
        Ok(Control::KeepAlive(None) | Control::Detach | Control::Unknown(_)) | Err(_) => {}
    }
}
