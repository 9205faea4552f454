//! A WSGI application through the real binary: valid responses are unchanged, errors are reported.
//!
//! One application (`APP`) has a path for each thing that PEP 3333 allows or forbids; the tables
//! have the client's response and the log.
//!
//! # Invariants
//!
//! - No part of a broken response reaches the client as valid, and a truncated end never looks
//!   clean.
//! - `close` is always called.
//! - The worker serves the next request.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::support::{PATIENCE, RawClient, ResponseError, Server, Site, eventually};

/// A site with `app.py` and one worker process on one loop.
pub(crate) fn wsgi_site(code: &str) -> Site {
    wsgi_site_with(code, "processes = 1")
}

/// A site with `app.py` and these lines in its `[apps.app]`.
pub(crate) fn wsgi_site_with(code: &str, app: &str) -> Site {
    let toml = format!("[server]\nthreads = 1\n\n[apps.app]\nentry = \"app:app\"\n{app}\n");
    Site::new().file("app.py", code).config(&toml)
}

/// Starts it and waits until its application is ready.
pub(crate) fn serve_ready(site: &Site) -> Server {
    let server = site.serve(&[]);
    server.wait_ready("app");
    server
}

const APP: &str = include_str!("apps/wsgi.py");

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// The response of a path as text, on its own connection.
fn text(server: &Server, path: &str) -> String {
    server.get(path).text()
}

#[test]
fn what_is_allowed_arrives_whole() {
    let server = serve_ready(&wsgi_site(APP));
    let pid = text(&server, "/pid");
    let rest_of_file = &APP[1..];
    let (large, memory) = ("y".repeat(3_000_000), "z".repeat(20_000));
    let rows: [(&str, u16, &str); 23] = [
        ("/", 200, "hello"),
        ("/empty-list", 200, ""),
        ("/empty-chunks", 200, ""),
        ("/tuple", 200, "ab"),
        ("/many", 200, "abc"),
        ("/generator", 200, "abc"),
        ("/declared", 200, "abc"),
        ("/late-start", 200, "late"),
        ("/large", 200, &large),
        ("/no-content", 204, ""),
        ("/not-modified", 304, ""),
        ("/repeated", 200, "x"),
        ("/latin", 200, "x"),
        ("/hop", 200, "x"),
        ("/write", 200, "one,two,three"),
        ("/write-only", 200, "abc"),
        ("/exc-info", 503, "sorry"),
        ("/file", 200, rest_of_file),
        ("/file-length", 200, &rest_of_file[..9]),
        ("/file-memory", 200, &memory),
        ("/file-temp", 200, "temporary"),
        ("/echo", 200, "None:"),
        ("/errors", 200, ""),
    ];
    // One connection for all: each response must end where the next begins.
    let mut client = server.connect();
    for (path, status, body) in rows {
        let answer = client.send(request("GET", path)).expect_status(status);
        assert!(
            answer.body == body.as_bytes(),
            "GET {path}: {} bytes",
            answer.body.len()
        );
        let head = client.send(request("HEAD", path)).expect_head(status);
        if let (Some(length), true) = (head.header("content-length"), status == 200) {
            assert_eq!(length, body.len().to_string(), "HEAD {path}");
        }
        assert_eq!(client.received, b"", "HEAD {path}: no body");
    }
    let answer = client.send(request("GET", "/repeated")).expect_status(200);
    let cookies = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "Set-Cookie");
    let cookies: Vec<&str> = cookies.map(|(_, value)| value.as_str()).collect();
    assert_eq!(cookies, ["a=1", "b=2"], "kept apart, in order");
    let answer = client.send(request("GET", "/latin")).expect_status(200);
    assert_eq!(answer.header("x-name"), Some("caf\u{e9}"));
    let answer = client.send(request("GET", "/exc-info")).expect_status(503);
    assert_eq!(
        (answer.header("x-first"), answer.header("x-second")),
        (None, Some("2"))
    );
    let answer = client.send(request("GET", "/hop")).expect_status(200);
    assert_eq!(
        answer.header("connection"),
        None,
        "framing is the front end's"
    );
    assert_eq!(answer.header("content-length"), Some("1"));
    let answer = client
        .send(request("GET", "/empty-list"))
        .expect_status(200);
    assert_eq!(answer.header("content-length"), Some("0"));
    server.wait_log("said to wsgi.errors");
    assert_eq!(text(&server, "/pid"), pid, "the same worker all along");
}

#[test]
fn what_breaks_the_rules_is_refused_and_named_in_the_log() {
    let server = serve_ready(&wsgi_site(APP));
    let pid = text(&server, "/pid");
    let rows: [(&str, u16, &str); 36] = [
        ("/raise", 500, "ValueError: deliberate"),
        ("/raise-after-start", 500, "ValueError: deliberate"),
        ("/raise-first", 500, "ValueError: deliberate"),
        ("/nowhere", 500, "KeyError: 'do_nowhere'"),
        ("/exit", 500, "SystemExit"),
        ("/interrupt", 500, "KeyboardInterrupt"),
        ("/no-start", 502, "start_response was not called"),
        ("/none", 502, "a NoneType was returned"),
        ("/text", 502, "the body holds str"),
        ("/text-list", 502, "the body holds str"),
        ("/number", 502, "a int was returned"),
        ("/status-number", 502, "bad status or headers"),
        ("/status-empty", 502, "status"),
        ("/status-interim", 502, "status"),
        ("/status-large", 502, "status"),
        ("/status-inject", 502, "a control character"),
        ("/headers-tuple", 502, "headers are no list"),
        ("/headers-lists", 502, "a header is no tuple of two"),
        ("/value-number", 502, "bad status or headers"),
        ("/value-inject", 502, "a control character"),
        ("/value-newline", 502, "a control character"),
        ("/value-nul", 502, "a control character"),
        ("/value-split", 502, "a control character"),
        ("/value-wide", 502, "bad status or headers"),
        ("/name-inject", 502, "a control character"),
        ("/name-colon", 502, "response head"),
        ("/name-space", 502, "response head"),
        ("/name-empty", 502, "response head"),
        ("/start-twice", 502, "start_response called twice"),
        ("/length-text", 502, "response Content-Length `1x`"),
        ("/length-minus", 502, "response Content-Length `-1`"),
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
        (
            "/length-none",
            502,
            "response body of 0 bytes, Content-Length 10",
        ),
        ("/file-short", 502, "Content-Length 10000000"),
    ];
    let mut client = server.connect();
    for (path, status, reason) in rows {
        let answer = client.send(request("GET", path)).response();
        assert_eq!(answer.status, status, "{path}");
        let all = format!("{:?} {}", answer.headers, answer.text());
        for secret in ["X-Evil", "X-Never", "deliberate", "Traceback"] {
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
    // An unread body is no part of the next request.
    client.send("POST /raise HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /");
    client.expect_status(500);
    client.send(request("GET", "/")).expect_status(200);
    assert_eq!(text(&server, "/pid"), pid, "the same worker all along");
    assert!(text(&server, "/closed").contains("/raise-first"));
}

#[test]
fn a_response_that_fails_after_its_head_is_cut_and_never_ends_cleanly() {
    let server = serve_ready(&wsgi_site(APP));
    let pid = text(&server, "/pid");
    let paths = [
        "/mid-raise",
        "/mid-text",
        "/mid-short",
        "/mid-long",
        "/mid-exc-info",
        "/mid-exit",
    ];
    for path in paths {
        let mut client = server.connect();
        client.send(request("GET", path));
        match client.try_response(false) {
            Err(ResponseError::Truncated(body)) => {
                let body = String::from_utf8_lossy(&body);
                // Truncated bytes may be lost with the reset, but no others may appear.
                assert!(
                    "begunand more".starts_with(&*body) && body.len() <= 10,
                    "{path}: {body}"
                );
            }
            // Detected before a byte of it was sent.
            Ok(answer) if path == "/mid-long" => assert_eq!(answer.status, 502),
            other => panic!("{path}: {other:?}"),
        }
    }
    // All declared bytes had arrived when the application continued.
    let mut client = server.connect();
    client.send(request("GET", "/mid-long-last"));
    if let Ok(answer) = client.try_response(false) {
        assert_eq!(answer.body, b"begun");
    }
    server
        .wait_log("more body than Content-Length")
        .wait_log("ValueError: deliberate");
    let closed = text(&server, "/closed");
    assert_eq!(
        closed,
        "/mid-raise /mid-text /mid-short /mid-long /mid-long-last"
    );
    assert_eq!(text(&server, "/pid"), pid, "the same worker all along");
}

#[test]
fn an_http_1_0_client_sees_a_reset_where_a_body_is_cut() {
    let server = serve_ready(&wsgi_site(APP));
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /mid-raise HTTP/1.0\r\n\r\n")
        .unwrap();
    let end = stream.read_to_end(&mut Vec::new());
    assert_eq!(
        end.unwrap_err().kind(),
        ErrorKind::ConnectionReset,
        "no clean end of file"
    );
}

#[test]
fn wsgiref_validate_finds_nothing() {
    const VALIDATED: &str = r#"
import wsgiref.validate

def inner(environ, start):
    path = environ["PATH_INFO"]
    size = int(environ.get("CONTENT_LENGTH") or 0)
    stream = environ["wsgi.input"]
    body = stream.read(size) + stream.read(1)
    environ["wsgi.errors"].write("seen\n")
    write = start("200 OK", [("Content-Type", "text/plain")])
    if path == "/write":
        write(b"written,")
    if path == "/none":
        return []
    if path == "/stream":
        return (chunk for chunk in (b"a", b"", b"b"))
    return [environ["REQUEST_METHOD"].encode(), b":", body]

app = wsgiref.validate.validator(inner)
"#;
    let server = serve_ready(&wsgi_site(VALIDATED));
    let post =
        |framing: &str| format!("POST /a%20b?q=1 HTTP/1.1\r\nHost: a.example:81\r\n{framing}");
    let rows: [(&str, String, &str); 9] = [
        ("get", request("GET", "/"), "GET:"),
        ("an empty body", request("GET", "/none"), ""),
        ("a stream", request("GET", "/stream"), "ab"),
        ("write", request("GET", "/write"), "written,GET:"),
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
    client.send(request("HEAD", "/")).expect_head(200);
    client.send(request("GET", "/")).expect_status(200);
    let log = server.log();
    for complaint in ["AssertionError", "Iterator garbage collected", "Traceback"] {
        assert!(!log.contains(complaint), "{log}");
    }
}

#[test]
fn the_body_is_complete_before_the_application_and_ends_by_itself() {
    let site = wsgi_site(APP);
    let toml = site.read("penstock.toml");
    let site = site.config(&format!("{toml}\n[limits]\nbody_memory = 100\n"));
    let server = serve_ready(&site);
    let mut client = server.connect();
    // In memory, and above `body_memory` in a file.
    for size in [0, 1, 100, 101, 300_000] {
        let body = "b".repeat(size);
        client.send(format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}"
        ));
        let answer = client.expect_status(200).text();
        // PEP 3333 allows both for an empty body: empty or missing.
        let lengths = [size.to_string(), "None".to_owned()];
        let (length, echoed) = answer.split_once(':').unwrap();
        assert!(
            lengths[..1 + usize::from(size == 0)].contains(&length.to_owned()),
            "{length}"
        );
        assert_eq!(echoed, body);
        client.send(format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
            if size == 0 {
                String::new()
            } else {
                format!("{size:x}\r\n{body}\r\n")
            }
        ));
        assert_eq!(
            client.expect_status(200).text().split_once(':').unwrap().1,
            body
        );
    }
    for padding in [0, 200] {
        let body = format!("one\ntwo\nthree{}", "x".repeat(padding));
        let size = body.len();
        client.send(format!(
            "POST /lines HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}"
        ));
        let expected = format!(
            "(b'one\\n', b'tw', [b'o\\n', b'three{}'], b'', [])",
            "x".repeat(padding)
        );
        assert_eq!(client.expect_status(200).text(), expected);
    }
}

#[test]
fn a_chunk_leaves_before_the_next_exists() {
    let server = serve_ready(&wsgi_site_with(APP, "processes = 1\nthreads = 2"));
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
    let server = serve_ready(&wsgi_site_with(APP, "processes = 1\nthreads = 4"));
    let clients = (0..4).map(|_| {
        let mut client = server.connect();
        client.send(request("GET", "/multithread"));
        client
    });
    // Each waits in the application until all four have arrived.
    for mut client in clients.collect::<Vec<RawClient>>() {
        assert_eq!(client.expect_status(200).text(), "True");
    }
}

#[test]
fn close_is_called_when_the_client_leaves_within_a_stream() {
    let server = serve_ready(&wsgi_site(APP));
    let pid = text(&server, "/pid");
    for round in 1..=3 {
        let mut client = server.connect();
        client.send(request("GET", "/endless"));
        client.read_some();
        drop(client);
        // The only worker is free again: it responds.
        assert_eq!(text(&server, "/closed"), vec!["/endless"; round].join(" "));
    }
    assert_eq!(text(&server, "/pid"), pid, "the same worker all along");
}
