//! Shared by the tests of all decoders: decodes bytes in pieces, and checks that no cut changes the
//! result.
//!
//! Bytes are written as hex with meaning: [`parse_vector`] takes pairs of digits and text in
//! quotes.

use super::{GatewayError, GatewayEvent, GatewayHeadLimits, ResponseDecoder};

/// Limits that a test can reach.
pub(crate) const SMALL_HEAD_LIMITS: GatewayHeadLimits = GatewayHeadLimits {
    max_head_bytes: 200,
    max_fields: 4,
};

/// Events without borrows; neighbouring pieces of a body and of a log are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordedGatewayEvent {
    Head(u16, String, Option<u64>),
    Body(String),
    Log(String),
    BodyRequested(usize),
    End(bool),
}

/// A head with `fields` as they are sent, LF for CR LF.
pub(crate) fn head_event(status: u16, fields: &str) -> RecordedGatewayEvent {
    let length = fields
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    RecordedGatewayEvent::Head(
        status,
        fields.to_owned(),
        length.map(|it| it.parse().unwrap()),
    )
}

pub(crate) fn body_event(text: &str) -> RecordedGatewayEvent {
    RecordedGatewayEvent::Body(text.to_owned())
}

pub(crate) fn log_event(text: &str) -> RecordedGatewayEvent {
    RecordedGatewayEvent::Log(text.to_owned())
}

pub(crate) type DecodeOutcome = (Vec<RecordedGatewayEvent>, Result<(), GatewayError>);

/// Decodes `bytes` and the end of the connection; the result must be the same however they are cut.
pub(crate) fn decode(new: impl Fn() -> ResponseDecoder, bytes: &[u8]) -> DecodeOutcome {
    let whole = run(new(), [bytes]);
    let check = |pieces: DecodeOutcome, what: &str| {
        assert_eq!(pieces.1, whole.1, "{what}");
        // The part of a body before an error may depend on the pieces.
        if whole.1.is_ok() {
            assert_eq!(pieces.0, whole.0, "{what}");
        }
    };
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        check(run(new(), [first, second]), &format!("cut at {at}"));
    }
    for size in 1..=9 {
        check(run(new(), bytes.chunks(size)), &format!("pieces of {size}"));
    }
    whole
}

fn run<'a>(
    mut decoder: ResponseDecoder,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> DecodeOutcome {
    let mut seen = Vec::new();
    for mut piece in pieces {
        loop {
            let decoded = match decoder.decode(piece) {
                Ok(decoded) => decoded,
                Err(error) => return (seen, Err(error)),
            };
            piece = &piece[decoded.consumed..];
            let Some(event) = decoded.event else {
                assert!(piece.is_empty(), "bytes left over without an event");
                break;
            };
            record(&mut seen, event);
        }
    }
    match decoder.decode_eof() {
        Ok(event) => event.into_iter().for_each(|it| record(&mut seen, it)),
        Err(error) => return (seen, Err(error)),
    }
    assert_eq!(decoder.decode_eof(), Ok(None), "a second end");
    (seen, Ok(()))
}

fn record(seen: &mut Vec<RecordedGatewayEvent>, event: GatewayEvent<'_>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match (event, seen.last_mut()) {
        (GatewayEvent::Head(head), _) => seen.push(RecordedGatewayEvent::Head(
            head.status.code(),
            text(head.fields.as_bytes()).replace("\r\n", "\n"),
            head.content_length,
        )),
        (GatewayEvent::Body(bytes), last) => {
            assert!(!bytes.is_empty());
            match last {
                Some(RecordedGatewayEvent::Body(body)) => body.push_str(&text(bytes)),
                _ => seen.push(RecordedGatewayEvent::Body(text(bytes))),
            }
        }
        (GatewayEvent::Log(bytes), Some(RecordedGatewayEvent::Log(log))) => {
            log.push_str(&text(bytes));
        }
        (GatewayEvent::Log(bytes), _) => seen.push(RecordedGatewayEvent::Log(text(bytes))),
        (GatewayEvent::BodyRequested(len), _) => {
            seen.push(RecordedGatewayEvent::BodyRequested(len));
        }
        (GatewayEvent::End { reusable }, _) => seen.push(RecordedGatewayEvent::End(reusable)),
    }
}

/// Parses hex digits and `'text'`, with or without blanks between them; `\n`, `\r` and `\0` are
/// escapes.
pub(crate) fn parse_vector(vector: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, part) in vector.split('\'').enumerate() {
        if at % 2 == 1 {
            let text = part
                .replace("\\r", "\r")
                .replace("\\n", "\n")
                .replace("\\0", "\0");
            out.extend_from_slice(text.as_bytes());
            continue;
        }
        let digits: Vec<u8> = part
            .bytes()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        for pair in digits.chunks(2) {
            let pair = std::str::from_utf8(pair).unwrap();
            out.push(u8::from_str_radix(pair, 16).unwrap());
        }
    }
    out
}
