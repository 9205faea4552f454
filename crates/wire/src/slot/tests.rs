//! Tests of the slot decoder: every event, every cut of the input, every kind of invalid bytes.

use super::*;
use crate::frame::FLAG_STREAM;
use crate::frame::MAX_PAYLOAD_BYTES;
use crate::worker_encoder;

/// Events without borrows, for comparison across buffers; body pieces are joined.
#[derive(Debug, PartialEq, Eq)]
enum RecordedSlotEvent {
    FdPlease,
    Head(u16, Vec<(Vec<u8>, Vec<u8>)>, u32, Option<u32>),
    Body(Vec<u8>),
    File(u64, Option<u64>),
    Abort(String),
    Failed(String, bool),
    IoBound,
    Extend(u32),
    Pull,
    Collected,
    Hijack,
    AnswerRing,
    End,
}

fn record(seen: &mut Vec<RecordedSlotEvent>, event: SlotEvent<'_>) {
    let add = |seen: &mut Vec<RecordedSlotEvent>, bytes: &[u8]| match seen.last_mut() {
        _ if bytes.is_empty() => (),
        Some(RecordedSlotEvent::Body(body)) => body.extend_from_slice(bytes),
        _ => seen.push(RecordedSlotEvent::Body(bytes.to_vec())),
    };
    match event {
        SlotEvent::FdRequest => seen.push(RecordedSlotEvent::FdPlease),
        SlotEvent::Head {
            head,
            app_time_us,
            body,
            body_len,
            ..
        } => {
            let head = head.unwrap();
            let fields = head.fields.map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            seen.push(RecordedSlotEvent::Head(
                head.status.code(),
                fields,
                app_time_us,
                body_len,
            ));
            add(seen, body);
        }
        SlotEvent::Body { bytes, .. } => add(seen, bytes),
        SlotEvent::File { offset, len, .. } => seen.push(RecordedSlotEvent::File(offset, len)),
        SlotEvent::Abort { reason } => seen.push(RecordedSlotEvent::Abort(reason.to_owned())),
        SlotEvent::Failed {
            reason,
            is_protocol,
        } => {
            seen.push(RecordedSlotEvent::Failed(reason.to_owned(), is_protocol));
        }
        SlotEvent::IoBound => seen.push(RecordedSlotEvent::IoBound),
        SlotEvent::ExtendDeadline { seconds } => seen.push(RecordedSlotEvent::Extend(seconds)),
        SlotEvent::GarbageCollected => seen.push(RecordedSlotEvent::Collected),
        SlotEvent::Pull => seen.push(RecordedSlotEvent::Pull),
        SlotEvent::Hijack => seen.push(RecordedSlotEvent::Hijack),
        SlotEvent::AnswerRing => seen.push(RecordedSlotEvent::AnswerRing),
    }
    if event.is_last() {
        seen.push(RecordedSlotEvent::End);
    }
}

/// Feeds `bytes` up to each of `ends` in turn, as a driver that keeps unconsumed bytes.
fn run(
    decoder: &mut SlotDecoder,
    bytes: &[u8],
    ends: &[usize],
) -> Result<Vec<RecordedSlotEvent>, WireError> {
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

fn waiting(requests: u32) -> SlotDecoder {
    let mut decoder = SlotDecoder::new();
    for _ in 0..requests {
        decoder.record_sent_request(false);
    }
    decoder
}

fn extend(out: &mut Vec<u8>, seconds: u32) {
    out.extend_from_slice(&[23, 0, 0, 0, 4, 0, 0, 0]);
    out.extend_from_slice(&seconds.to_le_bytes());
}

/// A whole response, a streamed one, a file, an abort and a failure in sequence, with IO_BOUND,
/// EXTEND and PULL frames before and within them.
fn conversation() -> (Vec<u8>, Vec<RecordedSlotEvent>) {
    let mut bytes = Vec::new();
    let head: [&[u8]; 3] = [b"200 OK", b"A", b"b"];
    worker_encoder::encode_text(&mut bytes, FrameKind::IoBound, 0, "");
    extend(&mut bytes, 3600);
    worker_encoder::encode_pull(&mut bytes);
    worker_encoder::encode_head(&mut bytes, FLAG_END, 7, &head, b"hello");
    worker_encoder::encode_head(&mut bytes, FLAG_STREAM, 8, &[b"201 Created"], b"one");
    worker_encoder::encode_body(&mut bytes, 0, b"two");
    worker_encoder::encode_body(&mut bytes, 0, b"");
    worker_encoder::encode_body(&mut bytes, FLAG_END, b"");
    worker_encoder::encode_head(&mut bytes, FLAG_STREAM, 9, &[b"200"], b"");
    worker_encoder::encode_file(&mut bytes, FLAG_END, 5, Some(10));
    worker_encoder::encode_head(&mut bytes, FLAG_STREAM, 9, &[b"200"], b"x");
    extend(&mut bytes, u32::MAX);
    worker_encoder::encode_pull(&mut bytes);
    worker_encoder::encode_file(&mut bytes, 0, 0, None);
    worker_encoder::encode_text(&mut bytes, FrameKind::Abort, 0, "raised é");
    worker_encoder::encode_text(&mut bytes, FrameKind::Failed, FLAG_PROTOCOL_ERROR, "bad");
    worker_encoder::encode_head(&mut bytes, FLAG_END, 1, &[b"204"], b"");
    let seen = vec![
        RecordedSlotEvent::IoBound,
        RecordedSlotEvent::Extend(3600),
        RecordedSlotEvent::Pull,
        RecordedSlotEvent::Head(200, vec![(b"A".to_vec(), b"b".to_vec())], 7, Some(5)),
        RecordedSlotEvent::Body(b"hello".to_vec()),
        RecordedSlotEvent::End,
        RecordedSlotEvent::Head(201, vec![], 8, None),
        RecordedSlotEvent::Body(b"onetwo".to_vec()),
        RecordedSlotEvent::End,
        RecordedSlotEvent::Head(200, vec![], 9, None),
        RecordedSlotEvent::File(5, Some(10)),
        RecordedSlotEvent::End,
        RecordedSlotEvent::Head(200, vec![], 9, None),
        RecordedSlotEvent::Body(b"x".to_vec()),
        RecordedSlotEvent::Extend(u32::MAX),
        RecordedSlotEvent::Pull,
        RecordedSlotEvent::File(0, None),
        RecordedSlotEvent::Abort("raised é".to_owned()),
        RecordedSlotEvent::End,
        RecordedSlotEvent::Failed("bad".to_owned(), true),
        RecordedSlotEvent::End,
        RecordedSlotEvent::Head(204, vec![], 1, Some(0)),
        RecordedSlotEvent::End,
    ];
    (bytes, seen)
}

#[test]
fn reads_responses_behind_one_another_wherever_the_bytes_are_cut() {
    let (bytes, expected) = conversation();
    for cut in 0..=bytes.len() {
        let mut decoder = waiting(6);
        assert_eq!(
            run(&mut decoder, &bytes, &[cut, bytes.len()]).unwrap(),
            expected,
            "{cut}"
        );
        assert_eq!(
            (
                decoder.outstanding_requests(),
                decoder.current_request_seq()
            ),
            (0, 6)
        );
    }
    let every: Vec<usize> = (1..=bytes.len()).collect();
    assert_eq!(run(&mut waiting(6), &bytes, &every).unwrap(), expected);
}

#[test]
fn refuses_a_bad_head_and_goes_on_with_the_next_response() {
    let mut bytes = Vec::new();
    let bad: [&[u8]; 3] = [b"200", b"A", b"x\r\nSet-Cookie: y"];
    worker_encoder::encode_head(&mut bytes, FLAG_END, 0, &bad, b"");
    worker_encoder::encode_head(&mut bytes, FLAG_END, 0, &[b"204"], b"");
    let mut decoder = waiting(2);
    let first = decoder.decode(&bytes).unwrap().unwrap();
    let SlotEvent::Head { head, end, .. } = first.event else {
        panic!("{first:?}")
    };
    assert_eq!((head, end), (Err(WireError::BadFieldValue), true));
    let second = decoder.decode(&bytes[first.consumed..]).unwrap().unwrap();
    assert!(matches!(second.event, SlotEvent::Head { head: Ok(_), .. }));
}

#[test]
fn hands_out_a_long_body_before_all_of_it_has_come() {
    let mut bytes = Vec::new();
    worker_encoder::encode_head(&mut bytes, FLAG_END, 0, &[b"200"], &[b'x'; 1000]);
    let mut decoder = waiting(1);
    let first = decoder.decode(&bytes[..100]).unwrap().unwrap();
    let SlotEvent::Head {
        body,
        body_len,
        end,
        ..
    } = first.event
    else {
        panic!("{first:?}")
    };
    assert_eq!(
        (first.consumed, body.len(), body_len, end),
        (100, 81, Some(1000), false)
    );
    let second = decoder.decode(&bytes[100..]).unwrap().unwrap();
    assert_eq!(
        second.event,
        SlotEvent::Body {
            bytes: &[b'x'; 919],
            end: true
        }
    );
}

#[test]
fn passes_on_one_request_for_the_body_file() {
    let mut bytes = Vec::new();
    worker_encoder::encode_fd_request(&mut bytes);
    let mut decoder = SlotDecoder::new();
    decoder.record_sent_request(true);
    assert_eq!(
        run(&mut decoder, &bytes, &[bytes.len()]),
        Ok(vec![RecordedSlotEvent::FdPlease])
    );
    assert_eq!(
        run(&mut decoder, &bytes, &[bytes.len()]),
        Err(WireError::UnexpectedFrameKind(16)),
        "second time"
    );
}

#[test]
fn refuses_frames_that_are_out_of_place() {
    let frame = |fill: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        fill(&mut bytes);
        bytes
    };
    let streamed =
        |out: &mut Vec<u8>| worker_encoder::encode_head(out, FLAG_STREAM, 0, &[b"200"], b"");
    let rows = [
        (
            "body first",
            frame(&|o| worker_encoder::encode_body(o, 0, b"x")),
            18,
        ),
        (
            "file first",
            frame(&|o| worker_encoder::encode_file(o, 1, 0, None)),
            19,
        ),
        (
            "abort first",
            frame(&|o| worker_encoder::encode_text(o, FrameKind::Abort, 0, "")),
            20,
        ),
        (
            "no body file",
            frame(&|o| worker_encoder::encode_fd_request(o)),
            16,
        ),
        ("a request", vec![1, 0, 0, 0, 0, 0, 0, 0], 1),
        ("hello", worker_encoder::encode_current_hello().to_vec(), 32),
        (
            "two heads",
            frame(&|o| {
                streamed(o);
                streamed(o);
            }),
            17,
        ),
        (
            "failed after the head",
            frame(&|o| {
                streamed(o);
                worker_encoder::encode_text(o, FrameKind::Failed, 0, "");
            }),
            21,
        ),
    ];
    for (name, bytes, kind) in rows {
        let seen = run(&mut waiting(1), &bytes, &[bytes.len()]);
        assert_eq!(seen, Err(WireError::UnexpectedFrameKind(kind)), "{name}");
    }
}

#[test]
fn a_garbage_collection_ends_once_and_only_if_requested() {
    let collected = [24, 0, 0, 0, 0, 0, 0, 0];
    let run = |decoder: &mut SlotDecoder| run(decoder, &collected, &[collected.len()]);
    let mut decoder = SlotDecoder::new();
    assert_eq!(run(&mut decoder), Err(WireError::ResponseWithoutRequest));
    decoder.record_gc_sent();
    assert_eq!(run(&mut decoder), Ok(vec![RecordedSlotEvent::Collected]));
    assert_eq!(
        run(&mut decoder),
        Err(WireError::ResponseWithoutRequest),
        "again"
    );
    let unexpected = Err(WireError::UnexpectedFrameKind(24));
    assert_eq!(run(&mut waiting(1)), unexpected, "within a request");
    decoder.record_gc_sent();
    let long = [24, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(decoder.decode(&long), Err(WireError::BadPayloadLength));
}

#[test]
fn refuses_a_response_without_a_request() {
    let mut bytes = Vec::new();
    worker_encoder::encode_head(&mut bytes, FLAG_END, 0, &[b"200"], b"");
    worker_encoder::encode_head(&mut bytes, FLAG_END, 0, &[b"200"], b"");
    let seen = run(&mut waiting(1), &bytes, &[bytes.len()]);
    assert_eq!(seen, Err(WireError::ResponseWithoutRequest));
}

#[test]
fn refuses_inconsistent_lengths() {
    let rows: [(&str, Vec<u8>, WireError); 9] = [
        (
            "head without times",
            vec![17, 1, 1, 0, 7, 0, 0, 0],
            WireError::BadPayloadLength,
        ),
        (
            "IO_BOUND with a payload",
            vec![22, 0, 0, 0, 1, 0, 0, 0],
            WireError::BadPayloadLength,
        ),
        (
            "time without a number",
            vec![23, 0, 0, 0, 0, 0, 0, 0],
            WireError::BadPayloadLength,
        ),
        (
            "head longer than its frame",
            vec![17, 1, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
            WireError::BadPayloadLength,
        ),
        (
            "endless head",
            vec![17, 1, 1, 0, 0, 0, 0, 4, 0, 0, 0, 0, 1, 0, 4, 0],
            WireError::HeadTooLong,
        ),
        (
            "head neither whole nor streamed",
            vec![17, 0, 1, 0, 8, 0, 0, 0],
            WireError::BadFlags { kind: 17, flags: 0 },
        ),
        (
            "head both whole and streamed",
            vec![17, 3, 1, 0, 8, 0, 0, 0],
            WireError::BadFlags { kind: 17, flags: 3 },
        ),
        (
            "endless reason",
            vec![21, 0, 0, 0, 1, 0, 1, 0],
            WireError::PayloadTooLong(u64::from(MAX_REASON_BYTES) + 1),
        ),
        (
            "frame over the bound",
            vec![17, 1, 1, 0, 1, 0, 0, 4],
            WireError::PayloadTooLong(u64::from(MAX_PAYLOAD_BYTES) + 1),
        ),
    ];
    for (name, bytes, error) in rows {
        assert_eq!(waiting(1).decode(&bytes), Err(error), "{name}");
    }
    let mut decoder = waiting(1);
    let mut bytes = Vec::new();
    worker_encoder::encode_head(&mut bytes, FLAG_STREAM, 0, &[b"200"], b"");
    decoder.decode(&bytes).unwrap();
    let short = [19, 3, 0, 0, 15, 0, 0, 0];
    assert_eq!(decoder.decode(&short), Err(WireError::BadPayloadLength));
    let without_fd = [19, 1, 0, 0, 16, 0, 0, 0];
    assert_eq!(
        decoder.decode(&without_fd),
        Err(WireError::BadFlags { kind: 19, flags: 1 })
    );
}

#[test]
fn survives_any_damage_to_a_conversation() {
    let (bytes, _) = conversation();
    for at in 0..bytes.len() {
        for flip in [1u8, 4, 0x20, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let mut decoder = waiting(6);
            let mut start = 0;
            while let Ok(Some(decoded)) = decoder.decode(&damaged[start..]) {
                start += decoded.consumed;
            }
        }
    }
}
