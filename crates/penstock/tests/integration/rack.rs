//! A Rack application through the real binary: the promises of `wsgi` in Ruby.
//!
//! Needs `ruby` with Rack, and fails with a note without them. `APP` has a path for each thing that
//! the Rack SPEC allows or forbids.
//!
//! # Invariants
//!
//! - No part of a broken response reaches the client as valid, and a truncated end never looks
//!   clean.
//! - `close` is called.
//! - The worker continues to serve.

use crate::support::{PATIENCE, RawClient, ResponseError, Server, Site, eventually};

/// A site with `config.ru` and one worker process on one loop.
pub(crate) fn rack_site(code: &str) -> Site {
    rack_site_with(code, "processes = 1")
}

pub(crate) fn rack_site_with(code: &str, app: &str) -> Site {
    require_rack();
    let toml = format!("[server]\nthreads = 1\n\n[apps.app]\nentry = \"config.ru\"\n{app}\n");
    Site::new().file("config.ru", code).config(&toml)
}

/// These tests are about Ruby: without it they fail, and say why.
fn require_rack() {
    let found = std::process::Command::new("ruby")
        .args(["-e", "require 'rack'"])
        .output();
    let there = found.is_ok_and(|output| output.status.success());
    assert!(
        there,
        "the tests of Rack applications need ruby and the gem rack (apt: ruby-rack)"
    );
}

fn serve_ready(site: &Site) -> Server {
    let server = site.serve(&[]);
    server.wait_ready("app");
    server
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

const APP: &str = include_str!("apps/rack.ru");

#[test]
fn what_is_allowed_arrives_whole() {
    let server = serve_ready(&rack_site(APP));
    let pid = server.get("/pid").text();
    let large = "y".repeat(3_000_000);
    let rows: [(&str, u16, &[u8]); 21] = [
        ("/", 200, b"hello"),
        ("/empty-array", 200, b""),
        ("/array", 200, b"abc"),
        ("/encodings", 200, b"caf\xc3\xa9\xe9x\0"),
        ("/each", 200, b"abc"),
        ("/each-empty", 200, b""),
        ("/declared", 200, b"abc"),
        ("/to-ary", 200, b"abc"),
        ("/enumerator", 200, b"abc"),
        ("/status-string", 201, b"made"),
        ("/large", 200, large.as_bytes()),
        ("/no-content", 204, b""),
        ("/not-modified", 304, b""),
        ("/cookies", 200, b"x"),
        ("/hop", 200, b"x"),
        ("/rack-header", 200, b"x"),
        ("/to-path", 200, APP.as_bytes()),
        ("/to-path-length", 200, &APP.as_bytes()[..7]),
        ("/to-path-missing", 200, APP.as_bytes()),
        ("/call", 200, b"abc"),
        ("/errors", 200, b""),
    ];
    // One connection for all: each response must end where the next begins.
    let mut client = server.connect();
    for (path, status, body) in rows {
        let answer = client.send(request("GET", path)).expect_status(status);
        assert!(answer.body == body, "GET {path}: {}", answer.text());
        let head = client.send(request("HEAD", path)).expect_head(status);
        if let (Some(length), true) = (head.header("content-length"), status < 204) {
            assert_eq!(length, body.len().to_string(), "HEAD {path}");
        }
        assert_eq!(client.received, b"", "HEAD {path}: no body");
        assert!(!format!("{answer:?}").contains("X-Evil"), "{path}");
    }
    let answer = client.send(request("GET", "/cookies")).expect_status(200);
    let cookies = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "Set-Cookie");
    let cookies: Vec<&str> = cookies.map(|(_, value)| value.as_str()).collect();
    assert_eq!(cookies, ["a=1", "b=2"], "the lines of one value, in order");
    let answer = client.send(request("GET", "/hop")).expect_status(200);
    assert_eq!(
        answer.header("connection"),
        None,
        "framing is the front end's"
    );
    let closed = server.get("/closed").text();
    for (what, times) in [
        ("/each", 2),
        ("/each-empty", 2),
        ("/declared", 2),
        ("to_ary", 2),
        ("to_path", 6),
    ] {
        assert_eq!(
            closed.split(' ').filter(|c| *c == what).count(),
            times,
            "{what}: {closed}"
        );
    }
    server.wait_log("said to rack.errors");
    assert_eq!(server.get("/pid").text(), pid, "the same worker all along");
}

#[test]
fn what_breaks_the_rules_is_refused_and_named_in_the_log() {
    let server = serve_ready(&rack_site(APP));
    let pid = server.get("/pid").text();
    let rows: [(&str, u16, &str); 26] = [
        ("/raise", 500, "deliberate (ArgumentError)"),
        ("/raise-each", 500, "deliberate (ArgumentError)"),
        ("/throw", 500, "UncaughtThrowError"),
        ("/exit", 500, "SystemExit"),
        ("/no-memory", 500, "NoMemoryError"),
        ("/nil", 502, "the application returned NilClass"),
        ("/two", 502, "the application returned Array"),
        ("/body-nil", 502, "a body of NilClass"),
        ("/body-number", 502, "the body holds Integer"),
        ("/each-number", 502, "the body holds Integer"),
        ("/status-word", 502, "status \"ok\""),
        ("/status-interim", 502, "status 100"),
        ("/status-large", 502, "status 999"),
        ("/headers-nil", 502, "bad headers"),
        ("/name-number", 502, "bad headers"),
        ("/value-return", 502, "a control character"),
        ("/value-return-only", 502, "a control character"),
        ("/value-nul", 502, "a control character"),
        ("/name-inject", 502, "a control character"),
        ("/name-newline", 502, "a control character"),
        ("/name-space", 502, "response head"),
        ("/name-empty", 502, "response head"),
        ("/length-text", 502, "response Content-Length `1x`"),
        ("/length-two", 502, "response Content-Length `2`"),
        (
            "/length-short",
            502,
            "response body of 5 bytes, Content-Length 10",
        ),
        (
            "/length-long",
            502,
            "response body of 5 bytes, Content-Length 3",
        ),
    ];
    let mut client = server.connect();
    for (path, status, reason) in rows {
        let answer = client.send(request("GET", path)).response();
        assert_eq!(answer.status, status, "{path}\n{}", server.log());
        let all = format!("{:?} {}", answer.headers, answer.text());
        for secret in ["X-Evil", "deliberate", "config.ru"] {
            assert!(!all.contains(secret), "{path}: {secret} in {all}");
        }
        eventually(PATIENCE, &format!("{path}: {reason:?} in the log"), || {
            let log = server.log();
            let mut lines = log
                .lines()
                .filter(|line| line.contains(&format!("GET {path}")));
            match status {
                500 => lines.next().is_some() && log.contains(reason),
                _ => lines.any(|line| line.contains(reason)),
            }
        });
    }
    assert!(server.get("/closed").text().contains("/raise-each"));
    assert_eq!(server.get("/pid").text(), pid, "the same worker all along");
}

#[test]
fn a_response_that_fails_after_its_head_is_cut_and_never_ends_cleanly() {
    let server = serve_ready(&rack_site(APP));
    let pid = server.get("/pid").text();
    for path in [
        "/mid-raise",
        "/mid-number",
        "/mid-short",
        "/mid-long",
        "/mid-call",
        "/mid-exit",
    ] {
        let mut client = server.connect();
        client.send(request("GET", path));
        match client.try_response(false) {
            Err(ResponseError::Truncated(body)) => {
                let body = String::from_utf8_lossy(&body);
                assert!(
                    "begunand more".starts_with(&*body) && body.len() <= 10,
                    "{path}: {body}"
                );
            }
            // Detected before a byte of it was sent.
            Ok(answer) if path == "/mid-long" => assert_eq!(answer.status, 502),
            other => panic!("{path}: {other:?}\n{}", server.log()),
        }
    }
    let closed = server.get("/closed").text();
    assert_eq!(
        closed,
        "/mid-raise /mid-number /mid-short /mid-long /mid-exit"
    );
    assert_eq!(server.get("/pid").text(), pid, "the same worker all along");
}

#[test]
fn rack_lint_finds_nothing() {
    const LINTED: &str = r##"
# Lint of Rack 2.2 parses URIs and leaves loading that to the server's own libraries.
require "uri"
use Rack::Lint
run(lambda do |env|
  body = env["rack.input"].read
  env["rack.errors"].puts("seen")
  parts = env["PATH_INFO"] == "/none" ? [] : [env["REQUEST_METHOD"], ":", body]
  bodies = { "/stream" => parts.each, "/none" => parts }
  [200, { "Content-Type" => "text/plain" }, bodies.fetch(env["PATH_INFO"], parts)]
end)
"##;
    let server = serve_ready(&rack_site(LINTED));
    let post =
        |framing: &str| format!("POST /a%20b?q=1 HTTP/1.1\r\nHost: a.example:81\r\n{framing}");
    let rows: [(&str, String, &str); 8] = [
        ("get", request("GET", "/"), "GET:"),
        ("an empty body", request("GET", "/none"), ""),
        ("a stream", request("GET", "/stream"), "GET:"),
        (
            "a body with a length",
            post("Content-Length: 3\r\n\r\nabc"),
            "POST:abc",
        ),
        (
            "a chunked body",
            post("Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"),
            "POST:abc",
        ),
        (
            "a body of no bytes",
            post("Content-Length: 0\r\n\r\n"),
            "POST:",
        ),
        ("a method of its own", request("PURGE", "/"), "PURGE:"),
        (
            "content type and headers",
            post("Content-Type: a/b\r\nX-A: 1\r\nContent-Length: 1\r\n\r\nz"),
            "POST:z",
        ),
    ];
    let mut client = server.connect();
    for (name, bytes, body) in rows {
        let answer = client.send(bytes).response();
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, body),
            "{name}\n{}",
            server.log()
        );
    }
    assert!(!server.log().contains("LintError"), "{}", server.log());
}

#[test]
fn the_body_is_complete_before_the_application_and_can_be_rewound() {
    let site = rack_site(APP);
    let toml = site.read("penstock.toml");
    let server = serve_ready(&site.config(&format!("{toml}\n[limits]\nbody_memory = 100\n")));
    let mut client = server.connect();
    // In memory, and above `body_memory` in a file.
    for size in [1, 100, 101, 300_000] {
        let body = "b".repeat(size);
        client.send(format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}"
        ));
        assert_eq!(client.expect_status(200).text(), format!("{size}:{body}"));
        client.send(format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n{body}\r\n0\r\n\r\n"
        ));
        assert_eq!(
            client.expect_status(200).text(),
            format!("{size}:{body}"),
            "the true length"
        );
    }
    for padding in [0, 200] {
        let last = format!("three{}", "x".repeat(padding));
        let body = format!("one\ntwo\n{last}");
        let size = body.len();
        client.send(format!(
            "POST /rewind HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}"
        ));
        let expected =
            format!("[[\"one\\n\", \"tw\"], [\"one\\n\", \"two\\n\", \"{last}\"], \"\", nil]");
        assert_eq!(client.expect_status(200).text(), expected);
    }
}

#[test]
fn a_chunk_leaves_before_the_next_exists() {
    let server = serve_ready(&rack_site_with(APP, "processes = 1\nthreads = 2"));
    let mut client = server.connect();
    client.send(request("GET", "/waiting"));
    eventually(PATIENCE, "the first chunk", || {
        client.read_some();
        client.received.ends_with(b"3\r\none\r\n")
    });
    server.get("/go");
    assert_eq!(client.expect_status(200).text(), "onetwo");
}

#[test]
fn threads_work_at_once_and_say_so() {
    let server = serve_ready(&rack_site_with(APP, "processes = 1\nthreads = 4"));
    let clients = (0..4).map(|_| {
        let mut client = server.connect();
        client.send(request("GET", "/multithread"));
        client
    });
    for mut client in clients.collect::<Vec<RawClient>>() {
        assert_eq!(client.expect_status(200).text(), "true");
    }
}

#[test]
fn close_is_called_when_the_client_leaves_within_a_stream() {
    let server = serve_ready(&rack_site(APP));
    let pid = server.get("/pid").text();
    for round in 1..=3 {
        let mut client = server.connect();
        client.send(request("GET", "/endless"));
        client.read_some();
        drop(client);
        assert_eq!(
            server.get("/closed").text(),
            vec!["/endless"; round].join(" ")
        );
    }
    assert_eq!(server.get("/pid").text(), pid, "the same worker all along");
}
