//! Servers with outdated HTTP syntax: accepted, unless the upstream is `strict`.
//!
//! # Invariants
//!
//! - The client gets a response that every reader parses alike.
//! - After faulty framing the connection to the server carries no other request.
//! - A malformed page never ejects a server for all other pages.

use super::{ProxySetup, asking, behind};
use crate::support::{Origin, Script, Step, last_page, page};

/// Name, path, what the server sends, and what the client gets: status, body, whether the server's
/// connection is reused.
type Row = (&'static str, &'static str, u16, &'static str, bool);

const ROWS: &[Row] = &[
    (
        "204 with a last chunk",
        "HTTP/1.1 204 No Content\r\nX-Done: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        204,
        "",
        false,
    ),
    (
        "204 without one",
        "HTTP/1.1 204 No Content\r\nX-Done: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        204,
        "",
        false,
    ),
    (
        "304 with chunks",
        "HTTP/1.1 304 Not Modified\r\nX-Done: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        304,
        "",
        false,
    ),
    (
        "bare line feeds",
        "HTTP/1.1 200 OK\nX-Done: 1\nContent-Length: 5\n\nhello",
        200,
        "hello",
        false,
    ),
    (
        "bare line feeds in chunks",
        "HTTP/1.1 200 OK\nX-Done: 1\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n",
        200,
        "hello",
        false,
    ),
    (
        "padded chunk sizes",
        "HTTP/1.1 200 OK\r\nX-Done: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
         5    \r\nhello\r\n0    \r\n\r\n",
        200,
        "hello",
        false,
    ),
    (
        "an extension that is none",
        "HTTP/1.1 200 OK\r\nX-Done: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;a b\r\nhello\r\n0\r\n\r\n",
        200,
        "hello",
        false,
    ),
    (
        "interim heads with bare line feeds",
        "HTTP/1.1 100 Continue\n\nHTTP/1.1 200 OK\r\nX-Done: 1\r\nContent-Length: 5\r\n\r\nhello",
        200,
        "hello",
        false,
    ),
    (
        "an interim head of HTTP/1.0",
        "HTTP/1.0 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-Done: 1\r\nContent-Length: 5\r\n\r\nhello",
        200,
        "hello",
        false,
    ),
    (
        "a space before the colon",
        "HTTP/1.1 200 OK\r\nX-Done : 1\r\nContent-Length : 5\r\n\r\nhello",
        200,
        "hello",
        false,
    ),
    (
        "a folded field",
        "HTTP/1.1 200 OK\r\nX-Done:\r\n 1\r\nContent-Length: 5\r\n\r\nhello",
        200,
        "hello",
        false,
    ),
    (
        "a coding over a length",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Done: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n",
        200,
        "hello",
        false,
    ),
    (
        "a coding that is none",
        "HTTP/1.1 200 OK\r\nX-Done: 1\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello",
        200,
        "hello",
        false,
    ),
    (
        "a later version",
        "HTTP/1.2 200 OK\r\nX-Done: 1\r\nContent-Length: 5\r\n\r\nhello",
        200,
        "hello",
        true,
    ),
    (
        "a coding in HTTP/1.0",
        "HTTP/1.0 200 OK\r\nX-Done: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n",
        200,
        "hello",
        false,
    ),
];

fn origin() -> Origin {
    Origin::start(|seen| match seen.target[1..].parse::<usize>() {
        Ok(number) if ROWS[number].4 => Script::raw(ROWS[number].1).keep(),
        Ok(number) => Script::raw(ROWS[number].1).then(Step::Hang),
        Err(_) => last_page(&seen.target),
    })
}

#[test]
fn the_grammar_keeps_a_connection() {
    let origin = Origin::start(|seen| match &*seen.target {
        "/chunks" => Script::raw(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             00000005 ; a=\"b c\"\r\nhello\r\n0000\r\n\r\n",
        )
        .keep(),
        _ => last_page(&seen.target),
    });
    let server = ProxySetup::new([&origin]).server("threads = 1").serve();
    assert_eq!(server.get("/chunks").text(), "hello");
    assert_eq!(server.get("/next").text(), "/next");
    let seen = origin.requests();
    assert_eq!(seen[0].connection, seen[1].connection);
}

#[test]
fn what_old_servers_write_is_mended() {
    let origin = origin();
    let server = ProxySetup::new([&origin]).server("threads = 1").serve();
    for (number, (name, _, status, body, is_kept)) in ROWS.iter().enumerate() {
        let mut client = asking(&server, format!("/{number}"));
        let answer = client.expect_status(*status);
        assert_eq!(answer.text(), *body, "{name}");
        assert_eq!(answer.header("x-done"), Some("1"), "{name}");
        assert_eq!(answer.header("transfer-encoding"), None, "{name}");
        let connection = origin.requests().last().unwrap().connection;
        if !is_kept {
            origin.wait_closed(connection);
        }
        assert_eq!(server.get("/next").text(), "/next", "behind {name}");
        let next = origin.requests().last().unwrap().connection;
        assert_eq!(next == connection, *is_kept, "{name}");
    }
}

#[test]
fn a_strict_upstream_refuses_it() {
    let origin = origin();
    let server = ProxySetup::new([&origin])
        .server("threads = 1")
        .upstream("strict = true\nretry = { attempts = 1 }\neject = { max_failures = 0 }")
        .serve();
    for (number, (name, ..)) in ROWS.iter().enumerate() {
        // Faulty chunks after a valid head: 502 if they arrive with it, else a truncated body.
        let got = asking(&server, format!("/{number}")).try_response(false);
        let is_well = got.as_ref().is_ok_and(|answer| answer.status < 500);
        assert!(!is_well || name.starts_with("304"), "{name}: {got:?}");
        assert_eq!(server.get("/next").text(), "/next", "behind {name}");
    }
}

#[test]
fn what_can_be_read_in_two_ways_is_refused_all_the_same() {
    const HEADS: &[&str] = &[
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\n 6\r\n",
        "X: a\rb\r\nContent-Length: 5\r\n",
        " X: y\r\nContent-Length: 5\r\n",
        "X Y: z\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "X: a\0b\r\nContent-Length: 5\r\n",
    ];
    let origin = Origin::start(|seen| {
        let number = seen.target[1..].parse::<usize>().unwrap();
        let head = HEADS[number];
        Script::raw(format!("HTTP/1.1 200 OK\r\n{head}\r\nhello")).then(Step::Hang)
    });
    let server = behind(
        &origin,
        "retry = { attempts = 1 }\neject = { max_failures = 0 }",
    );
    for (number, head) in HEADS.iter().enumerate() {
        let mut client = asking(&server, format!("/{number}"));
        assert_eq!(client.response().status, 502, "{head:?}");
    }
}

#[test]
fn one_page_that_breaks_the_rules_ejects_no_server() {
    let server_of = || {
        Origin::start(|seen| match seen.target.as_str() {
            "/broken" => Script::raw("SSH-2.0-x\r\n\r\n").then(Step::Hang),
            _ => page(seen, "well"),
        })
    };
    let (one, other) = (server_of(), server_of());
    let server = ProxySetup::new([&one, &other])
        .upstream("eject = { max_failures = 3, duration = \"60s\" }")
        .serve();
    for _ in 0..20 {
        assert_eq!(server.get("/broken").status, 502);
    }
    let servers = server.admin_json()["upstreams"][0]["servers"].clone();
    for one in servers.as_array().unwrap() {
        assert_eq!(one["state"], "up", "{one}");
    }
    // Responses to different requests do count.
    let broken = Origin::start(|_| Script::raw("SSH-2.0-x\r\n\r\n").then(Step::Hang));
    let server = ProxySetup::new([&broken, &other])
        .upstream("balance = \"round_robin\"\neject = { max_failures = 3, duration = \"60s\" }")
        .serve();
    for number in 0..20 {
        server.get(&format!("/page{number}"));
    }
    let servers = server.admin_json()["upstreams"][0]["servers"].clone();
    let is_ejected = |one: &serde_json::Value| one["state"] == "ejected";
    assert!(
        servers.as_array().unwrap().iter().any(is_ejected),
        "{servers}"
    );
}
