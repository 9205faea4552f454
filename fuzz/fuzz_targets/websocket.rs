//! Arbitrary bytes from a WebSocket client, whole and in pieces: no panic, the same messages and
//! error for every split, text is UTF-8, and nothing above the limit is buffered. The first byte is
//! the number of following bytes with piece lengths; its highest bit enables compressed messages.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::websocket::{MessageDecoder, WebSocketError, WebSocketEvent, compress_message};

const MESSAGE_MAX: usize = 4096;

fn read(
    mut input: &[u8],
    pieces: &[u8],
    inflates: bool,
) -> (Vec<WebSocketEvent>, Option<WebSocketError>) {
    let decoder = MessageDecoder::new(MESSAGE_MAX);
    let mut decoder = match inflates {
        true => decoder.with_deflate(),
        false => decoder,
    };
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
                    let is_closed = matches!(events.last(), Some(WebSocketEvent::Close { .. }));
                    assert!(!is_closed, "an event behind the close");
                    events.push(event);
                }
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
        assert!(piece.is_empty(), "bytes left over without an event");
        // A vector's capacity may be twice its length.
        assert!(decoder.buffered_bytes() <= 2 * (MESSAGE_MAX + 125));
    }
    (events, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&count, data)) = data.split_first() else {
        return;
    };
    let (pieces, input) = data.split_at(usize::from(count % 16).min(data.len()));
    let inflates = count & 0x80 != 0;
    let whole = read(input, &[], inflates);
    for event in &whole.0 {
        match event {
            WebSocketEvent::Message { is_text, payload } => {
                assert!(payload.len() <= MESSAGE_MAX);
                assert!(!is_text || std::str::from_utf8(payload).is_ok());
            }
            WebSocketEvent::Ping(payload) => assert!(payload.len() <= 125),
            WebSocketEvent::Pong => {}
            WebSocketEvent::Close { reason, .. } => assert!(reason.len() <= 123),
        }
    }
    assert_eq!(whole, read(input, pieces, inflates));
    // Messages compressed by the server inflate to the same content.
    if let Some(short) = compress_message(input)
        && input.len() <= MESSAGE_MAX
    {
        assert!(short.len() < input.len());
        let mut frame = vec![0xc2, 0xff];
        match u16::try_from(short.len()) {
            Ok(len @ ..126) => frame[1] = 0x80 | u8::try_from(len).unwrap_or(0),
            Ok(len) => {
                frame[1] = 0xfe;
                frame.extend_from_slice(&len.to_be_bytes());
            }
            Err(_) => unreachable!("no longer than a message"),
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&short);
        let payload = input.to_vec();
        let is_text = false;
        let back = read(&frame, &[], true);
        assert_eq!(
            back,
            (vec![WebSocketEvent::Message { is_text, payload }], None)
        );
    }
});
