//! Tests of CGI responses as SCGI carries them: every head is also cut at every byte.

use super::*;
use crate::gateway::ResponseDecoder;
use crate::gateway::testing::{
    DecodeOutcome, RecordedGatewayEvent, SMALL_HEAD_LIMITS, body_event, decode, head_event,
};

fn response(text: &str) -> DecodeOutcome {
    decode(
        || ResponseDecoder::Cgi(CgiDecoder::new(SMALL_HEAD_LIMITS, false)),
        text.as_bytes(),
    )
}

#[test]
fn reads_heads_and_bodies_as_programs_write_them() {
    let rows: &[(&str, &str, &[RecordedGatewayEvent])] = &[
        (
            "crlf",
            "Status: 404 Not Found\r\nContent-Type: text/plain\r\n\r\nno\n",
            &[
                head_event(404, "Content-Type: text/plain\n"),
                body_event("no\n"),
            ],
        ),
        (
            "lf",
            "Content-Type: text/plain\nStatus: 404\n\nno",
            &[
                head_event(404, "Content-Type: text/plain\n"),
                body_event("no"),
            ],
        ),
        (
            "both line ends",
            "A: 1\nB: 2\r\n\nx",
            &[head_event(200, "A: 1\nB: 2\n"), body_event("x")],
        ),
        ("no status", "A: 1\n\n", &[head_event(200, "A: 1\n")]),
        (
            "location",
            "Location: /b\n\n",
            &[head_event(302, "Location: /b\n")],
        ),
        (
            "location with a status",
            "location: /b\nstatus: 201 Created\n\n",
            &[head_event(201, "location: /b\n")],
        ),
        ("a status alone", "STATUS:204\n\n", &[head_event(204, "")]),
        (
            "status line",
            "HTTP/1.1 403 Forbidden\r\nA: 1\r\n\r\nx",
            &[head_event(403, "A: 1\n"), body_event("x")],
        ),
        (
            "status line of 1.0 without a reason",
            "HTTP/1.0 200\n\nx",
            &[head_event(200, ""), body_event("x")],
        ),
        (
            "the same status twice",
            "HTTP/1.1 404 No\nStatus: 404 Not Found\n\n",
            &[head_event(404, "")],
        ),
        (
            "length",
            "Content-Length: 3\n\nabc",
            &[head_event(200, "Content-Length: 3\n"), body_event("abc")],
        ),
        (
            "body on 304",
            "Status: 304\nContent-Length: 3\n\nabcdef",
            &[head_event(304, "Content-Length: 3\n")],
        ),
        (
            "empty value, blanks, obs-text",
            "A:\nB: \t x y \t\nC: \u{e9}\n\n",
            &[head_event(200, "A: \nB: x y\nC: \u{e9}\n")],
        ),
        (
            "lines in the body",
            "A: 1\n\n\nStatus: 500\n\n",
            &[head_event(200, "A: 1\n"), body_event("\nStatus: 500\n\n")],
        ),
    ];
    for (name, text, expected) in rows {
        let mut expected = expected.to_vec();
        expected.push(RecordedGatewayEvent::End(false));
        assert_eq!(response(text), (expected, Ok(())), "{name}");
    }
}

#[test]
fn refuses_invalid_heads() {
    use GatewayError::*;
    let long = format!("A: {}\n\n", "x".repeat(300));
    let endless = "x".repeat(300);
    let many = "A: 1\n".repeat(5);
    for (name, text, expected) in [
        ("nothing", "", IncompleteHead),
        ("half a line", "Content-Ty", IncompleteHead),
        ("no empty line", "A: 1\r\n", IncompleteHead),
        ("half an empty line", "A: 1\r\n\r", IncompleteHead),
        ("an empty line first", "\nA: 1\n\n", EmptyHead),
        ("an empty crlf line first", "\r\n\r\n", EmptyHead),
        ("no colon", "A: 1\nhello\n\n", BadFieldName),
        ("a banner", "SSH-2.0-OpenSSH_9.2\r\n", BadFieldName),
        ("empty name", ": 1\n\n", BadFieldName),
        ("blank before the colon", "A : 1\n\n", BadFieldName),
        ("control byte in a name", "A\0B: 1\n\n", BadFieldName),
        ("name above ascii", "\u{e9}: 1\n\n", BadFieldName),
        ("cr in a value", "A: 1\rSet-Cookie: x\n\n", BadFieldValue),
        ("cr twice at the end", "A: 1\r\r\n\n", BadFieldValue),
        ("nul in a value", "A: \0\n\n", BadFieldValue),
        ("escape in a value", "A: \u{1b}[31m\n\n", BadFieldValue),
        ("delete in a value", "A: \u{7f}\n\n", BadFieldValue),
        ("folded", "A: 1\n B: 2\n\n", FoldedField),
        ("folded by a tab", "A: 1\r\n\tB\r\n\r\n", FoldedField),
        ("folded first line", " A: 1\n\n", FoldedField),
        (
            "two statuses",
            "Status: 200\nStatus: 404\n\n",
            ConflictingStatuses,
        ),
        (
            "status and line",
            "HTTP/1.1 200 OK\nStatus: 404\n\n",
            ConflictingStatuses,
        ),
        ("status 99", "Status: 99\n\n", BadStatus),
        ("status 100", "Status: 100 Continue\n\n", BadStatus),
        ("status 103", "HTTP/1.1 103 Early Hints\n\n", BadStatus),
        ("status 600", "Status: 600\n\n", BadStatus),
        ("status 2000", "Status: 2000\n\n", BadStatus),
        ("signed status", "Status: -20 x\n\n", BadStatus),
        ("status in words", "Status: OK\n\n", BadStatus),
        ("empty status", "Status:\n\n", BadStatus),
        ("nul in a reason", "Status: 200 \0\n\n", BadStatus),
        ("http/1.2", "HTTP/1.2 200 OK\n\n", BadStatus),
        ("no status in the line", "HTTP/1.1\n\n", BadStatus),
        ("http/2", "HTTP/2 200\n\n", BadFieldName),
        (
            "status line second",
            "A: 1\nHTTP/1.1 200 OK\n\n",
            BadFieldName,
        ),
        (
            "two lengths",
            "Content-Length: 1\nContent-Length: 2\n\n",
            BadContentLength,
        ),
        ("no length", "Content-Length: many\n\n", BadContentLength),
        (
            "coding",
            "Transfer-Encoding: chunked\n\n0\r\n\r\n",
            TransferEncoding,
        ),
        ("long", &long, HeadTooLarge),
        ("endless", &endless, HeadTooLarge),
        ("five fields", &many, TooManyFields),
        ("body too long", "Content-Length: 2\n\nabc", BodyTooLong),
        ("body too short", "Content-Length: 2\n\na", BodyTooShort),
        ("no body", "Content-Length: 2\n\n", BodyTooShort),
    ] {
        let (seen, result) = response(text);
        assert_eq!(result, Err(expected), "{name}");
        let is_about_body = matches!(expected, BodyTooLong | BodyTooShort);
        assert!(is_about_body || seen.is_empty(), "{name}: {seen:?}");
    }
}

#[test]
fn takes_a_head_of_exactly_the_limit() {
    let fits = format!(
        "A: {}\n\n",
        "x".repeat(SMALL_HEAD_LIMITS.max_head_bytes - 5)
    );
    assert_eq!(fits.len(), SMALL_HEAD_LIMITS.max_head_bytes);
    assert_eq!(response(&fits).1, Ok(()));
    assert_eq!(
        response(&format!("B{fits}")).1,
        Err(GatewayError::HeadTooLarge)
    );
}

#[test]
fn drops_the_body_of_a_response_to_head() {
    let text = "Content-Length: 3\n\nabcdef";
    let new = || ResponseDecoder::Cgi(CgiDecoder::new(SMALL_HEAD_LIMITS, true));
    let expected = vec![
        head_event(200, "Content-Length: 3\n"),
        RecordedGatewayEvent::End(false),
    ];
    assert_eq!(decode(new, text.as_bytes()), (expected, Ok(())));
}

#[test]
fn copies_no_line_that_came_whole() {
    let mut decoder = CgiDecoder::new(SMALL_HEAD_LIMITS, false);
    decoder.decode(b"A: 1\r\nB: 2\r\n").unwrap();
    let Stage::Head(reader) = &decoder.stage else {
        panic!("the head is not complete");
    };
    assert_eq!(reader.line.capacity(), 0);
}
