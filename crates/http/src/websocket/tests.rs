//! Table of rules, in the manner of the Autobahn cases, at every split of the input.

use super::*;
use crate::{HeadLimits, ParseProgress, RequestHead, parse_head};

const MAX: usize = 1000;

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        len @ ..=125 => out.push(0x80 | u8::try_from(len).unwrap()),
        len @ ..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        }
        len => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let mask = [0x12, 0x34, 0x56, 0x78];
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
    out
}

fn text(payload: &str) -> WebSocketEvent {
    WebSocketEvent::Message {
        is_text: true,
        payload: payload.as_bytes().to_vec(),
    }
}

fn binary(payload: &[u8]) -> WebSocketEvent {
    WebSocketEvent::Message {
        is_text: false,
        payload: payload.to_vec(),
    }
}

fn closed(code: u16, reason: &str) -> WebSocketEvent {
    WebSocketEvent::Close {
        code,
        reason: reason.to_owned(),
    }
}

/// All events, decoded in pieces of that size, and the final error.
fn run(bytes: &[u8], piece: usize) -> (Vec<WebSocketEvent>, Option<u16>) {
    let mut decoder = MessageDecoder::new(MAX);
    let mut events = Vec::new();
    for mut piece in bytes.chunks(piece) {
        loop {
            match decoder.decode(&mut piece) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error.close_code())),
            }
        }
        assert!(piece.is_empty());
    }
    (events, None)
}

fn check(name: &str, frames: &[Vec<u8>], events: &[WebSocketEvent], code: Option<u16>) {
    let bytes = frames.concat();
    for piece in [1, 2, 3, 5, 7, 13, 64, bytes.len().max(1)] {
        let found = run(&bytes, piece);
        assert_eq!(found, (events.to_vec(), code), "{name}, by {piece}");
    }
}

#[test]
fn whole_messages_and_fragments_are_read() {
    let long = "x".repeat(900);
    let ping = WebSocketEvent::Ping(b"p".to_vec());
    check("empty text", &[frame(0x81, b"")], &[text("")], None);
    check("text", &[frame(0x81, b"hello")], &[text("hello")], None);
    check("125", &[frame(0x82, &[7; 125])], &[binary(&[7; 125])], None);
    check("126", &[frame(0x82, &[7; 126])], &[binary(&[7; 126])], None);
    check("900", &[frame(0x81, long.as_bytes())], &[text(&long)], None);
    check(
        "fragments",
        &[frame(0x01, b"a"), frame(0x00, b"b"), frame(0x80, b"c")],
        &[text("abc")],
        None,
    );
    check(
        "empty fragments",
        &[frame(0x02, b""), frame(0x00, b""), frame(0x80, b"")],
        &[binary(b"")],
        None,
    );
    check(
        "a ping between fragments",
        &[frame(0x01, b"a"), frame(0x89, b"p"), frame(0x80, b"c")],
        &[ping, text("ac")],
        None,
    );
    check(
        "pongs that nobody asked for",
        &[frame(0x8a, b""), frame(0x8a, &[1; 125])],
        &[WebSocketEvent::Pong, WebSocketEvent::Pong],
        None,
    );
    check(
        "a character over frames",
        &[
            frame(0x01, b"\xce"),
            frame(0x00, b"\xba\xe1\xbd"),
            frame(0x80, b"\xb9"),
        ],
        &[text("κό".replace('ό', "\u{1f79}").as_str())],
        None,
    );
}

#[test]
fn closes_are_read_and_end_everything() {
    let close = |payload: &[u8]| frame(0x88, payload);
    check("empty", &[close(b"")], &[closed(1005, "")], None);
    let bye = close(b"\x03\xe8bye");
    check(
        "nothing counts behind it",
        &[bye, frame(0xff, b"junk"), b"junk".to_vec()],
        &[closed(1000, "bye")],
        None,
    );
    for good in [1000_u16, 1001, 1002, 1003, 1007, 1011, 1012, 3000, 4999] {
        let frames = [close(&good.to_be_bytes())];
        check("good", &frames, &[closed(good, "")], None);
    }
    for bad in [
        0_u16, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535,
    ] {
        check("bad", &[close(&bad.to_be_bytes())], &[], Some(1002));
    }
    check("half a code", &[close(b"\x03")], &[], Some(1002));
    check("bad reason", &[close(b"\x03\xe8\xff")], &[], Some(1007));
    check("too long", &[close(&[3; 126])], &[], Some(1002));
}

#[test]
fn what_a_client_may_not_send_has_its_code() {
    let whole = frame(0x81, b"ok");
    let mut unmasked = frame(0x81, b"");
    unmasked[1] &= 0x7f;
    for (name, bad) in [
        ("rsv1", frame(0xc1, b"a")),
        ("rsv2", frame(0xa1, b"a")),
        ("rsv3", frame(0x91, b"a")),
        ("rsv on a ping", frame(0xd9, b"")),
        ("opcode 3", frame(0x83, b"")),
        ("opcode 7", frame(0x87, b"")),
        ("opcode 11", frame(0x8b, b"")),
        ("opcode 15", frame(0x8f, b"")),
        ("no mask", unmasked),
        ("a ping in fragments", frame(0x09, b"a")),
        ("a long ping", frame(0x89, &[0; 126])),
        ("a continuation of nothing", frame(0x80, b"a")),
        ("125 in the long form", vec![0x82, 0xfe, 0, 125, 0, 0, 0, 0]),
        (
            "65535 in the longest form",
            [&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff][..], &[0; 4]].concat(),
        ),
        ("a sign bit", [&[0x82, 0xff, 0x80][..], &[0; 11]].concat()),
    ] {
        check(name, &[whole.clone(), bad], &[text("ok")], Some(1002));
    }
    check(
        "a message within a message",
        &[frame(0x01, b"a"), frame(0x81, b"b")],
        &[],
        Some(1002),
    );
}

#[test]
fn text_is_refused_at_its_first_bad_byte() {
    for (name, frames) in [
        ("whole", vec![frame(0x81, b"\xce\xba\xff")]),
        ("cut at the end", vec![frame(0x81, b"\xce")]),
        ("surrogate", vec![frame(0x81, b"\xed\xa0\x80")]),
        ("overlong", vec![frame(0x81, b"\xc0\xaf")]),
        ("too high", vec![frame(0x81, b"\xf4\x90\x80\x80")]),
        (
            "over frames",
            vec![frame(0x01, b"\xce"), frame(0x80, b"\x20")],
        ),
        // The last frame is missing, and not needed.
        ("fast", vec![frame(0x01, b"\xff")]),
    ] {
        check(name, &frames, &[], Some(1007));
    }
    // Within an incomplete frame.
    let mut begun = frame(0x81, &[b"\xff"[..].to_vec(), vec![b'a'; 100]].concat());
    begun.truncate(10);
    check("within a frame", &[begun], &[], Some(1007));
}

#[test]
fn a_message_over_the_limit_is_refused_before_it_comes() {
    let announced = [&[0x82, 0xff, 0, 0, 0, 0, 0xff, 0, 0, 0][..], &[0; 4]].concat();
    check("announced", &[announced], &[], Some(1009));
    check(
        "exact",
        &[frame(0x82, &[0; MAX])],
        &[binary(&[0; MAX])],
        None,
    );
    check(
        "by fragments",
        &[frame(0x02, &[0; MAX]), frame(0x80, &[0])],
        &[],
        Some(1009),
    );
}

#[test]
fn an_idle_decoder_owns_no_memory() {
    let mut decoder = MessageDecoder::new(MAX);
    for bytes in [frame(0x81, b"hello"), frame(0x8a, b"x"), frame(0x89, b"y")] {
        let mut input = &bytes[..];
        decoder.decode(&mut input).unwrap().unwrap();
    }
    assert_eq!(decoder.buffered_bytes(), 0);
    assert!(
        size_of::<MessageDecoder>() <= 128,
        "{}",
        size_of::<MessageDecoder>()
    );
}

#[test]
fn frames_of_ours_have_the_shortest_length() {
    for (len, expected) in [
        (0, &[0x81, 0][..]),
        (125, &[0x81, 125]),
        (126, &[0x81, 126, 0, 126]),
        (65535, &[0x81, 126, 0xff, 0xff]),
        (65536, &[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        assert_eq!(message_frame_head(true, len).as_bytes(), expected, "{len}");
    }
    let mut out = Vec::new();
    encode_control_frame(&mut out, Opcode::Pong, &[1; 200]);
    assert_eq!((out.len(), out[0], out[1]), (127, 0x8a, 125));
    for (with, reason, expected) in [
        (1001, "bye", &b"\x88\x05\x03\xe9bye"[..]),
        (close_code::NO_STATUS, "x", b"\x88\x00"),
        (close_code::ABNORMAL_CLOSURE, "x", b"\x88\x00"),
        (7, "", b"\x88\x02\x03\xf3"),
    ] {
        out.clear();
        encode_close_frame(&mut out, with, reason);
        assert_eq!(out, expected);
    }
    out.clear();
    encode_close_frame(&mut out, 1000, &"é".repeat(100));
    assert_eq!(out.len(), 2 + 2 + 122, "cut between characters");
}

fn head(method: &str, fields: &str) -> RequestHead {
    let limits = HeadLimits {
        max_target_bytes: 8192,
        max_head_bytes: 32768,
        max_fields: 100,
    };
    let head = format!("{method} /chat HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    match parse_head(head.as_bytes(), &limits) {
        Ok(ParseProgress::Complete((head, _))) => head,
        other => panic!("a valid head: {other:?}"),
    }
}

#[test]
fn the_handshake_follows_the_rules() {
    let asks = "Connection: keep-alive, Upgrade\r\nUpgrade: foo, WebSocket\r\n";
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let version = "Sec-WebSocket-Version: 13\r\n";
    let of = |method: &str, fields: &[&str]| check_handshake(&head(method, &fields.concat()));
    // The example of RFC 6455 §1.3.
    let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
    assert_eq!(
        of("GET", &[asks, key, version]),
        HandshakeCheck::Valid { accept }
    );
    let upgrade = "Upgrade: websocket\r\n";
    for (name, fields) in [
        ("no option", &[upgrade, key, version][..]),
        ("no upgrade", &["Connection: upgrade\r\n", key, version]),
        ("another", &["Connection: upgrade\r\nUpgrade: h2c\r\n", key]),
    ] {
        assert_eq!(of("GET", fields), HandshakeCheck::NotWebSocket, "{name}");
    }
    let other = "Sec-WebSocket-Version: 777\r\n";
    for fields in [
        &[asks, key][..],
        &[asks, key, other],
        &[asks, key, version, other],
    ] {
        assert_eq!(
            of("GET", fields),
            HandshakeCheck::UnsupportedVersion,
            "{fields:?}"
        );
    }
    for (name, method, fields) in [
        ("method", "POST", &[asks, key, version][..]),
        (
            "body",
            "GET",
            &[asks, key, version, "Content-Length: 3\r\n"],
        ),
        ("no key", "GET", &[asks, version]),
        ("two keys", "GET", &[asks, key, key, version]),
        (
            "short key",
            "GET",
            &[asks, "Sec-WebSocket-Key: AAAA\r\n", version],
        ),
        (
            "no base64",
            "GET",
            &[
                asks,
                "Sec-WebSocket-Key: !!!!IHNhbXBsZSBub25jZQ==\r\n",
                version,
            ],
        ),
    ] {
        assert!(
            matches!(of(method, fields), HandshakeCheck::Invalid(_)),
            "{name}"
        );
    }
}

#[test]
fn subprotocols_come_in_the_clients_order() {
    let head = head(
        "GET",
        "Sec-WebSocket-Protocol: b, a\r\nSec-WebSocket-Protocol: c,,\r\n",
    );
    let names: Vec<_> = offered_subprotocols(&head).collect();
    assert_eq!(names, [b"b", b"a", b"c"]);
}
