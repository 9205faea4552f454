//! Arbitrary bytes from a reactor's worker, whole and in pieces: no panic, the same frames for
//! every split, and no head that could split a response. The first byte is the number of following
//! bytes with piece lengths.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_wire::{ChannelDecoder, ChannelEvent, WireError};

/// Decoded frames, with pieces of a body or message joined.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    frames: Vec<(u32, String)>,
    bytes: Vec<u8>,
}

impl Outcome {
    fn record(&mut self, event: ChannelEvent<'_>) {
        let id = event.stream_id();
        match event {
            ChannelEvent::Response {
                head,
                body,
                body_len,
                end,
                ..
            } => {
                if let Ok(head) = head {
                    assert!((200..=599).contains(&head.status.code()));
                    check(head.fields);
                }
                self.bytes.extend_from_slice(body);
                self.frames.push((id, format!("{head:?} {body_len:?}")));
                // A body in pieces ends with the last one.
                if end {
                    self.frames.push((id, "end".into()));
                }
            }
            ChannelEvent::Data { bytes, end, .. } => {
                self.bytes.extend_from_slice(bytes);
                if end {
                    self.frames.push((id, "end".into()));
                }
            }
            ChannelEvent::Accept { head, .. } => {
                if let Ok(head) = head {
                    check(head.fields);
                }
                self.frames.push((id, format!("{head:?}")));
            }
            ChannelEvent::Message {
                len, bytes, end, ..
            } => {
                self.bytes.extend_from_slice(bytes);
                if end {
                    self.frames.push((id, format!("message of {len}")));
                }
            }
            other => self.frames.push((id, format!("{other:?}"))),
        }
    }
}

fn check(fields: penstock_wire::HeadFields<'_>) {
    for (name, value) in fields {
        assert!(!name.is_empty());
        assert!(value.iter().all(|&byte| byte == b'\t' || byte >= b' '));
    }
}

fn read(input: &[u8], pieces: &[u8]) -> (Outcome, Option<WireError>, usize) {
    let mut decoder = ChannelDecoder::new();
    let mut outcome = Outcome::default();
    let (mut at, mut end) = (0, 0);
    let lens = pieces
        .iter()
        .map(|&len| usize::from(len))
        .chain([input.len()]);
    for len in lens {
        end = input.len().min(end + len);
        loop {
            match decoder.decode(&input[at..end]) {
                Ok(Some(decoded)) => {
                    assert!(decoded.consumed > 0 && at + decoded.consumed <= end);
                    at += decoded.consumed;
                    outcome.record(decoded.event);
                }
                Ok(None) => break,
                Err(error) => return (outcome, Some(error), at),
            }
        }
    }
    (outcome, None, at)
}

fuzz_target!(|data: &[u8]| {
    let Some((&count, data)) = data.split_first() else {
        return;
    };
    let (pieces, input) = data.split_at(usize::from(count % 16).min(data.len()));
    assert_eq!(read(input, &[]), read(input, pieces));
});
