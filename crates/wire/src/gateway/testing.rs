//! What the tests of all decoders share: a run over bytes in pieces, and the check that no cut of
//! them changes what comes out.
//!
//! Bytes are written as hex with meaning: [`bytes`] takes pairs of digits and text in quotes.

use super::{Event, GatewayError, Limits, ResponseDecoder};

/// Limits that a test can reach.
pub(crate) const SMALL: Limits = Limits {
    head_bytes: 200,
    fields: 4,
};

/// Events without borrows; neighbouring pieces of a body and of a log are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Head(u16, String, Option<u64>),
    Body(String),
    Log(String),
    Wanted(usize),
    End(bool),
}

/// A head with `fields` as they are sent, LF for CR LF.
pub(crate) fn head(status: u16, fields: &str) -> Seen {
    let length = fields
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    Seen::Head(
        status,
        fields.to_owned(),
        length.map(|it| it.parse().unwrap()),
    )
}

pub(crate) fn body(text: &str) -> Seen {
    Seen::Body(text.to_owned())
}

pub(crate) fn log(text: &str) -> Seen {
    Seen::Log(text.to_owned())
}

pub(crate) type Outcome = (Vec<Seen>, Result<(), GatewayError>);

/// What comes out of `bytes` and the end of the connection behind them, which must be the same
/// however they are cut.
pub(crate) fn decode(new: impl Fn() -> ResponseDecoder, bytes: &[u8]) -> Outcome {
    let whole = run(new(), [bytes]);
    let check = |pieces: Outcome, what: &str| {
        assert_eq!(pieces.1, whole.1, "{what}");
        // How much of a body is passed on before an error may depend on the pieces.
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

fn run<'a>(mut decoder: ResponseDecoder, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
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
    match decoder.eof() {
        Ok(event) => event.into_iter().for_each(|it| record(&mut seen, it)),
        Err(error) => return (seen, Err(error)),
    }
    assert_eq!(decoder.eof(), Ok(None), "a second end");
    (seen, Ok(()))
}

fn record(seen: &mut Vec<Seen>, event: Event<'_>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match (event, seen.last_mut()) {
        (Event::Head(head), _) => seen.push(Seen::Head(
            head.status.code(),
            text(head.fields.as_bytes()).replace("\r\n", "\n"),
            head.length,
        )),
        (Event::Body(bytes), last) => {
            assert!(!bytes.is_empty());
            match last {
                Some(Seen::Body(body)) => body.push_str(&text(bytes)),
                _ => seen.push(Seen::Body(text(bytes))),
            }
        }
        (Event::Log(bytes), Some(Seen::Log(log))) => log.push_str(&text(bytes)),
        (Event::Log(bytes), _) => seen.push(Seen::Log(text(bytes))),
        (Event::BodyWanted(len), _) => seen.push(Seen::Wanted(len)),
        (Event::End { reusable }, _) => seen.push(Seen::End(reusable)),
    }
}

/// Hex digits and `'text'`, parted by blanks or not at all; `\n`, `\r` and `\0` in a text mean what
/// they say.
pub(crate) fn bytes(vector: &str) -> Vec<u8> {
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
