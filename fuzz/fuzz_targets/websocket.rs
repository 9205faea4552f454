//! Any bytes as what a WebSocket's client sends, whole and in pieces: no panic, the same messages and the
//! same error however they are split, text that is UTF-8, and nothing held over the limit. The first byte
//! says how many of the next bytes are piece lengths.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::websocket::{ClientError, ClientEvent, MessageDecoder};

const MESSAGE_MAX: usize = 4096;

fn read(mut input: &[u8], pieces: &[u8]) -> (Vec<ClientEvent>, Option<ClientError>) {
    let mut decoder = MessageDecoder::new(MESSAGE_MAX);
    let mut events = Vec::new();
    let lens = pieces
        .iter()
        .map(|&len| usize::from(len))
        .chain([input.len()]);
    for len in lens {
        let (mut piece, rest) = input.split_at(len.min(input.len()));
        input = rest;
        loop {
            match decoder.decode(&mut piece) {
                Ok(Some(event)) => {
                    let is_closed = matches!(events.last(), Some(ClientEvent::Close { .. }));
                    assert!(!is_closed, "an event behind the close");
                    events.push(event);
                }
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
        assert!(piece.is_empty(), "bytes left over without an event");
        // A vector's room may be twice what is in it.
        assert!(decoder.held_bytes() <= 2 * (MESSAGE_MAX + 125));
    }
    (events, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&count, data)) = data.split_first() else {
        return;
    };
    let (pieces, input) = data.split_at(usize::from(count % 16).min(data.len()));
    let whole = read(input, &[]);
    for event in &whole.0 {
        match event {
            ClientEvent::Message { is_text, payload } => {
                assert!(payload.len() <= MESSAGE_MAX);
                assert!(!is_text || std::str::from_utf8(payload).is_ok());
            }
            ClientEvent::Ping(payload) => assert!(payload.len() <= 125),
            ClientEvent::Pong => {}
            ClientEvent::Close { reason, .. } => assert!(reason.len() <= 123),
        }
    }
    assert_eq!(whole, read(input, pieces));
});
