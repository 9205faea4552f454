//! Tests of AJP13 responses: packets in hex with their meaning, each also cut at every byte.

use super::*;
use crate::gateway::ResponseDecoder;
use crate::gateway::testing::{
    DecodeOutcome, RecordedGatewayEvent, SMALL_HEAD_LIMITS, body_event, decode, head_event,
    parse_vector,
};

fn response(vector: &str) -> DecodeOutcome {
    decode(
        || ResponseDecoder::Ajp(AjpDecoder::new(SMALL_HEAD_LIMITS, false)),
        &parse_vector(vector),
    )
}

/// SEND_HEADERS: 200, reason `OK`, one field, by its code.
const HEAD: &str = "'AB' 0012 04 00c8 0002'OK'00 0001 a001 0003'a/b'00 ";
const FIELDS: &str = "Content-Type: a/b\n";
/// END_RESPONSE with reuse of the connection.
const END: &str = "'AB' 0002 05 01 ";

#[test]
fn reads_responses_as_containers_write_them() {
    let rows: &[(&str, String, &[RecordedGatewayEvent])] = &[
        (
            "head, two chunks, end",
            format!("{HEAD} 'AB' 0007 03 0003'abc'00 'AB' 0006 03 0002'de'00 {END}"),
            &[
                head_event(200, FIELDS),
                body_event("abcde"),
                RecordedGatewayEvent::End(true),
            ],
        ),
        (
            "flushes",
            format!(
                "{HEAD} 'AB' 0004 03 0000 00 'AB' 0005 03 0001'x'00 'AB' 0004 03 0000 00 {END}"
            ),
            &[
                head_event(200, FIELDS),
                body_event("x"),
                RecordedGatewayEvent::End(true),
            ],
        ),
        (
            "a connection that closes",
            format!("{HEAD} 'AB' 0002 05 00"),
            &[head_event(200, FIELDS), RecordedGatewayEvent::End(false)],
        ),
        (
            "questions for the body, before and behind the head",
            format!("'AB' 0003 06 1ffa {HEAD} 'AB' 0003 06 0001 {END}"),
            &[
                RecordedGatewayEvent::BodyRequested(8186),
                head_event(200, FIELDS),
                RecordedGatewayEvent::BodyRequested(1),
                RecordedGatewayEvent::End(true),
            ],
        ),
        (
            "names spelt out, no reason, an empty value",
            format!("'AB' 0017 04 0194 ffff 0002 0001'A'00 0001'1'00 0003'B-c'00 ffff {END}"),
            &[
                head_event(404, "A: 1\nB-c: \n"),
                RecordedGatewayEvent::End(true),
            ],
        ),
        (
            "no fields",
            format!("'AB' 0007 04 00cc ffff 0000 {END}"),
            &[head_event(204, ""), RecordedGatewayEvent::End(true)],
        ),
        (
            "a length that is kept",
            format!("'AB' 000d 04 00c8 ffff 0001 a003 0001'2'00 'AB' 0006 03 0002'ab'00 {END}"),
            &[
                head_event(200, "Content-Length: 2\n"),
                body_event("ab"),
                RecordedGatewayEvent::End(true),
            ],
        ),
    ];
    for (name, vector, expected) in rows {
        assert_eq!(response(vector), (expected.to_vec(), Ok(())), "{name}");
    }
}

#[test]
fn refuses_packets_that_lie_or_may_not_be_there() {
    use GatewayError::*;
    let length = |kind, len| AjpLength { kind, len };
    for (name, vector, expected) in [
        ("an http response", "'HTTP/1.1 200'".to_owned(), AjpBadMagic),
        ("our own mark", "1234 0002 05 01".to_owned(), AjpBadMagic),
        ("an empty packet", "'AB' 0000 05".to_owned(), length(5, 0)),
        ("type 0", "'AB' 0001 00".to_owned(), AjpMessage(0)),
        ("an unasked CPONG", "'AB' 0001 09".to_owned(), AjpMessage(9)),
        (
            "type 2 from a container",
            "'AB' 0002 02".to_owned(),
            AjpMessage(2),
        ),
        (
            "a chunk before the head",
            "'AB' 0005 03 0001'x'00".to_owned(),
            AjpMessage(3),
        ),
        (
            "a flush before the head",
            "'AB' 0004 03 0000 00".to_owned(),
            AjpMessage(3),
        ),
        ("two heads", format!("{HEAD}{HEAD}"), AjpMessage(4)),
        ("an end before the head", END.to_owned(), IncompleteHead),
        (
            "a chunk longer than its packet",
            format!("{HEAD} 'AB' 0005 03 0002"),
            length(3, 5),
        ),
        (
            "a chunk shorter than its packet",
            format!("{HEAD} 'AB' 0006 03 0001"),
            length(3, 6),
        ),
        (
            "a chunk of 65535",
            format!("{HEAD} 'AB' 0005 03 ffff"),
            length(3, 5),
        ),
        (
            "a chunk without room for its length",
            format!("{HEAD} 'AB' 0003 03 0000"),
            length(3, 3),
        ),
        (
            "a chunk without its NUL",
            format!("{HEAD} 'AB' 0005 03 0001'xy'"),
            AjpContent(3),
        ),
        (
            "a long question",
            "'AB' 0004 06 0001 00".to_owned(),
            length(6, 4),
        ),
        (
            "a short question",
            "'AB' 0002 06 01".to_owned(),
            length(6, 2),
        ),
        (
            "a question for nothing",
            "'AB' 0003 06 0000".to_owned(),
            AjpContent(6),
        ),
        (
            "a long end",
            format!("{HEAD} 'AB' 0003 05 0100"),
            length(5, 3),
        ),
        ("a short end", format!("{HEAD} 'AB' 0001 05"), length(5, 1)),
        (
            "an end that is neither",
            format!("{HEAD} 'AB' 0002 05 02"),
            AjpContent(5),
        ),
        (
            "a byte behind the end",
            format!("{HEAD}{END} 00"),
            DataAfterEnd,
        ),
        (
            "a response behind the end",
            format!("{HEAD}{END}{HEAD}{END}"),
            DataAfterEnd,
        ),
        ("nothing", String::new(), Truncated),
        ("half a packet", "'AB' 00".to_owned(), Truncated),
        (
            "a cut head",
            "'AB' 0012 04 00c8 0002'O'".to_owned(),
            Truncated,
        ),
        (
            "a cut chunk",
            format!("{HEAD} 'AB' 0007 03 0003'ab'"),
            Truncated,
        ),
        (
            "a chunk cut before its NUL",
            format!("{HEAD} 'AB' 0005 03 0001'a'"),
            Truncated,
        ),
        ("no end", HEAD.to_owned(), Truncated),
    ] {
        assert_eq!(response(&vector).1, Err(expected), "{name}");
    }
}

#[test]
fn refuses_heads_that_lie_or_could_split_a_response() {
    use GatewayError::*;
    let content = AjpContent(4);
    // The bytes after the type.
    for (name, payload, expected) in [
        ("status 99", "0063 ffff 0000", BadStatus),
        ("status 100", "0064 ffff 0000", BadStatus),
        ("status 600", "0258 ffff 0000", BadStatus),
        (
            "a reason beyond the packet",
            "00c8 0009'OK'00 0000",
            content,
        ),
        (
            "a reason without its NUL",
            "00c8 0002'OK' 0000 00 01",
            content,
        ),
        (
            "line feed in the reason",
            "00c8 0003'O\\nK'00 0000",
            BadFieldValue,
        ),
        (
            "one field too few",
            "00c8 ffff 0002 a001 0001'x'00",
            content,
        ),
        (
            "one field too many",
            "00c8 ffff 0000 a001 0001'x'00",
            content,
        ),
        ("a byte too many", "00c8 ffff 0000 00", content),
        ("half a number", "00c8 ffff 0001 a0", content),
        (
            "a name beyond the packet",
            "00c8 ffff 0001 0fff'x'00",
            content,
        ),
        (
            "a value beyond the packet",
            "00c8 ffff 0001 a001 0002'x'00",
            content,
        ),
        (
            "a value of 64 KiB",
            "00c8 ffff 0001 a001 fffe'x'00",
            content,
        ),
        (
            "a value without its NUL",
            "00c8 ffff 0001 a001 0001'xy'",
            content,
        ),
        (
            "code 0",
            "00c8 ffff 0001 a000 0001'x'00",
            AjpFieldCode(0xa000),
        ),
        (
            "code 12",
            "00c8 ffff 0001 a00c 0001'x'00",
            AjpFieldCode(0xa00c),
        ),
        ("no name", "00c8 ffff 0001 ffff 0001'x'00", BadFieldName),
        (
            "an empty name",
            "00c8 ffff 0001 0000 00 0001'x'00",
            BadFieldName,
        ),
        (
            "a blank in a name",
            "00c8 ffff 0001 0002'A '00 0001'x'00",
            BadFieldName,
        ),
        (
            "a line break in a name",
            "00c8 ffff 0001 0003'A\\nB'00 0001'x'00",
            BadFieldName,
        ),
        (
            "a line break in a value",
            "00c8 ffff 0001 a001 0004'x\\r\\ny'00",
            BadFieldValue,
        ),
        (
            "NUL in a value",
            "00c8 ffff 0001 a001 0003'x\\0y'00",
            BadFieldValue,
        ),
        (
            "two lengths",
            "00c8 ffff 0002 a003 0001'1'00 a003 0001'2'00",
            BadContentLength,
        ),
        (
            "a coding",
            "00c8 ffff 0001 0011'Transfer-Encoding'00 0007'chunked'00",
            TransferEncoding,
        ),
        (
            "five fields",
            "00c8 ffff 0005 a001ffff a001ffff a001ffff a001ffff a001ffff",
            TooManyFields,
        ),
    ] {
        let len = parse_vector(payload).len() + 1;
        let vector = format!("'AB' {len:04x} 04 {payload} {END}");
        assert_eq!(response(&vector), (vec![], Err(expected)), "{name}");
    }
    let too_large = format!("'AB' {:04x} 04", SMALL_HEAD_LIMITS.max_head_bytes + 1);
    assert_eq!(response(&too_large).1, Err(HeadTooLarge));
    assert_eq!(
        response("'AB' 0006 04").1,
        Err(AjpLength { kind: 4, len: 6 })
    );
}

#[test]
fn keeps_a_body_as_long_as_its_length() {
    let head = "'AB' 000d 04 00c8 ffff 0001 a003 0001'2'00 ";
    for (name, chunks, expected) in [
        (
            "too long",
            "'AB' 0007 03 0003'abc'00",
            GatewayError::BodyTooLong,
        ),
        (
            "too short",
            "'AB' 0005 03 0001'a'00",
            GatewayError::BodyTooShort,
        ),
        ("none", "", GatewayError::BodyTooShort),
    ] {
        let vector = format!("{head} {chunks} {END}");
        assert_eq!(response(&vector).1, Err(expected), "{name}");
    }
}

#[test]
fn drops_the_body_of_a_response_to_head() {
    let vector = parse_vector(&format!("{HEAD} 'AB' 0007 03 0003'abc'00 {END}"));
    let new = || ResponseDecoder::Ajp(AjpDecoder::new(SMALL_HEAD_LIMITS, true));
    let expected = vec![head_event(200, FIELDS), RecordedGatewayEvent::End(true)];
    assert_eq!(decode(new, &vector), (expected, Ok(())));
}

#[test]
fn does_not_offer_a_connection_with_bytes_behind_the_end() {
    let input = parse_vector(&format!("{HEAD}{END} 'A'"));
    let mut decoder = AjpDecoder::new(SMALL_HEAD_LIMITS, false);
    let head = decoder.decode(&input).unwrap();
    let end = decoder.decode(&input[head.consumed..]).unwrap();
    assert_eq!(end.event, Some(GatewayEvent::End { reusable: false }));
}

#[test]
fn probes_a_container() {
    let mut out = Vec::new();
    encode_probe(&mut out);
    assert_eq!(out, parse_vector("1234 0001 0a"));
    let pong = parse_vector("'AB' 0001 09");
    for cut in 0..pong.len() {
        assert_eq!(parse_probe_response(&pong[..cut]), Ok(None), "{cut}");
    }
    assert_eq!(parse_probe_response(&pong), Ok(Some(5)));
    for (name, vector, expected) in [
        ("http", "'HTTP'", GatewayError::AjpBadMagic),
        ("one byte", "'H'", GatewayError::AjpBadMagic),
        ("another length", "'AB' 0002", GatewayError::AjpMessage(0)),
        (
            "another message",
            "'AB' 0001 05",
            GatewayError::AjpMessage(5),
        ),
    ] {
        assert_eq!(
            parse_probe_response(&parse_vector(vector)),
            Err(expected),
            "{name}"
        );
    }
}
