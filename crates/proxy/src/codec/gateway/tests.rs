//! Requests as they begin in each gateway protocol, and responses as events.
//!
//! The formats themselves are tested in `wire`; here it is what `proxy` makes of them: connections that
//! are not kept, refusals, a log that has a bound, heads for clients.

use penstock_config::Upstream;

use super::*;
use crate::testing::{request, upstream};

const GET: &str = "GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n";
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const END: u8 = 3;

/// A FastCGI record of the response.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[1, kind, 0, 1, len[0], len[1], 0, 0], content].concat()
}

/// END_REQUEST with that protocol status.
fn end(status: u8) -> Vec<u8> {
    record(END, &[0, 0, 0, 0, status, 0, 0, 0])
}

/// A packet of an AJP container.
fn packet(payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [b"AB", &len, payload].concat()
}

fn begun(config: &Upstream, head: &str, framing: Framing) -> (Codec, BodyForm, Vec<u8>) {
    let mut out = Vec::new();
    let (codec, form) = begin(config, &request(head), framing, "server:1", &mut out).unwrap();
    (codec, form, out)
}

fn codec(config: &Upstream) -> Codec {
    begun(config, GET, Framing::None).0
}

/// What a response says, up to its end or a failure; `is_closed` says that the server closes then.
fn heard(
    codec: &mut Codec,
    input: &[u8],
    split: usize,
    is_closed: bool,
) -> (String, Option<Failure>) {
    let mut text = String::new();
    let (mut at, mut received) = (0, split);
    loop {
        let decoded = match codec.decode(&input[at..received]) {
            Ok(decoded) => decoded,
            Err(failure) => return (text, Some(failure)),
        };
        at += decoded.consumed;
        let event = match decoded.event {
            Some(event) => event,
            None if received < input.len() => {
                received = input.len();
                continue;
            }
            None if !is_closed => return (text, None),
            None => match codec.eof() {
                Ok(event) => event,
                Err(failure) => return (text, Some(failure)),
            },
        };
        let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text += &match event {
            Event::Head(head) => {
                format!("{} {}|", head.status.code(), string(head.fields.as_bytes()))
            }
            Event::Data(piece) => string(piece),
            Event::Log(_) => String::new(),
            Event::BodyWanted(count) => format!("<wants {count}>"),
            Event::End { reusable, .. } => return (format!("{text}|{reusable}"), None),
            other => panic!("{other:?}"),
        };
    }
}

#[test]
fn each_protocol_begins_in_its_own_way() {
    for (protocol, framing, form, start) in [
        (
            Protocol::FastCgi,
            Framing::None,
            BodyForm::FastCgi,
            &b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01"[..],
        ),
        (
            Protocol::FastCgi,
            Framing::Length(5),
            BodyForm::FastCgi,
            b"\x01\x01\0\x01",
        ),
        (
            Protocol::Ajp,
            Framing::Length(5),
            BodyForm::Ajp,
            b"\x12\x34",
        ),
        (Protocol::Uwsgi, Framing::Length(5), BodyForm::Plain, b"\0"),
    ] {
        let (_, found, out) = begun(&upstream(protocol), GET, framing);
        assert_eq!(found, form, "{protocol:?}");
        assert!(out.starts_with(start), "{protocol:?}: {out:x?}");
    }
    let (_, form, out) = begun(&upstream(Protocol::Scgi), GET, Framing::Length(5));
    let colon = out.iter().position(|&byte| byte == b':').unwrap();
    assert_eq!(form, BodyForm::Plain);
    assert!(out[colon + 1..].starts_with(b"CONTENT_LENGTH\x005\0SCGI\x001\0"));
}

#[test]
fn a_body_without_a_length_is_not_begun() {
    for protocol in [
        Protocol::FastCgi,
        Protocol::Scgi,
        Protocol::Uwsgi,
        Protocol::Ajp,
    ] {
        let mut out = Vec::new();
        let config = upstream(protocol);
        let failure = begin(&config, &request(GET), Framing::Chunked, "", &mut out).unwrap_err();
        assert_eq!((failure.stage, out.len()), (Stage::Ours, 0), "{protocol:?}");
    }
}

#[test]
fn a_head_that_has_no_room_is_the_clients_fault() {
    let long = format!(
        "GET / HTTP/1.1\r\nHost: a.test\r\nA: {}\r\n\r\n",
        "x".repeat(70_000)
    );
    for protocol in [Protocol::Uwsgi, Protocol::Ajp] {
        let mut out = Vec::new();
        let config = upstream(protocol);
        let failure = begin(&config, &request(&long), Framing::None, "", &mut out).unwrap_err();
        let found = (failure.kind, failure.stage, out.len());
        assert_eq!(
            found,
            (FaultKind::HeadTooLarge, Stage::Ours, 0),
            "{protocol:?}"
        );
    }
}

#[test]
fn a_response_is_the_same_however_it_is_split() {
    let fields = b"Status: 404 Gone\r\nA: 1\r\nConnection: close\r\nX-Accel-Buffering: no\r\n\r\n";
    let fastcgi = [
        record(STDERR, b"PHP message: a\n"),
        record(STDOUT, fields),
        record(STDOUT, b"hel"),
        record(STDERR, b"b"),
        record(STDOUT, b"lo"),
        record(STDOUT, b""),
        end(0),
    ]
    .concat();
    let scgi = [&fields[..], b"hello"].concat();
    let ajp = [
        packet(b"\x04\x01\x94\0\x04Gone\0\0\x01\0\x01A\0\0\x011\0"),
        packet(b"\x03\0\x05hello\0"),
        packet(b"\x05\x01"),
    ]
    .concat();
    let uwsgi =
        b"HTTP/1.1 404 Gone\r\nA: 1\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello";
    for (protocol, bytes, reusable) in [
        (Protocol::FastCgi, fastcgi, true),
        (Protocol::Scgi, scgi, false),
        (Protocol::Ajp, ajp, true),
        (Protocol::Uwsgi, uwsgi.to_vec(), false),
    ] {
        let config = upstream(protocol);
        for split in 0..=bytes.len() {
            let (text, failure) = heard(&mut codec(&config), &bytes, split, true);
            let expected = format!("404 A: 1\r\n|hello|{reusable}");
            assert_eq!(text, expected, "{protocol:?} {split}: {failure:?}");
        }
    }
}

#[test]
fn a_response_that_is_cut_fails() {
    let head = record(STDOUT, b"A: 1\r\n\r\n");
    let body = [&head[..], &record(STDOUT, b"hello")].concat();
    let short = b"Content-Length: 9\r\n\r\nhello";
    for (row, protocol, bytes, stage) in [
        ("nothing", Protocol::FastCgi, &b""[..], Stage::Sent),
        ("in the head", Protocol::FastCgi, &head[..12], Stage::Sent),
        ("behind the head", Protocol::FastCgi, &head, Stage::Answered),
        ("in the body", Protocol::FastCgi, &body, Stage::Answered),
        ("nothing", Protocol::Scgi, b"", Stage::Sent),
        ("in the head", Protocol::Scgi, b"A: 1\r\n", Stage::Sent),
        ("in the body", Protocol::Scgi, short, Stage::Answered),
        ("nothing", Protocol::Ajp, b"", Stage::Sent),
        ("in the head", Protocol::Ajp, b"AB\0\x17\x04", Stage::Sent),
        ("nothing", Protocol::Uwsgi, b"", Stage::Sent),
    ] {
        let (_, failure) = heard(&mut codec(&upstream(protocol)), bytes, bytes.len(), true);
        let failure = failure.unwrap_or_else(|| panic!("{protocol:?} {row}"));
        let found = (failure.kind, failure.stage);
        assert_eq!(
            found,
            (FaultKind::BackendDisconnected, stage),
            "{protocol:?} {row}"
        );
    }
}

#[test]
fn only_a_refusal_before_the_head_lets_any_request_go_elsewhere() {
    let head = record(STDOUT, b"A: 1\r\n\r\n");
    for (row, bytes, stage) in [
        ("cannot multiplex", end(1), Stage::Unsent),
        ("overloaded", end(2), Stage::Unsent),
        ("unknown role", end(3), Stage::Unsent),
        ("unknown status", end(4), Stage::Sent),
        (
            "overloaded behind a head",
            [&head[..], &end(2)].concat(),
            Stage::Answered,
        ),
        ("no record", b"HTTP/1.1 200 OK\r\n".to_vec(), Stage::Sent),
        ("complete without a head", end(0), Stage::Sent),
    ] {
        let mut codec = codec(&upstream(Protocol::FastCgi));
        let (_, failure) = heard(&mut codec, &bytes, bytes.len(), false);
        let failure = failure.unwrap_or_else(|| panic!("{row}"));
        assert_eq!(
            (failure.kind, failure.stage),
            (FaultKind::BackendProtocolError, stage),
            "{row}"
        );
        assert_eq!(failure.allows_retry(false), stage == Stage::Unsent, "{row}");
    }
}

#[test]
fn a_connection_that_is_not_to_be_kept_is_not() {
    let response = [record(STDOUT, b"A: 1\r\n\r\n"), record(STDOUT, b""), end(0)].concat();
    for (soft, expected) in [(0, false), (1, true)] {
        let mut config = upstream(Protocol::FastCgi);
        config.connections.soft = soft;
        let (mut codec, _, out) = begun(&config, GET, Framing::None);
        // The flags of BEGIN_REQUEST.
        assert_eq!(out[10], u8::from(expected), "{soft}");
        let (text, _) = heard(&mut codec, &response, 0, false);
        assert!(text.ends_with(&format!("|{expected}")), "{soft}: {text}");
    }
}

#[test]
fn the_log_of_a_request_has_a_bound() {
    let message = record(STDERR, &[b'x'; 10_000]);
    let mut bytes = message.repeat(100);
    bytes.extend(record(STDOUT, b"A: 1\r\n\r\n"));
    let mut codec = codec(&upstream(Protocol::FastCgi));
    let (mut at, mut logged, mut cuts) = (0, 0, 0);
    loop {
        let decoded = codec.decode(&bytes[at..]).unwrap();
        at += decoded.consumed;
        match decoded.event {
            Some(Event::Log(LOG_CUT)) => cuts += 1,
            Some(Event::Log(piece)) => logged += piece.len(),
            // What is left out must not hide what comes behind it.
            Some(Event::Head(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((logged, cuts), (60_000, 1));
}

#[test]
fn what_a_container_asks_for_is_heard() {
    let mut codec = codec(&upstream(Protocol::Ajp));
    let (text, _) = heard(&mut codec, b"AB\0\x03\x06\x1f\xfa", 3, false);
    assert_eq!(text, "<wants 8186>");
}
