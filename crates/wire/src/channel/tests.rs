//! The channel decoder at every cut of its input, and against noise.

use super::*;
use crate::frame::{FLAG_END, FLAG_PROTOCOL_ERROR, FLAG_STREAM, FLAG_TEXT, FrameHeader};
use crate::{FrameKind, RequestBodySource, WireError};

/// Events without borrows; pieces of one body or message are joined.
#[derive(Debug, PartialEq, Eq)]
enum RecordedChannelEvent {
    Answer(u32, u16, usize, Option<u32>),
    Bytes(u32, Vec<u8>),
    End(u32),
    Accept(u32, String, usize),
    Reset(u32, String, bool),
    Message(u32, bool, u32, Vec<u8>, bool),
    Close(u32, u16, String),
    Window(u32, u32),
    Pull(u32),
    Hijack(u32),
}

fn record(seen: &mut Vec<RecordedChannelEvent>, event: ChannelEvent<'_>) {
    let add = |seen: &mut Vec<RecordedChannelEvent>, id: u32, bytes: &[u8]| match seen.last_mut() {
        _ if bytes.is_empty() => {}
        Some(RecordedChannelEvent::Bytes(of, body)) if *of == id => body.extend_from_slice(bytes),
        _ => seen.push(RecordedChannelEvent::Bytes(id, bytes.to_vec())),
    };
    match event {
        ChannelEvent::Response {
            id,
            head,
            body,
            body_len,
            end,
            ..
        } => {
            let head = head.unwrap();
            seen.push(RecordedChannelEvent::Answer(
                id,
                head.status.code(),
                head.fields.len(),
                body_len,
            ));
            add(seen, id, body);
            if end {
                seen.push(RecordedChannelEvent::End(id));
            }
        }
        ChannelEvent::Data { id, bytes, end } => {
            add(seen, id, bytes);
            if end {
                seen.push(RecordedChannelEvent::End(id));
            }
        }
        ChannelEvent::Accept { id, head } => {
            let head = head.unwrap();
            let subprotocol = head.subprotocol.to_owned();
            seen.push(RecordedChannelEvent::Accept(
                id,
                subprotocol,
                head.fields.len(),
            ));
        }
        ChannelEvent::Reset {
            id,
            reason,
            is_protocol,
        } => seen.push(RecordedChannelEvent::Reset(
            id,
            reason.to_owned(),
            is_protocol,
        )),
        ChannelEvent::Message {
            id,
            is_text,
            len,
            bytes,
            is_first,
            end,
        } => {
            if is_first {
                seen.push(RecordedChannelEvent::Message(
                    id,
                    is_text,
                    len,
                    Vec::new(),
                    false,
                ));
            }
            let Some(RecordedChannelEvent::Message(of, _, _, all, ended)) = seen.last_mut() else {
                panic!("a piece of no message");
            };
            assert_eq!((*of, *ended), (id, false));
            all.extend_from_slice(bytes);
            *ended = end;
        }
        ChannelEvent::Close { id, code, reason } => {
            seen.push(RecordedChannelEvent::Close(id, code, reason.to_owned()));
        }
        ChannelEvent::Window { id, bytes } => seen.push(RecordedChannelEvent::Window(id, bytes)),
        ChannelEvent::Pull { id } => seen.push(RecordedChannelEvent::Pull(id)),
        ChannelEvent::Hijack { id } => seen.push(RecordedChannelEvent::Hijack(id)),
    }
}

fn run(bytes: &[u8], ends: &[usize]) -> Result<Vec<RecordedChannelEvent>, WireError> {
    let mut decoder = ChannelDecoder::new();
    let mut seen = Vec::new();
    let mut at = 0;
    for end in ends {
        while let Some(decoded) = decoder.decode(&bytes[at..*end])? {
            assert!(decoded.consumed > 0 && at + decoded.consumed <= *end);
            at += decoded.consumed;
            record(&mut seen, decoded.event);
        }
    }
    assert_eq!(at, bytes.len(), "bytes left over");
    Ok(seen)
}

fn conversation() -> (Vec<u8>, Vec<RecordedChannelEvent>) {
    let mut bytes = Vec::new();
    let head: [&[u8]; 3] = [b"200 OK", b"A", b"b"];
    reactor_encoder::encode_response(&mut bytes, FLAG_END, 1, 7, &head, b"hello");
    reactor_encoder::encode_response(&mut bytes, FLAG_STREAM, 2, 7, &[b"201"], b"one");
    reactor_encoder::encode_data(&mut bytes, 0, 2, b"two");
    reactor_encoder::encode_pull(&mut bytes, 2);
    reactor_encoder::encode_data(&mut bytes, 0, 3, b"other");
    reactor_encoder::encode_data(&mut bytes, 0, 2, b"");
    reactor_encoder::encode_data(&mut bytes, FLAG_END, 2, b"");
    reactor_encoder::encode_reset(&mut bytes, FLAG_PROTOCOL_ERROR, 3, "cut é");
    reactor_encoder::encode_accept(&mut bytes, 4, &[b"chat", b"A", b"b"]);
    reactor_encoder::encode_message(&mut bytes, FLAG_TEXT, 4, "é".as_bytes());
    reactor_encoder::encode_message(&mut bytes, 0, 4, b"");
    reactor_encoder::encode_window(&mut bytes, 4, 77);
    reactor_encoder::encode_close(&mut bytes, 4, 1000, "bye");
    reactor_encoder::encode_hijack(&mut bytes, 5);
    reactor_encoder::encode_response(&mut bytes, FLAG_END, u32::MAX, 0, &[b"204"], b"");
    let seen = vec![
        RecordedChannelEvent::Answer(1, 200, 1, Some(5)),
        RecordedChannelEvent::Bytes(1, b"hello".to_vec()),
        RecordedChannelEvent::End(1),
        RecordedChannelEvent::Answer(2, 201, 0, None),
        RecordedChannelEvent::Bytes(2, b"onetwo".to_vec()),
        RecordedChannelEvent::Pull(2),
        RecordedChannelEvent::Bytes(3, b"other".to_vec()),
        RecordedChannelEvent::End(2),
        RecordedChannelEvent::Reset(3, "cut é".into(), true),
        RecordedChannelEvent::Accept(4, "chat".into(), 1),
        RecordedChannelEvent::Message(4, true, 2, "é".as_bytes().to_vec(), true),
        RecordedChannelEvent::Message(4, false, 0, Vec::new(), true),
        RecordedChannelEvent::Window(4, 77),
        RecordedChannelEvent::Close(4, 1000, "bye".into()),
        RecordedChannelEvent::Hijack(5),
        RecordedChannelEvent::Answer(u32::MAX, 204, 0, Some(0)),
        RecordedChannelEvent::End(u32::MAX),
    ];
    (bytes, seen)
}

#[test]
fn streams_are_read_wherever_the_bytes_are_cut() {
    let (bytes, seen) = conversation();
    let all = bytes.len();
    assert_eq!(run(&bytes, &[all]).as_ref(), Ok(&seen));
    let every: Vec<usize> = (1..=all).collect();
    assert_eq!(run(&bytes, &every).as_ref(), Ok(&seen));
    for cut in 0..=all {
        assert_eq!(run(&bytes, &[cut, all]).as_ref(), Ok(&seen), "cut at {cut}");
    }
}

#[test]
fn heads_that_are_wrong_leave_the_frames_intact() {
    let mut bytes = Vec::new();
    reactor_encoder::encode_response(&mut bytes, FLAG_END, 1, 0, &[b"100"], b"x");
    reactor_encoder::encode_accept(&mut bytes, 1, &[b"a b"]);
    reactor_encoder::encode_accept(&mut bytes, 1, &[b"", b"A", b"x\r\ny"]);
    reactor_encoder::encode_accept(&mut bytes, 1, &[b"", b"A"]);
    let mut decoder = ChannelDecoder::new();
    let mut rest = &bytes[..];
    let mut errors = Vec::new();
    while let Some(decoded) = decoder.decode(rest).unwrap() {
        rest = &rest[decoded.consumed..];
        errors.push(match decoded.event {
            ChannelEvent::Response { head, .. } => head.unwrap_err(),
            ChannelEvent::Accept { head, .. } => head.unwrap_err(),
            other => panic!("{other:?}"),
        });
    }
    let expected = [
        WireError::BadStatus,
        WireError::BadSubprotocol,
        WireError::BadFieldValue,
        WireError::BadStringCount,
    ];
    assert_eq!((rest.len(), &errors[..]), (0, &expected[..]));
}

#[test]
fn noise_is_refused_or_read_but_never_a_panic() {
    // xorshift: any fixed sequence will do.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (good, _) = conversation();
    for _ in 0..3000 {
        let mut bytes = good.clone();
        for _ in 0..1 + next() % 4 {
            let at = usize::try_from(next()).unwrap() % bytes.len();
            bytes[at] = next().to_le_bytes()[0];
        }
        let mut decoder = ChannelDecoder::new();
        let mut rest = &bytes[..];
        while let Ok(Some(decoded)) = decoder.decode(rest) {
            assert!(decoded.consumed > 0 && decoded.consumed <= rest.len());
            rest = &rest[decoded.consumed..];
        }
    }
}

#[test]
fn an_open_that_is_refused_leaves_the_buffer_alone() {
    let mut out = b"before".to_vec();
    let refused = encode_open(&mut out, false, RequestBodySource::Inline(b""), |out| {
        out.push(1);
        Err(WireError::NulInText)
    });
    assert_eq!(refused, Err(WireError::NulInText));
    let too_long = RequestBodySource::AppendedByCaller(crate::MAX_PAYLOAD_BYTES);
    assert!(encode_open(&mut out, false, too_long, |_| Ok(())).is_err());
    assert!(encode_message_head(1, false, crate::MAX_PAYLOAD_BYTES as usize - 3).is_err());
    assert_eq!(out, b"before");
}

#[test]
fn a_close_of_ours_is_cut_between_characters() {
    let mut out = Vec::new();
    encode_close(&mut out, 1, 1000, &"é".repeat(100));
    let header = FrameHeader::parse(&out).unwrap().unwrap();
    assert_eq!(
        (header.kind, header.payload_len),
        (FrameKind::Close, 6 + 122)
    );
}
