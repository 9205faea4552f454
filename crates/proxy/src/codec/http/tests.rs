//! Responses of HTTP servers, valid and invalid, each split at every byte.
//!
//! `decode_all` does what `upstream_exchange` does with received bytes. A row's result must not
//! depend on how its bytes arrive: the same events, or the same error.

use super::*;

/// The maximum response size for splitting at every byte.
const EVERY_BYTE: usize = 2000;

/// A response as one text: interim responses, status, fields, body, trailers, whether the
/// connection is reusable, and the number of bytes left after the end.
fn decode_all(
    mut decoder: HttpDecoder,
    input: &[u8],
    pieces: &[usize],
) -> Result<String, AttemptFailure> {
    let mut text = String::new();
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut at = 0;
    for &received in pieces {
        loop {
            let decoded = decoder.decode(&input[at..received])?;
            at += decoded.consumed;
            let Some(event) = decoded.event else { break };
            if let ResponseEvent::End(end) = event {
                let trailers = end.trailers.map(|fields| string(fields.as_bytes()));
                let trailers = trailers.unwrap_or_default();
                let (reusable, left) = (end.is_reusable, input.len() - at);
                return Ok(format!("{text}|{trailers}|{reusable} {left}"));
            }
            text += &match event {
                ResponseEvent::Interim(status, fields) => {
                    format!("{} {}> ", status.code(), string(fields.as_bytes()))
                }
                ResponseEvent::Head(head) => {
                    format!("{} {}|", head.status.code(), string(head.fields.as_bytes()))
                }
                ResponseEvent::SwitchedProtocols(head) => {
                    let fields = string(head.fields.as_bytes());
                    return Ok(format!(
                        "{} {fields}~{}",
                        head.status.code(),
                        input.len() - at
                    ));
                }
                ResponseEvent::Data(piece) => {
                    assert!(!piece.is_empty());
                    string(piece)
                }
                other => panic!("{other:?}"),
            };
        }
    }
    assert!(matches!(
        decoder.finish_at_eof()?,
        ResponseEvent::End(ResponseEnd {
            is_reusable: false,
            ..
        })
    ));
    Ok(format!("{text}|closed"))
}

/// The same with all bytes at once; fails if pieces give another result.
fn decode_in_any_pieces(
    new: &dyn Fn() -> HttpDecoder,
    input: &[u8],
) -> Result<String, (AttemptStage, String)> {
    let run = |pieces: &[usize]| {
        decode_all(new(), input, pieces)
            .map_err(|failure| (failure.stage, failure.cause.into_owned()))
    };
    let len = input.len();
    let whole = run(&[len]);
    for split in (0..len).step_by((len / EVERY_BYTE).max(1)) {
        assert_eq!(run(&[split, len]), whole, "split at {split} of {len}");
    }
    if len <= EVERY_BYTE {
        let every: Vec<_> = (0..=len).collect();
        assert_eq!(run(&every), whole, "byte by byte");
    }
    whole
}

fn get() -> HttpDecoder {
    HttpDecoder::new(Method::Get, true)
}

#[test]
fn a_response_is_the_same_however_it_is_split() {
    for (row, input, expected) in [
        (
            "length",
            "HTTP/1.1 200 OK\r\nA: 1\r\nContent-Length: 5\r\n\r\nhello",
            "200 A: 1\r\n|hello||true 0",
        ),
        (
            "no body",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "200 |||true 0",
        ),
        (
            "same length twice",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
            "200 |hi||true 0",
        ),
        (
            "to the close",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "200 |hello|closed",
        ),
        (
            "old",
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            "200 |hi||false 0",
        ),
        (
            "old and kept",
            "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
            "200 |hi||true 0",
        ),
        (
            "closing",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
            "200 |hi||false 0",
        ),
        (
            "chunks",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
            "200 |hello||true 0",
        ),
        (
            "two chunks",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            "200 |hello||true 0",
        ),
        (
            "no chunks",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "200 |||true 0",
        ),
        (
            "trailers",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nB: 2\r\n\r\n",
            "200 |x|B: 2\r\n|true 0",
        ),
        (
            "trailers that are left out",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nContent-Length: 5\r\n\
             B: 2\r\n\r\n",
            "200 |x|B: 2\r\n|true 0",
        ),
        (
            "no content",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "204 |||true 0",
        ),
        (
            "not modified",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            "304 |||true 0",
        ),
        (
            "unasked 100",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "100 > 200 |||true 0",
        ),
        (
            "unasked 103",
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "103 Link: </a>\r\n> 200 |||true 0",
        ),
        (
            "no reason",
            "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
            "200 |||true 0",
        ),
        // Bytes behind the end stay unread: `upstream_exchange` drops the connection.
        (
            "longer than its length",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!!",
            "200 |hi||true 2",
        ),
        (
            "another response",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "200 |||true 19",
        ),
        (
            "body of 204",
            "HTTP/1.1 204 No Content\r\n\r\nhello",
            "204 |||true 5",
        ),
        (
            "length of 204",
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
            "204 |||false 5",
        ),
        (
            "body of 304",
            "HTTP/1.1 304 Not Modified\r\n\r\nhello",
            "304 |||true 5",
        ),
        (
            "behind the last chunk",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx",
            "200 |||true 1",
        ),
        (
            "hop by hop",
            "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
            "200 |||true 0",
        ),
    ] {
        let found = decode_in_any_pieces(&get, input.as_bytes());
        assert_eq!(found.as_deref(), Ok(expected), "{row}");
    }
}

#[test]
fn a_response_that_breaks_the_rules_is_the_same_error_however_it_is_split() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (row, start, rest, stage, cause) in [
        (
            "both framings",
            ok,
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            AttemptStage::Sent,
            "together",
        ),
        (
            "two lengths",
            ok,
            "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "list of lengths",
            ok,
            "Content-Length: 5, 6\r\n\r\nhello",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "negative length",
            ok,
            "Content-Length: -5\r\n\r\n",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "signed length",
            ok,
            "Content-Length: +5\r\n\r\n",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "length in hex",
            ok,
            "Content-Length: 0x5\r\n\r\n",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "no length",
            ok,
            "Content-Length:\r\n\r\n",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "length beyond 63 bits",
            ok,
            "Content-Length: 9223372036854775808\r\n\r\n",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "length of 30 digits",
            ok,
            "Content-Length: 999999999999999999999999999999\r\n\r\n",
            AttemptStage::Sent,
            "content-length",
        ),
        (
            "unknown coding",
            ok,
            "Transfer-Encoding: gzip\r\n\r\n",
            AttemptStage::Sent,
            "transfer coding",
        ),
        (
            "two codings",
            ok,
            "Transfer-Encoding: gzip, chunked\r\n\r\n",
            AttemptStage::Sent,
            "transfer coding",
        ),
        (
            "coding twice",
            ok,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            AttemptStage::Sent,
            "transfer coding",
        ),
        (
            "coding in 1.0",
            "HTTP/1.0 200 OK\r\n",
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            AttemptStage::Sent,
            "transfer coding",
        ),
        (
            "coding of 204",
            "HTTP/1.1 204 No\r\n",
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            AttemptStage::Sent,
            "transfer coding",
        ),
        (
            "short body",
            ok,
            "Content-Length: 6\r\n\r\nhello",
            AttemptStage::ResponseStarted,
            "closed within",
        ),
        (
            "chunk size",
            chunked,
            "0x5\r\nhello\r\n0\r\n\r\n",
            AttemptStage::ResponseStarted,
            "chunk size",
        ),
        (
            "chunk size overflows",
            chunked,
            "fffffffffffffffff\r\n",
            AttemptStage::ResponseStarted,
            "chunk size",
        ),
        (
            "chunk too long",
            chunked,
            "5\r\nhelloSPILL\r\n0\r\n\r\n",
            AttemptStage::ResponseStarted,
            "longer than its size",
        ),
        (
            "chunk line ends",
            chunked,
            "5\nhello\n0\n\n",
            AttemptStage::ResponseStarted,
            "chunk",
        ),
        (
            "chunk extension",
            chunked,
            "5;a\x01\r\nhello\r\n0\r\n\r\n",
            AttemptStage::ResponseStarted,
            "chunk extension",
        ),
        (
            "truncated chunk",
            chunked,
            "5\r\nhel",
            AttemptStage::ResponseStarted,
            "closed within",
        ),
        (
            "no last chunk",
            chunked,
            "5\r\nhello\r\n",
            AttemptStage::ResponseStarted,
            "closed within",
        ),
        (
            "no final line",
            chunked,
            "5\r\nhello\r\n0\r\n",
            AttemptStage::ResponseStarted,
            "closed within",
        ),
        (
            "malformed trailer",
            chunked,
            "0\r\nContent-Length\r\n\r\n",
            AttemptStage::ResponseStarted,
            "trailer",
        ),
        (
            "nul in a value",
            ok,
            "A: a\0b\r\n\r\n",
            AttemptStage::Sent,
            "field value",
        ),
        (
            "cr in a value",
            ok,
            "A: a\rb\r\n\r\n",
            AttemptStage::Sent,
            "field value",
        ),
        (
            "lf in a value",
            ok,
            "A: a\nb\r\n\r\n",
            AttemptStage::Sent,
            "bare cr or lf",
        ),
        (
            "control byte in a value",
            ok,
            "A: \x07\r\n\r\n",
            AttemptStage::Sent,
            "field value",
        ),
        (
            "control byte in the reason",
            "HTTP/1.1 200 O\x07K\r\n",
            "\r\n",
            AttemptStage::Sent,
            "field value",
        ),
        (
            "folded field",
            ok,
            "A: 1\r\n B: 2\r\n\r\n",
            AttemptStage::Sent,
            "folded",
        ),
        (
            "no colon",
            ok,
            "hello\r\n\r\n",
            AttemptStage::Sent,
            "field name",
        ),
        (
            "empty name",
            ok,
            ": 1\r\n\r\n",
            AttemptStage::Sent,
            "field name",
        ),
        (
            "blank before the colon",
            ok,
            "A : 1\r\n\r\n",
            AttemptStage::Sent,
            "field name",
        ),
        (
            "unasked 101",
            "HTTP/1.1 101 Switching\r\n",
            "Upgrade: x\r\n\r\n",
            AttemptStage::Sent,
            "unsolicited",
        ),
        (
            "status 99",
            "HTTP/1.1 99 OK\r\n",
            "\r\n",
            AttemptStage::Sent,
            "status",
        ),
        (
            "status 2000",
            "HTTP/1.1 2000 OK\r\n",
            "\r\n",
            AttemptStage::Sent,
            "status",
        ),
        (
            "status -200",
            "HTTP/1.1 -200 OK\r\n",
            "\r\n",
            AttemptStage::Sent,
            "status",
        ),
        (
            "status text",
            "HTTP/1.1 OK\r\n",
            "\r\n",
            AttemptStage::Sent,
            "status",
        ),
        (
            "version 9.9",
            "HTTP/9.9 200 OK\r\n",
            "\r\n",
            AttemptStage::Sent,
            "http/1",
        ),
        (
            "version 1.2",
            "HTTP/1.2 200 OK\r\n",
            "\r\n",
            AttemptStage::Sent,
            "version",
        ),
        (
            "ssh",
            "SSH-2.0-OpenSSH_9.2\r\n",
            "",
            AttemptStage::Sent,
            "http/1",
        ),
        (
            "html",
            "<html>",
            "hello</html>",
            AttemptStage::Sent,
            "http/1",
        ),
        (
            "nothing",
            "",
            "",
            AttemptStage::Sent,
            "before a whole response head",
        ),
        (
            "half a head",
            ok,
            "A: 1\r\n",
            AttemptStage::Sent,
            "before a whole response head",
        ),
    ] {
        let input = format!("{start}{rest}");
        match decode_in_any_pieces(&get, input.as_bytes()) {
            Err((found, text)) => {
                assert_eq!(found, stage, "{row}: {text}");
                assert!(text.contains(cause), "{row}: {text}");
            }
            Ok(text) => panic!("{row}: {text}"),
        }
    }
}

#[test]
fn endless_heads_and_interim_responses_are_rejected() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n";
    for (row, input, cause) in [
        (
            "long field",
            format!("{ok}A: {}\r\n\r\n", "x".repeat(64 << 10)),
            "too large",
        ),
        (
            "field without an end",
            format!("{ok}A: {}", "x".repeat(1 << 20)),
            "too large",
        ),
        (
            "many fields",
            format!("{ok}{}", "A: 1\r\n".repeat(300)),
            "too many",
        ),
        ("many interim responses", interim.repeat(65), "interim"),
        (
            "reason without an end",
            format!("HTTP/1.1 200 {}", "x".repeat(1 << 17)),
            "too large",
        ),
    ] {
        let pieces: Vec<_> = (1..=64).map(|piece| input.len() * piece / 64).collect();
        let failure = decode_all(get(), input.as_bytes(), &pieces).unwrap_err();
        let whole = decode_all(get(), input.as_bytes(), &[input.len()]).unwrap_err();
        assert_eq!(
            (failure.stage, whole.stage),
            (AttemptStage::Sent, AttemptStage::Sent),
            "{row}"
        );
        assert!(failure.cause.contains(cause), "{row}: {}", failure.cause);
        assert!(whole.cause.contains(cause), "{row}: {}", whole.cause);
    }
    let many = format!("{}{ok}Content-Length: 0\r\n\r\n", interim.repeat(64));
    assert!(decode_all(get(), many.as_bytes(), &[many.len()]).is_ok());
}

#[test]
fn a_response_that_is_cut_anywhere_never_looks_complete() {
    for input in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nB: 2\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    ] {
        for len in 0..input.len() {
            let failure = decode_all(get(), &input.as_bytes()[..len], &[len]).unwrap_err();
            let is_head = !input[..len].contains("OK\r\n") || !input[..len].contains("\r\n\r\n");
            let expected = if is_head {
                AttemptStage::Sent
            } else {
                AttemptStage::ResponseStarted
            };
            assert_eq!(
                (failure.stage, failure.kind.status().code()),
                (expected, 502),
                "{len}"
            );
        }
        assert!(decode_all(get(), input.as_bytes(), &[input.len()]).is_ok());
    }
}

#[test]
fn a_response_to_head_has_no_body() {
    let head = || HttpDecoder::new(Method::Head, true);
    for (input, expected) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            "200 |||true 0",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "200 |||true 0",
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", "200 |||true 0"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "200 |||true 5",
        ),
    ] {
        let found = decode_in_any_pieces(&head, input.as_bytes());
        assert_eq!(found.as_deref(), Ok(expected), "{input:?}");
    }
}

#[test]
fn a_101_is_accepted_only_if_an_upgrade_was_requested() {
    let switch =
        "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x01\x02";
    let upgrading = || HttpDecoder {
        may_upgrade: true,
        ..get()
    };
    let found = decode_in_any_pieces(&upgrading, switch.as_bytes());
    assert_eq!(
        found.as_deref(),
        Ok("101 Connection: Upgrade\r\nUpgrade: websocket\r\n~2")
    );
    let refused = "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n";
    let found = decode_in_any_pieces(&upgrading, refused.as_bytes());
    assert_eq!(found.as_deref(), Ok("403 |||true 0"));
}

#[test]
fn a_server_that_closes_gets_no_other_request() {
    let closing = || HttpDecoder {
        must_close: true,
        ..get()
    };
    let input = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi";
    let found = decode_in_any_pieces(&closing, input.as_bytes());
    assert_eq!(found.as_deref(), Ok("200 |hi||false 0"));
}
