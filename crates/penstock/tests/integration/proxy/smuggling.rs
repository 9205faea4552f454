//! Request smuggling through the proxy: the origin never sees a request that the proxy did not see.
//!
//! The rows are those of `hostile_framing` and `hostile_heads`, each with another request behind
//! it. Refused requests reach no origin; others arrive re-encoded, so that no byte of a client's
//! framing is left for another interpretation.

use super::{ProxySetup, behind, chunked};
use crate::hostile_heads::{BEHIND, Rows, malformed_fields, malformed_request_lines};
use crate::support::{Origin, page};
use crate::{hostile_framing, hostile_heads};

/// Sends each row with [`BEHIND`]; the status must be the row's and the origin must see nothing.
fn never_arrives(rows: &Rows) {
    let origin = Origin::named("origin");
    let server = behind(&origin, "");
    for (name, status, bytes) in rows {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
        let name = format!("{name}: {start:?}");
        let mut client = server.connect();
        let _ = client.try_send([bytes.as_slice(), BEHIND.as_bytes()].concat());
        let got = client
            .try_response(false)
            .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(got.status, *status, "{name}: {}", got.text());
        assert_eq!(client.read_to_end(), b"", "{name}: answered more");
        assert_eq!(origin.lines(), [""; 0], "{name}: reached the origin");
    }
    assert_eq!(server.get("/alive").status, 200);
    assert_eq!(origin.lines(), ["GET /alive"]);
}

#[test]
fn two_framings_never_arrive() {
    never_arrives(&hostile_framing::two_ways_to_frame_a_body());
}

#[test]
fn doubtful_lengths_never_arrive() {
    never_arrives(&hostile_framing::doubtful_lengths());
}

#[test]
fn other_codings_never_arrive() {
    never_arrives(&hostile_framing::other_codings());
}

#[test]
fn doubtful_chunks_never_arrive() {
    never_arrives(&hostile_framing::doubtful_chunks());
}

#[test]
fn expectations_that_nobody_can_meet_never_arrive() {
    never_arrives(&hostile_framing::expectations());
}

#[test]
fn malformed_heads_never_arrive() {
    never_arrives(&malformed_fields());
    never_arrives(&malformed_request_lines());
    never_arrives(&hostile_heads::doubtful_hosts());
}

#[test]
fn doubtful_chunks_are_never_an_end_for_an_origin_that_reads_along() {
    // Unbuffered, the origin has the head and the chunks before the bad one: it must never get the
    // last chunk, or anything after it.
    for (name, status, bytes) in hostile_framing::doubtful_chunks() {
        let origin = Origin::start(|seen| page(seen, "read"));
        let server = ProxySetup::new([&origin])
            .route("request_buffering = false")
            .serve();
        let mut client = server.connect();
        let _ = client.try_send([bytes.as_slice(), BEHIND.as_bytes()].concat());
        if let Ok(got) = client.try_response(false) {
            assert_eq!(got.status, status, "{name}: {}", got.text());
        }
        client.read_to_end();
        assert_eq!(server.get("/alive").status, 200);
        for seen in origin.requests() {
            let whole = seen.complete && seen.line() != "GET /alive";
            assert!(!whole, "{name}: {} arrived whole", seen.line());
        }
    }
}

#[test]
fn what_is_served_arrives_encoded_anew() {
    let origin = Origin::named("origin");
    let server = behind(&origin, "");
    let rows: [(&str, &str, &str, &[u8]); 9] = [
        (
            "extensions",
            "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"GET / HTTP/1.1\"\r\nhello\r\n0;b\r\n\r\n",
            "POST /x",
            b"hello",
        ),
        (
            "trailers",
            "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
            "POST /x",
            b"hello",
        ),
        (
            "upper case",
            "POST /x HTTP/1.1\r\nHOST: a\r\nTRANSFER-ENCODING: CHUNKED\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
            "POST /x",
            b"0123456789",
        ),
        (
            "leading zeros of a size",
            "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n005\r\nhello\r\n000\r\n\r\n",
            "POST /x",
            b"hello",
        ),
        (
            "a body with GET",
            "GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 37\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n:)",
            "GET /x",
            b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n:)",
        ),
        (
            "a body that is a request",
            "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /x",
            b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "absolute form",
            "GET http://A/x HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /x",
            b"",
        ),
        (
            "no space behind the colon",
            "GET /x HTTP/1.1\r\nHost:a\r\nX:\t y \r\n\r\n",
            "GET /x",
            b"",
        ),
        (
            "HTTP/2 offered",
            "GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n",
            "GET /x",
            b"",
        ),
    ];
    for (number, (name, request, line, body)) in rows.iter().enumerate() {
        let mut client = server.connect();
        client.send(format!("{request}{BEHIND}"));
        for _ in 0..2 {
            let answer = client.response();
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        }
        let seen = &origin.requests()[2 * number];
        assert_eq!(
            (seen.line().as_str(), seen.body.as_slice()),
            (*line, *body),
            "{name}"
        );
        assert_eq!(
            seen.field("host").map(|h| h.to_lowercase()).as_deref(),
            Some("a"),
            "{name}"
        );
        assert_eq!(seen.field("http2-settings"), None, "{name}");
        assert_eq!(seen.field("upgrade"), None, "{name}");
        assert_eq!(origin.lines()[2 * number + 1], "GET /behind", "{name}");
    }
    let all: Vec<u8> = (0..origin.connections())
        .flat_map(|n| origin.received(n))
        .collect();
    let text = String::from_utf8_lossy(&all).into_owned();
    for left in ["5;a", "0;b", "CHUNKED", "http://", "X:\t"] {
        assert!(!text.contains(left), "{left:?} was copied");
    }
}

#[test]
fn pipelined_requests_stay_apart_and_in_order() {
    let origin = Origin::start(|seen| page(seen, &seen.target));
    let server = behind(&origin, "");
    let mut client = server.connect();
    let mut bytes = Vec::new();
    for number in 0..50 {
        let head =
            format!("POST /{number} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(&chunked(BEHIND.as_bytes(), 1 + number));
    }
    client.send(bytes);
    for number in 0..50 {
        assert_eq!(client.expect_status(200).text(), format!("/{number}"));
    }
    let seen = origin.requests();
    assert_eq!(seen.len(), 50);
    assert!(seen.iter().all(|s| s.body == BEHIND.as_bytes()));
}

#[test]
fn what_arrives_does_not_depend_on_how_the_bytes_were_split() {
    let origin = Origin::named("origin");
    let server = behind(&origin, "");
    let request = b"POST /s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                    5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n";
    for at in 1..request.len() {
        let mut client = server.connect();
        client.send(&request[..at]);
        client.send(&request[at..]);
        client.expect_status(200);
    }
    let seen = origin.requests();
    assert_eq!(seen.len(), request.len() - 1);
    assert!(
        seen.iter()
            .all(|s| s.line() == "POST /s" && s.body == b"hello")
    );
}

#[test]
fn an_unfinished_body_is_never_a_whole_one_for_the_origin() {
    for route in ["", "request_buffering = false"] {
        let origin = Origin::named("origin");
        let server = ProxySetup::new([&origin]).route(route).serve();
        for (name, rest) in [
            ("length", "Content-Length: 10\r\n\r\nhello"),
            ("chunk", "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"),
            (
                "no last chunk",
                "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            ),
            (
                "no final line",
                "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
            ),
        ] {
            let mut client = server.connect();
            client.send(format!(
                "POST /{} HTTP/1.1\r\nHost: a\r\n{rest}",
                name.replace(' ', "-")
            ));
            client.close_write();
            client.read_to_end();
        }
        assert_eq!(server.get("/alive").status, 200);
        let whole = origin.requests().into_iter().filter(|s| s.complete);
        let lines: Vec<String> = whole.map(|s| s.line()).collect();
        assert_eq!(lines, ["GET /alive"], "{route}");
    }
}
