//! The contract of the application interfaces: one table of promises, run for each of them.
//!
//! An [`Interface`] has an application with a path for each case of the table. `wsgi`, `rack` and
//! `asgi` fill it in, each with the promises of its own language behind those of the table.
//!
//! # Invariants
//!
//! - No part of a broken response reaches the client as valid, and a truncated end never looks
//!   clean.
//! - `close` is always called.
//! - The worker serves the next request.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::asgi::ASGI;
use crate::rack::RACK;
use crate::support::{PATIENCE, RawClient, ResponseError, Server, Site, eventually};
use crate::wsgi::{WSGI, serve_ready};

/// A path, and the status and body of its response.
pub(crate) type AllowedResponse = (&'static str, u16, Vec<u8>);

/// A path, the status for the client, and the reason in the log.
pub(crate) type RefusedResponse = (&'static str, u16, &'static str);

/// The cases of one interface, by the paths of its application.
pub(crate) struct Interface {
    pub(crate) name: &'static str,
    /// A site with its application, and these lines in `[apps.app]`.
    pub(crate) site: fn(&str) -> Site,
    /// The line with which a process has two requests at once.
    pub(crate) two_at_once: &'static str,
    /// Responses that arrive whole, with status and body.
    pub(crate) allowed: fn() -> Vec<AllowedResponse>,
    /// The response with the cookies `a=1` and `b=2`.
    pub(crate) cookies: &'static str,
    /// Responses that are refused, beside [`REFUSED`].
    pub(crate) refused: &'static [RefusedResponse],
    /// Words of refused responses that no client may see.
    pub(crate) secrets: &'static [&'static str],
    /// Responses that fail after their head.
    pub(crate) cut: &'static [&'static str],
    /// The promises of the interface itself, on the server that has kept those of the table.
    pub(crate) also_allowed: fn(&Server),
    pub(crate) also_refused: fn(&Server),
    pub(crate) also_cut: fn(&Server),
}

/// An interface whose requests have a thread each, and complete bodies.
pub(crate) struct ThreadedInterface {
    pub(crate) interface: Interface,
    /// A site with an application under the validator of the interface.
    pub(crate) validated_site: fn() -> Site,
    /// What the validator logs.
    pub(crate) complaints: &'static [&'static str],
    /// How the language writes that there are several threads.
    pub(crate) multithread: &'static str,
    pub(crate) also_valid: fn(&mut RawClient),
    pub(crate) also_bodies: fn(&mut RawClient),
}

/// Responses that each interface refuses.
const REFUSED: &[RefusedResponse] = &[
    ("/exit", 500, "SystemExit"),
    ("/value-nul", 502, "a control character"),
    ("/name-inject", 502, "a control character"),
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

const ALL: [&Interface; 3] = [&WSGI.interface, &RACK.interface, &ASGI];
const THREADED: [&ThreadedInterface; 2] = [&WSGI, &RACK];

pub(crate) fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// The response of a path as text, on its own connection.
pub(crate) fn text(server: &Server, path: &str) -> String {
    server.get(path).text()
}

impl Interface {
    /// Checks a promise with one worker process, which must be the same all along.
    fn check(&self, promise: impl FnOnce(&Server)) {
        let server = serve_ready(&(self.site)("processes = 1"));
        let pid = text(&server, "/pid");
        promise(&server);
        assert_eq!(text(&server, "/pid"), pid, "{}: the same worker", self.name);
    }
}

#[test]
fn what_is_allowed_arrives_whole() {
    for interface in ALL {
        interface.check(|server| {
            let name = interface.name;
            // One connection for all: each response must end where the next begins.
            let mut client = server.connect();
            for (path, status, body) in (interface.allowed)() {
                let answer = client.send(request("GET", path)).expect_status(status);
                let size = answer.body.len();
                assert!(answer.body == body, "{name}: GET {path}: {size} bytes");
                assert!(!format!("{answer:?}").contains("X-Evil"), "{name}: {path}");
                let head = client.send(request("HEAD", path)).expect_head(status);
                if let (Some(length), true) = (head.header("content-length"), status < 204) {
                    assert_eq!(length, body.len().to_string(), "{name}: HEAD {path}");
                }
                assert_eq!(client.received, b"", "{name}: HEAD {path}: no body");
            }
            let answer = client.send(request("GET", interface.cookies));
            let answer = answer.expect_status(200);
            let cookies = answer.headers.iter();
            let cookies = cookies.filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
            let cookies: Vec<&str> = cookies.map(|(_, value)| value.as_str()).collect();
            assert_eq!(cookies, ["a=1", "b=2"], "{name}: apart, in order");
            let answer = client.send(request("GET", "/hop")).expect_status(200);
            let connection = answer.header("connection");
            assert_eq!(connection, None, "{name}: framing is the front end's");
            assert_eq!(answer.header("content-length"), Some("1"), "{name}");
            (interface.also_allowed)(server);
        });
    }
}

#[test]
fn what_breaks_the_rules_is_refused_and_named_in_the_log() {
    for interface in ALL {
        interface.check(|server| {
            let name = interface.name;
            let mut client = server.connect();
            for &(path, status, reason) in REFUSED.iter().chain(interface.refused) {
                let answer = client.send(request("GET", path)).response();
                assert_eq!(answer.status, status, "{name}: {path}\n{}", server.log());
                let all = format!("{:?} {}", answer.headers, answer.text());
                for secret in interface.secrets {
                    assert!(!all.contains(secret), "{name}: {path}: {secret} in {all}");
                }
                let what = format!("{name}: {path}: {reason:?} in the log");
                eventually(PATIENCE, &what, || {
                    let log = server.log();
                    let is_its_own = |line: &&str| line.contains(&format!("GET {path}"));
                    let mut lines = log.lines().filter(is_its_own);
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
            (interface.also_refused)(server);
        });
    }
}

#[test]
fn a_response_that_fails_after_its_head_is_cut_and_never_ends_cleanly() {
    for interface in ALL {
        interface.check(|server| {
            let name = interface.name;
            for &path in interface.cut {
                let mut client = server.connect();
                client.send(request("GET", path));
                match client.try_response(false) {
                    Err(ResponseError::Truncated(body)) => {
                        let body = String::from_utf8_lossy(&body);
                        // Truncated bytes may be lost with the reset, but no others may appear.
                        let is_start = "begunand more".starts_with(&*body) && body.len() <= 10;
                        assert!(is_start, "{name}: {path}: {body}");
                    }
                    // Detected before a byte of it was sent.
                    Ok(answer) if path == "/mid-long" => assert_eq!(answer.status, 502, "{name}"),
                    other => panic!("{name}: {path}: {other:?}\n{}", server.log()),
                }
            }
            (interface.also_cut)(server);
        });
    }
}

#[test]
fn an_http_1_0_client_sees_a_reset_where_a_body_is_cut() {
    for interface in ALL {
        interface.check(|server| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = b"GET /mid-raise HTTP/1.0\r\n\r\n";
            stream.write_all(head).unwrap();
            let end = stream.read_to_end(&mut Vec::new()).unwrap_err();
            let name = interface.name;
            assert_eq!(
                end.kind(),
                ErrorKind::ConnectionReset,
                "{name}: a clean end"
            );
        });
    }
}

#[test]
fn a_chunk_leaves_before_the_next_exists() {
    for interface in ALL {
        let server = serve_ready(&(interface.site)(&format!(
            "processes = 1\n{}",
            interface.two_at_once
        )));
        let mut client = server.connect();
        client.send(request("GET", "/waiting"));
        let what = format!("{}: the first chunk", interface.name);
        eventually(PATIENCE, &what, || {
            client.read_some();
            client.received.ends_with(b"3\r\none\r\n")
        });
        server.get("/go");
        assert_eq!(client.expect_status(200).text(), "onetwo");
    }
}

#[test]
fn close_is_called_when_the_client_leaves_within_a_stream() {
    for interface in ALL {
        interface.check(|server| {
            for round in 1..=3 {
                let mut client = server.connect();
                client.send(request("GET", "/endless"));
                client.read_some();
                drop(client);
                // The only worker is free again: it responds. A reactor is never busy.
                let closed = vec!["/endless"; round].join(" ");
                let what = format!("{}: closed {round} times", interface.name);
                eventually(PATIENCE, &what, || text(server, "/closed") == closed);
            }
        });
    }
}

#[test]
fn the_validator_of_the_interface_finds_nothing() {
    for threaded in THREADED {
        let name = threaded.interface.name;
        let server = serve_ready(&(threaded.validated_site)());
        let post =
            |framing: &str| format!("POST /a%20b?q=1 HTTP/1.1\r\nHost: a.example:81\r\n{framing}");
        let chunked = "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n";
        let fields = "Content-Type: a/b\r\nX-A: 1\r\nContent-Length: 1\r\n\r\nz";
        let rows = [
            ("get", request("GET", "/"), "GET:"),
            ("an empty body", request("GET", "/none"), ""),
            ("a stream", request("GET", "/stream"), "GET:"),
            ("a length", post("Content-Length: 3\r\n\r\nabc"), "POST:abc"),
            ("chunks", post(chunked), "POST:abc"),
            ("no bytes", post("Content-Length: 0\r\n\r\n"), "POST:"),
            ("a method of its own", request("PURGE", "/"), "PURGE:"),
            ("content type and headers", post(fields), "POST:z"),
        ];
        let mut client = server.connect();
        for (what, bytes, body) in rows {
            let answer = client.send(bytes).response();
            let got = (answer.status, answer.text());
            assert_eq!(
                got,
                (200, body.to_owned()),
                "{name}: {what}\n{}",
                server.log()
            );
        }
        (threaded.also_valid)(&mut client);
        let log = server.log();
        for complaint in threaded.complaints {
            assert!(!log.contains(complaint), "{name}: {log}");
        }
    }
}

#[test]
fn the_body_is_complete_before_the_application_and_ends_by_itself() {
    for threaded in THREADED {
        let site = (threaded.interface.site)("processes = 1");
        let toml = site.read("penstock.toml");
        let server = serve_ready(&site.config(&format!("{toml}\n[limits]\nbody_memory = 100\n")));
        let mut client = server.connect();
        // In memory, and above `body_memory` in a file.
        for size in [1, 100, 101, 300_000] {
            let body = "b".repeat(size);
            let framings = [
                format!("Content-Length: {size}\r\n\r\n{body}"),
                format!("Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n{body}\r\n0\r\n\r\n"),
            ];
            for framing in framings {
                client.send(format!("POST /echo HTTP/1.1\r\nHost: a\r\n{framing}"));
                let answer = client.expect_status(200).text();
                let name = threaded.interface.name;
                assert!(
                    answer == format!("{size}:{body}"),
                    "{name}: the true length"
                );
            }
        }
        (threaded.also_bodies)(&mut client);
    }
}

#[test]
fn threads_work_at_once_and_say_so() {
    for threaded in THREADED {
        let server = serve_ready(&(threaded.interface.site)("processes = 1\nthreads = 4"));
        let clients = (0..4).map(|_| {
            let mut client = server.connect();
            client.send(request("GET", "/multithread"));
            client
        });
        // Each waits in the application until all four have arrived.
        for mut client in clients.collect::<Vec<RawClient>>() {
            assert_eq!(client.expect_status(200).text(), threaded.multithread);
        }
    }
}

/// Sends a body of three lines, below `body_memory` and above it; `answer` has the response for
/// the last line.
pub(crate) fn expect_lines(client: &mut RawClient, path: &str, answer: impl Fn(&str) -> String) {
    for padding in [0, 200] {
        let last = format!("three{}", "x".repeat(padding));
        let body = format!("one\ntwo\n{last}");
        let size = body.len();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}"
        ));
        assert_eq!(client.expect_status(200).text(), answer(&last));
    }
}
