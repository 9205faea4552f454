//! Streamed request bodies: the application reads them while its client still sends.
//!
//! ASGI and Rack on fibers do so by default, WSGI and Rack in threads with `request_buffering =
//! false`. Each promise is tested for all of them: exchanges in both directions, back-pressure,
//! truncated bodies that never look complete, enforced limits, early responses, and workers that
//! end during a body.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{PATIENCE, RawClient, ResponseError, Server, Site, eventually, find, kill};

const ASGI: &str = include_str!("apps/uploads_asgi.py");
const WSGI: &str = include_str!("apps/uploads_wsgi.py");
const RACK: &str = include_str!("apps/uploads.ru");

/// How an application gets its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AppInterface {
    Asgi,
    Wsgi,
    Rack,
    Fibers,
}

const APP_INTERFACES: [AppInterface; 4] = [
    AppInterface::Asgi,
    AppInterface::Wsgi,
    AppInterface::Rack,
    AppInterface::Fibers,
];

impl AppInterface {
    fn site(self, server: &str, app: &str) -> Site {
        let (file, code, own) = match self {
            Self::Asgi => ("main.py", ASGI, "entry = \"main:app\"\nkind = \"asgi\""),
            Self::Wsgi => (
                "main.py",
                WSGI,
                "entry = \"main:app\"\nkind = \"wsgi\"\nrequest_buffering = false",
            ),
            Self::Rack => (
                "config.ru",
                RACK,
                "kind = \"rack\"\nrequest_buffering = false",
            ),
            Self::Fibers => ("config.ru", RACK, "kind = \"rack\"\nasync = true"),
        };
        let toml = format!("{server}\n[apps.app]\nprocesses = 1\n{own}\n{app}\n");
        Site::new().file(file, code).config(&toml)
    }

    fn serve_with(self, server: &str, app: &str) -> Server {
        let server = self.site(server, app).serve(&[]);
        server.wait_ready("app");
        server
    }

    fn serve(self) -> Server {
        self.serve_with("", "")
    }
}

fn head(path: &str, framing: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n")
}

fn chunk(bytes: &str) -> String {
    format!("{:x}\r\n{bytes}\r\n", bytes.len())
}

/// Reads until these bytes have arrived, and consumes all up to their end.
fn read_until(client: &mut RawClient, needle: &str) {
    let end = loop {
        if let Some(at) = find(&client.received, needle.as_bytes()) {
            break at + needle.len();
        }
        let more = client.read_some();
        let so_far = String::from_utf8_lossy(&client.received).into_owned();
        assert!(
            more.is_some_and(|bytes| !bytes.is_empty()),
            "no {needle:?} in {so_far:?}"
        );
    };
    client.received.drain(..end);
}

/// Waits until the application has reported this about a request body.
fn wait_seen(server: &Server, what: &str) {
    eventually(PATIENCE, what, || {
        server
            .site()
            .read("seen.txt")
            .lines()
            .any(|line| line == what)
    });
}

/// Waits until this many requests have reached the application.
fn wait_begun(server: &Server, count: usize) {
    eventually(PATIENCE, "the application has it", || {
        server.site().read("seen.txt").matches("begun").count() >= count
    });
}

fn assert_serves_on(server: &Server) {
    let mut client = server.connect();
    client.send(head("/sum", "Content-Length: 3") + "abc");
    assert_eq!(client.expect_status(200).text(), "3");
}

#[test]
fn an_answer_and_its_request_go_on_at_once() {
    for way in APP_INTERFACES {
        let server = way.serve();
        let mut client = server.connect();
        client.send(head("/echo", "Transfer-Encoding: chunked"));
        read_until(&mut client, "go");
        for word in ["one", "two", "three"] {
            client.send(chunk(word));
            read_until(&mut client, &format!("<{word}>"));
        }
        client.send("0\r\nX-Sum: 1\r\n\r\n");
        read_until(&mut client, "3\r\nend\r\n0\r\n\r\n");
        client.expect_closed();
        assert_serves_on(&server);
    }
}

#[test]
fn bodies_arrive_whole_however_they_are_cut_and_the_connection_goes_on() {
    for way in APP_INTERFACES {
        let server = way.serve();
        let mut client = server.connect();
        let body = "0123456789abcdef".repeat(20_000);
        for pieces in [1, 2, 7, 100] {
            client.send(head("/sum", &format!("Content-Length: {}", body.len())));
            for piece in body.as_bytes().chunks(body.len().div_ceil(pieces)) {
                client.send(piece);
            }
            assert_eq!(client.expect_status(200).text(), body.len().to_string());
        }
        // Whole with its head, in a piece after it, and empty.
        client.send(head("/sum", "Content-Length: 2") + "ab");
        assert_eq!(client.expect_status(200).text(), "2");
        client.send(head("/sum", "Transfer-Encoding: chunked"));
        client.send("1\r\na\r\n").send("0\r\n\r\n");
        assert_eq!(client.expect_status(200).text(), "1", "{way:?}");
        client.send(head("/sum", "Content-Length: 0"));
        assert_eq!(client.expect_status(200).text(), "0", "{way:?}");
    }
}

#[test]
fn lines_and_what_was_read_before_can_be_had() {
    for way in [AppInterface::Wsgi, AppInterface::Rack, AppInterface::Fibers] {
        let server = way.serve();
        let mut client = server.connect();
        client.send(head("/lines", "Transfer-Encoding: chunked"));
        for piece in ["one\ntw", "o\n", "\nthree"] {
            client.send(chunk(piece));
        }
        client.send("0\r\n\r\n");
        let lines = client.expect_status(200).text();
        assert_eq!(lines, "one\n|two\n|\n|three", "{way:?}");
        if way != AppInterface::Wsgi {
            client.send(head("/again", "Transfer-Encoding: chunked"));
            client.send(chunk("one")).send(chunk(&"two".repeat(50_000)));
            client.send("0\r\n\r\n");
            assert_eq!(client.expect_status(200).text(), "true", "{way:?}");
        }
    }
}

/// Resident memory of the server and its workers, in KiB.
fn resident(server: &Server) -> usize {
    let mut pids = server.workers("app");
    pids.push(server.pid());
    let of = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
        number.unwrap_or(0)
    };
    pids.into_iter().map(of).sum()
}

#[test]
fn a_slow_application_stops_its_client_and_not_the_memory() {
    const BODY: usize = 64 << 20;
    for way in APP_INTERFACES {
        let limits = "[limits]\nbody_idle_timeout = \"300ms\"\nbody_rate_grace = \"300ms\"";
        let server = way.serve_with(limits, "");
        let before = resident(&server);
        let mut client = server.connect();
        client.send(head("/behind/gate", &format!("Content-Length: {BODY}")));
        client.patience(Duration::from_secs(1));
        let (piece, mut sent) = (vec![b'x'; 64 << 10], 0);
        // Beyond the kernel's buffers of both sides there is no room. A part of a piece may have
        // been sent.
        while sent < BODY && client.try_send(&piece).is_ok() {
            sent += piece.len();
        }
        assert!(sent < BODY / 2, "{way:?}: {sent} bytes were taken");
        let grown = resident(&server).saturating_sub(before);
        assert!(grown < 16 << 10, "{way:?}: {grown} KiB");
        // The client could not have sent in this time.
        server.site().write("gate", "");
        client.patience(PATIENCE);
        drop(client);
        wait_seen(&server, "cut");
        assert_serves_on(&server);
    }
}

#[test]
fn the_time_of_an_application_is_not_the_client_s() {
    const BODY: usize = 1 << 20;
    for way in APP_INTERFACES {
        let limits = "[limits]\nbody_idle_timeout = \"300ms\"\nbody_rate_grace = \"300ms\"";
        let server = way.serve_with(limits, "");
        let mut client = server.connect();
        client.send(head("/behind/gate", &format!("Content-Length: {BODY}")));
        client.send(vec![b'x'; BODY / 2]);
        let begun = Instant::now();
        eventually(PATIENCE, "time passes", || {
            begun.elapsed() > Duration::from_millis(800)
        });
        server.site().write("gate", "");
        client.send(vec![b'x'; BODY / 2]);
        assert_eq!(
            client.expect_status(200).text(),
            BODY.to_string(),
            "{way:?}"
        );
    }
}

#[test]
fn a_client_that_leaves_cuts_the_body() {
    for way in APP_INTERFACES {
        let server = way.serve();
        for path in ["/sum", "/echo"] {
            let mut client = server.connect();
            client.send(head(path, "Content-Length: 10") + "abc");
            wait_begun(&server, 1);
            if path == "/echo" {
                read_until(&mut client, "<abc>");
            }
            drop(client);
            wait_seen(&server, "cut");
            server.site().write("seen.txt", "");
        }
        assert_serves_on(&server);
        assert!(!server.log().contains("Traceback"), "{way:?}");
    }
}

#[test]
fn limits_hold_while_the_application_reads() {
    for way in APP_INTERFACES {
        let limits = "[limits]\nbody_bytes = 100000\nbody_idle_timeout = \"300ms\"";
        let server = way.serve_with(limits, "");
        let mut client = server.connect();
        client.send(head("/sum", "Transfer-Encoding: chunked"));
        wait_begun(&server, 1);
        for _ in 0..11 {
            let _ = client.try_send(chunk(&"x".repeat(10_000)));
        }
        client.expect_status(413);
        let mut silent = server.connect();
        silent.send(head("/sum", "Content-Length: 10") + "abc");
        silent.expect_status(408);
        let mut wrong = server.connect();
        wrong.send(head("/sum", "Transfer-Encoding: chunked"));
        wait_begun(&server, 3);
        wrong.send("3\r\nabc\r\n").send("zz\r\n");
        wrong.expect_status(400);
        eventually(PATIENCE, "each is cut", || {
            server.site().read("seen.txt").matches("cut").count() == 3
        });
        // A response that had begun is truncated.
        let mut begun = server.connect();
        begun.send(head("/echo", "Content-Length: 10") + "abc");
        assert!(
            matches!(begun.try_response(false), Err(ResponseError::Truncated(_))),
            "{way:?}"
        );
        assert_serves_on(&server);
    }
}

#[test]
fn who_answers_early_reads_no_request_out_of_a_body() {
    for way in APP_INTERFACES {
        let server = way.serve();
        let mut client = server.connect();
        client.send(head("/early", "Content-Length: 200000"));
        let answer = client.expect_status(200);
        assert_eq!(answer.text(), "early", "{way:?}");
        assert_eq!(answer.header("connection"), Some("close"));
        let _ = client.try_send(head("/sum", "Content-Length: 0").repeat(20));
        client.expect_closed();
        // A complete body keeps no worker from the next request.
        let mut whole = server.connect();
        whole.send(head("/early", "Content-Length: 3") + "abc");
        whole.expect_status(200);
        whole.send(head("/sum", "Content-Length: 3") + "abc");
        assert_eq!(whole.expect_status(200).text(), "3");
        assert!(
            server
                .site()
                .read("seen.txt")
                .lines()
                .all(|line| line != "whole 0")
        );
    }
}

#[test]
fn a_client_is_invited_to_send_when_the_application_reads() {
    for way in APP_INTERFACES {
        let server = way.serve();
        let expects = "Expect: 100-continue\r\nContent-Length: 3";
        let mut client = server.connect();
        client.send(head("/early", expects));
        client.expect_status(200);
        let mut client = server.connect();
        client.send(head("/behind/gate", expects));
        client.patience(Duration::from_millis(200));
        assert_eq!(client.read_some(), None, "{way:?}: nobody reads it yet");
        client.patience(PATIENCE);
        server.site().write("gate", "");
        client.expect_status(100);
        client.send("abc");
        assert_eq!(client.expect_status(200).text(), "3");
    }
}

#[test]
fn a_long_upload_outlives_the_response_timeout_and_a_slow_answer_does_not() {
    std::thread::scope(|scope| {
        for way in APP_INTERFACES {
            scope.spawn(move || outlives_the_response_timeout(way));
        }
    });
}

fn outlives_the_response_timeout(way: AppInterface) {
    let server = way.serve_with("", "response_timeout = \"2s\"");
    let mut client = server.connect();
    client.send(head("/sum", "Transfer-Encoding: chunked"));
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < Duration::from_secs(5) {
        client.send(chunk("x"));
        sent += 1;
        let now = Instant::now();
        eventually(PATIENCE, "time passes", || {
            now.elapsed() > Duration::from_millis(100)
        });
    }
    client.send("0\r\n\r\n");
    let sum = client.expect_status(200).text();
    assert_eq!(sum, sent.to_string(), "{way:?}");
    let mut slow = server.connect();
    slow.send(head("/after/never", "Transfer-Encoding: chunked"));
    slow.send(chunk("x")).send("0\r\n\r\n");
    slow.expect_status(504);
    server.site().write("never", "");
}

#[test]
fn a_worker_that_dies_within_a_body_costs_that_request_alone() {
    for way in APP_INTERFACES {
        let server = way.serve();
        let mut asked = server.connect();
        asked.send(head("/sum", "Content-Length: 10") + "abc");
        let mut begun = server.connect();
        let is_reactor = way == AppInterface::Asgi || way == AppInterface::Fibers;
        if is_reactor {
            begun.send(head("/echo", "Content-Length: 10") + "abc");
            read_until(&mut begun, "<abc>");
        }
        wait_begun(&server, 1 + usize::from(is_reactor));
        kill(server.workers("app")[0], Signal::KILL);
        asked.expect_status(502);
        eventually(PATIENCE, "another worker serves", || {
            let mut client = server.connect();
            client.send(head("/sum", "Content-Length: 3") + "abc");
            client.response().status == 200
        });
    }
}

#[test]
fn a_reload_leaves_a_body_that_comes_to_its_worker() {
    for way in APP_INTERFACES {
        let server = way.serve_with("", "stream_timeout = \"10s\"");
        let old = server.workers("app")[0];
        let mut client = server.connect();
        client.send(head("/echo", "Transfer-Encoding: chunked"));
        read_until(&mut client, "go");
        client.send(chunk("one"));
        read_until(&mut client, "<one>");
        assert_eq!(server.admin("POST", "/apps/app/restart").status, 200);
        eventually(PATIENCE, "a new worker serves", || {
            server.workers("app").iter().any(|pid| *pid != old)
        });
        assert_serves_on(&server);
        client.send(chunk("two"));
        read_until(&mut client, "<two>");
        client.send("0\r\n\r\n");
        read_until(&mut client, "end\r\n0\r\n\r\n");
    }
}

#[test]
fn a_replaced_worker_waits_for_no_body_beyond_stream_timeout() {
    for way in APP_INTERFACES {
        let server = way.serve_with("", "stream_timeout = \"300ms\"");
        let mut client = server.connect();
        client.send(head("/sum", "Content-Length: 10") + "abc");
        wait_begun(&server, 1);
        assert_eq!(server.admin("POST", "/apps/app/restart").status, 200);
        let answer = client.response();
        assert!(answer.status >= 500, "{way:?}: {}", answer.line);
        wait_seen(&server, "cut");
        assert_serves_on(&server);
    }
}

#[test]
fn a_client_that_leaves_behind_its_body_is_noticed() {
    for way in [AppInterface::Asgi, AppInterface::Fibers] {
        let server = way.serve();
        let mut client = server.connect();
        client.send(head("/after/gate", "Transfer-Encoding: chunked"));
        wait_begun(&server, 1);
        client.send(chunk("abc")).send("0\r\n\r\n");
        wait_seen(&server, "whole 3");
        drop(client);
        let is_noticed = || server.metric("penstock_client_disconnects_total") == Some(1.0);
        eventually(
            PATIENCE,
            "it is noticed before there is an answer",
            is_noticed,
        );
        server.site().write("gate", "");
        assert_serves_on(&server);
    }
}

#[test]
fn what_follows_a_body_that_came_in_pieces_is_the_next_request() {
    for way in APP_INTERFACES {
        let server = way.serve();
        let mut client = server.connect();
        client.send(head("/sum", "Transfer-Encoding: chunked"));
        wait_begun(&server, 1);
        let next = head("/sum", "Content-Length: 2") + "ab";
        client.send(chunk("abc"));
        client.send(format!("0\r\nX-Sum: 1\r\n\r\n{next}{next}"));
        for sum in ["3", "2", "2"] {
            assert_eq!(client.expect_status(200).text(), sum, "{way:?}");
        }
    }
}
