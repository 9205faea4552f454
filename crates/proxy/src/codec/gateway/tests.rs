//! How requests begin in each gateway protocol, and responses as events.
//!
//! `wire` tests the formats themselves. These tests cover connections that are not kept, refusals,
//! the bound of log output, and heads for clients.

use penstock_config::Upstream;

use super::*;
use crate::testing::{request, upstream_config};

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

fn started(
    config: &Upstream,
    head: &str,
    framing: RequestBodyFraming,
) -> (Codec, BodyEncoding, Vec<u8>) {
    let mut out = Vec::new();
    let (codec, form) =
        encode_request(config, &request(head), framing, "server:1", &mut out).unwrap();
    (codec, form, out)
}

fn codec(config: &Upstream) -> Codec {
    started(config, GET, RequestBodyFraming::None).0
}

/// Decodes a response up to its end or a failure; `is_closed` means that the server then closes.
fn decode_all(
    codec: &mut Codec,
    input: &[u8],
    split: usize,
    is_closed: bool,
) -> (String, Option<AttemptFailure>) {
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
            None => match codec.finish_at_eof() {
                Ok(event) => event,
                Err(failure) => return (text, Some(failure)),
            },
        };
        let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text += &match event {
            ResponseEvent::Head(head) => {
                format!("{} {}|", head.status.code(), string(head.fields.as_bytes()))
            }
            ResponseEvent::Data(piece) => string(piece),
            ResponseEvent::LogLines(_) => String::new(),
            ResponseEvent::BodyRequested(count) => format!("<wants {count}>"),
            ResponseEvent::End(end) => return (format!("{text}|{}", end.is_reusable), None),
            other => panic!("{other:?}"),
        };
    }
}

#[test]
fn each_protocol_begins_in_its_own_way() {
    for (protocol, framing, form, start) in [
        (
            Protocol::FastCgi,
            RequestBodyFraming::None,
            BodyEncoding::FastCgi,
            &b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01"[..],
        ),
        (
            Protocol::FastCgi,
            RequestBodyFraming::Length(5),
            BodyEncoding::FastCgi,
            b"\x01\x01\0\x01",
        ),
        (
            Protocol::Ajp,
            RequestBodyFraming::Length(5),
            BodyEncoding::Ajp,
            b"\x12\x34",
        ),
        (
            Protocol::Uwsgi,
            RequestBodyFraming::Length(5),
            BodyEncoding::Plain,
            b"\0",
        ),
    ] {
        let (_, found, out) = started(&upstream_config(protocol), GET, framing);
        assert_eq!(found, form, "{protocol:?}");
        assert!(out.starts_with(start), "{protocol:?}: {out:x?}");
    }
    let (_, form, out) = started(
        &upstream_config(Protocol::Scgi),
        GET,
        RequestBodyFraming::Length(5),
    );
    let colon = out.iter().position(|&byte| byte == b':').unwrap();
    assert_eq!(form, BodyEncoding::Plain);
    assert!(out[colon + 1..].starts_with(b"CONTENT_LENGTH\x005\0SCGI\x001\0"));
}

#[test]
fn a_body_without_a_length_is_rejected() {
    for protocol in [
        Protocol::FastCgi,
        Protocol::Scgi,
        Protocol::Uwsgi,
        Protocol::Ajp,
    ] {
        let mut out = Vec::new();
        let config = upstream_config(protocol);
        let failure = encode_request(
            &config,
            &request(GET),
            RequestBodyFraming::Chunked,
            "",
            &mut out,
        )
        .unwrap_err();
        assert_eq!(
            (failure.stage, out.len()),
            (AttemptStage::Local, 0),
            "{protocol:?}"
        );
    }
}

#[test]
fn an_oversized_request_head_is_a_client_fault() {
    let long = format!(
        "GET / HTTP/1.1\r\nHost: a.test\r\nA: {}\r\n\r\n",
        "x".repeat(70_000)
    );
    for protocol in [Protocol::Uwsgi, Protocol::Ajp] {
        let mut out = Vec::new();
        let config = upstream_config(protocol);
        let failure = encode_request(
            &config,
            &request(&long),
            RequestBodyFraming::None,
            "",
            &mut out,
        )
        .unwrap_err();
        let found = (failure.kind, failure.stage, out.len());
        assert_eq!(
            found,
            (FaultKind::HeadTooLarge, AttemptStage::Local, 0),
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
        let config = upstream_config(protocol);
        for split in 0..=bytes.len() {
            let (text, failure) = decode_all(&mut codec(&config), &bytes, split, true);
            // Edge removes it from the response to the client.
            let kept = match protocol {
                Protocol::FastCgi | Protocol::Scgi => "X-Accel-Buffering: no\r\n",
                _ => "",
            };
            let expected = format!("404 A: 1\r\n{kept}|hello|{reusable}");
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
        ("nothing", Protocol::FastCgi, &b""[..], AttemptStage::Sent),
        (
            "in the head",
            Protocol::FastCgi,
            &head[..12],
            AttemptStage::Sent,
        ),
        (
            "behind the head",
            Protocol::FastCgi,
            &head,
            AttemptStage::ResponseStarted,
        ),
        (
            "in the body",
            Protocol::FastCgi,
            &body,
            AttemptStage::ResponseStarted,
        ),
        ("nothing", Protocol::Scgi, b"", AttemptStage::Sent),
        (
            "in the head",
            Protocol::Scgi,
            b"A: 1\r\n",
            AttemptStage::Sent,
        ),
        (
            "in the body",
            Protocol::Scgi,
            short,
            AttemptStage::ResponseStarted,
        ),
        ("nothing", Protocol::Ajp, b"", AttemptStage::Sent),
        (
            "in the head",
            Protocol::Ajp,
            b"AB\0\x17\x04",
            AttemptStage::Sent,
        ),
        ("nothing", Protocol::Uwsgi, b"", AttemptStage::Sent),
    ] {
        let (_, failure) = decode_all(
            &mut codec(&upstream_config(protocol)),
            bytes,
            bytes.len(),
            true,
        );
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
fn a_refusal_before_the_head_allows_any_retry() {
    let head = record(STDOUT, b"A: 1\r\n\r\n");
    for (row, bytes, stage) in [
        ("cannot multiplex", end(1), AttemptStage::Unsent),
        ("overloaded", end(2), AttemptStage::Unsent),
        ("unknown role", end(3), AttemptStage::Unsent),
        ("unknown status", end(4), AttemptStage::Sent),
        (
            "overloaded behind a head",
            [&head[..], &end(2)].concat(),
            AttemptStage::ResponseStarted,
        ),
        (
            "no record",
            b"HTTP/1.1 200 OK\r\n".to_vec(),
            AttemptStage::Sent,
        ),
        ("complete without a head", end(0), AttemptStage::Sent),
    ] {
        let mut codec = codec(&upstream_config(Protocol::FastCgi));
        let (_, failure) = decode_all(&mut codec, &bytes, bytes.len(), false);
        let failure = failure.unwrap_or_else(|| panic!("{row}"));
        assert_eq!(
            (failure.kind, failure.stage),
            (FaultKind::BackendProtocolError, stage),
            "{row}"
        );
    }
}

#[test]
fn a_connection_that_is_not_kept_alive_is_not_reusable() {
    let response = [record(STDOUT, b"A: 1\r\n\r\n"), record(STDOUT, b""), end(0)].concat();
    for (soft, expected) in [(0, false), (1, true)] {
        let mut config = upstream_config(Protocol::FastCgi);
        config.connections.max_idle = soft;
        let (mut codec, _, out) = started(&config, GET, RequestBodyFraming::None);
        // The flags of BEGIN_REQUEST.
        assert_eq!(out[10], u8::from(expected), "{soft}");
        let (text, _) = decode_all(&mut codec, &response, 0, false);
        assert!(text.ends_with(&format!("|{expected}")), "{soft}: {text}");
    }
}

#[test]
fn the_log_of_a_request_has_a_bound() {
    let message = record(STDERR, &[b'x'; 10_000]);
    let mut bytes = message.repeat(100);
    bytes.extend(record(STDOUT, b"A: 1\r\n\r\n"));
    let mut codec = codec(&upstream_config(Protocol::FastCgi));
    let (mut at, mut logged, mut cuts) = (0, 0, 0);
    loop {
        let decoded = codec.decode(&bytes[at..]).unwrap();
        at += decoded.consumed;
        match decoded.event {
            Some(ResponseEvent::LogLines(LOG_TRUNCATED)) => cuts += 1,
            Some(ResponseEvent::LogLines(piece)) => logged += piece.len(),
            // Skipped events must not hide what follows them.
            Some(ResponseEvent::Head(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((logged, cuts), (60_000, 1));
}

#[test]
fn body_requests_of_a_container_are_reported() {
    let mut codec = codec(&upstream_config(Protocol::Ajp));
    let (text, _) = decode_all(&mut codec, b"AB\0\x03\x06\x1f\xfa", 3, false);
    assert_eq!(text, "<wants 8186>");
}
