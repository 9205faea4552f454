//! Events and words of back ends: see `crate::fuzzing`.

use bytes::Bytes;

use super::control_message::{self, WebSocketControlMessage};
use super::websocket_events::{SocketEvent, decode_events, encode_event};

/// See [`crate::fuzzing::read_events`].
pub(crate) fn read_events(body: &[u8]) {
    read_control(body);
    let whole = Bytes::copy_from_slice(body);
    let Ok(events) = decode_events(&whole) else {
        return;
    };
    let carried: usize = events.iter().map(SocketEvent::payload_len).sum();
    assert!(carried <= body.len() && events.len() * 6 <= body.len());
    let mut again = Vec::new();
    for event in &events {
        encode_event(&mut again, event);
        if let SocketEvent::Text(text) = event {
            assert!(std::str::from_utf8(text).is_ok());
            read_control(text.strip_prefix(b"c:").unwrap_or(text));
        }
    }
    assert_eq!(decode_events(&again.into()), Ok(events.clone()));
    // One that is cut has fewer events, or none.
    let cut = body.len() * 2 / 3;
    if let Ok(fewer) = decode_events(&whole.slice(..cut)) {
        assert!(fewer.len() <= events.len() && events.starts_with(&fewer));
    }
}

fn read_control(text: &[u8]) {
    match control_message::parse_control_message(text) {
        Ok(WebSocketControlMessage::Subscribe(subscription)) => {
            assert!(!subscription.channel.is_empty());
        }
        Ok(WebSocketControlMessage::Unsubscribe(channel)) => assert!(!channel.is_empty()),
        Ok(WebSocketControlMessage::SetMeta(name, _)) => {
            assert!(!name.is_empty() && name.len() <= text.len());
        }
        Ok(WebSocketControlMessage::KeepAlive(Some(beat))) => {
            assert!((1..=24 * 3600).contains(&beat.interval.as_secs()));
            match beat.event {
                SocketEvent::Text(text) => assert!(std::str::from_utf8(&text).is_ok()),
                SocketEvent::Ping(bytes) | SocketEvent::Pong(bytes) => assert!(bytes.len() <= 125),
                SocketEvent::Binary(bytes) => assert!(bytes.len() <= text.len()),
                other => panic!("{other:?} is no heart-beat"),
            }
        }
        Ok(
            WebSocketControlMessage::KeepAlive(None)
            | WebSocketControlMessage::Detach
            | WebSocketControlMessage::Unknown(_),
        )
        | Err(_) => {}
    }
}
