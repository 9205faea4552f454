//! Streaming: pieces are forwarded as the origin sends them, with hints and trailers.
//!
//! A gate that is still closed when a piece arrives proves that the proxy did not wait for the
//! rest.

use std::time::Instant;

use super::{ProxySetup, SLACK, access_log, ask, asking, behind, wait_in_progress};
use crate::support::{Origin, PATIENCE, RawClient, Script, Step, eventually, find, page};

/// Two events with a gate between, in chunks, with these fields.
fn events(fields: &'static str) -> Origin {
    Origin::start(move |_| {
        Script::raw(format!(
            "HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n"
        ))
        .send("7\r\nfirst\n\n\r\n")
        .gate("go")
        .send("6\r\nlast\n\n\r\n0\r\n\r\n")
        .keep()
    })
}

/// Reads until these bytes have arrived.
fn await_bytes(client: &mut RawClient, bytes: &[u8]) {
    let what = String::from_utf8_lossy(bytes).into_owned();
    eventually(PATIENCE, &what, || {
        find(&client.received, bytes).is_some() || {
            client.read_some();
            false
        }
    });
}

#[test]
fn pieces_come_as_they_are_given() {
    for fields in [
        "Content-Type: text/event-stream\r\n",
        "Content-Type: text/event-stream; charset=utf-8\r\n",
        "Content-Type: text/html\r\nX-Accel-Buffering: no\r\n",
        "Content-Type: text/html\r\n",
    ] {
        let origin = events(fields);
        let server = behind(&origin, "");
        let mut client = asking(&server, "/");
        await_bytes(&mut client, b"first\n\n");
        origin.wait_at("go", 1);
        origin.open_gate("go");
        let response = client.expect_status(200);
        assert_eq!(response.text(), "first\n\nlast\n\n", "{fields}");
        assert_eq!(response.header("x-accel-buffering"), None);
    }
}

#[test]
fn an_event_stream_is_not_taken_over_from_its_origin() {
    // Its client does not read: the origin must be slowed down, or the body would fill the memory.
    let piece = [b"data: ".as_slice(), &[b'x'; 10_000], b"\n\n"].concat();
    let most = 256 << 20;
    for fields in [
        "Content-Type: text/event-stream\r\n",
        "Content-Type: a/b\r\nX-Accel-Buffering: no\r\n",
    ] {
        let piece = piece.clone();
        let origin = Origin::start(move |_| {
            Script::raw(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"))
                .then(Step::Flood(piece.clone(), most))
        });
        let server = behind(&origin, "max_active = 1");
        let client = asking(&server, "/");
        wait_in_progress(&server, 1);
        super::pass_time(std::time::Duration::from_millis(500));
        assert!(origin.is_open(0), "all of it was taken from the origin");
        wait_in_progress(&server, 1);
        drop(client);
        origin.wait_closed(0);
        wait_in_progress(&server, 0);
    }
}

#[test]
fn a_client_that_leaves_a_stream_ends_it() {
    let origin = events("Content-Type: text/event-stream\r\n");
    let server = behind(&origin, "max_active = 1");
    let mut client = asking(&server, "/");
    await_bytes(&mut client, b"first");
    drop(client);
    wait_in_progress(&server, 0);
    origin.open_gate("go");
    origin.wait_closed(0);
}

#[test]
fn an_unbuffered_upload_reaches_the_origin_as_it_comes() {
    for (how, framing, pieces) in [
        ("with a length", "Content-Length: 10", ["first", "later"]),
        (
            "in chunks",
            "Transfer-Encoding: chunked",
            ["5\r\nfirst\r\n", "5\r\nlater\r\n0\r\n\r\n"],
        ),
    ] {
        let origin = Origin::start(|seen| page(seen, "read"));
        let server = ProxySetup::new([&origin])
            .route("request_buffering = false")
            .serve();
        let mut client = server.connect();
        client.send(format!(
            "POST /u HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{}",
            pieces[0]
        ));
        eventually(PATIENCE, "the first part at the origin", || {
            origin
                .requests()
                .first()
                .is_some_and(|seen| seen.body == b"first" && !seen.complete)
        });
        client.send(pieces[1]).expect_status(200);
        assert_eq!(origin.last().body, b"firstlater", "{how}");
        // The connections of both sides are reusable.
        ask(&mut client, "/next");
        client.expect_status(200);
    }
}

/// An origin that responds before it has read, and echoes the body.
fn echo() -> Origin {
    Origin::start(|_| {
        Script::early()
            .send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
            .then(Step::Echo)
    })
}

#[test]
fn an_answer_that_goes_along_with_its_upload_is_not_held_up() {
    let origin = echo();
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .route("request_buffering = false\nresponse_buffering = false")
        .serve();
    let mut client = server.connect();
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    await_bytes(&mut client, b"HTTP/1.1 200 OK\r\n");
    for round in 0..10 {
        let piece = format!("piece {round}");
        let began = Instant::now();
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
        await_bytes(&mut client, piece.as_bytes());
        let took = began.elapsed();
        assert!(took < SLACK, "{piece} took {took:?}");
    }
    drop(client);
    wait_in_progress(&server, 0);
    origin.wait_closed(0);
}

#[test]
fn a_client_that_leaves_behind_its_streamed_upload_is_noticed() {
    let origin = echo();
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .route("request_buffering = false\nresponse_buffering = false")
        .serve();
    let mut client = server.connect();
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    await_bytes(&mut client, b"HTTP/1.1 200 OK\r\n");
    client.send("hello");
    await_bytes(&mut client, b"hello");
    wait_in_progress(&server, 1);
    drop(client);
    let began = Instant::now();
    wait_in_progress(&server, 0);
    assert!(began.elapsed() < SLACK, "{:?}", began.elapsed());
    origin.wait_closed(0);
}

#[test]
fn hints_are_passed_on_before_the_answer() {
    let origin = Origin::start(|_| {
        Script::raw("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nX-Accel-Redirect: /x\r\n\r\n")
            .gate("go")
            .send("HTTP/1.1 103 Early Hints\r\nLink: </b.css>; rel=preload\r\n\r\n")
            .send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
            .keep()
    });
    let server = behind(&origin, "");
    let mut client = asking(&server, "/");
    let hint = client.expect_status(103);
    assert_eq!(hint.header("link"), Some("</a.css>; rel=preload"));
    assert_eq!(hint.header("x-accel-redirect"), None);
    origin.open_gate("go");
    assert_eq!(
        client.expect_status(103).header("link"),
        Some("</b.css>; rel=preload")
    );
    assert_eq!(client.expect_status(200).text(), "done");
    let mut old = server.connect();
    old.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(
        old.expect_status(200).text(),
        "done",
        "HTTP/1.0 knows no interim answers"
    );
    assert_eq!(access_log(&server, 2).len(), 2, "a hint is no answer");
}

#[test]
fn trailers_are_passed_on_but_not_those_that_frame() {
    let origin = Origin::start(|_| {
        Script::raw(
            "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n\
             0\r\nX-Sum: 5\r\nX-Accel-Redirect: /x\r\nX-Other: y\r\nX-Sendfile: /y\r\n\r\n",
        )
        .keep()
    });
    let server = behind(&origin, "");
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n");
    let all = String::from_utf8(client.read_to_end()).unwrap();
    let (_, end) = all
        .split_once("hello\r\n0\r\n")
        .unwrap_or_else(|| panic!("{all}"));
    assert_eq!(end, "X-Sum: 5\r\nX-Other: y\r\n\r\n");
    let origin = Origin::start(|_| {
        Script::raw(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n\
             0\r\nContent-Length: 5\r\nSet-Cookie: a=b\r\nTransfer-Encoding: chunked\r\n\r\n",
        )
        .keep()
    });
    let server = behind(&origin, "");
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let all = String::from_utf8_lossy(&client.read_to_end()).into_owned();
    // Refused as a whole or left out; never forwarded.
    if all.starts_with("HTTP/1.1 502 ") {
        return;
    }
    let end = all.rsplit("\r\n\r\n").next().unwrap();
    assert!(end.starts_with("hello"), "{all}");
    assert!(!end.to_lowercase().contains("content-length"), "{all}");
    assert!(!end.to_lowercase().contains("transfer-encoding"), "{all}");
}
