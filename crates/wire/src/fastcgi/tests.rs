//! Tests of FastCGI: records in hex with their meaning, each also cut at every byte.

use super::*;
use crate::gateway::ResponseDecoder;
use crate::gateway::VariableWriter as _;
use crate::gateway::testing::{
    DecodeOutcome, RecordedGatewayEvent, SMALL_HEAD_LIMITS, body_event, decode, head_event,
    log_event, parse_vector,
};

fn response(vector: &str) -> DecodeOutcome {
    decode(
        || ResponseDecoder::FastCgi(FastCgiDecoder::new(SMALL_HEAD_LIMITS, false)),
        &parse_vector(vector),
    )
}

/// STDOUT of 6 bytes: a head.
const HEAD: &str = "01 06 0001 0006 00 00 'A: 1\\n\\n' ";
/// END_REQUEST, complete, without padding.
const END: &str = "01 03 0001 0008 00 00 00000000 00 000000 ";

#[test]
fn reads_responses_as_applications_write_them() {
    let rows: &[(&str, String, &[RecordedGatewayEvent])] = &[
        (
            "one record, empty STDOUT, end",
            format!("01 06 0001 0009 07 00 'A: 1\\n\\nabc' 00000000000000 01 06 0001 0000 00 00 {END}"),
            &[head_event(200, "A: 1\n"), body_event("abc"), RecordedGatewayEvent::End(true)],
        ),
        (
            "no empty STDOUT",
            format!("{HEAD} 01 06 0001 0003 00 00 'abc' {END}"),
            &[head_event(200, "A: 1\n"), body_event("abc"), RecordedGatewayEvent::End(true)],
        ),
        (
            "a head over three records and a body at once",
            format!(
                "01 06 0001 000a 00 00 'Status: 40' 01 06 0001 0003 05 00 '4\\r\\n' 0102030405
                 01 06 0001 0009 00 00 'A: 1\\n\\r\\nab' {END}"
            ),
            &[head_event(404, "A: 1\n"), body_event("ab"), RecordedGatewayEvent::End(true)],
        ),
        (
            "log lines before, in and behind the head, and at the end",
            format!(
                "01 07 0001 0002 00 00 'x\\n' 01 06 0001 0002 00 00 'A:' 01 07 0001 0002 06 00 'y\\n' 000000000000
                 01 06 0001 0004 00 00 '1\\n\\nb' 01 07 0001 0000 00 00 01 07 0001 0001 00 00 'z' {END}"
            ),
            &[
                log_event("x\ny\n"),
                head_event(200, "A: 1\n"),
                body_event("b"),
                log_event("z"),
                RecordedGatewayEvent::End(true),
            ],
        ),
        (
            "a log behind the end of STDOUT",
            format!("{HEAD} 01 06 0001 0000 00 00 01 07 0001 0001 00 00 'z' {END}"),
            &[head_event(200, "A: 1\n"), log_event("z"), RecordedGatewayEvent::End(true)],
        ),
        (
            "a padded end and an exit status",
            format!("{HEAD} 01 03 0001 0008 03 00 000000ff 00 000000 aabbcc"),
            &[head_event(200, "A: 1\n"), RecordedGatewayEvent::End(true)],
        ),
        (
            "records about the application itself",
            format!(
                "01 0b 0000 0008 00 00 0900000000000000 {HEAD}
                 01 0a 0000 0012 06 00 0f01'FCGI_MPXS_CONNS0' 000000000000 {END}"
            ),
            &[head_event(200, "A: 1\n"), RecordedGatewayEvent::End(true)],
        ),
        (
            "reserved bytes that are not zero",
            format!("01 06 0001 0006 00 ff 'A: 1\\n\\n' {END}"),
            &[head_event(200, "A: 1\n"), RecordedGatewayEvent::End(true)],
        ),
    ];
    for (name, vector, expected) in rows {
        assert_eq!(response(vector), (expected.to_vec(), Ok(())), "{name}");
    }
}

#[test]
fn refuses_what_the_protocol_forbids() {
    use GatewayError::*;
    for (name, vector, expected) in [
        (
            "version 0",
            "00 06 0001 0000 00 00".to_owned(),
            FastCgiVersion(0),
        ),
        (
            "version 2",
            format!("{HEAD} 02 06 0001 0000 00 00"),
            FastCgiVersion(2),
        ),
        (
            "an HTTP response",
            "'HTTP/1.1 200 OK\\r\\n'".to_owned(),
            FastCgiVersion(0x48),
        ),
        (
            "type 0",
            "01 00 0001 0000 00 00".to_owned(),
            FastCgiRecord(0),
        ),
        (
            "type 12",
            "01 0c 0001 0000 00 00".to_owned(),
            FastCgiRecord(12),
        ),
        (
            "a record of a request",
            "01 05 0001 0000 00 00".to_owned(),
            FastCgiRecord(5),
        ),
        (
            "GET_VALUES from an application",
            "01 09 0000 0000 00 00".to_owned(),
            FastCgiRecord(9),
        ),
        (
            "GET_VALUES_RESULT of a request",
            "01 0a 0001 0000 00 00".to_owned(),
            FastCgiRecord(10),
        ),
        (
            "request 2",
            "01 06 0002 0000 00 00".to_owned(),
            FastCgiRequestId(2),
        ),
        (
            "request 256",
            "01 06 0100 0000 00 00".to_owned(),
            FastCgiRequestId(256),
        ),
        (
            "STDOUT of the application",
            "01 06 0000 0000 00 00".to_owned(),
            FastCgiRequestId(0),
        ),
        (
            "the end of another request",
            format!("{HEAD} 01 03 0002 0008 00 00"),
            FastCgiRequestId(2),
        ),
        (
            "a short end",
            format!("{HEAD} 01 03 0001 0007 00 00"),
            FastCgiLength { kind: 3, len: 7 },
        ),
        (
            "a long end",
            format!("{HEAD} 01 03 0001 0010 00 00"),
            FastCgiLength { kind: 3, len: 16 },
        ),
        (
            "an empty end",
            format!("{HEAD} 01 03 0001 0000 00 00"),
            FastCgiLength { kind: 3, len: 0 },
        ),
        (
            "cannot multiplex",
            "01 03 0001 0008 00 00 00000000 01 000000".to_owned(),
            CannotMultiplex,
        ),
        (
            "overloaded",
            "01 03 0001 0008 00 00 00000000 02 000000".to_owned(),
            Overloaded,
        ),
        (
            "unknown role",
            "01 03 0001 0008 00 00 00000000 03 000000".to_owned(),
            UnknownRole,
        ),
        (
            "status 4",
            format!("{HEAD} 01 03 0001 0008 00 00 00000000 04 000000"),
            FastCgiStatus(4),
        ),
        ("an end without a head", END.to_owned(), IncompleteHead),
        (
            "an end within the head",
            format!("01 06 0001 0003 00 00 'A: ' {END}"),
            IncompleteHead,
        ),
        (
            "an end after a log only",
            format!("01 07 0001 0001 00 00 'x' {END}"),
            IncompleteHead,
        ),
        (
            "STDOUT behind its end",
            format!("{HEAD} 01 06 0001 0000 00 00 01 06 0001 0001 00 00 'x' {END}"),
            FastCgiRecord(6),
        ),
        (
            "a byte behind the end",
            format!("{HEAD} {END} 00"),
            DataAfterEnd,
        ),
        (
            "a response behind the end",
            format!("{HEAD} {END} {HEAD} {END}"),
            DataAfterEnd,
        ),
        ("an end twice", format!("{HEAD} {END} {END}"), DataAfterEnd),
        ("nothing", String::new(), Truncated),
        ("half a header", "01 06 00".to_owned(), Truncated),
        (
            "a cut record",
            format!("{HEAD} 01 06 0001 0005 00 00 'ab'"),
            Truncated,
        ),
        (
            "a cut padding",
            format!("{HEAD} 01 03 0001 0008 02 00 0000000000000000 00"),
            Truncated,
        ),
        ("no end", format!("{HEAD} 01 06 0001 0000 00 00"), Truncated),
        (
            "a body too long",
            format!("01 06 0001 0016 00 00 'Content-Length: 1\\n\\nabc' {END}"),
            BodyTooLong,
        ),
        (
            "a body too short",
            format!("01 06 0001 0014 00 00 'Content-Length: 2\\n\\na' {END}"),
            BodyTooShort,
        ),
        (
            "a bad field",
            format!("01 06 0001 0008 00 00 'A: 1\\r2\\n\\n' {END}"),
            BadFieldValue,
        ),
    ] {
        assert_eq!(response(&vector).1, Err(expected), "{name}");
    }
}

#[test]
fn does_not_offer_a_connection_with_bytes_behind_the_end() {
    let input = parse_vector(&format!("{HEAD} {END} 01"));
    let mut decoder = FastCgiDecoder::new(SMALL_HEAD_LIMITS, false);
    let head = decoder.decode(&input).unwrap();
    let end = decoder.decode(&input[head.consumed..]).unwrap();
    assert_eq!(end.event, Some(GatewayEvent::End { reusable: false }));
}

#[test]
fn bounds_a_head_over_any_number_of_records() {
    let piece = "01 06 0001 0004 00 00 'xxxx' ";
    let (seen, result) = response(&piece.repeat(60));
    assert_eq!((seen, result), (vec![], Err(GatewayError::HeadTooLarge)));
}

#[test]
fn drops_the_body_of_a_response_to_head() {
    let vector = parse_vector(&format!("{HEAD} 01 06 0001 0003 00 00 'abc' {END}"));
    let new = || ResponseDecoder::FastCgi(FastCgiDecoder::new(SMALL_HEAD_LIMITS, true));
    let expected = vec![head_event(200, "A: 1\n"), RecordedGatewayEvent::End(true)];
    assert_eq!(decode(new, &vector), (expected, Ok(())));
}

#[test]
fn takes_records_of_the_largest_size() {
    let mut input = parse_vector(HEAD);
    input.extend_from_slice(&[1, 6, 0, 1, 0xff, 0xff, 0xff, 0]);
    input.extend_from_slice(&[b'x'; 65_535 + 255]);
    input.extend_from_slice(&parse_vector(END));
    let mut decoder = FastCgiDecoder::new(SMALL_HEAD_LIMITS, false);
    let (mut at, mut body_len) = (0, 0);
    loop {
        let decoded = decoder.decode(&input[at..]).unwrap();
        at += decoded.consumed;
        match decoded.event {
            Some(GatewayEvent::Body(bytes)) => body_len += bytes.len(),
            Some(GatewayEvent::End { reusable }) => break assert!(reusable),
            Some(GatewayEvent::Head(_)) => (),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(body_len, 65_535);
}

#[test]
fn writes_a_request_record_by_record() {
    let mut out = Vec::new();
    encode_begin(&mut out, true);
    let mut params = FastCgiParamsWriter::new(&mut out);
    params.push_variable(b"A", b"bc");
    params.push_variable(b"B", b"");
    params.finish().unwrap();
    encode_stdin(&mut out, b"body");
    encode_stdin(&mut out, b"");
    encode_stdin_end(&mut out);
    encode_abort(&mut out);
    let expected = parse_vector(
        "01 01 0001 0008 00 00 0001 01 0000000000
         01 04 0001 0008 00 00 01 02 'Abc' 01 00 'B'
         01 04 0001 0000 00 00
         01 05 0001 0004 04 00 'body' 00000000
         01 05 0001 0000 00 00
         01 02 0001 0000 00 00",
    );
    assert_eq!(out, expected);
    assert_eq!(stdin_header(258), [1, 5, 0, 1, 1, 2, 0, 0]);
    out.clear();
    encode_begin(&mut out, false);
    assert_eq!(
        out,
        parse_vector("01 01 0001 0008 00 00 0001 00 0000000000")
    );
}

#[test]
fn writes_no_record_for_no_variables_but_the_end() {
    let mut out = b"x".to_vec();
    FastCgiParamsWriter::new(&mut out).finish().unwrap();
    assert_eq!(out, parse_vector("'x' 01 04 0001 0000 00 00"));
}

type Pair = (Vec<u8>, Vec<u8>);

/// The pairs and the number of records of a PARAMS stream, as an application reads it.
fn read_params(mut input: &[u8]) -> (Vec<Pair>, usize) {
    let (mut content, mut records) = (Vec::new(), 0);
    loop {
        let header = RecordHeader::parse(*input.first_chunk().unwrap()).unwrap();
        assert_eq!((header.kind, header.request), (4, 1));
        let (len, padding) = (usize::from(header.len), usize::from(header.padding));
        assert_eq!((len + padding) % 8, 0);
        content.extend_from_slice(&input[8..8 + len]);
        input = &input[8 + len + padding..];
        if len == 0 {
            break;
        }
        records += 1;
    }
    assert!(input.is_empty());
    let mut pairs = Vec::new();
    let mut rest = content.as_slice();
    while !rest.is_empty() {
        let lens = [(); 2].map(|()| {
            let len = usize::from(rest[0]);
            if len < 128 {
                rest = &rest[1..];
                return len;
            }
            let len = u32::from_be_bytes(*rest.first_chunk().unwrap()) & 0x7fff_ffff;
            rest = &rest[4..];
            len as usize
        });
        let (name, more) = rest.split_at(lens[0]);
        let (value, more) = more.split_at(lens[1]);
        pairs.push((name.to_vec(), value.to_vec()));
        rest = more;
    }
    (pairs, records)
}

#[test]
fn variables_survive_lengths_and_borders_of_records() {
    let full = usize::from(MAX_RECORD_CONTENT);
    for (value_len, records) in [
        (0, 1),
        (127, 1),
        (128, 1),
        (300, 1),
        // Name and lengths need six bytes, the second pair four.
        (full - 10, 1),
        (full - 9, 2),
        (full - 6, 2),
        (full, 2),
        (full * 2 - 10, 2),
        (200_000, 4),
    ] {
        let mut out = Vec::new();
        let value = vec![b'v'; value_len];
        let mut params = FastCgiParamsWriter::new(&mut out);
        params.push_variable(b"N", &value);
        params.push_variable(b"M", b"x");
        params.finish().unwrap();
        let (pairs, found) = read_params(&out);
        let expected = [(b"N".to_vec(), value), (b"M".to_vec(), b"x".to_vec())];
        assert_eq!(pairs, expected, "{value_len}");
        assert_eq!(found, records, "{value_len}");
    }
}

#[test]
fn splits_a_body_into_records_that_need_no_padding() {
    let body = vec![b'x'; 65_528 * 2 + 1];
    let mut out = Vec::new();
    encode_stdin(&mut out, &body);
    assert_eq!(out[..8], [1, 5, 0, 1, 0xff, 0xf8, 0, 0]);
    assert_eq!(out[65_536..65_544], [1, 5, 0, 1, 0xff, 0xf8, 0, 0]);
    assert_eq!(
        out[131_072..],
        [1, 5, 0, 1, 0, 1, 7, 0, b'x', 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn probes_an_application() {
    let mut out = Vec::new();
    encode_probe(&mut out);
    assert_eq!(
        out,
        parse_vector("01 09 0000 0011 07 00 0f 00 'FCGI_MPXS_CONNS' 00000000000000")
    );
}

#[test]
fn recognises_the_answer_of_a_living_application() {
    for (name, vector) in [
        (
            "a value",
            "01 0a 0000 0012 06 00 0f01 'FCGI_MPXS_CONNS0' 000000000000",
        ),
        ("no value", "01 0a 0000 0000 00 00"),
        ("an unknown type", "01 0b 0000 0008 00 00 0900000000000000"),
    ] {
        let answer = parse_vector(vector);
        for cut in 0..answer.len() {
            assert_eq!(
                parse_probe_response(&answer[..cut]),
                Ok(None),
                "{name} cut at {cut}"
            );
        }
        assert_eq!(
            parse_probe_response(&answer),
            Ok(Some(answer.len())),
            "{name}"
        );
        let mut more = answer.clone();
        more.push(1);
        assert_eq!(
            parse_probe_response(&more),
            Ok(Some(answer.len())),
            "{name} and more"
        );
    }
}

#[test]
fn takes_nothing_else_for_an_answer() {
    use GatewayError::*;
    for (name, vector, expected) in [
        ("http", "'HTTP/1.1 400 Bad'", FastCgiVersion(0x48)),
        ("one byte", "'H'", FastCgiVersion(0x48)),
        ("another record", "01 06", FastCgiRecord(6)),
        (
            "a whole other record",
            "01 03 0000 0000 00 00",
            FastCgiRecord(3),
        ),
        ("of a request", "01 0a 0001 0000 00 00", FastCgiRequestId(1)),
        (
            "too long",
            "01 0a 0000 0201 00 00",
            FastCgiLength { kind: 10, len: 513 },
        ),
        (
            "a long type",
            "01 0b 0000 0009 00 00",
            FastCgiLength { kind: 11, len: 9 },
        ),
        (
            "a name beyond the end",
            "01 0a 0000 0004 00 00 0300'ab'",
            FastCgiLength { kind: 10, len: 4 },
        ),
        (
            "half a pair",
            "01 0a 0000 0001 00 00 00",
            FastCgiLength { kind: 10, len: 1 },
        ),
        (
            "a name of 2^31 bytes",
            "01 0a 0000 0005 00 00 ffffffff00",
            FastCgiLength { kind: 10, len: 5 },
        ),
    ] {
        assert_eq!(
            parse_probe_response(&parse_vector(vector)),
            Err(expected),
            "{name}"
        );
    }
}
